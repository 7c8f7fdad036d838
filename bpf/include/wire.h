/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The one layout of what the kernel side writes and user space reads.
 *
 * Rust's side (crates/probe/src/wire.rs) is generated from the BTF of the compiled object and compared in a test;
 * nobody writes it by hand. Rules: fixed width, explicit padding, no bit fields, and the word that says "this
 * record is whole" (kind, slots, func, pid) is one aligned 8-byte store, made last.
 *
 * Ring: one map value per CPU: struct kp_ring_ctl on the first page, then ring bytes, then one page into which the
 * last record may run over, so that no record is ever split. Positions count bytes and only grow. The kernel
 * reserves with a compare-and-swap on `prod` (an interrupt may cut in at any instruction), user space clears what
 * it has read and then moves `cons`. A full ring loses the newest record, and counts it.
 */
#ifndef KPAT_WIRE_H
#define KPAT_WIRE_H

#define KP_SLOT 32u
#define KP_RING_DATA 4096u
#define KP_RING_TAIL 4096u
#define KP_MAX_FUNCS 8192u
#define KP_MAX_CLONES 512u
#define KP_HEADER_BYTES 112u
#define KP_MAX_IDS 16u
#define KP_COMM 16u
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
	KP_LOSS_MAX = 16,
};

/* Same numbers as model::EventKind. */
enum kp_event_kind {
	KP_EV_DROP = 1,
	KP_EV_RETRANSMIT = 2,
	KP_EV_TCP_STATE = 3,
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

/* Same bits as model::Call. */
#define KP_F_LIST 1u
#define KP_F_RETURNED 4u

/* Same bits as model::Pause. */
#define KP_PAUSE_PREEMPTED 1u /* it could have gone on */
#define KP_PAUSE_MORE 2u /* pauses right before this one are not in the log */

/* What a function does to the identity of packets, bits of the attach cookie from 32 on. */
#define KP_ROLE_FREE 1u /* skb_release_data: the header buffer may go */
#define KP_ROLE_ALLOC 2u /* returns a fresh skb: what is known of its buffer is stale */
#define KP_ROLE_EXPAND 4u /* pskb_expand_head: same packet, new buffer */
#define KP_ROLE_CLONE 8u
#define KP_ROLE_COPY 16u
#define KP_ROLE_SEGMENT 32u /* returns a list of segments */
#define KP_ROLE_GRO 64u /* skb_gro_receive(held, merged) */
#define KP_ROLE_FRAGMENT 128u /* returns one fragment */
#define KP_ROLE_LIST 256u /* argument is a list_head of skbs */
#define KP_ROLE_RET 512u /* the packet is the return value only */
#define KP_ROLE_LINK 1024u /* the link header is complete: hands the packet to a driver */

/*
 * Attach cookie: bits 0-13 function, 14-16 argument number from 0, 17 one pointer to follow, 18-29 its offset,
 * 32-47 roles, 48 the packet is as the probe before saw it.
 */
#define KP_COOKIE_FUNC(c) ((u32)(c) & (KP_MAX_FUNCS - 1))
#define KP_COOKIE_ARG(c) (((u32)(c) >> 14) & 7)
#define KP_COOKIE_DEREF(c) (((u32)(c) >> 17) & 1)
#define KP_COOKIE_OFF(c) (((u32)(c) >> 18) & 0xfff)
#define KP_COOKIE_SETTLED (1ULL << 48)
#define KP_COOKIE_SPECIAL (0xffffULL << 32 | 1 << 17)
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
	u32 pad;
	char comm[KP_COMM];
	u64 pad2[3];
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
	struct kp_head h; /* ts: running again; func: KP_PAUSE_* */
	u64 dur;
	u32 wait; /* from being woken to running again; 0: it was preempted, or that is not known */
	u16 cpu_out;
	u16 cpu_in;
};

struct kp_ring_ctl {
	u64 prod;
	u64 pad0[7];
	u64 cons; /* user space writes this line */
	u64 pad1[7];
	u64 lost[KP_LOSS_MAX];
	u32 last_pid[2]; /* of records made as a task; of those made in an interrupt */
};

_Static_assert(sizeof(struct kp_head) == 16, "head");
_Static_assert(sizeof(struct kp_call) == 32, "call: one slot");
_Static_assert(sizeof(struct kp_point) == 32, "point: one slot");
_Static_assert(sizeof(struct kp_member) == 32, "member: one slot");
_Static_assert(sizeof(struct kp_lineage) == 32, "lineage: one slot");
_Static_assert(sizeof(struct kp_process) == 64, "process: two slots");
_Static_assert(sizeof(struct kp_event) == 64, "event: two slots");
_Static_assert(sizeof(struct kp_footprint) == 160, "footprint: five slots");
_Static_assert(sizeof(struct kp_place) == 32, "place: one slot");
_Static_assert(sizeof(struct kp_pause) == 32, "pause: one slot");
_Static_assert(sizeof(struct kp_ring_ctl) <= KP_RING_DATA, "control page");

#endif
