"""Connections whose addresses are translated on the host that is recorded: a port that is redirected to a server's, a service's address that the sender's host
turns into the server's, a container's published port behind a bridge. Who wrote and read each packet's bytes, and both ends of each connection. On this machine, with
tracepoints. Truth is what the two programs wrote and read, and their numbers."""
import json
import os
import sys
import unittest

from kpatlab import cache, play
from tests.place import own, sh

SERVE = """
import os, socket
l = socket.create_server(("", 8080))
print("ready", os.getpid(), flush=True)
while True:
    c, _ = l.accept()
    while d := c.recv(5000):
        c.sendall(d + d)
"""
ASK = """
import os, socket, sys
for n in range(3):
    s = socket.create_connection((sys.argv[1], 80))
    for i in range(4):
        size = 100 + 10 * n + i
        s.sendall(bytes(size))
        got = 0
        while got < 2 * size:
            got += len(s.recv(5000))
    s.close()
print(os.getpid(), flush=True)
"""
SIZES = {100 + 10 * n + i for n in range(3) for i in range(4)}


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Translated(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.client, self.host, self.inside = own(self, "nat", "chi", os.environ.get("KPAT_KEEP_TRANSLATED"))
        self.link(self.client, "v0", "10.95.0.1/24", self.host, "v0", "10.95.0.2/24")

    def link(self, a: str, dev: str, address: str, b: str, other: str, theirs: str | None) -> None:
        sh("ip", "link", "add", dev, "netns", a, "type", "veth", "peer", "name", other, "netns", b)
        for ns, d, addr in ((a, dev, address), (b, other, theirs)):
            for x in ("lo", d):
                sh("ip", "-n", ns, "link", "set", x, "up")
            if addr:
                sh("ip", "-n", ns, "addr", "add", addr, "dev", d)

    def nft(self, ns: str, *rules: str) -> None:
        sh("ip", "netns", "exec", ns, "nft", "; ".join(["add table ip n", *rules]))

    def judge(self, serves: str, address: str, recorded: list[str], ends: int) -> None:
        """Each packet with bytes has its writer and its reader, where these are recorded, and no other; both ends are one connection."""
        server = play.Process("serve", ["ip", "netns", "exec", serves, sys.executable, "-c", SERVE], self.dir)
        self.stack.callback(server.stop)
        server.wait_ready(lambda: "ready" in play.text_of(server.stdout), cache.patience())
        log, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        netns = [x for ns in recorded for x in ("--netns", ns)]
        record = play.Process("record", [self.kpat, "record", "-p", "path,app", "--mechanism", "tracepoint", *netns, "--no-cost", "-o", str(log), "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        asked = sh("ip", "netns", "exec", self.client, sys.executable, "-c", ASK, address)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(self.kpat, "integrate", log, "-o", out, "--force")
        pids = {False: int(asked.stdout), True: int(play.text_of(server.stdout).split()[1])}
        here = {False: self.client in recorded, True: serves in recorded}
        info = json.loads(sh(self.kpat, "info", out, "--json").stdout)
        packets = json.loads(sh(self.kpat, "packet", f"1-{info['rows']['packet']}", out, "--json", "--no-calls").stdout)["packets"]
        seen = 0
        for p in packets:
            tcp = next((f["fields"] for f in p["footprints"] if f["fields"].get("tcp_seq") is not None), {})
            size = tcp.get("payload_bytes")
            if not size:
                continue
            answer = size not in SIZES
            for side, of_server in (("written", answer), ("read", not answer)):
                calls = ((p["application"] or {}).get(side) or {"calls": []})["calls"]
                expected = [(pids[of_server], size, size)] if here[of_server] else []
                self.assertEqual([(c["pid"], c["bytes"], c["carried_bytes"]) for c in calls], expected, (side, answer, size, p["packet"]))
            seen += 1
        self.assertGreaterEqual(seen, 2 * len(SIZES))
        # the same by conditions, which find all packets' ends at once
        for condition, sizes in (("writer", "written"), ("reader", "read")):
            for of_server in (False, True):
                socket = [s["socket_id"] for s in json.loads(sh(self.kpat, "app", out, "--json").stdout)["sockets"] if s["pid"] == pids[of_server] and s["sent_bytes"]]
                self.assertEqual(len(socket), 3 if here[of_server] else 0)
                for s in socket:
                    found = sh(self.kpat, "packets", out, f"socket == {s} and {'write' if condition == 'writer' else 'read'} >= 0ns", "--tsv", "--no-header", "--columns", "packet_id").stdout.split()
                    self.assertGreaterEqual(len(found), 4, (s, sizes))
        connections = json.loads(sh(self.kpat, "app", out, "--connections", "--json").stdout)["connections"]
        self.assertEqual(len(connections), ends)
        for c in connections:
            self.assertTrue(all(d["written"] == d["read"] > 0 for d in c["directions"]), c)
            why = json.loads(sh(self.kpat, "why", c["ends"][0]["socket_id"], out, "--json").stdout)
            self.assertEqual((why["ends"]["read"], why["peer"]["socket_id"]), (4, c["ends"][1]["socket_id"]))

    def redirects(self) -> None:
        self.nft(self.host, "add chain ip n p { type nat hook prerouting priority -100; }", "add rule ip n p tcp dport 80 redirect to :8080")

    def test_a_redirected_port(self):
        self.redirects()
        self.judge(self.host, "10.95.0.2", [self.client, self.host], 3)

    def test_a_redirected_port_of_which_the_server_alone_is_recorded(self):
        self.redirects()
        self.judge(self.host, "10.95.0.2", [self.host], 0)

    def service(self) -> None:
        sh("ip", "-n", self.client, "route", "add", "10.96.0.0/16", "via", "10.95.0.2")
        self.nft(self.client, "add chain ip n o { type nat hook output priority -100; }", "add rule ip n o ip daddr 10.96.0.10 tcp dport 80 dnat to 10.95.0.2:8080")

    def test_a_services_address(self):
        self.service()
        self.judge(self.host, "10.96.0.10", [self.client, self.host], 3)

    def test_a_services_address_of_which_the_client_alone_is_recorded(self):
        self.service()
        self.judge(self.host, "10.96.0.10", [self.client], 0)

    def leaves_by_another_address(self) -> None:
        sh("ip", "-n", self.client, "addr", "add", "10.95.0.9/24", "dev", "v0")
        self.nft(self.client, "add chain ip n q { type nat hook postrouting priority 100; }", "add rule ip n q oifname v0 meta l4proto tcp snat to 10.95.0.9:20000-20010")
        self.nft(self.host, "add chain ip n p { type nat hook prerouting priority -100; }", "add rule ip n p tcp dport 80 redirect to :8080")

    def test_a_source_address_by_which_all_leaves(self):
        self.leaves_by_another_address()
        self.judge(self.host, "10.95.0.2", [self.client, self.host], 3)

    def test_a_source_address_of_which_the_client_alone_is_recorded(self):
        self.leaves_by_another_address()
        self.judge(self.host, "10.95.0.2", [self.client], 0)

    def test_a_source_address_of_which_the_server_alone_is_recorded(self):
        self.leaves_by_another_address()
        self.judge(self.host, "10.95.0.2", [self.host], 0)

    def test_a_containers_published_port(self):
        self.link(self.inside, "e0", "172.18.0.2/16", self.host, "vc", None)
        for words in (["add", "d0", "type", "bridge"], ["set", "vc", "master", "d0"], ["set", "d0", "up"]):
            sh("ip", "-n", self.host, "link", *words)
        sh("ip", "-n", self.host, "addr", "add", "172.18.0.1/16", "dev", "d0")
        sh("ip", "-n", self.inside, "route", "add", "default", "via", "172.18.0.1")
        sh("ip", "netns", "exec", self.host, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.nft(self.host, "add chain ip n p { type nat hook prerouting priority -100; }", "add rule ip n p iifname v0 tcp dport 80 dnat to 172.18.0.2:8080",
                 "add chain ip n q { type nat hook postrouting priority 100; }", "add rule ip n q oifname d0 masquerade")
        self.judge(self.inside, "10.95.0.2", [self.client, self.host, self.inside], 3)


if __name__ == "__main__":
    unittest.main()
