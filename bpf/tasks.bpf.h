/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which task runs: its name, once, and when it was off the CPU.
 *
 * A pause is kept where the scheduler switches tasks, whatever the task does, and logged only when the task next handles a
 * recorded packet, before that record: so a task that never does costs no record, and whoever handles packets asks one question
 * that it asks anyway, "is this still the task of my last record?". A switch makes the answer no.
 * Rejected: to note at each entry that a call is open. Switches are fewer than calls by far, and a task may change its CPU.
 */
#ifndef KPAT_TASKS_H
#define KPAT_TASKS_H

#include "contexts.bpf.h"
#include "ring.bpf.h"

#ifndef KPAT_PROGRAMS
struct kernfs_node___own {
	u64 id;
} __core;

struct cgroup___own {
	struct kernfs_node___own *kn;
} __core;

struct css_set___own {
	struct cgroup___own *dfl_cgrp;
} __core;

struct task_struct___started {
	struct task_struct___started *group_leader;
	u64 start_boottime; /* from 5.5 on */
	struct css_set___own *cgroups; /* not without CONFIG_CGROUPS */
} __core;

/* Boot time of the start of the current task's process; 0: not known. */
static __always_inline u64 process_started(void)
{
	struct task_struct___started *task = (void *)bpf_get_current_task();

	return bpf_core_field_exists(task->start_boottime) ? BPF_CORE_READ(task, group_leader, start_boottime) : 0;
}

/* The current task's cgroup in cgroup2; 0: not known. Not by the helper, which kernels without cgroups do not have. */
static __always_inline u64 own_cgroup(void)
{
	struct task_struct___started *task = (void *)bpf_get_current_task();

	return bpf_core_field_exists(task->cgroups) ? BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id) : 0;
}
#endif

#ifndef KPAT_APP
#include "sleeps.bpf.h"

#define TASK_DEAD 0x80 /* include/linux/sched.h: switched out for the last time */

/* Pauses of a task that were not logged; of more than fit the last are kept. */
#define PAUSES 4
struct pause {
	u64 out; /* boot time */
	u64 woken; /* 0: not seen */
	u64 in;
	u16 cpu_out;
	u16 cpu_in;
	u32 flags; /* as in the log, but for KP_PAUSE_MORE */
	u32 out_pid; /* who wrote the beginning */
	u32 in_pid; /* and the end: another if its slot was taken from it meanwhile */
};

struct task_slot {
	u32 pid;
	u32 taken_from; /* a task that handles packets and had to give way, with a pause that was not logged */
	u32 off; /* the pause in the place of the next is not over */
	u32 count; /* pauses that are over */
	u32 logged; /* of these, logged or too old to be */
	u32 packets; /* it has handled a recorded packet */
	u64 taken; /* boot time since when the slot is this task's */
	struct pause last[PAUSES];
};

/*
 * A task has one of two slots: by the low bits of its thread id, or by those of a multiple of it. With one slot only, two tasks
 * that sleep in turns took it from each other for as long as both lived, which of 150 tasks befell one in fifty.
 */
#define TASK_SLOTS 8192
struct task_slot task_slots[TASK_SLOTS] SEC(".data.tasks");

static __always_inline struct task_slot *first_slot(u32 pid)
{
	return &task_slots[pid & (TASK_SLOTS - 1)];
}

static __always_inline struct task_slot *second_slot(u32 pid)
{
	return &task_slots[pid * 2654435761u >> 19]; /* Knuth's multiplier; 13 bits are left */
}

/* The slot that a task has; if it has none, the second of the two that it could have. */
static __always_inline struct task_slot *task_slot(u32 pid)
{
	struct task_slot *s = first_slot(pid);

	return s->pid == pid ? s : second_slot(pid);
}

/* 0: nobody has the slot, 1: it has nothing that a record may need, 2: it may, if its task is to handle a packet for the first time, 3: it has. */
static __always_inline u32 slot_worth(struct task_slot *s)
{
	if (!s->pid)
		return 0;
	if (!s->off && s->count == s->logged)
		return 1;
	return s->packets ? 3 : 2;
}

/* A slot for a task that has none: of the two the one that is worth less. */
static __always_inline struct task_slot *take_slot(u32 pid, u64 now)
{
	struct task_slot *first = first_slot(pid), *second = second_slot(pid);
	struct task_slot *s = slot_worth(first) < slot_worth(second) ? first : second;

	s->taken_from = slot_worth(s) == 3 ? s->pid : 0;
	s->pid = pid;
	s->count = s->logged = s->packets = 0;
	s->taken = now;
	return s;
}

/*
 * A slot is taken on one CPU while its task may be switched in or out on another, without a lock: what both wrote is neither's.
 * A pause counts if one task wrote both ends, since it has the slot.
 */
static __always_inline bool pause_of(struct task_slot *s, struct pause *p, u32 pid)
{
	return p->out_pid == pid && p->in_pid == pid && p->out >= s->taken && p->in >= p->out;
}

static __always_inline void log_pauses(struct kp_ring_ctl *ctl, u32 pid)
{
	struct task_slot *s = task_slot(pid);
	u32 n, at, room = PAUSES, flags = 0;
	struct kp_pause *r;
	struct pause *p;
	u64 wait;

	if (s->pid != pid) {
		if (first_slot(pid)->taken_from == pid)
			s = first_slot(pid);
		if (s->taken_from == pid) {
			s->taken_from = 0;
			count_loss(ctl, KP_LOSS_TASK_TABLE);
		}
		return;
	}
	n = s->count;
	at = s->logged;
	s->logged = n;
	if (s->off) {
		/* It runs: no program saw that it was switched in, as on kernels that run none upon the switch from some task. */
		s->last[n & (PAUSES - 1)].in_pid = 0;
		s->off = 0;
		s->count = n + 1; /* the next pause that is logged will say that this one is not */
		room = PAUSES - 1;
	}
	if (n - at > room) {
		at = n - room;
		flags = KP_PAUSE_MORE;
	}
	for (int i = 0; i < PAUSES; i++, at++) {
		if (at == n)
			break;
		p = &s->last[at & (PAUSES - 1)];
		if (!pause_of(s, p, pid)) {
			if (p->in_pid)
				count_loss(ctl, KP_LOSS_TASK_TABLE);
			flags = KP_PAUSE_MORE;
			continue;
		}
		r = ring_reserve(ctl, sizeof(*r));
		if (!r)
			return;
		r->h.ts = p->in;
		r->dur = p->in - p->out;
		wait = p->woken > p->out && p->woken <= p->in ? p->in - p->woken : 0;
		r->wait = wait > 0xffffffffULL ? 0xffffffff : wait;
		r->cpu_out = p->cpu_out;
		r->cpu_in = p->cpu_in;
		ring_commit(&r->h, KP_PAUSE, sizeof(*r), flags | p->flags, pid);
		flags = 0;
	}
}
#endif

/*
 * Global functions are verified once and by their own; a static one anew for each way that leads to it. So the long ones
 * are global, take numbers only, and loading takes a third of the time.
 */
__noinline int announce_task(u64 pid_tgid, u64 interrupted)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 pid = (u32)pid_tgid, slot = (pid >> 6) & 0xffff;
	u64 bit = 1ULL << (pid & 63), *word;
	struct kp_process *r;

	if (!ctl)
		return 0;
	ctl->last_pid[interrupted & 1] = pid;
#ifndef KPAT_APP
	if (!interrupted)
		log_pauses(ctl, pid);
#endif
	word = bpf_map_lookup_elem(&named_pids, &slot);
	if (!word || (*word & bit))
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0; /* the bit stays clear: tried again at the next chance */
	__sync_fetch_and_or(word, bit);
	r->h.ts = bpf_ktime_get_boot_ns();
	r->tgid = pid_tgid >> 32;
	bpf_get_current_comm(r->comm, sizeof(r->comm));
#ifndef KPAT_PROGRAMS
	r->uid = (u32)bpf_get_current_uid_gid();
	r->cgroup = own_cgroup();
	r->started = process_started();
	r->number = 0;
#endif
	ring_commit(&r->h, KP_PROCESS, sizeof(*r), 0, pid);
	return 0;
}

/* Thread id of the current task; its name goes into the log the first time. */
static __always_inline u32 current_pid(struct kp_ring_ctl *ctl, u64 pid_tgid, u8 ctx)
{
	if (ctl->last_pid[ctx != 0] != (u32)pid_tgid)
		announce_task(pid_tgid, ctx != 0);
	return (u32)pid_tgid;
}

/* The recorder's own process, as a task: what it does is not traffic. */
static __always_inline bool own_doing(u8 ctx, u64 pid_tgid)
{
	return own_tgid && ctx == 0 && pid_tgid >> 32 == own_tgid;
}

/* A task took another name or went, or has begun: say its name again at the next sight of that id. */
static __always_inline int forget_name_of(u32 pid)
{
	u32 slot = (pid >> 6) & 0xffff;
	u64 *word = bpf_map_lookup_elem(&named_pids, &slot);

	if (word)
		__sync_fetch_and_and(word, ~(1ULL << (pid & 63)));
	return 0;
}

static __always_inline int forget_name(void)
{
	return forget_name_of((u32)current_pid_tgid());
}

#ifdef KPAT_PROFILE
/* A program that another takes the place of may never have been switched out: its name is in the log, as its time is. */
static __always_inline void task_ends_name(void);
/* What it did last is its last client's (bells.bpf.h). */
static __always_inline void task_ends_work(void);
#endif

SEC("raw_tp/sched_process_exit")
int task_sched_process_exit(u64 *ctx)
{
#ifdef KPAT_PROFILE
	task_ends_work();
#endif
	return forget_name();
}

/* (task, name): it still has the one before */
SEC("raw_tp/task_rename")
int task_task_rename(u64 *ctx)
{
#ifdef KPAT_PROFILE
	task_ends_name();
#endif
	return forget_name();
}

#ifndef KPAT_APP
static __always_inline void switched_out(u32 pid, u64 now, u16 cpu, u32 state, bool handled)
{
	struct task_slot *s = task_slot(pid);
	struct pause *p;

	if (s->pid != pid)
		s = take_slot(pid, now);
	s->packets |= handled;
	s->off = 1;
	p = &s->last[s->count & (PAUSES - 1)];
	p->out = now;
	p->woken = 0;
	p->cpu_out = cpu;
	/* Most tasks never handle a packet, and their pauses are never logged. */
	p->flags = !state ? KP_PAUSE_PREEMPTED : s->packets ? sleeps_for(state) << KP_PAUSE_SLEEP_SHIFT : 0;
	p->out_pid = pid;
}

/* (preempt, prev, next, prev_state); the last came with 5.18. The idle task, which every CPU has, has no pauses. */
SEC("raw_tp/sched_switch")
int event_3_sched_switch(u64 *ctx)
{
	u32 pid = (u32)current_pid_tgid();
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 cpu = bpf_get_smp_processor_id();
	struct task_slot *s;
	struct pause *p;
	bool handled;
	u64 now;

	if (!ctl || !EVENT_MODE(3))
		return 0;
	handled = ctl->last_pid[0] == pid; /* since it was switched in, it handled a recorded packet */
	ctl->last_pid[0] = ~0;
	now = bpf_ktime_get_boot_ns();
	s = task_slot(pid);
	if (pid && ctx[3] & TASK_DEAD) {
		if (s->pid == pid)
			s->pid = s->off = s->packets = 0;
	} else if (pid) {
		switched_out(pid, now, cpu, ctx[0] ? 0 : ctx[3], handled);
	}
	pid = kread((struct task_struct *)(ctx[2]), pid);
	s = task_slot(pid);
	if (!pid || s->pid != pid || !s->off)
		return 0;
	p = &s->last[s->count & (PAUSES - 1)];
	p->in = now;
	p->cpu_in = cpu;
	p->in_pid = pid;
	s->off = 0;
	s->count++;
	return 0;
}

/* (task): it may run again */
SEC("raw_tp/sched_wakeup")
int event_4_sched_wakeup(u64 *ctx)
{
	u32 pid;
	struct task_slot *s;
	struct pause *p;

	if (!EVENT_MODE(4))
		return 0;
	pid = kread((struct task_struct *)(ctx[0]), pid);
	s = task_slot(pid);
	p = &s->last[s->count & (PAUSES - 1)];
	if (s->pid == pid && s->off && !p->woken)
		p->woken = bpf_ktime_get_boot_ns();
	return 0;
}
#endif

#endif
