/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where frees are not seen: does a buffer that a packet is known in hold another one now, though the headers are alike? */
#ifndef KPAT_STALE_H
#define KPAT_STALE_H

#include "again.bpf.h"

/*
 * In the buffer of a packet that went on from where it came in. Where that was, a later packet with this name says as well. Of what has no name, and others do not hold,
 * a driver gives the stack the sk_buff that it was given a moment ago.
 */
static __always_inline bool is_next_of_source(struct packet_entry *e, struct skb skb, u32 what)
{
	u64 name = name_of(e->ident, skb);
	struct ident_entry *s;

	if (!e->turn || !may_be_next(e->turn, skb, what))
		return false;
	s = ident_slot(e->ident, name);
	if (!s)
		return false;
	return s->ident == name ? comes_from_its_source(s, skb) : !names_packet(e->ident) && !skb_bit(skb, cloned);
}

/*
 * In the buffer of a packet that another namespace received, and lost sight of: what this namespace received, and gave a buffer of its own since, is in it now. Its
 * sk_buff or its name says so.
 */
static __always_inline bool is_from_here(struct packet_entry *e, struct skb skb, u32 what)
{
	u64 name = name_of(e->ident, skb), from = e->turn & ~TURN_FLAGS, net;
	struct ident_entry *s;

	if (what != QUEUED || !from || e->turn & TURN_OUT)
		return false;
	net = namespace_of(skb_dev(skb));
	if (namespace_of(from) == net)
		return false;
	s = ident_slot(e->ident, name);
	if (!s || s->ident != name || s->id == e->id || s->turn & (TURN_OUT | TURN_READ))
		return false;
	from = s->turn & ~TURN_FLAGS;
	return from && namespace_of(from) == net && kread((struct net_device *)from, ifindex) == skb_field(skb, skb_iif);
}

static __always_inline bool holds_another(struct packet_entry *e, struct skb skb, u32 what)
{
	return is_another(e->turn, e->ident, skb, what) || is_next_of_source(e, skb, what) || is_from_here(e, skb, what);
}

#endif
