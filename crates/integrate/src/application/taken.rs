//! How much of a write the transport took. A recorder sees a call give its bytes to the transport before it is known how many are
//! taken: that is known when the call is over, or TCP's sequence numbers tell it when another begins before.

use super::{Socket, TCP};
use kpat_model::{Crossing, CrossingRecord};
use kpat_store::tables::AppEventRow;

/// A call that gave bytes to the transport and is not over.
pub(super) struct Write {
    row: AppEventRow,
    pid: u32,
    /// TCP's number of its first byte.
    seq: u32,
    /// It is not the first of its call (TLS writes its records one by one).
    later: bool,
}

/// Rows that can be written now, in their order.
pub(super) fn pass(s: &mut Socket, r: &CrossingRecord, row: AppEventRow) -> [Option<AppEventRow>; 2] {
    let tcp = s.row.proto == TCP;
    match r.what {
        Crossing::ToTransport => {
            let before = take(s, r.pid);
            let later = before.is_some();
            let before = before.map(|w| if tcp { w.ended(r.seq) } else { w.row });
            let asked_bytes = Some(row.size_bytes);
            s.under_way.push(Write {
                row: AppEventRow { asked_bytes, ..row },
                pid: r.pid,
                seq: r.seq,
                later,
            });
            [before, None]
        }
        Crossing::Send => {
            let over = take(s, r.pid).map(|w| match w.later && r.size >= 0 {
                true => w.ended(r.seq.wrapping_add(r.size as u32)),
                false => w.over(i64::from(r.size)),
            });
            [over, Some(row)]
        }
        Crossing::ToNetwork | Crossing::ToDevice | Crossing::ToDriver if tcp => {
            let to = r.seq.wrapping_add(r.size.max(0) as u32);
            let further = s.left_to.is_none_or(|at| to.wrapping_sub(at) as i32 > 0);
            s.left_to = if further { Some(to) } else { s.left_to };
            [Some(row), None]
        }
        _ => [Some(row), None],
    }
}

fn take(s: &mut Socket, pid: u32) -> Option<Write> {
    let i = s.under_way.iter().position(|w| w.pid == pid)?;
    Some(s.under_way.remove(i))
}

/// The log ends before the call does: what is known to have been taken has left.
pub(super) fn at_the_end(s: &Socket, w: Write) -> AppEventRow {
    match s.left_to {
        Some(to) if s.row.proto == TCP => w.ended(to),
        _ => w.row,
    }
}

impl Write {
    /// TCP's next byte is this one.
    fn ended(self, seq: u32) -> AppEventRow {
        let bytes = i64::from(seq.wrapping_sub(self.seq) as i32);
        AppEventRow { size_bytes: bytes.clamp(0, self.row.size_bytes.max(0)), ..self.row }
    }

    /// By what its call returned.
    fn over(self, returned: i64) -> AppEventRow {
        // A call that failed moved nothing.
        let offset = self.row.offset.filter(|_| returned >= 0);
        AppEventRow { size_bytes: returned.min(self.row.size_bytes), offset, ..self.row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::BootNs;
    use kpat_store::tables::SocketRow;

    /// Crossings of one thread: what, sequence number, size. What the rows say: crossing, bytes, bytes asked for.
    fn logged(proto: i32, calls: &[(Crossing, u32, i32)]) -> Vec<(i32, i64, Option<i64>)> {
        let mut s = Socket { row: SocketRow { proto, ..Default::default() }, ..Default::default() };
        let mut out = Vec::new();
        for (i, &(what, seq, size)) in calls.iter().enumerate() {
            let at = BootNs(i as i64);
            let r = CrossingRecord {
                what,
                ctx: kpat_model::Context::Task,
                pid: 7,
                sock: 1,
                at,
                size,
                segments: 1,
                seq,
            };
            let row = super::super::event(&mut s, &r, 0);
            out.extend(pass(&mut s, &r, row).into_iter().flatten());
        }
        for w in std::mem::take(&mut s.under_way) {
            out.push(at_the_end(&s, w));
        }
        out.iter().map(|r| (r.crossing, r.size_bytes, r.asked_bytes)).collect()
    }

    #[test]
    fn what_was_taken_is_what_the_call_returned() {
        use Crossing::*;
        let calls = [
            (ToTransport, 100, 5000),
            (ToDevice, 100, 1448),
            (Send, 100, 3000),
            (ToTransport, 3100, 2000),
            (Send, 3100, -11),
        ];
        let want =
            [(5, 1448, None), (3, 3000, Some(5000)), (2, 3000, None), (3, -11, Some(2000)), (2, -11, None)];
        assert_eq!(logged(TCP, &calls), want);
        // A datagram is taken as a whole or not at all.
        let datagrams = [(ToTransport, 0, 900), (Send, 0, 900), (ToTransport, 0, 900), (Send, 0, -1)];
        let want = [(3, 900, Some(900)), (2, 900, None), (3, -1, Some(900)), (2, -1, None)];
        assert_eq!(logged(17, &datagrams), want);
    }

    #[test]
    fn numbers_tell_where_the_end_of_a_call_is_not_seen() {
        use Crossing::*;
        // Two writes by one call; one whose end was lost; one that the log's end cuts off.
        let calls = [
            (ToTransport, u32::MAX, 50),
            (ToTransport, 49, 30),
            (Send, 0, 79),
            (ToTransport, 79, 400),
            (ToTransport, 379, 1000),
            (ToDriver, 379, 250),
        ];
        let rows = logged(TCP, &calls);
        let writes: Vec<i64> = rows.iter().filter(|r| r.0 == 3).map(|r| r.1).collect();
        assert_eq!(writes, [50, 30, 300, 250]);
    }
}
