"""Hits of a guest's probes counted beside the guest's own tracer: by two or four processors at once, in interrupts, while modules come and go.

The tracer counts the same calls in instances of its own, one for each function; of what also runs for others only what one process's threads run into,
as the probes' conditions do: then both have seen all of it when those threads have ended.
"""
import unittest

from .guest_probe import Caller, Probing, instructions, monitor, straight
from .place import kpat_for_guests

GETPPID = "__x64_sys_getppid"
# Called by each tick of a processor's timer.
TICK = "update_process_times"
LINKED = 0xFFFFFFFF81000000


class GuestCounts(unittest.TestCase):
    SERIES, SMP, HITS, MODULES = "6.12", 2, 30_000, 5
    BOOTS = ("pti=off",)

    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests(cls.SERIES)

    def test_counts_are_those_of_the_guests_own_tracer(self):
        for more in self.BOOTS:
            with self.subTest(more):
                guest = Caller(self.SERIES, self.SMP, more, modules=("dummy", "tun"))
                try:
                    self.judge(guest, more)
                finally:
                    guest.close()

    def judge(self, guest: Caller, more: str):
        moved = int(guest.ask("syms _text")[0].split()[0], 16) - LINKED
        self.assertEqual("nokaslr" in more, moved == 0, "moved by chance to where it was linked: 1 of some 500 boots")
        short = next(at for at, size, _ in straight(guest) if size < 5)
        process, *threads = guest.ask(f"crew {self.SMP}")[-1].split()[1:]
        self.assertEqual(self.SMP - 1, len(threads))
        # By either name: the functions of system calls without arguments have two.
        self.assertEqual(3, guest.number(f"tracers +*_sys_getppid +{TICK} do_init_module"))
        p = Probing(self.kpat, guest, f"{GETPPID} count if tgid=={process}", f"{GETPPID}+{short:#x} count if tgid=={process}", f"{TICK} pid if tgid=={process}", "do_init_module count")
        calls, loads = map(int, guest.ask(f"work {self.HITS // self.SMP} {self.MODULES}", 600)[-1].split()[1:])
        entries, counts = p.end()
        seen = [c["hits"] for c in counts]
        theirs = [int(n) for n in guest.ask("traced", 120)[-1].split()[1:]]
        print(f"\n{self.SERIES} {more}: {calls} calls, {theirs[1]} ticks, {loads} modules; by probes {seen}, by the tracer {theirs}")
        self.assertEqual((self.HITS, True), (calls, loads >= self.MODULES and theirs[1] > 10))
        self.assertEqual([calls, calls, theirs[1], loads], seen)
        self.assertEqual([calls, loads], [theirs[0], theirs[2]])
        self.assertEqual((theirs[1], 0), (len(entries), sum(c["lost"] for c in counts)))
        self.assertEqual(set(range(self.SMP)), {e["vcpu"] for e in entries})

        # Entries of each call with its return, as many as the ring has room for; none is there twice.
        process, *threads = guest.ask(f"crew {self.SMP}")[-1].split()[1:]
        self.assertEqual(1, guest.number("tracers +*_sys_getppid"))
        p = Probing(self.kpat, guest, f"{GETPPID} ret if tgid=={process}", "--hist")
        calls, _ = map(int, guest.ask(f"work {self.HITS // self.SMP}", 600)[-1].split()[1:])
        _, [c] = p.end()
        [theirs] = [int(n) for n in guest.ask("traced", 120)[-1].split()[1:]]
        self.assertEqual((calls, calls), (theirs, c["hits"] + c["lost"] + c["returns_not_seen"]), c)
        self.assertEqual([{"from": 1, "to": 1, "hits": c["hits"]}], c["values"]["ret"]["numbers"])

        # A function of a module.
        self.assertEqual(1, guest.number("tun 1"))
        self.assertEqual(2, guest.number("tracers tun_chr_open tun_chr_close"))
        p = Probing(self.kpat, guest, "tun_chr_open ret", "tun_chr_close count")
        self.assertEqual(500, guest.number("tun 500"))
        entries, counts = p.end()
        self.assertEqual([500, 500], [c["hits"] for c in counts])
        self.assertEqual([0] * 500, [e["values"]["ret"] for e in entries])
        self.assertEqual("traced 500 500", guest.ask("traced", 60)[-1])

        # It goes, and its probes with it, one of which is a single byte: nothing is put back where it was. Its memory is not mapped any more, or
        # (since 6.13, on some machines) full of breakpoints of the kernel's own.
        short = next(at for at, size, _ in instructions(guest, "tun_chr_close", 96) if at and size < 5)
        place = int(guest.ask("syms tun_chr_close")[0].split()[0], 16) + short
        now = lambda: monitor(guest.qmp, f"x /1xb {place:#x}")
        before, p = now(), Probing(self.kpat, guest, "tun_chr_open count", f"tun_chr_close+{short:#x} count")
        self.assertEqual(100, guest.number("tun 100"))
        self.assertEqual(0, guest.number("unload tun"))
        _, counts = p.end()
        after = now()
        self.assertEqual([100, 100], [c["hits"] for c in counts])
        print(f"\n{self.SERIES} {more}: the module's byte was {before.strip()}, is {after.strip()}")
        self.assertNotEqual(before, after, "put into what is free")
        self.assertTrue([e for e in p.errors if "has unloaded the module tun" in e], p.errors)

        # Loaded again, mostly at the same address: without its probes, which is reported, and with its own code.
        self.assertEqual(1, guest.number("tun 1"))
        address = lambda: int(guest.ask("syms tun_chr_open")[0].split()[0], 16)
        there = address()
        code = lambda: monitor(guest.qmp, f"x /16xb {there:#x}")
        before, p = code(), Probing(self.kpat, guest, "tun_chr_open count")
        self.assertEqual(100, guest.number("tun 100"))
        self.assertEqual(0, guest.number("unload tun"))
        self.assertEqual(50, guest.number("tun 50"))
        again = address()
        _, [c] = p.end()
        print(f"\n{self.SERIES} {more}: the module was at {there:#x}, is at {again:#x}")
        self.assertEqual(100, c["hits"])
        self.assertTrue([e for e in p.errors if "has unloaded the module tun" in e], p.errors)
        if again == there:
            self.assertEqual(before, code())


class GuestCounts61(GuestCounts):
    SERIES, HITS, MODULES, BOOTS = "6.1", 1_000_000, 20, ("pti=on", "pti=off", "pti=off nokaslr")


class GuestCounts612(GuestCounts61):
    SERIES = "6.12"


class GuestCounts72(GuestCounts61):
    SERIES, SMP = "7.2", 4
