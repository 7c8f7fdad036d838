"""Who reads a datagram of which several sockets get a copy: readers of a multicast group, one of which is full and reads late. On this machine, with
tracepoints. Truth is each reader's own list of the numbers that it took; a datagram's number is its length."""
import json
import os
import signal
import sys
import unittest

from kpatlab import cache, play
from tests.place import joined, sh

GROUP, PORT, COUNT, LEAST = "239.7.1.1", 7320, 60, 100
READER = """
import json, os, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if sys.argv[2] == "late": s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
s.bind((sys.argv[1], int(sys.argv[3])))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(sys.argv[1]) + socket.inet_aton("10.98.0.2"))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
if sys.argv[2] == "late": signal.sigwait([signal.SIGUSR1])
took = []
s.settimeout(None)
while sys.argv[2] != "late" and len(took) < int(sys.argv[4]): took.append(len(s.recv(4096)))
s.settimeout(0.5)
try:
    while True: took.append(len(s.recv(4096)))
except TimeoutError: pass
print(json.dumps([os.getpid(), took]), flush=True)
"""
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.98.0.1"))
for n in range(int(sys.argv[4])):
    s.sendto(b"n" * (int(sys.argv[3]) + n), (sys.argv[1], int(sys.argv[2])))
    time.sleep(0.002)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Readers(unittest.TestCase):
    def test_each_reader_of_a_group_is_named(self):
        kpat = os.path.abspath(play.kpat_path())
        a, b = joined(self, "readers", "v0", "10.98.0.1", "10.98.0.2", os.environ.get("KPAT_KEEP_READERS"))
        log, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        record = play.Process("record", [kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f",
                                         "udp", "--no-cost", "-o", str(log), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        readers = []
        # The kernel gives the last copy to the socket that is first in its list, which is the one that was bound last.
        for n, how in enumerate(("soon", "soon", "late")):
            r = play.Process(f"reader{n}", ["ip", "netns", "exec", b, sys.executable, "-c", READER, GROUP, how, str(PORT), str(COUNT)], self.dir)
            self.stack.callback(r.stop)
            r.wait_ready(lambda r=r: "ready" in play.text_of(r.stdout), cache.patience())
            readers.append(r)
        sh("ip", "netns", "exec", a, sys.executable, "-c", SEND, GROUP, PORT, LEAST, COUNT)
        for r in readers[:2]:
            r.p.wait(60)
        readers[2].p.send_signal(signal.SIGUSR1)
        readers[2].p.wait(60)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        took = dict(json.loads(play.text_of(r.stdout).splitlines()[-1]) for r in readers)
        late = list(took)[2]
        self.assertEqual([len(took[p]) for p in list(took)[:2]], [COUNT, COUNT])
        self.assertTrue(0 < len(took[late]) < COUNT, took[late])
        sh(kpat, "integrate", log, "-o", out)

        def ask(*args):
            return json.loads(sh(kpat, *args, "--json").stdout)

        packets = {p["len_bytes"] - 28: p for p in ask("packets", out, "--limit", "0", f"udp dst port {PORT}")["packets"]}
        self.assertEqual(sorted(packets), list(range(LEAST, LEAST + COUNT)))
        for number, p in packets.items():
            self.assertEqual(p["verdict"], "delivered", p)
            carried = ask("packet", str(p["packet_id"]), out, "--no-calls")["application"]
            ends = [carried["read"], *carried["also_read"]]
            self.assertEqual(sorted(c["pid"] for e in ends for c in e["calls"]), sorted(pid for pid, of in took.items() if number in of), p)
            self.assertEqual({c["carried_bytes"] for e in ends for c in e["calls"]}, {number})
        # The same in conditions, and the drops of the socket that was full.
        for pid, of in took.items():
            for field in ("reader.pid", "pid"):
                found = ask("packets", out, "--limit", "0", f"udp dst port {PORT} and {field} == {pid}")["packets"]
                self.assertEqual(sorted(p["len_bytes"] - 28 for p in found), sorted(of), field)
        none = ask("packets", out, "--limit", "0", f"udp dst port {PORT} and not reader.pid == {late}")
        self.assertEqual(none["total"], COUNT - len(took[late]))
        drops = [e for e in ask("events", out, "--kind", "drop", "--limit", "0")["events"] if e["reason"] == "SOCKET_RCVBUFF"]
        self.assertEqual(len(drops), COUNT - len(took[late]))
        # And from a write to all of its reads, of one that is not its socket's first.
        write = ask("packet", str(packets[LEAST + 1]["packet_id"]), out, "--no-calls")["application"]["written"]["calls"][0]["id"]
        reads = ask("app", out, "--write", str(write))["packets"][0]["reads"]
        self.assertEqual(sorted(r["pid"] for r in reads), sorted(pid for pid, of in took.items() if LEAST + 1 in of))
