/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Messages that nobody on this host wrote: they come from another host. Which process there asked, only a recording of that host knows. So what a server does
 * since it took such a message is summed up by the number of the connection, or of the datagrams' two ends, and these ends are logged once for each file, by both hosts.
 *
 * Rejected: to add it up by the other host's address, which is fewer sums. A host has more than one process.
 *
 * A message whose writer's call was over before recording began counts as one of another host, until the next one. Not followed: addresses of the loopback
 * device, whose other end is on this host in any case.
 */
#ifndef KPAT_PEERS_H
#define KPAT_PEERS_H

#include "behalf.bpf.h"
#include "known.bpf.h"

/* Of two processes that send each other messages the role of this one; NOT_KNOWN: whoever is seen to take a message first is the server. */
enum role { NOT_KNOWN, IS_SERVER, IS_CLIENT };

/* By number of the ends: the file in which they were logged << 1 | this host's end is the server. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u64);
} remotes SEC(".maps");

struct sockaddr_of_internet {
	u16 family;
	u16 port;
	u32 address4;
	u32 address6[4];
};

/* Addresses of a socket that has a peer. */
static __always_inline void addresses_of(struct sock___ends *sk, struct kp_peer *r)
{
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET6) {
		r->version = 6;
		bpf_core_read(r->near, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(r->far, 16, &sk->__sk_common.skc_v6_daddr);
	} else {
		r->version = 4;
		bpf_core_read(r->near, 4, &sk->__sk_common.skc_rcv_saddr);
		bpf_core_read(r->far, 4, &sk->__sk_common.skc_daddr);
	}
}

/* False: there was no room. `sk`: 0 where `from` says who sent it. */
static __always_inline bool log_ends(struct account *a, u64 number, u64 socket, struct ends *e, u64 sk, struct sockaddr_of_internet *from)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_peer *r = ctl ? ring_reserve(ctl, sizeof(*r)) : NULL;

	if (!r)
		return false;
	r->h.ts = bpf_ktime_get_boot_ns();
	r->number = number;
	r->socket = socket;
	__builtin_memset(r->near, 0, 32);
	r->near_port = e->near_port;
	r->far_port = e->far_port;
	r->datagrams = !!e->datagrams;
	if (sk) {
		addresses_of((void *)sk, r);
	} else if (from->family == AF_INET) {
		r->version = 4;
		*(u32 *)r->far = from->address4;
	} else {
		r->version = 6;
		__builtin_memcpy(r->far, from->address6, 16);
	}
	ring_commit(&r->h, KP_PEER, sizeof(*r), 0, own_number(a));
	return true;
}

/* A task took a message that nobody on this host wrote. `first`: this host's end has not written before. True: it is an answer. */
static __always_inline bool took_remote(struct account *a, struct ends *e, u64 socket, u32 role, bool first, u64 sk, struct sockaddr_of_internet *from)
{
	u64 number = as_receiver(e), round = *(volatile u64 *)&file_round, *known, state;
	bool serves;

	if (e->net || a->victim == KP_OTHERS)
		return false;
	known = bpf_map_lookup_elem(&remotes, &number);
	serves = known ? *known & 1 : role == IS_SERVER || (role == NOT_KNOWN && first);
	if (!known || *known >> 1 != round) {
		state = round << 1 | serves;
		if (log_ends(a, number, socket, e, sk, from))
			bpf_map_update_elem(&remotes, &number, &state, BPF_ANY);
	}
	if (serves)
		serve_client(a, number, KP_FOR_REMOTE, true);
	return !serves;
}

#endif
