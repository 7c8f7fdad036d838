/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The packets that a softirq has at hand. A device's poll hands several up at a time (receive offload, a device's own thread), and the kernel shows all of them before the first is
 * a socket's, is dropped or goes on. So a packet is kept until it is known what became of it, and what then comes finds its packet: by the skb where the tracepoint has it; else
 * it is the socket's newest one, if nobody has read it yet; else the first in order that is addressed to that socket. The kernel hands them on in the order in which they came.
 *
 * Where there is one packet at hand, it is that one. Fragments stay at hand until their datagram is whole (fragments.bpf.h). Functions with loops are not static: the verifier walks through these once, and not on each way on which they are called.
 *
 * Rejected: to ask for a packet's socket by its addresses when it comes. Of sockets that share a port (SO_REUSEPORT, a group's readers) the kernel chooses, by rules of its own.
 */
#ifndef KPAT_BATCH_H
#define KPAT_BATCH_H

#include "ends.bpf.h"

#define ICMP_UNREACHABLE 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER 12
#define ICMPV6_FIRST_INFORMATION 128
#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
#define IPPROTO_UDPLITE 136
#define IPPROTO_RAW 255
#define NUMBER 0x7fff /* of a packet: those at hand are far fewer */

static __always_inline struct packet *packet_at(struct account *a, u32 at)
{
	return &a->packet[at & (PACKETS - 1)];
}

static __always_inline u32 at_hand(struct account *a)
{
	return a->arrived - a->over;
}

static __always_inline bool is_alone(struct account *a)
{
	return at_hand(a) == 1;
}

/* Nothing says yet what became of it. */
static __always_inline bool is_open(struct packet *p)
{
	return p->skb && !p->socket && (!p->purpose || p->purpose == KP_FOR_ANSWER);
}

/* Nothing has come of it, not even for a sniffer. */
static __always_inline bool is_untouched(struct packet *p)
{
	return !p->socket && !p->purpose && !p->alsos;
}

static __always_inline void none_at_hand(struct account *a)
{
	a->arrived = a->over = a->next = a->settled = 0;
}

/* It was found what became of this one: it has a part of the time since the last one came. */
static __always_inline void settle(struct account *a, u32 at)
{
	struct packet *p = packet_at(a, at);

	if (!p->settled) {
		p->settled = 1;
		a->settled++;
	}
	if (at == a->next)
		a->next = at + !p->several;
}

#define OF_HOST 0
#define OF_OTHERS 3

/* Addressed to a group or to all. */
static __always_inline bool is_of_several(u32 *header, u64 skb)
{
	u32 kind = kread_bit((struct sk_buff *)skb, pkt_type);

	if ((header[0] & 0xf0) == 0x40 ? (header[4] & 0xf0) == 0xe0 : (header[0] & 0xf0) == 0x60 && (header[6] & 0xff) == 0xff)
		return true;
	return kind != OF_HOST && kind != OF_OTHERS;
}

/* How many packets a device, or the kernel before it hands them up, has joined in this one. */
static __always_inline u32 parts_of(u64 skb)
{
	struct sk_buff *s = (void *)skb;
	u32 parts;

	if (!kread(s, data_len))
		return 1;
	parts = kread((struct skb_shared_info *)(kread_ptr(s, head) + kread(s, end)), gso_segs);
	return parts ?: 1;
}

/* Of ICMP, with the beginning of the packet because of which it was sent. */
static __always_inline bool is_error(u32 *header)
{
	u32 type;

	if ((header[0] & 0xff) == 0x45) {
		type = header[5] & 0xff;
		return (header[2] >> 8 & 0xff) == IPPROTO_ICMP && (type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER);
	}
	return (header[0] & 0xf0) == 0x60 && (header[1] >> 16 & 0xff) == IPPROTO_ICMPV6 && (header[10] & 0xff) < ICMPV6_FIRST_INFORMATION;
}

/* An error is for whose packet it quotes: its header becomes that of an answer to that packet. Not static: seldom called, and the verifier walks through it once. */
__noinline int becomes_quoted(u32 at, u64 skb)
{
	struct account *a = this_account();
	u32 quoted[HEADER_WORDS] __attribute__((aligned(8))), *h, ports;
	struct packet *p;
	u64 data;

	if (!a)
		return 0;
	p = packet_at(a, at);
	h = p->header;
	data = kread_ptr((struct sk_buff *)skb, data);
	if ((h[0] & 0xf0) == 0x40) {
		if (!header_of(quoted, data + 28) || (quoted[0] & 0xff) != 0x45)
			return 0;
		h[0] = quoted[0];
		h[1] = quoted[1];
		h[2] = quoted[2];
		h[3] = quoted[4];
		h[4] = quoted[3];
		ports = quoted[5];
		h[5] = ports << 16 | ports >> 16;
	} else {
		if (!header_of(quoted, data + 48) || (quoted[0] & 0xf0) != 0x60)
			return 0;
		h[0] = quoted[0];
		h[1] = quoted[1];
		__builtin_memcpy(h + 2, quoted + 6, 16);
		__builtin_memcpy(h + 6, quoted + 2, 16);
		ports = quoted[10];
		h[10] = ports << 16 | ports >> 16;
	}
	return 0;
}

/* What a packet is when it comes through a device. */
static __always_inline void look_at(struct account *a, u32 at, u64 skb)
{
	struct packet *p = packet_at(a, at);

	p->bytes = kread((struct sk_buff *)skb, len);
	p->net = 0;
	p->dev = kread_ptr((struct sk_buff___device *)skb, dev);
	if (!header_of(p->header, kread_ptr((struct sk_buff *)skb, data)))
		p->header[0] = 0;
	else if (is_error(p->header))
		becomes_quoted(at, skb);
	p->ports = first_fragments_ports(p->header, skb);
	p->net = net_of(p->header, skb);
	p->several = is_of_several(p->header, skb);
	p->parts = parts_of(skb);
}

static __always_inline void arrives(struct account *a, u64 skb)
{
	struct packet *p = packet_at(a, a->arrived);

	p->socket = p->which = p->ns = 0;
	p->purpose = p->flags = 0;
	look_at(a, a->arrived, skb);
	p->skb = skb;
	a->arrived++;
	a->came = 1;
}

/* Which one has this buffer; -1: none. */
__noinline int at_hand_by_skb(u64 skb)
{
	struct account *a = this_account();
	u32 n, over;

	if (!a)
		return -1;
	n = at_hand(a);
	over = a->over;
	if (!n)
		return -1;
	if (packet_at(a, over + n - 1)->skb == skb)
		return (over + n - 1) & NUMBER;
	if (n == 1)
		return -1;
	if (packet_at(a, a->next)->skb == skb)
		return a->next & NUMBER;
	for (u32 i = 0; i < PACKETS; i++) {
		if (i >= n)
			break;
		if (packet_at(a, over + i)->skb == skb)
			return (over + i) & NUMBER;
	}
	return -1;
}

/* The same: what the kernel sends itself may lie where one was that it was done with unseen, and has not come from a device. */
static __always_inline int packet_by_skb(u64 skb)
{
	return skb && kread((struct sk_buff *)skb, skb_iif) ? at_hand_by_skb(skb) : -1;
}

/*
 * One that nothing was done with comes again, by a further device (a tunnel's in which it was, a bridge's) or as what was in it: it is the same packet, and what it is now. But a
 * buffer of one that was done with unseen may be another's.
 */
static __noinline int comes_again(struct account *a, u64 skb)
{
	struct packet *p;
	bool is_last;
	int at;

	if (!a || !at_hand(a))
		return 0;
	at = at_hand_by_skb(skb);
	if (at < 0)
		return 0;
	p = packet_at(a, at);
	is_last = a->came && at == (int)((a->arrived - 1) & NUMBER);
	if (!is_untouched(p))
		return 0;
	if (!is_last && p->dev == kread_ptr((struct sk_buff___device *)skb, dev) && p->bytes == kread((struct sk_buff *)skb, len))
		return 0;
	look_at(a, at, skb);
	return 1;
}

/* A socket, as far as packets' headers say the same of themselves. */
struct receiver {
	u32 protocol;
	u32 raw; /* it has what there is of a protocol, beside others */
	u32 port;
	u32 from_port; /* 0: any */
	u32 address; /* IPv4, 0: any */
	int may_be; /* the first of which the headers do not say it */
	int in_order; /* the first datagram */
	u32 pad;
	u64 socket;
};

enum fit { FITS_NOT, MAY_FIT, FITS };

static __always_inline bool is_datagram(u32 *header)
{
	u32 protocol = (header[0] & 0xf0) == 0x40 ? header[2] >> 8 & 0xff : (header[0] & 0xf0) == 0x60 ? header[1] >> 16 & 0xff : 0;

	return protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE;
}

/* What is inside has addresses of its own, or ports are not where they are looked for. */
static __always_inline bool is_opaque(u32 protocol)
{
	switch (protocol) {
	case 0: /* IPv6: options */
	case 4: /* IPv4 in it */
	case 41: /* IPv6 in it */
	case 43: /* IPv6: routing */
	case 47: /* GRE */
	case 50: /* ESP */
	case 51: /* AH */
	case 60: /* IPv6: options */
		return true;
	}
	return false;
}

static __always_inline u32 fits_socket(u32 *header, struct receiver *r)
{
	bool is4 = (header[0] & 0xf0) == 0x40;
	u32 protocol, ports;

	if (is4)
		protocol = header[2] >> 8 & 0xff;
	else if (is_of6(header, FRAGMENT6))
		protocol = header[10] & 0xff;
	else if ((header[0] & 0xf0) == 0x60)
		protocol = header[1] >> 16 & 0xff;
	else
		return MAY_FIT;
	if (r->raw)
		return r->port == protocol || r->port == IPPROTO_RAW ? FITS : is_opaque(protocol) ? MAY_FIT : FITS_NOT;
	if (protocol != r->protocol)
		return is_opaque(protocol) ? MAY_FIT : FITS_NOT;
	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return FITS;
	if (is_fragment(header) || (is4 && (header[0] & 0x0f) != 5))
		return MAY_FIT;
	ports = __builtin_bswap32(header[is4 ? 5 : 10]);
	if ((ports & 0xffff) != r->port || (r->from_port && ports >> 16 != r->from_port))
		return FITS_NOT;
	return is4 && r->address && r->address != header[4] ? FITS_NOT : FITS;
}

static __always_inline bool has_target(struct packet *p, u64 socket)
{
#pragma unroll
	for (int i = 0; i < TARGETS - 1; i++)
		if (i < p->alsos && p->also[i].socket == socket)
			return true;
	return p->socket == socket;
}

/* May this one be put into that socket's queue now? */
static __always_inline bool awaits(struct packet *p, struct receiver *r)
{
	if (is_open(p))
		return true;
	if (!p->skb || !p->delivered)
		return false;
	return p->several || r->raw ? !has_target(p, r->socket) : p->parts > 1 && p->socket == r->socket;
}

/* Is this packet the one that is addressed to a socket? */
__noinline int is_for_receiver(u32 at, struct receiver *r)
{
	struct account *a = this_account();
	struct packet *p;
	u32 fit;

	if (!a || !r)
		return 0;
	p = packet_at(a, at);
	if (!awaits(p, r))
		return 0;
	fit = fits_socket(p->header, r);
	if (fit == FITS) {
		p->several |= r->raw; /* who else has it comes next */
		return 1;
	}
	if (fit == MAY_FIT && r->may_be < 0)
		r->may_be = at & NUMBER;
	if (r->in_order < 0 && is_open(p) && is_datagram(p->header))
		r->in_order = at & NUMBER;
	return 0;
}

/* The first in order that is addressed to this socket. Of those of which the headers do not say it, the first may be; and where addresses are translated the first of the protocol. */
__noinline int packet_by_receiver(struct receiver *r)
{
	struct account *a = this_account();
	u32 left, next;

	if (!a || !r)
		return -1;
	next = a->next;
	left = a->arrived - next;
	for (u32 i = 0; i < PACKETS; i++) {
		if (i >= left)
			break;
		if (is_for_receiver(next + i, r))
			return (next + i) & NUMBER;
	}
	if (r->may_be >= 0)
		return r->may_be;
	return r->protocol == IPPROTO_UDP || r->protocol == IPPROTO_UDPLITE ? r->in_order : -1;
}

/* Which one it is that this socket has got; -1: none. */
static __noinline int packet_of(struct account *a, u64 sk, u64 socket)
{
	struct sock___receives *to = (void *)sk;
	struct sock___ends *ends = (void *)sk;
	struct receiver r = { .may_be = -1, .in_order = -1 };
	int at;

	if (!a)
		return -1;
	if (is_alone(a))
		return a->over & NUMBER;
	r.protocol = kread(to, sk_protocol);
	if (r.protocol == IPPROTO_TCP) {
		/* what comes to who listens is its child's, and a tracepoint has named that */
		if (kread(to, __sk_common.skc_state) == TCP_LISTEN)
			return -1;
	} else {
		at = packet_by_skb(kread_ptr(to, sk_receive_queue.prev));
		if (at >= 0)
			return at;
	}
	r.raw = kread(to, sk_type) == SOCK_RAW;
	r.port = kread(ends, __sk_common.skc_num);
	r.from_port = __builtin_bswap16(kread(ends, __sk_common.skc_dport));
	r.address = kread(ends, __sk_common.skc_rcv_saddr);
	r.socket = socket;
	return packet_by_receiver(&r);
}

#endif
