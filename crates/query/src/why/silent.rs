//! An end that asks, and hears nothing: whether its application waits for an answer the log does not tell, nor does anything else until something comes.

use super::gather::Gathered;

/// How long an end that asks had no answer to what it wrote last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    pub ns: i64,
    pub until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Closed,
    Reset,
    LogEnded,
}

impl Gathered {
    /// Nobody has read anything of it, nor written an answer, as far as the log can tell.
    pub fn is_silent(&self) -> bool {
        !self.peer_reads && !self.peer_takes && self.answers.is_empty()
    }

    /// How long nothing more happened, from then on, until it was closed, reset, or the log ended, if this end asks and nothing came.
    pub fn silent_after(&self, from_ns: i64) -> Option<Silent> {
        let later = |at: Option<i64>| at.filter(|at| *at > from_ns);
        let ends = [(later(self.closed_ns), Until::Closed), (later(self.reset_ns), Until::Reset)];
        let ends = ends.into_iter().filter_map(|(at, until)| Some((at?, until)));
        let gone = self.closed_ns.is_some() || self.reset_ns.is_some();
        let open = (!gone && self.last_ns > from_ns).then_some((self.last_ns, Until::LogEnded));
        let (at, until) = ends.min_by_key(|e| e.0).or(open).filter(|_| self.connected && self.asks())?;
        let came = |all: &[i64]| all.get(all.partition_point(|t| *t <= from_ns)).is_some_and(|t| *t < at);
        (!came(&self.answers) && !came(&self.reads)).then_some(Silent { ns: at - from_ns, until })
    }
}

#[cfg(test)]
mod tests {
    use super::super::gather::Write;
    use super::super::sums::sums;
    use super::*;
    use crate::app::connections::STAGES;
    use kpat_model::Crossing::{self, *};
    use kpat_store::tables::SocketRow;

    const MS: i64 = 1_000_000;

    fn write(offset: i64, bytes: i64, from_ns: i64, at_ns: i64, at: &[(Crossing, i64)]) -> Write {
        let when = |s| at.iter().find(|(c, _)| *c == s).map(|(_, t)| *t);
        Write { offset, bytes, from_ns, at_ns, at: STAGES.map(when), again: false }
    }

    #[test]
    fn what_nobody_answers_is_counted_and_not_explained() {
        let way = |t: i64| [(ToDriver, t), (FromDevice, t + MS), (ToSocket, t + MS), (Recv, t + MS)];
        let writes = vec![write(0, 5, 0, 0, &way(0)), write(5, 5, 50 * MS, 50 * MS, &way(50 * MS))];
        let mut g =
            Gathered { writes, peer_reads: true, connected: true, last_ns: 90 * MS, ..Default::default() };
        let why = sums(&SocketRow::default(), Some(&SocketRow::default()), &g, None);
        assert_eq!((why.silent, why.answering_ns, why.to_ns), ((1, 49 * MS), 0, 51 * MS));
        let after = |g: &Gathered| g.silent_after(why.to_ns).map(|s| (s.ns / MS, s.until));
        assert_eq!(after(&g), Some((39, Until::LogEnded)));
        g.closed_ns = Some(70 * MS);
        assert_eq!(after(&g), Some((19, Until::Closed)));
        g.reset_ns = Some(60 * MS);
        assert_eq!(after(&g), Some((9, Until::Reset)));
        // The other end asks, or says something after all.
        assert_eq!(after(&Gathered { answers: vec![55 * MS], ..g }), None);
        let g = Gathered { peer_connects: true, connected: true, last_ns: 90 * MS, ..Default::default() };
        assert_eq!(after(&g), None);
    }
}
