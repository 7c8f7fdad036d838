/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A function's arguments and result in the registers, as a kprobe has them. */
#ifndef KPAT_REGISTERS_H
#define KPAT_REGISTERS_H

#include "kernel.h"

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

#endif
