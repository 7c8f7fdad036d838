"""Packets that become parts of others: fragments of a datagram that is put together, and segments that receive offload joins. The kernel frees them with the whole, each as
what is dropped is. Two hosts and a router between them, in namespaces; on this machine with tracepoints, and in guests with functions. Truth is what was answered, what each
kernel counts of fragments and segments sent again, and what netfilter dropped."""
import collections
import json
import os
import sys
import time
import unittest

from kpatlab import play
from tests.place import Inside, begun, integrated, linux_before, own, probed, sh

COUNT, BYTES = 20, 400_000
MODULES = "veth nf_tables nf_conntrack nft_ct"
# What came within 100 ms of the log's end is in flight.
JUST_COME_S = 0.3
DROPPING = """
table ip t {
 chain c { type filter hook forward priority 0; ct state new,established udp dport 7000 counter drop
 }
}
"""
SEND = f"""
import socket
s = socket.socket(type=socket.SOCK_DGRAM)
for n in range({COUNT}): s.sendto(b"x" * 3000, ("10.97.2.1", 7000))
"""
# What is little longer than a frame, as answers of DNS are, and what was read of it.
SMALL = f"""
import socket, time
s = socket.socket(type=socket.SOCK_DGRAM)
s.settimeout(30)
for n in range({COUNT}):
    s.sendto(b"x" * (1480 + 10 * n), ("10.97.2.1", 7002))
    s.recv(9)
"""
TAKE = """
import socket
s = socket.socket(type=socket.SOCK_DGRAM)
s.bind(("", 7002)); print("ready", flush=True)
while True:
    data, who = s.recvfrom(9000)
    s.sendto(b"%d" % len(data), who)
"""
STREAM = f"""
import socket, sys
if len(sys.argv) > 1:
    s = socket.create_connection((sys.argv[1], 7001))
    s.sendall(b"x" * {BYTES}); s.shutdown(1)
    while s.recv(65536): pass
else:
    t = socket.socket(); t.bind(("", 7001)); t.listen(1); print("ready", flush=True)
    c, _ = t.accept()
    while c.recv(65536): pass
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Merged(unittest.TestCase):
    def setUp(self):
        self.kpat = os.path.abspath(play.kpat_path())
        self.a, self.r, self.b = own(self, "merged", "arb")
        for ns, dev, at, router, net in ((self.a, "pa", 1, "ra", 1), (self.b, "pb", 1, "rb", 2)):
            sh("ip", "link", "add", dev, "netns", ns, "type", "veth", "peer", router, "netns", self.r)
            for where, name, host in ((ns, dev, at), (self.r, router, 254)):
                sh("ip", "-n", where, "link", "set", name, "up")
                sh("ip", "-n", where, "addr", "add", f"10.97.{net}.{host}/24", "dev", name)
                sh("ip", "-n", where, "addr", "add", f"fd97:{net}::{host}/64", "dev", name, "nodad")
            for family, via in (("-4", f"10.97.{net}.254"), ("-6", f"fd97:{net}::254")):
                sh("ip", "-n", ns, family, "route", "add", "default", "via", via)
        self.within(self.r, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        for there in ("10.97.2.1", "fd97:2::1"):
            self.within(self.a, "ping", "-c1", "-W5", there)

    def within(self, ns: str, *argv):
        return sh("ip", "netns", "exec", ns, *argv)

    def counted(self, what: str, *of: str) -> int:
        lines = [line for ns in of for line in self.within(ns, "nstat", "-asz").stdout.splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith(what))

    def recorded(self, name: str, filter: str, *argv) -> list[dict]:
        places = [word for ns in (self.a, self.r, self.b) for word in ("--netns", ns)]
        log, ready = self.dir / f"{name}.kbl", self.dir / f"{name}.ready"
        record = begun(self, f"record-{name}", [self.kpat, "record", "-o", str(log), *places, "-f", filter, *probed(), "--ready-file", str(ready)], lambda _: ready.exists())
        self.said = self.within(self.a, *argv).stdout
        time.sleep(JUST_COME_S)
        self.assertEqual(record.stop(), 0, play.text_of(record.stderr)[-500:])
        return json.loads(sh(self.kpat, "packets", integrated(self, log), "--json", "--limit", "0").stdout)["packets"]

    def fates(self, name: str, packets: list[dict]) -> dict:
        of = collections.Counter(p["verdict"] for p in packets)
        print(f"merged: {name}: {dict(of)}", flush=True)
        return of

    def test_what_was_put_together_was_not_dropped(self):
        of_6 = () if linux_before(6, 12) else (("ping6", "fd97:2::1", "ip6", "Ip6FragCreates"),)  # Linux 6.1 frees what it answers as if it dropped it, whole or not
        for name, there, filter, kind in (("ping4", "10.97.2.1", "icmp", "IpFragCreates"), *of_6):
            with self.subTest(name):
                before = self.counted(kind, self.a, self.b)
                packets = self.recorded(name, filter, "ping", "-c", COUNT, "-i", "0.02", "-s", "3000", there)
                self.assertIn(f" {COUNT} received", self.said)
                made = self.counted(kind, self.a, self.b) - before
                self.assertEqual(made, 6 * COUNT)
                of = self.fates(name, [p for p in packets if p["icmp_type"] not in range(130, 150)])
                self.assertFalse(of["dropped"])
                self.assertGreaterEqual(sum(of.values()), made)

    def test_what_was_put_together_and_dropped(self):
        rules = self.dir / "rules"
        rules.write_text(DROPPING)
        self.within(self.r, "nft", "-f", rules)
        packets = self.recorded("dropped", "ip", sys.executable, "-c", SEND)
        self.assertIn(f"packets {COUNT} ", self.within(self.r, "nft", "list", "ruleset").stdout)
        of = self.fates("dropped", [p for p in packets if p["protocol"] == "UDP"])
        self.assertEqual(of["dropped"], 3 * COUNT)

    def test_a_small_fragment_is_read_with_the_first(self):
        """The kernel copies it behind the first one, where that one's buffer has room, and frees it without a word; with a firewall of the router's that puts datagrams together, too."""
        begun(self, "take", ["ip", "netns", "exec", self.b, sys.executable, "-c", TAKE])
        for name, rules in (("small", ""), ("small, put together on the way", DROPPING.replace("drop", "accept"))):
            with self.subTest(name):
                if rules:
                    (self.dir / "rules").write_text(rules)
                    self.within(self.r, "nft", "-f", self.dir / "rules")
                before = self.counted("IpReasmOKs", self.b)
                packets = self.recorded(name.replace(", ", "-").replace(" ", "-"), "udp port 7002 or (ip[6:2] & 0x1fff != 0)", sys.executable, "-c", SMALL)
                self.assertEqual(self.counted("IpReasmOKs", self.b) - before, COUNT)
                sent = [p for p in packets if p["src_addr"] == "10.97.1.1"]
                of = self.fates(name, sent)
                self.assertGreaterEqual(sum(of.values()), 2 * COUNT)
                self.assertEqual(of["delivered"] + of["transformed"], sum(of.values()), [(p["len_bytes"], p["verdict"]) for p in sent])

    def test_what_receive_offload_joined_was_not_dropped(self):
        """The router's own segments are made of what it joined, and a device without scatter-gather has them in one piece each."""
        off = [word for what in ("tso", "gso", "sg", "tx") for word in (what, "off")]
        for ns, dev, how in ((self.a, "pa", off), (self.r, "ra", ["gro", "on"]), (self.r, "rb", off), (self.b, "pb", ["gro", "on"])):
            self.within(ns, "ethtool", "-K", dev, *how)
        begun(self, "stream", ["ip", "netns", "exec", self.b, sys.executable, "-c", STREAM])
        packets = self.recorded("offload", "tcp port 7001", sys.executable, "-c", STREAM, "10.97.2.1")
        again = self.counted("TcpRetransSegs", self.a, self.b)
        of = self.fates("offload", packets)
        self.assertLessEqual(of["dropped"], again)
        self.assertGreater(of["transformed"], 50)


class MergedInside(Inside):
    of, modules, detail, marked = "Merged", MODULES, "steps", "merged: "


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Merged61(MergedInside, unittest.TestCase):
    series = "6.1"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Merged612(MergedInside, unittest.TestCase):
    series = "6.12"


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class Merged72(MergedInside, unittest.TestCase):
    series = "7.2"


if __name__ == "__main__":
    unittest.main()
