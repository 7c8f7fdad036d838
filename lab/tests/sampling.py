"""Recordings of a part of the packets: whole lives of whole flows, the same ones at every host, about as many as were asked for.

Truth is what the senders counted, the ports and numbers in tshark's fields of what a sniffer wrote, and the sampling error of chance. Two
hosts and a router between them, in namespaces, with tracepoints, beside sniffers that read clones.
"""
import collections
import json
import math
import os
import subprocess
import sys
import unittest

from kpatlab import play
from kpatlab.cache import LAB
from tests.place import begun, own, sh

A, B = "10.95.1.1", "10.95.2.1"
FLOWS, EACH = 240, 6

# A datagram of each flow in turn, answered one by one: nothing waits, so nothing is lost. Odd ones are larger than a frame and go in fragments.
UDP = f"""
import socket, struct
flows = []
for n in range({FLOWS}):
    s = socket.socket(type=socket.SOCK_DGRAM)
    s.bind(('{A}', 20000 + n)); s.connect(('{B}', 7777)); s.settimeout(10)
    flows.append(s)
for k in range({EACH}):
    for n, s in enumerate(flows):
        s.send(struct.pack('>II', n, k) + b'x' * (2000 if n % 8 == 1 else 40))
        s.recv(4000)
"""
ECHO = f"""
import socket
s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('{B}', 7777))
print('ready', flush=True)
while True:
    data, peer = s.recvfrom(4000)
    s.sendto(data[:48], peer)
"""
TCP = f"""
import socket
for n in range({FLOWS}):
    s = socket.socket(); s.bind(('{A}', 30000 + n)); s.connect(('{B}', 7778))
    s.sendall(b'x' * 3000)
    while s.recv(4096): pass
    s.close()
"""
SERVER = f"""
import socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('{B}', 7778)); s.listen(64)
print('ready', flush=True)
while True:
    c, _ = s.accept()
    n = 0
    while n < 3000: n += len(c.recv(4096))
    c.close()
"""


def chance(chosen: int, of: int, one_in: int) -> float:
    """Standard deviations from what chance gives."""
    p = 1 / one_in
    return abs(chosen - of * p) / math.sqrt(of * p * (1 - p))


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Sampling(unittest.TestCase):
    def setUp(self):
        self.kpat = play.kpat_path()
        self.a, self.r, self.b = own(self, "sampling", "arb")
        for ns, device, address, router, gateway in ((self.a, "pa", A, "ra", "10.95.1.2"), (self.b, "pb", B, "rb", "10.95.2.2")):
            sh("ip", "link", "add", device, "netns", ns, "type", "veth", "peer", router, "netns", self.r)
            for where, name, is_at in ((ns, device, address), (self.r, router, gateway)):
                sh("ip", "-n", where, "addr", "add", f"{is_at}/24", "dev", name)
                sh("ip", "-n", where, "link", "set", name, "up")
            sh("ip", "-n", ns, "route", "add", "default", "via", gateway)
        sh("ip", "netns", "exec", self.r, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for ns, *how in ((self.r, "ra"), (self.b, "pb", "slow")):
            begun(self, f"clones-{how[0]}", ["ip", "netns", "exec", ns, sys.executable, str(LAB / "tools/clones.py"), *how])

    def serve(self, text: str) -> None:
        argv = ["ip", "netns", "exec", self.b, sys.executable, "-c", text]
        p = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.stack.callback(p.stdout.close)
        self.stack.callback(p.wait)
        self.stack.callback(p.kill)
        self.assertEqual(p.stdout.readline(), "ready\n")

    def record(self, name: str, where: list[str], client: str, *args) -> list[dict]:
        """Packets of a recording while the client runs."""
        log = self.dir / f"{name}.kbl"
        of = [word for ns in where for word in ("--netns", ns)]
        sh(self.kpat, "record", "-o", log, *of, *args, "--", "ip", "netns", "exec", self.a, sys.executable, "-c", client, seconds=120)
        wire = [f for f in (log.with_suffix(".pcapng"),) if f.exists()]
        sh(self.kpat, "integrate", log, *wire)
        return json.loads(sh(self.kpat, "packets", log.with_suffix(".kpat"), "--json", "--limit", "100000").stdout)["packets"]

    def info(self, name: str) -> dict:
        return json.loads(sh(self.kpat, "info", self.dir / f"{name}.kpat", "--json").stdout)

    @staticmethod
    def flows(packets: list[dict]) -> collections.Counter:
        return collections.Counter(max(p["src_port"], p["dst_port"]) for p in packets if p["src_port"])

    @staticmethod
    def cut(port: int) -> bool:
        """Of these flows the requests are fragmented."""
        return (port - 20000) % 8 == 1

    def begin_at_their_senders(self, packets: list[dict]) -> None:
        numbers = {ns: os.stat(f"/run/netns/{ns}").st_ino for ns in (self.a, self.b)}
        elsewhere = [p for p in packets if p["netns"] != numbers[self.a if p["dst_port"] == 7777 else self.b]]
        self.assertLessEqual(len(elsewhere), max(2, len(packets) // 100), elsewhere[:3])

    def are_whole(self, flows: dict[int, int], each: int) -> None:
        """What interrupts this kind of machine's agent runs no program of ours, so a packet may lack a point, or all. A choice within flows would
        leave out most of them."""
        self.assertLessEqual(max(flows.values()), each, flows)
        missing = sum(each - n for n in flows.values())
        self.assertLessEqual(missing, max(2, each * len(flows) // 100), flows)

    def frames(self, name: str, field: str) -> list[str]:
        argv = ["tshark", "-r", self.dir / f"{name}.pcapng", "-T", "fields", "-e", field]
        return [line for line in sh(*argv, seconds=60).stdout.splitlines() if line]

    def test_flows_are_whole_and_the_same_everywhere(self):
        self.serve(ECHO)
        everywhere = [self.a, self.r, self.b]
        packets = self.record("udp", everywhere, UDP, "-f", "udp", "--sample", "1/6", "--sniff", f"{self.r}:ra", "--snaplen", "96")
        flows = self.flows(p for p in packets if p["verdict"] == "delivered")
        # A datagram there and its answer. Fragments, all that a tracepoint sees of the larger ones, have no ports: they are a flow of their own.
        self.are_whole({port: n for port, n in flows.items() if not self.cut(port)}, 2 * EACH)
        self.are_whole({port: n for port, n in flows.items() if self.cut(port)}, EACH)
        print(f"udp: {len(flows)} of {FLOWS} flows, {chance(len(flows), FLOWS, 6):.1f} deviations from chance", flush=True)
        self.assertLess(chance(len(flows), FLOWS, 6), 4)
        self.begin_at_their_senders(packets)
        # the sniffer beside chose the same ones (fragments behind the first have no ports)
        ports = collections.Counter(max(map(int, line.split(","))) for line in
                                    (f"{s},{d}" for s, d in zip(self.frames("udp", "udp.srcport"), self.frames("udp", "udp.dstport"))))
        self.assertEqual({p: n for p, n in ports.items() if not self.cut(p)}, {p: 2 * EACH for p in flows if not self.cut(p)})
        # Half of all of it, at the receiver alone: of these flows all are in both.
        half = self.flows(self.record("half", [self.b], UDP, "--sample", "1/3", "-f", "udp"))
        self.assertLessEqual(set(flows), set(half), "one in six is among one in three, at another host")
        self.assertLess(chance(len(half), FLOWS, 3), 4)
        estimate = self.info("udp")["estimates"]
        made = 2 * EACH * FLOWS - EACH * sum(self.cut(20000 + n) for n in range(FLOWS))
        delivered = estimate["by_verdict"]["delivered"]
        print(f"udp: {delivered}, truth {made}", flush=True)
        self.assertLess(abs(delivered["packets"] - made), 4 * delivered["standard_error"])

    def test_connections_are_whole(self):
        self.serve(SERVER)
        whole = self.flows(self.record("all", [self.a, self.b], TCP, "-f", "tcp"))
        part = self.flows(self.record("tcp", [self.a, self.b], TCP, "--sample", "1/5"))
        self.assertEqual(len(whole), FLOWS)
        print(f"tcp: {len(part)} of {FLOWS} connections, {chance(len(part), FLOWS, 5):.1f} deviations from chance", flush=True)
        self.assertLess(chance(len(part), FLOWS, 5), 4)
        # A connection takes 8 to 12 packets, however it was acknowledged; half a one would be 6.
        self.assertGreaterEqual(min(part.values()), min(whole.values()) - 2, (part, whole))

    def test_packets_are_whole_and_the_same_everywhere(self):
        self.serve(ECHO)
        packets = self.record("packet", [self.a, self.r, self.b], UDP, "-f", "udp", "--sample", "1/4:packet", "--sniff", f"{self.r}:ra")
        there = [p for p in packets if p["dst_port"] == 7777 and p["verdict"] == "delivered"]
        flows = self.flows(there)
        print(f"packets: {len(there)} of {FLOWS * EACH}, {chance(len(there), FLOWS * EACH, 4):.1f} deviations from chance", flush=True)
        self.assertLess(chance(len(there), FLOWS * EACH, 4), 4)
        self.assertGreater(len(flows), FLOWS / 2, "not by flow")
        self.begin_at_their_senders([p for p in packets if p["src_port"]])
        estimate = self.info("packet")["estimates"]["by_verdict"]["delivered"]
        self.assertLess(abs(estimate["packets"] - 2 * FLOWS * EACH), 5 * estimate["standard_error"])

    def test_a_router_that_translates_begins_no_life_on_the_way(self):
        sh("ip", "netns", "exec", self.r, "nft", "add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add rule ip n p oifname rb masquerade")
        self.serve(ECHO)
        packets = self.record("nat", [self.r], UDP, "-f", "udp", "--sample", "1/4")
        devices = {p["in_ifindex"] for p in packets}
        self.assertNotIn(None, devices, "all were received by the router before they were chosen")
        there = self.flows(p for p in packets if p["dst_port"] == 7777)
        self.are_whole({port: n for port, n in there.items() if not self.cut(port)}, EACH)
        self.assertLess(chance(len(there), FLOWS, 4), 4)
