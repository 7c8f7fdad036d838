// Sends numbered datagrams: talker ADDRESS PORT FIRST COUNT [BYTES]. Receives and counts: talker - PORT COUNT.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int s = socket(AF_INET, SOCK_DGRAM, 0), sent = 0;
	char text[2048];

	if (argc < 4)
		return 2;
	to.sin_port = htons(atoi(argv[2]));
	if (!strcmp(argv[1], "-")) {
		struct timeval patience = { .tv_sec = 20 };
		int wanted = atoi(argv[3]), got = 0;

		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		if (bind(s, (struct sockaddr *)&to, sizeof(to)))
			return 1;
		printf("listening\n");
		fflush(stdout);
		while (got < wanted && recv(s, text, sizeof(text), 0) > 0)
			got++;
		printf("received %d\n", got);
		return 0;
	}
	inet_pton(AF_INET, argv[1], &to.sin_addr);
	memset(text, 'x', sizeof(text));
	for (int n = atoi(argv[3]), end = n + atoi(argv[4]); n < end; n++) {
		int length = argc > 5 ? atoi(argv[5]) : 32;

		snprintf(text, 16, "%08d", n);
		if (sendto(s, text, length, 0, (struct sockaddr *)&to, sizeof(to)) == length)
			sent++;
		usleep(2000);
	}
	printf("sent %d\n", sent);
	return 0;
}
