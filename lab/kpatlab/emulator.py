"""Which QEMU, and with which options.

Everything runs under TCG: the lab asks for no KVM, so results do not depend on the machine offering it.
The system's QEMU is used when it boots the kernel (Debian 12's 7.2 does); otherwise QEMU 10 from
bookworm-backports, unpacked in the cache beside it.
"""
import ctypes
import os
import re
import signal
import subprocess
from pathlib import Path

from . import cache
from .cache import Refusal, say
from .debian import Suite

NIC_MODELS = {"e100": "i82557b", "e1000e": "e1000e", "igb": "igb", "virtio": "virtio-net-pci"}
NIC_DRIVERS = {"e100": "e100", "e1000e": "e1000e", "igb": "igb", "virtio": "virtio_net"}


class Emulator:
    def __init__(self, argv: list[str], env: dict[str, str], origin: str):
        self.argv, self.env, self.origin = argv, env, origin

    def version(self) -> str:
        r = subprocess.run([*self.argv, "--version"], env={**os.environ, **self.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
        m = re.search(r"version (\S+)", r.stdout.decode(errors="replace"))
        if r.returncode or not m:
            raise Refusal(f"{self.argv[0]} does not run: {r.stdout.decode(errors='replace').strip()[-200:]}")
        return m[1]


def ends_with_its_parent() -> None:
    """For Popen's preexec_fn: a QEMU is killed with the process that started it, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def backport_dir() -> Path:
    return cache.root() / "qemu"


def choose(nics=()) -> Emulator:
    """$KPAT_LAB_QEMU, else QEMU 10 if it was fetched, else the system's. An 82576 (igb), which is in QEMU from 8.1 on, has it fetched where
    the system's is older."""
    if e := os.environ.get("KPAT_LAB_QEMU"):
        if not os.access(e, os.X_OK):
            raise Refusal(f"KPAT_LAB_QEMU names {e}, which is no program; correct it or unset it")
        return Emulator([e], {}, "KPAT_LAB_QEMU")
    tree = backport_dir()
    if (tree / "ready").exists():
        return unpacked(tree)
    system = Emulator([cache.tool("qemu-system-x86_64", "qemu-system-x86")], {}, "system")
    if "igb" in nics and tuple(int(n) for n in re.findall(r"\d+", system.version())[:2]) < (8, 1):
        return fetch()
    return system


def unpacked(tree: Path) -> Emulator:
    libs = f"{tree}/usr/lib/x86_64-linux-gnu"
    data = [x for d in ("usr/share/qemu", "usr/share/seabios") for x in ("-L", str(tree / d))]
    return Emulator([f"{tree}/usr/bin/qemu-system-x86_64", *data], {"LD_LIBRARY_PATH": libs, "QEMU_MODULE_DIR": f"{libs}/qemu"}, "bookworm-backports")


def fetch() -> Emulator:
    """QEMU 10 beside the system's, with those of its libraries that the system lacks."""
    tree = backport_dir()
    if (tree / "ready").exists():
        return unpacked(tree)
    with cache.Lock("fetch-qemu", 1800, "another fetch of QEMU is running"):
        s, old = Suite("bookworm-backports"), Suite("bookworm")
        s.update()
        for p in ("qemu-system-x86", "qemu-system-data", "qemu-system-common", "seabios"):
            if s.show(p):
                s.unpack(p, tree)
        e = unpacked(tree)
        missing = re.findall(r"(\S+) => not found", subprocess.run(["ldd", e.argv[0]], env={**os.environ, **e.env}, stdout=subprocess.PIPE).stdout.decode())
        if missing:
            old.update()
            for d in s.depends("qemu-system-x86"):
                if any(d.startswith(m.split(".so")[0]) for m in missing) and old.show(d):
                    old.unpack(d, tree)
        say(f"QEMU {e.version()} is ready")
        (tree / "ready").touch()
    return e


# A processor that copies and clears bytes quickly (ERMS, FSRM) has the kernel do so byte by byte, and so does the emulator: a fifth of the time of
# a recording.
CPU = "max,erms=off,fsrm=off"
# Debian's kernels clear all memory that they hand out: a tenth of it. Others do not, and then what is read before it is written is another packet's.
QUICK = "init_on_alloc=0"


def machine(det: bool, smp: int, mem: int) -> list[str]:
    """Options of the machine. Deterministic: guest time is the number of executed instructions, in ns.

    One thread emulates all processors in turn. With a thread for each, code that one guest processor patches while another runs
    it can be translated from the bytes of before the patch: a breakpoint that is no longer there is met, and the guest panics. Kernels
    patch themselves at each attaching. It is no slower where this machine has two processors, and uses less of them.
    """
    o = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio", "-m", str(mem)]
    if det:
        return o + ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-cpu", "max,rdrand=off,rdseed=off", "-smp", "1",
                    "-rtc", "base=2025-01-01,clock=vm", "-seed", "1"]
    return o + ["-accel", "tcg,thread=single", "-cpu", CPU, "-smp", str(smp)]


def nics(links: list[str]) -> list[str]:
    """One hub per entry with two cards of that model; card E of link L has the address 52:54:00:00:LL:EE."""
    o = []
    for link, model in enumerate(links):
        if model not in NIC_MODELS:
            raise Refusal(f"no card model {model!r}; there are {', '.join(NIC_MODELS)}")
        for end in (0, 1):
            # The virtual functions of an 82576 lie 16 and 17 places behind it.
            place = f",addr={8 + 4 * link + 2 * end:#x}" if model == "igb" else ""
            o += ["-netdev", f"hubport,id=n{link}{end},hubid={link}", "-device",
                  f"{NIC_MODELS[model]},netdev=n{link}{end},mac={mac(link, end)},romfile={place}"]
    return o


WIRE_MAC = "52:54:00:00:ff:00"


def wire(fd: int) -> list[str]:
    """A card at the other end of a tap device of this machine."""
    return ["-netdev", f"tap,id=wire,fd={fd}", "-device", f"virtio-net-pci,netdev=wire,mac={WIRE_MAC},romfile="]


def mac(link: int, end: int) -> str:
    return f"52:54:00:00:{link:02x}:{end:02x}"
