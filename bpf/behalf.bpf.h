/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Work on behalf of a process that is neither its own nor that of a packet: block requests, pages that a kernel thread writes back, work items, and what a
 * server does after it took a client's message (messages.bpf.h). Each is known by an address (of the request's first bio, the inode, the item) under which the
 * process was remembered.
 *
 * A work item is whose task queued it, or whose block request was completed by what queued it; queued twice before it was executed, it is the first one's. One
 * that a timer queues is nobody's.
 */
#ifndef KPAT_BEHALF_H
#define KPAT_BEHALF_H

#include "running.bpf.h"

struct bio;
struct block_device;
struct request {
	struct bio *bio;
	struct block_device *part; /* whose statistics have it: not of administration (a keepalive of NVMe) */
} __core;
struct inode;
struct address_space {
	struct inode *host;
} __core;

#define OWNERS_OF(name, entries)                             \
	struct {                                             \
		__uint(type, BPF_MAP_TYPE_LRU_HASH);         \
		__uint(max_entries, entries);                \
		__type(key, u64);                            \
		__type(value, u32);                          \
	} name SEC(".maps")

OWNERS_OF(bio_owners, 16384);
OWNERS_OF(inode_owners, 16384);
OWNERS_OF(item_owners, 16384);

/* Who asks, where a task does: itself, or whom it works for. */
static __always_inline u32 who_asks(struct account *a)
{
	return a->serving && !serves_client(a) ? a->serving : a->victim;
}

/* A task does this itself. */
static __always_inline bool at_task(struct account *a)
{
	if (!a || a->level)
		return false;
	if (a->pid != (u32)current_pid_tgid())
		catch_up(a);
	return true;
}

static __always_inline int task_sends_bio(u64 bio)
{
	struct account *a = this_account();
	u32 who;

	if (!at_task(a))
		return 0;
	who = who_asks(a);
	if (a->mode == KP_WORK_THREAD && !a->serving)
		bpf_map_delete_elem(&bio_owners, &bio);
	else
		bpf_map_update_elem(&bio_owners, &bio, &who, BPF_ANY);
	return 0;
}

/* (bio) */
PAIR("raw_tp/block_bio_queue", work_block_bio_queue, AT_BIO)
{
	return task_sends_bio(ctx[0]);
}

/* (bio, sector): of one that is too large for a request the part that goes first, which is a new one */
PAIR("raw_tp/block_split", work_block_split, AT_SPLIT)
{
	return task_sends_bio(ctx[0]);
}

/* (request, error, bytes): what the interrupt or softirq does from here on is for this request. */
SEC("raw_tp/block_rq_complete")
int work_block_rq_complete(u64 *ctx)
{
	struct account *a = this_account();
	struct block *b;
	u32 *who;
	u64 bio;

	if (!a)
		return 0;
	if (kread_ptr((struct request *)ctx[0], part))
		a->h.requests++;
	if (!(top_is(a, HARDIRQ) || top_is(a, SOFTIRQ + BLOCK)))
		return 0;
	border(a);
	b = block_of(a);
	if (b->open)
		put_block(a);
	bio = kread_ptr((struct request *)ctx[0], bio);
	who = bpf_map_lookup_elem(&bio_owners, &bio);
	b->owner = who ? *who : 0;
	b->bytes = (u32)ctx[2];
	b->open = 1;
	if (who)
		bpf_map_delete_elem(&bio_owners, &bio);
	return 0;
}

/* (folio, mapping) */
PAIR("raw_tp/writeback_dirty_folio", work_writeback_dirty_folio, AT_DIRTY)
{
	struct account *a = this_account();
	u64 inode;
	u32 who;

	if (!at_task(a) || !ctx[1] || a->mode == KP_WORK_THREAD)
		return 0;
	inode = kread_ptr((struct address_space *)ctx[1], host);
	who = a->victim;
	bpf_map_update_elem(&inode_owners, &inode, &who, BPF_ANY);
	return 0;
}

/* (inode, control, pages): only a kernel thread's; who calls fsync() does it in its own call. */
PAIR("raw_tp/writeback_single_inode_start", work_writeback_single_inode_start, AT_INODE)
{
	struct account *a = this_account();
	u64 inode = ctx[0];
	u32 *who;

	if (!at_task(a) || a->mode != KP_WORK_THREAD)
		return 0;
	who = bpf_map_lookup_elem(&inode_owners, &inode);
	serve(a, who ? *who : 0, KP_FOR_WRITEBACK);
	return 0;
}

PAIR("raw_tp/writeback_single_inode", work_writeback_single_inode, AT_INODE_END)
{
	struct account *a = this_account();

	if (at_task(a) && a->mode == KP_WORK_THREAD)
		serve(a, 0, 0);
	return 0;
}

/* (CPU, pool, item) */
SEC("raw_tp/workqueue_queue_work")
int work_workqueue_queue_work(u64 *ctx)
{
	struct account *a = this_account();
	u64 item = ctx[2];
	u32 who = 0;

	if (!a)
		return 0;
	if (!at_task(a))
		who = block_of(a)->open ? block_of(a)->owner : 0;
	else if (a->mode != KP_WORK_THREAD || a->serving)
		who = who_asks(a);
	if (who)
		bpf_map_update_elem(&item_owners, &item, &who, BPF_ANY);
	else
		bpf_map_delete_elem(&item_owners, &item);
	return 0;
}

/* (item) */
PAIR("raw_tp/workqueue_execute_start", work_workqueue_execute_start, AT_ITEM)
{
	struct account *a = this_account();
	u64 item = ctx[0];
	u32 *who;

	if (!no_frames(a) || !at_task(a) || a->mode != KP_WORK_THREAD)
		return 0;
	who = bpf_map_lookup_elem(&item_owners, &item);
	serve(a, who ? *who : 0, KP_FOR_ITEM);
	if (who)
		bpf_map_delete_elem(&item_owners, &item);
	return 0;
}

PAIR("raw_tp/workqueue_execute_end", work_workqueue_execute_end, AT_ITEM_END)
{
	struct account *a = this_account();

	if (no_frames(a) && at_task(a) && a->mode == KP_WORK_THREAD)
		serve(a, 0, 0);
	return 0;
}

#endif
