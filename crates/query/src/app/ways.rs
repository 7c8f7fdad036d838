//! The way of each byte from layer to layer, and how long it waited on each leg.

use super::{Spread, given_on};
use kpat_model::Crossing;
use kpat_store::tables::AppEventRow;
use std::collections::{HashMap, VecDeque};

/// From one crossing to the next that this kernel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Leg {
    /// Written, not yet sent: what the congestion window, the receiver's window, pacing and Nagle's rule hold back.
    SendQueue,
    /// In the device's queue.
    DeviceQueue,
    /// From the driver to the acknowledgement.
    Flight,
    /// From the device through the network layer.
    NetworkLayer,
    /// Through the transport layer, until the socket says that it can be read.
    Transport,
    /// In the socket, until the application reads.
    ReceiveQueue,
}

impl Leg {
    pub fn name(self) -> &'static str {
        match self {
            Leg::SendQueue => "send queue",
            Leg::DeviceQueue => "device queue",
            Leg::Flight => "flight to acknowledgement",
            Leg::NetworkLayer => "network layer",
            Leg::Transport => "transport to socket",
            Leg::ReceiveQueue => "receive queue",
        }
    }
}

/// How long bytes were on a leg; a byte counts once.
#[derive(Clone, Debug)]
pub struct Wait {
    pub leg: Leg,
    /// Weighted by bytes.
    pub ns: Spread,
}

/// Stages in the order in which bytes that are sent, and bytes that are received, pass them.
const SENT: [(Crossing, Option<Leg>); 4] = [
    (Crossing::ToTransport, None),
    (Crossing::ToDevice, Some(Leg::SendQueue)),
    (Crossing::ToDriver, Some(Leg::DeviceQueue)),
    (Crossing::Acked, Some(Leg::Flight)),
];
const RECEIVED: [(Crossing, Option<Leg>); 4] = [
    (Crossing::FromDevice, None),
    (Crossing::FromNetwork, Some(Leg::NetworkLayer)),
    (Crossing::ToSocket, Some(Leg::Transport)),
    (Crossing::Recv, Some(Leg::ReceiveQueue)),
];

/// More pieces than this on one leg are not a queue but a kernel that does not show its end.
const MOST: usize = 1 << 16;

/// Bytes that passed a stage and not yet the next: from, to, when.
#[derive(Default)]
struct Pipe {
    pieces: VecDeque<(i64, i64, i64)>,
    /// Up to here bytes have passed once; again is a retransmission.
    top: i64,
}

impl Pipe {
    /// What of `from..to` is new here.
    fn put(&mut self, from: i64, to: i64, at: i64) -> Option<(i64, i64)> {
        let from = from.max(self.top);
        if from >= to {
            return None;
        }
        self.top = to;
        self.pieces.push_back((from, to, at));
        if self.pieces.len() > MOST {
            self.pieces.pop_front();
        }
        Some((from, to))
    }

    /// Takes everything before `to`; tells each piece of `from..to` with its time.
    fn take(&mut self, from: i64, to: i64, each: &mut dyn FnMut(i64, i64)) {
        while let Some(&(a, b, at)) = self.pieces.front() {
            if a >= to {
                return;
            }
            let bytes = b.min(to) - a.max(from);
            if bytes > 0 {
                each(bytes, at);
            }
            if b > to {
                self.pieces[0].0 = to;
                return;
            }
            self.pieces.pop_front();
        }
    }
}

struct Queued {
    size: i64,
    at_ns: i64,
    cpu: i32,
}

#[derive(Default)]
struct Direction {
    pipes: [Pipe; 4],
    /// Datagrams on their way, by tag: when at each stage.
    tagged: HashMap<i64, [i64; 4]>,
    /// Datagrams in the socket's queue.
    queue: VecDeque<Queued>,
}

/// All of one socket.
#[derive(Default)]
pub(super) struct Ways {
    sent: Direction,
    received: Direction,
    waits: std::collections::BTreeMap<Leg, Spread>,
    writes_in_packets: u64,
}

impl Ways {
    pub fn pass(&mut self, what: Crossing, e: &AppEventRow) {
        if what == Crossing::ToSocket && e.size_bytes < 0 {
            // the last that this CPU was about to put there
            let queue = &mut self.received.queue;
            if let Some(i) = queue.iter().rposition(|q| q.cpu == e.cpu) {
                queue.remove(i);
            }
        }
        if e.size_bytes <= 0 || e.offset.is_some() && given_on(e) {
            return;
        }
        let place = |stages: &[(Crossing, Option<Leg>)]| stages.iter().position(|(c, _)| *c == what);
        if let Some(i) = place(&SENT) {
            self.stage(true, i, e);
        } else if let Some(i) = place(&RECEIVED) {
            self.stage(false, i, e);
        }
    }

    fn stage(&mut self, sent: bool, i: usize, e: &AppEventRow) {
        let (d, stages) = if sent { (&mut self.sent, &SENT) } else { (&mut self.received, &RECEIVED) };
        let Some(from) = e.offset else {
            return datagram(d, stages, &mut self.waits, i, e);
        };
        let to = from + e.size_bytes;
        let Some((from, to)) = d.pipes[i].put(from, to, e.at_ns) else { return };
        let Some(leg) = stages[i].1 else { return };
        let mut pairs = 0;
        let waits = self.waits.entry(leg).or_default();
        d.pipes[i - 1].take(from, to, &mut |bytes, at| {
            pairs += 1;
            waits.add(e.at_ns - at, bytes as u64);
        });
        if leg == Leg::SendQueue {
            self.writes_in_packets += pairs;
        }
        if i == stages.len() - 1 {
            d.pipes[i].pieces.clear();
        }
    }

    pub fn finish(self) -> (Vec<Wait>, u64) {
        let all = self.waits.into_iter().filter(|(_, s)| s.count > 0);
        (all.map(|(leg, ns)| Wait { leg, ns }).collect(), self.writes_in_packets)
    }
}

fn datagram(
    d: &mut Direction,
    stages: &[(Crossing, Option<Leg>); 4],
    waits: &mut std::collections::BTreeMap<Leg, Spread>,
    i: usize,
    e: &AppEventRow,
) {
    let mut logged = |leg: Option<Leg>, since: i64| {
        if let Some(leg) = leg.filter(|_| since > 0) {
            waits.entry(leg).or_default().add(e.at_ns - since, e.size_bytes as u64);
        }
    };
    match (stages[i].0, e.tag) {
        (Crossing::Recv, _) => {
            // A datagram that was not seen coming may have gone between. Where none is as long the reader had no room for more of the first, or it is of one that was not seen.
            let cut = d.queue.front().filter(|q| q.size > e.size_bytes).map(|_| 0);
            if let Some(i) = d.queue.iter().position(|q| q.size == e.size_bytes).or(cut) {
                let since = d.queue[i].at_ns;
                d.queue.drain(..=i);
                logged(Some(Leg::ReceiveQueue), since);
            }
        }
        (what, Some(tag)) => {
            if d.tagged.len() > MOST {
                d.tagged.clear();
            }
            let seen = d.tagged.entry(tag).or_default();
            // from the last crossing before it that this kernel shows; each device that it is given to has a queue
            let again = what == Crossing::ToDevice && given_on(e);
            if let Some(since) = seen[..i].iter().rev().find(|t| **t > 0).filter(|_| !again) {
                logged(stages[i].1, *since);
            }
            seen[i] = e.at_ns;
            if what == Crossing::ToSocket {
                d.queue.push_back(Queued { size: e.size_bytes, at_ns: e.at_ns, cpu: e.cpu });
                d.tagged.remove(&tag);
            } else if what == Crossing::ToDriver {
                d.tagged.remove(&tag);
            }
            if d.queue.len() > MOST {
                d.queue.pop_front();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ns: i64, offset: i64, size_bytes: i64) -> AppEventRow {
        AppEventRow { at_ns, size_bytes, offset: Some(offset), segments: 1, ..Default::default() }
    }

    fn wait(waits: &[Wait], leg: Leg) -> (u64, i128) {
        waits.iter().find(|w| w.leg == leg).map_or((0, 0), |w| (w.ns.count, w.ns.sum))
    }

    /// Two writes become three packets; one is sent again; the acknowledgements come at once for all.
    #[test]
    fn every_byte_counts_once_on_each_leg() {
        let mut w = Ways::default();
        w.pass(Crossing::ToTransport, &event(0, 0, 1500));
        w.pass(Crossing::ToTransport, &event(10, 1500, 1500));
        for (i, at) in [(0, 100), (1, 200), (2, 300)] {
            w.pass(Crossing::ToDevice, &event(at, i * 1000, 1000));
            w.pass(Crossing::ToDriver, &event(at + 5, i * 1000, 1000));
        }
        w.pass(Crossing::ToDevice, &event(400, 1000, 1000));
        w.pass(Crossing::ToDriver, &event(405, 1000, 1000));
        w.pass(Crossing::Acked, &event(1000, 0, 3000));
        let (waits, pairs) = w.finish();
        assert_eq!(pairs, 4, "the second packet carries both writes");
        let first = 1000 * 100 + 500 * 200 + 500 * 190 + 1000 * 290;
        assert_eq!(wait(&waits, Leg::SendQueue), (3000, first));
        assert_eq!(wait(&waits, Leg::DeviceQueue), (3000, 3000 * 5));
        assert_eq!(wait(&waits, Leg::Flight), (3000, 1000 * (895 + 795 + 695)));
    }

    #[test]
    fn datagrams_are_followed_by_tag_and_read_in_turn() {
        let mut w = Ways::default();
        for (tag, size) in [(7, 100), (8, 200)] {
            let e =
                |at_ns, t| AppEventRow { at_ns, size_bytes: size, tag: t, segments: 1, ..Default::default() };
            w.pass(Crossing::FromDevice, &e(10 * tag, Some(tag)));
            w.pass(Crossing::FromNetwork, &e(10 * tag + 1, Some(tag)));
            w.pass(Crossing::ToSocket, &e(10 * tag + 3, Some(tag)));
        }
        for (at_ns, size_bytes) in [(200, 100), (300, 200)] {
            w.pass(Crossing::Recv, &AppEventRow { at_ns, size_bytes, segments: 1, ..Default::default() });
        }
        let (waits, _) = w.finish();
        assert_eq!(wait(&waits, Leg::NetworkLayer), (300, 300));
        assert_eq!(wait(&waits, Leg::Transport), (300, 600));
        assert_eq!(wait(&waits, Leg::ReceiveQueue), (300, 100 * (200 - 73) + 200 * (300 - 83)));
    }

    #[test]
    fn a_full_socket_refuses_its_own_cpus_datagram_and_a_short_read_takes_its_own_alone() {
        let mut w = Ways::default();
        let e = |at_ns, size_bytes, cpu, tag| AppEventRow {
            at_ns,
            size_bytes,
            cpu,
            tag,
            segments: 1,
            ..Default::default()
        };
        for (at, size, cpu) in [(10, 100, 0), (20, 300, 1), (30, 200, 0)] {
            w.pass(Crossing::ToSocket, &e(at, size, cpu, Some(at)));
        }
        w.pass(Crossing::ToSocket, &e(31, -12, 1, None));
        for (at, size) in [(110, 60), (130, 200)] {
            w.pass(Crossing::Recv, &e(at, size, 0, None));
        }
        assert_eq!(wait(&w.finish().0, Leg::ReceiveQueue), (260, 60 * 100 + 200 * 100));
    }
}
