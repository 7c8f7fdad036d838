"""What tracepoints alone tell of packets through a router of this machine, and of a device whose packets go nowhere else. Truth is the devices' own
counters, what the receiver took, and the frames that the reader of a tun device read. Each packet's life has to be whole: every crossing of a
device once, and its end where it ended. A virtual device's return tells nothing more than the reception at its other end, and is left out; where
there is no other end it has to be there, and where it is asked for."""
import json
import os
import sys
import time
import unittest
from pathlib import Path

from kpatlab import cache, look, play
from tests.place import own, sh

DATAGRAMS, FRAMES, FEW = 3000, 400, 40
NOTHING_ARRIVES = 4096  # bpf/polls.bpf.h
DELIVERED = 1  # packet.verdict
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(int(sys.argv[2])):
    s.sendto(b"%08d" % i, (sys.argv[1], 9000))
    if i % int(sys.argv[3]) == 0: time.sleep(0.002)
"""
TAKE = """
import signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
s.bind(("", 9000))
s.settimeout(float(sys.argv[2]))
print("ready", flush=True)
taken = set()
while len(taken) < int(sys.argv[1]): taken.add(s.recv(100))
print(len(taken), flush=True)
signal.pause()
"""
# IFF_TUN without its packet information: a frame is a packet.
TUN = """
import fcntl, os, signal, struct, sys
f = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(f, 0x400454ca, struct.pack("16sH22x", b"t0", 0x1001))
print("ready", flush=True)
read = 0
while read < int(sys.argv[1]): read += os.read(f, 2000)[9] == 17
print(read, flush=True)
signal.pause()
"""
# Writes datagrams to each of two addresses.
TUN_WRITES = """
import fcntl, os, signal, socket, struct, sys
f = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(f, 0x400454ca, struct.pack("16sH22x", b"t0", 0x1001))
print("ready", os.getpid(), flush=True)
sys.stdin = open(sys.argv[1])
sys.stdin.readline()
def datagram(to, n):
    data = b"%08d" % n
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(data), n, 0, 64, 17, 0, socket.inet_aton("10.97.3.2"), socket.inet_aton(to))
    s = sum(struct.unpack("!10H", head))
    s = (s >> 16) + (s & 0xffff)
    return head[:10] + struct.pack("!H", ~(s + (s >> 16)) & 0xffff) + head[12:] + struct.pack("!HHHH", 5000, 9000, 8 + len(data), 0) + data
for n in range(int(sys.argv[2])):
    for to in sys.argv[3:]: os.write(f, datagram(to, n))
signal.pause()
"""
POINTS = ("net:net_dev_queue", "net:net_dev_start_xmit", "net:netif_rx", "net:netif_receive_skb", "net:net_dev_xmit")


def cards() -> int:
    """Packets that this machine's cards received and sent: what was sent is cleaned up in their polls, too."""
    rows = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    return sum(int(n) for name, counts in rows if name.strip() != "lo" for n in counts.split()[1:10:8])


def softirqs() -> int:
    """Of NET_RX, on the first CPU."""
    rows = Path("/proc/softirqs").read_text().splitlines()
    return int(next(row for row in rows if "NET_RX" in row).split()[1])


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Points(unittest.TestCase):
    def setUp(self):
        *self.all_ns, self.before, self.outside = own(self, "points", "crsyx")
        self.client, self.router, self.server = self.all_ns
        for ns in (*self.all_ns, self.before, self.outside):
            # Nothing that was not sent here may count.
            sh("ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")

    def link(self, ns: str, dev: str, address: str, peer_ns: str, peer: str, peer_address: str) -> None:
        sh("ip", "-n", ns, "link", "add", dev, "type", "veth", "peer", "name", peer, "netns", peer_ns)
        ends = ((ns, dev, address, peer_address, peer_ns, peer), (peer_ns, peer, peer_address, address, ns, dev))
        for here, name, mine, _, _, _ in ends:
            sh("ip", "-n", here, "addr", "add", f"{mine}/24", "dev", name)
            sh("ip", "-n", here, "link", "set", name, "up")
        for here, name, _, other, there, its in ends:
            mac = json.loads(sh("ip", "-n", there, "-j", "link", "show", its).stdout)[0]["address"]
            sh("ip", "-n", here, "neigh", "replace", other, "lladdr", mac, "dev", name)

    def counters(self, ns: str, dev: str) -> dict:
        s = json.loads(sh("ip", "-n", ns, "-s", "-j", "link", "show", dev).stdout)[0]["stats64"]
        return {way: s[way]["packets"] for way in ("rx", "tx")}

    def send(self, ns: str, to: str, count: int, burst: int) -> None:
        """All programs on one CPU: a reader on another one may free a packet before its driver has returned, which then has none."""
        sh("ip", "netns", "exec", ns, "taskset", "-c", "0", sys.executable, "-c", SEND, to, count, burst)

    def run_in(self, ns: str, name: str, code: str, *args) -> play.Process:
        p = play.Process(name, ["ip", "netns", "exec", ns, "taskset", "-c", "0", sys.executable, "-c", code, *map(str, args)], self.dir)
        self.stack.callback(p.stop)
        p.wait_ready(lambda: "ready" in play.text_of(p.stdout), cache.patience())
        return p

    def record(self, *args) -> play.Process:
        ready = self.dir / "ready"
        argv = [play.kpat_path(), "record", "-o", str(self.dir / "x.kbl"), "--mechanism", "tracepoint", "--no-cost", "-f", "udp port 9000", "--ready-file", str(ready)]
        p = play.Process("record", [*argv, *args, *[x for ns in self.all_ns for x in ("--netns", ns)]], self.dir)
        self.stack.callback(p.stop)
        p.wait_ready(ready.exists, cache.patience())
        return p

    def reported(self, record: play.Process) -> tuple[dict, list[dict]]:
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        out = self.dir / "x.kpat"
        look.integrate(self.dir / "x.kbl", [], out)
        names = {r["func_id"]: r["name"] for r in look.kpat_json("sql", str(out), "select func_id, name from function")}
        calls = look.kpat_json("sql", str(out), "select func_id, count(*) as n from call group by func_id")
        found = {names[r["func_id"]]: r["n"] for r in calls}
        return {p: found.get(p, 0) for p in POINTS}, look.kpat_json("sql", str(out), "select * from packet")

    def through_a_router(self, *args) -> tuple[list[int], dict]:
        """Packets that each device counted, and how often each point is in the log."""
        self.link(self.client, "c0", "10.97.1.2", self.router, "r0", "10.97.1.1")
        self.link(self.server, "s0", "10.97.2.2", self.router, "r1", "10.97.2.1")
        sh("ip", "-n", self.client, "route", "add", "default", "via", "10.97.1.1")
        sh("ip", "-n", self.server, "route", "add", "default", "via", "10.97.2.1")
        sh("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        take = self.run_in(self.server, "take", TAKE, DATAGRAMS, cache.patience())
        devices = ((self.client, "c0", "tx"), (self.router, "r0", "rx"), (self.router, "r1", "tx"), (self.server, "s0", "rx"))
        before = [self.counters(ns, dev)[way] for ns, dev, way in devices]
        record = self.record(*args)
        self.send(self.client, "10.97.2.2", DATAGRAMS, 10)
        take.wait_ready(lambda: str(DATAGRAMS) in play.text_of(take.stdout), cache.patience())
        crossed = [self.counters(ns, dev)[way] - b for (ns, dev, way), b in zip(devices, before)]
        # With points alone what was received, and not seen again for a tenth of a second, is this host's.
        time.sleep(0.2)
        points, packets = self.reported(record)
        print(f"points: devices counted {crossed}, points {points}, packets {len(packets)}", file=sys.stderr, flush=True)
        self.assertEqual(crossed, [DATAGRAMS] * 4)
        self.assertEqual([p["verdict"] for p in packets], [DELIVERED] * DATAGRAMS)
        return crossed, points

    def test_every_crossing_of_a_router_is_there_once(self):
        crossed, points = self.through_a_router()
        sent, received = crossed[0] + crossed[2], crossed[1] + crossed[3]
        self.assertEqual(points, {"net:net_dev_queue": sent, "net:net_dev_start_xmit": sent, "net:netif_rx": received, "net:netif_receive_skb": received, "net:net_dev_xmit": 0})

    def test_returns_are_there_if_they_are_asked_for(self):
        crossed, points = self.through_a_router("--add", "net_dev_xmit")
        self.assertEqual(points["net:net_dev_xmit"], crossed[0] + crossed[2])

    def test_where_there_is_no_other_end_the_return_is(self):
        tun = self.run_in(self.client, "tun", TUN, FRAMES)
        sh("ip", "-n", self.client, "addr", "add", "10.97.3.1/24", "dev", "t0")
        sh("ip", "-n", self.client, "link", "set", "t0", "up", "txqueuelen", 2 * FRAMES)
        record = self.record()
        self.send(self.client, "10.97.3.2", FRAMES, 10)
        tun.wait_ready(lambda: str(FRAMES) in play.text_of(tun.stdout), cache.patience())
        points, packets = self.reported(record)
        print(f"points: {FRAMES} frames read from the tun device, points {points}, packets {len(packets)}", file=sys.stderr, flush=True)
        self.assertEqual([points[p] for p in ("net:net_dev_start_xmit", "net:netif_rx")], [FRAMES, 0])
        self.assertEqual(points["net:net_dev_xmit"], FRAMES)
        self.assertEqual(len(packets), FRAMES)

    def test_what_a_program_writes_to_its_device_it_sends(self):
        """As a VPN's daemon or a virtual machine does: what is for this host, and what it forwards."""
        self.link(self.client, "c0", "10.97.1.2", self.server, "s0", "10.97.1.1")
        sh("ip", "netns", "exec", self.client, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        go = self.dir / "go"
        os.mkfifo(go)
        to = ["10.97.3.1", "10.97.1.1"]
        tun = self.run_in(self.client, "tun", TUN_WRITES, go, FEW, *to)
        sh("ip", "-n", self.client, "addr", "add", "10.97.3.1/24", "dev", "t0")
        sh("ip", "-n", self.client, "link", "set", "t0", "up")
        takes = [self.run_in(ns, f"take-{ns}", TAKE, FEW, cache.patience()) for ns in (self.client, self.server)]
        record = self.record()
        go.write_text("go\n")
        for take in takes:
            take.wait_ready(lambda: str(FEW) in play.text_of(take.stdout), cache.patience())
        _, packets = self.reported(record)
        writer = int(play.text_of(tun.stdout).split()[1])
        found = sorted((p["dst_addr"], p["pid"]) for p in packets)
        self.assertEqual(found, sorted((address, writer) for address in to for _ in range(FEW)))

    def test_a_cpu_at_which_nothing_arrived_is_timed_again(self):
        """Softirqs that only hand known packets on, then packets from a namespace that is not recorded, by a device with a poll of its own."""
        self.link(self.client, "c0", "10.97.1.2", self.router, "r0", "10.97.1.1")
        # Behind a router of its own, after which they are no socket's any more: as what a card takes from the wire.
        outside, before = self.outside, self.before
        self.link(outside, "x0", "10.97.5.2", before, "y0", "10.97.5.1")
        self.link(before, "y1", "10.97.4.2", self.router, "r2", "10.97.4.1")
        sh("ip", "-n", outside, "route", "add", "default", "via", "10.97.5.1")
        sh("ip", "netns", "exec", before, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        sh("ip", "netns", "exec", self.router, "ethtool", "-K", "r2", "gro", "on")
        sh("ip", "netns", "exec", before, "ethtool", "-K", "y1", "tso", "off")  # else the peer's poll is passed by
        # First seen in the router's namespace are those that nobody saw leave.
        inode = sh("ip", "netns", "exec", self.router, "stat", "-L", "-c", "%i", "/proc/self/ns/net").stdout.strip()

        # This machine's own cards are polled by the same CPU.
        for _ in range(5):
            record = self.record("--force")
            self.send(outside, "10.97.4.1", FEW, 1)
            quiet, rounds = cards(), softirqs()
            # One softirq may serve several datagrams.
            while softirqs() - rounds < 2 * NOTHING_ARRIVES:
                self.send(self.client, "10.97.1.1", NOTHING_ARRIVES, 100)
            self.send(outside, "10.97.4.1", FEW, 1)
            if cards() == quiet:
                break
            record.stop()
        else:
            self.skipTest("this machine's own network was not quiet for a second")
        self.reported(record)
        rows = look.kpat_json("sql", str(self.dir / "x.kpat"), f"select driver_ns from packet where netns = {inode} order by first_ns")
        known = [r["driver_ns"] is not None for r in rows]
        print(f"points: driver's time known: {known[:FEW].count(True)} before, {known[FEW:].count(True)} after {2 * NOTHING_ARRIVES} that were handed on", file=sys.stderr, flush=True)
        self.assertEqual(len(known), 2 * FEW)
        self.assertGreaterEqual(known[:FEW].count(True), FEW // 2)
        self.assertFalse(known[FEW], "whoever comes first after that has a poll that nobody timed")
        self.assertGreaterEqual(known[FEW:].count(True), FEW // 2)
