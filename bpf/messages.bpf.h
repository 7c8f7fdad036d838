/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a server does after it took a client's message is done for the client. By unix sockets the sender's socket is known for each message; by pipes and
 * by connections between two sockets of this host it is whoever wrote last.
 *
 * A connection is known by its addresses and ports, from the other end the other way around. Rejected: to search the peer's socket in the kernel's table, for
 * which there is no tracepoint. Where addresses are translated on the way the ends do not match, and the client is not known. The same loopback address is in
 * every network namespace, so there the namespace counts.
 *
 * Not followed: messages that are spliced, or sent and taken by io_uring through pipes.
 */
#ifndef KPAT_MESSAGES_H
#define KPAT_MESSAGES_H

#include "behalf.bpf.h"

#define AF_UNIX 1
#define S_IFMT 0170000
#define S_IFIFO 0010000

struct net___number {
	struct {
		unsigned int inum;
	} ns;
} __core;

struct sock___ends {
	struct {
		unsigned int skc_daddr;
		unsigned int skc_rcv_saddr;
		unsigned short skc_dport; /* in the network's order */
		unsigned short skc_num;
		unsigned short skc_family;
		struct {
			struct net___number *net;
		} skc_net;
		struct {
			unsigned int word[4];
		} skc_v6_daddr, skc_v6_rcv_saddr;
	} __sk_common;
} __core;

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

static __always_inline u64 mixed(u64 h, u64 more)
{
	h = (h ^ more) * 0xff51afd7ed558ccdULL;
	return h ^ h >> 32;
}

#define LOOPBACK4_IPV6 0x7f000006 /* what a socket of IPv6 alone has for its addresses of IPv4 */

/* 0: it is not connected. */
static __always_inline u64 connection(struct sock___ends *sk, bool as_writer)
{
	u32 near = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr), far = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	u64 from = near, to = far, ports[2], net = 0;
	u32 words[8];

	ports[0] = BPF_CORE_READ(sk, __sk_common.skc_num);
	ports[1] = __builtin_bswap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
	if (!ports[1])
		return 0;
	if ((near & 0xff) == 127)
		net = 1;
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET6 && far == __builtin_bswap32(LOOPBACK4_IPV6)) {
		bpf_core_read(words, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(words + 4, 16, &sk->__sk_common.skc_v6_daddr);
		from = mixed((u64)words[0] << 32 | words[1], (u64)words[2] << 32 | words[3]);
		to = mixed((u64)words[4] << 32 | words[5], (u64)words[6] << 32 | words[7]);
		net = !words[0] && !words[1] && !words[2] && words[3] == __builtin_bswap32(1);
	}
	if (net)
		net = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	return as_writer ? mixed(mixed(mixed(net + 1, from), to), ports[0] << 16 | ports[1]) | 1
			 : mixed(mixed(mixed(net + 1, to), from), ports[1] << 16 | ports[0]) | 1;
}

static __always_inline void sent_to_peer(struct account *a, u64 sk)
{
	u64 key = connection((void *)sk, true);

	if (key)
		wrote(a, key);
}

static __always_inline void took_of_peer(struct account *a, u64 sk)
{
	u64 key = connection((void *)sk, false);

	if (key && a->mode != KP_WORK_THREAD)
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
