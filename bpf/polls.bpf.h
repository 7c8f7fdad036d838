/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a CPU did before it first saw a packet that it received: the driver's poll of its card touches descriptors, not packets.
 *
 * A packet's own time there begins where the poll began, or where the last packet before it in the same poll was done with,
 * which the log knows by that packet's last call. So one record for each poll is enough, made when the poll's first packet is
 * admitted. A packet that is not wanted leaves no calls: what comes after it in the same poll is recorded as unknown.
 * A second record is made when such a poll is over: how many packets the driver took of those that it might have. A driver that took
 * all of its budget is polled again in the next softirq, as its card has more.
 * A CPU that has only served virtual devices for a while, whose packets are known before, reads no clock for it until a packet comes that is not.
 * Rejected: to time the poll functions of drivers. Their list is each kernel's own, and a softirq's entry is the same for all.
 */
#ifndef KPAT_POLLS_H
#define KPAT_POLLS_H

#include "ring.bpf.h"

/* kp_ring_ctl.poll: when the poll began that the log does not know of, or one of these. */
#define POLL_TOLD 0
#define POLL_MIXED 1

static __always_inline void poll_mixed(struct kp_ring_ctl *ctl)
{
	ctl->poll = POLL_MIXED;
}

/*
 * In so many softirqs of a CPU no driver took a packet from its device, and none came that is in the log and was not known before: then its polls
 * are not timed. The next of either kind turns it on again, and its own poll is recorded as unknown. What virtual devices hand on comes out of the
 * CPU's backlog, which is nobody's device.
 */
#define NOTHING_ARRIVES 4096

static __always_inline bool nothing_arrives(struct kp_ring_ctl *ctl)
{
	return ctl->rounds - ctl->arrived > NOTHING_ARRIVES;
}

static __always_inline void arrives(struct kp_ring_ctl *ctl)
{
	ctl->arrived = ctl->rounds;
}

/* The first packet of a poll, or the first after one that is not in the log. */
__noinline int tell_poll(u64 id, u64 now)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_event *r;

	if (!ctl)
		return 0;
	arrives(ctl);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0; /* logged at the next packet, which comes too late to be believed: the loss says when */
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
	if (ctl && !ctl->raised && !nothing_arrives(ctl))
		ctl->raised = bpf_ktime_get_boot_ns();
	return 0;
}

/*
 * (vec_nr); drivers that receive in a tasklet have no poll whose beginning would be known. Where the context is kept by tracepoints, this
 * program does it here, as a second one would cost as much again.
 */
SEC("raw_tp/softirq_entry")
int event_6_softirq_entry(u64 *ctx)
{
	struct kp_ring_ctl *ctl;

	softirq_begins();
	if (!EVENT_MODE(6))
		return 0;
	ctl = ring_ctl();
	if (!ctl)
		return 0;
	count_softirq(ctl, ctx[0]);
	if (ctx[0] != NET_RX_SOFTIRQ) {
		poll_mixed(ctl);
		return 0;
	}
	ctl->polled = 0;
	if (nothing_arrives(ctl)) {
		poll_mixed(ctl);
		return 0;
	}
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
	if ((s32)ctx[1] > 0 && kread_ptr((struct napi_struct *)(ctx[0]), dev))
		arrives(ctl);
	else if (nothing_arrives(ctl))
		return 0;
	ctl->poll = bpf_ktime_get_boot_ns();
	ctl->poll_wait = 0;
	if (ctl->polled && current_context() == 1)
		tell_polled(ctl->poll, ctx[1], ctx[2]);
	ctl->polled = 0;
	return 0;
}

#endif
