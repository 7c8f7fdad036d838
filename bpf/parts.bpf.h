/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Softirqs that receive nothing, in parts: of a timer, of a tasklet, or all of it. */
#ifndef KPAT_PARTS_H
#define KPAT_PARTS_H

#include "received.bpf.h"

/*
 * A part of a softirq that receives nothing is over, a timer, a tasklet or all of it: it was for the socket of which it sent a packet (what was held back, paced,
 * or is sent again), else for nobody but the kernel.
 */
__noinline int part_is_over(struct account *a)
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

	return is_softirq(top) && top != SOFTIRQ + NET_RX && top != SOFTIRQ + BLOCK;
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
	socket = sk ? cookie_known(sk) : 0;
	if (!socket || socket == a->sends_for)
		return 0;
	if (a->sends_for) {
		border(a);
		part_is_over(a);
	}
	a->sends_for = socket;
	return 0;
}

#endif
