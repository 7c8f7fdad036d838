"""What kernel threads and workers do for a process: io_uring's workers and polling thread, and the work items by which a loop device reads its file. Truth is
the kernel's own run times: of the process with all of its threads (getrusage), and of the threads that execute work items (schedstat)."""
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

from kpatlab import play
from tests import profile
from tests.place import own, sh

# Reads pieces of 1 MB through io_uring: the task itself (n), a worker (w) or the polling thread (p).
URING = r"""
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#define AT(ring, offset) ((unsigned *)((ring) + (offset)))
static void *shared(int ring, size_t size, off_t what)
{
	return mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
}
int main(int argc, char **argv)
{
	char how = argv[2][0];
	struct io_uring_params p = { .flags = how == 'p' ? IORING_SETUP_SQPOLL : 0, .sq_thread_idle = 1 };
	int ring = syscall(SYS_io_uring_setup, 4, &p), fd = open("/dev/zero", O_RDONLY);
	if (ring < 0)
		return 3;
	char *sq = shared(ring, p.sq_off.array + 4 * p.sq_entries, IORING_OFF_SQ_RING);
	char *cq = shared(ring, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	struct io_uring_sqe *entries = shared(ring, p.sq_entries * sizeof(*entries), IORING_OFF_SQES);
	struct io_uring_cqe *done = (void *)(cq + p.cq_off.cqes);
	char *buffer = malloc(4 << 20);
	struct rusage u;
	for (int i = 0; i < atoi(argv[1]); i++) {
		unsigned tail = *AT(sq, p.sq_off.tail), at = tail & (p.sq_entries - 1), head, flags = IORING_ENTER_GETEVENTS;
		memset(&entries[at], 0, sizeof(*entries));
		entries[at].opcode = IORING_OP_READ;
		entries[at].fd = fd;
		entries[at].addr = (unsigned long)buffer;
		entries[at].len = 4 << 20;
		entries[at].flags = how == 'w' ? IOSQE_ASYNC : 0;
		AT(sq, p.sq_off.array)[at] = at;
		__atomic_store_n(AT(sq, p.sq_off.tail), tail + 1, __ATOMIC_SEQ_CST);
		if (*AT(sq, p.sq_off.flags) & IORING_SQ_NEED_WAKEUP)
			flags |= IORING_ENTER_SQ_WAKEUP;
		if (syscall(SYS_io_uring_enter, ring, how == 'p' ? 0 : 1, 1, flags, 0, 0) < 0)
			return 4;
		head = *AT(cq, p.cq_off.head);
		if (done[head & (p.cq_entries - 1)].res <= 0)
			return 5;
		__atomic_store_n(AT(cq, p.cq_off.head), head + 1, __ATOMIC_SEQ_CST);
	}
	if (!atoi(argv[1]))
		return 0;
	getrusage(RUSAGE_SELF, &u);
	printf("did %ld %ld\n", 1000 * (1000000 * (u.ru_utime.tv_sec + u.ru_stime.tv_sec) + u.ru_utime.tv_usec + u.ru_stime.tv_usec), u.ru_nvcsw + u.ru_nivcsw);
	fflush(stdout);
	pause();
}
"""
READ = """
import mmap, os, signal, sys
fd, m = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 65536)
for again in range(int(sys.argv[2])):
    for at in range(0, 32 << 20, 65536): os.preadv(fd, [m], at)
print("did", 0, flush=True)
signal.pause()
"""


def ran_of_workers() -> dict[int, tuple[int, int]]:
    """Nanoseconds of each thread that executes work items, and how often it was switched to."""
    ran = {}
    for task in Path("/proc").glob("[0-9]*"):
        try:
            if (task / "comm").read_text().startswith("kworker/"):
                ns, _, times = map(int, (task / "schedstat").read_text().split())
                ran[int(task.name)] = ns, times
        except (FileNotFoundError, ProcessLookupError):
            pass
    return ran


# One loop for two clients, with a connection to the server behind it for each: the work is done when that one has answered, and meanwhile the other
# client's message is taken. What it spent on each by its own clock.
PROXY = """
import os, select, signal, socket, sys, time
kind, front, behind = sys.argv[1], sys.argv[2], sys.argv[3]
def at(name):
    return name if kind == "unix" else ("127.0.0.1", int(name))
family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
s = socket.socket(family); s.bind(at(front)); s.listen()
clients, servers, spent = [None, None], [], [0, 0]
for name in (0, 1):
    c = socket.socket(family); c.connect(at(behind)); servers.append(c)
print("ready", os.getpid(), flush=True)
for _ in clients:
    c, _ = s.accept()
    clients[int(c.recv(1))] = c
left = {*clients}
while left:
    ready, _, _ = select.select([*left, *servers], [], [])
    for c in ready:
        began = time.process_time_ns()
        data = c.recv(64)
        if not data: left.discard(c); continue
        if c in clients:
            name = clients.index(c)
            servers[name].send(data)
        else:
            name, x = servers.index(c), 0
            for i in range(int(data)): x += i & 3
            clients[name].send(b"done")
        spent[name] += time.process_time_ns() - began
print("did", *spent, flush=True)
signal.pause()
"""
# Answers after a time in which the proxy takes the other client's message.
BACKEND = """
import os, select, socket, sys, time
kind, at = sys.argv[1], sys.argv[2]
s = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
s.bind(at if kind == "unix" else ("127.0.0.1", int(at))); s.listen()
print("ready", os.getpid(), flush=True)
left = [s.accept()[0], s.accept()[0]]
while left:
    for c in select.select(left, [], [])[0]:
        data = c.recv(64)
        if not data: left.remove(c); continue
        time.sleep(0.0005)
        c.send(data)
"""
# The same with a connection to the server behind it for each request, whose answer comes in pieces, and it works on each of them before it answers as a whole: as a web server does that compresses.
PIECES = """
import errno, os, select, signal, socket, sys, time
front, behind, role = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if role == "behind":
    s = socket.create_server(("127.0.0.1", behind)); print("ready", os.getpid(), flush=True)
    under_way = []
    while True:
        ready, _, _ = select.select([s, *(c for c, n in under_way if not n)], [], [], 0.0007 if under_way else None)
        for c in ready:
            if c is s: under_way.append([s.accept()[0], 0])
            elif not c.recv(64): sys.exit(3)
            else: next(u for u in under_way if u[0] is c)[1] = 6
        # a piece of each answer in turns
        for u in under_way:
            if u[1]:
                u[0].send(b"piece..."); u[1] -= 1
                if not u[1]: u[0].close()
        under_way = [u for u in under_way if u[0].fileno() >= 0]
s = socket.create_server(("127.0.0.1", front)); print("ready", os.getpid(), flush=True)
clients, work, for_whom, spent = {}, {}, {}, [0, 0]
for _ in (0, 1):
    c, _ = s.accept(); name, n = c.recv(16).split(); clients[c] = int(name); work[int(name)] = int(n)
back = {name: c for c, name in clients.items()}
left, connecting = {*clients}, set()
while left:
    ready, can_write, _ = select.select([*left, *(u for u in for_whom if u not in connecting)], [*connecting], [])
    for c in [*can_write, *ready]:
        began = time.process_time_ns()
        if c in connecting:
            name = for_whom[c]; connecting.discard(c); c.send(b"ask")
        elif c in clients:
            name = clients[c]
            if not c.recv(64): left.discard(c); continue
            u = socket.socket(); u.setblocking(False); u.connect_ex(("127.0.0.1", behind)); for_whom[u] = name; connecting.add(u)
        else:
            name, data, x = for_whom[c], c.recv(64), 0
            for i in range(work[name] * len(data) // 8): x += i & 3
            if not data: del for_whom[c]; c.close(); back[name].send(b"done")
        spent[name] += time.process_time_ns() - began
print("did", *spent, flush=True)
signal.pause()
"""
ASK_PIECES = """
import signal, socket, sys
front, name, work, times = map(int, sys.argv[1:])
c = socket.create_connection(("127.0.0.1", front)); c.send(b"%d %d" % (name, work))
signal.sigtimedwait([], 0.3)
for i in range(times):
    c.send(b"ask")
    if c.recv(16) != b"done": sys.exit(3)
print("did", 0, flush=True)
c.close()
signal.pause()
"""
# Answers by message queues: of System V, where a message has its reader's type, or of POSIX, where each client has a queue for its answers. Requests of the second
# client are of another priority. What it spent on each by its own clock.
QUEUES = r"""
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/msg.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
struct message { long type; int client, work; };
static int posix, queue;
static mqd_t asks, answers[2];
static volatile unsigned long sum;
static void give(int client, int to, int work)
{
	struct message m = { .type = to, .client = client, .work = work };
	if (posix ? mq_send(to == 1 ? asks : answers[client], (char *)&m, sizeof m, to == 1 ? client : 0) : msgsnd(queue, &m, sizeof m - sizeof m.type, 0))
		exit(4);
}
static struct message take(int client, int of)
{
	struct message m;
	unsigned priority;
	if ((posix ? mq_receive(of == 1 ? asks : answers[client], (char *)&m, sizeof m, of == 1 ? &priority : NULL) : msgrcv(queue, &m, sizeof m - sizeof m.type, of, 0)) < 0)
		exit(5);
	return m;
}
static long spent(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}
static void serve(void)
{
	long on[2] = {0};
	for (int ends = 0; ends < 2;) {
		long began = spent();
		struct message m = take(0, 1);
		if (!m.work) { ends++; continue; }
		for (long i = 0; i < m.work * 1000L; i++) sum += i;
		give(m.client, 10 + m.client, 1);
		on[m.client] += spent() - began;
	}
	if (!posix) msgctl(queue, IPC_RMID, NULL);
	printf("did %d %ld %ld\n", getpid(), on[0], on[1]);
	fflush(stdout);
	pause();
}
static void ask(int client)
{
	for (int i = 0; i < 300; i++) {
		give(client, 1, client ? 900 : 300);
		take(client, 10 + client);
	}
	give(client, 1, 0);
	printf("client%d %d\n", client, getpid());
	fflush(stdout);
	pause();
}
int main(int argc, char **argv)
{
	struct mq_attr how = { .mq_maxmsg = 4, .mq_msgsize = sizeof(struct message) };
	char name[64];
	posix = !strcmp(argv[1], "posix");
	for (int i = 0; posix && i < 3; i++) {
		sprintf(name, "/kpat-%d-%d", getpid(), i);
		mqd_t q = mq_open(name, O_RDWR | O_CREAT, 0600, &how);
		if (q < 0) return 3;
		mq_unlink(name);
		*(i == 2 ? &asks : &answers[i]) = q;
	}
	if (!posix && (queue = msgget(IPC_PRIVATE, 0600)) < 0) return 3;
	if (!fork()) serve();
	for (int i = 0; i < 2; i++) if (!fork()) ask(i);
	pause();
	return 0;
}
"""
ASK_PROXY = """
import signal, socket, sys, time
kind, at, name, work, times = sys.argv[1:]
c = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
c.connect(at if kind == "unix" else ("127.0.0.1", int(at)))
c.send(name.encode())
time.sleep(0.3)
for i in range(int(times)):
    c.send(work.encode())
    c.recv(16)
print("did", 0, flush=True)
c.close()
signal.pause()
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless((os.cpu_count() or 1) > 1, "needs two CPUs")
class Behalf(profile.Recorded):
    def setUp(self):
        own(self, "behalf", "")

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_workers_of_io_uring_are_the_process(self):
        source, program = self.dir / "uring.c", self.dir / "uring"
        source.write_text(URING)
        sh("cc", "-O1", "-o", program, source)
        if subprocess.run([program, "0", "n"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=30).returncode == 3:
            self.skipTest("this kernel has no io_uring")
        for how in ("n", "w", "p"):
            def load():
                p = play.Process(f"uring-{how}", [str(program), "1000", how], self.dir)
                self.stack.callback(p.stop)
                return p.p.pid, *self.text_of(p, "did")

            (pid, ran, switches), p = self.profile(f"uring-{how}", load)
            x = self.of(p, pid)
            # The kernel counts what interrupts take of a thread's time as the thread's.
            taken = x["ran_ns"] - self.own_ns(x)
            print(f"behalf: io_uring, {how}: taken from it {taken / 1e9:.4f} s", file=sys.stderr, flush=True)
            self.close(f"io_uring, {how}, own time", self.own_ns(x), ran - taken, 0.05, switches)

    def test_work_items_of_a_loop_device_are_the_readers(self):
        image = Path("/var/tmp") / f"kpat-behalf-{os.getpid()}"
        self.stack.callback(lambda: image.unlink(missing_ok=True))
        image.write_bytes(os.urandom(1 << 20) * 32)
        sh("sync", image)
        made = sh("losetup", "-f", "--show", image, ok=False)
        if made.returncode:
            self.skipTest(f"no loop device: {made.stderr.strip()}")
        device = made.stdout.strip()
        self.stack.callback(sh, "losetup", "-d", device, ok=False)

        earlier = ran_of_workers()

        def load():
            before = ran_of_workers()
            reader = self.start(None, "read", profile.SEND_CPU, READ, device, 8)
            self.text_of(reader, "did")
            return reader.p.pid, before, ran_of_workers()

        (pid, before, after), p = self.profile("loop", load)
        items = self.of(p, pid)["served_items_ns"]
        workers = {t["victim"] for t in p["taken"] if t["for"] == "work item" and t["beneficiary"] == pid and t["victim"] in after}
        later = ran_of_workers()
        ran, switches = (sum(after[w][i] - before.get(w, (0, 0))[i] for w in workers) for i in (0, 1))
        # From before the recording until after it; a thread that ended since did nothing more.
        most = sum(later.get(w, after[w])[0] - earlier.get(w, (0, 0))[0] for w in workers)
        print(f"behalf: work items for the reader {items / 1e9:.4f} s; {len(workers)} threads that executed them ran {ran / 1e9:.4f} s in {switches} turns, with what they did before and after {most / 1e9:.4f} s", file=sys.stderr, flush=True)
        # Each of 4,096 requests copies 64 KiB, which takes more than a microsecond.
        self.assertGreater(items, 4096 * 1000)
        self.assertLess(items, 1.05 * ran + 0.005e9)
        # The rest of what these threads ran is their own (the switches to them and from them) and items of others.
        rest = sum(self.of(p, w)["ran_ns"] for w in workers) - items
        # Where in a switch to it a thread's time begins differs, by 3 to 7 us here.
        self.assertGreater(items + rest, 0.9 * ran - 0.01e9 - 7_000 * switches - self.stolen_ns)
        self.assertLess(items + rest, 1.1 * most + 0.01e9)
        own_time = sum(self.own_ns(self.of(p, w)) for w in workers)
        print(f"behalf: these threads' own {own_time / 1e9:.4f} s, and for others or in interrupts {(rest - own_time) / 1e9:.4f} s", file=sys.stderr, flush=True)

    def test_a_proxy_works_for_whom_it_asked_when_it_takes_the_answer(self):
        for kind in ("tcp", "unix"):
            first = 20_000 + os.getpid() % 20_000
            front, behind = (self.dir / "front", self.dir / "behind") if kind == "unix" else (first, first + 1)

            def load():
                backend = self.start(None, f"backend-{kind}", profile.SEND_CPU, BACKEND, kind, behind)
                self.text_of(backend, "ready")
                proxy = self.start(None, f"proxy-{kind}", profile.BURN_CPU, PROXY, kind, front, behind)
                self.text_of(proxy, "ready")
                asks = [self.start(None, f"ask-{kind}{name}", profile.SEND_CPU, ASK_PROXY, kind, front, name, work, 300) for name, work in enumerate((3000, 9000))]
                return proxy.p.pid, [a.p.pid for a in asks], self.text_of(proxy, "did")

            (proxy, clients, did), p = self.profile(f"proxy-{kind}", load)
            got = {c["client"]: c["ns"] for c in p["clients"] if c["server"] == proxy}
            for client, truth in zip(clients, did):
                # and what select() costs, which is behind each message
                self.close(f"proxy for a client by {kind}, by its own clock", got.get(client, 0), truth, 0.15)

    def test_a_proxy_that_connects_for_each_request(self):
        front = 10_000 + 2 * (os.getpid() % 5000)

        def load():
            for role, cpu in (("behind", profile.SEND_CPU), ("proxy", profile.BURN_CPU)):
                p = self.start(None, f"pieces-{role}", cpu, PIECES, front, front + 1, role)
                self.text_of(p, "ready")
            asks = [self.start(None, f"ask-pieces{name}", profile.SEND_CPU, ASK_PIECES, front, name, work, 150) for name, work in enumerate((5000, 15000))]
            return p.p.pid, [a.p.pid for a in asks], self.text_of(p, "did")

        (proxy, clients, did), p = self.profile("pieces", load)
        got = {c["client"]: c for c in p["clients"] if c["server"] == proxy}
        for client, truth in zip(clients, did):
            g = got[client]
            print(f"behalf: proxy, a connection each: by its own clock {truth / 1e9:.4f} s, charged {g['ns'] / 1e9:.4f} s, of which unsure {g['unsure_ns'] / 1e9:.4f} s", file=sys.stderr, flush=True)
            # and what select() costs, which is behind each message; where it is not known it is nobody's
            self.assertLess(g["ns"] - g["unsure_ns"], 1.25 * truth + 0.01e9)
            self.assertGreater(g["ns"], 0.5 * truth - 0.01e9 - self.stolen_ns)

    @unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
    def test_a_servers_work_follows_messages_in_queues(self):
        source, program = self.dir / "queues.c", self.dir / "queues"
        source.write_text(QUEUES)
        sh("cc", "-O1", "-o", program, source, "-lrt")
        for how in ("system-v", "posix"):
            def load():
                p = play.Process(f"queues-{how}", [str(program), how], self.dir)
                self.stack.callback(p.stop)
                return self.text_of(p, "did"), [self.text_of(p, f"client{i}")[0] for i in (0, 1)]

            ((server, *did), clients), p = self.profile(f"queues-{how}", load)
            got = {c["client"]: c["ns"] for c in p["clients"] if c["server"] == server}
            for client, truth in zip(clients, did):
                self.close(f"server for a client by queues of {how}, by its own clock", got.get(client, 0), truth, 0.1)
