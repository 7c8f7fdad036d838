/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Is a packet one of those that chosen processes send or get (whose.bpf.h)? Asked after the filter, of the headers that the filter saw. */
#ifndef KPAT_THEIRS_H
#define KPAT_THEIRS_H

#include "config.bpf.h"
#include "whose.bpf.h"

#define PROTO_ICMP 1
#define PROTO_FRAGMENT 44
#define PROTO_ICMP6 58

/* It looks no farther than this. */
#define FLOW_BYTES 64

static __noinline u32 read_flow(u8 *net, struct flow *f)
{
	u32 l4 = 40, offset;

	f->part = f->ports = f->inside = 0;
	f->first = 1;
	if (net[0] >> 4 == 4) {
		l4 = (net[0] & 15) * 4;
		f->proto = net[9];
		f->from = *(u32 *)(net + 12);
		f->to = *(u32 *)(net + 16);
		offset = *(u16 *)(net + 6) & 0xff3f;
		if (offset) {
			f->part = 1 | (u64) * (u16 *)(net + 4) << 1;
			f->first = !(offset & 0xff1f);
		}
	} else if (net[0] >> 4 == 6) {
		f->proto = net[6];
		f->from = address_of_v6(*(u64 *)(net + 8), *(u64 *)(net + 16));
		f->to = address_of_v6(*(u64 *)(net + 24), *(u64 *)(net + 32));
		if (f->proto == PROTO_FRAGMENT) {
			f->proto = net[40];
			f->part = 1 | (u64) * (u32 *)(net + 44) << 1;
			f->first = !(*(u16 *)(net + 42) & 0xf8ff);
			l4 = 48;
		}
	} else {
		return 0;
	}
	if (!f->first)
		return 1;
	if (has_ports(f->proto))
		f->ports = *(u32 *)(net + (l4 & 0x3c));
	else if (f->proto == PROTO_ICMP && (1 << (net[l4 & 0x3c] & 15) & (1 << 3 | 1 << 4 | 1 << 5 | 1 << 11 | 1 << 12)))
		f->inside = l4 + 8;
	else if (f->proto == PROTO_ICMP6 && net[l4 & 0x3c] < 128)
		f->inside = l4 + 8;
	return 1;
}

static __always_inline u64 key_of_flow(struct flow *f)
{
	return flow_key(end_of(f->from, f->ports & 0xffff), end_of(f->to, f->ports >> 16), f->proto);
}

static __always_inline u64 key_of_part(struct flow *f)
{
	return sample_mix(((f->from + f->to) ^ f->proto ^ KEY_PART) + f->part * SAMPLE_KEY);
}

static __always_inline bool is_key(void *table, u64 key)
{
	return bpf_map_lookup_elem(table, &key);
}

/* Every address of a loopback device's network, of several or all hosts, and those that user space found. */
static __always_inline bool is_local(u32 netns, u64 address)
{
	if (address < 1ULL << 32 && ((address & 0xff) == 127 || (address & 0xf0) == 224 || address == 0xffffffff))
		return true;
	return is_key(&ends, local_key(netns, address));
}

/* Is one end where a chosen process listens? Of a port at all addresses that is the end that has one of its namespace's. */
static __noinline u32 end_chosen(struct flow *f, u32 netns)
{
	u32 from_port = f->ports & 0xffff, to_port = f->ports >> 16;

	if (!f->ports)
		return 0;
	return is_key(&ends, end_key(end_of(f->to, to_port), f->proto)) || is_key(&ends, end_key(end_of(f->from, from_port), f->proto)) ||
	       (is_key(&ends, port_key(netns, f->proto, to_port)) && is_local(netns, f->to)) ||
	       (is_key(&ends, port_key(netns, f->proto, from_port)) && is_local(netns, f->from));
}

/* Before it is asked whether a packet is theirs: is the socket that it has? A function of its own, not called by that one: the deepest way of calls has no stack for it. */
__noinline int know_sender(u64 sk)
{
	ONLY_WHERE(by_process);
	u32 slot = current_context();
	struct scratch *s = bpf_map_lookup_elem(&scratches, &slot);

	if (s)
		s->sender_chosen = sk && socket_is_theirs(sk);
	return 0;
}

/* `network`: where the network header is in what the filter saw; `netns`: where the packet is. */
__noinline int theirs(u32 network, u32 netns)
{
	ONLY_WHERE(by_process);
	u32 slot = current_context();
	struct scratch *s = bpf_map_lookup_elem(&scratches, &slot);
	struct flow *f;
	u64 key;

	if (!choosing())
		return 1;
	network &= 0x7f;
	if (!s)
		return 0;
	f = &s->flow;
	if (!read_flow(s->bytes + network, f))
		return 0;
	if (!f->first)
		return s->sender_chosen || is_key(&flows, key_of_part(f));
	key = key_of_flow(f);
	if (!is_key(&flows, key)) {
		if (!s->sender_chosen && !end_chosen(f, netns)) {
			network += f->inside;
			if (!f->inside || network > sizeof(s->bytes) - FLOW_BYTES || !read_flow(s->bytes + network, &s->about))
				return 0;
			if (!s->about.first)
				return is_key(&flows, key_of_part(&s->about));
			return is_key(&flows, key_of_flow(&s->about)) || end_chosen(&s->about, netns);
		}
		choose_key(&flows, key);
	}
	if (f->part)
		choose_key(&flows, key_of_part(f));
	return 1;
}

#endif
