//! Of a socket of datagrams that several others ask (a resolver's): when it owes one of them an answer. Then it is this end's application that is waited for, also where
//! another one has its answer and does not ask again.
//!
//! Which answer is for which question is not in the log. Where an end got as many as it asked, each question is owed until one more answer; else, as what is asked in
//! several datagrams, or several times, the last one until the next answer. Who was never answered is owed nothing.

use std::collections::BTreeMap;

/// What was read from another end, or written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Said {
    Read,
    Wrote,
}

/// `talk`: when, with whom. In order, without overlap.
pub(super) fn owed<E: Ord>(talk: Vec<(i64, E, Said)>, end_ns: i64) -> Vec<(i64, i64)> {
    let mut ends: BTreeMap<E, Vec<(i64, Said)>> = BTreeMap::new();
    for (at_ns, end, said) in talk {
        ends.entry(end).or_default().push((at_ns, said));
    }
    let mut all: Vec<(i64, i64)> = ends.into_values().flat_map(|said| to_one(said, end_ns)).collect();
    all.sort_unstable();
    let mut out: Vec<(i64, i64)> = Vec::new();
    for (from, to) in all {
        match out.last_mut().filter(|last| last.1 >= from) {
            Some(last) => last.1 = last.1.max(to),
            None => out.push((from, to)),
        }
    }
    out
}

fn to_one(mut said: Vec<(i64, Said)>, end_ns: i64) -> Vec<(i64, i64)> {
    said.sort_unstable();
    if said.first().is_none_or(|first| first.1 == Said::Wrote) {
        return Vec::new(); // this end asks
    }
    let read = said.iter().filter(|s| s.1 == Said::Read).count();
    let one_by_one = read * 2 == said.len();
    let (mut out, mut open, mut since) = (Vec::new(), 0, end_ns);
    for (at, said) in said {
        match said {
            Said::Read if one_by_one => (open, since) = (open + 1, if open == 0 { at } else { since }),
            Said::Read => (open, since) = (1, at),
            Said::Wrote if open > 0 => {
                open -= 1;
                out.extend((open == 0).then_some((since, at)));
            }
            Said::Wrote => {}
        }
    }
    out.extend((one_by_one && open > 0).then_some((since, end_ns)));
    out
}

/// The parts of this time that are owed, and those that are not: which, from when, until when.
pub(super) fn parts(owed: &[(i64, i64)], from: i64, to: i64) -> impl Iterator<Item = (bool, i64, i64)> {
    let first = owed.partition_point(|o| o.1 <= from);
    let within = owed[first..].iter().take_while(move |o| o.0 < to);
    let mut at = from;
    let mut out = Vec::new();
    for (a, b) in within.map(|o| (o.0.max(from), o.1.min(to))) {
        out.extend([(false, at, a), (true, a, b)]);
        at = b;
    }
    out.push((false, at, to));
    out.into_iter().filter(|p| p.2 > p.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Said::*;

    #[test]
    fn each_end_is_owed_what_it_asked() {
        // The first end's answer is slow; the second one's is not, and it has pauses.
        let talk =
            vec![(10, 1, Read), (11, 2, Read), (12, 2, Wrote), (40, 2, Read), (41, 2, Wrote), (60, 1, Wrote)];
        assert_eq!(owed(talk.clone(), 100), [(10, 60)]);
        assert_eq!(owed(talk[1..5].to_vec(), 100), [(11, 12), (40, 41)]);
        assert_eq!(owed(vec![(10, 1, Wrote), (20, 1, Read), (30, 1, Wrote)], 100), [], "this end asks");
        assert_eq!(owed(vec![(10, 1, Read), (20, 1, Read)], 100), [], "nobody is answered");
    }

    #[test]
    fn several_questions_of_one_end() {
        let talk =
            vec![(10, 1, Read), (15, 1, Read), (20, 1, Wrote), (30, 1, Wrote), (50, 1, Read), (70, 1, Wrote)];
        assert_eq!(owed(talk, 100), [(10, 30), (50, 70)]);
        // Three datagrams are one question.
        let talk = vec![(10, 1, Read), (15, 1, Read), (20, 1, Read), (30, 1, Wrote), (40, 1, Read)];
        assert_eq!(owed(talk, 100), [(20, 30)]);
    }

    #[test]
    fn time_is_cut_where_it_is_owed() {
        let cut = |from, to| parts(&[(10, 20), (30, 40)], from, to).collect::<Vec<_>>();
        assert_eq!(cut(0, 35), [(false, 0, 10), (true, 10, 20), (false, 20, 30), (true, 30, 35)]);
        assert_eq!(cut(12, 18), [(true, 12, 18)]);
        assert_eq!(cut(20, 30), [(false, 20, 30)]);
        assert_eq!(cut(40, 40), []);
    }
}
