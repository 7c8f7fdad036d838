/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Entry and return of a probed function meet here, whatever mechanism brought them.
 *
 * Between the two, 64 bits are kept: 40 bits of the entry time (calls of up to 18 minutes) and the low 24 bits of the
 * packet id (the newest packet with those bits is the one: right for the last 16 million packets). They lie in the
 * session cookie where the mechanism has one, else in the table of open calls.
 */
#ifndef KPAT_CALLS_H
#define KPAT_CALLS_H

#include "lists.bpf.h"

/*
 * While pskb_expand_head() runs, the skb has a buffer that is not known, and its headers lie elsewhere in it than the skb says: what is called with
 * it then follows the move by the skb's address. `id` 0: it is over.
 */
static __always_inline void buffer_moves(u64 skb, u64 id)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 ctx = current_context() & 3;

	if (!ctl)
		return;
	ctl->moving_id[ctx] = id;
	ctl->moving[ctx] = id ? skb : 0;
}

static __noinline u64 moving_packet(u64 skb)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 ctx = current_context() & 3;

	return ctl && ctl->moving[ctx] == skb ? ctl->moving_id[ctx] : 0;
}

#define TIME_BITS 40
#define TIME_MASK ((1ULL << TIME_BITS) - 1)

static __always_inline u64 pack(u64 now, u64 packet)
{
	return packet << TIME_BITS | (now & TIME_MASK);
}

static __always_inline u64 unpack_packet(u64 packed)
{
	u64 newest = next_packet, low = packed >> TIME_BITS;

	return newest - ((newest - low) & 0xffffff);
}

/* What is done at the return, too; of another function that is not logged nothing is kept. */
#define KP_ROLES_AT_RETURN                                                                                                                     \
	(~(KP_ROLE_LIST | KP_ROLE_FREE | KP_ROLE_GRO | KP_ROLE_LINK | KP_ROLE_AIR | KP_ROLE_MOVED | KP_ROLE_FLOW | KP_ROLE_READ))

/* The clock, which takes as long as the rest of an entry, for calls that are logged. Logging may begin or end while a function is in a call. */
#define NOT_LOGGED 1ULL

static __always_inline u64 time_of_call(u32 func)
{
	return func_mode[func] & KP_MODE_LOG ? bpf_ktime_get_boot_ns() : NOT_LOGGED;
}

/* In packet_entry.turn, which has no other use where functions are probed: the packet goes on in another buffer. */
#define MOVED_ON 1

/* Beside the roles, of one that gets a pointer to the skb and puts another there: a function that is probed frees the old one. */
#define KP_ROLE_EXCHANGED (1u << 16)

/* Says whether the packet's header buffer goes with this call. */
__noinline int roles_at_entry(u64 at, u64 place, u32 roles, u64 arg2)
{
	struct packet_entry *e = entry_at(place);
	struct skb skb = skb_at(at);
	u64 head = skb_head(skb);

	if (roles & KP_ROLE_FREE) {
		if (last_holder(skb, head)) {
			u32 ends = e->turn != MOVED_ON;

			packet_forget(e);
			return ends;
		}
	} else if (roles & KP_ROLE_EXPAND) {
		buffer_moves(skb.at, e->id);
		/* the old buffer is freed inside, where nobody tells us, unless a clone still holds it: a sniffer's, whose end is not the packet's */
		if (roles & KP_ROLE_EXCHANGED || !last_holder(skb, head))
			e->turn = MOVED_ON;
		else
			packet_forget(e);
	} else if (roles & KP_ROLE_GRO) {
		struct packet_entry *merged = packet_of(skb_at(arg2), false);
		struct kp_ring_ctl *ctl = ring_ctl();

		if (merged && ctl)
			log_lineage(KP_LIN_GRO, merged->id, e->id);
	} else if (roles & KP_ROLE_LINK) {
		check_link(skb.at, head, place);
	}
	return 0;
}

/* A datagram whose ports are still to be written: they are those of its socket and of the flow. */
__noinline u64 packet_of_flow(u64 at, u64 flow)
{
	struct skb skb = skb_at(at);
	u64 head = skb_head(skb);
	struct header_offsets h = headers_of(skb, head);
	struct packet_entry *e = packet_find(head);

	if (e)
		return entry_place(e);
	return head && has_headers(h) ? admit_by_sender(skb, head, flow_port(flow, ethertype(h, head) == ETH_P_IP), PASSES) : 0;
}

/* What is read is a copy beside its packet, or no packet: what was received has headers. A function of its own, as the deepest way of calls has no stack to spare. */
static __noinline u64 none_is_read(u64 skb)
{
	struct skb s = skb_at(skb);

	return is_beside(s) || (!skb_field(s, skb_iif) && !skb_field(s, network_header));
}

/* What most functions are not: something is done to the packet's identity, or the packet lies behind a pointer. */
__noinline u64 special_entry(u64 cookie, u64 arg, u64 arg2)
{
	u32 func = KP_COOKIE_FUNC(cookie), roles = KP_COOKIE_ROLES(cookie);
	struct packet_entry *e;
	struct skb skb;
	bool ends = false;
	u64 now, id;

	if (roles & KP_ROLE_RET)
		return pack(time_of_call(func), 0);
	if (KP_COOKIE_DEREF(cookie) && bpf_probe_read_kernel(&arg, sizeof(arg), (void *)(arg + KP_COOKIE_OFF(cookie))))
		return 0;
	if (roles & KP_ROLE_LIST) {
		if (!arg)
			return 0;
		now = bpf_ktime_get_boot_ns();
		id = list_packets(arg, func, now);
		return id ? pack(now, id) : 0;
	}
	if (roles & KP_ROLE_MOVED) {
		id = moving_packet(arg);
		return id ? pack(bpf_ktime_get_boot_ns(), id) : 0;
	}
	skb = skb_at(arg);
	if (roles & KP_ROLE_READ && none_is_read(arg))
		return 0;
	if (roles & KP_ROLE_FLOW) {
		u64 place = packet_of_flow(arg, arg2);

		e = place ? entry_at(place) : NULL;
	} else {
		e = packet_of(skb, roles & KP_ROLE_FREE);
	}
	if (!e && any_homeless && roles & KP_ROLE_FREE && last_holder(skb, skb_head(skb)))
		forget_homeless(skb_head(skb));
	if (!e && air_watch && roles & KP_ROLE_AIR)
		keep_air(arg, skb_head(skb));
	if (!e)
		return roles & KP_ROLE_ALLOC ? pack(time_of_call(func), 0) : 0;
	id = e->id;
	if (roles)
		ends = roles_at_entry(arg, entry_place(e), KP_COOKIE_DEREF(cookie) ? roles | KP_ROLE_EXCHANGED : roles, arg2);
	if (!(func_mode[func] & KP_MODE_LOG) && !(roles & KP_ROLES_AT_RETURN))
		return 0;
	now = bpf_ktime_get_boot_ns();
	e->seen = now;
	/* a nanosecond of precision pays for the flag: the 64 bits are full */
	if (roles & KP_ROLE_FREE)
		now = (now & ~1ULL) | ends;
	return pack(now, id);
}

/* Of a function with nothing special about it. */
static __always_inline u64 plain_entry(u64 cookie, u64 arg)
{
	struct packet_entry *e = packet_of(skb_at(arg), cookie & KP_COOKIE_SETTLED);
	u64 now;

	if (!e)
		return 0;
	now = bpf_ktime_get_boot_ns();
	e->seen = now;
	return pack(now, e->id);
}

/*
 * Entry. `arg` is the argument that the cookie names, as it is. Returns what to keep for the return, 0: nothing. The caller
 * has looked at func_mode.
 */
static __always_inline u64 call_entry(u64 cookie, u64 arg, u64 arg2)
{
	return cookie & KP_COOKIE_SPECIAL ? special_entry(cookie, arg, arg2) : plain_entry(cookie, arg);
}

/* struct kp_call but for its first word, as three stores: the compiler would make nine. */
static __always_inline void call_record(struct kp_call *r, u64 entry, u64 dur_and_tag, u64 packet_and_rest)
{
	u64 *w = (u64 *)r;

	w[1] = entry;
	w[2] = dur_and_tag;
	w[3] = packet_and_rest;
}

struct born_walk {
	u64 at;
	u64 parent; /* packet id */
	u64 now;
	u32 kind;
};

/* One skb that came out of a call: a packet of its own unless it shares its parent's buffer. */
static long born_step(u32 i, struct born_walk *w)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct packet_entry *e;
	u64 head, place;

	if (!ctl || !w->at)
		return 1;
	head = kread_ptr((struct sk_buff *)w->at, head);
	e = head ? packet_find(head) : NULL;
	if (head && (!e || e->id != w->parent)) {
		/* a known buffer under a fresh skb is stale */
		if (e)
			packet_forget(e);
		place = packet_insert(head, 0, w->now);
		if (place)
			log_lineage(w->kind, w->parent, entry_at(place)->id);
		else
			count_homeless(head, w->now);
	}
	if (w->kind != KP_LIN_SEGMENT)
		return 1;
	w->at = kread_ptr((struct sk_buff *)w->at, next);
	return 0;
}

/* What a filter would look at may not be written yet where the kernel has not given the packet a protocol: then only a known one counts. */
static __always_inline u64 returned_packet(struct skb skb)
{
	struct packet_entry *e;

	if (has_filter && !skb_field(skb, protocol)) {
		e = packet_find(skb_head(skb));
		return e ? e->id : 0;
	}
	return packet_id_of(skb);
}

/* A packet that comes out of a call: fresh, copied, a segment, a fragment. Returns the call's packet. */
static __noinline u64 roles_at_return(struct kp_ring_ctl *ctl, u32 roles, u64 id, u64 arg, u64 ret)
{
	struct packet_entry *e;
	u64 head;

	if (roles & KP_ROLE_EXPAND) {
		buffer_moves(arg, 0);
		head = arg ? kread_ptr((struct sk_buff *)arg, head) : 0;
		e = head ? packet_find(head) : NULL;
		/* whoever is known by a buffer that is fresh has gone unseen */
		if (e && e->id != id) {
			packet_forget(e);
			e = NULL;
		}
		/* there was no memory for another, or it is in the one that it had before */
		if (e)
			e->turn = 0;
		if (head && !e && packet_insert(head, id, bpf_ktime_get_boot_ns()))
			log_lineage(KP_LIN_REALLOC, id, id);
		return id;
	}
	if (!ret || ret >= (u64)-4095)
		return id;
	if (roles & KP_ROLE_ALLOC) {
		e = packet_find(kread_ptr((struct sk_buff *)ret, head));
		if (e)
			packet_forget(e);
		return id;
	}
	if (roles & KP_ROLE_RET)
		return returned_packet(skb_at(ret));
	if (id && roles & KP_ROLE_CLONE) {
		log_lineage(KP_LIN_CLONE, id, id);
	} else if (id) {
		struct born_walk w = { .at = ret, .parent = id, .now = bpf_ktime_get_boot_ns() };

		w.kind = roles & KP_ROLE_COPY ? KP_LIN_COPY : roles & KP_ROLE_SEGMENT ? KP_LIN_SEGMENT : KP_LIN_FRAGMENT;
		bpf_loop(LIST_MAX, born_step, &w, 0);
	}
	return id;
}

/* The record of a whole call, or with KP_F_ENTRY of its entry. `arg`: the skb, 0 where that is not known. `flags`: KP_F_*. */
static __always_inline void log_call(u32 func, u64 packed, u64 id, u64 arg, u64 flags, u64 now)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	u64 dur, known, pid_tgid;
	struct kp_call *r;
	u32 pid;
	u8 ctx;

	if (!ctl)
		return;
	ctx = current_context();
	pid_tgid = current_pid_tgid();
	if (own_doing(ctx, pid_tgid))
		return;
	pid = current_pid(ctl, pid_tgid, ctx);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return;
	dur = (now - packed) & TIME_MASK;
	known = flags & KP_F_ENTRY ? 0 : dur;
	call_record(r, now - dur, known | (u64)(u16)(arg >> 6) << 48, id | (u64)ctx << 32 | flags << 40);
	ring_commit(&r->h, KP_CALL, sizeof(*r), func, pid);
}

/* What the record of a call of a special function has beside its times; `arg` becomes 0 where it is not the packet's. */
static __always_inline u64 special_flags(u64 cookie, u64 packed, u64 *arg)
{
	u32 roles = KP_COOKIE_ROLES(cookie);
	u64 flags = (roles & KP_ROLE_LIST ? KP_F_LIST : 0) | (roles & KP_ROLE_RET ? KP_F_RETURNED : 0);

	if (KP_COOKIE_DEREF(cookie) || flags)
		*arg = 0;
	if (roles & KP_ROLE_FREE && packed & 1)
		flags |= KP_F_ENDS;
	return flags;
}

/* `arg` is what the cookie names, `ret` the return value, `now` of time_of_call(). */
__noinline int special_return(u64 cookie, u64 packed, u64 arg, u64 ret, u64 now)
{
	u32 func = KP_COOKIE_FUNC(cookie), roles = KP_COOKIE_ROLES(cookie);
	u64 id = packed >> TIME_BITS, flags;
	struct kp_ring_ctl *ctl;

	if (roles & KP_ROLES_AT_RETURN) {
		ctl = ring_ctl();
		if (!ctl || (KP_COOKIE_DEREF(cookie) && bpf_probe_read_kernel(&arg, sizeof(arg), (void *)(arg + KP_COOKIE_OFF(cookie)))))
			return 0;
		id = roles_at_return(ctl, roles, id ? unpack_packet(packed) : 0, arg, ret) & 0xffffff;
	}
	if (!id || now == NOT_LOGGED || (packed & TIME_MASK) == NOT_LOGGED)
		return 0;
	flags = special_flags(cookie, packed, &arg);
	log_call(func, packed, id, arg, flags, now);
	return 0;
}

/* Return. Without a role a call is known to be wanted: its entry would have kept nothing else. */
static __always_inline void call_return(u64 cookie, u64 packed, u64 arg, u64 ret)
{
	if (cookie & KP_COOKIE_SPECIAL)
		special_return(cookie, packed, arg, ret, time_of_call(KP_COOKIE_FUNC(cookie)));
	else
		log_call(KP_COOKIE_FUNC(cookie), packed, packed >> TIME_BITS, arg, 0, bpf_ktime_get_boot_ns());
}

#endif
