//! The phases of packets on their way through a host: how long each, and which functions take the time.
//!
//! The study of a Linux router of 2009 cut one packet's way into six: DMA rx, link rx, network rx, network tx, link tx,
//! DMA tx. Here every packet is cut by declared boundaries (`boundaries.txt`), locally sent and delivered ones too, and
//! what it waits for in between is a row of its own. The segments of one packet sum up to its path time exactly, and what is known
//! of the time before it was first seen (the driver's poll) comes on top.

mod boundaries;
mod cards;
mod cut;
mod off_cpu;
mod phase;
pub mod study;

pub use boundaries::{BadBoundary, Boundaries};
pub use cards::{BackToBack, CardRx, CardStamps};
pub use cut::{Passage, Segment};
pub use phase::Phase;

use crate::abreast::Progress as Parts;
use crate::choice::PacketFilter;
use crate::error::Result;
use crate::packet::{CallNode, PacketDetail};
use crate::spread::Spread;
use crate::store::Store;
use crate::walk::{Asked, Life, MOST, Sum, numbers, walk, walk_slices};
use boundaries::{LogFacts, Marks};
use kpat_model::hash::{Map, Set};
use kpat_store::tables::{CallRow, DeviceRow, PacketRow};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One phase of one kind of passage.
#[derive(Clone, Debug)]
pub struct PhaseTime {
    pub phase: Phase,
    /// Passages that have it; times below are of these.
    pub time: Spread,
    /// Share of the sum of all passages' times, 0 to 1.
    pub share: f64,
    /// Own time of recorded functions within it, most first.
    pub functions: Vec<FunctionShare>,
    /// Sum of time in which no recorded function of the packet ran (callers that were not recorded, interrupts, work
    /// on other packets).
    pub uncovered_ns: i64,
    /// Of link rx: sum of the driver's work before a function had the packet, and in how many passages that is known.
    pub unseen: (i64, u64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct FunctionShare {
    pub func_id: i32,
    pub name: String,
    pub layer: String,
    /// Sum over all passages of the self time within the phase.
    pub self_ns: i64,
    /// Passages with it in this phase.
    pub passages: u64,
}

/// All packets that passed in one way.
#[derive(Clone, Debug)]
pub struct PassageTime {
    pub passage: Passage,
    pub count: u64,
    /// First to last moment of the passage.
    pub time: Spread,
    /// In order of [`Phase::ALL`]; those that occurred.
    pub phases: Vec<PhaseTime>,
}

/// A phase that this log cannot show, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotMeasurable {
    pub phase: Phase,
    pub why: String,
}

/// The answer of `kpat phases`. Times in nanoseconds of the DUT's boot clock.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    pub packets: u64,
    pub passages: Vec<PassageTime>,
    pub missing: Vec<NotMeasurable>,
    /// DMA rx of the cards that received packets, estimated: in none of the sums.
    pub cards: Vec<CardRx>,
    /// Only tracepoints: moments, no functions.
    pub points_only: bool,
    /// Packets whose segments did not sum up to their path time: always 0, counted to be seen.
    pub open_sums: u64,
    /// What in the log says that the machine was no real one.
    pub emulator: Option<String>,
}

/// One packet's way, for `kpat phases --packet`.
#[derive(Clone, Debug)]
pub struct Way {
    pub packet_id: i64,
    /// When a function first had it; what is before that is the driver's and the softirq's.
    pub seen_ns: i64,
    pub segments: Vec<Segment>,
    pub passages: Vec<Passage>,
}

/// Cuts packets of one log.
pub(crate) struct Cutting {
    marks: Marks,
}

impl Cutting {
    pub(crate) fn new(store: &Store, boundaries: &Boundaries) -> Result<Cutting> {
        let devices = store.all::<DeviceRow>()?;
        let facts = LogFacts {
            functions: store.functions.iter().map(|f| (f.name.as_str(), f.module.as_str())).collect(),
            drivers: devices.iter().map(|d| d.driver.as_str()).filter(|d| !d.is_empty()).collect(),
            release: &store.manifest.log.kernel_release,
        };
        Ok(Cutting { marks: boundaries.marks(&facts) })
    }

    pub(crate) fn way(&self, life: &Life) -> Vec<Segment> {
        cut::cut(life, &self.marks)
    }
}

#[derive(Clone, Default)]
struct Sums {
    time: Spread,
    uncovered_ns: i64,
    unseen: (i64, u64),
    functions: Map<i32, (i64, u64)>,
}

#[derive(Clone, Default)]
struct PassageSums {
    time: Spread,
    phases: BTreeMap<Phase, Sums>,
}

/// What is summed up of packets.
struct Total<'a> {
    cutting: &'a Cutting,
    passages: BTreeMap<Passage, PassageSums>,
    packets: u64,
    open_sums: u64,
    /// Bits of phases.
    seen: u32,
    used: Set<(i64, i32)>,
    /// Interfaces that received them.
    received: cards::Received,
}

impl<'a> Total<'a> {
    fn new(cutting: &'a Cutting) -> Total<'a> {
        let (used, received) = (Set::default(), BTreeMap::new());
        Total { cutting, passages: BTreeMap::new(), packets: 0, open_sums: 0, seen: 0, used, received }
    }

    fn join(&mut self, other: Total<'_>) {
        self.packets += other.packets;
        self.open_sums += other.open_sums;
        self.seen |= other.seen;
        self.used.extend(other.used);
        for (at, theirs) in other.received {
            self.received.entry(at).or_default().join(theirs);
        }
        for (passage, theirs) in other.passages {
            let ours = self.passages.entry(passage).or_default();
            ours.time.merge(&theirs.time);
            for (phase, theirs) in theirs.phases {
                let ours = ours.phases.entry(phase).or_default();
                ours.time.merge(&theirs.time);
                ours.uncovered_ns = ours.uncovered_ns.saturating_add(theirs.uncovered_ns);
                ours.unseen =
                    (ours.unseen.0.saturating_add(theirs.unseen.0), ours.unseen.1 + theirs.unseen.1);
                for (func, (ns, passages)) in theirs.functions {
                    let f = ours.functions.entry(func).or_default();
                    *f = (f.0.saturating_add(ns), f.1 + passages);
                }
            }
        }
    }

    fn report(&self, store: &Store) -> PhaseReport {
        let sums = self.passages.clone();
        let cards = cards::cards(store, &self.received, &is_card);
        PhaseReport {
            packets: self.packets,
            missing: missing(store, &self.cutting.marks, (self.seen, &self.used), &cards),
            cards,
            passages: sums.into_iter().map(|(passage, s)| finish(store, passage, s)).collect(),
            points_only: store.points_only(),
            open_sums: self.open_sums,
            emulator: emulator(store),
        }
    }
}

impl Sum for Total<'_> {
    fn packet(&mut self, p: &PacketRow) {
        let received = p.if_in.map(|i| (p.if_in_netns.unwrap_or(0), i));
        self.used.extend(received);
        if let Some(at) = received {
            self.received.entry(at).or_default().packet(p);
        }
        self.used.extend(p.if_out.map(|i| (p.if_out_netns.unwrap_or(0), i)));
    }

    fn life(&mut self, life: Life) {
        self.packets += 1;
        let segments = self.cutting.way(&life);
        let path = life.brief.path_end_ns - life.brief.first_ns;
        let seen = segments.iter().filter(|s| s.from_ns >= life.brief.first_ns);
        self.open_sums += u64::from(seen.map(Segment::dur_ns).sum::<i64>() != path);
        self.seen |= segments.iter().fold(0, |bits, s| bits | s.phase.bit());
        let passages = cut::passages(&segments, life.brief.verdict);
        for (hop, passage) in (0..).zip(passages) {
            let of_hop: Vec<&Segment> = segments.iter().filter(|s| s.hop == hop).collect();
            add(self.passages.entry(passage).or_default(), &of_hop, &life);
        }
    }
}

/// Between two reports on what has been cut so far.
const SO_FAR: Duration = Duration::from_millis(250);

/// Cuts the packets that fit and sums up by phase. `so_far` is given reports on those cut until then.
///
/// Errors: [`crate::Error::Abandoned`].
pub fn phases(
    store: &Store,
    filter: &PacketFilter,
    boundaries: &Boundaries,
    progress: Parts<'_>,
    so_far: &mut dyn FnMut(PhaseReport),
) -> Result<PhaseReport> {
    let cutting = Cutting::new(store, boundaries)?;
    let mut total = Total::new(&cutting);
    match numbers(filter) {
        Some(ids) => {
            let mut logged: Option<Instant> = None;
            walk_slices(store, ids, MOST, progress, &|| Total::new(&cutting), &mut |slice| {
                total.join(slice);
                if logged.is_none_or(|t| t.elapsed() >= SO_FAR) {
                    logged = Some(Instant::now());
                    so_far(total.report(store));
                }
            })?;
        }
        None => {
            let asked = Asked { filter, packet: None };
            let total = RefCell::new(&mut total);
            let packet = &mut |p: &PacketRow| {
                total.borrow_mut().packet(p);
                0
            };
            walk(store, &asked, progress, packet, &mut |_| (), &mut |life| total.borrow_mut().life(life))?;
        }
    }
    Ok(total.report(store))
}

/// One packet's way.
///
/// Errors: as [`Store::packet`].
pub fn way(store: &Store, packet: i64, boundaries: &Boundaries) -> Result<Way> {
    let cutting = Cutting::new(store, boundaries)?;
    let mut found = None;
    let filter = PacketFilter::default();
    let asked = Asked { filter: &filter, packet: Some(packet) };
    walk(store, &asked, &mut |_, _| true, &mut |_: &PacketRow| 0, &mut |_| (), &mut |life| {
        let segments = cutting.way(&life);
        let passages = cut::passages(&segments, life.brief.verdict);
        found = Some(Way { packet_id: packet, seen_ns: life.brief.first_ns, segments, passages });
    })?;
    let count = store.table::<PacketRow>()?.rows();
    found.ok_or(crate::Error::NoSuchPacket { id: packet, count })
}

/// The way of a packet whose calls are known already.
pub fn way_of(store: &Store, detail: &PacketDetail, boundaries: &Boundaries) -> Result<Way> {
    let mut rows: Vec<CallRow> = Vec::new();
    let mut todo: Vec<&CallNode> = detail.calls.iter().collect();
    while let Some(node) = todo.pop() {
        todo.extend(&node.children);
        rows.push(node.call.clone());
    }
    let life = Life::of_calls(store, &detail.packet, rows)?;
    let segments = Cutting::new(store, boundaries)?.way(&life);
    let passages = cut::passages(&segments, life.brief.verdict);
    let PacketRow { packet_id, first_ns: seen_ns, .. } = detail.packet;
    Ok(Way { packet_id, seen_ns, segments, passages })
}

/// The ways of these packets (sorted), in no order.
///
/// Errors: [`crate::Error::Abandoned`].
pub fn ways(
    store: &Store,
    packets: &[i64],
    boundaries: &Boundaries,
    progress: Parts<'_>,
) -> Result<Vec<Way>> {
    if packets.is_empty() {
        return Ok(Vec::new());
    }
    let cutting = Cutting::new(store, boundaries)?;
    let mut found = Vec::new();
    let filter = PacketFilter { ids: Some(packets.into()), ..PacketFilter::default() };
    let asked = Asked { filter: &filter, packet: None };
    walk(store, &asked, progress, &mut |_: &PacketRow| 0, &mut |_| (), &mut |life| {
        let segments = cutting.way(&life);
        let passages = cut::passages(&segments, life.brief.verdict);
        let (packet_id, seen_ns) = (life.brief.packet_id, life.brief.first_ns);
        found.push(Way { packet_id, seen_ns, segments, passages });
    })?;
    Ok(found)
}

fn add(sums: &mut PassageSums, segments: &[&Segment], life: &Life) {
    let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return };
    sums.time.push(last.to_ns - first.from_ns);
    // A call belongs to the hop that it was entered in: what still returns later is not on the packet's way.
    let mut of_hop = Set::default();
    of_hop.extend(
        life.rows
            .iter()
            .filter(|r| (first.from_ns..last.to_ns.max(first.from_ns + 1)).contains(&r.entry_ns))
            .map(|r| r.call_id),
    );
    let mut by_phase: BTreeMap<Phase, (i64, i64, Map<i32, i64>)> = BTreeMap::new();
    let (mut at, mut unseen) = (0, 0);
    for s in segments {
        let sum = by_phase.entry(s.phase).or_default();
        sum.0 += s.dur_ns();
        if s.to_ns <= life.brief.first_ns {
            sum.1 = sum.1.saturating_add(s.dur_ns());
            unseen += if s.phase == Phase::LinkRx { s.dur_ns() } else { 0 };
        }
        // Pieces are in order of their start, and few reach over a boundary.
        while life.pieces.get(at).is_some_and(|p| p.to <= s.from_ns) {
            at += 1;
        }
        let mut covered_to = s.from_ns;
        for p in life.pieces[at..].iter().take_while(|p| p.from < s.to_ns) {
            // Where two CPUs work on the packet at once, the time is the one's that began first: a phase is no longer than it is.
            let both = p.to.min(s.to_ns) - p.from.max(covered_to);
            if both > 0 && of_hop.contains(&p.call_id) {
                covered_to = p.to.min(s.to_ns);
                sum.1 = sum.1.saturating_add(both);
                let own = sum.2.entry(p.func_id).or_default();
                *own = own.saturating_add(both);
            }
        }
    }
    for (phase, (dur, covered, functions)) in by_phase {
        let to = sums.phases.entry(phase).or_default();
        to.time.push(dur);
        to.uncovered_ns = to.uncovered_ns.saturating_add((dur - covered).max(0));
        if phase == Phase::LinkRx && unseen > 0 {
            to.unseen = (to.unseen.0.saturating_add(unseen), to.unseen.1 + 1);
        }
        for (func, ns) in functions {
            let f = to.functions.entry(func).or_default();
            f.0 = f.0.saturating_add(ns);
            f.1 += 1;
        }
    }
}

fn finish(store: &Store, passage: Passage, sums: PassageSums) -> PassageTime {
    let total = sums.time.sum().max(1);
    let phases = sums
        .phases
        .into_iter()
        .map(|(phase, s)| {
            let mut functions: Vec<FunctionShare> = s
                .functions
                .into_iter()
                .map(|(func_id, (self_ns, passages))| FunctionShare {
                    func_id,
                    name: store.function_name(func_id).to_owned(),
                    layer: store.functions.get(func_id as usize).map(|f| f.layer.clone()).unwrap_or_default(),
                    self_ns,
                    passages,
                })
                .collect();
            functions.sort_by(|a, b| b.self_ns.cmp(&a.self_ns).then_with(|| a.name.cmp(&b.name)));
            PhaseTime {
                phase,
                share: s.time.sum() as f64 / total as f64,
                functions,
                uncovered_ns: s.uncovered_ns,
                unseen: s.unseen,
                time: s.time,
            }
        })
        .collect();
    PassageTime { passage, count: sums.time.count(), time: sums.time, phases }
}

/// What a log of this kind would be expected to show and does not, with the reason.
/// `seen`: phases that it does show, and the interfaces of its packets.
fn missing(
    store: &Store,
    marks: &Marks,
    (seen, used): (u32, &Set<(i64, i32)>),
    rx: &[CardRx],
) -> Vec<NotMeasurable> {
    let mut out = Vec::new();
    if seen == 0 {
        return out;
    }
    let devices = store.all::<DeviceRow>().unwrap_or_default();
    let is_used = |d: &&DeviceRow| {
        used.is_empty() || used.contains(&(d.netns, d.ifindex)) || used.contains(&(0, d.ifindex))
    };
    let cards = devices.iter().filter(is_used).any(is_card);
    let asked = [
        Phase::DmaRx,
        Phase::LinkRx,
        Phase::NetworkRx,
        Phase::TransportRx,
        Phase::CopyToUser,
        Phase::NetworkTx,
        Phase::LinkTx,
        Phase::DmaTx,
    ];
    for phase in asked {
        if seen & phase.bit() != 0 || (phase == Phase::DmaRx && rx.iter().any(|c| c.dma.is_ok())) {
            continue;
        }
        let dma = matches!(phase, Phase::DmaRx | Phase::DmaTx);
        let why = if dma && !cards {
            "these are virtual devices, which have no DMA".to_owned()
        } else if phase == Phase::DmaRx {
            no_dma_rx(rx)
        } else if phase == Phase::DmaTx && marks.begins & phase.bit() != 0 {
            "no packet was seen to be freed by the driver after sending".to_owned()
        } else if marks.begins & phase.bit() != 0 {
            continue; // It could have been seen and did not happen.
        } else {
            let wanted =
                marks.wanted.iter().find(|w| w.0 == phase).map(|w| w.1.as_slice()).unwrap_or_default();
            let some: Vec<&str> = wanted.iter().take(4).map(String::as_str).collect();
            format!("none of its boundaries was recorded ({} ...)", some.join(", "))
        };
        out.push(NotMeasurable { phase, why });
    }
    out
}

fn is_card(d: &DeviceRow) -> bool {
    const VIRTUAL: [&str; 8] = ["", "veth", "lo", "loopback", "bridge", "tun", "dummy", "vxlan"];
    !VIRTUAL.contains(&d.driver.as_str())
}

/// Why the study's second method cannot be used, card by card.
fn no_dma_rx(rx: &[CardRx]) -> String {
    let of = |c: &CardRx| {
        let why = c.dma.as_ref().err()?;
        Some(match c.stamps.known {
            0 => format!("{}: {why}", c.name),
            n => format!("{}: of none of the {n} packets that it stamped is the driver's work known", c.name),
        })
    };
    let why: Vec<String> = rx.iter().filter_map(of).collect();
    if why.is_empty() {
        "no card's polls are in the log with what they took (tracepoints irq:* and napi:*)".to_owned()
    } else {
        why.join("; ")
    }
}

/// Does the log say that its kernel ran in a virtual machine? By the addresses of its cards: QEMU gives 52:54:00.
fn emulator(store: &Store) -> Option<String> {
    let devices = store.all::<DeviceRow>().unwrap_or_default();
    devices.iter().any(|d| d.mac.starts_with("52:54:00:")).then(|| "cards of QEMU, 52:54:00".to_owned())
}
