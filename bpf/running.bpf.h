/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which task runs, and in what: user mode, a system call, a page fault.
 *
 * The kernel shows where a page fault begins, and by its software events where its work is done: what follows until user mode is some ten
 * nanoseconds, and stays with user mode.
 *
 * A kernel may be built to run no programs upon tasks of its supervisor. Then the switch away from such a task is not seen either, and the next border
 * is upon a task that nobody switched to: the time in between has a kind of its own and is charged to nobody.
 */
#ifndef KPAT_RUNNING_H
#define KPAT_RUNNING_H

#include "children.bpf.h"
#include "pairs.bpf.h"

static __always_inline void put_mode(struct account *a, u32 mode, u64 times)
{
	u64 *base = &a->base[mode & 15];
	struct kp_work w = { .ns = *(volatile u64 *)base ? take(base) : 0, .packets = times };

	if (mode == KP_WORK_IDLE)
		a->idled += w.ns;
	if (!w.ns && !times)
		return;
	if (a->serving && !(a->since & TELLS))
		put(a, mode, a->serving_for, a->serving, &w);
	else
		put(a, mode, KP_FOR_ITSELF, 0, &w);
}

static __noinline int child_rests(struct account *a);
static __noinline int makes_child(struct account *a, u32 pid);

/* What the task that runs did since it was last asked. */
__noinline int put_task(struct account *a)
{
	if (!a)
		return 0;
	if (a->handed && (!a->serving || a->since & TELLS))
		count_handed(a);
	if (a->child && !a->serving)
		count_child(a);
	put_mode(a, KP_WORK_USER, 0);
	put_mode(a, KP_WORK_KERNEL, take(&a->calls));
	put_mode(a, KP_WORK_IDLE, 0);
	put_mode(a, KP_WORK_THREAD, 0);
	put_mode(a, KP_WORK_FAULT, take(&a->faults));
	put_time(a, KP_WORK_UNSEEN, KP_FOR_KERNEL, take(&a->base[KP_WORK_UNSEEN]));
	return 0;
}

/* What a task that is switched to goes on with. */
static __always_inline u32 mode_of(struct account *a, struct task_struct *task, u32 pid)
{
	u32 was;

	if (!pid)
		return KP_WORK_IDLE;
	if (((struct task_struct___profile *)task)->flags & PF_KTHREAD)
		return KP_WORK_THREAD;
	was = take_state(pid, 3);
	if (was == FAULT_OF_USER || was == FAULT_OF_KERNEL) {
		a->before_fault = was == FAULT_OF_USER ? KP_WORK_USER : KP_WORK_KERNEL;
		return KP_WORK_FAULT;
	}
	if (was == LEAVING)
		return KP_WORK_USER;
	return in_system_call((struct pt_regs *)bpf_task_pt_regs(task)) ? KP_WORK_KERNEL : KP_WORK_USER;
}

static __always_inline void runs(struct account *a, struct task_struct *task)
{
	u32 pid = task->pid, state = state_is(pid, SERVES | HANDED | CHILD);
	struct served *s;

	a->mode = mode_of(a, task, pid);
	a->victim = pid ? victim_of(task, task->tgid) : 0;
	a->pid = pid;
	a->called_by = 0;
	a->took_at = 0;
	a->serving = 0;
	a->since = 0;
	a->handed = state & HANDED;
	a->child = state & CHILD;
	if (state & SERVES) {
		s = bpf_map_lookup_elem(&served_tasks, &pid);
		if (s) {
			a->serving = s->process;
			a->serving_for = s->purpose;
			a->since = s->since;
		}
	}
}

/* A switch was not seen. */
__noinline int catch_up(struct account *a)
{
	if (!a)
		return 0;
	a->mode = KP_WORK_UNSEEN;
	border(a);
	put_task(a);
	a->level = a->polls = a->arrived = a->over = a->next = a->settled = a->preempted = 0;
	runs(a, (struct task_struct *)bpf_get_current_task_btf());
	return 0;
}

/* A border at which the current task may be another than the account has. */
static __always_inline void task_border(struct account *a)
{
	if (!a->level && a->pid != (u32)current_pid_tgid())
		catch_up(a);
	else
		border(a);
}

/* The task works for another process from here on; 0: for itself. */
static __always_inline void serve(struct account *a, u64 process, u32 purpose)
{
	struct served s = { .process = process, .purpose = purpose, .since = (a->since & (TELLS | MAKES)) | (a->took_at ? AT_SOCKET : 0) };
	u32 pid = a->pid;

	if (a->serving == process && (!process || a->serving_for == purpose))
		return;
	border(a);
	put_task(a);
	/* first what holds when the task comes back, which may be preempted here (pairs.bpf.h) */
	if (process) {
		bpf_map_update_elem(&served_tasks, &pid, &s, BPF_ANY);
		keep_state(pid, SERVES);
	} else if (take_state(pid, SERVES)) {
		bpf_map_delete_elem(&served_tasks, &pid);
	}
	a->serving = process;
	a->serving_for = purpose;
	a->since = process ? s.since : 0;
}

/*
 * With PREEMPT_RT a task may be preempted in the softirq that it serves, and is back on the same CPU before another task serves one there: bottom halves have a
 * lock of the CPU's (kernel/softirq.c, __local_bh_disable_ip(); from 6.17 on only where CONFIG_PREEMPT_RT_NEEDS_BH_LOCK is set). What the softirq has at hand stays.
 */
static __always_inline void softirq_is_left(struct account *a, u32 pid)
{
	if (SOFTIRQS_OF_TASKS && a->level == 1 && !a->polls && is_softirq(a->frame[1])) {
		a->preempted = pid;
		a->preempted_in = a->frame[1];
		a->level = 0;
	} else if (!SOFTIRQS_OF_TASKS || !a->preempted) {
		nothing_stays(a);
	}
	if (a->level) {
		a->resets++;
		a->level = 0;
	}
}

static __always_inline void softirq_goes_on(struct account *a, u32 pid)
{
	if (!SOFTIRQS_OF_TASKS || !pid || a->preempted != pid)
		return;
	a->preempted = 0;
	push(a, a->preempted_in);
}

#define TASK_INTERRUPTIBLE 1

/* A task that has waited is switched from, or to: only what it runs counts. */
static __always_inline void rest_is_left(struct account *a, u32 pid)
{
	if (pid && a->rests == pid)
		a->rested_at = a->last - a->rested_at;
}

/* (preempt, prev, next, prev_state) */
SEC("tp_btf/sched_switch")
int work_sched_switch(u64 *ctx)
{
	struct task_struct *prev = (struct task_struct *)ctx[1], *next = (struct task_struct *)ctx[2];
	struct account *a = this_account();
	u32 pid, state = 0;

	if (!a)
		return 0;
	no_frames(a);
	task_border(a);
	put_task(a);
	pid = prev->pid;
	softirq_is_left(a, pid);
	if (pid) {
		if (a->victim != KP_OTHERS)
			announce_task((u64)(u32)prev->tgid << 32 | pid, 0);
		if (a->mode == KP_WORK_FAULT)
			state = a->before_fault == KP_WORK_USER ? FAULT_OF_USER : FAULT_OF_KERNEL;
		else if (a->mode == KP_WORK_USER && in_system_call((struct pt_regs *)bpf_task_pt_regs(prev)))
			state = LEAVING;
		if (state) {
			take_state(pid, 3);
			keep_state(pid, state);
		}
	}
	if (a->child)
		child_rests(a);
	if (a->since & (WROTE | TELLS) && ctx[3] & TASK_INTERRUPTIBLE && !ctx[0])
		sleeps(a, prev);
	pair_is_left(a, pid);
	pair_goes_on(a, next->pid);
	rest_is_left(a, pid);
	runs(a, next);
	rest_is_left(a, a->pid);
	softirq_goes_on(a, next->pid);
	return 0;
}

static __always_inline void task_ends_name(void)
{
	struct account *a = this_account();
	u64 id = bpf_get_current_pid_tgid();

	if (a && !a->level && a->pid == (u32)id && a->victim != KP_OTHERS)
		announce_task(id, 0);
}

/* (parent, child): the task that had its number before may have ended while it worked for another, or in a page fault. */
PAIR("raw_tp/sched_process_fork", work_sched_process_fork, AT_FORK)
{
	u32 pid = kread((struct task_struct *)(ctx[1]), pid), process = kread((struct task_struct *)(ctx[1]), tgid);
	struct account *a = this_account();
	u32 had;

	if (pid == process)
		begins(ctx[1], pid);
	forget_name_of(pid);
	had = take_state(pid, 3 | SERVES | HANDED | HANDS | SERVER | CHILD);
	if (had & SERVES)
		bpf_map_delete_elem(&served_tasks, &pid);
	if (had & CHILD)
		bpf_map_delete_elem(&children, &pid);
	if (pid != process && no_frames(a) && a->pid == (u32)current_pid_tgid() && hands_on(a) && a->victim != KP_OTHERS) {
		is_handed(pid, 0, 0, client_of(a) ?: NOT_SAID);
		keep_state(process, HANDS);
	}
	if (no_frames(a) && a->pid == (u32)current_pid_tgid() && a->victim != KP_OTHERS && (a->child || pid == process))
		makes_child(a, pid);
	begins_as_chosen(ctx[0], ctx[1]);
	return 0;
}

/* It is another program, which was handed nothing, and whose answers tell nothing yet. What the old one took it may answer itself. */
static __noinline int is_another_program(struct account *a)
{
	u32 pid;

	if (!a)
		return 0;
	if (a->since & TELLS)
		serve(a, 0, 0);
	if (!a->handed)
		return 0;
	border(a);
	put_task(a);
	pid = a->pid;
	take_state(pid, HANDED);
	bpf_map_delete_elem(&handed_tasks, &pid);
	a->handed = 0;
	return 0;
}

/* (task, old pid, program): its name is another one now */
PAIR("raw_tp/sched_process_exec", work_sched_process_exec, AT_EXEC)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct account *a = this_account();
	u32 process = bpf_get_current_pid_tgid() >> 32;

	if (no_frames(a) && a->pid == (u32)current_pid_tgid())
		is_another_program(a);
	if (!choosing())
		return 0;
	bpf_map_delete_elem(&fitting, &process);
	if (!no_frames(a))
		return 0;
	task_border(a);
	put_task(a);
	if (a->victim != KP_OTHERS) /* it may be charged already */
		announce_task(bpf_get_current_pid_tgid(), 0);
	a->victim = victim_of(task, process);
	return 0;
}

/* (cgroup, path, task, all of its threads): it is another's, and whether it is chosen is asked again. */
SEC("raw_tp/cgroup_attach_task")
int work_cgroup_attach_task(u64 *ctx)
{
	u32 process = kread((struct task_struct *)(ctx[2]), tgid);

	forget_name_of(kread((struct task_struct *)(ctx[2]), pid));
	if (choosing())
		bpf_map_delete_elem(&fitting, &process);
	return 0;
}

/* A system call begins or ends; NULL: not seen. */
static __always_inline struct account *system_call(u32 mode)
{
	struct account *a = this_account();

	if (!no_frames(a))
		return NULL;
	task_border(a);
	a->mode = mode;
	if (mode == KP_WORK_KERNEL)
		a->calls++;
	return a;
}

static __always_inline int fault_begins(void)
{
	struct account *a = this_account();

	if (!no_frames(a))
		return 0;
	task_border(a);
	if (a->mode != KP_WORK_USER && a->mode != KP_WORK_KERNEL)
		return 0;
	a->before_fault = a->mode;
	a->mode = KP_WORK_FAULT;
	return 0;
}

SEC("raw_tp/page_fault_user")
int work_page_fault_user(u64 *ctx)
{
	return fault_begins();
}

SEC("raw_tp/page_fault_kernel")
int work_page_fault_kernel(u64 *ctx)
{
	return fault_begins();
}

/* By the kernel's software events of minor and major faults: the page is there. */
SEC("perf_event")
int fault_done(void *ctx)
{
	struct account *a = this_account();

	if (!no_frames(a))
		return 0;
	task_border(a);
	a->faults++;
	if (a->mode == KP_WORK_FAULT)
		a->mode = a->before_fault;
	return 0;
}

/* A fault without a page ends in a signal. */
PAIR("raw_tp/signal_deliver", work_signal_deliver, AT_SIGNAL)
{
	struct account *a = this_account();

	if (!no_frames(a) || a->mode != KP_WORK_FAULT)
		return 0;
	task_border(a);
	a->mode = KP_WORK_USER;
	return 0;
}

#endif
