/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Work that one thread of a server does and another one answers: an event loop takes the messages, has a pool compute, and writes the answers when it is notified that something is done. What notifies it is a bell: an
 * eventfd, or a pair of unix sockets whose other end the same process reads. What the thread did that rings is kept with the bell, in order; the loop that heard it, because it waits for the bell by epoll or reads
 * it, answers in that order, as its queue has it. So the next answer to a client who had asked before that work began is for it. One that is the only one that waits there is sure; of several the order alone says which.
 * What is left when the loop sleeps again is nobody's.
 *
 * The same bell notifies a thread with a loop of its own that it is handed work, as a futex does (handing.bpf.h).
 *
 * A loop may wait for the edge of an eventfd and never read it. So a bell's name is that of the epoll which waits for it, where one does: who waits first for the eventfd or socket. It is the process's own.
 */
#ifndef KPAT_BELLS_H
#define KPAT_BELLS_H

#include "bell_names.bpf.h"
#include "ends.bpf.h"
#include "tells.bpf.h"

#define MISSING (~0ULL)
#define SURE (1ULL << 63)
#define MOST_PARCELS 64 /* of a bell, and a trial: so many without an answer to any */

/* Work that is done and not answered. */
struct parcel {
	u64 ns[3]; /* as in struct handed */
	u64 end; /* boot time */
	u64 woken_for; /* as in struct handed, of who was woken for this one alone */
};

struct bell {
	u64 in; /* so many were put here, */
	u64 heard; /* of these the loop was notified, */
	u64 before; /* so many of them before it slept last: who rings is counted before the loop wakes up, which may do so for something else */
	u64 out; /* and so many are over */
	u64 ahead; /* those behind them, too, that overtook others */
	u64 used; /* for so many there was an answer, */
	u64 silent; /* and for so many not */
	u64 woke; /* when the loop slept last, boot time */
	u64 missed; /* so many clients were answered since who asked before that, and nothing lay here: their work's thread may ring only now, or never where others rang before */
	u64 owed; /* the same before it slept last */
};

/* By process and epoll, eventfd or socket. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, struct bell);
} bells SEC(".maps");

/* By bell and number there. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct parcel);
} parcels SEC(".maps");

/* What a client asked and has no answer to. Whoever has several requests under way is answered in the order in which they are done, and nothing says for which of them. */
struct asked {
	u64 since; /* boot time of the first one */
	u32 times; /* how often it has asked more than it was answered */
	u32 taken_by; /* the task that took the last one */
	u32 others; /* so often it got something since it was answered last: after another's message was taken, */
	u32 more; /* and not */
};

/* By server and client, of servers that hand work on. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct asked);
} asked SEC(".maps");

static __always_inline struct asked *asked_of(u32 process, u64 client)
{
	u64 key = mixed(process, client);

	return bpf_map_lookup_elem(&asked, &key);
}

__noinline int asks(u32 process, u64 client)
{
	u64 key = mixed(process, client);
	struct asked now = { .times = 1, .taken_by = (u32)current_pid_tgid() }, *at = bpf_map_lookup_elem(&asked, &key);

	if (at) {
		if (!at->times)
			at->since = bpf_ktime_get_boot_ns();
		at->times += at->times < 255;
		at->taken_by = now.taken_by;
		return 0;
	}
	now.since = bpf_ktime_get_boot_ns();
	bpf_map_update_elem(&asked, &key, &now, BPF_ANY);
	return 0;
}

#define LISTENS_FROM 16

/*
 * A task writes to a client. It may have asked nothing that is not answered yet: then it gets more of an answer, or what others have said. Who gets something again and again, but hardly ever without another's message
 * before, listens to what others say. `after`: another's message was taken.
 */
enum { IS_ANSWERED, GETS_MORE, MAY_LISTEN, LISTENS };
static __always_inline u32 gets(u32 process, u64 client, bool after)
{
	u64 key = mixed(process, client);
	struct asked *at = bpf_map_lookup_elem(&asked, &key), none = {};

	if (!at) {
		bpf_map_update_elem(&asked, &key, &none, BPF_NOEXIST);
		return after ? MAY_LISTEN : GETS_MORE;
	}
	if (at->times)
		return IS_ANSWERED;
	if (!after) {
		at->more++;
		return GETS_MORE;
	}
	return ++at->others > LISTENS_FROM && at->more * RARELY < at->others ? LISTENS : MAY_LISTEN;
}

/* A thread answers this client: nothing is left of what was asked. True: it was. */
__noinline bool asks_no_more(u32 process, u64 client)
{
	struct asked *at = asked_of(process, client);

	if (!at || !at->times)
		return false;
	at->times = 0;
	return true;
}

/*
 * Programs with threads of their own (Go), whose threads work for several clients in turns: nothing says when one is put aside for another. They are known by how they answer.
 *
 * Among `asked` as if ANSWERS were a client: how many answers (`times`) a process's threads gave to the client whose message they had taken last, less those that they gave to others who waited for one. Where most
 * are of the first kind, one of the second says that the thread works for several. Where most are of the second, one client's message is passed on to all others. And how many answers (`taken_by`) threads that
 * take messages gave to clients whose message another one took. What is known then is `since`.
 */
#define ANSWERS (~0ULL)
#define MANY_ANSWERS 8
#define FEW_ANSWERS 2
#define MOST_ANSWERS 64

static __always_inline bool in_turns(u32 process)
{
	struct asked *n = asked_of(process, ANSWERS);

	return n && n->since;
}

/* `which`: a thread answers whom it serves, another who waits, or one whose message another thread took. True: it works for several in turns. */
enum { ANSWERS_OWN, ANSWERS_OTHER, ANSWERS_ANOTHERS };
__noinline bool answers(u32 process, u32 which)
{
	u64 key = mixed(process, ANSWERS);
	struct asked none = {}, *n = bpf_map_lookup_elem(&asked, &key);

	if (!n) {
		bpf_map_update_elem(&asked, &key, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&asked, &key);
		if (!n)
			return false;
	}
	if (which == ANSWERS_OWN)
		n->times += n->times < MOST_ANSWERS;
	else if (which == ANSWERS_ANOTHERS)
		n->since |= ++n->taken_by >= FEW_ANSWERS;
	else if (n->times >= MANY_ANSWERS)
		n->since = 1;
	else if (n->times)
		n->times--;
	return n->since;
}

/* A task is about to ring: its own work is kept here, and who hears it is handed work. */
__noinline int rings_at(struct account *a, u64 key)
{
	struct bell *b, none = {};
	struct parcel p = {};
	struct handed *h;
	u32 pid;

	if (!a)
		return 0;
	wakes_at(a, key);
	if (!a->handed || a->serving)
		return 0;
	pid = a->pid;
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	b = bpf_map_lookup_elem(&bells, &key);
	if (!h)
		return 0;
	if (!b) {
		bpf_map_update_elem(&bells, &key, &none, BPF_NOEXIST);
		b = bpf_map_lookup_elem(&bells, &key);
		if (!b)
			return 0;
	}
	if (b->in > MOST_PARCELS && !b->used) /* who hears it answers nobody */
		return 0;
	border(a);
	put_task(a);
	for (int i = 0; i < 3; i++) {
		p.ns[i] = h->ns[i];
		h->ns[i] = 0;
	}
	p.end = h->began = a->last;
	p.woken_for = h->woken_for;
	h->woken_for = NOT_SAID;
	key = mixed(key, __sync_fetch_and_add(&b->in, 1));
	bpf_map_update_elem(&parcels, &key, &p, BPF_ANY);
	return 0;
}

/* A task writes to an eventfd. */
static __noinline int eventfd_rings(struct account *a, struct file___open *file)
{
	u64 at = eventfd_of(file);

	if (!a || !at)
		return 0;
	return rings_at(a, bell_of(bell_at(at + bpf_core_field_offset(struct eventfd_ctx___bell, wqh), at)));
}

/* A task is about to write to a unix socket. */
static __noinline int unix_rings(struct account *a, u64 sk)
{
	struct unix_sock___bell *u = (void *)sk, *peer;
	u64 wq;

	if (!a || (u32)BPF_CORE_READ(u, sk.sk_peer_pid, numbers[0].nr) != bpf_get_current_pid_tgid() >> 32)
		return 0;
	peer = (void *)BPF_CORE_READ(u, peer);
	wq = peer ? (u64)BPF_CORE_READ(peer, sk.sk_wq) : 0;
	if (!wq)
		return 0;
	return rings_at(a, bell_of(bell_at(wq + bpf_core_field_offset(struct socket_wq___bell, wait), (u64)peer)));
}

/* Before it sleeps: what the task did is for whom it worked for last, and what it does when it wakes up is for whom it answers next. */
static __always_inline int slept(struct account *a, struct handed *h)
{
	struct bell *b;
	u64 key, silent, known;

	if (!a || !h)
		return 0;
	turns_away(a, h);
	h->taken = 0;
	h->speech = 0;
	key = h->bell;
	b = key ? bpf_map_lookup_elem(&bells, &key) : NULL;
	if (b) {
		if (b->out < b->before) {
			silent = b->before - b->out;
			known = b->ahead + b->missed + b->owed;
			b->silent += silent > known ? silent - known : 0;
			b->out = b->before;
			b->ahead = 0;
		}
		b->owed = b->missed;
		b->before = b->heard;
		b->missed = 0;
		b->woke = a->last;
	}
	return 0;
}

__noinline int child_writes(struct account *a);

static __always_inline void task_ends_work(void)
{
	struct account *a = this_account();
	u32 pid;

	if (!no_frames(a) || !at_task(a))
		return;
	if (a->child)
		child_writes(a);
	if (!(a->since & TELLS))
		return;
	pid = a->pid;
	slept(a, bpf_map_lookup_elem(&handed_tasks, &pid));
}

/* A task has heard a bell, or waited by it for something else. */
static __always_inline int hears(struct account *a, u64 key)
{
	struct bell *b = bpf_map_lookup_elem(&bells, &key);
	struct handed *h;
	u32 pid;

	if (!a)
		return 0;
	if (a->serving && serves_client(a) && !(a->since & TELLS) && b && b->in != b->heard)
		begins_to_tell(a);
	pid = a->pid;
	h = a->handed ? bpf_map_lookup_elem(&handed_tasks, &pid) : NULL;
	if (!b || !h)
		return 0;
	b->heard = b->in;
	h->bell = key;
	return 0;
}

#define OFTEN 6 /* once in so many: then order tells nothing, and below that it is unsure from RARELY on */
#define LOOKED_AT 4 /* parcels: threads that ring at the same time may overtake each other */

/* Which parcel is it that the client is answered for? MISSING: none. `ask`: when it asked, 0: not known. Above: it is sure. */
__noinline u64 parcel_for(struct bell *b, u64 key, u64 client, u64 ask)
{
	u64 n, id, best = MISSING, fit = 0;
	struct parcel *p;

	if (!b)
		return MISSING;
	for (u32 i = 0; i < LOOKED_AT; i++) {
		n = b->out + i;
		if (n >= b->heard)
			break;
		id = mixed(key, n);
		p = bpf_map_lookup_elem(&parcels, &id);
		/* it was begun after that, and has run since */
		if (!p || ask + (p->ns[0] + p->ns[1] + p->ns[2]) / 2 > p->end)
			continue;
		if (p->woken_for == client)
			return n | SURE;
		if (!fit++)
			best = n;
	}
	return fit == 1 && ask ? best | SURE : best;
}

/* The task has answered this client: was it for work that lies there? */
static __always_inline void answers_parcel(struct account *a, struct handed *h, u64 client, u32 purpose)
{
	u64 key, ask, n;
	struct asked *at;
	struct parcel *p;
	struct bell *b;
	bool several;

	key = mixed(bpf_get_current_pid_tgid() >> 32, client);
	at = bpf_map_lookup_elem(&asked, &key);
	if (at && !at->times)
		at = NULL;
	ask = at ? at->since : 0;
	several = at && at->times > 1;
	if (at) {
		if (a->since & TELLS && at->taken_by != a->pid)
			answers(bpf_get_current_pid_tgid() >> 32, ANSWERS_ANOTHERS);
		at->times--;
		at->others = at->more = 0;
	}
	key = h->bell;
	b = key ? bpf_map_lookup_elem(&bells, &key) : NULL;
	n = b ? parcel_for(b, key, client, ask) : MISSING;
	if (n == MISSING) {
		if (b && ask && ask < b->woke)
			b->missed++;
		return;
	}
	key = mixed(key, n & ~SURE);
	p = bpf_map_lookup_elem(&parcels, &key);
	if (!p)
		return;
	b->used++;
	if (p->woken_for != client && (several || b->silent * RARELY > b->used || b->missed || b->owed))
		n &= ~SURE;
	if (p->woken_for == client || b->silent * OFTEN <= b->used)
		charge_parts(a, p->ns, client, purpose | (n & SURE ? 0 : UNSURE));
	bpf_map_delete_elem(&parcels, &key);
	if (b->out != (n & ~SURE)) {
		b->ahead++;
		return;
	}
	b->out++;
	for (u32 i = 1; i < LOOKED_AT && b->ahead; i++) {
		key = mixed(h->bell, b->out);
		if (bpf_map_lookup_elem(&parcels, &key))
			break;
		b->out++;
		b->ahead--;
	}
}

#endif
