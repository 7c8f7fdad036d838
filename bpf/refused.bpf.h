/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Packets that nobody asked for are nearly all packets of a busy host, and each passes dozens of probes. So a refusal is remembered, by what
 * decided it: addresses, protocol, ports and place in a fragmented packet, where the filter asks for nothing else (user space looks at its loads:
 * flow_decides), and the device, where devices or namespaces are chosen. It then holds for the flow's next packets, too, and after the packet's buffer was
 * freed unseen: no packet is known by it, so nothing has to be forgotten.
 *
 * One word a refusal, in a table without chains: a collision costs one more question. The word is a hash under a key of the recording's
 * own, so that nobody can make a flow that stands for another one. It is good for some 256 jiffies, as a device may move to a namespace that is wanted,
 * and where processes are chosen until the next flow is.
 * Rejected: entries among the packets, as every refused packet whose end no probe sees would take a wanted one's place for ten seconds.
 */
#ifndef KPAT_REFUSED_H
#define KPAT_REFUSED_H

#include "footprint.bpf.h"

/* The filter asks for nothing but what is in flow_hash(). */
const volatile u32 flow_decides = 0;
/* And nothing else is chosen by. */
const volatile u32 flow_alone = 0;
/* Odd, random. */
const volatile u64 refusal_key = 0x9e3779b97f4a7c15ULL;

#define REFUSALS 16384
u64 refusals[REFUSALS] SEC(".data.refused");

/* Only some places are recorded. */
static __always_inline bool places_chosen(void)
{
	return netns_count || ifindex_count;
}

/*
 * 0: the filter may look elsewhere: IPv4 with options, another protocol, a link header that is not Ethernet's alone (of a VLAN's frame the filter
 * sees another EtherType). Words of the header as x86 and arm64 load them, little-endian.
 */
static __always_inline u64 flow_hash(u64 head, struct header_offsets h)
{
	u16 link = h.network - h.mac;
	u64 key = refusal_key, hash;
	struct header_words w;

	if (h.mac != UNSET_HEADER && link != 14 && link)
		return 0;
	load_network(head + h.network, &w);
	if ((w.w0 & 0xff) == 0x45) {
		/* bytes 6 and 7 but for the flags, 9, 12 to 23 */
		hash = (w.w1 & 0xffffffff0000ff00ULL) | (w.w0 >> 32 & 0xff1f0000);
		return ((hash ^ h.protocol) * key ^ w.w2) * key | 1;
	}
	if ((w.w0 & 0xf0) != 0x60)
		return 0;
	/* bytes 6, 8 to 43 */
	hash = (w.w0 & 0xff000000000000ULL) | h.protocol;
	hash = (hash * key ^ w.w1) * key ^ w.w2;
	load_network(head + h.network + 24, &w);
	hash = (hash * key ^ w.w0) * key ^ w.w1;
	return (hash * key ^ (u32)w.w2) * key | 1;
}

static __always_inline u64 offsets_word(struct header_offsets h)
{
	return h.protocol | (u64)h.transport << 16 | (u64)h.network << 32 | (u64)h.mac << 48;
}

/*
 * Of a packet that has headers: what is remembered of its refusal, 0: nothing can be. A function of its own where it takes stack, of which the
 * deepest way of calls has none to spare; `offsets` are struct header_offsets.
 */
static __always_inline u64 refusal_inline(struct skb skb, u64 head, u64 offsets)
{
	struct header_offsets h = { offsets, offsets >> 16, offsets >> 32, offsets >> 48 };
	u64 hash = 1;

	/* the same as what follows, by fewer questions, where each counts */
	if (skb.trusted && flow_alone)
		return in_header_area(skb, h.network) ? flow_hash(head, h) : 0;
	if (has_filter) {
		if (!flow_decides || !in_header_area(skb, h.network))
			return 0;
		hash = flow_hash(head, h);
		if (!hash)
			return 0;
	} else if (!places_chosen()) {
		return 0;
	}
	if (places_chosen())
		hash = (hash ^ skb_dev(skb)) * refusal_key;
	return hash;
}

#ifdef KPAT_DIRECT
#define refusal_of refusal_inline
#else
static __noinline u64 refusal_at(u64 at, u64 head, u64 offsets)
{
	return refusal_inline(skb_at(at), head, offsets);
}

#define refusal_of(skb, head, offsets) refusal_at((skb).at, head, offsets)
#endif

static __always_inline u64 *refusal_slot(u64 hash)
{
	return &refusals[hash >> 50 & (REFUSALS - 1)];
}

static __always_inline u64 refusal_now(u64 hash)
{
	return hash ^ bpf_jiffies64() >> 8 ^ (by_process ? wish_now() : 0);
}

static __always_inline bool refused_before(u64 hash)
{
	return hash && *(volatile u64 *)refusal_slot(hash) == refusal_now(hash);
}

/* Not where headers go on behind the buffer's end: the filter refused because it could not see. */
static __always_inline void remember_refusal(struct skb skb, u64 head, struct header_offsets h)
{
	u64 hash = refusal_of(skb, head, offsets_word(h));

	if (hash && skb_field(skb, end) >= (u32)h.network + 44)
		*refusal_slot(hash) = refusal_now(hash);
}

#endif
