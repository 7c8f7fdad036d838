// SPDX-License-Identifier: GPL-2.0-or-later
/* What bpf/arch has of a processor, as functions that a test can run, and what libbpf's headers have of it. */
#include "kernel.h"

#define __VMLINUX_H__ /* registers by the kernel's names, which libbpf has beside those of user space */
#define user_pt_regs pt_regs
#include <bpf/bpf_tracing.h>

#define ARGUMENT(n, one_based)                                                                    \
	u64 argument_##n(struct pt_regs *r)                                                       \
	{                                                                                         \
		return reg_arg(r, n);                                                             \
	}                                                                                         \
	u64 libbpf_argument_##n(struct pt_regs *r)                                                \
	{                                                                                         \
		return PT_REGS_PARM##one_based(r);                                                \
	}

ARGUMENT(0, 1)
ARGUMENT(1, 2)
ARGUMENT(2, 3)
ARGUMENT(3, 4)
ARGUMENT(4, 5)

u64 argument_5(struct pt_regs *r)
{
	return reg_arg(r, 5);
}

u64 result(struct pt_regs *r)
{
	return reg_ret(r);
}

u64 libbpf_result(struct pt_regs *r)
{
	return PT_REGS_RC(r);
}

u64 key_at_entry(struct pt_regs *r)
{
	return entry_key(r);
}

u64 key_at_return(struct pt_regs *r)
{
	return return_key(r);
}

u64 libbpf_stack(struct pt_regs *r)
{
	return PT_REGS_SP(r);
}

u64 is_kernel_address(u64 p)
{
	return kernel_address(p);
}

u64 release(u64 *at, u64 v)
{
	store_release(at, v);
	return 0;
}
