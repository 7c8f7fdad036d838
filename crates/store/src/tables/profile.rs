//! Tables of a profile: whom the CPUs worked for, and which functions their time went to.

use super::table;

table! { WORK, WorkRow, "work", 65536,
    "CPU time by whose it was and whom it was for, over the whole recording. Of one CPU all rows and what found no place (`cpu_account.unplaced_ns`) add up to the time that its account was open.",
    "`cpu`, `busy`, `purpose`. Source: kernel behaviour log (profile), joined with who used which socket.", {
    cpu: i32, Dict, "", "", "", "CPU.";
    busy: i32, Dict, "code", "", "", "What the CPU was busy with.";
    purpose: i32, Dict, "code", "", "", "For whom.";
    victim: Option<i32>, Dict, "", "", "the CPU was idle otherwise", "Process (or kernel thread) whose time it was: its number, as in `process_label`.";
    beneficiary: Option<i32>, Dict, "", "", "no process; with purpose 1: nobody used the socket; with 8 and 13: the client is on another host, see `peer`", "Process whom it is charged to; with purpose 8 and 13 the client, and it is charged to the victim.";
    time_ns: i64, Delta, "ns", "", "", "Time.";
    packets: i64, Delta, "", "", "", "Packets; of `busy` 2 system calls, of 8 page faults; of `purpose` 7 block requests.";
    bytes: i64, Delta, "bytes", "", "", "Their lengths; of `purpose` 13 how many of `time_ns` are the client's only if no other work came to where it was handed.";
    netns: Option<i64>, Dict, "", "", "not forwarded, or not known", "Of `purpose` 2: inode of the network namespace.";
    in_ifindex: Option<i32>, Dict, "", "", "not forwarded, or not known", "Of `purpose` 2: the interface by which the packets came.";
    out_ifindex: Option<i32>, Dict, "", "", "not forwarded, or not known", "Of `purpose` 2: the interface by which they went on.";
} }

table! { PROCESS_LABEL, ProcessLabelRow, "process_label", 65536,
    "What a process belongs to: as first seen, and as it changed.",
    "`at_ns`. Source: kernel behaviour log.", {
    at_ns: i64, Delta, "ns", "boot", "", "When that was known.";
    process: i32, Delta, "", "", "", "Number of the process: its id, and 4,194,304 for each process that had the id before it since recording began. 0: the row says what a socket's user and cgroup are called.";
    started_ns: Option<i64>, Delta, "ns", "boot", "not known", "When it began.";
    uid: i64, Dict, "", "", "", "Number of its user.";
    cgroup: Option<i64>, Dict, "", "", "not known", "Identifier of its cgroup (inode in cgroup2).";
    path: String, Dict, "", "", "", "Path of its cgroup, empty: not known, or left out (`--anonymise`).";
    name: String, Dict, "", "", "", "What it was called then: as its first thread; of one that was gone when another of its threads was seen as that one.";
    user: String, Dict, "", "", "", "What the device called the user, empty: nothing, or left out (`--anonymise`).";
} }

table! { CPU_ACCOUNT, CpuAccountRow, "cpu_account", 16384,
    "The time of a CPU that `work` accounts for, and what the kernel's own account (/proc/stat) says of it. A pause of the recording begins another row.",
    "`cpu`, `from_ns`. Source: kernel behaviour log (profile).", {
    cpu: i32, Dict, "", "", "", "CPU.";
    from_ns: i64, Delta, "ns", "boot", "", "From here on ...";
    to_ns: i64, Delta, "ns", "boot", "", "... up to here.";
    unplaced_ns: i64, Delta, "ns", "", "", "Of that, time for which there was no room among the kernel side's sums.";
    user_ns: i64, Delta, "ns", "", "", "By /proc/stat, read before and after each of the two moments: user mode, with nice. Ticks, where the kernel does not measure interrupts (CONFIG_IRQ_TIME_ACCOUNTING).";
    system_ns: i64, Delta, "ns", "", "", "The same: kernel.";
    idle_ns: i64, Delta, "ns", "", "", "The same: idle, with waiting for I/O.";
    irq_ns: i64, Delta, "ns", "", "", "The same: hard interrupts.";
    softirq_ns: i64, Delta, "ns", "", "", "The same: softirqs.";
    steal_ns: i64, Delta, "ns", "", "", "The same: the hypervisor ran something else.";
    packets_counted: Option<i64>, Delta, "", "", "not in the log", "Packets that this CPU received in this time, as far as programs ran for them.";
    packets_received: Option<i64>, Delta, "", "", "not in the log", "The same by /proc/net/softnet_stat.";
} }

table! { BLOCK_ACCOUNT, BlockAccountRow, "block_account", 16384,
    "Requests of disks that were completed on all CPUs, by the programs and by the kernel. Where the kernel has more, programs did not run for each: work for those is not in `work`. A pause of the recording begins another row.",
    "`from_ns`. Source: kernel behaviour log (profile).", {
    from_ns: i64, Delta, "ns", "boot", "", "From here on ...";
    to_ns: i64, Delta, "ns", "boot", "", "... up to here.";
    counted: i64, Delta, "", "", "", "Requests completed in this time, as far as programs ran for them.";
    completed: i64, Delta, "", "", "", "The same by /proc/diskstats: reads, writes, discards and flushes of disks that have queues of requests. Each of the two is read a moment after the other.";
} }

table! { PEER, PeerRow, "peer", 16384,
    "The ends of messages between this host and another one: a connection, or where datagrams came from and to. A recording of the other host has the same ends the other way around, which says which process there it was.",
    "The kernel side's numbers of them. Source: kernel behaviour log (profile).", {
    at_ns: i64, Delta, "ns", "boot", "", "When the first message was taken.";
    socket_id: i64, Dict, "", "", "", "The kernel's cookie of this host's socket.";
    process: i32, Dict, "", "", "", "Process of this host; of several servers at one end each has a row.";
    proto: i32, Dict, "code", "", "", "IP protocol: 6 TCP, 17 UDP.";
    local_addr: Option<String>, Dict, "", "", "left out, or a socket of datagrams that has no peer", "This host's address, as `socket.local_addr`.";
    local_port: i32, Dict, "", "", "", "This host's port.";
    peer_addr: Option<String>, Dict, "", "", "left out", "The other host's address.";
    peer_port: i32, Dict, "", "", "", "The other host's port.";
    served_ns: Option<i64>, Delta, "ns", "", "this host's end is no server", "The process's own time since it took a message there until it took one of another; part of its rows in `work` with `purpose` 8 or 13 and no beneficiary.";
} }

table! { SAMPLE, SampleRow, "sample", 65536,
    "What a CPU was doing when its clock interrupted it, at a rate that changes. Whose time it was, and how much, `work` says exactly; samples say which functions it went to.",
    "`at_ns`, `cpu`. Source: kernel behaviour log (profile), joined with who used which socket.", {
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    cpu: i32, Dict, "", "", "", "CPU.";
    thread: Option<i32>, Dict, "", "", "the CPU was idle otherwise", "Task that was interrupted.";
    victim: Option<i32>, Dict, "", "", "the CPU was idle otherwise", "Its process.";
    busy: i32, Dict, "code", "", "", "What the CPU was busy with.";
    purpose: i32, Dict, "code", "", "", "For whom.";
    beneficiary: Option<i32>, Dict, "", "", "no process; with purpose 1: nobody used the socket; with 8: the client is on another host, see `peer`", "Process whom it is charged to.";
    drawn: i32, Dict, "", "", "", "1: the packet's owner was not known yet: for whom was drawn by lot, by the shares that `work` has for that CPU and process.";
    user_mode: i32, Dict, "", "", "", "1: the CPU was in user mode: 0 with `busy` user: it was in a page fault or on its way in or out of the kernel.";
    period_ns: i64, Dict, "ns", "", "", "What the sample stands for: the time between two of that CPU, about then.";
    kernel_stack: Option<i32>, Dict, "", "", "none, or it was lost", "Stack in the kernel; of a softirq with what it interrupted in the kernel.";
    user_stack: Option<i32>, Dict, "", "", "none, or it was lost; not taken in interrupts", "Stack in user mode.";
} }

table! { STACK, StackRow, "stack", 65536,
    "Frames of the stacks of samples. A frame with inlined functions is several rows.",
    "`stack`, `depth`. Source: kernel behaviour log (profile), with names out of the files that were mapped, where they were found by their build id.", {
    stack: i32, Delta, "", "", "", "Number of the stack.";
    depth: i32, Dict, "", "", "", "0: innermost.";
    function: Option<String>, Dict, "", "", "not known", "Function.";
    file: Option<String>, Dict, "", "", "not known, or the code was made at run time", "File that has it; `[kernel]`.";
    offset: Option<i64>, Delta, "bytes", "", "not known", "Place in the file, of the kernel's and of functions made at run time in the function.";
    line: Option<String>, Dict, "", "", "no debug information", "Place in the source: `file.c:12`.";
    inlined: i32, Dict, "", "", "", "1: inlined into the next row's.";
} }
