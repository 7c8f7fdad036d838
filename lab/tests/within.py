"""Functions without a packet of their own, recorded within calls of packets (--also), against the kernel's graph tracer, which runs at the same
time: which of them were called within a packet's call, how often, and directly below what."""
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from kpatlab import guest, kernel, look, play
from kpatlab.cache import LAB

GUEST_SECONDS = 200


def graph_of(text: str, packets: set[str], also: set[str]) -> tuple[Counter, Counter]:
    """Of the graph tracer's text: calls of `also` within a call of `packets`, by name; and by (directly above, name)."""
    calls, edges = Counter(), Counter()
    stacks: dict[str, list[str]] = {}
    for line in text.splitlines():
        m = re.match(r"\s*\d+\)\s+(.*)-(\d+)\s*\|[^|]*\|\s+(.*)$", line)
        if not m:
            continue
        stack, what = stacks.setdefault(m[2], []), m[3]
        if what.startswith("}"):
            name = re.search(r"/\* (\w+)", what)
            while stack and name and stack.pop() != name[1]:
                pass
            continue
        name = re.match(r"(\w+)(?:\.\w+)*(?: \[\w+\])?\(", what)
        if not name:
            continue
        if name[1] in also and any(f in packets for f in stack):
            calls[name[1]] += 1
            edges[stack[-1], name[1]] += 1
        if what.endswith("{"):
            stack.append(name[1])
    return calls, edges


class Within:
    """One kernel; the guest plays once."""

    series = "7.2"

    @classmethod
    def setUpClass(cls):
        play.kpat_path()
        cls.out = Path(os.environ.get("KPAT_WITHIN_KEEP") or tempfile.mkdtemp(prefix="kpat-within-")) / cls.series
        shutil.rmtree(cls.out, ignore_errors=True)
        cls.out.mkdir(parents=True)
        env = {"PYTHONPATH": str(LAB), "PYTHONDONTWRITEBYTECODE": "1", "KPAT": os.path.abspath(play.kpat_path())}
        argv = [os.path.realpath(sys.executable), "-m", "tests.acts", "/lab", "-", "within"]
        answer = cls.out / "acts.err"
        rc = guest.run(kernel.open_kernel(cls.series), argv, cls.out, smp=1, timeout=GUEST_SECONDS, mem=1024, cwd="/", env=env, sinks=(cls.out / "acts.out", answer)).rc
        if rc:
            raise AssertionError(f"the act ended with {rc}: {answer.read_text(errors='replace')}")

    @classmethod
    def tearDownClass(cls):
        if not os.environ.get("KPAT_WITHIN_KEEP"):
            shutil.rmtree(cls.out.parent, ignore_errors=True)

    def test_calls_and_nesting_equal_the_graph_tracer(self):
        d = self.out / "within"
        facts = json.loads((d / "facts.json").read_text())
        self.assertNotIn("refused", facts)
        self.assertEqual((facts["within_rc"], facts["overrun"]), (0, 0))
        look.integrate(d / "within.kbl", [], d / "within.kpat")
        also, packets = set(facts["also"]), set(facts["packet_functions"])
        theirs, their_edges = graph_of((d / "graph.txt").read_text(), packets, also)
        first, last = facts["stretch_ns"]
        rows = look.kpat_json("sql", str(d / "within.kpat"), "select c.call_id, f.name, c.parent_id, p.name as above, c.flags & 16 as within from call c join function f using (func_id) "
                              f"left join call u on u.call_id = c.parent_id left join function p on p.func_id = u.func_id where c.entry_ns between {first} and {last}")
        ours, our_edges = Counter(), Counter()
        for r in rows:
            if r["name"] in also:
                self.assertTrue(r["within"])
                ours[r["name"]] += 1
                our_edges[r["above"], r["name"]] += 1
        missed = sum(x["count"] for x in look.kpat_json("info", str(d / "within.kbl"))["losses"])
        allowed = min(missed, sum(theirs.values()) // 50)  # losses are of packets' functions, too
        print(f"within {self.series}: {', '.join(f'{n} {theirs[n]}/{ours[n]}' for n in sorted(theirs | ours))} (tracer/kpat), {missed} counted as missed", file=sys.stderr, flush=True)
        self.assertGreaterEqual(len(theirs), 6)
        self.assertGreaterEqual(sum(theirs.values()), 500)
        wrong = {n: (theirs[n], ours[n]) for n in theirs | ours if theirs[n] != ours[n]}
        self.assertLessEqual(sum(abs(a - b) for a, b in wrong.values()), allowed, wrong)
        # What an interrupt's own functions are below is another context's: those have no caller in the log.
        nested = {e: n for e, n in our_edges.items() if e[0]}
        differs = {e: (their_edges[e], n) for e, n in nested.items() if their_edges[e] != n}
        self.assertLessEqual(sum(abs(a - b) for a, b in differs.values()), allowed, differs)
        self.assertGreaterEqual(sum(nested.values()), sum(theirs.values()) / 2)


class Within72(Within, unittest.TestCase):
    pass


class Within612(Within, unittest.TestCase):
    series = "6.12"


class Within61(Within, unittest.TestCase):
    series = "6.1"
