"""Connections that end as they should: a FIN that comes while its receiver closes lies in a queue that the kernel purges, and one that comes to a
connection in TIME-WAIT is freed at once; an acknowledgement of what a server wrote last comes when it waits for that of its FIN, and is freed when it was looked at. All of
these the kernel reports as drops. Nothing is lost by that: each program read all that was written to it, and
the kernel has the connections in TIME-WAIT (TcpExtTW). One is dropped indeed that finds its connection on its way into TIME-WAIT, on another CPU: it is sent again
(TcpRetransSegs)."""

import collections
import os
import sys
import time
import unittest

from kpatlab import cache, look, play
from tests.place import lost, own, sh

ROUNDS = 100
TALK = f"""
import socket, sys, threading, time
address, pause, more = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
s = socket.create_server((address, 7000), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
def serve():
    while True:
        c, _ = s.accept()
        c.recv(100)
        c.sendall(b"y" * 100)
        time.sleep(pause)
        while c.recv(1 << 16): pass
        time.sleep(4 * pause)
        c.close()
threading.Thread(target=serve, daemon=True).start()
for _ in range({ROUNDS}):
    c = socket.create_connection((address, 7000))
    c.sendall(b"x" * 10)
    n = 0
    while n < 100: n += len(c.recv(100 - n))
    c.sendall(bytes(more))
    c.close()
time.sleep(9 * pause)
print("read all")
"""
# The client asks and says that it has no more; the server answers and closes.
LAST_WORD = f"""
import socket, sys, threading
address = sys.argv[1]
s = socket.create_server((address, 7000), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
def serve():
    while True:
        c, _ = s.accept()
        while c.recv(1 << 16): pass
        c.sendall(b"y" * 100)
        c.close()
threading.Thread(target=serve, daemon=True).start()
for _ in range({ROUNDS}):
    c = socket.create_connection((address, 7000))
    c.sendall(b"x" * 10)
    c.shutdown(socket.SHUT_WR)
    n = 0
    while got := len(c.recv(100)): n += got
    assert n == 100
    c.close()
print("read all")
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Closing(unittest.TestCase):
    def test_the_end_of_a_connection_is_delivered(self):
        _, reported = self.ends("127.0.0.1", 0, 0)
        if not reported:
            self.skipTest("no FIN came while its receiver closed")

    def test_what_comes_to_a_connection_in_time_wait_is_delivered(self):
        for address in ("127.0.0.1", "::1"):
            with self.subTest(address):
                # The client's FIN comes with data, so that it is acknowledged when those are read, after the client closed.
                waiting, reported = self.ends(address, 0.01, 50_000)
                self.assertGreaterEqual(waiting, ROUNDS)
                self.assertGreaterEqual(reported, ROUNDS)

    def test_what_acknowledges_a_servers_last_word_is_delivered(self):
        for address in ("127.0.0.1", "::1"):
            with self.subTest(address):
                self.ends(address, 0, 0, LAST_WORD)

    def ends(self, address: str, pause: float, more: int, talk: str = TALK) -> tuple[int, int]:
        """Connections at `address`, whose clients write `more` bytes and close, which the server sees later: how many came to TIME-WAIT, and how many FINs
        the kernel reports as dropped. All are delivered."""
        (ns,) = own(self, "closing", "c")
        sh("ip", "-n", ns, "link", "set", "lo", "up")
        kbl, out, ready = self.dir / "x.kbl", self.dir / "x.kpat", self.dir / "ready"
        record = play.Process("record", [play.kpat_path(), "record", "-p", "path", "--netns", ns, "-o", str(kbl), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        self.assertEqual(sh("ip", "netns", "exec", ns, sys.executable, "-c", talk, address, pause, more).stdout.strip(), "read all")
        waiting, again = (int(sh("ip", "netns", "exec", ns, "nstat", "-asz", what).stdout.split()[-2]) for what in ("TcpExtTW", "TcpRetransSegs"))
        # The last one is under way for as long as nothing else is seen.
        time.sleep(0.5)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], out)
        packets = {p["packet_id"]: p for p in look.Log(out).packets() if p["tcp_flags"] is not None}
        reported = {e["packet_id"] for e in look.kpat_json("events", str(out), "--kind", "drop", "--limit", "0")["events"] if e["packet_id"] in packets}
        ends = {n for n, p in packets.items() if p["tcp_flags"] & 1}
        print(f"closing: {len(ends)} FINs, {len(ends & reported)} of them drops by the kernel's report", file=sys.stderr, flush=True)
        self.assertGreaterEqual(len(ends), 2 * ROUNDS)
        if talk is TALK:
            self.assertFalse(reported - ends)
        lost(self, look.kpat_json("info", str(out)))
        segments = collections.Counter((p["src_port"], p["dst_port"], p["tcp_seq"], p["tcp_flags"], p["verdict"]) for p in packets.values())
        dropped = {segment[:-1]: n for segment, n in segments.items() if segment[-1] == "dropped"}
        self.assertLessEqual(sum(dropped.values()), again, "what was dropped was sent again")
        self.assertEqual([s for s in dropped if not segments[(*s, "delivered")]], [])
        self.assertLessEqual({segment[-1] for segment in segments}, {"delivered", "dropped"})
        self.stack.close()
        return waiting, len(ends & reported)
