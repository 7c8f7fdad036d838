"""For whom a server works: who asks and who answers, over unix sockets and TCP, with servers that greet first, a proxy between, clients of one request each, and
what is no dialog at all: pipelines, and the pipe by which perf starts its program. Truth is what each program burns by its own clock."""
import os
import sys
import unittest

from kpatlab import cache, play
from tests import profile
from tests.place import own, sh

BURN = """
import time
def burn(s):
    until = time.thread_time() + s
    while time.thread_time() < until: pass
"""
# Serves connections one after the other; burns 30 ms a request, asks another server for it if it has one and burns 20 ms more. Prints of each connection what
# its requests took: more than was meant where the machine stood still.
SERVE = BURN + """
import os, socket, sys
kind, where, greets, behind = sys.argv[1:]
if kind == "unix":
    s = socket.socket(socket.AF_UNIX)
    s.bind(where)
    s.listen()
else:
    s = socket.create_server((kind, int(where)), family=socket.AF_INET6 if ":" in kind else socket.AF_INET)
print("ready", os.getpid(), time.process_time_ns(), flush=True)
while True:
    c, _ = s.accept()
    if greets == "yes": c.send(b"hello")
    if behind != "none":
        b = socket.socket(socket.AF_UNIX)
        b.connect(behind)
    took = 0
    while c.recv(64):
        began = time.thread_time_ns()
        burn(0.03)
        if behind != "none":
            b.send(b"ask")
            b.recv(64)
            burn(0.02)
        took += time.thread_time_ns() - began
        c.send(b"ok")
    c.close()
    if behind != "none": b.close()
    print("burned", took, time.process_time_ns(), flush=True)
"""
# Burns 10 ms after each answer.
ASK = BURN + """
import os, socket, sys
kind, where, greets, times = sys.argv[1:]
if kind == "unix":
    s = socket.socket(socket.AF_UNIX)
    s.connect(where)
else: s = socket.create_connection((kind, int(where)))
if greets == "yes": s.recv(64)
for i in range(int(times)):
    s.send(b"ask")
    s.recv(64)
    burn(0.01)
print("done", os.getpid(), flush=True)
"""
# Serves one connection on a thread, and asks another such program on the other one, where it works for itself after each answer. `begins`: it asks first.
BOTH = BURN + """
import os, signal, socket, sys, threading
kind, mine, others, begins, serves_for, works_for = sys.argv[1:]
at = (lambda x: x) if kind == "unix" else lambda x: (kind, int(x))
family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
s = socket.socket(family); s.bind(at(mine)); s.listen()
took = [0, 0]
def did(which, what):
    began = time.thread_time_ns()
    burn(float(what))
    took[which] += time.thread_time_ns() - began
def serve():
    c, _ = s.accept()
    while c.recv(1): did(0, serves_for); c.send(b"y")
serving = threading.Thread(target=serve)
serving.start()
print("ready", os.getpid(), flush=True)
c = socket.socket(family)
while True:
    try: c.connect(at(others)); break
    except OSError: time.sleep(0.01)
if begins == "no": time.sleep(0.2)
for i in range(40): c.send(b"x"); c.recv(1); did(1, works_for)
c.close(); serving.join()
print("did", *took, flush=True)
signal.pause()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Dialogs(profile.Recorded):
    def setUp(self):
        own(self, "dialogs", "")
        self.servers = {}

    def served(self, p: dict, server: int) -> dict[int, float]:
        return {c["client"]: c["ns"] / 1e9 for c in p["clients"] if c["server"] == server}

    def server(self, name: str, kind: str, where, greets: str = "no", behind="none") -> int:
        server = self.start(None, name, profile.BURN_CPU, SERVE, kind, where, greets, behind)
        pid, server.at_ready = self.text_of(server, "ready")
        self.servers[pid] = server
        return pid

    def burned(self, server: int, connections: int) -> list[float]:
        """Seconds for each connection. `besides`: what the server's process ran otherwise, which on slow machines is much."""
        server = self.servers[server]
        lines = lambda: [line.split()[1:] for line in play.text_of(server.stdout).splitlines() if line.startswith("burned ")]
        server.wait_ready(lambda: len(lines()) >= connections, cache.patience())
        took = [int(t) / 1e9 for t, _ in lines()]
        self.besides = int(lines()[-1][1]) / 1e9 - int(server.at_ready) / 1e9 - sum(took)
        return took

    def ask(self, name: str, kind: str, where, times: int, greets: str = "no") -> int:
        client = self.start(None, name, profile.SEND_CPU, ASK, kind, where, greets, times)
        pid = client.p.pid
        client.p.wait(60)
        self.assertEqual(client.p.returncode, 0)
        return pid

    def near(self, what: str, got: float, truth: float) -> None:
        print(f"dialogs: {what}: {got:.3f} s, truth {truth:.3f} s, the server besides {self.besides:.3f} s", file=sys.stderr, flush=True)
        self.assertGreater(got, 0.95 * truth, what)
        self.assertLess(got, 1.02 * truth + self.besides + 0.005, what)

    def test_a_client_is_who_asks_and_works_for_itself(self):
        port = 22_000 + os.getpid() % 8000
        for kind, where, greets in (("unix", self.dir / "plain", "no"), ("unix", self.dir / "greets", "yes"), ("127.0.0.1", port, "yes"), ("::1", port + 1, "no")):
            def load():
                server = self.server(f"serve-{kind}-{greets}", kind, where, greets)
                return server, [self.ask(f"ask-{kind}-{greets}{n}", kind, where, n, greets) for n in (5, 10)]

            (server, clients), p = self.profile(f"dialog-{kind}-{greets}".replace(":", "_"), load)
            got = self.served(p, server)
            for client, all_, which in zip(clients, self.burned(server, 2), ("first", "second")):
                self.near(f"{kind}, greets {greets}, {which} client", got.get(client, 0), all_)
            for client in clients:
                self.assertEqual(self.served(p, client), {}, "a client works for itself")

    def test_a_server_on_a_port_of_clients_numbers(self):
        """It was there before the recording and greets, as who asks does: gRPC's 50051."""
        port = 50_000 + os.getpid() % 8000
        server = self.server("high", "127.0.0.1", port, "yes")
        clients, p = self.profile("high", lambda: [self.ask(f"ask-high{n}", "127.0.0.1", port, n, "yes") for n in (5, 10)])
        got = self.served(p, server)
        for client, all_ in zip(clients, self.burned(server, 2)):
            self.near("port of a client's number", got.get(client, 0), all_)
            self.assertEqual(self.served(p, client), {}, "a client works for itself")

    def test_two_that_ask_each_other_are_each_the_others_client(self):
        port = 22_000 + os.getpid() % 8000
        for kind, one, other in (("127.0.0.1", port, port + 1), ("unix", self.dir / "one", self.dir / "other")):
            def load():
                both = [self.start(None, f"both-{kind}-{begins}", cpu, BOTH, kind, mine, others, begins, serves, works)
                        for mine, others, begins, cpu, serves, works in ((one, other, "yes", profile.BURN_CPU, 0.002, 0.001), (other, one, "no", profile.SEND_CPU, 0.001, 0.003))]
                return [self.text_of(b, "ready")[0] for b in both], [self.text_of(b, "did") for b in both]

            (pids, did), p = self.profile(f"both-{kind}", load)
            for server, client, (served, itself) in zip(pids, pids[::-1], did):
                got = self.served(p, server).get(client, 0)
                print(f"dialogs: {kind}: charged {got:.3f} s for who is its server, too, truth {served / 1e9:.3f} s, for itself {itself / 1e9:.3f} s", file=sys.stderr, flush=True)
                self.assertGreater(got, 0.95 * served / 1e9)
                self.assertLess(got, 1.05 * served / 1e9 + 40 * 0.0003 + 0.005)

    def test_a_proxy_works_for_its_client_also_after_the_answer_from_behind(self):
        front, back = self.dir / "front", self.dir / "back"

        def load():
            behind = self.server("behind", "unix", back)
            proxy = self.server("proxy", "unix", front, "no", back)
            return behind, proxy, [self.ask(f"ask-proxy{n}", "unix", front, 8) for n in range(2)]

        (behind, proxy, clients), p = self.profile("proxy", load)
        got = self.served(p, proxy)
        for client, all_, which in zip(clients, self.burned(proxy, 2), ("first", "second")):
            self.near(f"proxy for its {which} client", got.get(client, 0), all_)
        self.assertNotIn(behind, got, "an answer is no request")
        self.near("server behind for the proxy", self.served(p, behind).get(proxy, 0), sum(self.burned(behind, 2)))

    def test_clients_of_one_request_each(self):
        at = self.dir / "once"

        def load():
            server = self.server("once", "unix", at)
            return server, [self.ask(f"once{n}", "unix", at, 1) for n in range(12)]

        (server, clients), p = self.profile("once", load)
        got = self.served(p, server)
        self.assertEqual(set(clients) - set(got), set(), "clients for whom nothing was done")
        self.near("server for all clients", sum(got[c] for c in clients), sum(self.burned(server, 12)))

    def test_what_goes_one_way_is_no_request(self):
        burn = f"{sys.executable} -c 'import time\nwhile time.thread_time() < 0.3: pass'"

        def load():
            sh("sh", "-c", f"head -c 50000000 /dev/zero | gzip -1 | md5sum; {burn}", seconds=60)
            return None

        _, p = self.profile("pipeline", load)
        names = {x["pid"]: x["name"] for x in p["processes"]}
        wrong = [(names.get(c["server"]), names.get(c["client"]), c["ns"]) for c in p["clients"] if names.get(c["server"]) in ("gzip", "md5sum", "head", "sh") and c["ns"] > 1e6]
        self.assertEqual(wrong, [], "what reads a pipe is no server")
