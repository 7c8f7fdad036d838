/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where frees are not seen (guess_reuse): is what lies in a buffer the packet that lay there before, and is a packet in a new buffer one that was
 * elsewhere a moment ago? Two things answer: its headers, as far as they name a packet, and its way. A buffer is freed without a tracepoint
 * where a socket's datagram was read, where TCP took a segment's data, where its head was stolen or copied.
 */
#ifndef KPAT_AGAIN_H
#define KPAT_AGAIN_H

#include "idents.bpf.h"

/*
 * What a point says of the packet. ARRIVES: a driver, real or virtual, gives it to the stack. BACKLOGGED: it goes to the softirq by way of a CPU's queue.
 * RECEIVED: the stack begins with it. LEFT: the driver has returned, and may have freed it. READ: its data are copied to user space. TAKEN: a device's queue has
 * it; that may have cut it into segments, and freed it. GIVEN: it gives it out.
 */
enum { PASSES, ARRIVES, BACKLOGGED, RECEIVED, QUEUED, LEAVES, LEFT, READ, FREED, TAKEN, GIVEN };

static __always_inline bool comes_in(u32 what)
{
	return what >= ARRIVES && what <= RECEIVED;
}

/*
 * Where a packet is on its way: the device that it was received by or, with TURN_OUT, was last queued to or left by. 0: none yet. READ: user space has
 * its data, and nobody else held it. SHARED: when it was queued to, or left for, a device, somebody else held it too, so a part of it is elsewhere.
 * HANDED: that device's driver has it or, of what was received, the stack.
 */
#define TURN_OUT 1ULL
#define TURN_READ 2ULL
#define TURN_SHARED 4ULL
#define TURN_HANDED 8ULL
#define TURN_FLAGS 15ULL

/* Will the header buffer go when this skb lets go of it? skb_data_unref() in net/core/skbuff.c. */
static __always_inline bool last_holder(struct skb skb, u64 head)
{
	struct skb_shared_info *shinfo;
	u32 refs;

	if (!skb_bit(skb, cloned))
		return true;
	shinfo = (struct skb_shared_info *)(head + skb_field(skb, end));
	refs = kread(shinfo, dataref.counter);
	return refs == (skb_bit(skb, nohdr) ? (1 << 16) + 1 : 1);
}

/*
 * Does what leaves by the device leave the kernel: onto a bus's device, or to a program that reads a tun or tap? No driver gives that buffer to the stack
 * again; with the same headers comes an answer, or the same from outside. The device is that of a packet's past and may be gone.
 */
static __noinline u32 leads_out(u64 turn)
{
	struct net_device *dev = (struct net_device *)(turn & ~TURN_FLAGS);
	u64 ops, kind;

	if (kread_ptr(dev, dev.parent))
		return 1;
	ops = kread_ptr(dev, rtnl_link_ops);
	kind = ops ? kread_ptr((struct rtnl_link_ops *)(ops), kind) : 0;
	return kind && (u32)kread_word(kind) == ('t' | 'u' << 8 | 'n' << 16);
}

/*
 * What the stack has can come in by another device, and no point said that it left: a program redirected it. Not where the other is of a namespace that is not
 * recorded: from there it comes back with its name, if at all.
 */
__noinline int is_out_of_sight(u64 turn, u64 dev)
{
	ONLY_WHERE(guess_reuse);
	struct where w;

	return namespace_of(dev) != namespace_of(turn & ~TURN_FLAGS) && locate_device(dev, &w) && !place_wanted(&w);
}

/*
 * Can a packet whose way led to `turn` not be this one? What left the kernel does not come in. Between two receptions by one device a packet is sent; between reception and
 * start of transmission, or where a queue gives it out, it is queued to a device, but for segments, which are made in between; to one device it is queued once; what no device
 * received (skb_iif is 0) was not received a moment ago; nothing is received or sent when it was read. All that holds for a buffer that
 * has one user: a clone of a multicast packet may be received here while another is still being sent. A sniffer clones what leaves before the point that
 * says so, therefore `cloned` alone does not excuse it there.
 */
static __always_inline bool is_another(u64 turn, u64 ident, struct skb skb, u32 what)
{
	bool waits = turn && !(turn & TURN_OUT), same, cloned;
	u64 dev = skb_dev(skb) & ~TURN_FLAGS;

	if (!turn || (!comes_in(what) && what != QUEUED && what != LEAVES && what != GIVEN))
		return false;
	same = dev == (turn & ~TURN_FLAGS);
	cloned = skb_bit(skb, cloned);
	if (what == LEAVES || what == GIVEN)
		return waits && (!cloned || (!(turn & TURN_SHARED) && last_holder(skb, skb_head(skb))));
	if (comes_in(what)) {
		if (waits && same && (what == ARRIVES || turn & TURN_HANDED))
			return !skb_field(skb, skb_iif);
		if (cloned)
			return false;
		return waits ? turn & TURN_READ || (turn & TURN_HANDED && netns_count && !skb_field(skb, skb_iif) && is_out_of_sight(turn, dev)) : leads_out(turn);
	}
	/* TCP sends clones, and over IPv6 a segment that is sent again has the headers that it had before: its buffer is queued once more. */
	return (waits ? turn & TURN_READ || !skb_field(skb, skb_iif) : same) && (!cloned || ident >> 56 == IDENT_TCP6);
}

/*
 * Of what has no network header, the owner tells whether it is a message of netlink or a unix socket, for which a buffer was used again. Without an owner
 * it is one: a packet has its headers when its socket lets go of it.
 */
static __always_inline bool of_another_family(struct skb skb)
{
	struct sock *sk = (void *)skb_sk(skb);
	u16 family = sk ? kread((struct sock *)(sk), __sk_common.skc_family) : 0;

	return family != AF_INET && family != AF_INET6;
}

/*
 * For so long after a device received it headers name the packet that had them (65,536 identifications last longer up to 3 M packets/s), and so long still
 * when it was freed: it may have been copied before. A packet that was received, and is seen in another buffer before it is sent, may have waited for its
 * neighbour's address in between: each that comes later with the same headers was received later, too.
 */
#define SAME_PACKET_US 20000ULL
#define WAITING_PACKET_US 10000000ULL
#define FREED_PACKET_US 100ULL

static __always_inline u64 identity_of(struct skb skb, u64 head)
{
	struct header_offsets h = headers_of(skb, head);

	if (!h.network || h.network == UNSET_HEADER || !in_header_area(skb, h.network))
		return 0;
	return identity(head + h.network, swap16(h.protocol), skb_bit(skb, ip_summed) == CHECKSUM_PARTIAL);
}

/*
 * Of headers that name nothing: can it be what was seen of this skb before? It left by a virtual device and comes in by another than it did first; or it was
 * received and not sent since; or it is at the device that it was queued to, which completed its checksum. What a socket makes begins in the buffer that it is
 * made in.
 */
static __always_inline bool skb_goes_on(struct ident_entry *s, struct skb skb, u32 what)
{
	u64 dev = skb_dev(skb) & ~TURN_FLAGS, last = s->turn & ~TURN_FLAGS;

	if (comes_in(what))
		return s->turn & TURN_OUT && (s->seen & SEEN_DEVICE) != received_by(dev);
	if (s->turn & TURN_OUT)
		return what != QUEUED && (what != LEAVES || !(s->turn & TURN_HANDED)) && last == dev;
	return skb_field(skb, skb_iif) && (!dev || namespace_of(last) == namespace_of(dev));
}

/*
 * It leaves in a buffer of its own, and waited for that while others held what it was in and went on: its checksum was completed in a copy (skb_checksum_help() in
 * net/core/dev.c).
 */
static __always_inline bool leaves_in_copy(u64 turn, struct skb skb, u32 what)
{
	return what == LEAVES && turn & TURN_SHARED && !skb_bit(skb, cloned);
}

/* In the place of SEEN_HOPS. 0: not of IP, or tagged in its data. */
static __always_inline u64 hops_left(struct skb skb, u64 head)
{
	struct header_offsets h = headers_of(skb, head);
	u64 word;

	if (!h.network || h.network == UNSET_HEADER || (swap16(h.protocol) != ETH_P_IP && swap16(h.protocol) != ETH_P_IPV6) || !in_header_area(skb, h.network))
		return 0;
	word = kread_word(head + h.network + (swap16(h.protocol) == ETH_P_IP ? 8 : 7));
	return (word & 0xff) << SEEN_HOPS_SHIFT;
}

/* Comes in what no device of this namespace received yet, and is not what one handed to this device just now, or a copy of what did while this one was in the backlog? */
static __always_inline bool may_be_next(u64 turn, struct skb skb, u32 what)
{
	return comes_in(what) && !skb_field(skb, skb_iif) && (turn & ~TURN_SHARED) != (skb_dev(skb) & ~TURN_FLAGS) && (what != RECEIVED || !skb_bit(skb, cloned));
}

/*
 * What may be the next one comes in by the device that received the packet with these headers first, with no fewer hops left than that had. In a
 * loop of routers it would have fewer: this is the next one of a sender that gives all of them one identification, as generators of packets do.
 */
static __always_inline bool comes_from_its_source(struct ident_entry *s, struct skb skb)
{
	return (s->seen & SEEN_DEVICE) == received_by(skb_dev(skb) & ~TURN_FLAGS) && hops_left(skb, skb_head(skb)) >= (s->seen & SEEN_HOPS);
}

/* The slot of this name, if it can be this packet's. */
static __always_inline struct ident_entry *again_by(u64 name, u64 ident, struct skb skb, u32 what)
{
	struct ident_entry *s = ident_slot(ident, name);

	if (!s || s->ident != name || (is_another(s->turn, ident, skb, what) && !leaves_in_copy(s->turn, skb, what)) ||
	    (may_be_next(s->turn, skb, what) && comes_from_its_source(s, skb)))
		return NULL;
	return names_packet(ident) || skb_goes_on(s, skb, what) ? s : NULL;
}

static __always_inline struct ident_entry *again(u64 ident, struct skb skb, u32 what)
{
	struct ident_entry *s = again_by(name_of(ident, skb), ident, skb, what);

	/* Its skb's address may have been another copy's before. */
	return s || names_packet(ident) ? s : again_by(name_alone(ident), ident, skb, what);
}

/*
 * With guess_reuse: the packet that had these headers a moment ago, 0: none. It is another one where that packet cannot have come this way: a sender
 * gives segments of successive large packets the same identifications.
 */
__noinline u64 known_again(u64 at, u64 ident, u32 what, u64 now)
{
	ONLY_WHERE(guess_reuse);
	struct skb skb = skb_at(at);
	struct ident_entry *s = again(ident, skb, what);
	u64 reach;

	if (!s)
		return 0;
	if (s->seen & SEEN_FREED)
		reach = FREED_PACKET_US;
	else if (comes_in(what) || s->turn & TURN_OUT || !skb_field(skb, skb_iif))
		reach = SAME_PACKET_US;
	else
		reach = WAITING_PACKET_US;
	if (((seen_time(now) - s->seen) & SEEN_TIME) > reach)
		return 0;
	log_lineage(KP_LIN_REALLOC, s->id, s->id);
	return s->id;
}

/* With guess_reuse: did the packet that had these headers leave by a device, or come in by one that is not recorded, as far as it was seen? */
static __noinline bool is_elsewhere(u64 at, u64 ident)
{
	struct ident_entry *s = again(ident, skb_at(at), PASSES);
	struct where w;

	return s && s->turn && (s->turn & TURN_OUT || (locate_device(s->turn & ~TURN_FLAGS, &w) && !place_wanted(&w)));
}

/* Its slot, if it still is its own. */
static __always_inline struct ident_entry *slot_of(struct packet_entry *e, struct skb skb)
{
	struct ident_entry *s = ident_slot(e->ident, name_of(e->ident, skb));

	return s && s->id == e->id ? s : NULL;
}

/* It was seen in another buffer since, or another packet had its headers (its first segment): what lies in this buffer is not it any more. */
static __always_inline bool went_on_elsewhere(struct packet_entry *e, struct skb skb)
{
	u64 name = name_of(e->ident, skb);
	struct ident_entry *s = ident_slot(e->ident, name);

	return s && names_packet(e->ident) && s->ident == name && (s->id != e->id || s->turn != e->turn);
}

/* An skb of it is freed, and its data are not: what comes next with these headers in another buffer, and was received, goes on in a copy that was made of them. */
static __always_inline void goes_on_in_copy(struct packet_entry *e, u64 now)
{
	u64 name = name_alone(e->ident);
	struct ident_entry *s = ident_slot(e->ident, name);

	if (s && !names_packet(e->ident) && e->turn && !(e->turn & TURN_OUT))
		fill_slot(s, name, e->id, e->turn, seen_time(now));
}

/*
 * So with an skb whose buffer is not known: forwarded beside a sniffer the packet was given that one, unseen, and goes on in a clone for which it is exchanged once more
 * (skb_expand_head() in net/core/skbuff.c, of what has to have room for a tunnel's headers).
 */
__noinline int goes_on_unseen(u64 at, u64 head)
{
	ONLY_WHERE(guess_reuse);
	struct skb skb = skb_at(at);
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 ident = identity_of(skb, head);
	struct ident_entry *s, *alone;

	if (!ctl || !ident || names_packet(ident))
		return 0;
	s = again_by(name_of(ident, skb), ident, skb, FREED);
	if (!s || !s->turn || s->turn & TURN_OUT)
		return 0;
	alone = ident_slot(ident, name_alone(ident));
	if (alone)
		fill_slot(alone, name_alone(ident), s->id, s->turn, seen_time(moment(ctl)));
	return 0;
}

/*
 * The packet is freed. What comes later with these headers is another one: an answer may have the request's identification and
 * length.
 */
static __always_inline void soon_unknown(struct packet_entry *e, struct skb skb, u64 now)
{
	struct ident_entry *s = slot_of(e, skb);
	u64 alone = name_alone(e->ident);

	if (s)
		s->seen = SEEN_FREED | (s->seen & SEEN_FIRST) | seen_time(now);
	if (names_packet(e->ident))
		return;
	/* Nor is it waited for in a copy. */
	s = ident_slot(e->ident, alone);
	if (s && s->ident == alone && s->id == e->id)
		s->seen = SEEN_FREED | (s->seen & SEEN_FIRST) | seen_time(now);
}

#endif
