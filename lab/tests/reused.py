"""Buffers that are used again: what a datagram lay in becomes a message of netlink or of a unix socket, and no tracepoint reports that it was
freed. On this machine, with tracepoints. Truth is who the talker is: a process that never has a datagram."""
import json
import os
import sys
import time
import unittest

from kpatlab import cache, play
from tests.place import begun, joined, own, sh

PORT, COUNT = 7330, 1000
# What came within 100 ms of the log's end is in flight.
JUST_COME_S = 0.3
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
# A program at a tun that answers each datagram with the same, as a virtual machine or a tunnel may: addresses and ports exchanged, the identification kept.
MIRROR = """
import fcntl, os, struct, sys
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH", b"t0", 0x1001))
print("ready", flush=True)
while True:
    p = bytearray(os.read(tun, 4096))
    if p[0] >> 4 != 4 or p[9] != 17: continue
    p[12:16], p[16:20], p[20:22], p[22:24], p[26:28] = p[16:20], p[12:16], p[22:24], p[20:22], b"\\0\\0"
    os.write(tun, p)
"""
ASK = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, int(sys.argv[3]))
s.settimeout(0.5)
s.bind(("10.96.1.1", int(sys.argv[1]) + 1))
got = 0
for n in range(int(sys.argv[2])):
    s.sendto(b"n" * 100, ("10.96.1.9", int(sys.argv[1])))
    try: got += len(s.recv(4096)) > 0
    except TimeoutError: pass
print(got, flush=True)
"""
# Each of a length of its own, too long for the router's next link, or in two fragments; the answers are as long.
ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 0)
s.bind(("0.0.0.0", int(sys.argv[1])))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(4096)
    s.sendto(data, peer)
"""
LONG = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 10, 0)
s.settimeout(5)
for n in range(int(sys.argv[2])):
    s.sendto(b"n" * (1400 + n), ("10.96.3.2", int(sys.argv[1])))
    assert len(s.recv(4096)) == 1400 + n
"""

# Datagrams of one length with these identifications, by a raw socket.
NAMED = """
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
src, dst = sys.argv[1:3]
for n in range(int(sys.argv[4])):
    udp = struct.pack("!HHHH", 9, int(sys.argv[3]), 108, 0) + bytes(100)
    s.sendto(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 128, 1000 + n, 0, 64, 17, 0, socket.inet_aton(src), socket.inet_aton(dst)) + udp, (dst, 0))
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Reused(unittest.TestCase):
    def test_a_datagram_is_not_handled_by_who_talks_to_the_kernel(self):
        kpat = os.path.abspath(play.kpat_path())
        a, b = joined(self, "reused", "v0", "10.96.0.1", "10.96.0.2", os.environ.get("KPAT_KEEP_REUSED"))
        log, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        within = lambda name, ns, code, *more: begun(self, name, ["ip", "netns", "exec", ns, sys.executable, "-c", code, *map(str, more)])
        talker, reader = within("talk", b, TALK), within("read", b, READ, PORT, COUNT)
        record = begun(self, "record", [kpat, "record", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f", f"udp port {PORT}", "-o", str(log),
                                       "--ready-file", str(ready)], lambda _: ready.exists())
        sh("ip", "netns", "exec", a, sys.executable, "-c", SEND, PORT, COUNT, seconds=cache.patience())
        self.assertEqual(reader.p.wait(cache.patience()), 0)
        talker.stop()
        time.sleep(JUST_COME_S)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        sh(kpat, "integrate", log, "-o", out)
        rows = lambda query: json.loads(sh(kpat, "sql", out, query, "--json").stdout)
        # In an interrupt it may be the one that was running.
        of_talker = rows(f"select count(*) as n from call where ctx = 0 and pid = {talker.p.pid}")
        self.assertEqual((rows("select count(*) as n from packet where verdict = 1"), of_talker), ([{"n": COUNT}], [{"n": 0}]))

    def test_what_a_program_writes_to_a_tun_is_not_what_it_read_of_it(self):
        """The answers have the same headers but for the addresses, and often the same buffers. With the identification (IP_PMTUDISC_DONT) and without."""
        if not os.path.exists("/dev/net/tun"):
            self.skipTest("no /dev/net/tun")
        kpat = os.path.abspath(play.kpat_path())
        (a,) = own(self, "mirror", "a", os.environ.get("KPAT_KEEP_REUSED"))
        begun(self, "mirror", ["ip", "netns", "exec", a, sys.executable, "-c", MIRROR])
        sh("ip", "-n", a, "addr", "add", "10.96.1.1/24", "dev", "t0")
        sh("ip", "-n", a, "link", "set", "t0", "up")
        for named, fragments in (("with", 0), ("without", 2)):
            log, ready, out = self.dir / f"{named}.kbl", self.dir / f"{named}.ready", self.dir / f"{named}.kpat"
            record = begun(self, f"record-{named}", [kpat, "record", "--mechanism", "tracepoint", "--netns", a, "-f", f"udp port {PORT}", "-o", str(log),
                                                    "--ready-file", str(ready)], lambda _: ready.exists())
            asked = sh("ip", "netns", "exec", a, sys.executable, "-c", ASK, PORT, 200, fragments, seconds=cache.patience())
            time.sleep(JUST_COME_S)
            self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
            got = int(asked.stdout)
            self.assertGreater(got, 150)
            sh(kpat, "integrate", log, "-o", out)
            rows = lambda query: json.loads(sh(kpat, "sql", out, query, "--json").stdout)
            verdicts = {r["verdict"]: r["n"] for r in rows("select verdict, count(*) as n from packet group by 1")}
            sent = verdicts.pop(4, 0)
            # Beside other tests the kernel may leave out so many runs of a program that no verdict rests on what is missing.
            lost = rows("select coalesce(sum(count), 0) as n from loss")[0]["n"]
            self.assertEqual((sent, sum(verdicts.values())), (200, got), f"{named} identification: sent, and answers")
            self.assertTrue(lost or list(verdicts) == [1], f"{named} identification: {verdicts}, {lost} lost")

    def test_what_others_drop_is_not_what_was_received_here(self):
        """In namespaces that are not recorded datagrams with the same identifications and length are dropped, while those here lie in their socket."""
        kpat = os.path.abspath(play.kpat_path())
        a, b, c, d = own(self, "others", "abcd", os.environ.get("KPAT_KEEP_REUSED"))
        for x, y in ((a, b), (c, d)):
            sh("ip", "link", "add", "v0", "netns", x, "type", "veth", "peer", "name", "v0", "netns", y)
            for ns, host in ((x, 1), (y, 2)):
                sh("ip", "-n", ns, "addr", "add", f"10.96.5.{host}/24", "dev", "v0")
                sh("ip", "-n", ns, "link", "set", "v0", "up")
            sh("ip", "netns", "exec", x, "ping", "-qc", "1", "-W", "5", "10.96.5.2")
        log, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        lies = f'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20); s.bind(("", {PORT})); print("ready", flush=True); time.sleep(300)'
        begun(self, "lies", ["ip", "netns", "exec", b, sys.executable, "-c", lies])
        record = begun(self, "record", [kpat, "record", "--mechanism", "tracepoint", "--netns", a, "--netns", b, "-f", f"udp port {PORT}", "-o", str(log),
                                       "--ready-file", str(ready)], lambda _: ready.exists())
        for ns in (a, c):
            sh("ip", "netns", "exec", ns, sys.executable, "-c", NAMED, "10.96.5.1", "10.96.5.2", PORT, COUNT)
        time.sleep(JUST_COME_S)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        said = sh("ip", "netns", "exec", d, "nstat", "-asz").stdout
        self.assertGreaterEqual(int(next(line for line in said.splitlines() if line.startswith("UdpNoPorts")).split()[1]), COUNT, "they were dropped")
        sh(kpat, "integrate", log, "-o", out)
        rows = lambda query: json.loads(sh(kpat, "sql", out, query, "--json").stdout)
        self.assertEqual(rows("select verdict, count(*) as n from packet group by 1"), [{"verdict": 1, "n": COUNT}])

    def test_fragments_are_not_those_of_the_datagram_before(self):
        """A router cuts, the receiver puts together: what that frees, as no tracepoint reports, the router cuts the next one into. In both namespaces the devices have the same numbers."""
        kpat, count = os.path.abspath(play.kpat_path()), 50
        a, r, b = own(self, "fragments", "arb", os.environ.get("KPAT_KEEP_REUSED"))
        for x, dx, dr, net in ((a, "a0", "r0", 2), (b, "b0", "r1", 3)):
            sh("ip", "link", "add", dx, "netns", x, "type", "veth", "peer", dr, "netns", r)
            for ns, dev, host in ((x, dx, net - 1 if x == a else 2), (r, dr, 254)):
                sh("ip", "netns", "exec", ns, "sysctl", "-qw", f"net.ipv6.conf.{dev}.disable_ipv6=1")
                sh("ip", "-n", ns, "addr", "add", f"10.96.{net}.{host}/24", "dev", dev)
                sh("ip", "-n", ns, "link", "set", dev, "up", "mtu", "1500" if x == a else "1300")
            sh("ip", "-n", x, "route", "add", "default", "via", f"10.96.{net}.254")
        sh("ip", "netns", "exec", r, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        index = lambda ns, dev: json.loads(sh("ip", "-n", ns, "-j", "link", "show", dev).stdout)[0]["ifindex"]
        self.assertEqual({index(a, "a0"), index(r, "r0")}, {index(b, "b0")})
        log, ready, out = self.dir / "x.kbl", self.dir / "ready", self.dir / "x.kpat"
        begun(self, "echo", ["ip", "netns", "exec", b, sys.executable, "-c", ECHO, str(PORT)])
        places = [word for ns in (a, r, b) for word in ("--netns", ns)]
        record = begun(self, "record", [kpat, "record", "--mechanism", "tracepoint", *places, "-o", str(log), "--ready-file", str(ready)], lambda _: ready.exists())
        sh("ip", "netns", "exec", a, sys.executable, "-c", LONG, PORT, count, seconds=cache.patience())
        time.sleep(JUST_COME_S)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        made = {}
        for ns in (r, b):
            lines = sh("ip", "netns", "exec", ns, "nstat", "-asz").stdout.splitlines()
            made[ns] = next(int(line.split()[1]) for line in lines if line.startswith("IpFragCreates"))
        self.assertEqual(made, {r: 2 * count, b: 2 * count})
        sh(kpat, "integrate", log, "-o", out)
        rows = json.loads(sh(kpat, "packets", out, "--json", "--limit", "0").stdout)["packets"]
        # The datagram's own packet is its first fragment.
        lengths = lambda of: sorted(p["len_bytes"] for p in rows if p["protocol"] == "UDP" and p["src_addr"] == of)
        self.assertEqual(lengths("10.96.2.1"), sorted([1428 + n for n in range(count)] + [148 + n for n in range(count)]))
        self.assertEqual(lengths("10.96.3.2"), sorted([1300] * count + [148 + n for n in range(count)]))


if __name__ == "__main__":
    unittest.main()
