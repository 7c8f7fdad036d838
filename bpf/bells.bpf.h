/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Work that one thread of a server does and another one answers: an event loop takes the messages, has a pool compute, and writes the answers when it is notified that something is done. What notifies it is a bell: an
 * eventfd, or a pair of unix sockets whose other end the same process reads. What the thread did that rings is kept with the bell, in order; the loop that heard it, because it waits for the bell by epoll or reads
 * it, answers in that order, as its queue has it. So the next answer to a client who had asked before that work began is for it. One that is the only one that waits there is sure; of several the order alone says which.
 * What is left when the loop sleeps again is nobody's.
 *
 * The same bell notifies a thread with a loop of its own that it is handed work, as a futex does (handing.bpf.h).
 *
 * Loops that take several clients' messages before they answer the first: what they do between is for whom they answer next (TELLS), for it is not known when they take a message up again.
 * What they do after a message until they take another or sleep, and answer nobody, is for who sent it, as it is of other servers.
 *
 * A loop may wait for the edge of an eventfd and never read it. So a bell's name is that of the epoll which waits for it, where one does: who waits first for the eventfd or socket. It is the process's own.
 */
#ifndef KPAT_BELLS_H
#define KPAT_BELLS_H

#include "bell_names.bpf.h"
#include "ends.bpf.h"
#include "running.bpf.h"

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

/*
 * When a client asked first what it has no answer to, boot time, and above it how often it has asked more than it was answered: by server and client, of servers that
 * hand work on. Whoever has several requests under way is answered in the order in which they are done, and nothing says for which of them.
 */
#define ONE_ASKED (1ULL << 56)
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, u64);
} asked SEC(".maps");

static __noinline int asks(u32 process, u64 client)
{
	u64 key = mixed(process, client), now, *at = bpf_map_lookup_elem(&asked, &key);

	if (at) {
		if (*at < 255 * ONE_ASKED)
			*at += ONE_ASKED;
		return 0;
	}
	now = bpf_ktime_get_boot_ns() | ONE_ASKED;
	bpf_map_update_elem(&asked, &key, &now, BPF_ANY);
	return 0;
}

static __always_inline u32 handed_as(u32 purpose)
{
	return purpose == KP_FOR_REMOTE ? KP_FOR_HANDED_REMOTE : KP_FOR_HANDED;
}

/* From now on the task's answers tell for whom it works. */
static __always_inline int begins_to_tell(struct account *a)
{
	u32 process = bpf_get_current_pid_tgid() >> 32, pid;
	struct handed *h;
	struct served *s;

	if (!a)
		return 0;
	border(a);
	put_task(a);
	pid = a->pid;
	if (!a->handed)
		is_handed(pid, 0, 0, 0);
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	s = bpf_map_lookup_elem(&served_tasks, &pid);
	if (!h || !s)
		return 0;
	h->client = a->serving;
	h->purpose = handed_as(a->serving_for);
	h->muddled = 0;
	s->since |= TELLS;
	a->since |= TELLS;
	a->handed = HANDED;
	keep_state(process, HANDS);
	return 0;
}

/* What the task did since it was asked last is this client's, and from now on this one's. */
static __always_inline int part_is_for(struct account *a, struct handed *h, u64 client, u64 purpose_and_unsure)
{
	if (!a || !h)
		return 0;
	border(a);
	put_task(a);
	charge_parts(a, h->ns, client, purpose_and_unsure);
	h->began = a->last;
	h->muddled = 0;
	return 0;
}

/* A task that has not answered whom it works for takes another's message. */
static __always_inline int takes_another(struct account *a, u64 client, u32 purpose)
{
	struct handed *h;
	u32 pid;

	if (!a)
		return 0;
	if (!(a->since & TELLS))
		begins_to_tell(a);
	pid = a->pid;
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	if (!h)
		return 0;
	part_is_for(a, h, h->client, h->purpose);
	h->client = client;
	h->purpose = handed_as(purpose);
	return 0;
}

/* A task is about to ring: its own work is kept here, and who hears it is handed work. */
static __noinline int rings_at(struct account *a, u64 key)
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
	part_is_for(a, h, h->client, h->purpose);
	h->client = 0;
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
static __noinline u64 parcel_for(struct bell *b, u64 key, u64 client, u64 ask)
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
	u64 key, ask, n, *at;
	struct parcel *p;
	struct bell *b;
	bool several;

	key = mixed(bpf_get_current_pid_tgid() >> 32, client);
	at = bpf_map_lookup_elem(&asked, &key);
	ask = at ? *at & (ONE_ASKED - 1) : 0;
	several = at && *at >= 2 * ONE_ASKED;
	if (several)
		*at -= ONE_ASKED;
	else if (at)
		bpf_map_delete_elem(&asked, &key);
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
