/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Tracepoints at the crossings. */
#ifndef KPAT_CROSSING_POINTS_H
#define KPAT_CROSSING_POINTS_H

#include "sending.bpf.h"

/* include/trace/events/sock.h, 6.3: (sk, ret, flags), when the call is over */
AT("tp_btf/sock_send_length", t2_sock_send_length)
{
	send_over((struct sock *)ctx[0], ctx[1]);
	return 0;
}

AT("tp_btf/sock_recv_length", t10_sock_recv_length)
{
	struct sock *sk = (struct sock *)ctx[0];

	recv_over(sk, ctx[1], ctx[2]);
	return 0;
}

/* include/trace/events/sock.h, 6.3: (sk) */
AT("tp_btf/sk_data_ready", t9_sk_data_ready)
{
	struct sock *sk = (struct sock *)ctx[0];

	data_ready(sk);
	return 0;
}

/* include/trace/events/tcp.h, 6.16: (sk, msg, skb, size_goal), for each part of a write: the first is the whole */
AT("tp_btf/tcp_sendmsg_locked", t3_tcp_sendmsg_locked)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sock_entry *e = sock_of(sk);
	u32 left, before, task = current_pid_tgid();
	u64 now;

	if (!e)
		return 0;
	catch_up(e, sk);
	left = ((struct msghdr *)ctx[1])->msg_iter.count;
	/* While one call waits for room another may write: their bytes are mixed. */
	before = e->writing == task ? e->left : 0;
	e->writing = task;
	e->left = left;
	if ((before && left <= before) || !ASKED_FOR(KP_X_TO_TRANSPORT))
		return 0; /* the same write goes on */
	now = bpf_ktime_get_boot_ns();
	if (CROSSING_MODE(KP_X_TO_TRANSPORT))
		cross(KP_X_TO_TRANSPORT, e->cookie, now, left, tp_read(sk, write_seq));
	thread_time(e, now);
	if (!before)
		say_tcp_with_each(e, sk, KP_X_TO_TRANSPORT, now);
	return 0;
}

/* include/trace/events/net.h: (skb) */
AT("tp_btf/net_dev_queue", t5_net_dev_queue)
{
	struct sk_buff___app *skb = (struct sk_buff___app *)ctx[0];
	struct sock *sk = skb->sk;

	if (sk && full_socket(sk))
		sent(KP_X_TO_DEVICE, sk, (struct sk_buff *)skb, true);
	return 0;
}

/* (skb, dev) */
AT("tp_btf/net_dev_start_xmit", t6_net_dev_start_xmit)
{
	struct sk_buff___app *skb = (struct sk_buff___app *)ctx[0];
	struct sock *sk = skb->sk;

	if (sk && full_socket(sk))
		sent(KP_X_TO_DRIVER, sk, (struct sk_buff *)skb, true);
	return 0;
}

/* (skb): a packet from a device; whose it is comes out later */
AT("tp_btf/netif_receive_skb", t7_netif_receive_skb)
{
	unsigned char *head = skb_read(ctx[0], head);
	struct arrival *a = arrival_of(address_low(head));
	struct newest *n = newest_here();

	n->low = address_low((void *)ctx[0]);
	n->ts = bpf_ktime_get_boot_ns();
	a->ts_tag = n->ts << 16 | (u16)skb_tag((struct sk_buff *)ctx[0]);
	a->head = (u64)head | is_several((u64)head + skb_read(ctx[0], end));
	return 0;
}

/* include/trace/events/tcp.h: (sk, skb), an established connection gets a segment; what it acknowledges is not yet counted */
AT("tp_btf/tcp_probe", t8_tcp_probe)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sk_buff *skb = (struct sk_buff *)ctx[1];
	struct sock_entry *e = sock_of(sk);
	struct at_hand a = {};
	u64 th, head;
	u32 una, acked;

	if (!e)
		return 0;
	catch_up(e, sk); /* the segment at hand is not yet taken: it will be logged */
	a.now = bpf_ktime_get_boot_ns();
	head = skb_head(skb);
	th = kread_ptr(skb, data);
	received(e, skb, th, (kread_word(th + 8) >> 36 & 0xf) * 4, a.now);
	una = tp_read(sk, snd_una);
	acked = tcp_cb(skb, ack_seq) - una;
	if (acked && acked < 1 << 30 && CROSSING_MODE(KP_X_ACKED))
		cross(KP_X_ACKED, e->cookie, a.now, acked, una);
	if (TCP_STATE_MODE) {
		a.ip = head + skb_read(skb, network_header);
		a.tcp = th;
		say_tcp(sk, e, &a, KP_X_FROM_NETWORK);
	}
	return 0;
}

/* (sk, skb, error); the segment lies in the write queue, its first number in the socket's own part of the skb */
AT("tp_btf/tcp_retransmit_skb", t11_tcp_retransmit_skb)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sk_buff___app *skb = (struct sk_buff___app *)ctx[1];
	struct sock_entry *e = sk && full_socket(sk) ? sock_of(sk) : NULL;
	struct at_hand a = {};

	if (!e || !skb)
		return 0;
	a.now = bpf_ktime_get_boot_ns();
	acked_meanwhile(e, sk, a.now);
	if (CROSSING_MODE(KP_X_RETRANSMIT) && !nothing_sent(ctx))
		cross(KP_X_RETRANSMIT, e->cookie, a.now, packed(skb_read(skb, len), segments_of((struct sk_buff *)skb, skb_head(skb))), tcp_cb(skb, seq));
	if (TCP_STATE_MODE)
		say_tcp(sk, e, &a, KP_X_RETRANSMIT);
	return 0;
}

/* include/trace/events/udp.h: (rc, sk, ...), a full socket refused the datagram that was counted on its way into the queue */
AT("tp_btf/udp_fail_queue_rcv_skb", note_refused)
{
	struct sock_entry *e = datagrams_by_function ? sock_of((struct sock *)ctx[1]) : NULL;

	if (e && CROSSING_MODE(KP_X_TO_SOCKET))
		cross(KP_X_TO_SOCKET, e->cookie, bpf_ktime_get_boot_ns(), (s32)ctx[0], 0);
	return 0;
}

/* include/trace/events/sock.h: (sk, oldstate, newstate), before the socket has the new one */
AT("tp_btf/inet_sock_set_state", note_state)
{
	struct sock *sk = (struct sock *)ctx[0];
	struct sock_entry *e = of_mptcp(sk) && ctx[2] == TCP_LISTEN ? NULL : sock_of(sk);

	if (!e || !e->tcp)
		return 0;
	if (ctx[1] == TCP_ESTABLISHED)
		closes(e, tp_read(sk, snd_una));
	else
		acked_meanwhile(e, sk, bpf_ktime_get_boot_ns());
	e->woken = tp_read(sk, rcv_nxt);
	announce_socket(sk, e->cookie, e->slot);
	return 0;
}

/* (skb, location, reason, rx_sk or NULL), the socket since 6.11: TCP frees acknowledgements without data, once it has looked at them, as if it dropped them. */
AT("tp_btf/kfree_skb", note_freed)
{
	struct sock *sk = (struct sock *)ctx[3];
	struct sock_entry *e;

	if (!sk || !(1 << (sk_read(sk, __sk_common.skc_state) & 15) & CLOSES))
		return 0;
	e = sock_of(sk);
	if (e)
		acked_meanwhile(e, sk, bpf_ktime_get_boot_ns());
	return 0;
}

#endif
