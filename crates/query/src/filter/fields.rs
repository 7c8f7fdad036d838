//! The fields that a filter can ask for. One list: parsing, evaluation, completion and `docs/filter.md` come from it.

use super::tree::Kind;
use crate::codes::verdict;
use crate::ends::{BothEnds, End, Ends};
use crate::entry::{Entry, Names, flag};
use crate::owners::Name;

/// At most two values of a packet: what has a source and a destination has both.
pub(super) type Two<T> = [Option<T>; 2];

pub(super) enum Get {
    Flag(fn(&Entry) -> bool),
    Number(fn(&Entry, &Names) -> Two<i64>),
    Text(for<'a> fn(&Entry, &'a Names) -> Two<&'a str>),
    Address(fn(&Entry) -> Two<u128>),
    /// Asks the calls, not the row.
    Func,
    /// How long it was in the device's queue.
    Queued,
    /// Asks whose it is: its thread's process, and the sockets of its bytes.
    Owner(Name),
    /// A task's number, or its process's.
    Task(Task),
    /// Its name, or its process's.
    TaskName(Task),
    /// Asks who wrote or read its bytes, not the row.
    NumberOfEnds(fn(&BothEnds, &Ends) -> Two<i64>),
}

#[derive(Clone, Copy)]
pub(super) enum Task {
    /// That sent or received the packet, and those that wrote and read its bytes.
    Any,
    Writer,
    Reader,
}

impl Task {
    /// The packet's own, where that is asked for.
    pub fn of_row(self, e: &Entry) -> Option<i32> {
        (matches!(self, Task::Any) && e.has(flag::PID)).then_some(e.pid)
    }

    pub fn of_ends(self, both: &BothEnds) -> Two<End> {
        match self {
            Task::Any => [both.writer, both.reader],
            Task::Writer => [both.writer, None],
            Task::Reader => [None, both.reader],
        }
    }
}

impl Get {
    /// Does it ask who wrote or read its bytes?
    pub fn is_of_ends(&self) -> bool {
        matches!(self, Get::Task(_) | Get::TaskName(_) | Get::NumberOfEnds(..) | Get::Owner(_))
    }
}

/// A field of the language.
pub struct Field {
    pub name: &'static str,
    /// Other names for it.
    pub also: &'static [&'static str],
    pub kind: Kind,
    /// What it holds, in one phrase.
    pub words: &'static str,
    pub(super) get: Get,
    /// Columns of the packet table that it needs.
    pub(crate) columns: &'static [&'static str],
}

fn one<T>(v: Option<T>) -> Two<T> {
    [v, None]
}

/// Of writer and reader.
fn both<T>(ends: &BothEnds, get: impl Fn(&End) -> Option<T>) -> Two<T> {
    [ends.writer.as_ref().and_then(&get), ends.reader.as_ref().and_then(&get)]
}

fn proto_is(e: &Entry, proto: u8) -> bool {
    e.has(flag::PROTO) && e.proto == proto
}

fn ether_is(e: &Entry, ethertype: u16) -> bool {
    e.has(flag::ETHER) && e.ethertype == ethertype
}

fn tcp_flag(e: &Entry, bit: u16) -> bool {
    e.has(flag::TCP) && e.kind & bit != 0
}

macro_rules! fields {
    ($($name:literal $([$($also:literal),*])? $kind:ident $words:literal ($($column:literal),*) $get:expr;)*) => {
        /// All fields, in the order in which they are offered.
        pub const FIELDS: &[Field] = &[$(Field {
            name: $name,
            also: &[$($($also),*)?],
            kind: Kind::$kind,
            words: $words,
            get: $get,
            columns: &[$($column),*],
        }),*];
    };
}

fields! {
    "tcp" Flag "TCP" ("proto") Get::Flag(|e| proto_is(e, 6));
    "udp" Flag "UDP" ("proto") Get::Flag(|e| proto_is(e, 17));
    "icmp" Flag "ICMP for IPv4" ("proto") Get::Flag(|e| proto_is(e, 1));
    "icmpv6" ["icmp6"] Flag "ICMP for IPv6" ("proto") Get::Flag(|e| proto_is(e, 58));
    "arp" Flag "ARP" ("ethertype") Get::Flag(|e| ether_is(e, 0x0806));
    "ip" ["ipv4"] Flag "IPv4" ("ethertype") Get::Flag(|e| ether_is(e, 0x0800));
    "ipv6" ["ip6"] Flag "IPv6" ("ethertype") Get::Flag(|e| ether_is(e, 0x86dd));
    "ip.addr" ["host", "addr", "ipv6.addr"] Address "source or destination address; also a network, as 10.0.0.0/8"
        ("src_addr", "dst_addr") Get::Address(|e| {
            [e.has(flag::SRC).then_some(e.src), e.has(flag::DST).then_some(e.dst)]
        });
    "ip.src" ["src", "ipv6.src"] Address "source address as first seen" ("src_addr")
        Get::Address(|e| one(e.has(flag::SRC).then_some(e.src)));
    "ip.dst" ["dst", "ipv6.dst"] Address "destination address as first seen" ("dst_addr")
        Get::Address(|e| one(e.has(flag::DST).then_some(e.dst)));
    "port" ["tcp.port", "udp.port"] Number "source or destination port" ("sport", "dport") Get::Number(|e, _| {
        [e.has(flag::SPORT).then_some(e.sport.into()), e.has(flag::DPORT).then_some(e.dport.into())]
    });
    "port.src" ["sport", "tcp.srcport", "udp.srcport"] Number "source port" ("sport")
        Get::Number(|e, _| one(e.has(flag::SPORT).then_some(e.sport.into())));
    "port.dst" ["dport", "tcp.dstport", "udp.dstport"] Number "destination port" ("dport")
        Get::Number(|e, _| one(e.has(flag::DPORT).then_some(e.dport.into())));
    "proto" ["ip.proto"] Number "IP protocol: a number, or tcp, udp, icmp, icmpv6" ("proto")
        Get::Number(|e, _| one(e.has(flag::PROTO).then_some(e.proto.into())));
    "ethertype" ["eth.type"] Number "EtherType, as 0x0800; 0x0042: spanning tree" ("ethertype")
        Get::Number(|e, _| one(e.has(flag::ETHER).then_some(e.ethertype.into())));
    "len" ["length", "frame.len"] Number "length of the network-layer packet in bytes; of a frame without a packet on the wire"
        ("len_bytes") Get::Number(|e, _| one(Some(e.len_bytes.into())));
    "tcp.flags" Number "TCP flags, FIN is 1" ("tcp_flags")
        Get::Number(|e, _| one(e.has(flag::TCP).then_some(e.kind.into())));
    "tcp.syn" ["tcp.flags.syn"] Flag "SYN is set" ("tcp_flags") Get::Flag(|e| tcp_flag(e, 2));
    "tcp.fin" ["tcp.flags.fin"] Flag "FIN is set" ("tcp_flags") Get::Flag(|e| tcp_flag(e, 1));
    "tcp.rst" ["tcp.flags.reset"] Flag "RST is set" ("tcp_flags") Get::Flag(|e| tcp_flag(e, 4));
    "tcp.ack" ["tcp.flags.ack"] Flag "ACK is set" ("tcp_flags") Get::Flag(|e| tcp_flag(e, 16));
    "tcp.seq" Number "TCP sequence number" ("tcp_seq", "tcp_flags")
        Get::Number(|e, _| one((e.has(flag::TCP) && e.has(flag::DETAIL)).then_some(e.detail.into())));
    "icmp.type" Number "type of an ICMP or ICMPv6 message" ("icmp_kind")
        Get::Number(|e, _| one(e.has(flag::ICMP).then_some((e.kind & 0xff).into())));
    "icmp.code" Number "code of an ICMP or ICMPv6 message" ("icmp_kind", "icmp_code")
        Get::Number(|e, _| one(e.has(flag::ICMP).then_some((e.kind >> 8).into())));
    "icmp.id" Number "identifier of an echo" ("icmp_kind", "icmp_id", "icmp_seq")
        Get::Number(|e, _| one((e.has(flag::ICMP) && e.has(flag::DETAIL)).then_some((e.detail >> 16).into())));
    "icmp.seq" Number "sequence number of an echo" ("icmp_kind", "icmp_id", "icmp_seq")
        Get::Number(|e, _| one((e.has(flag::ICMP) && e.has(flag::DETAIL)).then_some((e.detail & 0xffff).into())));
    "arp.op" Number "ARP operation: 1 request, 2 reply" ("arp_op")
        Get::Number(|e, _| one(e.has(flag::ARP).then_some(e.kind.into())));
    "message" Text "what it says beyond its fields: DNS, DHCP, ARP, TCP's options but timestamps, the kind of an 802.11 frame" ("message")
        Get::Text(|e, n| one(n.message_of(e)));
    "time" Duration "first moment, since the start of the log" ("first_ns")
        Get::Number(|e, n| one(Some(e.first_ns.saturating_sub(n.start_ns))));
    "path_time" ["path", "kpat.path_time"] Duration "time in the kernel, from its first moment until it was read, or its last" ("path_ns")
        Get::Number(|e, _| one(e.is_packet().then_some(e.path_ns)));
    "kernel_time" ["kernel", "kpat.kernel_time"] Duration "sum of its functions' self times" ("kernel_ns")
        Get::Number(|e, _| one(e.is_packet().then_some(e.kernel_ns)));
    "calls" Number "calls that touched it" ("calls") Get::Number(|e, _| one(e.is_packet().then_some(e.calls.into())));
    "points" Number "tracepoints that it passed" ("points")
        Get::Number(|e, _| one(e.is_packet().then_some(e.points.into())));
    "verdict" ["kpat.verdict"] Word "what became of it" ("verdict")
        Get::Number(|e, _| one(e.is_packet().then_some(e.verdict.into())));
    "delivered" Flag "delivered to this host" ("verdict") Get::Flag(|e| verdict_is(e, verdict::DELIVERED));
    "forwarded" Flag "routed or bridged on" ("verdict") Get::Flag(|e| verdict_is(e, verdict::FORWARDED));
    "dropped" Flag "dropped" ("verdict") Get::Flag(|e| verdict_is(e, verdict::DROPPED));
    "sent" Flag "sent by this host" ("verdict") Get::Flag(|e| verdict_is(e, verdict::SENT));
    "in-flight" Flag "still under way when the log ended" ("verdict")
        Get::Flag(|e| verdict_is(e, verdict::IN_FLIGHT));
    "transformed" Flag "merged into others or split up into others" ("verdict")
        Get::Flag(|e| verdict_is(e, verdict::TRANSFORMED));
    "drop" ["drop.reason", "kpat.drop"] Text "the kernel's drop reason, as NO_SOCKET" ("drop_reason")
        Get::Text(|e, n| one(n.drop_of(e)));
    "process" ["comm", "kpat.process"] Text
        "name of the process, or of its thread, that sent or received it, or that wrote or read its bytes"
        ("pid", "last_ns") Get::TaskName(Task::Any);
    "pid" Number "process, or thread, that sent or received it, or that wrote or read its bytes" ("pid", "last_ns")
        Get::Task(Task::Any);
    "writer" Text "name of the process, or thread, that wrote its first byte" () Get::TaskName(Task::Writer);
    "writer.pid" Number "process, or thread, that wrote its first byte" () Get::Task(Task::Writer);
    "reader" Text "name of the process, or thread, that read its first byte" () Get::TaskName(Task::Reader);
    "reader.pid" Number "process, or thread, that read its first byte" () Get::Task(Task::Reader);
    "write" ["write_wait"] Duration "how long its first byte had waited since its write to TCP, when the packet was first seen" ()
        Get::NumberOfEnds(|b, _| one(b.writer.and_then(|e| e.wait_ns)));
    "read" ["read_wait"] Duration "time from when it was first seen until all of its bytes had been read" ()
        Get::NumberOfEnds(|b, _| one(b.reader.and_then(|e| e.wait_ns)));
    "acked" Duration "time from when it was first seen until all of its bytes were acknowledged; of a write since it was given to TCP" ()
        Get::NumberOfEnds(|b, _| one(b.acked_ns));
    "qdisc" ["queue"] Duration "time between the device's queue and the driver" () Get::Queued;
    "socket" Number "socket that its bytes were written to or read from: the number in `kpat app`" ()
        Get::NumberOfEnds(|b, ends| both(b, |e| ends.socket(e).map(|s| s.socket_id)));
    "user" ["uid"] Text "user of such a thread or socket: name or number" ("pid", "last_ns") Get::Owner(Name::User);
    "cgroup" Text "cgroup of such a thread or socket: its path, or its identifier, the inode of its folder" ("pid", "last_ns")
        Get::Owner(Name::Cgroup);
    "unit" Text "service or scope of systemd that it is in" ("pid", "last_ns") Get::Owner(Name::Unit);
    "container" Text "container that it is in: the first twelve digits of its identifier" ("pid", "last_ns")
        Get::Owner(Name::Container);
    "pod" Text "Kubernetes' identifier of the pod that it is in" ("pid", "last_ns") Get::Owner(Name::Pod);
    "cpu" Number "CPU of its earliest call or point" ("cpu")
        Get::Number(|e, _| one(e.has(flag::CPU).then_some(e.cpu.into())));
    "netns" Number "network namespace first seen in: its inode number" ("netns")
        Get::Number(|e, _| one(e.has(flag::NETNS).then_some(e.netns.into())));
    "func" ["kpat.func"] Text "kernel function that handled it: a name or a glob" () Get::Func;
    "if_in" Text "interface that it came in by" ("if_in", "if_in_netns")
        Get::Text(|e, n| one(n.device_name(e.if_in)));
    "if_out" Text "interface that it was last given to" ("if_out", "if_out_netns")
        Get::Text(|e, n| one(n.device_name(e.if_out)));
    "interface" ["if"] Text "either interface" ("if_in", "if_in_netns", "if_out", "if_out_netns")
        Get::Text(|e, n| [n.device_name(e.if_in), n.device_name(e.if_out)]);
    "packet" ["kpat.packet"] Number "number of the packet; alone: is a packet" ()
        Get::Number(|e, _| one(e.is_packet().then_some(e.id)));
    "frame" ["frame.number"] Number "number of its first wire frame in its capture" ()
        Get::Number(|e, _| one((e.frame > 0).then_some(e.frame.into())));
    "capture" Text "capture of its first wire frame" () Get::Text(|e, n| one(n.capture_of(e)));
    "frames" Number "wire frames that were matched to it" ("frames")
        Get::Number(|e, _| one(Some(e.frames.into())));
    "wire" Flag "has a wire frame; `no wire`: has none" ("frames") Get::Flag(|e| e.frames > 0);
    "confidence" ["kpat.confidence"] Number "how sure the match is, in percent" ("confidence")
        Get::Number(|e, _| one(e.has(flag::CONFIDENCE).then_some(e.confidence.into())));
    "ambiguous" Flag "other packets fit its frame as well" ("confidence") Get::Flag(Entry::is_ambiguous);
    "retransmission" ["tcp.analysis.retransmission"] Flag "TCP sent it again" ()
        Get::Flag(|e| e.has(flag::RETRANSMITTED));
}

fn verdict_is(e: &Entry, code: i32) -> bool {
    e.is_packet() && i32::from(e.verdict) == code
}

impl Field {
    /// Place in [`FIELDS`] of the field of that name.
    pub(super) fn find(name: &str) -> Option<usize> {
        FIELDS.iter().position(|f| f.name == name || f.also.contains(&name))
    }

    /// The words that it can be.
    pub fn values(&self) -> Vec<&'static str> {
        match self.name {
            "verdict" => (0..7).map(verdict::name).collect(),
            "proto" => PROTOCOLS.iter().map(|p| p.0).collect(),
            _ => Vec::new(),
        }
    }

    /// A write of an application has it, too: what its socket, its thread and its moment tell.
    pub fn of_writes(&self) -> bool {
        const ALSO: [&str; 13] = [
            "tcp", "ip", "ipv6", "ip.addr", "ip.src", "ip.dst", "port", "port.src", "port.dst", "proto",
            "len", "time", "netns",
        ];
        const OF_PACKETS: [&str; 4] = ["reader", "reader.pid", "read", "write"];
        ALSO.contains(&self.name) || (self.get.is_of_ends() && !OF_PACKETS.contains(&self.name))
    }

    /// A word as the number that it stands for.
    pub(super) fn word(&self, word: &str) -> Option<i64> {
        match self.name {
            "verdict" => verdict::from_name(word).map(i64::from),
            "proto" => PROTOCOLS.iter().find(|p| p.0 == word.to_ascii_lowercase()).map(|p| p.1),
            _ => None,
        }
    }
}

const PROTOCOLS: [(&str, i64); 7] =
    [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58), ("igmp", 2), ("gre", 47), ("sctp", 132)];
