/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Per-CPU rings: reserve, commit, count what does not fit. Layout and rules: wire.h. */
#ifndef KPAT_RING_H
#define KPAT_RING_H

#include "config.bpf.h"

static __always_inline struct kp_ring_ctl *ring_ctl(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&rings, &cpu);
}

static __always_inline void count_loss(struct kp_ring_ctl *ctl, u32 cause)
{
	__sync_fetch_and_add(&ctl->lost[cause & (KP_LOSS_MAX - 1)], 1);
}

/*
 * Space for a record of `bytes` (a multiple of KP_SLOT), NULL when full. An interrupt between the load and the
 * exchange makes the exchange fail; four interrupts in a row at the same place count as a full ring.
 */
static __always_inline void *ring_reserve(struct kp_ring_ctl *ctl, u32 bytes)
{
	u64 at;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		at = *(volatile u64 *)&ctl->prod;
		if (at + bytes - *(volatile u64 *)&ctl->cons > ring_limit)
			break;
		if (__sync_val_compare_and_swap(&ctl->prod, at, at + bytes) == at)
			return (u8 *)ctl + KP_RING_DATA + (at & ring_mask);
	}
	count_loss(ctl, KP_LOSS_RING_FULL);
	return NULL;
}

/* The store that makes a record whole. Stores are not reordered on x86; elsewhere an exchange orders them. */
static __always_inline void ring_commit(struct kp_head *h, u8 kind, u32 bytes, u16 func, u32 pid)
{
	u64 word = kind | (bytes / KP_SLOT) << 8 | (u32)func << 16 | (u64)pid << 32;

#if defined(__TARGET_ARCH_x86)
	barrier();
	*(volatile u64 *)h = word;
#else
	__sync_lock_test_and_set((u64 *)h, word);
#endif
}

/*
 * Global functions are verified once and by their own; a static one anew for each way that leads to it. So the long ones
 * are global, take numbers only, and loading takes a third of the time.
 */
__noinline int announce_process(u64 pid_tgid)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 pid = (u32)pid_tgid, slot = (pid >> 6) & 0xffff;
	u64 bit = 1ULL << (pid & 63), *word;
	struct kp_process *r;

	if (!ctl)
		return 0;
	ctl->last_pid = pid;
	word = bpf_map_lookup_elem(&named_pids, &slot);
	if (!word || (*word & bit))
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0; /* the bit stays clear: tried again at the next chance */
	__sync_fetch_and_or(word, bit);
	r->h.ts = bpf_ktime_get_boot_ns();
	r->tgid = pid_tgid >> 32;
	r->pad = 0;
	bpf_get_current_comm(r->comm, sizeof(r->comm));
	ring_commit(&r->h, KP_PROCESS, sizeof(*r), 0, pid);
	return 0;
}

/* Thread id of the current task; its name goes into the log the first time. */
static __always_inline u32 current_pid(struct kp_ring_ctl *ctl, u64 pid_tgid)
{
	if (ctl->last_pid != (u32)pid_tgid)
		announce_process(pid_tgid);
	return (u32)pid_tgid;
}

/* The recorder's own process, as a task: what it does is not traffic. */
static __always_inline bool own_doing(u8 ctx, u64 pid_tgid)
{
	return own_tgid && ctx == 0 && pid_tgid >> 32 == own_tgid;
}

#endif
