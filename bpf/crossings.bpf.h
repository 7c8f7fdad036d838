/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Bytes cross from one layer into the next: the record of it, and what is known of the packet they are in.
 *
 * A received packet does not know its socket when it comes from the device. What was seen of it then waits in `arrivals`
 * and is written, with its own time, when a socket takes the packet; what no socket takes leaves no record.
 */
#ifndef KPAT_CROSSINGS_H
#define KPAT_CROSSINGS_H

#include "tcpstate.bpf.h"

#define UNSET_HEADER 0xffff
#define MSG_PEEK 2

struct msg_iter {
	unsigned long count;
} __core;

struct msghdr {
	struct msg_iter msg_iter;
} __core;

struct sk_buff___app {
	struct sock *sk;
	unsigned int len, data_len;
	char cb[48];
} __core;

/* In the socket's own part of an skb. Acknowledgements that waited for a busy socket are merged here, not in the header. */
struct tcp_skb_cb {
	u32 seq;
	u32 ack_seq;
} __core;

#define tcp_cb(skb, member)                                                                    \
	((u32)kread_word((u64)(skb) + bpf_core_field_offset(struct sk_buff___app, cb) +            \
			 bpf_core_field_offset(struct tcp_skb_cb, member)))

/* By its header buffer: a raw socket gets a clone, which is another sk_buff with the same buffer. */
struct arrival {
	u64 head; /* key, 0 free */
	u64 ts;
};
/* Datagrams are seen on their way into the socket: what is noted at tracepoints instead is not needed. */
const volatile u32 datagrams_by_function = 0;

#define ARRIVALS 8192
struct arrival arrivals[ARRIVALS] SEC(".bss.arrivals");

/* The verifier gives a typed pointer away by its lower half only. */
static __always_inline u64 address_low(void *p)
{
	u64 low;

	asm volatile("r1 = %1\n"
		     "w1 = w1\n"
		     "%0 = r1"
		     : "=r"(low)
		     : "r"(p)
		     : "r1");
	return low;
}

/*
 * An skb as a number: the lower halves of its address and of its header buffer's.
 */
static __always_inline u64 skb_key(struct sk_buff *skb)
{
	return address_low(skb) | kread_ptr(skb, head) << 32;
}

/* What a log calls the packet: the low bits of its address. */
static __always_inline u32 skb_tag(u64 key)
{
	return (u32)key >> 6;
}

static __always_inline struct arrival *arrival_of(u64 head)
{
	return &arrivals[(head * 0x9e3779b97f4a7c15ULL >> 40) & (ARRIVALS - 1)];
}

/*
 * A socket has its cookie at its first event at which it is an argument; its first datagram may have passed the device by
 * then. What was seen of that waits here.
 */
struct first_datagram {
	u64 sk; /* low half of the address, 0 free */
	u64 queued, started;
	s32 size;
	u32 seq;
};
#define FIRSTS 256
struct first_datagram firsts[FIRSTS] SEC(".bss.firsts");

static __always_inline void tell_gap(struct kp_ring_ctl *ctl)
{
	u64 lost = ctl->untold, since = ctl->untold_since;
	struct kp_gap *r = ring_try(ctl, sizeof(*r)); /* else later: nothing is lost by that */

	if (!r)
		return;
	__sync_fetch_and_add(&ctl->untold, -lost);
	r->since = since;
	r->until = bpf_ktime_get_boot_ns();
	*(volatile u64 *)r = KP_GAP | (sizeof(*r) / KP_SLOT) << 8 | lost << 32;
}

static __always_inline void cross(u32 what, u64 cookie, u64 ts, s32 size, u32 seq)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u8 ctx = current_context();
	struct kp_crossing *r;
	u32 pid = 0;

	if (!ctl)
		return;
	if (ctx == 0)
		pid = current_pid(ctl, current_pid_tgid(), 0);
	if (ctl->untold)
		tell_gap(ctl);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return;
	r->ts_pid = (ts & 0xffffffffffffULL) | (u64)pid << 48;
	*(u64 *)&r->size = (u32)size | (u64)seq << 32;
	*(volatile u64 *)r = KP_CROSSING | (sizeof(*r) / KP_SLOT) << 8 | (u64)(what | ctx << 4) << 16 |
			     (u64)(pid >> 16 & 0xff) << 24 | cookie << 32;
}

#define CROSSING_MODE(what) (func_mode[KP_MAX_FUNCS - 1 - (what)])

/* A packet with data: the low 20 bits its length, the segments above. */
static __always_inline s32 packed(u32 bytes, u32 segments)
{
	return (bytes & 0xfffff) | (segments ?: 1) << 20;
}

static __always_inline u32 segments_of(struct sk_buff *skb)
{
	u64 head = kread_ptr(skb, head);

	return kread((struct skb_shared_info *)(head + kread(skb, end)), gso_segs);
}

static __always_inline bool full_socket(struct sock *sk)
{
	u8 state = sk ? sk_read(sk, __sk_common.skc_state) : TCP_TIME_WAIT;

	return state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV;
}

/* Is it a fragment that begins behind the transport header? `ip`: its network header. */
static __always_inline bool later_fragment(u64 ip)
{
	u64 w = kread_word(ip);

	if ((w & 0xf0) == 0x40)
		return w >> 48 & 0xff1f; /* 13 bits, network order */
	return (w >> 48 & 0xff) == 44 && (kread_word(ip + 40) >> 16 & 0xf8ff);
}

/* Bytes of the header that the transport puts before the application's: raw and ping sockets are given theirs by it. */
static __always_inline u32 transport_bytes(struct sock *sk, u64 ip, u64 th, bool tcp)
{
	u32 proto = sk_read(sk, sk_protocol);

	if (tcp)
		return (kread_word(th + 8) >> 36 & 0xf) * 4;
	return (proto != IPPROTO_UDP && proto != IPPROTO_UDPLITE) || (ip && later_fragment(ip)) ? 0 : 8;
}

/* Data of a sent packet that has its transport header: packed size; negative: none to tell of. */
static __always_inline s32 sent_size(struct sk_buff *skb, u32 header, u64 th, bool tcp)
{
	u32 len = kread(skb, len) - (u32)(th - kread_ptr(skb, data)) - header;

	if (len > 1 << 20 || (tcp && !len && !settings.empty))
		return -1;
	return packed(len, segments_of(skb));
}

static __noinline int sent_first(struct sock *sk, struct sk_buff *skb, u64 ip, u64 th, u32 what)
{
	u64 low = address_low(sk);
	struct first_datagram *f = &firsts[(low >> 6) & (FIRSTS - 1)];
	u64 now = bpf_ktime_get_boot_ns(), net = sk_read_ptr(sk, __sk_common.skc_net.net);

	/* The places are few: others' sockets, and the kernel's in their namespaces, take none. */
	if (sk_read(sk, sk_protocol) == IPPROTO_TCP || !net || !netns_wanted(kread((struct net *)(net), ns.inum)))
		return 0;
	if (what == KP_X_TO_DEVICE) {
		f->sk = low;
		f->queued = now;
		f->started = 0;
		f->size = sent_size(skb, transport_bytes(sk, ip, th, false), th, false);
		f->seq = skb_tag(skb_key(skb));
	} else if (f->sk == low) {
		f->started = now;
	}
	return 0;
}

/* A sent packet that has its headers: and TCP's state with it. */
static __always_inline void sent(u32 what, struct sock *sk, struct sk_buff *skb, bool has_network)
{
	u64 cookie = sock_cookie(sk), head = kread_ptr(skb, head), th, ip;
	u16 transport = kread(skb, transport_header), network = kread(skb, network_header);
	struct sock_entry *e;
	s32 size;

	if (transport == UNSET_HEADER)
		return;
	th = head + transport;
	ip = has_network ? head + network : 0;
	if (!cookie) {
		sent_first(sk, skb, ip, th, what);
		return;
	}
	e = sock_with_cookie(sk, cookie);
	if (!e)
		return;
	size = sent_size(skb, transport_bytes(sk, ip, th, e->tcp), th, e->tcp);
	if (size >= 0 && CROSSING_MODE(what))
		cross(what, cookie, bpf_ktime_get_boot_ns(), size, e->tcp ? __builtin_bswap32(kread_word(th + 4)) : skb_tag(skb_key(skb)));
	if ((what == KP_X_TO_DEVICE && e->tcp ? TCP_STATE_MODE : STATE_WITH_EACH))
		say_tcp(sk, cookie, ip, e->tcp ? th : 0, what);
}

/* A received packet, its transport header at `th`. */
static __always_inline void received(struct sock_entry *e, struct sk_buff *skb, u64 th, u32 header)
{
	u64 head = kread_ptr(skb, head);
	struct arrival *a = arrival_of(head);
	u32 len = kread(skb, len) - header, seq = skb_tag(skb_key(skb)), segments = segments_of(skb);
	u64 now = bpf_ktime_get_boot_ns(), ts = a->ts;

	if (e->tcp)
		seq = __builtin_bswap32(kread_word(th + 4));
	if (len > 1 << 20 || !(len || settings.empty || !e->tcp))
		return;
	if (a->head == head && CROSSING_MODE(KP_X_FROM_DEVICE))
		cross(KP_X_FROM_DEVICE, e->cookie, ts, packed(len, segments), seq);
	if (CROSSING_MODE(KP_X_FROM_NETWORK))
		cross(KP_X_FROM_NETWORK, e->cookie, now, packed(len, segments), seq);
}

static __noinline int tell_first(struct sock *sk, u64 cookie)
{
	u64 low = address_low(sk);
	struct first_datagram *f = &firsts[(low >> 6) & (FIRSTS - 1)];

	if (f->sk != low || f->size < 0)
		return 0;
	f->sk = 0;
	if (CROSSING_MODE(KP_X_TO_DEVICE))
		cross(KP_X_TO_DEVICE, cookie, f->queued, f->size, f->seq);
	if (f->started && CROSSING_MODE(KP_X_TO_DRIVER))
		cross(KP_X_TO_DRIVER, cookie, f->started, f->size, f->seq);
	return 0;
}

/* The call that sends is over: bytes taken, or the error. */
static __always_inline void send_over(struct sock *sk, s32 ret)
{
	struct sock_entry *e = sock_of(sk);

	if (!e)
		return;
	/* Not only of a socket that has its cookie from here: an answer may have come before the call was over. */
	if (!e->tcp)
		tell_first(sk, e->cookie);
	e->left = 0;
	sock_refresh(e, sk);
	if (CROSSING_MODE(KP_X_SEND))
		cross(KP_X_SEND, e->cookie, bpf_ktime_get_boot_ns(), ret, e->tcp ? tp_read(sk, write_seq) - (ret > 0 ? ret : 0) : 0);
	say_tcp_with_each(e, sk, KP_X_SEND);
}

static __always_inline void recv_over(struct sock_entry *e, struct sock *sk, s32 ret)
{
	if (CROSSING_MODE(KP_X_RECV))
		cross(KP_X_RECV, e->cookie, bpf_ktime_get_boot_ns(), ret, e->tcp ? tp_read(sk, copied_seq) - (ret > 0 ? ret : 0) : 0);
	say_tcp_with_each(e, sk, KP_X_RECV);
}

/* What a socket did in a pause is not told afterwards. */
static __always_inline void catch_up(struct sock_entry *e, struct sock *sk)
{
	if (e->epoch == (u32)settings.epoch)
		return;
	e->epoch = settings.epoch;
	e->left = 0;
	if (e->tcp)
		e->said = tp_read(sk, rcv_nxt);
}

/* Data for the application is in the socket. `len`: of the datagram; a stream says how far it has got. */
static __always_inline void readable(struct sock_entry *e, struct sock *sk, u32 len, u32 seq)
{
	catch_up(e, sk);
	if (e->tcp) {
		u32 next = tp_read(sk, rcv_nxt);

		seq = e->said;
		len = next - seq;
		e->said = next;
		if (len > 1 << 30)
			return; /* a fresh connection: it began to count elsewhere */
	}
	if (len && CROSSING_MODE(KP_X_TO_SOCKET)) {
		cross(KP_X_TO_SOCKET, e->cookie, bpf_ktime_get_boot_ns(), len, seq);
		say_tcp_with_each(e, sk, KP_X_TO_SOCKET);
	}
}

/* Somebody is woken: the newest datagram in the queue is what there is to read. */
static __always_inline void data_ready(struct sock *sk)
{
	struct sock_entry *e = sock_of(sk);
	u32 len = 0, seq = 0, proto;

	if (!e)
		return;
	if (!e->tcp) {
		u64 skb = sk_read_ptr(sk, sk_receive_queue.prev), head;
		struct arrival *a;

		proto = sk_read(sk, sk_protocol);
		if (datagrams_by_function && (proto == IPPROTO_UDP || proto == IPPROTO_UDPLITE))
			return;
		if (!kernel_address(skb) || !sk_read(sk, sk_receive_queue.qlen))
			return;
		head = kread_ptr((struct sk_buff *)(skb), head);
		len = kread((struct sk_buff *)(skb), len);
		seq = skb_tag((u32)skb);
		a = arrival_of(head);
		if (a->head == head && CROSSING_MODE(KP_X_FROM_DEVICE))
			cross(KP_X_FROM_DEVICE, e->cookie, a->ts, packed(len, 1), seq);
	}
	readable(e, sk, len, seq);
}

/*
 * A section's name says where a program goes; user space loads those whose place this kernel has (crates/probe/src/app.rs).
 * In a pause it leaves at once.
 */
#define AT(section, name)                                    \
	static __always_inline int name##_now(u64 *ctx);     \
	SEC(section)                                         \
	int name(u64 *ctx)                                   \
	{                                                    \
		return settings.epoch ? name##_now(ctx) : 0; \
	}                                                    \
	static __always_inline int name##_now(u64 *ctx)

#endif
