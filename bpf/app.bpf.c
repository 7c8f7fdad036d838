// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What applications ask of the network, and what becomes of it: an event wherever bytes cross from one layer into the
 * next, in both directions (after MAGNeT, 2001). An object of its own: sockets (sockets.bpf.h), TCP's state
 * (tcpstate.bpf.h), crossings (crossings.bpf.h, writer.bpf.h), and where they are seen: at tracepoints (crossing_points.bpf.h), at functions where
 * there is none (crossing_functions.bpf.h). No byte of what is sent is ever read, only lengths and headers.
 *
 * A program's name begins with t (tracepoint), f (function's entry) or r (its return) and the number of its crossing.
 */
#define KPAT_APP
#include "crossing_points.bpf.h"
#include "crossing_functions.bpf.h"

char LICENSE[] SEC("license") = "GPL";
