"""Whom a packet's work is charged to where that is not one socket that is found at once: several readers of a multicast group, a sniffer beside the receiver,
a reader who holds its socket, a full socket, a TCP sender whose segments timers and tasklets send, or which goes on when the other end has closed. Truth is the programs' own
counts of what they took, and the devices'."""
import json
import os
import signal
import socket
import sys
import unittest

from tests import profile
from tests.place import linux_before, own, sh

GROUP = "239.1.1.1"
TAKE_GROUP = """
import os, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
s.bind(("", 9100))
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.1.1") + socket.inet_aton(sys.argv[1]))
print("ready", os.getpid(), flush=True)
n = 0
while s.recv(100) != b"end": n += 1
print("took", n, flush=True)
signal.pause()
"""
SEND_GROUP = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
for i in range(int(sys.argv[2])):
    s.sendto(b"x" * 64, ("239.1.1.1", 9100))
    if i % 20 == 19: time.sleep(0.001)
time.sleep(0.5)
for i in range(3): s.sendto(b"end", ("239.1.1.1", 9100))
"""
SNIFF = """
import os, signal, socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
s.bind((os.environ["DEV"], 0))
print("ready", os.getpid(), flush=True)
n = 0
while b"end" not in s.recv(200)[-8:]: n += 1
print("took", n, flush=True)
signal.pause()
"""
FULL = """
import os, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
s.bind(("", 9000))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", os.getpid(), flush=True)
signal.sigwait([signal.SIGUSR1])
s.settimeout(1)
n = 0
try:
    while True:
        s.recv(100)
        n += 1
except TimeoutError: pass
print("took", n, flush=True)
signal.pause()
"""
TCP_TAKE = """
import os, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(sys.argv[1]))
s.bind(("", 9001))
s.listen()
print("ready", os.getpid(), flush=True)
c, _ = s.accept()
n = 0
while True:
    got = len(c.recv(1 << 18))
    if not got: break
    n += got
print("took", n, flush=True)
signal.pause()
"""
TCP_SEND = """
import os, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(sys.argv[3]))
s.connect((sys.argv[1], 9001))
data = b"x" * (1 << 16)
for i in range(int(sys.argv[2])): s.sendall(data)
s.close()
print("sent", os.getpid(), flush=True)
signal.pause()
"""
# A program that has asked all that it will ask, and one that answers it.
HALF_TAKE = """
import signal, socket, sys
s = socket.create_connection((sys.argv[1], 9001))
s.shutdown(socket.SHUT_WR)
n = 0
while got := len(s.recv(1 << 18)): n += got
print("took", n, flush=True)
signal.pause()
"""
HALF_SEND = """
import os, signal, socket, sys, time
s = socket.create_server(("", 9001))
print("ready", os.getpid(), flush=True)
c, _ = s.accept()
while c.recv(100): pass
for i in range(int(sys.argv[1])):
    c.sendall(b"x" * (1 << 16))
    time.sleep(0.0005)
c.close()
signal.pause()
"""
PACKETS = 20_000


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Shared(profile.Place):
    def setUp(self):
        super().setUp()
        self.link(self.client, "c0", "10.95.1.2", self.server, "s0", "10.95.1.1")
        self.receive_on(self.server, "s0", profile.BURN_CPU)

    def missing(self, p: dict) -> int:
        """Packets that came while the kernel ran no programs."""
        return max(p["packets"]["received"] - p["packets"]["counted"], 0)

    def test_readers_of_a_group_share_its_packets(self):
        readers = [self.start(self.server, f"take{i}", profile.SEND_CPU, TAKE_GROUP, "10.95.1.1") for i in range(3)]
        pids = [self.text_of(r, "ready")[0] for r in readers]

        def load():
            self.start(self.client, "send", profile.SEND_CPU, SEND_GROUP, "10.95.1.2", PACKETS)
            return [self.text_of(r, "took")[0] for r in readers]

        took, p = self.profile("group", load)
        all_of = [self.of(p, pid) for pid in pids]
        served = [x["served_ns"] for x in all_of]
        print(f"shared: took {took}, charged with {[x['served_packets'] for x in all_of]} packets in {served} ns", file=sys.stderr, flush=True)
        for x, n in zip(all_of, took):
            self.assertLessEqual(x["served_packets"], n + 3)
            self.assertGreaterEqual(x["served_packets"], n - self.missing(p))
        self.assertLess(max(served), 1.3 * min(served), "each had the same packets")

    def test_a_sniffer_and_the_receiver_are_both_charged(self):
        take = self.start(self.server, "take", profile.SEND_CPU, profile.TAKE)
        os.environ["DEV"] = "s0"
        sniff = self.start(self.server, "sniff", profile.SEND_CPU, SNIFF)
        pids = [self.text_of(x, "ready")[0] for x in (take, sniff)]

        def load():
            self.start(self.client, "send", profile.SEND_CPU, profile.SEND, "10.95.1.1", PACKETS)
            return [self.text_of(x, "took")[0] for x in (take, sniff)]

        took, p = self.profile("sniffed", load)
        for what, pid, n in zip(("receiver", "sniffer"), pids, took):
            x = self.of(p, pid)
            print(f"shared: {what} took {n}, charged with {x['served_packets']} packets in {x['served_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)
            self.assertGreaterEqual(x["served_packets"], n - self.missing(p))
            self.assertLessEqual(x["served_packets"], n + 12, "what says the end, and neighbours' words to the sniffer")
            self.assertGreater(x["served_ns"], 0.2 * sum(self.of(p, q)["served_ns"] for q in pids))

    def test_segments_of_tcp_are_their_connections(self):
        self.segments(0)

    @unittest.skipUnless(os.path.exists("/proc/sys/net/mptcp/enabled"), "needs MPTCP")
    def test_segments_of_mptcp_are_their_connections(self):
        """Two connections of TCP below it, of which no process has either."""
        self.link(self.client, "c1", "10.95.2.2", self.server, "s1", "10.95.2.1")
        for ns in (self.client, self.server):
            sh("ip", "-n", ns, "mptcp", "limits", "set", "subflows", "2", "add_addr_accepted", "2")
        sh("ip", "-n", self.client, "mptcp", "endpoint", "add", "10.95.2.2", "dev", "c1", "subflow")
        self.segments(socket.IPPROTO_MPTCP)
        self.assertGreater(self.came("s1"), 3000 << 10, "both were used")

    def came(self, *devices: str) -> int:
        """Bytes that these devices of the server received, with link headers."""
        links = json.loads(sh("ip", "-n", self.server, "-s", "-j", "link").stdout)
        return sum(x["stats64"]["rx"]["bytes"] for x in links if x["ifname"] in devices or not devices and x["ifname"] != "lo")

    def segments(self, proto: int):
        take = self.start(self.server, "take", profile.SEND_CPU, TCP_TAKE, proto)
        receiver, = self.text_of(take, "ready")

        def load():
            send = self.start(self.client, "send", profile.SEND_CPU, TCP_SEND, "10.95.1.1", 3000, proto)
            sender, = self.text_of(send, "sent")
            return sender, self.text_of(take, "took")[0]

        before = self.came()
        (sender, took), p = self.profile("segments", load)
        came = self.came() - before
        x, y = self.of(p, receiver), self.of(p, sender)
        unknown, unread = (p["without_process"].get(of, {"packets": 0})["packets"] for of in ("unknown", "unread"))
        print(f"shared: took {took} bytes, charged with {x['served_bytes']} in {x['served_packets']} packets; the sender's {y['served_packets']}; of nobody known {unknown}, unread {unread}", file=sys.stderr, flush=True)
        self.assertLess(unread, 0.01 * (x["served_packets"] + y["served_packets"]) + 10)
        # Headers are in the packets' lengths.
        self.assertGreaterEqual(x["served_bytes"] + self.missing(p) * 65536, took)
        # MPTCP sends some bytes by both connections.
        self.assertLessEqual(x["served_bytes"], came)
        self.assertLess(came, 1.05 * took)
        self.assertGreater(y["served_packets"], 0)
        self.assertLess(unknown, 0.01 * (x["served_packets"] + y["served_packets"]) + 10)

    def test_dropped_packets_say_whose_they_would_have_been(self):
        if linux_before(6, 11):
            self.skipTest("kfree_skb has the socket since 6.11")
        take = self.start(self.server, "full", profile.SEND_CPU, FULL)
        pid, = self.text_of(take, "ready")
        fields = lambda: dict(zip(*(line.split()[1:] for line in sh("ip", "netns", "exec", self.server, "grep", "^Udp:", "/proc/net/snmp").stdout.splitlines())))
        dropped = lambda: int(fields()["RcvbufErrors"])

        def load():
            before = dropped()
            send = self.start(self.client, "send", profile.SEND_CPU, profile.SEND, "10.95.1.1", 5000)
            send.p.wait(60)
            lost = dropped() - before
            os.kill(pid, signal.SIGUSR1)
            return lost, self.text_of(take, "took")[0]

        (lost, took), p = self.profile("full", load)
        x = self.of(p, pid)
        print(f"shared: {lost} datagrams found the socket full by the kernel's count, by the profile {x['dropped_packets']}; took {took}, charged with {x['served_packets']}", file=sys.stderr, flush=True)
        self.assertGreater(lost, 0)
        self.assertLessEqual(x["dropped_packets"], lost)
        # The kernel gives a socket its number when it first delivers to it.
        self.assertGreaterEqual(x["dropped_packets"], lost - self.missing(p) - 1)
        self.assertLessEqual(x["served_packets"], took)

    def test_what_acknowledges_who_still_writes_is_its(self):
        """The other end has closed: TCP frees such acknowledgements as if it dropped them."""
        if linux_before(6, 11):
            self.skipTest("kfree_skb has the socket since 6.11")
        send = self.start(self.server, "half-send", profile.SEND_CPU, HALF_SEND, 400)
        pid, = self.text_of(send, "ready")
        came = lambda: json.loads(sh("ip", "-n", self.server, "-s", "-j", "link", "show", "s0").stdout)[0]["stats64"]["rx"]["packets"]

        def load():
            before = came()
            take = self.start(self.client, "half-take", profile.SEND_CPU, HALF_TAKE, "10.95.1.1")
            return self.text_of(take, "took")[0], came() - before

        (took, packets), p = self.profile("half", load)
        x = self.of(p, pid)
        print(f"shared: {packets} came to who writes, charged with {x['served_packets']}; dropped for it {x['dropped_packets']}", file=sys.stderr, flush=True)
        self.assertEqual(took, 400 << 16)
        self.assertGreaterEqual(x["served_packets"] + self.missing(p), 0.98 * packets)
        self.assertLess(x["dropped_packets"], 0.02 * packets)
