/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What is remembered of each process id: of a task what it goes on with, of a process how many had the id before it.
 *
 * An id is given again, and who has it then is another process. So sums are by numbers: the id, and above it how many processes that ran since recording
 * began had it before (KP_ID_BITS). A process that is the first with its id, as nearly all are, has its id as its number. The start of another one is logged at once,
 * with its number: names and labels that come later know it by the time of its start.
 */
#ifndef KPAT_NUMBERS_H
#define KPAT_NUMBERS_H

#include "tasks.bpf.h"
#include "work.h"

/* Sixteen bits for each id. The two lowest: tasks whose registers do not say what they do when they go on, see mode_of(). */
#define LEAVING 1 /* between a system call's end and user mode */
#define FAULT_OF_USER 2
#define FAULT_OF_KERNEL 3
#define SERVES 4 /* it is among served_tasks */
#define HAS_RUN 8 /* a process with this id, since the last one began */
#define CHILD 0x1000 /* it is among children */
#define HANDED 0x2000 /* it is among handed_tasks */
#define HANDS 0x4000 /* of a process: one of its threads has handed work to another */
#define SERVER 0x8000 /* of a process: it took a client's message */
#define BEFORE 4 /* from this bit on: how many processes had it before */
#define MOST_BEFORE 255 /* what comes after them is one with the last */
#define STATES 1048576 /* words, for as many ids as there may be (PID_MAX_LIMIT) */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, STATES);
	__type(key, u32);
	__type(value, u64);
} states SEC(".maps");

struct task_struct___begun {
	char comm[KP_COMM];
	u64 start_boottime; /* from 5.5 on */
} __core;

/* Where it stands what is remembered of an id, and how far up. */
static __always_inline u64 *states_of(u32 pid, u32 *up)
{
	u32 word = pid >> 2 & (STATES - 1);

	*up = (pid & 3) * 16;
	return bpf_map_lookup_elem(&states, &word);
}

/* Forgets of it what is in the mask, and says what that was. */
static __always_inline u32 take_state(u32 pid, u64 mask)
{
	u32 up, was;
	u64 *word = states_of(pid, &up);

	was = word ? *(volatile u64 *)word >> up & mask : 0;
	if (was)
		__sync_fetch_and_and(word, ~(mask << up));
	return was;
}

static __always_inline void keep_state(u32 pid, u64 state)
{
	u32 up;
	u64 *word = states_of(pid, &up);

	if (word)
		__sync_fetch_and_or(word, state << up);
}

/* What of the mask is remembered of it. */
static __always_inline u32 state_is(u32 pid, u64 mask)
{
	u32 up;
	u64 *word = states_of(pid, &up);

	return word ? *(volatile u64 *)word >> up & mask : 0;
}

/* Of a process that runs. */
static __always_inline u32 number_by_id(u32 process)
{
	u32 up;
	u64 *word = states_of(process, &up), was;

	if (!word)
		return process;
	was = *(volatile u64 *)word >> up;
	if (!(was & HAS_RUN))
		__sync_fetch_and_or(word, (u64)HAS_RUN << up);
	return process | (was >> BEFORE & MOST_BEFORE) << KP_ID_BITS;
}

/* A process begins, with an id that another had. */
static __noinline int log_another(u64 task, u32 number)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_process *r = ctl ? ring_reserve(ctl, sizeof(*r)) : NULL;
	u32 process = number & KP_ID_MASK;

	if (!r)
		return 0;
	r->h.ts = bpf_ktime_get_boot_ns();
	r->tgid = process;
	bpf_probe_read_kernel(r->comm, KP_COMM, (void *)(task + bpf_core_field_offset(struct task_struct___begun, comm)));
	r->uid = (u32)bpf_get_current_uid_gid();
	r->cgroup = own_cgroup();
	r->started = bpf_core_field_exists(struct task_struct___begun, start_boottime) ? kread_word(task + bpf_core_field_offset(struct task_struct___begun, start_boottime)) : 0;
	r->number = number;
	ring_commit(&r->h, KP_PROCESS, sizeof(*r), 0, process);
	return 0;
}

/* A process begins. */
static __always_inline void begins(u64 task, u32 process)
{
	u32 up;
	u64 *word = states_of(process, &up), was;

	if (!word)
		return;
	was = *(volatile u64 *)word >> up;
	if (!(was & HAS_RUN) || (was >> BEFORE & MOST_BEFORE) == MOST_BEFORE)
		return;
	__sync_fetch_and_and(word, ~((u64)HAS_RUN << up));
	__sync_fetch_and_add(word, 1ULL << (up + BEFORE));
	log_another(task, process | ((was >> BEFORE & MOST_BEFORE) + 1) << KP_ID_BITS);
}

#endif
