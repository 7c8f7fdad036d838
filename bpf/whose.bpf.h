/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whose packets and sockets are recorded, where only some processes are chosen (choice.bpf.h).
 *
 * A packet's process is not known where most packets are first seen: what comes from a card has no socket yet, and what TCP sends again is sent upon
 * whatever task an interrupt finds. So flows are chosen: as soon as a chosen process sends the first packet of one, or it goes through a socket
 * that was made by one (by user and cgroup, which a socket has), and those that go to where a chosen process listens. Both directions are one
 * flow; where a packet's headers change and it stays the same packet (NAT), its new flow is chosen, too. What was there before the recording,
 * and sockets of datagrams that were bound and have sent nothing, user space finds (crates/probe/src/whose.rs).
 *
 * A key is a hash of addresses, protocol and ports, of 64 bits, as user space makes it, too (crates/model/src/flow.rs).
 */
#ifndef KPAT_WHOSE_H
#define KPAT_WHOSE_H

#include "choice.bpf.h"
#include "sample.bpf.h"

/* Only what belongs to chosen processes is recorded; user space gives the tables their lengths then. */
const volatile u32 by_process = 0;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u32);
} flows SEC(".maps");

/* Where chosen processes listen or are bound: address and port; a port of a namespace; and which addresses a namespace has. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u32);
} ends SEC(".maps");

/* TCP sockets with which a chosen process began to connect, by address: the first packet may wait for a neighbour and leave in a softirq. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, u32);
} begun SEC(".maps");

/* Another with each flow and end that is chosen: what was refused before may be wanted now. */
u64 whose_turn SEC(".data.turn") = 1;

/* So that keys of different kinds are different. */
#define KEY_END 0x656e640000000000ULL
#define KEY_PORT 0x706f727400000000ULL
#define KEY_LOCAL 0x6c6f63616c000000ULL
#define KEY_PART 0x7061727400000000ULL

/* `port`: in network order, as it is loaded. */
static __always_inline u64 end_of(u64 address, u32 port)
{
	return sample_mix(address + port * SAMPLE_KEY);
}

static __always_inline u64 flow_key(u64 from, u64 to, u32 proto)
{
	return sample_mix((from + to) ^ proto);
}

static __always_inline u64 end_key(u64 end, u32 proto)
{
	return sample_mix(end ^ proto ^ KEY_END);
}

static __always_inline u64 port_key(u32 netns, u32 proto, u32 port)
{
	return sample_mix(((u64)netns << 24 | proto << 16 | port) ^ KEY_PORT);
}

static __always_inline u64 local_key(u32 netns, u64 address)
{
	return sample_mix(sample_mix(address ^ KEY_LOCAL) + netns);
}

static __always_inline u64 address_of_v6(u64 high, u64 low)
{
	return sample_mix(high) ^ low;
}

/* Changes when something may be wanted that was not. */
static __always_inline u64 wish_now(void)
{
	return (*(volatile u64 *)&whose_turn + choosing()) * SAMPLE_KEY;
}

static __always_inline void choose_key(void *table, u64 key)
{
	u32 one = 1;

	if (!bpf_map_update_elem(table, &key, &one, BPF_ANY))
		__sync_fetch_and_add(&whose_turn, 1);
}

/* An IPv6 socket that talks IPv4: ::ffff:a.b.c.d. */
static __always_inline bool talks_mapped(u64 peer)
{
	return !kread_word(peer) && (u32)kread_word(peer + 8) == 0xffff0000;
}

/* Of sixteen bytes; those that stand for an IPv4 address are that one. */
static __always_inline u64 address_at(u64 at)
{
	return talks_mapped(at) ? kread_word(at + 8) >> 32 : address_of_v6(kread_word(at), kread_word(at + 8));
}

struct sock_common___whose {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
} __core;

struct sock_cgroup_data___whose {
	struct cgroup___chosen *cgroup; /* from 5.14 on */
} __core;

struct sock___whose {
	struct sock_common___whose __sk_common;
	u8 sk_kern_sock : 1;
	u16 sk_protocol;
	struct {
		u32 val;
	} sk_uid;
	struct sock_cgroup_data___whose sk_cgrp_data;
} __core;

/* Is the current task's process chosen? For code that runs in a task. */
static __always_inline bool task_chosen(void)
{
	u64 round = choosing();

	return round && process_chosen((struct task_struct *)bpf_get_current_task(), current_pid_tgid() >> 32, round);
}

/* Does a rule fit the user and the cgroup that a socket has of who made it? */
static __noinline int rules_fit_socket(u64 at)
{
	struct sock___whose *sk = (struct sock___whose *)at;
	u32 whose = current_context() ? TRAITS_IN_INTERRUPT : TRAITS_OF_TASK;
	struct traits *t = bpf_map_lookup_elem(&traits, &whose);
	struct cgroup___chosen *group = NULL;

	if (!t || !*(volatile u64 *)&choice.rules || kread_bit(sk, sk_kern_sock))
		return 0;
	t->named = 0;
	t->user = BPF_CORE_READ(sk, sk_uid.val);
	if (bpf_core_field_exists(sk->sk_cgrp_data.cgroup))
		group = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
	return some_rule_fits(t, whose, group);
}

/* Is it a socket of a chosen process, as far as the socket and who runs now say? Not one that is none yet, or no more. */
static __always_inline int socket_is_theirs(u64 at)
{
	struct sock___whose *sk = (struct sock___whose *)at;
	u32 family = kread(sk, __sk_common.skc_family), state = kread(sk, __sk_common.skc_state), ctx = current_context();

	if (family != AF_INET && family != AF_INET6 && family != AF_PACKET)
		return 0;
	if (family != AF_PACKET && (state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV))
		return 0;
	if (bpf_map_lookup_elem(&begun, &at) || (!ctx && task_chosen()))
		return 1;
	return ctx < 2 && rules_fit_socket(at);
}

/* (parent, child) */
SEC("raw_tp/sched_process_fork")
int whose_sched_process_fork(u64 *ctx)
{
	begins_as_chosen(ctx[0], ctx[1]);
	return 0;
}

/* (task) */
SEC("raw_tp/sched_process_free")
int whose_sched_process_free(u64 *ctx)
{
	ends_as_chosen(ctx[0]);
	return 0;
}

static __always_inline bool is_ipv4(struct sock___whose *sk)
{
	return kread(sk, __sk_common.skc_family) == AF_INET;
}

/* 0: none, or any. */
static __always_inline u64 own_address(struct sock___whose *sk)
{
	u64 at = (u64)sk + bpf_core_field_offset(struct sock___whose, __sk_common.skc_v6_rcv_saddr);

	return is_ipv4(sk) ? kread(sk, __sk_common.skc_rcv_saddr) : address_at(at);
}

static __always_inline u64 peer_address(struct sock___whose *sk)
{
	u64 at = (u64)sk + bpf_core_field_offset(struct sock___whose, __sk_common.skc_v6_daddr);

	return is_ipv4(sk) ? kread(sk, __sk_common.skc_daddr) : address_at(at);
}

static __always_inline u32 own_port(struct sock___whose *sk)
{
	return __builtin_bswap16(kread(sk, __sk_common.skc_num));
}

static __always_inline u32 netns_of_socket(struct sock___whose *sk)
{
	u64 net = kread_ptr(sk, __sk_common.skc_net.net);

	return kernel_address(net) ? kread((struct net *)net, ns.inum) : 0;
}

/* (sk, oldstate, newstate) */
SEC("raw_tp/inet_sock_set_state")
int whose_inet_sock_set_state(u64 *ctx)
{
	struct sock___whose *sk = (struct sock___whose *)ctx[0];
	u64 at = ctx[0], address;
	u32 proto, one = 1;

	if (ctx[2] == TCP_CLOSE) {
		bpf_map_delete_elem(&begun, &at);
		return 0;
	}
	if ((ctx[2] != TCP_LISTEN && ctx[2] != TCP_SYN_SENT) || current_context() || !task_chosen())
		return 0;
	if (ctx[2] == TCP_SYN_SENT) {
		bpf_map_update_elem(&begun, &at, &one, BPF_ANY);
		__sync_fetch_and_add(&whose_turn, 1);
		return 0;
	}
	proto = kread(sk, sk_protocol);
	address = own_address(sk);
	choose_key(&ends, address ? end_key(end_of(address, own_port(sk)), proto) : port_key(netns_of_socket(sk), proto, own_port(sk)));
	return 0;
}

#endif
