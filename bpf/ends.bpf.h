/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A connection known by its addresses and ports: from a socket, and from a packet's headers. From the other end it is the same the other way around.
 *
 * It joins two sockets of this host whose processes send each other messages (messages.bpf.h), and gives a packet its socket where no tracepoint does: a segment
 * that waits for a reader who holds the socket, the end of a connection, what comes to a closed one (received.bpf.h). Rejected: to search the kernel's table of
 * sockets, for which there is no tracepoint. Where addresses are translated on the way the ends do not match. The same loopback address is in every network
 * namespace, so there the namespace counts; elsewhere it does not, and two namespaces with the same addresses and ports are one.
 *
 * A datagram that nothing gave a socket was put into its queue by another CPU, which was at it when this one came (since 6.18).
 */
#ifndef KPAT_ENDS_H
#define KPAT_ENDS_H

#include "sums.bpf.h"

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define MORE_FRAGMENTS 0x2000
#define FRAGMENT6 44

struct net___number {
	struct {
		unsigned int inum;
	} ns;
} __core;

struct sock___ends {
	struct {
		unsigned int skc_daddr;
		unsigned int skc_rcv_saddr;
		unsigned short skc_dport; /* in the network's order */
		unsigned short skc_num;
		unsigned short skc_family;
		struct {
			struct net___number *net;
		} skc_net;
		struct {
			unsigned int word[4];
		} skc_v6_daddr, skc_v6_rcv_saddr;
	} __sk_common;
} __core;

/* What it is, and what waits in it. */
struct sock___receives {
	struct {
		unsigned char skc_state;
	} __sk_common;
	struct {
		struct sk_buff *prev;
	} sk_receive_queue;
	unsigned short sk_type;
	u16 sk_protocol;
} __core;

struct net_device___net {
	struct {
		struct net___number *net;
	} nd_net;
} __core;

struct sk_buff___device {
	struct net_device___net *dev;
} __core;

struct ends {
	u64 near;
	u64 far;
	u64 near_port;
	u64 far_port;
	u64 net;
	u64 datagrams;
};

/* By connection as what is received sees it: the cookie of its socket. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u64);
} connections SEC(".maps");

/* By port of a network namespace the socket without a peer that was used last. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} ports SEC(".maps");

static __always_inline u64 mixed(u64 h, u64 more)
{
	h = (h ^ more) * 0xff51afd7ed558ccdULL;
	return h ^ h >> 32;
}

static __always_inline u64 mixed4(u32 *words)
{
	return mixed((u64)words[0] << 32 | words[1], (u64)words[2] << 32 | words[3]);
}

static __always_inline bool is_loopback6(u32 *words)
{
	return !words[0] && !words[1] && !words[2] && words[3] == __builtin_bswap32(1);
}

/* Of a network namespace. */
static __always_inline u32 net_number(u64 net)
{
	return net ? kread((struct net___number *)net, ns.inum) : 0;
}

/* False: it is not connected. */
static __always_inline bool ends_of(struct sock___ends *sk, struct ends *e)
{
	u32 words[8], near, far;
	bool local;

	e->near_port = kread(sk, __sk_common.skc_num);
	e->far_port = __builtin_bswap16(kread(sk, __sk_common.skc_dport));
	e->datagrams = kread((struct sock___receives *)sk, sk_type) == SOCK_DGRAM;
	e->net = 0;
	if (!e->far_port)
		return false;
	near = kread(sk, __sk_common.skc_rcv_saddr);
	far = kread(sk, __sk_common.skc_daddr);
	local = (near & 0xff) == 127;
	e->near = near;
	e->far = far;
	if (kread(sk, __sk_common.skc_family) == AF_INET6) {
		bpf_core_read(words, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(words + 4, 16, &sk->__sk_common.skc_v6_daddr);
		/* else it speaks IPv4 */
		if (words[4] || words[5] || words[6] != __builtin_bswap32(0xffff)) {
			e->near = mixed4(words);
			e->far = mixed4(words + 4);
			local = is_loopback6(words);
		}
	}
	e->net = local ? net_number(kread_ptr(sk, __sk_common.skc_net.net)) : 0;
	return true;
}

/* The key of what goes from here to there. */
static __always_inline u64 one_way(u64 net, u64 from, u64 to, u64 from_port, u64 to_port)
{
	return mixed(mixed(mixed(net + 1, from), to), from_port << 16 | to_port) | 1;
}

/* The same of a datagram: a socket that has no peer does not say to which of this host's addresses it came. */
static __always_inline u64 datagram_way(u64 net, u64 from, u64 from_port, u64 to_port)
{
	return mixed(mixed(net + 2, from), from_port << 16 | to_port) | 1;
}

static __always_inline u64 as_sender(struct ends *e)
{
	return e->datagrams ? datagram_way(e->net, e->near, e->near_port, e->far_port) : one_way(e->net, e->near, e->far, e->near_port, e->far_port);
}

static __always_inline u64 as_receiver(struct ends *e)
{
	return e->datagrams ? datagram_way(e->net, e->far, e->far_port, e->near_port) : one_way(e->net, e->far, e->near, e->far_port, e->near_port);
}

/* Of a port of a network namespace. */
static __always_inline u64 port_of(u64 net, u64 port)
{
	return net << 16 | port;
}

/* A socket without a peer has datagrams at its port. */
static __noinline int receives_at(u64 sk, u64 cookie, u64 port)
{
	u64 key = port_of(net_number(kread_ptr((struct sock___ends *)sk, __sk_common.skc_net.net)), port), *known;

	known = bpf_map_lookup_elem(&ports, &key);
	if (!known || *known != cookie)
		bpf_map_update_elem(&ports, &key, &cookie, BPF_ANY);
	return 0;
}

static __noinline int connected(u64 sk, u64 cookie)
{
	struct ends e;
	u64 key;

	if (!ends_of((void *)sk, &e))
		return e.datagrams && e.near_port ? receives_at(sk, cookie, e.near_port) : 0;
	key = as_receiver(&e);
	bpf_map_update_elem(&connections, &key, &cookie, BPF_ANY);
	return 0;
}

static __always_inline bool is_of4(u32 *header, u32 protocol)
{
	return (header[0] & 0xff) == 0x45 && !(header[1] & __builtin_bswap32(0x1fff)) && (header[2] >> 8 & 0xff) == protocol;
}

static __always_inline bool is_of6(u32 *header, u32 protocol)
{
	return (header[0] & 0xf0) == 0x60 && (header[1] >> 16 & 0xff) == protocol;
}

/* The number of the network namespace, if the addresses are of the loopback device. */
static __always_inline u64 net_of(u32 *header, u64 skb)
{
	bool local = (header[0] & 0xff) == 0x45 ? (header[3] & 0xff) == 127 : (header[0] & 0xf0) == 0x60 && is_loopback6(header + 2);
	u64 dev = local ? kread_ptr((struct sk_buff___device *)skb, dev) : 0;

	return dev ? net_number(kread_ptr((struct net_device___net *)dev, nd_net.net)) : 0;
}

/* The bytes of a packet from its network header on. False: they cannot be read. */
static __always_inline bool header_of(u32 *header, u64 at)
{
#ifdef KPAT_DIRECT
#pragma unroll
	for (int i = 0; i < HEADER_WORDS; i += 2)
		*(u64 *)(header + i) = kread_word(at + 4 * i);
	return true;
#else
	return !bpf_probe_read_kernel(header, HEADER_WORDS * sizeof(u32), (void *)at);
#endif
}

/* As the sender of a packet of this protocol, by its headers; 0: it is of another one. */
static __always_inline u64 by_header(u32 *header, u64 net, u32 protocol)
{
	u32 ports;

	if (is_of4(header, protocol)) {
		ports = __builtin_bswap32(header[5]);
		return protocol == IPPROTO_UDP ? datagram_way(net, header[3], ports >> 16, ports & 0xffff) :
						 one_way(net, header[3], header[4], ports >> 16, ports & 0xffff);
	}
	if (is_of6(header, protocol)) {
		ports = __builtin_bswap32(header[10]);
		return protocol == IPPROTO_UDP ? datagram_way(net, mixed4(header + 2), ports >> 16, ports & 0xffff) :
						 one_way(net, mixed4(header + 2), mixed4(header + 6), ports >> 16, ports & 0xffff);
	}
	return 0;
}

static __always_inline bool is_fragment(u32 *header)
{
	if ((header[0] & 0xf0) == 0x40)
		return header[1] & __builtin_bswap32(MORE_FRAGMENTS | 0x1fff);
	return (header[0] & 0xf0) == 0x60 && (header[1] >> 16 & 0xff) == FRAGMENT6;
}

/* The first fragment of a datagram of IPv6 has a header more before its ports; 0: it is none. */
static __always_inline u32 first_fragments_ports(u32 *header, u64 skb)
{
	u32 ports = 0;

	if (is_of6(header, FRAGMENT6) && (header[10] & 0xff) == IPPROTO_UDP && !(header[10] >> 16 & __builtin_bswap16(0xfff8)))
		bpf_probe_read_kernel(&ports, sizeof(ports), (void *)kread_ptr((struct sk_buff *)skb, data) + HEADER_WORDS * sizeof(u32));
	return ports;
}

/* The socket of a datagram, or of its first fragment, by its addresses, else by the port to which it came. */
__noinline u64 socket_of_datagram(struct packet *p)
{
	u64 key, *cookie;
	u32 net, both;

	if (!p)
		return 0;
	both = __builtin_bswap32(p->ports ?: p->header[is_of4(p->header, IPPROTO_UDP) ? 5 : 10]);
	key = p->ports ? datagram_way(p->net, mixed4(p->header + 2), both >> 16, both & 0xffff) : by_header(p->header, p->net, IPPROTO_UDP);
	if (!key)
		return 0;
	cookie = bpf_map_lookup_elem(&connections, &key);
	if (cookie)
		return *cookie;
	net = p->dev ? net_number(kread_ptr((struct net_device___net *)p->dev, nd_net.net)) : 0;
	key = port_of(net, both & 0xffff);
	cookie = bpf_map_lookup_elem(&ports, &key);
	return cookie ? *cookie : 0;
}

/* The socket of the connection that a packet is of, by its headers; 0: it is of none that is known. */
__noinline u64 socket_by_ends(struct packet *p)
{
	u64 key, *cookie;

	if (!p)
		return 0;
	key = by_header(p->header, p->net, IPPROTO_TCP);
	cookie = key ? bpf_map_lookup_elem(&connections, &key) : NULL;
	if (cookie)
		return *cookie;
	return key || p->purpose ? 0 : socket_of_datagram(p);
}

#endif
