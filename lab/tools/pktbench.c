// pktbench SRCNS DSTNS ADDR COUNT SIZE [WARMUP]
//
// The cost of one packet's way, without a second process to be scheduled: one socket in each of two network
// namespaces, COUNT times send here and receive there. In a deterministic guest (lab exec --det) a nanosecond is
// an instruction, so two runs can be subtracted. Prints one JSON line: ns per packet for each tenth of the run.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 9000, TENTHS = 10, DEFAULT_WARMUP = 200 };

static char buf[65536];

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int socket_in(const char *ns)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "/run/netns/%s", ns);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		die(path);
	close(fd);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0)
		die("socket");
	return fd;
}

// One packet there; 1 when it was lost.
static int one(int tx, int rx, int size)
{
	if (send(tx, buf, size, 0) != size)
		return 1;
	return recv(rx, buf, sizeof(buf), 0) != size;
}

static int by_value(const void *a, const void *b)
{
	long long x = *(const long long *)a, y = *(const long long *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct sockaddr_in sa = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct timeval limit = { .tv_sec = 2 };
	long long tenth[TENTHS], start;
	int count, size, warmup, rx, tx, lost = 0;

	if (argc < 6) {
		fprintf(stderr, "usage: pktbench SRCNS DSTNS ADDR COUNT SIZE [WARMUP]\n");
		return 2;
	}
	count = atoi(argv[4]) / TENTHS;
	size = atoi(argv[5]);
	warmup = argc > 6 ? atoi(argv[6]) : DEFAULT_WARMUP;
	if (count < 1 || size < 1 || size > 65507) {
		fprintf(stderr, "pktbench: COUNT is at least %d, SIZE 1 to 65507\n", TENTHS);
		return 2;
	}
	rx = socket_in(argv[2]);
	if (bind(rx, (struct sockaddr *)&sa, sizeof(sa)))
		die("bind");
	setsockopt(rx, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	tx = socket_in(argv[1]);
	if (inet_pton(AF_INET, argv[3], &sa.sin_addr) != 1 || connect(tx, (struct sockaddr *)&sa, sizeof(sa)))
		die(argv[3]);

	for (int i = 0; i < warmup; i++)
		one(tx, rx, size);
	for (int k = 0; k < TENTHS; k++) {
		start = now_ns();
		for (int i = 0; i < count; i++)
			lost += one(tx, rx, size);
		tenth[k] = (now_ns() - start) / count;
	}
	printf("{\"size_bytes\": %d, \"packets\": %d, \"lost\": %d, \"tenths_ns\": [", size, count * TENTHS, lost);
	for (int k = 0; k < TENTHS; k++)
		printf("%s%lld", k ? ", " : "", tenth[k]);
	qsort(tenth, TENTHS, sizeof(*tenth), by_value);
	printf("], \"median_ns\": %lld, \"min_ns\": %lld}\n", (tenth[4] + tenth[5]) / 2, tenth[0]);
	return lost ? 1 : 0;
}
