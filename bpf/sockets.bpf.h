/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which socket is this, and is it wanted?
 *
 * A socket is known by its cookie (include/linux/sock_diag.h), which the kernel gives out once and `ss -e` shows; the
 * address alone is used again. The table below only remembers what was logged of a socket. A socket that lost its place
 * to another is announced once more, so nothing is lost by a full table. Whether a socket is wanted is decided by user
 * space, which gets every socket announced and marks its place: so the filter can change while we record.
 */
#ifndef KPAT_SOCKETS_H
#define KPAT_SOCKETS_H

#include "tasks.bpf.h"
#include "application.h"
#include "subflows.bpf.h"
#include "whose.bpf.h"

#define SOCK_DONE 2 /* of the flags: the other end has closed */
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_UDPLITE 136
#define IPPROTO_MPTCP 262

/* only their places are used */
struct in6_bytes {
	u8 b[16];
};

struct tcp_congestion_ops {
	char name[16];
} __core;

typedef struct {
	s64 counter;
} atomic64_t;

struct sock_common___app {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u32 skc_portpair; /* both ports */
	u16 skc_dport;
	u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_bytes skc_v6_daddr;
	struct in6_bytes skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
	unsigned long skc_flags;
} __core;

struct kernfs_node {
	u64 id;
} __core;

struct cgroup {
	struct kernfs_node *kn;
} __core;

struct sock_cgroup_data {
	struct cgroup *cgroup;
} __core;

struct sk_buff_head {
	struct sk_buff *prev;
	u32 qlen;
} __core;

struct socket {
	struct sock *sk;
	unsigned long flags;
} __core;

struct sock___app {
	struct sock_common___app __sk_common;
	struct socket *sk_socket;
	u8 sk_kern_sock : 1;
	u16 sk_type, sk_protocol;
	struct {
		u32 val;
	} sk_uid;
	unsigned long sk_pacing_rate;
	u32 sk_pacing_status;
	int sk_err;
	int sk_wmem_queued;
	struct sk_buff_head sk_receive_queue;
	struct {
		atomic_t rmem_alloc;
	} sk_backlog;
	struct sock_cgroup_data sk_cgrp_data;
} __core;

struct inet_connection_sock {
	u32 icsk_rto;
	const struct tcp_congestion_ops *icsk_ca_ops;
	u8 icsk_ca_state : 5;
} __core;

struct tcp_sock {
	u32 rcv_nxt, copied_seq, urg_seq, snd_una, snd_nxt, write_seq, pushed_seq;
	u32 snd_wnd, rcv_wnd, srtt_us, mdev_us, packets_out, retrans_out, lost_out, sacked_out;
	u32 snd_ssthresh, snd_cwnd, total_retrans, delivered, rate_delivered, rate_interval_us, app_limited, mss_cache;
	u8 chrono_type : 2;
	u8 is_cwnd_limited : 1;
	u8 nonagle : 4;
} __core;

struct app_settings {
	u64 state_every_ns; /* state is logged again after so long even if nothing changed; 0: with each event */
	u64 empty; /* crossings without data (acknowledgements) count, too */
	u64 epoch; /* 0: paused, nothing is looked at; else another number after each pause */
};
struct app_settings settings SEC(".data.settings") = { .state_every_ns = 1000000000ULL };

struct sock_entry {
	u64 cookie; /* key; 0 free */
	u64 ops; /* congestion control as announced */
	u64 state_at; /* time of the last state record */
	u32 state_sig; /* what was logged, as a hash */
	u32 woken; /* sequence number up to which the application was woken for data */
	u32 ports;
	u32 slot; /* this place */
	u32 left; /* of a write that is under way: bytes not yet taken */
	u8 marks; /* SOCK_OFF and its neighbours; user space sets the first two */
	u8 tcp;
	u8 waits; /* WAITS_*: when a segment last came, or a call that sends was over */
	u8 first_over; /* its first call that sends is over */
	u32 epoch; /* of the settings when it was last looked at */
	u32 writing; /* thread whose write that is */
	u32 way; /* the packet that it last gave to a device, */
	u16 device, lower; /* to which, and to which that one gave one on */
	u32 acked; /* from when an end closes: up to where acknowledgements are logged, */
	u32 closes; /* if it closed in this epoch */
	u64 called; /* when its last call was over, or began to send, and what the thread of it had done by then (thread_time.bpf.h), */
	u64 ran, waited;
	u32 slept, caller;
	u32 calls; /* if it was in this epoch */
};

#define SOCK_OFF 1 /* not wanted */
#define SOCK_AGAIN 2 /* announce it once more: another file has begun */
#define SOCK_ELSEWHERE 4 /* in a namespace that is not recorded */
#define SOCK_OTHERS 8 /* of processes that are not chosen, as far as is known */

#define SOCK_WAYS 4
struct sock_bucket {
	struct sock_entry e[SOCK_WAYS];
};

#define SOCK_BUCKETS 4096
struct sock_bucket sock_buckets[SOCK_BUCKETS] SEC(".bss.socks");

/*
 * A socket that came as an argument, or of an skb that did, has a type that the verifier knows: its members need no call on any kernel, and those
 * of a tracepoint's argument no guard either.
 */
#define sk_read(sk, member) (((struct sock___app *)(sk))->member)
#define sk_read_ptr(sk, member) kread_ptr((struct sock___app *)(sk), member)
#define tp_read(sk, member) kread((struct tcp_sock *)(sk), member)

static __always_inline bool netns_wanted(u32 inum)
{
	if (!netns_count)
		return true;
	for (u32 i = 0; i < KP_MAX_IDS; i++)
		if (i < netns_count && netns_ids[i] == inum)
			return true;
	return false;
}

static __always_inline u64 congestion_ops(struct sock *sk)
{
	return kread_ptr((struct inet_connection_sock *)(sk), icsk_ca_ops);
}

struct task_struct___kind {
	unsigned int flags;
} __core;

#define PF_KTHREAD 0x00200000

static __always_inline bool is_kernel_thread(void)
{
	return kread((struct task_struct___kind *)bpf_get_current_task(), flags) & PF_KTHREAD;
}

/*
 * Static, unlike other long functions: a global one takes numbers only, and the verifier does not let an argument with a type become
 * one.
 */
static __noinline int announce_socket(struct sock *sk, u64 cookie, u32 slot)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct sock_entry *e;
	struct kp_socket *r;
	struct cgroup *cg;
	u64 pid_tgid = current_pid_tgid(), net, kn, above_it;
	u8 ctx = current_context();

	if (!ctl)
		return 0;
	e = &sock_buckets[(slot / SOCK_WAYS) & (SOCK_BUCKETS - 1)].e[slot & (SOCK_WAYS - 1)];
	r = ring_reserve(ctl, sizeof(*r));
	if (!r) {
		e->cookie = 0; /* logged at the next chance */
		return 0;
	}
	r->ts = bpf_ktime_get_boot_ns();
	r->cookie = cookie;
	cg = (void *)sk_read_ptr(sk, sk_cgrp_data.cgroup);
	kn = kernel_address((u64)cg) ? kread_ptr(cg, kn) : 0;
	r->cgroup = kernel_address(kn) ? kread((struct kernfs_node *)(kn), id) : 0;
	r->slot = slot;
	net = sk_read_ptr(sk, __sk_common.skc_net.net);
	r->netns = net ? kread((struct net *)(net), ns.inum) : 0;
	r->family = sk_read(sk, __sk_common.skc_family);
	r->protocol = sk_read(sk, sk_protocol);
	r->port = sk_read(sk, __sk_common.skc_num);
	r->peer_port = __builtin_bswap16(sk_read(sk, __sk_common.skc_dport));
	__builtin_memset(r->addr, 0, 32);
	if (r->family == AF_INET6) {
		*(u64 *)r->addr = kread_word((u64)sk + bpf_core_field_offset(struct sock___app, __sk_common.skc_v6_rcv_saddr));
		*(u64 *)(r->addr + 8) = kread_word((u64)sk + bpf_core_field_offset(struct sock___app, __sk_common.skc_v6_rcv_saddr) + 8);
		*(u64 *)r->peer = kread_word((u64)sk + bpf_core_field_offset(struct sock___app, __sk_common.skc_v6_daddr));
		*(u64 *)(r->peer + 8) = kread_word((u64)sk + bpf_core_field_offset(struct sock___app, __sk_common.skc_v6_daddr) + 8);
	} else {
		*(u32 *)r->addr = sk_read(sk, __sk_common.skc_rcv_saddr);
		*(u32 *)r->peer = sk_read(sk, __sk_common.skc_daddr);
	}
	__builtin_memset(r->congestion, 0, 16);
	if (e->tcp && kernel_address(e->ops)) {
		u64 at = e->ops + bpf_core_field_offset(struct tcp_congestion_ops, name);

		*(u64 *)r->congestion = kread_word(at);
		*(u64 *)(r->congestion + 8) = kread_word(at + 8);
	}
	above_it = above((u64)sk);
	r->above = above_it ? kread((struct sock___app *)above_it, __sk_common.skc_cookie.counter) : 0;
	/* A subflow is whose the socket above it is, also where a worker made it. */
	r->pid = ctx || (above_it && is_kernel_thread()) ? 0 : current_pid(ctl, pid_tgid, 0);
	r->uid = sk_read(sk, sk_uid.val);
	/* sk_err is set before TCP leaves its last state (tcp_reset() of net/ipv4/tcp_input.c, tcp_write_err() of tcp_timer.c) */
	commit_word(r, KP_SOCKET | (sizeof(*r) / KP_SLOT) << 8 | (u64)((r->family == AF_INET6) | (sk_read(sk, sk_err) & 0x7f) << 1) << 16 |
			       (u64)(sk_read(sk, __sk_common.skc_state) | (!above_it && kread_bit((struct sock___app *)sk, sk_kern_sock) ? KP_SOCKET_KERNELS : 0)) << 24 |
			       cookie << 32);
	return 0;
}

static __always_inline u32 sock_ports(struct sock *sk)
{
	return sk_read(sk, __sk_common.skc_portpair);
}

/* For all programs that see sockets: once in the object. */
__noinline int task_is_chosen(void)
{
	return task_chosen();
}

/* Does a chosen process have this socket, or was its flow, or where it listens, chosen? */
static __noinline int socket_chosen(u64 at)
{
	struct sock___whose *sk = (struct sock___whose *)at;
	u32 proto = kread(sk, sk_protocol), port = own_port(sk);
	u64 own = end_of(own_address(sk), port), key;

	if (socket_is_theirs(at))
		return 1;
	key = flow_key(own, end_of(peer_address(sk), kread(sk, __sk_common.skc_dport)), proto);
	if (bpf_map_lookup_elem(&flows, &key))
		return 1;
	key = end_key(own, proto);
	if (bpf_map_lookup_elem(&ends, &key))
		return 1;
	key = port_key(netns_of_socket(sk), proto, port);
	return !!bpf_map_lookup_elem(&ends, &key);
}

/* First sight, or the table forgot it. Index of its place, negative: not wanted. */
static __noinline int sock_insert(struct sock *sk, u64 cookie)
{
	u32 hash = cookie * 0x9e3779b97f4a7c15ULL >> 40, oldest = 0;
	struct sock_bucket *b = &sock_buckets[hash & (SOCK_BUCKETS - 1)];
	u16 family = sk_read(sk, __sk_common.skc_family), protocol = sk_read(sk, sk_protocol);
	u64 net = sk_read_ptr(sk, __sk_common.skc_net.net), age = ~0ULL;
	struct sock_entry *e;

	if (family != AF_INET && family != AF_INET6)
		return -1;
	for (u32 i = 0; i < SOCK_WAYS; i++) {
		if (!b->e[i].cookie) {
			oldest = i;
			break;
		}
		if (b->e[i].state_at < age) {
			age = b->e[i].state_at;
			oldest = i;
		}
	}
	e = &b->e[oldest & (SOCK_WAYS - 1)];
	e->cookie = 0;
	e->state_at = 0;
	e->state_sig = 0;
	e->tcp = protocol == IPPROTO_TCP;
	e->ops = e->tcp ? congestion_ops(sk) : 0;
	e->woken = e->tcp ? tp_read(sk, rcv_nxt) : 0;
	e->closes = 0;
	e->ports = sock_ports(sk);
	e->slot = (hash & (SOCK_BUCKETS - 1)) * SOCK_WAYS + oldest;
	e->left = 0;
	e->writing = 0;
	e->waits = 0;
	e->first_over = 0;
	e->way = 0;
	e->device = e->lower = 0;
	e->epoch = settings.epoch;
	e->marks = !net || !netns_wanted(kread((struct net *)(net), ns.inum)) ? SOCK_OFF | SOCK_ELSEWHERE : 0;
	if (by_process && choosing() && !e->marks && !socket_chosen((u64)sk))
		e->marks = SOCK_OFF | SOCK_OTHERS;
	store_release(&e->cookie, cookie);
	if (!e->marks)
		announce_socket(sk, cookie, e->slot);
	return 0;
}

static __always_inline struct sock_entry *sock_find(u64 cookie)
{
	u32 hash = cookie * 0x9e3779b97f4a7c15ULL >> 40;
	struct sock_bucket *b = &sock_buckets[hash & (SOCK_BUCKETS - 1)];

#pragma unroll
	for (int i = 0; i < SOCK_WAYS; i++)
		if (b->e[i].cookie == cookie)
			return &b->e[i];
	return NULL;
}

static __always_inline u64 sock_cookie(struct sock *sk)
{
	return sk_read(sk, __sk_common.skc_cookie.counter);
}

/* The socket's place, NULL: not wanted, or the kernel has given it no cookie yet. */
static __always_inline struct sock_entry *sock_with_cookie(struct sock *sk, u64 cookie)
{
	struct sock_entry *e;

	if (!cookie)
		return NULL;
	e = sock_find(cookie);
	if (!e && !sock_insert(sk, cookie))
		e = sock_find(cookie);
	if (!e || !e->marks)
		return e;
	if (e->marks & SOCK_OFF) {
		u32 ports = sock_ports(sk);

		if (e->marks & SOCK_ELSEWHERE)
			return NULL;
		if (by_process && e->marks & SOCK_OTHERS) {
			/* A chosen process may have been given it. */
			if (choosing() && (current_context() || !task_is_chosen()))
				return NULL;
		} else if (ports == e->ports || !(u16)ports || !(ports >> 16)) {
			/* Connected since the filter was asked of it: with other ports, which a socket that closes loses, it may be wanted. */
			return NULL;
		}
		e->ports = ports;
	}
	e->marks = 0;
	announce_socket(sk, cookie, e->slot);
	return e;
}

/* The same for a socket that is an argument: the kernel gives it a cookie if it has none. */
static __always_inline struct sock_entry *sock_of(struct sock *sk)
{
	u64 cookie = sock_cookie(sk);

	if (!cookie && !gives_its_number_away(sk))
		cookie = bpf_get_socket_cookie(sk);
	return sock_with_cookie(sk, cookie);
}

/* Ports, peer or congestion control differ from those logged. */
static __always_inline void sock_refresh(struct sock_entry *e, struct sock *sk)
{
	u64 ops = e->tcp ? congestion_ops(sk) : 0;
	u32 ports = sock_ports(sk);

	if (e->ports == ports && e->ops == ops)
		return;
	e->ports = ports;
	e->ops = ops;
	announce_socket(sk, e->cookie, e->slot);
}

#endif
