/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Packets for which the table has no place: counted, each once. */
#ifndef KPAT_HOMELESS_H
#define KPAT_HOMELESS_H

#include "ring.bpf.h"

/* A packet that no probe has seen for so long makes room for another. */
#define EVICT_NS 10000000000ULL

/* There has been one, ever. */
u8 any_homeless SEC(".data.homeless");

static __always_inline struct homeless *homeless_slot(u64 head)
{
	u32 at = (u32)((head >> 6) * 0x9e3779b97f4a7c15ULL >> 40) & (HOMELESS - 1);

	return bpf_map_lookup_elem(&homeless, &at);
}

/*
 * The table has no place for a packet: counted at the first of the probes that it passes. Again where it gets another buffer, where two such
 * buffers share a slot, and after as long as a packet may stay in the table unseen.
 */
static __noinline int count_homeless(u64 head, u64 now)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct homeless *s = homeless_slot(head);

	if (!ctl || !s || (s->head == head && s->since + EVICT_NS > now))
		return 0;
	any_homeless = 1;
	s->since = now;
	s->head = head;
	count_loss(ctl, KP_LOSS_PACKET_TABLE);
	return 0;
}

/* The buffer is freed: the next packet in it is another one. */
static __noinline int forget_homeless(u64 head)
{
	struct homeless *s = homeless_slot(head);

	if (s && s->head == head)
		s->head = 0;
	return 0;
}

#endif
