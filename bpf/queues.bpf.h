/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What is taken in the order in which it was written, and who wrote it: bytes of pipes (pipes.bpf.h), and messages of queues. Of each the bytes or messages are counted that were written and taken:
 * what is taken is of the writer whose part reaches that far. What is taken while its writer's call goes on is beyond all that was counted, and is of who writes.
 *
 * Queues keep that order within a type (System V) or a priority (POSIX), so each has a count of its own. The type is what the message begins with, before and after; a reader that does not
 * ask for the priority is followed as long as all have none.
 */
#ifndef KPAT_QUEUES_H
#define KPAT_QUEUES_H

#include "filesystems.bpf.h"

#define WRITERS 8 /* the latest ones: a power of two */

struct written {
	u64 end;
	u64 who; /* as in struct speech; nobody in the high half: a request to a file system, so long */
};

struct pipe {
	u64 written; /* bytes, or messages */
	u64 taken;
	u64 writes; /* who writes now */
	u64 writing; /* so many are in their calls */
	u64 calls;
	struct written by[WRITERS];
};

/* By inode: see pipe_number(), and queue_number(). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct pipe);
} pipes SEC(".maps");

/* Its address may have been another's, and each file system has numbers of its own. */
static __always_inline u64 pipe_number(struct inode___pipe *inode)
{
	return mixed((u64)inode, BPF_CORE_READ(inode, i_ino));
}

/* A task begins to write to it. */
__noinline int writes_to(u64 key)
{
	struct account *a = this_account();
	struct pipe *p = bpf_map_lookup_elem(&pipes, &key), none = {};

	if (!a)
		return 0;
	if (!p) {
		bpf_map_update_elem(&pipes, &key, &none, BPF_NOEXIST);
		p = bpf_map_lookup_elem(&pipes, &key);
		if (!p)
			return 0;
	}
	add(&p->writing, 1);
	p->writes = speaker(a);
	return 0;
}

/* Its call is over by which a task has written so much, or failed. */
__noinline int written_to(u64 key, long much)
{
	struct account *a = this_account();
	struct pipe *p = bpf_map_lookup_elem(&pipes, &key);
	struct written *w;
	u64 end;

	if (!a || !p)
		return 0;
	if (much > 0) {
		end = __sync_fetch_and_add(&p->written, much) + much;
		w = &p->by[__sync_fetch_and_add(&p->calls, 1) & (WRITERS - 1)];
		w->who = speaker(a);
		w->end = end;
		if (a->serving && !(a->since & (WROTE | TELLS)))
			has_written(a);
	}
	if (p->writing) /* its beginning may not have been seen */
		__sync_fetch_and_add(&p->writing, -1);
	return 0;
}

/* A task has spliced so much from a file system's device into a pipe: a request. False: from something else. */
__noinline int request_spliced(u64 from, u64 into, u32 bytes)
{
	struct inode___pipe *device = inode_of(file_of(from), S_IFCHR), *inode;
	struct pipe *p;
	u64 key;

	if (!device || !serves_files(device))
		return 0;
	inode = inode_of(file_of(into), S_IFIFO);
	key = inode ? pipe_number(inode) : 0;
	p = bpf_map_lookup_elem(&pipes, &key);
	if (p)
		p->by[(p->calls - 1) & (WRITERS - 1)].who = bytes;
	return 1;
}

/* `emptied`: nothing is left in it, as far as that is known. What it gives is less than a header if it is no request to a file system, else how long that is. */
__noinline int taken_from(u64 key, long much, u32 emptied)
{
	struct account *a = this_account();
	struct pipe *p = bpf_map_lookup_elem(&pipes, &key);
	u64 end, written, who, nearest = 0;

	if (!a || !p)
		return 0;
	end = __sync_fetch_and_add(&p->taken, much) + much;
	written = p->written;
	if (end > written && p->writing) {
		who = p->writes;
	} else {
		who = p->by[(p->calls - 1) & (WRITERS - 1)].who;
#pragma unroll
		for (int i = 0; i < WRITERS; i++) {
			struct written *w = &p->by[i];

			if (w->end >= end && (!nearest || w->end < nearest)) {
				nearest = w->end;
				who = w->who;
			}
		}
	}
	if ((end > written || (emptied && end != written)) && !p->writing)
		p->taken = p->written;
	if (!(who >> 32))
		return who;
	a->took_at = 0;
	return took_of(who, NOT_KNOWN);
}

struct ipc_namespace;
struct nsproxy___ipc {
	struct ipc_namespace *ipc_ns;
} __core;

struct task_struct___ipc {
	struct nsproxy___ipc *nsproxy;
} __core;

#define ANY_PRIORITY 0xffffffffULL

/* Of a queue of System V in this task's namespace, and its messages of this type: with which a message begins. */
static __always_inline u64 queue_number(u64 number, u64 message)
{
	struct task_struct___ipc *task = (void *)bpf_get_current_task();
	u64 type = 0;

	bpf_probe_read_user(&type, sizeof(type), (void *)message);
	return mixed(mixed((u64)BPF_CORE_READ(task, nsproxy, ipc_ns), number), type);
}

#endif
