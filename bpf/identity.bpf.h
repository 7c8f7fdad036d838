/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What headers say of which packet they are: of one and the same wherever it is seen, whatever is done to it on its way. */
#ifndef KPAT_IDENTITY_H
#define KPAT_IDENTITY_H

#include "footprint.bpf.h"

/* The highest byte of an identity: a protocol of IPv4, or this. */
#define IDENT_TCP6 0x86
/* With a filter, of what else hardly says more than how long it is: what came in this skb before may have been refused, and had other addresses. */
#define ENDS_SHIFT 24
#define ENDS (0xffULL << ENDS_SHIFT)

/* RFC 2516: six bytes, then PPP's protocol. */
#define ETH_P_PPP_SES 0x8864
#define PPPOE_HEADER 8
#define PPP_IP 0x21
#define PPP_IPV6 0x57

#define FRAGMENT_PLACE 0x1fff /* iphdr.frag_off */
#define CHECKSUM_PARTIAL 3 /* include/linux/skbuff.h */

/* With data or a SYN: a TCP segment's place in the stream names it, as an identification would, whatever its ports become. Else 0. `len`: with its header. */
static __always_inline u64 place_in_stream(struct header_words *t, u32 len)
{
	u32 head = (t->w1 >> 36 & 15) * 4, syn = t->w1 >> 40 & 2;
	u64 id = (t->w0 >> 32 ^ t->w0 >> 48 ^ len) & 0xffff;

	return len > head || syn ? id ?: 1 : 0;
}

/*
 * What NAT, forwarding and checksums leave alone. IPv4: protocol, identification and TCP sequence, ICMP type and sequence, UDP length, or
 * a further fragment's place in the datagram. It tells one packet from the next in the same buffer; it names a packet (`names_packet`) only where the
 * identification is not 0, else packets of a flow look alike. IPv6 has no identification: the eight bytes behind the
 * header, which NAT does not touch there; they name an echo and a TCP segment with data, two acknowledgements or equal datagrams have the same. Nor has
 * IPv4 one where nothing may be fragmented and no counter of a connection is at hand: of TCP the SYN and ACK, and all of some other systems. A checksum
 * that is still to be completed is none (`partial`). Of ARP all
 * of it, which names nothing. Of PPPoE it is that of what is in it. The
 * transport header is where the network header says: the skb learns that later than we look.
 */
__noinline u64 identity(u64 net, u32 proto, u32 partial)
{
	struct header_words h, t;
	u64 id, l4, ends;

	load_network(net, &h);
	if (proto == ETH_P_PPP_SES) {
		proto = h.w0 >> 48 == swap16(PPP_IP) ? ETH_P_IP : h.w0 >> 48 == swap16(PPP_IPV6) ? ETH_P_IPV6 : 0;
		net += PPPOE_HEADER;
		load_network(net, &h);
	}
	if (proto != ETH_P_IP && proto != ETH_P_IPV6 && proto != ETH_P_ARP)
		return 0;
	if (proto == ETH_P_ARP)
		return ((h.w0 ^ h.w1 * 131 ^ h.w2 * 31) & ~(0xffffULL << 32)) | 1;
	load_network(net + (proto == ETH_P_IP ? 4 * (h.w0 & 15) : 40), &t);
	if (proto == ETH_P_IPV6 && (h.w0 >> 48 & 0xff) == 58)
		return t.w0;
	if (proto == ETH_P_IPV6 && (h.w0 >> 48 & 0xff) == PROTO_TCP)
		return (u64)IDENT_TCP6 << 56 | place_in_stream(&t, swap16(h.w0 >> 32)) << 32 | t.w0 >> 32;
	if (proto == ETH_P_IPV6) {
		id = (t.w0 & ~(0xffffULL << 32)) ^ (t.w0 >> 32 & 0xffff);
		return partial && (h.w0 >> 48 & 0xff) == PROTO_UDP ? id & ~(0xffffULL << 48) : id;
	}
	id = h.w0 >> 32 & 0xffff;
	l4 = h.w1 >> 8 & 0xff;
	if (l4 == PROTO_TCP)
		return l4 << 56 | (id ?: place_in_stream(&t, (u16)swap16(h.w0 >> 16) - 4 * (h.w0 & 15))) << 32 | t.w0 >> 32;
	if (h.w0 >> 48 & swap16(FRAGMENT_PLACE))
		return l4 << 56 | id << 32 | (h.w0 >> 48 & swap16(FRAGMENT_PLACE));
	ends = has_filter && !id ? ((h.w1 >> 32 ^ h.w2 << 32) * 0x9e3779b97f4a7c15ULL >> 56 | 1) << ENDS_SHIFT : 0;
	return l4 << 56 | id << 32 | ends | (l4 == PROTO_UDP ? t.w0 >> 32 & 0xffff : t.w0 >> 48 | (t.w0 & 0xff) << 16);
}

static __always_inline bool names_packet(u64 ident)
{
	return ident >> 32 & 0xffff;
}

/* A checksum was completed in between: of IPv6 the highest bits, which are 0 before. Or addresses were translated. */
static __always_inline bool same_identity(u64 a, u64 b)
{
	u64 differ = a ^ b;

	if (has_filter && a >> 56 && a >> 56 != PROTO_TCP && !(a >> 32 & 0xffffff))
		differ &= ~ENDS;
	return !differ || (!(differ << 16) && !names_packet(a) && (!(a >> 48) || !(b >> 48)));
}

#endif
