/* SPDX-License-Identifier: GPL-2.0-or-later */
/* x86-64; see arch.h. */
#ifndef KPAT_ARCH_X86_64_H
#define KPAT_ARCH_X86_64_H

/* arch/x86/include/asm/ptrace.h, fixed by the ABI */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

static __always_inline u64 reg_arg(struct pt_regs *regs, u32 i)
{
	switch (i) {
	case 0:
		return REG(regs, di);
	case 1:
		return REG(regs, si);
	case 2:
		return REG(regs, dx);
	case 3:
		return REG(regs, cx);
	case 4:
		return REG(regs, r8);
	default:
		return REG(regs, r9);
	}
}

static __always_inline u64 reg_ret(struct pt_regs *regs)
{
	return regs->ax;
}

static __always_inline u64 reg_pc(struct pt_regs *regs)
{
	return REG(regs, ip);
}

static __always_inline u64 entry_key(struct pt_regs *regs)
{
	return regs->sp;
}

/* The return address has been popped. */
static __always_inline u64 return_key(struct pt_regs *regs)
{
	return regs->sp - 8;
}

/* A task's registers at its entry into the kernel: was that by a system call? Other entries store a negative number. */
static __always_inline bool in_system_call(struct pt_regs *regs)
{
	return regs && (long)regs->orig_ax >= 0;
}

/* The system call that a task is in, and one of its first three arguments. */
static __always_inline long system_call_of(struct pt_regs *regs)
{
	return regs->orig_ax;
}

static __always_inline u64 system_call_arg(struct pt_regs *regs, u32 i)
{
	return i == 0 ? regs->di : i == 1 ? regs->si : regs->dx;
}

/* The fourth. */
static __always_inline u64 system_call_arg4(struct pt_regs *regs)
{
	return regs->r10;
}

/* The fifth. */
static __always_inline u64 system_call_arg5(struct pt_regs *regs)
{
	return regs->r8;
}

#define SYS_READ 0
#define SYS_WRITE 1
#define SYS_POLL 7
#define SYS_READV 19
#define SYS_WRITEV 20
#define SYS_SELECT 23
#define SYS_PAUSE 34
#define SYS_NANOSLEEP 35
#define SYS_SENDFILE 40
#define SYS_CONNECT 42
#define SYS_ACCEPT 43
#define SYS_SENDTO 44
#define SYS_RECVFROM 45
#define SYS_SENDMSG 46
#define SYS_RECVMSG 47
#define SYS_EXIT 60
#define SYS_WAIT4 61
#define SYS_SEMOP 65
#define SYS_MSGSND 69
#define SYS_MSGRCV 70
#define SYS_FCNTL 72
#define SYS_FLOCK 73
#define SYS_RT_SIGTIMEDWAIT 128
#define SYS_RT_SIGSUSPEND 130
#define SYS_FUTEX 202
#define SYS_SEMTIMEDOP 220
#define SYS_CLOCK_NANOSLEEP 230
#define SYS_EPOLL_WAIT 232
#define SYS_MQ_TIMEDSEND 242
#define SYS_MQ_TIMEDRECEIVE 243
#define SYS_WAITID 247
#define SYS_PSELECT6 270
#define SYS_PPOLL 271
#define SYS_SPLICE 275
#define SYS_TEE 276
#define SYS_VMSPLICE 278
#define SYS_EPOLL_PWAIT 281
#define SYS_ACCEPT4 288
#define SYS_RECVMMSG 299
#define SYS_SENDMMSG 307
#define SYS_IO_URING_SETUP 425
#define SYS_IO_URING_ENTER 426
#define SYS_EPOLL_PWAIT2 441

/* The upper half of the address space, with four levels of page tables and with five: both extend the sign. */
static __always_inline bool kernel_address(u64 p)
{
	return (s64)p < 0;
}

/* In pcpu_hot from 6.2 to 6.14, in a variable of its own before and after. */
struct pcpu_hot {
	int preempt_count;
} __core;
extern const struct pcpu_hot pcpu_hot __ksym __weak;
extern const int __preempt_count __ksym __weak;

static __always_inline bool preemption_count(u32 *n)
{
	if (bpf_ksym_exists(&__preempt_count))
		*n = *(const int *)bpf_this_cpu_ptr(&__preempt_count);
	else if (bpf_ksym_exists(&pcpu_hot))
		*n = ((const struct pcpu_hot *)bpf_this_cpu_ptr(&pcpu_hot))->preempt_count;
	else
		return false;
	return true;
}

/* A CPU's stores are seen in their order, and none before its earlier loads were made: only the compiler has to be prevented. */
static __always_inline void store_release(u64 *at, u64 v)
{
	barrier();
	*(volatile u64 *)at = v;
}

#define LOADS_IN_ORDER 1

#endif
