//! Answers about functions, where time goes by call path and by phase, and two logs compared.

use super::declare::{Columns, Ns, answers};
use super::packets::Ctx;

answers! {
    FunctionRow {
        id: i32,
        name: String,
        module: String,
        layer: String,
        calls: u64,
        packets: u64,
        total: Ns,
        own: Ns,
        min: Option<Ns>,
        median: Option<Ns>,
        p99: Option<Ns>,
        max: Option<Ns>,
        max_packet: Option<i64>,
        /// Calls by duration: at least this, and how many; the next power of two ends it.
        buckets: Vec<(Ns, u64)>,
    }
    /// /api/functions?where=&slower=&faster=&sort=&desc=   Without where from the function table at once, and thresholds
    /// choose functions that have such a call; with where the calls of those packets are counted, and only calls within
    /// the thresholds.
    Functions {
        rows: Vec<FunctionRow>,
        /// Estimated cost of one run of a probe.
        probe_cost_ns: Option<f64>,
    }
    /// /api/function?id=&slower=&faster=&where=&from=&count=&by_time=   longest calls first, with by_time=1 earliest
    FunctionDetail {
        row: FunctionRow,
        /// What it does with a packet, and what its own time goes into; null where nothing is known of it.
        does: Option<String>,
        slow: Option<String>,
        total: u64,
        calls: Columns<FunctionCall>,
        callers: Vec<Neighbour>,
        callees: Vec<Neighbour>,
    }
    FunctionCall {
        call: i64,
        packet: Option<i64>,
        t: Ns,
        dur: Option<Ns>,
        own: Option<Ns>,
        cpu: i32,
        ctx: Ctx,
        comm: String,
    }
    /// Of a caller: the calls it made to the function, and their time. Of a callee: the calls that the function made.
    /// id -1: no recorded caller.
    Neighbour {
        id: i32,
        name: String,
        calls: u64,
        total: Ns,
    }
    /// /api/profile/flame?number=&context=   the same of samples: whom they are charged to, the context where it is no task, the functions; calls are samples,
    /// layer is process, context, user or kernel, func -1. context: task, page fault, softirq or hardirq.
    /// /api/flame?where=   nodes in preorder, most time first among siblings; parent: index, -1: none
    Flame {
        total: Ns,
        nodes: Columns<FlameNode>,
    }
    FlameNode {
        func: i32,
        name: String,
        layer: String,
        depth: u32,
        parent: i64,
        calls: u64,
        total: Ns,
        own: Ns,
    }
    /// /api/compare   only where the view was opened with --compare OTHER ...
    Compare {
        /// Names of the logs of B.
        other: Vec<String>,
        /// Runs of A, the opened log among them, and of B.
        runs: (u64, u64),
        /// Differences are larger than what runs of one side differ by, as far as the verdicts say so.
        enough: bool,
        /// By what all functions moved, B by A.
        beside: f64,
        remarks: Vec<CompareRemark>,
        rows: Vec<CompareRow>,
    }
    CompareRemark {
        words: String,
        warning: bool,
    }
    /// Means: of a packet's path and layers, of one wait, of a call's self time. ratio: B by A; tested: of layers and
    /// functions beside the common factor, and low to high its 97 % interval for all rows together, null: not known.
    /// by_time_ns: what an average packet has more of it because each takes longer; by_count_ns: because there are more.
    CompareRow {
        /// path, layer, wait or function.
        kind: String,
        name: String,
        layer: String,
        verdict: String,
        a: Option<Side>,
        b: Option<Side>,
        ratio: Option<f64>,
        tested: Option<f64>,
        low: Option<f64>,
        high: Option<f64>,
        by_time_ns: f64,
        by_count_ns: f64,
        probed: bool,
    }
    /// Means of the runs, their geometric mean, the least and the largest.
    Side {
        count: u64,
        mean: Option<f64>,
        least: Option<f64>,
        largest: Option<f64>,
    }
    /// /api/time?where=   where the packets' time went; sums of times of many packets may exceed the path's, as a call on a
    /// list counts in full for each packet of it
    TimeSpent {
        packets: u64,
        path: TimeRow,
        /// What the path is made of, in order: layers, waits, the card, what was not recorded.
        parts: Vec<TimeRow>,
        /// Most self time first.
        functions: Vec<TimeRow>,
        /// Only tracepoints were recorded: moments, no functions.
        points_only: bool,
        /// The log says when tasks were off the CPU; else that time is self time.
        pauses: bool,
        /// Estimated cost of one run of a probe.
        probe_cost_ns: Option<f64>,
    }
    /// Self time of a function's calls, of a layer per packet, of each wait; id: of a function.
    TimeRow {
        id: Option<i32>,
        /// path, layer, wait, card, unrecorded or function.
        kind: String,
        name: String,
        layer: String,
        /// Calls, waits, or packets.
        times: u64,
        total: Ns,
        /// Of the path; of a function, of all self time.
        share: f64,
        /// Its task was off the CPU.
        off: Ns,
        min: Option<Ns>,
        median: Option<Ns>,
        p90: Option<Ns>,
        p99: Option<Ns>,
        max: Option<Ns>,
        /// At least this, and how many; the next power of two ends it.
        buckets: Vec<(Ns, u64)>,
    }
    /// /api/latency?where=&bins=&from=&to=   path times of the packets that fit and began in that time
    Latency {
        from: Ns,
        to: Ns,
        /// Equal pieces of the time.
        pieces: u32,
        packets: u64,
        min: Option<Ns>,
        median: Option<Ns>,
        p90: Option<Ns>,
        p99: Option<Ns>,
        max: Option<Ns>,
        /// Pieces without a packet are left out.
        bins: Columns<LatencyBin>,
        /// Each packet, or where they are too many the slowest.
        points: Columns<LatencyPoint>,
        /// Every packet is a point.
        all_points: bool,
        /// Path times from ... to below ..., and how many; four steps per power of two, empty ones left out.
        histogram: Vec<HistogramStep>,
    }
    LatencyBin {
        bin: u32,
        packets: u64,
        min: Ns,
        p10: Ns,
        median: Ns,
        p90: Ns,
        p99: Ns,
        max: Ns,
    }
    LatencyPoint {
        packet: i64,
        t: Ns,
        path_ns: Ns,
        dropped: bool,
    }
    HistogramStep {
        from: Ns,
        below: Ns,
        packets: u64,
    }
    /// /api/phases?where=
    Phases {
        packets: u64,
        phases: Vec<PhaseRow>,
        /// Cards whose DMA rx can be estimated; in no sum.
        dma_rx: Vec<DmaRx>,
        /// Cards that stamp what they receive: what the phase dma-rx rests on.
        stamps: Vec<CardStamps>,
        not_measurable: Vec<NotMeasurable>,
        passages: Vec<Passage>,
        /// Only tracepoints were recorded: moments, no functions.
        points_only: bool,
    }
    /// Over all passages; packets counts passages that have the phase.
    PhaseRow {
        phase: String,
        label: String,
        wait: bool,
        meaning: String,
        packets: u64,
        total: Ns,
        share: f64,
        median: Option<Ns>,
        p99: Option<Ns>,
        functions: Vec<PhaseFunction>,
    }
    PhaseFunction {
        id: i32,
        name: String,
        own: Ns,
        share: f64,
    }
    /// Time per packet over batches back to back. Of 20 batches and more nine of ten are from low to high, else all.
    DmaRx {
        interface: String,
        driver: String,
        mean: Ns,
        low: Ns,
        high: Ns,
        packets: u64,
        batches: u64,
        runs: u64,
    }
    /// Stamped ones of the packets that a card received, those whose stamp has a time here, and the largest bound of these.
    CardStamps {
        interface: String,
        driver: String,
        received: u64,
        stamped: u64,
        known: u64,
        bound: Ns,
    }
    NotMeasurable {
        phase: String,
        words: String,
    }
    Passage {
        name: String,
        packets: u64,
        median: Option<Ns>,
    }
}
