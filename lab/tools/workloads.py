#!/usr/bin/env python3
"""Runs the programs of tests/workloads.py together, and reports what each of them did by the kernel's own accounts.

    workloads.py SPEC.json OUT.json    prints "ready" when all are, begins at SIGUSR1, and prints "done" when OUT is there; its programs live on until it is ended

Every program is a process of its own, with its own name; its CPU time is what it had by CLOCK_PROCESS_CPUTIME_ID when it got its name and what a perf counter (task-clock) counted
from there, of one that has ended what wait4() returned. The clock alone begins a task's time when it was woken, where that CPU was idle (kernel/sched/core.c, rq_clock_skip_update()):
what interrupts still did before the switch, and what a virtual machine's host took there, is the task's by the clock and not by the counter.
"""
import ctypes
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time

import handed
import reached

SO_RCVBUFFORCE, SO_SNDBUFFORCE, SO_REUSEPORT, SO_MEMINFO, CLONE_NEWNET, CLONE_NEWPID = 33, 32, 15, 55, 0x40000000, 0x20000000
libc = ctypes.CDLL(None, use_errno=True)
PERF_EVENT_OPEN, PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK, PERF_FLAG_FD_CLOEXEC = 298, 1, 1, 8
# Bits of struct perf_event_attr: threads that are begun later are counted as well, other processes are not.
INHERIT, INHERIT_THREAD = 1 << 1, 1 << 35
counters: dict[int, tuple[int, int]] = {}


def cpu_time() -> int:
    """Nanoseconds that this process has run, with its threads."""
    pid = os.getpid()
    if pid not in counters:
        attr = struct.pack("=IIQQQQQ", PERF_TYPE_SOFTWARE, 128, PERF_COUNT_SW_TASK_CLOCK, 0, 0, 0, INHERIT | INHERIT_THREAD).ljust(128, b"\0")
        fd = libc.syscall(PERF_EVENT_OPEN, attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")
        counters[pid] = fd, time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID)
    fd, before = counters[pid]
    return before + int.from_bytes(os.read(fd, 8), "little")


def ran(before: int = 0) -> dict:
    """Of this process, in what it reports."""
    return {"cpu_ns": cpu_time() - before, "counted": True}


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        for _ in range(100):
            pass


def called(name: str) -> None:
    with open("/proc/thread-self/comm", "w") as f:
        f.write(name)
    cpu_time()


def udp(j: dict, port: int | None = None) -> socket.socket:
    s = socket.socket(socket.AF_INET6 if j.get("six") else socket.AF_INET, socket.SOCK_DGRAM)
    if "polls" in j:
        s.setsockopt(socket.SOL_SOCKET, handed.SO_BUSY_POLL, j["polls"])
    if "room" in j:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, j["room"])
    else:
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    s.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
    if "group" in j and port:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(j["group"]) + socket.inet_aton(j["on"]))
    if j.get("shared"):
        s.setsockopt(socket.SOL_SOCKET, SO_REUSEPORT, 1)
    if port:
        s.bind(("", port))
    return s


class Mmsg(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.c_void_p), ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p),
                ("controllen", ctypes.c_size_t), ("flags", ctypes.c_size_t), ("len", ctypes.c_uint)]


class Iov(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def many(s: socket.socket):
    """Lengths of datagrams, taken by recvmmsg()."""
    n, room = 16, 66000
    buffers = [ctypes.create_string_buffer(room) for _ in range(n)]
    iovs = (Iov * n)(*[Iov(ctypes.addressof(b), room) for b in buffers])
    all_ = (Mmsg * n)()
    for i in range(n):
        all_[i].iov, all_[i].iovlen = ctypes.addressof(iovs[i]), 1
    while True:
        got = libc.recvmmsg(s.fileno(), all_, n, 0x10000, None)  # MSG_WAITFORONE
        for i in range(max(got, 0)):
            yield all_[i].len, buffers[i].raw[:3]


def datagrams(s: socket.socket, how: str):
    if how == "recvmmsg":
        yield from many(s)
    if how == "epoll":
        s.setblocking(False)
        poll = select.epoll()
        poll.register(s, select.EPOLLIN)
        while True:
            poll.poll()
            try:
                while True:
                    d = s.recv(66000)
                    yield len(d), d[:3]
            except BlockingIOError:
                pass
    buffer = bytearray(66000)
    while True:
        if how == "peek":
            s.recv_into(buffer, 66000, socket.MSG_PEEK)
        n = s.recvmsg_into([buffer])[0] if how == "recvmsg" else s.recvfrom_into(buffer)[0] if how == "recvfrom" else s.recv_into(buffer)
        yield n, bytes(buffer[:3])


def take(s: socket.socket, j: dict, out: dict, most: int = 1 << 60) -> None:
    """Until one says that it is the last."""
    for n, begin in datagrams(s, j.get("how", "recv")):
        if begin == b"end":
            out["ends"] = out.get("ends", 0) + 1
            if out["ends"] == j.get("senders", 1):
                break
            continue
        out["packets"] = out.get("packets", 0) + 1
        out["bytes"] = out.get("bytes", 0) + n
        if j.get("work"):
            burn(j["work"])
        if out["packets"] >= most:
            break


def udp_reader(j: dict, out: dict):
    s = udp(j, j["port"])
    yield
    if j.get("slow"):
        time.sleep(j["slow"])
    take(s, j, out, j.get("exits_after", 1 << 60))
    out["lost"] = struct.unpack("9I", s.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[8]
    if "exits_after" in j:
        s.close()
        out["exits"] = True


def threads(j: dict, out: dict):
    """Each thread has a name and a socket of its own."""
    sockets = [udp(j, j["port"] + i) for i in range(j["count"])]
    own = [{} for _ in sockets]

    def one(i: int) -> None:
        called(f"{j['name'][:11]}/t{i}")
        take(sockets[i], j, own[i])
        burn(0.01 * i)

    yield
    all_ = [threading.Thread(target=one, args=[i]) for i in range(j["count"])]
    for t in all_:
        t.start()
    for t in all_:
        t.join()
    for what in ("packets", "bytes", "ends"):
        out[what] = sum(o.get(what, 0) for o in own)


def shares(j: dict, out: dict):
    """A socket that parent and child read in turns."""
    s = udp(j, j["port"])
    s.setblocking(True)
    yield
    r, w = os.pipe()
    child = os.fork()
    if not child:
        called(j["name"] + "-c")
        own = {}
        take(s, j, own, j["first"])
        os.write(w, json.dumps({**own, **ran(), "pid": os.getpid(), "name": j["name"] + "-c"}).encode())
        signal.pause()
    out["child"] = json.loads(os.read(r, 4096))
    take(s, j, out)


def udp_writer(j: dict, out: dict):
    s = udp(j)
    data = [b"x" * n for n in j["sizes"]]
    to = [(j["to"], p) for p in j["ports"]]
    if "group" in j:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(j["on"]))
        s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 4)
    if j.get("six"):
        to = [(a, p, 0, 0) for a, p in to]
    if j.get("connects"):
        s.connect(to[0])
    yield
    for i in range(j["count"]):
        if j.get("connects"):
            s.send(data[i % len(data)])
        else:
            s.sendto(data[i % len(data)], to[i % len(to)])
        if i % j.get("burst", 20) == 0:
            time.sleep(0.001)
    # A reader that is slow may have no room for the first.
    for _ in range(j.get("ends", 1)):
        time.sleep(0.3)
        for t in to:
            s.sendto(b"end", t) if not j.get("connects") else s.send(b"end")
    out["sent"] = j["count"]


def listener(port: int) -> socket.socket:
    l = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    l.bind(("", port))
    l.listen(64)
    return l


def tcp_reader(j: dict, out: dict):
    l = listener(j["port"])
    yield
    out["bytes"] = 0
    for _ in range(j.get("connections", 1)):
        c, _ = l.accept()
        while data := c.recv(j.get("piece", 65536)):
            out["bytes"] += len(data)
            if j.get("answers"):
                began = time.thread_time_ns()
                burn(j["answers"])
                out["burned_ns"] = out.get("burned_ns", 0) + time.thread_time_ns() - began
                c.sendall(b"y" * 100)
        c.close()


def tcp_writer(j: dict, out: dict):
    yield
    out["bytes"], data = 0, b"x" * j.get("piece", 65536)
    for _ in range(j.get("connections", 1)):
        c = socket.create_connection((j["to"], j["port"]))
        if j.get("sendfile"):
            fd = os.open(j["sendfile"], os.O_RDONLY)
            at, size = 0, os.fstat(fd).st_size
            while at < size:
                at += os.sendfile(c.fileno(), fd, at, 1 << 20)
            out["bytes"] += size
            os.close(fd)
        elif j.get("splice"):
            fd = os.open(j["splice"], os.O_RDONLY)
            r, w = os.pipe()
            while n := os.splice(fd, w, 65536):
                while n:
                    n -= os.splice(r, c.fileno(), n)
            out["bytes"] += os.fstat(fd).st_size
        else:
            for i in range(j["times"]):
                c.sendall(data)
                out["bytes"] += len(data)
                if j.get("asks"):
                    n = 0
                    while n < 100:
                        n += len(c.recv(100 - n))
                elif i % 8 == 7:
                    time.sleep(0.001)
        c.shutdown(socket.SHUT_WR)
        c.recv(1)
        # of struct tcp_info the bytes that were sent again
        out["again"] = out.get("again", 0) + struct.unpack_from("Q", c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), 208)[0]
        c.close()


def server(j: dict, out: dict):
    """Answers as many requests as there are, through a unix socket or two pipes, and burns for each what it says."""
    kind, by_client = j["kind"], {}
    if kind == "unix":
        l = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        l.bind(j["at"])
        l.listen(16)
        yield
        poll, open_, left = select.poll(), {l.fileno(): l}, j["clients"]
        poll.register(l)
        while left:
            for fd, _ in poll.poll():
                if fd == l.fileno():
                    c, _ = l.accept()
                    open_[c.fileno()] = c
                    poll.register(c, select.POLLIN)
                    continue
                message = open_[fd].recv(64)
                if not message:
                    poll.unregister(fd)
                    open_.pop(fd).close()
                    left -= 1
                    continue
                who, seconds = message.split()
                began = time.thread_time_ns()
                burn(float(seconds))
                by_client[int(who)] = by_client.get(int(who), 0) + time.thread_time_ns() - began
                open_[fd].sendall(b"answer")
    out["by_client"] = by_client


def client(j: dict, out: dict):
    yield
    c = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    c.connect(j["at"])
    for _ in range(j["times"]):
        c.sendall(b"%d %s" % (os.getpid(), str(j["asks_for"]).encode()))
        c.recv(64)
        burn(j["own"])
    c.close()


def pipe_writer(j: dict, out: dict):
    """A pipeline with a child: what goes one way is no request."""
    yield
    r, w = os.pipe()
    if not os.fork():
        called(j["name"] + "-c")
        os.close(w)
        n = 0
        while data := os.read(r, 65536):
            n += len(data)
            burn(0.0002)
        # Not through a pipe, which would be an answer.
        with open(j["at"] + ".new", "w") as f:
            json.dump({**ran(), "pid": os.getpid(), "name": j["name"] + "-c", "bytes": n}, f)
        os.rename(j["at"] + ".new", j["at"])
        signal.pause()
    os.close(r)
    for _ in range(j["times"]):
        os.write(w, b"x" * 4096)
        burn(0.0001)
    os.close(w)
    while not os.path.exists(j["at"]):
        time.sleep(0.01)
    out["child"] = json.load(open(j["at"]))


def io_of() -> dict:
    return {k: int(v) for k, v in (line.split(": ") for line in open("/proc/self/io").read().splitlines())}


def reader_of_files(j: dict, out: dict):
    fd = os.open(j["file"], os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    yield
    began = io_of()["read_bytes"]
    how = j["how"]
    fd = os.open(j["file"], os.O_RDONLY | (os.O_DIRECT if how == "direct" else 0))
    size = os.fstat(fd).st_size
    if how == "direct":
        m = mmap.mmap(-1, 65536)
        for at in range(0, size, 65536):
            os.preadv(fd, [m], at)
    elif how == "mapped":
        m = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        out["sum"] = sum(m[at] for at in range(0, size, 4096))
    elif how == "random":
        for n in range(200):
            os.pread(fd, 4096, n * 7919 * 4096 % size)
    else:
        while os.read(fd, 1 << 17):
            pass
    os.close(fd)
    out["read_bytes"] = io_of()["read_bytes"] - began


def writer_of_files(j: dict, out: dict):
    yield
    began = io_of()["write_bytes"]
    how = j["how"]
    fd = os.open(j["file"], os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if how == "direct" else 0), 0o600)
    m = mmap.mmap(-1, 1 << 17)
    m.write(b"w" * (1 << 17))
    for i in range(j["times"]):
        os.writev(fd, [m])
        if how == "fsync" and i % 16 == 15:
            os.fsync(fd)
    os.close(fd)
    out["write_bytes"] = io_of()["write_bytes"] - began


def pages(j: dict, out: dict):
    yield
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(j["times"]):
        m = mmap.mmap(-1, 8 << 20)
        for at in range(0, 8 << 20, 4096):
            m[at] = 1
        m.close()
    out["faults"] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def storm(j: dict, out: dict):
    """Short processes, some of them another program."""
    yield
    out["ended"] = []
    for n in range(j["count"]):
        child = os.fork()
        if not child:
            if n % 3 == 2:
                os.execv("/bin/true", ["true"])
            called(f"{j['name'][:10]}.{n}")
            if n % 3 == 1:
                burn(j["burns"])
            os._exit(0)
        pid, _, used = os.wait4(child, 0)
        out["ended"].append({"pid": pid, "name": "true" if n % 3 == 2 else f"{j['name'][:10]}.{n}", "cpu_ns": round((used.ru_utime + used.ru_stime) * 1e9)})


def bomb(j: dict, out: dict):
    """Many at once."""
    yield
    r, w = os.pipe()
    children = []
    for n in range(j["count"]):
        child = os.fork()
        if not child:
            called(f"{j['name'][:10]}.{n}")
            os.close(w)
            os.read(r, 1)
            burn(0.0005)
            os._exit(0)
        children.append(child)
    os.close(w)
    out["ended"] = []
    for n, child in enumerate(children):
        pid, _, used = os.wait4(child, 0)
        out["ended"].append({"pid": pid, "name": f"{j['name'][:10]}.{n}", "cpu_ns": round((used.ru_utime + used.ru_stime) * 1e9)})


class CloneArgs(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid", "set_tid_size", "cgroup")]


def fork_as(pid: int) -> int:
    wanted = (ctypes.c_int * 1)(pid)
    args = CloneArgs(exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(wanted), set_tid_size=1)
    return libc.syscall(435, ctypes.byref(args), ctypes.sizeof(args))


def reuses(j: dict, out: dict):
    """Processes of one number, one after the other."""
    yield
    first = os.fork()
    if not first:
        os._exit(0)
    os.waitpid(first, 0)
    out["reused"] = []
    for n, seconds in enumerate(j["burns"]):
        child = fork_as(first)
        if not child:
            called(f"{j['name'][:8]}.r{n}")
            burn(seconds)
            os._exit(0)
        if child < 0:
            out["reused"] = None
            return
        _, _, used = os.wait4(child, 0)
        out["reused"].append({"pid": child, "name": f"{j['name'][:8]}.r{n}", "cpu_ns": round((used.ru_utime + used.ru_stime) * 1e9)})
        time.sleep(j.get("between", 0))


def execs(j: dict, out: dict):
    """Another program takes this one's place."""
    yield
    burn(j["before"])
    done, w = os.pipe()
    os.set_inheritable(w, True)
    code = f"import json,os,signal,time\nu=time.thread_time()+{j['after']}\nwhile time.thread_time()<u:pass\n" \
           f"open('/proc/self/comm','w').write('{j['name']}-x')\nos.write({w},json.dumps({{'cpu_ns':time.clock_gettime_ns(2),'pid':os.getpid(),'name':'{j['name']}-x'}}).encode())\nsignal.pause()"
    if not os.fork():
        called(j["name"] + "-b")
        burn(j["before"])
        os.execv(sys.executable, [sys.executable, "-c", code])
    out["child"] = json.loads(os.read(done, 4096))


def burner(j: dict, out: dict):
    yield
    burn(j["seconds"])


def pings(j: dict, out: dict):
    """Asks for echoes by a raw socket."""
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.connect((j["to"], 0))
    s.settimeout(1)
    yield
    out["packets"] = 0
    for n in range(j["times"]):
        body = struct.pack("!HH", os.getpid() & 0xffff, n) + b"p" * 56
        total = sum(struct.unpack("!32H", b"\x08\x00\x00\x00" + body))
        total = (total >> 16) + (total & 0xffff)
        s.send(b"\x08\x00" + struct.pack("!H", ~(total + (total >> 16)) & 0xffff) + body)
        try:
            while (answer := s.recv(200))[20] or answer[24:28] != body[:4]:
                out["packets"] += 1
            out["packets"] += 1
        except TimeoutError:
            pass


def sleeper(j: dict, out: dict):
    """Wakes up often."""
    yield
    for _ in range(j["times"]):
        time.sleep(0.001)


def mover(j: dict, out: dict):
    yield
    for at in j["cgroups"]:
        with open(f"{at}/cgroup.procs", "w") as f:
            f.write("0")
        burn(j["each"])


ROLES = {f.__name__: f for f in (udp_reader, udp_writer, threads, shares, tcp_reader, tcp_writer, server, client, pipe_writer, reader_of_files, writer_of_files, pages,
                                 storm, bomb, reuses, execs, burner, pings, sleeper, mover)}
for more in (handed, reached):
    ROLES.update(more.roles(sys.modules[__name__]))


def enters(ns: str) -> None:
    fd = os.open(f"/run/netns/{ns}", os.O_RDONLY)
    if libc.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"netns {ns}")
    os.close(fd)


def switches() -> int:
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_nvcsw + u.ru_nivcsw


def program(j: dict, ready: int, go: int, result: int) -> None:
    called(j["name"])
    if "cpu" in j:
        os.sched_setaffinity(0, [j["cpu"]])
    if j.get("ns"):
        enters(j["ns"])
    out = {"job": j["name"], "role": j["role"], "pid": os.getpid(), "name": j["name"]}
    do = ROLES[j["role"]](j, out)
    next(do)
    os.write(ready, b".")
    os.read(go, 1)
    # Of one that was there before it is recorded only what comes.
    before = cpu_time() if j.get("early") else 0
    time.sleep(j.get("after", 0))
    next(do, None)
    out |= {"before_ns": before, **ran(before), "switches": switches()}
    os.write(result, json.dumps(out).encode() + b"\n")
    if not out.get("exits"):
        signal.pause()
    os._exit(0)


def main(spec: str, to: str) -> None:
    jobs = json.load(open(spec))
    (ready, w_ready), (go, w_go) = os.pipe(), os.pipe()
    results, children = {}, {}
    for j in jobs:
        r, w = os.pipe()
        child = os.fork()
        if not child:
            os.close(w_go)
            try:
                program(j, w_ready, go, w)
            except BaseException as e:
                sys.stderr.write(f"{j['name']}: {e!r}\n")
                sys.stderr.flush()
                os._exit(1)
        os.close(w)
        results[j["name"]], children[j["name"]] = r, child
    n = 0
    while n < len(jobs):
        n += len(os.read(ready, 64))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    print("ready", flush=True)
    signal.sigwait([signal.SIGUSR1])
    os.close(w_go)
    all_ = []
    for j in jobs:
        data = b""
        while not data.endswith(b"\n"):
            more = os.read(results[j["name"]], 1 << 20)
            if not more:
                sys.exit(f"{j['name']} ended before it was done")
            data += more
        one = json.loads(data)
        if one.get("exits"):
            _, _, used = os.wait4(children[j["name"]], 0)
            one |= {"cpu_ns": round((used.ru_utime + used.ru_stime) * 1e9) - one["before_ns"], "counted": False}
        all_.append(one)
    with open(to, "w") as f:
        json.dump(all_, f)
    print("done", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
