"""Servers with a pool of threads: one thread takes the clients' messages and puts the work into a queue, others wait for it by a condition. Truth is the program's own: what each
thread's clock (CLOCK_THREAD_CPUTIME_ID) says that a request took, added up by client."""
import os
import random
import shutil
import sys
import unittest

from kpatlab import play
from tests import profile
from tests.place import own, sh

# argv: how connections are made (tcp, unix), letters, how many requests a client has, a port. By letters: a lock in the midst of the work, which others wait for (l); clients that have
# four requests under way, so the threads seldom wait (p); answers by the thread that takes the messages (h); other work in the same queue (i). The last client connects, and asks nothing.
POOL = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#define CLIENTS 3
#define THREADS 4
#define MOST 4096
struct job { int client, work, fd; };
struct queue { struct job all[MOST]; unsigned in, out; pthread_mutex_t lock; pthread_cond_t filled; };
static struct queue asked = { .lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER }, done = { .lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER };
static pthread_mutex_t shared = PTHREAD_MUTEX_INITIALIZER;
static const int works[CLIENTS] = { 10000, 20000, 40000 };
static long spent[CLIENTS + 1];
static const char *how;
static volatile int over;
static int event, waiting;
static int has(char letter) { return strchr(how, letter) != NULL; }
static void burn(int n) { for (volatile long i = 0; i < n * 400L; i++); }
static long clock_of_thread(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}
static void put(struct queue *q, struct job j)
{
	pthread_mutex_lock(&q->lock);
	q->all[q->in++ % MOST] = j;
	pthread_cond_signal(&q->filled);
	pthread_mutex_unlock(&q->lock);
}
static int take(struct queue *q, struct job *j, int wait)
{
	pthread_mutex_lock(&q->lock);
	if (wait) waiting++;
	while (wait && q->in == q->out && !over) pthread_cond_wait(&q->filled, &q->lock);
	if (wait) waiting--;
	int any = q->in != q->out;
	if (any) *j = q->all[q->out++ % MOST];
	pthread_mutex_unlock(&q->lock);
	return any;
}
static void answer(struct job *j) { if (send(j->fd, "done", 4, 0) != 4) exit(4); }
static void *work(void *unused)
{
	struct job j;
	while (take(&asked, &j, 1)) {
		long began = clock_of_thread();
		for (int i = 0; i < 10; i++) {
			burn(j.work / 20);
			if (has('l')) pthread_mutex_lock(&shared);
			burn(j.work / 20);
			if (has('l')) pthread_mutex_unlock(&shared);
		}
		if (j.client < CLIENTS && has('h')) {
			put(&done, j);
			if (eventfd_write(event, 1)) exit(5);
		} else if (j.client < CLIENTS) {
			answer(&j);
		}
		__atomic_fetch_add(&spent[j.client], clock_of_thread() - began, __ATOMIC_RELAXED);
	}
	return NULL;
}
static void *other_work(void *unused)
{
	while (!over) {
		/* A slow processor would never be done with it, and what clients ask waits behind. */
		if (asked.in - asked.out < THREADS) put(&asked, (struct job){ .client = CLIENTS, .work = 4000 });
		usleep(1500);
	}
	return NULL;
}
static void ask(int fd, int client, int times)
{
	char text[4];
	for (int sent = 0, got = 0; got < times;) {
		if (sent < times && sent - got < (has('p') ? 4 : 1)) {
			struct job j = { .client = client, .work = works[client] };
			if (send(fd, &j, sizeof j, 0) != sizeof j) exit(6);
			sent++;
		} else {
			if (recv(fd, text, 4, MSG_WAITALL) != 4) exit(7);
			got++;
		}
	}
}
int main(int argc, char **argv)
{
	int tcp = !strcmp(argv[1], "tcp"), times = atoi(argv[3]), s = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM, 0), pids[CLIENTS + 1];
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[4])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr *at = tcp ? (void *)&in : (void *)&un;
	socklen_t length = tcp ? sizeof in : sizeof un;
	struct pollfd p[CLIENTS + 2];
	pthread_t threads[THREADS], other;
	how = argv[2];
	snprintf(un.sun_path + 1, 90, "kpat-pool-%d", getpid());
	if (bind(s, at, length) || listen(s, 9)) return 2;
	for (int i = 0; i <= CLIENTS; i++) if (!(pids[i] = fork())) {
		int fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
		close(s);
		if (connect(fd, at, length)) exit(3);
		if (i < CLIENTS) ask(fd, i, times);
		shutdown(fd, SHUT_WR);
		pause();
	}
	for (int i = 0; i <= CLIENTS; i++) p[i] = (struct pollfd){ .fd = accept(s, 0, 0), .events = POLLIN };
	event = eventfd(0, 0);
	p[CLIENTS + 1] = (struct pollfd){ .fd = event, .events = POLLIN };
	for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, 0);
	for (int all = 0; !all;) { /* wait */
		pthread_mutex_lock(&asked.lock);
		all = waiting == THREADS;
		pthread_mutex_unlock(&asked.lock);
		if (!all) usleep(1000);
	}
	if (has('i')) pthread_create(&other, 0, other_work, 0); /* else they might never all wait at once */
	for (int left = CLIENTS + 1, under_way = 0; left || under_way;) {
		struct job j;
		eventfd_t n;
		poll(p, CLIENTS + 2, -1);
		if (p[CLIENTS + 1].revents & POLLIN && eventfd_read(event, &n)) exit(8);
		while (take(&done, &j, 0)) { answer(&j); under_way--; }
		for (int i = 0; i <= CLIENTS; i++) if (p[i].fd >= 0 && p[i].revents) {
			if (recv(p[i].fd, &j, sizeof j, MSG_WAITALL) != sizeof j) { p[i].fd = -1; left--; continue; }
			j.fd = p[i].fd;
			under_way += has('h');
			put(&asked, j);
		}
	}
	over = 1;
	pthread_mutex_lock(&asked.lock);
	pthread_cond_broadcast(&asked.filled);
	pthread_mutex_unlock(&asked.lock);
	for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
	printf("clients %d %d %d %d\n", pids[0], pids[1], pids[2], pids[3]);
	printf("did %d %ld %ld %ld %ld\n", getpid(), spent[0], spent[1], spent[2], spent[3]);
	fflush(stdout);
	pause();
}
"""
TIMES = 50


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
@unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
class Pools(profile.Recorded):
    def setUp(self):
        own(self, "pools", "")
        source, self.program = self.dir / "pool.c", self.dir / "pool"
        source.write_text(POOL)
        sh("cc", "-O1", "-pthread", "-o", self.program, source)

    def pool(self, kind: str, how: str) -> tuple[dict, list[dict], list[int], int]:
        """The server, what it is said to have done for each client that asked, what it says itself, and that of other work."""
        def load():
            port = random.randint(20_000, 30_000)
            p = play.Process(f"pool-{kind}-{how}", [str(self.program), kind, how, str(TIMES), str(port)], self.dir)
            self.stack.callback(p.stop)
            return self.text_of(p, "did"), self.text_of(p, "clients")

        ((server, *did, other), clients), p = self.profile(f"pool-{kind}-{how}", load)
        got = {c["client"]: c for c in p["clients"] if c["server"] == server}
        self.assertEqual(set(got), set(clients[:-1]), "who asked is a client, and nobody else")
        x = self.of(p, server)
        self.assertEqual(x["handed_ns"], sum(c["handed_ns"] for c in got.values()))
        for c, truth in zip(clients, did):
            print(f"pools: {kind} {how}: {truth / 1e9:.4f} s by its own clocks, handed {got[c]['handed_ns'] / 1e9:.4f} s, of which unsure {got[c]['unsure_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)
            self.assertLessEqual(got[c]["unsure_ns"], got[c]["handed_ns"])
        print(f"pools: {kind} {how}: for no client that is known {x['handed_for_none_ns'] / 1e9:.4f} s, other work {other / 1e9:.4f} s", file=sys.stderr, flush=True)
        return x, [got[c] for c in clients[:-1]], did, other

    def near(self, x: dict, ours: int, truth: int) -> None:
        """What interrupts take from the server's threads is in their clocks."""
        self.assertLess(abs(ours - truth), 0.05 * truth + 0.005e9 + self.stolen_ns + x["taken_ns"], f"{ours} ns, truth {truth}")

    def test_what_a_thread_answers_is_for_whom_it_answers(self):
        for kind, how in (("unix", "-"), ("tcp", "l"), ("unix", "lp")):
            x, got, did, _ = self.pool(kind, how)
            for c, truth in zip(got, did):
                self.near(x, c["handed_ns"], truth)
            self.assertLess(x["handed_for_none_ns"], 0.05 * sum(did))

    def test_other_work_in_the_queue_is_no_clients(self):
        x, got, did, other = self.pool("unix", "i")
        self.assertGreater(other, 0)
        for c, truth in zip(got, did):
            # Beyond the truth is what a thread did between two waits, of which only the last is known.
            self.assertLess(c["handed_ns"] - c["unsure_ns"], 1.1 * truth + 0.01e9)
        all_handed = x["handed_ns"] + x["handed_for_none_ns"]
        self.assertGreater(all_handed, 0.95 * sum(did) - 0.01e9)
        self.assertLess(all_handed, 1.05 * (sum(did) + other) + 0.02e9)

    def test_what_another_thread_answers_is_for_whom_it_answers(self):
        x, got, did, _ = self.pool("unix", "h")
        for c, truth in zip(got, did):
            # What is not sure may be another's, but never more than is said.
            self.assertLess(c["handed_ns"] - c["unsure_ns"], 1.1 * truth + 0.01e9)
        all_handed = x["handed_ns"] + x["handed_for_none_ns"]
        self.assertLess(abs(all_handed - sum(did)), 0.05 * sum(did) + 0.015e9 + self.stolen_ns + x["taken_ns"])
        self.assertGreater(x["handed_ns"] - sum(c["unsure_ns"] for c in got), 0.5 * sum(did), "hardly anything is told")
