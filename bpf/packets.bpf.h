/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which packet is this skb? Identity is the header buffer (skb->head) from the first time it is seen until it is freed: an skb's own address
 * is reused at once, and clones share the buffer. retis found this rule first. The rejected idea was the skb
 * address: it loses the packet at every clone, and the transmit path of TCP is nothing but clones.
 *
 * The table is set-associative and lock-free: a slot is claimed by a compare-and-swap on its key, `id` is written
 * last. A lookup that meets a half-made slot says "not known", which costs one call record and nothing else.
 */
#ifndef KPAT_PACKETS_H
#define KPAT_PACKETS_H

#include "air.bpf.h"
#include "footprint.bpf.h"
#include "homeless.bpf.h"
#include "onward_flow.bpf.h"
#include "polls.bpf.h"
#include "refused.bpf.h"
#include "rewritten.bpf.h"
#include "stale.bpf.h"
#include "stamps.bpf.h"
#include "turns.bpf.h"

static __always_inline struct packet_bucket *bucket_of(u64 head)
{
	return &packet_buckets[((head >> 6) * 0x9e3779b97f4a7c15ULL >> 40) & bucket_mask];
}

static __always_inline struct packet_entry *packet_find(u64 head)
{
	struct packet_bucket *b = bucket_of(head);

#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (b->e[i].head == head)
			return b->e[i].id ? &b->e[i] : NULL;
	return NULL;
}

/*
 * An entry as a number, 0: none, for functions that are verified by their own (tasks.bpf.h), which take and return no pointers to it. What comes back
 * is masked, so that the verifier knows it for an entry.
 */
_Static_assert(sizeof(struct packet_entry) == 64 && WAYS == 4, "entry_at() masks by these");

static __always_inline u64 entry_place(struct packet_entry *e)
{
	return ((u64)e - (u64)packet_buckets) | 1;
}

static __always_inline struct packet_entry *entry_at(u64 place)
{
	return (void *)packet_buckets + (place & ((u64)bucket_mask << 8 | 0xc0));
}

static __always_inline u64 new_packet_id(void)
{
	u64 id = __sync_fetch_and_add(&next_packet, 1);

	/* low 24 bits zero would read as "no packet" in a session cookie */
	return id & 0xffffff ? id : __sync_fetch_and_add(&next_packet, 1);
}

/* `id` 0: a new packet. One that finds no place takes no number. Returns its place. */
__noinline u64 packet_insert(u64 head, u64 id, u64 now)
{
	struct packet_bucket *b = bucket_of(head);
	struct packet_entry *e;
	u64 old;

	for (int i = 0; i < WAYS; i++) {
		e = &b->e[i];
		old = e->head;
		if (old && (e->seen + EVICT_NS > now || !e->id))
			continue;
		if (__sync_val_compare_and_swap(&e->head, old, head) != old)
			continue;
		e->id = 0;
		e->sig = 0;
		e->dev = 0;
		e->link = 0;
		e->ident = 0;
		e->turn = 0;
		e->seen = now;
		store_release(&e->id, id ?: new_packet_id());
		return entry_place(e);
	}
	return 0;
}

static __always_inline void packet_forget(struct packet_entry *e)
{
	e->id = 0;
	/* last: whoever claims the place writes an id, which this zero must not overwrite, as a place without id is never given away */
	store_release(&e->head, 0);
}

static __always_inline bool has_headers(struct header_offsets h)
{
	return h.network && h.network != UNSET_HEADER;
}

/*
 * Changes when the network or transport header does, or a link header is put before them. Bytes 4 to 11 of an IPv4 header hold identification, TTL and
 * the checksum over all the rest, of an IPv6 header length, hop limit and part of the source; bytes 16 to 23 the IPv4
 * destination and (without options) the ports, or more of the IPv6 source. IPv6 has no identification: where frees are not seen, and the next packet
 * may lie in the same buffer, a segment's sequence number, a datagram's ports, tell one of the same length from it. 0: no network header yet. A function of its own where loads
 * take stack, of which the deepest way of calls has none to spare; `offsets` are struct header_offsets.
 */
#ifdef KPAT_DIRECT
static __always_inline
#else
static __noinline
#endif
u64 signature_of(u64 head, u64 offsets)
{
	u64 network = head + (u16)(offsets >> 32), word = kread_word(network + 4), sequence = 0;

	if (guess_reuse && (u16)offsets == swap16(ETH_P_IPV6)) {
		sequence = kread_word(network + 40);
		/* a datagram's checksum may still be completed */
		sequence = (word >> 16 & 0xff) == PROTO_TCP ? sequence & ~0xffffffffULL : sequence << 16;
	}
	return (word ^ kread_word(network + 16) * 131 ^ sequence * 31 ^ offsets >> 48) | 1;
}

static __always_inline u64 signature(u64 head, struct header_offsets h)
{
	return has_headers(h) ? signature_of(head, offsets_word(h)) : 0;
}

/* Changes when the link header does, or the VLAN tag beside it; 0: there is neither. */
static __always_inline u64 link_signature(struct skb skb, u64 head, struct header_offsets h)
{
	u64 tag = (u64)hidden_tag(skb) << 1;

	if (h.mac == UNSET_HEADER || h.network < h.mac + 14)
		return tag;
	return (kread_word(head + h.mac) ^ kread_word(head + h.mac + 8) * 131 ^ tag) | 1;
}

#define ETH_P_802_3 0x0001
#define ETH_P_802_2 0x0004

/*
 * Does this number say what a packet is? An EtherType does, and on Ethernet the numbers that the kernel gives to frames with a length in place
 * of one, as spanning tree's (eth_type_trans() in net/ethernet/eth.c). Elsewhere small numbers are of other things, as netlink's families.
 */
static __always_inline bool is_protocol(u16 type, u16 link_type)
{
	return type >= 0x600 || (link_type == ARPHRD_ETHER && (type == ETH_P_802_3 || type == ETH_P_802_2));
}

/*
 * Is a packet wanted that has headers? A device pointer from which no namespace can be read is counted: nobody can tell whether
 * its packet was asked for, and if that is the rule none will be in the log. No pointer at all is no fault: a packet that waits at a
 * socket has given up its device.
 */
static __always_inline bool wanted(struct kp_ring_ctl *ctl, struct skb skb, u64 head, struct header_offsets h, const struct where *w, bool here, u32 port)
{
	bool elsewhere = w->netns ? !here : !kernel_address(skb_dev(skb));

	if (!elsewhere && !is_protocol(ethertype(h, head), w->link_type))
		return false;
	if (elsewhere || (has_filter && !filter_matches(skb.at, head, h.mac, h.network, w->link_type | port << 16)) || !of_chosen(skb, h, w)) {
		/* not of ports that are still to be written, nor of a place that is the socket's */
		if (!port && (w->ifindex || !(elsewhere || places_chosen())))
			remember_refusal(skb, head, h);
		return false;
	}
	if (!w->netns)
		count_loss(ctl, KP_LOSS_NO_DEVICE);
	return w->netns;
}

static __always_inline void count_refused(struct kp_ring_ctl *ctl)
{
	ctl->refused++;
	poll_mixed(ctl);
}

/* Asked before admit(), which has much to keep and to give back for a packet that nobody asked for. `ctl`: NULL where it is not at hand. */
static __always_inline bool refused_as_before(struct kp_ring_ctl *ctl, struct skb skb, u64 head)
{
	struct header_offsets h = headers_of(skb, head);

	if (!has_headers(h) || !refused_before(refusal_of(skb, head, offsets_word(h))))
		return false;
	if (!ctl)
		ctl = ring_ctl();
	if (ctl)
		count_refused(ctl);
	return true;
}

/*
 * First sight of a header buffer: is it a packet, and is it wanted? Netlink and unix sockets use skbs too; a packet
 * has a protocol and a network header, or belongs to an internet socket that is about to give it one. The filter
 * needs headers, or what will be in them (origin.bpf.h); where neither is known a packet begins when it has them. `port`: the one
 * that a datagram will be sent to, where its transport header is not written yet, else 0. `what`: of the point where it is seen.
 * Returns its entry's place, 0: not ours.
 */
__noinline u64 admit(u64 at, u64 head, u32 port, u32 what)
{
	struct skb skb = skb_at(at);
	struct header_offsets h = headers_of(skb, head);
	struct kp_ring_ctl *ctl;
	u16 family;
	struct packet_entry *e;
	struct sock *sk;
	struct where w;
	bool here;
	u64 now, id, sig, place, ident = 0;

	if (!has_headers(h) && has_filter && !socket_decides)
		return 0;
	ctl = ring_ctl();
	if (!ctl || (own_tgid && own_doing(current_context(), current_pid_tgid())))
		return 0;
	sig = signature(head, h);
	sk = (void *)skb_sk(skb);
	if (!sig) {
		/* What tells a sender that its data were sent, or when, has no headers and is none; a packet has them before it is read, or its socket lets go of it. */
		if (!sk || ifindex_count || what == READ || what == FREED || skb_bit(skb, pkt_type) == PACKET_OUTGOING)
			return 0;
		family = kread((struct sock *)(sk), __sk_common.skc_family);
		if ((family != AF_INET && family != AF_INET6) || (has_filter && !socket_wanted((u64)sk, family)))
			return 0;
	}
	locate(skb, &w);
	here = place_wanted(&w);
	if (sig) {
		if (!wanted(ctl, skb, head, h, &w, here, port)) {
			count_refused(ctl);
			return 0;
		}
	} else if (!here || !w.netns) {
		return 0;
	}
	now = moment(ctl);
	if (guess_reuse || by_process)
		ident = identity_of(skb, head);
	id = guess_reuse ? known_again(skb.at, ident, what, now) : 0;
	if (guess_reuse && !id && what >= QUEUED)
		id = known_inside(skb.at, head, what, now);
	/* lives are whole: what was received already was not chosen then, whatever its headers say now */
	if (sample_below && !id && !ifindex_count && skb_field(skb, skb_iif))
		return 0;
	place = packet_insert(head, id, now);
	if (!place) {
		count_homeless(head, now);
		poll_mixed(ctl);
		return 0;
	}
	e = entry_at(place);
	id = e->id;
	if (sig && !sk && ctl->poll != POLL_TOLD && current_context() == 1)
		tell_poll(id, now);
	e->sig = sig;
	e->dev = skb_dev(skb);
	e->link = link_signature(skb, head, h);
	if (guess_reuse)
		remember(e, skb, ident, id, now);
	else if (by_process)
		e->ident = ident;
	if (air_watch && sig && !sk)
		tell_air(skb.at, head, id);
	if (stamp_watch && sig && !sk)
		tell_stamp(skb.at, head, id, now);
	if (port)
		e->sig = 1; /* differs from any: headers are logged once they are whole */
	else if (sig || skb_field(skb, transport_header) != UNSET_HEADER)
		footprint(skb.at, head, id, now);
	return place;
}

/* The same; where it is asked whose the packet is, its sender is known then. */
static __always_inline u64 admit_by_sender(struct skb skb, u64 head, u32 port, u32 what)
{
	if (by_process)
		know_sender(skb_sk(skb));
	return admit(skb.at, head, port, what);
}

/*
 * Headers or device changed: log them. Where frees are not seen, a buffer with another identity is another packet.
 * A link header is looked at only when the device changed: it is written when the packet is about to leave for the next.
 * Returns whether it is the same packet.
 */
__noinline int changed(u64 at, u64 head, u64 place, u64 sig)
{
	struct packet_entry *e = entry_at(place);
	struct skb skb = skb_at(at);
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 dev = skb_dev(skb), link, ident;

	if (!ctl || (own_tgid && own_doing(current_context(), current_pid_tgid())))
		return 1;
	link = link_signature(skb, head, headers_of(skb, head));
	if (sig == e->sig && link == e->link) {
		e->dev = dev;
		log_place(skb.at, dev, e->id);
		return 1;
	}
	if (by_process && sig != e->sig) {
		ident = flow_goes_on(skb.at, head, e->ident);
		if (!guess_reuse)
			e->ident = ident;
	}
	if (guess_reuse && sig != e->sig) {
		u64 now = identity_of(skb, head), was = e->ident;

		if (now && was && !same_identity(now, was) && !goes_on_inside(e, skb, was) && !goes_on_rewritten(e, skb, now, moment(ctl))) {
			packet_forget(e);
			return 0;
		}
		if (now && now != was)
			remember(e, skb, now, e->id, moment(ctl));
	}
	e->sig = sig;
	e->dev = dev;
	e->link = link;
	footprint(skb.at, head, e->id, moment(ctl));
	return 1;
}

/* About to leave by a driver: the last chance to see the link header that a forwarded packet got. */
__noinline int check_link(u64 at, u64 head, u64 place)
{
	struct packet_entry *e = entry_at(place);
	struct skb skb = skb_at(at);
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 link = link_signature(skb, head, headers_of(skb, head));

	if (!ctl || !link || link == e->link)
		return 0;
	e->link = link;
	footprint(skb.at, head, e->id, moment(ctl));
	return 0;
}

/*
 * The packet of an skb, admitted and its footprint logged if need be; NULL: not ours. `settled`: no header has changed since
 * the last probe, so it need not be looked at. `what`: of the point where it is seen, PASSES in a function. A point has `ctl`, and `context` is
 * set to the one that it runs in, unless it is known at once that the packet is not ours.
 */
static __always_inline struct packet_entry *packet_at(struct kp_ring_ctl *ctl, struct skb *s, bool settled, u32 what, u32 *context)
{
	struct skb skb = *s;
	bool early = context && !(what == FREED && guess_reuse);
	u64 head = skb_head(skb), sig;
	struct packet_entry *e;

	if (!head)
		return NULL;
	e = packet_find(head);
	/* Before all else, as it is so with nearly all packets of a busy host. One that is not known here was refused by the probe before. */
	if (!e && (settled || what == LEFT || (early && refused_as_before(ctl, skb, head))))
		return NULL;
	if (context)
		*context = new_moment(ctl);
	if (what != PASSES && what != LEFT)
		*s = skb = looked_at(skb);
	/* What may be freed begins no packet, and its headers are nobody's. */
	if (what == LEFT)
		return e;
	if (what != PASSES && guess_reuse && e && holds_another(e, skb, what)) {
		packet_forget(e);
		e = NULL;
	}
	if (settled)
		return e;
	if (e) {
		sig = signature(head, headers_of(skb, head));
		if (guess_reuse && !sig && of_another_family(skb)) {
			packet_forget(e);
			return NULL;
		}
		if (sig && (sig != e->sig || skb_dev(skb) != e->dev))
			e = changed(skb.at, head, entry_place(e), sig) ? e : NULL;
	}
	/* A sniffer's clone that goes before its packet is first seen leaving says nothing of where that packet is. */
	if (what == FREED && guess_reuse && !e && !last_holder(skb, head)) {
		goes_on_unseen(skb.at, head);
		return NULL;
	}
	if (!e && (early || !refused_as_before(ctl, skb, head))) {
		u64 place = admit_by_sender(skb, head, 0, what);

		e = place ? entry_at(place) : NULL;
	}
	return e;
}

static __always_inline struct packet_entry *packet_of(struct skb skb, bool settled)
{
	return packet_at(NULL, &skb, settled, PASSES, NULL);
}

#endif
