"""Guests that are no Linux, probed by QEMU's debugger interface: a small kernel of this test's own in 64-bit mode, and the firmware that QEMU comes with.

Truth is what the small kernel computes and what its ELF file has, and the firmware's own count of timer interrupts.
"""
import json
import os
import re
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from kpatlab import emulator

from .emulated import monitor
from .place import kpat_for_guests

ROOT = Path(__file__).resolve().parent.parent.parent


class GuestOther(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests()

    def guest(self, *options) -> str:
        folder = tempfile.TemporaryDirectory(prefix="kpat-other-")
        self.addCleanup(folder.cleanup)
        qmp = f"{folder.name}/qmp"
        e = emulator.choose()
        argv = [*e.argv, "-nodefaults", "-no-user-config", "-display", "none", "-m", "32", "-accel", "tcg", "-qmp", f"unix:{qmp},server=on,wait=off", *options]
        process = subprocess.Popen(argv, env={**os.environ, **e.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=emulator.ends_with_its_parent)
        self.addCleanup(lambda: (process.kill(), process.wait(20)))
        self.until(lambda: os.path.exists(qmp))
        return qmp

    def until(self, true, patience: float = 60):
        end = time.monotonic() + patience
        while not true():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def word(self, qmp: str, address: int) -> int:
        return int(monitor(qmp, f"xp /1wx {address:#x}").split(":")[1], 16)

    def probe(self, qmp: str, *words) -> tuple[list[dict], list[dict], str]:
        r = subprocess.run([self.kpat, "--json", "guest", "probe", qmp, *map(str, words)], capture_output=True, text=True, timeout=120)
        self.assertEqual(0, r.returncode, r.stderr)
        found = [json.loads(line) for line in r.stdout.splitlines()]
        return [f for f in found if "probes" not in f], found[-1]["probes"], r.stderr

    def kernel(self, *options) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="kpat-elf-")
        self.addCleanup(folder.cleanup)
        elf = Path(folder.name) / "kernel"
        subprocess.run(["gcc", "-nostdlib", "-static", "-no-pie", "-Wl,-Ttext=0x100000,-e,start,-z,noexecstack,--build-id=none", *options, "-o", elf, ROOT / "lab/guest/kernel.S"], check=True, timeout=60)
        return elf

    def test_source_lines_of_a_kernel_of_its_own(self):
        elf = self.kernel("-g")
        # The first instruction of each line, and of which function it is, as objdump says; its line once more, as addr2line does.
        first, line, function = {}, None, None
        for row in subprocess.run(["objdump", "-dl", elf], capture_output=True, text=True, check=True).stdout.splitlines():
            if m := re.match(r"[0-9a-f]+ <(\w+)>:", row):
                function = m[1]
            elif m := re.search(r"kernel\.S:(\d+)", row):
                line = int(m[1])
            elif (m := re.match(r" +([0-9a-f]+):", row)) and line:
                first.setdefault(line, (int(m[1], 16), function))
        work = {n: at for n, (at, of) in first.items() if of in ("work", "inner")}
        self.assertEqual(7, len(work), first)
        for n, at in work.items():
            self.assertRegex(subprocess.run(["addr2line", "-e", elf, f"{at:#x}"], capture_output=True, text=True, check=True).stdout, rf"lab/guest/kernel\.S:{n}\b")
        start = {function: int(subprocess.run(f"nm {elf} | grep ' {function}$'", shell=True, capture_output=True, text=True, check=True).stdout.split()[0], 16) for function in ("work", "inner")}
        qmp = self.guest("-kernel", str(elf))
        counter = int(subprocess.run(f"nm {elf} | grep ' counter$'", shell=True, capture_output=True, text=True, check=True).stdout.split()[0], 16)
        self.until(lambda: self.word(qmp, counter) > 10)
        # At each line of both functions once for each number that the kernel counts, none missed and none twice.
        entries, counts, _ = self.probe(qmp, "--debug", elf, *(f"guest/kernel.S:{n} @counter" for n in work), "-n", 40 * len(work))
        for n, at in work.items():
            function = first[n][1]
            offset = at - start[function]
            mine = [e for e in entries if e["probe"] == f"guest/kernel.S:{n}"]
            self.assertEqual({(f"{function}+{offset:#x}" if offset else function, True)}, {(e["at"], e["line"].endswith(f"lab/guest/kernel.S:{n}")) for e in mine})
            seen = [e["values"]["@counter"] for e in mine]
            self.assertEqual(list(range(seen[0], seen[0] + len(seen))), seen)
            self.assertGreater(len(seen), 35)
        # A function by its first line, with what it returns.
        entries, _, _ = self.probe(qmp, "--debug", elf, f"kernel.S:{min(work)} arg1 @counter ret", "-n", 10)
        self.assertEqual([(e["values"]["@counter"], 3 * e["values"]["@counter"]) for e in entries], [(e["values"]["arg1"], e["values"]["ret"]) for e in entries])
        self.assertEqual(10, len(entries))
        plain = self.kernel()
        for debug, place, words in (([], min(work), "needs the debug file"), (["--debug", plain], min(work), "no source lines"), (["--debug", elf], max(work) + 1, "the last line with code is")):
            r = subprocess.run([self.kpat, "guest", "probe", qmp, *debug, f"kernel.S:{place} count"], capture_output=True, text=True, timeout=60)
            self.assertEqual(1, r.returncode)
            self.assertIn(words, r.stderr)

    def test_a_kernel_of_its_own(self):
        elf = self.kernel()
        qmp = self.guest("-kernel", str(elf))
        symbols = {line.split()[2]: int(line.split()[0], 16) for line in subprocess.run(["nm", elf], capture_output=True, text=True, check=True).stdout.splitlines()}
        count = lambda: self.word(qmp, symbols["counter"])
        self.until(lambda: count() > 10)
        entries, _, _ = self.probe(qmp, "--symbols", elf, "work arg1 arg2:str @counter ret", "inner arg1 ret if arg1&1", "-n", 60)
        works = [e["values"] for e in entries if e["probe"] == "work"]
        self.assertGreater(len(works), 30)
        first = works[0]["arg1"]
        for n, v in enumerate(works, first):
            self.assertEqual({"arg1": n, "arg2": "odd" if n % 2 else "even", "@counter": n, "ret": 3 * n}, v)
        inner = [e["values"] for e in entries if e["probe"] == "inner"]
        self.assertEqual([(n, 2 * n) for n in range(inner[0]["arg1"], inner[0]["arg1"] + 2 * len(inner), 2)], [(v["arg1"], v["ret"]) for v in inner])
        self.assertTrue(inner[0]["arg1"] % 2)
        # Any instruction, of those that have to be stepped too; and nothing stays behind.
        listing = subprocess.run(["objdump", "-d", "--disassemble=work", elf], capture_output=True, text=True, check=True).stdout
        places = [int(line.split(":")[0], 16) for line in listing.splitlines() if line.startswith("  ")]
        before = monitor(qmp, f"xp /32xb {symbols['work']:#x}")
        _, counts, words = self.probe(qmp, *(f"{p:#x} count" for p in places), "--for", 2)
        self.assertIn("no Linux", words)
        hits = [c["hits"] for c in counts]
        self.assertGreater(min(hits), 5)
        self.assertLessEqual(max(hits) - min(hits), 1, hits)
        self.assertEqual(before, monitor(qmp, f"xp /32xb {symbols['work']:#x}"))
        now = count()
        self.until(lambda: count() > now)
        r = subprocess.run([self.kpat, "guest", "probe", qmp, "--symbols", elf, "work pid"], capture_output=True, text=True, timeout=60)
        self.assertEqual(1, r.returncode)
        self.assertIn("which process runs is known", r.stderr)

    def test_firmware_by_the_count_of_its_timer(self):
        qmp = self.guest()
        ticks = lambda: self.word(qmp, 0x46C)
        self.until(lambda: ticks() > 3)
        # The place of the timer's interrupt is the same in each PC's firmware since the first one: F000:FEA5.
        entries, [counts], _ = self.probe(qmp, "0xffea5 @0x46c:u32", "-n", 15)
        values = [e["values"]["@0x46c:u32"] for e in entries]
        self.assertEqual(list(range(values[0], values[0] + 15)), values)
        now = ticks()
        self.until(lambda: ticks() > now)
