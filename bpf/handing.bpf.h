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
 * Work that another thread answers: either that one waits by a futex until it is done, and goes on for the client whose message it took (waiters), or it is a loop that is notified by a bell (bells.bpf.h).
 *
 * Not followed: answers by pipes, futexes of two processes. Threads that have one futex for all
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

/* A thread that took a client's message waits until another one has done the work. */
struct waiter {
	u64 client;
	u64 since; /* boot time */
	u64 purpose; /* KP_FOR_HANDED or KP_FOR_HANDED_REMOTE */
};

/* By process and futex. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, struct waiter);
} waiters SEC(".maps");

static __always_inline void waits_for_work(struct account *a, u64 key)
{
	struct waiter w = { .client = a->serving, .purpose = handed_as(a->serving_for), .since = a->last };

	bpf_map_update_elem(&waiters, &key, &w, BPF_ANY);
}

/*
 * The task wakes a thread that waits there for a client: what it did was for that one, if it was woken for it, or the other has waited for most of that work. Else it may be a lock that the other
 * waits for, and the work goes on.
 */
__noinline int gives_back(struct account *a, u64 key)
{
	struct waiter *w;
	struct handed *h;
	u64 ran;
	u32 pid;

	if (!a || !a->handed || a->serving)
		return 0;
	w = bpf_map_lookup_elem(&waiters, &key);
	pid = a->pid;
	h = w ? bpf_map_lookup_elem(&handed_tasks, &pid) : NULL;
	if (!h)
		return 0;
	border(a);
	put_task(a);
	ran = h->ns[0] + h->ns[1] + h->ns[2];
	if (h->woken_for != w->client && w->since + ran - ran / 4 > a->last)
		return 0;
	handed_is_for(a, h, w->client, w->purpose);
	h->client = 0;
	h->woken_for = NOT_SAID;
	return 0;
}

struct task_struct___joined {
	int *clear_child_tid;
} __core;

/* Who waits for a thread's end waits by a futex, too. */
__noinline int thread_ends(struct account *a)
{
	struct task_struct___joined *task = (void *)bpf_get_current_task();

	return gives_back(a, futex_key((u64)BPF_CORE_READ(task, clear_child_tid)));
}

/* A task begins to wait by a futex, or to wake. True: its end is wanted. */
static __noinline int futex_begins(struct account *a, struct pt_regs *regs)
{
	u32 op;
	u64 key;

	if (!a || !regs)
		return 0;
	op = system_call_arg(regs, 1);
	key = futex_key(system_call_arg(regs, 0));
	if (!wakes(op & FUTEX_COMMAND)) {
		if (!state_is(bpf_get_current_pid_tgid() >> 32, HANDS))
			return 0;
		if (a->serving && serves_client(a) && !(a->since & TELLS) && !is_brief(regs, op))
			waits_for_work(a, key);
		return 1;
	}
	gives_back(a, key);
	return wakes_at(a, key);
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
	h->last = NOTHING;
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
	if (a->serving && serves_client(a))
		bpf_map_delete_elem(&waiters, &key);
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

/* A task has heard a bell; of one that takes no messages itself that is where it waits for work. */
__noinline int rung(struct account *a, u64 key)
{
	struct handed *h;
	struct place *p;
	u32 pid;

	if (!a)
		return 0;
	pid = a->pid;
	if (!a->serving || !serves_client(a)) {
		p = bpf_map_lookup_elem(&places, &key);
		h = a->handed ? bpf_map_lookup_elem(&handed_tasks, &pid) : NULL;
		if (h && (!h->place || h->place == key)) {
			waited(a, h, key, key, p, 0);
		} else if (!a->handed && !a->serving && p && p->by) {
			border(a);
			put_task(a);
			is_handed(pid, key, key, p->client);
			a->handed = HANDED;
		}
	}
	return hears(a, key);
}

/* The other end's client, if the task's process is its server; 0: none. `purpose`: what it is as. */
static __noinline u64 client_at(struct account *a, u64 sk, u32 *purpose)
{
	struct speech *other;
	struct ends e;
	u64 key, me, *known;
	bool is_unix_one;
	u32 role;

	if (!a || !purpose)
		return 0;
	*purpose = KP_FOR_HANDED;
	is_unix_one = kread((struct sock___profile *)sk, __sk_common.skc_family) == AF_UNIX;
	if (is_unix_one) {
		key = (u64)BPF_CORE_READ((struct unix_sock___bound *)sk, peer);
		role = role_at_unix(sk, key);
		key = number_of(key);
		other = bpf_map_lookup_elem(&senders, &key);
	} else {
		role = NOT_KNOWN;
		if (ends_of((void *)sk, &e)) {
			key = as_receiver(&e);
			role = role_of(&e);
		} else {
			key = e.datagrams ? a->answers_to : 0;
			role = a->answers_as;
		}
		if (!key)
			return 0;
		other = bpf_map_lookup_elem(&writers, &key);
	}
	if (!other) {
		known = is_unix_one ? NULL : bpf_map_lookup_elem(&remotes, &key);
		*purpose = KP_FOR_HANDED_REMOTE;
		return known && *known & 1 ? key : 0;
	}
	me = answers_as_number(a);
	key = other->who >> 32;
	if (key == me)
		return 0;
	key = dialog_key(me, key, role);
	known = bpf_map_lookup_elem(&dialogs, &key);
	return known && (u32)*known == (u32)(other->who >> 32) ? (u32)other->who : 0;
}

/*
 * A task that works for a client whose message it took writes to this socket. If that is another client's who waits for an answer, then it has worked for that one, and the last message that it took does not tell:
 * so do tasks whose program has several of its own on each thread (Go), and loops that have taken one up again. Who waits for none gets what others did.
 */
static __noinline int answers_one(struct account *a, u64 sk)
{
	u32 process = bpf_get_current_pid_tgid() >> 32, purpose;
	u64 client;
	bool hands;

	if (!a)
		return 0;
	hands = state_is(process, HANDS);
	client = sk == a->took_at && (!a->answers_to || a->answers_to == a->known.took) ? a->serving : client_at(a, sk, &purpose);
	if (!hands) {
		if (client && client != a->serving)
			keep_state(process, HANDS);
		return 0;
	}
	if (a->since & FROM_CHILD)
		passes_on(a, client);
	if (!client || !asks_no_more(process, client))
		return 0;
	if (client == a->serving)
		return answers(process, ANSWERS_OWN);
	return answers(process, ANSWERS_OTHER) ? begins_to_tell(a) : 0;
}

/* The task that runs was handed work, or it is of a server and took no message itself, and writes to this socket. A client's message was taken by another thread, then. Or its answers tell. */
static __noinline int handed_answers(struct account *a, u64 sk)
{
	struct handed *h;
	u32 pid, purpose, what;
	u64 client;
	bool tell;

	if (!a)
		return 0;
	tell = a->since & TELLS;
	client = client_at(a, sk, &purpose);
	if (!client && !tell)
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
	if (!client) {
		h->muddled = 1;
		client = asks_now_for(h);
		return client ? asks_for(a, sk, client, h->purpose) : 0;
	}
	if (a->since & FROM_CHILD)
		passes_on(a, client);
	if (tell && h->last == TOOK_UNKNOWN && h->speech)
		says_for(a, h->speech, h->speech_is_unix ? ON_UNIX : 0, client, purpose);
	if (tell && h->client != client) {
		what = gets(bpf_get_current_pid_tgid() >> 32, client, h->taken);
		if (what == LISTENS)
			return 0;
		if (what == MAY_LISTEN)
			h->muddled = 1;
	}
	if (tell)
		tells(a, h, client, purpose, in_turns(bpf_get_current_pid_tgid() >> 32));
	else
		handed_is_for(a, h, client, purpose);
	answers_parcel(a, h, client, purpose);
	h->client = client;
	h->purpose = purpose;
	return 0;
}

/* A task has answered, and turns to something of its own: a connection that is new, or at its end. */
__noinline int turns_elsewhere(struct account *a)
{
	struct handed *h;
	u32 pid;

	if (!a || !a->since)
		return 0;
	pid = a->pid;
	if (has_answered(a)) {
		a->rests = pid;
		a->rested_at = a->last;
	}
	if (!(a->since & TELLS))
		return 0;
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	if (h && owes_nothing(h))
		turns_away(a, h);
	return 0;
}

/* It has written since it took the message of whom it serves. */
static __always_inline void has_written(struct account *a)
{
	if (!(a->since & FOR_FILES))
		since_is(a, WROTE);
}

#endif
