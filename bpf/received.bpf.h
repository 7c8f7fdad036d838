/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whose the packets are that a softirq receives. A packet's owner is found while it is handled, at the latest when the next one comes; a packet that goes into
 * several sockets' queues (readers of a multicast group, a sniffer beside the receiver) is shared equally among them.
 *
 * A softirq may hand packets to another CPU (RPS) and have none of its own: it works for whoever's packet that CPU received last. Who comes next is not known
 * yet, and over many of them it is the same: each packet that is last is the one before the next.
 *
 * A sample that comes before the owner is known waits in the account until it is.
 */
#ifndef KPAT_RECEIVED_H
#define KPAT_RECEIVED_H

#include "ends.bpf.h"

/* Set by user space: kfree_skb has the socket that would have had the packet (6.11). */
const volatile u64 drops_have_sockets = 0;

struct sock___cookie {
	struct {
		struct {
			s64 counter;
		} skc_cookie;
	} __sk_common;
} __core;

/* By CPU whose packet it received last: a socket, or a purpose. */
#define WITHOUT_SOCKET (1ULL << 63)
u64 last_received[KP_MAX_CPUS] SEC(".data.received") = {};

#define HELD_FOR_PACKET 1
#define HELD_FOR_SOFTIRQ 2
#define HELD_FOR_PART 3

static __always_inline bool receiving(struct account *a)
{
	return top_is(a, SOFTIRQ + NET_RX);
}

/* Not of a process that is not chosen, unless one may be served that is. */
static __always_inline bool is_wanted(struct account *a, u32 purpose, u64 socket)
{
	if (!choosing() || (a->victim && a->victim != KP_OTHERS))
		return true;
	if (purpose == KP_FOR_SOCKET)
		return !is_others(socket);
	return purpose == KP_FOR_UNKNOWN || (socket && socket != KP_OTHERS);
}

/* The sample that waits is of work for this. */
static __noinline int release(struct account *a, u64 socket, u32 purpose, u32 drawn)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_sample *r;

	if (!a || !ctl)
		return 0;
	r = is_wanted(a, purpose, purpose == KP_FOR_SOCKET ? socket : 0) ? ring_reserve(ctl, sizeof(*r)) : NULL;
	if (!r) {
		a->held_for = 0;
		return 0;
	}
	r->h.ts = a->held.h.ts;
	r->kernel = a->held.kernel;
	r->user = a->held.user;
	r->socket = purpose == KP_FOR_SOCKET ? socket : 0;
	r->process = a->held.process;
	r->busy = a->held.busy;
	r->periods = a->held.periods;
	r->purpose = purpose;
	r->flags = a->held.flags | (drawn ? KP_SAMPLE_DRAWN : 0) | (purpose == KP_FOR_UNKNOWN && drawn ? KP_SAMPLE_OPEN : 0);
	ring_commit(&r->h, KP_SAMPLE, sizeof(*r), 0, a->held.h.pid);
	store_once(&a->held_for, 0); /* not before: another sample may come at any time */
	return 0;
}

static __always_inline void put_owner(struct account *a, struct owner *o, u64 share)
{
	struct kp_work w = { .ns = o->ns + share, .packets = o->packets, .bytes = o->bytes };

	put(a, of_softirq(a), o->purpose, o->socket, &w);
}

/* A packet's time, or its part of it, is kept with its owner's until the softirq is over. */
static __noinline int keep(struct account *a, u64 socket, u32 purpose, u64 ns)
{
	struct owner mine = { .socket = socket, .purpose = purpose, .ns = ns, .packets = 1 };

	if (!a)
		return 0;
	mine.bytes = a->bytes;
#pragma unroll
	for (int i = 0; i < OWNERS; i++) {
		struct owner *o = &a->owner[i];

		if (i >= a->owners) {
			*o = mine;
			a->owners = i + 1;
			a->packets++;
			return 0;
		}
		if (o->socket == socket && o->purpose == purpose) {
			o->ns += ns;
			o->bytes += mine.bytes;
			o->packets++;
			a->packets++;
			return 0;
		}
	}
	put_owner(a, &mine, 0);
	return 0;
}

/* The packet at hand is done with. */
static __noinline int cut(struct account *a)
{
	u64 ns, each, socket, last;
	u32 alsos, purpose, lot, polls;

	if (!a)
		return 0;
	polls = *(volatile u32 *)&a->polls;
	socket = a->socket;
	purpose = socket ? KP_FOR_SOCKET : a->purpose;
	alsos = a->alsos & (TARGETS - 1);
	if (!socket && (!purpose || purpose == KP_FOR_ANSWER)) {
		socket = socket_by_ends(a);
		if (socket)
			purpose = KP_FOR_SOCKET;
	}
	if (purpose == KP_FOR_DROP || purpose == KP_FOR_FORWARD)
		socket = a->which;
	if (polls && !take(&a->skb)) /* a softirq came upon the task, and this is done */
		return 0;
	ns = take(&a->soft_ns);
	each = ns / (alsos + (purpose || !alsos));
#pragma unroll
	for (int i = 0; i < TARGETS - 1; i++) {
		if (i >= alsos)
			break;
		if (!purpose && i + 1 == alsos)
			each = ns;
		ns -= each;
		keep(a, a->also[i].socket, a->also[i].purpose, each);
	}
	if (purpose || !alsos)
		keep(a, socket, purpose ?: KP_FOR_UNKNOWN, ns);
	if (a->held_for == HELD_FOR_PACKET) {
		if (purpose || !alsos)
			release(a, socket, purpose ?: KP_FOR_UNKNOWN, 0);
		else
			release(a, a->also[0].socket, a->also[0].purpose, 0);
	}
	last = purpose == KP_FOR_SOCKET ? socket : WITHOUT_SOCKET | purpose;
	if (alsos) { /* one of several, by lot: in the long run each has its part */
		lot = bpf_get_prandom_u32() % (alsos + !!purpose);
#pragma unroll
		for (int i = 0; i < TARGETS - 1; i++)
			if (i == lot && i < alsos)
				last = a->also[i].socket;
	}
	store_once(&last_received[bpf_get_smp_processor_id() & (KP_MAX_CPUS - 1)], last);
	a->skb = a->socket = a->which = 0;
	a->purpose = a->alsos = a->delivered = 0;
	return 0;
}

/* The owner that was found is one of several. */
static __noinline int one_of_several(struct account *a, u64 socket, u32 purpose)
{
	u64 skb;
	u32 n;

	if (!a)
		return 0;
	n = a->alsos;
	if (n >= TARGETS - 1) { /* these share what was done until now */
		skb = a->skb;
		border(a);
		a->socket = 0;
		a->purpose = 0;
		cut(a);
		a->skb = skb;
		n = 0;
	}
	a->also[n & (TARGETS - 1)].socket = socket;
	a->also[n & (TARGETS - 1)].purpose = purpose;
	a->alsos = n + 1;
	a->socket = 0;
	a->delivered = 0;
	return 0;
}

static __noinline int is_among(struct account *a, u64 socket)
{
	if (!a)
		return 0;
#pragma unroll
	for (int i = 0; i < TARGETS - 1; i++)
		if (i < a->alsos && a->also[i].socket == socket)
			return 1;
	return 0;
}

/* `delivered`: it is put into the queue of this socket, and may go into others'; else it is this one's alone. A sniffer's is never the only one. */
static __always_inline int packet_is_for(void *sk, bool delivered, bool by_sniffer)
{
	struct account *a = this_account();
	u64 socket;

	if (!a || !receiving(a) || !a->skb || (a->socket && !a->delivered))
		return 0;
	socket = bpf_get_socket_cookie(sk);
	if (a->socket == socket || (a->alsos && is_among(a, socket)))
		return 0;
	if (by_sniffer)
		return one_of_several(a, socket, KP_FOR_SOCKET);
	if (a->socket)
		one_of_several(a, a->socket, KP_FOR_SOCKET);
	a->socket = socket;
	a->delivered = delivered;
	return 0;
}

/* Network namespace, interfaces of arrival and departure. */
static __always_inline u64 way_of(u64 skb)
{
	struct net_device *dev = (void *)kread_ptr((struct sk_buff *)skb, dev);
	u32 net = dev ? net_number(kread_ptr((struct net_device___net *)dev, nd_net.net)) : 0;
	u32 from = kread((struct sk_buff *)skb, skb_iif), to = dev ? kread(dev, ifindex) : 0;

	return from <= 0xffff && to <= 0xffff ? (u64)net << 32 | from << 16 | to : 0;
}

struct sock___listener {
	struct {
		unsigned char skc_state;
		struct sock___cookie *skc_listener; /* of a connection that is not there yet */
	} __sk_common;
} __core;

/* The packet at hand is answered by this one. If it asks for a connection it is who listens that it is for: its answer knows. */
static __noinline int answered(struct account *a, u64 skb)
{
	u64 sk = kread_ptr((struct sk_buff *)skb, sk);
	u8 state;

	if (!a)
		return 0;
	a->purpose = KP_FOR_ANSWER;
	if (!sk)
		return 0;
	state = kread((struct sock___listener *)sk, __sk_common.skc_state);
	if (state == TCP_NEW_SYN_RECV)
		sk = kread_ptr((struct sock___listener *)sk, __sk_common.skc_listener);
	else if (state != TCP_LISTEN) /* it sends a cookie */
		return 0;
	a->socket = sk ? kread((struct sock___cookie *)sk, __sk_common.skc_cookie.counter) : 0;
	return 0;
}

/* The packet at hand was dropped. */
static __always_inline void dropped(struct account *a, u64 sk)
{
	u64 would_have = sk ? kread((struct sock___cookie *)sk, __sk_common.skc_cookie.counter) : 0;

	if (a->socket && !(a->delivered && would_have))
		return;
	if (a->purpose && a->purpose != KP_FOR_ANSWER)
		return;
	if (a->socket)
		one_of_several(a, a->socket, KP_FOR_SOCKET);
	a->purpose = KP_FOR_DROP;
	a->which = would_have;
}

/*
 * A part of a softirq that receives nothing is over, a timer, a tasklet or all of it: it was for the socket of which it sent a packet (what was held back, paced,
 * or is sent again), else for nobody but the kernel.
 */
static __noinline int part_is_over(struct account *a)
{
	struct kp_work w = {};
	u64 socket;

	if (!a)
		return 0;
	socket = a->sends_for;
	w.ns = take(&a->soft_ns);
	if (w.ns)
		put(a, of_softirq(a), socket ? KP_FOR_SOCKET : KP_FOR_KERNEL, socket, &w);
	if (a->held_for)
		release(a, socket, socket ? KP_FOR_SOCKET : KP_FOR_KERNEL, 0);
	a->sends_for = 0;
	return 0;
}

static __always_inline bool in_other_softirq(struct account *a)
{
	u32 top = a->level ? a->frame[a->level & (LEVELS - 1)] : 0;

	return top >= SOFTIRQ && top < HARDIRQ && top != SOFTIRQ + NET_RX && top != SOFTIRQ + BLOCK;
}

static __always_inline int next_part(void)
{
	struct account *a = this_account();

	if (!a || !in_other_softirq(a))
		return 0;
	border(a);
	part_is_over(a);
	return 0;
}

/* A packet is sent in a softirq that receives nothing. */
static __noinline int sent_by_part(struct account *a, u64 skb)
{
	u64 sk, socket;

	if (!a || !skb)
		return 0;
	sk = kread_ptr((struct sk_buff *)skb, sk);
	socket = sk ? kread((struct sock___cookie *)sk, __sk_common.skc_cookie.counter) : 0;
	if (!socket || socket == a->sends_for)
		return 0;
	if (a->sends_for) {
		border(a);
		part_is_over(a);
	}
	a->sends_for = socket;
	return 0;
}

/* The softirq is over: what came before its first packet is shared among its packets. */
static __noinline int share(struct account *a)
{
	u64 head, each, left;
	u32 lot;

	if (!a)
		return 0;
	head = left = take(&a->head_ns);
	each = a->packets ? head / a->packets : 0;
	lot = a->held_for && a->packets ? bpf_get_prandom_u32() % a->packets : 0;
#pragma unroll
	for (int i = 0; i < OWNERS; i++) {
		struct owner *o = &a->owner[i];
		u64 part;

		if (i >= a->owners)
			break;
		part = i + 1 == a->owners ? left : each * o->packets;
		left -= part;
		put_owner(a, o, part);
		if (a->held_for && (lot < o->packets || i + 1 == a->owners))
			release(a, o->socket, o->purpose, a->owners > 1);
		else
			lot -= o->packets;
	}
	if (!a->owners) {
		struct kp_work w = { .ns = head };
		u64 last = a->steered ? *(volatile u64 *)&last_received[(a->steered - 1) & (KP_MAX_CPUS - 1)] : 0;
		u32 purpose = !last ? KP_FOR_KERNEL : last & WITHOUT_SOCKET ? (u32)last ?: KP_FOR_UNKNOWN : KP_FOR_SOCKET;

		if (last & WITHOUT_SOCKET)
			last = 0;
		if (head)
			put(a, of_softirq(a), purpose, last, &w);
		if (a->held_for)
			release(a, last, purpose, 1);
	}
	a->owners = a->packets = a->steered = 0;
	return 0;
}

#endif
