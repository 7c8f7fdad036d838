/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a server does after it took a client's message is done for the client. By unix sockets the sender's socket is known for each message; by pipes and
 * by connections between two sockets of this host it is whoever wrote last.
 *
 * Of two processes the one that asks is the client: who connected, as far as ports or a unix socket's name say so, else who sent the first message that is seen.
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

/* Who wrote last: its number, and in the low half as whom it is accounted (KP_OTHERS where it is not chosen). */
#define SPEAKERS(name)                                       \
	struct {                                             \
		__uint(type, BPF_MAP_TYPE_LRU_HASH);         \
		__uint(max_entries, 16384);                  \
		__type(key, u64);                            \
		__type(value, u64);                          \
	} name SEC(".maps")

SPEAKERS(senders); /* by unix socket */
SPEAKERS(writers); /* by connection, as its writer sees it; by inode of a pipe */

/* Of two processes that send each other messages, the smaller number above: which is the client. */
OWNERS_OF(dialogs, 16384);

/* Ports on which somebody listened since recording began. */
OWNERS_OF(listening, 4096);

/* Of the two ends of a connection, by its ports; NOT_KNOWN: whoever is seen to take a message first is the server. */
enum role { NOT_KNOWN, IS_SERVER, IS_CLIENT };
#define FIRST_EPHEMERAL 32768

static __always_inline u64 speaker(struct account *a)
{
	return (bpf_get_current_pid_tgid() & ~0xffffffffULL) | a->victim;
}

/*
 * A task took a message, in this role. Nobody who never answers is a server: pipelines, pipes by which programs are started and jobs counted go one way. And
 * an answer changes nothing of whom its taker works for: a client goes on for itself, a proxy for its own client.
 */
static __noinline int took_of(struct account *a, u64 sender, u32 role)
{
	u64 me = bpf_get_current_pid_tgid() >> 32, other = sender >> 32, pair;
	u32 as = sender, who, *client, by = 1;

	if (!a || !other || other == me)
		return 0;
	pair = me < other ? me << 32 | other : other << 32 | me;
	client = bpf_map_lookup_elem(&dialogs, &pair);
	who = client ? *client : role == IS_CLIENT ? me : other;
	if (!client)
		bpf_map_update_elem(&dialogs, &pair, &who, BPF_ANY);
	if (who == (u32)me) {
		who = other;
		if (!bpf_map_lookup_elem(&answering, &who))
			bpf_map_update_elem(&answering, &who, &by, BPF_ANY);
		return 0;
	}
	who = me;
	if (!bpf_map_lookup_elem(&answering, &who))
		return 0;
	if (as == a->victim) /* both are not chosen */
		serve(a, 0, 0);
	else
		serve(a, as, KP_FOR_CLIENT);
	return 0;
}

static __always_inline void took_from(struct account *a, u64 *sender, u32 role)
{
	if (sender)
		took_of(a, *sender, role);
}

static __always_inline void wrote(struct account *a, u64 key)
{
	u64 who = speaker(a), *known = bpf_map_lookup_elem(&writers, &key);

	if (!known || *known != who)
		bpf_map_update_elem(&writers, &key, &who, BPF_ANY);
}

/* A process has sent to a unix socket: its messages have the socket's address. */
static __always_inline void sent(struct account *a, u64 sk)
{
	u64 who = speaker(a);

	bpf_map_update_elem(&senders, &sk, &who, BPF_ANY);
}

static __always_inline void listens(u64 sk)
{
	u64 port = kread((struct sock___ends *)sk, __sk_common.skc_num);
	u32 by = 1;

	bpf_map_update_elem(&listening, &port, &by, BPF_ANY);
}

static __always_inline u32 role_of(struct ends *e)
{
	if (bpf_map_lookup_elem(&listening, &e->near_port))
		return IS_SERVER;
	if (bpf_map_lookup_elem(&listening, &e->far_port))
		return IS_CLIENT;
	if ((e->near_port < FIRST_EPHEMERAL) == (e->far_port < FIRST_EPHEMERAL))
		return NOT_KNOWN;
	return e->near_port < FIRST_EPHEMERAL ? IS_SERVER : IS_CLIENT;
}

struct unix_sock___bound {
	struct sock___kind {
		u16 sk_type;
	} __attribute__((preserve_access_index)) sk;
	void *addr;
} __core;

#define SOCK_STREAM 1

/* What an accepted unix socket sends is a server's: it has the name that the server listens on. */
static __always_inline u32 role_by_sender(u64 sk)
{
	struct unix_sock___bound *u = (void *)sk;

	return BPF_CORE_READ(u, sk.sk_type) == SOCK_STREAM && BPF_CORE_READ(u, addr) ? IS_CLIENT : NOT_KNOWN;
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
	took_from(a, bpf_map_lookup_elem(&senders, &sk), role_by_sender(sk));
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
	took_from(a, bpf_map_lookup_elem(&writers, &key), role_of(&e));
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
		took_from(a, bpf_map_lookup_elem(&writers, &pipe), NOT_KNOWN);
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
