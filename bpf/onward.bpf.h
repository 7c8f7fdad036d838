/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Packets at hand that are nobody's: they go on to another device, are answered by the kernel itself, or dropped. */
#ifndef KPAT_ONWARD_H
#define KPAT_ONWARD_H

#include "received.bpf.h"

/* Network namespace, interfaces of arrival and departure. */
static __always_inline u64 way_of(u64 skb)
{
	struct net_device *dev = (void *)kread_ptr((struct sk_buff *)skb, dev);
	u32 net = dev ? net_number(kread_ptr((struct net_device___net *)dev, nd_net.net)) : 0;
	u32 from = kread((struct sk_buff *)skb, skb_iif), to = dev ? kread(dev, ifindex) : 0;

	return from <= 0xffff && to <= 0xffff ? (u64)net << 32 | from << 16 | to : 0;
}

struct sock___listener {
	struct {
		unsigned char skc_state;
		struct sock___cookie *skc_listener; /* of a connection that is not there yet */
	} __sk_common;
} __core;

/* A packet at hand is answered by this one. If it asks for a connection it is who listens that it is for: its answer knows. */
static __noinline int answered(struct packet *p, u64 skb)
{
	u64 sk = kread_ptr((struct sk_buff *)skb, sk);
	u8 state;

	if (!p)
		return 0;
	p->purpose = KP_FOR_ANSWER;
	if (!sk)
		return 0;
	state = kread((struct sock___listener *)sk, __sk_common.skc_state);
	if (state == TCP_NEW_SYN_RECV)
		sk = kread_ptr((struct sock___listener *)sk, __sk_common.skc_listener);
	else if (state != TCP_LISTEN) /* it sends a cookie */
		return 0;
	p->socket = sk ? cookie_known(sk) : 0;
	return 0;
}

/* of enum skb_drop_reason, where drops have sockets */
#define NOT_SPECIFIED 2
/* An end of it was closed, whatever is still to be acknowledged; no socket of UDP has such a state. */
#define WAS_CLOSED (CLOSES | 1 << TCP_FIN_WAIT2 | 1 << TCP_TIME_WAIT)

/* TCP frees acknowledgements without data that come to such a connection, once it has looked at them, as if it dropped them, for no reason. */
static __always_inline bool was_taken(u64 sk, u64 reason)
{
	u8 state = sk ? kread((struct sock___listener *)sk, __sk_common.skc_state) : 0;

	return reason == NOT_SPECIFIED && 1 << (state & 15) & WAS_CLOSED;
}

/* A packet was dropped. `sk`: who would have had it; 0: not known. */
static __always_inline void dropped(struct account *a, u64 skb, u64 sk, u64 reason)
{
	int at = packet_by_skb(skb);
	struct packet *p;
	u64 would_have;

	if (at < 0)
		return;
	p = packet_at(a, at);
	would_have = sk ? cookie_known(sk) : 0;
	if (p->socket && !(p->delivered && would_have))
		return;
	if (p->purpose && p->purpose != KP_FOR_ANSWER)
		return;
	if (would_have && was_taken(sk, reason)) {
		if (p->socket)
			return;
		p->purpose = 0;
		p->socket = would_have;
		settle(a, at);
		return;
	}
	if (p->socket)
		one_of_several(a, p, p->socket, KP_FOR_SOCKET);
	p->purpose = KP_FOR_DROP;
	p->which = would_have;
	settle(a, at);
	if (!is_alone(a) && is_fragment(p->header))
		fragments_follow(at);
}

/* Is it this packet that the kernel answers by one with these headers? */
static __always_inline bool is_answered_by(struct packet *p, u32 *answer)
{
	u32 *asked = p->header, version = answer[0] & 0xf0, protocol, ports;

	if (!is_open(p))
		return false;
	if (version != 0x40 && version != 0x60)
		return (asked[0] & 0xf0) != 0x40 && (asked[0] & 0xf0) != 0x60;
	if ((asked[0] & 0xf0) != version)
		return false;
	if (version == 0x40) {
		protocol = answer[2] >> 8 & 0xff;
		ports = answer[5];
		if (asked[3] != answer[4] || (asked[2] >> 8 & 0xff) != protocol)
			return false;
	} else {
		protocol = answer[1] >> 16 & 0xff;
		ports = answer[10];
		if (asked[2] != answer[6] || asked[5] != answer[9] || (asked[1] >> 16 & 0xff) != protocol)
			return false;
	}
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return true;
	return asked[version == 0x40 ? 5 : 10] == (ports << 16 | ports >> 16);
}

struct answer {
	u32 header[HEADER_WORDS];
} __attribute__((aligned(8)));

__noinline int is_answered(u32 at, struct answer *answer)
{
	struct account *a = this_account();

	return a && answer && is_answered_by(packet_at(a, at), answer->header);
}

/* Which one the kernel answers by this; -1: it is not known. */
__noinline int packet_answered_by(u64 skb)
{
	struct account *a = this_account();
	struct sk_buff *s = (void *)skb;
	struct answer answer = {};
	u32 left, next;

	if (!a || !header_of(answer.header, kread_ptr(s, head) + kread(s, network_header)))
		return -1;
	next = a->next;
	left = a->arrived - next;
	for (u32 i = 0; i < PACKETS; i++) {
		if (i >= left)
			break;
		if (is_answered(next + i, &answer))
			return (next + i) & NUMBER;
	}
	return -1;
}

/* A softirq that receives sends a packet on, or another one because of one at hand. */
static __noinline int sent_by_receiver(struct account *a, u64 skb)
{
	struct packet *p;
	int at;

	if (!a || !a->came)
		return 0;
	p = packet_at(a, a->arrived - 1);
	if (is_alone(a) && p->socket) /* and what it answers is its own */
		return 0;
	at = packet_by_skb(skb);
	if (at >= 0) {
		p = packet_at(a, at);
		if (!is_open(p))
			return 0;
		p->purpose = KP_FOR_FORWARD;
		p->which = way_of(skb);
		settle(a, at);
		return 0;
	}
	at = is_alone(a) ? (int)a->over : packet_answered_by(skb);
	if (at < 0)
		return 0;
	p = packet_at(a, at);
	if (p->socket || p->purpose)
		return 0;
	answered(p, skb);
	settle(a, at);
	return 0;
}

#endif
