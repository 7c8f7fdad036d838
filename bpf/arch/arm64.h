/* SPDX-License-Identifier: GPL-2.0-or-later */
/* arm64, little-endian; see arch.h. */
#ifndef KPAT_ARCH_ARM64_H
#define KPAT_ARCH_ARM64_H

/* The kernel's begins as struct user_pt_regs of arch/arm64/include/uapi/asm/ptrace.h, fixed by the ABI; there is more behind it. */
struct pt_regs {
	u64 regs[31], sp, pc, pstate;
};

static __always_inline u64 reg_arg(struct pt_regs *regs, u32 i)
{
	switch (i) {
	case 0:
		return REG(regs, regs[0]);
	case 1:
		return REG(regs, regs[1]);
	case 2:
		return REG(regs, regs[2]);
	case 3:
		return REG(regs, regs[3]);
	case 4:
		return REG(regs, regs[4]);
	default:
		return REG(regs, regs[5]);
	}
}

static __always_inline u64 reg_ret(struct pt_regs *regs)
{
	return regs->regs[0];
}

static __always_inline u64 reg_pc(struct pt_regs *regs)
{
	return REG(regs, pc);
}

static __always_inline u64 entry_key(struct pt_regs *regs)
{
	return regs->sp;
}

/* The same: the return address is in a register, not on the stack. */
static __always_inline u64 return_key(struct pt_regs *regs)
{
	return regs->sp;
}

struct pt_regs___syscall {
	u64 orig_x0;
	s32 syscallno;
} __core;

/* A task's registers at its entry into the kernel: was that by a system call? Other entries store a negative number. */
static __always_inline bool in_system_call(struct pt_regs *regs)
{
	return regs && ((struct pt_regs___syscall *)regs)->syscallno >= 0;
}

/* The system call that a task is in, and one of its first three arguments; in the register of the first the result is at the end. */
static __always_inline long system_call_of(struct pt_regs *regs)
{
	return ((struct pt_regs___syscall *)regs)->syscallno;
}

static __always_inline u64 system_call_arg(struct pt_regs *regs, u32 i)
{
	return i == 0 ? ((struct pt_regs___syscall *)regs)->orig_x0 : i == 1 ? regs->regs[1] : regs->regs[2];
}

/* The fourth. */
static __always_inline u64 system_call_arg4(struct pt_regs *regs)
{
	return regs->regs[3];
}

/* The fifth. */
static __always_inline u64 system_call_arg5(struct pt_regs *regs)
{
	return regs->regs[4];
}

#define SYS_EPOLL_PWAIT 22
#define SYS_FCNTL 25
#define SYS_FLOCK 32
#define SYS_READ 63
#define SYS_WRITE 64
#define SYS_READV 65
#define SYS_WRITEV 66
#define SYS_SENDFILE 71
#define SYS_PSELECT6 72
#define SYS_PPOLL 73
#define SYS_VMSPLICE 75
#define SYS_SPLICE 76
#define SYS_TEE 77
#define SYS_EXIT 93
#define SYS_WAITID 95
#define SYS_FUTEX 98
#define SYS_NANOSLEEP 101
#define SYS_CLOCK_NANOSLEEP 115
#define SYS_RT_SIGSUSPEND 133
#define SYS_RT_SIGTIMEDWAIT 137
#define SYS_MQ_TIMEDSEND 182
#define SYS_MQ_TIMEDRECEIVE 183
#define SYS_MSGRCV 188
#define SYS_MSGSND 189
#define SYS_SEMTIMEDOP 192
#define SYS_SEMOP 193
#define SYS_ACCEPT 202
#define SYS_CONNECT 203
#define SYS_SENDTO 206
#define SYS_RECVFROM 207
#define SYS_SENDMSG 211
#define SYS_RECVMSG 212
#define SYS_ACCEPT4 242
#define SYS_RECVMMSG 243
#define SYS_WAIT4 260
#define SYS_SENDMMSG 269
#define SYS_IO_URING_SETUP 425
#define SYS_IO_URING_ENTER 426
#define SYS_EPOLL_PWAIT2 441

/*
 * Bit 55 says by which of the two page tables an address is translated, whatever their levels and the size of pages. Not the highest: a
 * pointer may have a tag in its upper byte (KASAN).
 */
static __always_inline bool kernel_address(u64 p)
{
	return p >> 55 & 1;
}

/* In the task, not in a variable of the CPU. */
struct task_struct___arm64 {
	struct {
		struct {
			u32 count;
		} preempt;
	} thread_info;
} __core;

static __always_inline bool preemption_count(u32 *n)
{
#ifdef KPAT_DIRECT
	*n = ((struct task_struct___arm64 *)bpf_get_current_task_btf())->thread_info.preempt.count;
#else
	*n = BPF_CORE_READ((struct task_struct___arm64 *)bpf_get_current_task(), thread_info.preempt.count);
#endif
	return true;
}

/*
 * Stores are seen in any order here. BPF has a store with release from Linux 6.15 on (clang 21, -mcpu=v4), and clang 19 compiles no
 * __atomic_store_n() at all. An exchange is older (arm64: 5.18) and orders on both sides: the kernel makes SWPAL of it or, on processors without, a
 * loop that ends in STLXR, and DMB. It costs the load of a word that is in the cache already.
 */
static __always_inline void store_release(u64 *at, u64 v)
{
	__sync_lock_test_and_set(at, v);
}

/*
 * Nor is there a load with acquire before 6.15. Who got its packet or its task from another CPU was ordered by how the kernel handed it on (a
 * lock, a queue, the scheduler); who meets a word that another CPU has just released must be right, too, with what was there before.
 */
#define LOADS_IN_ORDER 0

#endif
