"""Processes that come and go: a thousand at once, ten thousand that only end, threads whose first one ends before them, namespaces, those that are killed in a system
call or in a page fault, and those that have the number of another before them. Truth is what the kernel gives their parent when they are over (wait4)."""
import os
import shutil
import sys
import unittest
from collections import defaultdict

from tests import profile
from tests.place import own, sh

PROGRAM = r"""
#define _GNU_SOURCE
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void burn(long us)
{
	struct timespec t;
	long now, until = 0;

	do {
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
		now = t.tv_sec * 1000000L + t.tv_nsec / 1000;
		until = until ? until : now + us;
	} while (now < until);
}

static void *burns(void *us)
{
	burn((long)us);
	return NULL;
}

/* What, which process, how long it and those that it waited for ran, and how often others ran meanwhile. */
static void over(const char *what, pid_t pid)
{
	struct rusage u;

	if (wait4(pid, NULL, 0, &u) != pid)
		exit(3);
	printf("%s %d %ld %ld\n", what, pid, 1000 * (1000000 * (u.ru_utime.tv_sec + u.ru_stime.tv_sec) + u.ru_utime.tv_usec + u.ru_stime.tv_usec), u.ru_nvcsw + u.ru_nivcsw);
	fflush(stdout);
}

static pid_t with_number(pid_t pid)
{
	struct clone_args a = { .exit_signal = SIGCHLD, .set_tid = (unsigned long)&pid, .set_tid_size = 1 };

	return syscall(SYS_clone3, &a, sizeof(a));
}

static void crowd(int n)
{
	int gate[2];
	pid_t *all = calloc(n, sizeof(*all));
	char c;

	if (pipe(gate))
		exit(1);
	for (int i = 0; i < n; i++) {
		all[i] = fork();
		if (!all[i]) {
			close(gate[1]);
			c = read(gate[0], &c, 1);
			burn(300);
			_exit(0);
		}
	}
	close(gate[1]);
	for (int i = 0; i < n; i++)
		over("crowd", all[i]);
}

static void threads(int leader_ends)
{
	pthread_t t[8];

	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, burns, (void *)10000L);
	if (leader_ends)
		pthread_exit(NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	_exit(0);
}

static void killed(int in_faults)
{
	size_t size = 1 << 26;
	pid_t pid = fork();

	while (!pid) {
		char *m = mmap(0, size, PROT_WRITE | PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (in_faults)
			memset(m, 1, size);
		else
			syscall(SYS_getrandom, m, size, 0);
		munmap(m, size);
	}
	usleep(40000);
	kill(pid, SIGKILL);
	over(in_faults ? "faults" : "call", pid);
}

static void spaces(void)
{
	pid_t pid = fork();

	if (!pid) {
		if (unshare(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC))
			_exit(9);
		pid = fork();
		if (!pid) {
			burn(30000);
			_exit(0);
		}
		over("spaces", pid);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

/* Processes of one number, each under a name of its own. */
static void again(void)
{
	char name[16];
	pid_t pid = fork();

	for (int i = 0; i < 3; i++) {
		if (i)
			pid = with_number(pid);
		if (!pid) {
			snprintf(name, sizeof(name), "again%d", i);
			prctl(PR_SET_NAME, name);
			burn(20000);
			_exit(0);
		}
		over("again", pid);
		usleep(20000);
	}
}

/* A server is killed while it works for who asked it, and a process that nobody asks has its number. */
static void heir(void)
{
	int ends[2];
	char c = '?';
	pid_t asks, pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		exit(1);
	asks = fork();
	if (!asks) {
		for (int i = 0; i < 3; i++)
			if (write(ends[0], &c, 1) != 1 || (i < 2 && read(ends[0], &c, 1) != 1))
				_exit(1);
		pause();
	}
	pid = fork();
	if (!pid) {
		for (int i = 0; i < 3; i++) {
			if (read(ends[1], &c, 1) != 1)
				_exit(1);
			burn(10000);
			if (i < 2 && write(ends[1], &c, 1) != 1)
				_exit(1);
		}
		kill(getpid(), SIGKILL);
	}
	over("server", pid);
	if (!with_number(pid)) {
		burn(50000);
		_exit(0);
	}
	over("heir", pid);
	kill(asks, SIGKILL);
	over("asks", asks);
}

int main(void)
{
	crowd(1000);
	for (int i = 0; i < 10000; i++) {
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		over("short", pid);
	}
	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();

		if (!pid)
			threads(i);
		over("threads", pid);
		killed(i);
	}
	spaces();
	again();
	heir();
	printf("done 0\n");
	fflush(stdout);
	pause();
}
"""


@unittest.skipUnless(os.geteuid() == 0, "needs root")
@unittest.skipUnless(shutil.which("cc"), "needs a C compiler")
class Processes(profile.Recorded):
    def setUp(self):
        own(self, "processes", "")
        source, program = self.dir / "crowd.c", self.dir / "crowd"
        source.write_text(PROGRAM)
        sh("cc", "-O1", "-pthread", "-o", program, source)
        self.program = str(program)

    def test_processes_that_come_and_go_are_charged_what_they_ran(self):
        def load():
            p = profile.play.Process("crowd", [self.program], self.dir)
            self.stack.callback(p.stop)
            self.text_of(p, "done")
            return [line.split() for line in profile.play.text_of(p.stdout).splitlines() if not line.startswith("done")]

        lines, p = self.profile("crowd", load)
        kinds = defaultdict(list)
        for what, *numbers in lines:
            kinds[what].append([int(n) for n in numbers])
        # Ten thousand short ones may come round to an id: of those that had one before them the last is last.
        of_id = defaultdict(list)
        for x in sorted(p["processes"], key=lambda x: x["instance"]):
            of_id[x["pid"]].append(x)
        by_pid = {pid: all_[-1] for pid, all_ in of_id.items()}
        self.assertEqual([len(kinds[what]) for what in ("crowd", "short", "again")], [1000, 10_000, 3])
        for what, rows in kinds.items():
            pids = {pid for pid, _, _ in rows}
            self.assertEqual(pids - set(by_pid), set(), f"{what}: not in the profile")
            if what in ("again", "server", "heir"):
                continue  # of one id
            self.close(f"{len(rows)} x {what}", sum(by_pid[pid]["ran_ns"] for pid in pids), sum(ns for _, ns, _ in rows), 0.02, sum(n for _, _, n in rows))
            if what in ("crowd", "short"):
                self.assertEqual({by_pid[pid]["name"] for pid in pids}, {"crowd"})
                # One of them may have been switched away while one of the two clocks was read, and an interrupt come meanwhile.
                off = sorted(abs(by_pid[pid]["ran_ns"] - ns) for pid, ns, _ in rows)
                print(f"processes: {what}: each within {off[len(off) // 2] / 1e3:.0f} us in the median, {off[-1] / 1e3:.0f} at most", file=sys.stderr, flush=True)
                self.assertLess(off[len(off) // 2], 50_000)
        for what, all_ in (("again", kinds["again"]), ("server and heir", kinds["server"] + kinds["heir"])):
            found = of_id[all_[0][0]][-len(all_):]
            for i, (x, (_, ns, switches)) in enumerate(zip(found, all_)):
                self.close(f"{what}, {i}", x["ran_ns"], ns, 0.02, switches)
            self.assertEqual(len(found), len(all_), what)
            instances = [x["instance"] for x in found]
            self.assertEqual(instances, list(range(instances[0], instances[0] + len(all_))), what)
        again = [x["name"] for x in of_id[kinds["again"][0][0]][-3:]]
        self.assertEqual(again, ["again0", "again1", "again2"], "processes of one id, each with its own name")
        self.assertGreater(by_pid[kinds["faults"][0][0]]["fault_ns"], 0.3 * kinds["faults"][0][1], "killed in page faults")
        self.assertGreater(by_pid[kinds["call"][0][0]]["kernel_ns"], 0.3 * kinds["call"][0][1], "killed in a system call")
        server, asks = kinds["server"][0], kinds["asks"][0]
        heir = of_id[server[0]][-1]["instance"]
        served = sum(c["ns"] for c in p["clients"] if (c["server"], c["client"]) == (server[0], asks[0]) and c["server_instance"] == heir - 1)
        self.assertFalse([c for c in p["clients"] if (c["server"], c["server_instance"]) == (server[0], heir)], "nobody asked the heir")
        print(f"processes: for who asked {served / 1e6:.2f} ms; the server ran {server[1] / 1e6:.2f} ms, who had its number then {kinds['heir'][0][1] / 1e6:.2f}", file=sys.stderr, flush=True)
        self.assertGreater(served, 29e6)
        self.assertLess(served, 1.05 * server[1] + 1e6, "what a process does that has its number is not for who asked the one before")


if __name__ == "__main__":
    unittest.main()
