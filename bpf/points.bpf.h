/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Raw tracepoints: the whole record where functions cannot be probed, and in every mode the events (drop with
 * reason, retransmission, TCP state). A tracepoint's function id is its place in this list, counted down from the
 * top of the id space, so that it never meets a function's; user space reads the list from the object's sections.
 */
#ifndef KPAT_POINTS_H
#define KPAT_POINTS_H

#include "calls.bpf.h"
#include "tasks.bpf.h"

struct bpf_raw_tracepoint_args;

/* With guess_reuse: a copy beside the packet was read, or is freed. No point of the packet's; its buffer may be another's after that. */
static __always_inline void done_beside(struct skb skb, u32 what)
{
	u64 head = skb_head(skb);
	struct packet_entry *e;

	if (!last_holder(skb, head))
		return;
	e = packet_find(head);
	if (e && what == FREED)
		packet_forget(e);
	else if (e)
		e->turn = TURN_READ | (e->turn & TURN_SHARED);
	else if (any_homeless && what == FREED)
		forget_homeless(head);
}

/*
 * The point behind a queue's function has what it was given, also where that is gone: cut into segments (tbf_segment() in net/sched/sch_tbf.c, which frees the whole last), of
 * which each is a packet of its own from where it is taken out again. What lies at its address then is nobody's.
 */
static __always_inline bool freed_in_queue(struct kp_ring_ctl *ctl, u64 skb, u32 what)
{
	if ((what != QUEUED && what != FREED && what != TAKEN) || !guess_reuse)
		return false;
	if (what == QUEUED)
		ctl->moving[0] = 0;
	else if (what == FREED)
		ctl->moving[0] = skb;
	return what == TAKEN && ctl->moving[0] == skb;
}

/*
 * Of a free, `from` is where it was called (0: the kernel does not say): what a CPU frees for others in its next softirq was done with before, when
 * its reader put the freeing off (skb_attempt_defer_free() in net/core/skbuff.c).
 */
static __always_inline bool was_put_off(u64 from)
{
	return from - flush_from_0 < flush_bytes_0 || from - flush_from_1 < flush_bytes_1 || from - flush_from_2 < flush_bytes_2;
}

static __always_inline int point_from(u32 func, struct skb skb, u32 what, u64 from)
{
	struct packet_entry *e;
	struct kp_ring_ctl *ctl;
	struct kp_point *r;
	u64 now, id, pid_tgid;
	u32 pid, ctx;
	u8 flags = 0;

	if (!func_mode[func & (KP_MAX_FUNCS - 1)])
		return 0;
	ctl = ring_ctl();
	if (!ctl)
		return 0;
	if (freed_in_queue(ctl, skb.at, what))
		return 0;
	if ((what == READ || what == FREED) && guess_reuse && is_beside(skb)) {
		done_beside(skb, what);
		return 0;
	}
	e = packet_at(ctl, &skb, false, what, &ctx);
	if (!e) {
		if (any_homeless && what == FREED && last_holder(skb, skb_head(skb)))
			forget_homeless(skb_head(skb));
		return 0;
	}
	/* A driver without a card has handed it on, and it was received: its return tells nothing more. */
	if (what == LEFT && !every_return && e->turn && !(e->turn & TURN_OUT))
		return 0;
	now = moment_in(ctl, ctx);
	id = e->id;
	e->seen = now;
	if (guess_reuse)
		take_turn(e, skb, what, now);
	if (what == LEAVES)
		check_link(skb.at, skb_head(skb), entry_place(e));
	if (what == FREED && last_holder(skb, skb_head(skb))) {
		if (guess_reuse)
			soon_unknown(e, skb, now);
		packet_forget(e);
		flags = KP_F_ENDS;
	} else if (what == FREED && guess_reuse) {
		goes_on_in_copy(e, now);
	}
	pid_tgid = current_pid_tgid();
	if (own_doing(ctx, pid_tgid))
		return 0;
	pid = current_pid(ctl, pid_tgid, ctx);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = now;
	r->len = skb_field(skb, len);
	r->packet = id;
	r->skb_tag = skb.at >> 6;
	r->ctx = ctx;
	r->flags = from && was_put_off(from) ? flags | KP_F_PUT_OFF : flags;
	r->pad = 0;
	ring_commit(&r->h, KP_POINT, sizeof(*r), func, pid);
	return 0;
}

static __always_inline int point(u32 func, struct skb skb, u32 what)
{
	return point_from(func, skb, what, 0);
}

#define POINT(slot, name, arg, what)                                                           \
	SEC("raw_tp/" #name)                                                                   \
	int point_##slot##_##name(u64 *ctx)                                                    \
	{                                                                                      \
		return ctx[arg] ? point(KP_MAX_FUNCS - 1 - slot, skb_at(ctx[arg]), what) : 0;          \
	}

/* What is there for sure when the tracepoint is met, and is not freed yet. */
#ifdef KPAT_DIRECT
#define SURE_POINT(slot, name, arg, what)                                                      \
	SEC("tp_btf/" #name)                                                                   \
	int point_##slot##_##name(u64 *ctx)                                                    \
	{                                                                                      \
		struct sk_buff *skb = (struct sk_buff *)ctx[arg];                              \
                                                                                               \
		return skb ? point(KP_MAX_FUNCS - 1 - slot, skb_trusted(skb), what) : 0;       \
	}
#else
#define SURE_POINT POINT
#endif

/* include/trace/events/{net,skb,qdisc,tcp}.h; the argument is that of the TP_PROTO */
SURE_POINT(0, napi_gro_receive_entry, 0, ARRIVES)
SURE_POINT(1, netif_rx, 0, BACKLOGGED)
SURE_POINT(2, netif_receive_skb_entry, 0, ARRIVES)
SURE_POINT(3, netif_receive_skb, 0, RECEIVED)
SURE_POINT(4, net_dev_queue, 0, QUEUED)
POINT(5, qdisc_enqueue, 2, TAKEN)
POINT(6, qdisc_dequeue, 3, GIVEN)
SURE_POINT(7, net_dev_start_xmit, 0, LEAVES)
POINT(8, net_dev_xmit, 0, LEFT)
POINT(9, skb_copy_datagram_iovec, 0, READ)
/* (skb, location), the second since 6.3 */
SEC("raw_tp/consume_skb")
int point_10_consume_skb(u64 *ctx)
{
	return ctx[0] ? point_from(KP_MAX_FUNCS - 1 - 10, skb_at(ctx[0]), FREED, consume_has_location ? ctx[1] : 0) : 0;
}
POINT(11, tcp_probe, 1, PASSES)
SURE_POINT(12, napi_gro_frags_entry, 0, ARRIVES)
SURE_POINT(13, netif_receive_skb_list_entry, 0, ARRIVES)
SURE_POINT(14, netif_rx_entry, 0, ARRIVES)
POINT(15, kfree_skb, 0, FREED)

/* net/openvswitch/openvswitch_trace.h */
POINT(17, ovs_dp_upcall, 1, PASSES)

struct neighbour {
	struct {
		struct sk_buff *prev;
		u32 qlen;
	} arp_queue;
} __core;

/*
 * (neighbour, rc): where rc is 1 the packet waits, as the last in its queue, until the neighbour's link address is known (__neigh_event_send in
 * net/core/neighbour.c). The lock is free again: the answer may have come meanwhile, and the packet gone; or another one came, which waits, too.
 */
SEC("raw_tp/neigh_event_send_done")
int point_16_neigh_event_send_done(u64 *ctx)
{
	struct neighbour *n = (struct neighbour *)(ctx[0]);
	u64 last;

	if ((u32)ctx[1] != 1 || !kread(n, arp_queue.qlen))
		return 0;
	last = kread_ptr(n, arp_queue.prev);
	return last ? point(KP_MAX_FUNCS - 1 - 16, skb_at(last), PASSES) : 0;
}

static __always_inline void event(struct kp_ring_ctl *ctl, u32 kind, u64 packet, u32 netns, u64 a, u64 b)
{
	u8 ctx = current_context();
	u32 pid = current_pid(ctl, current_pid_tgid(), ctx);
	struct kp_event *r = ring_reserve(ctl, sizeof(*r));

	if (!r)
		return;
	r->h.ts = bpf_ktime_get_boot_ns();
	r->packet = packet;
	r->netns = netns;
	r->a = a;
	r->b = b;
	r->ctx = ctx;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	r->pad2[0] = r->pad2[1] = 0;
	ring_commit(&r->h, KP_EVENT, sizeof(*r), kind, pid);
}

/* Same numbers as model::Owner. */
#define KP_OWNER_RAW 1ULL /* a raw socket */
#define KP_OWNER_SNIFFER 2ULL /* a packet socket */

/*
 * In whose queue what is dropped lay, if in that of a socket that gets copies of what others take: a raw or a packet socket. They own what waits there,
 * which is at no device any more (__sock_queue_rcv_skb in net/core/sock.c), and what they send, which no device has received, or which still is at one. A sniffer's
 * copy of what is sent was received by none, either; what a packet socket sends has its headers and its device at once.
 */
static __noinline u64 copy_of(u64 skb)
{
	struct sock *sk = (struct sock *)kread_ptr((struct sk_buff *)(skb), sk);
	u16 family;
	u8 state;

	if (!sk || kread_ptr((struct sk_buff *)(skb), dev))
		return 0;
	family = kread(sk, __sk_common.skc_family);
	if (family == AF_PACKET)
		return KP_OWNER_SNIFFER;
	if (!kread((struct sk_buff *)(skb), skb_iif))
		return 0;
	state = kread(sk, __sk_common.skc_state);
	/* these are no whole sockets */
	if ((family != AF_INET && family != AF_INET6) || state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV)
		return 0;
	return kread(sk, sk_type) == SOCK_RAW ? KP_OWNER_RAW : 0;
}

/*
 * Dropped where nothing is recorded, in a buffer that is not known: a router gives a clone, as all that TCP sends, one of its own. What was chosen
 * where it began is followed until it is freed. Its name is asked for here alone: what else comes through other namespaces is refused by its
 * device, and drops are few. What others drop may have the same identification and length: ours left by a device, or came in by one there. 0: it is not ours.
 */
static __noinline u64 dropped_elsewhere(u64 at, u64 head)
{
	struct skb skb = skb_at(at);
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 ident;

	if (!ctl || !guess_reuse || !places_chosen() || packet_find(head))
		return 0;
	ident = identity_of(skb, head);
	return ident && is_elsewhere(at, ident) ? known_again(at, ident, PASSES, moment(ctl)) : 0;
}

/* (skb, location, reason[, rx_sk]); the reason came with 5.17 */
SEC("raw_tp/kfree_skb")
int event_0_kfree_skb(u64 *ctx)
{
	struct skb skb = skb_at(ctx[0]);
	struct packet_entry *e;
	struct kp_ring_ctl *ctl;
	u32 context;
	u64 id;

	if (!EVENT_MODE(0) || !ctx[0])
		return 0;
	ctl = ring_ctl();
	if (!ctl)
		return 0;
	/* A copy beside, which may be the last in its buffer, begins no packet. */
	if (is_beside(skb) && !packet_find(skb_head(skb)))
		return 0;
	e = packet_at(ctl, &skb, false, PASSES, &context);
	id = e ? e->id : dropped_elsewhere(ctx[0], skb_head(skb));
	if (id)
		event(ctl, KP_EV_DROP, id, 0, (u32)ctx[2] | copy_of(ctx[0]) << 32, ctx[1]);
	return 0;
}

static __always_inline bool sock_place(struct sock *sk, struct where *w)
{
	struct net *net;

	w->ifindex = w->link_type = 0;
	net = (void *)kread_ptr(sk, __sk_common.skc_net.net);
	w->netns = net ? kread((struct net *)(net), ns.inum) : 0;
	return w->netns && place_wanted(w);
}

static __always_inline u64 sock_ports(struct sock *sk)
{
	return (u64)kread(sk, __sk_common.skc_num) << 16 | swap16(kread(sk, __sk_common.skc_dport));
}

/* (sk, skb, error) */
SEC("raw_tp/tcp_retransmit_skb")
int event_1_tcp_retransmit_skb(u64 *ctx)
{
	struct sock *sk = (struct sock *)(ctx[0]);
	struct packet_entry *e;
	struct kp_ring_ctl *ctl;
	struct where w;

	if (!EVENT_MODE(1) || nothing_sent(ctx) || !sock_place(sk, &w))
		return 0;
	ctl = ring_ctl();
	if (!ctl)
		return 0;
	e = ctx[1] ? packet_find(kread_ptr((struct sk_buff *)(ctx[1]), head)) : NULL;
	if (!e && has_filter)
		return 0;
	event(ctl, KP_EV_RETRANSMIT, e ? e->id : 0, w.netns, sock_ports(sk), kread(sk, __sk_common.skc_state));
	return 0;
}

/* (sk, oldstate, newstate) */
SEC("raw_tp/inet_sock_set_state")
int event_2_inet_sock_set_state(u64 *ctx)
{
	struct sock *sk = (struct sock *)(ctx[0]);
	struct kp_ring_ctl *ctl;
	struct where w;

	if (!EVENT_MODE(2) || !sock_place(sk, &w))
		return 0;
	ctl = ring_ctl();
	if (ctl)
		event(ctl, KP_EV_TCP_STATE, 0, w.netns, sock_ports(sk), ctx[1] << 8 | (ctx[2] & 0xff));
	return 0;
}

#endif
