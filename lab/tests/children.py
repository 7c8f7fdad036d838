"""Servers that make a process for each request, as CGI and web applications do that run programs: whom those work for. Truth is what each of these processes' own clock says (CLOCK_PROCESS_CPUTIME_ID) when it has
done its work, by client, in a file."""
import os
import random
import sys
import unittest

from kpatlab import play
from tests import profile
from tests.place import own

# argv: a port, how, a file. A client says who it is and how many ms it wants, again and again, and is answered by a line. By letters: a thread for each connection (t), else one loop for all; the process makes another one,
# which works and writes to it through a pipe (g), or itself has a thread that works (h); the client is answered at once and gets the output in two pieces later (o); the process answers itself (a), or the client is
# answered at once and the process goes on for itself (d); what the process has to do is written to its standard input (i); the first request's process works for all
# requests (p).
SERVER = """
import os, select, signal, socket, sys, threading, time
port, how, file = int(sys.argv[1]), sys.argv[2], os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
clock = lambda: time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID)
def burn(ms, since=None):
    until = (clock() if since is None else since) + ms * 1_000_000
    while clock() < until: pass
def says(who): os.write(file, b"%d %d\\n" % (who, clock()))
def works(who, ms, out, connection):
    if "i" in how: ms = int(os.read(0, 20))
    if "d" in how:
        time.sleep(0.02) # by now the client is answered
        burn(ms)
        says(who)
    elif "g" in how:
        end, into = os.pipe()
        if not os.fork():
            burn(ms, 0)
            says(who)
            os.write(into, b"x")
            os._exit(0)
        os.close(into)
        os.read(end, 1)
        burn(ms)
        says(who)
        os.write(out, b"done\\n")
    elif "h" in how:
        thread = threading.Thread(target=burn, args=(ms, 0)); thread.start(); thread.join()
        says(who)
        os.write(out, b"done\\n")
    elif "a" in how:
        burn(ms, 0)
        says(who)
        connection.sendall(b"done\\n")
    else:
        burn(ms / 2, 0)
        if "o" in how: os.write(out, b"half\\n"); time.sleep(0.01)
        burn(ms, 0)
        says(who)
        os.write(out, b"done\\n")
    os._exit(0)
def makes(text, connection):
    who, ms = map(int, text.split())
    end, out = os.pipe()
    there, text = os.pipe()
    if "i" in how: os.write(text, b"%d" % ms)
    pid = os.fork()
    if not pid:
        os.dup2(there, 0)
        try: works(who, ms, out, connection)
        finally: os._exit(1)
    for fd in (out, there, text): os.close(fd)
    if "o" in how: connection.sendall(b"soon\\n")
    if "d" in how: connection.sendall(b"done\\n")
    return pid, end
pool = []
def pooled(text, connection):
    if not pool:
        ours, theirs = os.pipe(), os.pipe()
        if not os.fork():
            while text := os.read(ours[0], 20):
                began, (who, ms) = clock(), map(int, text.split())
                burn(ms)
                os.write(file, b"%d %d\\n" % (who, clock() - began))
                os.write(theirs[1], b"x")
        pool.extend((ours[1], theirs[0]))
    os.write(pool[0], text)
    os.read(pool[1], 1)
    connection.sendall(b"done\\n")
def serves(connection):
    while text := connection.recv(20):
        pid, end = makes(text, connection)
        if "d" in how: threading.Thread(target=os.waitpid, args=(pid, 0)).start()
        else:
            while text := os.read(end, 20):
                connection.sendall(text)
            os.waitpid(pid, 0)
        os.close(end)
s = socket.create_server(("127.0.0.1", port))
print("ready", os.getpid(), flush=True)
if "t" in how:
    while True: threading.Thread(target=serves, args=(s.accept()[0],)).start()
poll, to = select.epoll(), {s.fileno(): s}
poll.register(s, select.EPOLLIN)
while True:
    for fd, _ in poll.poll():
        at = to[fd]
        if at is s:
            c, _ = s.accept()
            to[c.fileno()] = c
            poll.register(c, select.EPOLLIN)
        elif isinstance(at, tuple):
            connection, pid = at
            if text := os.read(fd, 20):
                connection.sendall(text)
                continue
            poll.unregister(fd); os.close(fd); del to[fd]
            os.waitpid(pid, 0)
        elif text := at.recv(20):
            if "p" in how: pooled(text, at); continue
            pid, end = makes(text, at)
            to[end] = at, pid
            poll.register(end, select.EPOLLIN)
        else:
            poll.unregister(fd); at.close(); del to[fd]
"""
# argv: the port, who, ms, how often.
ASK = """
import signal, socket, sys, time
port, who, ms, times = map(int, sys.argv[1:])
c = socket.create_connection(("127.0.0.1", port))
lines = c.makefile("rb")
for i in range(times):
    c.sendall(b"%d %d" % (who, ms))
    while lines.readline() != b"done\\n": pass
    time.sleep(0.005)
time.sleep(0.3)
print("done", 0, flush=True)
signal.pause()
"""
MS, TIMES = (6, 12, 24), 25


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Children(profile.Recorded):
    def setUp(self):
        own(self, "children", "")

    def served(self, how: str) -> list[tuple[int, int, int]]:
        """Of each client: what was done for it, what it is charged, and of that what is unsure."""
        file = self.dir / f"did-{how}"

        def load():
            port = random.randint(20_000, 30_000)
            # on any CPU: the processes that it makes are there, too
            server = self.start(None, f"server-{how}", "0-%d" % (os.cpu_count() - 1), SERVER, port, how, file)
            self.text_of(server, "ready")
            clients = [self.start(None, f"ask-{how}{i}", profile.SEND_CPU, ASK, port, i, ms, TIMES) for i, ms in enumerate(MS)]
            for c in clients:
                self.text_of(c, "done")
            return [c.p.pid for c in clients]

        clients, p = self.profile(f"children-{how}", load)
        did, got = [0] * len(MS), []
        for line in file.read_text().splitlines():
            who, ns = map(int, line.split())
            did[who] += ns
        for client, truth in zip(clients, did):
            of = [c for c in p["clients"] if c["client"] == client]
            got.append((truth, sum(c["ns"] for c in of), sum(c["unsure_ns"] for c in of)))
            print(f"children: {how}: {truth / 1e9:.4f} s by their own clocks, charged {got[-1][1] / 1e9:.4f} s, of which unsure {got[-1][2] / 1e9:.4f} s", file=sys.stderr, flush=True)
        return got

    def are_charged(self, *hows: str, share: float = 0.85) -> None:
        for how in hows:
            for truth, charged, unsure in self.served(how):
                self.assertGreater(charged, share * truth - 0.005e9 - self.stolen_ns)
                # beside it what the server does itself for each, which copies what Python has
                self.assertLess(charged - unsure, 1.1 * truth + TIMES * 5_000_000)

    def test_what_a_process_does_for_a_request_is_for_the_client(self):
        self.are_charged("t", "l")

    def test_also_what_it_has_others_do(self):
        self.are_charged("tg", "th")

    def test_also_if_it_is_told_what_to_do(self):
        self.are_charged("ti")

    def test_also_if_it_answers_itself(self):
        self.are_charged("ta")

    def test_also_if_the_client_gets_its_output_after_the_answer(self):
        self.are_charged("to")

    def test_what_it_does_when_the_client_is_answered_is_its_own(self):
        for truth, charged, _ in self.served("td"):
            self.assertGreater(truth, TIMES * 4_000_000)
            self.assertLess(charged, TIMES * 5_000_000 + 0.1 * truth)

    def test_a_program_in_a_shells_place_was_handed_nothing(self):
        """The shell has read what several programs said, as wrappers of programs do (pyenv's), and is another program then."""
        burn = "import signal, time\nwhile time.thread_time() < 0.3: pass\nprint('burned', flush=True)\nsignal.pause()"
        shell = ["sh", "-c", 'x=$(echo a); echo b | cat > /dev/null; y=$(echo c); exec "$0" -c "$1"', sys.executable, burn]
        pids = []

        def load():
            wrapped = play.Process("wrapped", shell, self.dir)
            self.stack.callback(wrapped.stop)
            wrapped.wait_ready(lambda: "burned" in play.text_of(wrapped.stdout), 30)
            pids.append(wrapped.p.pid)

        _, p = self.profile("wrapped", load)
        (program,) = [x for x in p["processes"] if x["pid"] == pids[0]]
        self.assertGreater(program["user_ns"] + program["kernel_ns"], 0.25e9)
        # The shell itself was: 11 ms in an emulated computer.
        self.assertLess(program["handed_for_none_ns"], 0.05e9)

    def test_what_it_does_for_later_requests_is_not_the_first_clients(self):
        did = self.served("p")
        for truth, charged, _ in did:
            self.assertLess(charged, TIMES * 2_000_000 + 2 * max(MS) * 1_000_000 + 0.1 * truth)
        self.assertGreater(sum(truth for truth, *_ in did), 0.9e9)


if __name__ == "__main__":
    unittest.main()
