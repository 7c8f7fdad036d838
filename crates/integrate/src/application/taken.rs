//! How much of a write the transport took. A recorder sees a call give its bytes to the transport before it is known how many are
//! taken: that is known when the call is over, or TCP's sequence numbers tell it when another begins before.

use super::{Socket, TCP};
use kpat_model::{Crossing, CrossingRecord};
use kpat_store::tables::AppEventRow;

/// Bytes that TLS adds to one, with room.
const RECORD: i64 = 64;

/// A call that gave bytes to the transport and is not over.
pub(super) struct Write {
    row: AppEventRow,
    pid: u32,
    /// TCP's number of the first byte of the part that is being written.
    seq: u32,
    /// It is not the first part of its call (TLS writes its records one by one).
    later: bool,
    /// Bytes of the parts before.
    done: i64,
    /// Another call began to write while this one waited for room: this part is over. `next`: where the next one begins, if that is known.
    waits: bool,
    next: Option<u32>,
}

/// Adds the rows that can be written now, in their order.
pub(super) fn pass(s: &mut Socket, r: &CrossingRecord, row: AppEventRow, out: &mut Vec<AppEventRow>) {
    let tcp = s.row.proto == TCP;
    match r.what {
        Crossing::ToTransport => {
            let before = take(s, r.pid);
            let mut write = Write {
                row: AppEventRow { asked_bytes: Some(row.size_bytes), ..row },
                pid: r.pid,
                seq: r.seq,
                later: before.is_some(),
                done: 0,
                waits: false,
                next: None,
            };
            match before {
                None => {}
                Some(w) if !tcp => out.push(w.row),
                // It goes on: its bytes have waited since the call began.
                Some(w) if w.waits => (write.row.at_ns, write.done) = (w.row.at_ns, w.done),
                Some(mut w) => {
                    out.push(w.part(r.seq));
                    write.done = w.done;
                }
            }
            if tcp {
                others_wait(s, r.seq, out);
            }
            s.under_way.push(write);
        }
        Crossing::Send => {
            if let Some(w) = take(s, r.pid) {
                out.extend(over(s, w, r, tcp));
            }
            out.push(row);
        }
        Crossing::ToNetwork | Crossing::ToDevice | Crossing::ToDriver if tcp => {
            let to = r.seq.wrapping_add(r.size.max(0) as u32);
            let further = s.left_to.is_none_or(|at| to.wrapping_sub(at) as i32 > 0);
            s.left_to = if further { Some(to) } else { s.left_to };
            out.push(row);
        }
        _ => out.push(row),
    }
}

/// A call begins to write to TCP, so others that are under way wait for room: what they had written ends there. Of those that have waited
/// already, one may have gone on unseen since: if there is but one, what was written since is its.
fn others_wait(s: &mut Socket, seq: u32, out: &mut Vec<AppEventRow>) {
    let waiting = s.under_way.iter().filter(|w| w.waits).count();
    for w in &mut s.under_way {
        let since = w.next.map(|n| i64::from(seq.wrapping_sub(n) as i32));
        let part = match (w.waits, since) {
            (false, _) => w.part(seq),
            (true, Some(bytes)) if waiting == 1 && bytes > 0 => w.further(bytes),
            (true, Some(0)) => continue,
            (true, _) => {
                w.next = None;
                continue;
            }
        };
        if part.size_bytes > 0 {
            out.push(AppEventRow { asked_bytes: Some(part.size_bytes), ..part });
        }
    }
}

/// What the last part of a call wrote that is over. `r`: its end, or that of a later call, if a record between was lost.
fn over(s: &mut Socket, mut w: Write, r: &CrossingRecord, tcp: bool) -> Option<AppEventRow> {
    let returned = i64::from(r.size);
    if !tcp {
        return Some(w.over(returned));
    }
    let end = r.seq.wrapping_add(r.size.max(0) as u32);
    let since = |seq: u32| i64::from(seq.wrapping_sub(w.seq) as i32);
    // What the stream got since it began, and that without what the call at hand gave.
    let (all, before) = (since(end), since(r.seq));
    if w.waits {
        return if returned < 0 { None } else { w.rest(returned, end) };
    }
    if returned < 0 {
        return Some(if before > 0 { w.part(r.seq) } else { w.over(returned) });
    }
    if all == returned - w.done {
        // A call that waited goes on behind it.
        for x in s.under_way.iter_mut().filter(|x| x.waits && x.next == Some(w.seq)) {
            x.next = Some(end);
        }
    }
    let others = s.under_way.iter().any(|x| x.waits);
    Some(match w.later {
        true => w.part(end),
        false if all <= returned => w.over(returned),
        // Its own end is missing.
        false if before == w.row.size_bytes => w.part(r.seq),
        // Others wrote meanwhile, for which it has waited, too.
        false if others => AppEventRow { offset: None, ..w.over(returned) },
        // The stream got more than the call was given: TLS within the kernel puts its records around it.
        false if all <= returned + (returned >> 1) + RECORD => AppEventRow { size_bytes: all, ..w.row },
        false => w.part(r.seq),
    })
}

fn take(s: &mut Socket, pid: u32) -> Option<Write> {
    let i = s.under_way.iter().position(|w| w.pid == pid)?;
    Some(s.under_way.remove(i))
}

/// The log ends before the call does: what is known to have been taken has left.
pub(super) fn at_the_end(s: &Socket, mut w: Write) -> Option<AppEventRow> {
    match s.left_to {
        _ if w.waits => None,
        Some(to) if s.row.proto == TCP => Some(w.part(to)),
        _ => Some(w.row),
    }
}

impl Write {
    /// TCP's next byte is this one, and another part's or call's.
    fn part(&mut self, seq: u32) -> AppEventRow {
        let bytes = i64::from(seq.wrapping_sub(self.seq) as i32).clamp(0, self.row.size_bytes.max(0));
        self.done += bytes;
        self.waits = true;
        self.next = Some(seq);
        AppEventRow { size_bytes: bytes, ..self.row.clone() }
    }

    /// It has written so many bytes since, where it was to go on.
    fn further(&mut self, bytes: i64) -> AppEventRow {
        let row = AppEventRow { size_bytes: bytes, offset: self.offset_of(self.next), ..self.row.clone() };
        self.done += bytes;
        self.next = self.next.map(|n| n.wrapping_add(bytes as u32));
        row
    }

    fn offset_of(&self, seq: Option<u32>) -> Option<i64> {
        self.row.offset.zip(seq).map(|(o, n)| o + i64::from(n.wrapping_sub(self.seq) as i32))
    }

    /// What it wrote after it waited: where, only if that is all that the stream got since.
    fn rest(self, returned: i64, end: u32) -> Option<AppEventRow> {
        let rest = (returned - self.done).clamp(0, self.row.size_bytes.max(0));
        let from = self.next.filter(|n| i64::from(end.wrapping_sub(*n) as i32) == rest);
        let offset = self.offset_of(from);
        (rest > 0).then_some(AppEventRow { size_bytes: rest, asked_bytes: Some(rest), offset, ..self.row })
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
        let by_one: Vec<_> = calls.iter().map(|c| (7, c.0, c.1, c.2)).collect();
        rows(proto, &by_one).iter().map(|r| (r.crossing, r.size_bytes, r.asked_bytes)).collect()
    }

    /// The same with each one's thread.
    fn rows(proto: i32, calls: &[(u32, Crossing, u32, i32)]) -> Vec<AppEventRow> {
        let mut s = Socket { row: SocketRow { proto, ..Default::default() }, ..Default::default() };
        let mut out = Vec::new();
        for (i, &(pid, what, seq, size)) in calls.iter().enumerate() {
            let at = BootNs(i as i64);
            let r = CrossingRecord {
                what,
                ctx: kpat_model::Context::Task,
                pid,
                sock: 1,
                at,
                size,
                segments: 1,
                seq,
            };
            let row = super::super::event(&mut s, &r, 0);
            pass(&mut s, &r, row, &mut out);
        }
        for w in std::mem::take(&mut s.under_way) {
            out.extend(at_the_end(&s, w));
        }
        out
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

    #[test]
    fn the_end_of_a_call_is_not_that_of_the_next() {
        use Crossing::*;
        // The first call's end and the second's beginning are missing.
        let calls = [
            (1, ToTransport, 0, 1355),
            (1, Send, 1355, 481),
            (1, ToTransport, 1836, 10),
            (1, Send, 1836, 10),
        ];
        assert_eq!(places(&calls), [(1, Some(0), 1355), (1, Some(1836), 10)]);
        let refused = [(1, ToTransport, 0, 1355), (1, Send, 700, -11)];
        assert_eq!(places(&refused), [(1, Some(0), 700)]);
        // TLS within the kernel: a record of 1,029 bytes around 1,000.
        assert_eq!(places(&[(1, ToTransport, 0, 1029), (1, Send, 29, 1000)]), [(1, Some(0), 1029)]);
    }

    /// Writes with their place: thread, offset, bytes.
    fn places(calls: &[(u32, Crossing, u32, i32)]) -> Vec<(i32, Option<i64>, i64)> {
        let mut out: Vec<_> = rows(TCP, calls)
            .iter()
            .filter(|r| r.crossing == Crossing::ToTransport as i32)
            .map(|r| (r.pid.unwrap_or(0), r.offset, r.size_bytes))
            .collect();
        out.sort_unstable();
        out
    }

    #[test]
    fn two_threads_write_and_wait() {
        use Crossing::*;
        // Seen to go on (from 6.16).
        let seen = [
            (1, ToTransport, 0, 1000),
            (2, ToTransport, 400, 50),
            (2, Send, 400, 50),
            (1, ToTransport, 450, 600),
            (1, Send, 50, 1000),
        ];
        // Not seen to go on: what the other wrote is all that the stream got until it was over.
        let unseen: Vec<_> = seen.iter().copied().filter(|c| (c.0, c.2) != (1, 450)).collect();
        let want = [(1, Some(0), 400), (1, Some(450), 600), (2, Some(400), 50)];
        assert_eq!(places(&seen), want);
        assert_eq!(places(&unseen), want);
        // It went on before a third call.
        let third = [
            (1, ToTransport, 0, 1000),
            (2, ToTransport, 400, 50),
            (2, Send, 400, 50),
            (2, ToTransport, 700, 20),
            (2, Send, 700, 20),
            (1, Send, 70, 1000),
        ];
        let want = [
            (1, Some(0), 400),
            (1, Some(450), 250),
            (1, Some(720), 350),
            (2, Some(400), 50),
            (2, Some(700), 20),
        ];
        assert_eq!(places(&third), want);
        // Both waited: where the rest of the first is, nothing tells.
        let both = [
            (1, ToTransport, 0, 1000),
            (2, ToTransport, 400, 500),
            (2, Send, 700, 500),
            (1, Send, 500, 1000),
        ];
        assert_eq!(places(&both), [(1, None, 600), (1, Some(0), 400), (2, None, 500)]);
    }
}
