/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Samples of stacks.bpf.h, as they lie in the ring: rules as in wire.h. */
#ifndef KPAT_SAMPLES_H
#define KPAT_SAMPLES_H

#include "wire.h"

#define KP_FRAMES 127u /* of a stack, what the kernel takes by itself (sysctl kernel.perf_event_max_stack) */
#define KP_SAMPLE_USER_MODE 1u /* the CPU was in user mode */
#define KP_SAMPLE_OPEN 2u /* a packet was handled whose owner was not known yet, and there was no room to wait until it was */
#define KP_SAMPLE_DRAWN 4u /* before the softirq's first packet: one of those whose packets it brought, by lot */

struct kp_sample {
	struct kp_head h; /* pid: of the task that was interrupted */
	u64 kernel; /* numbers of stacks, 0: none */
	u64 user;
	u64 socket; /* cookie; of KP_FOR_WRITEBACK, _BLOCK, _CLIENT, _ITEM and _ASKER the process; of _REMOTE the number of the ends */
	u32 process; /* of the task, 0: idle */
	u8 busy; /* kp_work_kind */
	u8 purpose; /* kp_purpose */
	u8 flags;
	u8 periods; /* of the clock for which it stands: a late one for those that it missed in which the CPU was not idle */
};

/* As many frames as `func` says, innermost first; shorter in the ring if there are fewer. */
struct kp_stack {
	struct kp_head h; /* pid: the process whose addresses they are, 0: the kernel's */
	u64 number;
	u64 frames[KP_FRAMES];
};

_Static_assert(sizeof(struct kp_sample) == 48, "sample");
_Static_assert(sizeof(struct kp_stack) == 1040, "stack: less than 256 slots of the smaller kind");

#endif
