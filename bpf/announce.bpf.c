// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * When, where and by whom the kernel announces a change of links, addresses, routes, neighbours, queueing: at the entry of
 * nlmsg_notify(), through which all of these pass before any socket has the message. No packet passes it. An object of its own: it
 * belongs to every recording, and where the kernel refuses it the recording goes on without.
 *
 * What it writes is there before the message is, so whoever has read a message finds its stamp in the ring buffer, or there is none.
 */
#include "kernel.h"
#include "wire.h"

#define NETLINK_ROUTE 0

/* One bit for each group of rtnetlink that is listened to. */
const volatile u64 groups = 0;
/* Announcements for which the ring buffer had no room. */
u64 lost SEC(".data.lost") = 0;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 << 20);
} announcements SEC(".maps");

static __always_inline int announce(struct sock *sk, struct sk_buff *skb, u32 group)
{
	struct kp_announcement *r;
	u64 pid_tgid;
	u32 n;

	if (group > 63 || !(groups & 1ULL << group) || kread(sk, sk_protocol) != NETLINK_ROUTE)
		return 0;
	r = bpf_ringbuf_reserve(&announcements, sizeof(*r), 0);
	if (!r) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	pid_tgid = bpf_get_current_pid_tgid();
	r->ts = bpf_ktime_get_boot_ns();
	r->netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	r->len = n = kread(skb, len);
	r->cpu = bpf_get_smp_processor_id();
	r->pid = pid_tgid;
	r->tgid = pid_tgid >> 32;
#ifdef KPAT_TRACED_CONTEXT
	r->ctx = 4; /* nobody keeps it for this object */
#else
	r->ctx = current_context();
#endif
	bpf_get_current_comm(r->comm, sizeof(r->comm));
	if (n > sizeof(r->message))
		n = sizeof(r->message);
	bpf_probe_read_kernel(r->message, n, (void *)kread_ptr(skb, data));
	bpf_ringbuf_submit(r, BPF_RB_NO_WAKEUP);
	return 0;
}

/* (sk, skb, portid, group, report, flags) */
SEC("fentry/nlmsg_notify")
int announce_fentry(u64 *ctx)
{
	return announce((struct sock *)ctx[0], (struct sk_buff *)ctx[1], ctx[3]);
}

SEC("kprobe")
int announce_kprobe(struct pt_regs *ctx)
{
	return announce((struct sock *)reg_arg(ctx, 0), (struct sk_buff *)reg_arg(ctx, 1), reg_arg(ctx, 3));
}

char LICENSE[] SEC("license") = "GPL";
