/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Functions that have no packet of their own (--also): a call of one is logged where a CPU makes it in the midst of a recorded call of a
 * packet, as that packet's.
 *
 * For that, each flow of control keeps which recorded calls it is in, the innermost last: a task its own, as it may change the CPU; soft and
 * hard interrupts and NMIs each CPU's. What cuts in counts as within what it cut into. A return may be missed, which would leave a call open for ever: the
 * stack shows it, as a caller's frame is above that of whatever it calls. Rejected: to log all calls and to leave to the integration which were
 * within; an allocator is called a hundred times as often as packets call it.
 */
#ifndef KPAT_WITHIN_H
#define KPAT_WITHIN_H

#include "calls.bpf.h"

/* With KP_ROLE_WITHIN, which goes with no other role, the lowest bits say what the function returns. */
#define KP_ROLE_POINTER 1u
#define KP_ROLE_TRUTH 2u
#define KP_VALUE_UNKNOWN 0x8000u /* a return value that 16 bits cannot hold */

/* What lies farther apart is not on one stack. */
#define STACK_BYTES 32768

/* A call that has gone: it would be below the current one. `stack`: 0 where it is not known. */
static __always_inline bool is_over(u32 call, u32 stack)
{
	return call && stack && call - stack > STACK_BYTES;
}

static __always_inline struct within *within_at(u32 ctx, u64 *owner)
{
	u32 cpu = bpf_get_smp_processor_id(), pid = bpf_get_current_pid_tgid(), at;

	*owner = 1ULL << 32 | cpu;
	at = WITHIN_TASKS + cpu * 3 + ctx - 1;
	if (!ctx) {
		/* each CPU has an idle task */
		if (pid)
			*owner = pid;
		at = (u32)(*owner * 0x9e3779b97f4a7c15ULL >> 40) & (WITHIN_TASKS - 1);
	}
	return ctx < 4 ? bpf_map_lookup_elem(&withins, &at) : NULL;
}

/* How many of its calls are still under way. */
static __always_inline u32 still_open(struct within *w, u32 stack)
{
	u32 n = w->depth;

	for (int i = 0; i < WITHIN_DEPTH && n && is_over(w->call[(n - 1) & (WITHIN_DEPTH - 1)].stack, stack); i++)
		n--;
	return n;
}

/* A recorded call of a packet begins. Two tasks whose numbers share a place: the one that came second has to wait until the first is in none. */
__noinline int within_begins(u32 func, u64 packed, u64 stack)
{
	u64 owner;
	struct within *w = within_at(current_context(), &owner);
	u32 n;

	if (!w || !(packed >> TIME_BITS) || !(func_mode[func & (KP_MAX_FUNCS - 1)] & KP_MODE_LOG))
		return 0;
	if (w->owner == owner) {
		n = still_open(w, stack);
	} else {
		if (w->depth && ((packed - w->call[0].packed) & TIME_MASK) < WITHIN_NS)
			return 0;
		w->owner = owner;
		n = 0;
	}
	if (n < WITHIN_DEPTH) {
		w->call[n].packed = packed;
		w->call[n].stack = stack;
		n++;
	}
	/* an interrupt may look at it at any time */
	store_release(&w->depth, n);
	return 0;
}

/* It is over, with whatever in it did not seem to return. Where there was no room for it nothing is found. */
__noinline int within_ends(u64 packed)
{
	u64 owner;
	struct within *w = within_at(current_context(), &owner);
	u32 n;

	if (!w || w->owner != owner)
		return 0;
	n = w->depth;
	for (int i = 0; i < WITHIN_DEPTH && n; i++) {
		n--;
		if (w->call[n & (WITHIN_DEPTH - 1)].packed == packed) {
			w->depth = n;
			break;
		}
	}
	return 0;
}

/* Entry of a function without a packet. Returns what to keep for the return, 0: this CPU is in no packet's call. */
__noinline u64 within_entry(u64 stack)
{
	u32 ctx = current_context(), n;
	struct within *w;
	u64 owner;

#pragma unroll
	for (int level = 3; level >= 0; level--) {
		w = level <= ctx ? within_at(level, &owner) : NULL;
		if (!w || w->owner != owner)
			continue;
		n = level == ctx ? still_open(w, stack) : w->depth;
		if (n)
			return pack(bpf_ktime_get_boot_ns(), w->call[(n - 1) & (WITHIN_DEPTH - 1)].packed >> TIME_BITS);
	}
	return 0;
}

/* What is logged of a return value: 16 bits, the lowest number where it is larger. Of a pointer: its error, 0 for none at all, else 1. */
static __always_inline u16 short_value(u32 roles, u64 ret)
{
	if (roles & KP_ROLE_POINTER)
		return !ret ? 0 : ret >= (u64)-4095 ? (u16)ret : 1;
	if (roles & KP_ROLE_TRUTH)
		return (u8)ret;
	return (s32)ret == (short)ret ? (u16)ret : KP_VALUE_UNKNOWN;
}

__noinline int within_return(u64 cookie, u64 packed, u64 ret)
{
	u64 value = short_value(KP_COOKIE_ROLES(cookie), ret);

	log_call(KP_COOKIE_FUNC(cookie), packed, packed >> TIME_BITS, value << 6, KP_F_WITHIN, bpf_ktime_get_boot_ns());
	return 0;
}

static __always_inline bool is_within(u64 cookie)
{
	return KP_COOKIE_ROLES(cookie) & KP_ROLE_WITHIN;
}

/* Entry and return of a function, whichever it is. `stack`: where its frame is. */
static __always_inline u64 any_entry(u64 cookie, u64 arg, u64 arg2, u64 stack, const bool within)
{
	u64 packed;

	if (within && is_within(cookie))
		return within_entry(stack);
	packed = call_entry(cookie, arg, arg2);
	if (within && packed)
		within_begins(KP_COOKIE_FUNC(cookie), packed, stack);
	return packed;
}

static __always_inline void any_return(u64 cookie, u64 packed, u64 arg, u64 ret, const bool within)
{
	if (within && is_within(cookie)) {
		within_return(cookie, packed, ret);
		return;
	}
	if (within)
		within_ends(packed);
	call_return(cookie, packed, arg, ret);
}

#endif
