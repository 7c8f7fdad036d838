/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Lists of skbs, as functions get them that handle several packets in one call. Where the walk is stands in the scratch area: the deepest way of calls leads through a step. */
#ifndef KPAT_LISTS_H
#define KPAT_LISTS_H

#include "packets.bpf.h"

#define LIST_MAX 64

/* Inlined, as what calls it is eight frames from the deepest function, the most that kernels allow. */
static __always_inline u64 packet_id_of(struct skb skb)
{
	struct packet_entry *e = packet_of(skb, false);

	return e ? e->id : 0;
}

static __always_inline struct list_walk *list_walk(void)
{
	u32 slot = current_context();
	struct scratch *s = bpf_map_lookup_elem(&scratches, &slot);

	return s ? &s->walk : NULL;
}

/* Walks of skb lists are callbacks of bpf_loop: the verifier looks at one step instead of all. */
static long list_step(u32 i, void *none)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct list_walk *w = list_walk();
	struct kp_member *r;
	u64 id;

	if (!ctl || !w || !w->at || w->at == w->end)
		return 1;
	id = packet_id_of(skb_at(w->at));
	if (id && !w->first) {
		w->first = id;
	} else if (id) {
		r = ring_reserve(ctl, sizeof(*r));
		if (r) {
			r->h.ts = w->now;
			r->packet = id;
			r->pad[0] = r->pad[1] = r->pad[2] = 0;
			ring_commit(&r->h, KP_MEMBER, sizeof(*r), w->func, 0);
		}
	}
	w->at = kread_ptr((struct sk_buff *)w->at, next);
	return 0;
}

/* A list_head of skbs: each packet beyond the first gets a member record. Returns the first packet's id. */
static __always_inline u64 list_packets(u64 list, u32 func, u64 now)
{
	struct list_walk *w = list_walk();
	struct kp_ring_ctl *ctl;

	if (!w)
		return 0;
	w->at = kread_ptr((struct list_head *)list, next);
	w->end = list;
	w->first = 0;
	w->now = now;
	w->func = func;
	if (bpf_loop(LIST_MAX, list_step, NULL, 0) == LIST_MAX) {
		ctl = ring_ctl();
		if (ctl)
			count_loss(ctl, KP_LOSS_LIST_CUT);
	}
	return w->first;
}

#endif
