"""Traffic of an office (tools/office.py), recorded. What should not be there is found by the guide's questions, and nothing else; played again
from its trace by both ends and recorded, it is the same trace."""
import json
import os
import re
import sys
import unittest
from pathlib import Path

from kpatlab import cache, play
from kpatlab.cache import LAB, REPO
from kpatlab.topology import wait_for
from tests.place import own, sh

OFFICE = LAB / "tools/office.py"
ADDR = "10.95.0.2"


def questions() -> list[str]:
    """As they stand in the guide: a beacon, a scan, more than ever."""
    page = (REPO / "docs/guide.md").read_text()
    section = page.split("## Finding unplanned traffic")[1].split("\n## ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.S)


class Office(unittest.TestCase):
    """Two namespaces, the servers in the second."""

    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = own(self, "watch", "ab")
        sh("ip", "-n", self.a, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", self.b)
        for ns, dev, addr in ((self.a, "v0", "10.95.0.1"), (self.b, "v1", ADDR)):
            sh("ip", "-n", ns, "addr", "add", f"{addr}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        servers = play.Process("servers", ["ip", "netns", "exec", self.b, sys.executable, str(OFFICE), "serve", ADDR], self.dir)
        self.stack.callback(servers.stop)
        servers.wait_ready(lambda: sh("ip", "netns", "exec", self.b, "ss", "-Hltn").stdout.count("LISTEN") == 5, cache.patience())

    def recording(self, name: str, output: Path, *args) -> play.Process:
        ready = self.dir / f"{name}.ready"
        record = play.Process(f"record-{name}", [self.kpat, "record", "--profile", "app", "-o", str(output), "--no-cost", "--ready-file", str(ready), *args], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        return record

    def work(self, seconds: float, *planted: str) -> None:
        sh("ip", "netns", "exec", self.a, sys.executable, OFFICE, "work", ADDR, seconds, *planted)


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Watch(Office):
    def day(self, name: str, *planted: str) -> Path:
        """Recorded from file to file, sent to where logs are gathered, integrated there."""
        spool, shelf = self.dir / name, self.dir / f"{name}.shelf"
        spool.mkdir()
        shelf.mkdir()
        record = self.recording(name, spool / "office.kbl", "--netns", self.a, "--rotate-time", "2s")
        self.work(8, *planted)
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


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Replayed(Office):
    def trace(self, name: str) -> list[tuple]:
        """Each connection's protocol and what its ends wrote, in order."""
        sh(self.kpat, "integrate", self.dir / f"{name}.kbl", "-o", self.dir / f"{name}.kpat")
        sh(self.kpat, "app", "export", self.dir / f"{name}.kpat", "-o", self.dir / f"{name}.trace")
        connections = {}
        for line in map(json.loads, (self.dir / f"{name}.trace").read_text().splitlines()):
            if "connection" in line:
                self.assertEqual([line["a"]["seen"], line["b"]["seen"]], ["written"] * 2)
                connections[line["connection"]] = (line["proto"], {"a": [], "b": []})
            elif "c" in line:
                connections[line["c"]][1][line["s"]].append(line["n"])
        # So a replay shows its secret before it begins.
        introduction = lambda c: c == ("tcp", {"a": [9, 41], "b": [25, 9]})
        return [c for c in connections.values() if not introduction(c)]

    def test_both_ends_played_again_are_the_same_trace(self):
        both = ["--netns", self.a, "--netns", self.b]
        record = self.recording("first", self.dir / "first.kbl", *both)
        self.work(3)
        self.assertEqual(record.stop(), 0)
        first = self.trace("first")
        self.assertGreater(len(first), 5)
        self.assertTrue(any(ends["b"] for _, ends in first), "somebody answers")
        for how in ([], ["--closed"]):
            name = "again" + "".join(how)
            record = self.recording(name, self.dir / f"{name}.kbl", *both)
            player = [self.kpat, "app", "replay", str(self.dir / "first.trace"), "--json", *how]
            server = play.Process(f"server{name}", ["ip", "netns", "exec", self.b, *player, "--serve", f"{ADDR}:7900"], self.dir)
            self.stack.callback(server.stop)
            server.wait_ready(lambda: "listening" in play.text_of(server.stderr), cache.patience())
            sent = json.loads(sh("ip", "netns", "exec", self.a, *player, "--to", f"{ADDR}:7900").stdout)
            wait_for(lambda: server.p.poll() is not None, 30, "the server's last write")
            self.assertEqual((server.p.poll(), record.stop()), (0, 0), play.text_of(server.stderr))
            answered = json.loads(play.text_of(server.stdout))
            for one, other in ((sent, answered), (answered, sent)):
                self.assertEqual([one["writes"], one["bytes"]], [one["planned_writes"], one["planned_bytes"]])
                self.assertEqual(one["read_bytes"], other["bytes"])
                self.assertLess(one["late_ns"]["median"], 5_000_000)
            # Connections that begin within microseconds may change places.
            self.assertEqual(sorted(self.trace(name), key=repr), sorted(first, key=repr), how)
