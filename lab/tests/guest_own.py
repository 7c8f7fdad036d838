"""What a guest does itself at functions that are probed from outside: its own return probe and its tracer, which keep return addresses; places that a module's tables name; code that has
probes in it already; numbers as narrow as the guest's types are.
"""
import re
import signal
import subprocess
import sys
import time
import unittest

from kpatlab import kernel
from kpatlab.initramfs import Modules

from .guest_life import Watched
from .guest_probe import Caller, Probing, instructions, library, monitor, straight
from .place import kpat_for_guests

TRACING = "/sys/kernel/tracing"
READ = ("vfs_read", "ksys_read", "__x64_sys_read")


class GuestOwn(unittest.TestCase):
    SERIES, SMP = "6.12", 2

    # What these change in the guest they undo, and they look at nothing that others leave.
    TOGETHER = {"test_calls_that_end_with_their_thread_are_in_nobodys_way", "test_what_is_no_code_or_is_written_anew_is_refused", "test_places_that_a_module_rewrites_are_refused",
                "test_each_instruction_one_after_the_other", "test_numbers_are_as_narrow_as_their_types"}
    common = None

    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests(cls.SERIES)

    @classmethod
    def tearDownClass(cls):
        cls.let_go()

    @classmethod
    def let_go(cls):
        if cls.common:
            cls.common.close()
            cls.common = None

    def setUp(self):
        if self._testMethodName not in self.TOGETHER:
            self.guest = self.booted()
            self.addCleanup(self.guest.close)
            return
        if not self.common:
            type(self).common = self.booted()
        self.guest = self.common

    def run(self, result=None):
        failed = lambda: len(result.failures) + len(result.errors)
        before = failed()
        super().run(result)
        if failed() > before:  # nobody knows how that left it
            self.let_go()

    def booted(self) -> Caller:
        return Caller(self.SERIES, self.SMP, modules=("tun",), control=True)

    def put(self, file: str, text: str):
        self.assertEqual(["put"], self.guest.ask(f"put {TRACING}/{file} {text}"))

    def open_calls_return(self):
        """Asleep in three functions when the probes go, one of which jumps to another."""
        p = Watched(self.kpat, self.guest, *(f"{f} ret" for f in READ), "--maxactive", "100")
        self.assertEqual(30, self.guest.number("readers 30"))
        p.process.send_signal(signal.SIGINT)
        p.ended()
        self.assertEqual((0, []), (p.process.returncode, [e for e in p.errors if "probes are in" not in e]))
        self.assertEqual(30, self.guest.number("release"))
        self.assertEqual(50, self.guest.number("getppid 50"))

    def test_calls_return_whose_return_the_guest_itself_takes(self):
        self.open_calls_return()
        self.put("kprobe_events", "r:mine vfs_read")
        self.put("events/kprobes/mine/enable", "1")
        self.open_calls_return()
        self.put("events/kprobes/mine/enable", "0")
        self.put("set_graph_function", "vfs_read")
        self.put("current_tracer", "function_graph")
        self.open_calls_return()

    def test_code_that_the_guest_changes_at_a_probe_is_reported(self):
        at = next(at for at, size, words in instructions(self.guest, "ksys_read", 128) if size > 6 and words.startswith("mov "))
        place = f"ksys_read+{at:#x}"
        address = int(self.guest.ask("syms ksys_read")[0].split()[0], 16) + at
        byte = lambda: monitor(self.guest.control, f"x /1xb {address:#x}").split()[-1]
        before = byte()
        # A probe of the guest's own, which its kernel turns into a jump after a while. Ours takes the place of that.
        self.put("kprobe_events", f"p:mine {place}")
        self.put("events/kprobes/mine/enable", "1")
        for _ in range(200):
            if byte() == "0xe9":
                break
            time.sleep(0.05)
        self.assertEqual("0xe9", byte())
        p = Watched(self.kpat, self.guest, f"{place} count", "__x64_sys_getppid count")
        self.assertEqual(7, self.guest.number("getppid 7"))
        self.put("events/kprobes/mine/enable", "0")
        for _ in range(200):
            if byte() == before:
                break
            time.sleep(0.05)
        p.process.send_signal(signal.SIGINT)
        p.ended()
        self.assertEqual([f"kpat: the guest has changed the code at {place} meanwhile, for a probe or tracer of its own: calls since may not be counted\n"],
                         [e for e in p.errors if "probes are in" not in e])
        self.assertEqual(before, byte())

    def test_the_guests_tracer_and_breakpoints_go_where_probes_are(self):
        """What it sees is what its own counters say, the probes see it, too, and its code is its own afterwards."""
        function = "do_sys_openat2"
        # Its own code as it is without anybody's probe: the same bytes at each end.
        address = int(self.guest.ask(f"syms {function}")[0].split()[0], 16)
        code = lambda: monitor(self.guest.control, f"x /192xb {address:#x}")
        inside = [(at, size, words) for at, size, words in instructions(self.guest, function, 192) if at > 8]
        jump = next(at for at, size, words in inside if size >= 5 and words.startswith(("mov", "lea", "sub", "and", "cmp")))
        before = code()
        p = Watched(self.kpat, self.guest, f"{function} arg2:str ret if pid==1", "__x64_sys_getppid count")
        for tracer in (f"ftrace {function}", f"kprobe {function}") * 2:
            self.guest.ask("open 3"), self.guest.ask(tracer), self.guest.ask("open 40")
            # And what the program itself opened, to switch that off.
            self.assertIn(self.guest.number(f"{tracer.split()[0]} off"), range(40, 46))
        # Every function's, in hundreds of steps, and the graph of calls.
        for tracer in ("function", "nop", "function_graph", "nop"):
            self.put("set_ftrace_filter", "do_*"), self.put("current_tracer", tracer), self.guest.ask("open 20")
        self.assertEqual(300, self.guest.number("getppid 300"))
        p.process.send_signal(signal.SIGINT)
        counts = p.ended()
        opened = [e["values"]["arg2"] for e in p.entries()]
        # All: none was made while the tracer was switched on or off.
        self.assertEqual([12] * 3 + [8] * 17, [opened.count(f"/f{n}") for n in range(20)])
        self.assertEqual([300], [c["hits"] for c in counts if "getppid" in c["probe"]])
        self.assertEqual((before, []), (code(), [e for e in p.errors if "probes are in" not in e]))
        # A breakpoint of its own upon a jump of ours, taken away after ours; and where the tool is killed before it could see it come.
        for killed in (False, True):
            p = Watched(self.kpat, self.guest, f"{function}+{jump:#x} count")
            if killed:
                p.process.kill()
                p.process.wait(20)
            self.guest.ask(f"kprobe {function}+{jump}"), self.guest.ask("open 10")
            p.process.send_signal(signal.SIGINT)
            p.ended()
            # What the next command finds stays as long as the guest's breakpoint does.
            Probing(self.kpat, self.guest, "__x64_sys_getppid count").end()
            self.guest.ask("open 10")
            self.assertIn(self.guest.number("kprobe off"), range(20, 26))
            self.guest.ask("open 10")
            Probing(self.kpat, self.guest, "__x64_sys_getppid count").end()
            self.assertEqual(before, code(), killed)
        # With all that its tracer works as before: its kernel has not given it up.
        self.guest.ask(f"ftrace {function}"), self.guest.ask("open 40")
        self.assertIn(self.guest.number("ftrace off"), range(40, 46))

    def test_calls_that_end_with_their_thread_are_in_nobodys_way(self):
        # The signal ends the process within the function. With four such calls open there is no room for a fifth, until it is seen that those threads have ended.
        script = f'''
import kpat_guest
seen = []
with kpat_guest.Guest({self.guest.qmp!r}) as g:
    g.xrp("get_signal", lambda hit: seen.append(hit.pid()), maxactive=4)
    g.xp("__x64_sys_unlink", lambda hit: g.stop())
    print("waiting", flush=True)
    g.loop()
    print(len(seen), len(set(seen)))
'''
        p = subprocess.Popen([sys.executable, "-B", "-c", script], env=library(self.kpat), stdout=subprocess.PIPE, text=True)
        self.assertEqual("waiting\n", p.stdout.readline())
        for _ in range(13):
            self.assertEqual(5, self.guest.number("trap"))
            self.guest.ask("sleep 150")
        self.guest.ask("unlink 1")
        out, _ = p.communicate(timeout=60)
        # All but the fifth and the tenth.
        self.assertEqual("11 11\n", out)

    def test_what_is_no_code_or_is_written_anew_is_refused(self):
        static_call = "__SCT__might_resched" if len(self.guest.ask("syms __SCT__might_resched")) > 1 else "__SCT__cond_resched"
        before = monitor(self.guest.control, f"x /8xb 0x{self.guest.ask('syms init_task')[0].split()[0]}")
        for place, words in {"init_task": "no code", "jiffies_64": "no code", "sys_call_table": "no code", static_call: "changes the target of a jump", "ftrace_caller+0x8": "copies for its tracer",
                             "ftrace_regs_caller+0x8": "copies for its tracer", "secondary_startup_64": "before it has the kernel's own tables"}.items():
            r = subprocess.run([self.kpat, "guest", "probe", self.guest.qmp, f"{place} count", "--for", "1"], capture_output=True, text=True, timeout=60)
            self.assertEqual((1, True), (r.returncode, words in r.stderr), (place, r.stderr))
        self.assertEqual(before, monitor(self.guest.control, f"x /8xb 0x{self.guest.ask('syms init_task')[0].split()[0]}"))

    def test_places_that_a_module_rewrites_are_refused(self):
        self.assertEqual(1, self.guest.number("tun 1"))
        file = self.guest.path / "tun.ko"
        file.write_bytes(Modules(kernel.Kernel(self.SERIES, "image").tree).load_order(["tun"])["tun"])
        said = lambda *words: subprocess.run([*words, file], capture_output=True, text=True, check=True, timeout=60).stdout
        table = said("readelf", "-rW").split("'.rela__jump_table'")[1].split("Relocation section")[0]
        # Of each entry the first word is the place's distance.
        places = [int(m[2], 16) for m in re.finditer(r"^([0-9a-f]+) .* \.text \+ ([0-9a-f]+)$", table, re.M) if int(m[1], 16) % 16 == 0]
        section = re.search(r"\[ *(\d+)\] \.text ", said("readelf", "-SW"))[1]
        rows = (line.split() for line in said("readelf", "-sW").splitlines())
        functions = sorted((int(r[1], 16), int(r[2], 0), r[7]) for r in rows if len(r) == 8 and r[3] == "FUNC" and r[6] == section)
        tried = 0
        for place in places:
            for start, size, name in functions:
                if start <= place < start + size and [n for _, _, n in functions].count(name) == 1:
                    r = subprocess.run([self.kpat, "guest", "probe", self.guest.qmp, f"{name}+{place - start:#x} count", "--for", "1"], capture_output=True, text=True, timeout=60)
                    self.assertIn("the kernel switches a branch on and off there", r.stderr)
                    tried += 1
        self.assertGreater(tried, 3, (places, functions))

    def test_each_instruction_one_after_the_other(self):
        """Each probe is put in with the others before it in the code already."""
        places = [at for at, _, _ in straight(self.guest)]
        script = f'''
import kpat_guest
with kpat_guest.Guest({self.guest.qmp!r}) as g:
    handles = [g.xp(f"__x64_sys_getppid+{{at:#x}}", lambda hit: None) for at in {places!r}]
    g.xp("__x64_sys_unlink", lambda hit: g.stop())
    print("waiting", flush=True)
    g.loop()
    print([g.hits(h) for h in handles], sum(g.missed(h) for h in handles))
'''
        p = subprocess.Popen([sys.executable, "-B", "-c", script], env=library(self.kpat), stdout=subprocess.PIPE, text=True)
        self.assertEqual("waiting\n", p.stdout.readline())
        self.assertEqual(200, self.guest.number("getppid 200"))
        self.guest.ask("unlink 1")
        out, _ = p.communicate(timeout=60)
        self.assertEqual(f"{[200] * len(places)} 0\n", out)

    def hits(self, command: str, *probes: str) -> tuple[list[int], list[dict]]:
        p = Probing(self.kpat, self.guest, *probes)
        self.guest.ask(command)
        entries, counts = p.end()
        return [c["hits"] for c in counts], [e["values"] for e in entries]

    def test_numbers_are_as_narrow_as_their_types(self):
        # The program's descriptor is AT_FDCWD, an int of -100, of which a register has 32 bits.
        hits, values = self.hits("open 30", "do_sys_openat2 arg1 if arg1==-100 and pid==1", "__x64_sys_openat sys1 if sys1==-100 and pid==1")
        self.assertEqual(([30, 30], {-100}), (hits, {v for e in values for v in e.values()}))
        # A pointer or an error: compared as a whole. (opens also opens two devices, which are not there.)
        for condition, of_failed, of_good in (("ret==-2", 30, 2), ("ret>=-4095", 30, 2), ("ret<-4095", 0, 30), ("ret==0", 0, 0)):
            for command, want in (("open 30", of_failed), ("opens 30", of_good)):
                self.assertEqual([want], self.hits(command, f"path_openat ret if {condition} and pid==1")[0], (condition, command))
        # Nothing is returned.
        _, values = self.hits("open 30", "putname ret if pid==1")
        self.assertEqual([None] * 30, [v["ret"] for v in values])
        r = subprocess.run([self.kpat, "guest", "probe", self.guest.qmp, "do_sys_openat2 sys1"], capture_output=True, text=True, timeout=60)
        self.assertEqual(1, r.returncode)
        self.assertIn("is not given the registers of a system call", r.stderr)


class GuestOwn61(GuestOwn):
    SERIES = "6.1"


class GuestOwn72(GuestOwn):
    SERIES = "7.2"
