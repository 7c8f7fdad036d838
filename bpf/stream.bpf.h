/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Where in TCP's streams bytes are, also those that go with a SYN (TCP Fast Open, RFC 7413): the SYN has a number of its own, its data begin behind that; and
 * the write that they are of comes before the socket has numbers, so it is logged when the SYN leaves, the rest of it when the call is over.
 */
#ifndef KPAT_STREAM_H
#define KPAT_STREAM_H

#include "tcpstate.bpf.h"
#include "writer.bpf.h"

#define CROSSING_MODE(what) (func_mode[KP_MAX_FUNCS - 1 - (what)])
/* Something is recorded there. */
#define ASKED_FOR(what) (CROSSING_MODE(what) || STATE_WITH_EACH)

/* In `left` of a socket: of the write that is under way nothing is logged; less, by what went with the SYN. */
#define UNLOGGED 0xffffffffU
#define MOST_WITH_SYN 0xffff

static __always_inline bool is_syn(u64 th)
{
	return kread_word(th + 8) >> 41 & 1;
}

/* The number of a segment's first byte. */
static __always_inline u32 first_byte(u64 th)
{
	return __builtin_bswap32(kread_word(th + 4)) + is_syn(th);
}

/* A write to it has no place yet: it connects first, or did so in name only (TCP_FASTOPEN_CONNECT). */
static __always_inline bool without_numbers(struct sock *sk)
{
	u8 state = sk_read(sk, __sk_common.skc_state);

	return state == TCP_CLOSE || (state == TCP_SYN_SENT && tp_read(sk, write_seq) - tp_read(sk, snd_una) != 1);
}

static __always_inline void closes(struct sock_entry *e, u32 una)
{
	e->acked = una;
	e->closes = settings.epoch;
}

/*
 * Of a connection of which an end was closed no tracepoint shows the segments that come. What they acknowledge is logged when its socket is at hand again: it
 * sends, its state changes, or (since 6.11) the acknowledgement is freed.
 */
static __always_inline void acked_meanwhile(struct sock_entry *e, struct sock *sk, u64 now)
{
	u8 state = sk_read(sk, __sk_common.skc_state);
	u32 from, una, bytes;

	if (!(1 << (state & 15) & CLOSES))
		return;
	una = tp_read(sk, snd_una);
	from = e->closes == (u32)settings.epoch ? e->acked : una;
	closes(e, una);
	bytes = una - from;
	/* its own end has a number */
	if (bytes && state != TCP_CLOSE_WAIT && una == tp_read(sk, write_seq))
		bytes--;
	if (bytes && bytes < 1 << 30 && CROSSING_MODE(KP_X_ACKED))
		cross(KP_X_ACKED, e->cookie, now, bytes, from);
}

/* A segment leaves, with so many bytes. */
static __always_inline void given_with_syn(struct sock_entry *e, u64 th, u32 what, u32 bytes, u64 now)
{
	if (what != KP_X_TO_DEVICE || !bytes || !is_syn(th))
		return;
	if (e->left > UNLOGGED - MOST_WITH_SYN)
		e->left = UNLOGGED - (bytes & MOST_WITH_SYN);
	if (CROSSING_MODE(KP_X_TO_TRANSPORT))
		cross(KP_X_TO_TRANSPORT, e->cookie, now, bytes, first_byte(th));
}

/* A call that sends is over, and took so many bytes. */
static __always_inline void write_over(struct sock_entry *e, struct sock *sk, s32 ret)
{
	u32 left = e->left, rest;

	if (e->writing != (u32)current_pid_tgid())
		return;
	e->left = 0;
	if (left <= UNLOGGED - MOST_WITH_SYN || ret <= 0 || !CROSSING_MODE(KP_X_TO_TRANSPORT))
		return;
	rest = ret - (UNLOGGED - left);
	if (rest && rest <= (u32)ret)
		cross(KP_X_TO_TRANSPORT, e->cookie, bpf_ktime_get_boot_ns(), rest, tp_read(sk, write_seq) - rest);
}

#endif
