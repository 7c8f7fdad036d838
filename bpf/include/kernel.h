/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The kernel as this program sees it: only the members that are read, found by name on the running kernel (CO-RE).
 * Differences between kernels live here and nowhere else; each says the version and asks for the member, not for
 * the version.
 */
#ifndef KPAT_KERNEL_H
#define KPAT_KERNEL_H

#include <linux/types.h>
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <stdbool.h>

#ifndef bpf_ksym_exists /* libbpf 1.2 */
#define bpf_ksym_exists(sym) (!!(sym))
#endif
#ifndef barrier
#define barrier() asm volatile("" ::: "memory")
#endif

#define __core __attribute__((preserve_access_index))

#include "arch/arch.h"

struct task_struct {
	int pid;
	int tgid;
} __core;

struct ns_common {
	unsigned int inum;
} __core;

struct net {
	struct ns_common ns;
} __core;

typedef struct {
	struct net *net;
} __core possible_net_t;

struct device {
	struct device *parent;
} __core;

struct rtnl_link_ops {
	const char *kind;
} __core;

struct net_device {
	int ifindex;
	unsigned short type;
	void *ieee80211_ptr; /* with CONFIG_CFG80211 or 802.15.4, and not NULL on their devices */
	possible_net_t nd_net;
	const struct rtnl_link_ops *rtnl_link_ops;
	struct device dev;
} __core;

struct napi_struct {
	struct net_device *dev; /* NULL: a CPU's backlog */
} __core;

#define AF_INET 2
#define AF_INET6 10
#define AF_PACKET 17
#define PACKET_OUTGOING 4 /* include/uapi/linux/if_packet.h */
#define SOCK_DGRAM 2
#define SOCK_RAW 3
#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_FIN_WAIT1 4
#define TCP_FIN_WAIT2 5
#define TCP_TIME_WAIT 6
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8
#define TCP_LAST_ACK 9
#define TCP_LISTEN 10
#define TCP_CLOSING 11
#define TCP_NEW_SYN_RECV 12
/* As bits. It has data or an end to send of which not all is acknowledged, and an end was closed: no socket but TCP's has these. */
#define CLOSES (1 << TCP_FIN_WAIT1 | 1 << TCP_CLOSE_WAIT | 1 << TCP_LAST_ACK | 1 << TCP_CLOSING)

struct sock_common {
	union {
		struct {
			u16 skc_dport;
			u16 skc_num;
		};
	};
	unsigned short skc_family;
	unsigned char skc_state;
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	possible_net_t skc_net;
	struct in6_addr {
		u8 bytes[16];
	} skc_v6_daddr, skc_v6_rcv_saddr;
} __core;

/* Where a datagram goes, by the argument of the function that writes its transport header. */
union flowi_uli {
	struct {
		u16 dport;
	} ports;
} __core;

struct flowi4 {
	union flowi_uli uli;
} __core;

struct flowi6 {
	union flowi_uli uli;
} __core;

struct sock {
	struct sock_common __sk_common;
	u16 sk_protocol;
	u16 sk_type;
} __core;

struct list_head {
	struct list_head *next, *prev;
} __core;

typedef struct {
	int counter;
} atomic_t;

struct skb_shared_hwtstamps {
	s64 hwtstamp;
} __core;

struct skb_shared_info {
	u8 tx_flags;
	unsigned short gso_size;
	unsigned short gso_segs;
	struct skb_shared_hwtstamps hwtstamps;
	atomic_t dataref;
} __core;

struct refcount_struct {
	atomic_t refs;
} __core;

struct sk_buff {
	struct refcount_struct users;
	struct sk_buff *next;
	struct net_device *dev;
	struct sock *sk;
	int skb_iif;
	unsigned int len, data_len;
	u16 protocol;
	u16 transport_header;
	u16 network_header;
	u16 mac_header;
	u16 inner_network_header;
	u8 pkt_type : 3;
	u8 cloned : 1;
	u8 nohdr : 1;
	u8 ip_summed : 2;
	u8 vlan_present : 1; /* until 6.1 */
	u32 vlan_all; /* from 6.2: protocol and tag, 0: none */
	u16 vlan_tci;
	unsigned int tail, end;
	unsigned char *head;
	unsigned char *data;
} __core;

/* Two plain 64-bit words on every kernel: the shape through which header bytes are loaded. */
struct timespec64 {
	s64 tv_sec;
	long tv_nsec;
} __core;

/* Thread id in the lower half, process id in the upper, as bpf_get_current_pid_tgid() has it. */
static __always_inline u64 current_pid_tgid(void)
{
#ifdef KPAT_DIRECT
	/* the kernels that have typed casts hand out the task without a call (x86, 7.0), or by a cheaper one */
	struct task_struct *task = (void *)bpf_get_current_task_btf();

	return (u64)(u32)task->tgid << 32 | (u32)task->pid;
#else
	return bpf_get_current_pid_tgid();
#endif
}

/*
 * Lowest inode number of a network namespace: they count from 0xf0000000 (PROC_DYNAMIC_FIRST), but for the initial one, which has
 * NET_NS_INIT_INO since 6.18 (include/uapi/linux/nsfs.h).
 */
const volatile u32 first_netns = 0xeffffff9;

#define NMI_MASK 0x00f00000
#define HARDIRQ_MASK 0x000f0000
#define SOFTIRQ_SERVING_BIT 8

/*
 * PREEMPT_RT counts softirqs in the task that runs them, which may be preempted meanwhile, and not in the preemption count (kernel/softirq.c,
 * __local_bh_enable_ip()). Other kernels have no such member.
 */
struct task_struct___rt {
	int softirq_disable_cnt;
} __core;

#define SOFTIRQS_OF_TASKS bpf_core_field_exists(((struct task_struct___rt *)0)->softirq_disable_cnt)

static __always_inline u32 softirqs_of_task(void)
{
#ifdef KPAT_DIRECT
	return ((struct task_struct___rt *)bpf_get_current_task_btf())->softirq_disable_cnt;
#else
	return BPF_CORE_READ((struct task_struct___rt *)bpf_get_current_task(), softirq_disable_cnt);
#endif
}

#ifndef KPAT_TRACED_CONTEXT
/* model::Context: 0 task, 1 softirq, 2 hardirq, 3 nmi, 4 unknown */
static __always_inline u8 current_context(void)
{
	u32 n;

	if (!preemption_count(&n))
		return 4;
	if (n & (NMI_MASK | HARDIRQ_MASK))
		return n & NMI_MASK ? 3 : 2;
	if (SOFTIRQS_OF_TASKS)
		n = softirqs_of_task();
	/* without a branch, as the verifier would look at all that follows once for each way */
	return n >> SOFTIRQ_SERVING_BIT & 1;
}
#else
/*
 * A kernel whose kallsyms has no variables (CONFIG_KALLSYMS_ALL) does not let a program have the preemption count:
 * the tracepoints around soft and hard interrupts keep it instead (points.bpf.h). One word per CPU.
 */
#define KP_MAX_CPUS 1024
u8 traced_softirq[KP_MAX_CPUS] SEC(".data.ctx");
u8 traced_hardirq[KP_MAX_CPUS] SEC(".data.ctx");

static __always_inline u8 current_context(void)
{
	u32 cpu = bpf_get_smp_processor_id() & (KP_MAX_CPUS - 1), softirq = traced_softirq[cpu];

	if (SOFTIRQS_OF_TASKS)
		softirq = softirqs_of_task() >> SOFTIRQ_SERVING_BIT & 1;
	/* each 0 or 1; without a branch here, too */
	return traced_hardirq[cpu] << 1 | softirq >> traced_hardirq[cpu];
}
#endif

/*
 * Reading kernel memory. Pointers are held as the plain numbers they came as. Where the kernel has bpf_rdonly_cast
 * (6.2) a member is read by one guarded load (KPAT_DIRECT): the cast costs no instruction, it only tells the verifier.
 * Else each member is a call of probe_read_kernel.
 */
#ifdef KPAT_DIRECT
extern void *bpf_rdonly_cast(const void *obj, u32 btf_id) __ksym __weak;
#define kcast(type, p) ((type *)bpf_rdonly_cast((const void *)(p), bpf_core_type_id_kernel(type)))
#define kread(p, member) (kcast(typeof(*(p)), p)->member)
#define kread_bit(p, member)                                              \
	({                                                                \
		typeof(p) __p = kcast(typeof(*(p)), p);                   \
		BPF_CORE_READ_BITFIELD(__p, member);                      \
	})
/* A pointer member as a number: the verifier would give a loaded pointer a type that allows no arithmetic. */
#define kread_ptr(p, member)                                                                   \
	((u64)kcast(struct timespec64, (u64)(p) + bpf_core_field_offset(typeof(*(p)), member))->tv_sec)
#define kread_word(at) ((u64)kcast(struct timespec64, at)->tv_sec)
#else
/* p first goes into a variable of its own: a relocation must not reach into the expression that gave it */
#define kread(p, member)                            \
	({                                          \
		typeof(p) __p = (p);                \
		BPF_CORE_READ(__p, member);         \
	})
#define kread_bit(p, member)                                        \
	({                                                          \
		typeof(p) __p = (p);                                \
		BPF_CORE_READ_BITFIELD_PROBED(__p, member);         \
	})
#define kread_ptr(p, member) ((u64)kread(p, member))
#define kread_word(at)                                                  \
	({                                                              \
		u64 __w = 0;                                            \
		bpf_probe_read_kernel(&__w, sizeof(__w), (void *)(at)); \
		__w;                                                    \
	})
#endif

/*
 * An skb as programs hold it: its address, which names it, and the argument of the tracepoint, where the verifier trusts that. Its members are read by
 * plain loads then; a guarded one takes eight instructions, and the cast before it four. The compiler knows which it is wherever this is used.
 */
struct skb {
	u64 at;
	struct sk_buff *p;
	bool trusted;
	bool is_known; /* address and device were read */
	u64 dev;
};

static __always_inline struct skb skb_at(u64 at)
{
	struct skb s = { .at = at };

	return s;
}

#ifdef KPAT_DIRECT
#define skb_field(s, member) ((s).trusted ? (s).p->member : kread((struct sk_buff *)(s).at, member))
#define skb_bit(s, member)                                                                                          \
	({                                                                                                          \
		struct sk_buff *__s = (s).p;                                                                        \
		(s).trusted ? BPF_CORE_READ_BITFIELD(__s, member) : kread_bit((struct sk_buff *)(s).at, member);    \
	})

/* Its address is asked for later: most packets are refused before. */
static __always_inline struct skb skb_trusted(struct sk_buff *p)
{
	struct skb s = { .p = p, .trusted = true };

	return s;
}

/* The verifier takes the difference of two pointers for a number. In assembler, as the compiler would subtract from what is added to it. */
static __always_inline u64 skb_address(struct skb s)
{
	u64 at = (u64)s.p;

	if (!s.trusted || s.is_known)
		return s.at;
	asm volatile("%0 -= %1" : "+r"(at) : "r"(kcast(struct sk_buff, 0)));
	return at;
}
#else
#define skb_field(s, member) kread((struct sk_buff *)(s).at, member)
#define skb_address(s) ((s).at)
#define skb_bit(s, member) kread_bit((struct sk_buff *)(s).at, member)
#endif

/* Of a pointer to bytes, which is a number to older verifiers and none to newer ones (6.17): both take a half of it for one. */
static __always_inline u64 address_of(unsigned char *bytes)
{
	u64 address = (u64)bytes;

	asm volatile("r1 = %0\n"
		     "w1 = w1\n"
		     "r2 = %0\n"
		     "r2 >>= 32\n"
		     "w2 = w2\n"
		     "r2 <<= 32\n"
		     "r1 |= r2\n"
		     "%0 = r1"
		     : "+r"(address)
		     :
		     : "r1", "r2");
	return address;
}

static __always_inline u64 skb_head(struct skb s)
{
	return s.trusted ? address_of(s.p->head) : kread_ptr((struct sk_buff *)s.at, head);
}

static __always_inline u64 skb_data(struct skb s)
{
	return s.trusted ? address_of(s.p->data) : kread_ptr((struct sk_buff *)s.at, data);
}

static __always_inline u64 skb_sk(struct skb s)
{
	return kread_ptr((struct sk_buff *)skb_address(s), sk);
}

static __always_inline u64 skb_dev(struct skb s)
{
	return s.is_known ? s.dev : kread_ptr((struct sk_buff *)skb_address(s), dev);
}

/* Address and device are needed from here on. */
static __always_inline struct skb looked_at(struct skb s)
{
	s.at = skb_address(s);
	s.dev = kread_ptr((struct sk_buff *)s.at, dev);
	s.is_known = true;
	return s;
}

#endif
