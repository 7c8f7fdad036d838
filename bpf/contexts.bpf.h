/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where the kernel does not give its preemption count, these tracepoints keep the context (kernel.h). */
#ifndef KPAT_CONTEXTS_H
#define KPAT_CONTEXTS_H

#include "ring.bpf.h"

static __always_inline void softirq_begins(void)
{
#ifdef KPAT_TRACED_CONTEXT
	traced_softirq[bpf_get_smp_processor_id() & (KP_MAX_CPUS - 1)] = 1;
#endif
}

#ifdef KPAT_TRACED_CONTEXT
#define CONTEXT(name, variable, value)                                                         \
	SEC("raw_tp/" #name)                                                                   \
	int context_##name(u64 *ctx)                                                           \
	{                                                                                      \
		variable[bpf_get_smp_processor_id() & (KP_MAX_CPUS - 1)] = value;              \
		return 0;                                                                      \
	}

#ifdef KPAT_APP
SEC("raw_tp/softirq_entry")
int context_softirq_entry(u64 *ctx)
{
	struct kp_ring_ctl *ctl = is_of_network(ctx[0]) ? ring_ctl() : NULL;

	softirq_begins();
	if (ctl)
		count_softirq(ctl, ctx[0]);
	return 0;
}
#endif
CONTEXT(softirq_exit, traced_softirq, 0)
CONTEXT(irq_handler_entry, traced_hardirq, 1)
CONTEXT(irq_handler_exit, traced_hardirq, 0)
#endif

#endif
