// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Who does each CPU work for? Time is cut at the borders that the kernel shows (system calls, switches, interrupts, softirqs, packets) and
 * each piece is charged to whom it was done for, never to the task that happened to be interrupted.
 *
 * Per CPU a stack: the task, a softirq, hard interrupts. At each border the clock is read and the time since the last border goes to what was
 * on top. Sums are kept in the kernel, by CPU, victim (whose CPU time it was) and purpose; a packet's by its socket, because who reads it is
 * known later only. User space takes the sums once a second.
 *
 * Rejected: an event per border for user space to add up. At 100,000 packets a second that is a million records a second.
 *
 * An interrupt may cut in between any two instructions here, and it runs these programs on the same CPU's words: sums are added to atomically, and
 * a clock that an interrupt has moved on is read again.
 */
#define KPAT_APP
#define KPAT_PROFILE
#include "parts.bpf.h"
#include "pipes.bpf.h"
#include "stacks.bpf.h"

/* (vec) */
SEC("raw_tp/softirq_entry")
int work_softirq_entry(u64 *ctx)
{
	struct account *a = this_account();
	u32 vec = ctx[0];

	if (!a)
		return 0;
	no_frames(a);
	task_border(a);
	if (a->level || a->preempted) { /* softirqs do not nest, and interrupts are over before they run */
		a->resets++;
		a->level = a->preempted = 0;
	}
	if (a->held_for)
		release(a, 0, KP_FOR_UNKNOWN, 1);
	a->came = a->steered = a->block[0].open = 0;
	a->sends_for = 0;
	push(a, SOFTIRQ + (vec & 15));
	if (vec == NET_RX)
		add(&a->head_ns, take(&a->hard_debt));
	return 0;
}

SEC("raw_tp/softirq_exit")
int work_softirq_exit(u64 *ctx)
{
	struct account *a = this_account();
	u32 vec = ctx[0];

	if (!a)
		return 0;
	border(a);
	if (!top_is(a, SOFTIRQ + (vec & 15)))
		return 0;
	if (vec == NET_RX) {
		frame_is_over(a);
	} else if (a->block[0].open) {
		put_block(a);
	} else {
		part_is_over(a);
	}
	a->level--;
	return 0;
}

/* (vec) */
SEC("raw_tp/softirq_raise")
int work_softirq_raise(u64 *ctx)
{
	struct account *a = this_account();

	if (a && ctx[0] == NET_RX && top_is(a, HARDIRQ))
		a->raised = 1;
	return 0;
}

static __always_inline int interrupt_begins(void)
{
	struct account *a = this_account();

	if (!a)
		return 0;
	task_border(a);
	if (!top_is(a, HARDIRQ))
		a->raised = a->block[1].open = 0;
	push(a, HARDIRQ);
	return 0;
}

/* An interrupt that asked for packets to be received is part of that; of others nobody has anything but the kernel. */
static __always_inline int interrupt_ends(void)
{
	struct account *a = this_account();

	if (!a)
		return 0;
	border(a);
	if (!top_is(a, HARDIRQ))
		return 0;
	if (a->block[1].open)
		put_block(a);
	a->level--;
	if (top_is(a, HARDIRQ))
		return 0;
	if (a->raised)
		add(&a->hard_debt, take(&a->hard_ns));
	else
		put_time(a, KP_WORK_HARDIRQ, KP_FOR_KERNEL, take(&a->hard_ns));
	return 0;
}

#define INTERRUPT(name)                                      \
	SEC("raw_tp/" #name "_entry")                        \
	int work_##name##_entry(u64 *ctx)                    \
	{                                                    \
		return interrupt_begins();                   \
	}                                                    \
	SEC("raw_tp/" #name "_exit")                         \
	int work_##name##_exit(u64 *ctx)                     \
	{                                                    \
		return interrupt_ends();                     \
	}

INTERRUPT(irq_handler)
INTERRUPT(local_timer)
INTERRUPT(reschedule)
INTERRUPT(call_function)
INTERRUPT(call_function_single)
INTERRUPT(irq_work)

/*
 * (skb): once for each device that a packet comes through. One that was handed on, given to a socket or dropped is over, also where the same skb comes
 * next: a virtual device receives it at its other end in the same softirq.
 */
SEC("raw_tp/netif_receive_skb")
int work_netif_receive_skb(u64 *ctx)
{
	struct account *a = this_account();

	if (!a)
		return 0;
	a->h.packets++;
	if (at_task(a))
		poll_begins(a);
	if (!receiving(a))
		return 0;
	if (!comes_again(a, ctx[0]))
		comes(a, ctx[0]);
	return 0;
}

/* A task sends; or the packet at hand goes on to another device, or another packet goes out because of it. */
SEC("raw_tp/net_dev_queue")
int work_net_dev_queue(u64 *ctx)
{
	struct account *a = this_account();

	if (!a)
		return 0;
	if (!a->level) {
		if (a->connecting)
			connects(a, ctx[0]);
		return message_leaves(a, ctx[0]);
	}
	if (in_other_softirq(a))
		return sent_by_part(a, ctx[0]);
	return receiving(a) ? sent_by_receiver(a, ctx[0]) : 0;
}

/* (qdisc, queue, packets, skb) */
SEC("raw_tp/qdisc_dequeue")
int work_qdisc_dequeue(u64 *ctx)
{
	struct account *a = this_account();

	return a && in_other_softirq(a) ? sent_by_part(a, ctx[3]) : 0;
}

#define PART(name)                                           \
	SEC("raw_tp/" #name)                                 \
	int work_##name(u64 *ctx)                            \
	{                                                    \
		return next_part();                          \
	}

PART(timer_expire_entry)
PART(hrtimer_expire_entry)
PART(tasklet_entry)

/* (skb, location, reason[, rx_sk]) */
SEC("raw_tp/kfree_skb")
int work_kfree_skb(u64 *ctx)
{
	struct account *a = this_account();

	if (a && receiving(a))
		dropped(a, ctx[0], drops_have_sockets ? ctx[3] : 0, drops_have_sockets ? ctx[2] : 0);
	return 0;
}

SEC("tp_btf/tcp_probe")
int work_tcp_probe(u64 *ctx)
{
	struct account *a = this_account();

	if (!a)
		return 0;
	a->probed = ctx[1]; /* by way of memory its address is a number, which can be passed on */
	return packet_is_for((void *)ctx[0], *(volatile u64 *)&a->probed, false, false);
}

/* (cpu, callsite, callback), since 6.4: before its first packet a softirq that receives hands packets to another CPU. */
SEC("raw_tp/ipi_send_cpu")
int work_ipi_send_cpu(u64 *ctx)
{
	struct account *a = this_account();

	if (a && receiving(a) && !a->came)
		a->steered = (u32)ctx[0] + 1;
	return 0;
}

/* (sk, oldstate, newstate) */
PAIR("tp_btf/inet_sock_set_state", work_inet_sock_set_state, AT_STATE)
{
	struct account *a = this_account();
	u32 state = ctx[2];

	if (!a || (state == TCP_LISTEN && of_mptcp((void *)ctx[0])))
		return 0;
	if ((state == TCP_SYN_SENT || state == TCP_LISTEN) && at_task(a))
		use(a, cookie_of((void *)ctx[0]), KP_USE_OPEN, 0);
	if (state == TCP_SYN_SENT && at_task(a))
		a->connecting = ctx[0];
	if (state == TCP_LISTEN)
		listens(ctx[0]);
	if (state == TCP_ESTABLISHED || state == TCP_FIN_WAIT1 || state == TCP_CLOSE_WAIT)
		connected(ctx[0], cookie_of((void *)ctx[0]));
	return packet_is_for((void *)ctx[0], 0, false, false);
}

#define OPEN 1
#define CLOSE 2
#define TURN 8 /* the set of sums from here on is above the command */

/*
 * User space has this run on one CPU: its account is opened, closed, or brought up to now. No tracepoint: so the account of a CPU on
 * which nothing happens is up to date, too.
 */
SEC("raw_tp")
int account(u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	u32 zero = 0;
	struct account *a = bpf_map_lookup_elem(&accounts, &zero);
	u64 what = ctx[0] & 0xff;

	if (!a)
		return 0;
	if (what == OPEN) {
		if (a->h.opened)
			return 0;
		a->level = a->polls = a->owners = a->packets = 0;
		none_at_hand(a);
		a->held_for = a->held_at = 0;
		a->ticked = 0;
		runs(a, task);
		flush_sums(a); /* of a time before: what an interrupted program added behind its end is the new one's, and next to nothing */
		a->known.took_by = a->known.writer = 0;
		a->turn = ctx[0] >> TURN & 1;
		a->last = a->h.logged = a->h.opened = bpf_ktime_get_boot_ns();
		return 0;
	}
	if (!a->h.opened)
		return 0;
	task_border(a);
	put_task(a);
	if (!a->level)
		nothing_stays(a);
	a->h.logged = a->last;
	a->known.took_by = a->known.writer = 0;
	if (what != CLOSE)
		flush_sums(a);
	a->turn = ctx[0] >> TURN & 1;
	if (task->pid && !a->level)
		a->victim = victim_of(task, task->tgid);
	if (task->pid && a->victim != KP_OTHERS)
		announce_task((u64)(u32)task->tgid << 32 | (u32)task->pid, 0);
	if (what != CLOSE)
		return 0;
	/* a softirq that was cut short, and this very interrupt */
	add(&a->head_ns, take(&a->soft_ns));
	if (!nothing_stays(a))
		share(a);
	put_time(a, KP_WORK_HARDIRQ, KP_FOR_KERNEL, take(&a->hard_ns) + take(&a->hard_debt));
	flush_sums(a);
	a->h.opened = 0;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
