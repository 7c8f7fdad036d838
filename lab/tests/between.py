"""A client, a router and a server in namespaces of their own, of which the router's is not recorded: by `--netns` a packet is chosen where it is first seen, and is followed until it is freed.
The router gives a clone, as all that TCP sends, a buffer of its own before it sends it on, and drops some. On this machine, with tracepoints. Truth is the router's own count of what its
rules dropped, and what the generator sent and its server read."""
import json
import os
import sys
import unittest

from kpatlab import play
from kpatlab.topology import wait_for
from tests.place import begun, own, sh

CARRIED, REFUSED, DIES, DATAGRAMS = 7631, 7632, 7633, 7634
MESSAGES, SENT = 20, 10
HERE, THERE = {4: "10.94.1.2", 6: "fd94:1::2"}, {4: "10.94.2.2", 6: "fd94:2::2"}
SERVE = """
import socket, sys, threading
def serve(port):
    l = socket.create_server((sys.argv[1], port), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
    ready.release()
    while True:
        c, _ = l.accept()
        while data := c.recv(100, socket.MSG_WAITALL):
            print("read", port, len(data), flush=True)
ready = threading.Semaphore(0)
for port in sys.argv[2:]:
    threading.Thread(target=serve, args=(int(port),), daemon=True).start()
for port in sys.argv[2:]:
    ready.acquire()
print("ready", flush=True)
threading.Event().wait()
"""
ASK = """
import os, socket, sys, time
(to, go), (carried, refused, dies, datagrams, messages, sent) = sys.argv[1:3], map(int, sys.argv[3:])
s = socket.create_connection((to, carried))
for n in range(messages):
    s.sendall(bytes(100))
    time.sleep(0.01)
d = socket.socket(s.family, socket.SOCK_DGRAM)
for n in range(sent):
    d.sendto(bytes(100), (to, datagrams))
    time.sleep(0.01)
kept = socket.create_connection((to, dies))
kept.sendall(bytes(100))
r = socket.socket(s.family)
r.setblocking(False)
r.connect_ex((to, refused))
print("ready", flush=True)
while not os.path.exists(go):
    time.sleep(0.01)
kept.sendall(bytes(100))
time.sleep(300)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Between(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.client, self.router, self.server = own(self, "between", "crs", os.environ.get("KPAT_KEEP_BETWEEN"))
        sh("ip", "-n", self.client, "link", "add", "c0", "type", "veth", "peer", "name", "r0", "netns", self.router)
        sh("ip", "-n", self.router, "link", "add", "r1", "type", "veth", "peer", "name", "s0", "netns", self.server)
        for ns, dev, net, host in ((self.client, "c0", 1, 2), (self.router, "r0", 1, 1), (self.router, "r1", 2, 1), (self.server, "s0", 2, 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.94.{net}.{host}/24", "dev", dev)
            sh("ip", "-n", ns, "addr", "add", f"fd94:{net}::{host}/64", "dev", dev, "nodad")
            sh("ip", "-n", ns, "link", "set", dev, "up")
        for ns, net in ((self.client, 1), (self.server, 2)):
            sh("ip", "-n", ns, "route", "add", "default", "via", f"10.94.{net}.1")
            sh("ip", "-n", ns, "route", "add", "default", "via", f"fd94:{net}::1")
        sh("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        self.nft("add table inet f; add chain inet f o { type filter hook forward priority 0; }")
        self.drop("tcp", REFUSED)
        self.drop("udp", DATAGRAMS)

    def nft(self, *words: str) -> str:
        return sh("ip", "netns", "exec", self.router, "nft", *words).stdout

    def drop(self, protocol: str, port: int) -> None:
        self.nft(f"add rule inet f o {protocol} dport {port} counter drop")

    def dropped(self) -> dict[int, int]:
        """Packets that the router dropped, by port."""
        rules = [r["rule"]["expr"] for r in json.loads(self.nft("-j", "list", "chain", "inet", "f", "o"))["nftables"] if "rule" in r]
        return {e[0]["match"]["right"]: next(x["counter"]["packets"] for x in e if "counter" in x) for e in rules}

    def judge(self, version: int, *recorded: str) -> None:
        there = THERE[version]
        serve = begun(self, "serve", ["ip", "netns", "exec", self.server, sys.executable, "-c", SERVE, there, str(CARRIED), str(DIES)])
        log, ready = self.dir / "x.kbl", self.dir / "ready"
        netns = [x for ns in recorded for x in ("--netns", ns)]
        record = begun(self, "record", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", *netns, "--no-cost", "-o", str(log), "--ready-file", str(ready)], lambda _: ready.exists())
        go = self.dir / "go"
        words = [there, go, CARRIED, REFUSED, DIES, DATAGRAMS, MESSAGES, SENT]
        ask = begun(self, "ask", ["ip", "netns", "exec", self.client, sys.executable, "-c", ASK, *map(str, words)])
        told = lambda: play.text_of(serve.stdout).split("\n")
        wait_for(lambda: told().count(f"read {CARRIED} 100") == MESSAGES and f"read {DIES} 100" in told(), 30, "all was read that the router lets pass")
        self.drop("tcp", DIES)
        go.touch()
        wait_for(lambda: self.dropped()[DIES] >= 3 and self.dropped()[REFUSED] >= 2, 60, "TCP has sent again what the router drops")
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        counted = self.dropped()
        ask.stop()
        out = log.with_suffix(".kpat")
        sh(self.kpat, "integrate", log, "-o", out, "--force")
        packets = lambda *what: json.loads(sh(self.kpat, "packets", out, *what, "--limit", "0", "--json").stdout)["packets"]
        fates = {port: [(p["verdict"], p["drop_reason"]) for p in packets(f"dst port {port}")] for port in (CARRIED, REFUSED, DIES, DATAGRAMS)}
        gone = ("dropped", "NETFILTER_DROP")
        print(f"    between, IPv{version}, {len(recorded)} recorded: dropped {counted}, {({port: all_.count(gone) for port, all_ in fates.items()})}", flush=True)
        self.assertEqual(fates[DATAGRAMS], [gone] * SENT)
        self.assertEqual(counted[DATAGRAMS], SENT)
        # TCP may have sent one more when the log had ended
        for port, least in ((REFUSED, 2), (DIES, 3)):
            self.assertIn(fates[port].count(gone), (counted[port], counted[port] - 1), (port, fates[port], counted))
            self.assertGreaterEqual(fates[port].count(gone), least - 1)
        self.assertEqual(set(fates[REFUSED]), {gone})
        # What passes is one packet each, on both sides of the router: a SYN, an ACK, and the messages.
        self.assertNotIn(gone, fates[CARRIED])
        data = [p for p in packets(f"dst port {CARRIED}") if p["len_bytes"] > 100]
        self.assertEqual(len(data), MESSAGES, [p["packet_id"] for p in data])
        sockets = json.loads(sh(self.kpat, "app", out, "--json").stdout)["sockets"]
        refused = next(s["socket_id"] for s in sockets if s["peer_port"] == REFUSED)
        self.assertIn("its SYN was dropped on the way", sh(self.kpat, "why", refused, out).stdout)

    def test_both_ends(self):
        self.judge(4, self.client, self.server)

    def test_both_ends_of_6(self):
        self.judge(6, self.client, self.server)

    def test_the_sender_alone(self):
        self.judge(4, self.client)

    def test_the_sender_alone_of_6(self):
        self.judge(6, self.client)


if __name__ == "__main__":
    unittest.main()
