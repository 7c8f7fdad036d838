/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Writes crossings into the ring: who does so, and what was lost before. */
#ifndef KPAT_WRITER_H
#define KPAT_WRITER_H

#include "tasks.bpf.h"
#include "application.h"

__noinline int tell_gap(void)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_gap *r = ctl ? ring_try(ctl, sizeof(*r)) : NULL; /* else later: nothing is lost by that */
	u64 lost, since;

	if (!r)
		return 0;
	lost = ctl->unlogged;
	since = ctl->unlogged_since;
	__sync_fetch_and_add(&ctl->unlogged, -lost);
	r->since = since;
	r->until = bpf_ktime_get_boot_ns();
	commit_word(r, KP_GAP | (sizeof(*r) / KP_SLOT) << 8 | lost << 32);
	return 0;
}

/* Who writes records here and now: asked once in a run. */
struct writer {
	struct kp_ring_ctl *ctl;
	u32 pid;
	u8 ctx;
};

static __always_inline struct writer who_writes(void)
{
	struct writer w = { .ctl = ring_ctl() };

	if (!w.ctl)
		return w;
	w.ctx = current_context();
	if (w.ctx == 0)
		w.pid = current_pid(w.ctl, current_pid_tgid(), 0);
	if (w.ctl->unlogged)
		tell_gap();
	return w;
}

static __always_inline void cross_as(struct writer w, u32 what, u64 cookie, u64 ts, s32 size, u32 seq)
{
	struct kp_crossing *r;

	if (!w.ctl)
		return;
	r = ring_reserve(w.ctl, sizeof(*r));
	if (!r)
		return;
	r->ts_pid = (ts & 0xffffffffffffULL) | (u64)w.pid << 48;
	*(u64 *)&r->size = (u32)size | (u64)seq << 32;
	commit_word(r, KP_CROSSING | (sizeof(*r) / KP_SLOT) << 8 | (u64)(what | w.ctx << 4) << 16 | (u64)(w.pid >> 16 & 0xff) << 24 |
			       cookie << 32);
}

static __always_inline void cross(u32 what, u64 cookie, u64 ts, s32 size, u32 seq)
{
	cross_as(who_writes(), what, cookie, ts, size, seq);
}

#endif
