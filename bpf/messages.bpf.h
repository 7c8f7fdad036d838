/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a server does after it took a client's message is done for the client. By unix sockets the sender's socket is known for each message; by pipes and
 * by connections between two sockets of this host it is whoever wrote last.
 *
 * Not followed: messages that are spliced, or sent and taken by io_uring through pipes.
 */
#ifndef KPAT_MESSAGES_H
#define KPAT_MESSAGES_H

#include "behalf.bpf.h"
#include "ends.bpf.h"

#define AF_UNIX 1
#define S_IFMT 0170000
#define S_IFIFO 0010000

OWNERS_OF(senders, 16384); /* by unix socket */
OWNERS_OF(writers, 16384); /* by connection, as its writer sees it; by inode of a pipe */

static __always_inline void took_of(struct account *a, u32 *who)
{
	if (who && *who == KP_OTHERS && a->victim == KP_OTHERS)
		serve(a, 0, 0);
	else if (who && *who != a->victim)
		serve(a, *who, KP_FOR_CLIENT);
}

static __always_inline void wrote(struct account *a, u64 key)
{
	u32 who = a->victim, *known = bpf_map_lookup_elem(&writers, &key);

	if (!known || *known != who)
		bpf_map_update_elem(&writers, &key, &who, BPF_ANY);
}

/* A process has sent to a unix socket: its messages have the socket's address. */
static __always_inline void sent(struct account *a, u64 sk)
{
	u32 who = a->victim;

	bpf_map_update_elem(&senders, &sk, &who, BPF_ANY);
}

/* (skb, length) */
SEC("raw_tp/skb_copy_datagram_iovec")
int work_skb_copy_datagram_iovec(u64 *ctx)
{
	struct account *a = this_account();
	u64 sk;

	if (!at_task(a) || a->mode == KP_WORK_THREAD)
		return 0;
	sk = kread_ptr((struct sk_buff *)ctx[0], sk);
	if (!sk || kread((struct sock___profile *)sk, __sk_common.skc_family) != AF_UNIX)
		return 0;
	took_of(a, bpf_map_lookup_elem(&senders, &sk));
	return 0;
}

static __always_inline void sent_to_peer(struct account *a, u64 sk)
{
	struct ends e;

	if (ends_of((void *)sk, &e))
		wrote(a, as_sender(&e));
}

static __always_inline void took_of_peer(struct account *a, u64 sk)
{
	struct ends e;
	u64 key;

	if (a->mode == KP_WORK_THREAD || !ends_of((void *)sk, &e))
		return;
	key = as_receiver(&e);
	took_of(a, bpf_map_lookup_elem(&writers, &key));
}

struct inode___pipe {
	unsigned short i_mode;
} __core;

struct file___pipe {
	struct inode___pipe *f_inode;
} __core;

struct fdtable___pipe {
	unsigned int max_fds;
	struct file___pipe **fd;
} __core;

struct files_struct___pipe {
	struct fdtable___pipe *fdt;
} __core;

struct task_struct___files {
	struct files_struct___pipe *files;
} __core;

/* The inode of the pipe that is open by this number; 0: something else is. */
static __always_inline u64 pipe_of(u64 number)
{
	struct task_struct___files *task = (void *)bpf_get_current_task();
	struct fdtable___pipe *table = BPF_CORE_READ(task, files, fdt);
	struct inode___pipe *inode;
	struct file___pipe *file = NULL;

	if (number >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + number);
	inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	return inode && (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFIFO ? (u64)inode : 0;
}

/* A task's system call is over, with this result. */
static __noinline int message_by_pipe(struct account *a, long result)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	long call = system_call_of(regs);
	u64 pipe;

	if (!a || (call != SYS_READ && call != SYS_WRITE && call != SYS_READV && call != SYS_WRITEV) || result <= 0)
		return 0;
	pipe = pipe_of((u32)system_call_arg(regs));
	if (!pipe)
		return 0;
	if (call == SYS_WRITE || call == SYS_WRITEV)
		wrote(a, pipe);
	else
		took_of(a, bpf_map_lookup_elem(&writers, &pipe));
	return 0;
}

SEC("raw_tp/sys_enter")
int work_sys_enter(u64 *ctx)
{
	return system_call(KP_WORK_KERNEL);
}

/* (registers, result) */
SEC("raw_tp/sys_exit")
int work_sys_exit(u64 *ctx)
{
	struct account *a = this_account();

	system_call(KP_WORK_USER);
	if (at_task(a))
		message_by_pipe(a, ctx[1]);
	return 0;
}

#endif
