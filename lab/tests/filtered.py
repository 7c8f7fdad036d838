"""Sockets that get their ports after a filter was asked of them: a connection of MPTCP, which is seen before it is connected, and a datagram socket
that sends to others first. Truth is the program's own count of its calls and bytes."""
import json
import os
import sys
import unittest

from kpatlab import cache, play
from tests.place import begun, joined, sh

PORT = 7350
SERVE = f"""
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("10.99.0.2", {PORT}))
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.bind(("10.99.0.2", {PORT} + 1))
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
s.bind(("10.99.0.2", {PORT}))
s.listen(2)
print("ready", flush=True)
both = [s.accept()[0] for _ in range(2)]
for c in both:
    while c.recv(50000): pass
"""
# The recorder has read what it knows of a socket long before the next call.
ASK = f"""
import json, socket, time
calls = {{"mptcp": [], "udp": [], "other": [777]}}
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
s.connect(("10.99.0.2", {PORT}))
t = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
t.connect(("10.99.0.2", {PORT}))
t.send(bytes(777))
t.close()
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(3):
    u.sendto(bytes(10), ("10.99.0.2", {PORT} + 1))
    time.sleep(0.1)
u.connect(("10.99.0.2", {PORT}))
for i in range(20):
    calls["udp"].append(u.send(bytes(100 + i)))
    calls["mptcp"].append(s.send(bytes(1000 + i)))
    time.sleep(0.02)
print(json.dumps(calls))
"""


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/proc/sys/net/mptcp/enabled"), "needs root and MPTCP")
class Filtered(unittest.TestCase):
    def test_a_socket_that_is_connected_later_has_all_its_calls(self):
        kpat = os.path.abspath(play.kpat_path())
        a, b = joined(self, "filtered", "v0", "10.99.0.1", "10.99.0.2", os.environ.get("KPAT_KEEP_FILTERED"))
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        record = begun(self, "record", [kpat, "record", "-p", "app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f", f"port {PORT}", "--no-cost",
                                        "-o", str(log), "--ready-file", str(ready)], lambda _: ready.exists())
        begun(self, "serve", ["ip", "netns", "exec", b, sys.executable, "-c", SERVE])
        calls = json.loads(sh("ip", "netns", "exec", a, sys.executable, "-c", ASK, seconds=cache.patience()).stdout)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(kpat, "integrate", log, "-o", self.dir / "x.kpat")
        sockets = json.loads(sh(kpat, "app", self.dir / "x.kpat", "-n", "0", "--json").stdout)["sockets"]
        for proto, name in ((262, "mptcp"), (17, "udp")):
            s = max((s for s in sockets if s["proto"] == proto and s["peer_port"] == PORT), key=lambda s: s["sent_bytes"])
            sent = s["crossings"]["send"]
            self.assertEqual((sent["events"], sent["bytes"]), (20, sum(calls[name])), name)
            for crossing, found in s["crossings"].items():
                self.assertLessEqual(found["bytes"], sum(calls[name]), (name, crossing))
        # Each that was accepted is a socket of its own, which the kernel does not see to.
        accepted = sorted((s for s in sockets if s["proto"] == 262 and s["local_port"] == PORT and s["peer_port"]), key=lambda s: s["received_bytes"])
        self.assertEqual([s["crossings"]["recv"]["bytes"] for s in accepted], [sum(calls["other"]), sum(calls["mptcp"])])
        for s, name in zip(accepted, ("other", "mptcp")):
            for crossing, found in s["crossings"].items():
                self.assertLessEqual(found["bytes"], sum(calls[name]), crossing)


if __name__ == "__main__":
    unittest.main()
