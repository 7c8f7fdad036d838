"""Whose the packets are that a process receives in its own calls, where softirqs come upon it at any time: one that writes to a tun device as fast as it goes, on the CPU that
another program's datagrams are handed to. Truth is what the readers took."""
import os
import sys
import unittest

from tests import profile

TAKE = """
import os, signal, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)
s.bind(("", int(sys.argv[1])))
print("ready", os.getpid(), flush=True)
n = 0
while s.recv(100) != b"end": n += 1
print("took", n, flush=True)
signal.pause()
"""
# Its own datagrams, as if they came from the other side of the device.
WRITE = """
import fcntl, os, struct, subprocess, sys, time
f = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(f, 0x400454CA, struct.pack("16sH22x", b"t0", 0x1001))
subprocess.run(["ip", "addr", "add", "10.97.0.1/24", "dev", "t0"], check=True)
subprocess.run(["ip", "link", "set", "t0", "up"], check=True)
def packet(data):
    head = [0x4500, 28 + len(data), 0, 0, 0x4011, 0, 0x0a61, 2, 0x0a61, 1]
    total = sum(head)
    total = (total >> 16) + (total & 0xffff)
    head[5] = ~total & 0xffff
    return struct.pack("!14H", *head, 5000, int(sys.argv[1]), 8 + len(data), 0) + data
p = packet(b"x" * 20)
until = time.monotonic() + float(sys.argv[2])
n = 0
while time.monotonic() < until:
    for _ in range(50): os.write(f, p)
    n += 50
time.sleep(0.5)
for i in range(3): os.write(f, packet(b"end"))
print("sent", n, flush=True)
time.sleep(30)
"""
SEND = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect((sys.argv[1], 9001))
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    s.send(b"y" * 64)
    for _ in range(300): pass
time.sleep(0.5)
for i in range(3): s.send(b"end")
"""
SECONDS = 6


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Interrupted(profile.Place):
    def test_a_packet_is_charged_once_whenever_a_softirq_comes(self):
        self.link(self.client, "c0", "10.96.1.2", self.server, "s0", "10.96.1.1")
        self.receive_on(self.server, "s0", 0)
        takes = [self.start(self.server, f"take{port}", 1, TAKE, port) for port in (9000, 9001)]
        pids = [self.text_of(t, "ready")[0] for t in takes]

        def load():
            self.start(self.server, "write", 0, WRITE, 9000, SECONDS)
            self.start(self.client, "send", 1, SEND, "10.96.1.1", SECONDS)
            return [self.text_of(t, "took")[0] for t in takes]

        took, p = self.profile("interrupted", load)
        charged = [self.of(p, pid)["served_packets"] for pid in pids]
        print(f"interrupted: charged {charged}, they took {took}; {p['without_process']}; {p['packets']}", file=sys.stderr, flush=True)
        missing = max(p["packets"]["received"] - p["packets"]["counted"], 0)
        for ours, truth in zip(charged, took):
            self.assertLessEqual(ours, truth + 3)
            self.assertGreaterEqual(ours, truth - missing)
