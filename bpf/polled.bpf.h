/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Packets that a task receives itself, in no softirq: a device's own thread does (threaded NAPI), a process that polls the device for its socket (busy polling),
 * one that writes to a tun device. From the first packet until the task does something else that is a frame as a softirq's, and of a thread also what came before
 * that packet: it is there for nothing else.
 *
 * Softirqs are off while a packet is handed up, and not where its task's call ends: one that came upon the end of such a frame would find the packet that is
 * being charged. So the frame ends where the packet's way up does, if the kernel shows that; what else may be come upon says at_cut().
 */
#ifndef KPAT_POLLED_H
#define KPAT_POLLED_H

#include "received.bpf.h"

/* A task has a packet in no softirq. */
static __always_inline void poll_begins(struct account *a)
{
	border(a);
	a->came = a->steered = 0;
	if (a->mode == KP_WORK_THREAD && !a->serving)
		add(&a->head_ns, take(&a->base[KP_WORK_THREAD]));
	push(a, SOFTIRQ + NET_RX);
	a->polls = 1;
}

/* Not static: called in many places, see took_of(). */
__noinline int poll_is_over(u32 of_account)
{
	struct account *a = this_account();

	if (!a || !a->polls)
		return 0;
	border(a);
	if (a->level == 1)
		frame_is_over(a);
	a->level = 0;
	store_once(&a->polls, 0); /* not before: a softirq may come at any time, and ends the frame itself */
	return 0;
}

/* (result): the way up of one packet is over, and softirqs are still off. A device's thread has others to come. */
SEC("raw_tp/netif_receive_skb_exit")
int work_netif_receive_skb_exit(u64 *ctx)
{
	struct account *a = this_account();

	if (a && a->polls && a->mode != KP_WORK_THREAD && receiving(a))
		poll_is_over(0);
	return 0;
}

/* (napi, work, budget): a poll is over. */
SEC("raw_tp/napi_poll")
int work_napi_poll(u64 *ctx)
{
	struct account *a = this_account();

	if (a && a->polls && receiving(a))
		poll_is_over(0);
	return 0;
}

#endif
