"""What other holders do with copies of a packet is not what becomes of it. Sniffers that read, and free, clones of packets of which others go on in buffers of their own: where they wait for their next hop's address, are translated, routed to a
group, flooded. Each datagram, whose number is its length, is one packet with one fate, by what its readers took; of a stream there are as many packets as frames."""
import json
import os
import sys
import time
import unittest
from collections import Counter

from kpatlab import look, play
from kpatlab.cache import LAB
from tests.place import Inside, begun, integrated, own, probed, sh

COUNT, LEAST = 24, 100
MODULES = "veth bridge nf_tables nft_masq nft_chain_nat"
TOOL = [sys.executable, str(LAB / "tools/clones.py")]
# To where, how the sender's socket is: connected ones give what must not be cut an identification, others none.
FLOWS = {7001: ("10.99.0.1", True), 7002: ("10.99.0.1", False), 7003: ("fd99::1", True)}
SEND = f"""
import json, socket, sys
flows = {{}}
for port, (to, connected) in json.loads(sys.argv[1]).items():
    s = socket.socket(socket.AF_INET6 if ':' in to else socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('', int(port)))
    if connected: s.connect((to, 9000))
    flows[s] = (to, connected)
for n in range({COUNT}):
    for s, (to, connected) in flows.items():
        s.send(bytes({LEAST} + n)) if connected else s.sendto(bytes({LEAST} + n), (to, 9000))
"""
READ = """
import select, signal, socket, sys
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
all = []
for family, to in ((socket.AF_INET, '10.99.0.1'), (socket.AF_INET6, 'fd99::1')):
    s = socket.socket(family, socket.SOCK_DGRAM); s.bind((to, 9000)); all.append(s)
print('ready', flush=True)
while not over:
    for s in select.select(all, [], [], 0.1)[0]:
        data, peer = s.recvfrom(2000)
        print(peer[1], len(data), flush=True)
"""

# To one place, by one socket.
SEND_ONE = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(0, socket.IP_MULTICAST_TTL, 4)
s.bind(('', 7004))
for n in range({COUNT}):
    s.sendto(bytes({LEAST} + n), ('TO', 9002))
    time.sleep(0.002)
"""
TAKE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
SOCKET
print('ready', flush=True)
while True:
    print(len(s.recv(2000)), flush=True)
"""
SERVE = """
import signal, socket
s = socket.create_server(('10.99.0.1', 9001))
print('ready', flush=True)
c, n = s.accept()[0], 0
while d := c.recv(65536):
    n += len(d)
c.sendall(b'x' * 300000)
c.close()
print(n, flush=True)
signal.pause()
"""
ASK = """
import socket
s = socket.socket(); s.bind(('', 7005)); s.connect(('10.99.0.1', 9001))
for i in range(40):
    s.sendall(bytes(1000 * i + 1))
s.shutdown(socket.SHUT_WR)
while s.recv(65536): pass
"""
# include/uapi/linux/mroute.h: what comes by r0 from the sender for the group goes out by r1.
ROUTE_GROUP = """
import signal, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_IGMP)
INIT, ADD_VIF, ADD_MFC, BY_IFINDEX = 200, 202, 204, 8
s.setsockopt(0, INIT, struct.pack('i', 1))
for vif, dev in enumerate(('r0', 'r1')):
    s.setsockopt(0, ADD_VIF, struct.pack('HBBIi4x', vif, BY_IFINDEX, 1, 0, socket.if_nametoindex(dev)))
ttls = bytes([0, 1]) + bytes(30)
s.setsockopt(0, ADD_MFC, struct.pack('4s4sH32s2xIIIi', socket.inet_aton('10.1.0.1'), socket.inet_aton('239.1.1.1'), 0, ttls, 0, 0, 0, 0))
print('ready', flush=True)
signal.pause()
"""

# Reads the copy of each datagram that the kernel keeps for it with the time at which it was sent, as soon as it is there (linux/net_tstamp.h: by software; SCHED: at the queue).
STAMPED = f"""
import select, socket, time
SO_TIMESTAMPING, TX_SOFTWARE, SOFTWARE, TX_SCHED = 37, 1 << 1, 1 << 4, 1 << 8
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 7004))
s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TX_SOFTWARE | TX_SCHED | SOFTWARE)
stamps = 0
def take(until):
    global stamps
    while stamps < until:
        poll = select.poll(); poll.register(s, 0); poll.poll(300)
        s.recvmsg(4000, 1000, socket.MSG_ERRQUEUE)
        stamps += 1
for n in range({COUNT}):
    s.sendto(bytes({LEAST} + n), ('TO', 9002))
    take(2 * n + 2)
print(stamps, flush=True)
"""

# linux/net_tstamp.h: by software, without the data.
TOLD = f"""
import select, socket
SO_TIMESTAMPING, TX_SOFTWARE, SOFTWARE, TSONLY, SO_ZEROCOPY, MSG_ZEROCOPY = 37, 1 << 1, 1 << 4, 1 << 11, 60, 0x4000000
told = 0
for port, option, value, how in ((7007, SO_ZEROCOPY, 1, MSG_ZEROCOPY), (7008, SO_TIMESTAMPING, TX_SOFTWARE | SOFTWARE | TSONLY, 0)):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('', port))
    s.setsockopt(socket.SOL_SOCKET, option, value)
    for n in range({COUNT}):
        s.sendto(bytes({LEAST} + n), how, ('10.99.0.1', 9002))
        poll = select.poll(); poll.register(s, 0); poll.poll(3000)
        s.recvmsg(4000, 1000, socket.MSG_ERRQUEUE)
        told += 1
print(told, flush=True)
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Clones(unittest.TestCase):
    def setUp(self):
        self.a, self.r, self.b = own(self, "clones", "arb", os.environ.get("KPAT_KEEP_CLONES"))
        sh("ip", "-n", self.a, "link", "add", "a0", "type", "veth", "peer", "name", "r0", "netns", self.r)
        sh("ip", "-n", self.r, "link", "add", "r1", "type", "veth", "peer", "name", "b0", "netns", self.b)
        for ns, dev, net, host in ((self.a, "a0", 1, 1), (self.r, "r0", 1, 254), (self.r, "r1", 2, 254), (self.b, "b0", 2, 2)):
            sh("ip", "-n", ns, "addr", "add", f"10.{net}.0.{host}/24", "dev", dev)
            sh("ip", "-n", ns, "addr", "add", f"fd0{net}::{host}/64", "dev", dev, "nodad")
            for name in ("lo", dev):
                sh("ip", "-n", ns, "link", "set", name, "up")
        within = lambda ns, *argv: sh("ip", "netns", "exec", ns, *argv)
        within(self.r, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv4.neigh.r1.mcast_solicit=100",
               "net.ipv6.neigh.r1.mcast_solicit=100")
        for six, net in ((None, "10.99.0.0/24"), ("-6", "fd99::/64")):
            family = [six] if six else []
            there = ("10.1.0.254", "10.2.0.66", "10.2.0.254", "10.99.0.1/32") if not six else ("fd01::254", "fd02::66", "fd02::254", "fd99::1/128")
            sh("ip", *family, "-n", self.a, "route", "add", net, "via", there[0])
            # Nobody has this address, so nobody answers.
            sh("ip", *family, "-n", self.r, "route", "add", net, "via", there[1])
            sh("ip", *family, "-n", self.b, "route", "add", "default", "via", there[2])
            sh("ip", *family, "-n", self.b, "addr", "add", there[3], "dev", "lo", *(["nodad"] if six else []))
        within(self.a, "ping", "-c1", "-W2", "10.1.0.254")
        within(self.a, "ping", "-c1", "-W2", "fd01::254")
        self.places = [word for ns in (self.a, self.r, self.b) for word in ("--netns", ns)]
        self.mac = json.loads(sh("ip", "-n", self.b, "-j", "link", "show", "b0").stdout)[0]["address"]

    def sniffer(self, ns: str, *how: str) -> play.Process:
        return begun(self, f"sniffer-{ns[-1]}-{how[0]}", ["ip", "netns", "exec", ns, *TOOL, *how])

    @staticmethod
    def seen(sniffer: play.Process) -> dict[int, int]:
        sniffer.stop()
        return {int(port): n for port, n in json.loads(play.text_of(sniffer.stdout).splitlines()[-1]).items()}

    def record(self, *how: str) -> play.Process:
        ready = self.dir / "ready"
        return begun(self, "record", [os.path.abspath(play.kpat_path()), "record", *probed(), "--no-cost", *self.places, *how, "-o", str(self.dir / "x.kbl"),
                                      "--ready-file", str(ready)], lambda _: ready.exists())

    def packets(self, record: play.Process, which: str) -> list[dict]:
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        return json.loads(sh(play.kpat_path(), "packets", integrated(self, self.dir / "x.kbl"), "--json", "--limit", "0", which).stdout)["packets"]

    def waiting(self, *how) -> None:
        """`how`: words of the recording. Nobody has the sniffer for the receiver."""
        kpats = "--sniff" in how
        sniffer = None if kpats else self.sniffer(self.r, "r0")
        reader = begun(self, "reader", ["ip", "netns", "exec", self.b, sys.executable, "-c", READ])
        record = self.record(*how)
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", SEND, json.dumps(FLOWS))
        # Nothing tells when a sniffer is done with all that it has: long after each packet came.
        time.sleep(0.3)
        self.assertEqual(play.text_of(reader.stdout).splitlines(), ["ready"], "something came though nobody knows where to")
        sh("ip", "-n", self.r, "neigh", "replace", "10.2.0.66", "lladdr", self.mac, "dev", "r1", "nud", "permanent")
        sh("ip", "-6", "-n", self.r, "neigh", "replace", "fd02::66", "lladdr", self.mac, "dev", "r1", "nud", "permanent")
        took = lambda: [tuple(map(int, line.split())) for line in play.text_of(reader.stdout).splitlines()[1:]]
        reader.wait_ready(lambda: len(took()) >= COUNT * len(FLOWS), 20)
        packets = self.packets(record, "udp dst port 9000")
        if not kpats:
            self.assertEqual(self.seen(sniffer), {port: COUNT for port in FLOWS}, "the sniffer's own count")
        found: dict[tuple, list] = {}
        for p in packets:
            number = (p["src_port"], p["len_bytes"] - (48 if ":" in p["src_addr"] else 28))
            found.setdefault(number, []).append((p["verdict"], p["last_boot_ns"] - p["first_boot_ns"] > 0.3e9))
        wrong = {number: what for number, what in found.items() if what != [("delivered", True)]}
        missing = set(took()) - found.keys()
        print(f"clones: {' '.join(how)}: {len(found)} of {COUNT * len(FLOWS)} datagrams, {len(wrong)} wrong: {dict(Counter(number[0] for number in wrong))}", flush=True)
        self.assertEqual(wrong, {}, how)
        self.assertFalse(sniffer and {p["pid"] for p in packets} & {sniffer.p.pid}, "the sniffer is taken for who received")
        if "--sample" not in how:
            self.assertEqual(missing, set(), how)
        else:
            self.assertLess(abs(len(found) - COUNT * len(FLOWS) / 2), 4 * (COUNT * len(FLOWS) / 4) ** 0.5)

    def test_what_waits_is_one_packet(self):
        self.waiting()

    def test_with_a_filter(self):
        self.waiting("-f", "udp")

    def test_a_sample_of_packets(self):
        self.waiting("--sample", "1/2:packet")

    def test_beside_kpats_own_sniffer(self):
        self.waiting("--sniff", f"{self.r}:r0", "-f", "udp")

    def test_a_sample_beside_kpats_own_sniffer(self):
        self.waiting("--sniff", f"{self.r}:r0", "-f", "udp", "--sample", "1/2:packet")

    def one_each(self, packets: list[dict], took: Counter) -> None:
        """`took`: by length, what any reader had of COUNT datagrams."""
        found: dict[int, list] = {}
        for p in packets:
            found.setdefault(p["len_bytes"] - 28, []).append(p["verdict"])
        want = {LEAST + n: ["delivered" if took[LEAST + n] else "dropped"] for n in range(COUNT)}
        wrong = {n: (found.get(n), want.get(n)) for n in found.keys() | want.keys() if found.get(n) != want.get(n)}
        print(f"clones: {self.id().split('.')[-1]}: {len(packets)} packets for {COUNT} datagrams, {len(took)} taken, {len(wrong)} wrong", flush=True)
        self.assertEqual(wrong, {})

    def reader(self, ns: str, text: str) -> play.Process:
        return begun(self, f"reader-{ns[-1]}-{'raw' if 'RAW' in text else 'udp'}", ["ip", "netns", "exec", ns, sys.executable, "-c", TAKE.replace("SOCKET", text)])

    @staticmethod
    def took(*readers: play.Process) -> Counter:
        return Counter(int(line) for r in readers for line in play.text_of(r.stdout).splitlines()[1:])

    def test_a_translated_stream_has_as_many_packets_as_frames(self):
        """Also what is kept for the sender to repeat lies in the buffer that the sniffers' clones have."""
        sh("ip", "netns", "exec", self.r, "nft", "add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add rule ip n p oifname r1 masquerade")
        sh("ip", "-n", self.r, "neigh", "replace", "10.2.0.66", "lladdr", self.mac, "dev", "r1", "nud", "permanent")
        for ns, dev in ((self.r, "r0"), (self.r, "r1"), (self.a, "a0"), (self.b, "b0")):
            sh("ip", "netns", "exec", ns, "ethtool", "-K", dev, "gro", "off")
        sniffers = [self.sniffer(ns, dev) for ns, dev in ((self.a, "a0"), (self.r, "r0"), (self.r, "r1"), (self.b, "b0"))]
        server = begun(self, "server", ["ip", "netns", "exec", self.b, sys.executable, "-c", SERVE])
        record = self.record()
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", ASK)
        server.wait_ready(lambda: len(play.text_of(server.stdout).splitlines()) > 1, 20)
        time.sleep(0.3)
        packets = Counter(p["src_port"] for p in self.packets(record, "tcp"))
        seen = [self.seen(s) for s in sniffers]
        again = sum(int(line.split()[1]) for ns in (self.a, self.b) for line in
                    sh("ip", "netns", "exec", ns, "nstat", "-asz", "TcpRetransSegs").stdout.splitlines() if line.startswith("TcpRetransSegs"))
        print(f"clones: packets {dict(packets)}, frames {seen}, sent again {again}", flush=True)
        self.assertTrue(all(s == seen[0] for s in seen) and set(seen[0]) == {7005, 9001}, seen)
        if again:
            self.skipTest("segments were sent again, which are the same packets")
        self.assertEqual(packets, seen[0])

    def test_what_is_routed_to_a_group(self):
        """A member at the router itself, which reads late, one behind it, and one that goes in between."""
        sh("ip", "-n", self.a, "route", "add", "239.0.0.0/8", "dev", "a0")
        begun(self, "routes", ["ip", "netns", "exec", self.r, sys.executable, "-c", ROUTE_GROUP])
        sniffers = [self.sniffer(ns, *how) for ns, how in ((self.a, ("a0",)), (self.r, ("r0",)), (self.r, ("r1", "slow")), (self.b, ("b0", "never")))]
        member = "s.setsockopt(0, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.1.1.1') + socket.inet_aton('%s')); s.bind(('239.1.1.1', 9002))"
        readers = [self.reader(ns, member % at) for ns, at in ((self.r, "10.1.0.254"), (self.b, "10.2.0.2"))]
        record = self.record()
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", SEND_ONE.replace("TO", "239.1.1.1"))
        readers[-1].wait_ready(lambda: len(self.took(readers[-1])) == COUNT, 20)
        readers[0].wait_ready(lambda: len(self.took(readers[0])) == COUNT, 20)
        time.sleep(0.3)
        self.one_each(self.packets(record, "udp dst port 9002"), self.took(*readers))
        self.assertEqual([self.seen(s) for s in sniffers[:3]], [{7004: COUNT}] * 3)

    def test_what_no_socket_takes_is_dropped_whoever_sniffs(self):
        for how in ((self.a, "a0"), (self.r, "r0", "slow"), (self.r, "r1"), (self.b, "b0"), (self.b, "any", "slow"), (self.b, "b0", "never", "1.5")):
            self.sniffer(*how)
        self.to_b()

    def test_what_a_raw_socket_has_too_is_delivered_whoever_sniffs(self):
        self.sniffer(self.b, "b0")
        self.sniffer(self.r, "r0", "slow")
        self.reader(self.b, "s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 17)")
        self.to_b(self.reader(self.b, "s.bind(('10.99.0.1', 9002))"))

    def to_b(self, *readers: play.Process) -> None:
        sh("ip", "-n", self.r, "neigh", "replace", "10.2.0.66", "lladdr", self.mac, "dev", "r1", "nud", "permanent")
        record = self.record()
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", SEND_ONE.replace("TO", "10.99.0.1"))
        time.sleep(2)
        self.one_each(self.packets(record, "udp dst port 9002"), self.took(*readers))

    def test_what_a_bridge_floods(self):
        """Each port's copy is sniffed, and one host takes it."""
        ns = f"{self.r}s"
        sh("ip", "netns", "add", ns)
        self.stack.callback(sh, "ip", "netns", "del", ns, ok=False)
        sh("ip", "-n", ns, "link", "add", "br0", "type", "bridge", "ageing_time", "0")
        sh("ip", "-n", ns, "link", "set", "br0", "up")
        for at, dev, host in ((self.a, "f0", 1), (self.b, "f1", 2), (self.r, "f2", 3)):
            sh("ip", "-n", at, "link", "add", dev, "type", "veth", "peer", "name", f"p{host}", "netns", ns)
            sh("ip", "-n", at, "addr", "add", f"10.5.0.{host}/24", "dev", dev)
            sh("ip", "-n", at, "link", "set", dev, "up")
            sh("ip", "-n", ns, "link", "set", f"p{host}", "master", "br0", "up")
        self.places += ["--netns", ns]
        for how in ((ns, "p1"), (ns, "p2"), (ns, "p3", "slow"), (ns, "br0"), (self.r, "f2"), (self.b, "f1"), (self.a, "f0", "never")):
            self.sniffer(*how)
        reader = self.reader(self.b, "s.bind(('10.5.0.2', 9002))")
        record = self.record()
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", SEND_ONE.replace("TO", "10.5.0.2"))
        reader.wait_ready(lambda: len(self.took(reader)) == COUNT, 20)
        time.sleep(0.3)
        self.one_each(self.packets(record, "udp dst port 9002"), self.took(reader))

    def test_what_waited_in_a_tunnels_queue_is_one_packet(self):
        """For the tunnel's headers it gets a buffer of its own, as the sniffer of the tunnel has the one in which it waited."""
        sh("ip", "-n", self.a, "route", "add", "10.2.0.0/24", "via", "10.1.0.254")
        for n, (ns, near, far) in enumerate(((self.a, "10.1.0.1", "10.2.0.2"), (self.b, "10.2.0.2", "10.1.0.1")), 1):
            sh("ip", "-n", ns, "link", "add", "t0", "type", "vxlan", "id", "7", "dstport", "4789", "local", near, "remote", far)
            sh("ip", "-n", ns, "addr", "add", f"10.6.0.{n}/24", "dev", "t0")
            sh("ip", "-n", ns, "link", "set", "t0", "up")
        sh("ip", "netns", "exec", self.a, "ping", "-c1", "-W2", "10.6.0.2")
        sh("tc", "-n", self.a, "qdisc", "add", "dev", "t0", "root", "tbf", "rate", "100kbit", "burst", "1600", "latency", "10s")
        for how in ((self.a, "t0"), (self.r, "r0", "slow"), (self.b, "any")):
            self.sniffer(*how)
        reader = self.reader(self.b, "s.bind(('10.6.0.2', 9002))")
        record = self.record()
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", SEND_ONE.replace("TO", "10.6.0.2").replace("time.sleep(0.002)", "pass"))
        reader.wait_ready(lambda: len(self.took(reader)) == COUNT, 20)
        time.sleep(0.3)
        packets = self.packets(record, "udp dst port 9002")
        self.one_each(packets, self.took(reader))
        waited = [p["last_boot_ns"] - p["first_boot_ns"] for p in packets]
        self.assertGreater(max(waited), 50e6, "none waited")

    def test_who_reads_when_it_sent_is_no_reader(self):
        """What waits on for its neighbour, and what nobody takes."""
        record = self.record()
        ran = sh("ip", "netns", "exec", self.a, sys.executable, "-c", STAMPED.replace("TO", "10.99.0.1"))
        self.assertEqual(ran.stdout.split(), [str(2 * COUNT)])
        time.sleep(0.3)
        sh("ip", "-n", self.r, "neigh", "replace", "10.2.0.66", "lladdr", self.mac, "dev", "r1", "nud", "permanent")
        time.sleep(0.5)
        self.one_each(self.packets(record, "udp dst port 9002"), Counter())

    def test_who_reads_when_it_sent_beside_a_reader(self):
        reader = self.reader(self.b, "s.bind(('10.99.0.1', 9002))")
        record = self.record()
        sh("ip", "netns", "exec", self.a, sys.executable, "-c", STAMPED.replace("TO", "10.99.0.1"))
        time.sleep(0.3)
        sh("ip", "-n", self.r, "neigh", "replace", "10.2.0.66", "lladdr", self.mac, "dev", "r1", "nud", "permanent")
        reader.wait_ready(lambda: len(self.took(reader)) == COUNT, 20)
        time.sleep(0.3)
        packets = self.packets(record, "udp dst port 9002")
        self.one_each(packets, self.took(reader))
        self.assertEqual([p["packet_id"] for p in packets if p["last_boot_ns"] - p["first_boot_ns"] < 0.3e9], [])

    def test_what_tells_a_sender_of_its_data_is_no_packet(self):
        """That it was sent (MSG_ZEROCOPY), and when, without its data: from the queue of errors, where no headers are."""
        sh("ip", "-n", self.r, "neigh", "replace", "10.2.0.66", "lladdr", self.mac, "dev", "r1", "nud", "permanent")
        record = self.record()
        ran = sh("ip", "netns", "exec", self.a, sys.executable, "-c", TOLD)
        self.assertEqual(ran.stdout.split(), [str(2 * COUNT)], "told of each")
        time.sleep(0.3)
        packets = self.packets(record, "")
        self.assertEqual([(p["packet_id"], p["process"]) for p in packets if p["protocol"] == "?"], [])
        self.assertEqual(Counter(p["src_port"] for p in packets if p["protocol"] == "UDP"), {7007: COUNT, 7008: COUNT})


class ClonesInside(Inside):
    of, modules, marked = "Clones", MODULES, "clones:"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Clones61(ClonesInside, unittest.TestCase):
    series, detail = "6.1", "steps"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Clones612(ClonesInside, unittest.TestCase):
    series, detail = "6.12", "spine"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Clones72(ClonesInside, unittest.TestCase):
    series, detail = "7.2", "full"
