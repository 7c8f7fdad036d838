"""Programs of tests/reached.py, run by workloads.py: groups that share a port, a container, calls of io_uring, splice() from a socket."""
import ctypes
import mmap
import os
import select
import socket
import struct
import time

import handed

SYS_URING_SETUP, SYS_URING_ENTER, URING_GETEVENTS = 425, 426, 1
URING_SEND, URING_RECV, URING_READ = 26, 27, 22
URING_ASYNC = 1 << 4  # by a worker of its own
libc = ctypes.CDLL(None, use_errno=True)


class Ring:
    """Requests of io_uring, one at a time or as many as it has room for, without a library."""

    def __init__(self, entries: int = 8):
        p = bytearray(120)
        self.fd = libc.syscall(SYS_URING_SETUP, entries, (ctypes.c_char * 120).from_buffer(p))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "io_uring")
        self.entries, cq_entries = struct.unpack_from("2I", p)
        sq, cq = struct.unpack_from("7I", p, 40), struct.unpack_from("7I", p, 80)
        self.sq = mmap.mmap(self.fd, sq[6] + self.entries * 4, flags=mmap.MAP_SHARED, offset=0)
        self.cq = mmap.mmap(self.fd, cq[5] + cq_entries * 16, flags=mmap.MAP_SHARED, offset=0x8000000)
        self.sqes = mmap.mmap(self.fd, self.entries * 64, flags=mmap.MAP_SHARED, offset=0x10000000)
        self.sq_tail, self.sq_mask, self.sq_array = sq[1], sq[2], sq[6]
        self.cq_head, self.cq_tail, self.cq_mask, self.cqes = cq[0], cq[1], cq[2], cq[5]
        self.waiting = 0

    def ask(self, op: int, fd: int, buffer, length: int, flags: int = 0, user: int = 0) -> None:
        tail, = struct.unpack_from("I", self.sq, self.sq_tail)
        mask, = struct.unpack_from("I", self.sq, self.sq_mask)
        at = tail & mask
        address = ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
        struct.pack_into("BBHiQQIIQ24x", self.sqes, at * 64, op, flags, 0, fd, 0, address, length, 0, user)
        struct.pack_into("I", self.sq, self.sq_array + at * 4, at)
        struct.pack_into("I", self.sq, self.sq_tail, tail + 1)
        self.waiting += 1

    def answers(self, least: int = 1):
        """(user, result) of each that is done, at least so many."""
        if libc.syscall(SYS_URING_ENTER, self.fd, self.waiting, least, URING_GETEVENTS, None, 0) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_enter")
        self.waiting = 0
        head, = struct.unpack_from("I", self.cq, self.cq_head)
        tail, = struct.unpack_from("I", self.cq, self.cq_tail)
        mask, = struct.unpack_from("I", self.cq, self.cq_mask)
        found = [struct.unpack_from("Qi", self.cq, self.cqes + (n & mask) * 16) for n in range(head, tail)]
        struct.pack_into("I", self.cq, self.cq_head, tail)
        return found


def roles(tool) -> dict:
    child_of, children = handed.with_children(tool)

    def drains(s: socket.socket, own: dict) -> None:
        """What comes to one of a group: it does not know of how many senders, so until nothing has come for a while."""
        own.update(packets=0, bytes=0, ends=0)
        buffer = bytearray(66000)
        s.settimeout(5)  # of some there may be no sender
        try:
            while True:
                n = s.recv_into(buffer)
                if buffer[:n] == b"end":
                    own["ends"] += 1
                    s.settimeout(1)
                else:
                    own["packets"] += 1
                    own["bytes"] += n
        except TimeoutError:
            pass

    def grouped(j: dict, out: dict):
        """Processes with a socket each that share a port: the kernel chooses by the sender."""
        sockets = [tool.udp({**j, "shared": True}, j["port"]) for _ in range(j["count"])]
        yield

        def reads(n: int):
            def one(own: dict) -> None:
                for i, s in enumerate(sockets):
                    if i != n:
                        s.close()
                drains(sockets[n], own)
            return one

        for n in range(j["count"]):
            child_of(j, out, n, reads(n))
        for s in sockets:
            s.close()
        children(out)

    def many_writers(j: dict, out: dict):
        """From several sockets in turns; each says the end."""
        all_ = [tool.udp(j) for _ in range(j["sources"])]
        data = [b"x" * n for n in j["sizes"]]
        yield
        for i in range(j["count"]):
            all_[i % len(all_)].sendto(data[i % len(data)], (j["to"], j["ports"][0]))
            if i % j.get("burst", 20) == 0:
                time.sleep(0.001)
        time.sleep(0.3)
        for s in all_:
            s.sendto(b"end", (j["to"], j["ports"][0]))
        out["sent"] = j["count"]

    def listens_grouped(j: dict, out: dict):
        """Processes that listen at one port, each by a socket of its own."""
        listening = []
        for _ in range(j["count"]):
            l = socket.socket()
            l.setsockopt(socket.SOL_SOCKET, tool.SO_REUSEPORT, 1)
            l.bind(("", j["port"]))
            l.listen(64)
            listening.append(l)
        (over, w_over), (stop, w_stop) = os.pipe(), os.pipe()
        yield

        def works(n: int):
            def one(own: dict) -> None:
                own["bytes"] = own["connections"] = 0
                os.close(w_stop)
                for i, l in enumerate(listening):
                    if i != n:
                        l.close()
                poll = select.poll()
                poll.register(listening[n], select.POLLIN)
                poll.register(stop, select.POLLHUP)
                while not any(fd == stop for fd, _ in poll.poll()):
                    c, _ = listening[n].accept()
                    while data := c.recv(65536):
                        own["bytes"] += len(data)
                    c.close()
                    own["connections"] += 1
                    os.write(w_over, b".")
            return one

        for n in range(j["count"]):
            child_of(j, out, n, works(n))
        for l in listening:
            l.close()
        n = 0
        while n < j["connections"]:
            n += len(os.read(over, 64))
        os.close(w_stop)
        children(out)

    def contained(j: dict, out: dict):
        """As an engine begins a container: a cgroup and a PID namespace of its own, in a network that it was given."""
        s = tool.udp(j, j["port"])
        with open(f"{j['cgroup']}/cgroup.procs", "w") as f:
            f.write("0")
        yield
        if libc.unshare(tool.CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), "PID namespace")
        child_of(j, out, 0, lambda own: tool.take(s, j, own))
        s.close()
        children(out)

    def uring_reader(j: dict, out: dict):
        """Datagrams, as many requests at once as `depth`; `flags`: by workers."""
        s = tool.udp(j, j["port"])
        ring, depth = Ring(), j["depth"]
        buffers = [bytearray(66000) for _ in range(depth)]
        yield
        out.update(packets=0, bytes=0, ends=0)
        for n in range(depth):
            ring.ask(URING_RECV, s.fileno(), buffers[n], 66000, j.get("flags", 0), n)
        while not out["ends"]:
            for n, got in ring.answers():
                if got < 0:
                    raise OSError(-got, "recv")
                if buffers[n][:got] == b"end":
                    out["ends"] += 1
                    continue
                out["packets"] += 1
                out["bytes"] += got
                ring.ask(URING_RECV, s.fileno(), buffers[n], 66000, j.get("flags", 0), n)
        s.close()
        os.close(ring.fd)

    def uring_tcp_reader(j: dict, out: dict):
        l = tool.listener(j["port"])
        ring, buffer = Ring(), bytearray(j["piece"])
        yield
        out["bytes"] = 0
        for _ in range(j.get("connections", 1)):
            c, _ = l.accept()
            while True:
                ring.ask(j["op"], c.fileno(), buffer, len(buffer), j.get("flags", 0))
                (_, got), = ring.answers()
                if got < 0:
                    raise OSError(-got, "recv")
                if not got:
                    break
                out["bytes"] += got
            c.close()

    def uring_writer(j: dict, out: dict):
        yield
        ring, data = Ring(), bytearray(b"x" * j["piece"])
        out["again"] = 0
        for _ in range(j.get("connections", 1)):
            c = socket.create_connection((j["to"], j["port"]))
            for i in range(j["times"]):
                left = len(data)
                while left:
                    ring.ask(URING_SEND, c.fileno(), data, left, j.get("flags", 0))
                    (_, got), = ring.answers()
                    if got < 0:
                        raise OSError(-got, "send")
                    left -= got
                if i % 8 == 7:
                    time.sleep(0.001)
            c.shutdown(socket.SHUT_WR)
            c.recv(1)
            out["again"] += struct.unpack_from("Q", c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), 208)[0]
            c.close()

    def splicer(j: dict, out: dict):
        """From a connection into a pipe, and from there to nowhere."""
        l = tool.listener(j["port"])
        yield
        out["bytes"], nowhere = 0, os.open("/dev/null", os.O_WRONLY)
        r, w = os.pipe()
        for _ in range(j.get("connections", 1)):
            c, _ = l.accept()
            while n := os.splice(c.fileno(), w, 65536):
                out["bytes"] += n
                while n:
                    n -= os.splice(r, nowhere, n)
            c.close()

    all_ = (grouped, many_writers, listens_grouped, contained, uring_reader, uring_tcp_reader, uring_writer, splicer)
    return {f.__name__: f for f in all_}
