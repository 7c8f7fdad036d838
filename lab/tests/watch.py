"""The guide's questions about what should not be there: each finds what was planted among ordinary traffic, and nothing else."""
import contextlib
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

from kpatlab import cache, play
from kpatlab.cache import LAB, REPO
from kpatlab.topology import wait_for
from tests.collecting import sh

OFFICE = LAB / "tools/office.py"
ADDR = "10.95.0.2"


def questions() -> list[str]:
    """As they stand in the guide: a beacon, a scan, more than ever."""
    page = (REPO / "docs/guide.md").read_text()
    section = page.split("## What should not be there")[1].split("\n## ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.S)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Watch(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.dir = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="kpat-watch-")))
        self.a, self.b = (f"kw{os.getpid()}{x}" for x in "ab")
        for ns in (self.a, self.b):
            sh("ip", "netns", "add", ns)
            self.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
        sh("ip", "-n", self.a, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", self.b)
        for ns, dev, addr in ((self.a, "v0", "10.95.0.1"), (self.b, "v1", ADDR)):
            sh("ip", "-n", ns, "addr", "add", f"{addr}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        servers = play.Process("servers", ["ip", "netns", "exec", self.b, sys.executable, str(OFFICE), "serve", ADDR], self.dir)
        self.stack.callback(servers.stop)
        servers.wait_ready(lambda: sh("ip", "netns", "exec", self.b, "ss", "-Hltn").stdout.count("LISTEN") == 5, cache.patience())

    def day(self, name: str, *planted: str) -> Path:
        """Recorded from file to file, sent to where logs are gathered, integrated there."""
        spool, shelf, ready = self.dir / name, self.dir / f"{name}.shelf", self.dir / f"{name}.ready"
        spool.mkdir()
        shelf.mkdir()
        record = play.Process(f"record-{name}", [self.kpat, "record", "--profile", "app", "--netns", self.a, "-o", str(spool / "office.kbl"), "--rotate-time", "2s",
                                                 "--no-cost", "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        sh("ip", "netns", "exec", self.a, sys.executable, OFFICE, "work", ADDR, 8, *planted)
        self.assertEqual(record.stop(), 0)
        sh(self.kpat, "collect", "send", spool, shelf, "--device", "office", "--once")
        files = sorted((shelf / "office").glob("*.kbl"))
        self.assertGreaterEqual(len(files), 4)
        sh(self.kpat, "integrate", *files, "-o", self.dir / f"{name}.kpat")
        return self.dir / f"{name}.kpat"

    def asked(self, log: Path) -> list[list[dict]]:
        return [json.loads(sh(self.kpat, "sql", log, q, "--json").stdout) for q in questions()]

    def test_what_was_planted_is_found_and_nothing_else(self):
        self.assertEqual(len(questions()), 3)
        beacon, scan, more = self.asked(self.day("bad", "beacon", "scan", "theft"))
        self.assertEqual([(r["peer_addr"], r["peer_port"], r["most_bytes"]) for r in beacon], [(ADDR, 8005, 24)])
        self.assertAlmostEqual(beacon[0]["every_ms"], 300, delta=20)
        self.assertEqual([(r["comm"], r["peer_addr"], r["ports"]) for r in scan], [("scan", ADDR, 60)])
        self.assertEqual([r["comm"] for r in more], ["browser"])
        self.assertGreater(more[0]["most"], 3_000_000)
        self.assertEqual(self.asked(self.day("good")), [[], [], []], "a day like others")
