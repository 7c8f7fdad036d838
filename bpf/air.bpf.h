/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Received 802.11 frames. They come from their driver without device, EtherType and network header, and encrypted: neither wanted
 * nor unwanted. When mac80211 has made Ethernet of one it is a packet as any, and its 802.11 header is gone, by which alone a
 * sniffer on the air knows it. So that header is kept by the address of its buffer, and logged if the packet is.
 */
#ifndef KPAT_AIR_H
#define KPAT_AIR_H

#include "footprint.bpf.h"

#define AIR_NS 1000000000ULL /* it may wait for others that were sent before it */

static __always_inline struct air_entry *air_slot(u64 head)
{
	u32 at = (u32)((head >> 6) * 0x9e3779b97f4a7c15ULL >> 40) & (AIRS - 1);

	return bpf_map_lookup_elem(&airs, &at);
}

static __always_inline void keep_air(u64 skb, u64 head)
{
	struct air_entry *s = air_slot(head);

	if (!s)
		return;
	s->head = 0;
	if (bpf_probe_read_kernel(s->header, sizeof(s->header), (void *)kread_ptr((struct sk_buff *)skb, data)))
		return;
	s->len = kread((struct sk_buff *)skb, len);
	s->seen = bpf_ktime_get_boot_ns();
	store_release(&s->head, head);
}

/* What is protected only: else the headers inside say more. */
__noinline int tell_air(u64 skb, u64 head, u64 id)
{
	ONLY_WHERE(air_watch);
	struct kp_ring_ctl *ctl = ring_ctl();
	struct air_entry *s = air_slot(head);
	u64 now = bpf_ktime_get_boot_ns();
	struct kp_footprint *r;
	struct where w;

	if (!ctl || !s || s->head != head || s->seen + AIR_NS < now)
		return 0;
	s->head = 0;
	if (!air_data(s->header[0]) || !(s->header[1] & 0x40))
		return 0;
	locate(skb_at(skb), &w);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	__builtin_memset((u8 *)r + sizeof(r->h), 0, sizeof(*r) - sizeof(r->h));
	r->h.ts = now;
	r->packet = id;
	r->ifindex = w.ifindex;
	r->netns = w.netns;
	r->len = s->len;
	r->link_type = ARPHRD_IEEE80211;
	r->skb_tag = skb >> 6;
	r->start_layer = 2;
	r->ctx = current_context();
	r->header_len = sizeof(s->header);
	__builtin_memcpy(r->header, s->header, sizeof(s->header));
	ring_commit(&r->h, KP_FOOTPRINT, sizeof(*r), 0, 0);
	return 0;
}

#endif
