/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The sums that all time goes to, by CPU, victim and purpose, and those of sockets' uses. A table costs a hash and a look-up for each addition, which at a million packets a second is
 * most of what a profile costs: so a CPU keeps those it added to last in its account, as in a cache, and puts them into the table when others need the place and when user space
 * turns to the other set of sums.
 *
 * An interrupt between finding such a sum and adding to it could give its place to another. So what runs meanwhile adds to the table by itself; and additions are atomic, for
 * user space's program is an interrupt, too, and takes sums out.
 */
#ifndef KPAT_SUMS_H
#define KPAT_SUMS_H

#include "account.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct kp_work_key);
	__type(value, struct kp_work);
} works SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct kp_use_key);
	__type(value, struct kp_use);
} uses SEC(".maps");

/* Sums of sockets' uses that found no room. */
u64 unplaced_uses SEC(".data.unplaced") = 0;

__noinline int to_table(struct account *a, struct kp_work_key *k, struct kp_work *w)
{
	struct kp_work_key key;
	struct kp_work *sum, more;

	if (!a || !k || !w)
		return 0;
	/* 6.1 takes the value of an entry from the program's own stack alone */
	key = *k;
	more = *w;
	sum = bpf_map_lookup_elem(&works, &key);
	if (!sum) {
		if (!bpf_map_update_elem(&works, &key, &more, BPF_NOEXIST))
			return 0;
		/* an interrupt was quicker, or there is no room */
		sum = bpf_map_lookup_elem(&works, &key);
		if (!sum) {
			add(&a->h.unplaced_ns, more.ns);
			return 0;
		}
	}
	add(&sum->ns, more.ns);
	add(&sum->packets, more.packets);
	add(&sum->bytes, more.bytes);
	return 0;
}

static __always_inline int flush_sum(struct account *a, struct sum *s)
{
	struct kp_work w = {};

	if (!a || !s)
		return 0;
	w.ns = take(&s->w.ns);
	w.packets = take(&s->w.packets);
	w.bytes = take(&s->w.bytes);
	if (w.ns || w.packets || w.bytes)
		to_table(a, &s->key, &w);
	return 0;
}

/* Not static: the verifier walks through it once. */
__noinline int add_to_sums(u32 what, u32 purpose, u64 socket, struct kp_work *w)
{
	struct account *a = this_account();
	struct kp_work_key k = {};
	struct sum *s;
	u64 hash;

	if (!a || !w)
		return 0;
	k.socket = (purpose == KP_FOR_SOCKET || purpose == KP_FOR_DROP) && is_others(socket) ? KP_OTHERS : socket;
	k.victim = a->victim;
	k.cpu = bpf_get_smp_processor_id();
	k.what = what;
	k.purpose = purpose;
	k.turn = a->turn;
	if (*(volatile u32 *)&a->summing)
		return to_table(a, &k, w);
	store_once(&a->summing, 1);
	hash = (k.socket + ((u64)k.victim << 8) + what + purpose * 16) * 0x9e3779b97f4a7c15ULL;
	hash = (hash ^ hash >> 29) * 0x9e3779b97f4a7c15ULL;
	s = &a->sum[hash >> 48 & (SUMS - 1)];
	if (s->key.socket != k.socket || s->key.victim != k.victim || s->key.what != k.what || s->key.purpose != k.purpose || s->key.turn != k.turn) {
		flush_sum(a, s);
		s->key = k;
	}
	if (w->ns)
		add(&s->w.ns, w->ns);
	if (w->packets)
		add(&s->w.packets, w->packets);
	if (w->bytes)
		add(&s->w.bytes, w->bytes);
	store_once(&a->summing, 0);
	return 0;
}

static __always_inline int put(struct account *a, u32 what, u32 purpose, u64 socket, struct kp_work *w)
{
	return add_to_sums(what, purpose, socket, w);
}

static __always_inline int flush_use(struct use_sum *s)
{
	struct kp_use u = {}, *sum;
	struct kp_use_key k;

	if (!s)
		return 0;
	k = s->key;
	u.bytes = take(&s->u.bytes);
	u.times = take(&s->u.times);
	if (!u.times)
		return 0;
	sum = bpf_map_lookup_elem(&uses, &k);
	if (!sum) {
		if (bpf_map_update_elem(&uses, &k, &u, BPF_ANY))
			add(&unplaced_uses, 1);
		return 1;
	}
	add(&sum->bytes, u.bytes);
	add(&sum->times, u.times);
	return 0;
}

/* The first use of a socket, of others than those that were kept last. */
__noinline int new_use(struct account *a, u64 socket, u32 how)
{
	struct use_sum *s;

	if (!a)
		return 0;
	s = &a->use_sum[(socket + how) & (USE_SUMS - 1)];
	flush_use(s);
	s->key.socket = socket;
	s->key.process = a->victim;
	s->key.cpu = bpf_get_smp_processor_id();
	s->key.how = how;
	s->key.turn = a->turn;
	return 0;
}

/* A use of a socket is added to those of now. True: it is the first, as far as this CPU remembers. */
static __always_inline int add_use(struct account *a, u64 socket, u32 how, u64 bytes)
{
	struct use_sum *s = &a->use_sum[(socket + how) & (USE_SUMS - 1)];
	int first = s->key.socket != socket || s->key.process != a->victim || s->key.how != how || s->key.turn != (u8)a->turn;

	if (first)
		new_use(a, socket, how);
	if (bytes)
		add(&s->u.bytes, bytes);
	add(&s->u.times, 1);
	return first;
}

__noinline int flush_one(u32 i)
{
	u32 zero = 0;
	struct account *a = bpf_map_lookup_elem(&accounts, &zero);

	return a ? flush_sum(a, &a->sum[i & (SUMS - 1)]) : 0;
}

/* What was kept goes to the tables. */
__noinline int flush_sums(struct account *a)
{
	if (!a)
		return 0;
	for (u32 i = 0; i < SUMS; i++)
		flush_one(i);
	for (int i = 0; i < USE_SUMS; i++)
		flush_use(&a->use_sum[i]);
	return 0;
}

static __always_inline void put_time(struct account *a, u32 what, u32 purpose, u64 ns)
{
	struct kp_work w = { .ns = ns };

	if (ns)
		put(a, what, purpose, 0, &w);
}

static __always_inline u32 of_softirq(struct account *a)
{
	return a->mode == KP_WORK_THREAD ? KP_WORK_SOFTIRQ_THREAD : KP_WORK_SOFTIRQ;
}

/* The block request at hand is done with: the time since the one before, or since the interrupt or softirq began, goes to who asked for it. */
__noinline int put_block(struct account *a)
{
	struct kp_work w = { .packets = 1 };
	struct block *b;
	bool hard;

	if (!a)
		return 0;
	hard = top_is(a, HARDIRQ);
	b = block_of(a);
	w.ns = take(hard ? &a->hard_ns : &a->soft_ns);
	w.bytes = b->bytes;
	put(a, hard ? KP_WORK_HARDIRQ : of_softirq(a), b->owner ? KP_FOR_BLOCK : KP_FOR_KERNEL, b->owner, &w);
	b->open = 0;
	return 0;
}

#endif
