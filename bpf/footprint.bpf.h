/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What is known of an skb from its header area and its device: is it wanted, and the records that say it. */
#ifndef KPAT_FOOTPRINT_H
#define KPAT_FOOTPRINT_H

#include "config.bpf.h"
#include "filter.bpf.h"
#include "origin.bpf.h"
#include "sample.bpf.h"
#include "tasks.bpf.h"

#define ETH_P_IP 0x0800
#define ETH_P_ARP 0x0806
#define ETH_P_IPV6 0x86dd
#define ARPHRD_ETHER 1
#define ARPHRD_PPP 512
#define ARPHRD_RAWIP 519
#define ARPHRD_LOOPBACK 772
#define ARPHRD_IEEE80211 801
#define UNSET_HEADER 0xffff

static __always_inline u16 swap16(u16 v)
{
	return __builtin_bswap16(v);
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

static __always_inline struct header_offsets header_offsets(struct skb skb)
{
	struct header_offsets h;

#ifdef KPAT_DIRECT
	if (!skb.trusted) {
		u64 w = kread_ptr((struct sk_buff *)skb.at, protocol);

		h.protocol = w;
		h.transport = w >> 16;
		h.network = w >> 32;
		h.mac = w >> 48;
		return h;
	}
#endif
	h.protocol = skb_field(skb, protocol);
	h.transport = skb_field(skb, transport_header);
	h.network = skb_field(skb, network_header);
	h.mac = skb_field(skb, mac_header);
	return h;
}

/*
 * A driver has set where the link header is, by eth_type_trans(), and the network header has no place yet, or still that of a header which a virtual device
 * took off, before the link header (PPP, L2TP, batman-adv): it begins where the data do. Where the frames of this `type` of device have no link header (PPP), that
 * is where theirs would be.
 */
static __always_inline u16 network_in_data(u64 data, u16 mac, u16 network, u16 type)
{
	if (data == mac + 14 || (!network && data > mac && data >= mac + 14 && data <= mac + 64))
		return data;
	return data == mac && (type == ARPHRD_PPP || type == ARPHRD_RAWIP) ? data : network;
}

__noinline u64 received_at(u64 at, u64 head, u64 mac, u64 network)
{
	struct skb skb = skb_at(at);
	u64 dev = skb_dev(skb);
	u16 type = kernel_address(dev) ? kread((struct net_device *)dev, type) : 0;

	return network_in_data(skb_data(skb) - head, mac, network, type);
}

static __always_inline bool only_driver_saw(struct header_offsets h)
{
	return h.network < h.mac && h.protocol && h.mac != UNSET_HEADER;
}

/* The same with the place of the network header also where only the driver has seen the packet. */
static __always_inline struct header_offsets headers_of(struct skb skb, u64 head)
{
	struct header_offsets h = header_offsets(skb);

	if (only_driver_saw(h))
		h.network = received_at(skb_address(skb), head, h.mac, h.network);
	return h;
}

/* Not where pages have all behind the link header, as a program's that it sends from a ring of its own (PACKET_TX_RING): what lies there is another packet's. */
static __always_inline bool in_header_area(struct skb skb, u16 network)
{
	return network < skb_field(skb, tail);
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

struct where {
	u32 ifindex;
	u32 netns;
	u16 link_type;
};

/* false: no device is there. */
static __always_inline bool locate_device(u64 at, struct where *w)
{
	struct net_device *dev = (struct net_device *)(at);
	struct net *net;

	w->ifindex = w->netns = w->link_type = 0;
	if (!kernel_address(at))
		return false;
	net = (void *)kread_ptr(dev, nd_net.net);
	if (!kernel_address((u64)net))
		return false;
	w->netns = kread((struct net *)(net), ns.inum);
	w->ifindex = kread(dev, ifindex);
	if (w->netns >= first_netns && w->ifindex && w->ifindex < 1 << 24) {
		w->link_type = kread(dev, type);
		return true;
	}
	w->ifindex = w->netns = 0;
	return false;
}

/*
 * Device and namespace. skb->dev shares its place with list links of TCP's queues and with UDP's scratch word, so a
 * value that is no device must not be believed: a device's namespace has a plausible inode number.
 */
static __always_inline void locate(struct skb skb, struct where *w)
{
	struct net *net;
	struct sock *sk;

	if (locate_device(skb_dev(skb), w))
		return;
	sk = (void *)skb_sk(skb);
	if (!sk)
		return;
	net = (void *)kread_ptr(sk, __sk_common.skc_net.net);
	if (net)
		w->netns = kread((struct net *)(net), ns.inum);
	if (w->netns < first_netns)
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
	return (link_type == ARPHRD_ETHER || link_type == ARPHRD_LOOPBACK || link_type == ARPHRD_IEEE80211) && mac != UNSET_HEADER && nh >= mac + 14 && nh <= mac + 64;
}

/* Bytes of the packet from `start` to its end, wherever skb->data points at the moment. */
static __always_inline u32 length_from(struct skb skb, u64 start)
{
	return skb_field(skb, len) + (u32)(skb_data(skb) - start);
}

/* Of these, how many lie in the header area. */
static __always_inline u32 linear_from(struct skb skb, u64 start)
{
	return length_from(skb, start) - skb_field(skb, data_len);
}

/* `type_and_port`: the link type, and above it the destination port where the transport header is not written yet. */
__noinline int filter_matches(u64 at, u64 head, u32 mac, u32 nh, u32 type_and_port)
{
	ONLY_WHERE(has_filter);
	struct skb skb = skb_at(at);
	bool link = link_header_valid(mac, nh, (u16)type_and_port);
	u32 start = link ? mac : nh, end = skb_field(skb, tail), slot = current_context(), len;
	struct scratch *s;

	s = bpf_map_lookup_elem(&scratches, &slot);
	if (!s)
		return false;
	len = end > start ? end - start : 0;
	if (len > sizeof(s->bytes))
		len = sizeof(s->bytes);
	if (!len)
		return false;
	if (bpf_probe_read_kernel(s->bytes, len, (void *)(head + start))) {
		struct kp_ring_ctl *ctl = ring_ctl();

		if (ctl)
			count_loss(ctl, KP_LOSS_READ_FAULT);
		return false;
	}
	/* a packet is chosen by what is in its transport header */
	if (sample_packets && type_and_port >> 16)
		return false;
	if (type_and_port >> 16 && !link)
		write_ports(s->bytes, (struct sock *)skb_sk(skb), type_and_port >> 16);
	if (!(link ? filter_link(s->bytes, len, length_from(skb, head + start)) : filter_network(s->bytes, len, length_from(skb, head + start))))
		return 0;
	return !sample_below || sampled(s->bytes, nh - start, linear_from(skb, head + nh));
}

/* A VLAN tag that is not in the data but beside it, 0: none. */
static __always_inline u16 hidden_tag(struct skb skb)
{
	if (bpf_core_field_exists(struct sk_buff, vlan_all)) {
		if (!skb_field(skb, vlan_all))
			return 0;
	} else if (!skb_bit(skb, vlan_present)) {
		return 0;
	}
	return (skb_field(skb, vlan_tci) & 0xefff) | KP_VLAN_PRESENT;
}

/*
 * mac80211 puts its header before the data, and takes it off, and says so nowhere: the offset of the link header stays behind. So, on a
 * device of its own: LLC and SNAP fit between the shortest header of a data frame and the network header, and a data frame it
 * is; or there is an Ethernet header right before the network header.
 */
#define ETHER_HEADER 14
#define AIR_HEADER 24
#define LLC_SNAP 8

static __always_inline bool air_data(u8 frame_control)
{
	return (frame_control & 0xf) == 8;
}

static __always_inline void wireless_link(struct skb skb, u64 head, u16 nh, u16 *mac, u16 *link_type)
{
	struct net_device *dev = (struct net_device *)skb_dev(skb);
	u64 at = skb_data(skb) - head;

	if (*link_type != ARPHRD_ETHER || at >= nh || at == *mac || nh > at + 64)
		return;
	if (!bpf_core_field_exists(dev->ieee80211_ptr) || !kread_ptr(dev, ieee80211_ptr))
		return;
	if (nh >= at + AIR_HEADER + LLC_SNAP && air_data(kread_word(head + at)))
		*link_type = ARPHRD_IEEE80211;
	else if (nh != at + ETHER_HEADER)
		return;
	*mac = at;
}

/* gso_size and, above it, gso_segs: by one load where a kernel has them side by side. */
static __always_inline u32 segments(struct skb_shared_info *shinfo)
{
#ifdef KPAT_DIRECT
	u32 at = bpf_core_field_offset(struct skb_shared_info, gso_size);

	if (bpf_core_field_offset(struct skb_shared_info, gso_segs) == at + 2)
		return kread_word((u64)shinfo + at);
#endif
	return kread(shinfo, gso_size) | (u32)kread(shinfo, gso_segs) << 16;
}

/* Logs the headers as they are `now`, as far as they are in the header area. It may hold stale bytes before they are built: start_layer says. */
__noinline int footprint(u64 at, u64 head, u64 id, u64 now)
{
	struct skb skb = skb_at(at);
	struct kp_ring_ctl *ctl = ring_ctl();
	struct header_offsets h = header_offsets(skb);
	u16 mac = h.mac, nh, th = h.transport, proto;
	u32 start, n, gso;
	struct kp_footprint *r;
	u8 ctx = current_context();
	struct sock *sk;
	struct where w;

	r = ctl ? ring_reserve(ctl, sizeof(*r)) : NULL;
	if (!r)
		return 0;
	locate(skb, &w);
	/* not headers_of(): the deepest way of calls ends here, and has no stack for one more */
	if (only_driver_saw(h))
		h.network = network_in_data(skb_data(skb) - head, mac, h.network, w.link_type);
	nh = h.network;
	wireless_link(skb, head, nh, &mac, &w.link_type);
	mac = anew(r->header, mac);
	nh = h.network = anew(r->header, nh);
	w.link_type = anew(r->header, w.link_type);
	proto = nh && nh != UNSET_HEADER ? ethertype(h, head) : 0;
	r->h.ts = now;
	r->packet = id;
	r->ifindex = w.ifindex;
	r->netns = w.netns;
	r->protocol = proto;
	r->link_type = w.link_type;
	r->skb_tag = skb.at >> 6;
	r->ip_proto = 0;
	r->ctx = ctx;
	r->vlan_tci = hidden_tag(skb);
	if (proto) {
		r->start_layer = link_header_valid(mac, nh, w.link_type) ? 2 : 3;
		start = r->start_layer == 2 ? mac : nh;
	} else {
		r->start_layer = 4;
		start = th;
		sk = (void *)skb_sk(skb);
		if (sk)
			r->ip_proto = kread((struct sock *)(sk), sk_protocol);
	}
	r->len = length_from(skb, head + start);
	gso = segments((struct skb_shared_info *)(head + skb_field(skb, end)));
	r->gso_size = gso;
	r->gso_segs = gso >> 16;
	n = skb_field(skb, tail);
	n = n > start ? n - start : 0;
	if (n > KP_HEADER_BYTES || start == UNSET_HEADER)
		n = start == UNSET_HEADER ? 0 : KP_HEADER_BYTES;
	r->header_len = n;
	if (n && bpf_probe_read_kernel(r->header, n & 0x7f, (void *)(head + start))) {
		r->header_len = 0;
		count_loss(ctl, KP_LOSS_READ_FAULT);
	}
	ring_commit(&r->h, KP_FOOTPRINT, sizeof(*r), 0, 0);
	return 0;
}

/* The packet is at another device, its headers are as they were. */
__noinline int log_place(u64 skb, u64 dev, u64 id)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_place *r;
	struct where w;

	if (!ctl || !locate_device(dev, &w))
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = moment(ctl);
	r->packet = id;
	r->ifindex = w.ifindex;
	r->netns = w.netns;
	r->link_type = w.link_type;
	r->skb_tag = skb >> 6;
	ring_commit(&r->h, KP_PLACE, sizeof(*r), 0, 0);
	return 0;
}

__noinline int log_lineage(u32 kind, u64 parent, u64 child)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_lineage *r = ctl ? ring_reserve(ctl, sizeof(*r)) : NULL;

	if (!r)
		return 0;
	r->h.ts = moment(ctl);
	r->parent = parent;
	r->child = child;
	r->pad = 0;
	ring_commit(&r->h, KP_LINEAGE, sizeof(*r), kind, 0);
	return 0;
}

#endif
