"""Recording for long: file after file, killed, on a full disk, collected. On this machine, with tracepoints.

Each test makes its own namespaces, and its own traffic in them. Truth is a second recorder that saw the same packets and
wrote one file.
"""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
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
from tests.place import lost, own, sh

UDPSEQ = [sys.executable, str(LAB / "tools/udpseq.py")]


TAKER = """
import socket
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(('', 7000)); l.listen(); print('listening')
while True:
    s, _ = l.accept()
    while (got := s.recv(65536)):
        s.send(b'!')
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\\1\\0\\0\\0\\0\\0\\0\\0'); s.close()
"""
# Writes that come in one piece each, and a byte for answer.
WRITER = """
import socket, sys
c = socket.socket(); c.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); c.bind(('', 7001))
c.connect(('10.93.0.2', 7000))
for line in sys.stdin:
    c.sendall(b'x' * int(line)); c.recv(1); print('taken')
"""


# So many datagrams as quickly as it can, on that CPU, as often as asked.
MANY = """
import os, socket, sys
s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('10.93.0.2', 9000))
for line in sys.stdin:
    n, cpu = map(int, line.split())
    os.sched_setaffinity(0, {cpu})
    for _ in range(n): s.send(b'x' * 100)
    print('sent')
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Collecting(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = own(self, "collecting", "ab")
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
        """Datagrams given to the device. Tracepoints tell packets by their buffer, so one for ARP may be taken for a datagram: at most a
        few in a thousand are too many, none too few."""
        n = int(self.rows(log, "select count(*) from call c join function f using (func_id) where f.name = 'net:net_dev_start_xmit'")[0])
        return n - n % 50 if n % 50 <= 10 else n

    def parts(self, folder: Path) -> list[Path]:
        return sorted(folder.glob("*.kbl"))

    # What both recorders saw of the datagrams. Which freed buffer was whose each guesses for itself, so no count of packets.
    SAME = ["select f.name, count(*) from call c join function f using (func_id) where f.name like 'net:%' and f.name not like '%xmit' group by 1 order by 1"]

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
        self.assertEqual((lost(self, one), lost(self, several), several["warnings"]), ([], [], []))
        for question in self.SAME:
            self.assertEqual(self.rows(one["log"], question), self.rows(several["log"], question), question)
        self.assertEqual((self.sent(one["log"]), self.sent(several["log"])), (6000, 6000))
        self.assertAlmostEqual(one["records"] / several["records"], 1, delta=0.01)
        # A file alone has names and functions, and says what is not in it.
        alone = self.integrate([files[2]], "alone.kpat")
        self.assertGreater(alone["lost"], 0)
        self.assertTrue(any("was not given" in w or "were not given" in w for w in alone["warnings"]), alone["warnings"])
        self.assertNotEqual(self.rows(alone["log"], "select comm from process"), [])
        gap = self.integrate(files[:1] + files[2:], "gap.kpat")
        self.assertEqual(gap["records"] + sum(x["count"] for x in lost(self, gap)), several["records"])

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
        self.assertIn("left by a recorder that was killed", play.text_of(after.stderr))
        shelf = self.dir / "shelf"
        (shelf / "dev").mkdir(parents=True)
        shutil.copy(left[0], shelf / "dev")
        self.assertIn("was not closed", self.collect("list", shelf).stdout)
        shutil.copy(self.parts(spool)[-1], shelf / "dev")
        self.assertEqual([g["kind"] for g in json.loads(self.collect("list", shelf, "--json").stdout)[0]["gaps"]], ["killed"])
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

    def links(self, p: play.Process) -> int:
        """Programs of a process that are attached, by the kernel's word."""
        n = 0
        for f in Path(f"/proc/{p.p.pid}/fdinfo").iterdir():
            # Its end of our own question may just be closed.
            with contextlib.suppress(FileNotFoundError):
                n += "link_type:" in f.read_text()
        return n

    def test_applications_paused(self):
        """What applications do in a pause is not recorded, not afterwards either; what comes after it is, whole. A socket that closed in a pause
        is not the one that took its ports. In a pause the recorder is on no packet's way."""
        log, ready = self.dir / "p.kbl", self.dir / "p.ready"
        p = play.Process("paused", [self.kpat, "record", "--profile", "app", "--netns", self.a, "--netns", self.b, "--paused", "-o", str(log),
                                    "--ready-file", str(ready), "--no-cost"], self.dir)
        self.stack.callback(p.stop)
        p.wait_ready(ready.exists, cache.patience())
        listener = subprocess.Popen(["ip", "netns", "exec", self.b, sys.executable, "-uc", TAKER], stdout=subprocess.PIPE, text=True)
        self.stack.callback(listener.communicate)
        self.stack.callback(listener.kill)
        listener.stdout.readline()

        def writer() -> subprocess.Popen:
            w = subprocess.Popen(["ip", "netns", "exec", self.a, sys.executable, "-uc", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.stack.callback(w.communicate)
            self.stack.callback(w.kill)
            return w

        def write(w: subprocess.Popen, *sizes: int) -> None:
            for n in sizes:
                w.stdin.write(f"{n}\n")
                w.stdin.flush()
                self.assertEqual(w.stdout.readline(), "taken\n")

        def ask(what: str) -> None:
            sh(self.kpat, "ctl", what, "--pid", p.p.pid)
            s = json.loads(sh(self.kpat, "ctl", "status", "--json", "--pid", p.p.pid).stdout)
            resumed = what == "resume"
            self.assertEqual((s["paused"], s["points_attached"]), (not resumed, s["points"] if resumed else 0))
            self.assertGreater(s["points"], 5)
            # Two stay: where threads end and take another name.
            self.assertEqual(self.links(p), s["points_attached"] + 2)
            self.assertTrue(0 < s["resume_ns"] < 2 * 10**9 or not resumed, s["resume_ns"])

        ask("pause")
        w = writer()
        write(w, 1000)
        for sizes in ((2000, 2001), (3000, 3001)):
            ask("resume")
            write(w, *sizes)
            ask("pause")
            write(w, 700, 701)
        w.communicate(timeout=20)
        w = writer()
        write(w, 702)
        ask("resume")
        write(w, 4000, 4001)
        self.assertEqual(p.stop(), 0)
        out = self.integrate([log], "p.kpat")["log"]
        of = lambda crossing: self.rows(out, f"select size_bytes from app_event where crossing = {crossing} and size_bytes > 1 order by at_ns")
        for crossing in (2, 5, 6, 7, 9, 10):
            self.assertEqual(of(crossing), ["2000", "2001", "3000", "3001", "4000", "4001"], f"crossing {crossing}")
        own = lambda few: f"(select distinct socket_id from app_event where crossing = 2 and size_bytes / 1000 {few})"
        one, two = (self.rows(out, f"select local_port, peer_port from socket where socket_id in {own(few)}") for few in ("in (2, 3)", "= 4"))
        self.assertEqual((one, two), (["7001\t7000"], ["7001\t7000"]))
        self.assertEqual(self.rows(out, f"select count(*) from socket where socket_id in {own('in (2, 3, 4)')}"), ["2"])
        self.assertEqual(self.rows(out, "select text from event where kind = 35 order by at_ns"), ["resumed", "paused"] * 2 + ["resumed"])

    def test_rings_of_another_size(self):
        """Rings made smaller while it runs lose, made larger again they do not; what was lost is counted, event by event."""
        log, ready = self.dir / "r.kbl", self.dir / "r.ready"
        p = play.Process("rings", [self.kpat, "record", "--profile", "app", "--netns", self.a, "-f", "udp port 9000", "--ring", "4M", "-o", str(log),
                                   "--ready-file", str(ready), "--no-cost"], self.dir)
        self.stack.callback(p.stop)
        p.wait_ready(ready.exists, cache.patience())
        ctl = lambda *what, ok=True: sh(self.kpat, "ctl", *what, "--pid", p.p.pid, ok=ok)

        def status() -> tuple:
            s = json.loads(ctl("status", "--json").stdout)
            return s["ring_bytes"], s["ring_allocated_bytes"], sum(x["count"] for x in lost(self, s))

        # The socket is announced while there is room: a socket that is not known cannot have lost anything.
        sender = subprocess.Popen(["ip", "netns", "exec", self.a, sys.executable, "-uc", MANY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.stack.callback(sender.communicate)
        self.stack.callback(sender.kill)

        first, *_, last = sorted(os.sched_getaffinity(0))

        def send(count: int, cpu: int) -> None:
            sender.stdin.write(f"{count} {cpu}\n")
            sender.stdin.flush()
            self.assertEqual(sender.stdout.readline(), "sent\n")

        send(5000, first)
        self.assertEqual(status(), (4 << 20, 4 << 20, 0))
        result = ctl("set", "--ring", "4K")
        self.assertIn("rings of 4 KiB", result.stderr)
        self.assertIn("of 4.0 MiB that it has", ctl("status").stdout)
        # After the first nothing more comes on that CPU: it is reported when the recording ends.
        send(2500, last)
        send(2500, first)
        ctl("set", "--ring", "4M")
        # Reported by the recorder's next look at its counters.
        wait_for(lambda: status()[2] > 0, 20, "the losses")
        counted = status()[2]
        send(5000, first)
        self.assertEqual(status(), (4 << 20, 4 << 20, counted))
        for wrong, word in (("8M", "each ring has 4194304 bytes"), ("1K", "too small")):
            r = ctl("set", "--ring", wrong, ok=False)
            self.assertEqual(r.returncode, 1)
            self.assertIn(word, r.stderr)
        self.assertEqual(p.stop(), 0)
        out = self.integrate([log], "r.kpat")["log"]
        one = lambda question: int(self.rows(out, question)[0])
        missing = one("select coalesce(sum(lost), 0) from gap")
        self.assertGreater(missing, 1000)
        # To the call's end, the device's queue and the driver, each datagram.
        self.assertEqual(one("select count(*) from app_event where crossing in (2, 5, 6)") + missing, 3 * 15000)
        self.assertEqual((one("select sum(count) from loss where cause <> 20"), one("select count(distinct cpu) from gap")), (counted, len({first, last})))
        notes = self.rows(out, "select text from event where kind = 35 order by at_ns")
        self.assertEqual(notes, ["rings of 4 KiB", "rings of 4096 KiB"])
        during = "between (select min(at_ns) from event where kind = 35) and (select max(at_ns) from event where kind = 35)"
        self.assertEqual(one(f"select sum(lost) from gap where from_ns {during}"), missing)

    def test_both_ends_recorded_apart(self):
        """Two recordings, one of each end: every byte written at the one is read at the other, both ways. That the two kernels' clocks are one
        is then kept from kpat, which has to find out."""
        recorders = []
        for name, ns in (("a", self.a), ("b", self.b)):
            log, ready = self.dir / f"{name}.kbl", self.dir / f"{name}.ready"
            p = play.Process(f"end-{name}", [self.kpat, "record", "--profile", "app", "--netns", ns, "-f", "tcp port 7000", "-o", str(log),
                                             "--ready-file", str(ready), "--no-cost"], self.dir)
            self.stack.callback(p.stop)
            p.wait_ready(ready.exists, cache.patience())
            recorders.append(p)
        listener = subprocess.Popen(["ip", "netns", "exec", self.b, sys.executable, "-uc", TAKER], stdout=subprocess.PIPE, text=True)
        self.stack.callback(listener.communicate)
        self.stack.callback(listener.kill)
        listener.stdout.readline()
        sizes = [1, 1000, 20000, 333, 60000] * 20
        # An answer for each read; some writes are read in pieces, so there are more answers than the writer takes.
        writer = subprocess.run(["ip", "netns", "exec", self.a, sys.executable, "-uc", WRITER], input="".join(f"{n}\n" for n in sizes), stdout=subprocess.PIPE, text=True,
                                timeout=60)
        self.assertEqual(writer.stdout, "taken\n" * len(sizes))
        for p in recorders:
            self.assertEqual(p.stop(), 0)
        logs = [self.dir / "a.kbl", self.dir / "b.kbl"]
        both = self.dir / "both.kpat"
        sh(self.kpat, "integrate", *logs, "-o", both)

        def joined() -> dict:
            result = json.loads(sh(self.kpat, "app", both, "--connections", "--json").stdout)
            (c,) = result["connections"]
            there, back = c["directions"]
            self.assertEqual([result["hosts"][e["host"]]["name"] for e in c["ends"]], ["a", "b"])
            self.assertEqual((there["written"], there["read"], there["left"]), (sum(sizes), sum(sizes), []))
            self.assertEqual(there["write_to_read_ns"]["count"], sum(sizes))
            # What the writer did not read of the answers is somewhere.
            self.assertGreaterEqual(back["read"], len(sizes))
            self.assertEqual(back["written"], back["read"] + sum(x["bytes"] for x in back["left"]))
            for d in (there, back):
                self.assertEqual((d["before"], d["unseen_writes"], d["unseen_reads"], d["impossible"]), (0, 0, 0, 0), c)
            return c

        c = joined()
        self.assertEqual((c["clock"]["offset_ns"], c["clock"]["bound_ns"]), (0, 0))
        manifest = both / "b.kpat" / "manifest.json"
        result = json.loads(manifest.read_text())
        result["log"]["boot_id"] = "another"
        manifest.write_text(json.dumps(result))
        clock = joined()["clock"]
        self.assertTrue(0 < clock["bound_ns"] < 10**6, clock)
        self.assertLessEqual(abs(clock["offset_ns"]), clock["bound_ns"], clock)
        alone = self.dir / "alone.kpat"
        sh(self.kpat, "integrate", logs[0], "-o", alone)
        self.assertIn("no connection has both its ends here", sh(self.kpat, "app", alone, "--connections").stderr)

    def test_metrics(self):
        """What Prometheus reads is what `kpat ctl status` says."""
        p = self.start("metrics", self.dir / "m.kbl", "--metrics", "0", "--rotate-time", "1h")
        self.send(2000, 4000)
        url = re.search(r"metrics at (http:\S+)", play.text_of(p.stderr))[1]
        ask = lambda: urllib.request.urlopen(url, timeout=5).read().decode()
        wait_for(lambda: "kpat_records_total 0\n" not in ask(), 20, "a second")
        status = lambda: json.loads(sh(self.kpat, "ctl", "status", "--json", "--pid", p.p.pid).stdout)
        asked = {}

        def agree():
            # The page is up to a second old, and the namespace may speak by itself between the two.
            asked.update(page=ask(), status=status())
            return f"kpat_records_total {asked['status']['records']}\n" in asked["page"]

        wait_for(agree, 20, "the same number on both")
        page, status = asked["page"], asked["status"]
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

    def spool_of(self, files: int) -> Path:
        """Finished files, as a recorder leaves them."""
        spool = self.dir / "spool"
        spool.mkdir(exist_ok=True)
        p = self.start("spooled", spool / "a.kbl", "--rotate-time", "1h")
        for _ in range(files - 1):
            before = len(self.parts(spool))
            self.send(50, 1000)
            sh(self.kpat, "ctl", "rotate", "--pid", p.p.pid)
            wait_for(lambda: len(self.parts(spool)) > before, 20, "the next file")
        p.stop()
        return spool

    def collect(self, *args, ok=True, **env) -> subprocess.CompletedProcess:
        return sh(self.kpat, "collect", *args, ok=ok, **env)

    def process(self, name: str, *argv) -> play.Process:
        p = play.Process(name, list(map(str, argv)), self.dir)
        self.stack.callback(p.stop)
        return p

    def receiver(self, shelf: Path, port: str = "0") -> tuple[play.Process, str]:
        p = self.process("receiver", self.kpat, "collect", "receive", shelf, "--listen", port)
        p.wait_ready(lambda: "listening at" in play.text_of(p.stderr), cache.patience())
        return p, re.search(r"listening at (\S+)", play.text_of(p.stderr))[1]

    def same_as(self, contents: dict, folder: Path) -> None:
        self.assertEqual({f.name: f.read_bytes() for f in self.parts(folder)}, contents)

    def test_over_the_network(self):
        """The far end is away, comes, is killed in between: everything arrives, once."""
        spool, shelf, token = self.spool_of(4), self.dir / "shelf", self.dir / "token"
        token.write_text(self.collect("token", shelf, "dev").stdout)
        contents = {f.name: f.read_bytes() for f in self.parts(spool)}
        p, url = self.receiver(shelf)
        p.stop()
        port = url.rsplit(":", 1)[1]
        sender = self.process("sender", self.kpat, "collect", "send", spool, url, "--device", "dev", "--token-file", token, "--every", "200ms")
        wait_for(lambda: "refused" in play.text_of(sender.stderr), 20, "the sender's complaint")
        self.assertEqual(len(self.parts(spool)), 4)
        p, _ = self.receiver(shelf, port)
        wait_for(lambda: not self.parts(spool), 40, "an empty spool")
        os.killpg(p.p.pid, signal.SIGKILL)
        sender.stop()
        self.same_as(contents, shelf / "dev")
        got = self.integrate(self.parts(shelf / "dev"), "gathered.kpat")
        self.assertEqual((lost(self, got), got["warnings"], self.sent(got["log"])), ([], [], 150))
        listed = json.loads(self.collect("list", shelf, "--json").stdout)
        self.assertEqual([(d["name"], d["files"], d["gaps"], lost(self, d)) for d in listed], [("dev", 4, [], [])])
        self.assertLess(listed[0]["recordings"][0]["clock"]["uncertainty_ns"], 1_000_000)
        self.assertIn("dev", self.collect("list", shelf).stdout)

    def test_over_tls(self):
        """openssl carries it to a proxy with TLS, which is asked for by its name or address; a certificate of another name, of nobody known or from
        another time is refused with the reason, and no token sent."""
        spool, shelf, token = self.spool_of(2), self.dir / "shelf", self.dir / "token"
        token.write_text(self.collect("token", shelf, "dev").stdout)
        contents = {f.name: f.read_bytes() for f in self.parts(spool)}
        _, url = self.receiver(shelf)
        seen = self.dir / "seen"

        def proxy(name: str, names: str, days: int) -> tuple[Path, str]:
            key, cert, request = (self.dir / f"{name}.{end}" for end in ("key", "pem", "csr"))
            sh("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", "/CN=a proxy")
            (self.dir / "names").write_text(f"subjectAltName={names}\n")
            sh("openssl", "x509", "-req", "-in", request, "-signkey", key, "-out", cert, "-days", days, "-extfile", self.dir / "names")
            p = self.process(name, sys.executable, LAB / "tools/tlsproxy.py", key, cert, url.rsplit(":", 1)[1], seen)
            p.wait_ready(lambda: "port" in play.text_of(p.stdout), cache.patience())
            return cert, play.text_of(p.stdout).split()[1]

        send = lambda host, port, ca: self.collect("send", spool, f"https://{host}:{port}", "--device", "dev", "--token-file", token, "--ca", ca, "--once", ok=False)
        cert, port = proxy("named", "DNS:localhost", 2)
        other, other_port = proxy("address", "IP:127.0.0.1", 2)
        old, old_port = proxy("old", "DNS:localhost", -1)
        for host, at, ca, why in (("127.0.0.1", port, cert, "IP address mismatch"), ("localhost", other_port, other, "hostname mismatch"),
                                  ("localhost", port, other, "self.signed certificate"), ("localhost", old_port, old, "certificate has expired"),
                                  ("localhost", url.rsplit(":", 1)[1], cert, "it does not answer by TLS"), ("localhost", 1, cert, "Connection refused")):
            r = send(host, at, ca)
            self.assertEqual(r.returncode, 1, why)
            self.assertRegex(r.stderr, f"(?i)^kpat: {host}:{at}: .*{why}$")
        self.assertFalse(seen.exists() and token.read_bytes().strip() in seen.read_bytes())
        for host, at, ca in (("localhost", port, cert), ("127.0.0.1", other_port, other)):
            for name, content in contents.items():
                (spool / name).write_bytes(content)
            r = send(host, at, ca)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(self.parts(spool), [])
            # A proxy for several sites chooses by it.
            self.assertIn(f"\r\nhost: {host}:{at}\r\n".encode(), seen.read_bytes())
        self.assertIn(token.read_bytes().strip(), seen.read_bytes())
        self.same_as(contents, shelf / "dev")

    def test_over_ssh(self):
        """A forced command: whatever the device asks for, its files come into its own folder."""
        spool, shelf, here = self.spool_of(3), self.dir / "shelf", self.dir / "ssh"
        for d in (shelf, here):
            d.mkdir()
        contents = {f.name: f.read_bytes() for f in self.parts(spool)}
        for k in ("host", "dev"):
            sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", here / k)
        (here / "keys").write_text(f'command="{self.kpat} collect accept {shelf} --device mine",restrict {(here / "dev.pub").read_text()}')
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        (here / "conf").write_text(f"Port {port}\nListenAddress 127.0.0.1\nHostKey {here}/host\nAuthorizedKeysFile {here}/keys\nStrictModes no\nUsePAM no\nPidFile none\n")
        Path("/run/sshd").mkdir(exist_ok=True)
        server = self.process("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", here / "conf")
        server.wait_ready(lambda: "listening" in play.text_of(server.stderr), cache.patience())
        ssh = f"ssh -F /dev/null -i {here}/dev -o StrictHostKeyChecking=no -o UserKnownHostsFile={here}/known -o LogLevel=ERROR"
        target = f"ssh://{os.environ.get('USER', 'root')}@127.0.0.1:{port}/etc"
        self.collect("send", spool, target, "--device", "other", "--ssh", ssh, "--once")
        self.assertEqual([d.name for d in shelf.iterdir()], ["mine"])
        self.same_as(contents, shelf / "mine")

    def test_by_rsync(self):
        """To rsync's own service; it ends in the middle of it and comes back."""
        if not shutil.which("rsync"):
            self.skipTest("rsync is not installed")
        spool, module = self.spool_of(3), self.dir / "module"
        module.mkdir()
        contents = {f.name: f.read_bytes() for f in self.parts(spool)}
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        send = lambda: self.collect("send", spool, f"rsync://127.0.0.1:{port}/logs", "--device", "dev", "--once", ok=False)
        self.assertEqual(send().returncode, 1)
        self.same_as(contents, spool)
        (self.dir / "rsyncd.conf").write_text(f"use chroot = no\n[logs]\npath = {module}\nread only = no\nuid = 0\ngid = 0\n")
        server = self.process("rsyncd", "rsync", "--daemon", "--no-detach", f"--port={port}", "--address=127.0.0.1", "--config", self.dir / "rsyncd.conf")
        server.wait_ready(lambda: f":{port}" in sh("ss", "-Hltn", f"sport = :{port}").stdout, cache.patience())
        r = send()
        self.assertEqual(r.returncode, 0, r.stderr)
        self.same_as(contents, module / "dev")
        self.assertEqual(self.parts(spool), [])

    def test_to_a_storage(self):
        """S3: signatures are checked by the storage; a wrong key and another's object are refused."""
        try:
            import boto3
            import moto.server  # noqa: F401
        except ImportError:
            self.skipTest("moto, a storage that speaks S3, is not installed")
        spool = self.spool_of(3)
        contents = {f.name: f.read_bytes() for f in self.parts(spool)}
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # The first four requests make the user and the bucket; after them every signature is checked.
        os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"
        self.stack.callback(os.environ.pop, "INITIAL_NO_AUTH_ACTION_COUNT")
        storage = self.process("storage", sys.executable, "-m", "moto.server", "-p", port)
        storage.wait_ready(lambda: f":{port}" in sh("ss", "-Hltn", f"sport = :{port}").stdout, cache.patience())
        at = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
        first = {**at, "aws_access_key_id": "x", "aws_secret_access_key": "x"}
        iam = boto3.client("iam", **first)
        iam.create_user(UserName="d")
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="d", PolicyName="p", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName="d")["AccessKey"]
        boto3.client("s3", **first).create_bucket(Bucket="logs")
        send = lambda secret: self.collect("send", spool, "s3://logs/fleet", "--endpoint", at["endpoint_url"], "--device", "dev", "--once", ok=False,
                                           AWS_ACCESS_KEY_ID=key["AccessKeyId"], AWS_SECRET_ACCESS_KEY=secret, AWS_REGION="us-east-1")
        self.assertEqual(send("wrong").returncode, 1)
        self.assertEqual(len(self.parts(spool)), 3)
        r = send(key["SecretAccessKey"])
        self.assertEqual(r.returncode, 0, r.stderr)
        s3 = boto3.client("s3", **at, aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"])
        objects = s3.list_objects_v2(Bucket="logs")["Contents"]
        self.assertEqual({o["Key"]: s3.get_object(Bucket="logs", Key=o["Key"])["Body"].read() for o in objects},
                         {f"fleet/dev/{n}": c for n, c in contents.items()})
        name = next(iter(contents))
        (spool / name).write_bytes(b"another")
        self.assertEqual(send(key["SecretAccessKey"]).returncode, 1)
        self.assertEqual((spool / name).read_bytes(), b"another")

    def test_services(self):
        """The judges of those who run them."""
        with tempfile.TemporaryDirectory() as d:
            for what in ("", "-send", "-receive"):
                unit = Path(d) / f"kpat{what or '-record'}.service"
                text = self.collect("service", f"--systemd{what}").stdout
                # Judged as if installed here: the program at its place of today.
                unit.write_text(text.replace("/usr/bin/kpat", self.kpat))
                r = sh("systemd-analyze", "verify", "--man=no", unit, ok=False)
                self.assertEqual((r.returncode, r.stderr), (0, ""), unit.name)
            script = Path(d) / "kpat.init"
            script.write_text(self.collect("service", "--openwrt").stdout)
            sh("sh", "-n", script)
            if shutil.which("shellcheck"):
                r = sh("shellcheck", script, ok=False)
                self.assertEqual(r.returncode, 0, r.stdout)

    def test_soak(self):
        """The soak, shortened: far end away, recorder killed, disk full."""
        r = sh(LAB.parent / "bench/soak", "0.6", "--pps", 3000, ok=False, seconds=200, KPAT=self.kpat)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
