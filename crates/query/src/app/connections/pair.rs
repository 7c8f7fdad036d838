//! Which two sockets are one connection: each is what the other one speaks to, and the numbers of their bytes agree. Where addresses are translated
//! in between, the numbers alone: of both directions, or of one and an end that is not translated.

use kpat_store::tables::SocketRow;
use std::collections::HashMap;

#[derive(Clone, Debug)]
pub struct End {
    /// Place of its log.
    pub host: usize,
    pub socket: SocketRow,
}

#[derive(Clone, Debug)]
pub struct Pair {
    /// The first is of the earlier log, or was seen earlier: it mostly is the one that connected.
    pub ends: [End; 2],
}

#[derive(Clone, Debug, Default)]
pub struct Found {
    pub pairs: Vec<Pair>,
    pub alone: u64,
    pub ambiguous: u64,
}

const TCP: i32 = 6;

/// The numbers that both ends saw lie so close together where both were seen from the beginning. What connections with other addresses begin with is
/// random, over 4 GiB; the same addresses and ports again begin behind what they had before, by a clock (RFC 6528, RFC 6191).
const CLOSE: i64 = 1 << 26;

/// Address and port, own and the other's.
fn key(s: &SocketRow, back: bool) -> Option<(String, i32, String, i32)> {
    let (own, peer) = (s.local_addr.clone()?, s.peer_addr.clone()?);
    Some(match back {
        false => (own, s.local_port, peer, s.peer_port),
        true => (peer, s.peer_port, own, s.local_port),
    })
}

/// How far apart two sequence numbers are, the shorter way round.
pub(crate) fn apart(from: i64, to: i64) -> i64 {
    i64::from((to as u32).wrapping_sub(from as u32) as i32)
}

/// By their numbers, how far what both saw is apart, 0: they share some, or begin with one number; `None`: nothing is known of both.
fn distance(a: &SocketRow, b: &SocketRow) -> Option<i64> {
    let between = |sent: (Option<i64>, i64), received: (Option<i64>, i64)| {
        let (s, r) = sent.0.zip(received.0)?;
        let first = apart(s, r);
        Some((first - sent.1.max(1) + 1).max(1 - first - received.1.max(1)).max(0))
    };
    let there = between((a.sent_seq, a.sent_bytes), (b.received_seq, b.received_bytes));
    let back = between((b.sent_seq, b.sent_bytes), (a.received_seq, a.received_bytes));
    there.into_iter().chain(back).max()
}

/// Sockets by log.
pub(super) fn pairs(sockets: &[Vec<SocketRow>]) -> Found {
    let all: Vec<(usize, &SocketRow)> = sockets
        .iter()
        .enumerate()
        .flat_map(|(host, rows)| rows.iter().map(move |s| (host, s)))
        .filter(|(_, s)| s.proto == TCP && (s.sent_seq.is_some() || s.received_seq.is_some()))
        .collect();
    let mut by_key: HashMap<_, Vec<usize>> = HashMap::new();
    for (i, (_, s)) in all.iter().enumerate() {
        if let Some(k) = key(s, false) {
            by_key.entry(k).or_default().push(i);
        }
    }
    let candidates = |i: usize| -> Vec<(i64, usize)> {
        let (host, s) = all[i];
        let there = key(s, true).and_then(|k| by_key.get(&k));
        let mut out: Vec<(i64, usize)> = there
            .into_iter()
            .flatten()
            .filter(|&&j| {
                let (other, t) = all[j];
                // by one clock both live at one time
                j != i && (host != other || (s.first_ns <= t.last_ns && t.first_ns <= s.last_ns))
            })
            .filter_map(|&j| Some((distance(s, all[j].1)?, j)))
            .collect();
        out.sort_unstable();
        out
    };
    // The only one, the only one that shares bytes, or the only one close by.
    let best = |i: usize| -> Result<usize, bool> {
        match candidates(i)[..] {
            [] => Err(false),
            [(_, one)] => Ok(one),
            [(0, one), (next, _), ..] if next > 0 => Ok(one),
            [(near, one), (next, _), ..] if near <= CLOSE && next > CLOSE => Ok(one),
            _ => Err(true),
        }
    };
    let mut out = Found::default();
    // Once for both ends.
    let join = |i: usize, j: usize, pairs: &mut Vec<Pair>| {
        let order = |n: usize| (all[n].0, all[n].1.first_ns, n);
        if order(i) < order(j) {
            let end = |n: usize| End { host: all[n].0, socket: all[n].1.clone() };
            pairs.push(Pair { ends: [end(i), end(j)] });
        }
    };
    let mut alone: Vec<usize> = Vec::new();
    for i in 0..all.len() {
        match best(i) {
            Err(false) => alone.push(i),
            Ok(j) if best(j) == Ok(i) => join(i, j, &mut out.pairs),
            _ => out.ambiguous += 1,
        }
    }
    let mut by_sent: HashMap<i64, Vec<usize>> = HashMap::new();
    let mut by_received: HashMap<i64, Vec<usize>> = HashMap::new();
    for &i in &alone {
        let s = all[i].1;
        s.sent_seq.into_iter().for_each(|n| by_sent.entry(n).or_default().push(i));
        s.received_seq.into_iter().for_each(|n| by_received.entry(n).or_default().push(i));
    }
    // Of those that fit in both directions the only one; of those that fit in one, of which the other is not known, the only one with an end of this.
    let other = |i: usize| -> Option<usize> {
        let (host, s) = all[i];
        let there = s.sent_seq.and_then(|n| by_received.get(&n));
        let back = s.received_seq.and_then(|n| by_sent.get(&n));
        let mut those: Vec<usize> = there.into_iter().chain(back).flatten().copied().collect();
        those.sort_unstable();
        those.dedup();
        those.retain(|&j| {
            let (other, t) = all[j];
            let at_once = host != other || (s.first_ns <= t.last_ns && t.first_ns <= s.last_ns);
            j != i && at_once && agree(s.sent_seq, t.received_seq) && agree(s.received_seq, t.sent_seq)
        });
        let both =
            |t: &SocketRow| s.sent_seq.and(s.received_seq).and(t.sent_seq).and(t.received_seq).is_some();
        let only = |fits: &dyn Fn(&SocketRow) -> bool| {
            let mut these = those.iter().copied().filter(|j| fits(all[*j].1));
            these.next().filter(|_| these.next().is_none())
        };
        only(&both).or_else(|| only(&|t| share_an_end(s, t)))
    };
    for i in alone {
        match other(i).filter(|j| other(*j) == Some(i)) {
            None => out.alone += 1,
            Some(j) => join(i, j, &mut out.pairs),
        }
    }
    out
}

/// Are these one number, as far as both are known?
fn agree(a: Option<i64>, b: Option<i64>) -> bool {
    a.zip(b).is_none_or(|(a, b)| a == b)
}

/// Is one end of the connection the same for both?
fn share_an_end(a: &SocketRow, b: &SocketRow) -> bool {
    let own = |s: &SocketRow| s.local_addr.clone().map(|addr| (addr, s.local_port));
    let peer = |s: &SocketRow| s.peer_addr.clone().map(|addr| (addr, s.peer_port));
    (own(a).is_some() && own(a) == peer(b)) || (peer(a).is_some() && peer(a) == own(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(id: i64, ends: (&str, i32, &str, i32), seqs: (u32, u32), life: (i64, i64)) -> SocketRow {
        SocketRow {
            socket_id: id,
            proto: TCP,
            local_addr: Some(ends.0.into()),
            local_port: ends.1,
            peer_addr: Some(ends.2.into()),
            peer_port: ends.3,
            sent_seq: Some(seqs.0.into()),
            received_seq: Some(seqs.1.into()),
            first_ns: life.0,
            last_ns: life.1,
            ..Default::default()
        }
    }

    fn ids(f: &Found) -> Vec<(i64, i64)> {
        f.pairs.iter().map(|p| (p.ends[0].socket.socket_id, p.ends[1].socket.socket_id)).collect()
    }

    #[test]
    fn of_translated_addresses_the_numbers_tell() {
        // a service's address: the client speaks to another than the server is
        let client = socket(1, ("a", 1, "v", 80), (70, 50), (0, 9));
        let server = socket(2, ("b", 8080, "a", 1), (50, 70), (1, 8));
        // both translated, and another connection of the server that began at the same number one way
        let far = socket(3, ("c", 5, "v", 80), (900, 30), (0, 9));
        let near = socket(4, ("b", 8080, "r", 6), (30, 900), (1, 8));
        let stranger = socket(5, ("b", 8080, "x", 7), (50, 71), (1, 8));
        let all = [client.clone(), server.clone(), far, near, stranger];
        let f = pairs(&[all.to_vec()]);
        assert_eq!((ids(&f), f.alone, f.ambiguous), (vec![(1, 2), (3, 4)], 1, 0));
        // one way only: an end has to be the same
        let one_way = |s: &SocketRow, sent: Option<i64>, received| SocketRow {
            sent_seq: sent,
            received_seq: received,
            ..s.clone()
        };
        let (up, down) = (one_way(&client, Some(70), None), one_way(&server, None, Some(70)));
        assert_eq!(ids(&pairs(&[vec![up.clone(), down.clone()]])), [(1, 2)]);
        let elsewhere = SocketRow { peer_addr: Some("r".into()), ..down.clone() };
        assert_eq!(ids(&pairs(&[vec![up.clone(), elsewhere]])), []);
        // Both are known at one end only; that the other direction is another's, an end does not outweigh.
        assert_eq!(ids(&pairs(&[vec![client.clone(), down.clone()]])), [(1, 2)]);
        let not_its = SocketRow { sent_seq: Some(51), ..down };
        assert_eq!(ids(&pairs(&[vec![client, not_its]])), []);
    }

    #[test]
    fn the_other_end_is_known_by_addresses_time_and_numbers() {
        let (there, back) = (("a", 1, "b", 2), ("b", 2, "a", 1));
        let one = [socket(1, there, (u32::MAX, 50), (0, 9)), socket(2, back, (50, 4), (1, 8))];
        assert_eq!(ids(&pairs(&[one.to_vec()])), [(1, 2)]);
        // The same ports again, later: by one clock time tells, by two the numbers do.
        let again =
            [socket(3, there, (900_000_000, 7), (20, 29)), socket(4, back, (7, 900_000_000), (21, 28))];
        let all = [one.to_vec(), again.to_vec()].concat();
        assert_eq!(ids(&pairs(&[all])), [(1, 2), (3, 4)]);
        let hosts = [vec![one[0].clone(), again[0].clone()], vec![one[1].clone(), again[1].clone()]];
        assert_eq!(ids(&pairs(&hosts)), [(1, 2), (3, 4)]);
        // Again within a second, of two hosts: Linux numbers them by a clock of 64 ns (recorded with 6.18).
        let writes = |id, sent: i64, received: i64| SocketRow {
            sent_bytes: 10_000,
            ..socket(id, there, (sent as u32, received as u32), (0, 99))
        };
        let reads = |id, from: i64| SocketRow {
            sent_seq: None,
            received_bytes: 10_000,
            ..socket(id, back, (0, from as u32), (0, 99))
        };
        let soon = [
            vec![writes(1, 38_833_008, 3_799_565_633), writes(2, 38_908_547, 3_804_913_758)],
            vec![reads(3, 38_833_008), reads(4, 38_908_547)],
        ];
        assert_eq!(ids(&pairs(&soon)), [(1, 3), (2, 4)]);
        // One log began in the middle.
        let late = [soon[0].clone(), vec![reads(3, 38_842_000), reads(4, 38_908_547)]];
        assert_eq!(ids(&pairs(&late)), [(1, 3), (2, 4)]);
        // Two that could be it: neither.
        let twins = [vec![one[0].clone()], vec![one[1].clone(), socket(5, back, (60, 9), (1, 8))]];
        let f = pairs(&twins);
        assert_eq!((ids(&f), f.ambiguous), (vec![], 3));
        let f = pairs(&[vec![one[0].clone()]]);
        assert_eq!((ids(&f), f.alone), (vec![], 1));
    }
}
