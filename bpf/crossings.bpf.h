/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Bytes cross from one layer into the next: the record of it, and what is known of the packet they are in.
 *
 * A received packet does not know its socket when it comes from the device. What was seen of it then waits in `arrivals`
 * and is written, with its own time, when a socket takes the packet; what no socket takes leaves no record.
 */
#ifndef KPAT_CROSSINGS_H
#define KPAT_CROSSINGS_H

#include "stream.bpf.h"
#include "thread_time.bpf.h"

#define UNSET_HEADER 0xffff
/* Flags of calls that receive, and take nothing out of the socket's data: they look at it, or at what became of what was sent. */
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000
#define MSG_OOB 1

struct msg_iter {
	unsigned long count;
} __core;

struct msghdr {
	struct msg_iter msg_iter;
} __core;

struct sk_buff___app {
	struct sock *sk;
	struct net_device *dev;
	u8 encapsulation : 1;
	u16 inner_transport_header, inner_network_header, inner_mac_header;
	unsigned int len, data_len;
	char cb[48];
} __core;

/* Of an skb that is an argument, as sk_read: numbers. From 6.17 a pointer comes with a type that allows hardly any arithmetic. */
#define skb_read(skb, member) (((struct sk_buff *)(skb))->member)
#define skb_head(skb) kread_ptr((struct sk_buff *)(skb), head)

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
	u64 head; /* key, 0 free; the lowest bit: it is several packets */
	u64 ts_tag; /* time above, of the sk_buff the low 16 bits of its tag */
};
/* Datagrams are seen on their way into the socket: what is noted at tracepoints instead is not needed. */
const volatile u32 datagrams_by_function = 0;
const volatile u32 reads_by_function = 0;

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

/* What a log calls a packet: the low bits of its address. */
static __always_inline u32 skb_tag(struct sk_buff *skb)
{
	return (u32)address_low(skb) >> 6;
}

/* `low`: half of its header buffer's address. */
static __always_inline struct arrival *arrival_of(u32 low)
{
	return &arrivals[low * 2654435761u >> 19]; /* 13 bits are left */
}

/* The newest on each CPU, which is mostly the one that its socket gets next. */
struct newest {
	u64 low; /* of the sk_buff's address */
	u64 ts;
};
#define NEWEST 256
struct newest newest[NEWEST] SEC(".bss.newest");

static __always_inline struct newest *newest_here(void)
{
	return &newest[bpf_get_smp_processor_id() & (NEWEST - 1)];
}

/* `behind`: where its headers end, and what all its packets share begins. */
static __always_inline bool is_several(u64 behind)
{
	return kread((struct skb_shared_info *)behind, gso_size);
}

/*
 * When the packet came from its device, 0: not known. Its buffer may be another than then (zero copy and translation replace it), one in which an
 * earlier packet came: nobody shares such a buffer, and what does not share its buffer is the sk_buff that came in it.
 */
static __always_inline u64 arrived(struct sk_buff *skb, u64 head)
{
	struct arrival *a = arrival_of((u32)head);
	struct newest *n = newest_here();
	u64 came = a->ts_tag >> 16;
	bool shared = kread_bit(skb, cloned), same = (a->head & ~1ULL) == head;

	if (n->low == address_low(skb))
		came = n->ts;
	else if (!same || (a->head & 1 && !is_several(head + kread(skb, end))) || ((u16)a->ts_tag != (u16)skb_tag(skb) && !shared))
		return 0;
	/* Once it is read the buffer may be that of one that came otherwise: of a part of a larger datagram. That itself is cut into parts, and no socket has it. */
	if (!shared && same)
		a->head = 0;
	return came;
}

/* A packet with data: the low 20 bits its length, the segments above. */
static __always_inline s32 packed(u32 bytes, u32 segments)
{
	return (bytes & 0xfffff) | (segments ?: 1) << 20;
}

static __always_inline u32 segments_of(struct sk_buff *skb, u64 head)
{
	return kread((struct skb_shared_info *)(head + skb_read(skb, end)), gso_segs);
}

static __always_inline bool full_socket(struct sock *sk)
{
	u8 state = sk ? sk_read(sk, __sk_common.skc_state) : TCP_TIME_WAIT;

	return state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV;
}

/* A received packet, its transport header at `th`. */
static __always_inline void received(struct sock_entry *e, struct sk_buff *skb, u64 th, u32 header, u64 now)
{
	u64 head = skb_head(skb);
	u32 len = skb_read(skb, len) - header, seq = skb_tag(skb);
	struct writer w;
	u64 came;
	s32 size;

	if (len > 1 << 20 || !(len || settings.empty || !e->tcp))
		return;
	if (e->tcp)
		seq = first_byte(th);
	size = packed(len, segments_of(skb, head));
	w = who_writes();
	came = CROSSING_MODE(KP_X_FROM_DEVICE) ? arrived(skb, head) : 0;
	if (came)
		cross_as(w, KP_X_FROM_DEVICE, e->cookie, came, size, seq);
	if (CROSSING_MODE(KP_X_FROM_NETWORK))
		cross_as(w, KP_X_FROM_NETWORK, e->cookie, now, size, seq);
}

static __always_inline void recv_over(struct sock *sk, s32 ret, u32 flags)
{
	struct sock_entry *e = flags & (MSG_PEEK | MSG_ERRQUEUE) ? NULL : sock_of(sk);
	u32 seq = 0;
	u64 now;

	if (!e || !ASKED_FOR(KP_X_RECV))
		return;
	now = bpf_ktime_get_boot_ns();
	if (e->tcp) {
		u32 end = tp_read(sk, copied_seq);

		/* A call that takes the last bytes takes the end, too, which has a number of its own. */
		if (ret > 0 && sk_read(sk, __sk_common.skc_flags) & SOCK_DONE && end == tp_read(sk, rcv_nxt))
			end--;
		seq = end - (ret > 0 ? ret : 0);
		/* The urgent byte is taken out of its place in the stream. */
		if (flags & MSG_OOB && ret > 0)
			seq = tp_read(sk, urg_seq);
	}
	if (CROSSING_MODE(KP_X_RECV))
		cross(KP_X_RECV, e->cookie, now, ret, seq);
	thread_time(e, now);
	say_tcp_with_each(e, sk, KP_X_RECV, now);
}

/* What a socket did in a pause is not logged afterwards. */
static __always_inline void catch_up(struct sock_entry *e, struct sock *sk)
{
	if (e->epoch == (u32)settings.epoch)
		return;
	e->epoch = settings.epoch;
	e->left = 0;
	if (e->tcp)
		e->woken = tp_read(sk, rcv_nxt);
}

/* Data for the application is in the socket. `len`: of the datagram; a stream says how far it has got. */
static __always_inline void readable(struct sock_entry *e, struct sock *sk, u32 len, u32 seq)
{
	catch_up(e, sk);
	if (e->tcp) {
		u32 next = tp_read(sk, rcv_nxt);

		seq = e->woken;
		len = next - seq;
		e->woken = next;
		if (len > 1 << 30)
			return; /* a fresh connection: it began to count elsewhere */
	}
	/* Each datagram counts, also one without data: the queue is read in its order. */
	if ((len || !e->tcp) && CROSSING_MODE(KP_X_TO_SOCKET)) {
		u64 now = bpf_ktime_get_boot_ns();

		cross(KP_X_TO_SOCKET, e->cookie, now, len, seq);
		say_tcp_with_each(e, sk, KP_X_TO_SOCKET, now);
	}
}

/*
 * A datagram was taken before its socket could tell of it, by a reader on another CPU: what came last from a device here is it, unless the stack had a list of packets at
 * hand, or it came otherwise. Its size and its ports have to agree (crates/integrate/src/application/early.rs, crates/query/src/carried). Returns when that came.
 */
static __always_inline u64 taken_already(u32 *seq)
{
	struct newest *n = newest_here();

	*seq = (u32)n->low >> 6;
	return n->low ? n->ts : 0;
}

/* Somebody is woken: the newest datagram in the queue is what there is to read. */
static __always_inline void data_ready(struct sock *sk)
{
	u32 len = 0, seq = 0, proto = sk_read(sk, sk_protocol);
	struct sock_entry *e;
	s32 size = 0;

	if (datagrams_by_function && (proto == IPPROTO_UDP || proto == IPPROTO_UDPLITE))
		return;
	/* A stream, whose newest piece is joined with the one before: how much of it is new is not seen. */
	if (proto == IPPROTO_MPTCP)
		return;
	e = sock_of(sk);
	if (!e)
		return;
	if (!e->tcp) {
		u64 skb = sk_read_ptr(sk, sk_receive_queue.prev), came;

		if (kernel_address(skb) && sk_read(sk, sk_receive_queue.qlen)) {
			len = kread((struct sk_buff *)(skb), len);
			seq = (u32)skb >> 6;
			size = packed(len, 1);
			came = CROSSING_MODE(KP_X_FROM_DEVICE) ? arrived((struct sk_buff *)skb, kread_ptr((struct sk_buff *)(skb), head)) : 0;
		} else {
			came = CROSSING_MODE(KP_X_FROM_DEVICE) ? taken_already(&seq) : 0;
		}
		if (came)
			cross(KP_X_FROM_DEVICE, e->cookie, came, size, seq);
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
