/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * For whom a kernel thread works that nobody is known to have asked: it executes a work item that an interrupt queued, or took what came by a socket of the kernel's own
 * (NFS, SMB, NVMe over TCP). That is known when it gives somebody what he waits for: it wakes a process, completes a block request, or queues an item that a process
 * queued before (a call of sunrpc). What it did until then, since the item began or since it took something, was for that process, and so is what it took out
 * of the socket. What it did before it slept or was preempted stays its own.
 *
 * A server's threads wake processes, too (who watches a file): a thread without an item counts only at the client's end of a connection.
 */
#ifndef KPAT_WOKEN_H
#define KPAT_WOKEN_H

#include "running.bpf.h"
#include "held.bpf.h"

#define BY_ITEM 1
#define BY_MESSAGE 2

/* By kernel thread: what it took out of a socket, and has given to nobody yet. */
struct taken {
	u64 socket;
	u64 bytes;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct taken);
} taken_by_threads SEC(".maps");

static __always_inline bool asked_by_nobody(struct account *a)
{
	return a && a->pends && !a->level && !a->serving && a->mode == KP_WORK_THREAD && a->pid == (u32)current_pid_tgid();
}

/* From here on it is not known for whom the thread works; 0: it works for itself. */
static __always_inline void asks_nobody(struct account *a, u32 by)
{
	border(a);
	put_task(a);
	a->woke = 0;
	a->pends = by;
}

__noinline int put_use(u64 socket, u64 bytes, u32 process, u32 how)
{
	struct kp_use u = { .bytes = bytes, .times = 1 }, *sum;
	struct account *a = this_account();
	struct kp_use_key k = {};

	if (!a || !is_news(socket, process))
		return 0;
	k.socket = socket;
	k.process = process;
	k.cpu = bpf_get_smp_processor_id();
	k.how = how;
	k.turn = a->turn;
	sum = bpf_map_lookup_elem(&uses, &k);
	if (!sum) {
		if (bpf_map_update_elem(&uses, &k, &u, BPF_ANY))
			add(&unplaced_uses, 1);
		return 0;
	}
	add(&sum->bytes, bytes);
	add(&sum->times, 1);
	return 0;
}

/* What the thread that runs took out of a socket was for this process. */
static __always_inline void given_to(struct account *a, u64 socket, u64 bytes, u32 process)
{
	put_use(socket, bytes, process, KP_USE_READ);
	put_use(socket, bytes, a->victim, KP_USE_PASSED);
}

/* The thread that runs gives a process what it waits for. */
__noinline int worked_for(struct account *a, u32 process)
{
	struct kp_work w = {};
	struct taken *t;
	u64 bytes;
	u32 pid;

	if (!a || !process)
		return 0;
	border(a);
	w.ns = take(&a->base[KP_WORK_THREAD]);
	if (w.ns)
		put(a, KP_WORK_THREAD, KP_FOR_ITEM, process, &w);
	release_threads(a, process);
	a->woke = process;
	pid = a->pid;
	t = bpf_map_lookup_elem(&taken_by_threads, &pid);
	bytes = t ? take(&t->bytes) : 0;
	if (bytes) {
		given_to(a, t->socket, bytes, process);
		a->woke = 0;
	}
	return 0;
}

/* A kernel thread takes so much out of a socket. */
__noinline int thread_takes(struct account *a, u64 socket, u64 bytes, u32 by_client)
{
	struct taken first = { .socket = socket, .bytes = bytes }, *t;
	u32 pid;

	if (!a)
		return 0;
	if (a->serving) {
		given_to(a, socket, bytes, a->serving);
		return 0;
	}
	if (!a->pends && by_client)
		asks_nobody(a, BY_MESSAGE);
	if (!a->pends)
		return 0;
	/* It gave something as it came to it, before it was done with what it has at hand. */
	if (a->woke) {
		given_to(a, socket, bytes, a->woke);
		a->woke = 0;
		return 0;
	}
	pid = a->pid;
	t = bpf_map_lookup_elem(&taken_by_threads, &pid);
	if (t && t->socket == socket)
		add(&t->bytes, bytes);
	else
		bpf_map_update_elem(&taken_by_threads, &pid, &first, BPF_ANY);
	return 0;
}

/* Has the thread that runs taken something that it has given to nobody? */
static __always_inline bool has_taken(struct account *a)
{
	u32 pid = a->pid;
	struct taken *t = bpf_map_lookup_elem(&taken_by_threads, &pid);

	return t && t->bytes;
}

/* (task) */
SEC("tp_btf/sched_waking")
int work_sched_waking(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct account *a = this_account();

	if (!asked_by_nobody(a) || ((struct task_struct___profile *)task)->flags & PF_KTHREAD)
		return 0;
	return worked_for(a, victim_of(task, task->tgid));
}

#endif
