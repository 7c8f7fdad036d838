/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Functions at the crossings where a kernel has no tracepoint. fentry: the arguments; fexit: and the result behind them.
 */
#ifndef KPAT_CROSSING_FUNCTIONS_H
#define KPAT_CROSSING_FUNCTIONS_H

#include "sending.bpf.h"

/* Bytes to be sent, which begin in the stream where the last ended. */
static __always_inline void handed_over(struct sock_entry *e, struct sock *sk, u32 what, u32 len)
{
	u64 now = bpf_ktime_get_boot_ns();

	if (CROSSING_MODE(what))
		cross(what, e->cookie, now, len, e->tcp ? tp_read(sk, write_seq) : 0);
	if (what == KP_X_TO_TRANSPORT)
		thread_time(e, now);
	say_tcp_with_each(e, sk, what, now);
}

#define ASK(function)                                                                          \
	AT("fentry/" #function, f1_##function) /* (sock, msg, size) */                         \
	{                                                                                      \
		struct sock *sk = ASKED_FOR(KP_X_ASK) ? ((struct socket *)ctx[0])->sk : NULL;  \
		struct sock_entry *e = sk ? sock_of(sk) : NULL;                                \
                                                                                               \
		if (e)                                                                         \
			handed_over(e, sk, KP_X_ASK, ctx[2]);                                  \
		return 0;                                                                      \
	}
ASK(inet_sendmsg)
ASK(inet6_sendmsg)

#define SEND_OVER(function)                                                                    \
	AT("fexit/" #function, r2_##function) /* (sock, msg, size) -> bytes or error */        \
	{                                                                                      \
		struct sock *sk = ((struct socket *)ctx[0])->sk;                               \
                                                                                               \
		if (sk)                                                                        \
			send_over(sk, ctx[3]);                                                 \
		return 0;                                                                      \
	}
SEND_OVER(inet_sendmsg)
SEND_OVER(inet6_sendmsg)

/* What took a datagram was seen when it did: also of a reader that had waited since before the recording, whose return is not seen. */
static __always_inline void read_over(struct sock *sk, s32 ret, u32 flags)
{
	u32 type = sk_read(sk, sk_type);

	if (ret < 0 || !reads_by_function || (type != SOCK_DGRAM && type != SOCK_RAW))
		recv_over(sk, ret, flags);
}

/* A read that only looks has a reference beside the queue's. */
static __always_inline bool stays_queued(struct sk_buff *skb)
{
	return skb_read(skb, users.refs.counter) > 1;
}

#define RECV_OVER(function)                                                                    \
	AT("fexit/" #function, r10_##function) /* (sock, msg, size, flags) -> bytes or error */ \
	{                                                                                      \
		struct sock *sk = ((struct socket *)ctx[0])->sk;                               \
                                                                                               \
		if (sk)                                                                        \
			read_over(sk, ctx[4], ctx[3]);                                         \
		return 0;                                                                      \
	}
RECV_OVER(inet_recvmsg)
RECV_OVER(inet6_recvmsg)

/*
 * (sk, desc, actor) -> bytes or error: what the kernel takes out of a stream in no call that receives, for itself (NVMe, iSCSI) or for splice(). Not TLS', which has taken
 * records then and not what its reader gets.
 */
AT("fexit/tcp_read_sock", r10_tcp_read_sock)
{
	struct sock *sk = (struct sock *)ctx[0];
	s32 taken = ctx[3];

	if (taken > 0 && !kread_ptr((struct inet_connection_sock___subflow *)sk, icsk_ulp_data))
		recv_over(sk, taken, 0);
	return 0;
}

/* (sk, skb, bytes): a read has taken a datagram; of one that looked only, what it would be with a minus sign (net/ipv4/udp.c) */
AT("fentry/skb_consume_udp", f10_skb_consume_udp)
{
	s32 bytes = ctx[2];

	if (bytes > 0 || (!bytes && !stays_queued((struct sk_buff *)ctx[1])))
		recv_over((struct sock *)ctx[0], bytes, 0);
	return 0;
}

/* (sk, skb): the same of a raw or ping socket, which have no more to say of it; a read with less room got less */
AT("fentry/skb_free_datagram", f10_skb_free_datagram)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[1];

	if (!stays_queued(skb))
		recv_over((struct sock *)ctx[0], skb_read(skb, len), 0);
	return 0;
}

#define WRITE(function)                                                                        \
	AT("fentry/" #function, f3_##function) /* (sk, msg, size) */                           \
	{                                                                                      \
		struct sock *sk = (struct sock *)ctx[0];                                       \
		struct sock_entry *e = ASKED_FOR(KP_X_TO_TRANSPORT) ? sock_of(sk) : NULL;      \
                                                                                               \
		if (e && e->tcp && without_numbers(sk)) {                                      \
			e->writing = current_pid_tgid();                                       \
			e->left = UNLOGGED;                                                    \
		} else if (e) {                                                                \
			handed_over(e, sk, KP_X_TO_TRANSPORT, ctx[2]);                         \
		}                                                                              \
		return 0;                                                                      \
	}
WRITE(tcp_sendmsg_locked)
WRITE(udp_sendmsg)
WRITE(udpv6_sendmsg)
WRITE(raw_sendmsg)
WRITE(rawv6_sendmsg)
WRITE(ping_v4_sendmsg)
WRITE(ping_v6_sendmsg)

#define TO_NETWORK(function, sk_at, skb_at)                                                    \
	AT("fentry/" #function, f4_##function)                                                 \
	{                                                                                      \
		struct sk_buff___app *skb = (struct sk_buff___app *)ctx[skb_at];               \
		struct sock *sk = sk_at < 0 ? skb->sk : (struct sock *)ctx[sk_at < 0 ? 0 : sk_at]; \
                                                                                               \
		if (ASKED_FOR(KP_X_TO_NETWORK) && sk && full_socket(sk))                       \
			sent(KP_X_TO_NETWORK, sk, (struct sk_buff *)skb, false);               \
		return 0;                                                                      \
	}
TO_NETWORK(ip_queue_xmit, 0, 1)
TO_NETWORK(inet6_csk_xmit, 0, 1)
TO_NETWORK(ip_send_skb, -1, 1)
TO_NETWORK(ip6_send_skb, -1, 0)

/* (sk, skb): a datagram has found its socket */
#define FROM_NETWORK(function)                                                                 \
	AT("fentry/" #function, f8_##function)                                                 \
	{                                                                                      \
		struct sock *sk = (struct sock *)ctx[0];                                       \
		struct sk_buff *skb = (struct sk_buff *)ctx[1];                                \
		struct sock_entry *e = sock_of(sk);                                            \
                                                                                               \
		if (e)                                                                         \
			received(e, skb, 0, 8, bpf_ktime_get_boot_ns());                       \
		return 0;                                                                      \
	}
FROM_NETWORK(udp_queue_rcv_one_skb)
FROM_NETWORK(udpv6_queue_rcv_one_skb)

/* (sk, skb): a datagram goes into its socket's queue */
AT("fentry/__udp_enqueue_schedule_skb", f9___udp_enqueue_schedule_skb)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sk_buff *skb = (struct sk_buff *)ctx[1];
	struct sock_entry *e = sock_of(sk);

	if (e)
		readable(e, sk, skb_read(skb, len), skb_tag(skb));
	return 0;
}

/* (sk), until 6.2, which has no tracepoint for it */
AT("fentry/sock_def_readable", f9_sock_def_readable)
{
	struct sock *sk = (struct sock *)ctx[0];

	data_ready(sk);
	return 0;
}

#endif
