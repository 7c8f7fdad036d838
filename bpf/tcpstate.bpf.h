/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP's state, written when it differs from what was last logged, or when that is old enough. */
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
/* When a call that sends was over: what it left unsent waits for more, as the application wants it (MSG_MORE, TCP_CORK). */
#define WAITS_MORE 4
#define TCP_NAGLE_CORK 2 /* of include/net/tcp.h */

static __always_inline u8 what_waits(struct sock *sk)
{
	struct socket *file = (void *)sk_read_ptr(sk, sk_socket);
	u8 room = file ? kread(file, flags) >> SOCK_NOSPACE & 1 : 0;

	return (tp_read(sk, write_seq) != tp_read(sk, snd_nxt) ? WAITS_UNSENT : 0) | (room ? WAITS_ROOM : 0);
}

/*
 * A call that sends is over. What was given with MSG_MORE is not marked to be pushed (tcp_push() of net/ipv4/tcp.c); within a call nothing is yet, whatever its flags.
 * True: it is not what the log has. Where nothing is left unsent it does not matter, so that an application that does it each time costs one record.
 */
static __always_inline bool more_is_to_come(struct sock_entry *e, struct sock *sk)
{
	u32 written = tp_read(sk, write_seq);
	u8 waits = e->waits & ~WAITS_MORE;

	if (written == tp_read(sk, snd_nxt))
		return false;
	if (tp_read(sk, pushed_seq) != written || kread_bit((struct tcp_sock *)sk, nonagle) & TCP_NAGLE_CORK)
		waits |= WAITS_MORE;
	if (waits == e->waits)
		return false;
	e->waits = waits;
	return true;
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

/* Many members of one connection: its type is given once, as each time costs two instructions more. */
#ifdef KPAT_DIRECT
#define tcp_of(sk) kcast(struct tcp_sock, sk)
#define tcp_read(tp, member) ((tp)->member)
#define tcp_bit(tp, member) BPF_CORE_READ_BITFIELD(tp, member)
#else
#define tcp_of(sk) ((struct tcp_sock *)(sk))
#define tcp_read(tp, member) kread(tp, member)
#define tcp_bit(tp, member) kread_bit(tp, member)
#endif

/* The packet at hand. */
struct at_hand {
	u64 now;
	u64 ip, tcp; /* addresses of its headers, 0: not yet made */
};

/* Of a datagram, which has no state: its network header. */
static __noinline int say_headers(u64 cookie, u64 ip, u32 what, u64 now)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_tcp *r;

	if (!ip || !ctl)
		return 0;
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	__builtin_memset(r, 0, sizeof(*r));
	r->ts = now;
	say_ip(r, ip);
	commit_word(r, KP_TCP | (sizeof(*r) / KP_SLOT) << 8 | (u64)(what & 0xff) << 16 | cookie << 32);
	return 0;
}

static __noinline int say_tcp(struct sock *sk, struct sock_entry *e, struct at_hand *a, u32 what)
{
	struct tcp_sock *tp = tcp_of(sk);
	struct inet_connection_sock *icsk = (void *)sk;
	struct kp_ring_ctl *ctl;
	struct kp_tcp *r;
	u32 cwnd, ssthresh, retrans, lost, sacked, rto, limited, sig;
	u64 now = a->now;
	u8 ca, state, full, chrono;

	if (!e->tcp)
		return say_headers(e->cookie, a->ip, what, now);
	/* it had no port of its own when it began to connect, and has one with its SYN */
	if (!(e->ports >> 16))
		sock_refresh(e, sk);
	if (what == KP_X_FROM_NETWORK)
		e->waits = what_waits(sk) | (e->waits & WAITS_MORE);
	cwnd = tcp_read(tp, snd_cwnd);
	ssthresh = tcp_read(tp, snd_ssthresh);
	retrans = tcp_read(tp, retrans_out);
	lost = tcp_read(tp, lost_out);
	sacked = tcp_read(tp, sacked_out);
	limited = tcp_read(tp, app_limited);
	/* also what holds it back: cwnd, or another than itself (chrono_type from 2 on); between idle and busy it goes with each write */
	sig = mix(sk_read(sk, sk_pacing_status), !!limited);
	full = tcp_bit(tp, is_cwnd_limited);
	chrono = tcp_bit(tp, chrono_type);
	sig = mix(sig, e->waits << 2 | full << 1 | chrono >> 1);
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
	ctl = ring_ctl();
	r = ctl ? ring_reserve(ctl, sizeof(*r)) : NULL;
	if (!r)
		return 0;
	e->state_sig = sig;
	e->state_at = now;
	r->ts = now;
	r->version = 0;
	r->ip_id = r->ip_frag = r->tos = r->ttl = r->tcp_flags = 0;
	if (a->ip)
		say_ip(r, a->ip);
	if (a->tcp)
		r->tcp_flags = kread_word(a->tcp + 8) >> 40;
	r->state = state;
	r->limit = chrono | full << 2 |
		   ((sk_read(sk, sk_pacing_status) + 1) & 3) << 3 | (e->waits & WAITS_ROOM ? 2 : 1) << 5 |
		   (e->waits & WAITS_MORE ? 1 : 0) << 7;
	r->mss = tcp_read(tp, mss_cache);
	r->snd_cwnd = cwnd;
	r->snd_ssthresh = ssthresh;
	r->snd_wnd = tcp_read(tp, snd_wnd);
	r->rcv_wnd = tcp_read(tp, rcv_wnd);
	r->srtt_us8 = tcp_read(tp, srtt_us);
	r->rttvar_us4 = tcp_read(tp, mdev_us);
	r->rto_jiffies = rto;
	r->in_flight = tcp_read(tp, packets_out) - sacked - lost + retrans;
	r->retrans_out = retrans;
	r->lost_out = lost;
	r->sacked_out = sacked;
	r->total_retrans = tcp_read(tp, total_retrans);
	r->write_seq = tcp_read(tp, write_seq);
	r->snd_una = tcp_read(tp, snd_una);
	r->snd_nxt = tcp_read(tp, snd_nxt);
	r->copied_seq = tcp_read(tp, copied_seq);
	r->rcv_nxt = tcp_read(tp, rcv_nxt);
	r->app_limited = limited;
	r->delivered = tcp_read(tp, delivered);
	r->rate_delivered = tcp_read(tp, rate_delivered);
	r->rate_interval_us = tcp_read(tp, rate_interval_us);
	r->wmem_queued = sk_read(sk, sk_wmem_queued);
	r->rmem_alloc = sk_read(sk, sk_backlog.rmem_alloc.counter);
	r->pacing_rate = sk_read(sk, sk_pacing_rate);
	commit_word(r, KP_TCP | (sizeof(*r) / KP_SLOT) << 8 | (u64)(what & 0xff) << 16 | (u64)ca << 24 | e->cookie << 32);
	return 0;
}

/* Nothing but where a state is asked for with each event, or `wanted` with this one. */
static __always_inline void say_tcp_if(bool wanted, struct sock_entry *e, struct sock *sk, u32 what, u64 now)
{
	struct at_hand a = { .now = now };

	if (e->tcp && (STATE_WITH_EACH || wanted))
		say_tcp(sk, e, &a, what);
}

static __always_inline void say_tcp_with_each(struct sock_entry *e, struct sock *sk, u32 what, u64 now)
{
	say_tcp_if(false, e, sk, what, now);
}

#endif
