// Sends numbered datagrams: numbers ADDRESS PORT FIRST COUNT BYTES GAP_US [alike] [sized] [cut] [moved]. The number is the payload's first 8 digits, and the source
// port is 20000 more, unless they are to be alike. Sized: each is one byte longer than the one before. Cut: 12 in one call, from the first one's port, which
// the kernel or the card cuts apart (UDP_SEGMENT). Moved: another process moves the sender from one of
// the first two processors to the other, all the time. Receives: numbers - PORT SECONDS prints the numbers that came until none came for so long. Moved like
// that, but with a system call in place of each datagram: numbers getppid COUNT.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#define AT_ONCE 12

static char text[65536];

static int receive(int port, int seconds)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct timeval patience = { .tv_sec = seconds };
	int s = socket(AF_INET6, SOCK_DGRAM, 0), room = 1 << 22;

	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
	if (bind(s, (struct sockaddr *)&at, sizeof(at)))
		return 1;
	printf("listening\n");
	fflush(stdout);
	while (recv(s, text, sizeof(text), 0) > 0) {
		text[8] = 0;
		printf("got %d\n", atoi(text));
	}
	printf("done\n");
	return 0;
}

static int is(char **words, const char *word)
{
	for (; *words; words++)
		if (!strcmp(*words, word))
			return 1;
	return 0;
}

static void move(pid_t pid, int pause_us)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int cpu = 0;; cpu ^= 1) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(pid, sizeof(set), &set))
			_exit(0);
		if (pause_us)
			usleep(pause_us);
	}
}

/* A process that moves this one. */
static void have_moved(int pause_us)
{
	pid_t self = getpid();

	if (!fork())
		move(self, pause_us);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "getppid")) {
		have_moved(0);
		for (int n = atoi(argv[2]); n > 0; n--)
			getppid();
		return 0;
	}
	if (argc < 4)
		return 2;
	if (!strcmp(argv[1], "-"))
		return receive(atoi(argv[2]), atoi(argv[3]));
	char **how = argv + (argc > 7 ? 7 : argc);
	int six = !!strchr(argv[1], ':'), family = six ? AF_INET6 : AF_INET, sent = 0, alike = is(how, "alike"), sized = is(how, "sized"), s = -1, length = atoi(argv[5]);
	int together = is(how, "cut") ? AT_ONCE : 1;
	struct sockaddr_in6 to6 = { .sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[2])) }, own6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in to4 = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) }, own4 = { .sin_family = AF_INET };

	inet_pton(family, argv[1], six ? (void *)&to6.sin6_addr : (void *)&to4.sin_addr);
	memset(text, 'x', sizeof(text));
	if (is(how, "moved"))
		have_moved(100);
	for (int n = atoi(argv[3]), end = n + atoi(argv[4]); n < end; n += together) {
		char digits[16];

		if (s < 0 || !alike) {
			int on = 1;

			if (s >= 0)
				close(s);
			s = socket(family, SOCK_DGRAM, 0);
			setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
			own4.sin_port = own6.sin6_port = htons(20000 + (alike ? 0 : n));
			if (bind(s, six ? (struct sockaddr *)&own6 : (struct sockaddr *)&own4, six ? sizeof(own6) : sizeof(own4)))
				return 1;
		}
		for (int k = 0; k < together; k++) {
			snprintf(digits, sizeof(digits), "%08d", n + k);
			memcpy(text + k * length, digits, 8);
		}
		if (together > 1 && setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &length, sizeof(length)))
			return 1;
		if (sendto(s, text, together * length, 0, six ? (struct sockaddr *)&to6 : (struct sockaddr *)&to4, six ? sizeof(to6) : sizeof(to4)) == together * length)
			sent += together;
		length += sized;
		if (atoi(argv[6]))
			usleep(atoi(argv[6]));
	}
	printf("sent %d\n", sent);
	return 0;
}
