//! DMA rx by the second method of the router study of 2009: no card says when it began to write a packet, but from one batch to
//! the next, while its queue is never empty, it can have spent no more than that time on the batch's packets.
//!
//! A batch is what one poll of the driver took; it is back to back with the batch before where the driver had then used up its
//! budget (its card has more, and the softirq polls it again at once), or where the softirq was raised before that poll ended. The
//! time is from the end of the poll before, when all buffers are with the card again, to the end of this one. It is an estimate and
//! part of no sum: where the processor is slower than the card, it is the processor's time.

use crate::store::Store;
use kpat_model::hash::Map;
use kpat_store::tables::{DeviceRow, PacketRow, PollRow};
use std::collections::BTreeMap;

/// Batches in a row that make a load.
const FEW: usize = 3;

/// A card that received packets, and what is known of its DMA.
#[derive(Clone, Debug, PartialEq)]
pub struct CardRx {
    pub netns: i64,
    pub ifindex: i32,
    pub name: String,
    pub driver: String,
    /// Polls of which a packet is in the log.
    pub polls: u64,
    /// The estimate, or why there is none.
    pub dma: Result<BackToBack, String>,
    /// What its own time stamps say.
    pub stamps: CardStamps,
}

/// Time stamps of a card, of the packets that it received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardStamps {
    pub received: u64,
    /// Packets with a stamp.
    pub stamped: u64,
    /// Packets whose stamp has a time on the boot clock.
    pub known: u64,
    /// Largest bound of those times, nanoseconds.
    pub bound_ns: i64,
}

impl CardStamps {
    pub(super) fn packet(&mut self, p: &PacketRow) {
        self.received += 1;
        self.stamped += u64::from(p.stamp_ns.is_some());
        if let Some(bound) = p.card_ns.and(p.card_bound_ns) {
            self.known += 1;
            self.bound_ns = self.bound_ns.max(bound);
        }
    }

    pub(super) fn join(&mut self, other: CardStamps) {
        self.received += other.received;
        self.stamped += other.stamped;
        self.known += other.known;
        self.bound_ns = self.bound_ns.max(other.bound_ns);
    }
}

/// Of each interface that received packets, by namespace and index.
pub(super) type Received = BTreeMap<(i64, i32), CardStamps>;

/// Time per packet, in nanoseconds, over batches that follow each other without the card's queue being empty in between.
#[derive(Clone, Debug, PartialEq)]
pub struct BackToBack {
    /// Times in which batches followed each other.
    pub runs: u64,
    pub batches: u64,
    pub packets: u64,
    /// All time by all packets.
    pub mean_ns: f64,
    /// Nine of ten batches are within; of fewer than 20, all.
    pub low_ns: f64,
    pub high_ns: f64,
}

#[derive(Default)]
struct Card {
    polls: u64,
    /// Batches behind a poll after which the queue was not empty.
    busy: u64,
    /// Of these, with packets that are not in the log, or behind such a poll.
    partly: u64,
    /// Polls of several queues in one softirq.
    queues: u64,
    longest: usize,
    runs: u64,
    /// Nanoseconds, packets.
    batches: Vec<(i64, i64)>,
}

impl Card {
    fn run(&mut self, run: &mut Vec<(i64, i64)>) {
        self.longest = self.longest.max(run.len());
        if run.len() >= FEW {
            self.runs += 1;
            self.batches.append(run);
        }
        run.clear();
    }

    fn cpu(&mut self, polls: &[PollRow]) {
        let same = |a: &PollRow, b: &PollRow| a.round == b.round;
        let mut run = Vec::new();
        for (i, p) in polls.iter().enumerate() {
            self.polls += 1;
            let twice = polls.get(i + 1).is_some_and(|n| same(p, n))
                || i.checked_sub(1).is_some_and(|b| same(p, &polls[b]));
            self.queues += u64::from(twice);
            let before =
                i.checked_sub(1).map(|b| &polls[b]).filter(|b| !twice && b.round < p.round && busy(b, p));
            let Some(before) = before else {
                self.run(&mut run);
                continue;
            };
            self.busy += 1;
            // A poll in between of which nothing is in the log would not be noticed: where a filter leaves packets out, hardly
            // two batches in a row are whole.
            if !whole(before) || !whole(p) {
                self.partly += 1;
                self.run(&mut run);
                continue;
            }
            run.push((p.ended_ns - before.ended_ns, p.taken));
        }
        self.run(&mut run);
    }

    fn conclude(mut self) -> Result<BackToBack, String> {
        if self.batches.is_empty() {
            return Err(self.why());
        }
        let per = |b: &(i64, i64)| b.0 as f64 / b.1 as f64;
        let (ns, packets) = self.batches.iter().fold((0, 0), |(ns, n), b| (ns + b.0, n + b.1));
        self.batches.sort_by(|a, b| per(a).total_cmp(&per(b)));
        let n = self.batches.len();
        let beside = n / 20;
        Ok(BackToBack {
            runs: self.runs,
            batches: n as u64,
            packets: packets.unsigned_abs(),
            mean_ns: ns as f64 / packets as f64,
            low_ns: per(&self.batches[beside]),
            high_ns: per(&self.batches[n - 1 - beside]),
        })
    }

    fn why(&self) -> String {
        if self.queues * 2 > self.polls {
            "several queues of the card are polled on one CPU, so a batch is not known by its queue"
                .to_owned()
        } else if self.busy == 0 {
            format!("not back to back: the card's queue was empty after each of {} polls", self.polls)
        } else if self.partly > 0 {
            format!(
                "of {} batches back to back {} have, or follow others with, packets that are not in the log",
                self.busy, self.partly
            )
        } else {
            format!("not back to back: at most {} batches in a row, {FEW} make a load", self.longest)
        }
    }
}

fn whole(p: &PollRow) -> bool {
    p.taken > 0 && p.seen == Some(p.taken)
}

/// Was the card's queue not empty when `before` was over?
fn busy(before: &PollRow, p: &PollRow) -> bool {
    (before.budget > 0 && before.taken >= before.budget)
        || p.raised_ns.is_some_and(|at| at <= before.ended_ns)
}

/// The cards among `used` (namespace and interface; empty: all) that received packets.
pub(super) fn cards(store: &Store, used: &Received, is_card: &dyn Fn(&DeviceRow) -> bool) -> Vec<CardRx> {
    let mut streams: BTreeMap<(i64, i32, i32), Vec<PollRow>> = BTreeMap::new();
    // An older log has no such table.
    for p in store.all::<PollRow>().unwrap_or_default() {
        if let (Some(netns), Some(ifindex)) = (p.netns, p.ifindex) {
            streams.entry((netns, ifindex, p.cpu)).or_default().push(p);
        }
    }
    let mut found: Map<(i64, i32), Card> = Map::default();
    for ((netns, ifindex, _), polls) in &mut streams {
        polls.sort_by_key(|p| p.ended_ns);
        found.entry((*netns, *ifindex)).or_default().cpu(polls);
    }
    let mut out: Vec<CardRx> = Vec::new();
    let mut logged = Vec::new();
    for d in store.all::<DeviceRow>().unwrap_or_default() {
        let at = (d.netns, d.ifindex);
        let wanted = used.is_empty() || used.contains_key(&at) || used.contains_key(&(0, d.ifindex));
        if !wanted || !is_card(&d) {
            continue;
        }
        // A device has a row for each of its names.
        let stamps = used.get(&at).copied().unwrap_or_default();
        let stamping = (stamps.stamped > 0 && !logged.contains(&at)).then(Card::default);
        if let Some(card) = found.remove(&at).or(stamping) {
            logged.push(at);
            let (netns, ifindex) = at;
            let (name, driver, polls) = (d.name, d.driver, card.polls);
            out.push(CardRx { netns, ifindex, name, driver, polls, dma: card.conclude(), stamps });
        }
    }
    out
}
