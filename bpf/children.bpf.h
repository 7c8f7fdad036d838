/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Processes that a server makes while it works for a client (makers.bpf.h): what they do stands with themselves, and besides it is kept here until it is known that it was for that client. Then it is
 * summed up as what is handed from thread to thread is (handed.bpf.h): a part of what stands with the process.
 *
 * Such a process may be gone when that is known, and what its maker does then happens on another CPU. So all is added and taken atomically, and the sums go to the table directly, in its name.
 */
#ifndef KPAT_CHILDREN_H
#define KPAT_CHILDREN_H

#include "handed.bpf.h"

struct child {
	u64 ns[3]; /* as in struct handed */
	u64 client; /* the one whose request its maker took */
	u64 asked_at; /* that request's time: struct asked */
	u32 purpose; /* KP_FOR_HANDED or KP_FOR_HANDED_REMOTE */
	u32 maker; /* number of the process that took the request */
	u32 number; /* its own process's */
	u32 told; /* who made it is logged in this file: file_round */
	u64 gave; /* it has written to a pipe or socket */
};

/* By task: also threads of such a process, and processes that it makes itself. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u32);
	__type(value, struct child);
} children SEC(".maps");

static __always_inline struct child *own_child(struct account *a)
{
	u32 pid = a->pid;

	return a->child ? bpf_map_lookup_elem(&children, &pid) : NULL;
}

/* Of the first thread of a process of this number. */
static __always_inline struct child *child_of(u64 number)
{
	u32 pid = number & KP_ID_MASK;

	return state_is(pid, CHILD) ? bpf_map_lookup_elem(&children, &pid) : NULL;
}

/* The task that runs is one: what it did since it was last asked. */
static __always_inline void count_child(struct account *a)
{
	struct child *c = own_child(a);

	if (!c || a->victim == KP_OTHERS) {
		a->child = 0;
		return;
	}
	c->number = a->victim;
#pragma unroll
	for (u32 i = 0; i < 3; i++)
		add(&c->ns[i], *(volatile u64 *)&a->base[handed_mode(i)]);
}

/* The server of which a process's work is a part. */
static __noinline int tell_maker(struct account *a, struct child *c)
{
	struct use_sum s = {};

	if (!a || !c)
		return 0;
	c->told = *(volatile u64 *)&file_round;
	s.key.socket = c->number;
	s.key.process = c->maker;
	s.key.cpu = bpf_get_smp_processor_id();
	s.key.how = KP_USE_MADE;
	s.key.turn = a->turn;
	s.u.times = 1;
	return flush_use(&s);
}

/* What it did until now was for its client. */
static __noinline int charge_child(struct account *a, struct child *c)
{
	struct kp_work_key k = {};
	struct kp_work w = {};

	if (!a || !c || !c->number)
		return 0;
	k.socket = c->client;
	k.victim = c->number;
	k.cpu = bpf_get_smp_processor_id();
	k.purpose = c->purpose;
	k.turn = a->turn;
#pragma unroll
	for (u32 i = 0; i < 3; i++) {
		w.ns = take(&c->ns[i]);
		k.what = handed_mode(i);
		if (w.ns)
			to_table(a, &k, &w);
	}
	return c->told == (u32)*(volatile u64 *)&file_round ? 0 : tell_maker(a, c);
}

#endif
