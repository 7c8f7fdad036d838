/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Of all packets that are wanted one part is recorded: chosen by a hash of what the packet says of itself (RFC 5475, section 6.2), so that each
 * probe, and each host that records the same way, chooses the same. By flow: addresses, protocol and ports, both directions alike. By packet:
 * what neither forwarding nor NAT nor checksums change. crates/model/src/sample.rs chooses in the same way; the tests hold both against each other.
 *
 * What is no IP packet has neither, and is recorded whole.
 */
#ifndef KPAT_SAMPLE_H
#define KPAT_SAMPLE_H

#include "kernel.h"

/* A packet is recorded whose hash, of 32 bits, is below; 0: all are. */
const volatile u64 sample_below = 0;
/* Chosen packet by packet, not flow by flow. */
const volatile u32 sample_packets = 0;

#define SAMPLE_KEY 0x9e3779b97f4a7c15ULL
#define PROTO_UDP 17

static __always_inline u64 sample_mix(u64 x)
{
	x *= SAMPLE_KEY;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93ULL;
	return x ^ x >> 29;
}

static __always_inline bool has_ports(u32 proto)
{
	/* TCP, UDP, DCCP, SCTP, UDP-Lite */
	return proto == 6 || proto == PROTO_UDP || proto == 33 || proto == 132 || proto == 136;
}

/* Headers as the filter sees them: `at` is the offset of the network header, `valid` counts from there the bytes that belong to the packet. */
static __noinline u32 sampled(u8 *bytes, u32 at, u32 valid)
{
	u8 *net = bytes + (at & 0x7f), *t;
	u64 from, to, a, b, hash;
	u32 proto, part = 0;

	if (net[0] >> 4 == 4) {
		t = net + (net[0] & 15) * 4;
		valid -= (net[0] & 15) * 4;
		proto = net[9];
		part = *(u16 *)(net + 6) & 0xff3f;
		from = *(u32 *)(net + 12);
		to = *(u32 *)(net + 16);
		hash = *(u16 *)(net + 4);
	} else if (net[0] >> 4 == 6) {
		t = net + 40;
		valid -= 40;
		proto = net[6];
		from = sample_mix(*(u64 *)(net + 8)) ^ *(u64 *)(net + 16);
		to = sample_mix(*(u64 *)(net + 24)) ^ *(u64 *)(net + 32);
		hash = 0;
	} else {
		return 1;
	}
	if (sample_packets) {
		a = b = 0;
		if (part) {
			/* all parts of a datagram alike */
		} else if (proto == 6) {
			a = *(u64 *)(t + 4);
			b = *(u16 *)(t + 12);
		} else if (proto == PROTO_UDP) {
			a = *(u16 *)(t + 4);
			/* a frame's padding is not the datagram's */
			if ((int)valid >= 16 && __builtin_bswap16(a) >= 16)
				b = *(u64 *)(t + 8);
		} else {
			a = *(u64 *)t & ~0xffff0000ULL;
			if ((int)valid >= 16)
				b = *(u64 *)(t + 8);
		}
		hash = sample_mix(sample_mix(a ^ proto << 16) + b) ^ hash;
	} else {
		a = has_ports(proto) && !part ? *(u32 *)t : 0;
		from = sample_mix(from + (a & 0xffff) * SAMPLE_KEY);
		to = sample_mix(to + (a >> 16) * SAMPLE_KEY);
		hash = (from + to) ^ proto;
	}
	return sample_mix(hash) >> 32 < sample_below;
}

#endif
