"""Probes in a guest's kernel, put in from outside: counts, values and texts as the guest itself saw them.

The guest is one of Debian's kernels with one program in it (lab/guest/caller.c), which does what it is asked on its console and prints what came of
it. Nothing else is in the guest, and nothing about probes.
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

from kpatlab import emulator, kernel
from kpatlab.initramfs import Archive, Modules

from .emulated import OnConsole, monitor
from .guest_lines import build_id, debug_file
from .place import kpat_for_guests

ROOT = Path(__file__).resolve().parent.parent.parent


class Caller(OnConsole):
    """A guest with the program in it. `control`: a second monitor, at `guest.control`, for the test itself: kpat has the first."""

    READY = "caller ready"

    def __init__(self, series: str, smp: int = 1, more: str = "", options: tuple = ("-no-reboot",), modules: tuple = (), control: bool = False):
        super().__init__(series)
        self.control = f"{self.path}/control"
        if control:
            options = (*options, "-qmp", f"unix:{self.control},server=on,wait=off")
        d = self.path
        subprocess.run(["gcc", "-O1", "-static", "-pthread", "-o", d / "init", ROOT / "lab/guest/caller.c"], check=True, timeout=60)
        a = Archive()
        for name in ("dev", "proc", "sys", "tmp"):
            a.folder(name)
        a.device("dev/console", 5, 1)
        a.file("init", (d / "init").read_bytes(), 0o755)
        for name, code in Modules(kernel.Kernel(series, "image").tree).load_order(list(modules)).items() if modules else ():
            a.file(f"{name}.ko", code)
        (d / "initrd").write_bytes(a.bytes())
        self.boot([*options, "-cpu", emulator.CPU, "-smp", str(smp), *self.serial()], d / "initrd", more)

    def begun(self, word: str, patience: float = 60) -> list[str]:
        """The lines up to the first that begins with `word`, which is the last of them."""
        return self.until(lambda line: re.match(rf"{word}( |$)", line), patience)

    def ask(self, command: str, patience: float = 60) -> list[str]:
        self.send(command)
        # The console repeats what is typed.
        self.begun(re.escape(command))
        return self.begun(command.split()[0], patience)

    def number(self, command: str, patience: float = 60) -> int:
        return int(self.ask(command, patience)[-1].split()[1])


class Probing:
    """`kpat guest probe` as a process; JSON lines."""

    def __init__(self, kpat: str, guest: Caller, *probes: str):
        self.errors = []
        self.process = subprocess.Popen([kpat, "--json", "guest", "probe", guest.qmp, *probes], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.errors.append(line)
            if "the probes are in the guest" in line:
                break
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout))
        self.reader.start()

    def end(self) -> tuple[list[dict], list[dict]]:
        """Ctrl-C: the entries, and what was counted."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.reader.join()
        self.errors += list(self.process.stderr)
        self.process.stdout.close(), self.process.stderr.close()
        assert self.process.returncode == 0, (self.process.returncode, self.errors)
        found = [json.loads(line) for line in self.lines]
        return [f for f in found if "probes" not in f], next(f["probes"] for f in found if "probes" in f)


def library(kpat: str) -> dict:
    """The environment of a program that uses the library."""
    return {**os.environ, "KPAT_GUEST_LIBRARY": str(Path(kpat).parent / "libkpat_guest.so"), "PYTHONPATH": str(ROOT / "crates/guest/python")}


def instructions(guest: Caller, function: str, size: int) -> list[tuple[int, int, str]]:
    """Offset, length and words of each of a function's first instructions, as objdump reads the bytes that QEMU reads."""
    address = guest.ask(f"syms {function}")[0].split()[0]
    code = bytes(int(b, 16) for line in monitor(guest.qmp, f"x /{size}xb 0x{address}").splitlines() for b in line.split(":")[1].split())
    file = Path(guest.folder.name) / "code"
    file.write_bytes(code)
    out = subprocess.run(["objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "-w", file], capture_output=True, text=True, check=True, timeout=30).stdout
    rows = [m for m in (re.match(r"\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t?(.*)", line) for line in out.splitlines()) if m]
    return [(int(m[1], 16), len(m[2].split()), m[3].strip()) for m in rows]


def straight(guest: Caller) -> list[tuple[int, int, str]]:
    """Those of getppid that every call executes: up to its return."""
    found = []
    for at, size, words in instructions(guest, "__x64_sys_getppid", 128):
        found.append((at, size, words))
        if words.startswith(("ret", "jmp")):
            return found
        # Where a branch leads nobody knows here.
        assert not words.startswith("j"), words
    raise AssertionError("getppid does not return")


class GuestProbe(unittest.TestCase):
    """One kernel with two processors, KASLR and five levels of page tables."""

    SERIES, SMP, MORE, HITS = "7.2", 2, "pti=on", 50_000

    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests(cls.SERIES)
        cls.guest = Caller(cls.SERIES, cls.SMP, cls.MORE)
        cls.made = {}

    @classmethod
    def tearDownClass(cls):
        cls.guest.close()

    def code(self) -> str:
        """The bytes of the probed function, read by QEMU itself: nothing of ours has to be right for that."""
        address = self.guest.ask("syms __x64_sys_getppid")[0].split()[0]
        return self.qemu(f"x /16xb 0x{address}")

    def qemu(self, line: str) -> str:
        return monitor(self.guest.qmp, line)

    def straight(self) -> list[tuple[int, int, str]]:
        return straight(self.guest)

    def test_any_instruction_can_be_probed(self):
        before, place = self.code(), "__x64_sys_getppid"
        all_of = self.straight()
        short = [words for _, size, words in all_of if size < 5]
        self.assertGreater(len(short), 3, all_of)
        p = Probing(self.kpat, self.guest, *(f"{place}+{at:#x} count" for at, _, _ in all_of))
        calls = self.guest.number(f"getppid {self.HITS // 10} {self.SMP}", 300)
        # A breakpoint of a process is none of ours.
        self.assertEqual(5, self.guest.number("trap"))
        _, counts = p.end()
        self.assertEqual({(f"{place}+{at:#x}", words): calls for at, _, words in all_of}, {(c["probe"], words): c["hits"] for c, (_, _, words) in zip(counts, all_of)})
        self.assertEqual(before, self.code())
        self.assertEqual(5, self.guest.number("trap"))

    def addresses(self, *names: str) -> dict[str, int]:
        found = (line.split() for line in self.guest.ask(f"syms {' '.join(names)}")[:-1])
        return {words[2]: int(words[0], 16) for words in found}

    def bytes(self, address: int, size: int) -> bytes:
        return bytes(int(b, 16) for line in self.qemu(f"x /{size}xb {address:#x}").splitlines() for b in line.split(":")[1].split())

    def debug_file(self, name: str, other_build: bool = False, alike: tuple = ()) -> tuple[Path, dict[int, int]]:
        """Lines for getppid, one for each instruction from 100 on, and getpid; and by line where its instruction is in getppid. Instructions that are alike have the first one's line."""
        if name in self.made:
            return self.made[name]
        at = self.addresses("__start_notes", "__stop_notes", "_text", "__x64_sys_getppid", "__x64_sys_getpid")
        build = build_id(self.bytes(at["__start_notes"], at["__stop_notes"] - at["__start_notes"]))
        if other_build:
            build = build[:-1] + ("1" if build[-1] == "0" else "0")
        text, function, other = at["_text"], at["__x64_sys_getppid"], at["__x64_sys_getpid"]
        all_of = self.straight()
        rows = [("kernel/sys.c", 100 + n, size) for n, (_, size, _) in enumerate(all_of)]
        for n in alike:
            rows[n] = (*rows[alike[0]][:2], rows[n][2])
        # The last one of both is the same line, of a header.
        rows[-1] = ("include/linux/shared.h", 7, rows[-1][2])
        file = debug_file(Path(self.guest.folder.name) / name, build, {function - text: rows, other - text: [("kernel/sys.c", 90, 4), ("include/linux/shared.h", 7, 5)]})
        self.made[name] = file, {100 + n: at for n, (at, _, _) in enumerate(all_of)}
        return self.made[name]

    def refused(self, *words) -> str:
        r = subprocess.run([self.kpat, "guest", "probe", self.guest.qmp, *map(str, words)], capture_output=True, text=True, timeout=60)
        self.assertEqual(1, r.returncode, r.stderr)
        return r.stderr

    def test_source_lines_are_places_as_offsets_in_functions_are(self):
        before = self.code()
        file, places = self.debug_file("vmlinux")
        # What the function begins with is for the probe at its entry.
        inside = {line: at for line, at in list(places.items())[:-1] if at > 4}
        self.assertGreater(len(inside), 4)
        p = Probing(self.kpat, self.guest, *(f"sys.c:{line} count" for line in inside), "--debug", str(file))
        calls = self.guest.number(f"getppid {self.HITS // 10} {self.SMP}", 300)
        _, counts = p.end()
        self.assertEqual([(f"sys.c:{line}", calls) for line in inside], [(c["probe"], c["hits"]) for c in counts])
        # By whichever of its names: the functions of system calls without arguments have two.
        [name] = {c["at"].split("+")[0] for c in counts}
        self.assertEqual(1, len(set(self.addresses(name, "__x64_sys_getppid").values())))
        self.assertEqual([(f"{name}+{at:#x}", True) for at in inside.values()], [(c["at"], c["line"].endswith(f"kernel/{c['probe']}")) for c in counts])
        p = Probing(self.kpat, self.guest, *(f"__x64_sys_getppid+{at:#x} count" for at in inside.values()))
        self.guest.number(f"getppid {self.HITS // 10} {self.SMP}", 300)
        _, offsets = p.end()
        self.assertEqual([c["hits"] for c in counts], [c["hits"] for c in offsets])
        # A function by its first line, with what it returns; one of two functions that have a line.
        p = Probing(self.kpat, self.guest, "kernel/sys.c:100 ret if pid==1", "__x64_sys_getppid@shared.h:7 count", "--debug", str(file))
        calls = self.guest.number("getppid 30")
        entries, counts = p.end()
        self.assertEqual(([0] * calls, [calls] * 2), ([e["values"]["ret"] for e in entries], [c["hits"] for c in counts]))
        self.assertEqual({"kernel/sys.c:100"}, {e["probe"] for e in entries})
        self.assertEqual(before, self.code())

    def test_each_of_several_places_of_a_line_can_be_probed(self):
        before = self.code()
        second = next(n for n, (at, _, _) in enumerate(self.straight()) if at > 4)
        file, places = self.debug_file("copies", alike=(second, second + 2))
        at = [places[100 + n] for n in (second, second + 2)]
        line = f"kernel/sys.c:{100 + second}"
        p = Probing(self.kpat, self.guest, f"{line} count", f"{line}#2 count", "--debug", str(file))
        calls = self.guest.number(f"getppid {self.HITS // 10} {self.SMP}", 300)
        _, counts = p.end()
        name = counts[0]["at"].split("+")[0]
        self.assertEqual([(f"{name}+{at[0]:#x}", calls, [f"{name}+{at[1]:#x}"]), (f"{name}+{at[1]:#x}", calls, [f"{name}+{at[0]:#x}"])], [(c["at"], c["hits"], c["further_places"]) for c in counts])
        reported = [words for words in p.errors if "places in that function" in words]
        self.assertEqual(1, len(reported), p.errors)
        self.assertIn(f"{name}+{at[1]:#x} (#2)", reported[0])
        self.assertIn("fewer places there", self.refused(f"{line}#3 count", "--debug", file))
        self.assertEqual(before, self.code())

    def test_source_lines_that_are_no_places_are_refused_by_name(self):
        file, _ = self.debug_file("vmlinux")
        other, _ = self.debug_file("other", other_build=True)
        self.assertRegex(self.refused("sys.c:100 count"), r"sys\.c:100: a source line needs the debug file .*vmlinux-[67]\.")
        words = self.refused("sys.c:100 count", "--debug", other)
        self.assertRegex(words, "other: the file is of another build: its build id is ([0-9a-f]{40}), the guest's kernel has ([0-9a-f]{40})")
        for probe, why in {"sys.c:50": "no code at line 50; the next line with code is 90", "sys.c:5000": "the last line with code is", "syss.c:100": "there is sys.c",
                           "shared.h:7": "in 2 functions", "schedule@shared.h:7": "no code in schedule"}.items():
            self.assertIn(why, self.refused(f"{probe} count", "--debug", file))

    def test_source_lines_for_handlers(self):
        file, places = self.debug_file("vmlinux")
        line, at = list(places.items())[-2]
        script = f'''
import kpat_guest
seen = []
with kpat_guest.Guest({self.guest.qmp!r}) as g:
    try:
        g.xp("sys.c:{line}")
    except kpat_guest.Error as e:
        print("debug file" in str(e))
    g.debug_file({str(file)!r})
    def hit(hit):
        seen.append(hit.registers.rip - g.symbol("__x64_sys_getppid"))
        if len(seen) == 5:
            g.stop()
    g.xp("sys.c:{line}", hit)
    print("waiting", flush=True)
    g.loop()
    print(seen)
'''
        p = subprocess.Popen([sys.executable, "-B", "-c", script], env=self.library(), stdout=subprocess.PIPE, text=True)
        self.assertEqual(["True\n", "waiting\n"], [p.stdout.readline(), p.stdout.readline()])
        self.guest.ask("getppid 20")
        out, _ = p.communicate(timeout=60)
        self.assertEqual(f"{[at] * 5}\n", out)

    def test_handlers_before_and_after_an_instruction_without_room_for_a_jump(self):
        at = next(at for at, size, words in instructions(self.guest, "do_sys_openat2", 64) if words == "push   %rbx")
        script = f'''
import kpat_guest, struct
seen, done = [], []
with kpat_guest.Guest({self.guest.qmp!r}) as g:
    def before(hit):
        seen.append((hit.registers.rsp, hit.registers.rbx))
    def after(hit):
        rsp, rbx = seen.pop()
        print(rsp - hit.registers.rsp, struct.unpack("<Q", g.read(hit.registers.rsp, 8))[0] == rbx, flush=True)
        done.append(1)
        if len(done) == 20:
            g.stop()
    handle = g.xp("do_sys_openat2+{at:#x}", before, after)
    print("waiting", flush=True)
    g.loop()
    print(g.missed(handle), g.hits(handle))
    for wrong in (g.unregister, g.enable):
        try:
            wrong(handle + 1000)
        except kpat_guest.Error as e:
            print(str(e) == f"there is no probe {{handle + 1000}}")
'''
        p = subprocess.Popen([sys.executable, "-B", "-c", script], env=self.library(), stdout=subprocess.PIPE, text=True)
        self.assertEqual("waiting\n", p.stdout.readline())
        self.guest.ask("open 40")
        out, _ = p.communicate(timeout=60)
        self.assertEqual(["8 True"] * 20 + ["0 20", "True", "True"], out.splitlines())

    def test_a_guests_own_probe_and_ours_with_breakpoints_do_not_meet(self):
        self.guest.ask("kprobe do_sys_openat2+7")
        p = Probing(self.kpat, self.guest, *(f"__x64_sys_getppid+{at:#x} count" for at, size, _ in self.straight() if size < 5))
        self.guest.ask("open 30")
        calls = self.guest.number("getppid 1000")
        _, counts = p.end()
        self.assertEqual({calls}, {c["hits"] for c in counts})
        # And the few files that the program itself opened for that.
        self.assertIn(self.guest.number("kprobe off"), range(30, 35))

    def test_members_that_lie_inside_and_values_as_histograms(self):
        p = Probing(self.kpat, self.guest, "__x64_sys_getppid task:task_struct.comm:str @jiffies_64 if tgid==1")
        self.guest.number("getppid 10")
        entries, _ = p.end()
        self.assertEqual(({"init"}, 10), ({e["values"]["task:task_struct.comm"] for e in entries}, len(entries)))
        ticks = [e["values"]["@jiffies_64"] for e in entries]
        self.assertEqual(sorted(ticks), ticks)
        p = Probing(self.kpat, self.guest, "__x64_sys_openat sys2:str sys3 if tgid==1", "--hist")
        self.guest.ask("open 8"), self.guest.ask("open 3")
        entries, [counts] = p.end()
        self.assertEqual(([], 11), (entries, counts["hits"]))
        self.assertEqual({f"/f{n}": 2 if n < 3 else 1 for n in range(8)}, {t["text"]: t["hits"] for t in counts["values"]["sys2"]["texts"]})
        self.assertEqual([{"from": 0, "to": 0, "hits": 11}], counts["values"]["sys3"]["numbers"])

    def test_what_handlers_ask_for_of_probes_and_memory(self):
        script = f'''
import ctypes, kpat_guest
seen = []
with kpat_guest.Guest({self.guest.qmp!r}) as g:
    def refused(what, *more):
        try:
            what(*more)
        except kpat_guest.Error as e:
            return str(e)
    def returned(hit):
        seen.append((g.hits(handle), g.missed(handle)))
        if len(seen) == 3:
            print(refused(g.enable, 999), refused(g.unregister, 999))
            g.unregister(other)
        if len(seen) == 4:
            print(refused(g.enable, other) == f"there is no probe {{other}}")
            to = ctypes.create_string_buffer(b"-" * 16, 16)
            print(g.library.read(g.pointer, behind - 8, to, 16), to.raw)
            g.stop()
    # The kernel's last page, and behind it nothing.
    behind = next(p for p in range(g.symbol("_end") & -4096, 1 << 64, 4096) if refused(g.read, p, 1))
    handle = g.xrp("__x64_sys_getppid", None, returned)
    other = g.xp("__x64_sys_getpid", lambda hit: None)
    print("waiting", flush=True)
    g.loop()
    print(seen)
'''
        p = subprocess.Popen([sys.executable, "-B", "-c", script], env=self.library(), stdout=subprocess.PIPE, text=True)
        self.assertEqual("waiting\n", p.stdout.readline())
        self.guest.ask("getppid 20")
        out, _ = p.communicate(timeout=60)
        lines = out.splitlines()
        self.assertEqual(["there is no probe 999 there is no probe 999", "True", f"-1 {b'-' * 16}", str([(n, 0) for n in range(4)])], lines, out)

    def test_conditions_on_addresses_and_one_probe_at_a_place(self):
        """A program's buffer is below all that is the kernel's."""
        p = Probing(self.kpat, self.guest, "ksys_read arg1:x arg1 if arg2 < 0xff00000000000000 and arg3 == 1 and tgid == 1", "vfs_read count if arg2 >= 0xff00000000000000 and tgid == 1")
        self.guest.ask("read 30")
        entries, counts = p.end()
        # What the console is asked is read, too.
        self.assertTrue(30 <= counts[0]["hits"] <= 200, counts)
        self.assertEqual(0, counts[1]["hits"])
        self.assertEqual({hex(int(str(e["values"]["arg1"]), 0)) for e in entries}, {e["values"]["arg1:x"] for e in entries})
        self.assertIn("there is a probe at vfs_read", self.refused("vfs_read count", "vfs_read arg1"))
        self.assertIn("is not in vfs_read, but in", self.refused("vfs_read+0x100000 count"))

    def test_handlers_of_a_shared_object(self):
        library, d = Path(self.kpat).parent, Path(self.guest.folder.name)
        subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{ROOT}/crates/guest/include", "-o", d / "handlers.so", ROOT / "crates/guest/examples/c/handlers.c",
                        f"-L{library}", "-lkpat_guest", f"-Wl,-rpath,{library}"], check=True, timeout=60)
        p = subprocess.Popen([self.kpat, "guest", "attach", self.guest.qmp, d / "handlers.so", "15", "__x64_sys_getpid", "__x64_sys_unlink"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("handlers are in", p.stderr.readline())
        self.guest.ask("unlink 20")
        out, err = p.communicate(timeout=60)
        self.assertEqual((0, "__x64_sys_unlink 15\n"), (p.returncode, out), err)
        # A source line is a place for them, too; and a file of another build is refused before they are asked.
        file, _ = self.debug_file("vmlinux")
        p = subprocess.Popen([self.kpat, "guest", "attach", self.guest.qmp, "--debug", file, d / "handlers.so", "15", "kernel/sys.c:100"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("handlers are in", p.stderr.readline())
        self.guest.ask("getppid 20")
        out, err = p.communicate(timeout=60)
        self.assertEqual((0, "kernel/sys.c:100 15\n"), (p.returncode, out), err)
        other, _ = self.debug_file("other", other_build=True)
        r = subprocess.run([self.kpat, "guest", "attach", self.guest.qmp, "--debug", other, d / "handlers.so", "15", "kernel/sys.c:100"], capture_output=True, text=True, timeout=60)
        self.assertEqual((1, True), (r.returncode, "of another build" in r.stderr), r.stderr)
        r = subprocess.run([self.kpat, "guest", "attach", self.guest.qmp, d / "handlers.so", "15", "nothing_like_it"], capture_output=True, text=True, timeout=60)
        self.assertEqual(1, r.returncode)
        self.assertIn("no symbol nothing_like_it", r.stderr)

    def test_counts_are_those_of_the_caller(self):
        before = self.code()
        p = Probing(self.kpat, self.guest, "__x64_sys_getppid count", "__x64_sys_getpid count if pid==1")
        calls = self.guest.number(f"getppid {self.HITS} {self.SMP}", 300)
        self.assertEqual(calls, self.HITS * self.SMP)
        entries, counts = p.end()
        self.assertEqual(([], calls, 0), (entries, counts[0]["hits"], counts[1]["hits"]))
        # Byte for byte as it was, and without the device.
        self.assertEqual(before, self.code())
        self.assertNotIn("ivshmem", self.qemu("info pci") + self.qemu("info mtree -f"))

    def test_counts_are_those_of_the_guests_own_tracer(self):
        # By either name: the functions of system calls without arguments have two. As many processes at once as the guest has processors.
        self.guest.number("ftrace *_sys_getppid")
        p = Probing(self.kpat, self.guest, "__x64_sys_getppid count")
        calls = self.guest.number(f"getppid 20000 {self.SMP}", 180)
        _, counts = p.end()
        self.assertEqual((calls, calls, 20000 * self.SMP), (self.guest.number("ftrace off"), counts[0]["hits"], calls))

    def test_texts_and_results_are_those_that_the_program_printed(self):
        p = Probing(self.kpat, self.guest, "__x64_sys_unlink sys1:str ret", "__x64_sys_openat sys2:str sys1:s32 if tgid==1")
        printed = [line.split()[1:] for line in self.guest.ask("unlink 40") if line.startswith("unlinked")]
        self.guest.ask("open 40")
        entries, counts = p.end()
        self.assertEqual((40, 0, 0), (len(printed), counts[0]["lost"], counts[0]["returns_not_seen"]))
        unlinks = [e for e in entries if "unlink" in e["probe"]]
        self.assertEqual([(a, int(b)) for a, b in printed], [(e["values"]["sys1"], e["values"]["ret"]) for e in unlinks])
        self.assertTrue(all(e["comm"] == "init" and e["pid"] == 1 and e["dur_ns"] > 0 for e in unlinks), unlinks[0])
        opens = [e["values"] for e in entries if "openat" in e["probe"] and e["values"]["sys2"].startswith("/f")]
        self.assertEqual([(f"/f{n}", -100) for n in range(40)], [(v["sys2"], v["sys1:s32"]) for v in opens])

    def test_every_call_has_its_entry(self):
        p = Probing(self.kpat, self.guest, "__x64_sys_getppid pid ret")
        calls = self.guest.number("getppid 5000 2", 120)
        entries, counts = p.end()
        c = counts[0]
        self.assertEqual((calls, calls), (len(entries), c["hits"] + c["lost"] + c["returns_not_seen"]), c)
        # The first process has no parent; of its child it is the parent.
        self.assertEqual({(1, 0)}, {(min(e["pid"], 2), e["values"]["ret"]) for e in entries if e["pid"] == 1})
        self.assertEqual({1}, {e["values"]["ret"] for e in entries if e["pid"] != 1})

    def test_a_killed_program_leaves_a_guest_that_goes_on_and_is_cleaned_up(self):
        before = self.code()
        seed = random.randrange(1 << 30)
        chance = random.Random(seed)
        short = next(at for at, size, _ in self.straight() if size < 5)
        for _ in range(self.KILLS):
            p = subprocess.Popen([self.kpat, "guest", "probe", self.guest.qmp, "__x64_sys_getppid ret", f"__x64_sys_getppid+{short:#x} pid", "--for", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0, 1.5))
            p.kill()
            p.wait(20)
            self.assertEqual(1000, self.guest.number("getppid 1000", 60), f"seed {seed}")
            self.assertEqual(5, self.guest.number("trap"), f"seed {seed}")
        Probing(self.kpat, self.guest, "__x64_sys_getppid count").end()
        self.assertEqual(before, self.code(), f"seed {seed}")

    KILLS = 4

    def test_a_killed_programs_missed_hits_are_counted(self):
        before = self.code()
        p = self.example("latency", "__x64_sys_getppid", 1 << 30)
        self.assertEqual("waiting\n", p.stdout.readline())
        self.guest.number("getppid 200", 60)
        p.kill()
        p.communicate(timeout=20)
        # Nobody answers: the first waits for its time, the others go on.
        self.assertEqual(300, self.guest.number("getppid 300", 60))
        q = Probing(self.kpat, self.guest, "__x64_sys_getpid count")
        q.end()
        report = re.search(r"put back (\d+) places? .*; (\d+) hits? went on without it", "".join(q.errors))
        self.assertTrue(report, q.errors)
        # Of each call entry and return; a return whose entry was missed is none.
        self.assertEqual(1, int(report[1]))
        self.assertTrue(300 <= int(report[2]) <= 600, report[0])
        self.assertEqual(before, self.code())

    def test_two_programs_at_one_guest_are_refused(self):
        p = Probing(self.kpat, self.guest, "__x64_sys_getppid count")
        r = subprocess.run([self.kpat, "guest", "probe", str(self.guest.process.pid), "__x64_sys_getpid count"], capture_output=True, text=True, timeout=60)
        self.assertEqual(1, r.returncode)
        self.assertRegex(r.stderr, "another program")
        self.assertNotIn("panicked", r.stderr)
        p.end()

    def test_places_that_cannot_be_probed_are_refused_by_name(self):
        for place, words in {"asm_exc_page_fault": "kernel's entry", "exc_int3": "breakpoints, NMIs", "__x64_sys_getppid+0x1": "inside of an instruction", "nothing_like_it": "no symbol"}.items():
            r = subprocess.run([self.kpat, "guest", "probe", self.guest.qmp, f"{place} count"], capture_output=True, text=True, timeout=60)
            self.assertEqual(1, r.returncode, r.stderr)
            self.assertIn(words, r.stderr)

    def test_the_programs_in_c_do_what_they_say(self):
        library = Path(self.kpat).parent
        self.assertTrue((library / "libkpat_guest.so").exists(), "cargo build -p kpat-guest")
        d = Path(self.guest.folder.name)
        for name in ("opens", "unlinks"):
            subprocess.run(["gcc", "-Wall", "-Werror", f"-I{ROOT}/crates/guest/include", "-o", d / name, ROOT / f"crates/guest/examples/c/{name}.c", f"-L{library}",
                            "-lkpat_guest", f"-Wl,-rpath,{library}"], check=True, timeout=60)
        run = lambda name: subprocess.Popen([d / name, self.guest.qmp], stdout=subprocess.PIPE, text=True)
        p = run("opens")
        self.assertEqual("waiting\n", p.stdout.readline())
        self.guest.ask("open 25")
        self.assertEqual(("10 opens, ended by 0\n", None), p.communicate(timeout=60))
        self.assertEqual(0, p.returncode)
        p = run("unlinks")
        self.assertEqual("waiting\n", p.stdout.readline())
        printed = [line.split()[1:] for line in self.guest.ask("unlink 7") if line.startswith("unlinked")][:5]
        out, _ = p.communicate(timeout=60)
        self.assertEqual("".join(f"unlink {path}\nunlinked {path} {result}\n" for path, result in printed), out)


    def library(self) -> dict:
        return library(self.kpat)

    def example(self, name: str, *words) -> subprocess.Popen:
        library = Path(self.kpat).parent / "libkpat_guest.so"
        self.assertTrue(library.exists(), "cargo build -p kpat-guest")
        env = {**os.environ, "KPAT_GUEST_LIBRARY": str(library), "PYTHONPATH": str(ROOT / "crates/guest/python"), "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [sys.executable, ROOT / f"crates/guest/examples/python/{name}.py", self.guest.qmp, *map(str, words)]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def test_python_shows_who_opens_a_file(self):
        p = self.example("who_opens", "/f7", 1)
        self.assertEqual("waiting\n", p.stdout.readline())
        self.guest.ask("open 20")
        self.assertEqual(("1 init /f7 -2\n", None), p.communicate(timeout=60))
        self.assertEqual(0, p.returncode)

    def test_python_spreads_the_times_of_a_function(self):
        p = self.example("latency", "__x64_sys_clock_nanosleep", 5)
        self.assertEqual("waiting\n", p.stdout.readline())
        for _ in range(5):
            self.guest.ask("sleep 40")
        out, _ = p.communicate(timeout=60)
        rows = [(int(line.split()[0]), int(line.split()[2])) for line in out.splitlines()]
        self.assertEqual(5, sum(n for _, n in rows))
        # Each of 40 ms and what waking takes.
        self.assertTrue(all(from_ns >= 1 << 25 for from_ns, n in rows if n), rows)

    def test_python_finds_no_hidden_process_where_none_is_and_one_that_was_taken_out_of_a_list(self):
        p = self.example("hidden")
        out, _ = p.communicate(timeout=60)
        self.assertRegex(out, r"^\d+ processes\n$")
        self.guest.ask("sleep 1")
        script = f'''
import kpat_guest, struct
with kpat_guest.Guest({self.guest.qmp!r}) as g:
    [kthreadd] = [p for p in g.processes() if p.pid == 2]
    link = kthreadd.task + g.offset("task_struct.tasks")
    after, before = struct.unpack("<QQ", g.read(link, 16))
    # As a rootkit does: out of the list, and in again.
    g.write(before, struct.pack("<Q", after)), g.write(after + 8, struct.pack("<Q", before))
    print([(p.pid, p.comm) for p in g.processes() if p.hidden])
    g.write(before, struct.pack("<Q", link)), g.write(after + 8, struct.pack("<Q", link))
    print([(p.pid, p.comm) for p in g.processes() if p.hidden])
'''
        env = library(self.kpat)
        r = subprocess.run([sys.executable, "-B", "-c", script], env=env, capture_output=True, text=True, timeout=60)
        self.assertEqual(("[(2, 'kthreadd')]\n[]\n", ""), (r.stdout, r.stderr))

    def test_python_counts_the_system_calls_of_a_process(self):
        asked = {"getppid": 70, "openat": 30, "close": 30, "newfstatat": 1}
        for _ in range(4):
            p = self.example("syscalls", "init")
            probed = int(p.stdout.readline().split()[0])
            self.assertGreater(probed, 300)
            self.guest.ask("getppid 70")
            self.guest.ask("open 30")
            self.guest.ask("stat /init")
            out, _ = p.communicate(input="", timeout=120)
            counts = {line.split()[0]: int(line.split()[1]) for line in out.splitlines()}
            counts["newfstatat"] = counts.get("newfstatat", counts.get("newstat", 0))
            lacks = {name: n - counts.get(name, 0) for name, n in asked.items()}
            # Calls for which the handlers' process, of a busy machine, came too late are counted as missed, and are those that lack.
            self.assertTrue(all(0 <= n for n in lacks.values()) and sum(lacks.values()) <= counts["missed"], counts)
            if not counts["missed"]:
                return
            print(f"guest: of {sum(asked.values())} system calls {counts['missed']} missed", file=sys.stderr)
        self.fail(f"the handlers' process came too late each time: {counts}")

    def test_a_thousand_probes(self):
        before = self.code()
        script = f'''
import kpat_guest, random, time
with kpat_guest.Guest({self.guest.qmp!r}) as g:
    handles = {{}}
    names = [n for n, _, k in g.symbols() if k in "tT" and n.startswith(("__x64_sys_", "tcp_", "ip_", "ext4_", "vfs_", "nfs", "udp", "inet_", "sock_", "skb_"))]
    random.Random(1).shuffle(names)
    g.hold()
    for name in ["__x64_sys_getppid"] + [n for n in names if n != "__x64_sys_getppid"]:
        if len(handles) == 1000:
            break
        try:
            handles[name] = g.xp(name, lambda hit: 0)
        except kpat_guest.Error as e:
            pass
    since = time.monotonic()
    g.commit()
    print(len(handles), flush=True)
    import sys, threading
    threading.Thread(target=lambda: (sys.stdin.readline(), g.stop())).start()
    g.loop()
    print(g.hits(handles["__x64_sys_getppid"]), g.missed(handles["__x64_sys_getppid"]))
'''
        env = library(self.kpat)
        p = subprocess.Popen([sys.executable, "-B", "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual("1000\n", p.stdout.readline())
        self.guest.number("getppid 2000", 120)
        out, _ = p.communicate(input="\n", timeout=120)
        self.assertEqual((["2000", "0"], 0), (out.split(), p.returncode))
        self.assertEqual(before, self.code())


class GuestProbe61(GuestProbe):
    SERIES, SMP, MORE, HITS, KILLS = "6.1", 1, "pti=off", 1_000_000, 200


class GuestProbe612(GuestProbe):
    SERIES, SMP, MORE, HITS, KILLS = "6.12", 2, "pti=on", 500_000, 40
