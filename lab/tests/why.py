"""Why a connection is slow: a connection for each cause, and two causes at a time of which the larger comes first. On this machine, with
tracepoints, packets and applications in one log. Truth is how the case is made: the generator's own times and counts, the path's delay, the rates."""
import json
import os
import subprocess
import unittest
import urllib.request
from pathlib import Path

from kpatlab import play
from tests.connection import make
from tests.place import linux_before, own, sh

PORT = 7400
# Of the time, for which the path may wait for a processor: it is the wire's then. And what TCP may send again that was not lost.
LATE, AGAIN = 0.15, 3


def page(kpat: str, log: Path, question: str) -> dict:
    """What the page of this log is answered to a question."""
    service = subprocess.Popen([kpat, "view", "--no-open", log], stdout=subprocess.PIPE, text=True)
    try:
        address, token = service.stdout.readline().strip().split("#token=")
        asked = urllib.request.Request(f"{address}api/{question}", headers={"x-kpat-token": token})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.loads(answer.read().splitlines()[-1])["result"]
    finally:
        service.terminate()
        service.wait(30)
        service.stdout.close()


def kept_by_nagle(starts_ns: list[int], size: int, mss: int, there_and_back_ns: int) -> list[int]:
    """Of each write of that many bytes that left: for how long the rule keeps its last byte (RFC 9293, 3.7.4, in Minshall's form: only small segments in flight matter)."""
    waits, unsent, left, acked_ns = [], [], 0, 0

    def leave(to: int, at_ns: int) -> None:
        nonlocal left, unsent
        waits.extend(at_ns - start for start, end in unsent if end <= to)
        left, unsent = to, [u for u in unsent if u[1] > to]

    for i, start in enumerate(starts_ns):
        if unsent and acked_ns <= start:
            leave(i * size, acked_ns)
            acked_ns += there_and_back_ns
        given = (i + 1) * size
        unsent.append((start, given))
        leave(left + (given - left) // mss * mss, start)
        if given > left and acked_ns <= start:
            leave(given, start)
            acked_ns = start + there_and_back_ns
    return waits


class Slow:
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = own(self, "why", "ab", os.environ.get("KPAT_KEEP_WHY"))

    def case(self, name: str, way=(), recv=(), send=(), tc=(), ends="ab") -> dict:
        """Makes the case; once more where this machine was too busy to make it: TCP sent again what was not lost, or the path was late."""
        loses = {"--loss", "--every"} & set(map(str, way))
        for again in ("", "-again", "-at-last"):
            r = self.run_case(name + again, way, recv, send, tc, ends)
            late = r["way"]["waited_ns"] / r["truth"]["wall_ns"]
            if late < LATE and (loses or r["truth"]["tcp"]["total_retrans"] <= AGAIN):
                return r
        self.skipTest(f"{name}: TCP sent {r['truth']['tcp']['total_retrans']} segments again on a path without loss, or the path was late "
                      f"({late:.0%} of the time): this machine is too busy to make the case")

    def run_case(self, name: str, way, recv, send, tc, ends) -> dict:
        netns = [x for ns, end in ((self.a, "a"), (self.b, "b")) if end in ends for x in ("--netns", ns)]
        made = make(self, name, "10.99.0", PORT, ["-p", "path,app", "--mechanism", "tracepoint", *netns], way, recv, send, tc)
        sockets = json.loads(sh(self.kpat, "app", made.log, "--json").stdout)["sockets"]
        sender = next(s["socket_id"] for s in sockets if s["peer_port"] == PORT)
        why = json.loads(sh(self.kpat, "why", sender, made.log, "--json").stdout)
        return {"name": name, "log": made.log, "sender": sender, "truth": made.sender, "why": why, "way": json.loads(made.path[-1])}

    def right(self, r: dict, *order: str, share=0.0) -> dict:
        """These stages first, in this order, the first with at least that share; and what holds for every answer."""
        why, truth = r["why"], r["truth"]
        by = {s["stage"]: s for s in why["stages"]}
        largest = sorted(by, key=lambda s: -by[s]["ns"])
        words = f"{r['name']}: " + ", ".join(f"{s} {by[s]['ns'] / 1e6:.1f} ms ({by[s]['share']:.0%})" for s in largest)
        print(f"    {words}", flush=True)
        self.assertEqual(tuple(largest[:len(order)]), order, words)
        self.assertEqual(why["first"], largest[0])
        self.assertGreaterEqual(by[largest[0]]["share"], share, words)
        # every write, and each moment once
        accepted = truth["calls"] - sum(truth["errors"].values())
        self.assertEqual((why["writes"], why["left_out"], why["write_bytes"]["count"]), (accepted, 0, accepted))
        self.assertEqual(round(why["write_bytes"]["mean"] * accepted), truth["taken_bytes"])
        self.assertAlmostEqual(sum(s["ns"] for s in why["stages"]), why["whole_ns"], delta=len(by))
        for line in why["slowest"]:
            self.assertEqual(sum(line["stages_ns"].values()), line["took_ns"])
        for s in why["stages"]:
            self.assertLessEqual(s["low_ns"], s["ns"])
            self.assertGreaterEqual(s["high_ns"], s["ns"])
        # in words, on one screen
        text = sh(self.kpat, "why", r["sender"], r["log"], "--width", 100).stdout
        self.assertIn(f"{largest[0]} {100 * by[largest[0]]['share']:.1f} %", text)
        self.assertLessEqual(len(text.splitlines()), 35)
        return by


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class Why(Slow, unittest.TestCase):
    """One cause."""

    def test_application(self):
        r = self.case("application", ["--delay-ms", 2], send=["--seconds", 2, "--write", 1000, "--every-ms", 50])
        by = self.right(r, "application", share=0.85)
        # from one write's beginning to the next less the way there; one that comes late may meet the next
        starts = r["truth"]["starts_ns"]
        apart = [b - a for a, b in zip(starts, starts[1:])]
        self.assertAlmostEqual(by["application"]["ns"] / sum(max(0, t - 2e6) for t in apart), 1, delta=0.05)
        self.assertGreaterEqual(r["why"]["pauses"], sum(t > 10e6 for t in apart))
        self.assertLessEqual(r["why"]["pauses"], sum(t > 2e6 for t in apart))

    def test_send_buffer(self):
        self.right(self.case("blocked", ["--delay-ms", 10], send=["--seconds", 2, "--sndbuf", 8192]), "send buffer", share=0.5)

    def test_send_buffer_refuses(self):
        r = self.case("refused", ["--delay-ms", 10], send=["--seconds", 2, "--sndbuf", 8192, "--nonblocking"])
        self.right(r, "send buffer", share=0.5)

    def test_receive_window(self):
        self.right(self.case("window", ["--delay-ms", 10], ["--rcvbuf", 8192], ["--seconds", 2, "--nonblocking"]), "receive window", share=0.7)

    def test_slow_reader(self):
        r = self.case("reader", ["--delay-ms", 2], ["--rcvbuf", 32768, "--read", 10000, "--every-ms", 50], ["--seconds", 2, "--nonblocking"])
        self.right(r, "peer's application", share=0.6)

    def test_late_reader(self):
        """The window is never shut: what it has not read yet fits in."""
        r = self.case("late-reader", ["--delay-ms", 2], ["--read", 1000, "--pause-ms", 20], ["--seconds", 2, "--write", 10000, "--every-ms", 250])
        by = self.right(r, "peer's application", share=0.6)
        # ten reads 20 ms apart, of which the first is at once; sleeping takes a little longer
        self.assertAlmostEqual(by["peer's application"]["of_writes_ns"]["median"] / 180e6, 1, delta=0.1)

    def test_pacing(self):
        self.right(self.case("pacing", ["--delay-ms", 10], send=["--seconds", 2, "--pace", 400000]), "pacing", share=0.7)

    def test_congestion_window(self):
        r = self.case("congestion", ["--delay-ms", 10, "--loss", 0.02], send=["--seconds", 2, "--nonblocking"])
        self.right(r, "congestion window", share=0.5)
        self.assertGreaterEqual(r["why"]["sent_again"], r["truth"]["tcp"]["total_retrans"])

    def test_delay(self):
        r = self.case("delay", ["--delay-ms", 60], send=["--seconds", 2, "--write", 1000, "--every-ms", 75])
        by = self.right(r, "driver and wire", "application", share=0.7)
        self.assertAlmostEqual(by["driver and wire"]["of_writes_ns"]["median"] / 60e6, 1, delta=0.05)

    def test_rate_of_the_path(self):
        r = self.case("rate", ["--delay-ms", 1, "--rate", 100_000], send=["--seconds", 2, "--write", 8000, "--every-ms", 110])
        by = self.right(r, "driver and wire", "application", share=0.6)
        # with the headers of its packets
        self.assertAlmostEqual(by["driver and wire"]["of_writes_ns"]["median"] / 85e6, 1, delta=0.1)

    def test_queue(self):
        tbf = ["tbf", "rate", "4mbit", "burst", "5kb", "latency", "2s"]
        self.right(self.case("queue", ["--delay-ms", 10], send=["--seconds", 2, "--nonblocking"], tc=tbf), "queue", share=0.6)

    def test_nagle(self):
        """A second small write waits for the acknowledgement of the first, which the peer delays, as it answers only when it has both."""
        by = self.right(self.case("nagle", ["--delay-ms", 2], ["--answer-after", 200],
                                  ["--seconds", 2, "--write", 100, "--batch", 2, "--every-ms", 10, "--nagle", "--answer-after", 200]), "Nagle's rule", share=0.6)
        # the shortest delay of an acknowledgement (TCP_DELACK_MIN), of every second write
        self.assertGreaterEqual(by["Nagle's rule"]["of_writes_ns"]["median"], 39e6)

    def test_nagle_behind_full_segments(self):
        """The first small write leaves, full segments of what follows leave, and the rest waits for the first one's acknowledgement: full segments in flight do not matter."""
        r = self.case("nagle-behind", ["--delay-ms", 10], send=["--seconds", 2, "--write", 95, "--batch", 46, "--every-ms", 60, "--nagle"])
        by = self.right(r)
        rest = by["Nagle's rule"]["of_writes_ns"]
        # From the batch until the first of its bytes is acknowledged: twice the delay; of 4370 bytes 95 leave, then what fills segments.
        self.assertAlmostEqual(rest["median"] / 20e6, 1, delta=0.15)
        # Of each 60 ms twenty.
        self.assertGreater(by["Nagle's rule"]["share"], 0.18)
        self.assertLess(by.get("undecided", {"share": 0})["share"], 0.02)
        held = json.loads(sh(self.kpat, "app", r["log"], "--json").stdout)["sockets"]
        tcp = next(s["tcp"] for s in held if s["socket_id"] == r["sender"])
        self.assertGreater(tcp["nagle_ns"], 0.25 * tcp["known_ns"])
        self.assertLess(tcp["device_ns"] + tcp["pacing_ns"], 0.02 * tcp["known_ns"])

    def test_nagle_until_a_write_fills_the_segment(self):
        """What waits for the acknowledgement of a small segment leaves before that comes, with the write that makes a full segment of it."""
        r = self.case("nagle-filled", ["--delay-ms", 100], send=["--seconds", 2, "--write", 500, "--every-ms", 20, "--nagle"])
        by = self.right(r, "driver and wire", "Nagle's rule")
        waits = by["Nagle's rule"]["of_writes_ns"]
        self.assertAlmostEqual(waits["mean"] * waits["count"] / sum(kept_by_nagle(r["truth"]["starts_ns"], 500, 1448, 200_000_000)), 1, delta=0.1)
        # Where this machine's processors were busy the write and the segment are apart.
        self.assertLess(by.get("undecided", {"share": 0})["share"], 0.03)

    def test_loss(self):
        r = self.case("timer", ["--delay-ms", 10, "--every", 2], ["--answer"], ["--seconds", 2, "--write", 1000, "--answer"])
        self.right(r, "loss", share=0.6)

    def test_an_answer(self):
        """The other end takes its time and the sender waits for it: that is not the sender's time."""
        r = self.case("answer", ["--delay-ms", 30], ["--answer"], ["--seconds", 2, "--write", 1000, "--answer"])
        by = self.right(r)
        for stage in ("driver and wire", "answer"):
            self.assertAlmostEqual(by[stage]["share"], 0.5, delta=0.05)
        self.assertLess(by["application"]["share"], 0.05)
        self.assertEqual(r["why"]["answered"], r["why"]["pauses"])


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "needs root and /dev/net/tun")
class WhyTogether(Slow, unittest.TestCase):
    """Two causes at a time, and two ends."""

    def test_application_and_delay(self):
        self.right(self.case("pause-delay", ["--delay-ms", 40], send=["--seconds", 2, "--write", 1000, "--every-ms", 150]), "application", "driver and wire")
        self.right(self.case("delay-pause", ["--delay-ms", 50], send=["--seconds", 2, "--write", 1000, "--every-ms", 70]), "driver and wire", "application")

    def test_reader_and_delay(self):
        reader = lambda ms: ["--read", 1000, "--pause-ms", ms]
        send = ["--seconds", 2, "--write", 10000, "--every-ms", 300]
        self.right(self.case("reader-delay", ["--delay-ms", 40], reader(20), send), "peer's application")
        self.right(self.case("delay-reader", ["--delay-ms", 150], reader(5), send), "driver and wire")

    def test_send_buffer_and_application(self):
        # else each write begins with the congestion window
        sh("ip", "netns", "exec", self.a, "sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0")
        # each write but the first of a batch waits for the buffer
        send = lambda ms: ["--seconds", 2, "--sndbuf", 8192, "--batch", 10, "--every-ms", ms]
        self.right(self.case("pause-buffer", ["--delay-ms", 10], send=send(1200)), "application")
        self.right(self.case("buffer-pause", ["--delay-ms", 10], send=send(300)), "send buffer")

    def test_pacing_and_application(self):
        send = lambda ms: ["--seconds", 2.5, "--pace", 400000, "--every-ms", ms]
        self.right(self.case("pause-pace", ["--delay-ms", 10], send=send(500)), "application", "pacing")
        self.right(self.case("pace-pause", ["--delay-ms", 10], send=send(220)), "pacing", "application")

    def test_pacing_and_reader(self):
        reader = ["--rcvbuf", 32768, "--read", 10000, "--every-ms", 50]
        send = lambda pace: ["--seconds", 2, "--pace", pace, "--nonblocking", "--sndbuf", 100000]
        self.right(self.case("reader-pace", ["--delay-ms", 2], reader, send(500_000)), "peer's application")
        self.right(self.case("pace-reader", ["--delay-ms", 2], reader, send(80_000)), "pacing")

    def test_queue_and_delay(self):
        tbf = ["tbf", "rate", "4mbit", "burst", "5kb", "latency", "2s"]
        send = lambda n: ["--seconds", 2, "--write", n, "--every-ms", 150]
        self.right(self.case("queue-delay", ["--delay-ms", 15], send=send(50000), tc=tbf), "queue")
        self.right(self.case("delay-queue", ["--delay-ms", 90], send=send(10000), tc=tbf), "driver and wire")

    # what is not there

    def test_one_end(self):
        r = self.case("one-end", ["--delay-ms", 30], send=["--seconds", 2, "--write", 1000, "--every-ms", 75], ends="a")
        by = self.right(r, "driver, wire and peer")
        self.assertIsNone(r["why"]["peer"])
        self.assertGreaterEqual(by["driver, wire and peer"]["of_writes_ns"]["min"], 60e6)
        self.assertIn("the other end is not in this log", sh(self.kpat, "why", r["sender"], r["log"]).stdout)

    def test_one_end_that_closes_at_once(self):
        r = self.case("closes", ["--delay-ms", 20], send=["--seconds", 0.001, "--write", 300000], ends="a")
        self.assertEqual(r["why"]["ends"]["acknowledged"], r["why"]["writes"])
        self.right(r)

    def test_one_end_that_writes_on_when_the_other_has_closed(self):
        r = self.case("half", ["--delay-ms", 20], ["--half"], ["--half", "--seconds", 2, "--write", 1000, "--every-ms", 100], ends="a")
        self.assertEqual(r["why"]["ends"]["acknowledged"], r["why"]["writes"])
        if linux_before(6, 11):
            self.skipTest("who gets an acknowledgement that is freed is seen since 6.11")
        by = self.right(r, "application", "driver, wire and peer")
        self.assertAlmostEqual(by["driver, wire and peer"]["of_writes_ns"]["median"] / 40e6, 1, delta=0.1)

    def apart(self, made) -> dict:
        """The answer of two logs if they were of two kernels."""
        other = next(made.log.glob("*-also.kpat")) / "manifest.json"
        there = json.loads(other.read_text())
        there["log"]["boot_id"] = "another"
        other.write_text(json.dumps(there))
        return json.loads(sh(self.kpat, "why", made.log, "--json").stdout)

    def test_two_hosts_of_which_one_has_closed(self):
        """What relates the clocks comes to a connection that no tracepoint shows."""
        made = make(self, "half-logs", "10.99.0", PORT, ["-p", "path,app", "--mechanism", "tracepoint", "--netns", self.a], ["--delay-ms", 20],
                    ["--half"], ["--half", "--seconds", 2, "--write", 1000, "--every-ms", 100], also=["--netns", self.b])
        apart = self.apart(made)
        self.assertEqual((apart["first"], apart["ends"]["read"]), ("application", apart["writes"]))
        self.assertLessEqual(abs(apart["clock"]["offset_ns"]), apart["clock"]["bound_ns"])
        self.assertLess(apart["clock"]["bound_ns"], 40e6)

    def test_two_logs(self):
        """A recording at each end, as on two hosts; the same as if they were of two kernels, whose clocks nothing relates but the bytes."""
        made = make(self, "two-logs", "10.99.0", PORT, ["-p", "path,app", "--mechanism", "tracepoint", "--netns", self.a], ["--delay-ms", 20],
                    ["--rcvbuf", 32768, "--read", 10000, "--every-ms", 50], ["--seconds", 2, "--nonblocking"], also=["--netns", self.b])
        why = json.loads(sh(self.kpat, "why", made.log, "--json").stdout)
        self.assertEqual((why["first"], why["sender"]["device"], why["peer"]["device"], why["clock"]), ("peer's application", "two-logs", "two-logs-also", None))
        apart = self.apart(made)
        self.assertEqual(apart["first"], "peer's application")
        # half a round trip is what the bytes leave open
        self.assertLessEqual(abs(apart["clock"]["offset_ns"]), apart["clock"]["bound_ns"])
        self.assertLess(apart["clock"]["bound_ns"], 40e6)
        wire = lambda w: next(s for s in w["stages"] if s["stage"] == "driver and wire")
        self.assertLess(wire(apart)["low_ns"], wire(why)["ns"])
        self.assertGreater(wire(apart)["high_ns"], wire(why)["ns"])
        self.assertIn("another kernel's", sh(self.kpat, "why", made.log).stdout)
        # The page has the same, asked at either end.
        for end in ("sender", "peer"):
            seen = page(self.kpat, made.log, f"app/why?device={apart[end]['device']}&socket={apart[end]['socket_id']}")["why"]
            self.assertEqual((seen["device"], seen["peer_device"], seen["clock"]), ("two-logs", "two-logs-also", apart["clock"]["bound_ns"]))
            self.assertEqual([seen["socket"], seen["peer"]], [str(apart[e]["socket_id"]) for e in ("sender", "peer")])
            self.assertEqual([(s["stage"], s["ns"]) for s in seen["stages"]], [(s["stage"], round(s["ns"])) for s in apart["stages"]])

    def test_a_packet_of_it(self):
        r = self.case("packet", ["--delay-ms", 5], send=["--seconds", 1, "--write", 1000, "--every-ms", 50])
        packets = sh(self.kpat, "sql", r["log"], f"select distinct packet_id from footprint where dport = {PORT} or sport = {PORT}", "--tsv").stdout.split()[1:]
        self.assertGreater(len(packets), 20)
        for p in packets[:3] + packets[-3:]:
            self.assertEqual(json.loads(sh(self.kpat, "why", "--packet", p, r["log"], "--json").stdout), r["why"])
        # and the packet of a write: by kpat packet, which has it from the packet's side
        for line in r["why"]["slowest"]:
            carried = json.loads(sh(self.kpat, "packet", line["packet_id"], r["log"], "--json").stdout)["application"]["written"]
            self.assertEqual((carried["socket_id"], carried["calls"][-1]["bytes"]), (r["sender"], line["bytes"]))


if __name__ == "__main__":
    unittest.main()
