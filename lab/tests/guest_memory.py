"""A guest seen from its host, compared with what it sees itself: all of its own /proc/kallsyms, its modules, its processes; and a process
that somebody took out of the kernel's list.

The guest is one of Debian's kernels with KASLR, busybox, some modules, and nothing of kpat. What it sees it writes to a folder of the host's
(9p) before anybody looks from outside. QEMU is started with nothing but a QMP socket.
"""
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from kpatlab import btf, guest, initramfs, kernel, look

from .emulated import Emulated, Ended, Silent, monitor

INIT = b"""#!/bin/busybox sh
/bin/busybox mount -t proc p /proc
/bin/busybox mount -t sysfs s /sys
echo 0 > /proc/sys/kernel/kptr_restrict
cd /m
while read m; do [ -n "$m" ] && /bin/busybox insmod /m/$m.ko; done < /mods
/bin/busybox mkdir /out
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 out /out
/bin/busybox sleep 100001 &
/bin/busybox sleep 100002 &
/bin/busybox dd if=/proc/kallsyms of=/out/kallsyms bs=256k iflag=fullblock
/bin/busybox cat /proc/modules > /out/modules
/bin/busybox dd if=/sys/kernel/btf/vmlinux of=/out/btf bs=256k
/bin/busybox uname -r > /out/release
/bin/busybox cat /proc/cpuinfo > /out/cpuinfo
/bin/busybox dmesg | /bin/busybox grep -i isolation > /out/isolation
/bin/busybox ps -o pid,ppid,comm > /out/ps
echo > /out/ready
exec /bin/busybox sleep 100000
"""
MODULES = ["?virtio_pci", "9pnet_virtio", "9p", "overlay"]


class Seen(Emulated):
    """A guest that has written what it sees, and stays."""

    def __init__(self, series: str, smp: int, cpu: str, more: str, memory: str):
        super().__init__(series)
        d, self.out, self.name = self.path, self.path / "out", f"seen-{os.getpid()}"
        self.out.mkdir()
        modules = initramfs.Modules(kernel.Kernel(series, "image").tree).load_order(MODULES)
        (d / "initrd").write_bytes(initramfs.build(modules, INIT, kernel.busybox().read_bytes()))
        ram = ["-object", "memory-backend-memfd,id=ram,size=384M,share=on", "-machine", "memory-backend=ram"] if memory == "mapped" else []
        self.boot(["-no-reboot", "-name", self.name, *ram, "-cpu", cpu, "-smp", str(smp), "-serial", f"file:{d / 'console'}",
                   "-fsdev", f"local,id=out,path={self.out},security_model=none", "-device", "virtio-9p-pci,fsdev=out,mount_tag=out"], d / "initrd", more)

    def wait_ready(self) -> None:
        clock, console = guest.Patient(self.process.pid), self.path / "console"
        while not (self.out / "ready").exists():
            ended = self.process.poll() is not None
            if ended or clock.now() > 150:
                raise (Ended if ended else Silent)(console.read_text(errors="replace").splitlines() if console.exists() else [])
            time.sleep(0.1)

    def text(self, name: str) -> str:
        return (self.out / name).read_text()

    def monitor(self, line: str) -> str:
        return monitor(self.qmp, line)

    def place(self, virtual: int) -> int:
        """Where a kernel address is in QEMU's own memory, by QEMU's own page walk."""
        physical = int(self.monitor(f"gva2gpa {virtual:#x}").split()[-1], 16)
        return int(self.monitor(f"gpa2hva {physical:#x}").split()[-1], 16)

    def word(self, virtual: int, new: int | None = None) -> int:
        with open(f"/proc/{self.process.pid}/mem", "r+b", buffering=0) as mem:
            mem.seek(self.place(virtual))
            old, = struct.unpack("<Q", mem.read(8))
            if new is not None:
                mem.seek(-8, os.SEEK_CUR)
                mem.write(struct.pack("<Q", new))
            return old


def member(data: bytes, structure: str, name: str) -> int:
    """Byte offset of a member that is directly in a structure, by the guest's own /sys/kernel/btf/vmlinux."""
    b, at = btf.Btf(data), 0
    while at + 12 <= len(b.types):
        called, info, _ = struct.unpack_from("<III", b.types, at)
        kind, members = info >> 24 & 31, info & 0xFFFF
        once, each = btf.BEHIND.get(kind, (0, 0))
        if kind == 4 and b.text(called) == structure:
            for i in range(members):
                own, _, bits = struct.unpack_from("<III", b.types, at + 12 + 12 * i)
                if b.text(own) == name:
                    return (bits & 0xFFFFFF if info >> 31 else bits) // 8
        at += 12 + once + each * members
    raise AssertionError(f"no {structure}.{name}")


def relocatable(file: Path, functions: list[tuple[int, str]], marked: str, behind: int, build: str) -> None:
    """A module's debug file: functions at these places of .text, of which one has a line so many bytes behind its beginning."""
    source = '\t.file 1 "fs/overlayfs/made.c"\n\t.text\n'
    for at, name in functions:
        source += f"\t.org {at}\n\t.type {name}, @function\n{name}:\n"
        if name == marked:
            source += f"\t.loc 1 6\n\tnop\n\t.skip {behind - 1}\n\t.loc 1 7\n\tnop\n\t.loc 1 9\n\tnop\n"
    source += '\t.section .note.gnu.build-id, "a", @note\n\t.long 4, 20, 3\n\t.asciz "GNU"\n\t.byte ' + ", ".join(f"0x{b:02x}" for b in bytes.fromhex(build)) + "\n"
    subprocess.run(["as", "-o", file], input=source, text=True, check=True, timeout=30)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class GuestMemory(unittest.TestCase):
    """Two processors, five levels of page tables, page tables isolated, memory that this process cannot map."""

    SERIES, SMP, CPU, MORE, MEMORY = "7.2", 2, "max", "pti=on", "private"

    @classmethod
    def setUpClass(cls):
        if not kernel.Kernel(cls.SERIES).ready():
            raise unittest.SkipTest(f"kernel {cls.SERIES} was not fetched")
        cls.guest = Seen(cls.SERIES, cls.SMP, cls.CPU, cls.MORE, cls.MEMORY)

    @classmethod
    def tearDownClass(cls):
        cls.guest.close()

    def ask(self, *words: str) -> dict:
        r = look.kpat("--json", "guest", *words, seconds=60)
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        return json.loads(r.stdout)

    def test_list_has_it(self):
        own, = [g for g in self.ask("list")["guests"] if g["pid"] == self.guest.process.pid]
        self.assertEqual((own["name"], own["vcpus"], own["memory_bytes"], own["accelerator"]), (self.guest.name, self.SMP, 384 << 20, "tcg"))
        self.assertEqual(own["qmp"], [self.guest.qmp])

    def test_every_symbol_is_where_the_guest_has_it(self):
        r = look.kpat("guest", "symbols", self.guest.name, "--tsv", "--no-header", seconds=60)
        self.assertEqual(r.returncode, 0, r.stderr.decode())
        ours = set()
        for line in r.stdout.decode().splitlines():
            address, kind, name, module, _ = line.split("\t")
            ours.add((int(address, 16), kind.lower() if module else kind, name, module))
        theirs = set()
        for line in self.guest.text("kallsyms").splitlines():
            address, kind, name, *module = line.split()
            module = module[0].strip("[]") if module else ""
            # Code that the kernel made for itself while it ran is in no table.
            if not module.startswith("__builtin__") and module != "bpf":
                # In capitals where a module exports it.
                theirs.add((int(address, 16), kind.lower() if module else kind, name, module))
        self.assertGreater(len(theirs), 90_000)
        self.assertEqual((len(ours - theirs), len(theirs - ours)), (0, 0), [sorted(ours - theirs)[:3], sorted(theirs - ours)[:3]])
        # A symbol by its address, and a place within it.
        text, = [s for s in theirs if s[2] == "do_sys_openat2"]
        found, = self.ask("symbols", self.guest.qmp, f"{text[0] + 5:#x}")["symbols"]
        self.assertEqual((found["name"], found["offset"]), ("do_sys_openat2", 5))

    def test_doctor_knows_what_it_is(self):
        found = self.ask("doctor", str(self.guest.process.pid))
        theirs = {line.split()[2]: int(line.split()[0], 16) for line in self.guest.text("kallsyms").splitlines()}
        self.assertEqual(int(found["linux"]["base"], 16), theirs["_text"])
        self.assertEqual(found["linux"]["release"], self.guest.text("release").strip())
        self.assertEqual(found["linux"]["modules"], len(self.guest.text("modules").splitlines()))
        self.assertTrue(found["linux"]["btf"])
        self.assertEqual(found["five_level_page_tables"], " la57" in self.guest.text("cpuinfo"))
        self.assertEqual("isolation: enabled" in self.guest.text("isolation"), "pti=on" in self.MORE)
        self.assertEqual(found["page_table_isolation"], "pti=on" in self.MORE)
        self.assertEqual(found["ram_mapped_bytes"] > 0, self.MEMORY == "mapped")
        self.assertEqual([w["name"] for w in found["ways"] if w["works"]], ["memory", "mailbox", "debugger"])
        print(f"\nguest {self.SERIES} {self.CPU} {self.MEMORY}: attach {found['attach_ms']:.1f} ms, symbols {found['symbols_ms']:.0f} ms (kallsyms "
              f"{found['steps']['kallsyms_ms']:.0f}, types {found['steps']['btf_ms']:.0f}), 64 bytes in {found['read_64_bytes_ns']:.0f} ns")
        again = self.ask("doctor", "--stop", self.guest.qmp)
        self.assertEqual([w["against"] for w in again["ways"] if w["name"] == "debugger"], [""])
        self.assertIn("running", self.guest.monitor("info status"))

    def processes(self) -> dict[int, dict]:
        return {p["pid"]: p for p in self.ask("processes", self.guest.qmp)["processes"]}

    def test_processes_are_those_of_ps_and_a_hidden_one_is_found(self):
        ours = self.processes()
        rows = [line.split(maxsplit=2) for line in self.guest.text("ps").splitlines()[1:]]
        ps = {int(pid): (int(parent), comm) for pid, parent, comm in rows}
        # Workers come and go, and ps itself, the last of busybox, has gone.
        own = max(pid for pid, p in ps.items() if p[1] in ("busybox", "ps"))
        lasting = {pid: p for pid, p in ps.items() if not p[1].startswith("kworker") and pid != own}
        self.assertGreater(len(lasting), 20)
        for pid, (parent, comm) in lasting.items():
            self.assertTrue(pid in ours, (pid, comm))
            self.assertEqual(ours[pid]["parent"], parent, comm)
            # Its init is a script, and has become a sleep.
            self.assertIn(ours[pid]["comm"], (comm, comm[:15], "busybox", "sleep"))
        self.assertEqual({p["pid"] for p in ours.values() if p["pid"] not in ps and not p["comm"].startswith("kworker")}, set())
        self.assertEqual([p for p in ours.values() if not (p["listed"] and p["numbered"])], [])

        # Taken out of the list of tasks, as one hides a process from those that go by it.
        victim = max(pid for pid, p in lasting.items() if p[1] in ("busybox", "sleep"))
        link = int(ours[victim]["address"], 16) + member((self.guest.out / "btf").read_bytes(), "task_struct", "tasks")
        after, before = self.guest.word(link), self.guest.word(link + 8)
        self.assertEqual(self.guest.word(after + 8), link)
        with contextlib.ExitStack() as back:
            for place, new in ((before, after), (after + 8, before)):
                back.callback(self.guest.word, place, self.guest.word(place, new))
            hidden = self.ask("processes", self.guest.qmp, "--hidden")
            self.assertEqual([(p["pid"], p["listed"], p["numbered"]) for p in hidden["processes"]], [(victim, False, True)])
            r = look.kpat("guest", "processes", self.guest.qmp, "--hidden", "--strict")
            self.assertEqual(r.returncode, 3, r.stderr)
            self.assertIn(b"hidden: not in the list of tasks", r.stdout)
        self.assertEqual(self.ask("processes", self.guest.qmp)["hidden"], 0)

    def test_source_lines_of_a_module(self):
        with tempfile.TemporaryDirectory() as d:
            ko, file = Path(d) / "own.ko", Path(d) / "overlay.ko"
            ko.write_bytes(initramfs.Modules(kernel.Kernel(self.SERIES, "image").tree).load_order(["overlay"])["overlay"])
            said = lambda *words: subprocess.run([*words, ko], capture_output=True, text=True, check=True, timeout=60).stdout
            build = re.search(r"Build ID: ([0-9a-f]+)", said("readelf", "-n"))[1]
            section = re.search(r"\[ *(\d+)\] \.text ", said("readelf", "-SW"))[1]
            rows = [line.split() for line in said("readelf", "-sW").splitlines()]
            functions = sorted((int(r[1], 16), r[7]) for r in rows if len(r) == 8 and r[3] == "FUNC" and r[6] == section and re.fullmatch(r"ovl_\w+", r[7]))
            names = [name for _, name in functions]
            functions = [(at, name) for at, name in functions if names.count(name) == 1]
            at, name = functions[5]
            # Two instructions behind the kernel's room for its own tracer.
            code = [int(line.split(":")[0], 16) for line in said("objdump", "-d", f"--disassemble={name}").splitlines() if re.match(r" +[0-9a-f]+:\t", line)]
            behind = code[3] - at
            self.assertLess(behind + 8, functions[6][0] - at)
            probe = lambda: look.kpat("--json", "guest", "probe", self.guest.qmp, "overlayfs/made.c:7 count", "--debug", str(file), "--for", "1", seconds=60)
            relocatable(file, functions, name, behind, build)
            r = probe()
            self.assertEqual(0, r.returncode, r.stderr)
            [row] = json.loads(r.stdout)["probes"]
            self.assertEqual((f"{name}+{behind:#x}", "fs/overlayfs/made.c:7"), (row["at"], row["line"][-21:]))
            other = build[:-2] + ("00" if build[-2:] != "00" else "11")
            relocatable(file, functions, name, behind, other)
            self.assertRegex(probe().stderr.decode(), f"another build: its build id is {other}, the guest's module overlay has {build}")
            relocatable(file, [(at + 16 * (n > 3), name) for n, (at, name) in enumerate(functions)], name, behind, build)
            self.assertIn(b"another build of the module overlay", probe().stderr)

    def test_modules_are_those_of_proc_and_a_hidden_one_is_found(self):
        found = self.ask("modules", self.guest.qmp)
        theirs = {w[0]: (int(w[1]), int(w[2]), w[5]) for w in (line.split() for line in self.guest.text("modules").splitlines())}
        self.assertGreaterEqual(len(theirs), 5)
        ours = {m["name"]: (m["size_bytes"], m["users"], m["base"]) for m in found["modules"]}
        self.assertEqual({n: (size, users, int(at, 16)) for n, (size, users, at) in theirs.items()}, {n: (size, users, int(at, 16)) for n, (size, users, at) in ours.items()})
        self.assertEqual({(True, True, True, "live")}, {(m["listed"], m["in_sysfs"], m["in_tree"], m["state"]) for m in found["modules"]})
        self.assertEqual(0, found["hidden"])

        # Taken out of the list, as one hides a module from lsmod.
        victim = next(m for m in found["modules"] if m["name"] == "overlay")
        link = int(victim["address"], 16) + member((self.guest.out / "btf").read_bytes(), "module", "list")
        after, before = self.guest.word(link), self.guest.word(link + 8)
        with contextlib.ExitStack() as back:
            for place, new in ((before, after), (after + 8, before)):
                back.callback(self.guest.word, place, self.guest.word(place, new))
            hidden = self.ask("modules", self.guest.qmp, "--hidden")
            self.assertEqual([(m["name"], m["base"], m["listed"], m["in_sysfs"], m["in_tree"]) for m in hidden["modules"]], [("overlay", victim["base"], False, True, True)])
            r = look.kpat("guest", "modules", self.guest.qmp, "--hidden", "--strict")
            self.assertEqual(r.returncode, 3, r.stderr)
            self.assertIn(b"hidden: not in the list of /proc/modules", r.stdout)
        self.assertEqual(self.ask("modules", self.guest.qmp)["hidden"], 0)

    def test_symbols_of_a_file_are_moved_to_where_the_kernel_is(self):
        symbols = [line.split() for line in self.guest.text("kallsyms").splitlines()]
        text = next(int(s[0], 16) for s in symbols if s[2] == "_text")
        shift = text - 0xFFFFFFFF81000000
        # As if the kernel had been linked there.
        lines = (f"{int(s[0], 16) - shift:016x} {s[1]} {s[2]}" for s in symbols if len(s) == 3 and int(s[0], 16) >= text)
        with tempfile.NamedTemporaryFile("w", suffix=".map") as f:
            f.write("\n".join(lines) + "\n")
            f.flush()
            found, = self.ask("symbols", self.guest.qmp, "--file", f.name, "do_sys_openat2")["symbols"]
        want = next(s[0] for s in symbols if s[2] == "do_sys_openat2")
        self.assertEqual(int(found["address"], 16), int(want, 16))

    def test_who_else_holds_the_socket_is_a_sentence(self):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(self.guest.qmp)
            r = look.kpat("guest", "symbols", self.guest.qmp, seconds=30)
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stderr.decode(), r"\Akpat: .* does not answer: QEMU serves one client at a time, and another program has it\n\Z")
        r = look.kpat("guest", "doctor", "no-such-guest")
        self.assertRegex(r.stderr.decode(), r"\Akpat: no guest is called no-such-guest; there are .*\n\Z")


class GuestMemory61(GuestMemory):
    """One processor, four levels of page tables."""

    SERIES, SMP, CPU, MORE, MEMORY = "6.1", 1, "max,la57=off", "pti=on", "mapped"


class GuestMemory612(GuestMemory):
    SERIES, SMP, CPU, MORE, MEMORY = "6.12", 2, "max", "mitigations=off", "mapped"


class GuestMemory72(GuestMemory):
    SERIES, SMP, CPU, MORE, MEMORY = "7.2", 1, "max,la57=off", "mitigations=off", "mapped"
