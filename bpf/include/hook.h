/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Places in programs of user space, as user space describes them to the kernel side (programs.bpf.c), and the record of a hit. Rust's types are generated as those of wire.h are.
 */
#ifndef KPAT_HOOK_H
#define KPAT_HOOK_H

#include "wire.h"

#define KP_PROGRAM_TEXT 64u
#define KP_PROGRAM_VALUES 4u
#define KP_MAX_ARGUMENTS 6u
#define KP_MAX_HOOKS 1024u

/* Where an argument of a program's function or probe is. */
enum kp_argument_from {
	KP_ARG_NONE = 0,
	KP_ARG_REGISTER = 1,
	KP_ARG_MEMORY = 2, /* at a register's value and an offset */
	KP_ARG_CONSTANT = 3, /* it is the offset */
	KP_ARG_KEPT = 4, /* what was kept at the function's entry */
};

enum kp_argument_flag {
	KP_ARG_SIGNED = 1,
	KP_ARG_TEXT = 2, /* address of a string */
	KP_ARG_LENGTH = 4, /* of that string */
	KP_ARG_POINTED = 8, /* address of the value */
	KP_ARG_KEEP = 16, /* for the function's return */
	KP_ARG_THEN = 32, /* what is there is an address, and the value lies `then` behind it */
	KP_ARG_DESCRIPTOR = 64, /* the ports of its socket stand above its 32 bits */
};

struct kp_argument {
	u8 from;
	u8 flags;
	u8 size; /* 1, 2, 4, 8 */
	u8 slot; /* which value of the record it becomes */
	u16 reg; /* offset in struct pt_regs */
	u16 then;
	s64 offset;
};

enum kp_call_side {
	KP_CALL_NONE = 0, /* what is hit is by itself */
	KP_CALL_ENTRY = 1,
	KP_CALL_RETURN = 2,
};

/* A place in a program: user space fills these in. */
struct kp_hook {
	u16 id; /* number in the log */
	u16 mode; /* which switch turns it on and off */
	u8 stage;
	u8 of_call; /* KP_CALL_*: of a function's entry and return both are recorded or neither */
	u16 begins; /* which hook is at its entry */
	u32 most; /* records in KP_RATE_NS at most, 0: any number */
	u32 only; /* 1 and the value that has to be `wanted`, else the hit is no record; 0: none */
	u64 wanted;
	struct kp_argument argument[KP_MAX_ARGUMENTS];
};

#define KP_RATE_NS 100000000ull

/* How often a place is hit. */
struct kp_rate {
	u64 since; /* beginning of the stretch of KP_RATE_NS */
	u64 left_out; /* hits in all that were more than there may be */
	u32 hits; /* in this stretch */
	u32 pad;
};

/* Such a place was hit. */
struct kp_program {
	struct kp_head h; /* func: its number in the log */
	u64 value[KP_PROGRAM_VALUES];
	u8 stage;
	u8 text_len; /* bytes read, which may be more than the string has */
	u8 faults; /* a bit for each value that could not be read, the one behind them: the text */
	u8 pad;
	u8 text[KP_PROGRAM_TEXT];
	u8 pad2[4];
};

_Static_assert(sizeof(struct kp_program) == 120, "program");
_Static_assert(sizeof(struct kp_hook) == 24 + 16 * KP_MAX_ARGUMENTS, "hook");

#endif
