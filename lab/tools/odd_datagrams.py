#!/usr/bin/env python3
"""Datagrams that are sent and received in every way that Linux offers, each of its own size.

    odd_datagrams.py list                                          its cases
    odd_datagrams.py NS_A NS_B ADDR_A ADDR_B PORT GO CASE...       both ends in one process (a thread each)

Prints "ready", waits for the file GO, runs the cases, prints one line of JSON: by case its port, the sends (payload on the wire, thread, before, after,
bytes of the call) and the reads (payload, thread, before, after, bytes returned; payload -1: of a segment, which does not say). Moments are of the boot clock.
"""
import ctypes
import json
import select
import socket
import struct
import sys
import threading
import time
import traceback

from oddities import LIBC, Ring, inside, iovec, mmsghdr, now, wait_for

RAW = 253  # for experiments (RFC 3692)
UDP_CORK, UDP_SEGMENT, UDP_GRO, IP_RECVERR = 1, 103, 104, 11


class Case:
    def __init__(self):
        self.sends, self.reads, self.size, self.over = [], [], 100, False

    def next(self) -> bytes:
        self.size += 7
        return struct.pack(">I", self.size) + bytes(self.size - 4)

    def send(self, call, data: bytes | None = None, whole: int | None = None):
        data = self.next() if data is None else data
        before, tid = now(), threading.get_native_id()
        try:
            n = call(data)
        except OSError:
            return
        self.sends.append([len(data) if whole is None else whole, tid, before, now(), n])

    def read(self, call) -> bool:
        before, tid = now(), threading.get_native_id()
        try:
            data = call()
        except (TimeoutError, BlockingIOError, ConnectionRefusedError):
            return False
        if data is None:
            return False
        self.reads.append([(struct.unpack_from(">I", data)[0] or -1) if data else 0, tid, before, now(), len(data)])
        return True


def plain(c):
    for i in range(12):
        c.send(c.a.send)
        if i == 5:
            c.send(c.a.send, b"")  # also one without data


def drain(c):
    while not c.over or select.select([c.b], [], [], 0.2)[0]:
        if select.select([c.b], [], [], 0.05)[0]:
            c.read(lambda: c.b.recv(9000))


def unconnected(c):
    s = socket.socket(c.a.family, socket.SOCK_DGRAM)
    for _ in range(8):
        c.send(lambda d: s.sendto(d, c.to))
        s.close()
        s = socket.socket(c.a.family, socket.SOCK_DGRAM)  # each from a socket of its own: its first


def many(c):
    for _ in range(4):
        datas = [c.next() for _ in range(5)]
        bufs = [ctypes.create_string_buffer(d, len(d)) for d in datas]
        iovs = [iovec(ctypes.addressof(b), len(d)) for b, d in zip(bufs, datas)]
        them = (mmsghdr * 5)()
        for m, i in zip(them, iovs):
            m.hdr.iov, m.hdr.iovlen = ctypes.pointer(i), 1
        before = now()
        n = LIBC.sendmmsg(c.a.fileno(), them, 5, 0)
        for i in range(n):
            c.sends.append([len(datas[i]), threading.get_native_id(), before, now(), them[i].len])
        time.sleep(0.01)


def many_read(c):
    while not c.over or select.select([c.b], [], [], 0.2)[0]:
        if not select.select([c.b], [], [], 0.05)[0]:
            continue
        bufs = [ctypes.create_string_buffer(2000) for _ in range(4)]
        iovs = [iovec(ctypes.addressof(b), 2000) for b in bufs]
        them = (mmsghdr * 4)()
        for m, i in zip(them, iovs):
            m.hdr.iov, m.hdr.iovlen = ctypes.pointer(i), 1
        before = now()
        n = LIBC.recvmmsg(c.b.fileno(), them, 4, 0x40, None)
        for i in range(n):
            c.reads.append([struct.unpack_from(">I", bufs[i].raw)[0], threading.get_native_id(), before, now(), them[i].len])


def segments(c):
    """One call, one large packet, cut on its way or at the reader."""
    for k in range(6):
        c.size += 7
        data = struct.pack(">I", c.size * 5) + bytes(c.size * 5 - 4)
        c.send(lambda d: c.a.sendmsg([d], [(17, UDP_SEGMENT, struct.pack("H", c.size))]), data)
        time.sleep(0.01)


def mixed(c):
    """Single ones between: the parts of a large one, which is cut at the reader, are in the memory of those that were read before."""
    for k in range(40):
        c.send(c.a.send)
        c.size += 7
        data = struct.pack(">I", c.size * 5) + bytes(c.size * 5 - 4)
        c.send(lambda d: c.a.sendmsg([d], [(17, UDP_SEGMENT, struct.pack("H", c.size))]), data)


def segments_read(c):
    c.b.setsockopt(17, UDP_GRO, 1)
    drain(c)


def looked(c):
    for _ in range(10):
        c.send(c.a.send)
        time.sleep(0.003)


def looked_read(c):
    while not c.over or select.select([c.b], [], [], 0.2)[0]:
        if not select.select([c.b], [], [], 0.05)[0]:
            continue
        c.b.recv(10, socket.MSG_PEEK)
        c.b.recv(9000, socket.MSG_PEEK | socket.MSG_TRUNC)
        c.read(lambda: c.b.recv(20))
        if select.select([c.b], [], [], 0.05)[0]:  # its true size is returned, of which little is copied
            buf = ctypes.create_string_buffer(8)
            size = 0

            def call():
                nonlocal size
                size = LIBC.recv(c.b.fileno(), buf, 8, socket.MSG_TRUNC)
                return buf.raw
            c.read(call)
            c.reads[-1][4] = size


def corked(c):
    """Several calls, one datagram."""
    for i in range(6):
        d = c.next()
        if i % 2:
            c.send(lambda d: c.a.send(d, socket.MSG_MORE), d[:20], len(d))
            c.send(c.a.send, d[20:], len(d))
        else:
            c.a.setsockopt(17, UDP_CORK, 1)
            c.send(c.a.send, d[:50], len(d))
            c.send(c.a.send, d[50:], len(d))
            c.a.setsockopt(17, UDP_CORK, 0)
        time.sleep(0.005)
        c.send(c.a.send)


def nobody(c):
    """Nobody listens: the answers lie in the error queue."""
    s = socket.socket(c.a.family, socket.SOCK_DGRAM)
    s.setsockopt(41 if c.a.family == socket.AF_INET6 else 0, 25 if c.a.family == socket.AF_INET6 else IP_RECVERR, 1)
    s.connect((c.to[0], c.to[1] + 400))
    for _ in range(6):
        c.send(s.send)
        time.sleep(0.005)
        try:
            s.recvmsg(1000, 1000, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except OSError:
            pass
        try:
            s.recv(1000, socket.MSG_DONTWAIT)
        except OSError:
            pass
    c.sends = [x[:5] + [c.to[1] + 400] for x in c.sends]


def large(c):
    for _ in range(6):
        c.size += 7
        d = c.next() + bytes(6000)
        d = struct.pack(">I", len(d)) + d[4:]
        c.send(c.a.send, d)
        time.sleep(0.005)


def two_readers(c):
    other = threading.Thread(target=drain, args=(c,))
    other.start()

    def direct():
        c.b.settimeout(0.3)
        while not c.over:
            c.read(lambda: c.b.recv(9000))
    direct()
    other.join()


def burst(c):
    for _ in range(150):
        c.send(c.a.send)


def late(c):
    """The socket is too small, and read late; the rest is never read."""
    time.sleep(0.05)
    for _ in range(4):
        c.read(lambda: c.b.recv(9000))
    while not c.over:
        time.sleep(0.01)


def uring(c):
    ring = Ring()
    for i in range(10):
        c.send(lambda d: ring.run(26, c.a.fileno(), bytearray(d), len(d)))


def uring_read(c):
    ring, buf = Ring(), bytearray(5000)
    while not c.over or select.select([c.b], [], [], 0.2)[0]:
        if select.select([c.b], [], [], 0.05)[0]:
            c.read(lambda: bytes(buf[:ring.run(27, c.b.fileno(), buf, len(buf))]))


def back(c):
    """A socket that writes to itself."""
    c.b.connect(c.b.getsockname())
    for _ in range(8):
        c.send(c.b.send)
        c.read(lambda: c.b.recv(9000))


def shared(c):
    """Several sockets on a port: each datagram is one's."""
    for _ in range(30):
        s = socket.socket(c.a.family, socket.SOCK_DGRAM)
        c.send(lambda d: s.sendto(d, c.to))


def shared_read(c):
    while not c.over or select.select(c.those, [], [], 0.2)[0]:
        for s in select.select(c.those, [], [], 0.05)[0]:
            c.read(lambda: s.recv(9000))


def pings(c):
    """A ping socket: the other end's kernel answers, and this thread reads the answer."""
    s = socket.socket(c.a.family, socket.SOCK_DGRAM, 58 if c.a.family == socket.AF_INET6 else 1)
    s.settimeout(1)
    for i in range(20):
        d = bytes([128 if c.a.family == socket.AF_INET6 else 8, 0, 0, 0, 0, 0, 0, i]) + c.next()
        c.send(lambda d: s.sendto(d, (c.to[0], 0)), d)
        before, tid = now(), threading.get_native_id()
        data = s.recv(2000)
        c.reads.append([len(data), tid, before, now(), len(data)])


def raws(c):
    """Raw sockets of a protocol of their own; a second one at the reader gets a copy, and nobody reads it."""
    s = socket.socket(c.a.family, socket.SOCK_RAW, RAW)
    for _ in range(20):
        c.send(lambda d: s.sendto(d, (c.to[0], 0)))
        time.sleep(0.002)


def raws_read(c):
    header = 0 if c.a.family == socket.AF_INET6 else 20
    r = c.raw[0]
    while not c.over or select.select([r], [], [], 0.2)[0]:
        if select.select([r], [], [], 0.05)[0]:
            before, tid = now(), threading.get_native_id()
            data = r.recv(9000)
            c.reads.append([len(data) - header, tid, before, now(), len(data)])


def idle(c):
    while not c.over:
        time.sleep(0.01)


CASES = {"plain": (plain, drain), "unconnected": (unconnected, drain), "many": (many, many_read), "segments": (segments, drain), "mixed": (mixed, drain),
         "segments-gro": (segments, segments_read), "looked": (looked, looked_read), "corked": (corked, drain), "nobody": (nobody, idle),
         "large": (large, drain), "two-readers": (burst, two_readers), "late": (burst, late), "uring": (uring, uring_read), "itself": (back, idle),
         "shared": (shared, shared_read), "multicast": (looked, shared_read), "mapped": (plain, drain), "ping": (pings, idle), "raw": (raws, raws_read)}


def run(case: str, ns_a: str, ns_b: str, addr_a: str, addr_b: str, port: int) -> dict:
    c, wrong = Case(), []
    family = socket.AF_INET6 if ":" in addr_b else socket.AF_INET
    inside(ns_b)
    bind = addr_b
    c.mapped = case == "mapped"
    those = []
    for _ in range(3 if case in ("shared", "multicast") else 1):
        s = socket.socket(socket.AF_INET6 if c.mapped else family, socket.SOCK_DGRAM)
        if case in ("shared", "multicast"):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if case == "shared" else socket.SO_REUSEADDR, 1)
        if case == "late":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        s.bind(("" if case == "multicast" else "::ffff:" + bind if c.mapped else bind, port))
        if case == "multicast":
            s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.1.2.3") + socket.inet_aton(addr_b))
        those.append(s)
    c.those, c.b = those, those[0]
    c.raw = [socket.socket(family, socket.SOCK_RAW, RAW) for _ in range(2)] if case == "raw" else []
    inside(ns_a)
    c.to = ("239.1.2.3" if case == "multicast" else addr_b, port)
    c.a = socket.socket(family, socket.SOCK_DGRAM)
    if case == "multicast":
        c.a.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(addr_a))
    c.a.connect(c.to)

    def one(what):
        try:
            what(c)
        except Exception:
            wrong.append(traceback.format_exc())
    reader = threading.Thread(target=one, args=(CASES[case][1],))
    reader.start()
    one(CASES[case][0])
    time.sleep(0.1)
    c.over = True
    reader.join()
    for s in [c.a, *those, *c.raw]:
        s.close()
    return {"port": port, "wrong": wrong, "sends": c.sends, "reads": c.reads}


def main() -> int:
    if sys.argv[1:] == ["list"]:
        print(*CASES)
        return 0
    ns_a, ns_b, addr_a, addr_b, port, go, *cases = sys.argv[1:]
    print("ready", flush=True)
    wait_for(go)
    print(json.dumps({case: run(case, ns_a, ns_b, addr_a, addr_b, int(port) + i) for i, case in enumerate(cases)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
