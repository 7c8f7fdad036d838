/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A server waits: by epoll, poll or select, asleep, or in another call that lasts until there is something for it. What it does since it took a client's message is for that one, until it takes another's. But who has answered, and waits, may do something of its own
 * next: because a time is over, for a connection that is new or at its end. So from when a task is seen to do that, its answers tell for whom it works (tells.bpf.h), and what it does between two waits without taking
 * a message or answering is its own.
 *
 * Rejected: that its answers tell from its first wait on. Each answer costs more, and most servers do hardly anything that nobody asked for.
 */
#ifndef KPAT_WAITS_H
#define KPAT_WAITS_H

#include "handing.bpf.h"

enum { BY_EPOLL, BY_POLL, BY_SELECT, BY_SLEEP };

/* Was it let wait? Else it may have been preempted there. */
static __always_inline bool may_sleep(struct pt_regs *regs, u32 how)
{
	return how == BY_EPOLL ? (u32)system_call_arg4(regs) != 0 : how == BY_POLL ? (u32)system_call_arg(regs, 2) != 0 : true;
}

/* A task whose answers tell begins to wait: nothing is left of what it may have done for a client, so what it did since it waited last, if it neither took a message nor answered, is its own. */
__noinline int has_done_all(struct account *a, u32 how)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct handed *h;
	u32 pid;

	if (!a || how == BY_SLEEP || !may_sleep((struct pt_regs *)bpf_task_pt_regs(task), how))
		return 0;
	pid = a->pid;
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	if (!h || !owes_nothing(h))
		return 0;
	h->taken = 0;
	return h->last == NOTHING && !h->client ? part_is_for(a, h, 0, 0) : 0;
}

/* A wait begins. False: its end does not matter. */
static __always_inline bool wait_begins(struct account *a, u32 how)
{
	if (a->since & TELLS) {
		has_done_all(a, how);
		return true;
	}
	if (has_answered(a)) {
		if (has_worked(a))
			works_silently(a);
		return true;
	}
	return how != BY_SLEEP && state_is(bpf_get_current_pid_tgid() >> 32, HANDS);
}

/* A task has waited: for so many events, or until a time was over. */
static __noinline int wait_ends(struct account *a, struct pt_regs *regs, long events, u32 how)
{
	struct file___open *file;
	struct handed *h;
	u32 pid;

	if (!a || !regs || a->mode == KP_WORK_THREAD || a->victim == KP_OTHERS)
		return 0;
	pid = a->pid;
	if (a->called_by != pid && may_sleep(regs, how)) {
		if (has_answered(a)) {
			a->rests = pid;
			a->rested_at = a->last;
			if (events <= 0)
				works_silently(a);
		}
		h = a->since & TELLS ? bpf_map_lookup_elem(&handed_tasks, &pid) : NULL;
		if (h && (how != BY_SLEEP || owes_nothing(h)))
			slept(a, h);
	}
	if (how != BY_EPOLL || events <= 0 || !state_is(bpf_get_current_pid_tgid() >> 32, HANDS))
		return 0;
	file = file_of(system_call_arg(regs, 0));
	return file ? rung(a, bell_of((u64)BPF_CORE_READ(file, private_data))) : 0;
}

/* Calls other than those above in which a task sleeps until there is something to do: until there is a message, a connection or an event, a child has ended, or there is a signal. Not locks, which are in the midst of work. */
enum { NO_REST, FOR_OTHERS, FOR_SIGNALS };
static __always_inline u32 rests_in(u64 call)
{
	switch (call) {
	case SYS_READ:
	case SYS_READV:
	case SYS_RECVFROM:
	case SYS_RECVMSG:
	case SYS_RECVMMSG:
	case SYS_ACCEPT:
	case SYS_ACCEPT4:
	case SYS_MSGRCV:
	case SYS_MQ_TIMEDRECEIVE:
	case SYS_WAIT4:
	case SYS_WAITID:
		return FOR_OTHERS;
#ifdef SYS_PAUSE
	case SYS_PAUSE:
#endif
	case SYS_RT_SIGSUSPEND:
	case SYS_RT_SIGTIMEDWAIT:
		return FOR_SIGNALS;
	}
	return NO_REST;
}

/* A task that works for a client, and has written since or whose answers tell, sleeps in a call. */
static __noinline int sleeps(struct account *a, struct task_struct *task)
{
	struct pt_regs *regs;
	struct handed *h;
	u32 how, pid;

	if (!a || !task || a->mode != KP_WORK_KERNEL)
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs(task);
	how = regs ? rests_in(system_call_of(regs)) : NO_REST;
	if (how == NO_REST)
		return 0;
	pid = a->pid;
	if (has_answered(a)) {
		if (how == FOR_SIGNALS || has_worked(a))
			works_silently(a);
		a->rests = pid;
		a->rested_at = a->last;
	}
	h = a->since & TELLS ? bpf_map_lookup_elem(&handed_tasks, &pid) : NULL;
	return h && owes_nothing(h) ? slept(a, h) : 0;
}

/* A task has taken a datagram, and does not ask of whom. What it does for it is no other client's, if it owes none an answer. */
static __noinline int takes_of_nobody(struct account *a)
{
	if (!a)
		return 0;
	if (has_answered(a))
		works_silently(a);
	return turns_elsewhere(a);
}

#endif
