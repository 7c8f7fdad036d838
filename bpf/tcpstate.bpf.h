/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP's state, written when it is another than was said, or when the last word is old enough. */
#ifndef KPAT_TCPSTATE_H
#define KPAT_TCPSTATE_H

#include "sockets.bpf.h"

/* Set by user space, also while recording. */
#define TCP_STATE_MODE (func_mode[KP_MAX_FUNCS - 1])
/* It is asked for at each crossing at which the socket is at hand. */
#define STATE_WITH_EACH (TCP_STATE_MODE && !settings.state_every_ns)

/* Before TCP looks at a segment that came: it has bytes to send; the application waits for room (SOCK_NOSPACE of include/linux/net.h). */
#define WAITS_UNSENT 1
#define WAITS_ROOM 2
#define SOCK_NOSPACE 2

static __always_inline u8 what_waits(struct sock *sk)
{
	struct socket *file = (void *)sk_read_ptr(sk, sk_socket);
	u8 room = file ? kread(file, flags) >> SOCK_NOSPACE & 1 : 0;

	return (tp_read(sk, write_seq) != tp_read(sk, snd_nxt) ? WAITS_UNSENT : 0) | (room ? WAITS_ROOM : 0);
}

static __always_inline u32 mix(u32 h, u32 v)
{
	return (h ^ v) * 0x9e3779b1u;
}

static __always_inline void say_ip(struct kp_tcp *r, u64 ip)
{
	u64 w = kread_word(ip);

	r->version = (w & 0xff) >> 4;
	if (r->version == 4) {
		r->tos = w >> 8;
		r->ip_id = __builtin_bswap16(w >> 32);
		r->ip_frag = __builtin_bswap16(w >> 48);
		r->ttl = kread_word(ip + 8);
	} else {
		r->tos = (w & 0xf) << 4 | (w >> 12 & 0xf);
		r->ttl = w >> 56;
	}
}

/* Of a datagram, which has no state: its network header. */
static __noinline int say_headers(struct kp_ring_ctl *ctl, u64 cookie, u64 ip, u32 what)
{
	struct kp_tcp *r;

	if (!ip)
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	__builtin_memset(r, 0, sizeof(*r));
	r->ts = bpf_ktime_get_boot_ns();
	say_ip(r, ip);
	*(volatile u64 *)r = KP_TCP | (sizeof(*r) / KP_SLOT) << 8 | (u64)(what & 0xff) << 16 | cookie << 32;
	return 0;
}

/* `ip`, `tcp`: addresses of the headers of the segment at hand, 0: not yet made. */
static __noinline int say_tcp(struct sock *sk, u64 cookie, u64 ip, u64 tcp, u32 what)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct sock_entry *e = sock_find(cookie);
	struct inet_connection_sock *icsk = (void *)sk;
	struct kp_tcp *r;
	u32 cwnd, ssthresh, retrans, lost, sacked, rto, limited, sig;
	u64 now = bpf_ktime_get_boot_ns();
	u8 ca, state;

	if (!ctl || !e)
		return 0;
	if (!e->tcp)
		return say_headers(ctl, cookie, ip, what);
	if (what == KP_X_FROM_NETWORK)
		e->waits = what_waits(sk);
	cwnd = tp_read(sk, snd_cwnd);
	ssthresh = tp_read(sk, snd_ssthresh);
	retrans = tp_read(sk, retrans_out);
	lost = tp_read(sk, lost_out);
	sacked = tp_read(sk, sacked_out);
	limited = tp_read(sk, app_limited);
	/* also what holds it back: cwnd, or another than itself (chrono_type from 2 on); between idle and busy it goes with each write */
	sig = mix(sk_read(sk, sk_pacing_status), !!limited);
	sig = mix(sig, e->waits << 2 | kread_bit((struct tcp_sock *)(sk), is_cwnd_limited) << 1 | kread_bit((struct tcp_sock *)(sk), chrono_type) >> 1);
	rto = kread(icsk, icsk_rto);
	ca = kread_bit(icsk, icsk_ca_state);
	state = sk_read(sk, __sk_common.skc_state);
	sig = mix(sig, cwnd);
	sig = mix(sig, ssthresh);
	sig = mix(sig, retrans << 16 ^ lost);
	sig = mix(sig, sacked << 16 ^ (u32)ca << 8 ^ state);
	sig = mix(sig, rto);
	sig |= 1;
	if (sig == e->state_sig && now - e->state_at < settings.state_every_ns)
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	e->state_sig = sig;
	e->state_at = now;
	r->ts = now;
	r->version = 0;
	r->ip_id = r->ip_frag = r->tos = r->ttl = r->tcp_flags = 0;
	if (ip)
		say_ip(r, ip);
	if (tcp)
		r->tcp_flags = kread_word(tcp + 8) >> 40;
	r->state = state;
	r->limit = kread_bit((struct tcp_sock *)(sk), chrono_type) | kread_bit((struct tcp_sock *)(sk), is_cwnd_limited) << 2 |
		   ((sk_read(sk, sk_pacing_status) + 1) & 3) << 3 | (e->waits & WAITS_ROOM ? 2 : 1) << 5;
	r->mss = tp_read(sk, mss_cache);
	r->snd_cwnd = cwnd;
	r->snd_ssthresh = ssthresh;
	r->snd_wnd = tp_read(sk, snd_wnd);
	r->rcv_wnd = tp_read(sk, rcv_wnd);
	r->srtt_us8 = tp_read(sk, srtt_us);
	r->rttvar_us4 = tp_read(sk, mdev_us);
	r->rto_jiffies = rto;
	r->in_flight = tp_read(sk, packets_out) - sacked - lost + retrans;
	r->retrans_out = retrans;
	r->lost_out = lost;
	r->sacked_out = sacked;
	r->total_retrans = tp_read(sk, total_retrans);
	r->write_seq = tp_read(sk, write_seq);
	r->snd_una = tp_read(sk, snd_una);
	r->snd_nxt = tp_read(sk, snd_nxt);
	r->copied_seq = tp_read(sk, copied_seq);
	r->rcv_nxt = tp_read(sk, rcv_nxt);
	r->app_limited = limited;
	r->delivered = tp_read(sk, delivered);
	r->rate_delivered = tp_read(sk, rate_delivered);
	r->rate_interval_us = tp_read(sk, rate_interval_us);
	r->wmem_queued = sk_read(sk, sk_wmem_queued);
	r->rmem_alloc = sk_read(sk, sk_backlog.rmem_alloc.counter);
	r->pacing_rate = sk_read(sk, sk_pacing_rate);
	*(volatile u64 *)r = KP_TCP | (sizeof(*r) / KP_SLOT) << 8 | (u64)(what & 0xff) << 16 | (u64)ca << 24 | cookie << 32;
	return 0;
}

/* Nothing but where a state is asked for with each event. */
static __always_inline void say_tcp_with_each(struct sock_entry *e, struct sock *sk, u32 what)
{
	if (STATE_WITH_EACH && e->tcp)
		say_tcp(sk, e->cookie, 0, 0, what);
}

#endif
