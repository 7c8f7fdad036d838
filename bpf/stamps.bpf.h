/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * When the card itself says that it received a packet: its driver puts the card's time stamp beside the packet before any function
 * has it. Logged once, with the packet's first sight, in the time of the card's own clock; user space relates the clocks.
 *
 * Only where user space found a card that stamps (stamp_watch). Drivers that keep the stamp in a form of their own until somebody
 * asks them (igc since 6.0: SKBTX_HW_TSTAMP_NETDEV) have none here.
 */
#ifndef KPAT_STAMPS_H
#define KPAT_STAMPS_H

#include "footprint.bpf.h"

#define SKBTX_HW_TSTAMP_NETDEV 0x20 /* include/linux/skbuff.h, 6.0: the place of the stamp holds a pointer of the driver's */

__noinline int tell_stamp(u64 skb, u64 head, u64 id, u64 now)
{
	ONLY_WHERE(stamp_watch);
	struct skb_shared_info *shinfo = (struct skb_shared_info *)(head + kread((struct sk_buff *)skb, end));
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_event *r;
	struct where w;
	u64 stamp;

	if (!ctl || kread(shinfo, tx_flags) & SKBTX_HW_TSTAMP_NETDEV)
		return 0;
	stamp = kread(shinfo, hwtstamps.hwtstamp);
	if (!stamp)
		return 0;
	locate(skb_at(skb), &w);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = now;
	r->packet = id;
	r->netns = w.netns;
	r->a = stamp;
	r->b = w.ifindex;
	r->ctx = current_context();
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	r->pad2[0] = r->pad2[1] = 0;
	ring_commit(&r->h, KP_EVENT, sizeof(*r), KP_EV_STAMP, 0);
	return 0;
}

#endif
