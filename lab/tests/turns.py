"""Threads that work for several clients in turns, as those of a program with threads of its own (Go): a request is taken by one thread, put aside in the midst of its work and gone on with by whichever thread
is free, without a word to the kernel. And a server that tells all of its clients what one of them said. Truth is the program's own: what its threads' clocks say that each client's requests took."""
import os
import random
import shutil
import subprocess
import sys
import unittest

from kpatlab import play
from tests import profile
from tests.place import own, sh

# argv: how (turns, tells), how many requests a client has, a port. Work is in slices; a thread goes on with what was put aside first, and looks for messages now and then.
TURNS = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#define CLIENTS 3
#define THREADS 2
static const int slices[CLIENTS] = { 2, 4, 8 };
static struct { int client, left; } aside[CLIENTS];
static struct pollfd p[CLIENTS];
static int waiting, tells, left = CLIENTS;
static long spent[CLIENTS];
static volatile char busy;
static void lock(void) { while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) ; }
static void unlock(void) { __atomic_clear(&busy, __ATOMIC_RELEASE); }
static void slice(int client)
{
	struct timespec b, e;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	for (volatile long i = 0; i < 1500000; i++);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &e);
	__atomic_fetch_add(&spent[client], (e.tv_sec - b.tv_sec) * 1000000000L + e.tv_nsec - b.tv_nsec, __ATOMIC_RELAXED);
}
/* A request: one that is new, if any, else the one put aside first. */
static int next(int *todo)
{
	char text[4];
	int client = -1, n;
	lock();
	for (int i = 0; i < CLIENTS && client < 0; i++) {
		if (p[i].fd < 0 || (n = recv(p[i].fd, text, 4, MSG_DONTWAIT)) < 0) continue;
		if (!n) { p[i].fd = -1; left--; continue; }
		client = i;
		*todo = slices[i];
	}
	if (client < 0 && waiting) {
		client = aside[0].client;
		*todo = aside[0].left;
		memmove(aside, aside + 1, --waiting * sizeof *aside);
	}
	unlock();
	return client;
}
static void *work(void *unused)
{
	for (int client, todo; left || waiting;) {
		client = next(&todo);
		if (client < 0) { if (left) poll(p, CLIENTS, 1); continue; }
		for (int i = 0; i < (tells ? todo : 2); i++) slice(client);
		if (!tells && todo > 2) {
			lock();
			aside[waiting].client = client;
			aside[waiting++].left = todo - 2;
			unlock();
		} else if (tells) {
			for (int i = 0; i < CLIENTS; i++) if (p[i].fd >= 0 && send(p[i].fd, "said", 4, MSG_NOSIGNAL) != 4) exit(4);
		} else if (send(p[client].fd, "done", 4, 0) != 4) {
			exit(4);
		}
	}
	return NULL;
}
static void ask(int fd, int times)
{
	char text[4];
	for (int i = 0; i < times; i++) {
		if (send(fd, "todo", 4, 0) != 4 || recv(fd, text, 4, MSG_WAITALL) != 4) exit(6);
		if (tells) usleep(2000);
	}
	shutdown(fd, SHUT_WR);
	while (recv(fd, text, 4, 0) > 0);
	pause();
}
int main(int argc, char **argv)
{
	int s = socket(AF_INET, SOCK_STREAM, 0), pids[CLIENTS], one = 1;
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	pthread_t threads[THREADS];
	tells = !strcmp(argv[1], "tells");
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (void *)&in, sizeof in) || listen(s, 9)) return 2;
	for (int i = 0; i < CLIENTS; i++) {
		if (!(pids[i] = fork())) {
			int fd = socket(AF_INET, SOCK_STREAM, 0);
			close(s);
			if (connect(fd, (void *)&in, sizeof in)) exit(3);
			ask(fd, atoi(argv[2]));
		}
		p[i] = (struct pollfd){ .fd = accept(s, 0, 0), .events = POLLIN };
	}
	for (int i = 0; i < (tells ? 1 : THREADS); i++) pthread_create(&threads[i], 0, work, 0);
	for (int i = 0; i < (tells ? 1 : THREADS); i++) pthread_join(threads[i], 0);
	printf("clients %d %d %d\n", pids[0], pids[1], pids[2]);
	printf("did %d %ld %ld %ld\n", getpid(), spent[0], spent[1], spent[2]);
	fflush(stdout);
	pause();
}
"""
TIMES = 150
# Go's scheduler puts a request aside after 10 ms.
GO = r"""
package main

import ("fmt"; "io"; "net"; "os"; "strconv"; "strings")

func serve(c net.Conn) {
	text := make([]byte, 4)
	for {
		if _, err := io.ReadFull(c, text); err != nil { return }
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		x := 0
		for i := 0; i < n*1000000; i++ { x += i & 3 }
		fmt.Fprintf(c, "%4d", x % 10)
	}
}

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:" + os.Args[1])
	if err != nil { panic(err) }
	fmt.Println("ready", os.Getpid())
	for {
		c, err := l.Accept()
		if err != nil { panic(err) }
		go serve(c)
	}
}
"""
ASK = """
import signal, socket, sys
port, work, times = map(int, sys.argv[1:])
c = socket.create_connection(("127.0.0.1", port))
for i in range(times):
    c.sendall(b"%4d" % work)
    if len(c.recv(4, socket.MSG_WAITALL)) != 4: sys.exit(3)
print("done", work, flush=True)
signal.pause()
"""
WORK, GO_TIMES = (15, 30, 60), 50
GO_TOOL = shutil.which("go") or shutil.which("/usr/local/go/bin/go")


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
@unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
class Turns(profile.Recorded):
    def setUp(self):
        own(self, "turns", "")
        source, self.program = self.dir / "turns.c", self.dir / "turns"
        source.write_text(TURNS)
        sh("cc", "-O1", "-pthread", "-o", self.program, source)

    def served(self, how: str) -> None:
        def load():
            p = play.Process(f"turns-{how}", [str(self.program), how, str(TIMES), str(random.randint(20_000, 30_000))], self.dir)
            self.stack.callback(p.stop)
            return self.text_of(p, "did"), self.text_of(p, "clients")

        ((server, *did), clients), p = self.profile(f"turns-{how}", load)
        got = {c["client"]: c for c in p["clients"] if c["server"] == server}
        x = self.of(p, server)
        besides = self.own_ns(x) - sum(did)
        for c, truth in zip(clients, did):
            print(f"turns: {how}: {truth / 1e9:.4f} s by its own clocks, charged {got[c]['ns'] / 1e9:.4f} s, of which unsure {got[c]['unsure_ns'] / 1e9:.4f} s; the server did {besides / 1e9:.4f} s besides", file=sys.stderr, flush=True)
        for c, truth in zip(clients, did):
            # What interrupts take from its threads is in their clocks; what a thread does besides is whose the last message or the next answer is.
            self.assertGreater(got[c]["ns"] + sum(got[o]["unsure_ns"] for o in clients), 0.9 * truth - 0.01e9 - self.stolen_ns - x["taken_ns"])
            self.assertLess(got[c]["ns"] - got[c]["unsure_ns"], 1.1 * truth + 0.01e9 + 0.6 * max(besides, 0))

    def test_threads_that_work_for_several_in_turns(self):
        self.served("turns")

    @unittest.skipUnless(GO_TOOL, "needs Go")
    def test_a_program_with_threads_of_its_own(self):
        """Nothing says when one request is put aside for another: so what is charged is unsure, from when that was seen. Truth is what each asked, as shares of what the server did."""
        (self.dir / "server.go").write_text(GO)
        program = self.dir / "server"
        subprocess.run([GO_TOOL, "build", "-o", program, "server.go"], cwd=self.dir, env=os.environ | {"GO111MODULE": "off", "GOCACHE": str(self.dir / "cache"), "GOFLAGS": ""}, check=True, timeout=300)
        for processors in ("1", "2"):
            def load():
                port = random.randint(20_000, 30_000)
                server = play.Process(f"go-{processors}", ["env", f"GOMAXPROCS={processors}", str(program), str(port)], self.dir)
                self.stack.callback(server.stop)
                pid, = self.text_of(server, "ready")
                asks = [self.start(None, f"ask-go{processors}-{work}", profile.SEND_CPU, ASK, port, work, GO_TIMES) for work in WORK]
                for a in asks:
                    self.text_of(a, "done")
                return pid, [a.p.pid for a in asks]

            (server, clients), p = self.profile(f"go-{processors}", load)
            got = {c["client"]: c for c in p["clients"] if c["server"] == server}
            own_ns = self.own_ns(self.of(p, server))
            for c, work in zip(clients, WORK):
                truth = own_ns * work / sum(WORK)
                print(f"turns: Go on {processors}: asked for {truth / 1e9:.4f} s, charged {got[c]['ns'] / 1e9:.4f} s, of which unsure {got[c]['unsure_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)
                self.assertLess(got[c]["ns"] - got[c]["unsure_ns"], 1.5 * truth + 0.02e9)
            self.assertGreater(sum(c["ns"] for c in got.values()), 0.8 * own_ns)
            self.assertGreater(sum(c["unsure_ns"] for c in got.values()), 0.25 * own_ns, "it is not said")

    def test_who_said_it_has_it_told_to_all(self):
        self.served("tells")


if __name__ == "__main__":
    unittest.main()
