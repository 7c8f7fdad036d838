/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where frees are not seen (guess_reuse): where a packet is on its way, as each point tells, so that again.bpf.h knows whether it can be seen again there. */
#ifndef KPAT_TURNS_H
#define KPAT_TURNS_H

#include "again.bpf.h"

/* Returns its slot, if that is its own. */
static __always_inline struct ident_entry *set_turn(struct packet_entry *e, struct skb skb, u64 turn, u64 now)
{
	u64 ident = e->ident, name = name_of(ident, skb);
	struct ident_entry *s = ident_slot(ident, name), *alone;
	u32 from;

	e->turn = turn;
	/* it went on in a copy, and no other one may be taken for that from here on */
	alone = names_packet(ident) ? NULL : ident_slot(ident, name_alone(ident));
	if (alone && alone->ident == name_alone(ident) && alone->id == e->id)
		alone->turn = turn;
	if (!s)
		return NULL;
	if (s->ident == name && s->id == e->id) {
		s->turn = turn;
		/* it may have waited in a queue: what goes on in another buffer does so from here on */
		s->seen = (s->seen & SEEN_FIRST) | seen_time(now);
	} else if (!names_packet(ident) || s->ident != name) { /* a copy of its own, or another's name got its slot while it waited */
		from = skb_field(skb, skb_iif);
		fill_slot(s, name, e->id, turn, (from ? seen_device(skb_dev(skb), from) : 0) | seen_time(now));
	} else {
		return NULL;
	}
	return s;
}

/*
 * A copy in a socket's queue that is not its packet's receiver: a sniffer's, which is at no device any more, or the one that a sender gets back with the time at which it was
 * sent (skb_set_err_queue() in net/core/skbuff.c). What becomes of it says nothing of the packet: that may have been given a buffer of its own, because it is
 * forwarded with other headers, and wait there. What was never cloned had the sniffer as its only receiver.
 */
static __always_inline bool is_beside(struct skb skb)
{
	struct sock *sk = (void *)skb_sk(skb);

	if (!sk)
		return false;
	if (skb_bit(skb, pkt_type) == PACKET_OUTGOING && !skb_field(skb, skb_iif))
		return true;
	return !skb_dev(skb) && skb_bit(skb, cloned) && kread(sk, __sk_common.skc_family) == AF_PACKET;
}

/* The first four bytes of ARP for IPv4 addresses (RFC 826). */
#define ARP_OF_ETHERNET 0x00080100

/* The identity of what is in a tunnel's packet, whatever its sender offloads (skb_reset_inner_headers() in include/linux/skbuff.h says where it is), else 0. */
static __always_inline u64 inside_of(struct skb skb, u64 head)
{
	u16 inner = skb_field(skb, inner_network_header), network = skb_field(skb, network_header);
	u32 first, proto;

	if (inner <= network || inner - network > 256)
		return 0;
	first = kread_word(head + inner);
	proto = (first & 0xf0) == 0x40 ? ETH_P_IP : (first & 0xf0) == 0x60 ? ETH_P_IPV6 : first == ARP_OF_ETHERNET ? ETH_P_ARP : 0;
	return proto ? identity(head + inner, proto, skb_bit(skb, ip_summed) == CHECKSUM_PARTIAL) : 0;
}

/* A tunnel's device that was given it, a route or a balancer has put it into another packet, whose headers are in front of its own. */
static __always_inline bool goes_on_inside(struct packet_entry *e, struct skb skb, u64 was)
{
	u64 inside = inside_of(skb, e->head);

	return inside && same_identity(inside, was);
}

/* So where it was given another buffer for that: the packet that was there a moment ago, 0: none. */
__noinline u64 known_inside(u64 at, u64 head, u32 what, u64 now)
{
	ONLY_WHERE(guess_reuse);
	struct skb skb = skb_at(at);
	u64 ident = inside_of(skb, head);

	return ident ? known_again(at, ident, what, now) : 0;
}

static __always_inline struct inside *inside_at(u64 head)
{
	u32 at = (u32)(head >> 6) * 2654435761u >> 20; /* 12 bits are left */

	return bpf_map_lookup_elem(&insides, &at);
}

/* A tunnel's packet waits in its device's queue from here on, and others' names may get the slot of what is in it. */
static __always_inline void inside_waits(struct skb skb, u64 head)
{
	u64 ident = inside_of(skb, head), name = name_of(ident, skb);
	struct ident_entry *s = ident_slot(ident, name);
	struct inside *i;

	if (!s || s->ident != name || !(s->turn & TURN_OUT))
		return;
	i = inside_at(head);
	if (!i)
		return;
	i->head = head;
	i->slot = *s;
}

/* It leaves, and what is in it is known again from here on. */
static __always_inline void inside_goes_on(struct skb skb, u64 head, u64 now)
{
	u64 ident = inside_of(skb, head), name = name_of(ident, skb);
	struct ident_entry *s = ident_slot(ident, name);
	struct inside *i;
	bool waited;

	if (!s)
		return;
	i = inside_at(head);
	if (!i)
		return;
	waited = i->head == head && i->slot.ident == name;
	i->head = 0;
	if (s->ident != name && waited)
		*s = i->slot;
	/* what was freed then was in the buffer that the tunnel copied it from */
	if (s->ident == name && s->turn & TURN_OUT)
		s->seen = (s->seen & SEEN_FIRST) | seen_time(now);
}

/* With guess_reuse: what the point says of the packet's way. */
static __always_inline void take_turn(struct packet_entry *e, struct skb skb, u32 what, u64 now)
{
	u64 head = e->head, shared = e->turn & TURN_SHARED, dev;
	struct ident_entry *s;

	if (what == TAKEN)
		inside_waits(skb, head);
	if (what == READ) {
		if (last_holder(skb, head))
			set_turn(e, skb, TURN_READ | shared, now);
		return;
	}
	if (!comes_in(what) && what != QUEUED && what != LEAVES)
		return;
	dev = skb_dev(skb) & ~TURN_FLAGS;
	if (what == QUEUED || what == LEAVES) {
		if (!last_holder(skb, head))
			shared = TURN_SHARED;
		dev |= TURN_OUT;
	}
	if (what == LEAVES || what == RECEIVED)
		dev |= TURN_HANDED;
	s = e->turn != (dev | shared) ? set_turn(e, skb, dev | shared, now) : comes_in(what) ? slot_of(e, skb) : NULL;
	if (what == LEAVES)
		inside_goes_on(skb, head, now);
	if (comes_in(what) && s)
		s->seen = ((s->seen & SEEN_FIRST) ?: received_by(dev & ~TURN_FLAGS) | hops_left(skb, head)) | seen_time(now);
}

static __always_inline void remember(struct packet_entry *e, struct skb skb, u64 ident, u64 id, u64 now)
{
	u64 name = name_of(ident, skb);
	struct ident_entry *s = ident_slot(ident, name);

	e->ident = ident;
	if (!s)
		return;
	fill_slot(s, name, id, e->turn, (s->id == id ? s->seen & SEEN_FIRST : 0) | seen_time(now));
}

#endif
