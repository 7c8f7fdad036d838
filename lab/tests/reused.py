"""Buffers that are used again: what a datagram lay in becomes a message of netlink or of a unix socket, and no tracepoint reports that it was
freed. On this machine, with tracepoints. Truth is who the talker is: a process that never has a datagram."""
import json
import os
import sys
import unittest

from kpatlab import cache, play
from tests.place import own, sh

PORT, COUNT = 7330, 1000
TALK = """
import socket, struct, sys
links = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
print("ready", flush=True)
while True:
    links.send(struct.pack("=IHHIIB3x", 20, 18, 0x301, 1, 0, 0))
    while struct.unpack_from("=IH", links.recv(65536))[1] != 3: pass
    here.send(b"x" * 300)
    there.recv(1000)
"""
READ = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
n = 0
while n < int(sys.argv[2]): n += len(s.recv(4096)) > 0
print(n, flush=True)
"""
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(int(sys.argv[2])):
    s.sendto(b"n" * 100, ("10.96.0.2", int(sys.argv[1])))
    time.sleep(0.001)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Reused(unittest.TestCase):
    def test_a_datagram_is_not_handled_by_who_talks_to_the_kernel(self):
        kpat = os.path.abspath(play.kpat_path())
        a, b = own(self, "reused", "ab", os.environ.get("KPAT_KEEP_REUSED"))
        sh("ip", "link", "add", "v0", "netns", a, "type", "veth", "peer", "name", "v0", "netns", b)
        for ns, addr in ((a, "10.96.0.1/24"), (b, "10.96.0.2/24")):
            sh("ip", "-n", ns, "addr", "add", addr, "dev", "v0")
            sh("ip", "-n", ns, "link", "set", "v0", "up")
        log, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        within = lambda name, ns, code, *more: self.begun(name, ["ip", "netns", "exec", ns, sys.executable, "-c", code, *map(str, more)])
        talker, reader = within("talk", b, TALK), within("read", b, READ, PORT, COUNT)
        record = self.begun("record", [kpat, "record", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f", f"udp port {PORT}", "-o", str(log),
                                       "--ready-file", str(ready)], ready.exists)
        sh("ip", "netns", "exec", a, sys.executable, "-c", SEND, PORT, COUNT, seconds=cache.patience())
        self.assertEqual(reader.p.wait(cache.patience()), 0)
        talker.stop()
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(kpat, "integrate", log, "-o", out)
        rows = lambda query: json.loads(sh(kpat, "sql", out, query, "--json").stdout)
        # In an interrupt it may be the one that was running.
        of_talker = rows(f"select count(*) as n from call where ctx = 0 and pid = {talker.p.pid}")
        self.assertEqual((rows("select count(*) as n from packet where verdict = 1"), of_talker), ([{"n": COUNT}], [{"n": 0}]))

    def begun(self, name: str, argv: list, is_ready=None) -> play.Process:
        p = play.Process(name, argv, self.dir)
        self.stack.callback(p.stop)
        p.wait_ready(is_ready or (lambda: "ready" in play.text_of(p.stdout)), cache.patience())
        return p


if __name__ == "__main__":
    unittest.main()
