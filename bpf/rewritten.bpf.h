/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where frees are not seen: headers that name another packet, in the buffer of one that a device received and that was not sent since. It is the one that was
 * received, decrypted, taken out of its tunnel or translated: its sk_buff says by which device it came in last, what a socket sends did not come in, and what comes
 * in next is seen. Devices of several namespaces have one number, and a router's fragments say by which its own device the datagram came in.
 */
#ifndef KPAT_REWRITTEN_H
#define KPAT_REWRITTEN_H

#include "again.bpf.h"

/* Another packet had these headers a moment ago: it is seen again, or its own buffer was exchanged for this one, which was free by then (skb_cow()). */
static __always_inline bool others_a_moment_ago(u64 ident, u64 name, u64 id, u64 now)
{
	struct ident_entry *s = ident_slot(ident, name);

	return s && s->ident == name && s->id != id && ((seen_time(now) - s->seen) & SEEN_TIME) <= (s->seen & SEEN_FREED ? FREED_PACKET_US : WAITING_PACKET_US);
}

/* `turn` and `id` of the packet that was in this buffer, `ident`: what the headers in it say now. */
__noinline int was_rewritten(u64 at, u64 turn, u64 id, u64 ident, u64 now)
{
	ONLY_WHERE(guess_reuse);
	struct skb skb = skb_at(at);
	struct net_device *from = (struct net_device *)(turn & ~TURN_FLAGS);
	u64 dev = skb_dev(skb) & ~TURN_FLAGS;
	u32 iif = skb_field(skb, skb_iif);

	if (!from || turn & (TURN_OUT | TURN_READ) || !iif || iif != kread(from, ifindex))
		return 0;
	/* where UDP's reader has it, something else lies there, and no address */
	if ((s64)dev < 0 && namespace_of(dev) != namespace_of((u64)from))
		return 0;
	return !others_a_moment_ago(ident, name_of(ident, skb), id, now) && !others_a_moment_ago(ident, name_alone(ident), id, now);
}

static __always_inline bool goes_on_rewritten(struct packet_entry *e, struct skb skb, u64 ident, u64 now)
{
	return !went_on_elsewhere(e, skb) && was_rewritten(skb.at, e->turn, e->id, ident, now);
}

#endif
