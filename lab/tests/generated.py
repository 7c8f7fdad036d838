"""Frames of a generator, all alike: one identification for all of them, or none, and often the buffer of the frame before. With tracepoints, where no free of what
a socket's reader took is seen, each is a packet of its own; a datagram that goes round between two routers is one. Truth are the counts of the readers and of the kernel."""
import json
import os
import socket
import struct
import sys
import time
import unittest

from kpatlab import cache, play
from tests.place import begun, lost, own, sh

COUNT, FIRST_PORT = 100, 7400
# What came within 100 ms of the log's end is in flight.
JUST_COME_S = 0.3
# A line for each kind: how it is sent, the device, microseconds between two, the frame.
SEND = """
import fcntl, os, socket, struct, sys, time
tap = 0
for line in sys.argv[2:]:
    how, dev, gap, frame = line.split()
    frame = bytes.fromhex(frame)
    if how == "tap":
        if not tap:
            tap = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(tap, 0x400454ca, struct.pack("16sH", dev.encode(), 0x1002))
        put = lambda: os.write(tap, frame)
    else:
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        s.setsockopt(263, 20, int(how == "bypass"))  # SOL_PACKET, PACKET_QDISC_BYPASS: past the queue and its tracepoints
        s.bind((dev, 0))
        put = lambda: s.send(frame)
    for _ in range(int(sys.argv[1])):
        put()
        if int(gap): time.sleep(int(gap) / 1e6)
"""
READ = """
import select, socket, sys
all = []
for port in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    s.bind(("::", port))
    all.append(s)
print("ready", flush=True)
n = [0] * len(all)
while min(n) < int(sys.argv[3]):
    ready = select.select(all, [], [], float(sys.argv[4]))[0]
    if not ready: break
    for s in ready: n[all.index(s)] += len(s.recv(4096)) > 0
print(*n, flush=True)
"""
LOOP = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(int(sys.argv[1])):
    s.sendto(b"x" * 30, ("10.97.9.1", 7399))
    time.sleep(0.002)
"""


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def datagram(src: str, dst: str, port: int, identification: int) -> bytes:
    """A packet with 30 bytes of data, of the version that the addresses have."""
    family = socket.AF_INET6 if ":" in src else socket.AF_INET
    addresses = socket.inet_pton(family, src) + socket.inet_pton(family, dst)
    udp = struct.pack("!HHHH", 5000, port, 38, 0) + b"x" * 30
    udp = udp[:6] + struct.pack("!H", checksum(addresses + struct.pack("!HH", 17, 38) + udp) or 0xffff) + udp[8:]
    if family == socket.AF_INET6:
        return struct.pack("!IHBB", 6 << 28, len(udp), 17, 64) + addresses + udp
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), identification, 0, 64, 17, 0)
    return head[:10] + struct.pack("!H", checksum(head + addresses)) + addresses + udp


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Generated(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.r, self.b = own(self, "generated", "arb", os.environ.get("KPAT_KEEP_GENERATED"))
        for ns in (self.a, self.r, self.b):
            sh("ip", "-n", ns, "link", "set", "lo", "up")
        for ns, dev, router, net in ((self.a, "a0", "r0", 1), (self.b, "b0", "r1", 2)):
            sh("ip", "link", "add", dev, "netns", ns, "type", "veth", "peer", "name", router, "netns", self.r)
            for x, d, host in ((ns, dev, 1), (self.r, router, 2)):
                sh("ip", "-n", x, "addr", "add", f"10.97.{net}.{host}/24", "dev", d)
                sh("ip", "-n", x, "addr", "add", f"fd97:{net}::{host}/64", "dev", d, "nodad")
                sh("ip", "-n", x, "link", "set", d, "up")
            sh("ip", "-n", ns, "route", "add", "default", "via", f"10.97.{net}.2")
            sh("ip", "-n", ns, "-6", "route", "add", "default", "via", f"fd97:{net}::2")
        sh("ip", "netns", "exec", self.r, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        # The neighbours are known.
        for address in ("10.97.2.1", "fd97:2::1"):
            sh("ip", "netns", "exec", self.a, "ping", "-c", "1", "-w", "10", address)

    def link_address(self, ns: str, dev: str) -> bytes:
        return bytes.fromhex(json.loads(sh("ip", "-n", ns, "-j", "link", "show", dev).stdout)[0]["address"].replace(":", ""))

    def recorded(self, name: str, places: tuple, work, sniffs: tuple = ()) -> list[dict]:
        """The datagrams of the log that is recorded in these namespaces while `work` is done; it is in `store`, with what was captured."""
        log, ready, out = self.dir / f"{name}.kbl", self.dir / f"{name}.ready", self.dir / f"{name}.kpat"
        self.store = out
        of = [word for ns in places for word in ("--netns", ns)] + [word for sniff in sniffs for word in ("--sniff", sniff)]
        record = begun(self, f"record-{name}", [self.kpat, "record", "--mechanism", "tracepoint", *of, "-f", "udp", "-o", str(log), "--ready-file", str(ready)],
                       lambda _: ready.exists())
        work()
        time.sleep(JUST_COME_S)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(self.kpat, "integrate", log, *sorted(self.dir.glob(f"{name}.*.pcapng")), "-o", out)
        self.assertEqual(lost(self, json.loads(sh(self.kpat, "info", out, "--json").stdout)), [])
        return json.loads(sh(self.kpat, "packets", out, "--json", "--limit", "0").stdout)["packets"]

    def generated(self, name: str, places: tuple, frames: list[tuple], sender: str, sniffs: tuple = ()):
        """Each kind of `frames` (how, device, microseconds, frame) is sent to a port of its own."""
        reader = begun(self, f"read-{name}", ["ip", "netns", "exec", self.b, sys.executable, "-c", READ, *map(str, (FIRST_PORT, len(frames), COUNT, 20))])
        lines = [f"{how} {dev} {gap} {frame.hex()}" for how, dev, gap, frame in frames]
        packets = self.recorded(name, places, lambda: (sh("ip", "netns", "exec", sender, sys.executable, "-c", SEND, COUNT, *lines, seconds=cache.patience()),
                                                       self.assertEqual(reader.p.wait(cache.patience()), 0)), sniffs)
        read = [int(n) for n in play.text_of(reader.stdout).split("\n")[1].split()]
        self.assertEqual(read, [COUNT] * len(frames))
        of_ports = [sum(p["dst_port"] == FIRST_PORT + n for p in packets) for n in range(len(frames))]
        self.assertEqual((of_ports, [p["verdict"] for p in packets if p["verdict"] not in ("delivered", "forwarded")]), (read, []))

    def test_each_frame_that_a_router_forwards_is_a_packet(self):
        link = self.link_address(self.r, "r0") + self.link_address(self.a, "a0")
        frames, port = [], FIRST_PORT
        for how in ("queue", "bypass"):
            for gap in (0, 500):
                for version, identification in ((4, 1), (4, 0), (6, 0)):
                    ends = ("10.97.1.1", "10.97.2.1") if version == 4 else ("fd97:1::1", "fd97:2::1")
                    frames.append((how, "a0", gap, link + struct.pack("!H", 0x800 if version == 4 else 0x86dd) + datagram(*ends, port, identification)))
                    port += 1
        for name, places in (("router", (self.r,)), ("all", (self.a, self.r, self.b)), ("receiver", (self.b,))):
            with self.subTest(name):
                self.generated(name, places, frames, self.a)

    def test_each_frame_of_the_recorders_own_capture_is_of_its_packet(self):
        """All of a capture are alike, so nothing but their times tells which is which; its clock is the recorder's. One identification, and none beside a filter."""
        link = self.link_address(self.r, "r0") + self.link_address(self.a, "a0") + b"\x08\x00"
        for identification in (0, 1):
            for how in ("queue", "bypass"):
                frames = [(how, "a0", 1000, link + datagram("10.97.1.1", "10.97.2.1", FIRST_PORT, identification))]
                name = f"{how}{identification}"
                with self.subTest(name):
                    self.generated(name, (self.r,), frames, self.a, (f"{self.r}:r0", f"{self.r}:r1"))
                    rows = json.loads(sh(self.kpat, "sql", self.store, "select capture_id, number, packet_id, confidence from association", "--json").stdout)
                    wrong = [x for x in rows if x["number"] != x["packet_id"]]
                    self.assertEqual((len(rows), wrong, [x for x in rows if x["confidence"] < 60]), (2 * COUNT, [], []))

    def test_each_frame_that_comes_in_by_a_tap_is_a_packet(self):
        if not os.path.exists("/dev/net/tun"):
            self.skipTest("no /dev/net/tun")
        sh("ip", "-n", self.b, "tuntap", "add", "t0", "mode", "tap")
        sh("ip", "-n", self.b, "addr", "add", "10.97.3.1/24", "dev", "t0")
        sh("ip", "-n", self.b, "link", "set", "t0", "up")
        link = self.link_address(self.b, "t0") + bytes.fromhex("020000000001") + b"\x08\x00"
        frames = [("tap", "t0", gap, link + datagram("10.97.3.2", "10.97.3.1", FIRST_PORT + 2 * (gap > 0) + identification, identification))
                  for gap in (0, 500) for identification in (0, 1)]
        self.generated("tap", (self.b,), frames, self.b)

    def test_a_datagram_that_goes_round_is_one_packet(self):
        count = 30
        sh("ip", "-n", self.r, "route", "add", "10.97.9.0/24", "via", "10.97.2.1")
        sh("ip", "netns", "exec", self.b, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        packets = self.recorded("loop", (self.r, self.b), lambda: sh("ip", "netns", "exec", self.a, sys.executable, "-c", LOOP, count, seconds=cache.patience()))
        discards = 0
        for ns in (self.r, self.b):
            lines = sh("ip", "netns", "exec", ns, "nstat", "-asz").stdout.splitlines()
            discards += next(int(line.split()[1]) for line in lines if line.startswith("IpInHdrErrors"))
        round_ = [p for p in packets if p["dst_port"] == 7399 and p["protocol"] == "UDP"]
        self.assertEqual((discards, len(round_)), (count, count))


if __name__ == "__main__":
    unittest.main()
