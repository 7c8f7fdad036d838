/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A server that has answered, and has waited since (waits.bpf.h) or has a connection that is new or at its end: what it does before it takes the next message is hardly more than that takes, or it is of its own.
 */
#ifndef KPAT_RESTS_H
#define KPAT_RESTS_H

#include "tells.bpf.h"

/* Does the task work for a client, and has written since it took the message? */
static __always_inline bool has_answered(struct account *a)
{
	return a->serving && serves_client(a) && (a->since & (WROTE | TELLS)) == WROTE && a->mode != KP_WORK_THREAD && a->victim != KP_OTHERS;
}

/* The task has answered, and does something of its own. */
static __always_inline int works_silently(struct account *a)
{
	struct handed *h;
	u32 pid;

	if (!a)
		return 0;
	if (a->since & FOR_FILES) {
		serve(a, 0, 0);
		return 0;
	}
	begins_to_tell(a);
	pid = a->pid;
	h = a->since & TELLS ? bpf_map_lookup_elem(&handed_tasks, &pid) : NULL;
	if (h)
		h->last = ANSWERED_ONE;
	return 0;
}

/* So much of its own after it has answered and waited that it is no message's beginning? Not within the call in which it waited: it may copy what came. */
static __always_inline bool has_worked(struct account *a)
{
	return a->rests == a->pid && a->called_by == a->pid && a->last - a->rested_at > SILENT_NS;
}

/* A task takes a message, whoever sent it. */
static __always_inline int rests_until_now(struct account *a)
{
	if (a->rests != a->pid)
		return 0;
	if (has_worked(a) && has_answered(a))
		works_silently(a);
	rests_no_more(a);
	return 0;
}

#endif
