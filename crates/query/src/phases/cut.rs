//! One packet's way cut into phases and waits: segments without gap or overlap from its first moment to the end of its path, so
//! their sum is its path time by construction. Before them, where they are known, stand the wait for the softirq and the driver's
//! work until a function had the packet.
//!
//! A moment belongs to the phase that the last boundary before it began. Where nothing recorded runs for the packet and
//! it goes on in another flow of control, it waited: for what, the phase and the two contexts tell. A hop is one
//! passage through a host or namespace; a packet that comes back in by a virtual device begins the next.

use super::boundaries::{Mark, Marks};
use super::off_cpu;
use super::phase::Phase;
use crate::codes::{call_flag, verdict};
use crate::packet::same_context;
use crate::walk::{Before, Life, end_ns};
use kpat_store::tables::CallRow;

/// A stretch of a packet's way, `from_ns..to_ns`, boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub phase: Phase,
    /// From 0; see the module.
    pub hop: u32,
    pub from_ns: i64,
    pub to_ns: i64,
}

impl Segment {
    pub fn dur_ns(&self) -> i64 {
        self.to_ns - self.from_ns
    }
}

/// What a host or namespace did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Passage {
    Forwarded,
    Delivered,
    Sent,
    /// Dropped on the way, or the log knows no more of it.
    Ended,
}

impl Passage {
    pub const ALL: [Passage; 4] = [Passage::Forwarded, Passage::Delivered, Passage::Sent, Passage::Ended];

    pub fn name(self) -> &'static str {
        match self {
            Passage::Forwarded => "forwarded",
            Passage::Delivered => "delivered",
            Passage::Sent => "sent",
            Passage::Ended => "ended",
        }
    }
}

/// The segments of a packet in order of time; empty for a packet without length.
pub(super) fn cut(life: &Life, marks: &Marks) -> Vec<Segment> {
    let mut cutter = Cutter { out: Vec::new(), phase: None, hop: 0, left: false, at: life.brief.first_ns };
    let events = events(&life.rows, marks);
    let goes_on = |e: &Event<'_>| {
        e.class == ENTRY && e.marks.iter().any(|m| !matches!(m.phase, Phase::Freeing | Phase::Held))
    };
    // The last moment at which something other than its end began.
    let busy = events.iter().rposition(goes_on).unwrap_or(0);
    for (i, e) in events.iter().enumerate() {
        // Conditions are of the moment before.
        let Some(next) = Marks::pick(e.marks, cutter.phase) else { continue };
        let not_yet = match next {
            Phase::Freeing => cutter.phase != Some(Phase::DmaTx) && i < busy,
            Phase::Neighbour => {
                let until = tree_end(&life.rows, e.row);
                let same = |f: &&Event<'_>| same_context(&life.rows[f.row], &life.rows[e.row]);
                events[i + 1..].iter().take_while(|f| f.at <= until).filter(same).any(goes_on)
            }
            _ => false,
        };
        if !not_yet {
            cutter.turn(e.at.max(life.brief.first_ns).min(life.brief.path_end_ns), next);
        }
    }
    let mut out = cutter.finish(life.brief.path_end_ns);
    gaps(&life.rows, marks, &mut out);
    off_cpu::overlay(&life.rows, &life.rests, &mut out);
    merge(&mut out);
    before(life, &mut out);
    out
}

/// Puts what was before the packet was seen in front, if it came in by a device.
///
/// The card has it from its stamp until the softirq was asked for, or the driver began with it. A packet that came when the softirq had
/// been asked for already waited from its stamp on, where the bound leaves no doubt. Where the driver's work is not known, what was before
/// it is not known either.
fn before(life: &Life, out: &mut Vec<Segment>) {
    let Before { driver_ns, softirq_ns, card_ns, card_bound_ns } = life.brief.before;
    if driver_ns <= 0 || out.first().is_some_and(|s| s.phase.sends()) {
        return;
    }
    let to_ns = life.brief.first_ns;
    let from_ns = to_ns.saturating_sub(driver_ns);
    let driver = Segment { phase: Phase::LinkRx, hop: 0, from_ns, to_ns };
    let mut raised_ns = from_ns.saturating_sub(softirq_ns);
    let mut card = None;
    if let Some(bound_ns) = card_bound_ns {
        let stamped_ns = to_ns.saturating_sub(card_ns);
        card = Some(Segment { phase: Phase::DmaRx, hop: 0, from_ns: stamped_ns, to_ns: raised_ns });
        if stamped_ns.saturating_sub(bound_ns) > raised_ns {
            raised_ns = stamped_ns.min(from_ns);
        }
    }
    let wait = Segment { phase: Phase::Softirq, hop: 0, from_ns: raised_ns, to_ns: from_ns };
    out.splice(0..0, card.into_iter().chain([wait, driver]).filter(|s| s.dur_ns() > 0));
}

/// An entry or return at which some phase may begin.
struct Event<'a> {
    at: i64,
    marks: &'a [Mark],
    /// Place of the call.
    row: usize,
    /// Of the same moment, returns of earlier calls come first, then entries, then returns of calls without length.
    class: u8,
}

const ENTRY: u8 = 1;

fn events<'a>(rows: &[CallRow], marks: &'a Marks) -> Vec<Event<'a>> {
    let mut events: Vec<Event<'a>> = Vec::new();
    for (place, row) in rows.iter().enumerate() {
        let Some((entry, exit)) = usize::try_from(row.func_id).ok().and_then(|f| marks.by_func.get(f)) else {
            continue;
        };
        if !entry.is_empty() {
            events.push(Event { at: row.entry_ns, marks: entry, row: place, class: ENTRY });
        }
        if !exit.is_empty() && row.dur_ns.is_some() {
            let class = if row.dur_ns == Some(0) { 2 } else { 0 };
            events.push(Event { at: end_ns(row), marks: exit, row: place, class });
        }
    }
    events.sort_by_key(|e| (e.at, e.class));
    events
}

/// Return of the outermost call that encloses this one in its context.
fn tree_end(rows: &[CallRow], of: usize) -> i64 {
    let (row, end) = (&rows[of], end_ns(&rows[of]));
    let encloses = |r: &&CallRow| end_ns(r) >= end && same_context(r, row);
    rows[..of].iter().filter(encloses).map(end_ns).max().unwrap_or(end)
}

struct Cutter {
    out: Vec<Segment>,
    phase: Option<Phase>,
    hop: u32,
    /// The packet is on its way out of this hop.
    left: bool,
    at: i64,
}

impl Cutter {
    fn turn(&mut self, at: i64, next: Phase) {
        // Of the time before the first boundary only this is known: what comes next comes out of it.
        let before = self.phase.unwrap_or(match next {
            Phase::Backlog | Phase::Gro => Phase::LinkRx,
            Phase::SocketQueue => Phase::SocketRx,
            Phase::Qdisc | Phase::DmaTx => Phase::LinkTx,
            Phase::Neighbour => Phase::NetworkTx,
            next if next.sends() => Phase::SocketTx,
            next => next,
        });
        if self.phase == Some(next) {
            return;
        }
        let again = self.left && next.receives();
        if again && matches!(before, Phase::DmaTx | Phase::Qdisc) {
            // No card: the packet lay in a virtual device's ring, and that belongs to whom it was for.
            self.hop += 1;
            self.left = false;
            self.close(at, Phase::Backlog);
        } else {
            self.close(at, before);
            if again {
                self.hop += 1;
                self.left = false;
            }
        }
        self.left |= next.leaves();
        self.phase = Some(next);
    }

    fn close(&mut self, at: i64, phase: Phase) {
        if at > self.at {
            self.out.push(Segment { phase, hop: self.hop, from_ns: self.at, to_ns: at });
            self.at = at;
        }
    }

    fn finish(mut self, last: i64) -> Vec<Segment> {
        let phase = match self.phase {
            // Never seen to be freed: what follows is the callers' return.
            Some(Phase::DmaTx) => Phase::GivenAway,
            Some(phase) => phase,
            None => Phase::AboveLink,
        };
        self.close(last, phase);
        self.out
    }
}

/// Overlays waits where nothing recorded runs and another flow of control goes on.
fn gaps(rows: &[CallRow], marks: &Marks, segments: &mut Vec<Segment>) {
    let mut found: Vec<(i64, i64, &CallRow, &CallRow)> = Vec::new();
    let mut last: Option<&CallRow> = None;
    for row in rows.iter().filter(|r| r.flags & call_flag::WITHIN == 0) {
        if let Some(before) = last
            && row.entry_ns > end_ns(before)
        {
            found.push((end_ns(before), row.entry_ns, before, row));
        }
        if last.is_none_or(|l| end_ns(row) >= end_ns(l)) {
            last = Some(row);
        }
    }
    if found.is_empty() {
        return;
    }
    let mut out = Vec::with_capacity(segments.len() + found.len());
    for s in segments.iter() {
        let mut at = s.from_ns;
        let first = found.partition_point(|g| g.1 <= s.from_ns);
        for &(from, to, before, after) in found[first..].iter().take_while(|g| g.0 < s.to_ns) {
            let Some(wait) = wait_of(s.phase, before, after, marks) else { continue };
            let (from, to) = (from.max(s.from_ns), to.min(s.to_ns));
            if from > at {
                out.push(Segment { from_ns: at, to_ns: from, ..*s });
            }
            out.push(Segment { phase: wait, from_ns: from, to_ns: to, ..*s });
            at = to;
        }
        if s.to_ns > at {
            out.push(Segment { from_ns: at, ..*s });
        }
    }
    *segments = out;
}

/// What a packet in `phase` waits for between two calls; `None`: not a wait, the caller is not recorded.
fn wait_of(phase: Phase, before: &CallRow, after: &CallRow, marks: &Marks) -> Option<Phase> {
    let function = before.flags & call_flag::POINT == 0;
    match phase {
        // What follows the last moment in a softirq is not recorded, but that is over soon: it is the reader who comes later.
        Phase::AboveLink
            if !same_context(before, after) && marks.begins_at_entry(after, Phase::CopyToUser) =>
        {
            return Some(Phase::SocketQueue);
        }
        // A tracepoint says when a part was copied, and what is left lies there.
        Phase::CopyToUser if !function => return Some(Phase::Held),
        _ => {}
    }
    let unfit = phase.is_wait()
        || matches!(
            phase,
            Phase::DmaTx | Phase::GivenAway | Phase::AboveLink | Phase::Freeing | Phase::DmaRx
        );
    if unfit {
        return None;
    }
    if same_context(before, after) {
        return match phase {
            // A finished tree of calls, and another begins: somebody put the packet away in between.
            Phase::LinkTx if function => Some(Phase::Qdisc),
            _ => None,
        };
    }
    Some(match phase {
        Phase::LinkTx => Phase::Qdisc,
        Phase::NetworkTx if function => Phase::Neighbour,
        _ if after.ctx == 1 && before.cpu == after.cpu => Phase::Softirq,
        _ if after.ctx != 0 && before.cpu != after.cpu => Phase::OtherCpu,
        _ => Phase::Scheduled,
    })
}

fn merge(segments: &mut Vec<Segment>) {
    segments.dedup_by(|next, kept| {
        let same = kept.phase == next.phase && kept.hop == next.hop && kept.to_ns == next.from_ns;
        if same {
            kept.to_ns = next.to_ns;
        }
        same
    });
}

/// What became of the packet in each hop.
pub(super) fn passages(segments: &[Segment], packet_verdict: i32) -> Vec<Passage> {
    let hops = segments.last().map_or(0, |s| s.hop + 1);
    (0..hops)
        .map(|hop| {
            let of_hop = || segments.iter().filter(move |s| s.hop == hop).map(|s| s.phase);
            let (rx, tx) = (of_hop().any(Phase::receives), of_hop().any(Phase::leaves));
            let arrived = of_hop().any(|p| {
                matches!(p, Phase::TransportRx | Phase::SocketRx | Phase::SocketQueue | Phase::CopyToUser)
            });
            let last = hop + 1 == hops;
            // What leaves a hop was given to a queue there, which may have dropped it.
            if last && packet_verdict == verdict::DROPPED {
                Passage::Ended
            } else if tx {
                if rx { Passage::Forwarded } else { Passage::Sent }
            } else if arrived || (rx && last && packet_verdict == verdict::DELIVERED) {
                Passage::Delivered
            } else {
                Passage::Ended
            }
        })
        .collect()
}
