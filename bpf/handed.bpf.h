/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Work that one thread of a server hands to another of its threads (handing.bpf.h says when). What the second one does from then on stands with its own process, and besides it is counted here
 * until it is known for whom it was: these sums are parts of what stands with the process, and when the log is read they are taken out of it.
 *
 * Rejected: to charge it to the client that the first thread works for when it wakes the second one. A thread that finds the queue filled does not wait, and one that is woken often finds that another
 * was quicker: three clients of a pool of four threads were charged with 0 to 5 times of what was done for them.
 */
#ifndef KPAT_HANDED_H
#define KPAT_HANDED_H

#include "sums.bpf.h"

/* Pieces of work of one kind: see tells.bpf.h. */
struct pieces {
	u64 ns;
	u64 times;
};
#define MOST_PIECES 64

struct handed {
	u64 ns[3]; /* nobody's yet: in user mode, system calls, page faults */
	u64 place; /* the futex by which it waits for work; 0: not known */
	u64 key; /* the same among places */
	u64 woken_for; /* who woke or started it worked for this client, or NOT_SAID; 0: that was not seen */
	u64 client; /* whom it answered last, since it waited there; 0: nobody */
	u64 began; /* boot time since when it does what is nobody's yet */
	u64 bell; /* where it was notified last that others had done work (bells.bpf.h); 0: nowhere */
	u32 purpose; /* KP_FOR_HANDED or KP_FOR_HANDED_REMOTE */
	u16 muddled; /* since `began` it wrote to others than clients, or to one that had asked nothing */
	u16 taken; /* it has taken a message since it had nothing left to do */
	u32 last; /* of a task whose answers tell: NOTHING to ANSWERED_ONE; the rest is these tasks', too */
	u16 speech_is_unix;
	u16 turns; /* it works for several in turns */
	u64 speech; /* where it took a server's message last, of which it is not known for whom it is: the key of what its process says there (known.bpf.h) */
	struct pieces after; /* between the messages of two clients */
	struct pieces before; /* between the answers to two clients */
	struct pieces between; /* between the message of one and the answer to another */
};

#define NOT_SAID (~0ULL) /* who woke it was handed work itself */

/* Where threads wait for work: what is known of the work that comes there. */
struct place {
	u64 by; /* who woke last worked for a client */
	u64 client; /* for this one, or NOT_SAID */
	u64 wakes;
	u64 others; /* of these by who worked for none */
	u64 answered_ns; /* what was done, and answered */
	u64 silent_ns; /* and not */
};

/* By process and futex. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, struct place);
} places SEC(".maps");

#define RARELY 32 /* once in so many is not often */
#define MOST_WAKES 4096
#define MOST_NS 17179869184ULL

/* By task. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct handed);
} handed_tasks SEC(".maps");

/* Does the task work for a client, its own or one that is not known yet? So whom it wakes may, too. */
static __always_inline bool hands_on(struct account *a)
{
	return a->serving ? serves_client(a) : a->handed != 0;
}

/* From now on; see struct handed. */
__noinline int is_handed(u32 pid, u64 at, u64 key, u64 woken_for)
{
	struct handed h = { .place = at, .key = key, .woken_for = woken_for, .began = bpf_ktime_get_boot_ns() };

	bpf_map_update_elem(&handed_tasks, &pid, &h, BPF_ANY);
	keep_state(pid, HANDED);
	return 0;
}

/* The client that the task works for; 0: none. */
static __always_inline u64 client_of(struct account *a)
{
	return serves_client(a) ? a->serving : 0;
}

/* Does other work come to this place, too, that nobody is answered? As far as is known: where threads hardly ever wait it is not (`wakes`). */
static __always_inline bool is_mixed(struct place *p)
{
	return p && (p->others * RARELY > p->wakes || p->silent_ns * RARELY > p->answered_ns);
}

/* The same, where it writes; of one whose answers tell nothing is known before. */
static __always_inline u64 writes_for(struct account *a)
{
	return a->since & TELLS ? 0 : client_of(a);
}

/* What of the mode is the i-th in struct handed. */
static __always_inline u32 handed_mode(u32 i)
{
	return i == 0 ? KP_WORK_USER : i == 1 ? KP_WORK_KERNEL : KP_WORK_FAULT;
}

/* The task that runs was handed work: what it did since it was last asked. */
static __always_inline void count_handed(struct account *a)
{
	struct kp_work w = {};
	struct handed *h;
	u32 pid, mode;

	pid = a->pid;
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	if (!h) {
		a->handed = 0;
		return;
	}
#pragma unroll
	for (u32 i = 0; i < 3; i++) {
		mode = handed_mode(i);
		w.ns = *(volatile u64 *)&a->base[mode];
		if (!w.ns)
			continue;
		h->ns[i] += w.ns;
		put(a, mode, KP_FOR_HANDED_ON, 0, &w);
	}
}

/* So much of what the task did (as in struct handed), and stands with its process, was for this client. Whether it was is `unsure`. */
static __noinline u64 charge_parts(struct account *a, u64 *ns, u64 client, u64 purpose_and_unsure)
{
	struct kp_work w = {};
	u64 sum = 0;

	if (!a || !ns)
		return 0;
#pragma unroll
	for (u32 i = 0; i < 3; i++) {
		w.ns = ns[i];
		w.bytes = purpose_and_unsure >> 32 ? w.ns : 0;
		ns[i] = 0;
		sum += w.ns;
		if (w.ns && client)
			put(a, handed_mode(i), (u32)purpose_and_unsure, client, &w);
	}
	return sum;
}
#define UNSURE (1ULL << 32)

/*
 * What is nobody's yet is this client's (0: nobody's), if either the task was woken for this one and has answered nobody before, or there is hardly any work here that is not answered.
 * Whether there is, few wakes do not tell: what is charged nevertheless is counted (the sum's bytes). Who answers, but was not seen to be woken, may as well write what nobody asked for.
 */
__noinline int handed_is_for(struct account *a, struct handed *h, u64 client, u32 purpose)
{
	struct place *p;
	u64 key, sum;
	bool woken, charged;

	if (!a || !h)
		return 0;
	key = h->key;
	p = key ? bpf_map_lookup_elem(&places, &key) : NULL;
	woken = client && !h->client && h->woken_for == client;
	charged = client && (woken || (h->woken_for && !is_mixed(p)));
	sum = charge_parts(a, h->ns, charged ? client : 0, purpose | (!woken && (!p || p->wakes < RARELY) ? UNSURE : 0));
	h->began = a->last;
	if (!p)
		return 0;
	*(client ? &p->answered_ns : &p->silent_ns) += sum;
	if (p->answered_ns + p->silent_ns > MOST_NS) {
		p->answered_ns /= 2;
		p->silent_ns /= 2;
	}
	return 0;
}

/* A task wakes who waits for work there, or rings there (bells.bpf.h). */
__noinline int wakes_at(struct account *a, u64 key)
{
	u32 process = bpf_get_current_pid_tgid() >> 32;
	struct place *p = bpf_map_lookup_elem(&places, &key), none = {};

	if (!a)
		return 0;
	if (!p) {
		if (!hands_on(a))
			return 0;
		bpf_map_update_elem(&places, &key, &none, BPF_NOEXIST);
		p = bpf_map_lookup_elem(&places, &key);
		if (!p)
			return 0;
	}
	p->by = hands_on(a);
	p->client = client_of(a) ?: NOT_SAID;
	p->others += !p->by;
	if (++p->wakes > MOST_WAKES) {
		p->wakes /= 2;
		p->others /= 2;
	}
	if (p->by && !state_is(process, HANDS))
		keep_state(process, HANDS);
	return 0;
}

#endif
