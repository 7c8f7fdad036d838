/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which processes are chosen: by number, children with it; and by rules about name, cgroup and user, which are evaluated once in each round
 * for each process: a process may move to another cgroup, or become another user's, and nothing reports that. Of a profile (chosen.bpf.h) those
 * have sums of their own, of packets and applications (whose.bpf.h) theirs are recorded and no others.
 */
#ifndef KPAT_CHOICE_H
#define KPAT_CHOICE_H

#include "tasks.bpf.h"
#include "work.h"

#define CGROUPS_DEEP 16

struct kernfs_node___chosen {
	u64 id;
} __core;

struct cgroup_subsys_state___chosen {
	struct cgroup___chosen *cgroup;
	struct cgroup_subsys_state___chosen *parent;
} __core;

struct cgroup___chosen {
	struct cgroup_subsys_state___chosen self;
	struct kernfs_node___chosen *kn;
} __core;

struct css_set___chosen {
	struct cgroup___chosen *dfl_cgrp;
} __core;

struct cred___chosen {
	struct {
		unsigned int val;
	} uid;
} __core;

struct task_struct___chosen {
	struct task_struct___chosen *group_leader;
	char comm[KP_COMM];
	const struct cred___chosen *cred;
	struct css_set___chosen *cgroups;
} __core;

/* Set by user space. */
struct choice {
	u64 round; /* 0: every process is chosen; else rules are evaluated once for each process in each round */
	u64 rules;
};
struct choice choice SEC(".data.choice") = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KP_RULES);
	__type(key, u32);
	__type(value, struct kp_rule);
} rules SEC(".maps");

/* Chosen by number. */
#define CHOSEN 1
#define CHILDREN 2 /* its children are, and it is not */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} chosen_pids SEC(".maps");

/* By process what the rules said: the round, and in its lowest bit whether one fits. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u64);
} fitting SEC(".maps");

static __always_inline u64 choosing(void)
{
	return *(volatile u64 *)&choice.round;
}

struct traits {
	u64 of; /* whose they are, a task's or a socket's: by way of the table its address is a number, which can be passed on */
	u64 cgroups[CGROUPS_DEEP]; /* its own, and those above */
	u64 user;
	u64 name[2];
	u64 named; /* a socket has no name */
	u64 fit; /* so many rules fit; here and not in a register, where the verifier would follow each value that it may have */
};
/* Of tasks, and of what interrupts those that ask. */
#define TRAITS_OF_TASK 0
#define TRAITS_IN_INTERRUPT 1
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct traits);
} traits SEC(".maps");

/* Without a branch, each of which an older verifier follows with all that come after it. */
static __always_inline u64 is_zero(u64 v)
{
	u64 negative = -v;

	asm volatile("" : "+r"(negative)); /* the compiler would make a comparison of it */
	return ((v | negative) >> 63) ^ 1;
}

/* A function of its own, which the verifier walks through once and not once for each rule; 6.1's gives up else. */
__noinline int fits(u32 number, u32 whose)
{
	struct traits *t = bpf_map_lookup_elem(&traits, &whose);
	struct kp_rule *r = bpf_map_lookup_elem(&rules, &number);

	if (!t || !r)
		return 0;
	if (r->kind == KP_RULE_COMM)
		t->fit += t->named && !(((t->name[0] & r->mask[0]) ^ r->name[0]) | ((t->name[1] & r->mask[1]) ^ r->name[1]));
	else if (r->kind == KP_RULE_USER)
		t->fit += t->user == r->number;
	else
		for (u32 k = 0; k < CGROUPS_DEEP; k++)
			t->fit += is_zero(t->cgroups[k] ^ r->number);
	return !!t->fit;
}

static __always_inline bool some_rule_fits(struct traits *t, u32 whose, struct cgroup___chosen *group)
{
	for (u32 i = 0; i < CGROUPS_DEEP; i++) {
		t->cgroups[i] = group ? BPF_CORE_READ(group, kn, id) : 0;
		group = group ? BPF_CORE_READ(group, self.parent, cgroup) : NULL;
	}
	t->fit = 0;
	for (u32 i = 0; i < KP_RULES; i++) {
		if (i >= *(volatile u64 *)&choice.rules || fits(i, whose))
			break;
	}
	return t->fit;
}

__noinline int ask_rules(u32 process, u64 round)
{
	struct task_struct___chosen *task;
	struct cgroup___chosen *group;
	u32 whose = TRAITS_OF_TASK;
	struct traits *t = bpf_map_lookup_elem(&traits, &whose);
	u64 value;

	if (!t)
		return 0;
	task = (void *)t->of;
	task = BPF_CORE_READ(task, group_leader);
	t->named = 1;
	bpf_core_read(t->name, KP_COMM, &task->comm);
	t->user = BPF_CORE_READ(task, cred, uid.val);
	group = bpf_core_field_exists(task->cgroups) ? BPF_CORE_READ(task, cgroups, dfl_cgrp) : NULL;
	value = round << 1 | some_rule_fits(t, whose, group);
	bpf_map_update_elem(&fitting, &process, &value, BPF_ANY);
	return value & 1;
}

/* Where some are: is the process of this task? */
static __always_inline bool process_chosen(struct task_struct *task, u32 process, u64 round)
{
	u32 *by_number = bpf_map_lookup_elem(&chosen_pids, &process), whose = TRAITS_OF_TASK;
	struct traits *t;
	u64 *known;

	if (by_number && (*by_number & 3) == CHOSEN)
		return true;
	known = bpf_map_lookup_elem(&fitting, &process);
	if (known && *known >> 1 == round)
		return *known & 1;
	t = bpf_map_lookup_elem(&traits, &whose);
	if (!t)
		return false;
	t->of = (u64)task;
	return ask_rules(process, round);
}

/* By number, as what is chosen is remembered: which task it was, above CHOSEN; 0: user space does not know. */
static __always_inline u32 mark_of(u64 task)
{
	return (u32)(task >> 6) << 2;
}

/* A process has begun: what was known of one that had its number is not its own. */
static __always_inline void begins_as_chosen(u64 parent, u64 child)
{
	u32 of = kread((struct task_struct *)parent, tgid), process = kread((struct task_struct *)child, tgid), by = CHOSEN | mark_of(child);

	if (!choosing() || of == process)
		return;
	bpf_map_delete_elem(&fitting, &process);
	if (bpf_map_lookup_elem(&chosen_pids, &of))
		bpf_map_update_elem(&chosen_pids, &process, &by, BPF_ANY);
	else
		bpf_map_delete_elem(&chosen_pids, &process);
}

/* A task is gone: its number may be another's by now. */
static __always_inline void ends_as_chosen(u64 task)
{
	u32 process = kread((struct task_struct *)task, tgid), *by;

	if (!choosing() || process != (u32)kread((struct task_struct *)task, pid))
		return;
	by = bpf_map_lookup_elem(&chosen_pids, &process);
	if (by && (*by <= CHILDREN || (*by & ~3u) == mark_of(task)))
		bpf_map_delete_elem(&chosen_pids, &process);
}

#endif
