"""Two guests with kernels of two series, probed by one program: hits, entries and handlers of each are its own, and one that ends leaves the other's."""
import signal
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from .guest_life import Watched
from .guest_probe import Caller, library, monitor
from .place import kpat_for_guests


class GuestSeveral(unittest.TestCase):
    SERIES = ("6.1", "7.2")

    @classmethod
    def setUpClass(cls):
        cls.kpat = kpat_for_guests(*cls.SERIES)

    def setUp(self):
        self.guests = []
        for series in self.SERIES:
            self.guests.append(Caller(series, control=True))
            self.addCleanup(self.guests[-1].close)

    def together(self, *commands: str) -> list[int]:
        """One command for each guest, at the same time: their numbers."""
        with ThreadPoolExecutor() as both:
            return list(both.map(lambda guest, command: guest.number(command, 300), self.guests, commands))

    def code(self) -> list[str]:
        """The bytes of the probed function in each guest, read by QEMU itself."""
        address = lambda guest: guest.ask("syms __x64_sys_getppid")[0].split()[0]
        return [monitor(guest.control, f"x /16xb 0x{address(guest)}") for guest in self.guests]

    def test_counts_and_entries_are_each_guests_own_and_one_that_is_killed_leaves_the_other(self):
        first, second = self.guests
        before = self.code()
        p = Watched(self.kpat, first, "--also", second.qmp, "__x64_sys_getppid count", "__x64_sys_unlink sys1:str ret")
        p.wait_for(f"the probes are in the guest {second.qmp}")
        self.assertEqual([20_000, 30_000], self.together("getppid 20000", "getppid 30000"))
        printed = [[tuple(line.split()[1:]) for line in guest.ask(f"unlink {n}") if line.startswith("unlinked")] for guest, n in zip(self.guests, (12, 31))]
        # While one stands the other is served.
        monitor(first.control, "stop")
        p.wait_for(f"the guest {first.qmp} was stopped")
        self.assertEqual(4000, second.number("getppid 4000"))
        monitor(first.control, "cont")
        p.wait_for(f"the guest {first.qmp} goes on")
        self.assertEqual([500, 600], self.together("getppid 500", "getppid 600"))
        first.process.kill()
        p.wait_for(f"the guest {first.qmp} is off")
        self.assertEqual(700, second.number("getppid 700"))
        p.process.send_signal(signal.SIGINT)
        counts = p.ended()
        self.assertEqual(0, p.process.returncode, p.errors)
        hits = {(c["guest"], c["probe"]): c["hits"] for c in counts}
        self.assertEqual({(first.qmp, "__x64_sys_getppid"): 20_500, (first.qmp, "__x64_sys_unlink"): 12,
                          (second.qmp, "__x64_sys_getppid"): 35_300, (second.qmp, "__x64_sys_unlink"): 31}, hits)
        self.assertEqual({0}, {c["lost"] + c["returns_not_seen"] for c in counts})
        self.assertEqual({(first.qmp, "guest-off"), (second.qmp, "stopped")}, {(c["guest"], c["ended"]) for c in counts})
        entries = lambda guest: [(e["values"]["sys1"], str(e["values"]["ret"])) for e in p.entries() if e["guest"] == guest.qmp]
        self.assertEqual(printed, [entries(guest) for guest in self.guests])
        del self.guests[0]
        self.assertEqual(before[1:], self.code())

    def test_handlers_of_one_program_in_both(self):
        before = self.code()
        script = f'''
import kpat_guest, sys, threading
with kpat_guest.Guest({self.guests[0].qmp!r}) as a, kpat_guest.Guest({self.guests[1].qmp!r}) as b:
    entered, left, wrong = [0, 0], [0, 0], 0
    def entry(n):
        def entry(hit):
            hit.data["of"] = n
            entered[n] += 1
        return entry
    def returned(n):
        def returned(hit):
            global wrong
            wrong += hit.data["of"] != n
            left[n] += 1
        return returned
    handles = [g.xrp("__x64_sys_getppid", entry(n), returned(n)) for n, g in enumerate((a, b))]
    b.xp("__x64_sys_unlink", lambda hit: b.stop())
    print("waiting", flush=True)
    ended, why = kpat_guest.loop([a, b])
    print(ended is b, why, entered, left, wrong, a.missed(handles[0]), b.missed(handles[1]))
'''
        p = subprocess.Popen([sys.executable, "-B", "-c", script], env=library(self.kpat), stdout=subprocess.PIPE, text=True)
        self.assertEqual("waiting\n", p.stdout.readline())
        self.assertEqual([2000, 3000], self.together("getppid 2000", "getppid 3000"))
        self.guests[1].ask("unlink 1")
        out, _ = p.communicate(timeout=60)
        self.assertEqual("True 0 [2000, 3000] [2000, 3000] 0 0 0\n", out)
        self.assertEqual(before, self.code())
