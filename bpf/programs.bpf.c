// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What programs themselves say of their work: one program at functions' entries and returns and at USDT probes of user space. Which place was hit
 * says the cookie; where its arguments are, user space has put into `hooks` (crates/probe/src/programs.rs), so this knows no program by name.
 *
 * Each hit is one record. It is read completely before there is room for it in a ring: a page of the program may have to be brought in, for which
 * the task sleeps, and a record that is reserved holds up those behind it.
 */
#define KPAT_APP
#define KPAT_PROGRAMS /* reads nothing of the task's but its open files */
#include "tasks.bpf.h"
#include "descriptors.bpf.h"
#include "hook.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KP_MAX_HOOKS);
	__type(key, u32);
	__type(value, struct kp_hook);
} hooks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KP_MAX_HOOKS);
	__type(key, u32);
	__type(value, struct kp_rate);
} rates SEC(".maps");

/* What a function was given the address of and fills in before it returns. */
struct call {
	u32 pid;
	u16 id;
	u16 argument;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct call);
	__type(value, u64);
} addresses SEC(".maps");

/* Calls of a function in a thread whose entries were left out: how many of them have not returned. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct call);
	__type(value, u32);
} unrecorded SEC(".maps");

struct sock_common___ports {
	u16 skc_family;
	u16 skc_num; /* local, host's order */
	__be16 skc_dport;
} __core;

struct sock___ports {
	struct sock_common___ports __sk_common;
} __core;

/* The descriptor, and above its 32 bits, if it is a socket of IP, the local port and the peer's. */
static __always_inline u64 with_ports(u64 descriptor)
{
	struct file___open *file = file_of(descriptor);
	struct sock___ports *sk;
	u16 family;

	if (!inode_of(file, S_IFSOCK))
		return descriptor;
	sk = (void *)sock_of(file);
	family = sk ? BPF_CORE_READ(sk, __sk_common.skc_family) : 0;
	if (family != AF_INET && family != AF_INET6)
		return descriptor;
	return descriptor | (u64)BPF_CORE_READ(sk, __sk_common.skc_num) << 48 |
	       (u64)__builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport)) << 32;
}

struct found {
	u64 value[KP_PROGRAM_VALUES];
	u64 text; /* its address, 0: none */
	u32 text_len; /* at most */
	u32 faults; /* a bit for each value, and one for the text */
	u8 bytes[2 * KP_PROGRAM_TEXT];
};

static __always_inline long read_user(void *to, u32 bytes, u64 from, bool sleeps)
{
	return sleeps ? bpf_copy_from_user(to, bytes, (void *)from) : bpf_probe_read_user(to, bytes, (void *)from);
}

/* The low `size` bytes of a register or of memory, extended. */
static __always_inline u64 extended(u64 v, const struct kp_argument *a)
{
	u32 shift = (64 - 8 * a->size) & 63;

	return a->flags & KP_ARG_SIGNED ? (u64)((s64)(v << shift) >> shift) : v << shift >> shift;
}

static __always_inline u64 load(u64 at, u32 size, u32 fault, struct found *s, bool sleeps)
{
	u64 v = 0;

	if (read_user(&v, size == 8 ? 8 : size == 4 ? 4 : size == 2 ? 2 : 1, at, sleeps))
		s->faults |= fault;
	return v;
}

static __always_inline void argument(struct pt_regs *ctx, struct kp_hook *h, u32 i, u32 pid, struct found *s, bool sleeps)
{
	const struct kp_argument *a = &h->argument[i];
	struct call call = { .pid = pid, .id = h->id, .argument = a->slot };
	/* What leads to the value is an address. */
	u32 size = a->flags & KP_ARG_POINTED ? 8 : a->size;
	u32 fault = 1 << (a->flags & (KP_ARG_TEXT | KP_ARG_LENGTH) ? KP_PROGRAM_VALUES : a->slot & 3);
	u64 v = 0, *kept;

	if (!a->from)
		return;
	if (a->from == KP_ARG_CONSTANT) {
		v = a->offset;
	} else if (a->from == KP_ARG_KEPT) {
		kept = bpf_map_lookup_elem(&addresses, &call);
		if (!kept) {
			s->faults |= fault;
			return;
		}
		v = *kept;
		bpf_map_delete_elem(&addresses, &call);
	} else {
		bpf_probe_read_kernel(&v, sizeof(v), (void *)ctx + a->reg);
		if (a->from == KP_ARG_MEMORY)
			v = load(v + a->offset, a->flags & KP_ARG_THEN ? 8 : size, fault, s, sleeps);
		if (a->flags & KP_ARG_THEN)
			v = load(v + a->then, size, fault, s, sleeps);
	}
	if (a->flags & KP_ARG_KEEP) {
		bpf_map_update_elem(&addresses, &call, &v, BPF_ANY);
		return;
	}
	if (a->flags & KP_ARG_TEXT) {
		s->text = v;
		return;
	}
	if (a->flags & KP_ARG_POINTED)
		v = load(v, a->size, fault, s, sleeps);
	v = extended(v, a);
	if (a->flags & KP_ARG_LENGTH)
		s->text_len = v < KP_PROGRAM_TEXT ? v : KP_PROGRAM_TEXT;
	else
		s->value[a->slot & 3] = a->flags & KP_ARG_DESCRIPTOR ? with_ports((u32)v) : v;
}

/* Up to the end of its page, as the next may not be there; then the rest, if it is. */
static __always_inline u32 read_text(struct found *s, bool sleeps)
{
	u64 left = 4096 - (s->text & 4095);
	u32 first = s->text_len, rest = 0;

	if (!s->text || !first)
		return 0;
	if (first > left) {
		rest = first - left;
		first = left;
	}
	first &= 2 * KP_PROGRAM_TEXT - 1;
	if (first > KP_PROGRAM_TEXT)
		return 0;
	if (read_user(s->bytes, first, s->text, sleeps)) {
		s->faults |= 1 << KP_PROGRAM_VALUES;
		return 0;
	}
	rest &= KP_PROGRAM_TEXT - 1;
	if (rest && !read_user(s->bytes + (first & (KP_PROGRAM_TEXT - 1)), rest, s->text + first, sleeps))
		return first + rest;
	return first;
}

/*
 * A function that is called without end costs its program a breakpoint each time; it shall not fill the log, too. Of a call both hits are left out or none: a
 * beginning without its end would last for ever.
 */
static __always_inline bool is_too_often(const struct kp_hook *h, u32 at, u32 pid, u64 now)
{
	bool returns = h->of_call == KP_CALL_RETURN;
	struct call call = { .pid = pid, .id = h->id };
	u32 of = returns ? h->begins : at, one = 1, *open;
	struct kp_rate *rate = bpf_map_lookup_elem(&rates, &of);

	if (!rate || (returns && !rate->left_out))
		return false;
	if (!returns) {
		if (now - rate->since >= KP_RATE_NS) {
			rate->since = now;
			rate->hits = 0;
		}
		if (!h->most || __sync_fetch_and_add(&rate->hits, 1) < h->most)
			return false;
	}
	open = h->of_call ? bpf_map_lookup_elem(&unrecorded, &call) : NULL;
	if (returns) {
		if (!open || !*open)
			return false;
		--*open;
	} else if (open) {
		++*open;
	} else if (h->of_call) {
		bpf_map_update_elem(&unrecorded, &call, &one, BPF_ANY);
	}
	__sync_fetch_and_add(&rate->left_out, 1);
	return true;
}

static __always_inline int hit(struct pt_regs *ctx, bool sleeps)
{
	u64 pid_tgid = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	u32 at = (u32)bpf_get_attach_cookie(ctx), len;
	struct found s = { .text_len = KP_PROGRAM_TEXT };
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_program *r;
	struct kp_hook *h;

	h = bpf_map_lookup_elem(&hooks, &at);
	if (!ctl || !h || !func_mode[h->mode & (KP_MAX_FUNCS - 1)])
		return 0;
	if (!h->only && is_too_often(h, at, (u32)pid_tgid, now))
		return 0;
#pragma unroll
	for (u32 i = 0; i < KP_MAX_ARGUMENTS; i++)
		argument(ctx, h, i, (u32)pid_tgid, &s, sleeps);
	/* Only of those that are wanted there may be too many. */
	if (h->only && (s.value[(h->only - 1) & 3] != h->wanted || is_too_often(h, at, (u32)pid_tgid, now)))
		return 0;
	len = read_text(&s, sleeps);
	if (s.faults)
		count_loss(ctl, KP_LOSS_READ_FAULT);
	current_pid(ctl, pid_tgid, 0);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = now;
	__builtin_memcpy(r->value, s.value, sizeof(r->value));
	r->stage = h->stage;
	r->text_len = len;
	r->faults = s.faults;
	r->pad = 0;
	__builtin_memset(r->pad2, 0, sizeof(r->pad2));
	__builtin_memcpy(r->text, s.bytes, sizeof(r->text));
	ring_commit(&r->h, KP_PROGRAM, sizeof(*r), h->id, (u32)pid_tgid);
	return 0;
}

SEC("uprobe")
int program_hit(struct pt_regs *ctx)
{
	return hit(ctx, false);
}

/* From 6.0 on: what the program has not touched yet is brought in. */
SEC("uprobe.s")
int program_hit_sleeps(struct pt_regs *ctx)
{
	return hit(ctx, true);
}

/* From 6.6 on: many places of a file by one link. */
SEC("uprobe.multi.s")
int program_hit_multi(struct pt_regs *ctx)
{
	return hit(ctx, true);
}

char LICENSE[] SEC("license") = "GPL";
