/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a socket sends: a packet comes to a device's queue and out of it, once for its socket whatever devices it passes, and a call is over.
 */
#ifndef KPAT_SENDING_H
#define KPAT_SENDING_H

#include "crossings.bpf.h"

/*
 * A socket has its cookie at its first event at which it is an argument; its first datagram may have passed the device by
 * then. What was seen of that waits here, for the thread that sent it: another may send by the same socket at the same moment.
 */
struct first_datagram {
	u64 sk; /* low half of the address, 0 free */
	u64 queued, started;
	s32 size;
	u32 seq;
	u32 task; /* whose call it is in */
	u32 way; /* as in on_way, 0: not known */
	u16 device;
};
#define FIRST_WAITS_NS 10000000 /* what is older is of a call that was not seen to be over */
#define FIRSTS 256
struct first_datagram firsts[FIRSTS] SEC(".bss.firsts");

static __always_inline struct first_datagram *first_of(u64 low)
{
	return &firsts[(u32)(low >> 6) * 2654435761u >> 24]; /* 8 bits are left */
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
	if (sk_read(sk, sk_type) == SOCK_RAW)
		return 0;
	return (proto != IPPROTO_UDP && proto != IPPROTO_UDPLITE) || (ip && later_fragment(ip)) ? 0 : 8;
}

/* Data of a sent packet that has its transport header: packed size; negative: none to tell of. */
static __always_inline s32 sent_size(struct sk_buff *skb, u64 head, u64 th, u32 header, bool tcp)
{
	u32 len = skb_read(skb, len) - ((u32)th - (u32)address_low(skb_read(skb, data))) - header;

	if (len > 1 << 20 || (tcp && !len && !settings.empty))
		return -1;
	return packed(len, segments_of(skb, head));
}

/*
 * Datagrams on their way through this host's devices, by sk_buff, with the first device of each: others of their socket may come while one is in that device's
 * queue. Of those with one row the newest four are known, an older one only as the socket's last.
 */
struct on_way {
	u32 tag;
	u32 device;
};
#define ON_WAY_WAYS 4
struct on_way_row {
	struct on_way of[ON_WAY_WAYS];
	u32 next;
};
#define ON_WAY_ROWS 1024
struct on_way_row on_way[ON_WAY_ROWS] SEC(".bss.on_way");

static __always_inline struct on_way_row *on_way_row(u32 skb)
{
	return &on_way[skb * 2654435761u >> 22]; /* 10 bits are left */
}

/* Of a datagram: its sk_buff and where it goes. */
static __always_inline u32 way_of(struct sk_buff *skb, u64 ip)
{
	u64 ends = kread_word(ip + 12);

	/* Hosts of several networks may have the same lower halves, as routers do. */
	if ((kread_word(ip) & 0xf0) != 0x40)
		ends = kread_word(ip + 8) + 3 * kread_word(ip + 16) + 5 * kread_word(ip + 24) + 7 * kread_word(ip + 32);
	return skb_tag(skb) ^ (u32)(ends * 0x9e3779b97f4a7c15ULL >> 32);
}

static __always_inline u16 device_of(struct sk_buff___app *skb)
{
	return address_low(skb->dev) >> 11; /* a page or a half */
}

/* It comes to its first device. `w`: where another was that had the same sk_buff and addresses. */
static __always_inline void sets_out(struct sock_entry *e, struct on_way_row *row, struct on_way *w, u32 way, u16 device)
{
	e->way = way;
	e->device = device;
	if (e->tcp)
		return;
	if (!w)
		w = &row->of[row->next++ & (ON_WAY_WAYS - 1)];
	w->tag = way;
	w->device = device;
}

static __noinline int sent_first(struct sock *sk, struct sk_buff *skb, u64 ip, u64 th, u32 what)
{
	u64 low = address_low(sk);
	struct first_datagram *f = first_of(low);
	u64 now = bpf_ktime_get_boot_ns(), net = sk_read_ptr(sk, __sk_common.skc_net.net);
	u32 task = current_pid_tgid();

	/* The places are few: others' sockets, and the kernel's in their namespaces, take none. Nor do the kernel's own for ICMP, which answer within a call that sends. */
	if (sk_read(sk, sk_type) == SOCK_RAW && kread_bit((struct sock___app *)sk, sk_kern_sock))
		return 0;
	if (sk_read(sk, sk_protocol) == IPPROTO_TCP || !net || !netns_wanted(kread((struct net *)(net), ns.inum)))
		return 0;
	/* There is one place; and a tunnel or a VLAN gives it to a further device. */
	if (what == KP_X_TO_DEVICE && f->sk == low && f->task != task && now - f->queued < FIRST_WAITS_NS)
		return 0;
	if (f->sk == low && (what == KP_X_TO_DEVICE ? f->seq == skb_tag(skb) : !!f->started))
		return 0;
	if (what == KP_X_TO_DEVICE) {
		f->sk = low;
		f->queued = now;
		f->started = 0;
		f->task = task;
		f->size = sent_size(skb, skb_head(skb), th, transport_bytes(sk, ip, th, false), false);
		f->seq = skb_tag(skb);
		f->way = ip ? way_of(skb, ip) : 0;
		f->device = device_of((struct sk_buff___app *)skb);
	} else if (f->sk == low && f->seq == skb_tag(skb)) {
		f->started = now;
	}
	return 0;
}

/*
 * Did another device give it to this one: a tunnel, a VLAN, a bridge? It is then one that is on its way, by its sk_buff and its addresses: the next
 * datagram may get the same sk_buff, and go to another host by another device. One that goes to the same host comes to the first device again.
 */
static __always_inline bool given_on(struct sock_entry *e, struct sk_buff___app *skb, u64 ip, u32 what)
{
	u32 tag = skb_tag((struct sk_buff *)skb);
	u16 device = device_of(skb);
	struct on_way_row *row = on_way_row(tag);
	struct on_way *w = NULL;

	if (!e->tcp) {
		tag = way_of((struct sk_buff *)skb, ip);
#pragma unroll
		for (int i = 0; i < ON_WAY_WAYS; i++)
			if (row->of[i].tag == tag)
				w = &row->of[i];
		if (w && w->device != device) {
			e->lower = device;
			return true;
		}
		if (w && what == KP_X_TO_DRIVER)
			return false;
	}
	if (what == KP_X_TO_DRIVER) {
		if (e->device != device)
			return e->lower == device;
		if (e->tcp)
			e->way = tag; /* a segment of it, where the device cannot cut */
		return false;
	}
	/* A connection has one way, and others of its packets may have come while this one was in the first device's queue. */
	if (e->device != device && (e->way == tag || (e->tcp && e->lower == device))) {
		e->lower = device;
		return true;
	}
	sets_out(e, row, w, tag, device);
	return false;
}

/*
 * IPsec took the packet: it keeps where the transport header was, and has put its own there; what the application wrote, and how much of it, is no longer to be read
 * (net/xfrm/xfrm_output.c). What is sent in the clear has no inner headers: their offsets are equal, and not 0 where its buffer was exchanged.
 */
static __always_inline bool hidden_by_ipsec(struct sk_buff___app *skb, u16 transport)
{
	u16 inner = skb->inner_transport_header;

	return inner != skb->inner_mac_header && inner != transport;
}

/* A sent packet that has its headers: and TCP's state with it. */
static __always_inline void sent(u32 what, struct sock *sk, struct sk_buff *skb, bool has_network)
{
	u64 cookie = sock_cookie(sk), head = skb_head(skb), th, ip;
	u16 transport = skb_read(skb, transport_header), network = skb_read(skb, network_header);
	struct sk_buff___app *app = (void *)skb;
	struct at_hand a = {};
	struct sock_entry *e;
	bool state, on, hidden = false;
	s32 size;

	if (kread_bit(app, encapsulation)) {
		transport = app->inner_transport_header;
		network = app->inner_network_header;
	} else {
		hidden = hidden_by_ipsec(app, transport);
	}
	if (transport == UNSET_HEADER)
		return;
	th = head + transport;
	ip = has_network ? head + network : 0;
	if (!cookie) {
		if (!hidden)
			sent_first(sk, skb, ip, th, what);
		return;
	}
	e = sock_with_cookie(sk, cookie);
	if (!e)
		return;
	on = has_network && given_on(e, app, ip, what);
	hidden &= !on;
	size = CROSSING_MODE(what) && !hidden ? sent_size(skb, head, th, transport_bytes(sk, ip, th, e->tcp), e->tcp) : -1;
	state = what == KP_X_TO_DEVICE && e->tcp ? TCP_STATE_MODE && !on : STATE_WITH_EACH;
	if (size < 0 && !state)
		return;
	a.now = bpf_ktime_get_boot_ns();
	if (what == KP_X_TO_DEVICE && e->tcp && !on)
		acked_meanwhile(e, sk, a.now);
	if (size >= 0 && e->tcp && !on)
		given_with_syn(e, th, what, size & 0xfffff, a.now);
	if (size >= 0)
		cross(what, cookie, a.now, on ? size & 0xfffff : size, e->tcp ? first_byte(th) : skb_tag(skb));
	if (!state)
		return;
	a.ip = ip;
	a.tcp = e->tcp && !hidden ? th : 0;
	say_tcp(sk, e, &a, what);
}

/* Says whether it is done: nothing waits for another thread. */
static __noinline int tell_first(struct sock_entry *e, u64 low)
{
	struct first_datagram *f = first_of(low);

	if (f->sk != low)
		return 1;
	if (f->task != (u32)current_pid_tgid())
		return bpf_ktime_get_boot_ns() - f->queued >= FIRST_WAITS_NS;
	f->sk = 0;
	if (f->size < 0)
		return 1;
	if (CROSSING_MODE(KP_X_TO_DEVICE))
		cross(KP_X_TO_DEVICE, e->cookie, f->queued, f->size, f->seq);
	if (f->started && CROSSING_MODE(KP_X_TO_DRIVER))
		cross(KP_X_TO_DRIVER, e->cookie, f->started, f->size, f->seq);
	/* it may still be in that device's queue, and go on to a further one */
	if (f->way)
		sets_out(e, on_way_row(f->seq), NULL, f->way, f->device);
	return 1;
}

/* The call that sends is over: bytes taken, or the error. */
static __always_inline void send_over(struct sock *sk, s32 ret)
{
	struct sock_entry *e = sock_of(sk);
	u64 now;

	if (!e)
		return;
	/* Not only of a socket that has its cookie from here: an answer may have come before the call was over. */
	if (!e->first_over && (e->tcp || tell_first(e, address_low(sk))))
		e->first_over = 1;
	write_over(e, sk, ret);
	sock_refresh(e, sk);
	if (!ASKED_FOR(KP_X_SEND))
		return;
	now = bpf_ktime_get_boot_ns();
	if (CROSSING_MODE(KP_X_SEND))
		cross(KP_X_SEND, e->cookie, now, ret, e->tcp ? tp_read(sk, write_seq) - (ret > 0 ? ret : 0) : 0);
	thread_time(e, now);
	say_tcp_if(TCP_STATE_MODE && e->tcp && more_is_to_come(e, sk), e, sk, KP_X_SEND, now);
}

#endif
