/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What bells (bells.bpf.h) are called: by the epoll that waits for an eventfd or a unix socket, else by these themselves. */
#ifndef KPAT_BELL_NAMES_H
#define KPAT_BELL_NAMES_H

#include "descriptors.bpf.h"
#include "ends.bpf.h"

struct list_head___bell {
	struct list_head___bell *next;
} __core;

struct wait_queue_entry___bell {
	struct list_head___bell entry;
} __core;

struct wait_queue_head___bell {
	struct list_head___bell head;
} __core;

struct eppoll_entry {
	struct epitem *base;
	struct wait_queue_entry___bell wait;
	struct wait_queue_head___bell *whead;
} __core;

struct epitem {
	struct eppoll_entry *pwqlist;
	struct eventpoll *ep;
} __core;

struct eventfd_ctx___bell {
	struct wait_queue_head___bell wqh;
} __core;

struct socket_wq___bell {
	struct wait_queue_head___bell wait;
} __core;

struct pid___bell {
	struct upid___bell {
		int nr;
	} __attribute__((preserve_access_index)) numbers[1];
} __core;

struct unix_sock___bell {
	struct sock___bell {
		struct socket_wq___bell *sk_wq;
		struct pid___bell *sk_peer_pid;
	} __attribute__((preserve_access_index)) sk;
	struct sock *peer;
} __core;

struct file___named {
	struct path___named {
		struct dentry___named {
			struct qstr___named {
				const unsigned char *name;
			} __attribute__((preserve_access_index)) d_name;
		} __attribute__((preserve_access_index)) *dentry;
	} __attribute__((preserve_access_index)) f_path;
} __core;

/* What waits first at this head, if an epoll does; else `or`. */
static __always_inline u64 bell_at(u64 head, u64 or)
{
	struct list_head___bell *first = (void *)kread_ptr((struct wait_queue_head___bell *)head, head.next);
	struct eppoll_entry *e;
	struct epitem *item;

	if (!first || (u64)first == head + bpf_core_field_offset(struct wait_queue_head___bell, head))
		return or;
	e = (void *)((u64)first - bpf_core_field_offset(struct eppoll_entry, wait) - bpf_core_field_offset(struct wait_queue_entry___bell, entry));
	if (BPF_CORE_READ(e, whead) != (void *)head)
		return or;
	/* poll() has the same there, but for what this points to */
	item = BPF_CORE_READ(e, base);
	return item && BPF_CORE_READ(item, pwqlist) == e ? (u64)BPF_CORE_READ(item, ep) : or;
}

static __always_inline u64 bell_of(u64 what)
{
	return mixed(bpf_get_current_pid_tgid() >> 32, what);
}

/* An eventfd's; 0: it is none. */
static __noinline u64 eventfd_of(struct file___open *file)
{
	static const char name[8] = "[eventfd";
	const unsigned char *at = file ? BPF_CORE_READ((struct file___named *)file, f_path.dentry, d_name.name) : NULL;
	u64 is = 0;

	if (!at || bpf_probe_read_kernel(&is, sizeof(is), at) || is != *(u64 *)name)
		return 0;
	return (u64)BPF_CORE_READ(file, private_data);
}

#endif
