//! The connection as a whole: each moment of it divided equally among the writes that were under way.

use super::gather::Gathered;
use super::line::{self, Far, HeldSums, KINDS, Line, Piece};
use super::pause::{Shares, pause};
use super::threads::threads;
use super::{End, Opening, SLOWEST, Stage, Sum, Why, WriteLine};
use crate::app::{Held, Spread};
use kpat_store::tables::SocketRow;

const STAGES: usize = Stage::ALL.len();
/// Behind the stages there is a place for each of [`KINDS`].
const PLACES: usize = STAGES + KINDS.len();

/// Of a stream. `asked`: place of the write whose line is wanted.
pub(super) fn sums(sender: &SocketRow, peer: Option<&SocketRow>, g: &Gathered, asked: Option<usize>) -> Why {
    let far = Far::of(g, peer.is_some());
    sums_of(sender, peer, g, asked, &|n| {
        let mut line = line::line(n, g, far);
        g.stays.cut(&mut line, g.writes[n].last());
        line
    })
}

/// Of any writes, each with its line.
pub(super) fn sums_of(
    sender: &SocketRow,
    peer: Option<&SocketRow>,
    g: &Gathered,
    asked: Option<usize>,
    line_of: &dyn Fn(usize) -> Line,
) -> Why {
    let held = HeldSums::new(&g.held);
    let mut of_writes: Vec<(Spread, Option<(i64, u64)>)> = vec![Default::default(); STAGES];
    let (mut write_bytes, mut took_ns) = (Spread::default(), Spread::default());
    let mut ends = [0; End::ALL.len()];
    let (mut slowest, mut own): (Vec<WriteLine>, _) = (Vec::new(), None);
    // Of the stages between the two clocks, as far as these leave it open.
    let mut open_ns = [0i64; STAGES];
    // when, which place, one more or one less; or none: a write of which nothing more is known ends a pause, and may be the first or the last
    let mut changes: Vec<(i64, usize, i32)> = Vec::new();
    for (n, w) in g.writes.iter().enumerate() {
        let (number, l) = (n as u64 + 1, line_of(n));
        let stages = l.stages(&held);
        for (i, ns) in stages.iter().enumerate().filter(|(_, ns)| **ns > 0) {
            let (spread, longest) = &mut of_writes[i];
            spread.add(*ns, 1);
            if [Stage::Wire, Stage::Loss, Stage::Answer].contains(&Stage::ALL[i]) {
                open_ns[i] += (*ns).min(g.bound_ns);
            }
            *longest = (*longest).max(Some((*ns, number)));
        }
        write_bytes.add(w.bytes, 1);
        took_ns.add(l.to_ns() - l.from_ns, 1);
        ends[l.end as usize] += 1;
        changes.push((l.from_ns, 0, 0));
        let mut from = l.from_ns;
        for (piece, to) in &l.pieces {
            let place = match piece {
                Piece::At(stage) => *stage as usize,
                p => STAGES + KINDS.iter().position(|k| k == p).unwrap_or(0),
            };
            changes.extend([(from, place, 1), (*to, place, -1)]);
            from = *to;
        }
        let line = WriteLine {
            number,
            offset: w.offset,
            bytes: w.bytes,
            from_ns: l.from_ns,
            to_ns: l.to_ns(),
            stages,
            end: l.end,
            packet: None,
        };
        own = own.or_else(|| (asked == Some(n)).then(|| line.clone()));
        rank(&mut slowest, line);
    }
    changes.sort_unstable();
    let mut ends_of_writes = changes.first().zip(changes.last()).map(|(first, last)| (first.0, last.0));
    let (mut shares, mut pauses, mut answered) = divide(&changes, g);
    // Who asks waits for the answer to what it wrote last, too.
    let answer = ends_of_writes.as_mut().zip(g.reads.last().filter(|_| g.asks()));
    let waits_on = answer.filter(|(ends, read)| **read > ends.1).map(|(ends, read)| {
        pause(ends.1, *read, g, &mut shares);
        (pauses, answered, ends.1) = (pauses + 1, answered + 1, *read);
    });
    let (from_ns, to_ns) = connect(g, ends_of_writes, &mut shares);
    // Writes that are there at once share each moment.
    let unsure = |i: usize, all_ns: f64| {
        let ns = shares.ns[i];
        let by_clock = if all_ns > 0.0 { ns * (open_ns[i] as f64 / all_ns).min(1.0) } else { 0.0 };
        (shares.unsure_ns[i] + by_clock).min(ns)
    };
    let mut pieces = std::mem::take(&mut shares.pieces);
    let sum = |(i, (spread, longest)): (usize, (Spread, Option<(i64, u64)>))| Sum {
        stage: Stage::ALL[i],
        threads: threads(Stage::ALL[i], &mut pieces, g),
        ns: shares.ns[i],
        unsure_ns: unsure(i, spread.sum as f64),
        of_writes: spread,
        longest: longest.map(|l| l.1),
    };
    let within = |from: i64, to: i64| (to.min(to_ns) - from.max(from_ns)).max(0);
    let repairs = g.held.iter().filter(|h| h.repairs && h.held == Held::CongestionWindow);
    Why {
        sender: sender.clone(),
        peer: peer.cloned(),
        host: 0,
        peer_host: 0,
        clock: None,
        from_ns,
        to_ns,
        answering_ns: shares.answering_ns,
        rest_ns: shares.rest_ns,
        silent: if g.asks() { shares.silent } else { Default::default() },
        silent_after: None,
        stages: of_writes.into_iter().enumerate().map(sum).filter(|s| s.ns > 0.0).collect(),
        write_bytes,
        took_ns,
        ends,
        left_out: g.left_out,
        slowest,
        asked: own,
        peers: 1,
        asks: g.asks(),
        pauses,
        answered,
        until_answer: waits_on.is_some(),
        states: g.states,
        repairs_ns: repairs.map(|h| within(h.from_ns, h.to_ns)).sum(),
        again: g.again,
        syns_again: g.syns_again,
        too_large: g.sizes.too_large(&g.heard),
        opening: Opening::default(),
        unreachable: Vec::new(),
        refused: g.writes.is_empty() && g.reset_ns.is_some() && !g.connected,
        refused_with_syn: g.writes.iter().any(|w| g.fast.refused_ns(w).is_some()),
        connected: g.connected,
        ending: g.ending.clone(),
        meanwhile: None,
        drops: Vec::new(),
        waited: None,
        path: None,
        unwritten_bytes: if g.writes.is_empty() { g.given_bytes } else { 0 },
        fq_paces: g.fq_paces,
        begins_unknown: g.begins_unknown,
        pacing_unknown: g.held.iter().any(|h| h.held == Held::PacingOrDevice),
        lost: if g.gaps.iter().any(|gap| within(gap.0, gap.1.max(gap.0 + 1)) > 0) { g.lost } else { 0 },
    }
}

fn rank(slowest: &mut Vec<WriteLine>, new: WriteLine) {
    let took = |w: &WriteLine| w.to_ns - w.from_ns;
    let at = slowest.partition_point(|s| took(s) >= took(&new));
    slowest.insert(at, new);
    slowest.truncate(SLOWEST);
}

/// The time of `changes`, which are in order; how often nothing was under way, and how often the application then read before it wrote.
fn divide(changes: &[(i64, usize, i32)], g: &Gathered) -> (Shares, u64, u64) {
    let mut shares = Shares::default();
    let mut count = [0i32; PLACES];
    let (mut under_way, mut pauses, mut answered) = (0i32, 0, 0);
    let mut i = 0;
    while i < changes.len() {
        let at = changes[i].0;
        while let Some(c) = changes.get(i).filter(|c| c.0 == at) {
            count[c.1] += c.2;
            under_way += c.2;
            i += 1;
        }
        let Some(next) = changes.get(i).map(|c| c.0) else { break };
        if under_way == 0 {
            pauses += 1;
            let has_read = pause(at, next, g, &mut shares);
            answered += u64::from(has_read);
            let came = || g.answers.get(g.answers.partition_point(|t| *t < at)).is_some_and(|t| *t < next);
            if !has_read && g.unanswered.binary_search(&at).is_err() && !came() {
                shares.silent = (shares.silent.0 + 1, shares.silent.1 + next - at);
            }
            continue;
        }
        let part = |n: i32| f64::from(n) / f64::from(under_way);
        for stage in Stage::ALL.into_iter().filter(|s| count[*s as usize] > 0) {
            let part = part(count[stage as usize]);
            shares.add(stage, at, next, part, g);
        }
        for (place, piece) in (STAGES..).zip(KINDS) {
            if count[place] > 0 {
                kept(at, next, piece, part(count[place]), g, &mut shares);
            }
        }
    }
    (shares, pauses, answered)
}

/// What was before the first write: the handshake, and what the application did behind it. From when to when it all goes.
fn connect(g: &Gathered, writes: Option<(i64, i64)>, shares: &mut Shares) -> (i64, i64) {
    let Some((from, to)) = g.handshake() else { return writes.unwrap_or_default() };
    let Some((first, last)) = writes else {
        shares.add(Stage::Handshake, from, to, 1.0, g);
        return (from, to);
    };
    if from >= first {
        return (first, last);
    }
    let to = to.min(first);
    shares.add(Stage::Handshake, from, to, 1.0, g);
    if first > to {
        pause(to, first, g, shares);
    }
    (from, last)
}

/// Time in which writes waited in the sender: what held it back.
fn kept(from: i64, to: i64, piece: Piece, part: f64, g: &Gathered, shares: &mut Shares) {
    let mut at = from;
    let mut add = |stage: Stage, a: i64, b: i64| {
        if b > a {
            shares.add(stage, a, b, part, g);
        }
    };
    let first = g.held.partition_point(|h| h.to_ns <= from);
    for h in g.held[first..].iter().take_while(|h| h.from_ns < to) {
        let (a, b) = (h.from_ns.max(at), h.to_ns.min(to));
        add(Stage::Undecided, at, a);
        add(line::stage(h, piece), a, b);
        at = b.max(at);
    }
    add(Stage::Undecided, at, to);
}

#[cfg(test)]
mod tests {
    use super::super::gather::{HeldBy, Write};
    use super::*;
    use crate::app::connections::STAGES as CROSSINGS;
    use Crossing::*;
    use kpat_model::Crossing;

    fn write(offset: i64, bytes: i64, from_ns: i64, at_ns: i64, at: &[(Crossing, i64)]) -> Write {
        let mut w = Write { offset, bytes, from_ns, at_ns, at: [None; CROSSINGS.len()], again: false };
        for (c, t) in at {
            w.at[CROSSINGS.iter().position(|s| s == c).unwrap()] = Some(*t);
        }
        w
    }

    fn held(from_ns: i64, to_ns: i64, held: Held) -> HeldBy {
        HeldBy::of(from_ns, to_ns, held)
    }

    fn logged(g: &Gathered) -> (Why, Vec<(Stage, f64)>) {
        let peer = SocketRow::default();
        let why = sums(&SocketRow::default(), Some(&peer), g, None);
        let all = why.stages.iter().map(|s| (s.stage, s.ns)).collect();
        (why, all)
    }

    const MS: i64 = 1_000_000;

    #[test]
    fn a_burst_counts_as_long_as_it_lasts() {
        // ten writes at once, 10 ms on the wire, read at once; after 90 ms the same again
        let mut g = Gathered { last_ns: 200 * MS, ..Gathered::default() };
        for burst in [0, 100 * MS] {
            for i in 0..10 {
                let way = [
                    (ToDevice, burst),
                    (ToDriver, burst),
                    (FromDevice, burst + 10 * MS),
                    (ToSocket, burst + 10 * MS),
                    (Recv, burst + 10 * MS),
                ];
                g.writes.push(write(burst + i * 7, 7, burst, burst, &way));
            }
        }
        let (why, all) = logged(&g);
        assert_eq!(all, [(Stage::Application, 90e6), (Stage::Wire, 20e6)]);
        assert_eq!((why.whole_ns(), why.pauses, why.writes(), why.took_ns.max), (110 * MS, 1, 20, 10 * MS));
        assert_eq!(why.first().map(|s| s.stage), Some(Stage::Application));
        assert!(why.is_certain());
        // As far as two clocks leave open when a burst was read, they do so for the pause behind it; its ways may then have taken no time, or so much longer.
        g.bound_ns = 20 * MS;
        let why = logged(&g).0;
        let bounds = why.stages.iter().map(|s| why.bounds_ns(s)).collect::<Vec<_>>();
        assert_eq!(bounds, [(70e6, 110e6), (0.0, 40e6)]);
    }

    #[test]
    fn a_handshake_comes_before_the_first_write_and_alone_where_there_is_none() {
        let ms = |ns: i64| (ns * MS) as f64;
        let way = |t: i64| [(ToDriver, t), (FromDevice, t + MS), (ToSocket, t + MS), (Recv, t + MS)];
        let mut g = Gathered {
            writes: vec![write(0, 5, 50 * MS, 50 * MS, &way(50 * MS))],
            held: vec![held(10 * MS, 40 * MS, Held::Handshake), held(40 * MS, 60 * MS, Held::Application)],
            last_ns: 60 * MS,
            ..Gathered::default()
        };
        let (why, all) = logged(&g);
        let wanted = [(Stage::Handshake, ms(30)), (Stage::Application, ms(10)), (Stage::Wire, ms(1))];
        assert_eq!((&all[..], why.whole_ns()), (&wanted[..], 41 * MS));
        g.writes.clear();
        let (why, all) = logged(&g);
        assert_eq!((&all[..], why.whole_ns(), why.writes()), (&[(Stage::Handshake, ms(30))][..], 30 * MS, 0));
    }

    #[test]
    fn what_nobody_read_waits_until_the_reset() {
        let way = [(ToDriver, 0), (FromDevice, MS), (ToSocket, MS)];
        let g = Gathered {
            writes: vec![
                write(0, 5, 0, 0, &[(ToDriver, 0), (FromDevice, 0), (ToSocket, 0), (Recv, 0)]),
                write(5, 5, 0, 0, &way),
            ],
            reset_ns: Some(20 * MS),
            last_ns: 50 * MS,
            ..Gathered::default()
        };
        let (why, _) = logged(&g);
        assert_eq!((why.to_ns, why.ends), (20 * MS, [1, 0, 0, 0, 1, 0, 0, 0, 0]));
    }

    #[test]
    fn a_full_pipe_is_neither_its_beginning_nor_its_end() {
        // a write each 2 ms: 3 ms in the queue, 48 on the wire, 1 in the peer's socket
        let mut g = Gathered { last_ns: 5000 * MS, ..Gathered::default() };
        for i in 0..2000 {
            let t = i * 2 * MS;
            let way = [
                (ToDevice, t),
                (ToDriver, t + 3 * MS),
                (FromDevice, t + 51 * MS),
                (ToSocket, t + 51 * MS),
                (Recv, t + 52 * MS),
            ];
            g.writes.push(write(i * 10, 10, t, t, &way));
        }
        let (why, all) = logged(&g);
        let share =
            |s: Stage| all.iter().find(|(x, _)| *x == s).map_or(0.0, |(_, ns)| ns / why.whole_ns() as f64);
        assert!((share(Stage::Wire) - 48.0 / 52.0).abs() < 0.01, "{all:?}");
        assert!((share(Stage::Queue) - 3.0 / 52.0).abs() < 0.01, "{all:?}");
    }

    #[test]
    fn what_kept_it_is_told_by_the_state_of_the_moment() {
        let way = [
            (ToDevice, 80 * MS),
            (ToDriver, 80 * MS),
            (FromDevice, 90 * MS),
            (ToSocket, 90 * MS),
            (Recv, 95 * MS),
        ];
        let g = Gathered {
            writes: vec![write(0, 10, 0, 10 * MS, &way)],
            held: vec![
                held(0, 5 * MS, Held::Application),
                held(5 * MS, 30 * MS, Held::SendBuffer),
                held(30 * MS, 40 * MS, Held::Reader),
                HeldBy { queued: true, ..held(40 * MS, 45 * MS, Held::Device) },
                held(45 * MS, 50 * MS, Held::Device),
                held(60 * MS, 80 * MS, Held::CongestionWindow),
            ],
            gaps: vec![(62 * MS, 64 * MS)],
            lost: 3,
            last_ns: 100 * MS,
            ..Gathered::default()
        };
        let (why, all) = logged(&g);
        let ms = |ns: i64| (ns * MS) as f64;
        assert_eq!(
            all,
            [
                (Stage::Application, ms(5)),
                (Stage::SendBuffer, ms(25)),
                (Stage::CongestionWindow, ms(20)),
                (Stage::Queue, ms(5)),
                (Stage::Wire, ms(10)),
                (Stage::PeerApplication, ms(15)),
                // five of the device without a queue, ten of which there is no state
                (Stage::Undecided, ms(15)),
            ]
        );
        let line: Vec<i64> = all.iter().map(|(s, _)| why.slowest[0].stages[*s as usize] / MS).collect();
        assert_eq!(line, [5, 25, 20, 5, 10, 15, 15]);
        let bounds = |s: Stage| why.stages.iter().find(|x| x.stage == s).map(|x| why.bounds_ns(x));
        assert_eq!(bounds(Stage::CongestionWindow), Some((ms(18), ms(35))));
        assert_eq!(bounds(Stage::SendBuffer), Some((ms(25), ms(42))));
        assert!(!why.is_certain(), "the congestion window may have been it");
        assert_eq!(why.lost, 3);
    }

    #[test]
    fn an_answer_is_not_the_application_s_time() {
        let way =
            |t: i64| [(ToDriver, t), (FromDevice, t + 10 * MS), (ToSocket, t + 10 * MS), (Recv, t + 11 * MS)];
        let g = Gathered {
            writes: vec![write(0, 5, 0, 0, &way(0)), write(5, 5, 50 * MS, 50 * MS, &way(50 * MS))],
            answers: vec![31 * MS],
            reads: vec![41 * MS],
            last_ns: 70 * MS,
            ..Gathered::default()
        };
        let (why, all) = logged(&g);
        let ms = |ns: i64| (ns * MS) as f64;
        let wanted = [
            (Stage::Application, ms(9)),
            (Stage::Wire, ms(20)),
            (Stage::PeerApplication, ms(2 + 20)),
            (Stage::Answer, ms(10)),
        ];
        assert_eq!(all, wanted);
        assert_eq!((why.pauses, why.answered, why.answering_ns, why.silent), (1, 1, 20 * MS, (0, 0)));
    }

    #[test]
    fn the_rest_of_an_answer_is_the_peer_s_to_write() {
        // read at 2, answered in pieces at 10, 40 and 70, each read 1 ms later
        let way = [(ToDriver, 0), (FromDevice, MS), (ToSocket, MS), (Recv, 2 * MS)];
        let ms = |n: i64| (n * MS) as f64;
        let g = Gathered {
            writes: vec![write(0, 5, 0, 0, &way)],
            answers: vec![10 * MS, 40 * MS, 70 * MS],
            reads: vec![11 * MS, 41 * MS, 71 * MS],
            read_up: vec![(11 * MS, 40 * MS), (41 * MS, 70 * MS), (71 * MS, 90 * MS)],
            peer_reads: true,
            last_ns: 90 * MS,
            ..Gathered::default()
        };
        let (why, all) = logged(&g);
        let wanted = [(Stage::Wire, ms(1)), (Stage::PeerApplication, ms(1 + 8 + 58)), (Stage::Answer, ms(3))];
        assert_eq!(all, wanted);
        assert_eq!((why.answering_ns, why.rest_ns, why.whole_ns()), (66 * MS, 58 * MS, 71 * MS));
        let meaning = super::super::answer::meaning(&why);
        assert!(meaning.contains("had not yet written the rest"), "{meaning}");
        // Where that is not known it is an answer on its way.
        let (why, all) = logged(&Gathered { read_up: Vec::new(), ..g });
        assert_eq!(all[2], (Stage::Answer, ms(61)));
        assert_eq!((why.answering_ns, why.rest_ns), (8 * MS, 0));
    }

    #[test]
    fn what_never_came_waits_where_it_is() {
        let g = Gathered {
            writes: vec![
                write(0, 5, 0, 0, &[(ToDriver, 0), (FromDevice, MS), (ToSocket, MS), (Recv, MS)]),
                write(5, 5, 2 * MS, 2 * MS, &[(ToDriver, 2 * MS), (FromDevice, 3 * MS), (ToSocket, 3 * MS)]),
                write(10, 5, 2 * MS, 2 * MS, &[(ToDriver, 2 * MS)]),
                write(15, 5, 2 * MS, 2 * MS, &[]),
            ],
            held: vec![held(0, 50 * MS, Held::ReceiveWindow)],
            last_ns: 50 * MS,
            ..Gathered::default()
        };
        let (why, _) = logged(&g);
        assert_eq!(why.ends, [1, 0, 0, 3, 0, 0, 0, 0, 0]);
        assert_eq!(why.to_ns, 50 * MS);
        let longest = |s: Stage| why.stages.iter().find(|x| x.stage == s).map(|x| x.of_writes.max / MS);
        assert_eq!(longest(Stage::PeerApplication), Some(47));
        assert_eq!(longest(Stage::Wire), Some(48));
        assert_eq!(longest(Stage::ReceiveWindow), Some(48));
        // without the other end the acknowledgement is the end
        let g = Gathered { acks: vec![(9 * MS, 11), (20 * MS, 15)], ..g };
        let why = sums(&SocketRow::default(), None, &g, None);
        assert_eq!(why.ends, [0, 3, 0, 1, 0, 0, 0, 0, 0]);
        let beyond = why.stages.iter().find(|s| s.stage == Stage::Beyond).unwrap();
        assert_eq!((beyond.of_writes.count, beyond.of_writes.max), (3, 18 * MS));
    }

    #[test]
    fn who_asks_waits_for_the_answer() {
        let way = [(ToDriver, 0), (FromDevice, MS), (ToSocket, MS), (Recv, 2 * MS)];
        let (writes, answers, reads) = (vec![write(0, 5, 0, 0, &way)], vec![50 * MS], vec![60 * MS]);
        let g = Gathered { writes, answers, reads, peer_reads: true, last_ns: 90 * MS, ..Default::default() };
        let (why, all) = logged(&g);
        let ms = |n: i64| (n * MS) as f64;
        assert_eq!(
            all,
            [(Stage::Wire, ms(1)), (Stage::PeerApplication, ms(1 + 48)), (Stage::Answer, ms(10))]
        );
        assert_eq!((why.to_ns, why.until_answer, why.pauses, why.answered), (60 * MS, true, 1, 1));
        // The end that answers does not wait for what it reads next.
        let (why, _) = logged(&Gathered { peer_connects: true, ..g });
        assert_eq!((why.to_ns, why.until_answer, why.pauses), (2 * MS, false, 0));
    }

    #[test]
    fn loss_keeps_what_is_behind_it() {
        let mut lost =
            write(0, 5, 0, 0, &[(ToDriver, 0), (FromDevice, 30 * MS), (ToSocket, 30 * MS), (Recv, 30 * MS)]);
        lost.again = true;
        let behind =
            write(5, 5, 0, 0, &[(ToDriver, 0), (FromDevice, 10 * MS), (ToSocket, 30 * MS), (Recv, 30 * MS)]);
        let g = Gathered {
            writes: vec![lost, behind],
            mended: vec![(30 * MS, 0)],
            last_ns: 40 * MS,
            ..Gathered::default()
        };
        let (why, all) = logged(&g);
        assert_eq!(all, [(Stage::Loss, (30 * MS - 5 * MS) as f64), (Stage::Wire, (5 * MS) as f64)]);
        assert_eq!(why.first().map(|s| s.stage), Some(Stage::Loss));
    }

    /// Connections drawn at random, with what no kernel would tell: each write adds up, and so does the whole, as counted moment by moment.
    #[test]
    fn whatever_the_log_has_it_adds_up() {
        let mut seed = 1u64;
        let mut draw = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % n) as i64
        };
        for round in 0..300 {
            let mut g = Gathered { last_ns: 400, ..Gathered::default() };
            let mut t = 0;
            while t < 400 {
                let to = t + 1 + draw(40);
                let mut h = held(t, to, Held::ALL[draw(Held::ALL.len() as u64) as usize]);
                (h.wants, h.queued, h.on_path) = (draw(2) == 0, draw(2) == 0, draw(3) == 0);
                if draw(5) > 0 {
                    g.held.push(h);
                }
                t = to;
            }
            let (mut at, mut offset) = (draw(50), 0);
            for _ in 0..1 + draw(12) {
                let from = at;
                at += draw(30);
                let mut w = write(offset, 1 + draw(20), from, at, &[]);
                let mut now = at;
                for x in &mut w.at {
                    now += draw(25) - 2;
                    *x = Some(now.min(400)).filter(|_| draw(6) > 0);
                }
                w.again = draw(4) == 0;
                offset += w.bytes;
                at += draw(60);
                g.writes.push(w);
            }
            g.heard = (0..draw(9)).map(|i| i * 40).collect();
            g.acks = (0..draw(9)).map(|i| (i * 50, i * 20)).collect();
            g.gaps = vec![(30, 45), (100, 101)];
            let peer = SocketRow::default();
            let why = sums(&SocketRow::default(), (round % 4 > 0).then_some(&peer), &g, None);
            for l in &why.slowest {
                assert_eq!(l.stages.iter().sum::<i64>(), l.to_ns - l.from_ns, "{round}: {l:?}");
                assert!(l.stages.iter().all(|ns| *ns >= 0), "{round}: {l:?}");
            }
            let all: f64 = why.stages.iter().map(|s| s.ns).sum();
            assert!((all - why.whole_ns() as f64).abs() < 1e-6, "{round}: {all}, {}", why.whole_ns());
            // moment by moment
            let far = Far::of(&g, round % 4 > 0);
            let lines: Vec<_> = (0..g.writes.len()).map(|n| line::line(n, &g, far)).collect();
            let first =
                lines.iter().filter(|l| l.to_ns() > l.from_ns).map(|l| l.from_ns).min().unwrap_or(i64::MAX);
            let mut by = [0.0; STAGES];
            for t in why.from_ns..why.to_ns {
                let there = |l: &&line::Line| l.from_ns <= t && t < l.to_ns();
                let n = lines.iter().filter(there).count();
                for l in lines.iter().filter(there) {
                    let piece = l.pieces.iter().find(|p| t < p.1).unwrap().0;
                    let of_held = || g.held.iter().find(|h| h.from_ns <= t && t < h.to_ns);
                    let stage = match piece {
                        Piece::At(s) => s,
                        p => of_held().map_or(Stage::Undecided, |h| line::stage(h, p)),
                    };
                    by[stage as usize] += 1.0 / n as f64;
                }
                if g.handshake().is_some_and(|(from, to)| n == 0 && (from..to).contains(&t) && t < first) {
                    by[Stage::Handshake as usize] += 1.0;
                } else if n == 0 {
                    by[Stage::Application as usize] += 1.0;
                }
            }
            for s in &why.stages {
                assert!(
                    (s.ns - by[s.stage as usize]).abs() < 1e-6,
                    "{round}: {:?} {} {}",
                    s.stage,
                    s.ns,
                    by[s.stage as usize]
                );
                let (low, high) = why.bounds_ns(s);
                assert!(low <= s.ns && s.ns <= high);
            }
        }
    }
}
