"""Sockets of the kernel's own: a disk over TCP (NVMe) between two namespaces of a guest, from which one process reads and to which another writes,
past the page cache. Truth is what the processes did by their own count and clock, and the bytes that each end's TCP counted (`ss`)."""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from kpatlab import cache, guest, kernel, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for
from tests.place import lost, sh

SECONDS, TIMES, SIZE = 420, 200, 16384
TARGET, INITIATOR, PORT = "10.9.0.1", "10.9.0.2", 4420
NQN, HOST = "nqn.lab", "11111111-1111-1111-1111-111111111111"
# file, r or w: so many pieces, and how long all calls took
LOAD = f"""
import mmap, os, sys, time
m = mmap.mmap(-1, {SIZE}); m.write(b"x" * {SIZE})
fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
call = os.preadv if sys.argv[2] == "r" else os.pwritev
began, inside = time.clock_gettime_ns(time.CLOCK_REALTIME), 0
for i in range({TIMES}):
    before = time.monotonic_ns()
    if call(fd, [m], i * {SIZE} % (32 << 20)) != {SIZE}: sys.exit(3)
    inside += time.monotonic_ns() - before
    time.sleep(0.002)
print("did", os.getpid(), began, time.clock_gettime_ns(time.CLOCK_REALTIME), inside, flush=True)
"""


def within(ns: str, *argv) -> list:
    """In the network namespace alone: configfs stays where it is."""
    return ["nsenter", f"--net=/run/netns/{ns}", *argv]


def serve(stack) -> None:
    """A disk in memory, offered at the target's port."""
    disks, target = Path("/sys/kernel/config/nullb"), Path("/sys/kernel/config/nvmet")
    sh("mount", "-t", "configfs", "none", "/sys/kernel/config", ok=False)
    if not Path("/dev/nullb0").exists():
        disk = disks / "lab"
        disk.mkdir()
        for key, value in (("size", 64), ("memory_backed", 1), ("power", 1)):
            (disk / key).write_text(str(value))
    system = target / "subsystems" / NQN
    system.mkdir()
    (system / "attr_allow_any_host").write_text("1")
    (system / "namespaces/1").mkdir()
    (system / "namespaces/1/device_path").write_text("/dev/nullb0")
    (system / "namespaces/1/enable").write_text("1")
    port = target / "ports/1"
    port.mkdir()
    for key, value in (("adrfam", "ipv4"), ("trtype", "tcp"), ("trsvcid", PORT), ("traddr", TARGET)):
        (port / f"addr_{key}").write_text(str(value))
    sh(*within("target", "ln", "-s", system, port / "subsystems" / NQN))


def connect() -> None:
    """One queue for requests beside the one for administration."""
    how = f"transport=tcp,traddr={TARGET},trsvcid={PORT},nqn={NQN},hostnqn=nqn.2014-08.org.nvmexpress:uuid:{HOST},hostid={HOST},nr_io_queues=1"
    sh(*within("initiator", sys.executable, "-c", f"import os; os.write(os.open('/dev/nvme-fabrics', os.O_RDWR), {how!r}.encode())"))


def counted() -> dict:
    """Bytes received by each connection of the initiator, by its number."""
    text = sh(*within("initiator", "ss", "-tnieH")).stdout
    return {int(re.search(r"sk:(\w+)", block)[1], 16): int((re.search(r"bytes_received:(\d+)", block) or [0, 0])[1])
            for block in re.split(r"\n(?=ESTAB)", text) if "sk:" in block}


def in_guest(out: Path) -> int:
    cache.run(["modprobe", "-a", "veth", "null_blk", "nvmet", "nvmet-tcp", "nvme-tcp"], "a disk over TCP")
    with contextlib.ExitStack() as stack:
        for ns in ("target", "initiator"):
            sh("ip", "netns", "add", ns)
        sh("ip", "link", "add", "t0", "netns", "target", "type", "veth", "peer", "name", "i0", "netns", "initiator")
        for ns, dev, address in (("target", "t0", TARGET), ("initiator", "i0", INITIATOR)):
            sh("ip", "-n", ns, "address", "add", f"{address}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", "lo", "up")
            sh("ip", "-n", ns, "link", "set", dev, "up")
        serve(stack)
        connect()
        disk = Path("/dev/nvme0n1")
        wait_for(disk.exists, 30, "the disk")
        time.sleep(1)  # what looks at a new disk has looked
        ready = out / "ready"
        recorder = play.Process("record", [play.kpat_path(), "record", "-p", "app,path,profile", "-o", str(out / "x.kbl"), "--ready-file", str(ready), "--for", "200"], out)
        stack.callback(recorder.stop)
        wait_for(ready.exists, 120, "the recorder")
        before, did = counted(), {}
        for how in "rw":
            done = subprocess.run([sys.executable, "-c", LOAD, str(disk), how], capture_output=True, text=True, timeout=120, check=True).stdout
            did[how] = [int(x) for x in done.split()[1:]]
        after = counted()
        (out / "truth.json").write_text(json.dumps({"did": did, "received": {k: v - before[k] for k, v in after.items() if k in before}}))
        recorder.stop()
    return 0


class KernelSockets:
    """One kernel, by its functions; the guest plays once."""

    @classmethod
    def setUpClass(cls):
        cls.kpat = os.path.abspath(play.kpat_path())
        cls.keep = os.environ.get("KPAT_KEEP_KERNEL_SOCKETS")
        cls.out = Path(cls.keep or tempfile.mkdtemp(prefix="kpat-kernel-sockets-")) / cls.series
        if not (cls.keep and (cls.out / "truth.json").exists()):
            shutil.rmtree(cls.out, ignore_errors=True)
            cls.out.mkdir(parents=True)
            env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": cls.kpat}
            argv = [os.path.realpath(sys.executable), "-m", "tests.kernel_sockets", "guest", "/lab"]
            answer = cls.out / "guest.err"
            rc = guest.run(kernel.open_kernel(cls.series), argv, cls.out, smp=2, timeout=SECONDS, mem=2048, cwd="/", env=env,
                           sinks=(cls.out / "guest.out", answer)).rc
            if rc:
                raise AssertionError(f"the guest ended with {rc}: {answer.read_text(errors='replace')[-3000:]}")
        cls.truth = json.loads((cls.out / "truth.json").read_text())
        cls.log = cls.out / "x.kpat"
        sh(cls.kpat, "integrate", "--force", cls.out / "x.kbl", "-o", cls.log)

    @classmethod
    def tearDownClass(cls):
        if not cls.keep:
            shutil.rmtree(cls.out.parent, ignore_errors=True)

    def sql(self, query: str) -> list[list[str]]:
        return [line.split("\t") for line in sh(self.kpat, "sql", self.log, query, "--tsv").stdout.splitlines()[1:]]

    def sockets(self) -> dict:
        return {s["socket_id"]: s for s in json.loads(sh(self.kpat, "app", self.log, "--limit", "0", "--json").stdout)["sockets"]}

    def busiest(self) -> int:
        return int(max(self.truth["received"], key=self.truth["received"].get))

    def test_nothing_was_lost(self):
        self.assertEqual(lost(self, json.loads(sh(self.kpat, "info", "--json", self.out / "x.kbl").stdout)), [])

    def test_what_the_kernel_reads_by_itself_is_read(self):
        """`ss` counted what came, all of which was taken: nothing lay in a queue at either time."""
        wanted, socket = self.truth["received"][str(self.busiest())], self.sockets()[self.busiest()]
        self.assertGreater(wanted, TIMES * SIZE)
        self.assertEqual(socket["received_bytes"], wanted)
        pids = self.sql(f"SELECT DISTINCT pid FROM app_event WHERE socket_id = {self.busiest()} AND crossing = 10")
        self.assertFalse({p for p, *_ in pids} & {str(pid) for pid, *_ in self.truth["did"].values()}, "who waits for a disk reads no socket")

    def test_waiting_for_the_disk_is_not_the_applications(self):
        """Outside of their calls the processes asked nothing."""
        took = sum(end - began for _, began, end, _ in self.truth["did"].values())
        inside = sum(ns for *_, ns in self.truth["did"].values())
        why = json.loads(sh(self.kpat, "why", self.log, str(self.busiest()), "--json").stdout)
        asked = sum(s["ns"] for s in why["stages"] if s["stage"] != "application")
        print(f"{self.series}: in calls {inside / 1e6:.1f} of {took / 1e6:.1f} ms, asked for {asked / 1e6:.1f} ms", file=sys.stderr, flush=True)
        # Before it has written and once it has read, a call does more: that is the application's.
        self.assertTrue(0.5 * inside < asked < inside)

    def test_only_requests_of_disks_count(self):
        requests = json.loads(sh(self.kpat, "profile", self.log, "--json").stdout)["block_requests"]
        self.assertEqual(requests["counted"], requests["completed"])


class KernelSockets612(KernelSockets, unittest.TestCase):
    series = "6.12"


class KernelSockets72(KernelSockets, unittest.TestCase):
    series = "7.2"


if __name__ == "__main__":
    if sys.argv[1:2] == ["guest"]:
        sys.exit(in_guest(Path(sys.argv[2])))
    unittest.main()
