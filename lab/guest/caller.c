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
//   crew T            a process with T threads, which wait: their numbers, the process's first
//   work N [M]        each of the crew calls getppid N times and ends; meanwhile /dummy.ko is loaded and unloaded, M or more times: all calls, and how often
//   tracers WORD...   the kernel's own tracer counts calls of these functions, each in an instance of its own; with + before it only those while one of the crew runs
//   traced            what each counted, and no more of it
//   tun N             N opens of a device that a module has, and N closes
//   unload NAME       takes this module out: 0, or -1
//   put FILE TEXT     writes a line into a file
//   readers N         N processes wait in a read of a pipe
//   release           nobody can write into it any more: how many of them then read nothing, and ended well
//   trap              an int3 in a process of its own: the signal that ended it
//   panic, reboot  what they say
//   off
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
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

/* Calls of functions as the kernel's own tracer counts them, of those in an instance's buffers and those that it had no room for. */
static long entries(const char *instance)
{
	char name[256], line[256];
	long n, sum = 0;

	for (int cpu = 0; cpu < 8; cpu++) {
		snprintf(name, sizeof(name), "%s/per_cpu/cpu%d/stats", instance, cpu);
		FILE *f = fopen(name, "r");
		while (f && fgets(line, sizeof(line), f)) {
			if (sscanf(line, "entries: %ld", &n) == 1 || sscanf(line, "overrun: %ld", &n) == 1)
				sum += n;
			if ((sscanf(line, "commit overrun: %ld", &n) == 1 || sscanf(line, "dropped events: %ld", &n) == 1) && n)
				printf("%s", line);
		}
		if (f)
			fclose(f);
	}
	return sum;
}

static void ftrace(const char *function)
{
	long sum = entries("/sys/kernel/tracing");

	put("/sys/kernel/tracing/current_tracer", "nop");
	put("/sys/kernel/tracing/trace", "");
	if (strcmp(function, "off")) {
		put("/sys/kernel/tracing/set_ftrace_filter", function);
		put("/sys/kernel/tracing/current_tracer", "function");
	}
	printf("ftrace %ld\n", sum);
}

/* A process whose threads begin all at once, when they are allowed to. */
static struct crew {
	long calls;
	pid_t ids[16];
	int count, ready;
} *crew;
static pid_t crew_process;
static int gate[2];

static void *worker(void *own)
{
	*(pid_t *)own = syscall(SYS_gettid);
	__atomic_add_fetch(&crew->ready, 1, __ATOMIC_SEQ_CST);
	/* Asleep, until nobody can write there any more. */
	while (read(gate[0], &(char){0}, 1) > 0)
		;
	for (long i = 0; i < crew->calls; i++)
		syscall(SYS_getppid);
	return NULL;
}

static void new_crew(int threads)
{
	if (!crew)
		crew = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	memset(crew, 0, sizeof(*crew));
	crew->count = threads < 16 ? threads : 16;
	if (pipe(gate))
		printf("no pipe\n");
	crew_process = fork();
	if (!crew_process) {
		pthread_t others[16];

		close(gate[1]);
		for (int t = 1; t < crew->count; t++)
			pthread_create(&others[t], NULL, worker, &crew->ids[t]);
		worker(&crew->ids[0]);
		for (int t = 1; t < crew->count; t++)
			pthread_join(others[t], NULL);
		_exit(0);
	}
	while (__atomic_load_n(&crew->ready, __ATOMIC_SEQ_CST) < crew->count)
		usleep(1000);
	printf("crew");
	for (int t = 0; t < crew->count; t++)
		printf(" %d", crew->ids[t]);
	printf("\n");
}

static int loaded_and_unloaded(void)
{
	int file = open("/dummy.ko", O_RDONLY);
	long r = syscall(SYS_finit_module, file, "", 0);

	close(file);
	return !r && !syscall(SYS_delete_module, "dummy", O_NONBLOCK);
}

static void work(long calls, long modules)
{
	long loads = 0;
	int at_work = 1;

	crew->calls = calls;
	close(gate[1]);
	close(gate[0]);
	while ((at_work = at_work && waitpid(crew_process, NULL, WNOHANG) != crew_process) || loads < modules) {
		if (modules && loaded_and_unloaded())
			loads++;
		else
			usleep(1000);
	}
	printf("work %ld %ld\n", calls * crew->count, loads);
}

static const char *const INSTANCES = "/sys/kernel/tracing/instances";
static char traced[8][64];
static int traced_count;

static void put_in(const char *instance, const char *file, const char *text)
{
	char name[256];

	snprintf(name, sizeof(name), "%.63s/%s", instance, file);
	put(name, text);
}

static void tracers(char *words)
{
	char ids[128] = "";

	traced_count = 0;
	for (int t = 0; crew && t < crew->count; t++)
		snprintf(ids + strlen(ids), sizeof(ids) - strlen(ids), "%d ", crew->ids[t]);
	for (char *word = strtok(words, " \n"); word && traced_count < 8; word = strtok(NULL, " \n")) {
		int of_crew = *word == '+';
		char *own = traced[traced_count++];

		snprintf(own, sizeof(traced[0]), "%s/t%d", INSTANCES, traced_count);
		mkdir(own, 0700);
		put_in(own, "set_ftrace_filter", word + of_crew);
		if (of_crew)
			put_in(own, "set_ftrace_pid", ids);
		put_in(own, "current_tracer", "function");
	}
	printf("tracers %d\n", traced_count);
}

static void counted(void)
{
	long found[8];

	for (int i = 0; i < traced_count; i++) {
		put_in(traced[i], "tracing_on", "0");
		found[i] = entries(traced[i]);
		put_in(traced[i], "current_tracer", "nop");
		rmdir(traced[i]);
	}
	printf("traced");
	for (int i = 0; i < traced_count; i++)
		printf(" %ld", found[i]);
	printf("\n");
}

/* A misc device whose code is in a module: what it is called, and its number, are in /proc. */
static void tun(long n)
{
	long good = 0;
	int file = open("/tun.ko", O_RDONLY);

	syscall(SYS_finit_module, file, "", 0);
	close(file);
	mknod("/tmp/tun", S_IFCHR | 0600, makedev(10, 200));
	for (long i = 0; i < n; i++) {
		file = open("/tmp/tun", O_RDWR);
		good += file >= 0 && !close(file);
	}
	printf("tun %ld\n", good);
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

static int readers_gate[2];
static long readers;

static void new_readers(long n)
{
	char byte;

	if (pipe(readers_gate))
		printf("no pipe\n");
	for (readers = 0; readers < n; readers++)
		if (!fork()) {
			close(readers_gate[1]);
			_exit(read(readers_gate[0], &byte, 1) ? 1 : 0);
		}
	close(readers_gate[0]);
	// Until each is asleep there, more or less.
	usleep(500000);
	printf("readers %ld\n", n);
}

static void release(void)
{
	long good = 0;
	int status;

	close(readers_gate[1]);
	for (; readers; readers--)
		good += wait(&status) > 0 && WIFEXITED(status) && !WEXITSTATUS(status);
	printf("release %ld\n", good);
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
	char line[512], word[256], more[32], text[256];
	long n, m, p;
	struct stat s;

	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("tmpfs", "/tmp", "tmpfs", 0, NULL);
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("caller ready\n");
	while (fgets(line, sizeof(line), stdin)) {
		n = 0, m = 0, p = 1;
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
		} else if (sscanf(line, "crew %ld", &n) == 1) {
			new_crew(n);
		} else if (sscanf(line, "work %ld %ld", &n, &m) >= 1) {
			work(n, m);
		} else if (!strncmp(line, "tracers ", 8)) {
			tracers(line + 8);
		} else if (!strncmp(line, "traced", 6)) {
			counted();
		} else if (sscanf(line, "tun %ld", &n) == 1) {
			tun(n);
		} else if (sscanf(line, "unload %255s", word) == 1) {
			printf("unload %ld\n", syscall(SYS_delete_module, word, O_NONBLOCK));
		} else if (sscanf(line, "put %255s %255[^\n]", word, text) == 2) {
			put(word, text);
			printf("put\n");
		} else if (sscanf(line, "readers %ld", &n) == 1) {
			new_readers(n);
		} else if (!strncmp(line, "release", 7)) {
			release();
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
