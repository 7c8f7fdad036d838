/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Samples: a clock of each CPU interrupts it at a fixed rate, and what it interrupts is logged with its stacks, in the kernel and in user mode. Who is
 * served the account of the CPU says (account.bpf.h), so a sample in a softirq is not the interrupted task's. The account's sums are exact and the
 * samples are not; they say which functions the time went to.
 *
 * A stack is logged once, with a number made of its frames, and samples name that number. In user mode it is also made of the process and of how many programs
 * it ran before, for the same addresses are other functions in another one. Rejected: the kernel's own table of stacks (BPF_MAP_TYPE_STACK_TRACE). It has one
 * place for each hash and loses the second stack that comes there.
 *
 * The clock is an interrupt: it cannot come within another one, whose time is in the sample that comes right after it, nor while interrupts are off.
 */
#ifndef KPAT_STACKS_H
#define KPAT_STACKS_H

#include "received.bpf.h"

/* Time between two samples of a CPU; 0: there are none. */
const volatile u64 sample_period = 0;

/* Of now: it changes. */
u64 period_of_now SEC(".data.period") = 0;

/* Stacks that were logged, each in which file. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u64);
	__type(value, u64);
} stacks_logged SEC(".maps");

struct frames {
	u64 at[KP_FRAMES + 1];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct frames);
} frames SEC(".maps");

struct task_struct___program {
	u32 self_exec_id; /* 64 bits from 5.7 on, of which the low ones are enough */
} __core;

/* How many programs the current task's process ran before. */
static __always_inline u32 programs_before(void)
{
	u64 task = bpf_get_current_task();

	if (!bpf_core_field_exists(struct task_struct___program, self_exec_id))
		return 0;
	return (u32)kread_word(task + bpf_core_field_offset(struct task_struct___program, self_exec_id));
}

/* The current task's process by its number, which what it ran on this CPU is charged to; by its id where the switch to it was not seen. */
static __always_inline u32 stacks_owner(struct account *a, u32 process)
{
	return (a->victim & KP_ID_MASK) == process ? a->victim : process;
}

/*
 * The number of this CPU's frames as a stack: of a process's own, because what its addresses mean is its own. Not static: the verifier walks through its loop
 * once, and not for each number of frames and each way on which it is called.
 */
__noinline u64 stack_number(u32 count, u32 process, u32 program)
{
	u64 h = 0x9e3779b97f4a7c15ULL + process + ((u64)program << 32);
	u32 zero = 0;
	struct frames *f = bpf_map_lookup_elem(&frames, &zero);

	if (!f)
		return 0;
	for (u32 i = 0; i < KP_FRAMES; i++) {
		if (i >= count)
			break;
		h = (h ^ f->at[i]) * 0xff51afd7ed558ccdULL;
		h ^= h >> 32;
	}
	return h | 1;
}

/* Logs this CPU's frames if they were not logged; their number as a stack, 0: there are none. */
__noinline u64 log_stack(long bytes, u32 process, u32 program)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 number, round, *logged;
	struct kp_stack *r;
	u32 count, size, zero = 0;
	struct frames *f = bpf_map_lookup_elem(&frames, &zero);

	if (!ctl || !f || bytes < 8)
		return 0;
	count = (u64)bytes / 8;
	if (count > KP_FRAMES)
		count = KP_FRAMES;
	number = stack_number(count, process, program);
	round = *(volatile u64 *)&file_round;
	logged = bpf_map_lookup_elem(&stacks_logged, &number);
	if (logged && *logged == round)
		return number;
	size = count * 8;
	r = ring_reserve(ctl, __builtin_offsetof(struct kp_stack, frames) + size);
	if (!r)
		return number; /* the sample still says that it is the same stack as another's */
	r->h.ts = bpf_ktime_get_boot_ns();
	r->number = number;
	size &= 1023;
	bpf_probe_read_kernel(r->frames, size, f->at);
	ring_commit(&r->h, KP_STACK, __builtin_offsetof(struct kp_stack, frames) + size, count, process);
	bpf_map_update_elem(&stacks_logged, &number, &round, BPF_ANY);
	return number;
}

/* Who is served in a softirq, and whether that is known yet: a packet's owner is found while it is handled. */
static __always_inline u32 served(struct account *a, u32 top, u64 *socket)
{
	struct packet *p;

	if (top == SOFTIRQ + BLOCK && a->block[0].open && a->block[0].owner) {
		*socket = a->block[0].owner;
		return KP_FOR_BLOCK;
	}
	if (top != SOFTIRQ + NET_RX) {
		*socket = a->sends_for;
		return *socket ? KP_FOR_SOCKET : KP_FOR_KERNEL;
	}
	p = packet_at(a, a->over);
	if (!a->came || !is_alone(a) || !(p->socket || p->purpose)) /* one of several: which one is drawn when all are known */
		return KP_FOR_UNKNOWN;
	*socket = p->socket;
	return p->socket ? KP_FOR_SOCKET : p->purpose;
}

/* What it is for is known when that part of the softirq is over. */
static __always_inline bool waits_for_part(struct account *a, u32 top, u32 purpose)
{
	return purpose == KP_FOR_KERNEL && is_softirq(top) && top != SOFTIRQ + BLOCK;
}

/*
 * The kernel's clock does not make up for what it missed where interrupts were off or a virtual machine's host ran something else, and the account charges all
 * of that time to what was on top: a late sample stands for it. But where the CPU slept the clock comes when it wakes, just to whom it wakes for. So a
 * late one stands for the time that was not idle, and what is less than a period of it is drawn by lot; 0: for none.
 */
static __always_inline void count_periods(struct account *a, u64 now)
{
	u64 before = exchange(&a->ticked, now), period = *(volatile u64 *)&period_of_now, n = 1;
	u64 idle = a->idled + *(volatile u64 *)&a->base[KP_WORK_IDLE], slept = idle - exchange(&a->idle_then, idle);

	if (before && period && now > before + period + period / 4) {
		n = now - before;
		n = (slept < n ? n - slept : 0) + (((u64)bpf_get_prandom_u32() * period) >> 32);
		n /= period;
	}
	/* in memory: the verifier would follow each value from here on */
	store_once(&a->periods, n > 255 ? 255 : n);
}

SEC("perf_event")
int sample_clock(struct pt_regs *ctx)
{
	struct account *a = this_account();
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 zero = 0, level, top, busy, purpose, flags = 0;
	u64 id = bpf_get_current_pid_tgid(), kernel, user = 0, socket = 0, now;
	struct kp_sample *r;
	struct frames *f;

	f = bpf_map_lookup_elem(&frames, &zero);
	if (!a || !ctl || !f)
		return 0;
	now = bpf_ktime_get_boot_ns();
	count_periods(a, now);
	if (!*(volatile u64 *)&a->periods)
		return 0;
	level = a->level & (LEVELS - 1);
	top = level ? a->frame[level] : 0;
	if (top == HARDIRQ) { /* the clock itself */
		level--;
		asm volatile("" : "+r"(level)); /* the compiler knows that it is in range, and 6.1's verifier does not */
		top = level ? a->frame[level & (LEVELS - 1)] : 0;
	}
	if (!top) {
		busy = a->mode;
		socket = a->serving;
		purpose = socket ? a->serving_for : KP_FOR_ITSELF;
	} else if (top >= HARDIRQ) {
		busy = KP_WORK_HARDIRQ;
		purpose = KP_FOR_KERNEL;
	} else {
		busy = of_softirq(a);
		purpose = served(a, top, &socket);
	}
	if (!kernel_address(reg_pc(ctx)))
		flags |= KP_SAMPLE_USER_MODE;
	if (!is_wanted(a, purpose, socket))
		return 0;
	if ((u32)id && a->victim != KP_OTHERS)
		announce_task(id, busy > KP_WORK_THREAD);
	kernel = busy == KP_WORK_IDLE ? 0 : log_stack(bpf_get_stack(ctx, f->at, KP_FRAMES * 8, 0), 0, 0);
	if (a->victim != KP_OTHERS && (busy == KP_WORK_USER || busy == KP_WORK_KERNEL || busy == KP_WORK_FAULT))
		user = log_stack(bpf_get_stack(ctx, f->at, KP_FRAMES * 8, BPF_F_USER_STACK), stacks_owner(a, id >> 32), programs_before());
	if ((purpose == KP_FOR_UNKNOWN || waits_for_part(a, top, purpose)) && !a->held_for) {
		a->held.h.ts = now;
		a->held.h.pid = a->victim == KP_OTHERS ? 0 : (u32)id;
		a->held.kernel = kernel;
		a->held.user = user;
		a->held.process = a->victim;
		a->held.busy = busy;
		a->held.flags = flags;
		a->held.periods = a->periods;
		a->held_for = purpose != KP_FOR_UNKNOWN ? HELD_FOR_PART : a->came ? HELD_FOR_PACKET : HELD_FOR_SOFTIRQ;
		return 0;
	}
	if (purpose == KP_FOR_UNKNOWN)
		flags |= KP_SAMPLE_OPEN;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = now;
	r->kernel = kernel;
	r->user = user;
	r->socket = socket;
	r->process = a->victim;
	r->busy = busy;
	r->purpose = purpose;
	r->flags = flags;
	r->periods = a->periods;
	ring_commit(&r->h, KP_SAMPLE, sizeof(*r), 0, a->victim == KP_OTHERS ? 0 : (u32)id);
	return 0;
}

#endif
