/* Probes in the kernel of a QEMU guest, from its host.
 *
 * An XP is a probe at an instruction, with a handler before it and one after it; an XRP one at a function, with a handler at its entry and
 * one at its return. Handlers run in kpat_guest_loop(), while the guest's processor waits. They may change registers and memory,
 * enable, disable and unregister probes, and stop the loop. Handlers that are not set are NULL.
 *
 * One thread uses a guest at a time. Functions that return int return 0, those that register a handle above 0; anything negative is
 * an error, whose sentence kpat_guest_error() has.
 */
#ifndef KPAT_GUEST_H
#define KPAT_GUEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kpat_guest;

struct kpat_regs {
	uint64_t rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi;
	uint64_t r8, r9, r10, r11, r12, r13, r14, r15;
	uint64_t rflags, rip, cr3;
};

/* Before an instruction: return 0; or not 0, and execution goes on at what rip was set to. At the entry of a function: not 0 if
 * its return is not wanted. Otherwise what is returned has no meaning. rsp and cr3 cannot be changed. */
typedef int (*kpat_handler)(struct kpat_guest *guest, int32_t handle, struct kpat_regs *regs);

/* By the path of a QMP socket, the process of QEMU, or the guest's name. NULL: kpat_guest_error(NULL) says why. */
struct kpat_guest *kpat_guest_attach(const char *target);
/* Takes all probes out and leaves the guest as it was. */
int kpat_guest_detach(struct kpat_guest *guest);

/* Takes source lines from a file with debug information, the kernel's vmlinux or a module, so that `where` may be one. A file of another
 * build than what runs in the guest is refused. May be called for several files. */
int kpat_guest_debug_file(struct kpat_guest *guest, const char *path);
/* where: function, function+0x10, 0xffffffff81234567; with a debug file net/ipv4/ip_input.c:523, of whose path the end is enough, or
 * function@include/linux/skbuff.h:100 for a line that several functions have;
 * with #2 behind it the second of the places that the line has in one. */
int32_t kpat_guest_register_xp(struct kpat_guest *guest, const char *where, kpat_handler before, kpat_handler after);
int kpat_guest_unregister_xp(struct kpat_guest *guest, int32_t handle);
/* maxactive: calls that can be open at the same time; 0: as many as is usual. */
int32_t kpat_guest_register_xrp(struct kpat_guest *guest, const char *where, kpat_handler entry, kpat_handler returned, uint32_t maxactive);
int kpat_guest_unregister_xrp(struct kpat_guest *guest, int32_t handle);
/* From here on registered probes wait for kpat_guest_commit() or the loop: the guest is stopped once for all of them. */
int kpat_guest_hold(struct kpat_guest *guest);
int kpat_guest_commit(struct kpat_guest *guest);
/* Serves the probes until somebody calls kpat_guest_stop(), which is 0; 1: the guest is off, 2: it began anew, 3: it was set back to
 * a snapshot from before the probes. */
int kpat_guest_loop(struct kpat_guest *guest);
/* The same for several guests, until the first of them ends the loop, in the same way; `which` (it may be NULL) is which. */
int kpat_guest_loop_all(struct kpat_guest **guests, size_t count, size_t *which);
int kpat_guest_enable(struct kpat_guest *guest, int32_t handle, int on);
/* In a handler, or in a signal's handler or another thread while the loop runs. */
int kpat_guest_stop(struct kpat_guest *guest);

/* In a handler: room of `size` bytes that is kept from the entry of a call to its return, zero at first. */
void *kpat_guest_data(struct kpat_guest *guest, size_t size);
/* Memory of the kernel; in a handler also that of the running process. All or nothing. */
int kpat_guest_read(struct kpat_guest *guest, uint64_t address, void *to, size_t size);
int kpat_guest_write(struct kpat_guest *guest, uint64_t address, const void *from, size_t size);
/* A text with its zero, cut to `size`. Returns its length. */
int kpat_guest_string(struct kpat_guest *guest, uint64_t address, char *to, size_t size);
/* Address of a kernel's symbol; 0: there is none. */
uint64_t kpat_guest_symbol(struct kpat_guest *guest, const char *name);
/* Offset of a member in bytes, by the kernel's own types: task_struct.comm. */
int64_t kpat_guest_offset(struct kpat_guest *guest, const char *path);
/* Calls `each` (it may be NULL) with all symbols, kind as nm has it; returns how many there are. */
int kpat_guest_symbols(struct kpat_guest *guest, void (*each)(void *context, const char *name, uint64_t address, char kind), void *context);
/* In a handler: address of the running task's structure (0: not known), number of the processor, its time stamp counter. */
uint64_t kpat_guest_task(struct kpat_guest *guest);
int kpat_guest_cpu(struct kpat_guest *guest);
uint64_t kpat_guest_ticks(struct kpat_guest *guest);
double kpat_guest_ticks_per_second(struct kpat_guest *guest);

struct kpat_process {
	uint32_t pid, parent;
	uint64_t task;
	/* In the kernel's list of tasks; found by its number. One without the other: somebody hides it. */
	int listed, numbered;
	char comm[32];
};
/* Calls `each` with the guest's processes; returns how many there are. */
int kpat_guest_processes(struct kpat_guest *guest, void (*each)(void *context, const struct kpat_process *process), void *context);

/* Hits of a probe, also in a handler, whose own hit is counted when it has returned; of a call that is when it returned. */
uint64_t kpat_guest_hits(struct kpat_guest *guest, int32_t handle);
/* Hits that went on without a handler, and calls whose return was not seen. */
uint64_t kpat_guest_missed(struct kpat_guest *guest, int32_t handle);
/* Of the last call that failed. */
const char *kpat_guest_error(struct kpat_guest *guest);

#ifdef __cplusplus
}
#endif
#endif
