/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where the user's packet filter goes. Both functions are placeholders: before the object is opened user space finds
 * the marker in the object file and writes the translated filter over it (crates/probe/src/filter.rs). The first
 * instructions load the marker, the rest is room. Contract of the code that is put in:
 *
 *   in   r1 = 256 header bytes (map value), r2 = bytes valid, r3 = length of the packet
 *   out  r0 = 0 no match, else match;  r6-r9 and the stack below r10-64 must not be used
 */
#ifndef KPAT_FILTER_H
#define KPAT_FILTER_H

#include "kernel.h"

#define FILTER_ROOM(marker)                                                    \
	asm volatile("r1 = %[bytes]\n"                                         \
		     "r2 = %[valid]\n"                                         \
		     "r3 = %[length]\n"                                        \
		     "r0 = " marker " ll\n"                                    \
		     ".rept 1000\n"                                            \
		     "r0 = r0\n"                                               \
		     ".endr\n"                                                 \
		     "%[out] = r0\n"                                           \
		     : [out] "=r"(out)                                         \
		     : [bytes] "r"(bytes), [valid] "r"(valid), [length] "r"(length) \
		     : "r0", "r1", "r2", "r3", "r4", "r5", "memory")

static __noinline u32 filter_link(u8 *bytes, u32 valid, u32 length)
{
	u64 out;

	FILTER_ROOM("0x6b7061746c696e6b"); /* "kpatlink" */
	return out;
}

static __noinline u32 filter_network(u8 *bytes, u32 valid, u32 length)
{
	u64 out;

	FILTER_ROOM("0x6b7061746e657477"); /* "kpatnetw" */
	return out;
}

#endif
