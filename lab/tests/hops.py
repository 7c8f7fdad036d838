"""One kernel, a client, a router and a server in namespaces of it, all of them recorded, a sniffer at each of the four devices, every CPU busy. A
sniffer of this machine stamps with this machine's clock: each capture has to be known as that by its stamps, at the right device, and the relation of
both clocks, which this process reads itself, has to be within a bound of microseconds. The same captures with every stamp moved are somebody
else's: none may be taken for this machine's."""
import json
import os
import struct
import sys
import time
import unittest
from pathlib import Path

from kpatlab import cache, look, play
from tests.place import own, sh
from tests.truth import tshark
from tests.ways import RECEIVED, TRANSMITTED

PINGS, DATAGRAMS = 150, 200
OWN = 3  # clock.method
WAITING = 40
BOUND_NS = 5_000  # an idle machine: 0.2 us
MOVED_NS = (10_000, -10_000, 1_000_000, 300_000_000)
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(int(sys.argv[2])):
    s.sendto(b"%08d" % i, (sys.argv[1], 9000))
    time.sleep(0.001)
"""


def relation() -> tuple[int, int]:
    """Boot less wall, from two readings of one clock about the other; and how far it may be off."""
    def once():
        a, wall, b = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return b - a, (a + b) // 2 - wall
    wide, offset = min(once() for _ in range(5000))
    return offset, wide // 2 + 1


def moved(path: Path, by_ns: int) -> Path:
    """A pcap file, every stamp of it later by so much."""
    out, data = path.with_suffix(f".{by_ns}.pcap"), bytearray(path.read_bytes())
    unit = {0xA1B23C4D: 1, 0xA1B2C3D4: 1000}[struct.unpack_from("<I", data)[0]]
    at = 24
    while at + 16 <= len(data):
        sec, part, kept, _ = struct.unpack_from("<IIII", data, at)
        struct.pack_into("<II", data, at, *divmod(sec * (10**9 // unit) + part + by_ns // unit, 10**9 // unit))
        at += 16 + kept
    out.write_bytes(data)
    return out


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Hops(unittest.TestCase):
    def setUp(self):
        self.client, self.router, self.server = own(self, "hops", "crs", os.environ.get("KPAT_KEEP_HOPS"))
        sh("ip", "-n", self.client, "link", "add", "c0", "type", "veth", "peer", "name", "r0", "netns", self.router)
        sh("ip", "-n", self.router, "link", "add", "r1", "type", "veth", "peer", "name", "s0", "netns", self.server)
        self.devices = [(self.client, "c0", "10.95.1.2"), (self.router, "r0", "10.95.1.1"), (self.router, "r1", "10.95.2.1"), (self.server, "s0", "10.95.2.2")]
        for ns, dev, addr in self.devices:
            sh("ip", "-n", ns, "addr", "add", f"{addr}/24", "dev", dev)
            sh("ip", "-n", ns, "link", "set", dev, "up")
        sh("ip", "-n", self.client, "route", "add", "default", "via", "10.95.1.1")
        sh("ip", "-n", self.server, "route", "add", "default", "via", "10.95.2.1")
        sh("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")

    def sniff(self, ns: str, dev: str, *precision) -> play.Process:
        precision = precision or ("--time-stamp-precision=nano",)
        argv = [cache.tool("tcpdump", "tcpdump"), "-Z", "root", "-U", "--immediate-mode", *precision, "-n", "-i", dev, "-w", str(self.dir / f"{dev}.pcap")]
        p = play.Process(f"capture-{dev}", ["ip", "netns", "exec", ns, *argv], self.dir)
        self.stack.callback(p.stop)
        p.file = self.dir / f"{dev}.pcap"
        p.wait_ready(lambda: "listening on" in play.text_of(p.stderr), cache.patience())
        return p

    def clock(self, capture: Path) -> tuple[bool, list, list]:
        """Its own clock?; boot less wall by kpat and its bound, frame by frame; number and way of each match."""
        out = self.dir / "x.kpat"
        look.integrate(self.dir / "x.kbl", [capture], out)
        methods = {r["method"] for r in look.kpat_json("sql", str(out), "select method from clock")}
        rows = look.kpat_json("sql", str(out), "select f.number as number, f.boot_ns - f.wall_ns as offset, a.bound_ns as bound, a.side as side "
                              "from association a join frame f on f.capture_id = a.capture_id and f.number = a.number")
        return OWN in methods, [(r["offset"], r["bound"]) for r in rows], [(r["number"], r["side"]) for r in rows]

    def test_packets_that_waited_for_seconds_have_their_frames(self):
        """A token bucket at the client lets 16 kB/s through: the last of 40 datagrams waits for more than two seconds. Each has its number as its
        length, so which frame is which is known without kpat."""
        sh("ip", "netns", "exec", self.client, "tc", "qdisc", "add", "dev", "c0", "root", "tbf", "rate", "128kbit", "burst", "2k", "latency", "10s")
        sniffers = [self.sniff(ns, dev) for ns, dev, _ in self.devices]
        ready = self.dir / "ready"
        record = play.Process("record", [play.kpat_path(), "record", "-o", str(self.dir / "x.kbl"), "--mechanism", "tracepoint", "--no-cost", "-f", "udp port 9000",
                                         *[x for ns in (self.client, self.router, self.server) for x in ("--netns", ns)], "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        sh("ip", "netns", "exec", self.client, sys.executable, "-c",
           f"import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor i in range({WAITING}): s.sendto(bytes(1000 + i), ('10.95.2.2', 9000))")
        sniffers[-1].wait_ready(lambda: (self.dir / "s0.pcap").stat().st_size > 24 + WAITING * 1058, cache.patience())
        for p in sniffers:
            play.settle(p)
            p.stop()
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        for _, dev, _ in self.devices:
            out = self.dir / "x.kpat"
            look.integrate(self.dir / "x.kbl", [self.dir / f"{dev}.pcap"], out)
            rows = look.kpat_json("sql", str(out), "select f.len_bytes as frame, p.len_bytes as packet, f.boot_ns - p.first_ns as waited "
                                  "from association a join frame f on f.capture_id = a.capture_id and f.number = a.number join packet p on p.packet_id = a.packet_id")
            rows = [r for r in rows if r["frame"] >= 1042]
            longest = max(r["waited"] for r in rows)
            print(f"hops: {dev}: {len(rows)} of {WAITING} matched, the longest waited {longest / 1e9:.2f} s", file=sys.stderr, flush=True)
            self.assertEqual(sorted(r["frame"] for r in rows), [1042 + i for i in range(WAITING)], dev)
            self.assertEqual([r for r in rows if r["frame"] != r["packet"] + 14], [], dev)
            self.assertGreater(longest, 1.5e9)

    def test_every_capture_of_this_machine_is_known_and_none_other(self):
        self.known(pings=PINGS)

    def test_also_where_nobody_asks_for_time_stamps(self):
        """ping has the kernel stamp all packets of the machine (SO_TIMESTAMP); without it tcpdump's socket reads the clock itself, later. As files of
        microseconds, tcpdump's default."""
        self.known("--time-stamp-precision=micro")

    def known(self, *precision, pings=0):
        macs = {x["ifname"]: x["address"] for ns, *_ in self.devices for x in json.loads(sh("ip", "-n", ns, "-j", "link").stdout)}
        for n in range(os.cpu_count() or 2):
            busy = play.Process(f"busy-{n}", ["timeout", "300", sys.executable, "-c", "while True: pass"], self.dir)
            self.stack.callback(busy.stop)
        sniffers = [self.sniff(ns, dev, *precision) for ns, dev, _ in self.devices]
        ready = self.dir / "ready"
        record = play.Process("record", [play.kpat_path(), "record", "-o", str(self.dir / "x.kbl"), "--mechanism", "tracepoint", "--no-cost",
                                         *[x for ns in (self.client, self.router, self.server) for x in ("--netns", ns)], "--ready-file", str(ready)], self.dir)
        self.stack.callback(record.stop)
        record.wait_ready(ready.exists, cache.patience())
        offset, unsure = relation()
        for ns, to in ((self.client, "10.95.2.2"), (self.server, "10.95.1.2")):
            if pings:
                sh("ip", "netns", "exec", ns, "ping", "-n", "-q", "-c", pings, "-i", "0.01", to)
            sh("ip", "netns", "exec", ns, sys.executable, "-c", SEND, to, DATAGRAMS)
        for p in sniffers:
            play.settle(p)
            p.stop()
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        again, _ = relation()
        self.assertLess(abs(again - offset), 1000, "this machine's clock was set meanwhile")
        for _, dev, _ in self.devices:
            capture = self.dir / f"{dev}.pcap"
            own, offsets, ways = self.clock(capture)
            if not own and os.getloadavg()[0] > 1.75 * (os.cpu_count() or 1):
                # Others are busy beside this test: stamps of a microsecond are late by so many that nothing is proved, and nothing is claimed.
                self.skipTest(f"{dev}: a load of {os.getloadavg()[0]:.1f}, no proof of this machine's own clock")
            self.assertTrue(own, f"{dev}: this machine's own clock is not recognised")
            outside = sum(abs(o - offset) > b + unsure for o, b in offsets)
            widest = max(b for _, b in offsets)
            sources = tshark(capture, "", "eth.src", "eth.dst")
            reported = [(sources[n - 1], side) for n, side in ways if side]
            wrong = sum(side != (TRANSMITTED if source[0] == macs[dev] else RECEIVED) for source, side in reported)
            print(f"hops: {dev}: {len(offsets)} frames matched, bound {widest} ns, {outside} outside; way: {len(reported)} known, {wrong} wrong", file=sys.stderr, flush=True)
            self.assertGreater(len(offsets), max(4 * pings, 3 * DATAGRAMS // 2))
            self.assertEqual((outside, wrong), (0, 0), dev)
            self.assertLess(widest, BOUND_NS, dev)
            self.assertGreater(len(reported), 0.95 * len(ways), f"{dev}: the way is left open")
            for by in MOVED_NS:
                own, offsets, _ = self.clock(moved(capture, by))
                self.assertFalse(own, f"{dev}, moved by {by} ns, is not this machine's clock")
