"""Whose the packets are that a device's poll hands up several at a time (receive offload, a device's own thread): all of them are seen before the first is a socket's. Truth is what
each receiver took, what the kernel says that no socket wanted, and what a router's device sent."""
import json
import os
import shutil
import sys
import unittest

from kpatlab.topology import wait_for
from tests import profile
from tests.place import sh

TAKE = """
import os, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("", int(sys.argv[1])))
print("ready", os.getpid(), flush=True)
n = 0
while s.recv(8000) != b"end": n += 1
print("took", n, flush=True)
signal.pause()
"""
# To several ports in turns, as fast as it goes; of a group that shares a port the kernel chooses one for each of the sender's sockets.
SEND = """
import os, random, socket, sys, time
to, count, size, ports = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(p) for p in sys.argv[4:]]
sockets = []
for i in range(8):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 32, 16 << 20)
    sockets.append(s)
data = b"x" * size
random.seed(7)
turns = [(sockets[random.randrange(8)], (to, random.choice(ports))) for i in range(1000)]
for i in range(count):
    s, where = turns[i % 1000]
    s.sendto(data, where)
    if i % 40 == 39: time.sleep(0.0005)
time.sleep(0.7)
# each socket of a group is reached by some sender
for i in range(64):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for p in ports:
        s.sendto(b"end", (to, p))
    time.sleep(0.001)
print("sent", count, flush=True)
time.sleep(1)
"""
PACKETS = 40_000
DEV = f"b{os.getpid() % 1000000}"  # a device's thread is called by it, in all namespaces


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
@unittest.skipUnless(shutil.which("ethtool"), "needs ethtool")
class Batches(profile.Place):
    def poll(self, ns: str, dev: str, threaded: bool, gro: bool, *peers: tuple[str, str]) -> None:
        """How a device's packets are received. Its thread runs when the sender, on the same CPU, does not: so there are several at a time."""
        # a veth whose peer leaves segmentation to it does not receive by polls
        for of, name in peers:
            sh("ip", "netns", "exec", of, "ethtool", "-K", name, "tso", "off", "gso", "off")
        sh("ip", "netns", "exec", ns, "ethtool", "-K", dev, "gro", "on" if gro else "off")
        if not threaded:
            return
        sh("ip", "netns", "exec", ns, "sh", "-c", f"echo 1 > /sys/class/net/{dev}/threaded")
        pid = sh("pgrep", f"^napi/{dev}-").stdout.split()
        self.assertEqual(len(pid), 1, "the device has a thread")
        sh("taskset", "-pc", 0, pid[0])
        sh("chrt", "-b", "-p", 0, pid[0])
        sh("renice", "-n", "-10", "-p", pid[0])

    def counter(self, ns: str, dev: str, way: str) -> int:
        return json.loads(sh("ip", "-n", ns, "-s", "-j", "link", "show", dev).stdout)[0]["stats64"][way]["packets"]

    def all_arrived(self) -> None:
        """What the client's device has sent."""
        where = next(ns for ns in (self.server, self.router) if sh("ip", "-n", ns, "link", "show", DEV, ok=False).returncode == 0)
        wait_for(lambda: self.counter(where, DEV, "rx") >= self.counter(self.client, "c0", "tx"), 60, "all have arrived")

    def no_ports(self, ns: str) -> int:
        lines = [line.split() for line in sh("ip", "netns", "exec", ns, "cat", "/proc/net/snmp").stdout.splitlines() if line.startswith("Udp:")]
        return int(dict(zip(*lines))["NoPorts"])

    def receivers(self, name: str, threaded: bool, gro: bool, ports=(9000, 9001), closed=(9002,), size: int = 64) -> None:
        self.link(self.client, "c0", "10.96.1.2", self.server, DEV, "10.96.1.1")
        self.poll(self.server, DEV, threaded, gro, (self.client, "c0"))
        sh("ip", "netns", "exec", self.client, "ping", "-nqc", "1", "10.96.1.1")
        takes = [self.start(self.server, f"take{i}", 1, TAKE, port) for i, port in enumerate(ports)]
        pids = [self.text_of(t, "ready")[0] for t in takes]
        before = self.no_ports(self.server)
        at_first = self.counter(self.server, DEV, "rx")

        def load():
            self.text_of(self.start(self.client, "send", 0, SEND, "10.96.1.1", PACKETS, size, *sorted({*ports, *closed})), "sent")
            self.all_arrived()
            return [self.text_of(t, "took")[0] for t in takes], self.counter(self.server, DEV, "rx") - at_first

        (took, received), p = self.profile(name, load)
        refused = self.no_ports(self.server) - before
        parts = -(-(size + 8) // 1480)
        none = p["without_process"]
        of = lambda what: none.get(what, {"packets": 0})["packets"]
        charged = [self.of(p, pid)["served_packets"] for pid in pids]
        print(f"batches: {name}: charged {charged}, they took {took} datagrams of {parts} packets; dropped {of('dropped')}, no port {refused}; unknown {of('unknown')} of {received}; {none}",
              file=sys.stderr, flush=True)
        both = p["packets"]
        unseen = max(both["received"] - both["counted"], 0)
        for ours, truth in zip(charged, took):
            self.assertLessEqual(ours, (truth + 200) * parts)
            self.assertGreaterEqual(ours, 0.99 * truth * parts - unseen)
        if closed:
            self.assertGreaterEqual(of("dropped"), 0.99 * refused - unseen)
        self.assertLess(of("unknown"), 0.01 * received)

    def test_by_a_devices_own_thread(self):
        self.receivers("threaded", True, True)

    def test_by_a_softirq_with_receive_offload(self):
        self.receivers("softirq", False, True)

    def test_one_by_one(self):
        self.receivers("one-by-one", False, False)

    def test_of_sockets_that_share_a_port(self):
        self.receivers("shared", True, True, (9000, 9000), ())

    def test_datagrams_in_fragments(self):
        self.receivers("fragments", True, True, size=4000)

    def test_fragments_one_by_one(self):
        self.receivers("fragments-one-by-one", False, False, size=4000)

    def test_ipv6(self):
        self.both_by_ipv6("ipv6", 64, True)

    def test_fragments_of_ipv6_one_by_one(self):
        self.both_by_ipv6("ipv6-fragments", 4000, False)

    def both_by_ipv6(self, name: str, size: int, together: bool) -> None:
        to = "fd00:96::1"
        self.link(self.client, "c0", "10.96.1.2", self.server, DEV, "10.96.1.1")
        self.poll(self.server, DEV, together, together, (self.client, "c0"))
        for ns, dev, address in ((self.client, "c0", "fd00:96::2"), (self.server, DEV, to)):
            sh("ip", "netns", "exec", ns, "sysctl", "-qw", f"net.ipv6.conf.{dev}.disable_ipv6=0")
            sh("ip", "-n", ns, "addr", "add", f"{address}/64", "dev", dev, "nodad")
        six = lambda code: code.replace("socket.AF_INET,", "socket.AF_INET6,")
        takes = [self.start(self.server, f"take{i}", 1, six(TAKE), port) for i, port in enumerate((9000, 9001))]
        took, unknown = self.both_take(name, takes, six(SEND), to, PACKETS // 2, size, 9000, 9001)
        self.assertLess(unknown, 0.01 * sum(took))

    def test_readers_of_a_group(self):
        """Each packet is for both, who share it."""
        self.link(self.client, "c0", "10.96.1.2", self.server, DEV, "10.96.1.1")
        self.poll(self.server, DEV, True, True, (self.client, "c0"))
        join = 's.setsockopt(0, 35, socket.inet_aton("239.1.2.3") + socket.inet_aton("10.96.1.1"))\nprint("ready"'
        takes = [self.start(self.server, f"take{i}", 1, TAKE.replace('print("ready"', join), 9000) for i in range(2)]
        sh("ip", "-n", self.client, "route", "add", "239.1.2.3", "dev", "c0")
        self.both_take("group", takes, SEND, "239.1.2.3", PACKETS // 2, 64, 9000)

    def both_take(self, name: str, takes: list, send: str, to: str, count: int, size: int, *ports) -> tuple[list[int], int]:
        """Two receivers are charged with what they took of what is sent to them: how many each took, and how many packets are nobody's."""
        pids = [self.text_of(t, "ready")[0] for t in takes]

        def load():
            self.text_of(self.start(self.client, "send", 0, send, to, count, size, *ports), "sent")
            self.all_arrived()
            return [self.text_of(t, "took")[0] for t in takes]

        took, p = self.profile(name, load)
        parts = -(-(size + 8) // 1448)
        charged = [self.of(p, pid)["served_packets"] for pid in pids]
        unknown = p["without_process"].get("unknown", {"packets": 0})["packets"]
        print(f"batches: {name}: charged {charged}, they took {took}; unknown {unknown}", file=sys.stderr, flush=True)
        unseen = max(p["packets"]["received"] - p["packets"]["counted"], 0)
        for ours, truth in zip(charged, took):
            self.assertLessEqual(ours, (truth + 200) * parts)
            self.assertGreaterEqual(ours, 0.99 * truth * parts - unseen)
        return took, unknown

    def test_forwarded_beside(self):
        self.link(self.client, "c0", "10.96.1.2", self.router, DEV, "10.96.1.1")
        self.link(self.server, "s0", "10.96.2.2", self.router, "r1", "10.96.2.1")
        sh("ip", "-n", self.client, "route", "add", "default", "via", "10.96.1.1")
        sh("ip", "-n", self.server, "route", "add", "default", "via", "10.96.2.1")
        sh("ip", "netns", "exec", self.router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.poll(self.router, DEV, True, True, (self.client, "c0"))
        self.poll(self.server, "s0", False, True, (self.router, "r1"))
        sh("ip", "netns", "exec", self.client, "ping", "-nqc", "2", "-i", "0.2", "10.96.2.2")
        local, far = self.start(self.router, "take-local", 1, TAKE, 9000), self.start(self.server, "take-far", 1, TAKE, 9000)
        pids = [self.text_of(t, "ready")[0] for t in (local, far)]

        def load():
            before = self.counter(self.router, "r1", "tx")
            here, there = (self.start(self.client, f"send-{to}", 0, SEND, to, PACKETS, 64, 9000) for to in ("10.96.1.1", "10.96.2.2"))
            for s in (here, there):
                self.text_of(s, "sent")
            self.all_arrived()
            return [self.text_of(t, "took")[0] for t in (local, far)], self.counter(self.router, "r1", "tx") - before

        (took, sent), p = self.profile("forwarded", load)
        none = p["without_process"]
        charged = [self.of(p, pid)["served_packets"] for pid in pids]
        print(f"batches: beside: charged {charged}, they took {took}; forwarded {none['forwarded']['packets']}, the device sent {sent}; {none}", file=sys.stderr, flush=True)
        unseen = max(p["packets"]["received"] - p["packets"]["counted"], 0)
        for ours, truth in zip(charged, took):
            self.assertLessEqual(ours, truth + 200)
            self.assertGreaterEqual(ours, 0.99 * truth - unseen)
        # The machine may forward others' beside.
        ours = sum(w["packets"] for w in p["forwarded"] if (w["from"], w["to"]) == (DEV, "r1"))
        self.assertLessEqual(ours, sent)
        self.assertGreaterEqual(ours, 0.99 * sent - unseen)
        self.assertLess(none.get("unknown", {"packets": 0})["packets"], 0.01 * (sum(took) + sent))


if __name__ == "__main__":
    unittest.main()
