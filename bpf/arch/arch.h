/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What depends on the processor, all of it: a file for each, which defines
 *
 *   struct pt_regs            registers as a kprobe has them
 *   reg_arg(regs, i)          argument `i` of six, at the entry; from the seventh on, the sixth
 *   reg_ret(regs)             the result, at the return
 *   entry_key, return_key     (regs) an address that entry and return of one call share
 *   kernel_address(p)         is it a pointer of the kernel, and no number in the same place (skb->dev and UDP's scratch word)? Whatever the levels of page
 *                             tables. It does not say that a load succeeds: loads are guarded, a fault reads as zero
 *   preemption_count(&n)      the kernel's count of contexts (include/linux/preempt.h); false: not available
 *   reg_pc(regs)              the address of the instruction
 *   in_system_call(regs)      did the task whose registers these are enter the kernel by a system call?
 *   system_call_of(regs)      its number: SYS_READ and its neighbours
 *   system_call_arg(regs, i)  one of its first three arguments, also at its end; system_call_arg4(regs), system_call_arg5(regs): the fourth and the fifth
 *   store_release(at, v)      a store that is seen after all that its CPU wrote, and read, before
 *   LOADS_IN_ORDER            another CPU's loads are not reordered: what follows the load of a released word sees what was written before it
 *
 * All are little-endian, 64 bits. Included by kernel.h, which has the types.
 */
#ifndef KPAT_ARCH_H
#define KPAT_ARCH_H

/* in assembly: the verifier refuses a load whose offset into the context the compiler made a variable */
#define REG(regs, name)                                                                              \
	({                                                                                           \
		u64 __v;                                                                             \
		asm volatile("%0 = *(u64 *)(%1 + %2)"                                                \
			     : "=r"(__v)                                                             \
			     : "r"(regs), "i"(__builtin_offsetof(struct pt_regs, name)));            \
		__v;                                                                                 \
	})

/* What was there, and `v` in its place: no interrupt comes between. */
#define exchange(at, v) __sync_lock_test_and_set(at, v)

/* Stores that interrupts of the same CPU see whole and in the order of the program. */
#define store_once(at, v) (*(volatile __typeof__(*(at)) *)(at) = (v))

#if defined(__TARGET_ARCH_x86)
#include "x86_64.h"
#elif defined(__TARGET_ARCH_arm64)
#include "arm64.h"
#else
#error "no file in bpf/arch for this processor"
#endif

#endif
