//! The declarations. One line per column: name, type, encoding, unit, clock, meaning of null, meaning.
//!
//! Addresses are text: engines filter and join on them without knowing how we pack bytes, and dictionary encoding makes
//! them as small as numbers. Names that the kernel gives (drop reasons, symbols, functions) are tables of their own.

use super::network::{EXCHANGE, LINK_EVENT, WIFI_EVENT};
use super::profile::{BLOCK_ACCOUNT, CPU_ACCOUNT, PEER, PROCESS_LABEL, SAMPLE, STACK, WORK};
use super::{Table, table};

table! { PACKET, PacketRow, "packet", 65536,
    "One protocol data unit's life in the kernel.",
    "about `packet_id` (the order in which packets ended). Source: kernel behaviour log.", {
    packet_id: i64, Delta, "", "", "", "Number of the packet; never repeats within a log.";
    first_ns: i64, Delta, "ns", "boot", "", "First moment at which the log knows the packet (entry of the first call, first point or footprint).";
    last_ns: i64, Delta, "ns", "boot", "", "Last moment (return of the last call, last point or event).";
    path_ns: i64, Delta, "ns", "", "", "From `first_ns` until it was read, or to `last_ns`: that a packet which was read is freed later is not in it.";
    kernel_ns: i64, Delta, "ns", "", "", "Sum of the self times of its calls; a call on a list counts in full for each member.";
    ethertype: Option<i32>, Dict, "code", "", "unknown", "EtherType of the first footprint; of a frame without one 0x0042, spanning tree, or 0x0004, another with an LLC header.";
    proto: Option<i32>, Dict, "code", "", "not IP", "IP protocol.";
    src_addr: Option<String>, Dict, "", "", "not IP or ARP", "Network source as first seen (before NAT).";
    dst_addr: Option<String>, Dict, "", "", "not IP or ARP", "Network destination as first seen (before NAT).";
    sport: Option<i32>, Dict, "", "", "not TCP or UDP", "Source port as first seen.";
    dport: Option<i32>, Dict, "", "", "not TCP or UDP", "Destination port as first seen.";
    tcp_flags: Option<i32>, Dict, "code", "", "not TCP", "Flags, FIN = 1.";
    tcp_seq: Option<i64>, Delta, "", "", "not TCP", "Sequence number.";
    icmp_kind: Option<i32>, Dict, "code", "", "not ICMP", "ICMP or ICMPv6 type.";
    icmp_code: Option<i32>, Dict, "code", "", "not ICMP", "ICMP or ICMPv6 code.";
    icmp_id: Option<i32>, Dict, "", "", "not ICMP", "Echo identifier.";
    icmp_seq: Option<i32>, Delta, "", "", "not ICMP", "Echo sequence.";
    arp_op: Option<i32>, Dict, "code", "", "not ARP", "ARP operation.";
    tcp_tsval: Option<i64>, Delta, "", "", "not TCP, or without timestamps", "Value of TCP's timestamps option.";
    tcp_tsecr: Option<i64>, Delta, "", "", "not TCP, or without timestamps", "Value that it echoes.";
    message: Option<String>, Dict, "", "", "nothing beyond the other columns", "What it says, as text: DNS, DHCP, ARP, TCP's other options, what an ICMP message is about.";
    message_frame: Option<i32>, Dict, "", "", "`message` is of the headers that the kernel had", "1: `message` is of a matched frame, because recordings keep headers alone (the first 262,144 such frames of a log).";
    len_bytes: i64, Delta, "bytes", "", "", "Length of the network-layer packet, without link header: IPv4 total length, IPv6 payload length + 40, else what follows the link header. Of a packet that stands for several frames (offload) that of the whole. 0: never seen.";
    frames: i32, Dict, "", "", "", "Wire frames associated with it; those of its segments and fragments are theirs (see `lineage`).";
    calls: i32, Delta, "", "", "", "Calls that touched it, list calls included.";
    points: i32, Dict, "", "", "", "Tracepoints that it passed.";
    verdict: i32, Dict, "code", "", "", "What became of it.";
    drop_reason: Option<i32>, Dict, "code", "", "no drop event", "Number of the drop reason, name in table `drop_reason`.";
    pid: Option<i32>, Dict, "", "", "no task is known to have asked for it", "Thread that sent or received it.";
    netns: Option<i64>, Dict, "", "", "unknown", "Inode of the network namespace first seen in.";
    if_in: Option<i32>, Dict, "", "", "not received by a device", "ifindex of the device that it came in by.";
    if_out: Option<i32>, Dict, "", "", "not given to a device", "ifindex of the device that it was last given to.";
    if_in_netns: Option<i64>, Dict, "", "", "unknown", "Network namespace of `if_in`.";
    if_out_netns: Option<i64>, Dict, "", "", "unknown", "Network namespace of `if_out`.";
    confidence: Option<i32>, Dict, "percent", "", "no frame", "Best confidence of its associations.";
    cpu: Option<i32>, Dict, "", "", "unknown", "CPU of its earliest call or point.";
    end_ns: Option<i64>, Delta, "ns", "boot", "not seen", "When its header buffer was freed.";
    driver_ns: Option<i64>, Delta, "ns", "", "not received in a poll of which everything is in the log", "Before `first_ns`: since the poll that received it began, or since the packet before it in that poll was done with. What a driver does before any function has the packet, and what was not recorded in between.";
    softirq_ns: Option<i64>, Delta, "ns", "", "not the first packet of its softirq", "Before that: since NET_RX was raised on this CPU, for the first packet of a softirq.";
    stamp_ns: Option<i64>, Delta, "ns", "", "the card that received it did not stamp it, or does not stamp", "The card's own time stamp, by the card's clock (see `card_clock`).";
    card_ns: Option<i64>, Delta, "ns", "", "no stamp, or the card's clock is not known there", "Before `first_ns`: since the card stamped it, plus or minus `card_bound_ns`. In the card, over the bus, and waiting for its driver, whose work (`driver_ns`) is the end of it.";
    card_bound_ns: Option<i64>, Delta, "ns", "", "as `card_ns`", "Bound of `card_ns`.";
} }

table! { CALL, CallRow, "call", 131_072,
    "One execution of one function that touched a packet, or one passing of a tracepoint.",
    "trees in the order in which their root ended, each tree in order of entry: a packet's life is a short run of row groups. Source: kernel behaviour log.", {
    call_id: i64, Delta, "", "", "", "Number of the call, its place in this table.";
    packet_id: Option<i64>, Delta, "", "", "no packet known", "Packet (of a list: the first one, the others are in `call_member`).";
    func_id: i32, Dict, "", "", "", "Function, see table `function`.";
    entry_ns: i64, Delta, "ns", "boot", "", "Entry, or the moment of a point.";
    dur_ns: Option<i64>, Delta, "ns", "", "a point, or the return was not recorded", "Entry to return.";
    self_ns: Option<i64>, Delta, "ns", "", "a point, or the return was not recorded", "Duration less direct children less `irq_ns` less `off_ns`.";
    irq_ns: Option<i64>, Delta, "ns", "", "a point, or the return was not recorded", "Recorded interrupt work that cut in directly into this call (not into a child) on the same CPU.";
    off_ns: Option<i64>, Delta, "ns", "", "a point, or the return was not recorded", "Time in which its task was off the CPU directly within this call (not in a child), asleep or preempted; see `pause`. 0 where the log has no pauses.";
    parent_id: Option<i64>, Delta, "", "", "called by something that was not recorded", "Call that encloses it in the same context.";
    depth: i32, Dict, "", "", "", "0: no recorded caller.";
    cpu: i32, Dict, "", "", "", "CPU of the return.";
    ctx: i32, Dict, "code", "", "", "0 task, 1 softirq, 2 hardirq, 3 NMI, 4 unknown.";
    pid: i32, Dict, "", "", "", "Thread that was current; in interrupt context whoever happened to run.";
    flags: i32, Dict, "code", "", "", "1 list, 2 return not seen, 4 packet was the return value, 8 the packet's buffer was freed in it, 16 the function has no packet and was called within a call of this one, 32 (with 2) only entries of the function are recorded, by choice, 256 point, 512 self time clamped at 0 because the records contradict each other.";
    skb_tag: i32, Dict, "", "", "", "Low bits of the skb's address: tells clones apart. 0: not known (by kprobes, and where the packet is behind a pointer). With flag 16: what the function returned, 16 bits (see `function.via`).";
    len_bytes: Option<i32>, Dict, "bytes", "", "not a point", "`skb->len` at a point.";
} }

table! { CALL_MEMBER, CallMemberRow, "call_member", 131_072,
    "Further packets of calls on lists.",
    "as `call`. Source: kernel behaviour log.", {
    call_id: i64, Delta, "", "", "", "The call.";
    packet_id: i64, Delta, "", "", "", "A packet on its list, the first one excepted.";
    entry_ns: i64, Delta, "ns", "boot", "", "Entry of the call.";
} }

table! { PAUSE, PauseRow, "pause", 65536,
    "A task that handles packets was off the CPU. Pauses of tasks are logged when they next handle one.",
    "about `to_ns`. Source: kernel behaviour log.", {
    pid: i32, Dict, "", "", "", "Thread.";
    from_ns: i64, Delta, "ns", "boot", "", "Taken off the CPU.";
    to_ns: i64, Delta, "ns", "boot", "", "Running again.";
    preempted: i32, Dict, "", "", "", "1: it could have gone on and was not let; 0: it waited for something.";
    woken_ns: Option<i64>, Delta, "ns", "boot", "preempted, or the waking was not seen", "When what it waited for had come: from then on it waited for the CPU.";
    cpu_out: i32, Dict, "", "", "", "CPU that it was taken off.";
    cpu_in: i32, Dict, "", "", "", "CPU that it came back on.";
    slept_for: Option<i32>, Dict, "code", "", "preempted, or not known", "What it waited for.";
} }

table! { CALL_INDEX, CallIndexRow, "call_index", 65536,
    "Which row groups of `call` hold calls of a function, and how long they lasted: a question about one function reads only those that can answer it.",
    "`func_id`, `row_group`. Source: integration.", {
    func_id: i32, Delta, "", "", "", "Function, see table `function`.";
    row_group: i32, Delta, "", "", "", "Row group of `call`, from 0: `call_id` divided by the rows of a group (131072).";
    calls: i32, Delta, "", "", "", "Its calls and points in that row group.";
    min_ns: Option<i64>, Delta, "ns", "", "no timed call there", "Shortest duration of them.";
    max_ns: Option<i64>, Delta, "ns", "", "no timed call there", "Longest duration of them.";
} }

table! { CALL_PATH, CallPathRow, "call_path", 65536,
    "Time by call path: the same functions called each other, one row for all such calls. What flame graphs, callers and callees are made of.",
    "`path_id`; callers before callees. Source: integration.", {
    path_id: i64, Delta, "", "", "", "Number of the path, its place in this table.";
    parent_id: Option<i64>, Delta, "", "", "called by nothing that was recorded", "Path of the caller.";
    func_id: i32, Dict, "", "", "", "Function at its end, see table `function`; -1: all others, where paths were too many to be kept.";
    depth: i32, Dict, "", "", "", "0: no recorded caller.";
    calls: i64, Delta, "", "", "", "Calls and points.";
    timed: i64, Delta, "", "", "", "Calls with a known duration: what the times are of.";
    total_ns: i64, Delta, "ns", "", "", "Sum of durations.";
    self_ns: i64, Delta, "ns", "", "", "Sum of self times.";
} }

table! { DURATION, DurationRow, "duration", 65536,
    "How the durations of each function's calls are spread, by powers of two.",
    "`func_id`, `from_ns`. Source: integration.", {
    func_id: i32, Delta, "", "", "", "Function, see table `function`.";
    from_ns: i64, Delta, "ns", "", "", "Calls that lasted at least this (0, then powers of two) ...";
    below_ns: i64, Delta, "ns", "", "", "... and less than this.";
    calls: i64, Delta, "", "", "", "How many; classes without calls are not there.";
} }

table! { EVENT, EventRow, "event", 65536,
    "A point in time without duration: drop, retransmission, state change, link or route change, recorder control.",
    "`at_ns`. Source: kernel behaviour log.", {
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    kind: i32, Dict, "code", "", "", "What happened (a packet's end is not stored here: `packet.last_ns`; nor a task's pause: table `pause`).";
    packet_id: Option<i64>, Delta, "", "", "no packet concerned", "Packet.";
    cpu: Option<i32>, Dict, "", "", "seen by user space, and not stamped by the kernel: not known", "CPU.";
    ctx: i32, Dict, "code", "", "", "As in `call`.";
    pid: Option<i32>, Dict, "", "", "not known", "Thread that was current; control: the recorder.";
    netns: Option<i64>, Dict, "", "", "unknown", "Inode of the network namespace.";
    a: i64, Delta, "", "", "", "Meaning by kind: drop: reason; retransmit, tcp-state: ports; link: ifindex; route: 1 added, 0 removed; neighbour: NUD state; address, queueing, namespace: 1 added, changed or came, 0 removed or went; bridge-port: its state; program: 0 it happened, 1 it begins, 2 it is over; log-line: the file, in the order given.";
    b: i64, Delta, "", "", "", "Meaning by kind: drop: address of the place (two's complement), see `symbol`; retransmit: TCP state; tcp-state: old << 8 | new; link: flags; neighbour, address, queueing, bridge-port: ifindex; namespace: inode; program: at its end how long it took, -1 if its beginning is not in the log, else of the connection that it names by its descriptor the local port << 16 | the peer's, 0: none; log-line: number of the line.";
    text: String, Dict, "", "", "", "Meaning by kind; empty for events of the kernel side.";
    after_ns: Option<i64>, Delta, "ns", "boot", "`at_ns` is the moment itself, or no bound is known", "It happened after this and not after `at_ns`, which is when it was read.";
    socket_id: Option<i64>, Delta, "", "", "none, several, or not known", "Program: the socket that it is about (`socket`): that of its descriptor, or the one of which its thread asked something between the call's entry and return.";
} }

table! { FOOTPRINT, FootprintRow, "footprint", 65536,
    "Header fields of a packet as the kernel held them: when first seen and at each change.",
    "`at_ns`. Source: kernel behaviour log.", {
    packet_id: i64, Delta, "", "", "", "Packet.";
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    netns: Option<i64>, Dict, "", "", "unknown", "Inode of the network namespace.";
    ifindex: Option<i32>, Dict, "", "", "no device known", "Device.";
    len_bytes: i64, Delta, "bytes", "", "", "`skb->len`.";
    gso_size: Option<i32>, Dict, "bytes", "", "not a segmentation packet", "Payload per segment.";
    gso_segs: Option<i32>, Dict, "", "", "not a segmentation packet", "Number of segments.";
    skb_tag: i32, Dict, "", "", "", "Low bits of the skb's address.";
    start_layer: i32, Dict, "code", "", "", "Layer at which the logged bytes began: 2, 3 or 4.";
} layers }

table! { FRAME, FrameRow, "frame", 65536,
    "One packet on the wire.",
    "`capture_id`, `number`. Source: captures.", {
    capture_id: i32, Dict, "", "", "", "Capture file, in the order given; see the manifest.";
    number: i64, Delta, "", "", "", "Number in its capture, from 1, as Wireshark counts.";
    interface: i32, Dict, "", "", "", "Interface within the capture; see table `interface`.";
    wall_ns: i64, Delta, "ns", "wall", "", "Time by the sniffer's clock.";
    boot_ns: Option<i64>, Delta, "ns", "boot", "the clocks could not be related", "The same moment by the DUT's clock, as estimated (see `clock` for the bound).";
    len_bytes: i32, Dict, "bytes", "", "", "Length on the wire.";
    captured_bytes: i32, Dict, "bytes", "", "", "Length in the file.";
    direction: Option<i32>, Dict, "code", "", "the capture does not say", "As the sniffer's host saw it: 1 inbound, 2 outbound.";
} layers }

table! { ASSOCIATION, AssociationRow, "association", 65536,
    "Frame and packet are the same data.",
    "`packet_id`. Source: matching.", {
    packet_id: i64, Delta, "", "", "", "Packet.";
    capture_id: i32, Dict, "", "", "", "Capture of the frame.";
    number: i64, Delta, "", "", "", "Number of the frame in its capture.";
    side: i32, Dict, "code", "", "", "Where the DUT met the frame.";
    key: i32, Dict, "code", "", "", "What matched.";
    confidence: i32, Dict, "percent", "", "", "How sure: 90 and more: only this packet fits; 60 to 89: distinguished from others by order or time; below: others fit as well.";
    alternatives: i32, Dict, "", "", "", "Other packets' sightings that fit as well within the clock bound.";
    kernel_ns: i64, Delta, "ns", "boot", "", "When the kernel had it at its edge: first seen (received) or handed to the device (transmitted).";
    residual_ns: i64, Delta, "ns", "", "", "Frame time less `kernel_ns`, both by the DUT's clock: negative when the wire was first.";
    bound_ns: i64, Delta, "ns", "", "", "The residual is uncertain by plus or minus this: the clock's bound at this frame.";
    seq_offset: Option<i64>, Delta, "bytes", "", "not TCP with payload", "Where the frame's payload begins within the packet's; negative: before it.";
} }

table! { LINEAGE, LineageRow, "lineage", 65536,
    "How one packet came from another.",
    "`at_ns`; inferred rows up to a second later. Source: kernel behaviour log.", {
    at_ns: i64, Delta, "ns", "boot", "", "When; inferred: when headers showed it.";
    kind: i32, Dict, "code", "", "", "How the one came from the other.";
    parent_id: i64, Delta, "", "", "", "Packet it came from.";
    child_id: i64, Delta, "", "", "", "Packet that came of it; equals the parent for clone and realloc. Of a reassembly it is the packet whose buffer the whole has, itself a fragment before.";
    inferred: Option<i32>, Dict, "", "", "the kernel's function was seen to do it", "1: concluded from headers (same addresses and identification), for fragments and what is put together of them.";
} }

table! { FUNCTION, FunctionRow, "function", 65536,
    "Probed functions and tracepoints with their statistics.",
    "`func_id`. Source: metadata of the kernel behaviour log; statistics counted while integrating.", {
    func_id: i32, Delta, "", "", "", "Number of the function in its log.";
    name: String, Dict, "", "", "", "As in kallsyms; a tracepoint is `group:name`.";
    module: String, Dict, "", "", "", "Kernel module, empty: vmlinux.";
    kind: String, Dict, "", "", "", "`function` or `tracepoint`.";
    layer: String, Dict, "", "", "", "driver, link, network, transport, socket or other.";
    via: String, Dict, "", "", "", "How the packet was reached.";
    calls: i64, Delta, "", "", "", "Calls or passings.";
    timed: i64, Delta, "", "", "", "Calls with a known duration: what the times below are of.";
    packets: i64, Delta, "", "", "", "Different packets that it touched.";
    total_ns: i64, Delta, "ns", "", "", "Sum of durations.";
    self_ns: i64, Delta, "ns", "", "", "Sum of self times.";
    min_ns: Option<i64>, Delta, "ns", "", "no timed call", "Shortest duration, exact.";
    median_ns: Option<i64>, Delta, "ns", "", "no timed call", "Median duration, within 1.6 %.";
    p99_ns: Option<i64>, Delta, "ns", "", "no timed call", "99th percentile of the duration, within 1.6 %.";
    max_ns: Option<i64>, Delta, "ns", "", "no timed call", "Longest duration, exact.";
    max_packet_id: Option<i64>, Delta, "", "", "no timed call, or no packet known", "Packet of the longest call.";
} }

table! { SOCKET, SocketRow, "socket", 16384,
    "A socket of an application, from a recording with `--profile app`.",
    "`socket_id`. Source: kernel behaviour log.", {
    socket_id: i64, Delta, "", "", "", "The kernel's cookie of the socket, which `ss -e` shows as `sk:`; never given twice while the kernel runs.";
    first_ns: i64, Delta, "ns", "boot", "", "First moment at which the log knows it.";
    last_ns: i64, Delta, "ns", "boot", "", "Last.";
    proto: i32, Dict, "code", "", "", "IP protocol: 6 TCP, 17 UDP, 1 ICMP.";
    version: i32, Dict, "", "", "", "4 or 6.";
    netns: Option<i64>, Dict, "", "", "unknown", "Inode of its network namespace.";
    cgroup: Option<i64>, Dict, "", "", "unknown", "Identifier of its cgroup (inode in cgroup2).";
    uid: Option<i64>, Dict, "", "", "the log does not say", "Number of the user who opened it, as `ss -e` shows it.";
    local_addr: Option<String>, Dict, "", "", "none, or left out", "Own address; `h:` and 32 digits where it was replaced by a keyed hash.";
    local_port: i32, Dict, "", "", "", "Own port, 0: none.";
    peer_addr: Option<String>, Dict, "", "", "none, or left out", "The other side's address, as `local_addr`.";
    peer_port: i32, Dict, "", "", "", "The other side's port, 0: none.";
    congestion: Option<String>, Dict, "", "", "not TCP", "Congestion control as last seen.";
    kernels: i32, Dict, "", "", "", "1: the kernel's own, which no process opened (NFS, SMB); whoever waits for it, and threads of the kernel, use it.";
    pid: Option<i32>, Dict, "", "", "not known, or the kernel's own", "Thread that used it first; of a listener that was there before the recording, the process that held it then.";
    mptcp_socket: Option<i64>, Delta, "", "", "no connection of MPTCP", "MPTCP: the socket whose packets this connection of TCP has, and whose process alone uses it.";
    error: Option<i32>, Dict, "code", "", "none", "TCP: the error with which the kernel ended it, a number of errno(3): refused, reset, timed out, unreachable.";
    events: i64, Delta, "", "", "", "Its rows in `app_event`.";
    sent_bytes: i64, Delta, "bytes", "", "", "Data that the application gave to it.";
    received_bytes: i64, Delta, "bytes", "", "", "Data that it gave to the application.";
    sent_seq: Option<i64>, Delta, "", "", "not TCP, or not known", "TCP's sequence number of offset 0 of what it sends, or would send.";
    received_seq: Option<i64>, Delta, "", "", "not TCP, or not known", "The same of what it receives: the other end's `sent_seq`, as far as both were seen from the beginning.";
} }

table! { APP_EVENT, AppEventRow, "app_event", 131_072,
    "Bytes of an application crossing from one layer into the next.",
    "`at_ns` but for receptions by a device, which are logged when their socket becomes known, to-transport, which is logged when its call is over, and what was read before its socket could tell of it. Source: kernel behaviour log.", {
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    socket_id: i64, Dict, "", "", "", "Socket, see table `socket`.";
    crossing: i32, Dict, "code", "", "", "Which crossing (*send* and *recv* are there when the call is over).";
    size_bytes: i64, Delta, "bytes", "", "", "Application data; negative: the error number of the call, or of the queue that refused the datagram which was just logged *to-socket*.";
    segments: i32, Dict, "", "", "", "Frames that a packet becomes or came from; 1 where no packet crosses; 0 at to-device and to-driver: the device that had it (a tunnel, a VLAN, a bridge) gave it on to this one, and it was counted there; 0 at from-device and to-socket: the datagram was taken before its socket could tell of it, and this is the packet that came last, if size and port agree.";
    offset: Option<i64>, Delta, "bytes", "", "not TCP", "Of the first byte in its direction's stream, from the first that the log saw; wraps are counted.";
    tag: Option<i64>, Dict, "", "", "TCP, no packet, or a datagram that was read before its socket could tell of it", "Tells packets of one socket apart while they live.";
    pid: Option<i32>, Dict, "", "", "an interrupt had cut in", "Thread.";
    ctx: i32, Dict, "code", "", "", "As in `call`.";
    cpu: i32, Dict, "", "", "", "CPU.";
    asked_bytes: Option<i64>, Delta, "bytes", "", "not to-transport", "What the call gave; `size_bytes` of it was taken, negative: the call took nothing and failed with this error.";
} }

table! { TCP_STATE, TcpStateRow, "tcp_state", 65536,
    "TCP's state at a moment, with the headers of the segment at hand. Of other sockets (`--tcp-state all`) the network header of a packet at hand: `state` is 0.",
    "`at_ns`. Source: kernel behaviour log (include/linux/tcp.h).", {
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    socket_id: i64, Dict, "", "", "", "Socket.";
    crossing: i32, Dict, "code", "", "", "The crossing it goes with, as in `app_event`.";
    state: i32, Dict, "code", "", "", "TCP_* of include/net/tcp_states.h: 1 established.";
    ca_state: i32, Dict, "code", "", "", "0 open, 1 disorder, 2 cwr, 3 recovery, 4 loss.";
    snd_cwnd: i64, Delta, "segments", "", "", "Congestion window.";
    snd_ssthresh: Option<i64>, Delta, "segments", "", "not yet set", "Slow start threshold.";
    snd_wnd: i64, Delta, "bytes", "", "", "The window that the other side offers.";
    rcv_wnd: i64, Delta, "bytes", "", "", "The window offered to it.";
    mss: i64, Dict, "bytes", "", "", "Sender's segment size.";
    srtt_ns: i64, Delta, "ns", "", "", "Smoothed round trip.";
    rttvar_ns: i64, Delta, "ns", "", "", "Its mean deviation, as TCP_INFO and `ss` give it (`mdev_us`; what the timeout is made of has a floor of 50 ms).";
    rto_ns: Option<i64>, Delta, "ns", "", "the kernel's tick is not known", "Retransmission timeout.";
    in_flight: i64, Delta, "segments", "", "", "Sent, neither acknowledged nor taken for lost.";
    retrans_out: i64, Dict, "segments", "", "", "Of these sent again.";
    lost_out: i64, Dict, "segments", "", "", "Taken for lost.";
    sacked_out: i64, Dict, "segments", "", "", "Acknowledged selectively.";
    total_retrans: i64, Delta, "segments", "", "", "Sent again since the beginning.";
    write_seq: i64, Delta, "", "", "", "Sequence number behind the last byte written by the application.";
    snd_una: i64, Delta, "", "", "", "First byte not acknowledged.";
    snd_nxt: i64, Delta, "", "", "", "Next byte to be sent.";
    copied_seq: i64, Delta, "", "", "", "Next byte that the application will read.";
    rcv_nxt: i64, Delta, "", "", "", "Next byte expected.";
    delivered: i64, Delta, "segments", "", "", "Delivered since the beginning.";
    app_limited: i32, Dict, "", "", "", "1: the application had nothing to send while the window was open.";
    busy: i32, Dict, "code", "", "", "What TCP waits for (enum tcp_chrono): 0 nothing, 1 it sends, 2 the receiver's window, 3 the send buffer.";
    cwnd_limited: i32, Dict, "", "", "", "1: the congestion window was full.";
    pacing: Option<i32>, Dict, "code", "", "the log does not say", "Who paces (enum sk_pacing): 0 nobody, 1 TCP by its own timer, 2 the fq qdisc.";
    rate_bytes_s: Option<i64>, Delta, "bytes/s", "", "not yet measured", "Newest delivery rate.";
    pacing_bytes_s: Option<i64>, Delta, "bytes/s", "", "without limit", "Pacing rate, also where nobody paces by it.";
    wmem_queued: i64, Delta, "bytes", "", "", "Send queue with its overhead.";
    rmem_alloc: i64, Delta, "bytes", "", "", "Receive queue with its overhead.";
    ip_version: Option<i32>, Dict, "", "", "no segment at hand", "4 or 6.";
    tos: Option<i32>, Dict, "", "", "no segment at hand", "Differentiated services and ECN.";
    ttl: Option<i32>, Dict, "", "", "no segment at hand", "Time to live or hop limit.";
    ip_id: Option<i32>, Delta, "", "", "not IPv4", "Identification.";
    ip_fragment: Option<i32>, Dict, "", "", "not IPv4", "Flags and fragment offset.";
    tcp_flags: Option<i32>, Dict, "code", "", "no segment at hand", "Flags, FIN = 1.";
    no_room: Option<i32>, Dict, "", "", "the log does not say", "1: when a segment last came, the application waited for room in the send buffer (SOCK_NOSPACE).";
    more: Option<i32>, Dict, "", "", "no, or the log does not say", "1: what the last call left unsent waits for more, as the application wants it (MSG_MORE, TCP_CORK).";
} }

table! { GAP, GapRow, "gap", 16384,
    "Crossings that are missing, exactly at their place in one CPU's stream. They are in `loss`, too.",
    "`to_ns`. Source: kernel behaviour log.", {
    from_ns: i64, Delta, "ns", "boot", "", "The first was lost at this moment ...";
    to_ns: i64, Delta, "ns", "boot", "", "... and from this moment on records fitted again.";
    cpu: i32, Dict, "", "", "", "CPU.";
    lost: i64, Delta, "", "", "", "How many.";
} }

table! { THREAD_TIME, ThreadTimeRow, "thread_time", 16384,
    "What a thread did between two of its calls on one socket; not of less than 1 ms, nor of sockets whose calls are by turns those of several threads.",
    "`to_ns`. Source: kernel behaviour log.", {
    from_ns: i64, Delta, "ns", "boot", "", "The one call was over, or began to send ...";
    to_ns: i64, Delta, "ns", "boot", "", "... and the other one did.";
    socket_id: i64, Dict, "", "", "", "Socket, see table `socket`.";
    thread: i32, Dict, "", "", "", "Thread id.";
    ran_ns: i64, Delta, "ns", "", "", "On a CPU (the kernel's `sum_exec_runtime`), as of the last switch or tick.";
    waited_ns: i64, Delta, "ns", "", "", "Ready, and waiting for a CPU (`run_delay`).";
    slept: i64, Dict, "", "", "", "How often it slept (`nvcsw`); 0: it ran whenever it did not wait.";
} }

table! { PROCESS, ProcessRow, "process", 65536,
    "A thread was seen for the first time, or took another name.",
    "`at_ns`. Source: kernel behaviour log.", {
    at_ns: i64, Delta, "ns", "boot", "", "When.";
    pid: i32, Delta, "", "", "", "Thread id.";
    tgid: i32, Delta, "", "", "", "Process id.";
    comm: String, Dict, "", "", "", "Name, at most 15 bytes.";
} }

table! { DEVICE, DeviceRow, "device", 65536,
    "Network interfaces of the DUT, one row per name that they had.",
    "as recorded. Source: kernel behaviour log.", {
    netns: i64, Dict, "", "", "", "Inode of the network namespace; a small number: one that was given the inode of an earlier one.";
    netns_name: String, Dict, "", "", "", "Its name under /run/netns, else a process in it, `pid 1234 (nginx)`; empty: unknown, or the recorder's own.";
    ifindex: i32, Delta, "", "", "", "Interface index.";
    name: String, Dict, "", "", "", "Name.";
    link_type: i32, Dict, "code", "", "", "ARPHRD_*.";
    mac: String, Dict, "", "", "", "Link address, empty: none.";
    mtu: i64, Dict, "bytes", "", "", "MTU.";
    driver: String, Dict, "", "", "", "Kernel driver, empty: unknown.";
    phc: Option<i32>, Dict, "", "", "it did not stamp what it received when recording began", "Number of its clock: /dev/ptpN.";
    above: Option<i32>, Dict, "", "", "it is above none, or it is not known", "Index of the interface of the same namespace that it is above, as a VLAN or a macvlan is.";
    master: Option<i32>, Dict, "", "", "it is a port of none, or it is not known", "Index of the bridge, bond or other device that it is a port of.";
} }

table! { INTERFACE, InterfaceRow, "interface", 65536,
    "Interfaces named in the captures.",
    "`capture_id`, `interface`. Source: captures.", {
    capture_id: i32, Dict, "", "", "", "Capture file.";
    interface: i32, Delta, "", "", "", "Number within the capture.";
    name: String, Dict, "", "", "", "Name, empty: the capture does not say.";
    link_type: i32, Dict, "code", "", "", "LINKTYPE_* of pcap.";
    frames: i64, Delta, "", "", "", "Frames captured on it.";
    matched: i64, Delta, "", "", "", "Of these, frames with an association.";
} }

table! { CLOCK, ClockRow, "clock", 65536,
    "How a capture's clock relates to the DUT's: boot = wall + offset + drift * (wall - from), in straight stretches.",
    "`capture_id`, `from_number`. Source: matches, anchors of the kernel behaviour log.", {
    capture_id: i32, Dict, "", "", "", "Capture file.";
    from_wall_ns: i64, Delta, "ns", "wall", "", "The segment holds from here ...";
    to_wall_ns: i64, Delta, "ns", "wall", "", "... to here.";
    offset_ns: i64, Delta, "ns", "", "", "Boot time less wall time at `from_wall_ns`.";
    drift_ppb: i64, Delta, "ppb", "", "", "The DUT's clock gains this on the sniffer's.";
    bound_ns: i64, Delta, "ns", "", "", "The true relation of the clocks is within plus or minus this, everywhere in the segment.";
    drift_bound_ppb: i64, Delta, "ppb", "", "", "The drift is within plus or minus this.";
    received: i64, Delta, "", "", "", "Bounds of the offset from above: the edge at which a matched packet was received. On a link within the DUT a frame has one and one of the other kind, whichever way it went, and so has one whose time the clock of a radio says.";
    transmitted: i64, Delta, "", "", "", "Bounds of the offset from below: the edge at which a matched packet was transmitted.";
    rejected: i64, Delta, "", "", "", "Matches left out: isolated ones far from their neighbours.";
    method: i32, Dict, "code", "", "", "What the relation rests on.";
    stamp_bound_ns: Option<i64>, Delta, "ns", "", "unknown: too few matches, or an older log", "One frame's own stamp is within plus or minus this: `bound_ns` and the scatter of 95 % of the stamps.";
    noise_ns: Option<i64>, Delta, "ns", "", "too few matches to measure it, or an older log", "90 % of the sniffer's stamps scatter within a window no wider than this.";
    assumed: Option<i32>, Dict, "bits", "", "an older log", "What the bound rests on besides matches: 1 the stamps' scatter (too few matches), 2 the fastest packet of one-way traffic, 4 that the frequency changes no faster than it was seen to.";
    confidence: Option<i32>, Dict, "percent", "", "an older log, or no usable match", "Share of captures whose clock was inside of the bound everywhere, as measured over hundreds of clocks.";
    from_number: Option<i64>, Delta, "", "", "an older log", "Of the first frame that the segment holds of.";
    to_number: Option<i64>, Delta, "", "", "an older log", "Of the last one.";
} }

table! { LOSS, LossRow, "loss", 65536,
    "What should be in the log and is not.",
    "`from_ns`. Source: kernel behaviour log.", {
    cause: i32, Dict, "code", "", "", "Why it is missing.";
    cpu: Option<i32>, Dict, "", "", "not tied to one CPU", "CPU.";
    from_ns: i64, Delta, "ns", "boot", "", "The loss happened after this ...";
    to_ns: i64, Delta, "ns", "boot", "", "... and not after this.";
    count: i64, Delta, "", "", "", "How many.";
} }

table! { DROP_REASON, DropReasonRow, "drop_reason", 65536,
    "Names of the kernel's drop reasons.",
    "`reason`. Source: the recorded kernel's BTF.", {
    reason: i32, Delta, "code", "", "", "Number.";
    name: String, Dict, "", "", "", "Name.";
} }

table! { SYMBOL, SymbolRow, "symbol", 65536,
    "Kernel addresses that occur in events and stacks.",
    "as recorded. Source: kernel behaviour log.", {
    addr: i64, Delta, "", "", "", "Address (two's complement).";
    text: String, Dict, "", "", "", "`function+0x12`.";
} }

table! { PROVENANCE, ProvenanceRow, "provenance", 65536,
    "What was done to get here, and what was odd about it.",
    "as it happened. Source: integration.", {
    key: String, Dict, "", "", "", "The property, for example `calls.crossing`.";
    value: String, Dict, "", "", "", "The count or text.";
    meaning: String, Dict, "", "", "", "One sentence for people.";
} }

table! { BALANCE, BalanceRow, "balance", 65536,
    "Where packets came from and what became of them, counted: the balance that `kpat info` shows, ready for any length of log.",
    "`scope`. Source: integration.", {
    scope: i32, Dict, "code", "", "", "What the row counts: 0 all packets, 1 those that an interface received, 2 those of a CPU, 3 unexplained ones of one kind and place, 4 those of one verdict, 5 delivered ones that lay unread in a socket when the log ended.";
    netns: Option<i64>, Dict, "", "", "not by interface, or unknown", "Network namespace of the interface.";
    ifindex: Option<i32>, Dict, "", "", "not by interface", "Interface.";
    cpu: Option<i32>, Dict, "", "", "not by CPU", "CPU of a packet's earliest call or point; -1: unknown.";
    code: Option<i32>, Dict, "code", "", "not of that kind", "Scope 0: 1 if ends of packets were recorded; 3: 1 nothing tells what became of it, 2 its end was not seen; 4: the verdict, as in `packet`.";
    packets: i64, Delta, "", "", "", "Packets.";
    received: i64, Delta, "", "", "", "Of these, received by a device.";
    made_here: i64, Delta, "", "", "", "Of these, made by this host.";
    from_others: i64, Delta, "", "", "", "Of these, segments, fragments and copies of others.";
    forwarded: i64, Delta, "", "", "", "Of these, forwarded.";
    sent: i64, Delta, "", "", "", "Of these, sent by this host.";
    delivered: i64, Delta, "", "", "", "Of these, delivered to this host.";
    dropped: i64, Delta, "", "", "", "Of these, dropped.";
    transformed: i64, Delta, "", "", "", "Of these, merged or cut into others.";
    in_flight: i64, Delta, "", "", "", "Of these, on their way when the log ended.";
    lost: i64, Delta, "", "", "", "Of these, without an end, in a time of counted losses.";
    unexplained: i64, Delta, "", "", "", "Of these, without a fate or an end that anything explains.";
    given: i64, Delta, "", "", "", "Scope 1: packets that were last given to the interface.";
    packet_id: Option<i64>, Delta, "", "", "not scope 3", "One of them.";
} }

table! { CROSSING, CrossingRow, "crossing", 65536,
    "A frame that one device sent and another received: how a packet of the one became a packet of the other. Only in an integrated log of several devices, which holds one integrated log per device beside it.",
    "`capture_id`, `number`, devices. Source: the devices' associations; of a host and its guests without a capture, their packets' headers and times.", {
    from_device: i32, Dict, "", "", "", "Device that sent it; its place in the manifest's `devices`.";
    from_packet_id: i64, Delta, "", "", "", "Packet of that device.";
    to_device: i32, Dict, "", "", "", "Device that received it.";
    to_packet_id: i64, Delta, "", "", "", "Packet of that device.";
    capture_id: i32, Dict, "", "", "", "Capture of the frame; -1: no capture, the devices have one clock.";
    number: i64, Delta, "", "", "", "Number of the frame in its capture; without one, the crossing's own.";
    left_ns: i64, Delta, "ns", "boot", "", "When the sender's kernel handed it to the device, by the sender's clock.";
    wall_ns: i64, Delta, "ns", "wall", "", "Time of the frame by the sniffer's clock; without a capture as `arrived_wall_ns`.";
    arrived_ns: i64, Delta, "ns", "boot", "", "When the receiver's kernel first saw it, by the receiver's clock.";
    left_wall_ns: i64, Delta, "ns", "wall", "", "`left_ns` on the sniffer's clock (without a capture the host's), plus or minus `left_bound_ns`.";
    left_bound_ns: i64, Delta, "ns", "", "", "Bound of `left_wall_ns`.";
    arrived_wall_ns: i64, Delta, "ns", "wall", "", "`arrived_ns` on that clock, plus or minus `arrived_bound_ns`.";
    arrived_bound_ns: i64, Delta, "ns", "", "", "Bound of `arrived_wall_ns`.";
    flight_ns: i64, Delta, "ns", "", "", "From leaving to arriving: `arrived_wall_ns - left_wall_ns`, plus or minus `flight_bound_ns`.";
    flight_bound_ns: i64, Delta, "ns", "", "", "Sum of the two bounds.";
    key: i32, Dict, "code", "", "", "What matched on the side that is less sure; codes as in `association`.";
    confidence: i32, Dict, "percent", "", "", "The less sure of the two sides; as in `association`.";
} }

table! { POLL, PollRow, "poll", 16384,
    "A poll of a network card by its driver of which a packet is in the log.",
    "`ended_ns`. Source: kernel behaviour log (tracepoint napi_poll).", {
    ended_ns: i64, Delta, "ns", "boot", "", "The driver returned: the buffers of what it took are with the card again.";
    cpu: i32, Dict, "", "", "", "CPU.";
    packet_id: i64, Delta, "", "", "", "Its first packet that is in the log.";
    netns: Option<i64>, Dict, "", "", "as `ifindex`", "Network namespace of the card.";
    ifindex: Option<i32>, Dict, "", "", "the poll's beginning is not in the log", "The card.";
    began_ns: Option<i64>, Delta, "ns", "boot", "packets that are not in the log came first", "When it began.";
    raised_ns: Option<i64>, Delta, "ns", "boot", "unknown, or not the first poll of its softirq", "When its softirq had been raised.";
    taken: i64, Dict, "", "", "", "Packets that the driver says it took.";
    budget: i64, Dict, "", "", "", "Packets that it might have taken: with as many taken the card may have more, and is polled again in the next softirq.";
    seen: Option<i64>, Dict, "", "", "the poll's beginning is not in the log", "Packets that were first seen in it.";
    round: i64, Delta, "", "", "", "How many softirqs of NET_RX the CPU had had, this one included, since recording began.";
} }

table! { CARD_CLOCK, CardClockRow, "card_clock", 16384,
    "What the clock of a network card that stamps received packets showed, read twice a second.",
    "`at_ns`. Source: kernel behaviour log (PTP_SYS_OFFSET_EXTENDED, or clock_gettime between two looks at the boot clock).", {
    netns: i64, Dict, "", "", "", "Network namespace of the card.";
    ifindex: i32, Dict, "", "", "", "The card.";
    at_ns: i64, Delta, "ns", "boot", "", "When it was read, plus or minus `bound_ns`.";
    card_ns: i64, Delta, "ns", "", "", "What it showed.";
    bound_ns: i64, Delta, "ns", "", "", "Half the time that the reading took, and what relates the wall clock to the boot clock.";
    clock: String, Dict, "", "", "", "Its device, and whose it is.";
} }

/// Tables of an integrated log of several devices; those of one device are in its own log.
pub const SEVERAL: &[&Table] = &[&CROSSING];

/// Every table of one device, in the order of the reference page.
pub const ALL: &[&Table] = &[
    &PACKET,
    &CALL,
    &CALL_MEMBER,
    &PAUSE,
    &CALL_INDEX,
    &CALL_PATH,
    &DURATION,
    &EVENT,
    &FOOTPRINT,
    &FRAME,
    &ASSOCIATION,
    &LINEAGE,
    &FUNCTION,
    &PROCESS,
    &SOCKET,
    &APP_EVENT,
    &TCP_STATE,
    &GAP,
    &THREAD_TIME,
    &DEVICE,
    &INTERFACE,
    &CLOCK,
    &LOSS,
    &DROP_REASON,
    &SYMBOL,
    &BALANCE,
    &PROVENANCE,
    &POLL,
    &CARD_CLOCK,
    &WORK,
    &PROCESS_LABEL,
    &CPU_ACCOUNT,
    &BLOCK_ACCOUNT,
    &PEER,
    &SAMPLE,
    &STACK,
    &WIFI_EVENT,
    &LINK_EVENT,
    &EXCHANGE,
];
