/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A sample that comes before it is known for whom it is waits in the account until then. */
#ifndef KPAT_HELD_H
#define KPAT_HELD_H

#include "sums.bpf.h"

#define HELD_FOR_PACKET 1
#define HELD_FOR_SOFTIRQ 2
#define HELD_FOR_PART 3

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
__noinline int release(struct account *a, u64 socket, u32 purpose, u32 drawn)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_sample *r;

	if (!a || !ctl)
		return 0;
	r = is_wanted(a, purpose, purpose == KP_FOR_SOCKET ? socket : 0) ? ring_reserve(ctl, sizeof(*r)) : NULL;
	a->held_at = 0;
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

#endif
