//! Datagrams that were taken before their socket could report them: between the kernel's putting one into the queue and its waking somebody
//! (`__udp_enqueue_schedule_skb()` in net/ipv4/udp.c), a reader on another CPU takes it. What the kernel side logs then is one datagram more, and as which
//! packet what came last from a device on that CPU.
//!
//! Reads take a socket's datagrams in their order. So it is the next read's that is not that of a datagram reported before; or that read is over
//! already, and at it none was known to be there. It has that read's size. Whether it is that packet is asked once more of each, by size and port, where packets are
//! known (`AskedOf::fits` in crates/query/src/carried/datagrams.rs).

use kpat_model::Crossing;
use kpat_query::EAGAIN;
use kpat_store::tables::AppEventRow;
use std::collections::VecDeque;

/// Reads, and datagrams, that are remembered, and for how long: the softirq that put a datagram there may have been interrupted since, as may its reader.
const MOST: usize = 64;
const LATE_NS: i64 = 10_000_000;

/// It was taken before its socket could report it.
struct Taken {
    /// Its place among those that were reported.
    place: u64,
    /// What came last from a device there.
    came: Option<AppEventRow>,
    report: AppEventRow,
}

/// A socket's queue, as far as its size goes.
#[derive(Default)]
pub(super) struct Early {
    /// Datagrams that were reported, and those of them that were read, as far as it is known.
    reported: u64,
    read: u64,
    /// Of these: what is still to be read.
    taken: VecDeque<Taken>,
    /// Reads of what was not reported yet: when they were over, and how much they had.
    reads: VecDeque<(i64, i64)>,
    /// By CPU: what came last from a device there, which the next row reports.
    came: Vec<AppEventRow>,
}

/// Was it not seen itself, as it had been taken?
fn is_claimed(came: &AppEventRow) -> bool {
    came.segments == 0
}

impl Early {
    /// Adds the rows that can be written now. `row`: of a socket without a stream.
    pub fn pass(&mut self, row: AppEventRow, out: &mut Vec<AppEventRow>) {
        let is = |c: Crossing| row.crossing == c as i32;
        if is(Crossing::FromDevice) {
            self.came.retain(|c| c.cpu != row.cpu);
            self.came.push(row.clone());
            if is_claimed(&row) {
                return;
            }
        } else if is(Crossing::Recv) {
            self.read(row.at_ns, row.size_bytes, out);
        } else if is(Crossing::ToSocket) {
            return self.report(row, out);
        }
        out.push(row);
    }

    /// No row comes any more.
    pub fn over(&mut self, out: &mut Vec<AppEventRow>) {
        self.taken.drain(..).for_each(|t| out.push(t.unknown()));
    }

    fn report(&mut self, mut row: AppEventRow, out: &mut Vec<AppEventRow>) {
        if row.size_bytes < 0 {
            // Refused: it was counted where it was reported.
            self.reported = self.reported.saturating_sub(1).max(self.read);
            return out.push(row);
        }
        let came = self.came.iter().position(|c| (c.cpu, c.tag) == (row.cpu, row.tag));
        let since_ns = came.map_or(i64::MIN, |i| self.came[i].at_ns).max(row.at_ns - LATE_NS);
        let claimed = came.filter(|i| is_claimed(&self.came[*i])).map(|i| self.came.swap_remove(i));
        while self.reads.front().is_some_and(|r| r.0 < since_ns) {
            self.reads.pop_front();
        }
        if claimed.is_none() && (row.size_bytes > 0 || row.tag.is_some()) {
            // It was in the queue when that was looked at, and its read was over when that was logged.
            match self.reads.pop_front_if(|r| came.is_some() && r.1 <= row.size_bytes) {
                Some((at_ns, _)) => row.at_ns = row.at_ns.min(at_ns - 1).max(since_ns),
                None => self.reported += 1,
            }
            return out.push(row);
        }
        let mut taken = Taken { place: self.reported, came: claimed, report: row };
        match self.reads.pop_front() {
            Some((at_ns, bytes)) => {
                taken.report.at_ns = (at_ns - 1).max(since_ns);
                taken.of_read(bytes, out);
            }
            None => {
                self.reported += 1;
                if self.taken.len() == MOST {
                    out.extend(self.taken.pop_front().map(Taken::unknown));
                }
                self.taken.push_back(taken);
            }
        }
    }

    fn read(&mut self, at_ns: i64, bytes: i64, out: &mut Vec<AppEventRow>) {
        if bytes < 0 {
            if bytes == EAGAIN && self.taken.is_empty() {
                self.read = self.reported;
            }
            return;
        }
        if self.read == self.reported {
            if self.reads.len() == MOST {
                self.reads.pop_front();
            }
            return self.reads.push_back((at_ns, bytes));
        }
        while let Some(taken) = self.taken.pop_front_if(|t| t.place <= self.read) {
            if taken.place == self.read && taken.report.at_ns + LATE_NS >= at_ns {
                taken.of_read(bytes, out);
            } else {
                out.push(taken.unknown());
            }
        }
        self.read += 1;
    }
}

impl Taken {
    fn of_read(mut self, bytes: i64, out: &mut Vec<AppEventRow>) {
        (self.report.size_bytes, self.report.segments) = (bytes, 0);
        out.extend(self.came.map(|came| AppEventRow { size_bytes: bytes, ..came }));
        out.push(self.report);
    }

    /// One more, of which nothing is known.
    fn unknown(self) -> AppEventRow {
        AppEventRow { tag: None, ..self.report }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Crossing::*;

    /// When, what, size, frames, tag (0: none), CPU; in the order in which they were logged.
    fn passed(rows: &[(i64, Crossing, i64, i32, i64, i32)]) -> Vec<(i64, Crossing, i64, Option<i64>)> {
        let (mut early, mut out) = (Early::default(), Vec::new());
        for &(at, what, size_bytes, segments, tag, cpu) in rows {
            let tag = (tag != 0).then_some(tag);
            let (at_ns, crossing) = (at * 1000, what as i32);
            let row = AppEventRow { at_ns, crossing, size_bytes, segments, tag, cpu, ..Default::default() };
            early.pass(row, &mut out);
        }
        early.over(&mut out);
        let what = |r: &AppEventRow| Crossing::from_u8(r.crossing as u8).expect("a crossing");
        out.iter().map(|r| (r.at_ns, what(r), r.size_bytes, r.tag)).collect()
    }

    #[test]
    fn what_was_read_before_it_was_reported_has_the_reads_size_and_was_there_before() {
        let rows = [
            (10, FromDevice, 728, 1, 5, 1),
            (11, ToSocket, 728, 1, 5, 1),
            (12, Recv, 728, 1, 0, 0),
            // taken, then nothing is there, and only then it is reported
            (21, Recv, 729, 1, 0, 0),
            (22, Recv, -11, 1, 0, 0),
            (20, FromDevice, 0, 0, 6, 1),
            (25, ToSocket, 0, 1, 6, 1),
            (30, FromDevice, 730, 1, 5, 1),
            (31, ToSocket, 730, 1, 5, 1),
            (32, Recv, 730, 1, 0, 0),
        ];
        let want = [
            (10_000, FromDevice, 728, Some(5)),
            (11_000, ToSocket, 728, Some(5)),
            (12_000, Recv, 728, None),
            (21_000, Recv, 729, None),
            (22_000, Recv, -11, None),
            (20_000, FromDevice, 729, Some(6)),
            (20_999, ToSocket, 729, Some(6)),
            (30_000, FromDevice, 730, Some(5)),
            (31_000, ToSocket, 730, Some(5)),
            (32_000, Recv, 730, None),
        ];
        assert_eq!(passed(&rows), want);
    }

    #[test]
    fn what_was_seen_in_the_queue_may_be_reported_when_its_read_is_over() {
        let rows = [
            (10, FromDevice, 50, 1, 5, 1),
            (12, Recv, 50, 1, 0, 0),
            (13, ToSocket, 50, 1, 5, 1),
            (20, FromDevice, 60, 1, 6, 1),
            (21, ToSocket, 60, 1, 6, 1),
            (22, Recv, 60, 1, 0, 0),
        ];
        let reported: Vec<_> = passed(&rows).into_iter().filter(|r| r.1 == ToSocket).collect();
        assert_eq!(reported, [(11_999, ToSocket, 50, Some(5)), (21_000, ToSocket, 60, Some(6))]);
    }

    #[test]
    fn the_call_that_took_it_may_be_over_after_it_was_reported() {
        let rows = [
            (10, FromDevice, 50, 1, 5, 1),
            (11, ToSocket, 50, 1, 5, 1),
            (20, FromDevice, 0, 0, 6, 1),
            (21, ToSocket, 0, 1, 6, 1),
            (22, Recv, 50, 1, 0, 0),
            (23, Recv, 60, 1, 0, 0),
            // no read is seen that has it
            (30, FromDevice, 0, 0, 7, 1),
            (31, ToSocket, 0, 1, 7, 1),
            (40_000, Recv, 70, 1, 0, 0),
        ];
        let want = [
            (22_000, Recv, 50, None),
            (20_000, FromDevice, 60, Some(6)),
            (21_000, ToSocket, 60, Some(6)),
            (23_000, Recv, 60, None),
            (31_000, ToSocket, 0, None),
            (40_000_000, Recv, 70, None),
        ];
        assert_eq!(passed(&rows)[2..], want);
    }

    #[test]
    fn a_read_is_not_of_what_comes_later() {
        let rows = [
            (10, Recv, 50, 1, 0, 0),
            (20, FromDevice, 0, 0, 6, 1),
            (21, ToSocket, 0, 1, 6, 1),
            (22, Recv, 60, 1, 0, 0),
            // of a kernel side that says nothing of it
            (30, Recv, 61, 1, 0, 0),
            (31, ToSocket, 0, 1, 0, 1),
            (40, Recv, 70, 1, 0, 0),
            (40_000, ToSocket, 0, 1, 0, 1),
        ];
        let is_reported = |r: &(i64, Crossing, i64, Option<i64>)| r.1 != Recv;
        let reported: Vec<_> = passed(&rows).into_iter().filter(is_reported).collect();
        let want = [
            (20_000, FromDevice, 60, Some(6)),
            (21_000, ToSocket, 60, Some(6)),
            (29_999, ToSocket, 61, None),
            (40_000_000, ToSocket, 0, None),
        ];
        assert_eq!(reported, want);
    }

    #[test]
    fn what_the_queue_refused_is_not_there_to_be_read() {
        let rows = [
            (10, FromDevice, 50, 1, 5, 1),
            (11, ToSocket, 50, 1, 5, 1),
            (12, ToSocket, -12, 1, 0, 1),
            (21, Recv, 60, 1, 0, 0),
            (20, FromDevice, 0, 0, 6, 1),
            (25, ToSocket, 0, 1, 6, 1),
        ];
        assert_eq!(passed(&rows)[4..], [(20_000, FromDevice, 60, Some(6)), (20_999, ToSocket, 60, Some(6))]);
    }
}
