"""Why a connection is slow whose bytes wait in a router's queue, or whose other end says nothing: client, router and server in one recording, on this machine, with tracepoints. Truth: what the router's
device counted at its rate (`tc -s`), the clocks of the programs at both ends, what they asked and read."""
import json
import os
import sys
import unittest

from kpatlab import cache, look, play
from kpatlab.topology import wait_for
from tests.place import begun, lost, own, probed, sh

SERVER, RATE_MBIT, BURST = "10.96.9.2", 10, 5000
BULK, ASK, PACED, SILENT, THINK, GRAM, PIECES, LATE, LARGE = range(8201, 8210)
SECONDS, MANY, BYTES, PACE, THINK_MS, SILENT_MS = 1.5, 8, 20_000, 250_000, 120, 900
# An answer comes in so many pieces, as long as this apart; who reads late takes as long over each.
PIECE, PIECE_MS = 500, 120
# What the router's device takes, and what comes through it whole.
SMALL_MTU, SMALL = 700, 300
# Reads all, answers where asked, and says when what it was asked had been read.
SERVE = f"""
import json, socket, sys, time
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
kind, port = sys.argv[1], int(sys.argv[2])
if port == {GRAM}:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("{SERVER}", port)); s.settimeout({SECONDS}); print("ready", flush=True); came = {{}}
    try:
        while True: d = s.recv(2000); came[d[:4].decode()] = now()
    except OSError: print(json.dumps(came), flush=True)
    sys.exit()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("{SERVER}", port)); s.listen(); print("ready", flush=True)
c, _ = s.accept(); n, came = 0, []
if port == {LARGE}:
    c.settimeout(0.3)
    try:
        while True:
            try: n += len(c.recv(1 << 18))
            except TimeoutError:
                if kind == "speaks": c.send(b".")
    except OSError: print(json.dumps([n, came]), flush=True)
    sys.exit()
while True:
    d = c.recv(1 << 18)
    if not d: break
    n += len(d)
    if kind == "answers" and n % {BYTES} == 0: came.append(now()); c.send(b"ok")
    if kind == "pieces" and n == {BYTES}:
        for i in range({MANY}): time.sleep({PIECE_MS} / 1e3 if port == {PIECES} else 0); came.append(now()); c.send(bytes({PIECE}))
print(json.dumps([n, came]), flush=True)
"""
SEND = f"""
import json, socket, sys, time
def now(): return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
port = int(sys.argv[1])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if port == {GRAM} else socket.SOCK_STREAM)
if port == {PACED}: s.setsockopt(socket.SOL_SOCKET, 47, {PACE})
s.connect(("{SERVER}", port)); began, sent, times = now(), 0, []
if port in ({BULK}, {PACED}):
    if port == {BULK}: s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    while now() - began < {SECONDS} * 1e9: sent += s.send(bytes(16384))
elif port == {GRAM}:
    for n in range({MANY} * 10): times.append(now()); s.send(b"%04d" % n + bytes(1000))
elif port == {SILENT}:
    s.settimeout({SILENT_MS} / 1e3)
    for n in range(2):
        s.send(bytes(50)); times.append(now())
        try: s.recv(9)
        except OSError: times.append(now())
elif port == {LARGE}:
    s.sendall(bytes({SMALL})); time.sleep(0.1); s.sendall(bytes({BYTES})); time.sleep({2 * SECONDS})
    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)  # include/uapi/linux/tcp.h
    times = [int.from_bytes(info[at:at + size], sys.byteorder) for at, size in ((16, 4), (100, 4), (120, 8))]
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
elif port in ({PIECES}, {LATE}):
    s.sendall(bytes({BYTES}))
    for n in range({MANY}): time.sleep({PIECE_MS} / 1e3 if port == {LATE} else 0); s.recv({PIECE}, socket.MSG_WAITALL); times.append(now())
else:
    for n in range({MANY}):
        times.append(now()); s.sendall(bytes({BYTES})); s.recv(9); time.sleep({THINK_MS} / 1e3 if port == {THINK} else 0.03)
if port not in ({GRAM}, {SILENT}, {LARGE}): s.shutdown(socket.SHUT_WR); s.recv(9)
s.close()
print(json.dumps([sent, times]))
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class WhyPath(unittest.TestCase):
    def setUp(self):
        self.client, self.router, self.server = own(self, "path", "crs", os.environ.get("KPAT_KEEP_PATH"))
        for ns, dev, net in ((self.client, "c0", 8), (self.server, "s0", 9)):
            sh("ip", "link", "add", dev, "netns", ns, "type", "veth", "peer", "name", f"r{dev}", "netns", self.router)
            for at, name, host in ((ns, dev, 2), (self.router, f"r{dev}", 1)):
                sh("ip", "-n", at, "addr", "add", f"10.96.{net}.{host}/24", "dev", name)
                sh("ip", "-n", at, "link", "set", name, "up")
            sh("ip", "-n", ns, "route", "add", "default", "via", f"10.96.{net}.1")
        sh("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def shaped(self) -> None:
        """What is larger than the burst the device cuts into segments."""
        sh("tc", "-n", self.router, "qdisc", "add", "dev", "rs0", "root", "tbf", "rate", f"{RATE_MBIT}mbit", "burst", BURST, "latency", "200ms")

    def on_wire_ns(self) -> float:
        """How long the device takes, by its rate, for what it counted."""
        counted, = (q for q in json.loads(sh("tc", "-n", self.router, "-s", "-j", "qdisc", "show", "dev", "rs0").stdout) if q["kind"] == "tbf")
        return counted["bytes"] * 8e3 / RATE_MBIT

    def recorded(self, port: int, kind="reads") -> tuple[dict, list, list]:
        """Answer of `kpat why`; what the client and the server printed."""
        kbl, ready, self.out = self.dir / f"{port}-{kind}.kbl", self.dir / f"{port}-{kind}-ready", self.dir / f"{port}-{kind}.kpat"
        netns = [word for ns in (self.client, self.router, self.server) for word in ("--netns", ns)]
        argv = [play.kpat_path(), "record", "-p", "path,app", *probed(), *netns, "--no-cost", "-o", str(kbl), "--ready-file", str(ready)]
        record = begun(self, f"record-{port}", argv, lambda p: ready.exists())
        serve = begun(self, f"serve-{port}", ["ip", "netns", "exec", self.server, sys.executable, "-c", SERVE, kind, str(port)])
        sent = json.loads(sh("ip", "netns", "exec", self.client, sys.executable, "-c", SEND, port, seconds=cache.patience()).stdout)
        wait_for(lambda: serve.p.poll() is not None, cache.patience(), "the server has read all")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], self.out)
        lost(self, look.kpat_json("info", str(self.out)))
        sockets = look.kpat_json("app", str(self.out), "--limit", "0")["sockets"]
        socket, = (s["socket_id"] for s in sockets if s["peer_port"] == port)
        why = look.kpat_json("why", str(socket), str(self.out))
        self.by = {s["stage"]: s for s in why["stages"]}
        self.text = sh(play.kpat_path(), "why", socket, self.out).stdout
        print(f"    {port}: " + ", ".join(f"{s} {v['ns'] / 1e6:.1f} ms" for s, v in sorted(self.by.items(), key=lambda s: -s[1]["ns"])[:4]), flush=True)
        return why, sent, json.loads(play.text_of(serve.stdout).splitlines()[-1])

    def test_a_stream_waits_for_the_router(self):
        """Its window is full of what lies there: as long as the device takes for it."""
        self.shaped()
        why, (sent, _), (read, _) = self.recorded(BULK)
        self.assertEqual((read, why["first"], why["path"]["device"]), (sent, "queue on the path", "rs0"), self.text)
        # What it let pass at once had not to wait, and what was lost did elsewhere.
        queued = self.by["queue on the path"]["ns"] + self.by.get("loss", {"ns": 0})["ns"]
        self.assertAlmostEqual(queued / self.on_wire_ns(), 1, delta=0.1, msg=self.text)
        self.assertGreater(why["path"]["of_round_trip"], 0.5)
        self.assertIn("in the queue of rs0", self.text)
        # No segment goes on as another one: the device has cut them, and each is one of its own since.
        of_two = "select count(*) as n from (select packet_id from footprint where payload_bytes > 0 group by packet_id having count(distinct tcp_seq) > 1)"
        self.assertEqual(look.kpat_json("sql", str(self.out), of_two), [{"n": 0}])

    def test_a_question_waits_there_as_long_as_its_reader_saw(self):
        self.shaped()
        why, (_, times), (_, came) = self.recorded(ASK, "answers")
        took = sorted(b - a for a, b in zip(times, came))
        line = self.by["queue on the path"]["of_writes_ns"]
        self.assertEqual((why["writes"], line["count"]), (MANY, MANY), self.text)
        # All but what its burst lets pass, and what the machine takes besides.
        self.assertAlmostEqual(line["median"] / took[MANY // 2], 1, delta=0.1, msg=f"{took} {self.text}")
        self.assertLess(self.by["driver and wire"]["of_writes_ns"]["median"], 0.1 * line["median"])

    def test_datagrams_wait_there_too(self):
        self.shaped()
        why, (_, times), came = self.recorded(GRAM)
        self.assertEqual((why["first"], why["path"]["device"], why["ends"]["read"]), ("queue on the path", "rs0", len(came)), self.text)
        longest = max(at - times[int(n)] for n, at in came.items())
        self.assertAlmostEqual(self.by["queue on the path"]["of_writes_ns"]["max"] / longest, 1, delta=0.1)

    def test_a_paced_sender_is_held_by_its_pace(self):
        """The queue is there, and has what came for as long as the device takes for it."""
        self.shaped()
        why, _, _ = self.recorded(PACED)
        self.assertEqual(why["first"], "pacing", self.text)
        self.assertLess(self.by.get("queue on the path", {"ns": 0})["ns"], 1.1 * self.on_wire_ns())

    def test_who_says_nothing(self):
        """The client waits, and the log has nothing of it but that nothing came: that is what is said."""
        why, (_, times), _ = self.recorded(SILENT)
        waited = [b - a for a, b in zip(times[::2], times[1::2])]
        self.assertEqual(why["turns"]["silent_pauses"], 1, self.text)
        self.assertAlmostEqual(why["turns"]["silent_ns"] / waited[0], 1, delta=0.1)
        self.assertAlmostEqual(why["turns"]["silent_after_ns"] / waited[1], 1, delta=0.1)
        self.assertIn("in which nothing came", self.text)

    def test_a_path_that_takes_no_large_packets_and_does_not_say_so(self):
        """A router's link is narrower than the others, and its ICMP is dropped. Truth: the sender's TCP_INFO. While the peer speaks and while it is silent, when
        the path might as well be broken; and where the ICMP comes, nothing is too large."""
        sh("ip", "-n", self.router, "link", "set", "rs0", "mtu", SMALL_MTU)
        rules = "table ip t { chain o { type filter hook output priority 0; meta l4proto icmp drop; }; }"
        sh("ip", "netns", "exec", self.router, "nft", rules)
        for kind in ("speaks", "silent"):
            why, (_, (mss, again, acked)), (came, _) = self.recorded(LARGE, kind)
            found = why["too_large"]
            self.assertEqual((acked, came), (SMALL + 1, SMALL), "the path was not as it was meant to be")  # the SYN has a number, too
            self.assertEqual((why["first"], found["bytes"], found["acked_bytes"], found["heard"]), ("loss", mss, SMALL, kind == "speaks"))
            # It sends more than the oldest again: the last, as a probe (RFC 8985, section 7).
            self.assertLessEqual(3, found["times"])
            self.assertLessEqual(found["times"], again)
            self.assertIn("as where the path's MTU is smaller", self.text)
        sh("ip", "netns", "exec", self.router, "nft", "delete table ip t")
        why, (_, (mss, _, acked)), (came, _) = self.recorded(LARGE, "comes")
        self.assertEqual((acked, came, why["too_large"]), (SMALL + BYTES + 1, SMALL + BYTES, None))
        self.assertLess(mss, SMALL_MTU)

    def test_whose_turn_it_is(self):
        """Seen from the end that answers, the time between is that of the end that asks; nothing lay unread."""
        _, (_, times), (_, came) = self.recorded(THINK, "answers")
        sockets = look.kpat_json("app", str(self.out), "--limit", "0")["sockets"]
        socket, = (s["socket_id"] for s in sockets if s["local_port"] == THINK and s["peer_port"])
        why = look.kpat_json("why", str(socket), str(self.out))
        stage, = (s for s in why["stages"] if s["stage"] == "peer's application")
        between = sum(b - a for a, b in zip(came, times[1:]))
        self.assertEqual((why["turns"]["asks"], why["first"]), (False, "peer's application"))
        self.assertAlmostEqual(why["turns"]["answering_ns"] / between, 1, delta=0.1)
        self.assertTrue(stage["meaning"].startswith("it is the end that asks"), stage["meaning"])

    def test_an_answer_in_pieces_waits_for_who_writes_it(self):
        """Between two pieces nothing is under way; what of it lies here unread is an answer that is here."""
        why, (_, times), (_, came) = self.recorded(PIECES, "pieces")
        between = sum(b - a for a, b in zip(times, came[1:]))
        stage = self.by["peer's application"]
        self.assertEqual((why["first"], why["certain"]), ("peer's application", True), self.text)
        self.assertAlmostEqual(why["turns"]["rest_ns"] / between, 1, delta=0.1, msg=self.text)
        self.assertAlmostEqual(why["turns"]["answering_ns"] / (between + PIECE_MS * 1e6), 1, delta=0.1, msg=self.text)
        self.assertIn("not yet written the rest", stage["meaning"])
        why, (_, times), (_, came) = self.recorded(LATE, "pieces")
        self.assertEqual(why["first"], "answer", self.text)
        self.assertAlmostEqual(self.by["answer"]["ns"] / (times[-1] - came[0]), 1, delta=0.1, msg=self.text)
        self.assertLess(why["turns"]["rest_ns"], 0.1 * self.by["answer"]["ns"])


if __name__ == "__main__":
    unittest.main()
