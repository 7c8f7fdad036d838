/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What user space sets before the program is loaded (the verifier then drops what is off), and the maps. */
#ifndef KPAT_CONFIG_H
#define KPAT_CONFIG_H

#include "kernel.h"
#include "wire.h"

/* Ring bytes per CPU, a power of two, less eight: what is exchanged at such a place is aligned, which the verifier asks for where a record is committed so (arm64). */
const volatile u64 ring_mask = (1 << 20) - 8;
const volatile u32 bucket_mask = 1023;
const volatile u32 has_filter = 0;
/* The filter asks for nothing but addresses, protocol and ports: a socket decides as well as a header. */
const volatile u32 socket_decides = 0;
const volatile u32 netns_count = 0;
const volatile u32 netns_ids[KP_MAX_IDS] = {};
const volatile u32 ifindex_count = 0;
const volatile u32 ifindex_ids[KP_MAX_IDS] = {};
/* No probe sees a header buffer being freed or replaced: know packets by their headers as well. */
const volatile u32 guess_reuse = 0;
/* A driver's return is recorded also where the packet was received at the other end of a virtual device by then. */
const volatile u32 every_return = 0;
/* The recorder's own process, if it reads packets (its capture): what it does as a task is not traffic. 0: it reads none. */
const volatile u32 own_tgid = 0;

/* A function that receives 802.11 frames is probed. */
const volatile u32 air_watch = 0;

/* The tracepoint tcp_retransmit_skb is passed, too, where sending failed, and its third argument is the error. */
const volatile u32 retransmit_has_error = 0;

/*
 * Errors of include/uapi/asm-generic/errno*.h with which __tcp_retransmit_skb (net/ipv4/tcp_output.c) gives up before there is a segment: it still lies in
 * a queue of this host (EBUSY), the window is shut (EAGAIN), no memory, nothing to send (EINVAL), no route. What a firewall or a queue drops was sent.
 */
static __always_inline bool nothing_sent(u64 *ctx)
{
	s32 error = retransmit_has_error ? (s32)ctx[2] : 0;

	return error == -16 || error == -11 || error == -12 || error == -22 || error == -113;
}

/* A card stamps what it receives. */
const volatile u32 stamp_watch = 0;

/* consume_skb says where it was called; the code from which a CPU frees what others have read (those with bytes). */
const volatile u32 consume_has_location = 0;
const volatile u64 flush_from_0 = 0, flush_bytes_0 = 0;
const volatile u64 flush_from_1 = 0, flush_bytes_1 = 0;
const volatile u64 flush_from_2 = 0, flush_bytes_2 = 0;

/*
 * Attach cookies of programs that are loaded once for each function: a constant to the verifier, which then looks at what
 * that function needs and no more. User space moves each copy's address on to its own entry.
 */
const volatile u64 clone_cookies[KP_MAX_CLONES] = {};

/*
 * First in a function that is only called where one of these is set. A verifier before 6.8 walks through each function of a program, called or not, and
 * sees here at once that it is nothing.
 */
#define ONLY_WHERE(constant)      \
	do {                      \
		if (!(constant))  \
			return 0; \
	} while (0)

/* Switched while running: 0 off, else KP_MODE_*. Function ids of tracepoints are in the same space. */
u8 func_mode[KP_MAX_FUNCS] SEC(".data.modes");

/* Events have the last ids before the points, so that they too can be switched. */
#define EVENT_MODE(n) (func_mode[KP_MAX_FUNCS - 65 - (n)])

/* Bytes that may wait in a ring; set before loading, may be changed while running up to what the ring has. */
u64 ring_limit SEC(".data.limit") = (1 << 20) - KP_RING_TAIL;

/* Next packet id; 32 bits are in the record, user space extends them. Low 24 bits are never all zero. */
u64 next_packet SEC(".data.ids") = 1;

/* One value per CPU: control page, ring, tail page. Sizes are set at load. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, KP_RING_DATA + (1 << 20) + KP_RING_TAIL);
} rings SEC(".maps");

#ifndef KPAT_APP
struct packet_entry {
	u64 head; /* key: address of the header buffer; 0 free */
	u64 id; /* 0 while being filled in */
	u64 sig; /* network and transport headers at the last footprint */
	u64 dev; /* skb->dev as last seen, whatever it was */
	u64 link; /* link header at the last footprint, 0: none */
	u64 ident; /* what stays the same for a packet's life (see guess_reuse) */
	u64 seen; /* boot time of the last probe, for eviction */
	u64 turn; /* with guess_reuse: where it is on its way (again.bpf.h) */
};

#define WAYS 4
struct packet_bucket {
	struct packet_entry e[WAYS];
};

/* Addressed directly, without a look-up; user space sets the length. */
struct packet_bucket packet_buckets[1] SEC(".data.packets");

/* Buffers of packets that found no place, each counted once: until it is freed it is the same packet. */
struct homeless {
	u64 head;
	u64 since;
};
#define HOMELESS 4096
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOMELESS);
	__type(key, u32);
	__type(value, struct homeless);
} homeless SEC(".maps");

/* With guess_reuse: which packet had these headers last, so that it is known again in another buffer. */
struct ident_entry {
	u64 ident;
	u64 id;
	u64 seen; /* when, and what else SEEN_* of again.bpf.h say */
	u64 turn; /* of that packet */
};
#define IDENT_WAYS 2
#define IDENT_SETS 32768
struct ident_set {
	struct ident_entry way[IDENT_WAYS];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, IDENT_SETS);
	__type(key, u32);
	__type(value, struct ident_set);
} idents SEC(".maps");

/* By the header buffer of a tunnel's packet that waits in a queue: the slot of what is in it. */
struct inside {
	u64 head; /* 0: none */
	struct ident_entry slot;
};
#define INSIDES 4096
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, INSIDES);
	__type(key, u32);
	__type(value, struct inside);
} insides SEC(".maps");

/* Headers of received 802.11 frames that are not packets of the log yet, by the address of the buffer. */
struct air_entry {
	u64 head;
	u64 seen;
	u32 len;
	u8 header[36]; /* with a fourth address, QoS and HT control */
};
#define AIRS 1024
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, AIRS);
	__type(key, u32);
	__type(value, struct air_entry);
} airs SEC(".maps");

/* Open calls of mechanisms without a session cookie, keyed by an address that entry and return share. */
struct open_call {
	u64 key; /* 0 free */
	u64 cookie;
	u64 since;
};

#define OPEN_CALLS 4096
#define OPEN_WAYS 4
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, OPEN_CALLS / OPEN_WAYS);
	__type(key, u32);
	__type(value, struct open_call[OPEN_WAYS]);
} open_calls SEC(".maps");

/* Recorded calls that a flow of control is in: tasks, then soft and hard interrupts and NMIs of each CPU. User space sets the length. */
#define WITHIN_TASKS 4096
#define WITHIN_DEPTH 32
#define WITHIN_NS 1000000000ULL /* so old, a task that is in calls of packets keeps nobody from its place */
struct within {
	u64 owner;
	u64 depth;
	struct {
		u64 packed;
		u64 stack;
	} call[WITHIN_DEPTH];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct within);
} withins SEC(".maps");

#endif

/* One bit per thread id: its name is in the log. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, u64);
} named_pids SEC(".maps");

#ifndef KPAT_APP
/* What headers say; `part`: which datagram a fragment belongs to, 0: it is whole. Ports are as they are loaded, 0 where there are none. */
struct flow {
	u64 from, to, part;
	u32 proto, ports;
	u32 first; /* of a datagram in parts, the one with the ports */
	u32 inside; /* offset of the packet that an ICMP error is about, 0: it is none */
};

/* Where the walk of a list of skbs is (lists.bpf.h). */
struct list_walk {
	u64 at;
	u64 end; /* the list head, for closed rings */
	u64 first; /* packet id */
	u64 now;
	u32 func;
};

/* Header bytes while the filter looks at them, and what there is no stack for: one per CPU and context, so that an interrupt spoils nothing. */
struct scratch {
	u8 bytes[256];
	u64 sender_chosen; /* theirs.bpf.h */
	struct flow flow, about;
	struct list_walk walk;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 5);
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

#endif

#endif
