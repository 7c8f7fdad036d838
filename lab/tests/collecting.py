"""Recording for long: file after file, killed, on a full disk, collected. On this machine, with tracepoints.

Each test makes its own namespaces, and its own traffic in them. Truth is a second recorder that saw the same packets and
wrote one file.
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from kpatlab import cache, play
from kpatlab.cache import LAB
from kpatlab.topology import wait_for

UDPSEQ = [sys.executable, str(LAB / "tools/udpseq.py")]


def sh(*argv, ok=True, seconds=60, **env) -> subprocess.CompletedProcess:
    r = subprocess.run(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds,
                       env={**os.environ, **env}, text=True)
    if ok and r.returncode:
        raise AssertionError(f"{' '.join(map(str, argv))} ended with {r.returncode}: {r.stderr}")
    return r


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Collecting(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.dir = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="kpat-collecting-")))
        self.a, self.b = (f"kc{os.getpid()}{x}" for x in "ab")
        for ns in (self.a, self.b):
            sh("ip", "netns", "add", ns)
            self.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
        sh("ip", "-n", self.a, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", self.b)
        for ns, dev, n in ((self.a, "v0", 1), (self.b, "v1", 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.93.0.{n}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        wait_for(lambda: " 0% packet loss" in sh("ip", "netns", "exec", self.a, "ping", "-c1", "-W1", "10.93.0.2", ok=False).stdout, 20, "an echo")

        # Somebody takes the datagrams: an ICMP error would cost the sender the next one.
        sink = play.Process("sink", ["ip", "netns", "exec", self.b, sys.executable, "-c",
                                     "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 9000))\nwhile True: s.recv(9000)"], self.dir)
        self.stack.callback(sink.stop)
        sink.wait_ready(lambda: "9000" in sh("ip", "netns", "exec", self.b, "ss", "-Hlun", "sport = :9000").stdout, cache.patience())

    def send(self, count: int, pps: int) -> None:
        sh("ip", "netns", "exec", self.a, *UDPSEQ, "send", "10.93.0.2", 9000, count, "--pps", pps)

    def start(self, name: str, output: Path, *args) -> play.Process:
        ready = self.dir / f"{name}.ready"
        ready.unlink(missing_ok=True)
        p = play.Process(name, [self.kpat, "record", "-o", str(output), "--ready-file", str(ready), "--netns", self.a, "--netns", self.b,
                                "-f", "udp port 9000", "--no-cost", *map(str, args)], self.dir)
        self.stack.callback(p.stop)
        p.wait_ready(ready.exists, cache.patience())
        return p

    def rows(self, log: Path, question: str) -> list[str]:
        return sh(self.kpat, "sql", log, question, "--tsv").stdout.splitlines()[1:]

    def integrate(self, files, name: str) -> dict:
        out = self.dir / name
        return json.loads(sh(self.kpat, "integrate", *files, "-o", out, "--json").stdout) | {"log": out}

    def sent(self, log: Path) -> int:
        """Datagrams given to the device."""
        return int(self.rows(log, "select count(*) from call c join function f using (func_id) where f.name = 'net:net_dev_xmit'")[0])

    def parts(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("*.kbl"))

    # What both recorders saw of the datagrams: addresses of memory, ids and moments differ, all else is the same.
    SAME = ["select f.name, count(*) from call c join function f using (func_id) group by 1 order by 1",
            "select ip_id, count(*) from footprint where sport is not null group by 1 order by 1",
            "select count(*), sum(points), count(distinct packet_id) from packet",
            "select kind, count(*) from event where kind < 32 group by 1 order by 1"]

    def test_from_file_to_file(self):
        """Nothing is lost between two files: their set is the log that one file would have been."""
        spool = self.dir / "spool"
        spool.mkdir()
        whole = self.start("whole", self.dir / "whole.kbl")
        parts = self.start("parts", spool / "a.kbl", "--rotate-size", "64K", "--rotate-time", "1s")
        seen_early = []
        for _ in range(4):
            self.send(1500, 2000)
            seen_early += self.parts(spool)
        sh(self.kpat, "ctl", "rotate", "--pid", parts.p.pid)
        self.assertEqual((parts.stop(), whole.stop()), (0, 0))
        files = self.parts(spool)
        self.assertGreaterEqual(len(files), 4)
        self.assertTrue(seen_early, "no file was finished while recording went on")
        self.assertEqual(list(spool.glob("*.part")), [])
        for f in files:
            self.assertEqual(json.loads(sh(self.kpat, "info", f, "--json").stdout)["state"], "complete", f)
        one, several = self.integrate([self.dir / "whole.kbl"], "one.kpat"), self.integrate(files[::-1], "several.kpat")
        self.assertEqual((one["lost"], several["lost"], several["warnings"]), (0, 0, []))
        for question in self.SAME:
            self.assertEqual(self.rows(one["log"], question), self.rows(several["log"], question), question)
        self.assertEqual(self.sent(one["log"]), 6000)
        # A file alone has names and functions, and says what is not in it.
        alone = self.integrate([files[2]], "alone.kpat")
        self.assertGreater(alone["lost"], 0)
        self.assertTrue(any("was not given" in w or "were not given" in w for w in alone["warnings"]), alone["warnings"])
        self.assertNotEqual(self.rows(alone["log"], "select comm from process"), [])
        gap = self.integrate(files[:1] + files[2:], "gap.kpat")
        self.assertEqual(gap["records"] + gap["lost"], several["records"])

    def test_killed(self):
        """What stood in the file when its recorder was killed is finished by the next one."""
        spool = self.dir / "spool"
        spool.mkdir()
        p = self.start("killed", spool / "a.kbl", "--rotate-time", "1h")
        self.send(2000, 2000)
        part = next(spool.glob("*.part"))
        wait_for(lambda: part.stat().st_size > 4000, 20, "chunks in the file")
        time.sleep(1)  # a chunk goes to the file at the age of half a second
        os.killpg(p.p.pid, signal.SIGKILL)
        p.p.wait(10)
        self.assertEqual(self.parts(spool), [])
        after = self.start("after", spool / "a.kbl", "--rotate-time", "1h")
        left = self.parts(spool)
        self.assertEqual([f.name + ".part" for f in left], [part.name])
        after.stop()
        self.assertIn("left by a recorder that was killed", play.said(after.stderr))
        got = self.integrate(left, "killed.kpat")
        self.assertEqual(self.sent(got["log"]), 2000)

    def test_only_the_newest_stay(self):
        spool = self.dir / "spool"
        spool.mkdir()
        p = self.start("keep", spool / "a.kbl", "--rotate-time", "1s", "--rotate-keep", 2)
        wait_for(lambda: any("-0005." in f.name for f in spool.iterdir()), 30, "a fifth file")
        self.assertEqual(p.stop(), 0)
        numbers = [int(re.search(r"-(\d+)\.kbl$", f.name)[1]) for f in self.parts(spool)]
        self.assertEqual(len(numbers), 2)
        self.assertGreaterEqual(numbers[0], 4)

    def test_metrics(self):
        """What Prometheus reads is what `kpat ctl status` says."""
        p = self.start("metrics", self.dir / "m.kbl", "--metrics", "0", "--rotate-time", "1h")
        self.send(2000, 4000)
        url = re.search(r"metrics at (http:\S+)", play.said(p.stderr))[1]
        ask = lambda: urllib.request.urlopen(url, timeout=5).read().decode()
        wait_for(lambda: "kpat_records_total 0\n" not in ask(), 20, "a second")
        time.sleep(2)  # nothing flows, so two looks a second apart are equal
        page, status = ask(), json.loads(sh(self.kpat, "ctl", "status", "--json", "--pid", p.p.pid).stdout)
        row = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? (-?[0-9.e+]+)$')
        values, declared = {}, set()
        for line in page.splitlines():
            if line.startswith("# TYPE "):
                declared.add(line.split()[2])
            elif not line.startswith("# HELP "):
                name, labels, value = row.match(line).groups()
                self.assertIn(name, declared)
                self.assertNotIn((name, labels), values)
                values[name, labels] = float(value)
        self.assertEqual(values["kpat_records_total", None], status["records"])
        self.assertGreater(status["records"], 2000)
        self.assertEqual(values["kpat_start_time_seconds", None] // 1, status["started_wall_ns"] // 10**9)
        self.assertEqual(sum(v for (n, _), v in values.items() if n == "kpat_lost_total"), sum(x["count"] for x in status["losses"]))
        self.assertEqual(len([1 for n, _ in values if n == "kpat_ring_fill_ratio"]), len(status["rings_fill_percent"]))
        with contextlib.suppress(ImportError):
            from prometheus_client.parser import text_string_to_metric_families
            self.assertEqual({f.name for f in text_string_to_metric_families(page)}, {n.removesuffix("_total") for n in declared})
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(url.replace("metrics", "etc"), timeout=5)
