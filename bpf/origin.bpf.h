/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Packets that this host makes, before their headers are written: the filter asks for what the socket will write into them.
 *
 * Two ways, each exact: of a connection's socket addresses and ports are known, which is enough for filters that ask for nothing else (user space
 * looks at the filter's loads: socket_decides); and where a datagram's IP header is there and only the ports are missing, they are in
 * the flow with which the function is called (its socket may be connected to somebody else). A packet that is neither begins in the log when it has its headers. "No" is not
 * remembered for the packet: it is asked again when there are headers.
 */
#ifndef KPAT_ORIGIN_H
#define KPAT_ORIGIN_H

#include "config.bpf.h"
#include "filter.bpf.h"
#include "ring.bpf.h"
#include "sample.bpf.h"
#include "theirs.bpf.h"

#define PROTO_TCP 6
#define PROTO_UDP 17

static __always_inline u64 sock_word(struct sock *sk, u32 offset)
{
	return kread_word((u64)sk + offset);
}

static __always_inline bool talks_ipv4(struct sock *sk, u32 family)
{
	return family == AF_INET || talks_mapped((u64)sk + bpf_core_field_offset(struct sock, __sk_common.skc_v6_daddr));
}

/* Headers as this socket will write them, as far as a filter may look that the socket decides: the rest is zero. */
static __always_inline u32 written_by(struct sock *sk, u32 family, u64 ports, u64 *w)
{
	u32 own = bpf_core_field_offset(struct sock, __sk_common.skc_v6_rcv_saddr);
	u32 peer = bpf_core_field_offset(struct sock, __sk_common.skc_v6_daddr);

	if (talks_ipv4(sk, family)) {
		w[0] = 0x45;
		w[1] = 64 | PROTO_TCP << 8 | (u64)kread(sk, __sk_common.skc_rcv_saddr) << 32;
		w[2] = kread(sk, __sk_common.skc_daddr) | ports << 32;
		w[3] = w[4] = w[5] = w[6] = 0;
		return 40;
	}
	w[0] = 0x60 | (u64)PROTO_TCP << 48 | 64ULL << 56;
	w[1] = sock_word(sk, own);
	w[2] = sock_word(sk, own + 8);
	w[3] = sock_word(sk, peer);
	w[4] = sock_word(sk, peer + 8);
	w[5] = ports;
	w[6] = 0;
	return 56;
}

/* As they stand in a header that it will write. */
static __always_inline u64 ports_written(struct sock *sk)
{
	return (u64)__builtin_bswap16(kread(sk, __sk_common.skc_num)) | (u64)kread(sk, __sk_common.skc_dport) << 16;
}

/* By which a refusal is remembered: of one socket come many packets in a row. */
static __always_inline u64 refused_socket(struct sock *sk, u64 ports)
{
	u64 key = (u64)sk ^ (ports << 32 | kread(sk, __sk_common.skc_daddr)) * 0x9e3779b97f4a7c15ULL;

	return by_process ? key + wish_now() : key;
}

/* Leaves those headers where theirs() looks for them. */
__noinline int socket_matches(u64 at, u32 family)
{
	struct sock *sk = (struct sock *)at;
	u64 ports = ports_written(sk), key;
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 slot = current_context(), len;
	struct scratch *s;

	if (!ctl || !(ports >> 16) || kread(sk, sk_protocol) != PROTO_TCP)
		return 0;
	key = refused_socket(sk, ports);
	if (ctl->no_match == key)
		return 0;
	s = bpf_map_lookup_elem(&scratches, &slot);
	if (!s)
		return 0;
	len = written_by(sk, family, ports, (u64 *)s->bytes);
	if (filter_network(s->bytes, len, len) && (!sample_below || sampled(s->bytes, 0, len)))
		return 1;
	ctl->no_match = key;
	return 0;
}

__noinline int remember_no_match(u64 at)
{
	struct sock *sk = (struct sock *)at;
	struct kp_ring_ctl *ctl = ring_ctl();

	if (ctl)
		ctl->no_match = refused_socket(sk, ports_written(sk));
	return 0;
}

/* Two calls, one after the other: the deepest way of calls ends in each, and has no stack for one within the other. */
static __always_inline bool socket_wanted(u64 sk, u16 family)
{
	if (!socket_matches(sk, family))
		return false;
	if (!by_process || theirs(0, netns_of_socket((void *)sk)))
		return true;
	remember_no_match(sk);
	return false;
}

/* The destination port (network order) of the flow beside a datagram without transport header. */
static __always_inline u32 flow_port(u64 flow, bool ipv4)
{
	return ipv4 ? kread((struct flowi4 *)flow, uli.ports.dport) : kread((struct flowi6 *)flow, uli.ports.dport);
}

/* Writes the ports where the header, which starts at the network layer, will have them. */
static __always_inline void write_ports(u8 *bytes, struct sock *sk, u32 peer_port)
{
	u32 at = bytes[0] >> 4 == 4 ? (bytes[0] & 15) * 4 : 40;

	*(u16 *)(bytes + (at & 0x3c)) = sk ? __builtin_bswap16(kread(sk, __sk_common.skc_num)) : 0;
	*(u16 *)(bytes + (at & 0x3c) + 2) = peer_port;
}

#endif
