"""Tasks that are preempted while a program of ours runs for them, as kernels allow since 7.0: what others do on that CPU meanwhile is seen all the same. Truth is how many system calls each
program makes, by what it does and by itself without that."""
import json
import os
import sys
import unittest

from kpatlab import play
from tests import profile
from tests.place import Inside, own, sh

CALLS, AT_ONCE = 30_000, 3
# Makes so many system calls, beside what starting and ending takes; or asks by a unix socket, and sleeps, so that others are preempted.
CALL = """
import os, sys
for i in range(int(sys.argv[1])): os.getppid()
"""
TALK = """
import os, socket, time
a, b = socket.socketpair()
if os.fork():
    for i in range(600):
        a.send(b"x")
        a.recv(1)
        time.sleep(0.001)
    os.wait()
else:
    for i in range(600):
        b.recv(1)
        b.send(b"y")
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Preempted(profile.Recorded):
    def setUp(self):
        own(self, "preempted", "")

    def run_all(self, *programs: tuple) -> list[int]:
        all_of = [play.Process(f"p{i}-{args}", ["taskset", "-c", str(profile.BURN_CPU), sys.executable, "-c", code, args], self.dir) for i, (code, args) in enumerate(programs)]
        for p in all_of:
            self.stack.callback(p.stop)
        for p in all_of:
            self.assertEqual(p.p.wait(500), 0)
        return [p.p.pid for p in all_of]

    def test_no_system_call_is_missed(self):
        # Whoever starts a program looks at it from another CPU and sleeps: the second one alone, as the first of all may have to be loaded.
        (_, alone), p = self.profile("alone", lambda: self.run_all((CALL, "0")) + self.run_all((CALL, "0")))
        besides = self.of(p, alone)["system_calls"]
        pids, p = self.profile("several", lambda: self.run_all(*[(CALL, str(CALLS))] * AT_ONCE, *[(TALK, "")] * AT_ONCE))
        losses = {x["cause"]: x["count"] for x in json.loads(sh(play.kpat_path(), "info", self.dir / "several.kpat", "--json").stdout)["losses"]}
        seen = [self.of(p, pid)["system_calls"] - besides for pid in pids[:AT_ONCE]]
        print(f"preempted: of {CALLS} system calls {', '.join(map(str, seen))} were seen, beside {besides} of a start and an end; lost {losses}", file=sys.stderr, flush=True)
        for n in seen:
            # The same program may ask for memory once more or less.
            self.assertLess(abs(n - CALLS), 20)
        # Of a thousand messages of all, both programs of a pair may miss a few (bpf/pairs.bpf.h).
        self.assertLess(losses.get("recursion", 0), 0.02 * 2 * 600 * AT_ONCE)


class PreemptedInside(Inside):
    of, modules, marked = "Preempted", "loop", "preempted:"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Preempted72(PreemptedInside, unittest.TestCase):
    series, detail = "7.2", "steps"


class RequestsInside(Inside):
    of, modules, marked = "Requests", "loop", "requests:"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Requests72(RequestsInside, unittest.TestCase):
    series, detail = "7.2", "steps"


if __name__ == "__main__":
    unittest.main()
