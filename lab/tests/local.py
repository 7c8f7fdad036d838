"""Waits on the sender's and the reader's own host that TCP's state calls something else: for the next hop's link address, in a shaped device's queue, by Nagle's rule
under a congestion control that paces, for more than a reader wants to be woken for, for more that the writer itself wants to give first. On this machine, with tracepoints. Truth is the generators' own times, TCP_INFO,
nstat's count of what was sent again, and how the case is made."""
import json
import os
import re
import sys
import time
import unittest

from kpatlab import play
from kpatlab.topology import wait_for
from tests.place import begun, joined, probed, sh

HERE, THERE, PORT = "10.98.7.1", "10.98.7.2", 7650

# How a server reads: at once; when so much is there; answers each second message of 100 bytes.
SERVE = f"""
import select, socket, sys
how = sys.argv[1]
l = socket.create_server(("{THERE}", {PORT}))
print("ready", flush=True)
s, _ = l.accept()
if how == "least":
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 20000)
p, n = select.poll(), 0
p.register(s, select.POLLIN)
while p.poll() and (d := s.recv(200 if how == "answers" else 1 << 20)):
    n += len(d)
    if how == "answers" and n % 200 == 0:
        s.send(b"!")
print(n, flush=True)
"""

# Writes: so many, of so many bytes, so long apart; "nagle": two of them for each answer, without TCP_NODELAY.
ASK = f"""
import json, socket, struct, sys, time
writes, size, apart_s, nagle, control = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] == "nagle", sys.argv[5]
s = socket.socket()
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, not nagle)
s.setsockopt(socket.IPPROTO_TCP, 13, control.encode())
begun = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
s.connect(("{THERE}", {PORT}))
connected = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
print("connected", flush=True)
for n in range(writes):
    s.sendall(b"x" * size)
    if nagle and n % 2:
        s.recv(1)
    time.sleep(apart_s)
s.shutdown(socket.SHUT_WR)
s.recv(1)
info = s.getsockopt(socket.IPPROTO_TCP, 11, 104)
print(json.dumps({{"connect_ns": connected - begun, "over_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME) - begun, "again": struct.unpack_from("<I", info, 100)[0]}}), flush=True)
"""

# Heads of 111 bytes, each with a body of 2 so long after it, that go together: "more" by MSG_MORE, "cork" by TCP_CORK, which is lifted behind the body, "forgotten"
# without lifting it; "plain": each when it is given. Says how long the kernel had heads unsent (SIOCOUTQNSD).
HOLD = f"""
import array, fcntl, json, socket, sys, time
how, apart_ns = sys.argv[1], float(sys.argv[2]) * 1e9
MSG_MORE, SIOCOUTQNSD = 0x8000, 0x894b
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
begun = now()
s = socket.create_connection(("{THERE}", {PORT}))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
held = 0
def unsent():
    n = array.array("i", [0])
    fcntl.ioctl(s, SIOCOUTQNSD, n)
    return n[0]
for n in range(6):
    if how in ("cork", "forgotten"):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    at = now()
    s.send(b"h" * 111, MSG_MORE if how == "more" else 0)
    while unsent() and now() - at < apart_ns:
        time.sleep(0.001)
    held += now() - at
    time.sleep(max(0, at + apart_ns - now()) / 1e9)
    s.send(b"b" * 2)
    if how == "cork":
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    time.sleep(0.01)
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(json.dumps({{"held_ns": held, "over_ns": now() - begun, "again": 0}}), flush=True)
"""

# Two servers in one process: of two ports, the second answers late. And one that asks the first, the second, and the first again.
LATE_MS = 300
ANSWER = f"""
import socket, threading, time
def serve(l, ms):
    s, _ = l.accept()
    while s.recv(100):
        time.sleep(ms / 1e3)
        s.send(b"answer")
for port, ms in (({PORT}, 0), ({PORT + 1}, {LATE_MS})):
    threading.Thread(target=serve, args=(socket.create_server(("{THERE}", port)), ms)).start()
print("ready", flush=True)
"""
TURNS = f"""
import json, socket, time
a, b = (socket.create_connection(("{THERE}", port)) for port in ({PORT}, {PORT + 1}))
for s in (a, b, a):
    s.send(b"question")
    s.recv(100)
print(json.dumps({{"over_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME), "again": 0}}), flush=True)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Local(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.b = joined(self, "local", "v0", HERE, THERE, os.environ.get("KPAT_KEEP_LOCAL"))

    def controls(self) -> list[str]:
        """Congestion controls of this kernel that pace by TCP's own timer, and that do not."""
        return [c for c in ("bbr", "cubic", "reno") if c in sh("sysctl", "-n", "net.ipv4.tcp_available_congestion_control").stdout.split()][:2]

    def silent(self, on: bool) -> None:
        """The other end hears no ARP; nor does any end know the other's address."""
        rules = "add table arp t; add chain arp t in { type filter hook input priority 0; }; add rule arp t in drop" if on else "delete table arp t"
        sh("ip", "netns", "exec", self.b, "nft", rules)
        if on:
            for ns in (self.a, self.b):
                sh("ip", "-n", ns, "neigh", "flush", "all")

    def made(self, how: str, *ask: object, meanwhile=lambda asks: None, asks_by: str = ASK) -> dict:
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        ready.unlink(missing_ok=True)
        record = begun(self, "record", [self.kpat, "record", "-p", "path,app", *probed(), "--netns", self.a, "--netns", self.b, "--no-cost", "--force",
                                        "-o", str(log), "--ready-file", str(ready)], lambda _: ready.exists())
        server = begun(self, "serve", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVE, how])
        asks = play.Process("ask", ["ip", "netns", "exec", self.a, sys.executable, "-c", asks_by, *map(str, ask)], self.dir)
        self.stack.callback(asks.stop)
        meanwhile(asks)
        wait_for(lambda: '"over_ns"' in play.text_of(asks.stdout), 60, "the generator is done")
        wait_for(lambda: server.p.poll() is not None, 30, "the server has read all")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        out = self.dir / "x.kpat"
        sh(self.kpat, "integrate", log, "-o", out, "--force")
        truth = json.loads(play.text_of(asks.stdout).splitlines()[-1])
        sockets = json.loads(sh(self.kpat, "app", out, "--json").stdout)["sockets"]
        socket = next(s["socket_id"] for s in sockets if s["peer_port"] == PORT)
        why = json.loads(sh(self.kpat, "why", socket, out, "--json").stdout)
        stages = {s["stage"]: s["ns"] for s in why["stages"]}
        text = sh(self.kpat, "why", socket, out).stdout
        self.assertAlmostEqual(sum(stages.values()), why["whole_ns"], delta=len(stages), msg=text)
        self.assertEqual(why["sent_again"], truth["again"], text)
        return {"truth": truth, "why": why, "stages": stages, "text": text, "out": out}

    def test_a_neighbour_that_does_not_answer_for_a_while(self):
        """TCP takes for sent what waits for an address, its timer runs out, and nothing is sent again."""
        for control in self.controls():
            with self.subTest(control):
                def meanwhile(asks):
                    wait_for(lambda: "connected" in play.text_of(asks.stdout), 30, "it is connected")
                    time.sleep(0.3)
                    self.silent(True)
                    time.sleep(1.2)
                    self.silent(False)

                r = self.made("at-once", 50, 1000, 0.05, "-", control, meanwhile=meanwhile)
                waits = json.loads(sh(self.kpat, "packets", r["out"], f"tcp port {PORT}", "-n", "0", "--json").stdout)["packets"]
                waited_ns = max(p["path_ns"] for p in waits)
                self.assertGreater(waited_ns, 1_000_000_000)
                self.assertEqual(r["why"]["first"], "neighbour", r["text"])
                # what was first asked for waited from its write until the answer
                self.assertAlmostEqual(r["stages"]["neighbour"], waited_ns, delta=30_000_000, msg=r["text"])
                self.assertNotIn("sent again", r["text"])
                events = json.loads(sh(self.kpat, "events", r["out"], "--kind", "retransmit", "--json").stdout)["events"]
                self.assertEqual(len(events), r["truth"]["again"])

    def test_a_neighbour_that_answers_late_to_a_syn(self):
        def meanwhile(asks):
            time.sleep(1.5)
            self.silent(False)

        self.silent(True)
        r = self.made("at-once", 1, 1000, 0, "-", self.controls()[-1], meanwhile=meanwhile)
        self.assertEqual((r["why"]["first"], r["why"]["syns_again"]), ("handshake", 0), r["text"])
        self.assertAlmostEqual(r["stages"]["handshake"], r["truth"]["connect_ns"], delta=30_000_000)
        self.assertIn("its SYN waited for the next hop's link address", r["text"])

    def test_one_large_write_through_a_shaped_device(self):
        """The congestion window, where it is full, is full of what lies in this queue."""
        sh("tc", "-n", self.a, "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "8mbit", "burst", "10kb", "limit", "2mb")
        for control in self.controls():
            with self.subTest(control):
                r = self.made("at-once", 1, 1_000_000, 0, "-", control)
                # a million bytes in 990 ms and more
                self.assertGreater(r["truth"]["over_ns"], 980_000_000)
                self.assertEqual(r["why"]["first"], "queue", r["text"])
                self.assertGreater(r["stages"]["queue"], 0.85 * r["truth"]["over_ns"], r["text"])

    def test_nagle_under_any_congestion_control(self):
        for control in self.controls():
            with self.subTest(control):
                r = self.made("answers", 20, 100, 0, "nagle", control)
                self.assertEqual(r["why"]["first"], "Nagle's rule", r["text"])
                self.assertGreater(r["stages"]["Nagle's rule"], 0.8 * r["truth"]["over_ns"], r["text"])
                app = sh(self.kpat, "app", r["out"], "--socket", r["why"]["sender"]["socket_id"]).stdout
                share = re.search(r"\nNagle's rule +([0-9.]+) %", app)
                self.assertIsNotNone(share, app)
                self.assertGreater(float(share[1]), 80, app)
                self.assertNotRegex(app, r"\n(device|pacing) +[1-9][0-9]", "no device kept it, and no pacing")

    def test_what_the_application_keeps_until_more_is_there(self):
        for how in ("more", "cork"):
            with self.subTest(how):
                r = self.made("at-once", how, 0.05, asks_by=HOLD)
                self.assertEqual(r["why"]["first"], "cork", r["text"])
                self.assertAlmostEqual(r["stages"]["cork"], r["truth"]["held_ns"], delta=0.05 * r["truth"]["held_ns"], msg=r["text"])
                self.assertLess(r["stages"].get("undecided", 0), 0.02 * r["truth"]["over_ns"], r["text"])
                app = sh(self.kpat, "app", r["out"], "--socket", r["why"]["sender"]["socket_id"]).stdout
                self.assertRegex(app, r"\ndevice +0\.[0-9] %", "no device kept it")
        r = self.made("at-once", "plain", 0.05, asks_by=HOLD)
        self.assertNotIn("cork", r["stages"], r["text"])

    def test_a_cork_that_is_never_lifted(self):
        """The kernel sends what it keeps when its timer runs out, after 200 ms and more."""
        r = self.made("at-once", "forgotten", 0.4, asks_by=HOLD)
        self.assertGreater(r["truth"]["held_ns"], 6 * 195_000_000)
        self.assertLess(r["truth"]["held_ns"], 6 * 350_000_000, "the timer sent them")
        # A segment that the timer sends may pass while the kernel runs no programs (docs/mechanisms.md): how long it waited nothing tells.
        cork, undecided = r["stages"]["cork"], r["stages"].get("undecided", 0)
        self.assertGreater(cork, 0.6 * r["truth"]["held_ns"], r["text"])
        # the bodies wait as well, for the next head
        self.assertGreater(cork + undecided, 0.95 * r["truth"]["held_ns"], r["text"])
        self.assertGreater(0.4 * cork, undecided, r["text"])

    def test_who_asks_owes_no_answer_meanwhile(self):
        """What a server's client did between two questions is no wait of the server's: only of the other end, which asks, is it said whom its peer waited for."""
        log, out, ready = self.dir / "x.kbl", self.dir / "x.kpat", self.dir / "ready"
        record = begun(self, "record", [self.kpat, "record", "-p", "path,app", *probed(), "--netns", self.a, "--netns", self.b, "--no-cost", "-o", str(log),
                                        "--ready-file", str(ready)], lambda _: ready.exists())
        begun(self, "answer", ["ip", "netns", "exec", self.b, sys.executable, "-c", ANSWER])
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", TURNS)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(self.kpat, "integrate", log, "-o", out)
        sockets = json.loads(sh(self.kpat, "app", out, "--json").stdout)["sockets"]
        server = next(s["socket_id"] for s in sockets if (s["local_port"], s["sent_bytes"]) == (PORT, 12))
        why = json.loads(sh(self.kpat, "why", server, out, "--json").stdout)
        self.assertGreater(next(s["ns"] for s in why["stages"] if s["stage"] == "peer's application"), LATE_MS * 1e6)
        self.assertIsNone(why["meanwhile"], sh(self.kpat, "why", server, out).stdout)

    def test_a_reader_that_wants_more_at_once(self):
        r = self.made("least", 100, 1000, 0.01, "-", self.controls()[-1])
        self.assertEqual(r["why"]["first"], "peer's application", r["text"])
        self.assertLess(r["stages"]["peer's stack"], 10_000_000, r["text"])


if __name__ == "__main__":
    unittest.main()
