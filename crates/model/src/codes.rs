//! The registry of codes: numbers that stand in logs and tables, with the name that people read, what it means, and what to do about it.
//! Command line, page, metrics and the reference of the tables take them from here, so a new one is one line; those that the kernel side
//! writes are compared with `wire.h`.

/// One row of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    pub number: i32,
    /// As it is shown, filtered by and exported.
    pub name: &'static str,
    pub meaning: &'static str,
    /// What the reader of a log can do about it; empty: it is no fault.
    pub advice: &'static str,
}

/// The name of a number; `?` where this version does not know it.
pub fn name(codes: &[Code], number: i32) -> &'static str {
    codes.iter().find(|c| c.number == number).map_or("?", |c| c.name)
}

/// The number of a name.
pub fn number(codes: &[Code], name: &str) -> Option<i32> {
    codes.iter().find(|c| c.name == name).map(|c| c.number)
}

/// `1 drop, 2 retransmit`, for the reference of the tables.
pub fn list(codes: &[Code]) -> String {
    codes.iter().map(|c| format!("{} {}", c.number, c.name)).collect::<Vec<_>>().join(", ")
}

/// Codes that are a type of their own.
macro_rules! code_type {
    ($(#[$doc:meta])* $Type:ident { $($Variant:ident = $number:literal, $name:literal, $meaning:literal, $advice:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $Type { $(#[doc = $meaning] $Variant = $number,)* }

        impl $Type {
            pub const ALL: &'static [$Type] = &[$($Type::$Variant,)*];
            pub const CODES: &'static [Code] =
                &[$(Code { number: $number, name: $name, meaning: $meaning, advice: $advice },)*];

            pub fn from_u8(v: u8) -> Option<$Type> {
                match v {
                    $($number => Some($Type::$Variant),)*
                    _ => None,
                }
            }

            /// Of a column's number.
            pub fn from_number(number: i32) -> Option<$Type> {
                u8::try_from(number).ok().and_then($Type::from_u8)
            }

            pub fn from_name(name: &str) -> Option<$Type> {
                $crate::codes::number(Self::CODES, name).and_then($Type::from_number)
            }

            pub fn code(self) -> Code {
                match self {
                    $($Type::$Variant => Code { number: $number, name: $name, meaning: $meaning, advice: $advice },)*
                }
            }

            pub fn name(self) -> &'static str {
                self.code().name
            }

            pub fn advice(self) -> &'static str {
                self.code().advice
            }
        }
    };
}

pub(crate) use code_type;

/// Codes of a column that are numbers wherever they are used.
macro_rules! code_module {
    ($(#[$doc:meta])* $module:ident { $($CODE:ident = $number:literal, $name:literal, $meaning:literal;)* }) => {
        $(#[$doc])*
        pub mod $module {
            use super::Code;

            $(#[doc = $meaning] pub const $CODE: i32 = $number;)*

            pub const CODES: &[Code] =
                &[$(Code { number: $number, name: $name, meaning: $meaning, advice: "" },)*];

            pub fn name(code: i32) -> &'static str {
                super::name(CODES, code)
            }

            pub fn from_name(name: &str) -> Option<i32> {
                super::number(CODES, name)
            }
        }
    };
}

code_type! {
    /// How one packet came from another.
    LineageKind {
        Clone = 1, "clone", "Second skb over the same data: `child` equals `parent`, distinguished by `skb_tag`.", "";
        Copy = 2, "copy", "Data copied: `skb_copy`, `__pskb_copy_fclone`.", "";
        Segment = 3, "segment", "`skb_segment`: child is one segment of parent.", "";
        GroMerge = 4, "gro-merge", "Receive offload: parent was merged into child.", "";
        Fragment = 5, "fragment", "IP fragmentation: child is one fragment of parent.", "";
        Reassembly = 6, "reassembly", "IP reassembly: parent is one fragment of child.", "";
        Realloc = 7, "realloc", "`pskb_expand_head`: same packet, new header buffer (`child` equals `parent`).", "";
    }
}

code_type! {
    /// What a task slept for.
    Sleep {
        Stopped = 1, "stopped", "Stopped by a signal (SIGSTOP, SIGTSTP) or a debugger.", "";
        Frozen = 2, "frozen", "Frozen, by its cgroup's freezer or while the machine was suspended.", "";
        Uninterruptible = 3, "uninterruptible", "In the kernel, where no signal wakes it: a disk, a file system, memory that is read in, a lock of the kernel's.", "";
        Lock = 4, "lock", "A lock, or another thread: futex, semop, flock, fcntl.", "";
        Timer = 5, "timer", "A time to be over: nanosleep, poll and select without a descriptor.", "";
        Child = 6, "child", "A child process: wait4, waitid.", "";
        Descriptors = 7, "descriptors", "Any of several descriptors: epoll, poll, select, io_uring.", "";
        Data = 8, "data", "Data or a connection, of one descriptor: read, recv, accept, connect, msgrcv.", "";
        Room = 9, "room", "Room, of one descriptor: write, send, splice, msgsnd.", "";
        Other = 10, "other", "Another system call, or none.", "";
    }
}

code_type! {
    /// What sort of event. Codes 1..=15 come from the kernel side (`wire.h`), from 32 on from user space (netlink).
    EventKind {
        Drop = 1, "drop", "`a` drop reason number (name in the log's metadata), `b` kernel address of the place.", "";
        Retransmit = 2, "retransmit", "`a` source port << 16 | destination port (host order), `b` TCP state.", "";
        TcpState = 3, "tcp-state", "`a` ports as above, `b` old state << 8 | new state.", "";
        Program = 16, "program", "A place in a program was hit (`record -p programs`): `a` 0 it happened, 1 it begins, 2 it is over; `b` at its end how long it took in nanoseconds, -1: its beginning is not in the log. Text: the program, and what it does.", "";
        // 4 to 31 are kept for the kernel side: some of them are kinds of records of their own in the log.
        Link = 32, "link", "`a` ifindex, `b` flags (IFF_*, as rtnetlink gives them). Text: interface name.", "";
        Route = 33, "route", "`a` 1 added, 0 removed. Text: the route.", "";
        Neighbour = 34, "neighbour", "`a` NUD_* state, `b` ifindex. Text: address and link address.", "";
        Control = 35, "control", "Text: what the recorder did (dump, functions on or off, trigger).", "";
        Address = 36, "address", "`a` 1 added or changed, 0 removed, `b` ifindex. Text: the address and its state.", "";
        Queueing = 37, "queueing", "A queueing discipline, class or filter: `a` 1 added or changed, 0 removed, `b` ifindex. Text: which, where.", "";
        Namespace = 38, "namespace", "A network namespace: `a` 1 came, 0 went, `b` its inode number, 0: unknown. Text: its name or number. With `link-netnsid` as its text: another namespace has a number in it (1), or none any more (0).", "";
        BridgePort = 40, "bridge-port", "A port of a bridge: `a` its state (BR_STATE_*: 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking), `b` ifindex. Text: name, state and bridge.", "";
        LogLine = 39, "log-line", "A line of a log file given to `kpat integrate --log`: `a` the file, from 0 on, `b` the line in it, from 1 on. Text: the file's name and the line.", "";
    }
}

impl EventKind {
    /// Announced by the kernel or noted by the recorder: written when user space saw it, maybe behind younger records.
    pub fn is_of_user_space(self) -> bool {
        self as u8 >= EventKind::Link as u8
    }
}

code_type! {
    /// Why something is missing.
    LossCause {
        RingFull = 1, "ring-full", "The CPU's ring was full.", "give a larger --ring, a narrower filter or profile";
        CallTableFull = 2, "call-table-full", "The table of open calls was full.", "more calls were open at once than the table holds; narrow the profile";
        PacketTableFull = 3, "packet-table-full", "The table of packets was full: calls of that packet are not recorded. Counted once for each packet.", "more packets were alive at once than the table holds; give --packets or a filter";
        Recursion = 4, "recursion", "The kernel skipped the program because one was already running on that CPU (`recursion_misses`).", "a probe was hit inside a probe; usually harmless, the inner call is missing";
        NoReturn = 5, "no-return", "An entry whose return was never seen.", "calls that were still open at the end, or whose return probe was missed";
        ListCut = 6, "list-cut", "A list was longer than the program walks.", "packets beyond the first of a very long list are not named in that call";
        Disk = 7, "disk", "The file could not be written (disk full).", "free disk space, or raise the limit of files (ulimit -f); everything before is in the log";
        Evicted = 8, "evicted", "Older chunks left the memory of the flight recorder (not an error: that is its job).", "the flight recorder keeps the last seconds only; give a larger --memory";
        ProbeMissed = 9, "probe-missed", "A kretprobe or fprobe instance was not available (`nmissed`).", "the kernel ran out of return instances; prefer another --mechanism";
        ReadFault = 10, "read-fault", "A header, or an argument of a program's function, could not be read.", "a pointer was stale or its page not in memory when it was read; the record lacks these bytes";
        MissingPart = 11, "missing-part", "A file of the recording is missing.", "a file of the recording was not given; `kpat collect list` says what became of it";
        TaskTableFull = 12, "task-table-full", "Two tasks shared a slot in the table of tasks: an off-CPU interval of one is not known.", "when some task slept or was preempted is not known; that time stands as self time";
        SnifferFull = 13, "sniffer-full", "The capture of the wire beside the log had no room for frames (`PACKET_STATISTICS`).", "frames are missing in the capture beside the log, not in the log; give a filter or a smaller --snaplen";
        NetlinkOverrun = 14, "netlink-overrun", "The kernel dropped announcements of links, addresses, routes or neighbours; how many each time is not known.", "changes of links, addresses, routes or neighbours are missing; record fewer namespaces (--netns)";
        NoDevice = 15, "no-device", "A packet's device could not be read: whether it was asked for is not known, and it is not recorded. Counted once for each probe that it passed.", "probe hits of packets whose device could not be read, which are not in the log; `kpat doctor` proves that devices are found on this kernel";
        Damaged = 16, "damaged-bytes", "Bytes of the log's file that are damaged, or the beginning of what was never written: found by the reader, counted in bytes.", "the file was changed or cut after it was written; copy it again from where it was recorded";
        NamespaceUnread = 17, "namespace-unread", "A network namespace was gone before its links could be read, or there was no descriptor left for it. Its packets are recorded.", "network namespaces whose links and devices' names are not known: they came and went too fast, or descriptors (ulimit -n) or CAP_SYS_ADMIN were lacking";
        UseTableFull = 18, "use-table-full", "The table of who uses which socket had no place.", "work for some sockets is charged to nobody or to another of their users; sockets were more than the table holds";
        ModuleUnloaded = 19, "module-unloaded", "The guest unloaded a module whose functions were probed. Counted once for each module.", "calls of that module's functions since then are not in the log, also if it was loaded again; `kpat guest record` names it";
        NotRun = 20, "not-run", "The kernel ran softirqs of the network without our programs, more than it counted of it (/proc/softirqs). About as many records as others of that CPU in that time left.", "the kernel did not run programs in some softirqs, as where a rule forbids them for the task that was interrupted; what these handled is missing: packets may seem to wait or to end there";
        TooOften = 21, "too-often", "A place in a program was hit more often than is recorded (--programs-limit): the others are left out, of a function's call both.", "a place in a program is hit without end; leave it out by a line !PROGRAM PLACE of a table (--programs), which also spares the program its breakpoint, or give a larger --programs-limit";
    }
}

code_module! {
    /// Codes of `packet.verdict`: what became of a packet.
    verdict {
        UNKNOWN = 0, "unknown", "The log does not show what became of it.";
        DELIVERED = 1, "delivered", "Given to a socket or protocol of this host.";
        FORWARDED = 2, "forwarded", "Received, and given to a device again.";
        DROPPED = 3, "dropped", "Freed with a reason that is none of the others.";
        SENT = 4, "sent", "Made here, and given to a device.";
        IN_FLIGHT = 5, "in-flight", "Still on its way when the log ended.";
        TRANSFORMED = 6, "transformed", "Merged into others or split up into others (see `lineage`).";
    }
}

code_module! {
    /// Codes of `association.key`: what matched.
    match_key {
        FULL = 1, "transport and identification", "Transport key and identification.";
        NETWORK = 2, "network identification", "Network addresses and identification.";
        TRANSPORT = 3, "transport", "Transport key.";
        TCP_INTERVAL = 4, "TCP sequence interval", "The frame carries a part of the packet's bytes.";
        ARP = 5, "ARP", "Operation and addresses.";
        WIFI = 6, "802.11 sequence control", "Transmitter, receiver, sequence and fragment number.";
        INNER = 7, "tunnel payload", "What the tunnel carries.";
        LINK = 8, "link", "Sender's link address, EtherType and the first eight bytes behind the link header, of what is neither IP nor ARP.";
    }
}

code_module! {
    /// Codes of `association.side`: where the device met the frame.
    side {
        UNKNOWN = 0, "?", "Not known.";
        RECEIVED = 1, "received", "Received by the device.";
        TRANSMITTED = 2, "transmitted", "Transmitted by the device.";
    }
}

code_module! {
    /// Codes of `clock.method`: what a capture's clock rests on.
    clock_method {
        HULL = 1, "matches in both directions", "Frames of both directions bound it.";
        ONE_WAY = 2, "one-way traffic, one side assumed", "Frames of one direction bound it; the other side of the bound is assumed.";
        ON_DUT = 3, "captured on the device under test", "The capture has the device's own clock, as the matches prove.";
        ANCHORS = 4, "anchors only", "No match was usable: anchors of the log alone.";
        WIDENED = 5, "contradictory matches, bound widened", "Of older logs: matches that contradict each other.";
        BETWEEN = 6, "the clock was set in this time", "The time in which the clock was set: the lines before and behind are both within the bound.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_used_once() {
        let lists = [
            LineageKind::CODES,
            Sleep::CODES,
            EventKind::CODES,
            LossCause::CODES,
            verdict::CODES,
            match_key::CODES,
            side::CODES,
            clock_method::CODES,
        ];
        for codes in lists {
            for (i, c) in codes.iter().enumerate() {
                assert!(codes[..i].iter().all(|d| d.number != c.number && d.name != c.name), "{c:?} twice");
                assert!(!c.meaning.is_empty());
                assert_eq!((name(codes, c.number), number(codes, c.name)), (c.name, Some(c.number)));
            }
        }
        assert!(LossCause::CODES.iter().all(|c| !c.advice.is_empty()));
        assert!(LossCause::ALL.iter().all(|c| LossCause::from_u8(*c as u8) == Some(*c)));
        assert_eq!(name(verdict::CODES, 99), "?");
    }
}
