/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A thread that took a client's message hands the work to another thread of its process: it wakes one that waits by a futex, as conditions, semaphores and parked threads do, or starts one. The
 * woken thread has work until it waits there again, and its answer says for whom: what it did is for the client to whom it then writes. So a thread that takes one request after
 * another without waiting is followed, and it does not matter who wakes whom when.
 *
 * Waits in the midst of work do not end it: those by another futex than the one by which the thread waits for work. That is where it was woken first, and not by a lock: see is_brief().
 *
 * A thread that answers a client and was not seen to be woken is followed from then on, so that what it does is counted separately; charged to nobody, as it may write what nobody asked for.
 *
 * Not followed: work for which another thread answers, answers by pipes and datagrams of a socket without a peer, futexes of two processes, eventfd. Threads that have one futex for all
 * of their waits (Go, Java) lose what they did before they waited for a lock: it stays their own.
 */
#ifndef KPAT_HANDING_H
#define KPAT_HANDING_H

#include "messages.bpf.h"

#define FUTEX_COMMAND 127
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_REQUEUE 3
#define FUTEX_CMP_REQUEUE 4
#define FUTEX_WAKE_OP 5
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAKE_BITSET 10
#define FUTEX_CLOCK_REALTIME 256
#define FUTEX_WAKES (1 << FUTEX_WAKE | 1 << FUTEX_REQUEUE | 1 << FUTEX_CMP_REQUEUE | 1 << FUTEX_WAKE_OP | 1 << FUTEX_WAKE_BITSET)
#define EAGAIN 11
#define ETIMEDOUT 110

#define CONTENDED 2 /* the value of a lock for which somebody waits (Drepper, Futexes Are Tricky) */
#define OWN_STACK 65536 /* bytes: a futex so near above the stack pointer is not a lock, but made for this wait */
#define BRIEF_NS 50000000

static __always_inline u64 futex_key(u64 at)
{
	return mixed(bpf_get_current_pid_tgid() >> 32, at);
}

static __always_inline bool wakes(u32 command)
{
	return command < 32 && FUTEX_WAKES >> command & 1;
}

struct time_of_user {
	s64 s, ns;
};

/* Does the task wait for a lock, or only for so long that it looks again soon after? So nobody waits for work. */
static __always_inline bool is_brief(struct pt_regs *regs, u32 op)
{
	struct time_of_user until = {};
	u64 at = system_call_arg4(regs);
	s64 ns;

	if ((u32)system_call_arg(regs, 2) == CONTENDED && system_call_arg(regs, 0) - entry_key(regs) >= OWN_STACK)
		return true;
	if (!at || op & FUTEX_CLOCK_REALTIME || bpf_probe_read_user(&until, sizeof(until), (void *)at))
		return false;
	ns = until.s * 1000000000 + until.ns;
	return ns - ((op & FUTEX_COMMAND) == FUTEX_WAIT ? 0 : (s64)bpf_ktime_get_ns()) < BRIEF_NS;
}

/* A task begins to wait by a futex, or to wake. True: its end is wanted. */
static __noinline int futex_begins(struct account *a, struct pt_regs *regs)
{
	u32 process = bpf_get_current_pid_tgid() >> 32;
	struct place *p, none = {};
	u64 key;

	if (!a || !regs)
		return 0;
	if (!wakes(system_call_arg(regs, 1) & FUTEX_COMMAND))
		return state_is(process, HANDS) != 0;
	key = futex_key(system_call_arg(regs, 0));
	p = bpf_map_lookup_elem(&places, &key);
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

/* A task was woken where it waits for work, or looked for it there in vain, or in time. */
static __always_inline void waited(struct account *a, struct handed *h, u64 at, u64 key, struct place *p, long result)
{
	bool by = p && p->by;
	u32 pid = a->pid;

	if (a->serving) { /* a message that it took itself, while it had work before */
		if (!by || !h->place)
			return;
		serve(a, 0, 0);
	}
	border(a);
	put_task(a);
	/* what it did since an answer is that client's, too */
	handed_is_for(a, h, h->client, h->purpose);
	h->client = 0;
	if (by)
		h->woken_for = p->client;
	h->place = at;
	h->key = key;
	if (by || result == -EAGAIN)
		return;
	take_state(pid, HANDED);
	bpf_map_delete_elem(&handed_tasks, &pid);
	a->handed = 0;
}

static __noinline int futex_ends(struct account *a, struct pt_regs *regs, long result)
{
	u32 op, pid;
	struct handed *h;
	struct place *p;
	u64 at, key;

	if (!a || !regs || !state_is(bpf_get_current_pid_tgid() >> 32, HANDS))
		return 0;
	op = system_call_arg(regs, 1);
	at = system_call_arg(regs, 0);
	key = futex_key(at);
	if (((op & FUTEX_COMMAND) != FUTEX_WAIT && (op & FUTEX_COMMAND) != FUTEX_WAIT_BITSET) || (result && result != -EAGAIN && result != -ETIMEDOUT))
		return 0;
	if (!a->handed && (result == -ETIMEDOUT || a->serving || a->mode == KP_WORK_THREAD || a->victim == KP_OTHERS))
		return 0;
	p = bpf_map_lookup_elem(&places, &key);
	pid = a->pid;
	if (a->handed) {
		h = bpf_map_lookup_elem(&handed_tasks, &pid);
		/* a condition waits by two in turns */
		if (h && (h->place ? at - h->place + 4 <= 8 : !is_brief(regs, op)))
			waited(a, h, at, key, p, result);
		return 0;
	}
	if (!p || !p->by || is_brief(regs, op))
		return 0;
	border(a);
	put_task(a);
	is_handed(pid, at, key, p->client);
	a->handed = HANDED;
	return 0;
}

/* The other end's client, if the task's process is its server; 0: none. `purpose`: what it is as. */
static __noinline u64 client_at(struct account *a, u64 sk, u32 *purpose)
{
	struct speech *other;
	struct ends e;
	u64 key, me, *known;
	bool is_unix_one;

	if (!a || !purpose)
		return 0;
	*purpose = KP_FOR_HANDED;
	is_unix_one = kread((struct sock___profile *)sk, __sk_common.skc_family) == AF_UNIX;
	if (is_unix_one) {
		key = number_of((u64)BPF_CORE_READ((struct unix_sock___bound *)sk, peer));
		other = bpf_map_lookup_elem(&senders, &key);
	} else {
		if (!ends_of((void *)sk, &e))
			return 0;
		key = as_receiver(&e);
		other = bpf_map_lookup_elem(&writers, &key);
	}
	if (!other) {
		known = is_unix_one ? NULL : bpf_map_lookup_elem(&remotes, &key);
		*purpose = KP_FOR_HANDED_REMOTE;
		return known && *known & 1 ? key : 0;
	}
	me = own_number(a);
	key = other->who >> 32;
	if (key == me)
		return 0;
	key = me < key ? me << 32 | key : key << 32 | me;
	known = bpf_map_lookup_elem(&dialogs, &key);
	return known && (u32)*known == (u32)(other->who >> 32) ? (u32)other->who : 0;
}

/* The task that runs was handed work, or it is of a server and took no message itself, and writes to this socket. A client's message was taken by another thread, then. */
static __noinline int handed_answers(struct account *a, u64 sk)
{
	struct handed *h;
	u32 pid, purpose;
	u64 client;

	if (!a)
		return 0;
	client = client_at(a, sk, &purpose);
	if (!client)
		return 0;
	border(a);
	put_task(a);
	pid = a->pid;
	if (!a->handed) {
		is_handed(pid, 0, 0, 0);
		keep_state(bpf_get_current_pid_tgid() >> 32, HANDS);
		a->handed = HANDED;
		return 0;
	}
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	if (!h)
		return 0;
	handed_is_for(a, h, client, purpose);
	h->client = client;
	h->purpose = purpose;
	return 0;
}

#endif
