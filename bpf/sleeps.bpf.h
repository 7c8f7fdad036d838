/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a task sleeps for: by the state in which it gives up its CPU, and else by the system call that it is in. So whoever waits for a program's answer learns
 * whether that one waits for a lock, a disk or somebody else, or was stopped.
 *
 * Rejected: its stack in the kernel. It tells which disk's driver, and costs a microsecond at each switch.
 */
#ifndef KPAT_SLEEPS_H
#define KPAT_SLEEPS_H

#include "kernel.h"

/* include/linux/sched.h, include/linux/sched/jobctl.h */
#define TASK_UNINTERRUPTIBLE 2
#define TASK_NOLOAD 0x400 /* with it a kernel's thread has nothing to do */
#define TASK_STOPPED_OR_TRACED 12
#define TASK_FROZEN 0x8000 /* from 6.1 on: cgroup's freezer, suspend */
#define JOBCTL_TRAP_FREEZE 0x800000 /* cgroup2's freezer: its tasks sleep interruptibly */

struct task_struct___sleeps {
	unsigned long jobctl;
	void *mm;
} __core;

enum bpf_func_id___sleeps { BPF_FUNC_task_pt_regs___sleeps = 175 }; /* from 5.15 on */

/* By the system call; of poll and select without a descriptor only the time matters. */
static __always_inline u32 sleep_of_call(struct pt_regs *regs)
{
	switch (system_call_of(regs)) {
	case SYS_FUTEX:
	case SYS_FLOCK:
	case SYS_FCNTL:
	case SYS_SEMOP:
	case SYS_SEMTIMEDOP:
		return KP_SLEEP_LOCK;
	case SYS_NANOSLEEP:
	case SYS_CLOCK_NANOSLEEP:
		return KP_SLEEP_TIMER;
	case SYS_WAIT4:
	case SYS_WAITID:
		return KP_SLEEP_CHILD;
#ifdef SYS_SELECT
	case SYS_SELECT:
#endif
	case SYS_PSELECT6:
		return (u32)system_call_arg(regs, 0) ? KP_SLEEP_DESCRIPTORS : KP_SLEEP_TIMER;
#ifdef SYS_POLL
	case SYS_POLL:
#endif
	case SYS_PPOLL:
		return (u32)system_call_arg(regs, 1) ? KP_SLEEP_DESCRIPTORS : KP_SLEEP_TIMER;
#ifdef SYS_EPOLL_WAIT
	case SYS_EPOLL_WAIT:
#endif
	case SYS_EPOLL_PWAIT:
	case SYS_EPOLL_PWAIT2:
	case SYS_IO_URING_ENTER:
		return KP_SLEEP_DESCRIPTORS;
	case SYS_READ:
	case SYS_READV:
	case SYS_RECVFROM:
	case SYS_RECVMSG:
	case SYS_RECVMMSG:
	case SYS_ACCEPT:
	case SYS_ACCEPT4:
	case SYS_CONNECT:
	case SYS_MSGRCV:
	case SYS_MQ_TIMEDRECEIVE:
		return KP_SLEEP_DATA;
	case SYS_WRITE:
	case SYS_WRITEV:
	case SYS_SENDTO:
	case SYS_SENDMSG:
	case SYS_SENDMMSG:
	case SYS_SENDFILE:
	case SYS_SPLICE:
	case SYS_MSGSND:
	case SYS_MQ_TIMEDSEND:
		return KP_SLEEP_ROOM;
	}
	return KP_SLEEP_OTHER;
}

/* The task that runs gives up its CPU in this state. 0: not known, as of a kernel's own thread. */
__noinline int sleeps_for(u32 state)
{
	struct task_struct___sleeps *task = (void *)bpf_get_current_task();
	struct pt_regs *regs;

	if (state & TASK_STOPPED_OR_TRACED)
		return KP_SLEEP_STOPPED;
	if (state & TASK_FROZEN)
		return KP_SLEEP_FROZEN;
	if ((state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD)) == TASK_UNINTERRUPTIBLE)
		return KP_SLEEP_UNINTERRUPTIBLE;
	if (kread(task, jobctl) & JOBCTL_TRAP_FREEZE)
		return KP_SLEEP_FROZEN;
	if (!kread(task, mm) || !bpf_core_enum_value_exists(enum bpf_func_id___sleeps, BPF_FUNC_task_pt_regs___sleeps))
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs((struct task_struct *)bpf_get_current_task_btf());
	return in_system_call(regs) ? sleep_of_call(regs) : KP_SLEEP_OTHER;
}

#endif
