/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Datagrams taken by sockets without a peer: who sent one only the system call's end says, where the task wanted the address. A server that forwards them (a resolver) asks for its client by such a
 * socket, too: by the two ports and the other end's address, as its own is not known when the answer is taken (datagram_leaves()).
 */
#ifndef KPAT_DATAGRAMS_H
#define KPAT_DATAGRAMS_H

#include "messages.bpf.h"

struct msghdr_of_user {
	u64 name;
	u64 rest[6];
};

/* The task that runs took a datagram whose sender's address is there. Not static, as it is called in a loop. */
__noinline int datagram_of(u64 at)
{
	struct account *a = this_account();
	struct sockaddr_of_internet from = {};
	struct ends e = { .datagrams = 1 };
	struct speech *sender, *own;
	u64 key, talk, by;
	bool answer;

	if (!a || bpf_probe_read_user(&from, sizeof(from), (void *)at))
		return 0;
	e.near_port = a->datagram_port;
	e.far_port = __builtin_bswap16(from.port);
	if (from.family == AF_INET) {
		e.far = from.address4;
		e.net = (e.far & 0xff) == 127 ? a->datagram_net : 0;
	} else if (from.family != AF_INET6) {
		return 0;
	} else if (!from.address6[0] && !from.address6[1] && from.address6[2] == __builtin_bswap32(0xffff)) {
		e.far = from.address6[3];
		e.net = (e.far & 0xff) == 127 ? a->datagram_net : 0;
	} else {
		e.far = mixed4(from.address6);
		e.net = is_loopback6(from.address6) ? a->datagram_net : 0;
	}
	e.near = ~e.far; /* see datagram_leaves() */
	rests_no_more(a);
	key = as_receiver(&e);
	if (took_before(a, key))
		return 0;
	talk = talk_now();
	sender = bpf_map_lookup_elem(&writers, &key);
	by = as_sender(&e);
	own = bpf_map_lookup_elem(&writers, &by);
	answer = sender ? took_of(sender->who, role_of(&e)) : took_remote(a, &e, a->datagram_socket, role_of(&e), !own, 0, &from);
	if (!answer || !goes_on(a, own, by, false))
		remember_taken(a, key, talk);
	return 0;
}

#define MOST_DATAGRAMS 64 /* that are looked at of those which a call took; the last ones */

/* A task took several by one call; each has its length behind it. */
static __always_inline int datagrams_taken(u64 first, u32 taken)
{
	u64 at, names = first + (taken > MOST_DATAGRAMS ? taken - MOST_DATAGRAMS : 0) * (sizeof(struct msghdr_of_user) + 8);
	u32 known = 0;

	for (u32 i = 0; i < MOST_DATAGRAMS; i++) {
		if (i >= taken)
			break;
		if (bpf_probe_read_user(&at, sizeof(at), (void *)names + i * (sizeof(struct msghdr_of_user) + 8)) || !at)
			break;
		datagram_of(at);
		known = 1;
	}
	return known;
}

/* The system call is over by which a task took datagrams of a socket that has no peer: the sender's address is where the task wanted it. False: it did not. */
static __noinline int datagram_taken(struct pt_regs *regs, long result)
{
	u64 at;

	if (!regs)
		return 0;
	switch (system_call_of(regs)) {
	case SYS_RECVFROM:
		at = system_call_arg5(regs);
		break;
	case SYS_RECVMSG:
		at = system_call_arg(regs, 1);
		if (bpf_probe_read_user(&at, sizeof(at), (void *)at))
			return 0;
		break;
	case SYS_RECVMMSG:
		return datagrams_taken(system_call_arg(regs, 1), result);
	default:
		return 0;
	}
	if (!at)
		return 0;
	datagram_of(at);
	return 1;
}

#endif
