/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Since 7.0 a task may be preempted while a raw tracepoint's program runs for it, and no CPU runs a program anew that is running there. So until that task went on, nothing was seen of what others did on that CPU: of
 * 240,000 beginnings and ends of system calls of two programs that shared one, 10,000.
 *
 * Programs at events of tracefs are run whole, with preemption off: where tasks may be preempted, those of system calls are such (work_whole_sys_enter), as far as tracefs is there. Events of sockets have not what is needed
 * here, and a program may not follow their pointers. So their tracepoints, and others that are rarer, have two programs each. The first one says in the account that it has run for this event; the second
 * one then does nothing, and all if the first one was not run. An event is missed only where tasks were preempted in both. A task that is preempted between the two takes with it what the first one said, and
 * may come back on another CPU.
 *
 * Rejected: to prevent it by bpf_preempt_disable(). Its end is where the task is preempted then, and the program has not returned yet. And pairs for system calls: most of what a task does there is these programs, and
 * of three that were preempted two were in both.
 */
#ifndef KPAT_PAIRS_H
#define KPAT_PAIRS_H

#include "account.bpf.h"

/* Tracepoints have two programs each. */
const volatile u32 in_pairs = 0;

/* By task: the event for which it was preempted between two programs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u32);
} between_programs SEC(".maps");

/* So many are there. */
u64 tasks_between SEC(".data.between") = 0;

/* False: nothing is to be done. */
static __always_inline bool first_runs(u32 event)
{
	struct account *a = in_pairs ? this_account() : NULL;

	if (a && !a->level)
		store_once(&a->first_ran, event);
	return true;
}

static __always_inline bool second_runs(u32 event)
{
	struct account *a = this_account();

	if (!a || a->level)
		return false;
	if (*(volatile u32 *)&a->first_ran != event)
		return true;
	store_once(&a->first_ran, 0);
	return false;
}

/* A task is switched from, */
static __always_inline void pair_is_left(struct account *a, u32 pid)
{
	u32 event;

	if (!in_pairs || !a->first_ran)
		return;
	event = a->first_ran;
	a->first_ran = 0;
	if (!bpf_map_update_elem(&between_programs, &pid, &event, BPF_NOEXIST))
		__sync_fetch_and_add(&tasks_between, 1);
}

/* and to. */
static __always_inline void pair_goes_on(struct account *a, u32 pid)
{
	u32 *event;

	if (!in_pairs || !*(volatile u64 *)&tasks_between)
		return;
	event = bpf_map_lookup_elem(&between_programs, &pid);
	if (!event)
		return;
	a->first_ran = *event;
	if (!bpf_map_delete_elem(&between_programs, &pid))
		__sync_fetch_and_add(&tasks_between, -1);
}

enum { AT_READ = 1, AT_WRITE, AT_READY, AT_COPY, AT_STATE, AT_FORK, AT_EXEC, AT_SIGNAL, AT_BIO, AT_SPLIT, AT_DIRTY, AT_INODE, AT_INODE_END, AT_ITEM, AT_ITEM_END };

/* The two programs of a tracepoint at which tasks may be preempted, before what they do. The second one is loaded and attached where `in_pairs`, behind the first: by its name (crates/probe/src/plan/points.rs). */
#define PAIR(section, program, event)                           \
	static __always_inline int program##_does(u64 *ctx);    \
	SEC(section) int program(u64 *ctx)                      \
	{                                                       \
		return first_runs(event) ? program##_does(ctx) : 0;  \
	}                                                       \
	SEC(section) int program##_second(u64 *ctx)             \
	{                                                       \
		return second_runs(event) ? program##_does(ctx) : 0; \
	}                                                       \
	static __always_inline int program##_does(u64 *ctx)

#endif
