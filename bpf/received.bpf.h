/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whose the packets are that a softirq receives. A packet's owner is found while it is handled, when the softirq is over at the latest; a packet that goes into
 * several sockets' queues (readers of a multicast group, a sniffer beside the receiver) is shared equally among them. The time between two packets that come belongs to those of
 * which it was found in it what became of them, in equal parts: to the one that is at hand, or to all that were handed up together (batch.bpf.h).
 *
 * A softirq may hand packets to another CPU (RPS) and have none of its own: it works for whoever's packet that CPU received last. Who comes next is not known
 * yet, and over many of them it is the same: each packet that is last is the one before the next.
 */
#ifndef KPAT_RECEIVED_H
#define KPAT_RECEIVED_H

#include "fragments.bpf.h"
#include "held.bpf.h"
#include "cookies.bpf.h"

/* Set by user space: kfree_skb has the socket that would have had the packet (6.11). */
const volatile u64 drops_have_sockets = 0;

/* By CPU whose packet it received last: a socket, or a purpose. */
#define WITHOUT_SOCKET (1ULL << 63)
u64 last_received[KP_MAX_CPUS] SEC(".data.received") = {};

static __always_inline bool receiving(struct account *a)
{
	return top_is(a, SOFTIRQ + NET_RX);
}

static __always_inline void put_owner(struct account *a, struct owner *o, u64 share)
{
	struct kp_work w = { .ns = o->ns + share, .packets = o->packets, .bytes = o->bytes };

	put(a, of_softirq(a), o->purpose, o->socket, &w);
}

/* A packet's time, or its part of it, is kept with its owner's until the softirq is over; not where a process receives it itself, into whose end a softirq may come. */
__noinline int keep(struct account *a, u64 socket, u32 purpose, u64 ns, u32 bytes)
{
	struct owner mine = { .socket = socket, .purpose = purpose, .ns = ns, .packets = 1, .bytes = bytes };

	if (!a)
		return 0;
	if (a->polls && a->mode != KP_WORK_THREAD) {
		put_owner(a, &mine, take(&a->head_ns));
		return 0;
	}
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
			o->bytes += bytes;
			o->packets++;
			a->packets++;
			return 0;
		}
	}
	put_owner(a, &mine, 0);
	return 0;
}

/* Those whose a packet is, too, have their parts of its time; what is left is given back. `all`: it is nobody else's. */
__noinline u64 keep_alsos(struct account *a, struct packet *p, u32 all)
{
	u64 ns, each;
	u32 alsos;

	if (!a || !p)
		return 0;
	alsos = p->alsos & (TARGETS - 1);
	ns = p->ns;
	each = ns / (alsos + !all ?: 1);
#pragma unroll
	for (int i = 0; i < TARGETS - 1; i++) {
		if (i >= alsos)
			break;
		if (all && i + 1 == alsos)
			each = ns;
		ns -= each;
		keep(a, p->also[i].socket, p->also[i].purpose, each, p->bytes);
	}
	return ns;
}

/* One packet is done with. `skb`: of one that a task received itself, into whose end a softirq may come and charge it; else 0. */
static __always_inline int packet_is_over(struct account *a, u32 at, u64 skb)
{
	u64 ns, socket, last;
	u32 alsos, purpose, lot, bytes;
	struct packet *p;

	p = packet_at(a, at);
	socket = p->socket;
	purpose = socket ? KP_FOR_SOCKET : p->purpose;
	alsos = p->alsos & (TARGETS - 1);
	ns = p->ns;
	bytes = p->bytes;
	if (!socket && (!purpose || purpose == KP_FOR_ANSWER)) {
		socket = !purpose && is_fragment(p->header) ? socket_of_fragment(a, p) : socket_by_ends(p);
		if (socket)
			purpose = KP_FOR_SOCKET;
	}
	if (purpose == KP_FOR_DROP || purpose == KP_FOR_FORWARD)
		socket = p->which;
	if (!skb)
		p->skb = 0;
	else if (__sync_val_compare_and_swap(&p->skb, skb, 0) != skb)
		return 0;
	last = purpose == KP_FOR_SOCKET ? socket : WITHOUT_SOCKET | purpose;
	if (alsos) {
		ns = keep_alsos(a, p, !purpose);
		/* one of several, by lot: in the long run each has its part */
		lot = bpf_get_prandom_u32() % (alsos + !!purpose);
#pragma unroll
		for (int i = 0; i < TARGETS - 1; i++)
			if (i == lot && i < alsos)
				last = p->also[i].socket;
	}
	if (purpose || !alsos)
		keep(a, socket, purpose ?: KP_FOR_UNKNOWN, ns, bytes);
	if (a->held_for == HELD_FOR_PACKET && a->held_at == at + 1) {
		if (purpose || !alsos)
			release(a, socket, purpose ?: KP_FOR_UNKNOWN, a->held_drawn);
		else
			release(a, p->also[0].socket, p->also[0].purpose, a->held_drawn);
	}
	store_once(&last_received[bpf_get_smp_processor_id() & (KP_MAX_CPUS - 1)], last);
	return 0;
}

/* The softirq is over: what came before its first packet is shared among its packets. */
__noinline int share(struct account *a)
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

#define NO_MORE 1
#define ALL 2

/* At a cut: is this packet done with? Not static: the verifier walks through it once, and not for each of those at hand. */
__noinline int at_cut(u32 at, u32 all)
{
	struct account *a = this_account();
	struct packet *p;
	u64 part, skb, of_task;

	if (!a)
		return 0;
	of_task = *(volatile u32 *)&a->polls;
	p = packet_at(a, at);
	skb = *(volatile u64 *)&p->skb;
	if (!skb)
		return 0;
	if (p->settled) {
		part = a->found > 1 ? a->span_part : a->span_ns;
		p->ns += part;
		a->span_ns -= part;
		a->found--;
		if (a->lot && !--a->lot)
			a->held_at = at + 1;
	} else if (is_open(p) && (is_fragment(p->header) ? all != ALL : !all && (int)(at - a->next) >= 0)) {
		if (!a->left)
			a->left = at + 1;
		return 0;
	}
	return packet_is_over(a, at, of_task ? skb : 0);
}

/* The next packet comes, or no more in this frame (NO_MORE: but what is in fragments may become whole), or ALL are done with. */
__noinline int cut(u32 all)
{
	struct account *a = this_account();
	u32 n, over;
	u64 ns;

	if (!a)
		return 0;
	n = at_hand(a);
	over = a->over;
	ns = take(&a->soft_ns);
	a->found = a->settled;
	a->settled = 0;
	if (!a->found && a->came)
		packet_at(a, a->arrived - 1)->ns += ns;
	a->span_ns = ns;
	if (a->found > 1)
		a->span_part = ns / a->found;
	if (a->held_for == HELD_FOR_PACKET && !a->held_at) {
		a->held_drawn = a->found > 1;
		a->held_at = a->found ? 0 : a->arrived;
		a->lot = a->found ? bpf_get_prandom_u32() % a->found + 1 : 0;
	}
	a->left = 0;
	for (u32 i = 0; i < PACKETS; i++) {
		if (i >= n)
			break;
		at_cut(over + i, all);
	}
	if (a->left)
		a->over = a->next = a->left - 1;
	else
		none_at_hand(a);
	return 0;
}

/* The one packet at hand, whose owner is known, is done with: what cut() does, where nothing else is to be done. */
static __always_inline bool one_is_over(struct account *a)
{
	struct packet *p = packet_at(a, a->over);
	u64 socket = p->socket, ns;
	struct owner *o = &a->owner[0];
	u32 purpose;

	if (!is_alone(a) || !a->settled || p->alsos || a->held_for || a->polls || is_open(p))
		return false;
	purpose = socket ? KP_FOR_SOCKET : p->purpose;
	if (!socket)
		socket = p->which;
	if (!a->owners) {
		o->socket = socket;
		o->purpose = purpose;
		o->ns = o->bytes = o->packets = 0;
		a->owners = 1;
	} else if (o->socket != socket || o->purpose != purpose) {
		return false;
	}
	ns = take(&a->soft_ns) + p->ns;
	o->ns += ns;
	o->bytes += p->bytes;
	o->packets++;
	a->packets++;
	p->skb = 0;
	none_at_hand(a);
	store_once(&last_received[bpf_get_smp_processor_id() & (KP_MAX_CPUS - 1)], purpose == KP_FOR_SOCKET ? socket : WITHOUT_SOCKET | purpose);
	return true;
}

/* No more packets come in this frame. */
static __always_inline void frame_is_over(struct account *a)
{
	if (!a->came)
		add(&a->head_ns, take(&a->soft_ns));
	else if (!one_is_over(a))
		cut(NO_MORE);
	share(a);
}

/* Another task comes to this CPU: whose time it was would not be known any more. */
__noinline int nothing_stays(struct account *a)
{
	if (!a || !at_hand(a))
		return 0;
	cut(ALL);
	share(a);
	return 1;
}

/* A packet comes. */
static __always_inline void comes(struct account *a, u64 skb)
{
	u32 oldest;

	border(a);
	if (!a->came)
		add(&a->head_ns, take(&a->soft_ns));
	else if (!one_is_over(a))
		cut(0);
	if (at_hand(a) >= PACKETS) {
		oldest = a->over++;
		if (a->next == oldest)
			a->next++;
		at_cut(oldest, ALL);
	}
	arrives(a, skb);
}

/* The owner that was found is one of several. */
__noinline int one_of_several(struct account *a, struct packet *p, u64 socket, u32 purpose)
{
	u32 n;

	if (!a || !p)
		return 0;
	n = p->alsos;
	if (n >= TARGETS - 1) { /* these share what was done until now */
		border(a);
		p->ns += take(&a->soft_ns);
		keep_alsos(a, p, 1);
		p->ns = 0;
		n = 0;
	}
	p->also[n & (TARGETS - 1)].socket = socket;
	p->also[n & (TARGETS - 1)].purpose = purpose;
	p->alsos = n + 1;
	p->socket = 0;
	p->delivered = 0;
	return 0;
}

/*
 * `delivered`: it is put into the queue of this socket, and may go into others'; else it is this one's alone. A sniffer's is never the only one, and it has a packet before
 * the next one comes. `skb`: 0 where the tracepoint has none.
 */
static __always_inline int packet_is_for(void *sk, u64 skb, bool delivered, bool by_sniffer)
{
	struct account *a = this_account();
	struct packet *p;
	u64 socket;
	int at;

	if (!a || !receiving(a) || !a->came)
		return 0;
	p = packet_at(a, a->arrived - 1);
	if (is_alone(a) && p->socket && !p->delivered)
		return 0;
	socket = cookie_of(sk);
	if (by_sniffer)
		return has_target(p, socket) ? 0 : one_of_several(a, p, socket, KP_FOR_SOCKET);
	at = skb && !is_alone(a) ? packet_by_skb(skb) : packet_of(a, (u64)sk, socket);
	if (at < 0)
		return 0;
	p = packet_at(a, at);
	if (p->socket && !p->delivered)
		return 0;
	if (has_target(p, socket)) {
		if (p->parts > 1)
			p->parts--;
		return 0;
	}
	if (p->socket)
		one_of_several(a, p, p->socket, KP_FOR_SOCKET);
	p->socket = socket;
	p->delivered = delivered;
	settle(a, at);
	if (delivered) /* and those before it were, in their order */
		a->next = at + !p->several;
	if (!is_alone(a) && is_fragment(p->header))
		fragments_follow(at);
	return 0;
}

#endif
