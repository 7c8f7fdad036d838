/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a server does after it took a client's message is done for the client. By unix sockets the sender's socket is known for each message; by connections
 * between two sockets of this host, and by datagrams, it is whoever wrote last, and by pipes (pipes.bpf.h) and message queues who wrote what was taken.
 *
 * A message is taken before its sender's call is over, by a reader on another CPU. So who writes is known before: by connections when the first packet with data
 * is sent within the call, by unix sockets and pipes when the call begins (pipes.bpf.h). What an acknowledgement or a timer sends was written by a call that
 * is over. What io_uring sends by a unix socket is known when the message is in the reader's queue: a reader that looks there before it is woken may take a
 * first message of which the sender is not known yet.
 *
 * Of two processes the one that asks is the client: who connected, as far as ports or a unix socket's name say so, else who sent the first message that is seen.
 * A server is who answers the client, which is known later than what it does after the first message: that is kept apart (KP_FOR_ASKER), and whose it is
 * decided when the log is read. So what goes one way is no request: pipelines, the output of programs that a shell reads, messages to a logger.
 *
 * What nobody on this host wrote is another host's (peers.bpf.h). Not followed: what io_uring writes to pipes and takes from them, and datagrams that it takes
 * from sockets without a peer.
 */
#ifndef KPAT_MESSAGES_H
#define KPAT_MESSAGES_H

#include "makers.bpf.h"
#include "peers.bpf.h"

#define AF_UNIX 1

/*
 * Of two processes that send each other messages: which is the client, and whether it took an answer. Where the ends say it, each may be the other's client, by ends of its own: services that ask each other.
 */
#define ANSWERED (1ULL << 32)
TALK_OF(dialogs, u64);

/* Ports on which somebody listens, or did since recording began: those from before are user space's (crates/probe/src/work/listening.rs). */
OWNERS_OF(listening, 4096);

#define FIRST_EPHEMERAL 32768

static __always_inline u64 dialog_key(u64 me, u64 other, u32 role)
{
	if (role == NOT_KNOWN)
		return me < other ? me << 32 | other : other << 32 | me;
	return mixed(role == IS_CLIENT ? me << 32 | other : other << 32 | me, 1);
}

/*
 * A task took a message, in this role. Not static, as others here that are called in several places: the verifier walks through such a function once, and 7.2's
 * gives up else. True: it is an answer (goes_on()).
 */
__noinline int took_of(u64 sender, u32 role)
{
	struct account *a = this_account();
	u64 me, other = sender >> 32, pair, first, *dialog, as = (u32)sender;
	struct child *c;
	u32 purpose;

	if (!a || !other)
		return 0;
	rests_until_now(a);
	me = own_number(a);
	if (other == me || (a->child && is_within_work(a, other)))
		return 0;
	c = state_is(bpf_get_current_pid_tgid() >> 32, HANDS) ? took_of_child(a, other) : NULL;
	if (c) {
		as = is_waited_for(c) ? c->client : 0;
		purpose = served_as(c->purpose);
		goto serves;
	}
	pair = dialog_key(me, other, role);
	dialog = bpf_map_lookup_elem(&dialogs, &pair);
	if (!dialog) {
		first = role == IS_CLIENT ? me : other;
		bpf_map_update_elem(&dialogs, &pair, &first, BPF_ANY);
		talk_changes();
		dialog = bpf_map_lookup_elem(&dialogs, &pair);
		if (!dialog)
			return 0;
	}
	if ((u32)*dialog == (u32)me) {
		if (!(*dialog & ANSWERED)) {
			*dialog |= ANSWERED;
			talk_changes();
			add_use(a, other, KP_USE_ANSWER, 0);
		}
		return 1;
	}
	if (a->victim == KP_OTHERS && (as == KP_OTHERS || !(*dialog & ANSWERED))) {
		serve(a, 0, 0);
		return 0;
	}
	purpose = *dialog & ANSWERED ? KP_FOR_CLIENT : KP_FOR_ASKER;
serves:
	if (as)
		serve_client(a, as, purpose, !c);
	return 0;
}

/* A task works for this client, or for another: which one its answers tell. */
__noinline int tells_from_now(struct account *a, u64 client, u32 purpose)
{
	if (!a)
		return 0;
	serve(a, client, purpose);
	return begins_to_tell(a);
}

/*
 * A task took the answer to what was written last on its own end. A client goes on for itself; one that asked for a client of its own goes on for that one, even if it has
 * taken others' messages since. Where it has asked for several at once, its answer tells for which. True: it did ask for one, so the next answer may be for another. `key`: of what was written.
 */
static __always_inline bool goes_on(struct account *a, struct speech *asked, u64 key, u32 is_unix)
{
	u64 client;
	bool several;

	if (!asked || asked->who >> 32 != own_number(a))
		return false;
	several = asked->open & SEVERAL;
	client = asked->client;
	if (asked->open & WAITS) {
		asked->open &= ~WAITS;
		if (a->known.wrote == key) /* and what it writes there next counts again */
			a->known.wrote = a->known.sk = 0;
	}
	if (several) {
		if (!(a->since & TELLS))
			tells_from_now(a, client, asked->client_for);
		client = 0;
	}
	if (a->since & TELLS)
		takes_for(a, client, asked->client_for, client || several ? 0 : key, is_unix, false);
	if (client)
		serve(a, client, asked->client_for);
	return client || several;
}

struct inode___number {
	unsigned long i_ino;
} __core;

struct sock___number {
	struct socket___number {
		struct file___number {
			struct inode___number *f_inode;
		} __attribute__((preserve_access_index)) *file;
	} __attribute__((preserve_access_index)) *sk_socket;
} __core;

/* A unix socket's: its address may have been another's, and few have a cookie. One that its process has closed has none. */
static __always_inline u64 number_of(u64 sk)
{
	return sk ? BPF_CORE_READ((struct sock___number *)sk, sk_socket, file, f_inode, i_ino) : 0;
}

/* A task asks there for this client. */
static __noinline int asks_for(struct account *a, u64 sk, u64 client, u32 purpose)
{
	struct ends e;

	if (kread((struct sock___profile *)sk, __sk_common.skc_family) == AF_UNIX)
		return says_for(a, number_of(sk), ON_UNIX | NOW, client, purpose);
	if (ends_of((void *)sk, &e))
		return says_for(a, as_sender(&e), NOW, client, purpose);
	return a->asks_by ? says_for(a, a->asks_by, NOW, client, purpose) : 0;
}

/* A process has sent to a unix socket: its messages have the socket's address. */
static __always_inline void sent(struct account *a, u64 sk)
{
	u64 number = number_of(sk);

	if (number)
		speaks(a, &senders, number);
}

/* A task has put a message into a unix socket's queue, and its reader is woken next. One that listens has a connection there. */
static __noinline int queued_for(struct account *a, u64 sk)
{
	struct sock___receives *to = (void *)sk;
	struct sk_buff *last;
	u64 from;

	if (!a || BPF_CORE_READ(to, __sk_common.skc_state) == TCP_LISTEN)
		return 0;
	last = BPF_CORE_READ(to, sk_receive_queue.prev);
	if ((u64)last == sk + bpf_core_field_offset(to->sk_receive_queue)) /* it is taken already */
		return 0;
	from = kread_ptr(last, sk);
	if (from)
		sent(a, from);
	return 0;
}

static __always_inline void listens(u64 sk)
{
	u64 port = kread((struct sock___ends *)sk, __sk_common.skc_num);
	u32 by = 1;

	bpf_map_update_elem(&listening, &port, &by, BPF_ANY);
	talk_changes();
}

static __always_inline u32 role_by_numbers(u64 near, u64 far)
{
	if ((near < FIRST_EPHEMERAL) == (far < FIRST_EPHEMERAL))
		return NOT_KNOWN;
	return near < FIRST_EPHEMERAL ? IS_SERVER : IS_CLIENT;
}

/* Somebody may have listened once on what is a client's port now: then the ports' numbers say it. Nobody listens for datagrams. */
static __always_inline u32 role_of(struct ends *e)
{
	u64 near = e->near_port, far = e->far_port;
	bool here, there;

	if (!e->datagrams) {
		here = bpf_map_lookup_elem(&listening, &near);
		there = bpf_map_lookup_elem(&listening, &far);
		if (here != there)
			return here ? IS_SERVER : IS_CLIENT;
	}
	return role_by_numbers(near, far);
}

struct unix_sock___bound {
	struct sock___kind {
		u16 sk_type;
	} __attribute__((preserve_access_index)) sk;
	void *addr;
	struct sock *peer;
} __core;

#define SOCK_STREAM 1

static __always_inline bool has_name(u64 sk)
{
	return sk && BPF_CORE_READ((struct unix_sock___bound *)sk, addr);
}

/* An accepted unix socket has the name that the server listens on. `own`: the socket of who takes what `other` sent; 0: not known. */
static __always_inline u32 role_at_unix(u64 own, u64 other)
{
	bool here = has_name(own), there = has_name(other);

	if (here == there || BPF_CORE_READ((struct unix_sock___bound *)other, sk.sk_type) != SOCK_STREAM)
		return NOT_KNOWN;
	return here ? IS_SERVER : IS_CLIENT;
}

/* A task took a message that this unix socket sent; `own`: by this one, 0: that is not known. */
static __noinline int took_of_unix(struct account *a, u64 from, u64 own)
{
	u64 number = number_of(from);
	struct speech *sender = bpf_map_lookup_elem(&senders, &number);

	if (!a || !sender)
		return 0;
	a->took_at = own;
	if (!took_of(sender->who, role_at_unix(own, from)))
		return 0;
	number = number_of(own);
	return goes_on(a, bpf_map_lookup_elem(&senders, &number), number, true);
}

/* (skb, length) */
PAIR("raw_tp/skb_copy_datagram_iovec", work_skb_copy_datagram_iovec, AT_COPY)
{
	struct account *a = this_account();
	u64 sk;

	if (!at_task(a) || a->mode == KP_WORK_THREAD)
		return 0;
	sk = kread_ptr((struct sk_buff *)ctx[0], sk);
	if (!sk || kread((struct sock___profile *)sk, __sk_common.skc_family) != AF_UNIX)
		return 0;
	return took_of_unix(a, sk, (u64)BPF_CORE_READ((struct unix_sock___bound *)sk, peer));
}

static __always_inline void sent_to_peer(struct account *a, u64 sk)
{
	struct ends e;

	if (ends_of((void *)sk, &e))
		wrote(a, as_sender(&e));
}

static __always_inline void took_of_peer(struct account *a, u64 sk, u64 socket)
{
	struct speech *sender, *own;
	struct ends e;
	u64 key, talk;
	bool answer;

	if (a->mode == KP_WORK_THREAD)
		return;
	rests_until_now(a);
	a->took_at = sk;
	if (took_before(a, socket))
		return;
	talk = talk_now();
	if (ends_of((void *)sk, &e)) {
		key = as_receiver(&e);
		sender = bpf_map_lookup_elem(&writers, &key);
		key = as_sender(&e);
		own = bpf_map_lookup_elem(&writers, &key);
		answer = sender ? took_of(sender->who, role_of(&e)) : took_remote(a, &e, socket, role_of(&e), !own, sk, NULL);
		if (!answer || !goes_on(a, own, key, false))
			remember_taken(a, socket, talk);
	} else if (e.datagrams) {
		a->datagram_net = net_number(kread_ptr((struct sock___ends *)sk, __sk_common.skc_net.net));
		a->datagram_port = e.near_port;
		a->datagram_pid = a->pid;
		a->datagram_socket = socket;
	}
}

/* Does the task send by this call, or by io_uring? A reader may send what others wrote. */
static __always_inline bool writes(void)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	if (!in_system_call(regs))
		return false;
	switch (system_call_of(regs)) {
	case SYS_WRITE:
	case SYS_WRITEV:
	case SYS_SENDTO:
	case SYS_SENDMSG:
	case SYS_SENDMMSG:
	case SYS_SENDFILE:
	case SYS_SPLICE:
	case SYS_IO_URING_SETUP: /* of its polling thread it is the last one */
	case SYS_IO_URING_ENTER:
		return true;
	}
	return false;
}

/* Bytes of a TCP segment behind its headers. */
static __always_inline bool has_data(struct sk_buff *skb, u64 network, u32 *header)
{
	u64 transport = network + ((header[0] & 0xf0) == 0x60 ? 40 : 20);
	u8 words = 0;

	bpf_probe_read_kernel(&words, 1, (void *)transport + 12);
	return kread(skb, len) > transport - kread_ptr(skb, data) + (words >> 4) * 4;
}

/* A task sends a datagram by a socket without a peer: to a client, or it asks for one. */
static __always_inline void datagram_leaves(struct account *a, u32 *header, u64 net)
{
	u32 ports = __builtin_bswap32(header[is_of4(header, IPPROTO_UDP) ? 5 : 10]);
	u64 to = is_of4(header, IPPROTO_UDP) ? header[4] : mixed4(header + 6);

	a->answers_to = datagram_way(net, to, ports & 0xffff, ports >> 16);
	a->answers_as = role_by_numbers(ports >> 16, ports & 0xffff);
	a->asks_by = datagram_way(net, ~to, ports >> 16, ports & 0xffff);
	if (a->answers_to != a->known.took && client_of(a) && !(a->since & TELLS))
		speaks(a, &writers, a->asks_by);
}

/* A task sends a packet of a socket's. */
static __noinline int message_leaves(struct account *a, u64 skb)
{
	struct sk_buff *s = (void *)skb;
	u32 header[HEADER_WORDS] __attribute__((aligned(8)));
	u64 network, net, key, sk;

	if (!a)
		return 0;
	sk = kread_ptr(s, sk);
	if (!sk || !at_task(a) || a->mode == KP_WORK_THREAD || wrote_before(a, sk) || !writes())
		return 0;
	network = kread_ptr(s, head) + kread(s, network_header);
	if (!header_of(header, network))
		return 0;
	net = net_of(header, skb);
	key = by_header(header, net, IPPROTO_TCP);
	if (key && !has_data(s, network, header))
		return 0;
	key = key ?: by_header(header, net, IPPROTO_UDP);
	if (!key)
		return 0;
	wrote(a, key);
	wrote_by(a, sk);
	if (!kread((struct sock___ends *)sk, __sk_common.skc_dport))
		datagram_leaves(a, header, net);
	return 0;
}

#endif
