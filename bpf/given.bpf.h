/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What tracepoints of radios are given and their events do not have: frames of BSS transition management (802.11v), the answer to an association with its status, and
 * for how long an access point puts one off.
 */
#ifndef KPAT_GIVEN_H
#define KPAT_GIVEN_H

struct net_device___named {
	char name[16];
} __core;

struct wireless_dev___of {
	struct net_device *netdev;
} __core;

/* Kernels before 6.0 have no such structure (00b3d8401319): their tracepoint has no frame. */
struct cfg80211_rx_info___frame {
	const u8 *buf;
	u64 len;
} __core;

struct cfg80211_mgmt_tx_params___frame {
	const u8 *buf;
	u64 len;
} __core;

/* The answer to an association; its name changed in 6.7. Before 6.0 its tracepoint has none. */
struct cfg80211_rx_assoc_resp___frame {
	const u8 *buf;
	u64 len;
} __core;

struct cfg80211_rx_assoc_resp_data___frame {
	const u8 *buf;
	u64 len;
} __core;

/* Which of `radio_points` each is recorded as; NO_POINT: it is not recorded. */
#define NO_POINT 0xffffffffu
const volatile u32 transition_received = NO_POINT;
const volatile u32 transition_sent = NO_POINT;
const volatile u32 association_answered = NO_POINT;
const volatile u32 association_put_off = NO_POINT;

/* A record of the point, and of the interface; NULL: there is no room for it. */
static __always_inline struct kp_radio *given(struct net_device *dev, u32 at, u32 *id)
{
	struct kp_ring_ctl *ctl = ring_ctl();
	struct kp_radio_point *p;
	struct kp_radio *r;
	u32 ifindex;

	p = bpf_map_lookup_elem(&radio_points, &at);
	if (!ctl || !p || !func_mode[p->mode & (KP_MAX_FUNCS - 1)])
		return NULL;
	current_pid(ctl, bpf_get_current_pid_tgid(), 0);
	r = ring_reserve(ctl, sizeof(*r));
	if (!r)
		return NULL;
	*id = p->id;
	r->h.ts = bpf_ktime_get_boot_ns();
	r->ctx = current_context();
	r->text_len = 0;
	__builtin_memset(r->pad, 0, sizeof(r->pad));
	__builtin_memset(r->data, 0, sizeof(r->data));
	ifindex = kread(dev, ifindex);
	__builtin_memcpy(r->data + KP_RADIO_IFINDEX, &ifindex, sizeof(ifindex));
	bpf_probe_read_kernel(r->data + KP_RADIO_INTERFACE, 16, ((struct net_device___named *)dev)->name);
	return r;
}

/* `frame`: as it is without encryption */
static __always_inline int management(struct net_device *dev, const u8 *frame, u64 len, u32 at)
{
	struct kp_radio *r;
	u32 size, id;

	r = given(dev, at, &id);
	if (!r)
		return 0;
	size = len < KP_RADIO_MOST ? len : KP_RADIO_MOST;
	asm volatile("" : "+r"(size));
	size &= BOUND;
	if (size > KP_RADIO_MOST)
		size = KP_RADIO_MOST;
	r->text_len = bpf_probe_read_kernel(r->data + KP_RADIO_TEXT, size, frame) ? 0 : size;
	ring_commit(&r->h, KP_RADIO, sizeof(*r), id, (u32)bpf_get_current_pid_tgid());
	return 0;
}

/* IEEE 802.11, 9.6.13: an action frame (0xd0) of the category of wireless network management (10), a query, request or response of a BSS transition (6 to 8) */
#define MGMT_HEADER 24

static __always_inline bool is_transition(const u8 *h)
{
	return (h[0] & 0xfc) == 0xd0 && h[MGMT_HEADER] == 10 && h[MGMT_HEADER + 1] >= 6 && h[MGMT_HEADER + 1] <= 8;
}

/* Of all management frames, beacons among them, only those of a BSS transition are recorded. */
static __always_inline int transition(struct wireless_dev___of *wdev, const u8 *frame, u64 len, u32 at)
{
	u8 head[MGMT_HEADER + 2];

	if (len < sizeof(head) || bpf_probe_read_kernel(head, sizeof(head), frame) || !is_transition(head))
		return 0;
	return management((struct net_device *)kread_ptr(wdev, netdev), frame, len, at);
}

/* (wdev, info): after decryption, before user space has it */
SEC("raw_tp/cfg80211_rx_mgmt")
int management_received(u64 *ctx)
{
	struct cfg80211_rx_info___frame *info = (void *)ctx[1];

	if (transition_received == NO_POINT)
		return 0;
	return transition((void *)ctx[0], (const u8 *)kread_ptr(info, buf), kread(info, len), transition_received);
}

/* (wiphy, wdev, params): what user space sends */
SEC("raw_tp/rdev_mgmt_tx")
int management_sent(u64 *ctx)
{
	struct cfg80211_mgmt_tx_params___frame *params = (void *)ctx[2];

	if (transition_sent == NO_POINT)
		return 0;
	return transition((void *)ctx[1], (const u8 *)kread_ptr(params, buf), kread(params, len), transition_sent);
}

/* (netdev, data): the answer to an association, also one that refuses it */
SEC("raw_tp/cfg80211_send_rx_assoc")
int associated(u64 *ctx)
{
	struct cfg80211_rx_assoc_resp_data___frame *data = (void *)ctx[1];
	struct cfg80211_rx_assoc_resp___frame *older = (void *)ctx[1];
	u64 frame, len;

	if (association_answered == NO_POINT)
		return 0;
	if (bpf_core_type_exists(struct cfg80211_rx_assoc_resp_data___frame)) {
		frame = kread_ptr(data, buf);
		len = kread(data, len);
	} else {
		frame = kread_ptr(older, buf);
		len = kread(older, len);
	}
	return management((struct net_device *)ctx[0], (const u8 *)frame, len, association_answered);
}

/* (wdev, ap_addr, timeout): it is to be asked for again after so many TU */
SEC("raw_tp/cfg80211_assoc_comeback")
int put_off(u64 *ctx)
{
	struct wireless_dev___of *wdev = (void *)ctx[0];
	u64 after = (u32)ctx[2];
	struct kp_radio *r;
	u32 id;

	if (association_put_off == NO_POINT)
		return 0;
	r = given((struct net_device *)kread_ptr(wdev, netdev), association_put_off, &id);
	if (!r)
		return 0;
	bpf_probe_read_kernel(r->data + KP_RADIO_ADDRESS, 6, (void *)ctx[1]);
	__builtin_memcpy(r->data + KP_RADIO_A, &after, sizeof(after));
	ring_commit(&r->h, KP_RADIO, sizeof(*r), id, (u32)bpf_get_current_pid_tgid());
	return 0;
}

#endif
