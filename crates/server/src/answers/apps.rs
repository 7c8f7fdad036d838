//! Answers about applications: their sockets, one of them at each layer, and over time.

use super::declare::{Big, Ns, answers};

answers! {
    /// /api/apps   All sockets, those with the most bytes first; 10,000 at most.
    Apps {
        total: u64,
        /// Events that are missing in the log.
        lost: u64,
        sockets: Vec<SocketLine>,
    }
    SocketLine {
        /// The kernel's cookie.
        id: Big,
        process: Option<String>,
        /// The process that listens where it came to, if none has used it.
        listener: Option<String>,
        pid: Option<i32>,
        /// Whose thread `pid` is.
        tgid: Option<i32>,
        protocol: String,
        local: String,
        /// null: not connected.
        peer: Option<String>,
        /// What became of a connection that was not made: refused, unreachable, timed out, closed, no port, no answer yet, or an error's name.
        not_connected: Option<String>,
        from: Ns,
        to: Ns,
        written: i64,
        writes: u64,
        read: i64,
        reads: u64,
        packets: u64,
        frames: u64,
        /// Frames sent again.
        retransmitted: u64,
        /// Calls that failed.
        failed: u64,
        /// Mean; null: not TCP, or not known.
        round_trip: Option<Ns>,
        /// What held it back longest, and for which share of the known time.
        held: Option<(String, f64)>,
    }
    /// /api/app?socket=   One socket at each layer.
    SocketDetail {
        line: SocketLine,
        version: i32,
        congestion: Option<String>,
        /// TCP: how it ended, in words: the error, which end closed it first, which reset it; null: it did not, or that is not known.
        error: Option<String>,
        netns: Option<Big>,
        cgroup: Option<Big>,
        layers: Vec<SocketLayer>,
        waits: Vec<SocketWait>,
        /// Of the time over which TCP's state is known; null: it is not.
        limits: Option<SocketLimits>,
        writes_per_packet: Option<f64>,
        /// Calls that failed, in words; null: none did.
        failures: Option<String>,
    }
    SocketLayer {
        crossing: String,
        /// From which layer to which.
        words: String,
        /// Packets cross here.
        packets: bool,
        events: u64,
        failed: u64,
        bytes: i64,
        frames: u64,
        least: i64,
        most: i64,
        mean: Option<f64>,
        /// Exact to 1 in 64, as the other medians and shares.
        median: Option<i64>,
        /// Of calls that moved something.
        apart_mean: Option<Ns>,
        apart_median: Option<Ns>,
        apart_p99: Option<Ns>,
        /// Events by size: at least this, and how many; the next power of two ends it.
        sizes: Vec<(i64, u64)>,
    }
    SocketWait {
        leg: String,
        bytes: u64,
        least: Ns,
        mean: Option<Ns>,
        median: Option<Ns>,
        p99: Option<Ns>,
        most: Ns,
    }
    SocketLimits {
        known: Ns,
        held: Vec<(String, Ns)>,
        recovery: Ns,
        /// The application's calls: refused until one was taken again, and inside those that send.
        refused: Ns,
        in_call: Ns,
        total_retrans: i64,
    }
    /// /api/app/series?socket=&from=&to=&bins=   A socket, or without one all in sum, over time. Bin i is from
    /// from + ceil((to - from) * i / bins) on.
    SocketSeries {
        from: Ns,
        to: Ns,
        bins: usize,
        crossings: Vec<CrossingSeries>,
        marks: Vec<MarkSeries>,
        /// null: all sockets, not TCP, or no state was recorded.
        tcp: Option<TcpSeries>,
        gaps: Vec<GapSpan>,
    }
    CrossingSeries {
        crossing: String,
        words: String,
        events: Vec<u64>,
        bytes: Vec<i64>,
        frames: Vec<u64>,
        /// Of one event's bytes; 0 where nothing crossed.
        least: Vec<i64>,
        most: Vec<i64>,
    }
    /// Moments, counted in each bin.
    MarkSeries {
        mark: String,
        counts: Vec<u64>,
    }
    TcpSeries {
        tracks: Vec<TrackSeries>,
        /// Nanoseconds of each bin.
        held: Vec<HeldSeries>,
        recovery: Vec<i64>,
    }
    /// Extremes within each bin, and what was in force at its end; null: not known, or infinite.
    TrackSeries {
        metric: String,
        unit: String,
        low: Vec<Option<i64>>,
        high: Vec<Option<i64>>,
        last: Vec<Option<i64>>,
    }
    HeldSeries {
        held: String,
        ns: Vec<i64>,
    }
    /// Events are missing here.
    GapSpan {
        from: Ns,
        to: Ns,
        lost: i64,
    }
    /// /api/app/why?socket=   Where the time of a connection goes, from write to read: of what this socket wrote, or, if it wrote nothing, its peer.
    SocketWhy {
        /// null: neither end wrote anything that the log has.
        why: Option<Reasons>,
    }
    Reasons {
        /// Which wrote.
        socket: Big,
        /// Its device; null: the log has one only.
        device: Option<String>,
        /// null: in none of the devices' logs.
        peer: Option<Big>,
        peer_device: Option<String>,
        /// How far the peer's clock may be off, where it is another kernel's.
        clock: Option<Ns>,
        /// Divided among the stages.
        whole: Ns,
        /// Whatever became of what is not known, the first stage stays the first.
        certain: bool,
        /// The stage that took longest; null: nothing is known.
        first: Option<String>,
        stages: Vec<WhyStage>,
        writes: u64,
        /// How long the slowest of them took; null: none is known.
        slowest: Option<Ns>,
        /// The packet with its last byte, in the log of the device that wrote; null: not known, or no packets.
        slowest_packet: Option<i64>,
        lost: u64,
    }
    WhyStage {
        stage: String,
        meaning: String,
        /// What it is known by.
        evidence: String,
        ns: Ns,
        /// Of the whole time, 0 to 1.
        share: f64,
        low: Ns,
        high: Ns,
        /// What the program's threads did in it; null: not known, or it is no program's.
        ran: Option<Ns>,
        /// Ready, for a CPU.
        waited: Option<Ns>,
        slept: Option<Ns>,
        /// Of that, as far as it is known, the longest first.
        slept_for: Vec<WhySleep>,
    }
    WhySleep {
        /// Behind "slept".
        what: String,
        ns: Ns,
    }
    /// /api/app/writes?socket=   Writes of a TCP socket, those that took longest to be acknowledged first; 100 at most.
    SocketWrites {
        total: u64,
        open: u64,
        writes: Vec<SlowWriteLine>,
    }
    SlowWriteLine {
        id: i64,
        t: Ns,
        bytes: i64,
        process: Option<String>,
        acked_after: Ns,
    }
    /// /api/app/write?id=   A write, the packets that carried it, and when these were read.
    WriteDetail {
        id: i64,
        socket: Big,
        t: Ns,
        bytes: i64,
        /// The kernel refused it: EPERM, for example; `bytes` are those of its packets. null: it did not.
        error: Option<String>,
        /// null: not seen, or not TCP.
        acked: Option<Ns>,
        packets: Vec<WritePacket>,
        cut: bool,
    }
    WritePacket {
        id: i64,
        t: Ns,
        to: Ns,
        carried: i64,
        verdict: String,
        info: String,
        /// null: not known.
        read: Option<Ns>,
    }
}
