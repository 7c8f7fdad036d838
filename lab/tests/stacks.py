"""Application traces: recorded, exported, played again. On this machine, with tracepoints. Truth is the generator of the writes, and
what the sink read."""
import json
import os
import unittest

from kpatlab.cache import LAB
from tests.collecting import sh


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class SuccessiveStacks(unittest.TestCase):
    def test_bytes_are_conserved_from_stack_to_stack(self):
        writes, spacing = 50, 0.010
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
            self.assertLess(row["late_ns"]["median"], 5_000_000, row["what"])
        self.assertNotIn("late_ns", stacks[0])
