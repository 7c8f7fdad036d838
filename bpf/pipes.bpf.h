/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Messages by system calls, where it is looked what the number stands for: through pipes, of which the kernel shows nothing else, and who begins to send through
 * a unix socket.
 *
 * Of each pipe the bytes are counted that were written and taken: what is taken is of the writer whose bytes reach that far. What is taken while its writer's
 * call goes on is beyond all that was counted, and is of who writes. A pipe that was not empty when recording began is counted right from when it was
 * found empty.
 */
#ifndef KPAT_PIPES_H
#define KPAT_PIPES_H

#include "uses.bpf.h"

#define S_IFMT 0170000
#define S_IFIFO 0010000
#define S_IFSOCK 0140000

#define WRITERS 8 /* the latest ones: a power of two */

struct written {
	u64 end;
	u64 who;
};

struct pipe {
	u64 written; /* bytes */
	u64 taken;
	u64 writes; /* who writes now */
	u64 writing; /* so many are in their calls */
	u64 calls;
	struct written by[WRITERS];
};

/* By inode: see pipe_number(). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, u64);
	__type(value, struct pipe);
} pipes SEC(".maps");

struct pipe_inode_info___kpat {
	unsigned int head, tail;
} __core;

struct inode___pipe {
	unsigned short i_mode;
	unsigned long i_ino;
	struct pipe_inode_info___kpat *i_pipe;
} __core;

struct file___open {
	struct inode___pipe *f_inode;
	void *private_data;
} __core;

struct fdtable___open {
	unsigned int max_fds;
	struct file___open **fd;
} __core;

struct files_struct___open {
	struct fdtable___open *fdt;
} __core;

struct task_struct___files {
	struct files_struct___open *files;
} __core;

struct socket___open {
	struct sock *sk;
} __core;

/* What is open by this number; NULL: nothing is. */
static __always_inline struct file___open *file_of(u64 number)
{
	struct task_struct___files *task = (void *)bpf_get_current_task();
	struct fdtable___open *table = BPF_CORE_READ(task, files, fdt);
	struct file___open *file = NULL;

	number = (u32)number;
	if (number < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + number);
	return file;
}

/* The inode of what is open by this number, if it is of this kind, else NULL. */
static __always_inline struct inode___pipe *inode_of(struct file___open *file, u32 kind)
{
	struct inode___pipe *inode = file ? BPF_CORE_READ(file, f_inode) : NULL;

	return inode && (BPF_CORE_READ(inode, i_mode) & S_IFMT) == kind ? inode : NULL;
}

/* Of a file that is a socket. */
static __always_inline struct sock *sock_of(struct file___open *file)
{
	struct socket___open *socket = BPF_CORE_READ(file, private_data);

	return socket ? BPF_CORE_READ(socket, sk) : NULL;
}

static __always_inline void unix_begins(struct account *a, struct file___open *file, u64 who)
{
	struct sock *sk = sock_of(file);

	if (!sk)
		return;
	if (BPF_CORE_READ((struct sock___profile *)sk, __sk_common.skc_family) == AF_UNIX)
		sent(a, (u64)sk);
	else
		a->not_unix = who;
}

/* Its address may have been another's, and each file system has numbers of its own. */
static __always_inline u64 pipe_number(struct inode___pipe *inode)
{
	return mixed((u64)inode, BPF_CORE_READ(inode, i_ino));
}

/* A task begins to write to a pipe, or a unix socket. */
__noinline int writing_begins(u64 number, u32 also_pipes)
{
	struct account *a = this_account();
	u64 who = (bpf_get_current_pid_tgid() & ~0xffffffffULL) | (u32)number, key;
	struct file___open *file;
	struct inode___pipe *inode;
	struct pipe *p, none = {};
	u32 kind;

	if (!a)
		return 0;
	file = file_of(number);
	inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	kind = inode ? BPF_CORE_READ(inode, i_mode) & S_IFMT : 0;
	if (kind == S_IFSOCK)
		unix_begins(a, file, who);
	if (kind != S_IFIFO || !also_pipes)
		return 0;
	key = pipe_number(inode);
	p = bpf_map_lookup_elem(&pipes, &key);
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

/* Its call is over by which a task has written so many bytes, or failed. */
__noinline int pipe_written(u64 number, long bytes)
{
	struct account *a = this_account();
	struct inode___pipe *inode = inode_of(file_of(number), S_IFIFO);
	u64 key = inode ? pipe_number(inode) : 0, end;
	struct pipe *p = inode ? bpf_map_lookup_elem(&pipes, &key) : NULL;
	struct written *w;

	if (!a || !p)
		return 0;
	if (bytes > 0) {
		end = __sync_fetch_and_add(&p->written, bytes) + bytes;
		w = &p->by[__sync_fetch_and_add(&p->calls, 1) & (WRITERS - 1)];
		w->who = speaker(a);
		w->end = end;
	}
	if (p->writing) /* its beginning may not have been seen */
		__sync_fetch_and_add(&p->writing, -1);
	return 0;
}

__noinline int pipe_taken(u64 number, long bytes)
{
	struct account *a = this_account();
	struct inode___pipe *inode = inode_of(file_of(number), S_IFIFO);
	u64 key = inode ? pipe_number(inode) : 0, end, written, who, nearest = 0;
	struct pipe_inode_info___kpat *info;
	struct pipe *p = inode ? bpf_map_lookup_elem(&pipes, &key) : NULL;

	if (!a || !p)
		return 0;
	end = __sync_fetch_and_add(&p->taken, bytes) + bytes;
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
	info = BPF_CORE_READ(inode, i_pipe);
	if (end != written && info && BPF_CORE_READ(info, head) == BPF_CORE_READ(info, tail) && !p->writing)
		p->taken = p->written;
	return took_of(who, NOT_KNOWN);
}

/* A task has taken bytes of a socket by splice(), which no tracepoint shows. */
__noinline int socket_spliced(u64 number, long bytes)
{
	struct account *a = this_account();
	struct file___open *file = file_of(number);
	struct sock *sk;
	u64 cookie, peer;
	u16 family;

	if (!a || !inode_of(file, S_IFSOCK))
		return 0;
	sk = sock_of(file);
	if (!sk)
		return 0;
	family = BPF_CORE_READ((struct sock___profile *)sk, __sk_common.skc_family);
	if (family == AF_UNIX) {
		peer = (u64)BPF_CORE_READ((struct unix_sock___bound *)sk, peer);
		cookie = number_of(peer);
		took_from(bpf_map_lookup_elem(&senders, &cookie), role_by_sender(peer));
	} else if (family == AF_INET || family == AF_INET6) {
		cookie = BPF_CORE_READ((struct sock___cookie *)sk, __sk_common.skc_cookie.counter);
		if (cookie && use(a, cookie, KP_USE_READ, bytes))
			connected((u64)sk, cookie);
		took_of_peer(a, (u64)sk, cookie);
	}
	return 0;
}

/* A task has taken a connection from who listens. */
__noinline int accepted(u64 listens, u64 number)
{
	struct account *a = this_account();
	struct file___open *from = file_of(listens), *file = file_of(number);
	struct sock *sk;
	u64 cookie;
	u16 family;

	if (!a || !inode_of(from, S_IFSOCK) || !inode_of(file, S_IFSOCK))
		return 0;
	sk = sock_of(from);
	family = sk ? BPF_CORE_READ((struct sock___profile *)sk, __sk_common.skc_family) : 0;
	if (family != AF_INET && family != AF_INET6)
		return 0;
	cookie = given_cookie((u64)sk) ?: given_cookie(first_below((u64)sk));
	if (cookie)
		use(a, cookie, KP_USE_READ, 1);
	sk = sock_of(file);
	cookie = sk ? BPF_CORE_READ((struct sock___cookie *)sk, __sk_common.skc_cookie.counter) : 0;
	if (cookie)
		use(a, cookie, KP_USE_OPEN, 0);
	return 0;
}

/* (registers, number) */
SEC("raw_tp/sys_enter")
int work_sys_enter(u64 *ctx)
{
	struct account *a = system_call(KP_WORK_KERNEL);
	struct pt_regs *regs;
	long call = ctx[1];
	u32 into, also_pipes = 1;

	if (!a)
		return 0;
	a->called_by = a->pid;
	a->by_number = 0;
	switch (call) {
	case SYS_SENDTO:
	case SYS_SENDMSG:
	case SYS_SENDMMSG:
		also_pipes = 0;
		into = 0;
		break;
	case SYS_READ:
	case SYS_READV:
	case SYS_ACCEPT:
	case SYS_ACCEPT4:
		a->by_number = 1;
		return 0;
	case SYS_WRITE:
	case SYS_WRITEV:
	case SYS_SENDFILE:
	case SYS_VMSPLICE:
		into = 0;
		break;
	case SYS_TEE:
		into = 1;
		break;
	case SYS_SPLICE:
		into = 2;
		break;
	default:
		return 0;
	}
	regs = (struct pt_regs *)bpf_task_pt_regs((struct task_struct *)bpf_get_current_task_btf());
	if (!regs)
		return 0;
	a->by_number = also_pipes;
	if (also_pipes || (current_pid_tgid() & ~0xffffffffULL) + (u32)system_call_arg(regs, into) != a->not_unix)
		writing_begins(system_call_arg(regs, into), also_pipes);
	return 0;
}

/* A task's system call is over, with this result. */
static __noinline int message_by_number(struct account *a, struct pt_regs *regs, long result)
{
	if (!a || !regs)
		return 0;
	switch (system_call_of(regs)) {
	case SYS_WRITE:
	case SYS_WRITEV:
	case SYS_SENDFILE:
	case SYS_VMSPLICE:
		return pipe_written(system_call_arg(regs, 0), result);
	case SYS_TEE:
		return pipe_written(system_call_arg(regs, 1), result);
	case SYS_SPLICE:
		pipe_written(system_call_arg(regs, 2), result);
		if (result <= 0)
			return 0;
		socket_spliced(system_call_arg(regs, 0), result);
		return pipe_taken(system_call_arg(regs, 0), result);
	case SYS_ACCEPT:
	case SYS_ACCEPT4:
		return result > 0 ? accepted(system_call_arg(regs, 0), result) : 0;
	case SYS_READ:
	case SYS_READV:
		return result > 0 ? pipe_taken(system_call_arg(regs, 0), result) : 0;
	}
	return 0;
}

/* (registers, result) */
SEC("raw_tp/sys_exit")
int work_sys_exit(u64 *ctx)
{
	struct account *a = system_call(KP_WORK_USER);
	struct pt_regs *regs;
	long result = ctx[1];
	u32 taker;

	if (!a)
		return 0;
	taker = a->datagram_pid;
	if (!taker && a->called_by == a->pid && !a->by_number)
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs((struct task_struct *)bpf_get_current_task_btf());
	a->datagram_pid = 0;
	if (taker && taker == a->pid && result > 0 && regs && (system_call_of(regs) != SYS_RECVFROM || system_call_arg5(regs)))
		datagram_taken(a, regs, result);
	if (a->called_by != a->pid || a->by_number)
		message_by_number(a, regs, result);
	return 0;
}

#endif
