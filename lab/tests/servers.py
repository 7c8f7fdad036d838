"""Servers that do something of their own beside what their clients ask, and those that do one client's work when another's message came meanwhile. Truth is each server's own: what its clock says that it spent
on whom."""
import os
import random
import sys
import unittest

from tests import profile
from tests.place import own

# argv: a port, how. Work of its own is done when a time is over (by epoll, or asleep between looks at its sockets), for a connection that is new, or at its end.
OWN = """
import os, select, signal, socket, sys, time
port, how = int(sys.argv[1]), sys.argv[2]
spent = {"own": 0, "A": 0, "B": 0}
def burn(whose, ms):
    began = time.thread_time_ns()
    while time.thread_time_ns() < began + ms * 1e6: pass
    spent[whose] += time.thread_time_ns() - began
s = socket.create_server(("127.0.0.1", port))
print("ready", os.getpid(), flush=True)
wait, by, left = select.epoll(), {}, 3
wait.register(s, select.EPOLLIN)
while left:
    if how == "sleeps":
        time.sleep(0.005)
        ready = wait.poll(0)
        if spent["A"]: burn("own", 4)
    else:
        ready = wait.poll(0.01)
        if not ready and how == "times" and spent["A"]: burn("own", 4)
    for fd, _ in ready:
        if fd == s.fileno():
            c, _ = s.accept(); by[c.fileno()] = c; wait.register(c, select.EPOLLIN)
            if how == "comes": burn("own", 5)
            continue
        c, text = by[fd], by[fd].recv(16)
        if not text:
            wait.unregister(fd); del by[fd]; c.close()
            if how == "goes": burn("own", 5)
        elif text == b"end":
            left -= 1
        else:
            burn(text.decode(), 2); c.sendall(b"done")
print("did", spent["own"], spent["A"], spent["B"], flush=True)
signal.pause()
"""
# argv: the port, a name, how many requests, seconds between two. C connects and says nothing.
ASK_OWN = """
import signal, socket, sys, time
port, name, times, between = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
at = ("127.0.0.1", port)
c = socket.create_connection(at)
for i in range(times):
    if name == "C":
        other = socket.create_connection(at); time.sleep(0.01); other.close()
    else:
        c.sendall(name.encode())
        if c.recv(4, socket.MSG_WAITALL) != b"done": sys.exit(3)
    time.sleep(between)
c.sendall(b"end")
print("done", 0, flush=True)
signal.pause()
"""
# argv: a port, the port of who listens behind, how: datagrams (`to`: a socket without a peer, `with`: one with a peer), or a connection; one socket behind for all clients. The work is done when the answer comes.
FORWARD = """
import os, select, signal, socket, sys, time
port, behind, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
spent, waiting, left, n = [0, 0], {}, 2, 0
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", port))
if how == "connection":
    u = socket.create_connection(("127.0.0.1", behind))
else:
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.connect(("127.0.0.1", behind)) if how == "with" else u.bind(("127.0.0.1", 0))
print("ready", os.getpid(), flush=True)
while left:
    for f in select.select([s, u], [], [])[0]:
        if f is s:
            text, who = s.recvfrom(16)
            if text == b"end": left -= 1; continue
            name, ms = map(int, text.split()); n += 1; waiting[n] = who, name, ms
            u.sendto(b"%8d" % n, ("127.0.0.1", behind)) if how == "to" else u.send(b"%8d" % n)
        else:
            text = u.recv(8, socket.MSG_WAITALL) if how == "connection" else u.recvfrom(16)[0] # a resolver looks who it was
            who, name, ms = waiting.pop(int(text))
            began = time.thread_time_ns()
            while time.thread_time_ns() < began + ms * 1e6: pass
            spent[name] += time.thread_time_ns() - began
            s.sendto(b"done", who)
print("did", *spent, flush=True)
signal.pause()
"""
# Answers each after 4 ms, so that both clients' requests are under way.
BEHIND = """
import os, select, socket, sys, time
port, how = int(sys.argv[1]), sys.argv[2]
s = socket.create_server(("127.0.0.1", port)) if how == "connection" else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if how != "connection": s.bind(("127.0.0.1", port))
print("ready", os.getpid(), flush=True)
if how == "connection": s, _ = s.accept()
later = []
while True:
    if select.select([s], [], [], max(0, later[0][0] - time.monotonic()) if later else None)[0]:
        text, who = (s.recv(8, socket.MSG_WAITALL), None) if how == "connection" else s.recvfrom(16)
        if not text: break
        later.append((time.monotonic() + 0.004, text, who))
    while later and later[0][0] <= time.monotonic():
        _, text, who = later.pop(0)
        s.sendto(text, who) if who else s.send(text)
"""
ASK_FORWARD = """
import signal, socket, sys
port, name, ms, times = map(int, sys.argv[1:])
c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); c.connect(("127.0.0.1", port))
for i in range(times):
    c.send(b"%d %d" % (name, ms))
    if c.recv(16) != b"done": sys.exit(3)
c.send(b"end")
print("done", 0, flush=True)
signal.pause()
"""
# Tells two listeners, who ask once, what the third client says, and works for the fourth: it answers when it has read all that was there, so its answers tell.
TELL = """
import os, select, signal, socket, sys, time
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", os.getpid(), flush=True)
clients, spent = [], [0, 0]
for _ in range(4):
    c, _ = s.accept(); clients.append(c)
clients.sort(key=lambda c: int(c.recv(1)))
for c in clients: c.sendall(b"done")
left = {*clients[2:]}
while left:
    answers = []
    for c in select.select([*left], [], [])[0]:
        began, which = time.thread_time_ns(), clients.index(c) - 2
        if not c.recv(4): left.discard(c); continue
        while time.thread_time_ns() < began + (1e6, 3e6)[which]: pass
        answers += [(which, c), *((which, listener) for listener in clients[:2] if not which)]
        spent[which] += time.thread_time_ns() - began
    for which, c in answers:
        began = time.thread_time_ns()
        c.sendall(b"done")
        spent[which] += time.thread_time_ns() - began
print("did", *spent, flush=True)
signal.pause()
"""
ASK_TELL = """
import signal, socket, sys
port, name, times = map(int, sys.argv[1:])
c = socket.create_connection(("127.0.0.1", port)); c.sendall(b"%d" % name); c.recv(4, socket.MSG_WAITALL)
if name < 2:
    while c.recv(4, socket.MSG_WAITALL): pass
for i in range(times):
    c.sendall(b"more")
    if c.recv(4, socket.MSG_WAITALL) != b"done": sys.exit(3)
c.shutdown(socket.SHUT_WR)
signal.pause()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Servers(profile.Recorded):
    def setUp(self):
        own(self, "servers", "")

    def charged(self, name: str, server: int, truth: dict[int, int], p: dict, each_ns: int) -> None:
        """`each_ns`: what the server may do beside for each client."""
        got = {c["client"]: c for c in p["clients"] if c["server"] == server}
        taken = self.of(p, server)["taken_ns"]
        for client, ns in truth.items():
            c = got[client]
            print(f"servers: {name}: {ns / 1e9:.4f} s by its own clock, charged {c['ns'] / 1e9:.4f} s, of which unsure {c['unsure_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)
            self.assertGreater(c["ns"], 0.9 * ns - 0.005e9 - self.stolen_ns - taken)
            self.assertLess(c["ns"] - c["unsure_ns"], 1.1 * ns + 0.005e9 + each_ns)
            self.assertLess(c["unsure_ns"], 0.2 * ns + 0.005e9, "hardly anything is sure")

    def test_what_a_server_does_of_its_own_is_no_clients(self):
        for how in ("times", "sleeps", "comes", "goes"):
            def load():
                port = random.randint(20_000, 30_000)
                server = self.start(None, f"own-{how}", profile.BURN_CPU, OWN, port, how)
                pid, = self.text_of(server, "ready")
                a, b = (self.start(None, f"ask-{how}-{name}", profile.SEND_CPU, ASK_OWN, port, name, times, between) for name, times, between in (("A", 40, 0.05), ("B", 1, 0)))
                c = self.start(None, f"ask-{how}-C", profile.SEND_CPU, ASK_OWN, port, "C", 60 if how in ("comes", "goes") else 0, 0.02)
                return pid, self.text_of(server, "did"), a.p.pid, b.p.pid, c.p.pid

            (server, did, a, b, c), p = self.profile(f"own-{how}", load)
            print(f"servers: {how}: {did[0] / 1e9:.4f} s of its own", file=sys.stderr, flush=True)
            self.assertGreater(did[0], 2 * did[1], "it did nothing of its own")
            # Calls, and Python's between them.
            self.charged(how, server, {a: did[1], b: did[2]}, p, 40 * 500_000)
            self.assertLess(sum(x["ns"] for x in p["clients"] if (x["server"], x["client"]) == (server, c)), 0.01e9)

    def test_a_server_that_forwards_works_for_whom_it_answers(self):
        for how in ("to", "with", "connection"):
            def load():
                port, behind = random.sample(range(20_000, 30_000), 2)
                self.text_of(self.start(None, f"behind-{how}", profile.SEND_CPU, BEHIND, behind, how), "ready")
                server = self.start(None, f"forward-{how}", profile.BURN_CPU, FORWARD, port, behind, how)
                pid, = self.text_of(server, "ready")
                # As many seconds of each, so that both are under way nearly always.
                clients = [self.start(None, f"ask-{how}{i}", profile.SEND_CPU, ASK_FORWARD, port, i, ms, times) for i, (ms, times) in enumerate(((1, 200), (5, 200)))]
                return pid, self.text_of(server, "did"), [c.p.pid for c in clients]

            (server, did, clients), p = self.profile(f"forward-{how}", load)
            self.charged(how, server, dict(zip(clients, did)), p, 200 * 500_000)

    def test_who_listens_to_others_asked_nothing(self):
        def load():
            port = random.randint(20_000, 30_000)
            server = self.start(None, "tell", profile.BURN_CPU, TELL, port)
            pid, = self.text_of(server, "ready")
            clients = [self.start(None, f"ask-tell{i}", profile.SEND_CPU, ASK_TELL, port, i, times) for i, times in enumerate((0, 0, 250, 250))]
            return pid, self.text_of(server, "did"), [c.p.pid for c in clients]

        (server, did, clients), p = self.profile("tell", load)
        self.charged("tell", server, dict(zip(clients[2:], did)), p, 250 * 300_000)
        for listener in clients[:2]:
            got = sum(c["ns"] - c["unsure_ns"] for c in p["clients"] if (c["server"], c["client"]) == (server, listener))
            print(f"servers: tell: a listener is charged {got / 1e9:.4f} s", file=sys.stderr, flush=True)
            self.assertLess(got, 0.01e9)


if __name__ == "__main__":
    unittest.main()
