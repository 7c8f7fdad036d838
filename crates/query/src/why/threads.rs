//! What a program did in the time that was its own: it ran, waited for a CPU, or slept (for a lock, a disk, another socket). By what its threads had done whenever one of
//! their calls on the socket began to send or was over (table `thread_time`); of shorter times, and where several threads call by turns, nothing is known.

use super::Stage;
use super::asleep::{self, Sleepers, SleptFor};
use super::gather::Gathered;
use crate::error::Result;
use crate::store::Store;
use kpat_store::tables::ThreadTimeRow;

/// Of a stage's time, each moment once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Threads {
    pub ran_ns: f64,
    /// Ready, while others ran on the CPU, or its group had used up its share.
    pub waited_ns: f64,
    /// Or, for at most a tick each time, ran.
    pub slept_ns: f64,
    /// As far as it is known; of `slept_ns`.
    pub slept_for: SleptFor,
}

impl Threads {
    /// Of so much it is known.
    pub fn known_ns(&self) -> f64 {
        self.ran_ns + self.waited_ns + self.slept_ns
    }
}

/// Pieces of a stage's time: from when to when, and which part of it.
pub(super) type Pieces = Vec<(i64, i64, f64)>;

/// Stages of which one end's program is the cause, and whose pieces are kept.
pub(super) const PROGRAMS: [Stage; 2] = [Stage::Application, Stage::PeerApplication];

/// What is known of the threads of one end's socket.
#[derive(Default)]
pub(super) struct Did {
    /// In order of time.
    times: Vec<ThreadTimeRow>,
    asleep: Sleepers,
}

/// What is known of the threads of these sockets of one log. `here`: this log's clock of another's.
pub(super) fn of_sockets(
    store: &Store,
    sockets: [Option<i64>; 2],
    here: impl Fn(i64) -> i64,
) -> Result<[Did; 2]> {
    let mut out: [Did; 2] = Default::default();
    let table = store.table::<ThreadTimeRow>()?;
    table.each((0..table.groups()).collect(), |r: ThreadTimeRow| {
        if let Some(end) = sockets.iter().position(|s| *s == Some(r.socket_id)) {
            out[end].times.push(r);
        }
    })?;
    for did in &mut out {
        did.asleep = asleep::of_threads(store, &did.times, &here)?;
        for r in &mut did.times {
            (r.from_ns, r.to_ns) = (here(r.from_ns), here(r.to_ns));
        }
        did.times.sort_by_key(|r| r.from_ns);
    }
    Ok(out)
}

/// Who waits for the other end sleeps: so what a thread ran, and waited for a CPU, is first of all in the time in which something was up to it.
fn of_one(r: &ThreadTimeRow, asleep: &Sleepers, pieces: &Pieces) -> Threads {
    let first = pieces.partition_point(|p| p.1 <= r.from_ns);
    let within = |p: &(i64, i64, f64)| (p.1.min(r.to_ns) - p.0.max(r.from_ns)) as f64 * p.2;
    let of_stage: f64 = pieces[first..].iter().take_while(|p| p.0 < r.to_ns).map(within).sum();
    let waited_ns = (r.waited_ns as f64).min(of_stage);
    // It ran whenever it did not wait. Else the kernel's count may be of before the last tick.
    let ran = if r.slept == 0 { r.to_ns - r.from_ns - r.waited_ns } else { r.ran_ns };
    let ran_ns = (ran.max(0) as f64).min(of_stage - waited_ns);
    let slept_ns = of_stage - waited_ns - ran_ns;
    let asleep = asleep.get(&r.thread).map_or(&[][..], Vec::as_slice);
    Threads { ran_ns, waited_ns, slept_ns, slept_for: asleep::within(r, slept_ns, asleep, pieces) }
}

/// Of a stage; `None`: nothing is known.
pub(super) fn threads(stage: Stage, pieces: &mut [Pieces; 2], g: &Gathered) -> Option<Threads> {
    let at = PROGRAMS.iter().position(|s| *s == stage)?;
    pieces[at].sort_unstable_by_key(|p| p.0);
    let mut all = Threads::default();
    let did = &g.threads[at];
    for r in &did.times {
        let one = of_one(r, &did.asleep, &pieces[at]);
        all.ran_ns += one.ran_ns;
        all.waited_ns += one.waited_ns;
        all.slept_ns += one.slept_ns;
        all.slept_for.add(&one.slept_for);
    }
    (all.known_ns() > 0.0).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(from_ns: i64, to_ns: i64, ran_ns: i64, waited_ns: i64, slept: i64) -> ThreadTimeRow {
        ThreadTimeRow { from_ns, to_ns, ran_ns, waited_ns, slept, ..ThreadTimeRow::default() }
    }

    fn of(r: &ThreadTimeRow, pieces: &Pieces) -> (f64, f64, f64) {
        let t = of_one(r, &Sleepers::new(), pieces);
        (t.ran_ns, t.waited_ns, t.slept_ns)
    }

    #[test]
    fn what_a_thread_did_is_divided_by_the_stages_time() {
        let whole = vec![(0, 100, 1.0)];
        // Never slept: it ran all that it did not wait, whatever the tick says.
        assert_eq!(of(&row(0, 100, 0, 30, 0), &whole), (70.0, 30.0, 0.0));
        assert_eq!(of(&row(0, 100, 20, 30, 2), &whole), (20.0, 30.0, 50.0));
        // Counts of two clocks: no more than there is.
        assert_eq!(of(&row(0, 100, 90, 30, 1), &whole), (70.0, 30.0, 0.0));
        assert_eq!(of(&row(0, 100, 0, 130, 0), &whole), (0.0, 100.0, 0.0));
        // It waited for the other end before: it slept then, and waited for a CPU when it was woken.
        assert_eq!(of(&row(0, 100, 5, 10, 1), &vec![(80, 100, 1.0)]), (5.0, 10.0, 5.0));
        // Several pieces, one of them half that of another write; those outside are of others.
        let pieces = vec![(-50, 10, 1.0), (20, 40, 0.5), (90, 300, 1.0)];
        assert_eq!(of(&row(0, 100, 12, 3, 4), &pieces), (12.0, 3.0, 15.0));
        assert_eq!(of(&row(400, 500, 12, 3, 4), &pieces), (0.0, 0.0, 0.0));
    }
}
