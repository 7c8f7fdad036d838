#!/usr/bin/env python3
"""TCP connections that are used in every way that Linux offers, each byte of which says in which call it was written.

    oddities.py list                                          its cases
    oddities.py NS_A NS_B ADDR_A ADDR_B PORT GO CASE...       both ends in one process (a thread each), in two namespaces (-: where it is)

Each byte of a stream is the number of its write, from 1 to 255 and from 1 again. Prints "ready" when the connections of the cases that begin before a
recording (`early`) are there, waits for the file GO, runs the cases, prints one line of JSON: by case the ports of the connection, and of each direction the writes
(number, thread, before, after, bytes) and the reads (thread, before, after, bytes, the numbers read as [number, bytes] in order, and where in the
stream it began if that is no matter of order); reads that no call made have thread 0. Moments are of the boot clock.
"""
import ctypes
import itertools
import json
import mmap
import os
import select
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback

from sockmap import OF, Sockmap

LIBC = ctypes.CDLL(None, use_errno=True)
MSG_ZEROCOPY, SO_ZEROCOPY, TCP_FASTOPEN_CONNECT = 0x4000000, 60, 30
MPTCP = 262


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(iovec)), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]


class mmsghdr(ctypes.Structure):
    _fields_ = [("hdr", msghdr), ("len", ctypes.c_uint)]


class Ring:
    """io_uring with one entry under way at a time."""

    def __init__(self, flags: int = 0):
        p = bytearray(120)
        struct.pack_into("<I", p, 8, flags)
        buf = (ctypes.c_char * 120).from_buffer(p)
        self.fd = LIBC.syscall(425, 8, buf)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        so = struct.unpack_from("<8I", p, 40)
        co = struct.unpack_from("<8I", p, 80)
        self.sq = mmap.mmap(self.fd, so[6] + 8 * 4, offset=0)
        self.cq = mmap.mmap(self.fd, co[5] + 16 * 16, offset=0x8000000)
        self.sqes = mmap.mmap(self.fd, 8 * 64, offset=0x10000000)
        self.sq_tail, self.sq_mask, self.sq_array = so[1], so[2], so[6]
        self.cq_head, self.cq_mask, self.cqes = co[0], co[2], co[5]

    def run(self, op: int, fd: int, buf, length: int, flags: int = 0) -> int:
        addr = ctypes.addressof(ctypes.c_char.from_buffer(buf))
        tail = struct.unpack_from("<I", self.sq, self.sq_tail)[0]
        i = tail & struct.unpack_from("<I", self.sq, self.sq_mask)[0]
        self.sqes[64 * i:64 * i + 64] = struct.pack("<BBHiQQIIQ", op, flags, 0, fd, 0, addr, length, 0, 1) + bytes(24)
        struct.pack_into("<I", self.sq, self.sq_array + 4 * i, i)
        struct.pack_into("<I", self.sq, self.sq_tail, tail + 1)
        if LIBC.syscall(426, self.fd, 1, 1, 1, None, 0) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        head = struct.unpack_from("<I", self.cq, self.cq_head)[0]
        at = self.cqes + 16 * (head & struct.unpack_from("<I", self.cq, self.cq_mask)[0])
        res = struct.unpack_from("<i", self.cq, at + 8)[0]
        struct.pack_into("<I", self.cq, self.cq_head, head + 1)
        if res < 0:
            raise OSError(-res, os.strerror(-res))
        return res


def runs(data: bytes) -> list[list[int]]:
    """A stretch of a stream as [number, bytes]."""
    return [[n, len(list(same))] for n, same in itertools.groupby(data)]


class Way:
    """One direction of a connection: what was written into it and read out of it."""

    def __init__(self):
        self.writes, self.reads, self.next, self.lock = [], [], 0, threading.Lock()

    def number(self) -> int:
        with self.lock:
            self.next = self.next % 255 + 1
            return self.next

    def write(self, size: int, call) -> int:
        """`call` gets the bytes and returns how many were taken."""
        n = self.number()
        data = bytes([n]) * size
        before, tid = now(), threading.get_native_id()
        try:
            taken = call(data)
        except OSError as e:
            taken = -e.errno
        self.writes.append([n, tid, before, now(), taken])
        return taken

    def all(self, sizes, call):
        for size in sizes:
            left = size
            while left > 0:
                taken = self.write(left, call)
                if taken < 0:
                    return
                left -= taken

    def read(self, call, seen: bool = True, where=lambda data: None) -> bytes:
        before, tid = now(), threading.get_native_id()
        data = call()
        if data:
            self.reads.append([tid if seen else 0, before, now(), len(data), runs(data), where(data)])
        return data

    def drain(self, call):
        while self.read(call):
            pass


SIZES = [2, 600, 1448, 9000, 40000, 100, 70000, 2000]


def plain(c):
    c.up.all(SIZES, c.a.send)


def drain(c):
    c.up.drain(lambda: c.b.recv(6000))


def vectors(c):
    c.up.all(SIZES, lambda d: c.a.sendmsg([d[:len(d) // 4 * 2], d[len(d) // 4 * 2:]]))


def vectors_read(c):
    one, two = bytearray(500), bytearray(3500)

    def read():
        n = c.b.recvmsg_into([one, two])[0]
        return bytes(one[:n]) + bytes(two[:max(0, n - 500)])
    c.up.drain(read)


def writev(c):
    c.up.all(SIZES, lambda d: os.writev(c.a.fileno(), [d[:len(d) // 4 * 2], d[len(d) // 4 * 2:]]))


def readv(c):
    one = bytearray(4000)
    c.up.drain(lambda: bytes(one[:os.readv(c.b.fileno(), [one])]))


def messages(c):
    """sendmmsg: each message a write of its own, one moment for all."""
    for _ in range(3):
        sizes = [400, 6000, 1000, 2]
        numbers = [c.up.number() for _ in sizes]
        datas = [bytes([n]) * s for n, s in zip(numbers, sizes)]
        bufs = [ctypes.create_string_buffer(d, len(d)) for d in datas]
        iovs = [iovec(ctypes.addressof(b), len(d)) for b, d in zip(bufs, datas)]
        many = (mmsghdr * len(sizes))()
        for m, i in zip(many, iovs):
            m.hdr.iov, m.hdr.iovlen = ctypes.pointer(i), 1
        before = now()
        n = LIBC.sendmmsg(c.a.fileno(), many, len(sizes), 0)
        for i in range(n):
            c.up.writes.append([numbers[i], threading.get_native_id(), before, now(), many[i].len])


def messages_read(c):
    while True:
        bufs = [ctypes.create_string_buffer(1000) for _ in range(4)]
        iovs = [iovec(ctypes.addressof(b), 1000) for b in bufs]
        many = (mmsghdr * 4)()
        for m, i in zip(many, iovs):
            m.hdr.iov, m.hdr.iovlen = ctypes.pointer(i), 1
        before = now()
        n = LIBC.recvmmsg(c.b.fileno(), many, 4, 0x10000, None)  # MSG_WAITFORONE
        for i in range(n):
            if many[i].len:
                data = bufs[i].raw[:many[i].len]
                c.up.reads.append([threading.get_native_id(), before, now(), len(data), runs(data), None])
        if n <= 0 or many[n - 1].len == 0:
            return


def sendfile(c):
    for size in SIZES:
        def call(d):
            with tempfile.TemporaryFile() as f:
                f.write(d)
                f.flush()
                return os.sendfile(c.a.fileno(), f.fileno(), 0, len(d))
        c.up.write(size, call)


def splice(c):
    r, w = os.pipe()
    for size in [2, 600, 9000, 40000]:
        def call(d):
            os.write(w, d)
            done = 0
            while done < len(d):
                done += LIBC.splice(r, None, c.a.fileno(), None, ctypes.c_size_t(len(d) - done), 0)
            return done
        c.up.write(size, call)


def splice_read(c):
    r, w = os.pipe()
    while True:
        def call():
            n = LIBC.splice(c.b.fileno(), None, w, None, ctypes.c_size_t(4096), 0)
            return os.read(r, n) if n > 0 else b""
        if not c.up.read(call, False):
            return
        if not c.up.read(lambda: c.b.recv(3000)):
            return


def spliced_write(c):
    c.up.all([3000, 40000], c.a.send)
    time.sleep(0.1)


def spliced_read(c):
    """One call, and then none."""
    c.up.read(lambda: c.b.recv(1000))
    r, w = os.pipe()

    def call():
        n = LIBC.splice(c.b.fileno(), None, w, None, ctypes.c_size_t(4096), 0)
        return os.read(r, n) if n > 0 else b""
    while c.up.read(call, False):
        pass


def zerocopy(c):
    c.a.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    for size in SIZES:
        c.up.all([size], lambda d: c.a.send(d, MSG_ZEROCOPY))
        try:
            c.a.recvmsg(100, 1000, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass


def stamped(c):
    """The error queue has stamps with data of the socket's own: no read."""
    c.a.setsockopt(socket.SOL_SOCKET, 37, 1 << 1 | 1 << 4 | 1 << 9)  # SO_TIMESTAMPING: TX_SOFTWARE, SOFTWARE, TX_ACK
    answers = threading.Thread(target=lambda: c.down.drain(lambda: c.a.recv(300)))
    answers.start()
    for size in SIZES:
        c.up.all([size], c.a.send)
        time.sleep(0.01)
        for _ in range(4):
            try:
                c.a.recvmsg(100000, 1000, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
    c.a.shutdown(socket.SHUT_WR)
    answers.join()


def stamped_read(c):
    while c.up.read(lambda: c.b.recv(6000)):
        c.down.all([200], c.b.send)
    c.b.shutdown(socket.SHUT_WR)


def uring(c):
    ring = Ring()
    for size in SIZES:
        c.up.all([size], lambda d: ring.run(26, c.a.fileno(), bytearray(d), len(d)))
    for size in SIZES[:4]:
        c.up.all([size], lambda d: ring.run(26, c.a.fileno(), bytearray(d), len(d), 1 << 4))  # IOSQE_ASYNC: by a worker


def uring_read(c):
    ring, buf = Ring(), bytearray(5000)
    for i in range(10**6):
        if not c.up.read(lambda: bytes(buf[:ring.run(27, c.b.fileno(), buf, len(buf), (i % 2) << 4)])):
            return


def peeked(c):
    """Looked at before it is read, waited for until there is so much, thrown away unread."""
    for size in (700, 5000):
        c.up.all([size] * 4, c.a.send)
        time.sleep(0.05)


def peeked_read(c):
    c.b.recv(100, socket.MSG_PEEK)
    c.up.read(lambda: c.b.recv(300, socket.MSG_PEEK)[:0] or c.b.recv(300))
    c.b.recv(4000, socket.MSG_PEEK)
    c.up.read(lambda: c.b.recv(2500, socket.MSG_WAITALL))
    c.b.recv(100, socket.MSG_PEEK | socket.MSG_TRUNC)
    # thrown away, but a call that takes bytes
    before = now()
    n = LIBC.recv(c.b.fileno(), None, 4000, socket.MSG_TRUNC | socket.MSG_WAITALL)
    c.up.reads.append([threading.get_native_id(), before, now(), n, None, None])
    c.up.drain(lambda: c.b.recv(1500))


def two_writers(c):
    """Two threads whose calls wait for room: their bytes are mixed in the stream."""
    c.a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
    go = threading.Barrier(2)

    def some(sizes):
        go.wait()
        c.up.all(sizes, c.a.send)
    other = threading.Thread(target=some, args=([300, 2, 5000, 300, 20000, 60, 300] * 4,))
    other.start()
    some([120000, 90000, 60000])
    other.join()


def slow_drain(c):
    def read():
        time.sleep(0.002)
        return c.b.recv(8000)
    c.b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100000)
    c.up.drain(read)


def two_readers_write(c):
    """Here the bytes say where in the stream they are: two threads read it."""
    at = 0
    for size in [4000, 200, 30000, 8, 9000] * 6:
        c.up.write(size, lambda d: c.a.send(b"".join(struct.pack(">I", at + i) for i in range(0, size, 4))))
        at += size
        time.sleep(0.001)


def two_readers(c):
    def some(size):
        c_at = lambda data: struct.unpack_from(">I", data)[0]
        while c.up.read(lambda: c.b.recv(size), where=c_at):
            c.up.reads[-1][4] = None
    other = threading.Thread(target=some, args=(1000,))
    other.start()
    some(3000)
    other.join()


def forked(c):
    """A child goes on with the socket, its parent after it."""
    c.up.all([3000], c.a.send)
    r, w = os.pipe()
    child = os.fork()
    if not child:
        mine = Way()
        mine.next = 100
        mine.all([5000, 20], c.a.send)
        os.write(w, json.dumps(mine.writes).encode())
        os._exit(0)
    os.waitpid(child, 0)
    c.up.writes += json.loads(os.read(r, 65536))
    c.up.all([400], c.a.send)


def passed_write(c):
    c.up.all([3000, 5000, 300, 2000], c.a.send)


def passed(c):
    """The reader gives its socket to another process, which reads the rest."""
    c.up.read(lambda: c.b.recv(1000))
    one, two = socket.socketpair()
    r, w = os.pipe()
    child = os.fork()
    if not child:
        _, fds, _, _ = socket.recv_fds(two, 10, 1)
        s, mine = socket.socket(fileno=fds[0]), Way()
        mine.drain(lambda: s.recv(700))
        os.write(w, json.dumps(mine.reads).encode())
        os._exit(0)
    socket.send_fds(one, [b"x"], [c.b.fileno()])
    os.close(w)
    got = b""
    while more := os.read(r, 65536):
        got += more
    os.waitpid(child, 0)
    c.up.reads += json.loads(got)


def urgent(c):
    c.up.all([3000], c.a.send)
    time.sleep(0.02)
    # the last byte is urgent: read apart
    c.up.write(402, lambda d: c.a.send(d, socket.MSG_OOB))
    time.sleep(0.1)
    c.up.all([2000], c.a.send)


def urgent_read(c):
    """The urgent byte is read apart: the stream goes on behind it."""
    p, at = select.poll(), 3401
    p.register(c.b, select.POLLPRI)
    while True:
        if p.poll(0):
            try:
                c.up.read(lambda: c.b.recv(1, socket.MSG_OOB), where=lambda data: at)
            except OSError:
                pass
        if not c.up.read(lambda: c.b.recv(1500)):
            break


def urgent_inline_read(c):
    c.b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    c.up.drain(lambda: c.b.recv(1500))


def both_ways(c):
    def back():
        for size in [100, 30000, 600]:
            c.down.all([size], c.b.send)
        c.b.shutdown(socket.SHUT_WR)
    c.helper = threading.Thread(target=back)
    c.helper.start()
    c.up.all(SIZES, c.a.send)
    c.a.shutdown(socket.SHUT_WR)
    c.down.drain(lambda: c.a.recv(2500))


def both_ways_read(c):
    c.up.drain(lambda: c.b.recv(2500))


def reset(c):
    """Part of it is never read: the reader's end is reset."""
    c.up.all([3000, 4000, 5000], c.a.send)
    time.sleep(0.3)


def reset_read(c):
    time.sleep(0.1)
    c.up.read(lambda: c.b.recv(3500))
    c.b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.b.close()


def corked(c):
    c.a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    c.up.all([100, 200, 300, 2000, 60], c.a.send)
    c.a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    c.up.all([100, 200, 4000], lambda d: c.a.send(d, socket.MSG_MORE))
    c.up.all([600], c.a.send)


def refused(c):
    """Never waits: refused, and taken in part."""
    c.a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    c.a.setblocking(False)
    left = 300000
    while left > 0:
        n = c.up.write(min(left, 50000), c.a.send)
        if n > 0:
            left -= n
        else:
            select.select([], [c.a], [], 5)


def alarmed(c):
    """A call that gives up after a time, having given a part."""
    c.a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    c.a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 30000))
    for _ in range(6):
        c.up.write(60000, lambda d: os.write(c.a.fileno(), d))


def redirected(c):
    """Between others come writes that TCP never gets: a sockmap hands them to the reader's socket. They are in no stream, so none of these calls is noted."""
    c.up.all([3000, 400], c.a.send)
    c.taken.wait(5)
    m = Sockmap()
    m.put(OF, c.b)
    m.put(0, c.a)
    c.past.set()
    for size in REDIRECTED:
        c.a.send(bytes(size))
    c.taken_past.wait(5)
    m.remove(0)
    m.remove(OF)
    m.close()
    c.up.all([5000, 30, 20000], c.a.send)


REDIRECTED = [2000, 300, 5000, 700]


def redirected_read(c):
    left = 3400
    while left > 0:
        left -= len(c.up.read(lambda: c.b.recv(min(left, 1000))))
    c.taken.set()
    c.past.wait(5)
    left = sum(REDIRECTED)
    while left > 0:
        left -= len(c.b.recv(900))
    c.taken_past.set()
    c.up.drain(lambda: c.b.recv(6000))


# case: writer, reader, and how the connection comes about
CASES = {
    "plain": (plain, drain), "vectors": (vectors, vectors_read), "writev": (writev, readv), "messages": (messages, messages_read),
    "sendfile": (sendfile, drain), "splice": (splice, splice_read), "spliced": (spliced_write, spliced_read), "zerocopy": (zerocopy, drain), "stamped": (stamped, stamped_read),
    "uring": (uring, uring_read), "peeked": (peeked, peeked_read), "two-writers": (two_writers, slow_drain), "two-readers": (two_readers_write, two_readers),
    "forked": (forked, drain), "passed": (passed_write, passed), "urgent": (urgent, urgent_read), "urgent-inline": (urgent, urgent_inline_read),
    "both-ways": (both_ways, both_ways_read), "reset": (reset, reset_read), "corked": (corked, drain), "refused": (refused, slow_drain),
    "alarmed": (alarmed, slow_drain), "early": (plain, drain), "reused-1": (plain, drain), "reused-2": (vectors, drain), "reused-3": (writev, readv),
    "redirected": (redirected, redirected_read), "fast-open": (plain, drain), "mptcp": (plain, drain), "mapped": (plain, drain),
}


class Connection:
    pass


def inside(ns: str):
    """This thread, and the sockets that it makes from here on, in the named namespace; `-`: where it is."""
    if ns != "-":
        with open(f"/run/netns/{ns}") as f:
            if LIBC.setns(f.fileno(), 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")


def connect(case: str, ns_a: str, ns_b: str, addr_a: str, addr_b: str, port: int) -> Connection:
    c = Connection()
    c.up, c.down, c.helper = Way(), Way(), None
    c.taken, c.past, c.taken_past = threading.Event(), threading.Event(), threading.Event()
    family = socket.AF_INET6 if ":" in addr_b else socket.AF_INET
    proto = MPTCP if case == "mptcp" else 0
    inside(ns_b)
    l = socket.socket(socket.AF_INET6 if case == "mapped" else family, socket.SOCK_STREAM, proto)
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if case == "fast-open":
        l.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
    l.bind(("::ffff:" + addr_b if case == "mapped" else addr_b, port))
    l.listen(8)
    inside(ns_a)
    c.a = socket.socket(family, socket.SOCK_STREAM, proto)
    if case.startswith("reused"):
        c.a.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        c.a.bind((addr_a, port + 1000))
    if case == "fast-open":
        c.a.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    c.a.connect((addr_b, port))
    if case == "fast-open":  # it goes with the first write
        c.late = l
        c.b = None
    else:
        c.b = l.accept()[0]
        l.close()
    c.ports = [c.a.getsockname()[1], port]
    return c


def use(case: str, c: Connection):
    wrong = []

    def run(what):
        try:
            what(c)
        except Exception:
            wrong.append(traceback.format_exc())

    def writes():
        run(CASES[case][0])
        if case.startswith("reused"):
            time.sleep(0.1)
        try:
            c.a.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def reads():
        if c.b is None:
            c.b = c.late.accept()[0]
            c.late.close()
            c.ports[0] = c.a.getsockname()[1]
        run(CASES[case][1])
    both = [threading.Thread(target=f) for f in (writes, reads)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    if c.helper:
        c.helper.join()
    if case.startswith("reused"):  # its ports are free at once
        c.a.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.a.close()
    c.b.close()
    return {"ports": c.ports, "wrong": wrong,
            "up": {"writes": sorted(c.up.writes, key=lambda w: w[0]), "reads": c.up.reads},
            "down": {"writes": c.down.writes, "reads": c.down.reads}}


def wait_for(file: str):
    while not os.path.exists(file):
        time.sleep(0.01)


def main() -> int:
    if sys.argv[1:] == ["list"]:
        print(*CASES)
        return 0
    ns_a, ns_b, addr_a, addr_b, port, go, *cases = sys.argv[1:]
    port = int(port)
    # connections of the same case have the same ports
    at = {case: port + i if not case.startswith("reused") else port + 500 for i, case in enumerate(cases)}
    where = (ns_a, ns_b, addr_a, addr_b)
    early = {case: connect(case, *where, at[case]) for case in cases if case == "early"}
    for c in early.values():
        c.up.all([5000, 300], c.a.send)
        c.up.read(lambda: c.b.recv(2000))
    print("ready", flush=True)
    wait_for(go)
    out = {}
    for case in cases:
        c = early.get(case) or connect(case, *where, at[case])
        out[case] = use(case, c)
    print(json.dumps(out), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
