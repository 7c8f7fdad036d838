/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Sockets and who uses them: a packet is put into a socket's queue, a task reads from a socket or writes to it. By tracepoints where the kernel has them (since
 * 6.3), else by the functions around which they were put.
 */
#ifndef KPAT_USES_H
#define KPAT_USES_H

#include "handing.bpf.h"
#include "onward.bpf.h"
#include "polled.bpf.h"

struct socket {
	struct sock *sk;
} __core;

/* A task has used a socket: who gets the work that is done for it. True: this is new among the sums of now. */
static __always_inline bool use(struct account *a, u64 socket, u32 how, u64 bytes)
{
	return is_news(socket, a->victim) && add_use(a, socket, how, bytes);
}

/* What came before a socket of MPTCP had its number is its first subflow's. */
static __noinline int use_below(struct account *a, u64 sk, u32 how, u64 bytes)
{
	u64 first = given_cookie(first_below(sk));

	return a && first ? use(a, first, how, bytes) : 0;
}

/* A task whose answers tell connects. */
static __always_inline int connects_for(struct account *a, u64 sk)
{
	u32 pid = a->pid;
	struct handed *h = bpf_map_lookup_elem(&handed_tasks, &pid);
	u64 client = h ? asks_now_for(h) : 0;

	return client ? asks_for(a, sk, client, h->purpose) : 0;
}

/* The first packet of a socket that connects: the answer may come while its task still holds it, and then no tracepoint says whose it is. */
static __noinline int connects(struct account *a, u64 skb)
{
	u64 sk = kread_ptr((struct sk_buff *)skb, sk);

	if (!a || sk != a->connecting)
		return 0;
	a->connecting = 0;
	if (a->since & TELLS)
		connects_for(a, sk);
	return connected(sk, cookie_known(sk));
}

static __always_inline bool is_unix(struct sock___profile *sk)
{
	return sk->__sk_common.skc_family == AF_UNIX;
}

static __always_inline bool of_internet(struct sock___profile *sk)
{
	u16 family = sk->__sk_common.skc_family;

	return family == AF_INET || family == AF_INET6;
}

static __always_inline int ready(struct sock *sk)
{
	struct account *a;

	if (is_unix((void *)sk)) {
		a = this_account();
		if (at_task(a))
			queued_for(a, (u64)sk);
		return 0;
	}
	/* Where it listened before, nothing else has given it a number. */
	if (((struct sock___listener *)sk)->__sk_common.skc_state == TCP_LISTEN)
		cookie_of(sk);
	return packet_is_for(sk, 0, true, ((struct sock___profile *)sk)->__sk_common.skc_family == AF_PACKET);
}

static __always_inline int read_from(struct sock *sk, int bytes, u64 flags)
{
	struct account *a = this_account();
	bool stream;
	u64 socket;

	if (!no_frames(a) || !at_task(a) || bytes < 0 || flags & (MSG_PEEK | MSG_ERRQUEUE) || is_unix((void *)sk))
		return 0;
	stream = ((struct sock___receives *)sk)->sk_type == SOCK_STREAM;
	if (stream && !bytes)
		return turns_elsewhere(a);
	socket = cookie_of(sk);
	if (use(a, socket, stream ? KP_USE_READ : KP_USE_TAKE, bytes) && of_internet((void *)sk)) {
		connected((u64)sk, socket);
		use_below(a, (u64)sk, KP_USE_READ, bytes);
	}
	if (of_internet((void *)sk))
		took_of_peer(a, (u64)sk, socket);
	return 0;
}

/* A process that was made for a client answers itself: what it did is for that one, which waits for no more. */
static __noinline int child_answers(struct account *a, u64 sk)
{
	struct child *c;
	u32 purpose;
	u64 client;

	if (!a)
		return 0;
	client = client_at(a, sk, &purpose);
	c = own_child(a);
	if (!c || client != c->client)
		return 0;
	border(a);
	put_task(a);
	charge_child(a, c);
	return asks_no_more(c->maker & KP_ID_MASK, client);
}

static __always_inline int wrote_to(struct sock *sk, int bytes)
{
	struct account *a = this_account();
	u64 socket;

	if (!no_frames(a) || !at_task(a) || bytes <= 0)
		return 0;
	if (a->serving && !(a->since & TELLS)) {
		if (!(a->since & WROTE))
			has_written(a);
		if (serves_client(a) && a->victim != KP_OTHERS && a->mode != KP_WORK_THREAD)
			answers_one(a, (u64)sk);
	} else if (a->child && !a->serving) {
		child_answers(a, (u64)sk);
	} else if (a->handed || (state_is(bpf_get_current_pid_tgid() >> 32, SERVER) && a->victim != KP_OTHERS && a->mode != KP_WORK_THREAD)) {
		handed_answers(a, (u64)sk);
	}
	rests_no_more(a);
	a->answers_to = a->asks_by = 0;
	if (is_unix((void *)sk)) {
		sent(a, (u64)sk);
		return 0;
	}
	socket = cookie_of(sk);
	if (use(a, socket, KP_USE_WRITE, bytes) && of_internet((void *)sk)) {
		connected((u64)sk, socket);
		use_below(a, (u64)sk, KP_USE_WRITE, bytes);
	}
	if (of_internet((void *)sk) && !wrote_before(a, (u64)sk))
		sent_to_peer(a, (u64)sk);
	return 0;
}

PAIR("tp_btf/sk_data_ready", work_sk_data_ready, AT_READY)
{
	return ready((struct sock *)ctx[0]);
}

SEC("fentry/sock_def_readable")
int work_sock_def_readable(u64 *ctx)
{
	return ready((struct sock *)ctx[0]);
}

/* (sk, bytes, flags) */
PAIR("tp_btf/sock_recv_length", work_sock_recv_length, AT_READ)
{
	return read_from((struct sock *)ctx[0], ctx[1], ctx[2]);
}

PAIR("tp_btf/sock_send_length", work_sock_send_length, AT_WRITE)
{
	return wrote_to((struct sock *)ctx[0], ctx[1]);
}

/* (sock, msg, size, flags) -> bytes or error */
#define READS(function)                                      \
	SEC("fexit/" #function)                              \
	int work_##function(u64 *ctx)                        \
	{                                                    \
		struct sock *sk = ((struct socket *)ctx[0])->sk; \
                                                             \
		return sk ? read_from(sk, ctx[4], ctx[3]) : 0; \
	}
READS(inet_recvmsg)
READS(inet6_recvmsg)

/* (sock, msg, size) -> bytes or error */
#define WRITES(function)                                     \
	SEC("fexit/" #function)                              \
	int work_##function(u64 *ctx)                        \
	{                                                    \
		struct sock *sk = ((struct socket *)ctx[0])->sk; \
                                                             \
		return sk ? wrote_to(sk, ctx[3]) : 0;        \
	}
WRITES(inet_sendmsg)
WRITES(inet6_sendmsg)
WRITES(unix_stream_sendmsg)
WRITES(unix_dgram_sendmsg)

#endif
