//! Answers about handovers: all of them, and one with its phases, lanes and marks.

use super::declare::{Ns, answers};

answers! {
    /// /api/handovers   All handovers, in order of time; 10,000 at most.
    Handovers {
        /// Why there is none; null: there are some.
        none: Option<String>,
        left_out: u64,
        rows: Vec<HandoverLine>,
        /// How many they are together, and which are none of these: what did not come to an end.
        together: String,
        /// Over those.
        sums: Vec<HandoverSum>,
    }
    HandoverLine {
        number: u32,
        from: Ns,
        to: Ns,
        interface: String,
        kind: String,
        cause: String,
        /// Access points; empty: not known, or none.
        old: String,
        new: String,
        /// From the end of the data path on; null: it had none before.
        without_data: Option<Ns>,
        /// Link-down to link-up.
        link: Option<Ns>,
        /// Until the authentication of the last attempt, of that.
        search: Option<Ns>,
        /// The longest phase, and its share.
        longest: Option<(String, f64)>,
        /// What ended it, in words.
        ended: String,
    }
    HandoverSum {
        label: String,
        group: String,
        handovers: u64,
        median: Ns,
        max: Ns,
        /// Number of the handover that it is of.
        longest: u32,
    }
    /// /api/handover?number=   One of them.
    HandoverDetail {
        line: HandoverLine,
        attempts: u32,
        /// What failed, attempt by attempt.
        refusals: Vec<String>,
        /// They leave no moment out.
        phases: Vec<HandoverPhase>,
        lanes: Vec<HandoverLane>,
        /// Moments that have a name.
        moments: Vec<(String, Ns)>,
        /// null: no flow of an application is in the log.
        gap: Option<HandoverGap>,
        marks_left_out: u64,
        /// What records that are missing mean for it; null: none are.
        loss: Option<String>,
    }
    HandoverPhase {
        phase: String,
        label: String,
        group: String,
        meaning: String,
        from: Ns,
        to: Ns,
        share: f64,
        /// What began it, and by which record or frame that is known.
        begin: String,
        evidence: String,
        /// What made it long; null: no rule knows.
        why: Option<String>,
        steps: Vec<HandoverStep>,
    }
    HandoverStep {
        t: Ns,
        time: Ns,
        words: String,
    }
    HandoverLane {
        name: String,
        marks: Vec<HandoverMark>,
    }
    HandoverMark {
        t: Ns,
        words: String,
        evidence: String,
    }
    /// Between the last data before and the first after it.
    HandoverGap {
        from: Ns,
        to: Option<Ns>,
        words: String,
    }
}
