"""Requests by every way in which one process of a host can send another a message, taken by servers of every kind: each client asks twice, over a connection of its own,
and all of what its server burns for it is the client's, from the first message on. Truth is what each server burns by its own thread's clock."""
import os
import signal
import sys
import unittest
from collections import Counter

from kpatlab import look, play
from tests import profile
from tests.place import own, sh

BURN = 0.008
PROGRAM = """
import os, signal, socket, subprocess, sys, threading, time
role, kind, at, spins = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "spins"
STREAMS = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6, "unix": socket.AF_UNIX, "packets": socket.AF_UNIX}
family = STREAMS.get(kind, socket.AF_INET)
name = ("::1" if kind == "tcp6" else "127.0.0.1", int(at)) if family != socket.AF_UNIX else "x" + at
type = socket.SOCK_SEQPACKET if kind == "packets" else socket.SOCK_STREAM

def burn(s):
    until = time.thread_time() + s
    while time.thread_time() < until: pass

def handle(message, answer):
    began = time.thread_time_ns()
    burn(%f)
    took = time.thread_time_ns() - began
    answer()
    ran = time.process_time_ns() - (before if os.getpid() == main else 0)
    os.write(log, b"%%d %%d %%d %%d\\n" %% (int(message.split()[0]), took, os.getpid(), ran))

def take(from_, read):
    # The sooner it is taken, the less of its sender's call is over.
    while spins:
        try: return read()
        except BlockingIOError: pass
    return read()

def serve(c):
    while True:
        c.setblocking(not spins)
        message = take(c, lambda: c.recv(64))
        c.setblocking(True)
        if not message: break
        handle(message, lambda: c.sendall(b"ok"))
    c.close()

def server():
    if kind in ("datagrams", "named"):
        s = socket.socket(socket.AF_INET if kind == "datagrams" else socket.AF_UNIX, socket.SOCK_DGRAM)
        s.bind(("127.0.0.1", int(at)) if kind == "datagrams" else "x" + at)
        s.setblocking(not spins)
        yield
        while True:
            message, who = take(s, lambda: s.recvfrom(64))
            handle(message, lambda: s.sendto(b"ok", who))
    if kind == "fifo":
        os.mkfifo("x" + at)
        f = os.open("x" + at, os.O_RDWR | (os.O_NONBLOCK if spins else 0))
        yield
        while True:
            message = take(f, lambda: os.read(f, 16))
            o = os.open("x%%s.%%d" %% (at, int(message)), os.O_WRONLY)
            handle(message, lambda: os.write(o, b"ok"))
            os.close(o)
    s = socket.socket(family, type)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(name)
    s.listen(8)
    mine, others = socket.socketpair()
    if kind == "worker" and not os.fork():
        while True: serve(socket.socket(fileno=socket.recv_fds(others, 1, 1)[1][0]))
    if kind == "forked before":
        os.fork()
    yield
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        c, _ = s.accept()
        if kind == "worker":
            socket.send_fds(mine, [b"x"], [c.fileno()])
        elif kind == "forked":
            if not os.fork():
                serve(c)
                os._exit(0)
        elif kind == "threads":
            threading.Thread(target=serve, args=(c,)).start()
            continue
        else:
            serve(c)
        c.close()

def ask():
    message = b"%%-15d\\n" %% os.getpid()
    if kind in ("datagrams", "named"):
        c = socket.socket(socket.AF_INET if kind == "datagrams" else socket.AF_UNIX, socket.SOCK_DGRAM)
        if kind == "named": c.bind("x%%s.%%d" %% (at, os.getpid()))
        c.connect(("127.0.0.1", int(at)) if kind == "datagrams" else "x" + at)
    elif kind == "fifo":
        os.mkfifo("x%%s.%%d" %% (at, os.getpid()))
        out, f = os.open("x" + at, os.O_WRONLY), os.open("x%%s.%%d" %% (at, os.getpid()), os.O_RDWR)
        for i in range(2):
            os.write(out, message)
            os.read(f, 64)
        return
    else:
        c = socket.socket(family, type)
        c.connect(name)
    if kind == "sendfile":
        f = os.memfd_create("message")
        os.write(f, message)
    r, w = os.pipe()
    for i in range(2):
        if kind == "thread":
            t = threading.Thread(target=lambda: c.recv(64))
            t.start()
        if kind == "sendmsg": c.sendmsg([message])
        elif kind == "writev": os.writev(c.fileno(), [message])
        elif kind == "sendfile": os.sendfile(c.fileno(), f, 0, 16)
        elif kind == "spliced":
            os.write(w, message)
            os.splice(r, c.fileno(), 16)
        else: c.send(message)
        if kind == "thread": t.join()
        elif kind == "spliced":
            os.splice(c.fileno(), w, 16)
            os.read(r, 16)
        else: c.recv(64)

if role == "server":
    log = os.open("log" + at, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # What a program prints for who started it is no request.
    subprocess.run(["echo", "x"], stdout=subprocess.PIPE)
    burn(0.01)
    main, before = os.getpid(), time.process_time_ns()
    begin = server()
    next(begin)
    print("ready", os.getpid(), flush=True)
    next(begin)
else:
    children = []
    for i in range(3):
        child = os.fork()
        if not child:
            ask()
            os._exit(0)
        children.append(child)
    print("done", *children if not any(os.waitpid(c, 0)[1] for c in children) else (), flush=True)
""" % BURN
KINDS = ["tcp", "tcp6", "unix", "packets", "datagrams", "named", "fifo", "sendmsg", "writev", "sendfile", "spliced", "thread", "threads", "worker", "forked", "forked before"]


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Requests(profile.Recorded):
    def setUp(self):
        own(self, "requests", "", os.environ.get("KPAT_KEEP_REQUESTS"))

    def run_one(self, role: str, kind: str, at: int, spins: bool, cpu: int) -> play.Process:
        argv = ["taskset", "-c", str(cpu), sys.executable, "-c", PROGRAM, role, kind, str(at), "spins" if spins else "waits"]
        p = play.Process(f"{role}-{at}", ["sh", "-c", 'cd "$0" && exec "$@"', str(self.dir), *argv], self.dir)
        self.stack.callback(p.stop)
        return p

    def all_of(self, kinds: list[str], spins: bool) -> None:
        port = 22_000 + os.getpid() % 500 * 20

        def load() -> dict:
            clients = {}
            for at, kind in enumerate(kinds, port):
                server = self.run_one("server", kind, at, spins, profile.BURN_CPU)
                pid, = self.text_of(server, "ready")
                client = self.run_one("client", kind, at, spins, profile.SEND_CPU)
                client.p.wait(60)
                clients[kind, pid] = [int(n) for n in play.text_of(client.stdout).split()[1:]]
                os.killpg(server.p.pid, signal.SIGKILL)
                server.p.wait()
            return clients

        name = "spin" if spins else "wait"
        clients, p = self.profile(name, load)
        losses = look.kpat_json("info", str(self.dir / f"{name}.kpat"))["losses"]
        got, taken = Counter(), Counter()
        for c in p["clients"]:
            got[c["client"]] += c["ns"]
        for t in p["taken"]:
            taken[t["victim"]] += t["ns"]
        for at, ((kind, server), of) in enumerate(clients.items(), port):
            self.assertEqual(len(of), 3, kind)
            truth, ran = Counter(), Counter()
            for line in (self.dir / f"log{at}").read_text().splitlines():
                client, ns, process, so_far = map(int, line.split())
                truth[client] += ns
                ran[process] = max(ran[process], so_far)
            # What the server's processes ran until the last answer, and did not burn: on slow machines it is much.
            besides = sum(ran.values()) - sum(truth.values())
            ratios = [got[c] / truth[c] for c in of]
            # A thread's own clock has what interrupts took from it, which on a busy machine is others' packets.
            of_others = sum(taken[process] for process in ran)
            print(f"requests: {kind}: {sum(truth.values()) / 1e6:.1f} ms burned; charged to clients {', '.join(f'{r:.3f}' for r in ratios)} of that, {of_others / 1e6:.1f} ms taken from the server", file=sys.stderr, flush=True)
            for client in of:
                self.assertGreater(got[client], 0.97 * truth[client] - 1e6, (kind, losses, of_others))
                # And what the server does besides; one that spins does so for whose message it took last.
                if not spins:
                    self.assertLess(got[client], 1.05 * truth[client] + max(8e6, besides), kind)
            strangers = {c["client"]: c["ns"] for c in p["clients"] if c["server"] == server and c["client"] not in of and c["ns"] > 1e6}
            self.assertEqual(strangers, {}, f"{kind}: those who asked nothing")

    def test_clients_are_charged_from_their_first_message(self):
        self.all_of(KINDS, False)

    def test_a_message_that_is_taken_before_its_senders_call_is_over(self):
        self.all_of(["tcp", "tcp6", "unix", "packets", "datagrams", "named", "fifo"], True)


# Each step waits for a signal: a recording begins and ends between two.
ASKS = """
import os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
s = socket.socket(socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET, socket.SOCK_STREAM if sys.argv[1] == "tcp" else socket.SOCK_DGRAM)
s.connect((sys.argv[2], int(sys.argv[3])))
for i in range(3): s.send(b"%-15d\\n" % os.getpid())
print("asked", os.getpid(), flush=True)
signal.sigwait([signal.SIGUSR1])
n = 0
while n < 6: n += len(s.recv(2))
print("answered", n, flush=True)
signal.pause()
"""
ANSWERS = """
import os, signal, socket, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
s.bind((address, port))
if kind == "tcp":
    s.listen(8)
print("up", os.getpid(), flush=True)
signal.sigwait([signal.SIGUSR1])
clients = [s.accept()[0] for i in range(2)] if kind == "tcp" else [None, None]
for i in range(6):
    c = clients[i // 3]
    message, who = (c.recv(16), None) if c else s.recvfrom(16)
    began = time.thread_time_ns()
    while time.thread_time_ns() - began < (12_000_000 if i < 3 else 4_000_000): pass
    print("burned", int(message), time.thread_time_ns() - began, flush=True)
    c.send(b"ok") if c else s.sendto(b"ok", who)
print("done", 0, flush=True)
signal.pause()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class AcrossHosts(profile.Place):
    """Two hosts recorded apart, which two recordings of one kernel stand for: in each only one end of a connection writes, as if the other were elsewhere."""

    def test_a_servers_work_is_its_client_on_the_other_host(self):
        self.link(self.client, "c0", "10.94.1.2", self.server, "s0", "10.94.1.1")
        for ns, dev, address in ((self.client, "c0", "fd94::2"), (self.server, "s0", "fd94::1")):
            sh("ip", "netns", "exec", ns, "sysctl", "-qw", f"net.ipv6.conf.{dev}.disable_ipv6=0")
            sh("ip", "-n", ns, "addr", "add", f"{address}/64", "dev", dev, "nodad")
        groups = []
        for kind, address, port in (("tcp", "10.94.1.1", 8001), ("tcp", "fd94::1", 50_051), ("udp", "10.94.1.1", 8002)):
            server = self.start(self.server, f"server-{port}", profile.BURN_CPU, ANSWERS, kind, address, port)
            pid, = self.text_of(server, "up")
            asking = []
            for i in range(2):
                asking.append(self.start(self.client, f"client-{port}-{i}", profile.SEND_CPU, ASKS, kind, address, port))
                self.text_of(asking[-1], "asked")
            groups.append((kind, server, pid, asking))

        def serve():
            for _, server, pid, _ in groups:
                os.kill(pid, signal.SIGUSR1)
                self.text_of(server, "done")
            return [[line.split()[1:] for line in play.text_of(server.stdout).splitlines() if line.startswith("burned")] for _, server, _, _ in groups]

        def take():
            for *_, asking in groups:
                for client in asking:
                    os.kill(client.p.pid, signal.SIGUSR1)
                    self.text_of(client, "answered")

        burned, alone = self.profile("served", serve)
        self.profile("asked", take)
        both = look.kpat_json("profile", str(self.dir / "served.kpat"), "--with", str(self.dir / "asked.kpat"), "--limit", "0")
        other = look.kpat_json("profile", str(self.dir / "asked.kpat"), "--with", str(self.dir / "served.kpat"), "--limit", "0")
        for (kind, _, pid, asking), lines in zip(groups, burned):
            truth = Counter()
            for client, ns in lines:
                truth[int(client)] += int(ns)
            by_address = sum(a["ns"] for a in alone["across"] if a["server"]["pid"] == pid and a["client"] is None and a["address"] in ("10.94.1.2", "fd94::2"))
            for client in asking:
                of = lambda p: sum(a["ns"] for a in p["across"] if a["server"]["pid"] == pid and a["client"] and a["client"]["pid"] == client.p.pid)
                print(f"across hosts: {kind}: burned for {client.p.pid} {truth[client.p.pid] / 1e6:.2f} ms, charged {of(both) / 1e6:.2f}, from the client's side {of(other) / 1e6:.2f}", file=sys.stderr, flush=True)
                self.assertGreater(of(both), 0.97 * truth[client.p.pid] - 1e6)
                # And what the server does besides: it prints a line for each.
                self.assertLess(of(both), 1.05 * truth[client.p.pid] + 4e6)
                self.assertEqual(of(both), of(other))
            self.assertGreater(by_address, 0.97 * sum(truth.values()) - 2e6)
        servers = {pid for _, _, pid, _ in groups}
        self.assertEqual({c["server"] for c in both["clients"]} & servers, set(), "nobody on this host asked")


if __name__ == "__main__":
    unittest.main()
