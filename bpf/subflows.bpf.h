/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * MPTCP (RFC 8684): a process has one socket, below which are TCP connections (subflows) that have the packets. Each knows the socket above it, and that one its
 * first subflow.
 */
#ifndef KPAT_SUBFLOWS_H
#define KPAT_SUBFLOWS_H

#ifndef IPPROTO_TCP
#define IPPROTO_TCP 6
#endif
#ifndef SOCK_STREAM
#define SOCK_STREAM 1
#endif
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

struct sock___subflow {
	struct {
		unsigned char skc_state;
	} __sk_common;
	u16 sk_type, sk_protocol;
} __core;

struct tcp_sock___subflow {
	bool is_mptcp; /* not in a kernel without MPTCP */
} __core;

struct inet_connection_sock___subflow {
	void *icsk_ulp_data;
} __core;

struct mptcp_subflow_context {
	struct sock *conn;
} __core;

struct mptcp_sock {
	struct sock *first;
} __core;

static __always_inline bool of_mptcp(void *sk)
{
	return ((struct sock___subflow *)sk)->sk_protocol == IPPROTO_MPTCP;
}

/*
 * Of a listener's number each of its connections gets a copy (mptcp_sk_clone_init() of net/mptcp/protocol.c leaves it as it is; TCP's have their own), so that
 * nothing would tell them apart. Such a one is given none by us.
 */
static __always_inline bool gives_its_number_away(void *sk)
{
	return of_mptcp(sk) && ((struct sock___subflow *)sk)->__sk_common.skc_state == TCP_LISTEN;
}

static __always_inline bool is_subflow(u64 sk)
{
	u8 state = kread((struct sock___subflow *)sk, __sk_common.skc_state);

	/* those are smaller */
	if (!bpf_core_field_exists(struct tcp_sock___subflow, is_mptcp) || state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV)
		return false;
	return kread((struct sock___subflow *)sk, sk_type) == SOCK_STREAM && kread((struct sock___subflow *)sk, sk_protocol) == IPPROTO_TCP &&
	       kread((struct tcp_sock___subflow *)sk, is_mptcp);
}

/* The socket above a subflow; 0: it is none. */
static __always_inline u64 above(u64 sk)
{
	u64 context;

	if (!is_subflow(sk))
		return 0;
	context = kread_ptr((struct inet_connection_sock___subflow *)sk, icsk_ulp_data);
	return context ? kread_ptr((struct mptcp_subflow_context *)context, conn) : 0;
}

/* The first subflow below a socket; 0: it has none. */
static __always_inline u64 first_below(u64 sk)
{
	if (!bpf_core_field_exists(struct mptcp_sock, first) || kread((struct sock___subflow *)sk, sk_protocol) != IPPROTO_MPTCP)
		return 0;
	return kread_ptr((struct mptcp_sock *)sk, first);
}

#endif
