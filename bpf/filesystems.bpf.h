/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * File systems that a process serves (FUSE). It reads each request from its device and writes the answer there. A request says which task asked, so from when it is read until the next one is, its server works for
 * that task's process, with no doubt who is the client. What no task asks for (a file that is forgotten or closed, pages written back) is the server's own.
 *
 * A request that is spliced into a pipe is known when its header is read from there, as libfuse does.
 *
 * Task numbers are those of the pid namespace in which the file system was mounted, which is the server's own: a number is looked up there as the kernel does. Not followed: requests through io_uring, and a server in
 * another pid namespace than that in which its file system was mounted.
 */
#ifndef KPAT_FILESYSTEMS_H
#define KPAT_FILESYSTEMS_H

#include "uses.bpf.h"

#define FUSE_DEVICE (10 << 20 | 229) /* Documentation/admin-guide/devices.txt */

/* include/uapi/linux/fuse.h */
struct fuse_in_header {
	u32 len;
	u32 opcode;
	u64 unique;
	u64 nodeid;
	u32 uid;
	u32 gid;
	u32 pid;
	u32 padding;
};

struct inode___device {
	u32 i_rdev;
} __core;

/* Is this character device the one of a file system's server? */
static __always_inline bool serves_files(struct inode___pipe *inode)
{
	return BPF_CORE_READ((struct inode___device *)inode, i_rdev) == FUSE_DEVICE;
}

struct pid_namespace___ids {
	struct idr___ids {
		struct xarray___ids {
			void *xa_head;
		} __attribute__((preserve_access_index)) idr_rt;
	} __attribute__((preserve_access_index)) idr;
} __core;

struct xa_node___ids {
	unsigned char shift;
	void *slots[64];
} __core;

struct upid___ids {
	int nr;
	struct pid_namespace___ids *ns;
} __core;

struct hlist_node___ids {
	struct hlist_node___ids *next;
} __core;

struct pid___ids {
	unsigned int level;
	struct hlist_head___ids {
		struct hlist_node___ids *first;
	} __attribute__((preserve_access_index)) tasks[1]; /* PIDTYPE_PID */
	struct upid___ids numbers[1];
} __core;

struct task_struct___ids {
	struct pid___ids *thread_pid;
	struct hlist_node___ids pid_links[1];
} __core;

/* The number in the innermost of a task's pid namespaces, and that namespace. */
static __always_inline struct upid___ids *innermost(struct pid___ids *pid)
{
	return (void *)((u64)pid + bpf_core_field_offset(struct pid___ids, numbers) + BPF_CORE_READ(pid, level) * (u64)bpf_core_type_size(struct upid___ids));
}

#define NODE_BITS 6
#define MOST_LEVELS 4 /* PID_MAX_LIMIT has 22 bits */

/* The task with this number in the pid namespace of the one that runs; 0: none. include/linux/xarray.h says what an entry is. */
__noinline u64 task_of_number(u32 number)
{
	struct task_struct___ids *task = (void *)bpf_get_current_task();
	struct pid___ids *pid = BPF_CORE_READ(task, thread_pid);
	struct xa_node___ids *node;
	u64 entry;
	u8 shift;

	if (!pid || !number)
		return 0;
	entry = (u64)BPF_CORE_READ(innermost(pid), ns, idr.idr_rt.xa_head);
#pragma unroll
	for (int i = 0; i < MOST_LEVELS; i++) {
		if ((entry & 3) != 2)
			break;
		node = (void *)(entry - 2);
		shift = BPF_CORE_READ(node, shift);
		if (!i && number >> shift >> NODE_BITS)
			return 0;
		entry = kread_word((u64)node + bpf_core_field_offset(struct xa_node___ids, slots) + (number >> shift & ((1 << NODE_BITS) - 1)) * sizeof(void *));
	}
	if (!entry || entry & 3)
		return 0;
	entry = (u64)BPF_CORE_READ((struct pid___ids *)entry, tasks[0].first);
	return entry ? entry - bpf_core_field_offset(struct task_struct___ids, pid_links) : 0;
}

/* Where the call that is over has put what it read; 0: that is not known. */
static __always_inline u64 read_into(struct pt_regs *regs)
{
	u64 at = regs ? system_call_arg(regs, 1) : 0, base = 0;

	if (at && system_call_of(regs) == SYS_READV)
		return bpf_probe_read_user(&base, sizeof(base), (void *)at) ? 0 : base;
	return at && system_call_of(regs) == SYS_READ ? at : 0;
}

/* A task works for this process, which asked for something in the file system that it serves, or for nobody. */
static __noinline int serves_files_for(struct account *a, u32 client)
{
	u32 pid;
	struct served *s;

	if (!a)
		return 0;
	rests_until_now(a);
	pid = a->pid;
	if (a->since) {
		border(a);
		put_task(a);
		a->since = 0;
	}
	serve(a, client, KP_FOR_CLIENT);
	s = client ? bpf_map_lookup_elem(&served_tasks, &pid) : NULL;
	if (!s)
		return 0;
	s->since = FOR_FILES;
	a->since = FOR_FILES;
	return 0;
}

#define FROM_DEVICE 0xffffffff

/* A task has read a request to its file system: from the device, or from a pipe into which so much was spliced. */
static __noinline int asked_for_files(struct account *a, struct pt_regs *regs, u32 spliced)
{
	struct fuse_in_header asks = {};
	u64 at = read_into(regs), task;
	u32 process, client = 0;

	if (!a || a->mode == KP_WORK_THREAD || !at || bpf_probe_read_user(&asks, sizeof(asks), (void *)at) || (spliced != FROM_DEVICE && asks.len != spliced))
		return 0;
	task = task_of_number(asks.pid);
	process = task ? kread((struct task_struct *)task, tgid) : 0;
	if (process && process != bpf_get_current_pid_tgid() >> 32)
		client = victim_of((struct task_struct *)task, process);
	if (a->victim == KP_OTHERS && client == KP_OTHERS)
		client = 0;
	return serves_files_for(a, client);
}

/* It has answered. */
__noinline int answered_for_files(void)
{
	struct account *a = this_account();

	if (a && (a->since & (FOR_FILES | WROTE)) == FOR_FILES)
		since_is(a, WROTE);
	return 0;
}

#endif
