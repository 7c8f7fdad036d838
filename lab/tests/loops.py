"""Servers whose threads share a client's request: an event loop that takes several clients' messages before it answers the first, has a pool compute and writes the answers, or a thread that waits
until another one has the result. Truth is the program's own: what its threads' clocks say that each client's requests took, and what its process ran in all."""
import os
import random
import sys
import unittest

from tests import profile
from tests.place import own

# argv: a port, how, how many seconds it lets messages wait before it takes the first. Each client asks by lines of its number and how much there is to do, and waits for the answer.
SERVER = """
import asyncio, hashlib, os, selectors, signal, socket, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
port, how, pause, clients = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), 3
spent, ends, lock = [0] * clients, [], threading.Lock()
pool = ThreadPoolExecutor(2)

def burn(line):
    client, much = map(int, line.split())
    began = time.thread_time_ns()
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", much)
    with lock: spent[client] += time.thread_time_ns() - began

def over():
    with lock: ends.append(1)
    if len(ends) == clients:
        print("did", os.getpid(), time.process_time_ns() - before, *spent, flush=True)

async def handle(r, w):
    while line := await r.readline():
        if how == "loop": burn(line)
        else: await asyncio.get_running_loop().run_in_executor(pool, burn, line)
        w.write(b"ok\\n")
    over()

def wait(c):
    for line in c.makefile("rb"):
        pool.submit(burn, line).result()
        c.sendall(b"ok\\n")
    over()

s = socket.create_server(("127.0.0.1", port))
before = time.process_time_ns()
print("ready", os.getpid(), flush=True)
if how == "results":
    for _ in range(clients): threading.Thread(target=wait, args=(s.accept()[0],)).start()
    signal.pause()
if how in ("first", "later"):
    wait, left = selectors.DefaultSelector(), clients
    for _ in range(clients): wait.register(s.accept()[0], selectors.EVENT_READ)
    time.sleep(pause)
    while left:
        taken = []
        for at, _ in wait.select():
            lines = at.fileobj.recv(1000).splitlines()
            if not lines:
                wait.unregister(at.fileobj)
                left -= 1
                over()
            for line in lines:
                if how == "first": burn(line)
                taken.append((line, at.fileobj))
        for line, c in taken:
            if how == "later": burn(line)
            c.sendall(b"ok\\n")
    signal.pause()
async def main():
    async with await asyncio.start_server(handle, sock=s) as server: await server.serve_forever()
asyncio.run(main())
"""
ASK = """
import signal, socket, sys
port, client, much, times, more = map(int, sys.argv[1:])
s = socket.create_connection(("127.0.0.1", port))
f = s.makefile("rb")
for i in range(times + more):
    if i < times: s.sendall(b"%d %d\\n" % (client, much))
    if i >= more and f.readline() != b"ok\\n": sys.exit(3)
s.shutdown(socket.SHUT_WR)
signal.pause()
"""
MUCH, TIMES = (2000, 4000, 8000), 80


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Loops(profile.Recorded):
    def setUp(self):
        own(self, "loops", "")

    def served(self, how: str, more: int = 0, times: int = TIMES, pause: float = 0) -> tuple[dict, list[dict], list[int], int]:
        """The server, what each client is charged with, what it says itself, and what it did besides; `more`: so many of a client's `times` requests are under way beside one."""
        def load():
            port = random.randint(20_000, 30_000)
            server = self.start(None, f"server-{how}{more}-{times}", f"{profile.SEND_CPU},{profile.BURN_CPU}", SERVER, port, how, pause)
            self.text_of(server, "ready")
            clients = [self.start(None, f"ask-{how}{more}-{times}-{i}", profile.SEND_CPU, ASK, port, i, much, times, more) for i, much in enumerate(MUCH)]
            return self.text_of(server, "did"), [c.p.pid for c in clients]

        ((server, ran, *spent), clients), p = self.profile(f"{how}{more}-{times}", load)
        got = {c["client"]: c for c in p["clients"] if c["server"] == server}
        self.assertEqual(set(got), set(clients))
        x, besides = self.of(p, server), ran - sum(spent)
        for c, truth in zip(clients, spent):
            print(f"loops: {how}: {truth / 1e9:.4f} s by its own clocks, charged {got[c]['ns'] / 1e9:.4f} s, handed {got[c]['handed_ns'] / 1e9:.4f} s, of which unsure {got[c]['unsure_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)
            self.assertLessEqual(got[c]["unsure_ns"], got[c]["handed_ns"])
        print(f"loops: {how}: for no client that is known {x['handed_for_none_ns'] / 1e9:.4f} s, besides {besides / 1e9:.4f} s", file=sys.stderr, flush=True)
        return x, [got[c] for c in clients], spent, besides

    def test_a_loops_answers_tell_for_whom_it_worked(self):
        x, got, spent, besides = self.served("loop")
        for c, truth in zip(got, spent):
            self.assertGreater(c["ns"], 0.95 * truth - 0.005e9 - self.stolen_ns - x["taken_ns"])
            # Each message has the same beside.
            self.assertLess(c["ns"], 1.05 * truth + 0.6 * besides + 0.005e9)

    def test_a_loop_that_works_as_it_reads_and_one_that_works_later(self):
        # An answer comes when all that was there is taken, as with one fsync for many; or each after its own work.
        for how, more in (("first", 0), ("first", 3), ("later", 3)):
            x, got, spent, besides = self.served(how, more)
            for c, truth in zip(got, spent):
                self.assertGreater(c["ns"], 0.92 * truth - 0.005e9 - self.stolen_ns - x["taken_ns"] - sum(o["unsure_ns"] for o in got))
                self.assertLess(c["ns"] - c["unsure_ns"], 1.08 * truth + 0.6 * besides + 0.005e9)
            self.assertLess(sum(c["unsure_ns"] for c in got), 0.25 * sum(spent), "hardly anything is sure")

    def test_what_it_took_before_it_answered_anybody(self):
        # All requests are there before the server reads the first: no earlier answer shows whether it works as it reads, or later.
        x, got, spent, besides = self.served("later", 127, 128, 1)
        for c, truth in zip(got, spent):
            self.assertLess(abs(c["ns"] - truth), 0.08 * truth + 0.6 * besides + 0.005e9 + self.stolen_ns + x["taken_ns"])

    def test_what_a_pool_computes_is_for_whom_the_loop_answers(self):
        x, got, spent, besides = self.served("pool")
        for c, truth in zip(got, spent):
            self.assertLess(c["ns"] - c["unsure_ns"], 1.1 * truth + 0.6 * besides + 0.01e9, "another's, and it is not said")
        # Threads that wait for Python's lock are often told of late: then nothing says for whom it was.
        self.assertLess(x["handed_for_none_ns"], 0.95 * sum(spent), "hardly anything is told")
        self.assertLess(x["handed_ns"] + x["handed_for_none_ns"], 1.05 * sum(spent) + besides + 0.01e9)

    def test_who_waits_for_a_result_has_it_done_for_its_client(self):
        x, got, spent, besides = self.served("results")
        for c, truth in zip(got, spent):
            self.assertLess(c["ns"] - c["unsure_ns"], 1.1 * truth + 0.6 * besides + 0.01e9, "another's, and it is not said")
        # One that finds the result there did not wait: of that nothing is known.
        self.assertLess(x["handed_for_none_ns"], 0.9 * sum(spent), "hardly anything is told")


if __name__ == "__main__":
    unittest.main()
