/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Packets of chosen processes (theirs.bpf.h): is it one, and which flow is it when its headers have changed? */
#ifndef KPAT_ONWARD_FLOW_H
#define KPAT_ONWARD_FLOW_H

#include "again.bpf.h"
#include "footprint.bpf.h"

/* After the filter was asked. */
static __always_inline bool of_chosen(struct skb skb, struct header_offsets h, const struct where *w)
{
	if (!by_process)
		return true;
	return theirs(link_header_valid(h.mac, h.network, w->link_type) ? h.network - h.mac : 0, w->netns);
}

/*
 * NAT gave a packet of a chosen process another flow: what comes back has that one's headers first. What puts a packet into another changes what
 * it is (identity.bpf.h): a tunnel has others' packets, too. One that is cut has become the first of its parts. `was`: its identity before. Returns the one that
 * it has now.
 */
__noinline u64 flow_goes_on(u64 at, u64 head, u64 was)
{
	ONLY_WHERE(by_process);
	struct skb skb = skb_at(at);
	u64 ident = identity_of(skb, head), key;
	u32 slot = current_context();
	struct scratch *s = bpf_map_lookup_elem(&scratches, &slot);

	if (!s || bpf_probe_read_kernel(s->bytes, FLOW_BYTES, (void *)(head + headers_of(skb, head).network)) || !read_flow(s->bytes, &s->flow) || !s->flow.first)
		return ident;
	key = key_of_flow(&s->flow);
	if (!is_key(&flows, key)) {
		if (!ident || !was || !same_identity(ident, was))
			return ident;
		choose_key(&flows, key);
	}
	if (s->flow.part)
		choose_key(&flows, key_of_part(&s->flow));
	return ident;
}

#endif
