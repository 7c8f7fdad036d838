/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The table of what had which headers last, and where it was: one place for each name of a packet. */
#ifndef KPAT_IDENTS_H
#define KPAT_IDENTS_H

#include "identity.bpf.h"

/* ident_entry.seen: when, in units of 1,024 ns; the hops that it had left when a device received it first; which device that was; it was freed then. */
#define SEEN_TIME ((1ULL << 40) - 1)
#define SEEN_HOPS_SHIFT 40
#define SEEN_HOPS (0xffULL << SEEN_HOPS_SHIFT)
#define SEEN_DEVICE (0x7fffULL << 48)
#define SEEN_FIRST (SEEN_DEVICE | SEEN_HOPS)
#define SEEN_FREED (1ULL << 63)

static __always_inline u64 seen_time(u64 now)
{
	return now >> 10 & SEEN_TIME;
}

static __always_inline u64 namespace_of(u64 dev)
{
	return kread_ptr((struct net_device *)dev, nd_net.net);
}

/* `dev`: any of its namespace. */
static __always_inline u64 seen_device(u64 dev, u32 ifindex)
{
	u64 net = dev ? namespace_of(dev) : 0;

	return (((net ^ ifindex) * 0x9e3779b97f4a7c15ULL >> 1) | 1ULL << 48) & SEEN_DEVICE;
}

static __always_inline u64 received_by(u64 dev)
{
	return dev ? seen_device(dev, kread((struct net_device *)dev, ifindex)) : 0;
}

/* What has headers that name nothing is known again by its skb, too, which stays the same where its buffer is exchanged; where an skb of its own is made for it
 * first, by the headers alone. Named headers have an identification in the same bits, which those seldom meet, and then others differ. */
static __always_inline u64 name_by(u64 ident, u64 by)
{
	return !ident || names_packet(ident) ? ident : (ident & ~(0xffffULL << 48)) ^ by * 0x9e3779b97f4a7c15ULL;
}

static __always_inline u64 name_of(u64 ident, struct skb skb)
{
	return name_by(ident, skb.at >> 5);
}

static __always_inline u64 name_alone(u64 ident)
{
	return name_by(ident, 1);
}

static __always_inline u64 last_use(u64 seen)
{
	return seen & SEEN_FREED ? 0 : seen & SEEN_TIME;
}

/*
 * The slot of this name, else the one that it would get: of the two of a set what was seen before the other, so what waits is found again while few others come.
 * A sender counts its identifications up, so packets that follow each other have slots that do: half of them need no line of memory that is not at hand, and
 * the processor foresees the next. Of TCP's sequence number only what stays the same for a while moves a flow's slots. NULL: there is no identity.
 */
static __always_inline struct ident_entry *ident_slot(u64 ident, u64 name)
{
	u64 flow = name & ~(0xffffULL << 32);
	struct ident_entry *own, *other;
	struct ident_set *set;
	u32 at, place;

	if (!ident)
		return NULL;
	if (names_packet(ident) && (ident >> 56 == PROTO_TCP || ident >> 56 == IDENT_TCP6))
		flow &= 0xff000000ff000000ULL;
	place = (flow * 0x9e3779b97f4a7c15ULL >> 40) + swap16(name >> 32);
	at = place / IDENT_WAYS & (IDENT_SETS - 1);
	set = bpf_map_lookup_elem(&idents, &at);
	if (!set)
		return NULL;
	own = &set->way[place & 1];
	if (own->ident == name)
		return own;
	other = &set->way[~place & 1];
	return other->ident == name || last_use(other->seen) < last_use(own->seen) ? other : own;
}

static __always_inline void fill_slot(struct ident_entry *s, u64 name, u64 id, u64 turn, u64 seen)
{
	s->ident = name;
	s->id = id;
	s->turn = turn;
	s->seen = seen;
}

#endif
