"""A guest's packets recorded from its host with nothing installed in the guest, and joined with what the host has of them.

The guest is one of Debian's kernels with busybox, a program that sends numbered datagrams, and its drivers; it has a virtio card at a tap
in a network namespace of this test's own. Truth is the capture of the tap as tshark reads it, the functions that the guest's own ftrace saw, and
what the programs say they sent and received.
"""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from kpatlab import emulator, initramfs, kernel

ROOT = Path(__file__).resolve().parent.parent.parent
GUEST, HOST, PORT = "10.77.0.2", "10.77.0.1", 9000
INIT = b"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t tracefs t /sys/kernel/tracing
while read m; do [ -n "$m" ] && insmod /m/$m.ko; done < /mods
ip addr add 10.77.0.2/24 dev eth0; ip link set lo up; ip link set eth0 up
echo 0 > /proc/sys/net/ipv6/conf/all/disable_ipv6
cat /proc/sys/kernel/random/boot_id > /boot_id
echo "talker" "ready"
while read line; do eval "$line"; echo "end" "of" "command"; done
"""
MODULES = ["?virtio_pci", "?virtio_net"]


class Talker:
    """A guest at a tap in a namespace, a shell on its console, its QMP socket in a folder."""

    def __init__(self, series: str, smp: int = 1, more: str = ""):
        self.folder = tempfile.TemporaryDirectory(prefix="kpat-guest-")
        d = self.path = Path(self.folder.name)
        self.netns = f"kpat-talk-{os.getpid()}"
        self.process = self.console = None
        try:
            self.start(series, smp, more, d)
        except BaseException:
            self.close()
            raise

    def start(self, series, smp, more, d):
        subprocess.run(["gcc", "-O1", "-static", "-o", d / "talker", ROOT / "lab/guest/talker.c"], check=True, timeout=60)
        k = kernel.Kernel(series, "image")
        modules = initramfs.Modules(k.tree).load_order(MODULES)
        files = initramfs.Archive()
        files.file("bin/talker", (d / "talker").read_bytes(), 0o755)
        (d / "initrd").write_bytes(initramfs.build(modules, INIT, kernel.busybox().read_bytes(), files))
        for words in (f"netns add {self.netns}", f"-n {self.netns} link set lo up", f"-n {self.netns} tuntap add tap0 mode tap",
                      f"-n {self.netns} addr add {HOST}/24 dev tap0", f"-n {self.netns} link set tap0 up"):
            subprocess.run(["ip", *words.split()], check=True, timeout=20)
        e = emulator.choose()
        self.qmp, console = str(d / "qmp"), str(d / "console")
        argv = ["ip", "netns", "exec", self.netns, *e.argv, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-m", "384", "-accel", "tcg,thread=multi",
                "-cpu", "max", "-smp", str(smp), "-chardev", f"socket,id=c,path={console},server=on,wait=off", "-serial", "chardev:c",
                "-qmp", f"unix:{self.qmp},server=on,wait=off", "-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,netdev=n,mac=52:54:00:00:77:02",
                "-kernel", str(k.image()), "-initrd", str(d / "initrd"), "-append", f"console=ttyS0 quiet panic=-1 net.ifnames=0 {more}"]
        self.process = subprocess.Popen(argv, env={**os.environ, **e.env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.console = socket.socket(socket.AF_UNIX)
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.console.connect(console)
                break
            time.sleep(0.05)
        self.read = b""
        self.until("talker ready", 150)

    def until(self, word: str, patience: float = 60) -> list[str]:
        self.console.settimeout(patience)
        lines = []
        while True:
            while b"\n" in self.read:
                line, self.read = self.read.split(b"\n", 1)
                lines.append(line.decode(errors="replace").strip("\r"))
                if lines[-1].endswith(word):
                    return lines[:-1]
            data = self.console.recv(65536)
            assert data, f"the guest ended: {self.process.stderr.read()[-500:]}"
            self.read += data

    def ask(self, command: str, patience: float = 60) -> list[str]:
        self.console.sendall(command.encode() + b"\n")
        # The console repeats what is typed.
        return [line for line in self.until("end of command", patience) if not line.endswith(command)]

    def inside(self, *argv, **more):
        return subprocess.Popen(["ip", "netns", "exec", self.netns, *map(str, argv)], **more)

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
        if self.process:
            self.process.wait(20)
            self.process.stderr.close()
        if self.console:
            self.console.close()
        subprocess.run(["ip", "netns", "del", self.netns], stderr=subprocess.DEVNULL, timeout=20)
        self.folder.cleanup()
