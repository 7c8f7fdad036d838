/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Calls that are open, for mechanisms without a session cookie: what entry keeps for the return, by an address that both have. */
#ifndef KPAT_OPEN_CALLS_H
#define KPAT_OPEN_CALLS_H

#include "calls.bpf.h"

static __always_inline u32 open_bucket(u64 key)
{
	return (u32)(key * 0x9e3779b97f4a7c15ULL >> 40) & (OPEN_CALLS / OPEN_WAYS - 1);
}

/* How long an open call is kept from others, in the entry times that are kept, which start over after 18 minutes. */
#define OPEN_CALL_NS 60000000000ULL

/* When `packed` was kept: its entry read the clock, unless its call is not logged. */
static __always_inline u64 time_kept(u64 packed)
{
	u64 time = packed & TIME_MASK;

	return time == NOT_LOGGED ? bpf_ktime_get_boot_ns() & TIME_MASK : time;
}

/* Without a session cookie: remember an open call under `key`. */
static __always_inline void open_call_put(u64 key, u64 kept, u64 now)
{
	u32 at = open_bucket(key);
	struct open_call *c = bpf_map_lookup_elem(&open_calls, &at);
	struct kp_ring_ctl *ctl;
	u64 old;

	if (!c)
		return;
	for (int i = 0; i < OPEN_WAYS; i++) {
		old = c[i].key;
		/* the same key again: its return was missed; a very old one: likewise */
		if (old && old != key && ((now - c[i].since) & TIME_MASK) < OPEN_CALL_NS)
			continue;
		if (__sync_val_compare_and_swap(&c[i].key, old, key) != old)
			continue;
		ctl = old ? ring_ctl() : NULL;
		if (ctl)
			count_loss(ctl, KP_LOSS_NO_RETURN);
		c[i].cookie = kept;
		c[i].since = now;
		return;
	}
	ctl = ring_ctl();
	if (ctl)
		count_loss(ctl, KP_LOSS_CALL_TABLE);
}

static __always_inline u64 open_call_take(u64 key)
{
	u32 at = open_bucket(key);
	struct open_call *c = bpf_map_lookup_elem(&open_calls, &at);
	u64 packed;

	if (!c)
		return 0;
	for (int i = 0; i < OPEN_WAYS; i++) {
		if (c[i].key != key)
			continue;
		packed = c[i].cookie;
		store_release(&c[i].key, 0);
		return packed;
	}
	return 0;
}

#endif
