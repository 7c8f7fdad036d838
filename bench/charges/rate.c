/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The largest rate of datagrams at which none is lost: the sender is never further ahead of the receiver than the queues hold. What is lost all the same is counted. It sends several by each
 * call (UDP_SEGMENT), so that it is the receiver that is busy all the time. Both are at real-time priority, where that is allowed: what else runs takes none of their time.
 *
 * rate recv SHARED PORT | rate send SHARED ADDRESS PORT BYTES SECONDS
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define AHEAD 256
#define BY_CALL 16
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

struct shared {
	volatile unsigned long taken;
};

static struct shared *shared_by(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, 4096))
		exit(1);
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int take(struct shared *s, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0), room = 32 << 20;
	static char data[65536];

	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	if (bind(fd, (void *)&at, sizeof(at)))
		return 1;
	printf("ready %d\n", getpid());
	fflush(stdout);
	for (;;) {
		if (recv(fd, data, sizeof(data), 0) < 0)
			return 1;
		s->taken++;
	}
}

/* Sends until `until`; how many. What has not come for 5 ms is lost. */
static unsigned long stream(struct shared *s, int fd, const char *data, int size, double until)
{
	int by_call = size * BY_CALL < 65000 ? BY_CALL : 65000 / size;
	unsigned long n = 0, done = s->taken, came = done;
	double since = 0;

	for (;;) {
		if (now() >= until)
			return n;
		for (unsigned long turns = 0; n - (s->taken - done) > AHEAD - BY_CALL; turns++) {
#ifdef __x86_64__
			__builtin_ia32_pause();
#endif
			if (turns & 1023)
				continue;
			if (came != s->taken || !turns) {
				came = s->taken;
				since = now();
			} else if (now() - since > 0.005) {
				done -= n - (s->taken - done);
			}
		}
		if (send(fd, data, size * by_call, 0) == size * by_call)
			n += by_call;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	struct sched_param priority = { .sched_priority = 10 };
	static char data[65536];
	struct shared *s;
	unsigned long sent, before;
	double began, seconds;
	int fd, size;

	if (argc < 4)
		return 1;
	s = shared_by(argv[2]);
	sched_setscheduler(0, SCHED_FIFO, &priority);
	if (!strcmp(argv[1], "recv"))
		return take(s, atoi(argv[3]));
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	to.sin_port = htons(atoi(argv[4]));
	inet_pton(AF_INET, argv[3], &to.sin_addr);
	if (connect(fd, (void *)&to, sizeof(to)))
		return 1;
	size = atoi(argv[5]);
	if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof(size)))
		return 1;
	seconds = atof(argv[6]);
	stream(s, fd, data, size, now() + 0.1);
	usleep(20000);
	before = s->taken;
	began = now();
	sent = stream(s, fd, data, size, began + seconds);
	seconds = now() - began;
	usleep(50000);
	printf("sent %lu %lu %lu\n", sent, s->taken - before, (unsigned long)(seconds * 1e9));
}
