// The first process of a guest whose kernel is probed from outside. Reads commands from the console, one a line, does each and prints
// what it saw: the truth that the probes' counts and values are compared with.
//
//   getppid N [P]     N calls, by P processes at the same time
//   open N            N opens of /f0, /f1, ... that fail: no such file
//   unlink N          creates and unlinks /tmp/u0 ...; prints name and result of each
//   stat NAME         prints the size of a file
//   sleep MS          nanosleep
//   null|read|write|opens N   N calls: getppid, a byte from /dev/zero, a byte to /dev/null, open and close of /init; ns of all and of the middle
//                     one by the guest's clock. null N P: while P-1 other processes call getppid, too
//   unpack N          N files of 4 KB out of one file, as tar does: read, open, write, close, chmod, a mkdir for each 16; ns of all, and of the middle file
//   syms WORD...      lines of /proc/kallsyms with one of these names
//   ftrace FUNCTION   how many calls the kernel's own tracer saw; from now on of this function, or "off"
//   trap              an int3 in a process of its own: the signal that ended it
//   panic, reboot  what they say
//   off
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void getppids(long n, int processes)
{
	long long start = now();

	for (int p = 1; p < processes; p++)
		if (!fork()) {
			for (long i = 0; i < n; i++)
				syscall(SYS_getppid);
			_exit(0);
		}
	for (long i = 0; i < n; i++)
		syscall(SYS_getppid);
	while (wait(NULL) > 0)
		;
	printf("getppid %ld %lld\n", n * processes, now() - start);
}

#define MOST 200000
static unsigned took_each[MOST];

static int by_size(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;

	return (x > y) - (x < y);
}

/* Of n steps that took so many ns together: what the middle one took. */
static double middle(long n, long long ns)
{
	double ticks = 0;

	n = n < MOST ? n : MOST;
	for (long i = 0; i < n; i++)
		ticks += took_each[i];
	qsort(took_each, n, sizeof(*took_each), by_size);
	return n ? took_each[n / 2] * (ns / ticks) : 0;
}

static void each(const char *what, long n, int processes)
{
	unsigned long long before, after;
	pid_t others[16] = {0};

	for (int p = 0; p < processes - 1 && p < 16; p++) {
		others[p] = fork();
		while (!others[p])
			syscall(SYS_getppid);
	}
	int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
	char byte = 0;
	long long start = now();

	before = __builtin_ia32_rdtsc();
	for (long i = 0; i < n; i++) {
		switch (*what) {
		case 'n': syscall(SYS_getppid); break;
		case 'r': syscall(SYS_read, zero, &byte, 1); break;
		case 'w': syscall(SYS_write, null, &byte, 1); break;
		default: close(open("/init", O_RDONLY));
		}
		after = __builtin_ia32_rdtsc();
		took_each[i % MOST] = after - before;
		before = after;
	}
	long long took = now() - start;
	for (int p = 0; p < 16 && others[p] > 0; p++) {
		kill(others[p], SIGKILL);
		waitpid(others[p], NULL, 0);
	}
	printf("%s %ld %lld %.1f\n", what, n, took, middle(n, took));
	close(zero);
	close(null);
}

static void unpack(long n)
{
	static char block[4096];
	char name[64];
	int archive = open("/tmp/archive", O_RDWR | O_CREAT | O_TRUNC, 0600), file;

	for (long i = 0; i < n; i++)
		if (write(archive, block, sizeof(block)) != sizeof(block))
			printf("no room\n");
	lseek(archive, 0, SEEK_SET);
	long long start = now();
	unsigned long long before = __builtin_ia32_rdtsc(), after;
	for (long i = 0; i < n; i++) {
		if (i % 16 == 0) {
			snprintf(name, sizeof(name), "/tmp/d%ld", i / 16);
			mkdir(name, 0700);
		}
		snprintf(name, sizeof(name), "/tmp/d%ld/f%ld", i / 16, i);
		if (read(archive, block, sizeof(block)) != sizeof(block) || (file = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600)) < 0)
			break;
		if (write(file, block, sizeof(block)) != sizeof(block))
			printf("no room\n");
		close(file);
		chmod(name, 0644);
		after = __builtin_ia32_rdtsc();
		took_each[i % MOST] = after - before;
		before = after;
	}
	long long took = now() - start;
	close(archive);
	for (long i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "/tmp/d%ld/f%ld", i / 16, i);
		unlink(name);
		if (i % 16 == 15 || i == n - 1)
			rmdir(dirname(name));
	}
	printf("unpack %ld %lld %.1f\n", n, took, middle(n, took));
}

static void symbols(char *words)
{
	char line[512], *name, *end;
	FILE *f = fopen("/proc/kallsyms", "r");

	while (f && fgets(line, sizeof(line), f)) {
		name = strchr(line, ' ');
		name = name ? strchr(name + 1, ' ') : NULL;
		if (!name)
			continue;
		name++;
		end = name + strcspn(name, " \t\n");
		char wanted[300];
		snprintf(wanted, sizeof(wanted), " %.*s ", (int)(end - name), name);
		if (strstr(words, wanted))
			printf("%s", line);
	}
	if (f)
		fclose(f);
	printf("syms\n");
}

static void put(const char *file, const char *text)
{
	int fd = open(file, O_WRONLY | O_TRUNC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		printf("%s: %s\n", file, strerror(errno));
	close(fd);
}

static void ftrace(const char *function)
{
	char line[256];
	long n, sum = 0;

	for (int cpu = 0; cpu < 8; cpu++) {
		snprintf(line, sizeof(line), "/sys/kernel/tracing/per_cpu/cpu%d/stats", cpu);
		FILE *f = fopen(line, "r");
		while (f && fgets(line, sizeof(line), f))
			if (sscanf(line, "entries: %ld", &n) == 1 || sscanf(line, "overrun: %ld", &n) == 1)
				sum += n;
		if (f)
			fclose(f);
	}
	put("/sys/kernel/tracing/current_tracer", "nop");
	put("/sys/kernel/tracing/trace", "");
	if (strcmp(function, "off")) {
		put("/sys/kernel/tracing/set_ftrace_filter", function);
		put("/sys/kernel/tracing/current_tracer", "function");
	}
	printf("ftrace %ld\n", sum);
}

/* A probe of the kernel's own, by tracefs: kprobe PLACE, and how often it was hit: kprobe off. */
static void kprobe(const char *place)
{
	char line[256];
	long hits = 0, n;

	FILE *f = fopen("/sys/kernel/tracing/kprobe_profile", "r");
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, " mine %ld", &n) == 1)
			hits = n;
	if (f)
		fclose(f);
	if (strcmp(place, "off")) {
		snprintf(line, sizeof(line), "p:mine %s", place);
		put("/sys/kernel/tracing/kprobe_events", line);
		put("/sys/kernel/tracing/events/kprobes/mine/enable", "1");
	} else {
		put("/sys/kernel/tracing/events/kprobes/mine/enable", "0");
		put("/sys/kernel/tracing/kprobe_events", "");
	}
	printf("kprobe %ld\n", hits);
}

static void trap(void)
{
	int status = 0;
	pid_t child = fork();

	if (!child) {
		__asm__ volatile("int3");
		_exit(1);
	}
	waitpid(child, &status, 0);
	printf("trap %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
}

int main(void)
{
	char line[512], word[256], more[32];
	long n, p;
	struct stat s;

	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("caller ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		n = 0, p = 1;
		if (sscanf(line, "getppid %ld %ld", &n, &p) >= 1) {
			getppids(n, p);
		} else if (sscanf(line, "unpack %ld", &n) == 1) {
			unpack(n);
		} else if (sscanf(line, "null %ld %ld", &n, &p) >= 1) {
			each("null", n, p);
		} else if (sscanf(line, "read %ld", &n) == 1) {
			each("read", n, 1);
		} else if (sscanf(line, "write %ld", &n) == 1) {
			each("write", n, 1);
		} else if (sscanf(line, "opens %ld", &n) == 1) {
			each("opens", n, 1);
		} else if (sscanf(line, "open %ld", &n) == 1) {
			for (long i = 0; i < n; i++) {
				snprintf(word, sizeof(word), "/f%ld", i);
				close(open(word, O_RDONLY));
			}
			printf("open %ld\n", n);
		} else if (sscanf(line, "unlink %ld", &n) == 1) {
			for (long i = 0; i < n; i++) {
				snprintf(word, sizeof(word), "/tmp/u%ld", i);
				if (i % 2 == 0)
					close(open(word, O_CREAT | O_WRONLY, 0600));
				int r = unlink(word) ? -errno : 0;
				printf("unlinked %s %d\n", word, r);
			}
			printf("unlink %ld\n", n);
		} else if (sscanf(line, "stat %255s", word) == 1) {
			printf("stat %lld\n", stat(word, &s) ? -1LL : (long long)s.st_size);
		} else if (sscanf(line, "sleep %ld", &n) == 1) {
			usleep(n * 1000);
			printf("sleep %ld\n", n);
		} else if (!strncmp(line, "syms ", 5)) {
			line[strcspn(line, "\n")] = ' ';
			symbols(line + 4);
		} else if (sscanf(line, "ftrace %255s", word) == 1) {
			ftrace(word);
		} else if (sscanf(line, "kprobe %255s", word) == 1) {
			kprobe(word);
		} else if (!strncmp(line, "trap", 4)) {
			trap();
		} else if (!strncmp(line, "panic", 5)) {
			put("/proc/sysrq-trigger", "c");
		} else if (!strncmp(line, "reboot", 6)) {
			reboot(RB_AUTOBOOT);
		} else if (sscanf(line, "%31s", more) == 1 && !strcmp(more, "off")) {
			break;
		}
	}
	sync();
	reboot(RB_POWER_OFF);
	return 0;
}
