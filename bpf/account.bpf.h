/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The account of a CPU: what is on top of its stack, the time since the last border, and the sums that all of it goes to. Where the borders are,
 * profile.bpf.c knows; whose the packets of a softirq are, received.bpf.h.
 */
#ifndef KPAT_ACCOUNT_H
#define KPAT_ACCOUNT_H

#include "chosen.bpf.h"
#include "samples.h"

#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000
#define PF_KTHREAD 0x00200000
#define NET_RX 3
#define BLOCK 4

/* What is on top of the stack: the task, a softirq of a number, or a hard interrupt. */
#define SOFTIRQ 16
#define HARDIRQ 32
#define LEVELS 8

struct task_struct___profile {
	unsigned int flags;
} __core;

struct sock___profile {
	struct {
		unsigned short skc_family;
	} __sk_common;
} __core;

/* Whom a packet is for, too. */
struct target {
	u64 socket;
	u32 purpose;
	u32 pad;
};
#define TARGETS 4 /* of one packet: a power of two */

#define HEADER_WORDS 12 /* addresses and ports of IPv4 or IPv6, or what says which fragments belong together */

/* A packet that came, and is not done with (batch.bpf.h). */
struct packet {
	u64 skb; /* 0: it is done with */
	u64 socket; /* whose it is */
	u64 which; /* of one that was dropped the socket that would have had it, of one that was forwarded its way */
	u64 ns; /* its part of the time so far */
	u32 purpose;
	u32 bytes;
	union {
		u32 flags;
		struct {
			u8 delivered; /* it was put into that socket's queue, and may go into another's, too */
			u8 settled; /* what became of it was found since the last one came */
			u8 several; /* it is addressed to a group, or to all */
			u8 alsos;
		};
	};
	u32 parts; /* so many were joined in it */
	u32 header[HEADER_WORDS]; /* its first bytes */
	struct target also[TARGETS]; /* whose it is, too */
	u32 net; /* the number of its network namespace, where the addresses are of the loopback device */
	u32 ports; /* of a datagram's first fragment by IPv6, where they are behind these bytes */
	u64 dev; /* where it came */
};
#define PACKETS 64 /* as many as a device's poll brings: a power of two */

/* Packets of one softirq that were for the same. */
struct owner {
	u64 socket;
	u64 ns;
	u64 bytes;
	u32 packets;
	u32 purpose;
};
#define OWNERS 4

/* What was found out about messages last: as long as nothing that was known changes, it holds for the next one of the same socket (messages.bpf.h). */
struct known {
	u64 took; /* the socket of which a task took a message, or the datagram's way */
	u64 took_at; /* see talk_now() */
	u64 serving; /* whom the task works for since */
	u32 serving_for;
	u32 took_by; /* the task */
	u64 wrote; /* the key of the writer */
	u64 wrote_at;
	u64 writer;
	u64 wrote_for; /* the client that it worked for */
	u64 sk; /* the socket with a peer whose packets have that key: its address, ports and addresses */
	u64 sk_addresses;
	u32 sk_ports;
	u32 times;
};

/* Sums to which much is added are kept with the account, until others take their place or the other set's turn comes (sums.bpf.h). */
struct sum {
	struct kp_work_key key;
	struct kp_work w;
};
#define SUMS 64 /* a power of two */

struct use_sum {
	struct kp_use_key key;
	struct kp_use u;
};
#define USE_SUMS 4 /* a power of two */

/* A block request that is being completed. */
struct block {
	u32 owner;
	u32 open;
	u64 bytes;
};

struct account {
	struct kp_account_head h;
	u64 resets; /* the stack was not empty where it must be */
	u64 last; /* the last border */
	u32 level;
	u32 victim; /* process of the task that runs, 0: idle, KP_OTHERS: it is not chosen */
	u32 mode; /* what the task does: KP_WORK_USER to KP_WORK_THREAD, KP_WORK_FAULT, KP_WORK_UNSEEN */
	u32 raised; /* this hard interrupt has asked for a softirq of NET_RX */
	u32 polls; /* the bottom frame is no softirq: the task receives packets itself (polled.bpf.h) */
	u32 frame[LEVELS];
	u64 base[16]; /* by mode, since it was last written to the sums */
	u64 calls; /* system calls, since then */
	u64 faults;
	u32 pid; /* of the task that runs */
	u32 before_fault; /* its mode */
	u64 serving; /* the process that the task works for, 0: itself; of KP_FOR_REMOTE the number of the ends */
	u32 serving_for; /* KP_FOR_WRITEBACK, KP_FOR_ITEM, KP_FOR_CLIENT, KP_FOR_ASKER or KP_FOR_REMOTE */
	struct block block[2]; /* the request that the softirq completes, and that of an interrupt (block_of()) */
	u64 hard_ns; /* of the hard interrupt that runs */
	u64 hard_debt; /* of those that asked for the softirq to come */
	u64 soft_ns; /* since the last cut */
	u64 head_ns; /* of this softirq, before its first packet */
	u32 arrived; /* packets at hand are those from `over` to here */
	u32 over;
	u32 next; /* those before are done with, or of those at hand it is known what became of them */
	u32 came; /* one came in this frame: the softirq, or a task's own */
	u32 settled; /* of so many it was found since the last one came */
	u32 owners;
	u32 packets; /* of all owners */
	u64 probed; /* the skb that TCP has */
	u64 connecting; /* this socket is about to ask for a connection */
	u64 sends_for; /* this part of another softirq sent a packet of this socket */
	u32 steered; /* this softirq handed packets to this CPU, whose number is one less */
	u64 ticked; /* when the clock was here */
	u64 periods; /* for which the sample of then stands */
	u64 idled; /* time that was idle, of what was written to the sums */
	u64 idle_then; /* all of it, when the clock was here */
	u32 held_for; /* a sample waits until it is known whose the packet at hand is, or whose packets this softirq brought */
	u32 held_at; /* for this packet, whose number is one less; 0: for one of those of which it is found next */
	u32 held_drawn; /* one of several, by lot: the one that is found after so many */
	u32 lot;
	u32 left; /* the first packet that stays at hand, whose number is one less */
	u32 found; /* of so many that were settled since the last one came the time is not shared out yet, */
	u64 span_ns; /* which is this, */
	u64 span_part; /* and of each this */
	struct kp_sample held;
	u32 called_by; /* the task that runs has begun a system call on this CPU, */
	u32 by_number; /* at whose end it is looked what its numbers stand for */
	u64 not_unix; /* process << 32 | number of a file that a task wrote to last, and that is no unix socket */
	u64 datagram_net; /* the task that runs has taken a datagram; of whom its system call's end says (messages.bpf.h) */
	u32 datagram_port;
	u32 datagram_pid;
	u64 datagram_socket;
	u32 handed; /* the task that runs is among handed_tasks, */
	u32 child; /* and among children */
	u32 since; /* the message was taken of whom it serves: TELLS, WROTE */
	u32 turn; /* which of two sets of sums this CPU adds to: user space takes the other one, to which nobody adds any more */
	u32 summing; /* a program adds to one of the sums below: what interrupts it adds to the tables */
	u32 preempted; /* the task whose softirq waits until it runs again, with the packets at hand */
	u32 preempted_in; /* that frame */
	u32 first_ran; /* for this event of the task that runs, and the second one is still to come (pairs.bpf.h); 0: none */
	u32 rests; /* the task that has answered and waited since (rests.bpf.h), */
	u64 rested_at; /* until then; while another one runs: how long it has run since */
	u64 answers_to; /* the datagram that the task that runs sent last, by a socket without a peer: the key of what comes from there, */
	u64 asks_by; /* of what is asked there (datagrams.bpf.h), */
	u64 answers_as; /* and in which role it is sent */
	u64 took_at; /* the socket at which the task that runs took a message last, since it was switched to; 0: at none */
	struct owner owner[OWNERS];
	struct sum sum[SUMS];
	struct use_sum use_sum[USE_SUMS];
	struct known known;
	u64 part_socket; /* whose the last datagram is of which a fragment was done with before it was whole, */
	u32 part_header[HEADER_WORDS]; /* and that fragment's header */
	struct packet packet[PACKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct account);
} accounts SEC(".maps");

/* Whom a task works for, while it is off the CPU. */
struct served {
	u64 process;
	u32 purpose;
	u32 since;
};
#define WROTE 1 /* it has written to a socket since */
#define TELLS 2 /* it takes other clients' requests before it answers the first: its answers tell whom it worked for */
#define FOR_FILES 4 /* what it works for was asked by a file system's request, which only an answer by that one's device is for: filesystems.bpf.h */
#define MAKES 8 /* it has made processes for clients: each of their messages counts (makers.bpf.h) */
#define AT_SOCKET 16 /* what it works for came by a socket */
#define FROM_CHILD 32 /* it took of such a process what its client waits for no more */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct served);
} served_tasks SEC(".maps");

/* So it is of the message that the task took last, also when it is switched to again. */
static __always_inline void since_is(struct account *a, u32 flag)
{
	u32 pid = a->pid;
	struct served *s = bpf_map_lookup_elem(&served_tasks, &pid);

	if (s)
		s->since |= flag;
	a->since |= flag;
}

/* A number of each file of a recording, in which nothing may be missing that is logged once: stacks, ends of connections. */
u64 file_round SEC(".data.round") = 1;

__noinline int poll_is_over(u32 left);
static __noinline int sleeps(struct account *a, struct task_struct *task);
__noinline int nothing_stays(struct account *a);

static __always_inline struct account *this_account(void)
{
	u32 zero = 0;
	struct account *a = bpf_map_lookup_elem(&accounts, &zero);

	return a && a->h.opened ? a : NULL;
}

static __always_inline void add(u64 *to, u64 ns)
{
	__sync_fetch_and_add(to, ns);
}

static __always_inline u64 take(u64 *from)
{
	return exchange(from, 0);
}

/* The time since the last border goes to what is on top. */
static __always_inline void border(struct account *a)
{
	u64 last, now, *to;
	u32 top;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		last = *(volatile u64 *)&a->last;
		now = bpf_ktime_get_boot_ns();
		if (now <= last)
			return;
		if (__sync_val_compare_and_swap(&a->last, last, now) == last)
			goto charge;
	}
	return;
charge:
	top = a->level ? a->frame[a->level & (LEVELS - 1)] : 0;
	to = !top ? &a->base[a->mode & 15] : top >= HARDIRQ ? &a->hard_ns : &a->soft_ns;
	add(to, now - last);
}

/* Something that a task does only where it receives no packets: true where no softirq or interrupt does it. */
static __always_inline bool no_frames(struct account *a)
{
	if (!a)
		return false;
	if (a->polls)
		poll_is_over(0);
	return !a->level;
}

static __always_inline bool is_softirq(u32 frame)
{
	return frame >= SOFTIRQ && frame < HARDIRQ;
}

static __always_inline bool top_is(struct account *a, u32 frame)
{
	return a->level && a->frame[a->level & (LEVELS - 1)] == frame;
}

/* An interrupt may come while a softirq has its request charged. */
static __always_inline struct block *block_of(struct account *a)
{
	return &a->block[top_is(a, HARDIRQ)];
}

/*
 * An interrupt between the two stores would push its own frame into the same place, and leave it there: so the frame is stored again once the level
 * is. Softirqs begin just when interrupts are let in: without that one in a hundred was taken for an interrupt.
 */
static __always_inline void push(struct account *a, u32 frame)
{
	u32 level = a->level + 1;

	if (level >= LEVELS) {
		a->resets++;
		level = 1;
	}
	store_once(&a->frame[level & (LEVELS - 1)], frame);
	store_once(&a->level, level);
	store_once(&a->frame[level & (LEVELS - 1)], frame);
}

/* The task that runs takes a message, or writes; another one that rests here is left alone. */
static __always_inline void rests_no_more(struct account *a)
{
	if (a->rests == a->pid)
		a->rests = 0;
}

/* Does the task work for a client, whose message it took? */
static __always_inline bool serves_client(struct account *a)
{
	return a->serving_for >= KP_FOR_ASKER || a->serving_for == KP_FOR_CLIENT;
}

#endif
