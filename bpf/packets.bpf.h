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

#include "config.bpf.h"
#include "filter.bpf.h"
#include "ring.bpf.h"

#define ETH_P_IP 0x0800
#define ETH_P_ARP 0x0806
#define ETH_P_IPV6 0x86dd
#define AF_INET 2
#define AF_INET6 10
#define ARPHRD_ETHER 1
#define ARPHRD_LOOPBACK 772
#define UNSET_HEADER 0xffff
#define EVICT_NS 10000000000ULL

static __always_inline u16 swap16(u16 v)
{
	return __builtin_bswap16(v);
}

static __always_inline u32 bucket_of(u64 head)
{
	return (u32)((head >> 6) * 0x9e3779b97f4a7c15ULL >> 40) & bucket_mask;
}

static __always_inline struct packet_entry *packet_find(u64 head)
{
	u32 at = bucket_of(head);
	struct packet_bucket *b = bpf_map_lookup_elem(&packets, &at);

	if (!b)
		return NULL;
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
	u32 at = bucket_of(head);
	struct packet_bucket *b = bpf_map_lookup_elem(&packets, &at);
	struct packet_entry *e;
	u64 old;

	if (!b)
		return NULL;
	for (int i = 0; i < WAYS; i++) {
		e = &b->e[i];
		old = e->head;
		if (old && (e->seen + EVICT_NS > now || !e->id))
			continue;
		if (__sync_val_compare_and_swap(&e->head, old, head) != old)
			continue;
		e->id = 0;
		e->sig = 0;
		e->ident = 0;
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

struct header_words {
	u64 w0, w1, w2;
};

/* 24 bytes of the network header; zeros where they cannot be read. */
static __always_inline void load_network(u64 at, struct header_words *h)
{
#ifdef KPAT_DIRECT
	struct timespec64 *a = kcast(struct timespec64, at), *b = kcast(struct timespec64, at + 16);

	h->w0 = a->tv_sec;
	h->w1 = a->tv_nsec;
	h->w2 = b->tv_sec;
#else
	if (bpf_probe_read_kernel(h, sizeof(*h), (void *)at))
		h->w0 = h->w1 = h->w2 = 0;
#endif
}

/*
 * skb->protocol and the three header offsets lie side by side on every kernel since 3.11 (struct sk_buff, group
 * `headers`): the direct build reads them by one load. User space looks at the kernel's types first and takes the other
 * build where it is not so.
 */
struct header_offsets {
	u16 protocol; /* network order */
	u16 transport, network, mac;
};

static __always_inline struct header_offsets header_offsets(struct sk_buff *skb)
{
	struct header_offsets h;

#ifdef KPAT_DIRECT
	u64 w = kread_ptr(skb, protocol);

	h.protocol = w;
	h.transport = w >> 16;
	h.network = w >> 32;
	h.mac = w >> 48;
#else
	h.protocol = kread(skb, protocol);
	h.transport = kread(skb, transport_header);
	h.network = kread(skb, network_header);
	h.mac = kread(skb, mac_header);
#endif
	return h;
}

/*
 * Changes when the headers or the device of the packet do. Bytes 4 to 11 of an IPv4 header hold identification, TTL and
 * the checksum over all the rest, of an IPv6 header length, hop limit and part of the source; bytes 16 to 23 the IPv4
 * destination and (without options) the ports, or more of the IPv6 source. 0: no network header yet.
 */
static __always_inline u64 signature(struct sk_buff *skb, u64 head, struct header_offsets h)
{
	if (!h.network || h.network == UNSET_HEADER)
		return 0;
	return (kread_word(head + h.network + 4) ^ kread_word(head + h.network + 16) * 131 ^ kread_ptr(skb, dev)) | 1;
}

/* EtherType in host order. IPv4 sets skb->protocol only in __ip_local_out: before that the version nibble says it. */
static __always_inline u16 ethertype(struct header_offsets h, u64 head)
{
	u8 version;

	if (h.protocol)
		return swap16(h.protocol);
	version = (kread_word(head + h.network) & 0xff) >> 4;
	return version == 4 ? ETH_P_IP : version == 6 ? ETH_P_IPV6 : 0;
}

/*
 * What NAT, forwarding and checksums leave alone. IPv4: protocol, identification and TCP sequence, ICMP sequence or UDP
 * length. It tells one packet from the next in the same buffer; it names a packet (`names_packet`) only where the
 * identification is not 0, else packets of a flow look alike. IPv6 has no identification: the first
 * eight bytes of the transport header, which NAT does not touch there.
 */
static __noinline u64 identity(u64 net, u64 transport, u32 proto)
{
	struct header_words h, t;
	u64 id, l4;

	load_network(net, &h);
	load_network(transport, &t);
	if (proto == ETH_P_IPV6)
		return t.w0;
	if (proto != ETH_P_IP)
		return 0;
	id = h.w0 >> 32 & 0xffff;
	l4 = h.w1 >> 8 & 0xff;
	if (l4 == 6)
		return l4 << 56 | id << 32 | t.w0 >> 32;
	return l4 << 56 | id << 32 | (l4 == 17 ? t.w0 >> 32 & 0xffff : t.w0 >> 48);
}

static __always_inline bool names_packet(u64 ident)
{
	return ident >> 32 & 0xffff;
}

#define SAME_PACKET_NS 2000000000ULL

static __always_inline struct ident_entry *ident_slot(u64 ident)
{
	u32 at = (u32)(ident * 0x9e3779b97f4a7c15ULL >> 40) & (IDENTS - 1);

	return bpf_map_lookup_elem(&idents, &at);
}

struct where {
	u32 ifindex;
	u32 netns;
	u16 link_type;
};

/*
 * Device and namespace. skb->dev shares its place with list links of TCP's queues and with UDP's scratch word, so a
 * value that is no device must not be believed: a device's namespace has a plausible inode number.
 */
static __always_inline void locate(struct sk_buff *skb, struct where *w)
{
	struct net_device *dev = (void *)kread_ptr(skb, dev);
	struct net *net = NULL;
	struct sock *sk;

	w->ifindex = w->netns = w->link_type = 0;
	if (dev) {
				w->ifindex = kread(dev, ifindex);
		w->link_type = kread(dev, type);
		net = (void *)kread_ptr(dev, nd_net.net);
		if (net)
			w->netns = kread((struct net *)(net), ns.inum);
		if (w->netns >= 0xf0000000 && w->ifindex && w->ifindex < 1 << 24)
			return;
		w->ifindex = w->netns = w->link_type = 0;
	}
	sk = (void *)kread_ptr(skb, sk);
	if (!sk)
		return;
	net = (void *)kread_ptr(sk, __sk_common.skc_net.net);
	if (net)
		w->netns = kread((struct net *)(net), ns.inum);
	if (w->netns < 0xf0000000)
		w->netns = 0;
}

static __always_inline bool place_wanted(const struct where *w)
{
	bool ok = !netns_count;

	for (u32 i = 0; i < KP_MAX_IDS && i < netns_count; i++)
		ok |= netns_ids[i] == w->netns;
	if (!ok || !ifindex_count)
		return ok;
	ok = false;
	for (u32 i = 0; i < KP_MAX_IDS && i < ifindex_count; i++)
		ok |= ifindex_ids[i] == w->ifindex;
	return ok;
}

/* Does skb->mac_header point to a link header right before the network header? */
static __always_inline bool link_header_valid(u16 mac, u16 nh, u16 link_type)
{
	return (link_type == ARPHRD_ETHER || link_type == ARPHRD_LOOPBACK) && mac != UNSET_HEADER && nh >= mac + 14 && nh <= mac + 64;
}

/* Bytes of the packet from `start` to its end, wherever skb->data points at the moment. */
static __always_inline u32 length_from(struct sk_buff *skb, u64 start)
{
	return kread(skb, len) + (u32)(kread_ptr(skb, data) - start);
}

static __noinline bool filter_matches(struct sk_buff *skb, u64 head, u16 mac, u16 nh, u16 link_type)
{
	bool link = link_header_valid(mac, nh, link_type);
	u32 start = link ? mac : nh, end = kread(skb, end), slot = current_context(), len;
	struct scratch *s;

	s = bpf_map_lookup_elem(&scratches, &slot);
	if (!s)
		return false;
	len = end > start ? end - start : 0;
	if (len > sizeof(s->bytes))
		len = sizeof(s->bytes);
	if (!len || bpf_probe_read_kernel(s->bytes, len, (void *)(head + start)))
		return false;
	return link ? filter_link(s->bytes, len, length_from(skb, head + start)) : filter_network(s->bytes, len, length_from(skb, head + start));
}

/* A VLAN tag that is not in the data but beside it, 0: none. */
static __always_inline u16 hidden_tag(struct sk_buff *skb)
{
	if (bpf_core_field_exists(struct sk_buff, vlan_all)) {
		if (!kread(skb, vlan_all))
			return 0;
	} else if (!kread_bit(skb, vlan_present)) {
		return 0;
	}
	return (kread(skb, vlan_tci) & 0xefff) | KP_VLAN_PRESENT;
}

/* Logs the headers as they are now. The header area may hold stale bytes before they are built: start_layer says. */
static __noinline int footprint(struct kp_ring_ctl *ctl, struct sk_buff *skb, u64 head, u64 id)
{
	struct header_offsets h = header_offsets(skb);
	u16 mac = h.mac, nh = h.network, th = h.transport;
	u16 proto = nh && nh != UNSET_HEADER ? ethertype(h, head) : 0;
	u32 start, n, end = kread(skb, end), pid;
	struct skb_shared_info *shinfo;
	struct kp_footprint *r;
	struct sock *sk;
	struct where w;

	locate(skb, &w);
	pid = current_pid(ctl, bpf_get_current_pid_tgid());
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = bpf_ktime_get_boot_ns();
	r->packet = id;
	r->ifindex = w.ifindex;
	r->netns = w.netns;
	r->protocol = proto;
	r->link_type = w.link_type;
	r->skb_tag = (u64)skb >> 6;
	r->ip_proto = 0;
	r->ctx = current_context();
	r->vlan_tci = hidden_tag(skb);
	if (proto) {
		r->start_layer = link_header_valid(mac, nh, w.link_type) ? 2 : 3;
		start = r->start_layer == 2 ? mac : nh;
	} else {
		r->start_layer = 4;
		start = th;
		sk = (void *)kread_ptr(skb, sk);
		if (sk)
			r->ip_proto = kread((struct sock *)(sk), sk_protocol);
	}
	r->len = length_from(skb, head + start);
	shinfo = (struct skb_shared_info *)(head + end);
	r->gso_size = kread(shinfo, gso_size);
	r->gso_segs = kread(shinfo, gso_segs);
	n = end > start ? end - start : 0;
	if (n > KP_HEADER_BYTES || start == UNSET_HEADER)
		n = start == UNSET_HEADER ? 0 : KP_HEADER_BYTES;
	r->header_len = n;
	if (n && bpf_probe_read_kernel(r->header, n & 0x7f, (void *)(head + start))) {
		r->header_len = 0;
		count_loss(ctl, KP_LOSS_READ_FAULT);
	}
	ring_commit(&r->h, KP_FOOTPRINT, sizeof(*r), 0, pid);
	return 0;
}

static __always_inline u64 identity_of(struct sk_buff *skb, u64 head)
{
	u16 nh = kread(skb, network_header), th = kread(skb, transport_header);

	if (!nh || nh == UNSET_HEADER || !th || th == UNSET_HEADER)
		return 0;
	return identity(head + nh, head + th, swap16(kread(skb, protocol)));
}

static __noinline void log_lineage(struct kp_ring_ctl *ctl, u32 kind, u64 parent, u64 child)
{
	struct kp_lineage *r = ring_reserve(ctl, sizeof(*r));

	if (!r)
		return;
	r->h.ts = bpf_ktime_get_boot_ns();
	r->parent = parent;
	r->child = child;
	r->pad = 0;
	ring_commit(&r->h, KP_LINEAGE, sizeof(*r), kind, 0);
}

/* With guess_reuse: the packet that had these headers a moment ago, 0: none. */
static __noinline u64 known_again(struct kp_ring_ctl *ctl, u64 ident, u64 now)
{
	struct ident_entry *s = names_packet(ident) ? ident_slot(ident) : NULL;

	if (!s || s->ident != ident || s->seen + SAME_PACKET_NS < now)
		return 0;
	log_lineage(ctl, KP_LIN_REALLOC, s->id, s->id);
	return s->id;
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
	u16 nh = kread(skb, network_header), family;
	struct packet_entry *e;
	struct where w;
	u64 now, id;

	if (!ctl || own_doing(current_context(), bpf_get_current_pid_tgid()))
		return NULL;
	locate(skb, &w);
	if (!place_wanted(&w))
		return NULL;
	if (sig) {
		if (ethertype(header_offsets(skb), head) < 0x600 || !w.netns)
			return NULL;
		if (has_filter && !filter_matches(skb, head, kread(skb, mac_header), nh, w.link_type))
			return NULL;
	} else {
		struct sock *sk = (void *)kread_ptr(skb, sk);

		if (has_filter || ifindex_count || !sk)
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
		return NULL;
	}
	e->sig = sig;
	if (guess_reuse)
		remember(e, identity_of(skb, head), id, now);
	if (sig || kread(skb, transport_header) != UNSET_HEADER)
		footprint(ctl, skb, head, id);
	return e;
}

/* Headers or device changed: log them. Where frees are not seen, a buffer with another identity is another packet. */
static __noinline struct packet_entry *changed(struct sk_buff *skb, u64 head, struct packet_entry *e, u64 sig)
{
	struct kp_ring_ctl *ctl = ring_ctl();

	if (!ctl || own_doing(current_context(), bpf_get_current_pid_tgid()))
		return e;
	if (guess_reuse) {
		u64 now = identity_of(skb, head), was = e->ident;

		if (now && was && now != was) {
			packet_forget(e);
			return admit(skb, head, sig);
		}
		if (now && now != was)
			remember(e, now, e->id, bpf_ktime_get_boot_ns());
	}
	e->sig = sig;
	footprint(ctl, skb, head, e->id);
	return e;
}

/* The packet of an skb, admitted and its footprint logged if need be; NULL: not ours. */
static __always_inline struct packet_entry *packet_of(struct sk_buff *skb)
{
	u64 head = kread_ptr(skb, head), sig;
	struct packet_entry *e;

	if (!head)
		return NULL;
	e = packet_find(head);
	sig = signature(skb, head, header_offsets(skb));
	if (!e)
		return admit(skb, head, sig);
	if (sig && sig != e->sig)
		return changed(skb, head, e, sig);
	return e;
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
