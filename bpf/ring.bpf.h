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

#define NET_TX_SOFTIRQ 2 /* include/linux/interrupt.h */
#define NET_RX_SOFTIRQ 3

static __always_inline bool is_of_network(u64 softirq)
{
	return (softirq | 1) == NET_RX_SOFTIRQ;
}

/* Softirqs that a program saw, to be compared with how many there were. */
static __always_inline void count_softirq(struct kp_ring_ctl *ctl, u64 softirq)
{
	if (softirq == NET_RX_SOFTIRQ)
		ctl->rounds++;
	else if (softirq == NET_TX_SOFTIRQ)
		ctl->sends++;
}

/*
 * When it is, for what a point's program writes: the clock is read once in a run, when the first record of it needs it, as a reading takes as long
 * as the rest of a record. Functions read it where they are entered.
 */
static __always_inline u64 moment_in(struct kp_ring_ctl *ctl, u32 context)
{
	u64 *at = &ctl->moment[context & 3];

	if (!guess_reuse)
		return bpf_ktime_get_boot_ns();
	if (!*at)
		*at = bpf_ktime_get_boot_ns();
	return *at;
}

static __always_inline u64 moment(struct kp_ring_ctl *ctl)
{
	return guess_reuse ? moment_in(ctl, current_context()) : bpf_ktime_get_boot_ns();
}

/* A point's program has found what it has to keep. Returns the context that it runs in. */
static __always_inline u32 new_moment(struct kp_ring_ctl *ctl)
{
	u32 context = current_context();

	if (guess_reuse)
		ctl->moment[context & 3] = 0;
	return context;
}

/*
 * A value by way of memory that is still to be written: the verifier, which goes on by each way on which different values were found, forgets there which it
 * was. It reads a program many times else (four tries of ring_try() are four ways), and that is most of the time that a recording takes to begin.
 */
static __always_inline u16 anew(void *memory, u16 value)
{
	store_once((u16 *)memory, value);
	return *(volatile u16 *)memory;
}

/*
 * Space for a record of `bytes` (a multiple of KP_SLOT), NULL when full. An interrupt between the load and the
 * exchange makes the exchange fail; four interrupts in a row at the same place count as a full ring.
 */
static __always_inline void *ring_try(struct kp_ring_ctl *ctl, u32 bytes)
{
	u64 at;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		at = *(volatile u64 *)&ctl->prod;
		if (at + bytes - *(volatile u64 *)&ctl->cons > *(volatile u64 *)&ring_limit)
			break;
		if (__sync_val_compare_and_swap(&ctl->prod, at, at + bytes) == at)
			return (u8 *)ctl + KP_RING_DATA + (at & ring_mask);
	}
	return NULL;
}

/* The same for what is lost if there is none. */
static __always_inline void *ring_reserve(struct kp_ring_ctl *ctl, u32 bytes)
{
	void *r = ring_try(ctl, bytes);

	if (r)
		return r;
	count_loss(ctl, KP_LOSS_RING_FULL);
#ifdef KPAT_APP
	if (!__sync_fetch_and_add(&ctl->unlogged, 1))
		ctl->unlogged_since = bpf_ktime_get_boot_ns();
#endif
	return NULL;
}

/*
 * Makes a record whole, by its first word (wire.h): the only place that writes it. A release, as user space loads that word with acquire
 * (crates/probe/src/ring.rs) and then takes all of the record for written. The slot was reserved by an exchange after `cons` was looked at, so nothing of the
 * record is written before user space has cleared what was there.
 */
static __always_inline void commit_word(void *record, u64 word)
{
	store_release(record, word);
}

/* The same for records that begin with struct kp_head. */
static __always_inline void ring_commit(struct kp_head *h, u8 kind, u32 bytes, u16 func, u32 pid)
{
	commit_word(h, kind | (bytes / KP_SLOT) << 8 | (u32)func << 16 | (u64)pid << 32);
}

#endif
