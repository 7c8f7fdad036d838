/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Functions of which only entries are recorded (--entry-only): no program runs at their return, which is more than half of a call's cost, and
 * no duration is known. The packet's identity is kept as by any other entry. What does something to packets at its return is none of these: user space
 * leaves it as it is (crates/probe/src/choose.rs).
 */
#ifndef KPAT_ENTRIES_H
#define KPAT_ENTRIES_H

#include "functions.bpf.h"

#define KP_F_ENTRY_ONLY (KP_F_ENTRY | KP_F_NO_RETURN)

/* Inlined: the deepest way of calls has no stack to spare on kernels that count 512 bytes for all of it. */
static __always_inline void special_entry_only(u64 cookie, u64 arg, u64 arg2)
{
	u64 packed = special_entry(cookie, arg, arg2), flags;

	if (!(packed >> TIME_BITS) || (packed & TIME_MASK) == NOT_LOGGED)
		return;
	flags = special_flags(cookie, packed, &arg) | KP_F_ENTRY_ONLY;
	log_call(KP_COOKIE_FUNC(cookie), packed, packed >> TIME_BITS, arg, flags, bpf_ktime_get_boot_ns());
}

static __always_inline void plain_entry_only(u64 cookie, u64 arg)
{
	struct packet_entry *e = packet_of(skb_at(arg), cookie & KP_COOKIE_SETTLED);
	u64 now;

	if (!e)
		return;
	now = bpf_ktime_get_boot_ns();
	e->seen = now;
	log_call(KP_COOKIE_FUNC(cookie), now, e->id & 0xffffff, arg, KP_F_ENTRY_ONLY, now);
}

/* Entry of a function of which nothing else is recorded. The caller has looked at func_mode. */
static __always_inline void entry_only(u64 cookie, u64 arg, u64 arg2)
{
	if (cookie & KP_COOKIE_SPECIAL)
		special_entry_only(cookie, arg, arg2);
	else
		plain_entry_only(cookie, arg);
}

static __always_inline int traced_entry_only(void *ctx, u64 cookie)
{
	if (func_mode[KP_COOKIE_FUNC(cookie)])
		entry_only(cookie, func_arg(ctx, KP_COOKIE_ARG(cookie)), KP_COOKIE_ROLES(cookie) & KP_ROLE_SECOND ? func_arg(ctx, 1) : 0);
	return 0;
}

/* By one link for many functions (fentry.multi). */
SEC("kprobe")
int entry_multi(void *ctx)
{
	return traced_entry_only(ctx, bpf_get_attach_cookie(ctx));
}

/* By kprobe.multi, or a kprobe for each function. */
SEC("kprobe")
int kprobe_entry_only(struct pt_regs *ctx)
{
	u64 cookie = function_cookie(ctx);

	if (func_mode[KP_COOKIE_FUNC(cookie)])
		entry_only(cookie, reg_arg(ctx, KP_COOKIE_ARG(cookie)), reg_arg(ctx, 1));
	return 0;
}

/* By a copy for each function. */
SEC("fentry/consume_skb")
int fentry_entry_only(void *ctx)
{
	return traced_entry_only(ctx, clone_cookies[0]);
}

#endif
