/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which packet is this skb?
 *
 * Identity is the header buffer (skb->head) from the first time it is seen until it is freed: an skb's own address
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
#include "polls.bpf.h"

#define AF_INET 2
#define AF_INET6 10

#define EVICT_NS 10000000000ULL

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

static __always_inline u64 new_packet_id(void)
{
	u64 id = __sync_fetch_and_add(&next_packet, 1);

	/* low 24 bits zero would read as "no packet" in a session cookie */
	return id & 0xffffff ? id : __sync_fetch_and_add(&next_packet, 1);
}

static __noinline struct packet_entry *packet_insert(u64 head, u64 id, u64 now)
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
		e->received = 0;
		e->seen = now;
		*(volatile u64 *)&e->id = id;
		return e;
	}
	return NULL;
}

static __always_inline void packet_forget(struct packet_entry *e)
{
	e->id = 0;
	*(volatile u64 *)&e->head = 0;
}

/*
 * Changes when the network or transport header does, or a link header is put before them. Bytes 4 to 11 of an IPv4 header hold identification, TTL and
 * the checksum over all the rest, of an IPv6 header length, hop limit and part of the source; bytes 16 to 23 the IPv4
 * destination and (without options) the ports, or more of the IPv6 source. 0: no network header yet.
 */
static __always_inline u64 signature(u64 head, struct header_offsets h)
{
	if (!h.network || h.network == UNSET_HEADER)
		return 0;
	return (kread_word(head + h.network + 4) ^ kread_word(head + h.network + 16) * 131 ^ h.mac) | 1;
}

/* Changes when the link header does, or the VLAN tag beside it; 0: there is neither. */
static __always_inline u64 link_signature(struct sk_buff *skb, u64 head, struct header_offsets h)
{
	u64 tag = (u64)hidden_tag(skb) << 1;

	if (h.mac == UNSET_HEADER || h.network < h.mac + 14)
		return tag;
	return (kread_word(head + h.mac) ^ kread_word(head + h.mac + 8) * 131 ^ tag) | 1;
}

/*
 * What NAT, forwarding and checksums leave alone. IPv4: protocol, identification and TCP sequence, ICMP type and sequence or
 * UDP length. It tells one packet from the next in the same buffer; it names a packet (`names_packet`) only where the
 * identification is not 0, else packets of a flow look alike. IPv6 has no identification: the eight bytes behind the
 * header, which NAT does not touch there; they name an echo alone, two acknowledgements or equal datagrams have the same. The
 * transport header is where the network header says: the skb learns that later than we look.
 */
__noinline u64 identity(u64 net, u32 proto)
{
	struct header_words h, t;
	u64 id, l4;

	if (proto != ETH_P_IP && proto != ETH_P_IPV6)
		return 0;
	load_network(net, &h);
	load_network(net + (proto == ETH_P_IP ? 4 * (h.w0 & 15) : 40), &t);
	if (proto == ETH_P_IPV6 && (h.w0 >> 48 & 0xff) == 58)
		return t.w0;
	if (proto == ETH_P_IPV6)
		return (t.w0 & ~(0xffffULL << 32)) ^ (t.w0 >> 32 & 0xffff);
	id = h.w0 >> 32 & 0xffff;
	l4 = h.w1 >> 8 & 0xff;
	if (l4 == 6)
		return l4 << 56 | id << 32 | t.w0 >> 32;
	return l4 << 56 | id << 32 | (l4 == 17 ? t.w0 >> 32 & 0xffff : t.w0 >> 48 | (t.w0 & 0xff) << 16);
}

static __always_inline bool names_packet(u64 ident)
{
	return ident >> 32 & 0xffff;
}

/*
 * For so long after a device received it headers name the packet that had them (65,536 identifications last longer up to
 * 3 M packets/s), and so long still when it was freed: it may have been copied before. Copies are made on the way between two
 * points, not in a queue, where a packet may wait for longer.
 */
#define SAME_PACKET_NS 20000000ULL
#define FREED_PACKET_NS 100000ULL

static __always_inline struct ident_entry *ident_slot(u64 ident)
{
	u32 at = (u32)(ident * 0x9e3779b97f4a7c15ULL >> 40) & (IDENTS - 1);

	return bpf_map_lookup_elem(&idents, &at);
}

static __always_inline u64 identity_of(struct sk_buff *skb, u64 head)
{
	struct header_offsets h = headers_of(skb, head);

	if (!h.network || h.network == UNSET_HEADER)
		return 0;
	return identity(head + h.network, swap16(h.protocol));
}

/* With guess_reuse: the packet that had these headers a moment ago, 0: none. */
static __noinline u64 known_again(struct kp_ring_ctl *ctl, u64 ident, u64 now)
{
	struct ident_entry *s = names_packet(ident) ? ident_slot(ident) : NULL;

	if (!s || s->ident != ident || s->seen + SAME_PACKET_NS < now)
		return 0;
	log_lineage(KP_LIN_REALLOC, s->id, s->id);
	return s->id;
}

/*
 * The packet is freed. What comes later with these headers is another one: an answer may have the request's identification and
 * length.
 */
static __always_inline void soon_unknown(struct packet_entry *e, u64 now)
{
	struct ident_entry *s = names_packet(e->ident) ? ident_slot(e->ident) : NULL;

	if (s && s->id == e->id)
		s->seen = now - SAME_PACKET_NS + FREED_PACKET_NS;
}

/* With guess_reuse: a device has received it. */
static __always_inline void still_known(struct packet_entry *e, u64 now)
{
	struct ident_entry *s = names_packet(e->ident) ? ident_slot(e->ident) : NULL;

	e->received = 1;
	if (s && s->id == e->id)
		s->seen = now;
}

static __always_inline void remember(struct packet_entry *e, u64 ident, u64 id, u64 now)
{
	struct ident_entry *s = names_packet(ident) ? ident_slot(ident) : NULL;

	e->ident = ident;
	if (!s)
		return;
	s->ident = ident;
	s->id = id;
	s->seen = now;
}

/*
 * First sight of a header buffer: is it a packet, and is it wanted? Netlink and unix sockets use skbs too; a packet
 * has an EtherType and a network header, or belongs to an internet socket that is about to give it one. The filter
 * needs headers, so with a filter a packet begins when it has them.
 */
static __noinline struct packet_entry *admit(struct sk_buff *skb, u64 head, u64 sig)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct header_offsets h = headers_of(skb, head);
	u16 family;
	struct packet_entry *e;
	struct sock *sk;
	struct where w;
	u64 now, id;

	if (!ctl || (own_tgid && own_doing(current_context(), current_pid_tgid())))
		return NULL;
	locate(skb, &w);
	sk = (void *)kread_ptr(skb, sk);
	if (sig) {
		if (!place_wanted(&w) || ethertype(h, head) < 0x600 || !w.netns ||
		    (has_filter && !filter_matches((u64)skb, head, h.mac, h.network, w.link_type))) {
			poll_mixed(ctl);
			return NULL;
		}
	} else {
		if (!place_wanted(&w) || has_filter || ifindex_count || !sk)
			return NULL;
		family = kread((struct sock *)(sk), __sk_common.skc_family);
		if ((family != AF_INET && family != AF_INET6) || !w.netns)
			return NULL;
	}
	now = bpf_ktime_get_boot_ns();
	id = guess_reuse ? known_again(ctl, identity_of(skb, head), now) : 0;
	if (!id)
		id = new_packet_id();
	e = packet_insert(head, id, now);
	if (!e) {
		count_loss(ctl, KP_LOSS_PACKET_TABLE);
		poll_mixed(ctl);
		return NULL;
	}
	if (sig && !sk && ctl->poll != POLL_TOLD && current_context() == 1)
		tell_poll(id, now);
	e->sig = sig;
	e->dev = kread_ptr(skb, dev);
	e->link = link_signature(skb, head, h);
	if (guess_reuse)
		remember(e, identity_of(skb, head), id, now);
	if (air_watch && sig && !sk)
		tell_air((u64)skb, head, id);
	if (sig || kread(skb, transport_header) != UNSET_HEADER)
		footprint((u64)skb, head, id);
	return e;
}

/*
 * Headers or device changed: log them. Where frees are not seen, a buffer with another identity is another packet.
 * A link header is looked at only when the device changed: it is written when the packet is about to leave for the next.
 * NULL: another packet.
 */
static __noinline struct packet_entry *changed(struct sk_buff *skb, u64 head, struct packet_entry *e, u64 sig)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 dev = kread_ptr(skb, dev), link;

	if (!ctl || (own_tgid && own_doing(current_context(), current_pid_tgid())))
		return e;
	link = link_signature(skb, head, headers_of(skb, head));
	if (sig == e->sig && link == e->link) {
		e->dev = dev;
		log_place((u64)skb, dev, e->id);
		return e;
	}
	if (guess_reuse && sig != e->sig) {
		u64 now = identity_of(skb, head), was = e->ident;

		if (now && was && now != was) {
			packet_forget(e);
			return NULL;
		}
		if (now && now != was)
			remember(e, now, e->id, bpf_ktime_get_boot_ns());
	}
	e->sig = sig;
	e->dev = dev;
	e->link = link;
	footprint((u64)skb, head, e->id);
	return e;
}

/* About to leave by a driver: the last chance to see the link header that a forwarded packet got. */
static __noinline void check_link(struct sk_buff *skb, u64 head, struct packet_entry *e)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 link = link_signature(skb, head, headers_of(skb, head));

	if (!ctl || !link || link == e->link)
		return;
	e->link = link;
	footprint((u64)skb, head, e->id);
}

/*
 * The packet of an skb, admitted and its footprint logged if need be; NULL: not ours. `settled`: no header has changed since
 * the last probe, so it need not be looked at.
 */
static __always_inline struct packet_entry *packet_of(struct sk_buff *skb, bool settled)
{
	u64 head = kread_ptr(skb, head), sig;
	struct packet_entry *e;

	if (!head)
		return NULL;
	e = packet_find(head);
	if (e && settled)
		return e;
	sig = signature(head, headers_of(skb, head));
	if (e && sig && (sig != e->sig || kread_ptr(skb, dev) != e->dev))
		e = changed(skb, head, e, sig);
	return e ?: admit(skb, head, sig);
}

/*
 * Where frees are not seen, at the way into a device: what a socket has just made cannot be what was received in that buffer,
 * even if it looks the same. A clone may be: of a multicast packet one is received here while the other is still being sent.
 */
static __always_inline void forget_received(struct sk_buff *skb)
{
	struct packet_entry *e = packet_find(kread_ptr(skb, head));

	if (!e || !e->received || names_packet(e->ident))
		return;
	if (kread_ptr(skb, sk) && !kread(skb, skb_iif) && !kread_bit(skb, cloned))
		packet_forget(e);
}

/* Will the header buffer go when this skb lets go of it? skb_data_unref() in net/core/skbuff.c. */
static __always_inline bool last_holder(struct sk_buff *skb, u64 head)
{
	struct skb_shared_info *shinfo;
	u32 refs;

	if (!kread_bit(skb, cloned))
		return true;
	shinfo = (struct skb_shared_info *)(head + kread(skb, end));
	refs = kread(shinfo, dataref.counter);
	return refs == (kread_bit(skb, nohdr) ? (1 << 16) + 1 : 1);
}

#endif
