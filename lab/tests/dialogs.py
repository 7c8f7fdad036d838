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
