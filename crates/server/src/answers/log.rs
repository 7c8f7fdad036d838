//! Answers about the log as a whole: what it is, and what a careful reader needs to trust it.

use super::declare::{Big, Ns, answers, words};

words! {
    /// What a field of the filter language holds.
    FieldKind { Number "number", Duration "duration", Text "text", Address "address", Word "word", Flag "flag", }
}

answers! {
    /// /api/info
    Info {
        /// File name of the integrated log.
        name: String,
        /// Counts up whenever answers may have changed.
        generation: u64,
        /// A recording goes on and the log grows.
        live: bool,
        /// All packets are in memory; before that only the first page of the plain list is answered at once.
        loaded: bool,
        /// This device; null: the log is of one device.
        device: Option<String>,
        /// All devices of the log; empty: it is of one.
        device_names: Vec<String>,
        host: String,
        kernel: String,
        arch: String,
        mechanism: String,
        filter: String,
        /// Only this part of the packets was recorded, as `1/8 of flows`.
        sample: Option<String>,
        /// Only what is of processes that fit one of these; empty: of all.
        only: Vec<String>,
        profile: String,
        start_boot_ns: Big,
        start_wall_ns: Option<Big>,
        /// When that clock was set, in order of time.
        wall_steps: Vec<WallStep>,
        length_ns: Ns,
        counts: Counts,
        captures: Vec<CaptureFile>,
        devices: Vec<Device>,
        cpus: u32,
        losses: Vec<Loss>,
        cost: Option<Words>,
        /// How far the log is to be trusted: the worst of its parts, in parts per million, and what it is of.
        trust_ppm: Option<u64>,
        trust_words: Option<String>,
        /// Name of the log that this one is compared with.
        compare: Option<String>,
        /// Fields of the filter language.
        fields: Vec<Field>,
        /// What is doubtful in the log, one sentence each.
        notes: Vec<String>,
    }
    /// The device's wall clock was set.
    WallStep {
        /// Since the start of the log.
        at_ns: Ns,
        /// So much more than by its start it showed from then on.
        ahead_ns: Big,
    }
    Counts {
        packets: u64,
        frames: u64,
        calls: u64,
        events: u64,
        functions: u64,
        /// Of applications, in a log of `record --profile app`.
        sockets: u64,
        /// Rows of the list of packets: packets and frames without a packet, as many as are held in memory.
        rows: u64,
    }
    CaptureFile {
        id: i32,
        name: String,
        frames: u64,
        matched: u64,
    }
    Device {
        netns: String,
        ifindex: i32,
        name: String,
        driver: String,
    }
    Loss {
        cause: String,
        cpu: Option<i32>,
        from: Ns,
        to: Ns,
        count: i64,
        advice: String,
    }
    Words {
        words: String,
    }
    Field {
        name: String,
        kind: FieldKind,
        words: String,
        values: Option<Vec<String>>,
    }
    /// /api/trust
    Trust {
        clocks: Vec<Clock>,
        residuals: Vec<Residuals>,
        losses: Vec<Loss>,
        cost: Option<Cost>,
        closure: Option<Words>,
        parts: Vec<TrustPart>,
        conservation: Conservation,
    }
    /// One way in which something can be missing: how much is there, of what should be.
    TrustPart {
        part: String,
        ppm: u64,
        good: u64,
        all: u64,
        words: String,
    }
    /// A stretch of a capture's clock: boot = wall + offset + drift * (wall - from), within plus or minus bound.
    Clock {
        capture: String,
        from: Option<Ns>,
        to: Option<Ns>,
        offset_ns: Big,
        drift_ppb: i64,
        bound_ns: i64,
        drift_bound_ppb: i64,
        received: i64,
        transmitted: i64,
        rejected: i64,
        method: String,
        words: String,
    }
    /// Matches of one capture, evenly thinned to 4,000 at most: when, frame time less kernel time, and side (1 received,
    /// 2 transmitted, 0 cannot tell).
    Residuals {
        capture: String,
        t: Vec<Ns>,
        residual_ns: Vec<i64>,
        side: Vec<i32>,
        /// How many there are without thinning.
        all: u64,
    }
    Cost {
        rows: Vec<(String, String)>,
    }
    Conservation {
        explained_ppm: u64,
        words: String,
        interfaces: Vec<Balance>,
        unexplained: Vec<Unexplained>,
    }
    /// came = out + delivered + dropped + merged + in_flight + lost + unexplained; given: handed to it for sending.
    Balance {
        name: String,
        came: u64,
        out: u64,
        delivered: u64,
        dropped: u64,
        merged: u64,
        in_flight: u64,
        lost: u64,
        unexplained: u64,
        given: u64,
    }
    Unexplained {
        packet: i64,
        words: String,
    }
    /// /api/events?kind=&from=&count=&where=
    Events {
        total: u64,
        kinds: Vec<(String, u64)>,
        rows: Vec<Event>,
    }
    /// /api/events/sums?bins=&from=&to=&where=
    EventSums {
        from: Ns,
        to: Ns,
        /// Of each kind how many in each of equal parts of the time.
        bins: Vec<(String, Vec<u32>)>,
        /// All of them, by reason and place, most first.
        drops: Vec<DropPlace>,
    }
    DropPlace {
        reason: String,
        place: String,
        count: u64,
    }
    Event {
        t: Ns,
        kind: String,
        packet: Option<i64>,
        /// Null: seen by user space, on whatever CPU that ran.
        cpu: Option<i32>,
        words: String,
        place: String,
        reason: String,
        /// So long before `t` it may have happened; null: `t` is the moment.
        within: Option<Ns>,
        /// Whose task was current, and its number.
        process: Option<String>,
        pid: Option<i32>,
    }
    /// /api/complete?text=&at=
    Completion {
        from: usize,
        to: usize,
        items: Vec<CompletionItem>,
    }
    CompletionItem {
        text: String,
        words: String,
    }
    /// /api/check?where=
    Checked {
        /// Rows that fit; null: the packets are not all read yet, or a function is asked for.
        rows: Option<u64>,
    }
}
