/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One program per function mechanism. User space sets program and attach type, and loads only what it will attach. */
#ifndef KPAT_FUNCTIONS_H
#define KPAT_FUNCTIONS_H

#include "calls.bpf.h"

/* 6.10 to 6.x take no argument, from the kernel that brought fsession on they take the context. */
extern u64 *bpf_session_cookie___bare(void) __ksym __weak;
extern bool bpf_session_is_return___bare(void) __ksym __weak;
extern u64 *bpf_session_cookie___ctx(void *ctx) __ksym __weak;
extern bool bpf_session_is_return___ctx(void *ctx) __ksym __weak;

#if defined(__TARGET_ARCH_x86)
/* arch/x86/include/asm/ptrace.h, fixed by the ABI */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
/* in assembly: the verifier refuses a load whose offset into the context the compiler made a variable */
#define REG(regs, name)                                                                              \
	({                                                                                           \
		u64 __v;                                                                             \
		asm volatile("%0 = *(u64 *)(%1 + %2)"                                                \
			     : "=r"(__v)                                                             \
			     : "r"(regs), "i"(__builtin_offsetof(struct pt_regs, name)));            \
		__v;                                                                                 \
	})
static __always_inline u64 reg_arg(struct pt_regs *regs, u32 i)
{
	switch (i) {
	case 0:
		return REG(regs, di);
	case 1:
		return REG(regs, si);
	case 2:
		return REG(regs, dx);
	case 3:
		return REG(regs, cx);
	case 4:
		return REG(regs, r8);
	default:
		return REG(regs, r9);
	}
}
#define REG_ARG(regs, i) reg_arg(regs, i)
#define REG_RET(regs) ((regs)->ax)
/* stack pointer at entry; at return the return address has been popped */
#define KEY_ENTRY(regs) ((regs)->sp)
#define KEY_RETURN(regs) ((regs)->sp - 8)
#else
#error "function mechanisms are written for x86-64 so far"
#endif

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
 * At the return of a kprobe the argument registers are gone. Only pskb_expand_head needs its skb then; it is kept
 * beside the call, under the same key plus one.
 */
static __always_inline void keep_skb(u64 cookie, u64 key, u64 skb)
{
	if (KP_COOKIE_ROLES(cookie) & KP_ROLE_EXPAND)
		open_call_put(key + 1, skb);
}

static __always_inline u64 kept_skb(u64 cookie, u64 key)
{
	return KP_COOKIE_ROLES(cookie) & KP_ROLE_EXPAND ? open_call_take(key + 1) : 0;
}

SEC("kprobe")
int kprobe_session(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx), *kept, packed;
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
		u64 arg = REG_ARG(ctx, KP_COOKIE_ARG(cookie));

		packed = func_mode[KP_COOKIE_FUNC(cookie)] ? call_entry(cookie, arg, REG(ctx, si)) : 0;
		*kept = packed;
		if (packed)
			keep_skb(cookie, address_key(kept), arg);
		return !packed; /* 1: do not come back at the return */
	}
	call_return(cookie, *kept, kept_skb(cookie, address_key(kept)), REG_RET(ctx));
	return 0;
}

SEC("kprobe")
int kprobe_entry(struct pt_regs *ctx)
{
	u64 cookie = bpf_get_attach_cookie(ctx);
	u64 arg = REG_ARG(ctx, KP_COOKIE_ARG(cookie)), packed;

	if (!func_mode[KP_COOKIE_FUNC(cookie)])
		return 0;
	packed = call_entry(cookie, arg, REG(ctx, si));
	if (packed) {
		open_call_put(KEY_ENTRY(ctx), packed);
		keep_skb(cookie, KEY_ENTRY(ctx), arg);
	}
	return 0;
}

SEC("kprobe")
int kprobe_return(struct pt_regs *ctx)
{
	u64 packed = open_call_take(KEY_RETURN(ctx)), cookie;

	if (packed) {
		cookie = bpf_get_attach_cookie(ctx);
		call_return(cookie, packed, kept_skb(cookie, KEY_RETURN(ctx)), REG_RET(ctx));
	}
	return 0;
}

static __always_inline u64 func_arg(void *ctx, u32 n)
{
	u64 v = 0;

	bpf_get_func_arg(ctx, n, &v);
	return v;
}

/* The roles for which the second argument is looked at. */
#define KP_ROLE_SECOND (KP_ROLE_GRO | KP_ROLE_FLOW)

static __noinline int traced_special_return(void *ctx, u64 cookie, u64 packed)
{
	u64 now = bpf_ktime_get_boot_ns(), ret = 0;

	bpf_get_func_ret(ctx, &ret);
	special_return(cookie, packed, func_arg(ctx, KP_COOKIE_ARG(cookie)), ret, now);
	return 0;
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
SEC("kprobe") /* loaded as BPF_PROG_TYPE_TRACING, BPF_TRACE_FSESSION_MULTI */
int fsession_multi(void *ctx)
{
	u64 cookie, packed;

	if (bpf_session_is_return___ctx(ctx)) {
		packed = *bpf_session_cookie___ctx(ctx);
		if (!packed)
			return 0;
		cookie = bpf_get_attach_cookie(ctx);
		if (cookie & KP_COOKIE_SPECIAL)
			traced_special_return(ctx, cookie, packed);
		else
			log_call(KP_COOKIE_FUNC(cookie), packed, packed >> TIME_BITS, func_arg(ctx, KP_COOKIE_ARG(cookie)), 0,
				 bpf_ktime_get_boot_ns());
		return 0;
	}
	cookie = bpf_get_attach_cookie(ctx);
	if (!func_mode[KP_COOKIE_FUNC(cookie)])
		return 0;
	packed = call_entry(cookie, func_arg(ctx, KP_COOKIE_ARG(cookie)), KP_COOKIE_ROLES(cookie) & KP_ROLE_SECOND ? func_arg(ctx, 1) : 0);
	if (packed)
		*bpf_session_cookie___ctx(ctx) = packed;
	return 0;
}

/* fentry and fexit of one function share the trampoline's frame: its address is the key of the open call. */
SEC("fentry/consume_skb")
int fentry_one(void *ctx)
{
	u64 cookie = clone_cookies[0], packed;

	if (!func_mode[KP_COOKIE_FUNC(cookie)])
		return 0;
	packed = call_entry(cookie, func_arg(ctx, KP_COOKIE_ARG(cookie)), KP_COOKIE_ROLES(cookie) & KP_ROLE_SECOND ? func_arg(ctx, 1) : 0);
	if (packed)
		open_call_put(address_key(ctx), packed);
	return 0;
}

SEC("fexit/consume_skb")
int fexit_one(void *ctx)
{
	u64 cookie = clone_cookies[0], packed = open_call_take(address_key(ctx));

	if (!packed)
		return 0;
	if (cookie & KP_COOKIE_SPECIAL)
		traced_special_return(ctx, cookie, packed);
	else
		log_call(KP_COOKIE_FUNC(cookie), packed, packed >> TIME_BITS, func_arg(ctx, KP_COOKIE_ARG(cookie)), 0,
			 bpf_ktime_get_boot_ns());
	return 0;
}

#endif
