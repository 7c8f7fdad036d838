/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Tasks that take several clients' messages before they answer the first (TELLS), or answer another client than the one whose message they took last: their answers tell for whom they worked. What a task does
 * before an answer is for whom it answers; what it does after a message until it takes another or sleeps, and answers nobody, is for who sent it.
 *
 * Between one client's message and the answer to another it may have done either one's work. Event loops that put messages into a list and go through it later do the second one's; loops that work as they
 * read, and have all answers wait (for one fsync, or until they have read what is there), do the first one's. Which kind it is the task shows where there is no doubt: by what it does between
 * two clients' messages, and between two clients' answers. While that does not tell clearly, it is unsure; and so is all of a thread that works for several in turns (bells.bpf.h).
 *
 * A proxy takes its servers' answers, each for a client. For which it is known where it asked right after that client's message alone, or where it gave that client what it had just taken there.
 */
#ifndef KPAT_TELLS_H
#define KPAT_TELLS_H

#include "running.bpf.h"

#define SILENT_NS 200000 /* what a task has at most to do for a message before it takes it, or for a connection that is new */

/* What the task did last that says something: struct handed. */
enum { NOTHING, TOOK, TOOK_SEVERAL, TOOK_UNKNOWN, ANSWERED_ONE };

static __always_inline u32 handed_as(u32 purpose)
{
	return purpose == KP_FOR_REMOTE ? KP_FOR_HANDED_REMOTE : KP_FOR_HANDED;
}

/* The other way around: whether it is a client at all is found when the log is read. */
static __always_inline u32 served_as(u32 purpose)
{
	return purpose == KP_FOR_HANDED_REMOTE ? KP_FOR_REMOTE : KP_FOR_ASKER;
}

/* From now on the task's answers tell for whom it works. */
static __always_inline int begins_to_tell(struct account *a)
{
	u32 process = bpf_get_current_pid_tgid() >> 32, pid;
	struct handed *h;
	struct served *s;

	if (!a)
		return 0;
	border(a);
	put_task(a);
	pid = a->pid;
	if (!a->handed)
		is_handed(pid, 0, 0, 0);
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	s = bpf_map_lookup_elem(&served_tasks, &pid);
	if (!h || !s)
		return 0;
	h->client = a->serving;
	h->purpose = handed_as(a->serving_for);
	h->muddled = 0;
	h->last = TOOK;
	h->speech = 0;
	s->since |= TELLS;
	a->since |= TELLS;
	a->handed = HANDED;
	keep_state(process, HANDS);
	return 0;
}

/* What the task did since it was asked last is this client's, and from now on this one's. */
static __always_inline int part_is_for(struct account *a, struct handed *h, u64 client, u64 purpose_and_unsure)
{
	if (!a || !h)
		return 0;
	border(a);
	put_task(a);
	charge_parts(a, h->ns, client, purpose_and_unsure);
	h->began = a->last;
	h->muddled = 0;
	return 0;
}

/* One more piece of work. */
static __always_inline void is_seen(struct handed *h, struct pieces *p)
{
	p->ns += h->ns[0] + h->ns[1] + h->ns[2];
	if (++p->times < MOST_PIECES)
		return;
	h->after.ns /= 2;
	h->after.times /= 2;
	h->before.ns /= 2;
	h->before.times /= 2;
	h->between.ns /= 2;
	h->between.times /= 2;
}

#define FEW 4 /* pieces say nothing */
#define CLEARLY 4 /* times as much */
enum { WORKS_LATER, WORKS_FIRST, IN_DOUBT = 2 };

/* Does the task work when it has taken a message, or later, before it answers? IN_DOUBT beside what is more likely. */
static __always_inline u32 kind_of(struct handed *h)
{
	u64 after, before, between = h->between.times ? h->between.ns / h->between.times : 0;

	if (h->after.times < FEW)
		return WORKS_LATER | IN_DOUBT;
	after = h->after.ns / h->after.times;
	if (h->before.times >= FEW) {
		before = h->before.ns / h->before.times;
		/* it does all that there is before the first answer, in whatever order */
		if (h->between.times >= FEW && between > CLEARLY * before && between > CLEARLY * after)
			return WORKS_LATER | IN_DOUBT;
		return (after > before ? WORKS_FIRST : WORKS_LATER) | (after > CLEARLY * before || before > CLEARLY * after ? 0 : IN_DOUBT);
	}
	/* it hardly ever answers another than it took last */
	if (h->between.times * CLEARLY < h->after.times)
		return WORKS_FIRST;
	return WORKS_LATER | (between > CLEARLY * after ? 0 : IN_DOUBT);
}

#define SLICE_NS 1000000

/* Does it work both when it has taken a message and before it answers, each time for longer than loops do that put messages into a list? So it has begun one client's work when it takes up another's. */
static __always_inline bool works_in_turns(struct handed *h)
{
	return h->after.times >= FEW && h->before.times >= FEW && kind_of(h) & IN_DOUBT && h->after.ns > SLICE_NS * h->after.times && h->before.ns > SLICE_NS * h->before.times;
}

/* The client whose message the task took last, if what it writes now is for that one; else 0. */
static __always_inline u64 asks_now_for(struct handed *h)
{
	return h->last == TOOK || (h->last == TOOK_SEVERAL && kind_of(h) == WORKS_FIRST) ? h->client : 0;
}

static __always_inline bool took(struct handed *h)
{
	return h->last == TOOK || h->last == TOOK_SEVERAL;
}

/* It owes no answer: it has taken nothing since its last one, or since it slept. */
static __always_inline bool owes_nothing(struct handed *h)
{
	return h->last == NOTHING || h->last == ANSWERED_ONE;
}

/* What the task did until now is for whom it worked for last, and what it does next for nobody that is known. */
static __always_inline void turns_away(struct account *a, struct handed *h)
{
	part_is_for(a, h, h->client, h->purpose);
	h->client = 0;
	h->last = NOTHING;
}

/*
 * A task whose answers tell takes a message of this client, or of a server for it. 0: of a server, and for whom is not known; `speech` is then what the task's process says there (known.bpf.h).
 * Inlined, as the ways of calls that lead here are as deep as the verifier lets them be.
 */
static __always_inline int takes_for(struct account *a, u64 client, u32 purpose, u64 speech, u32 is_unix, bool turns)
{
	bool alone, woke;
	struct handed *h;
	u32 pid;

	if (!a)
		return 0;
	pid = a->pid;
	h = bpf_map_lookup_elem(&handed_tasks, &pid);
	if (!h)
		return 0;
	border(a);
	put_task(a);
	if (took(h) && h->client && h->client != client)
		is_seen(h, &h->after);
	woke = h->last == NOTHING && !h->client && !h->muddled && h->ns[0] < SILENT_NS; /* for this message */
	alone = h->last == NOTHING || h->last == ANSWERED_ONE || (h->last == TOOK && h->client == client);
	charge_parts(a, h->ns, woke ? client : h->client, (woke ? handed_as(purpose) : h->purpose) | (turns || h->turns ? UNSURE : 0));
	h->began = a->last;
	h->muddled = 0;
	h->taken = 1;
	h->client = client;
	h->purpose = handed_as(purpose);
	h->last = !client ? TOOK_UNKNOWN : alone ? TOOK : TOOK_SEVERAL;
	h->speech = alone || h->speech == speech ? speech : 0;
	h->speech_is_unix = is_unix;
	return 0;
}

/* A task that has not answered whom it works for takes another's message. */
static __always_inline int takes_another(struct account *a, u64 client, u32 purpose, bool turns)
{
	if (!(a->since & TELLS))
		begins_to_tell(a);
	return takes_for(a, client, purpose, 0, 0, turns);
}

/* A task whose answers tell has answered this client. */
static __always_inline int tells(struct account *a, struct handed *h, u64 client, u32 purpose, bool turns)
{
	u64 whose = client, as = purpose;
	bool sure = true;
	u32 kind;

	if (!a || !h)
		return 0;
	if (h->client && h->client != client) {
		if (h->last == ANSWERED_ONE) {
			is_seen(h, &h->before);
		} else {
			kind = kind_of(h);
			sure = !(kind & IN_DOUBT);
			if (kind & WORKS_FIRST) {
				whose = h->client;
				as = h->purpose;
			}
			is_seen(h, &h->between);
		}
	}
	h->turns = turns || works_in_turns(h);
	if (h->turns || (h->muddled && h->client != client))
		sure = false;
	part_is_for(a, h, whose, as | (sure ? 0 : UNSURE));
	h->last = ANSWERED_ONE;
	return 0;
}

#endif
