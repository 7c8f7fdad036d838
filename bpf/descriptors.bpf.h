/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What a number of the current task's table of open files stands for. */
#ifndef KPAT_DESCRIPTORS_H
#define KPAT_DESCRIPTORS_H

#include "ring.bpf.h"

#define S_IFMT 0170000
#define S_IFREG 0100000
#define S_IFCHR 0020000
#define S_IFIFO 0010000
#define S_IFSOCK 0140000

struct pipe_inode_info___kpat {
	unsigned int head, tail;
} __core;

struct inode___pipe {
	unsigned short i_mode;
	unsigned long i_ino;
	struct pipe_inode_info___kpat *i_pipe;
} __core;

struct file___open {
	struct inode___pipe *f_inode;
	void *private_data;
} __core;

struct fdtable___open {
	unsigned int max_fds;
	struct file___open **fd;
} __core;

struct files_struct___open {
	struct fdtable___open *fdt;
} __core;

struct task_struct___files {
	struct files_struct___open *files;
} __core;

struct socket___open {
	struct sock *sk;
} __core;

/* What is open by this number; NULL: nothing is. */
static __always_inline struct file___open *file_of(u64 number)
{
	struct task_struct___files *task = (void *)bpf_get_current_task();
	struct fdtable___open *table = BPF_CORE_READ(task, files, fdt);
	struct file___open *file = NULL;

	number = (u32)number;
	if (number < BPF_CORE_READ(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + number);
	return file;
}

/* The inode of what is open by this number, if it is of this kind, else NULL. */
static __always_inline struct inode___pipe *inode_of(struct file___open *file, u32 kind)
{
	struct inode___pipe *inode = file ? BPF_CORE_READ(file, f_inode) : NULL;

	return inode && (BPF_CORE_READ(inode, i_mode) & S_IFMT) == kind ? inode : NULL;
}

/* Of a file that is a socket. */
static __always_inline struct sock *sock_of(struct file___open *file)
{
	struct socket___open *socket = BPF_CORE_READ(file, private_data);

	return socket ? BPF_CORE_READ(socket, sk) : NULL;
}

#endif
