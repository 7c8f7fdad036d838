//! What the peer writes back: when it does, and when all of that has been read here. Who waits for the rest of an answer then waits for the peer's
//! application, and not for bytes on their way.

use super::Why;
use super::gather::Gathered;
use crate::app::connections::apart;
use kpat_model::Crossing;
use kpat_store::tables::{AppEventRow, SocketRow};
use std::collections::HashSet;

/// The peer's writes and the sender's reads, in order of time.
#[derive(Default)]
pub(super) struct Answers {
    /// From the peer's numbers to the sender's; `None`: not known.
    shift: Option<i64>,
    /// This kernel shows when the peer's calls begin.
    begin: bool,
    written: i64,
    read: i64,
    /// Since when all that was written has been read.
    since: Option<i64>,
}

impl Answers {
    pub fn new(sender: &SocketRow, peer: Option<&SocketRow>) -> Answers {
        let seqs = peer.and_then(|p| p.sent_seq).zip(sender.received_seq);
        Answers { shift: seqs.map(|(sent, received)| apart(received, sent)), ..Answers::default() }
    }

    /// What the peer did with bytes of this direction. A call is over when its bytes may long have been read: where its beginning is not in the log, what
    /// the device got first tells when an answer began.
    pub fn wrote(&mut self, what: Crossing, e: &AppEventRow, out: &mut Gathered) {
        let end = e.offset.zip(self.shift).map(|(o, shift)| o + e.size_bytes + shift);
        let is_new = end.is_none_or(|end| end > self.written);
        match what {
            Crossing::ToTransport => self.begin = true,
            Crossing::Send | Crossing::ToDevice if !self.begin && is_new => {}
            _ => return,
        }
        out.answers.push(e.at_ns);
        self.written = self.written.max(end.unwrap_or_default());
        if self.written > self.read {
            out.read_up.extend(self.since.take().map(|since| (since, e.at_ns)));
        }
    }

    /// The sender read up to this byte.
    pub fn read(&mut self, at_ns: i64, end: i64) {
        self.read = self.read.max(end);
        // What is read before it was written has no call in the log: the rest of it may be under way.
        let is_up = self.begin && self.read == self.written;
        self.since = if is_up { self.since.or(Some(at_ns)) } else { None };
    }

    pub fn over(self, out: &mut Gathered) {
        out.read_up.extend(self.since.map(|since| (since, out.last_ns)).filter(|(from, to)| from < to));
    }
}

/// Of datagrams: when each had been read that was sent by then, from when and until when each was on its way. Of a read without one it is not known when what it
/// got was sent, so that may have been since the read before. `reads`: in order of time.
pub(super) fn read_up(mut ways: Vec<(i64, i64)>, reads: &[i64]) -> Vec<(i64, i64)> {
    let known: HashSet<i64> = ways.iter().map(|(_, read)| *read).collect();
    let before = std::iter::once(i64::MIN).chain(reads.iter().copied());
    ways.extend(before.zip(reads.iter().copied()).filter(|(_, read)| !known.contains(read)));
    ways.sort_unstable();
    let (mut out, mut to) = (Vec::new(), i64::MAX);
    for (sent, read) in ways {
        if sent > to {
            out.push((to, sent));
        }
        to = if to == i64::MAX { read } else { to.max(read) };
    }
    out
}

/// What the time of the peer's application is in which nothing lay unread.
pub(super) fn meaning(w: &Why) -> &'static str {
    match (w.asks, w.rest_ns * 2 > w.answering_ns) {
        (true, false) => "it had read all that was written, and had not yet begun to answer",
        (true, true) => {
            "it had begun to answer, all that it had written was read, and it had not yet written the rest"
        }
        (false, false) => {
            "it is the end that asks: it had read all that was written, and did not yet ask again"
        }
        (false, true) => {
            "it is the end that asks: all that it had written was read, and it had not yet written the rest"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at_ns: i64, offset: i64, size_bytes: i64) -> AppEventRow {
        AppEventRow { at_ns, offset: Some(offset), size_bytes, ..AppEventRow::default() }
    }

    fn ends(sent: i64, received: i64) -> (SocketRow, SocketRow) {
        let sender = SocketRow { received_seq: Some(received), ..SocketRow::default() };
        (sender, SocketRow { sent_seq: Some(sent), ..SocketRow::default() })
    }

    #[test]
    fn an_answer_in_pieces_is_read_up_between_them() {
        // the peer was seen from ten bytes on, the numbers wrap
        let (sender, peer) = ends(4, (1 << 32) - 6);
        let (mut a, mut out) = (Answers::new(&sender, Some(&peer)), Gathered::default());
        a.wrote(Crossing::ToTransport, &row(10, 0, 5), &mut out);
        a.wrote(Crossing::Send, &row(11, 0, 5), &mut out);
        a.read(12, 13);
        a.read(15, 15);
        a.wrote(Crossing::ToTransport, &row(40, 5, 5), &mut out);
        a.read(45, 20);
        out.last_ns = 60;
        a.over(&mut out);
        assert_eq!((out.answers, out.read_up), (vec![10, 40], vec![(15, 40), (45, 60)]));
    }

    #[test]
    fn datagrams_are_read_up_between_the_last_read_and_the_next_sent() {
        let ways = vec![(30, 35), (10, 15), (12, 13), (50, 52)];
        assert_eq!(read_up(ways.clone(), &[13, 15, 35, 52]), [(15, 30), (35, 50)]);
        // The read at 40 got something that was sent at any time since that at 35.
        assert_eq!(read_up(ways, &[13, 15, 35, 40, 52]), [(15, 30), (40, 50)]);
        assert_eq!(read_up(vec![], &[5]), []);
    }

    #[test]
    fn what_has_no_call_may_be_under_way() {
        let (sender, peer) = ends(0, 0);
        let (mut a, mut out) = (Answers::new(&sender, Some(&peer)), Gathered::default());
        a.wrote(Crossing::ToTransport, &row(10, 0, 5), &mut out);
        a.read(12, 5);
        // written by no call of the log
        a.read(20, 9);
        a.wrote(Crossing::ToTransport, &row(40, 9, 1), &mut out);
        a.over(&mut out);
        assert_eq!((out.answers, out.read_up), (vec![10, 40], vec![]));
    }

    #[test]
    fn a_call_whose_end_alone_is_known_began_when_the_device_got_its_first_bytes() {
        let (sender, peer) = ends(0, 0);
        let (mut a, mut out) = (Answers::new(&sender, Some(&peer)), Gathered::default());
        a.wrote(Crossing::ToDevice, &row(10, 0, 5), &mut out);
        a.read(12, 5);
        a.wrote(Crossing::Send, &row(13, 0, 5), &mut out);
        // sent again
        a.wrote(Crossing::ToDevice, &row(14, 0, 5), &mut out);
        // a call that waits for room: its other bytes are in the socket
        a.wrote(Crossing::ToDevice, &row(30, 5, 5), &mut out);
        a.over(&mut out);
        assert_eq!((out.answers, out.read_up), (vec![10, 30], vec![]));
    }
}
