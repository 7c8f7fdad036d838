//! How long a socket of datagrams that asks waited for answers, as DNS does: from the first datagram that it sent since it last read one (from the call's
//! beginning, or where that is not logged, from when the datagram met its device's queue) until the next that came after that was read. Which question an answer is for is in no log: what is asked again, or several at once, is one wait, until the first answer.
//!
//! Only of connected sockets, of which all is to and from one other end, and which sent before they read anything: else what is read
//! may be a question itself.

use super::{Spread, given_on};
use kpat_model::Crossing;
use kpat_store::tables::{AppEventRow, SocketRow};

/// UDP, UDP-Lite.
const DATAGRAMS: [i32; 2] = [17, 136];

/// What a connected socket of datagrams asked, and when it had answers.
#[derive(Clone, Debug, Default)]
pub struct Questions {
    /// Datagrams that it sent, and read.
    pub sent: u64,
    pub read: u64,
    /// Of each wait that ended with an answer.
    pub wait_ns: Spread,
    /// Of these, until the driver had the first question; until the first datagram came after that; until it was read. Only waits of which the log has all.
    pub leaving_ns: Spread,
    pub away_ns: Spread,
    pub reading_ns: Spread,
    /// Datagrams that it sent in the longest of these waits: with more than one it may be a question to which no answer came, and a later one.
    pub longest_asked: u64,
    /// When it sent the first to which the log has no answer.
    pub open_since_ns: Option<i64>,
    wait: Option<Wait>,
    reads_first: bool,
    /// This kernel shows what happens within calls, and when datagrams come.
    sees_begin: bool,
    sees_coming: bool,
    begun_ns: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    from_ns: i64,
    driver_ns: Option<i64>,
    came_ns: Option<i64>,
    asked: u64,
}

impl Questions {
    /// Each crossing of the socket, in order of time.
    pub(super) fn pass(&mut self, what: Crossing, e: &AppEventRow) {
        match what {
            Crossing::Ask => self.begun_ns = Some(e.at_ns),
            Crossing::Send if e.size_bytes < 0 => self.begun_ns = None,
            Crossing::ToTransport | Crossing::ToNetwork | Crossing::ToDevice
                if e.size_bytes >= 0 && !given_on(e) =>
            {
                self.sees_begin = true;
                let from_ns = self.begun_ns.take().unwrap_or(e.at_ns);
                self.asks(from_ns);
            }
            Crossing::Send => {
                self.sent += 1;
                let from_ns = self.begun_ns.take().unwrap_or(e.at_ns);
                // Logged when the call is over: by then the answer may be here.
                if !self.sees_begin {
                    self.asks(from_ns);
                }
                if let Some(w) = &mut self.wait {
                    w.asked += 1;
                }
            }
            Crossing::ToDriver => {
                if let Some(w) = &mut self.wait {
                    w.driver_ns = w.driver_ns.or(Some(e.at_ns));
                }
            }
            Crossing::FromDevice | Crossing::ToSocket if e.size_bytes >= 0 => {
                self.sees_coming = true;
                if let Some(w) = &mut self.wait {
                    w.came_ns = w.came_ns.or(Some(e.at_ns));
                }
            }
            Crossing::Recv if e.size_bytes >= 0 => self.reads(e.at_ns),
            _ => {}
        }
    }

    fn asks(&mut self, from_ns: i64) {
        let wait = Wait { from_ns, driver_ns: None, came_ns: None, asked: 0 };
        self.wait.get_or_insert(wait);
    }

    fn reads(&mut self, at_ns: i64) {
        self.reads_first |= self.sent == 0 && self.wait.is_none();
        self.read += 1;
        // What came before the question is no answer to it.
        let Some(w) = self.wait.filter(|w| w.came_ns.is_some() || !self.sees_coming) else { return };
        self.wait = None;
        if self.wait_ns.count == 0 || at_ns - w.from_ns > self.wait_ns.max {
            self.longest_asked = w.asked;
        }
        self.wait_ns.add(at_ns - w.from_ns, 1);
        if let (Some(driver), Some(came)) = (w.driver_ns, w.came_ns.filter(|c| Some(*c) >= w.driver_ns)) {
            self.leaving_ns.add(driver - w.from_ns, 1);
            self.away_ns.add(came - driver, 1);
            self.reading_ns.add(at_ns - came, 1);
        }
    }

    /// `None`: it does not ask, or not one other end alone.
    pub(super) fn finish(mut self, s: &SocketRow) -> Option<Questions> {
        let asks = DATAGRAMS.contains(&s.proto) && s.peer_port != 0 && self.sent > 0 && !self.reads_first;
        self.open_since_ns = self.wait.map(|w| w.from_ns);
        asks.then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peer_port: i32, events: &[(Crossing, i64)]) -> Option<Questions> {
        let mut q = Questions::default();
        for (what, at_ns) in events {
            q.pass(
                *what,
                &AppEventRow { at_ns: *at_ns, size_bytes: 30, segments: 1, ..AppEventRow::default() },
            );
        }
        q.finish(&SocketRow { proto: 17, peer_port, ..SocketRow::default() })
    }

    #[test]
    fn waits_are_from_the_first_question_to_the_first_answer() {
        use Crossing::*;
        let one =
            [(ToTransport, 10), (ToDriver, 12), (Send, 13), (FromDevice, 50), (ToSocket, 55), (Recv, 60)];
        let q = of(53, &one).unwrap();
        assert_eq!((q.sent, q.read, q.wait_ns.sum, q.wait_ns.count, q.open_since_ns), (1, 1, 50, 1, None));
        assert_eq!((q.leaving_ns.sum, q.away_ns.sum, q.reading_ns.sum), (2, 38, 10));
        // Two at once, and one that is asked again: the second answer ends no other wait.
        let two =
            [(Send, 10), (Send, 11), (FromDevice, 20), (FromDevice, 21), (Recv, 30), (Recv, 31), (Send, 40)];
        let q = of(53, &two).unwrap();
        assert_eq!(
            (q.sent, q.read, q.wait_ns.count, q.wait_ns.sum, q.open_since_ns),
            (3, 2, 1, 20, Some(40))
        );
        assert_eq!(q.longest_asked, 2);
        assert_eq!(q.away_ns.count, 0, "when it left is not known");
        // A late answer to the question before lay in the socket.
        let late = [
            (Send, 10),
            (FromDevice, 15),
            (FromDevice, 16),
            (Recv, 17),
            (Send, 20),
            (Recv, 21),
            (FromDevice, 40),
            (Recv, 45),
        ];
        let q = of(53, &late).unwrap();
        assert_eq!((q.wait_ns.count, q.wait_ns.sum, q.wait_ns.max), (2, 7 + 25, 25));
        // By tracepoints the call is known at its end alone.
        let within =
            [(ToDevice, 10), (ToDriver, 11), (FromDevice, 14), (ToSocket, 15), (Send, 16), (Recv, 20)];
        let q = of(53, &within).unwrap();
        assert_eq!(
            (q.sent, q.wait_ns.count, q.wait_ns.sum, q.away_ns.sum, q.open_since_ns),
            (1, 1, 10, 3, None)
        );
        assert!(of(0, &one).is_none(), "it may speak to several");
        assert!(of(53, &[(FromDevice, 1), (Recv, 2), (Send, 3)]).is_none(), "it answers");
    }
}
