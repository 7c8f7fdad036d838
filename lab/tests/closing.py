"""Connections that end as they should: a FIN that comes while its receiver closes lies in a queue that the kernel purges, which it reports as a drop.
Nothing is lost by that: each program read all that was written to it."""

import os
import sys
import time
import unittest

from kpatlab import cache, look, play
from tests.place import own, sh

ROUNDS = 100
TALK = f"""
import socket, threading
s = socket.create_server(("127.0.0.1", 7000))
def serve():
    while True:
        c, _ = s.accept()
        c.recv(100)
        c.sendall(b"y" * 100)
        c.recv(100)
        c.close()
threading.Thread(target=serve, daemon=True).start()
for _ in range({ROUNDS}):
    c = socket.create_connection(("127.0.0.1", 7000))
    c.sendall(b"x" * 10)
    n = 0
    while n < 100: n += len(c.recv(100 - n))
    c.close()
print("read all")
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Closing(unittest.TestCase):
    def test_the_end_of_a_connection_is_delivered(self):
        (ns,) = own(self, "closing", "c")
        sh("ip", "-n", ns, "link", "set", "lo", "up")
        kbl, out, ready = self.dir / "x.kbl", self.dir / "x.kpat", self.dir / "ready"
        record = play.Process("record", [play.kpat_path(), "record", "-p", "path", "--netns", ns, "-o", str(kbl), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        self.assertEqual(sh("ip", "netns", "exec", ns, sys.executable, "-c", TALK).stdout.strip(), "read all")
        # The last one is under way for as long as nothing else is seen.
        time.sleep(0.5)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        look.integrate(kbl, [], out)
        packets = {p["packet_id"]: p for p in look.Log(out).packets()}
        reported = {e["packet_id"] for e in look.kpat_json("events", str(out), "--kind", "drop", "--limit", "0")["events"] if e["packet_id"] in packets}
        ends = {n for n, p in packets.items() if p["tcp_flags"] is not None and p["tcp_flags"] & 1}
        print(f"closing: {len(ends)} FINs, {len(ends & reported)} of them drops by the kernel's report", file=sys.stderr, flush=True)
        self.assertGreaterEqual(len(ends), 2 * ROUNDS)
        self.assertFalse(reported - ends)
        self.assertEqual({packets[n]["verdict"] for n in ends}, {"delivered"})
        if not reported:
            self.skipTest("no FIN came while its receiver closed")
