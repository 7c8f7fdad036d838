/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A server that makes a process for a request (CGI, a program that a web application runs, a session's command): what that one does is for the client as long as that waits for the answer, which the
 * server gives it when it has read the process's output or has seen its end. Also what a process does that this one makes, and each one's threads. What it does later is its own (a daemon that a request starts),
 * but for what the server reads from it and gives to the client nevertheless (output of a command that goes on).
 *
 * Whether the client waits is known by its request, as of threads that hand work on (struct asked). So of a client that asks by a socket alone, of which it is seen who is answered.
 *
 * Rejected: what the process does until its end, or until its maker takes another's request. A server that started a daemon for its only client would have charged that one for ever.
 */
#ifndef KPAT_MAKERS_H
#define KPAT_MAKERS_H

#include "known.bpf.h"

/* Of which process a task that makes some took something last that its client waits for no more: by task. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u32);
} late_children SEC(".maps");

/* Does the client still wait for the answer to the request for which this process was made? */
static __noinline int is_waited_for(struct child *c)
{
	struct asked *at = c ? asked_of(c->maker & KP_ID_MASK, c->client) : NULL;

	return at && at->times && at->since == c->asked_at;
}

/* The task that runs is such a process's, and stops, ends or writes. */
static __noinline int child_rests(struct account *a)
{
	struct child *c;

	if (!a)
		return 0;
	c = own_child(a);
	return c && is_waited_for(c) ? charge_child(a, c) : 0;
}

/* The same before anybody can have what it writes to a pipe or socket. */
__noinline int child_writes(struct account *a)
{
	struct child *c;

	if (!a)
		return 0;
	border(a);
	put_task(a);
	c = own_child(a);
	if (c)
		c->gave = 1;
	return child_rests(a);
}

/* A task that works for a client makes a process for the first time. Has it answered? That is known of what comes from now on. */
static __always_inline void begins_to_make(struct account *a, u32 process)
{
	bool known = state_is(process, HANDS);

	since_is(a, MAKES);
	keep_state(process, HANDS);
	if (!known && !(a->since & (WROTE | TELLS)))
		asks(process, a->serving);
}

/* A task makes a process, or such a process's a thread. */
static __noinline int makes_child(struct account *a, u32 pid)
{
	u32 process = bpf_get_current_pid_tgid() >> 32, by;
	struct child c = {}, *own;
	struct asked *at;
	struct handed *h;

	if (!a)
		return 0;
	by = a->pid;
	if (!a->serving) {
		own = own_child(a);
		if (!own)
			return 0;
		c.client = own->client;
		c.purpose = own->purpose;
		c.maker = own->maker;
		c.asked_at = own->asked_at;
	} else {
		if (!serves_client(a) || !(a->since & AT_SOCKET))
			return 0;
		if (!(a->since & MAKES))
			begins_to_make(a, process);
		h = a->since & TELLS ? bpf_map_lookup_elem(&handed_tasks, &by) : NULL;
		c.client = !(a->since & TELLS) ? a->serving : h ? asks_now_for(h) : 0;
		c.purpose = h ? h->purpose : handed_as(a->serving_for);
		c.maker = own_number(a);
		at = c.client ? asked_of(process, c.client) : NULL;
		if (!at || !at->times)
			return 0;
		c.asked_at = at->since;
	}
	bpf_map_update_elem(&children, &pid, &c, BPF_ANY);
	keep_state(pid, CHILD);
	return 0;
}

/*
 * A task of such a process takes a message. Of one that was made for the same, or of its maker before it has given anything: then that is no other's request (what a script's programs give each other, what
 * it has to do). Else it works for who asks: a maker may give the next request's work to one that it made for the first.
 */
static __noinline int is_within_work(struct account *a, u64 other)
{
	struct child *c, *o;
	u32 pid;

	if (!a)
		return false;
	c = own_child(a);
	if (!c)
		return false;
	pid = a->pid;
	if ((u32)other == c->maker) {
		if (!c->gave && is_waited_for(c))
			return true;
		bpf_map_delete_elem(&children, &pid);
		take_state(pid, CHILD);
		a->child = 0;
		return false;
	}
	o = child_of(other);
	return o && o->maker == c->maker && o->client == c->client && o->asked_at == c->asked_at;
}

/* A task takes what a process wrote that was made by its own: no request. NULL: it was not; else whether its client still waits (is_waited_for()), and is who the task works for now. */
static __noinline struct child *took_of_child(struct account *a, u64 other)
{
	struct child *c = child_of(other);
	u32 pid, made = other & KP_ID_MASK;

	if (!a || !c || c->maker != own_number(a))
		return NULL;
	pid = a->pid;
	if (a->serving && !is_waited_for(c)) {
		bpf_map_update_elem(&late_children, &pid, &made, BPF_ANY);
		since_is(a, FROM_CHILD);
	}
	return c;
}

/* A task gives this client what it took of a process that it made for that one. */
__noinline int passes_on(struct account *a, u64 client)
{
	struct served *s;
	struct child *c;
	u32 pid, *made;

	if (!a)
		return 0;
	pid = a->pid;
	a->since &= ~FROM_CHILD;
	s = bpf_map_lookup_elem(&served_tasks, &pid);
	if (s)
		s->since &= ~FROM_CHILD;
	made = bpf_map_lookup_elem(&late_children, &pid);
	c = made ? child_of(*made) : NULL;
	return c && c->client == client ? charge_child(a, c) : 0;
}

/* As who the task's process answers. */
static __always_inline u32 answers_as_number(struct account *a)
{
	struct child *c = own_child(a);

	return c && !a->serving ? c->maker : own_number(a);
}

#endif
