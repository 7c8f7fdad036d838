/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one layout of what the kernel side writes and user space reads.
 *
 * Rust's side (crates/probe/src/wire.rs) is generated from the BTF of the compiled object and compared in a test;
 * nobody writes it by hand. Rules: fixed width, explicit padding, no bit fields, and the word that says "this
 * record is whole" (kind, slots, func, pid) is one aligned 8-byte store, made last: a release, which
 * user space loads with acquire.
 *
 * Ring: one map value per CPU: struct kp_ring_ctl on the first page, then ring bytes, then one page into which the
 * last record may run over, so that no record is ever split. Positions count bytes and only grow. The kernel
 * reserves with a compare-and-swap on `prod` (an interrupt may cut in at any instruction), user space clears what
 * it has read and then moves `cons`. A full ring loses the newest record, and counts it.
 */
#ifndef KPAT_WIRE_H
#define KPAT_WIRE_H

/* Records are whole slots; user space clears the first word of each. Events of applications are shorter than calls. */
#ifdef KPAT_APP
#define KP_SLOT 8u
#else
#define KP_SLOT 32u
#endif
#define KP_APP_SLOT 8u
#define KP_RING_DATA 4096u
#define KP_RING_TAIL 4096u
#define KP_MAX_FUNCS 8192u
#define KP_MAX_CLONES 512u
#define KP_HEADER_BYTES 112u
#define KP_MAX_IDS 16u
#define KP_COMM 16u
#define KP_MESSAGE_BYTES 128u
#define KP_VLAN_PRESENT 0x1000u /* the CFI bit, as old kernels used it */

enum kp_kind {
	KP_NONE = 0,
	KP_CALL = 1,
	KP_POINT = 2,
	KP_MEMBER = 3,
	KP_FOOTPRINT = 4,
	KP_LINEAGE = 5,
	KP_EVENT = 6,
	KP_PROCESS = 7,
	KP_PLACE = 8,
	KP_PAUSE = 9,
	KP_CROSSING = 10,
	KP_SOCKET = 11,
	KP_TCP = 12,
	KP_GAP = 13,
	KP_SAMPLE = 14,
	KP_STACK = 15,
	KP_PROGRAM = 16,
	KP_RADIO = 17,
	KP_CARRIER = 18,
	KP_FRAME = 19,
	KP_PEER = 20,
	KP_THREAD_TIME = 21,
};

/* Same numbers as model::LossCause. */
enum kp_loss {
	KP_LOSS_RING_FULL = 1,
	KP_LOSS_CALL_TABLE = 2,
	KP_LOSS_PACKET_TABLE = 3,
	KP_LOSS_NO_RETURN = 5,
	KP_LOSS_LIST_CUT = 6,
	KP_LOSS_READ_FAULT = 10,
	KP_LOSS_TASK_TABLE = 12,
	KP_LOSS_NO_DEVICE = 15,
	KP_LOSS_MAX = 16,
};

/* Same numbers as model::EventKind, but for those of polls and stamps, which the log has as records of their own. */
enum kp_event_kind {
	KP_EV_DROP = 1, /* a: reason | whose copy it was (KP_OWNER_*) << 32; b: address that dropped it */
	KP_EV_RETRANSMIT = 2,
	KP_EV_TCP_STATE = 3,
	KP_EV_POLL = 6, /* a: nanoseconds since the poll began, and 1; b: since that had been asked for; 0: not known */
	KP_EV_POLLED = 7, /* the poll of `packet` is over; a: packets the driver took | its budget << 32; b: softirq's number on this CPU */
	KP_EV_STAMP = 8, /* the card's own stamp of `packet`; a: nanoseconds of its clock; b: ifindex */
};

/* Same numbers as model::LineageKind. */
enum kp_lineage_kind {
	KP_LIN_CLONE = 1,
	KP_LIN_COPY = 2,
	KP_LIN_SEGMENT = 3,
	KP_LIN_GRO = 4,
	KP_LIN_FRAGMENT = 5,
	KP_LIN_REALLOC = 7,
};

/* What a task slept for: of a pause, `func` from KP_PAUSE_SLEEP_SHIFT on. Same numbers as model::Sleep. */
enum kp_sleep {
	KP_SLEEP_STOPPED = 1,
	KP_SLEEP_FROZEN = 2,
	KP_SLEEP_UNINTERRUPTIBLE = 3,
	KP_SLEEP_LOCK = 4,
	KP_SLEEP_TIMER = 5,
	KP_SLEEP_CHILD = 6,
	KP_SLEEP_DESCRIPTORS = 7,
	KP_SLEEP_DATA = 8,
	KP_SLEEP_ROOM = 9,
	KP_SLEEP_OTHER = 10,
};

#define KP_F_PUT_OFF 1u /* of a point; the others: same bits as model::Call */
#define KP_F_LIST 1u
#define KP_F_NO_RETURN 2u
#define KP_F_RETURNED 4u
#define KP_F_ENDS 8u
#define KP_F_WITHIN 16u /* the function had no packet: it was called within a call of this one. skb_tag: what it returned */
#define KP_F_ENTRY 32u /* with KP_F_NO_RETURN: only entries of the function are recorded */

/* Same bits as model::Pause. */
#define KP_PAUSE_PREEMPTED 1u /* it could have gone on */
#define KP_PAUSE_MORE 2u /* pauses right before this one are not in the log */
#define KP_PAUSE_SLEEP_SHIFT 8

/* What a function does to the identity of packets, bits of the attach cookie from 32 on. */
#define KP_ROLE_FREE 1u /* skb_release_data: the header buffer may go */
#define KP_ROLE_ALLOC 2u /* returns a fresh skb: what is known of its buffer is stale */
#define KP_ROLE_EXPAND 4u /* pskb_expand_head, or behind a pointer skb_pp_cow_data: same packet, new buffer */
#define KP_ROLE_CLONE 8u
#define KP_ROLE_COPY 16u
#define KP_ROLE_SEGMENT 32u /* returns a list of segments */
#define KP_ROLE_GRO 64u /* skb_gro_receive(held, merged) */
#define KP_ROLE_FRAGMENT 128u /* returns one fragment */
#define KP_ROLE_LIST 256u /* argument is a list_head of skbs */
#define KP_ROLE_RET 512u /* the packet is the return value only */
#define KP_ROLE_LINK 1024u /* the link header is complete: hands the packet to a driver */
#define KP_ROLE_MOVED 4096u /* called with a packet whose buffer has just been replaced, and its headers' places not yet */
#define KP_ROLE_FLOW 8192u /* called before the transport header is written, with the flow that says its ports */
#define KP_ROLE_WITHIN 16384u /* no packet of its own: recorded within calls of packets (within.bpf.h) */
#define KP_ROLE_READ 32768u /* reads it for user space: a copy beside the packet is none of it (again.bpf.h) */
#define KP_ROLE_AIR 2048u /* mac80211 gets a frame from a driver: its 802.11 header is not kept for long */

/* Attach cookie: bits 0-12 function, 13 more is done than to find the packet behind an argument, 14-16 argument number from 0, 17 one pointer to follow, 18-29 its
 * offset, 30 the packet is as the probe before saw it, 32-47 roles. What every run asks is below bit 31: one instruction tests it. */
#define KP_COOKIE_FUNC(c) ((u32)(c) & (KP_MAX_FUNCS - 1))
#define KP_COOKIE_ARG(c) (((u32)(c) >> 14) & 7)
#define KP_COOKIE_DEREF(c) (((u32)(c) >> 17) & 1)
#define KP_COOKIE_OFF(c) (((u32)(c) >> 18) & 0xfff)
#define KP_COOKIE_SETTLED (1ULL << 30)
#define KP_COOKIE_SPECIAL (1ULL << 13)
#define KP_COOKIE_ROLES(c) ((u32)((c) >> 32) & 0xffff)

/* func_mode[]: 0 off, else bits */
#define KP_MODE_TRACK 1u /* keep the identity of packets right */
#define KP_MODE_LOG 2u /* write calls */

struct kp_head {
	u8 kind;
	u8 slots;
	u16 func;
	u32 pid;
	u64 ts;
};

/* Written as four words, see call_record(). */
struct kp_call {
	struct kp_head h; /* ts: entry */
	u32 dur_lo;
	u16 dur_hi;
	u16 skb_tag;
	u32 packet; /* the low 24 bits: user space knows which packet is the newest */
	u8 ctx;
	u8 flags;
	u16 pad;
};

struct kp_point {
	struct kp_head h;
	u32 len;
	u32 packet;
	u16 skb_tag;
	u8 ctx;
	u8 flags;
	u32 pad;
};

struct kp_member {
	struct kp_head h; /* ts: entry of the call */
	u32 packet;
	u32 pad[3];
};

struct kp_lineage {
	struct kp_head h; /* func: kp_lineage_kind */
	u32 parent;
	u32 child;
	u64 pad;
};

struct kp_process {
	struct kp_head h;
	u32 tgid;
	u32 uid; /* this and what follows the name: not of what programs say */
	char comm[KP_COMM];
	u64 cgroup; /* inode in cgroup2 */
	u64 started; /* boot time of its process's start */
	u64 number; /* of a process that has just begun with another's id: see KP_ID_BITS; else 0 */
};

struct kp_event {
	struct kp_head h; /* func: kp_event_kind */
	u32 packet;
	u32 netns;
	u64 a;
	u64 b;
	u8 ctx;
	u8 pad[7];
	u64 pad2[2];
};

struct kp_footprint {
	struct kp_head h;
	u32 packet;
	u32 ifindex;
	u32 netns;
	u32 len;
	u16 gso_size;
	u16 gso_segs;
	u16 protocol;
	u16 link_type;
	u16 skb_tag;
	u8 start_layer;
	u8 ip_proto;
	u8 header_len;
	u8 ctx;
	u16 vlan_tci; /* tag kept beside the data, with KP_VLAN_PRESENT */
	u8 header[KP_HEADER_BYTES];
};

struct kp_place {
	struct kp_head h;
	u32 packet;
	u32 ifindex;
	u32 netns;
	u16 link_type;
	u16 skb_tag;
};

/* A task was off the CPU. */
struct kp_pause {
	struct kp_head h; /* ts: running again; func: KP_PAUSE_*, and enum kp_sleep */
	u64 dur;
	u32 wait; /* from being woken to running again; 0: it was preempted, or that is not known */
	u16 cpu_out;
	u16 cpu_in;
};

/*
 * The kernel is about to announce a change over rtnetlink (announce.bpf.c). Goes through a BPF ring buffer of its own, not through
 * the rings above.
 */
struct kp_announcement {
	u64 ts;
	u32 netns;
	u32 len; /* of the message */
	u32 cpu;
	u32 pid;
	u32 tgid;
	u8 ctx;
	u8 pad[3];
	char comm[KP_COMM];
	u8 message[KP_MESSAGE_BYTES]; /* its first bytes */
};

struct kp_ring_ctl {
	u64 prod;
	u64 unlogged; /* records lost since the last one that fitted */
	u64 unlogged_since;
	u64 pad0[5];
	u64 cons; /* user space writes this line */
	u64 pad1[7];
	u64 lost[KP_LOSS_MAX];
	u32 last_pid[2]; /* of records made as a task; of those made in an interrupt */
	u64 poll; /* see polls.bpf.h, these three */
	u64 poll_wait;
	u64 raised;
	u64 refused; /* probe hits of packets that were not asked for */
	u64 moving[4]; /* by context: the skb whose buffer is being replaced, 0: none; without functions, the first: freed last since one was queued to a device */
	u64 moving_id[4];
	u64 no_match; /* addresses and ports of the last socket whose packets the filter leaves out */
	u64 polled; /* the first packet of this poll that is in the log, 0: none yet */
	u64 rounds, sends; /* softirqs of NET_RX, of NET_TX */
	u64 arrived; /* of them the last that brought something */
	u64 moment[4]; /* by context: when the point that runs there read the clock, 0: not yet */
};

_Static_assert(sizeof(struct kp_head) == 16, "head");
_Static_assert(sizeof(struct kp_call) == 32, "call: one slot");
_Static_assert(sizeof(struct kp_point) == 32, "point: one slot");
_Static_assert(sizeof(struct kp_member) == 32, "member: one slot");
_Static_assert(sizeof(struct kp_lineage) == 32, "lineage: one slot");
_Static_assert(sizeof(struct kp_process) == 64, "process: two slots");
_Static_assert(sizeof(struct kp_event) == 64, "event: two slots");
_Static_assert(sizeof(struct kp_footprint) == 160, "footprint: five slots");
_Static_assert(sizeof(struct kp_place) == 32 && sizeof(struct kp_pause) == 32, "place, pause: one slot");
_Static_assert(sizeof(struct kp_announcement) == 176, "announcement");
_Static_assert(sizeof(struct kp_ring_ctl) <= KP_RING_DATA, "control page");
#endif
