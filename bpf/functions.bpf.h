/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One program per function mechanism. User space sets program and attach type, and loads only what it will attach. */
#ifndef KPAT_FUNCTIONS_H
#define KPAT_FUNCTIONS_H

#include "calls.bpf.h"
#include "open_calls.bpf.h"
#include "within.bpf.h"

/*
 * Two programs, by whether functions within calls of packets (--also) are recorded; user space loads one of them. A constant that the verifier knows
 * would leave its loads behind, 2,000 instructions for a packet.
 */
#define WITH_AND_WITHOUT(section, name, type) \
	SEC(section) int name(type ctx) { return either_##name(ctx, false); } \
	SEC(section) int name##_within(type ctx) { return either_##name(ctx, true); }

/*
 * 6.10 to 6.x take no argument, from the kernel that brought fsession on they take the context. The answer is one bit: as a bool it would be masked once
 * more.
 */
extern u64 *bpf_session_cookie___bare(void) __ksym __weak;
extern bool bpf_session_is_return___bare(void) __ksym __weak;
extern u64 *bpf_session_cookie___ctx(void *ctx) __ksym __weak;
extern int bpf_session_is_return___ctx(void *ctx) __ksym __weak;

/*
 * A pointer as a key. The verifier gives it away as a number only by its lower half, which is enough: what we key by
 * lies on stacks.
 */
static __always_inline u64 address_key(void *p)
{
	u64 low;

	asm volatile("r1 = %1\n"
		     "w1 = w1\n"
		     "%0 = r1"
		     : "=r"(low)
		     : "r"(p)
		     : "r1");
	return low | 1ULL << 33;
}

/*
 * At the return of a kprobe the argument registers are gone. Only what replaces a packet's buffer needs its skb then, or the pointer to it; that is kept
 * beside the call, under the same key plus one.
 */
static __always_inline void keep_skb(u64 cookie, u64 key, u64 skb)
{
	if (KP_COOKIE_ROLES(cookie) & KP_ROLE_EXPAND)
		open_call_put(key + 1, skb, bpf_ktime_get_boot_ns() & TIME_MASK);
}

static __always_inline u64 kept_skb(u64 cookie, u64 key)
{
	return KP_COOKIE_ROLES(cookie) & KP_ROLE_EXPAND ? open_call_take(key + 1) : 0;
}

/*
 * The attach cookie, by the address of the function. The kernel's own look-up for links of many kprobes is a binary search with an indirect call
 * a step, twice a call: a quarter of what a call costs on 6.12. A slot is written once; whoever finds it taken by another asks the kernel.
 */
struct cookie_slot {
	u64 ip; /* 0 free, 1 being written */
	u64 cookie;
};
#define COOKIE_SLOTS 8192
struct cookie_slot cookie_slots[COOKIE_SLOTS] SEC(".data.cookies");

static __noinline u64 learn_cookie(struct pt_regs *ctx, struct cookie_slot *s, u64 ip)
{
	u64 cookie = bpf_get_attach_cookie(ctx);

	if (ip && !__sync_val_compare_and_swap(&s->ip, 0, 1)) {
		s->cookie = cookie;
		store_release(&s->ip, ip);
	}
	return cookie;
}

static __always_inline u64 function_cookie(struct pt_regs *ctx)
{
	u64 ip = bpf_get_func_ip(ctx);
	struct cookie_slot *s = &cookie_slots[(u32)(ip * 0x9e3779b97f4a7c15ULL >> 40) & (COOKIE_SLOTS - 1)];

	/* where the cookie may be loaded before the address is, zero says that it was: it is written once */
	return *(volatile u64 *)&s->ip == ip && ip && (LOADS_IN_ORDER || s->cookie) ? s->cookie : learn_cookie(ctx, s, ip);
}

static __always_inline int either_kprobe_session(struct pt_regs *ctx, const bool within)
{
	u64 cookie = function_cookie(ctx), *kept, packed;
	bool is_return;

	if (bpf_ksym_exists(bpf_session_cookie___ctx)) {
		kept = bpf_session_cookie___ctx(ctx);
		is_return = bpf_session_is_return___ctx(ctx);
	} else if (bpf_ksym_exists(bpf_session_cookie___bare)) {
		kept = bpf_session_cookie___bare();
		is_return = bpf_session_is_return___bare();
	} else {
		return 0;
	}
	if (!is_return) {
		u64 arg = reg_arg(ctx, KP_COOKIE_ARG(cookie));

		packed = func_mode[KP_COOKIE_FUNC(cookie)] ? any_entry(cookie, arg, reg_arg(ctx, 1), entry_key(ctx), within) : 0;
		*kept = packed;
		if (packed)
			keep_skb(cookie, address_key(kept), arg);
		return !packed; /* 1: do not come back at the return */
	}
	any_return(cookie, *kept, kept_skb(cookie, address_key(kept)), reg_ret(ctx), within);
	return 0;
}
WITH_AND_WITHOUT("kprobe", kprobe_session, struct pt_regs *)

static __always_inline int either_kprobe_entry(struct pt_regs *ctx, const bool within)
{
	u64 cookie = function_cookie(ctx);
	u64 arg = reg_arg(ctx, KP_COOKIE_ARG(cookie)), packed;

	if (!func_mode[KP_COOKIE_FUNC(cookie)])
		return 0;
	packed = any_entry(cookie, arg, reg_arg(ctx, 1), entry_key(ctx), within);
	if (packed) {
		open_call_put(entry_key(ctx), packed, time_kept(packed));
		keep_skb(cookie, entry_key(ctx), arg);
	}
	return 0;
}
WITH_AND_WITHOUT("kprobe", kprobe_entry, struct pt_regs *)

static __always_inline int either_kprobe_return(struct pt_regs *ctx, const bool within)
{
	u64 packed = open_call_take(return_key(ctx)), cookie;

	if (packed) {
		cookie = function_cookie(ctx);
		any_return(cookie, packed, kept_skb(cookie, return_key(ctx)), reg_ret(ctx), within);
	}
	return 0;
}
WITH_AND_WITHOUT("kprobe", kprobe_return, struct pt_regs *)

static __always_inline u64 func_arg(void *ctx, u32 n)
{
	u64 v = 0;

	bpf_get_func_arg(ctx, n, &v);
	return v;
}

/* The roles for which the second argument is looked at. */
#define KP_ROLE_SECOND (KP_ROLE_GRO | KP_ROLE_FLOW)

static __always_inline int either_special_return(void *ctx, u64 cookie, u64 packed, const bool within)
{
	u64 now = time_of_call(KP_COOKIE_FUNC(cookie)), ret = 0;

	bpf_get_func_ret(ctx, &ret);
	if (within && is_within(cookie))
		return within_return(cookie, packed, ret);
	if (within)
		within_ends(packed);
	special_return(cookie, packed, func_arg(ctx, KP_COOKIE_ARG(cookie)), ret, now);
	return 0;
}

static __noinline int traced_special_return(void *ctx, u64 cookie, u64 packed)
{
	return either_special_return(ctx, cookie, packed, false);
}

static __noinline int traced_special_return_within(void *ctx, u64 cookie, u64 packed)
{
	return either_special_return(ctx, cookie, packed, true);
}

static __always_inline void plain_return(void *ctx, u64 cookie, u64 packed, const bool within)
{
	if (within)
		within_ends(packed);
	log_call(KP_COOKIE_FUNC(cookie), packed, packed >> TIME_BITS, func_arg(ctx, KP_COOKIE_ARG(cookie)), 0, bpf_ktime_get_boot_ns());
}

/* The same where the kernel does not ask for what it writes to be initialised. */
static __always_inline u64 session_arg(void *ctx, u32 n)
{
	u64 v;

	bpf_get_func_arg(ctx, n, &v);
	return v;
}

/*
 * The kernel clears the session cookie before the entry, so it is written only when there is something to keep. What
 * is off or not ours leaves as early as can be: this program runs twice for every call of every probed function.
 * Asking whether its kernel functions exist would cost six instructions each time: where they do not, it fails to load.
 *
 * A program that is running on a CPU is not run again there: what an interrupt calls meanwhile is refused ("recursion"), which may
 * be a whole NAPI poll. Holding interrupts off does not help, they come when they are let in again, and that is still
 * inside. So there is a copy for each layer (user space loads them): an interrupt loses calls of that layer alone.
 */
static __always_inline int either_fsession_multi(void *ctx, const bool within)
{
	u64 cookie, packed, arg;

	if (bpf_session_is_return___ctx(ctx)) {
		packed = *bpf_session_cookie___ctx(ctx);
		if (!packed)
			return 0;
		cookie = bpf_get_attach_cookie(ctx);
		if (cookie & KP_COOKIE_SPECIAL)
			return within ? traced_special_return_within(ctx, cookie, packed) : traced_special_return(ctx, cookie, packed);
		plain_return(ctx, cookie, packed, within);
		return 0;
	}
	cookie = bpf_get_attach_cookie(ctx);
	if (!func_mode[KP_COOKIE_FUNC(cookie)])
		return 0;
	arg = session_arg(ctx, KP_COOKIE_ARG(cookie));
	if (!(cookie & KP_COOKIE_SPECIAL)) {
		packed = plain_entry(cookie, arg);
	} else if (within && is_within(cookie)) {
		packed = within_entry(address_key(ctx));
	} else {
		packed = special_entry(cookie, arg, KP_COOKIE_ROLES(cookie) & KP_ROLE_SECOND ? func_arg(ctx, 1) : 0);
	}
	if (!packed)
		return 0;
	*bpf_session_cookie___ctx(ctx) = packed;
	if (within && !is_within(cookie))
		within_begins(KP_COOKIE_FUNC(cookie), packed, address_key(ctx));
	return 0;
}
/* loaded as BPF_PROG_TYPE_TRACING, BPF_TRACE_FSESSION_MULTI */
WITH_AND_WITHOUT("kprobe", fsession_multi, void *)

/*
 * fentry and fexit of one function share the trampoline's frame: its address and the function's number are the key of the open call, so that what one
 * call left there, whose return was missed, is no other function's. Each function has programs of its own,
 * which are verified one by one: those of a function with nothing special about it have no more in them than it needs.
 */
static __always_inline u64 frame_key(void *ctx)
{
	return address_key(ctx) | (u64)KP_COOKIE_FUNC(clone_cookies[0]) << 34;
}

static __always_inline int keep_open(void *ctx, u64 packed, const bool within)
{
	if (packed) {
		open_call_put(frame_key(ctx), packed, time_kept(packed));
		if (within && !is_within(clone_cookies[0]))
			within_begins(KP_COOKIE_FUNC(clone_cookies[0]), packed, address_key(ctx));
	}
	return 0;
}

static __always_inline int either_fentry_special(void *ctx, const bool within)
{
	u64 cookie = clone_cookies[0];

	if (!func_mode[KP_COOKIE_FUNC(cookie)])
		return 0;
	if (within && is_within(cookie))
		return keep_open(ctx, within_entry(address_key(ctx)), within);
	return keep_open(ctx, special_entry(cookie, func_arg(ctx, KP_COOKIE_ARG(cookie)), KP_COOKIE_ROLES(cookie) & KP_ROLE_SECOND ? func_arg(ctx, 1) : 0), within);
}
WITH_AND_WITHOUT("fentry/consume_skb", fentry_special, void *)

static __always_inline int either_fexit_special(void *ctx, const bool within)
{
	u64 packed = open_call_take(frame_key(ctx));

	if (!packed)
		return 0;
	return within ? traced_special_return_within(ctx, clone_cookies[0], packed) : traced_special_return(ctx, clone_cookies[0], packed);
}
WITH_AND_WITHOUT("fexit/consume_skb", fexit_special, void *)

static __always_inline int traced_plain_entry(void *ctx, u64 cookie, const bool within)
{
	if (!func_mode[KP_COOKIE_FUNC(cookie)])
		return 0;
	return keep_open(ctx, plain_entry(cookie, func_arg(ctx, KP_COOKIE_ARG(cookie))), within);
}

static __always_inline int either_fentry_plain(void *ctx, const bool within)
{
	return traced_plain_entry(ctx, clone_cookies[0] & ~KP_COOKIE_SETTLED, within);
}
WITH_AND_WITHOUT("fentry/consume_skb", fentry_plain, void *)

static __always_inline int either_fentry_settled(void *ctx, const bool within)
{
	return traced_plain_entry(ctx, clone_cookies[0] | KP_COOKIE_SETTLED, within);
}
WITH_AND_WITHOUT("fentry/consume_skb", fentry_settled, void *)

static __always_inline int either_fexit_plain(void *ctx, const bool within)
{
	u64 packed = open_call_take(frame_key(ctx));

	if (packed)
		plain_return(ctx, clone_cookies[0], packed, within);
	return 0;
}
WITH_AND_WITHOUT("fexit/consume_skb", fexit_plain, void *)

#endif
