/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Records of applications, as they lie in the ring: rules as in wire.h. */
#ifndef KPAT_APPLICATION_H
#define KPAT_APPLICATION_H

#include "wire.h"

/* Where bytes cross from one layer into the next. Same numbers as model::Crossing. */
enum kp_crossing_kind {
	KP_X_ASK = 1, /* an application calls: bytes that it asks for */
	KP_X_SEND = 2, /* application -> socket, when the call is over: bytes taken, negative: error */
	KP_X_TO_TRANSPORT = 3,
	KP_X_TO_NETWORK = 4,
	KP_X_TO_DEVICE = 5, /* into the device's queue */
	KP_X_TO_DRIVER = 6, /* out of it */
	KP_X_FROM_DEVICE = 7,
	KP_X_FROM_NETWORK = 8,
	KP_X_TO_SOCKET = 9,
	KP_X_RECV = 10, /* socket -> application, when the call is over: bytes given, negative: error */
	KP_X_RETRANSMIT = 11,
	KP_X_ACKED = 12, /* the other side has them */
};

/*
 * One crossing, 24 bytes: the paper's size, with sequence number. `what`: crossing in bits 0-3, context in 4-6. Of the
 * time 48 bits are here, user space knows the rest. `size`: bytes of application data; where a packet crosses, its data in
 * the low 20 bits and its segments above (none at from-device: see taken_already()). `seq`: first byte in the stream, or which packet (the low bits of its address).
 */
struct kp_crossing {
	u8 kind;
	u8 slots;
	u8 what;
	u8 pid_hi;
	u32 sock;
	u64 ts_pid; /* time in the low 48 bits, low half of the thread id above */
	s32 size;
	u32 seq;
};

/* A socket as first seen, and again when it is known better: an event's `sock` is the low half of its cookie. */
#define KP_SOCKET_KERNELS 0x80u

struct kp_socket {
	u8 kind;
	u8 slots;
	u8 what; /* bit 0: addresses are IPv6; bits 1-7: its pending error, as a number of errno(3) */
	u8 state; /* with KP_SOCKET_KERNELS: it is the kernel's own */
	u32 sock;
	u64 ts;
	u64 cookie;
	u64 cgroup;
	u32 slot; /* where in the table of sockets */
	u32 netns;
	u16 family;
	u16 protocol;
	u16 port; /* own */
	u16 peer_port;
	u8 addr[16];
	u8 peer[16];
	char congestion[16];
	u32 pid; /* who was running, valid in a task */
	u32 uid; /* of who opened it */
	u64 above; /* MPTCP: cookie of the socket whose packets this one has */
};

/* TCP's state at a moment, and the header of the segment that was at hand. */
struct kp_tcp {
	u8 kind;
	u8 slots;
	u8 what; /* the crossing it goes with */
	u8 ca_state;
	u32 sock;
	u64 ts;
	u16 ip_id;
	u16 ip_frag;
	u8 tos;
	u8 ttl;
	u8 version;
	u8 tcp_flags;
	u8 state;
	u8 limit; /* bits 0-1 chrono type, bit 2 limited by cwnd, bits 3-4 enum sk_pacing and one; 0: not given; bits 5-6 1, 2: the application waits for room; bit 7 it wants more to come */
	u16 mss;
	u32 snd_cwnd;
	u32 snd_ssthresh;
	u32 snd_wnd;
	u32 rcv_wnd;
	u32 srtt_us8; /* eight times the smoothed round trip */
	u32 rttvar_us4; /* four times its mean deviation, as TCP_INFO gives it; the one behind the timeout has a floor */
	u32 rto_jiffies;
	u32 in_flight;
	u32 retrans_out;
	u32 lost_out;
	u32 sacked_out;
	u32 total_retrans;
	u32 write_seq;
	u32 snd_una;
	u32 snd_nxt;
	u32 copied_seq;
	u32 rcv_nxt;
	u32 app_limited;
	u32 delivered;
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 wmem_queued;
	u32 rmem_alloc;
	u64 pacing_rate; /* bytes a second */
};

/* What a thread did between two of its calls on a socket, from when the one was over, or began to send, until the other did. */
struct kp_thread_time {
	u8 kind;
	u8 slots;
	u16 pad;
	u32 sock;
	u64 ts;
	u64 since;
	u64 ran; /* as of the last switch or tick */
	u64 waited; /* for a CPU */
	u32 thread;
	u32 slept; /* so often */
};

/* Crossings that were lost here, between the record before and the one behind, on this CPU. */
struct kp_gap {
	u8 kind;
	u8 slots;
	u16 pad;
	u32 lost;
	u64 since;
	u64 until;
};

_Static_assert(sizeof(struct kp_crossing) == 24, "crossing: the paper's size");
_Static_assert(sizeof(struct kp_socket) == 112, "socket");
_Static_assert(sizeof(struct kp_tcp) == 128, "tcp");
_Static_assert(sizeof(struct kp_gap) == 24, "gap");
_Static_assert(sizeof(struct kp_thread_time) == 48, "thread time");
#endif
