//! Alike packets between two kernels, paired by their number.
//!
//! Without an identification (most of IPv6) only order is left, and where more of them come within the clocks' bound than one, no time
//! says how far one sequence is shifted against the other. But both logs say what they lost, and what a driver dropped is known: where nothing is lost
//! and as many were received as were sent, from a time of quiet to the next, the first is the first.
//!
//! One that was sent and never received needs another that was received and never sent to go unnoticed. Stretches that begin or end with the
//! recording may have such; they are left to [`super::one_clock`]'s other rules, and so is everything behind a stretch whose numbers differ. Where
//! more was received than sent, the sender's log lacks what it does not know of: then no number is believed.

use crate::matching::segments::superseded;
use crate::matching::{IN_NS, MAX_APART_NS, Side, Sighting};
use kpat_model::hash::{Map, Set};

/// What is known of two logs for this.
pub(super) struct Both<'a> {
    /// When both were recorded.
    pub from: i64,
    pub to: i64,
    /// How far the times of a packet sent and one received about then may be off each other.
    pub bound: &'a dyn Fn(i64) -> i64,
}

/// Places in the lists of what was sent and received.
type Pair = (usize, usize);

/// What was sent and received with one key.
#[derive(Default)]
struct Alike {
    sent: Vec<usize>,
    received: Vec<usize>,
}

/// Which of `sent` each of `received` is, of those that are alike; both in order of time.
pub(super) fn pairs(sent: &[&Sighting], received: &[&Sighting], both: &Both<'_>) -> Vec<Pair> {
    let nameless = |s: &Sighting| s.keys.ident == 0 && s.keys.tcp.is_none_or(|t| t.len == 0);
    let mut by_key: Map<(u64, u8), Alike> = Map::default();
    for (i, s) in sent.iter().enumerate().filter(|(_, s)| nameless(s)) {
        by_key.entry((s.keys.exact, s.keys.ttl)).or_default().sent.push(i);
    }
    for alike in by_key.values_mut() {
        let mut cut = superseded(alike.sent.len(), |i| sent[alike.sent[i]]).into_iter();
        alike.sent.retain(|_| !cut.next().unwrap_or(false));
    }
    let came = |s: &Sighting| s.side == Side::Received && nameless(s);
    for (i, s) in received.iter().enumerate().filter(|(_, s)| came(s)) {
        by_key.entry((s.keys.exact, s.keys.ttl)).or_default().received.push(i);
    }
    let mut all = Vec::new();
    let known = |a: &&Alike| !a.sent.is_empty() && a.received.len() > 1;
    let complete = by_key.values().filter(known).all(|a| of_key(a, sent, received, both, &mut all).is_some());
    if complete { all } else { Vec::new() }
}

/// `None`: more was received than sent.
fn of_key(
    alike: &Alike,
    sent: &[&Sighting],
    received: &[&Sighting],
    both: &Both<'_>,
    all: &mut Vec<Pair>,
) -> Option<()> {
    let times = alike.sent.iter().map(|i| sent[*i].at).chain(alike.received.iter().map(|i| received[*i].at));
    let mut times: Vec<i64> = times.collect();
    times.sort_unstable();
    let (Some(first), Some(last)) = (times.first().copied(), times.last().copied()) else { return Some(()) };
    let wide = (both.bound)(first).max((both.bound)(last));
    let quiet = MAX_APART_NS.saturating_add(wide.saturating_mul(2));
    let ends = times.windows(2).filter(|w| w[1] - w[0] > quiet).map(|w| w[0]);
    let (mut from, mut fits) = (first, true);
    let (mut sent_left, mut received_left) = (&alike.sent[..], &alike.received[..]);
    for to in ends.chain([last]).collect::<Vec<_>>() {
        let (s, r);
        (s, sent_left) = sent_left.split_at(sent_left.partition_point(|i| sent[*i].at <= to));
        (r, received_left) = received_left.split_at(received_left.partition_point(|i| received[*i].at <= to));
        let edge = wide.saturating_mul(2).saturating_add(IN_NS);
        let begun = from.saturating_sub(edge) < both.from;
        if !begun && to.saturating_add(edge) <= both.to {
            let packets: Set<u64> = s.iter().map(|i| sent[*i].packet).collect();
            if r.len() > packets.len() {
                return None;
            }
            let found = of_stretch(s, r, sent, received, both).filter(|_| fits);
            fits &= found.is_some();
            all.extend(found.unwrap_or_default());
        }
        from = to.saturating_add(1);
    }
    Some(())
}

/// `None`: their numbers differ, or one would have been received before it was sent.
fn of_stretch(
    s: &[usize],
    r: &[usize],
    sent: &[&Sighting],
    received: &[&Sighting],
    both: &Both<'_>,
) -> Option<Vec<Pair>> {
    if s.is_empty() && r.is_empty() {
        return Some(Vec::new());
    }
    let place = received[*r.first()?].place;
    if r.iter().any(|i| received[*i].place != place) {
        return None;
    }
    // A packet goes through several devices: a bridge and its port.
    let mut places: Vec<u64> = s.iter().map(|i| sent[*i].place).collect();
    places.sort_unstable();
    places.dedup();
    let mut found: Option<Vec<usize>> = None;
    for place in places {
        let mut here: Vec<usize> = s.iter().copied().filter(|i| sent[*i].place == place).collect();
        if !in_order(&mut here, sent) {
            continue;
        }
        let fits = |(s, r): (&usize, &usize)| {
            let (s, r) = (sent[*s], received[*r]);
            let left = s.left_after().unwrap_or(s.at);
            left.saturating_sub(r.at) <= (both.bound)(r.at) && !s.keys.contradict(&r.keys)
        };
        if here.len() != r.len() || !here.iter().zip(r).all(fits) {
            continue;
        }
        let packets = |l: &[usize]| l.iter().map(|i| sent[*i].packet).collect::<Vec<_>>();
        match &found {
            Some(other) if packets(other) != packets(&here) => return None,
            Some(other) if sent[other[0]].at >= sent[here[0]].at => {}
            _ => found = Some(here),
        }
    }
    found.map(|l| l.into_iter().zip(r.iter().copied()).collect())
}

/// Of one device. Of some it may be known when a driver had them, of others only when they were queued: of several that a queue gives away at once the driver's
/// call names the first. Between these two times tell nothing, but all were made in the order in which they went. Says whether the times of either agree.
fn in_order(here: &mut [usize], sent: &[&Sighting]) -> bool {
    let weak = here.iter().filter(|i| sent[**i].weak).count();
    if weak == 0 || weak == here.len() {
        return true;
    }
    here.sort_by_key(|i| sent[*i].first);
    let agree =
        |weak: bool| here.iter().map(|i| sent[*i]).filter(|s| s.weak == weak).is_sorted_by_key(|s| s.at);
    agree(true) && agree(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::keys::Keys;
    use kpat_model::codes::match_key;

    const SEC: i64 = 1_000_000_000;

    fn sighting(packet: u64, at: i64, side: Side, place: u64, keys: Keys) -> Sighting {
        Sighting {
            keys,
            packet,
            at,
            first: at,
            last: at + 1_000,
            side,
            devices: 0,
            weak: false,
            lost: false,
            tap: (0, 0),
            place,
        }
    }

    const KEYS: Keys = Keys {
        exact: 1,
        tcp: None,
        kind: match_key::TRANSPORT,
        ident: 0,
        checksum: 0,
        ttl: 64,
        mark: 0,
        part: false,
    };

    struct World {
        bound: i64,
        gap: u64,
        /// Percent of what is sent that nobody receives, and of what is received that was not logged when it was sent.
        missing: (u64, u64),
        recorded: (i64, i64),
    }

    /// Alike packets from 10 s to 20 s, each through a bridge and its port, in bursts; the queue keeps their order and now and then stands still. Pairs that
    /// were found, of how many, and how many of them are wrong.
    fn world(seed: u64, w: &World) -> (usize, usize, usize) {
        let mut below = kpat_model::random::below(seed);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let (mut at, mut free, mut packet) = (10 * SEC, 0, 0);
        let off = below(2 * w.bound as u64) as i64 - w.bound;
        while at < 20 * SEC {
            at += if below(200) == 0 { 2 * SEC } else { below(2 * w.gap) as i64 };
            let stands = if below(100) == 0 { below(300_000_000) } else { 0 };
            free = free.max(at + 10_000 + (below(50_000) + stands) as i64) + 1_000;
            packet += 1;
            let is_recorded = |t: i64| (w.recorded.0..w.recorded.1).contains(&t);
            if is_recorded(at) && below(100) >= w.missing.1 {
                sent.push(sighting(packet, at - 2_000, Side::Transmitted, 1, KEYS));
                sent.push(sighting(packet, at, Side::Transmitted, 2, KEYS));
            }
            if is_recorded(free) && below(100) >= w.missing.0 {
                received.push(sighting(packet, free + off, Side::Received, 7, KEYS));
            }
        }
        sent.sort_by_key(|s| s.at);
        let (s, r): (Vec<&Sighting>, Vec<&Sighting>) = (sent.iter().collect(), received.iter().collect());
        let both = Both { from: w.recorded.0, to: w.recorded.1, bound: &|_| w.bound };
        let found = pairs(&s, &r, &both);
        let wrong = found.iter().filter(|p| s[p.0].packet != r[p.1].packet).count();
        assert!(found.iter().all(|p| s[p.0].place == 2), "the port's, which is later");
        (found.len(), r.len(), wrong)
    }

    #[test]
    fn the_first_is_the_first_where_nothing_is_missing() {
        for gap in [20_000, 500_000, 5_000_000] {
            let (mut found, mut all) = (0, 0);
            for seed in 0..40 {
                let w = World { bound: 4_000_000, gap, missing: (0, 0), recorded: (0, 60 * SEC) };
                let (f, a, wrong) = world(seed, &w);
                assert_eq!(wrong, 0);
                (found, all) = (found + f, all + a);
            }
            println!("{gap} ns apart: {found} of {all}");
            assert_eq!(found, all);
        }
    }

    /// Packets are missing on one side or on both, or the recordings begin and end in the middle: none is taken for another.
    #[test]
    fn no_number_is_believed_that_does_not_fit() {
        for (missing, recorded) in [
            ((1, 0), (0, 60 * SEC)),
            ((0, 1), (0, 60 * SEC)),
            ((10, 0), (0, 60 * SEC)),
            ((2, 2), (0, 60 * SEC)),
            ((0, 0), (13 * SEC + 7, 17 * SEC + 3)),
        ] {
            for gap in [20_000, 500_000, 5_000_000] {
                let (mut found, mut all, mut bad) = (0, 0, 0);
                for seed in 0..60 {
                    let (f, a, wrong) = world(seed * 31, &World { bound: 4_000_000, gap, missing, recorded });
                    (found, all, bad) = (found + f, all + a, bad + wrong);
                }
                println!("missing {missing:?}, {gap} ns apart: {found} of {all}, {bad} wrong");
                assert_eq!(bad, 0, "of {found}");
            }
        }
    }

    /// Of what a queue gives away at once only the first is known to have been given to the driver; of the others, when they were queued.
    #[test]
    fn queued_and_given_away_are_two_times() {
        let sent: Vec<Sighting> = (0..60)
            .map(|n| {
                let queued = 10 * SEC + n * 1_000;
                let weak = n % 5 != 0;
                let at = if weak { queued } else { queued + 20_000 };
                Sighting { weak, first: queued - 500, ..sighting(n as u64, at, Side::Transmitted, 2, KEYS) }
            })
            .collect();
        let mut by_time: Vec<&Sighting> = sent.iter().collect();
        by_time.sort_by_key(|s| s.at);
        let received: Vec<Sighting> = (0..60)
            .map(|n| sighting(100 + n as u64, 10 * SEC + 90_000 + n * 700, Side::Received, 7, KEYS))
            .collect();
        let both = Both { from: 0, to: 60 * SEC, bound: &|_| 1_000_000 };
        let found = pairs(&by_time, &received.iter().collect::<Vec<_>>(), &both);
        assert_eq!(found.len(), 60);
        assert!(found.iter().all(|(s, r)| by_time[*s].packet + 100 == received[*r].packet));
    }

    #[test]
    fn what_says_that_it_is_another_is_no_partner() {
        let keys = |mark| Keys { mark, ..KEYS };
        let sent = [
            sighting(1, 10 * SEC, Side::Transmitted, 2, keys(3)),
            sighting(2, 10 * SEC + 9, Side::Transmitted, 2, keys(5)),
        ];
        let two = |marks: [u16; 2]| {
            let received =
                [0, 1].map(|i| sighting(9, 10 * SEC + 50 + i as i64, Side::Received, 7, keys(marks[i])));
            let both = Both { from: 0, to: 60 * SEC, bound: &|_| 1_000 };
            pairs(&sent.each_ref(), &received.each_ref(), &both)
        };
        assert_eq!(two([3, 5]), [(0, 0), (1, 1)]);
        assert_eq!(two([0, 5]), [(0, 0), (1, 1)]);
        assert_eq!(two([5, 3]), []);
    }
}
