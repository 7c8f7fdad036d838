/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Tracepoints of radios as user space describes them to the kernel side (wifi.bpf.c), and the records of what passes them. Rust's types are generated
 * as those of wire.h are.
 */
#ifndef KPAT_RADIO_H
#define KPAT_RADIO_H

#include "wire.h"

#define KP_RADIO_COPIES 10u
#define KP_RADIO_DATA 160u
#define KP_RADIO_INTERFACE 32u /* offset of an interface's name */
#define KP_RADIO_IFINDEX 48u
#define KP_RADIO_A 64u /* of the first of its numbers */
#define KP_RADIO_ADDRESS 88u
#define KP_RADIO_TEXT 96u /* offset of what may be longer than a number, the last of the data */
#define KP_RADIO_MOST 64u /* bytes of one copy */
#define KP_MAX_RADIOS 128u
#define KP_FRAME_BYTES 352u

/* A field of the tracepoint's event becomes bytes of the record's data. */
struct kp_radio_copy {
	u16 from; /* offset in the event */
	u8 to; /* offset in the data */
	u8 size; /* bytes at most, 0: none */
	u8 dynamic; /* in the event is where the bytes are, and how many */
	u8 pad[3];
};

struct kp_radio_point {
	u16 id; /* number in the log */
	u16 mode; /* which switch turns it on and off */
	u32 pad;
	struct kp_radio_copy copy[KP_RADIO_COPIES];
};

/* Such a tracepoint was passed. */
struct kp_radio {
	struct kp_head h; /* func: its number in the log */
	u8 ctx;
	u8 text_len; /* bytes at KP_RADIO_TEXT */
	u8 pad[6];
	u8 data[KP_RADIO_DATA];
};

/* A carrier came (1) or went (2): see model::LinkWhat. */
struct kp_carrier {
	struct kp_head h; /* func: which */
	u32 netns;
	u32 ifindex;
	u8 ctx;
	u8 pad[7];
};

/* A frame of one of the protocols by which addresses are found. */
struct kp_frame {
	struct kp_head h;
	u32 netns;
	u32 ifindex;
	u32 len; /* from the network header on */
	u16 protocol; /* EtherType */
	u16 copied; /* of that, in `bytes` */
	u8 ctx;
	u8 sent;
	u8 has_link;
	u8 pad;
	u8 link[12]; /* as in an Ethernet header: destination, source */
	u8 bytes[KP_FRAME_BYTES];
};

_Static_assert(sizeof(struct kp_radio_point) == 8 + 8 * KP_RADIO_COPIES, "radio point");
_Static_assert(sizeof(struct kp_radio) == 24 + KP_RADIO_DATA, "radio");
_Static_assert(sizeof(struct kp_carrier) == 32, "carrier");
_Static_assert(sizeof(struct kp_frame) == 48 + KP_FRAME_BYTES, "frame");

#endif
