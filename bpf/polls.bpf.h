/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a CPU did before it first saw a packet that it received: the driver's poll of its card touches descriptors, not packets.
 *
 * A packet's own time there begins where the poll began, or where the last packet before it in the same poll was done with,
 * which the log knows by that packet's last call. So one record for each poll is enough, made when the poll's first packet is
 * admitted. A packet that is not wanted leaves no calls: what comes after it in the same poll is told to be unknown.
 * A second record is made when such a poll is over: how many packets the driver took of those that it might have. A driver that took
 * all of its budget is polled again in the next softirq, as its card has more.
 * Rejected: to time the poll functions of drivers. Their list is each kernel's own, and a softirq's entry is the same for all.
 */
#ifndef KPAT_POLLS_H
#define KPAT_POLLS_H

#include "ring.bpf.h"

#define NET_RX_SOFTIRQ 3 /* include/linux/interrupt.h */

/* kp_ring_ctl.poll: when the poll began that the log does not know of, or one of these. */
#define POLL_TOLD 0
#define POLL_MIXED 1

static __always_inline void poll_mixed(struct kp_ring_ctl *ctl)
{
	ctl->poll = POLL_MIXED;
}

/* The first packet of a poll, or the first after one that is not in the log. */
__noinline int tell_poll(u64 id, u64 now)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_event *r;

	if (!ctl)
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0; /* told at the next packet, which comes too late to be believed: the loss says when */
	r->h.ts = now;
	r->packet = id;
	r->netns = 0;
	r->a = ctl->poll == POLL_MIXED ? 0 : now - ctl->poll + 1;
	r->b = r->a ? ctl->poll_wait : 0;
	r->ctx = 1;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	r->pad2[0] = r->pad2[1] = 0;
	ctl->poll = POLL_TOLD;
	if (!ctl->polled)
		ctl->polled = id;
	ring_commit(&r->h, KP_EVENT, sizeof(*r), KP_EV_POLL, 0);
	return 0;
}

/* A poll of which a packet is in the log is over. */
__noinline int tell_polled(u64 now, u64 work, u64 budget)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_event *r;

	if (!ctl)
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = now;
	r->packet = ctl->polled;
	r->netns = 0;
	r->a = (work & 0xffffffff) | budget << 32;
	r->b = ctl->rounds;
	r->ctx = 1;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	r->pad2[0] = r->pad2[1] = 0;
	ring_commit(&r->h, KP_EVENT, sizeof(*r), KP_EV_POLLED, 0);
	return 0;
}

/* (vec_nr): by the interrupt of a card, or by whoever hands a packet to a CPU's backlog */
SEC("raw_tp/softirq_raise")
int event_5_softirq_raise(u64 *ctx)
{
	struct kp_ring_ctl *ctl;

	if (ctx[0] != NET_RX_SOFTIRQ || !EVENT_MODE(5))
		return 0;
	ctl = ring_ctl();
	if (ctl && !ctl->raised)
		ctl->raised = bpf_ktime_get_boot_ns();
	return 0;
}

/* (vec_nr); drivers that receive in a tasklet have no poll whose beginning would be known */
SEC("raw_tp/softirq_entry")
int event_6_softirq_entry(u64 *ctx)
{
	struct kp_ring_ctl *ctl;

	if (!EVENT_MODE(6))
		return 0;
	ctl = ring_ctl();
	if (!ctl)
		return 0;
	if (ctx[0] != NET_RX_SOFTIRQ) {
		poll_mixed(ctl);
		return 0;
	}
	ctl->rounds++;
	ctl->polled = 0;
	ctl->poll = bpf_ktime_get_boot_ns();
	ctl->poll_wait = ctl->raised ? ctl->poll - ctl->raised + 1 : 0;
	ctl->raised = 0;
	return 0;
}

/* (napi, work, budget): this poll is over, the next begins; for which interrupt is not known */
SEC("raw_tp/napi_poll")
int event_7_napi_poll(u64 *ctx)
{
	struct kp_ring_ctl *ctl;

	if (!EVENT_MODE(7))
		return 0;
	ctl = ring_ctl();
	if (!ctl)
		return 0;
	ctl->poll = bpf_ktime_get_boot_ns();
	ctl->poll_wait = 0;
	if (ctl->polled && current_context() == 1)
		tell_polled(ctl->poll, ctx[1], ctx[2]);
	ctl->polled = 0;
	return 0;
}

#endif
