//! Of a socket of datagrams that speaks with several, or asks several questions at once (a resolver's): when it owes somebody an answer, and when it waits for one.
//! Another's next question, or another answer, does not end that.
//!
//! Which answer is for which question is not in the log. Of each other end it is counted how many are not answered yet; of those, what is never answered in the log is
//! left out: a question that was lost, the first pieces of one in several datagrams, what goes one way.

use std::collections::BTreeMap;

/// What was read from another end, or written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Said {
    Read,
    Wrote,
}

/// Times in order, without overlap.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    /// Another end had asked.
    pub owed: Vec<(i64, i64)>,
    /// This end had.
    pub awaited: Vec<(i64, i64)>,
}

/// `talk`: when, with whom. Who spoke first asks.
pub(super) fn open<E: Ord>(talk: Vec<(i64, E, Said)>) -> Open {
    let mut ends: BTreeMap<E, Vec<(i64, Said)>> = BTreeMap::new();
    for (at_ns, end, said) in talk {
        ends.entry(end).or_default().push((at_ns, said));
    }
    let mut out = Open::default();
    for mut said in ends.into_values() {
        said.sort_unstable();
        match said[0].1 {
            Said::Read => unanswered(&said, Said::Read, &mut out.owed),
            Said::Wrote => unanswered(&said, Said::Wrote, &mut out.awaited),
        }
    }
    out.owed = joined(out.owed);
    out.awaited = joined(out.awaited);
    out
}

/// Adds when a question was not answered that is.
fn unanswered(said: &[(i64, Said)], question: Said, out: &mut Vec<(i64, i64)>) {
    let mut count = 0i64;
    let counts: Vec<i64> = said
        .iter()
        .map(|s| {
            count = if s.1 == question { count + 1 } else { (count - 1).max(0) };
            count
        })
        .collect();
    let mut never = i64::MAX;
    for i in (0..said.len()).rev() {
        never = never.min(counts[i]);
        if counts[i] > never {
            out.push((said[i].0, said[i + 1].0));
        }
    }
}

fn joined(mut all: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
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

/// This time, cut where one of those begins or ends: whether it is in one, from when, until when.
pub(super) fn parts(times: &[(i64, i64)], from: i64, to: i64) -> Vec<(bool, i64, i64)> {
    let first = times.partition_point(|t| t.1 <= from);
    let within = times[first..].iter().take_while(|t| t.0 < to);
    let (mut at, mut out) = (from, Vec::new());
    for (a, b) in within.map(|t| (t.0.max(from), t.1.min(to))) {
        out.extend([(false, at, a), (true, a, b)]);
        at = b;
    }
    out.push((false, at, to));
    out.retain(|p| p.2 > p.1);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use Said::*;

    fn owed(talk: &[(i64, i32, Said)]) -> Vec<(i64, i64)> {
        let swap = |said| if said == Read { Wrote } else { Read };
        let swapped = talk.iter().map(|t| (t.0, t.1, swap(t.2))).collect();
        let (it, other) = (open(talk.to_vec()), open(swapped));
        assert_eq!((&it.owed, &it.awaited), (&other.awaited, &other.owed));
        it.owed
    }

    #[test]
    fn each_end_is_owed_what_it_asked() {
        // The first end's answer is slow; the second one's is not, and it has pauses.
        let talk =
            [(10, 1, Read), (11, 2, Read), (12, 2, Wrote), (40, 2, Read), (41, 2, Wrote), (60, 1, Wrote)];
        assert_eq!(owed(&talk), [(10, 60)]);
        assert_eq!(owed(&talk[1..5]), [(11, 12), (40, 41)]);
        assert_eq!(owed(&[(10, 1, Wrote), (20, 1, Read), (30, 1, Wrote)]), [], "this end asks");
        assert_eq!(owed(&[(10, 1, Read), (20, 1, Read)]), [], "nobody is answered");
    }

    #[test]
    fn several_questions_of_one_end() {
        let talk =
            [(10, 1, Read), (15, 1, Read), (20, 1, Wrote), (30, 1, Wrote), (50, 1, Read), (70, 1, Wrote)];
        assert_eq!(owed(&talk), [(10, 30), (50, 70)]);
        // Three datagrams are one question, and of an answer in three the first counts.
        let talk = [(10, 1, Read), (15, 1, Read), (20, 1, Read), (30, 1, Wrote), (40, 1, Read)];
        assert_eq!(owed(&talk), [(20, 30)]);
        let talk =
            [(10, 1, Read), (20, 1, Wrote), (21, 1, Wrote), (22, 1, Wrote), (30, 1, Read), (40, 1, Wrote)];
        assert_eq!(owed(&talk), [(10, 20), (30, 40)]);
        // One of three is lost.
        let talk = [
            (10, 1, Read),
            (20, 1, Wrote),
            (30, 1, Read),
            (40, 1, Read),
            (50, 1, Wrote),
            (60, 1, Read),
            (70, 1, Wrote),
        ];
        assert_eq!(owed(&talk), [(10, 20), (40, 50), (60, 70)]);
    }

    #[test]
    fn time_is_cut_where_it_is_owed() {
        let cut = |from, to| parts(&[(10, 20), (30, 40)], from, to);
        assert_eq!(cut(0, 35), [(false, 0, 10), (true, 10, 20), (false, 20, 30), (true, 30, 35)]);
        assert_eq!(cut(12, 18), [(true, 12, 18)]);
        assert_eq!(cut(20, 30), [(false, 20, 30)]);
        assert_eq!(cut(40, 40), []);
    }
}
