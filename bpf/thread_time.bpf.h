/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a thread did between two of its calls on one socket: it ran, waited for a CPU (because others ran there, or its group had used up its share), or slept. By the
 * counts that the kernel keeps for each thread (kernel/sched/stats.h, fair.c), read when a call that sends begins, where that is seen, and when any is over: `run_delay` is
 * whole by then, `sum_exec_runtime` as of the last switch or tick; who never slept ran all the rest.
 */
#ifndef KPAT_THREAD_TIME_H
#define KPAT_THREAD_TIME_H

#include "writer.bpf.h"

struct sched_info {
	unsigned long long run_delay;
} __core;

struct sched_entity {
	u64 sum_exec_runtime;
} __core;

struct task_struct___times {
	struct sched_info sched_info;
	struct sched_entity se;
	unsigned long nvcsw; /* how often it slept */
} __core;

/* Of a shorter time nothing is logged: a call costs some microseconds itself. */
#define THREAD_TIME_NS 1000000

static __always_inline bool log_thread_time(struct sock_entry *e, u64 now, u64 ran, u64 waited, u32 slept)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_thread_time *r = ctl ? ring_try(ctl, sizeof(*r)) : NULL;

	/* else later: that time is then part of a longer one */
	if (!r)
		return false;
	r->ts = now;
	r->since = e->called;
	r->ran = ran - e->ran;
	r->waited = waited - e->waited;
	r->thread = e->caller;
	r->slept = slept - e->slept;
	commit_word(r, KP_THREAD_TIME | (sizeof(*r) / KP_SLOT) << 8 | e->cookie << 32);
	return true;
}

/* The thread that runs begins to send, or its call is over. */
static __always_inline void thread_time(struct sock_entry *e, u64 now)
{
	struct task_struct___times *task = (struct task_struct___times *)bpf_get_current_task();
	u32 thread = current_pid_tgid(), slept;
	u64 ran, waited;

	if (!bpf_core_field_exists(task->sched_info.run_delay))
		return;
	waited = kread(task, sched_info.run_delay);
	ran = kread(task, se.sum_exec_runtime);
	slept = kread(task, nvcsw);
	if (e->caller == thread && now - e->called >= THREAD_TIME_NS && e->calls == (u32)settings.epoch && !log_thread_time(e, now, ran, waited, slept))
		return;
	e->called = now;
	e->ran = ran;
	e->waited = waited;
	e->slept = slept;
	e->caller = thread;
	e->calls = settings.epoch;
}

#endif
