// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What a device does to have a network: one program at tracepoints of cfg80211 and mac80211, whose fields user space has found in their format files
 * and put into `radio_points` (crates/probe/src/radios.rs), so this knows no tracepoint by name; carriers at the kernel's functions; and frames of DHCP, ARP, neighbour
 * discovery and EAPOL, of which the beginning is copied for user space to read.
 *
 * Nothing is filtered by task: an emulated radio delivers a frame in its sender's.
 */
#define KPAT_APP
#include "tasks.bpf.h"
#include "radio.h"

#define ETH_P_IP 0x0800
#define ETH_P_ARP 0x0806
#define ETH_P_IPV6 0x86dd
#define ETH_P_PAE 0x888e
#define ETH_P_PREAUTH 0x88c7
#define ARPHRD_ETHER 1
#define ETHER_HEADER 14

#define FRAMES 0 /* switches */
#define CARRIERS 1

struct net_device___state {
	unsigned long state;
} __core;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KP_MAX_RADIOS);
	__type(key, u32);
	__type(value, struct kp_radio_point);
} radio_points SEC(".maps");

/* Bounds that the verifier sees, whatever the compiler makes of the checks before. */
#define BOUND 127u

static __always_inline void take(void *ctx, const struct kp_radio_copy *c, struct kp_radio *r)
{
	u32 to = c->to, size = c->size, from = c->from, where = 0;

	if (!size || size > KP_RADIO_MOST || to > KP_RADIO_TEXT)
		return;
	if (c->dynamic) {
		bpf_probe_read_kernel(&where, sizeof(where), ctx + from);
		from = where & 0xffff;
		where >>= 16;
		if (where < size)
			size = where;
	}
	if (to == KP_RADIO_TEXT)
		r->text_len = size;
	asm volatile("" : "+r"(to), "+r"(size));
	to &= BOUND;
	size &= BOUND;
	bpf_probe_read_kernel(r->data + to, size, ctx + from);
}

SEC("tp")
int radio_point(void *ctx)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();
	u32 at = (u32)bpf_get_attach_cookie(ctx);
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_radio_point *p;
	struct kp_radio *r;

	p = bpf_map_lookup_elem(&radio_points, &at);
	if (!ctl || !p || !func_mode[p->mode & (KP_MAX_FUNCS - 1)])
		return 0;
	current_pid(ctl, pid_tgid, 0);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = bpf_ktime_get_boot_ns();
	r->ctx = current_context();
	r->text_len = 0;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	__builtin_memset(r->data, 0, sizeof(r->data));
#pragma unroll
	for (u32 i = 0; i < KP_RADIO_COPIES; i++)
		take(ctx, &p->copy[i], r);
	ring_commit(&r->h, KP_RADIO, sizeof(*r), p->id, (u32)pid_tgid);
	return 0;
}

#include "given.bpf.h"

static __always_inline bool wanted(const volatile u32 *ids, u32 count, u32 id)
{
	if (!count)
		return true;
#pragma unroll
	for (u32 i = 0; i < KP_MAX_IDS; i++) {
		if (i < count && ids[i] == id)
			return true;
	}
	return false;
}

static __always_inline bool device_wanted(struct net_device *dev, u32 *netns, u32 *ifindex)
{
	*ifindex = kread(dev, ifindex);
	*netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	return wanted(netns_ids, netns_count, *netns) && wanted(ifindex_ids, ifindex_count, *ifindex);
}

static __always_inline int carrier(struct net_device *dev, u32 what)
{
	u64 pid_tgid = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_carrier *r;
	u32 netns, ifindex;
	u64 state;

	if (!ctl || !func_mode[CARRIERS] || !device_wanted(dev, &netns, &ifindex))
		return 0;
	/* Called again and again by some drivers: only what changes is news (__LINK_STATE_NOCARRIER, bit 2). */
	state = BPF_CORE_READ((struct net_device___state *)dev, state);
	if (!(state >> 2 & 1) == (what == 1))
		return 0;
	current_pid(ctl, pid_tgid, 0);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = now;
	r->netns = netns;
	r->ifindex = ifindex;
	r->ctx = current_context();
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	ring_commit(&r->h, KP_CARRIER, sizeof(*r), what, (u32)pid_tgid);
	return 0;
}

SEC("fentry/netif_carrier_on")
int fentry_carrier_on(u64 *ctx)
{
	return carrier((struct net_device *)ctx[0], 1);
}

SEC("fentry/netif_carrier_off")
int fentry_carrier_off(u64 *ctx)
{
	return carrier((struct net_device *)ctx[0], 2);
}

SEC("kprobe")
int kprobe_carrier_on(struct pt_regs *ctx)
{
	return carrier((struct net_device *)reg_arg(ctx, 0), 1);
}

SEC("kprobe")
int kprobe_carrier_off(struct pt_regs *ctx)
{
	return carrier((struct net_device *)reg_arg(ctx, 0), 2);
}

static __always_inline bool port(u16 n, u16 a, u16 b)
{
	return n == a || n == b;
}

/* By protocol and ports, from the network header on: is it one that addresses are found by? */
static __always_inline bool finds_addresses(u16 protocol, const u8 *h)
{
	u8 b[44];
	u32 at;

	if (protocol == ETH_P_ARP || protocol == ETH_P_PAE || protocol == ETH_P_PREAUTH)
		return true;
	if (protocol != ETH_P_IP && protocol != ETH_P_IPV6)
		return false;
	if (bpf_probe_read_kernel(b, sizeof(b), h))
		return false;
	if (protocol == ETH_P_IP) {
		/* UDP, and no later fragment */
		if (b[9] != 17 || b[6] & 0x1f || b[7])
			return false;
		at = (b[0] & 0xf) * 4;
		if (at != 20) {
			if (bpf_probe_read_kernel(b + 20, 4, h + at))
				return false;
		}
		return b[20] == 0 && b[22] == 0 && port(b[21], 67, 68) && port(b[23], 67, 68);
	}
	if (b[6] == 58)
		return b[40] >= 133 && b[40] <= 137;
	return b[6] == 17 && b[40] == 2 && b[42] == 2 && port(b[41], 546 & 0xff, 547 & 0xff) && port(b[43], 546 & 0xff, 547 & 0xff);
}

/* `h`: from the network header on, `len` bytes of which `there` may be read; `link`: the link header, NULL: none. */
static __always_inline int frame(struct net_device *dev, u16 protocol, const u8 *h, u32 len, u32 there, const u8 *link, u8 sent)
{
	u64 pid_tgid = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	struct kp_ring_ctl *ctl = ring_ctl();
	u32 netns, ifindex;
	struct kp_frame *r;

	if (!ctl || !device_wanted(dev, &netns, &ifindex))
		return 0;
	current_pid(ctl, pid_tgid, 0);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return 0;
	r->h.ts = now;
	r->netns = netns;
	r->ifindex = ifindex;
	r->len = len;
	r->protocol = protocol;
	r->ctx = current_context();
	r->sent = sent;
	r->pad = 0;
	r->has_link = link && !bpf_probe_read_kernel(r->link, sizeof(r->link), link);
	if (there > KP_FRAME_BYTES)
		there = KP_FRAME_BYTES;
	r->copied = bpf_probe_read_kernel(r->bytes, there, h) ? 0 : there;
	ring_commit(&r->h, KP_FRAME, sizeof(*r), 0, (u32)pid_tgid);
	return 0;
}

static __always_inline u16 swapped(u16 v)
{
	return v << 8 | v >> 8;
}

/* (skb): its data is the link header */
SEC("raw_tp/net_dev_queue")
int frame_sent(u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	u16 protocol;
	const u8 *h, *link = NULL;
	struct net_device *dev;
	u32 len, back, linear;

	if (!func_mode[FRAMES])
		return 0;
	protocol = swapped(kread(skb, protocol));
	h = (const u8 *)kread_ptr(skb, head) + kread(skb, network_header);
	if (!finds_addresses(protocol, h))
		return 0;
	dev = (struct net_device *)kread_ptr(skb, dev);
	back = h - (const u8 *)kread_ptr(skb, data);
	len = kread(skb, len);
	linear = len - kread(skb, data_len);
	if (back > linear)
		return 0;
	if (kread(dev, type) == ARPHRD_ETHER && back >= ETHER_HEADER)
		link = (const u8 *)kread_ptr(skb, data);
	return frame(dev, protocol, h, len - back, linear - back, link, 1);
}

static __always_inline int received(struct net_device *dev, struct sk_buff *skb, u16 protocol)
{
	const u8 *h = (const u8 *)kread_ptr(skb, data), *link = NULL;
	u32 len = kread(skb, len);

	if (kread(dev, type) == ARPHRD_ETHER)
		link = (const u8 *)kread_ptr(skb, head) + kread(skb, mac_header);
	return frame(dev, protocol, h, len, len - kread(skb, data_len), link, 0);
}

/* (skb): its data is the network header */
SEC("raw_tp/netif_receive_skb")
int frame_received(u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	u16 protocol;

	if (!func_mode[FRAMES])
		return 0;
	protocol = swapped(kread(skb, protocol));
	if (!finds_addresses(protocol, (const u8 *)kread_ptr(skb, data)))
		return 0;
	return received((struct net_device *)kread_ptr(skb, dev), skb, protocol);
}

/* (netdev, skb, unencrypted): EAPOL does not pass the tracepoints above where the supplicant has the control port */
SEC("raw_tp/cfg80211_rx_control_port")
int control_port_received(u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[1];

	if (!func_mode[FRAMES])
		return 0;
	return received((struct net_device *)ctx[0], skb, swapped(kread(skb, protocol)));
}

/* (wiphy, netdev, buf, len, dest, proto, ...) */
SEC("raw_tp/rdev_tx_control_port")
int control_port_sent(u64 *ctx)
{
	u32 len = ctx[3];

	if (!func_mode[FRAMES])
		return 0;
	return frame((struct net_device *)ctx[1], swapped(ctx[5]), (const u8 *)ctx[2], len, len, NULL, 1);
}

char LICENSE[] SEC("license") = "GPL";
