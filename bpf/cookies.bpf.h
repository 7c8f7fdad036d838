/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A socket's number: who is to have a packet's work is asked of who uses the socket of that number. Of MPTCP (subflows.bpf.h) it is the number of the socket that
 * its process has, as soon as that one has a number; what came before has the first subflow's.
 */
#ifndef KPAT_COOKIES_H
#define KPAT_COOKIES_H

#include "subflows.bpf.h"

struct sock___cookie {
	struct {
		struct {
			s64 counter;
		} skc_cookie;
	} __sk_common;
} __core;

/* 0: it has none. */
static __always_inline u64 given_cookie(u64 sk)
{
	return sk ? kread((struct sock___cookie *)sk, __sk_common.skc_cookie.counter) : 0;
}

/* 0: it has none. */
static __noinline u64 cookie_known(u64 sk)
{
	return given_cookie(above(sk)) ?: given_cookie(sk);
}

/* It has one in nearly all cases, and a load is less than a call. 0: it listens for MPTCP. */
static __always_inline u64 cookie_of(void *sk)
{
	u64 known = given_cookie(above((u64)sk)) ?: (u64)((struct sock___cookie *)sk)->__sk_common.skc_cookie.counter;

	if (known || gives_its_number_away(sk))
		return known;
	return bpf_get_socket_cookie(sk);
}

#endif
