//! What applications ask of the network and what becomes of it: records of `record --profile app`. A crossing is bytes
//! going from one layer into the next. The layout in the ring is `bpf/include/wire.h`, in the file `docs/kbl-format.md`.

use crate::codes::{Code, code_type};
use crate::ids::BootNs;
use crate::record::Context;

code_type! {
    /// Where bytes cross, in the order in which bytes that are sent meet them, then those that are received.
    Crossing {
        Ask = 1, "ask", "An application calls: bytes that it asks the socket to take.", "";
        Send = 2, "send", "Application to socket, when the call is over: bytes taken, negative: the error.", "";
        ToTransport = 3, "to-transport", "Socket to transport: a write, whole, as the call gives it; how much of it was taken is known when the call is over.", "";
        ToNetwork = 4, "to-network", "Transport to network: a segment or datagram, before it has a network header.", "";
        ToDevice = 5, "to-device", "Network to device: into the device's queue (qdisc).", "";
        ToDriver = 6, "to-driver", "Out of that queue, to the driver.", "";
        FromDevice = 7, "from-device", "Device to network.", "";
        FromNetwork = 8, "from-network", "Network to transport.", "";
        ToSocket = 9, "to-socket", "Transport to socket: bytes that can be read from now on.", "";
        Recv = 10, "recv", "Socket to application, when the call is over: bytes given, negative: the error.", "";
        Retransmit = 11, "retransmit", "A segment is sent again.", "";
        Acked = 12, "acked", "The other side has acknowledged bytes.", "";
    }
}

impl Crossing {
    /// Between which layers, for people.
    pub fn layers(self) -> &'static str {
        match self {
            Crossing::Ask => "application asks",
            Crossing::Send => "application -> socket",
            Crossing::ToTransport => "socket -> transport",
            Crossing::ToNetwork => "transport -> network",
            Crossing::ToDevice => "network -> device queue",
            Crossing::ToDriver => "device queue -> driver",
            Crossing::FromDevice => "device -> network",
            Crossing::FromNetwork => "network -> transport",
            Crossing::ToSocket => "transport -> socket",
            Crossing::Recv => "socket -> application",
            Crossing::Retransmit => "sent again",
            Crossing::Acked => "acknowledged",
        }
    }

    /// What crosses is a packet: its size comes with a number of segments.
    pub fn is_packet(self) -> bool {
        use Crossing::*;
        matches!(self, ToNetwork | ToDevice | ToDriver | FromDevice | FromNetwork | Retransmit)
    }
}

/// Bytes crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossingRecord {
    pub what: Crossing,
    pub ctx: Context,
    /// Thread id of the current task, 0 where an interrupt had cut in.
    pub pid: u32,
    /// Low half of the socket's cookie.
    pub sock: u32,
    pub at: BootNs,
    /// Bytes of application data; negative: the error code.
    pub size: i32,
    /// Segments of a packet: frames that it becomes or came from. 1 where no packet crosses.
    pub segments: u16,
    /// TCP: number of the first byte. Else: which packet (low bits of the address of its `sk_buff`), 0: unknown.
    pub seq: u32,
}

/// A socket, as seen first and again when it was known better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SocketRecord {
    pub at: BootNs,
    /// What `ss -e` shows as `sk:`; never used twice while the kernel runs.
    pub cookie: u64,
    /// Identifier of the socket's cgroup (inode number in cgroup2), 0: unknown.
    pub cgroup: u64,
    pub netns: u32,
    /// 4 or 6; how the addresses are to be read.
    pub version: u8,
    /// IP protocol number.
    pub protocol: u16,
    /// TCP_* state (`include/net/tcp_states.h`).
    pub state: u8,
    /// The kernel's own, which no process opened (NFS, SMB).
    pub kernels: bool,
    /// Thread that was running, 0: none.
    pub pid: u32,
    pub port: u16,
    pub peer_port: u16,
    /// IPv4: the first four bytes. All zero: none, or left out.
    pub addr: [u8; 16],
    pub peer: [u8; 16],
    /// How the addresses stand here.
    pub privacy: Privacy,
    /// Name of the congestion control, zero-terminated or full.
    pub congestion: [u8; 16],
    /// User who opened it.
    pub uid: Option<u32>,
    /// Its pending error (`sk_err`), a number of errno(3): why the kernel ended it. 0: none.
    pub error: u8,
    /// MPTCP: `cookie` of the socket whose packets this connection of TCP has. 0: none.
    pub above: u64,
}

impl SocketRecord {
    /// As the kernel has it: of a socket of IPv6 that speaks IPv4 it becomes one of IPv4.
    pub fn unmapped(mut self) -> SocketRecord {
        let mapped = |a: &[u8; 16]| a[..10] == [0; 10] && a[10..12] == [0xff; 2];
        if self.version == 6 && (mapped(&self.addr) || mapped(&self.peer)) {
            self.version = 4;
            for a in [&mut self.addr, &mut self.peer] {
                a.rotate_left(12);
                a[4..].fill(0);
            }
        }
        self
    }
}

/// What was done to addresses when they were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Privacy {
    #[default]
    Plain = 0,
    /// Replaced by a keyed hash: equal addresses stay equal.
    Hashed = 1,
    LeftOut = 2,
}

impl Privacy {
    pub fn from_u8(v: u8) -> Privacy {
        match v {
            0 => Privacy::Plain,
            1 => Privacy::Hashed,
            _ => Privacy::LeftOut,
        }
    }
}

macro_rules! tcp_fields {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        /// TCP's state at a moment, and the headers of the segment that was at hand (0: none was).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
        pub struct TcpRecord {
            pub at: BootNs,
            /// Low half of the socket's cookie.
            pub sock: u32,
            $($(#[$doc])* pub $name: $type,)*
        }

        impl TcpRecord {
            /// Names of [`TcpRecord::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];
            pub const FIELDS: usize = TcpRecord::NAMES.len();

            /// Every field but time and socket, in order.
            pub fn values(&self) -> [u64; TcpRecord::FIELDS] {
                [$(self.$name as u64),*]
            }

            /// The inverse of [`TcpRecord::values`]; what is too large is cut.
            pub fn from_values(at: BootNs, sock: u32, v: &[u64; TcpRecord::FIELDS]) -> TcpRecord {
                let mut it = v.iter();
                TcpRecord { at, sock, $($name: it.next().copied().unwrap_or(0) as $type,)* }
            }
        }
    };
}

tcp_fields! {
    /// Number of the [`Crossing`] that it goes with.
    what: u8,
    /// TCP_CA_* of `include/uapi/linux/tcp.h`: 0 open, 1 disorder, 2 cwr, 3 recovery, 4 loss.
    ca_state: u8,
    state: u8,
    /// Bits 0-1: why TCP waited (`enum tcp_chrono`: 1 busy, 2 receive window, 3 send buffer); bit 2: by cwnd; bits 3-4: who paces
    /// (`enum sk_pacing` and one: 1 nobody, 2 TCP, 3 the fq qdisc; 0: not known); bits 5-6: 2 the application waits for room in the
    /// send buffer (SOCK_NOSPACE), 1 it does not; 0: not known; bit 7: when a call that sends was last over with something unsent, that waited for more
    /// (`MSG_MORE`, `TCP_CORK`).
    limit: u8,
    ip_version: u8,
    tos: u8,
    ttl: u8,
    tcp_flags: u8,
    ip_id: u16,
    ip_fragment: u16,
    mss: u16,
    /// Segments.
    snd_cwnd: u32,
    snd_ssthresh: u32,
    /// Bytes.
    snd_wnd: u32,
    rcv_wnd: u32,
    /// Eight times the smoothed round trip, microseconds.
    srtt_us8: u32,
    /// Four times its variation, microseconds.
    rttvar_us4: u32,
    rto_jiffies: u32,
    /// Segments.
    in_flight: u32,
    retrans_out: u32,
    lost_out: u32,
    sacked_out: u32,
    total_retrans: u32,
    write_seq: u32,
    snd_una: u32,
    snd_nxt: u32,
    copied_seq: u32,
    rcv_nxt: u32,
    /// Segments delivered when the application last had nothing to send; 0: it has.
    app_limited: u32,
    delivered: u32,
    /// The newest delivery rate: segments in so many microseconds.
    rate_delivered: u32,
    rate_interval_us: u32,
    /// Bytes in the send queue with their overhead.
    wmem_queued: u32,
    rmem_alloc: u32,
    /// Bytes a second; all ones: not paced.
    pacing_rate: u64,
}

/// Records that did not fit, exactly where they are missing in one CPU's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub since: BootNs,
    pub until: BootNs,
    pub lost: u32,
}

/// What a thread did between two of its calls on a socket, from when the one was over, or began to send, until the other did. Not logged of less than 1 ms, nor of a socket whose
/// calls are by turns those of several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTime {
    pub since: BootNs,
    pub until: BootNs,
    pub sock: u32,
    pub thread: u32,
    /// On a CPU, as the kernel had counted it at the last switch or tick (`sum_exec_runtime`): up to a tick too little at either end.
    pub ran_ns: u64,
    /// Ready, and waiting for a CPU (`run_delay`): others ran there, or its group had used up its share.
    pub waited_ns: u64,
    /// So often it slept (`nvcsw`); 0: it ran whenever it did not wait, but for interrupts.
    pub slept: u32,
}

/// Any record of an application log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppRecord {
    Crossing(CrossingRecord),
    Socket(Box<SocketRecord>),
    Tcp(Box<TcpRecord>),
    Gap(Gap),
    ThreadTime(ThreadTime),
}

impl AppRecord {
    pub fn at(&self) -> BootNs {
        match self {
            AppRecord::Crossing(r) => r.at,
            AppRecord::Socket(r) => r.at,
            AppRecord::Tcp(r) => r.at,
            AppRecord::Gap(r) => r.until,
            AppRecord::ThreadTime(r) => r.until,
        }
    }
}
