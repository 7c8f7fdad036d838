// udpload send ADDR PORT SECONDS SIZE [FLOWS] | udpload recv|take PORT SECONDS: as many UDP packets as one process can send (or
// take), then one JSON line: packets, seconds, CPU seconds of the process (with veth, the softirq work of its packets is in it).
// `take` in place of `recv` looks every half millisecond and is never woken by a packet: whether the receiver sleeps decides a
// packet's cost more than any recorder does.
// With FLOWS one after the other comes from each of so many source ports, the first of which is 20001.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t c)
{
	struct timespec t;

	clock_gettime(c, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	static char buf[65536];
	struct sockaddr_in sa = { .sin_family = AF_INET };
	struct timeval limit = { .tv_usec = 100000 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0), room = 8 << 20, sending, size, flows = 1, next = 0, *from = &fd;
	double start, end, last = 0;
	long packets = 0, failed = 0;

	if (argc < 4)
		return 2;
	sending = !strcmp(argv[1], "send");
	sa.sin_port = htons(atoi(argv[sending ? 3 : 2]));
	size = sending ? atoi(argv[5]) : (int)sizeof(buf);
	start = now(CLOCK_MONOTONIC);
	end = start + atof(argv[sending ? 4 : 3]);
	if (sending) {
		inet_pton(AF_INET, argv[2], &sa.sin_addr);
		if (argc > 6 && atoi(argv[6]) > 1) {
			flows = atoi(argv[6]);
			from = calloc(flows, sizeof(*from));
		}
		for (int i = 0; i < flows; i++) {
			struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons(20001 + i) };

			if (flows > 1 && ((from[i] = socket(AF_INET, SOCK_DGRAM, 0)) < 0 || bind(from[i], (void *)&own, sizeof(own))))
				return 1;
			if (connect(from[i], (void *)&sa, sizeof(sa)))
				return 1;
		}
		while (now(CLOCK_MONOTONIC) < end)
			for (int i = 0; i < 64; i++) {
				if (send(from[next], buf, size, 0) == size)
					packets++;
				else
					failed++;
				next = next + 1 < flows ? next + 1 : 0;
			}
		last = now(CLOCK_MONOTONIC);
	} else {
		setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		if (bind(fd, (void *)&sa, sizeof(sa)))
			return 1;
		while (now(CLOCK_MONOTONIC) < end)
			if (recv(fd, buf, size, argv[1][0] == 't' ? MSG_DONTWAIT : 0) >= 0) {
				if (!packets++)
					start = now(CLOCK_MONOTONIC);
				last = now(CLOCK_MONOTONIC);
			} else if (argv[1][0] == 't') {
				usleep(500);
			}
	}
	printf("{\"packets\": %ld, \"failed\": %ld, \"seconds\": %.4f, \"cpu_s\": %.4f}\n", packets, failed, last - start,
	       now(CLOCK_PROCESS_CPUTIME_ID));
	return 0;
}
