"""Programs of tests/handed.py, run by workloads.py: sockets that are handed to other processes and threads, packets that more than one program sees, and processes
whose id, name or threads are not what they seem."""
import ctypes
import fcntl
import json
import os
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

SYS_EXIT, CLONE_NEWPID = 60, 0x20000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
ETH_P_ALL, SOL_PACKET, PACKET_STATISTICS = 3, 263, 6
SO_BUSY_POLL, SO_TIMESTAMPNS = 46, 35
libc = ctypes.CDLL(None, use_errno=True)


def with_children(tool):
    """Two functions: begin a process, and wait for what each did. With what workloads.py has: called() and ran()."""

    def child_of(j: dict, out: dict, n: int, what) -> None:
        """A process that does this with a dictionary of its own; what is in it then is among `children`."""
        r, w = os.pipe()
        name = f"{j['name']}-{n}"
        child = os.fork()
        if not child:
            tool.called(name)
            own = {}
            try:
                what(own)
            except BaseException as e:
                sys.stderr.write(f"{name}: {e!r}\n")
                os._exit(1)
            os.write(w, json.dumps({**own, **tool.ran(), "name": name}).encode() + b"\n")
            signal.pause()
        os.close(w)
        out.setdefault("waits", []).append((child, r))

    def children(out: dict) -> None:
        out["children"] = []
        for pid, r in out.pop("waits", []):
            data = b""
            while not data.endswith(b"\n"):
                more = os.read(r, 65536)
                if not more:
                    raise OSError(f"process {pid} ended before it was done")
                data += more
            out["children"].append({**json.loads(data), "pid": pid})

    return child_of, children


def roles(tool) -> dict:
    """With what workloads.py has: burn(), called(), udp(), take() and ran()."""
    child_of, children = with_children(tool)

    def passes(j: dict, out: dict):
        """To a process that gets it by a message."""
        s = tool.udp(j, j["port"])
        mine, others = socket.socketpair()
        yield

        def takes(own: dict) -> None:
            tool.take(socket.socket(fileno=socket.recv_fds(others, 1, 1)[1][0]), j, own)

        number = s.detach()
        child_of(j, out, 0, lambda own: (os.close(number), takes(own)))
        socket.send_fds(mine, [b"x"], [number])
        os.close(number)
        children(out)

    def inherits(j: dict, out: dict):
        """By a child, which alone reads it."""
        s = tool.udp(j, j["port"])
        yield
        child_of(j, out, 0, lambda own: tool.take(s, j, own))
        s.close()
        children(out)

    def crowd(j: dict, out: dict):
        """Children that all read one socket, each as soon as it can."""
        s = tool.udp(j, j["port"])
        yield
        for n in range(j["count"]):
            child_of(j, out, n, lambda own: tool.take(s, {**j, "senders": 1}, own))
        s.close()
        children(out)

    def preforks(j: dict, out: dict):
        """Workers that share a listening socket."""
        l = tool.listener(j["port"])
        l.setblocking(False)
        (over, w_over), (stop, w_stop) = os.pipe(), os.pipe()
        yield

        def works(own: dict) -> None:
            own["bytes"] = own["connections"] = 0
            os.close(w_stop)
            poll = select.poll()
            poll.register(l, select.POLLIN)
            poll.register(stop, select.POLLHUP)
            while True:
                if any(fd == stop for fd, _ in poll.poll()):
                    return
                try:
                    c, _ = l.accept()
                except BlockingIOError:
                    continue
                c.setblocking(True)
                while data := c.recv(65536):
                    own["bytes"] += len(data)
                c.close()
                own["connections"] += 1
                os.write(w_over, b".")

        for n in range(j["count"]):
            child_of(j, out, n, works)
        n = 0
        while n < j["connections"]:
            n += len(os.read(over, 64))
        os.close(w_stop)
        children(out)

    def pool(j: dict, out: dict):
        """One thread waits for what comes, others read it."""
        l = tool.listener(j["port"])
        yield
        poll, open_, todo, lock = select.epoll(), {}, queue.Queue(), threading.Lock()
        once = select.EPOLLIN | select.EPOLLONESHOT
        out["bytes"], left, done = 0, j["connections"], threading.Event()

        def reads(n: int) -> None:
            nonlocal left
            tool.called(f"{j['name'][:10]}/p{n}")
            while (fd := todo.get()) is not None:
                data = open_[fd].recv(j.get("piece", 65536))
                with lock:
                    out["bytes"] += len(data)
                if data:
                    poll.modify(fd, once)
                    continue
                poll.unregister(fd)
                open_.pop(fd).close()
                with lock:
                    left -= 1
                    if not left:
                        done.set()

        all_ = [threading.Thread(target=reads, args=[n]) for n in range(3)]
        for t in all_:
            t.start()
        poll.register(l, select.EPOLLIN)
        while not done.is_set():
            for fd, _ in poll.poll(0.05):
                if fd == l.fileno():
                    c, _ = l.accept()
                    open_[c.fileno()] = c
                    poll.register(c, once)
                else:
                    todo.put(fd)
        for _ in all_:
            todo.put(None)
        for t in all_:
            t.join()

    def sniffs(j: dict, out: dict):
        """All frames of a device, until a datagram that says the end."""
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        s.setsockopt(socket.SOL_SOCKET, tool.SO_RCVBUFFORCE, 64 << 20)
        s.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        s.bind((j["dev"], ETH_P_ALL))
        yield
        out["packets"] = out["outgoing"] = out["before"] = 0
        # What came before this may be from before the recording.
        begins = time.time_ns()
        try:
            while True:
                frame, ((_, _, stamp), *_), _, where = s.recvmsg(65536, 64)
                seconds, ns = struct.unpack("qq", stamp)
                early = seconds * 1_000_000_000 + ns < begins
                out["before" if early else "outgoing" if where[2] == socket.PACKET_OUTGOING else "packets"] += 1
                if frame.endswith(b"end"): # perhaps another program's: what waits by then is its own all the same
                    s.setblocking(False)
        except BlockingIOError:
            pass
        out["lost"] = struct.unpack("II", s.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))[1]
        s.close()

    def tuns(j: dict, out: dict):
        """What is sent to the other side of its device comes back from there."""
        f = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(f, TUNSETIFF, struct.pack("16sH22x", j["dev"].encode(), IFF_TUN | IFF_NO_PI))
        for words in (["addr", "add", j["near"] + "/24", "dev", j["dev"]], ["link", "set", j["dev"], "up", "txqueuelen", "20000"]):
            subprocess.run(["ip", *words], check=True)
        yield
        out["packets"] = 0
        while True:
            p = os.read(f, 65536)
            if p[0] >> 4 != 4 or p[9] != socket.IPPROTO_UDP:
                continue
            out["packets"] += 1
            os.write(f, p[:12] + p[16:20] + p[12:16] + p[20:])
            if p.endswith(b"end"):
                break

    def namespaced(j: dict, out: dict):
        """The first process of a PID namespace."""
        s = tool.udp(j, j["port"])
        yield
        if libc.unshare(CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), "PID namespace")

        def first(own: dict) -> None:
            own["inner"] = os.getpid()
            tool.burn(0.05)
            tool.take(s, j, own)

        child_of(j, out, 0, first)
        children(out)

    def leader_exits(j: dict, out: dict):
        """A process whose first thread ends before another one."""
        s = tool.udp(j, j["port"])
        yield
        r, w = os.pipe()
        child = os.fork()
        name = j["name"] + "-0"
        if not child:
            tool.called(name)

            def goes_on() -> None:
                time.sleep(0.05)
                own = {}
                tool.take(s, j, own)
                tool.burn(0.1)
                os.write(w, json.dumps({**own, **tool.ran(), "name": name}).encode() + b"\n")
                signal.pause()

            threading.Thread(target=goes_on).start()
            libc.syscall(SYS_EXIT, 0)
        s.close()
        os.close(w)
        out["waits"] = [(child, r)]
        children(out)

    def thread_execs(j: dict, out: dict):
        """Another program takes a process's place, begun by a thread that is not its first."""
        yield
        r, w = os.pipe()
        os.set_inheritable(w, True)
        name = j["name"] + "-0"
        code = f"import json,os,signal,time\nu=time.thread_time()+{j['after']}\nwhile time.thread_time()<u:pass\n" \
               f"open('/proc/self/comm','w').write('{name}')\nos.write({w},json.dumps({{'cpu_ns':time.clock_gettime_ns(2),'name':'{name}'}}).encode()+b'\\n')\nsignal.pause()"
        child = os.fork()
        if not child:
            tool.called(j["name"] + "-b")

            def another() -> None:
                tool.burn(0.03)
                os.execv(sys.executable, [sys.executable, "-c", code])

            threading.Thread(target=another).start()
            tool.burn(5)
        os.close(w)
        out["waits"] = [(child, r)]
        children(out)

    def spawns(j: dict, out: dict):
        """Programs begun without a copy of this one (vfork)."""
        yield
        out["ended"] = []
        for _ in range(j["count"]):
            pid = os.posix_spawn("/bin/true", ["true"], {})
            _, _, used = os.wait4(pid, 0)
            out["ended"].append({"pid": pid, "name": "true", "cpu_ns": round((used.ru_utime + used.ru_stime) * 1e9)})

    def unread(j: dict, out: dict):
        """Ends with packets in its queue, of which it took none."""
        s = tool.udp(j, j["port"])
        yield
        time.sleep(0.5)
        while not select.select([s], [], [], 1)[0]:
            pass
        time.sleep(0.3)
        out["exits"] = True

    all_ = (passes, inherits, crowd, preforks, pool, sniffs, tuns, namespaced, leader_exits, thread_execs, spawns, unread)
    return {f.__name__: f for f in all_}
