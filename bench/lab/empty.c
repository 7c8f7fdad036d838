// empty MODE NAMES READY: the cheapest program that can be measured against none (it counts), on every function named in
// the file NAMES, until standard input ends; then one JSON line with what was attached and how often it was hit.
// The floor under every tool that uses the mechanism MODE: fsession.multi, kprobe.session, kprobe.multi,
// kprobe.multi.pair (entry and return, two programs).
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Attach types newer than the headers of Debian 12.
enum { KPROBE_MULTI = 42, KPROBE_SESSION = 56, FSESSION_MULTI = 61, MOST = 16384 };

static char *names[MOST];
static __u32 ids[MOST], good[MOST];
static int number, attached, refused, counter;

static int program(int type, int attach, int btf_id)
{
	struct bpf_insn code[] = {
		{ BPF_LD | BPF_DW | BPF_IMM, 1, BPF_PSEUDO_MAP_VALUE, 0, counter },
		{ 0 },
		{ BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, 1 },
		{ BPF_STX | BPF_DW | 0xc0, 1, 2, 0, BPF_ADD },
		{ BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 0 },
		{ BPF_JMP | BPF_EXIT },
	};
	LIBBPF_OPTS(bpf_prog_load_opts, o, .expected_attach_type = attach, .attach_btf_id = btf_id);
	int fd = bpf_prog_load(type, "empty", "GPL", code, 6, &o);

	if (fd < 0) {
		fprintf(stderr, "empty: the program is refused: %s\n", strerror(errno));
		exit(1);
	}
	return fd;
}

static int kprobes(int prog, int attach, char **syms, int n, int ret)
{
	struct {
		__u32 prog, target, attach, flags, kflags, count;
		__u64 syms, addrs, cookies, pad[3];
	} a = { prog, 0, attach, 0, ret, n, (__u64)(unsigned long)syms };

	return syscall(SYS_bpf, BPF_LINK_CREATE, &a, 48);
}

static int tracing(int prog, __u32 *which, int n)
{
	struct {
		__u32 prog, target, attach, flags;
		__u64 ids, cookies;
		__u32 count, pad;
	} a = { prog, 0, FSESSION_MULTI, 0, (__u64)(unsigned long)which, 0, n };

	return syscall(SYS_bpf, BPF_LINK_CREATE, &a, sizeof(a));
}

// One function that cannot be probed refuses the whole set: halve until it is alone.
static void sieve_ids(int prog, __u32 *which, int n)
{
	int link = tracing(prog, which, n);

	if (link >= 0) {
		close(link);
		memcpy(good + attached, which, n * sizeof(*which));
		attached += n;
	} else if (n == 1) {
		refused++;
	} else {
		sieve_ids(prog, which, n / 2);
		sieve_ids(prog, which + n / 2, n - n / 2);
	}
}

static char *fine[MOST];

static void sieve_names(int prog, int attach, char **which, int n)
{
	int link = kprobes(prog, attach, which, n, 0);

	if (link >= 0) {
		close(link);
		memcpy(fine + attached, which, n * sizeof(*which));
		attached += n;
	} else if (n == 1) {
		refused++;
	} else {
		sieve_names(prog, attach, which, n / 2);
		sieve_names(prog, attach, which + n / 2, n - n / 2);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 3 ? argv[1] : "";
	int prog, link = -1, second = 0, key = 0;
	__u64 hits = 0;
	char line[256];
	FILE *f;

	if (argc < 4 || !(f = fopen(argv[2], "r"))) {
		fprintf(stderr, "usage: empty MODE NAMES READY\n");
		return 2;
	}
	while (number < MOST && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = 0;
		names[number++] = strdup(line);
	}
	fclose(f);
	counter = bpf_map_create(BPF_MAP_TYPE_ARRAY, "hits", 4, 8, 1, NULL);
	if (!strcmp(mode, "fsession.multi")) {
		struct btf *btf = btf__load_vmlinux_btf();
		int n = 0;

		for (int i = 0; i < number; i++) {
			int id = btf__find_by_name_kind(btf, names[i], BTF_KIND_FUNC);

			if (id > 0)
				ids[n++] = id;
			else
				refused++;
		}
		prog = program(BPF_PROG_TYPE_TRACING, FSESSION_MULTI, 0);
		sieve_ids(prog, ids, n);
		link = tracing(prog, good, attached);
	} else {
		int attach = strcmp(mode, "kprobe.session") ? KPROBE_MULTI : KPROBE_SESSION;

		prog = program(BPF_PROG_TYPE_KPROBE, attach, 0);
		sieve_names(prog, attach, names, number);
		link = kprobes(prog, attach, fine, attached, 0);
		if (!strcmp(mode, "kprobe.multi.pair"))
			second = kprobes(prog, attach, fine, attached, 1);
	}
	if (link < 0 || second < 0) {
		fprintf(stderr, "empty: cannot attach: %s\n", strerror(errno));
		return 1;
	}
	bpf_map_update_elem(counter, &key, &hits, BPF_ANY);
	f = fopen(argv[3], "w");
	if (f) {
		fputs("ready\n", f);
		fclose(f);
	}
	while (read(0, line, sizeof(line)) > 0)
		;
	bpf_map_lookup_elem(counter, &key, &hits);
	printf("{\"attached\": %d, \"refused\": %d, \"hits\": %llu}\n", attached, refused, (unsigned long long)hits);
	return 0;
}
