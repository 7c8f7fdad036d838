//! Two kernels' boot clocks, related by the bytes between them: nothing comes before it was sent, nothing is acknowledged
//! before it came. Each range that did both bounds the difference from both sides, about a round trip apart; over the whole
//! log a line must fit between all of them.

use super::life::is_received;
use super::pair::apart;
use super::{Pair, rows};
use crate::error::Result;
use crate::hull::{Hulls, Point};
use crate::store::Store;
use kpat_model::Crossing;
use std::collections::{BTreeMap, HashMap};

/// second = first + offset + drift * (first - origin), within the bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clock {
    pub origin_ns: i64,
    pub offset_ns: i64,
    pub drift: f64,
    /// 0: one clock. Before the origin and behind `to_ns` more, by the drift's own.
    pub bound_ns: i64,
    pub drift_bound: f64,
    pub to_ns: i64,
}

impl Clock {
    /// A time of the second by the first's clock.
    pub fn first(&self, second_ns: i64) -> i64 {
        let since = second_ns - self.offset_ns - self.origin_ns;
        second_ns - self.offset_ns - (self.drift * since as f64 / (1.0 + self.drift)) as i64
    }
}

/// What two computers' boot clocks drift apart at most.
const MAX_DRIFT: f64 = 5e-4;
/// Of what each direction sent, something each so often is enough.
const EVERY_NS: i64 = 1_000_000;

/// Bounds from one side on second - first, each with its time by the first's clock.
type Bounds = Vec<(i64, i64)>;

/// Ranges of one direction with when they passed, in order of place.
#[derive(Default)]
struct Passed {
    ranges: Vec<(i64, i64, i64)>,
    kept: i64,
    top: Option<i64>,
}

impl Passed {
    fn put(&mut self, from: i64, to: i64, at: i64) {
        // only the first time: what is sent again may be either that comes
        let from = from.max(self.top.unwrap_or(from));
        if from < to {
            if self.top.is_none() || at - self.kept >= EVERY_NS {
                self.ranges.push((from, to, at));
                self.kept = at;
            }
            self.top = Some(to);
        }
    }

    /// When bytes of this range passed.
    fn over(&self, from: i64, to: i64) -> Option<i64> {
        let i = self.ranges.partition_point(|r| r.1 <= from);
        self.ranges.get(i).filter(|r| r.0 < to).map(|r| r.2)
    }
}

#[derive(Default)]
struct Way {
    sent: Passed,
    acked: Passed,
    came: Passed,
    /// Ranges that were sent again: which of the two came is not known.
    again: BTreeMap<i64, i64>,
}

impl Way {
    fn sent_again(&self, from: i64, to: i64) -> bool {
        self.again.range(..to).next_back().is_some_and(|(_, end)| *end > from)
    }
}

/// By all connections between two logs. `None`: too little is known, or what is known contradicts itself.
pub(super) fn relate(first: &Store, second: &Store, pairs: &[Pair]) -> Result<Option<Clock>> {
    let (mut lower, mut upper): (Bounds, Bounds) = Default::default();
    let mut ways: HashMap<(usize, usize), Way> = HashMap::new();
    let stores = [first, second];
    // what was sent and acknowledged at both ends, then what came
    for pass in 0..2 {
        for (side, store) in stores.iter().enumerate() {
            let end = |p: &Pair| p.ends[side].socket.socket_id;
            let whose: HashMap<i64, usize> = pairs.iter().enumerate().map(|(i, p)| (end(p), i)).collect();
            let mut log = rows(store, pairs.iter().map(end).collect())?;
            while log.peek()?.is_some() {
                let Some(e) = log.pop() else { break };
                let what = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8);
                let (Some(what), Some(&i), Some(offset)) = (what, whose.get(&e.socket_id), e.offset) else {
                    continue;
                };
                if e.size_bytes <= 0 || is_received(what) != (pass == 1) {
                    continue;
                }
                if pass == 0 {
                    let way = ways.entry((i, side)).or_default();
                    match what {
                        Crossing::ToDriver => way.sent.put(offset, offset + e.size_bytes, e.at_ns),
                        Crossing::Retransmit => {
                            let end = way.again.entry(offset).or_default();
                            *end = (*end).max(offset + e.size_bytes);
                        }
                        Crossing::Acked => way.acked.put(offset, offset + e.size_bytes, e.at_ns),
                        _ => {}
                    }
                    continue;
                }
                // not at the device: a merged segment is logged there with the time of its first
                if !matches!(what, Crossing::FromNetwork | Crossing::ToSocket) {
                    continue;
                }
                let Some(way) = ways.get_mut(&(i, 1 - side)) else { continue };
                let p = &pairs[i];
                let seqs = (p.ends[1 - side].socket.sent_seq, p.ends[side].socket.received_seq);
                let (Some(s), Some(r)) = seqs else { continue };
                let from = offset + apart(s, r);
                let to = from + e.size_bytes;
                // new bytes only: an old packet may come late
                let fresh = way.came.top.is_none_or(|t| from >= t);
                way.came.put(from, to, e.at_ns);
                if !fresh || way.sent_again(from, to) {
                    continue;
                }
                if let Some(sent) = way.sent.over(from, to) {
                    // later at the receiver than at the sender
                    match side {
                        1 => upper.push((sent, e.at_ns - sent)),
                        _ => lower.push((e.at_ns, sent - e.at_ns)),
                    }
                }
                // What only the socket reported came earlier: its acknowledgement may have left before.
                if let Some(acked) = way.acked.over(from, to).filter(|_| what == Crossing::FromNetwork) {
                    match side {
                        1 => lower.push((acked, e.at_ns - acked)),
                        _ => upper.push((e.at_ns, acked - e.at_ns)),
                    }
                }
            }
        }
    }
    Ok(between(&lower, &upper))
}

/// The line between all bounds.
fn between(lower: &[(i64, i64)], upper: &[(i64, i64)]) -> Option<Clock> {
    let all = || lower.iter().chain(upper);
    let (from, to) = (all().map(|p| p.0).min()?, all().map(|p| p.0).max()?);
    let near = upper.first().or(lower.first())?.1;
    let points = |of: &[(i64, i64)]| -> Vec<Point> {
        of.iter().map(|(t, d)| ((t - from) as f64, (d - near) as f64)).collect()
    };
    let band = Hulls::new(&points(lower), &points(upper)).band(MAX_DRIFT, 0.0, (to - from) as f64)?;
    Some(Clock {
        origin_ns: from,
        offset_ns: near + band.value.round() as i64,
        drift: band.slope,
        bound_ns: band.bound.ceil() as i64 + 1,
        drift_bound: (band.slope_max - band.slope).max(band.slope - band.slope_min),
        to_ns: to,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_true_difference_is_within_the_bound() {
        let (offset, drift) = (-5_000_000_000i64, 20e-6);
        let second = |t: i64| t + offset + (drift * t as f64) as i64;
        let (mut lower, mut upper) = (Vec::new(), Vec::new());
        for i in 0..1000i64 {
            let (sent, came, acked) =
                (i * 10_000_000, i * 10_000_000 + 90_000 + i % 7 * 1000, i * 10_000_000 + 200_000);
            upper.push((sent, second(came) - sent));
            lower.push((acked, second(came) - acked));
        }
        let c = between(&lower, &upper).unwrap();
        for t in [0, 5_000_000_000, 9_990_000_000] {
            let off = (c.first(second(t)) - t).abs();
            assert!(off <= c.bound_ns + 2, "{off} > {}", c.bound_ns);
        }
        assert!(c.bound_ns < 120_000, "{}", c.bound_ns);
        assert_eq!(between(&[(0, 10)], &[(0, 5)]), None);
        assert_eq!(between(&lower, &[]), None);
    }
}
