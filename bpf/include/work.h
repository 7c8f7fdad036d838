/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The sums of profile.bpf.c, as user space reads them out of hash tables: rules as in wire.h. */
#ifndef KPAT_WORK_H
#define KPAT_WORK_H

#include "wire.h"

/* What a CPU was busy with. Same numbers as model::Busy. */
enum kp_work_kind {
	KP_WORK_USER = 1,
	KP_WORK_KERNEL = 2, /* in a process's own system calls */
	KP_WORK_IDLE = 3,
	KP_WORK_THREAD = 4, /* a kernel thread */
	KP_WORK_SOFTIRQ = 5, /* upon a process, or upon nobody */
	KP_WORK_HARDIRQ = 6,
	KP_WORK_SOFTIRQ_THREAD = 7, /* in a kernel thread */
	KP_WORK_FAULT = 8, /* a process, in a page fault */
	KP_WORK_UNSEEN = 9, /* from the switch to a task upon which the kernel runs no programs, to the first border after it */
};

/* For whom. Same numbers as model::Purpose. */
enum kp_purpose {
	KP_FOR_ITSELF = 0, /* the task that ran */
	KP_FOR_SOCKET = 1, /* who uses the socket */
	KP_FOR_FORWARD = 2, /* a packet that went on to another device */
	KP_FOR_DROP = 3, /* a packet that was dropped */
	KP_FOR_UNKNOWN = 4, /* a packet of which nothing says whose it is */
	KP_FOR_KERNEL = 5,
	KP_FOR_WRITEBACK = 6, /* the process that wrote what a kernel thread writes to disk */
	KP_FOR_BLOCK = 7, /* the process that asked for the block request */
	KP_FOR_CLIENT = 8, /* itself, since it took a message of this process */
	KP_FOR_ANSWER = 9, /* a packet that the kernel answered by itself */
	KP_FOR_ITEM = 10, /* the process that queued the work item which a kernel thread executes */
	KP_FOR_ASKER = 11, /* as KP_FOR_CLIENT, if that process took an answer of it (KP_USE_ANSWER), else as KP_FOR_ITSELF */
	KP_FOR_REMOTE = 12, /* itself, since it took a message of another host: of the ends with this number (struct kp_peer); if it wrote to that socket, else as KP_FOR_ITSELF */
	/* Parts of KP_FOR_ITSELF, and not added to it: what a thread did that was handed work by another one of its process */
	KP_FOR_HANDED = 13, /* for this client, as KP_FOR_ASKER */
	KP_FOR_HANDED_REMOTE = 14, /* for this one, as KP_FOR_REMOTE */
	KP_FOR_HANDED_ON = 15, /* all of it */
};

/* A process's number in sums and samples: its id, and above it how many processes that ran since recording began had that id before. Same as model::ProcessNumber. */
#define KP_ID_BITS 22
#define KP_ID_MASK ((1u << KP_ID_BITS) - 1)

/* In the place of a process: all that were not chosen. Same number as model::OTHERS. */
#define KP_OTHERS 0xffffffffu

/* By what processes are chosen. */
enum kp_rule_kind {
	KP_RULE_COMM = 1,
	KP_RULE_CGROUP = 2, /* in it or below */
	KP_RULE_USER = 3,
};

#define KP_RULES 32

struct kp_rule {
	u64 kind;
	u64 number; /* of the cgroup or the user */
	u64 mask[2]; /* of the name: bits that count, and what they are */
	u64 name[2];
};

/* How a process used a socket. Same numbers as model::UseKind. */
enum kp_use_kind {
	KP_USE_READ = 1,
	KP_USE_WRITE = 2,
	KP_USE_OPEN = 3, /* it listens, or connects */
	KP_USE_TAKE = 5, /* it took a datagram: whole, and nobody else did */
	KP_USE_ANSWER = 4, /* it took an answer of the process that is in the place of the socket: that one is its server */
	KP_USE_MADE = 6, /* it made the process that is in the place of the socket, for its client (children.bpf.h) */
};

/* Sums of profile.bpf.c, in hash tables. */
struct kp_work_key {
	u64 socket; /* its cookie, 0: for none; of KP_FOR_FORWARD network namespace << 32 | interface of arrival << 16 | of departure; of KP_FOR_WRITEBACK, _BLOCK, _CLIENT, _ITEM and _ASKER the process; of _REMOTE the number of the ends */
	u32 victim; /* number of the process whose time it was, 0: idle */
	u16 cpu;
	u8 what;
	u8 purpose;
	u64 turn;
};

struct kp_work {
	u64 ns;
	u64 packets; /* of KP_WORK_KERNEL system calls, of KP_WORK_FAULT page faults; of KP_FOR_BLOCK requests */
	u64 bytes; /* of KP_FOR_HANDED and _REMOTE the part of ns that is so only if no other work came to where it was handed */
};

struct kp_use_key {
	u64 socket;
	u32 process;
	u16 cpu;
	u8 how;
	u8 turn;
};

/* Of one CPU's account, what user space reads. */
struct kp_account_head {
	u64 opened; /* boot time; 0: nothing is charged */
	u64 logged; /* up to here everything is among the sums */
	u64 unplaced_ns; /* there was no room among the sums */
	u64 packets; /* as the kernel counts them in /proc/net/softnet_stat */
	u64 requests; /* of disks, completed here: as the kernel counts them in /proc/diskstats, over all CPUs */
};

/* The two ends of messages between this host and another one. */
struct kp_peer {
	struct kp_head h; /* pid: the process that took the message by which they were seen */
	u64 number;
	u64 socket; /* cookie */
	u8 near[16]; /* zeros: a socket without a peer does not say it */
	u8 far[16];
	u16 near_port;
	u16 far_port;
	u8 version; /* 4 or 6 */
	u8 datagrams;
	u16 pad;
	u64 pad2;
};

struct kp_use {
	u64 bytes;
	u64 times;
};

_Static_assert(sizeof(struct kp_rule) == 48, "rule");
_Static_assert(sizeof(struct kp_work_key) == 24, "key of a sum: no padding");
_Static_assert(sizeof(struct kp_use_key) == 16, "key of a use: no padding");
_Static_assert(sizeof(struct kp_peer) == 80, "peer");

#endif
