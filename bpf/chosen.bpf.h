/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which processes are profiled each for itself. All others are one, KP_OTHERS: their time is charged to it, they have no names, no stacks and no sockets.
 * So what a recording costs depends on those that were chosen, and the sums still add up to all CPU time.
 */
#ifndef KPAT_CHOSEN_H
#define KPAT_CHOSEN_H

#include "choice.bpf.h"
#include "numbers.bpf.h"

/* By socket: used by KP_OTHERS alone so far, or also by one that is chosen. */
#define BY_OTHERS 1
#define BY_CHOSEN 2
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u32);
} socket_users SEC(".maps");

/* Whose time a task's is. */
static __always_inline u32 victim_of(struct task_struct *task, u32 process)
{
	u64 round = choosing();

	return !round || process_chosen(task, process, round) ? number_by_id(process) : KP_OTHERS;
}

/* (task) */
SEC("raw_tp/sched_process_free")
int work_sched_process_free(u64 *ctx)
{
	ends_as_chosen(ctx[0]);
	return 0;
}

/* Is work for this socket KP_OTHERS' as far as is known? */
static __always_inline bool is_others(u64 socket)
{
	u32 *by = choosing() ? bpf_map_lookup_elem(&socket_users, &socket) : NULL;

	return by && *by == BY_OTHERS;
}

/* A process uses a socket. False: KP_OTHERS does, and that is known. */
static __always_inline bool is_news(u64 socket, u32 process)
{
	u32 *by, now = process == KP_OTHERS ? BY_OTHERS : BY_CHOSEN;

	if (!choosing())
		return true;
	by = bpf_map_lookup_elem(&socket_users, &socket);
	if (!by || *by < now)
		bpf_map_update_elem(&socket_users, &socket, &now, BPF_ANY);
	return now == BY_CHOSEN || !by || *by == BY_CHOSEN;
}

#endif
