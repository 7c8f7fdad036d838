/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Who wrote messages, and what need not be looked up because it was for the message before: most messages are of the same socket as the last. */
#ifndef KPAT_KNOWN_H
#define KPAT_KNOWN_H

#include "behalf.bpf.h"
#include "ends.bpf.h"
#include "bells.bpf.h"
#include "rests.bpf.h"

/* Who wrote last, and for which client of its own: it goes on for that one when it takes the answer. */
struct speech {
	u64 who; /* its number, and in the low half as whom it is accounted (KP_OTHERS where it is not chosen) */
	u64 client; /* 0: for itself */
	u32 client_for; /* KP_FOR_CLIENT, KP_FOR_ASKER or KP_FOR_REMOTE */
	u32 open; /* WAITS, SEVERAL */
};
#define WAITS 1 /* no answer was taken since */
#define SEVERAL 2 /* it has written there for one client before the answer for another came: so what comes there does not say for whom it is */

#define TALK_OF(name, what)                                  \
	struct {                                             \
		__uint(type, BPF_MAP_TYPE_LRU_HASH);         \
		__uint(max_entries, 16384);                  \
		__type(key, u64);                            \
		__type(value, what);                         \
	} name SEC(".maps")

TALK_OF(senders, struct speech); /* by unix socket: see number_of() */
TALK_OF(writers, struct speech); /* by connection, as its writer sees it; by way of a datagram */

/*
 * Grows with each change of what is known of messages: who wrote, who asked whom, who listens. While it stays, the next message of the same socket means what the last one meant, and is
 * not looked up; now and then it is all the same, as the tables forget what is not asked for.
 */
u64 talk SEC(".data.talk") = 0;
#define ASKED_AGAIN 61 /* odd: several that count in turns all come to it */

static __always_inline u64 talk_now(void)
{
	return *(volatile u64 *)&talk + (*(volatile u64 *)&file_round << 40);
}

static __always_inline void talk_changes(void)
{
	add(&talk, 1);
}

/* Does a task take the same of the same as before? Of one whose answers tell, or that makes processes for clients, each message counts. */
static __always_inline bool took_before(struct account *a, u64 of)
{
	struct known *k = &a->known;

	return k->took == of && k->took_by == a->pid && k->took_at == talk_now() && k->serving == a->serving && (!a->serving || k->serving_for == a->serving_for) && !(a->since & (TELLS | MAKES)) &&
	       ++k->times % ASKED_AGAIN;
}

/* `talk`: of before that was looked up. */
static __always_inline void remember_taken(struct account *a, u64 of, u64 talk)
{
	struct known *k = &a->known;

	k->took = of;
	k->took_at = talk;
	k->took_by = a->pid;
	k->serving = a->serving;
	k->serving_for = a->serving_for;
}

/* The number of the process that runs, chosen or not. */
static __always_inline u32 own_number(struct account *a)
{
	return a->victim != KP_OTHERS && a->victim ? a->victim : bpf_get_current_pid_tgid() >> 32;
}

static __always_inline u64 speaker(struct account *a)
{
	return (u64)own_number(a) << 32 | a->victim;
}

/* The task took a client's message; or what a process gives it that was made for this client, which asks nothing. */
static __always_inline void serve_client(struct account *a, u64 client, u32 purpose, bool asking)
{
	u32 process = bpf_get_current_pid_tgid() >> 32, state = state_is(process, SERVER | HANDS);
	bool turns;

	if (!(state & SERVER))
		keep_state(process, SERVER);
	turns = state & HANDS && in_turns(process);
	if (turns && !a->serving)
		serve(a, client, purpose);
	if (a->serving && a->victim != KP_OTHERS && serves_client(a) && (a->since & TELLS || (a->serving != client && !(a->since & WROTE)) || turns))
		takes_another(a, client, purpose, turns);
	if (state & HANDS && asking)
		asks(process, client);
	serve(a, client, purpose);
}

/* `open` of who writes there again, now for this client. */
static __always_inline u32 waits_with(struct speech *before, u64 client)
{
	return WAITS | (before->open & SEVERAL) | (before->open & WAITS && before->client && before->client != client ? SEVERAL : 0);
}

/* Puts into a table who writes now. True: it was another before. */
static __always_inline bool speaks(struct account *a, void *table, u64 key)
{
	struct speech *before = bpf_map_lookup_elem(table, &key), now = { .who = speaker(a), .client = writes_for(a) };
	bool another = !before || before->who != now.who;

	if (now.client) {
		now.client_for = a->serving_for;
		now.open = another ? WAITS : waits_with(before, now.client);
	} else if (!another && a->since & TELLS) { /* what was found out: says_for() */
		now.client = before->client;
		now.client_for = before->client_for;
		now.open = before->open;
	}
	if (another || before->client != now.client || before->client_for != now.client_for || before->open != now.open)
		bpf_map_update_elem(table, &key, &now, BPF_ANY);
	return another;
}

/* For whom the task's process has written there last is known now. `where`: ON_UNIX, and whether it has written only NOW. */
#define ON_UNIX 1
#define NOW 2
__noinline int says_for(struct account *a, u64 key, u32 where, u64 client, u32 purpose)
{
	struct speech now = { .client = client, .client_for = served_as(purpose) }, *before;

	if (!a)
		return 0;
	now.who = speaker(a);
	before = where & ON_UNIX ? bpf_map_lookup_elem(&senders, &key) : bpf_map_lookup_elem(&writers, &key);
	if (before && before->who == now.who)
		now.open = where & NOW ? waits_with(before, client) : before->open;
	else if (where & NOW)
		now.open = WAITS;
	return where & ON_UNIX ? bpf_map_update_elem(&senders, &key, &now, BPF_ANY) : bpf_map_update_elem(&writers, &key, &now, BPF_ANY);
}

static __always_inline void wrote(struct account *a, u64 key)
{
	u64 who = speaker(a), now = talk_now(), client = writes_for(a);
	struct known *k = &a->known;

	if (k->wrote == key && k->writer == who && k->wrote_at == now && k->wrote_for == client && ++k->times % ASKED_AGAIN)
		return;
	if (speaks(a, &writers, key)) {
		talk_changes();
		now = talk_now();
	}
	k->wrote = key;
	k->writer = who;
	k->wrote_at = now;
	k->wrote_for = client;
	k->sk = 0;
}

struct sock___pair {
	struct {
		union {
			u64 skc_addrpair;
		};
		union {
			u32 skc_portpair;
		};
	} __sk_common;
} __core;

/* Is it known that this socket's packets are the task's messages, as the last one was? */
static __always_inline bool wrote_before(struct account *a, u64 sk)
{
	struct known *k = &a->known;

	return k->sk == sk && k->writer == speaker(a) && k->wrote_at == talk_now() && k->wrote_for == writes_for(a) && k->sk_ports == kread((struct sock___pair *)sk, __sk_common.skc_portpair) &&
	       k->sk_addresses == kread((struct sock___pair *)sk, __sk_common.skc_addrpair) && ++k->times % ASKED_AGAIN;
}

/* A packet of this socket had the key that was written last. One without a peer has others, too. */
static __always_inline void wrote_by(struct account *a, u64 sk)
{
	struct known *k = &a->known;

	if (!kread((struct sock___ends *)sk, __sk_common.skc_dport))
		return;
	k->sk_ports = kread((struct sock___pair *)sk, __sk_common.skc_portpair);
	k->sk_addresses = kread((struct sock___pair *)sk, __sk_common.skc_addrpair);
	k->sk = sk;
}

#endif
