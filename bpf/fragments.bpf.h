/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fragments at hand are whose their datagram is when it is whole, and stay at hand until then as long as the same task is on the CPU. When another one comes they are of the port
 * that the first one names, and those that follow are of the same datagram.
 */
#ifndef KPAT_FRAGMENTS_H
#define KPAT_FRAGMENTS_H

#include "batch.bpf.h"

/* Both are fragments of one datagram. */
static __always_inline bool is_of_same_datagram(u32 *h, u32 *other)
{
	if ((h[0] & 0xf0) == 0x40)
		return (other[0] & 0xf0) == 0x40 && h[3] == other[3] && h[4] == other[4] && !((h[1] ^ other[1]) & 0xffff) && !((h[2] ^ other[2]) & 0xff00);
	return (other[0] & 0xf0) == 0x60 && h[2] == other[2] && h[5] == other[5] && h[6] == other[6] && h[9] == other[9] && h[11] == other[11];
}

/* If this packet is another fragment of what that one is of, it is its owner's. */
__noinline int fragment_follows(u32 at, u32 whole_at)
{
	struct account *a = this_account();
	struct packet *p, *whole;

	if (!a)
		return 0;
	p = packet_at(a, at);
	whole = packet_at(a, whole_at);
	if (!is_open(p) || !is_fragment(p->header) || !is_of_same_datagram(whole->header, p->header))
		return 0;
	p->socket = whole->socket;
	p->purpose = whole->purpose;
	p->which = whole->which;
	return 0;
}

/* The fragments of a datagram are whose all of it is. */
__noinline int fragments_follow(u32 whole)
{
	struct account *a = this_account();
	u32 over, n;

	if (!a)
		return 0;
	over = a->over;
	n = at_hand(a);
	for (u32 i = 0; i < PACKETS; i++) {
		if (i >= n)
			break;
		fragment_follows(over + i, whole);
	}
	return 0;
}

/* A fragment whose datagram is not whole when another task runs: the first has ports, and those that follow are of the same datagram. */
__noinline u64 socket_of_fragment(struct account *a, struct packet *p)
{
	u64 socket;

	if (!a || !p)
		return 0;
	socket = socket_of_datagram(p);
	if (!socket)
		return a->part_socket && is_of_same_datagram(a->part_header, p->header) ? a->part_socket : 0;
	__builtin_memcpy(a->part_header, p->header, sizeof(a->part_header));
	a->part_socket = socket;
	return socket;
}

#endif
