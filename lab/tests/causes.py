"""What holds a TCP sender back: a sender for each cause, over a way with a known delay and loss. On this machine, with tracepoints. Truth is what
the sender counted (its calls, what was taken, errors, how long it was refused), TCP_INFO at its end, and what the way lost."""
import json
import os
import sys
import unittest
from pathlib import Path

from kpatlab import cache, play
from kpatlab.cache import LAB
from tests.connection import make
from tests.place import own, sh

PORT = 7100
CAUSES = ("application", "handshake", "congestion window", "receive window", "reading application", "send buffer", "cork", "Nagle's rule", "retransmission", "pacing", "device", "pacing or device")
# Of shares of the time: TCP counts in ticks (4 ms and less), a busy machine delays whoever looks.
SHARE = 0.12
# Of the time, for which the path may wait for a processor.
LATE = 0.05


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class Causes(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = own(self, "causes", "ab", os.environ.get("KPAT_KEEP_CAUSES"))

    def case(self, name: str, way=(), recv=(), send=(), tc=()) -> dict:
        """Makes the case. Where TCP sends again on a path that loses nothing, or the path itself waited for a processor and so delayed what it
        carried, the machine was too busy to make it: then once more."""
        loses = tc or {"--loss", "--every"} & set(map(str, way))
        for again in ("", "-again", "-at-last"):
            r = self.run_case(name + again, way, recv, send, tc)
            late = r["way"]["waited_ns"] / r["truth"]["wall_ns"]
            if late < LATE and (loses or not r["truth"]["tcp"]["total_retrans"]):
                return r
        self.skipTest(f"{name}: TCP sent again on a path without loss, or the path was late ({late:.0%} of the time): this machine is too busy to make the case")

    def run_case(self, name: str, way=(), recv=(), send=(), tc=()) -> dict:
        """Runs it: what the generator reported, what kpat reports of the sender, of both ends, over time."""
        made = make(self, name, "10.96.0", PORT, ["--profile", "app", "--netns", self.a, "--netns", self.b], way, recv, send, tc)
        sockets = json.loads(sh(self.kpat, "app", made.log, "--json").stdout)["sockets"]
        sender = next(s for s in sockets if s["peer_port"] == PORT)
        return {"name": name, "log": made.log, "truth": made.sender, "socket": sender, "read": json.loads(made.receiver[-1])["bytes"],
                "way": json.loads(made.path[-1]) if len(made.path) > 1 else {}}

    def right(self, r: dict, cause: str, share: float) -> None:
        """That cause first, with at least that share, in everything that names one; bytes, calls, errors and times as the generator counted."""
        truth, sender, log = r["truth"], r["socket"], r["log"]
        tcp, words = sender["tcp"], f"{r['name']}: {truth | {'starts_ns': 0}} {sender['tcp']}"
        field = lambda cause: "nagle_ns" if cause == "Nagle's rule" else cause.replace(" ", "_") + "_ns"
        held = {cause: tcp[field(cause)] for cause in CAUSES if field(cause) in tcp}
        self.assertEqual(sum(held.values()), tcp["known_ns"], words)
        self.assertEqual(max(held, key=held.get), cause, words)
        self.assertGreaterEqual(held[cause] / tcp["known_ns"], share, words)
        # the calls
        crossed = sender["crossings"]
        for c in ("send", "to-transport"):
            self.assertEqual((crossed[c]["events"], crossed[c]["bytes"], crossed[c]["errors_by_errno"]), (truth["calls"], truth["taken_bytes"], truth["errors"]), c)
        self.assertEqual(r["read"], truth["taken_bytes"])
        self.assertEqual(sender["sent_bytes"], truth["taken_bytes"])
        near = lambda kpat, own, what: self.assertAlmostEqual(kpat / truth["wall_ns"], own / truth["wall_ns"], delta=SHARE, msg=f"{what}, {words}")
        near(tcp["refused_ns"], truth["refused_ns"], "refused")
        near(tcp["in_call_ns"], truth["call_ns"], "in calls")
        # TCP's own counts: of the time until the generator asked
        own = truth["tcp"]
        self.assertGreaterEqual((tcp["receive_window_ns"] + tcp["reading_application_ns"]) / truth["wall_ns"] + SHARE, own["rwnd_limited_us"] * 1e3 / truth["wall_ns"], words)
        self.assertGreaterEqual(tcp["send_buffer_ns"] / truth["wall_ns"] + SHARE, own["sndbuf_limited_us"] * 1e3 / truth["wall_ns"], words)
        self.assertGreaterEqual(tcp["application_ns"] / truth["wall_ns"] + SHARE, 1 - own["busy_us"] * 1e3 / truth["wall_ns"], words)
        # over time
        series = json.loads(sh(self.kpat, "app", log, "--socket", sender["socket_id"], "--series", "--bins", 40, "--json").stdout)["tcp"]["held_back_ns"]
        sums = {k: sum(v) for k, v in series.items()}
        for k, v in sums.items():
            # A series begins with the socket's first event, at which there may be no state yet.
            self.assertAlmostEqual(v, held[k], delta=2_000_000, msg=f"{k}: {words}")
        # in words
        row = next(line for line in sh(self.kpat, "app", log).stdout.splitlines() if f"> 10.96.0.2:{PORT}" in line)
        self.assertIn(cause, row)
        page = self.dir / f"{r['name']}.html"
        sh(self.kpat, "app", log, "--socket", sender["socket_id"], "--html", page)
        self.assertIn(f"{cause} {100 * held[cause] / tcp['known_ns']:.1f} %", page.read_text())
        # both ends: the same cause, and the parts of the way are the whole
        ends = json.loads(sh(self.kpat, "app", log, "--connections", "--json").stdout)["connections"]
        self.assertEqual(len(ends), 1)
        way = next(d for d, e in zip(ends[0]["directions"], ends[0]["ends"]) if e["socket_id"] == sender["socket_id"])
        self.assertEqual(way["held_back"], tcp)
        self.assertEqual((way["written"], way["read"], way["unseen_writes"], way["unseen_reads"]), (truth["taken_bytes"], truth["taken_bytes"], 0, 0), words)
        total = lambda s: s["mean"] * s["count"]
        self.assertAlmostEqual(sum(total(leg["ns"]) for leg in way["legs"]) / total(way["write_to_read_ns"]), 1, delta=1e-6)
        queue = next(w["ns"] for w in sender["waits"] if w["leg"] == "send queue")
        leg = next(leg["ns"] for leg in way["legs"] if leg["name"] == "send queue")
        self.assertLessEqual(queue["mean"], way["write_to_read_ns"]["mean"])
        self.assertAlmostEqual(queue["mean"] / leg["mean"], 1, delta=0.02, msg=words)

    def test_application(self):
        r = self.case("application", ["--delay-ms", 10], send=["--seconds", 2, "--write", 1000, "--every-ms", 20])
        self.right(r, "application", 0.9)

    def test_send_buffer_refuses(self):
        r = self.case("refused", ["--delay-ms", 10], send=["--seconds", 2, "--sndbuf", 8192, "--nonblocking"])
        self.assertGreater(r["truth"]["errors"]["EAGAIN"] + r["truth"]["refused_ns"] // 10**9, 1)
        self.right(r, "send buffer", 0.75)
        self.assertEqual(max(r["socket"]["tcp"]["while_refused_or_in_call"].items(), key=lambda x: x[1])[0], "send_buffer_ns")

    def test_send_buffer_blocks(self):
        self.right(self.case("blocked", ["--delay-ms", 10], send=["--seconds", 2, "--sndbuf", 8192]), "send buffer", 0.75)

    def test_receive_window(self):
        r = self.case("window", ["--delay-ms", 10], ["--rcvbuf", 8192], ["--seconds", 2, "--nonblocking"])
        self.right(r, "receive window", 0.75)

    def test_slow_reader(self):
        r = self.case("reader", ["--delay-ms", 2], ["--rcvbuf", 32768, "--read", 10000, "--every-ms", 50], ["--seconds", 2, "--nonblocking"])
        self.right(r, "reading application", 0.6)

    def test_congestion_window(self):
        r = self.case("loss", ["--delay-ms", 10, "--loss", 0.02], send=["--seconds", 2, "--nonblocking"])
        self.right(r, "congestion window", 0.7)
        again = r["socket"]["crossings"]["retransmit"]["frames"]
        self.assertGreaterEqual(again, r["truth"]["tcp"]["total_retrans"])
        self.assertGreaterEqual(again, r["way"]["a_to_b"]["lost"] // 2)

    def test_pacing(self):
        self.right(self.case("pacing", ["--delay-ms", 10], send=["--seconds", 2, "--pace", 400000]), "pacing", 0.8)

    def test_device(self):
        tbf = ["tbf", "rate", "4mbit", "burst", "5kb", "latency", "2s"]
        self.right(self.case("device", ["--delay-ms", 10], send=["--seconds", 2, "--nonblocking"], tc=tbf), "device", 0.75)

    def test_retransmission(self):
        r = self.case("timer", ["--delay-ms", 10, "--every", 2], ["--answer"], ["--seconds", 2, "--write", 1000, "--answer"])
        self.right(r, "retransmission", 0.6)

    def test_spacing(self):
        """Writes at known times: their distance is a number, not a class's end."""
        r = self.case("spacing", send=["--seconds", 3, "--write", 1000, "--every-ms", 200])
        starts = r["truth"]["starts_ns"]
        apart = sorted(b - a for a, b in zip(starts, starts[1:]))
        result = r["socket"]["crossings"]["send"]["spacing_ns"]
        self.assertEqual(result["count"], len(apart))
        self.assertAlmostEqual(result["mean"], sum(apart) / len(apart), delta=2e6)
        self.assertAlmostEqual(result["median"], apart[(len(apart) - 1) // 2], delta=apart[-1] / 64 + 2e6)
        self.assertAlmostEqual(result["median"], 200e6, delta=20e6)



@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Kinds(unittest.TestCase):
    """Every crossing that `kpat doctor` promises for a kind of socket comes, and no other. On this machine, with tracepoints."""

    COUNT = 20

    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = own(self, "kinds", "ab", os.environ.get("KPAT_KEEP_CAUSES"))
        sh("ip", "-n", self.a, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", self.b)
        for ns, dev, n in ((self.a, "v0", 1), (self.b, "v1", 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.97.0.{n}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        sh("ip", "netns", "exec", self.a, "sysctl", "-qw", "net.ipv4.ping_group_range=0 0")

    def recorded(self, *args) -> tuple[dict, Path]:
        log, ready = self.dir / "k.kbl", self.dir / "k.ready"
        record = play.Process("record", [self.kpat, "record", "--profile", "app", "--netns", self.a, "--netns", self.b, "--no-cost", "-o", str(log),
                                         "--ready-file", str(ready), *args], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        kinds = [sys.executable, LAB / "tools/kinds.py"]
        server = play.Process("serve", ["ip", "netns", "exec", self.b, *map(str, kinds), "serve", "10.97.0.2"], self.dir)
        self.stack.callback(server.stop)
        server.wait_ready(lambda: "listening" in play.text_of(server.stdout), cache.patience())
        result = json.loads(sh("ip", "netns", "exec", self.a, *kinds, "ask", "10.97.0.2", self.COUNT).stdout)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        out = self.dir / "k.kpat"
        sh(self.kpat, "integrate", log, "-o", out)
        return result, out

    def rows(self, log: Path, question: str) -> list[list[str]]:
        return [line.split("\t") for line in sh(self.kpat, "sql", log, question, "--tsv").stdout.splitlines()[1:]]

    def test_doctor_keeps_its_promises(self):
        result, log = self.recorded("--tcp-state", "all")
        promised = {(r["crossing"], r["protocol"]): r["seen"] for r in json.loads(sh(self.kpat, "doctor", "--json").stdout)["crossings"]}
        sockets = {s["socket_id"]: s for s in json.loads(sh(self.kpat, "app", log, "--limit", 0, "--json").stdout)["sockets"]}
        for kind, own in result.items():
            s = sockets[own["socket"]]
            self.assertEqual((s["sent_bytes"], s["received_bytes"]), (own["sent"], own["read"]), kind)
            for (crossing, protocol), seen in promised.items():
                if protocol != kind or crossing == "retransmit":
                    continue
                events = s["crossings"].get(crossing, {}).get("events", 0)
                self.assertEqual(events > 0, seen, f"{crossing} of {kind}: {events} events")
                if kind != "tcp" and events:
                    self.assertEqual(events, self.COUNT, f"{crossing} of {kind}")
            if kind == "tcp":
                continue
            # one message after the other: each crossing comes behind the one before, also where a socket has a clone of the packet
            order = [6, 7, 9, 10]
            rows = self.rows(log, f"select crossing from app_event where socket_id = {own['socket']} and crossing in (6, 7, 9, 10) order by at_ns")
            self.assertEqual([int(r[0]) for r in rows], order * self.COUNT, kind)
        # TCP's state with each crossing at which the socket is at hand: not where a device has a packet of nobody's yet
        states = {int(r[0]) for r in self.rows(log, f"select distinct crossing from tcp_state where socket_id = {result['tcp']['socket']}")}
        crossed = {int(r[0]) for r in self.rows(log, f"select distinct crossing from app_event where socket_id = {result['tcp']['socket']}")}
        self.assertEqual(states, crossed - {7, 12})
        # and the network header of the others where the packet is at hand, as the generator asked for it
        of = lambda kind: self.rows(log, f"select distinct crossing, ip_version, tos, ttl from tcp_state where socket_id = {result[kind]['socket']} and ip_version is not null order by 1")
        self.assertEqual(of("udp"), [["5", "4", "40", "33"], ["6", "4", "40", "33"]])
        for kind in ("raw", "ping"):
            self.assertEqual(of(kind), [["5", "4", "0", "64"], ["6", "4", "0", "64"]])
        lines = [line.split("\t") for line in sh(self.kpat, "app", log, "--to", "tsv").stdout.splitlines()]
        head, headers = lines[0], [r for r in lines if r[1] == str(result["udp"]["socket"]) and r[2] == "headers"]
        # but of the first, which leaves before the kernel has given its socket a cookie
        self.assertEqual(len(headers), 2 * (self.COUNT - 1))
        row = dict(zip(head, headers[0]))
        self.assertEqual((row["ip_version"], row["ip_protocol"], row["tos"], row["ttl"]), ("4", "17", "40", "33"))

    def test_a_filter_is_kept(self):
        result, log = self.recorded("-f", "tcp port 7200")
        self.assertEqual({r[0] for r in self.rows(log, "select distinct proto from socket")}, {"6"})
        self.assertEqual({r[0] for r in self.rows(log, "select distinct version from socket")}, {"4"})
        ids = {r[0] for r in self.rows(log, "select distinct socket_id from app_event")}
        self.assertIn(str(result["tcp"]["socket"]), ids)
        self.assertTrue(ids.isdisjoint(str(result[kind]["socket"]) for kind in ("udp", "raw", "ping")))
        self.assertNotIn('"proto":"0"', sh(self.kpat, "app", "export", log).stdout)


if __name__ == "__main__":
    unittest.main()
