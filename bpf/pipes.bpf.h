/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Messages by system calls, where it is looked what the number stands for: through pipes and message queues (queues.bpf.h), of which the kernel shows nothing else, and who begins to
 * send through a unix socket. A pipe that was not empty when recording began is counted right from when it was found empty, a queue from when all of that was taken.
 */
#ifndef KPAT_PIPES_H
#define KPAT_PIPES_H

#include "datagrams.bpf.h"
#include "queues.bpf.h"
#include "waits.bpf.h"

#define MSG_COPY 040000 /* msgrcv(): it stays in the queue */

static __always_inline void unix_begins(struct account *a, struct file___open *file, u64 who)
{
	struct sock *sk = sock_of(file);

	if (!sk)
		return;
	if (BPF_CORE_READ((struct sock___profile *)sk, __sk_common.skc_family) == AF_UNIX) {
		if (a->handed || (hands_on(a) && state_is(who >> 32, HANDS)))
			unix_rings(a, (u64)sk);
		sent(a, (u64)sk);
	} else {
		a->not_unix = who;
	}
}

/* A task begins to write to a pipe, or a unix socket. */
__noinline int writing_begins(u64 number, u32 also_pipes)
{
	struct account *a = this_account();
	u64 who = (bpf_get_current_pid_tgid() & ~0xffffffffULL) | (u32)number;
	struct file___open *file;
	struct inode___pipe *inode;
	u32 kind;

	if (!a)
		return 0;
	file = file_of(number);
	inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	kind = inode ? BPF_CORE_READ(inode, i_mode) & S_IFMT : 0;
	if (a->child && (kind == S_IFSOCK || kind == S_IFIFO))
		child_writes(a);
	if (kind == S_IFSOCK)
		unix_begins(a, file, who);
	else if ((!kind || kind == S_IFREG) && hands_on(a))
		eventfd_rings(a, file);
	return kind == S_IFIFO && also_pipes ? writes_to(pipe_number(inode)) : 0;
}

__noinline int pipe_written(u64 number, long bytes)
{
	struct file___open *file = file_of(number);
	struct inode___pipe *inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	u32 kind = inode ? BPF_CORE_READ(inode, i_mode) & S_IFMT : 0;

	if (kind == S_IFCHR && bytes > 0 && serves_files(inode))
		return answered_for_files();
	return kind == S_IFIFO ? written_to(pipe_number(inode), bytes) : 0;
}

/* From a header's length on, what it gives is for asked_for_files(). */
__noinline int pipe_taken(u64 number, long bytes)
{
	struct file___open *file = file_of(number);
	struct inode___pipe *inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	u32 kind = inode ? BPF_CORE_READ(inode, i_mode) & S_IFMT : 0;
	struct pipe_inode_info___kpat *info;
	struct account *a = this_account();
	u64 event;

	if (kind == S_IFCHR && serves_files(inode))
		return FROM_DEVICE;
	if (kind != S_IFIFO) {
		if (bytes != 8 || !a || !state_is(bpf_get_current_pid_tgid() >> 32, HANDS))
			return 0;
		event = eventfd_of(file);
		if (event)
			rung(a, bell_of(event));
		return 0;
	}
	info = BPF_CORE_READ(inode, i_pipe);
	return taken_from(pipe_number(inode), bytes, info && BPF_CORE_READ(info, head) == BPF_CORE_READ(info, tail));
}

/* Of an open queue of POSIX, and its messages of this priority; 0: it is none. */
static __always_inline u64 mqueue_number(u64 number, u64 priority)
{
	struct inode___pipe *inode = inode_of(file_of(number), S_IFREG);

	return inode ? mixed(pipe_number(inode), (u32)priority) | 1 : 0;
}

/* A task begins to send a message to a queue. */
static __noinline int sends_to_queue(u64 call, struct pt_regs *regs)
{
	u64 priority, key, any;

	if (!regs)
		return 0;
	if (call == SYS_MSGSND)
		return writes_to(queue_number(system_call_arg(regs, 0), system_call_arg(regs, 1)));
	priority = system_call_arg4(regs);
	key = mqueue_number(system_call_arg(regs, 0), priority);
	any = mqueue_number(system_call_arg(regs, 0), ANY_PRIORITY);
	if (priority && key && !bpf_map_lookup_elem(&pipes, &any))
		writes_to(any);
	return key ? writes_to(key) : 0;
}

/* Its call is over by which a task has sent a message to a queue, or has taken one. */
static __noinline int queue_used(u64 call, struct pt_regs *regs, long result)
{
	u64 key, any, at;
	u32 priority = 0;

	if (!regs)
		return 0;
	switch (call) {
	case SYS_MSGSND:
		return written_to(queue_number(system_call_arg(regs, 0), system_call_arg(regs, 1)), !result);
	case SYS_MQ_TIMEDSEND:
		key = mqueue_number(system_call_arg(regs, 0), system_call_arg4(regs));
		return key ? written_to(key, !result) : 0;
	case SYS_MSGRCV:
		if (result < 0 || system_call_arg5(regs) & MSG_COPY)
			return 0;
		return taken_from(queue_number(system_call_arg(regs, 0), system_call_arg(regs, 1)), 1, false);
	}
	if (result < 0)
		return 0;
	at = system_call_arg4(regs);
	if (at && bpf_probe_read_user(&priority, sizeof(priority), (void *)at))
		return 0;
	key = mqueue_number(system_call_arg(regs, 0), priority);
	any = mqueue_number(system_call_arg(regs, 0), ANY_PRIORITY);
	if (!key || (!at && bpf_map_lookup_elem(&pipes, &any)))
		return 0;
	return taken_from(key, 1, false);
}

/* A task has taken bytes of a socket by splice(), which no tracepoint shows. True: of a connection or datagrams, see spliced_of_peer(). */
__noinline int socket_spliced(u64 number)
{
	struct account *a = this_account();
	struct file___open *file = file_of(number);
	struct sock *sk;
	u16 family;

	if (!a || !inode_of(file, S_IFSOCK))
		return 0;
	sk = sock_of(file);
	if (!sk)
		return 0;
	family = BPF_CORE_READ((struct sock___profile *)sk, __sk_common.skc_family);
	if (family == AF_UNIX) {
		took_of_unix(a, (u64)BPF_CORE_READ((struct unix_sock___bound *)sk, peer), (u64)sk);
	} else if (family == AF_INET || family == AF_INET6) {
		return 1;
	}
	return 0;
}

/* The same of one whose other end may be on another host. Apart, for the stack's sake. */
static __noinline int spliced_of_peer(struct account *a, u64 number, long bytes)
{
	u64 cookie, sk = (u64)sock_of(file_of(number));

	if (!a || !sk)
		return 0;
	cookie = BPF_CORE_READ((struct sock___cookie *)sk, __sk_common.skc_cookie.counter);
	if (cookie && use(a, cookie, KP_USE_READ, bytes))
		connected(sk, cookie);
	took_of_peer(a, sk, cookie);
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

/* A task's system call begins. */
static __always_inline int call_begins(long call)
{
	struct account *a = system_call(KP_WORK_KERNEL);
	struct pt_regs *regs;
	u32 into, also_pipes = 1;
	bool queue = false;

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
	case SYS_MSGRCV:
	case SYS_MQ_TIMEDRECEIVE:
		a->by_number = 1;
		return 0;
	case SYS_EPOLL_PWAIT:
	case SYS_EPOLL_PWAIT2:
#ifdef SYS_EPOLL_WAIT /* newer processors have none of these */
	case SYS_EPOLL_WAIT:
#endif
		a->by_number = wait_begins(a, BY_EPOLL);
		return 0;
#ifdef SYS_POLL
	case SYS_POLL:
		a->by_number = wait_begins(a, BY_POLL);
		return 0;
	case SYS_SELECT:
#endif
	case SYS_PPOLL:
	case SYS_PSELECT6:
		a->by_number = wait_begins(a, BY_SELECT);
		return 0;
	case SYS_NANOSLEEP:
	case SYS_CLOCK_NANOSLEEP:
		a->by_number = wait_begins(a, BY_SLEEP);
		return 0;
	case SYS_EXIT:
		return a->handed ? thread_ends(a) : 0;
	case SYS_FUTEX:
		if (!hands_on(a) && !state_is(bpf_get_current_pid_tgid() >> 32, HANDS))
			return 0;
		a->by_number = futex_begins(a, (struct pt_regs *)bpf_task_pt_regs((struct task_struct *)bpf_get_current_task_btf()));
		return 0;
	case SYS_MSGSND:
	case SYS_MQ_TIMEDSEND:
		queue = true;
		into = 0;
		break;
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
	if (queue)
		return sends_to_queue(call, regs);
	if (also_pipes || (current_pid_tgid() & ~0xffffffffULL) + (u32)system_call_arg(regs, into) != a->not_unix)
		writing_begins(system_call_arg(regs, into), also_pipes);
	return 0;
}

/* A task's system call is over, with this result. */
static __noinline int message_by_number(struct account *a, struct pt_regs *regs, long result)
{
	u32 taken;

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
		if (socket_spliced(system_call_arg(regs, 0)))
			return spliced_of_peer(a, system_call_arg(regs, 0), result);
		return request_spliced(system_call_arg(regs, 0), system_call_arg(regs, 2), result) ? 0 : pipe_taken(system_call_arg(regs, 0), result);
	case SYS_ACCEPT:
	case SYS_ACCEPT4:
		turns_elsewhere(a);
		return result > 0 ? accepted(system_call_arg(regs, 0), result) : 0;
	case SYS_EPOLL_PWAIT:
	case SYS_EPOLL_PWAIT2:
#ifdef SYS_EPOLL_WAIT
	case SYS_EPOLL_WAIT:
#endif
		return wait_ends(a, regs, result, BY_EPOLL);
#ifdef SYS_POLL
	case SYS_POLL:
		return wait_ends(a, regs, result, BY_POLL);
	case SYS_SELECT:
#endif
	case SYS_PPOLL:
	case SYS_PSELECT6:
		return wait_ends(a, regs, result, BY_SELECT);
	case SYS_NANOSLEEP:
	case SYS_CLOCK_NANOSLEEP:
		return wait_ends(a, regs, 0, BY_SLEEP);
	case SYS_FUTEX:
		return futex_ends(a, regs, result);
	case SYS_READ:
	case SYS_READV:
		if (result <= 0)
			return 0;
		taken = pipe_taken(system_call_arg(regs, 0), result);
		return taken >= sizeof(struct fuse_in_header) ? asked_for_files(a, regs, taken) : 0;
	case SYS_MSGSND:
	case SYS_MSGRCV:
	case SYS_MQ_TIMEDSEND:
	case SYS_MQ_TIMEDRECEIVE:
		return queue_used(system_call_of(regs), regs, result);
	}
	return 0;
}

/* (registers, number) */
SEC("raw_tp/sys_enter")
int work_sys_enter(u64 *ctx)
{
	return call_begins(ctx[1]);
}

/* The event: a head, the number, the arguments. */
SEC("tracepoint/raw_syscalls/sys_enter")
int work_whole_sys_enter(u64 *ctx)
{
	return call_begins(ctx[1]);
}

/* It is over. */
static __always_inline int call_ends(long result)
{
	struct account *a = system_call(KP_WORK_USER);
	struct pt_regs *regs;
	u32 taker;

	if (!a)
		return 0;
	taker = a->datagram_pid;
	if (!taker && a->called_by == a->pid && !a->by_number)
		return 0;
	regs = (struct pt_regs *)bpf_task_pt_regs((struct task_struct *)bpf_get_current_task_btf());
	a->datagram_pid = 0;
	if (taker && taker == a->pid && result > 0 && regs && !datagram_taken(regs, result))
		takes_of_nobody(a);
	if (a->called_by != a->pid || a->by_number)
		message_by_number(a, regs, result);
	return 0;
}

/* (registers, result) */
SEC("raw_tp/sys_exit")
int work_sys_exit(u64 *ctx)
{
	return call_ends(ctx[1]);
}

/* The event: a head, the number, the result. */
SEC("tracepoint/raw_syscalls/sys_exit")
int work_whole_sys_exit(u64 *ctx)
{
	return call_ends(ctx[2]);
}

#endif
