"""Application traces: recorded, exported, played again. On this machine, with tracepoints. Truth is the generator of the writes, and
what the sink read."""
import json
import os
import statistics
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

from kpatlab.cache import LAB
from tests.place import sh


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Lateness:
    """How late this machine wakes who sleeps, measured beside a test."""

    def __enter__(self):
        self.late, self.end = [], threading.Event()
        self.thread = threading.Thread(target=self.sleep)
        self.thread.start()
        return self

    def sleep(self) -> None:
        while not self.end.is_set():
            due = time.monotonic_ns() + 5_000_000
            time.sleep(0.005)
            self.late.append(time.monotonic_ns() - due)

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()

    def worst_of_ten_ns(self) -> int:
        return statistics.quantiles(self.late, n=10)[-1]


class SuccessiveStacks(unittest.TestCase):
    def test_bytes_are_conserved_from_stack_to_stack(self):
        writes, spacing = 50, 0.010
        with Lateness() as machine:
            r = sh(LAB / "successive-stacks", "--json", "--stacks", 3, "--writes", writes, "--spacing-ms", spacing * 1000)
        result = json.loads(r.stdout)
        self.assertEqual(result["wrong"], [], r.stderr)
        application, *stacks = result["rows"]
        self.assertEqual([application["writes"], application["sizes_are_the_generators"]], [writes, True])
        # the generator wakes late on a busy machine, but not more often than it should
        self.assertAlmostEqual(application["spacing_s"]["mean"], spacing, delta=spacing / 3)
        self.assertEqual(len(stacks), 3)
        for row in stacks:
            self.assertEqual([row["bytes"], row["read_bytes"]], [result["written_bytes"]] * 2, row["what"])
            self.assertLessEqual(row["size_bytes"]["mean"], 1460, "no frame holds more")
            self.assertGreater(row["writes"], writes)
        for row in stacks[1:]:
            self.assertTrue(row["writes_are_the_traces"], row["what"])
            # a replay that waits for its turn on a busy machine waits no longer than others do
            self.assertLess(row["late_ns"]["median"], 5_000_000 + 3 * machine.worst_of_ten_ns(), row["what"])
        self.assertNotIn("late_ns", stacks[0])

    @unittest.skipUnless(os.path.exists("/dev/net/tun"), "needs /dev/net/tun")
    def test_loss_and_jitter_between_the_stacks(self):
        """Bytes are conserved over a way that loses and delays; the figures have a point for each write."""
        with tempfile.TemporaryDirectory(prefix="kpat-stacks-test-") as folder:
            svg = Path(folder) / "figures.svg"
            r = sh(LAB / "successive-stacks", "--json", "--stacks", 4, "--writes", 40, "--spacing-ms", 20, "--delay-ms", 5, "--jitter-ms", 3, "--loss", 0.05, "--reorder", 0.02,
                   "--svg", svg, seconds=200)
            result = json.loads(r.stdout)
            self.assertEqual(result["wrong"], [], r.stderr)
            self.assertEqual([(row["paper"]["size_bytes"], row["paper"]["spacing_s"]) for row in result["rows"]],
                             [(3284, 0.124), (1016, 0.045), (919, 0.037), (761, 0.079), (723, 0.122)])
            self.assertGreater(result["carried"]["a_to_b"]["lost"], 0)
            text = svg.read_text()
            root = xml.etree.ElementTree.fromstring(text)
            points = [e.get("class") for e in root.iter() if e.tag.endswith("circle")]
            self.assertEqual((points.count("write") - 1, points.count("packet") - 1), (40, result["rows"][1]["writes"]))
            bars = [e.get("class") for e in root.iter() if e.tag.endswith("rect")]
            self.assertEqual((bars.count("ours") - 1, bars.count("paper") - 1), (5, 5))
