//! What became of a connection that a program began while it was recorded: connected, refused, unreachable, timed out, closed before that.
//!
//! By TCP's states and the socket's end alone. A connect() for which the host has no route, or a wrong address, fails before TCP knows of a connection: it is
//! in no log.

use super::ending::{had_no_port, was_never_seen_to_send};
use super::names::errno;
use kpat_store::tables::SocketRow;

/// TCP_SYN_SENT, TCP_SYN_RECV (both ends began at once) of include/net/tcp_states.h.
const CONNECTS: [i64; 2] = [2, 3];
/// A datagram's header; TCP_CLOSE.
const NO_CONNECTION: [i64; 2] = [0, 7];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Connected,
    /// The kernel ended it with this error, which connect() or the socket's SO_ERROR tells the program.
    Failed(i32),
    /// Its process closed it before: by a time limit of its own, or as an ICMP message came that TCP took note of without an end (it came
    /// within the call).
    Closed,
    /// connect() found no port.
    NoPort,
    /// Nothing had answered when the log ended.
    Waiting,
}

/// A word each, as they are added up.
pub const OUTCOMES: [&str; 8] =
    ["connected", "refused", "unreachable", "timed-out", "failed", "closed", "no-port", "waiting"];

impl Outcome {
    /// One of [`OUTCOMES`].
    pub fn name(self) -> &'static str {
        OUTCOMES[self.place()]
    }

    fn place(self) -> usize {
        match self {
            Outcome::Connected => 0,
            Outcome::Failed(e) => match errno(e).as_str() {
                "ECONNREFUSED" => 1,
                "EHOSTUNREACH" | "ENETUNREACH" => 2,
                "ETIMEDOUT" => 3,
                _ => 4,
            },
            Outcome::Closed => 5,
            Outcome::NoPort => 6,
            Outcome::Waiting => 7,
        }
    }

    /// For a table; `None`: it was connected.
    pub fn short(self) -> Option<String> {
        match self {
            Outcome::Connected => None,
            Outcome::Failed(e) if self.place() == 4 => Some(errno(e)),
            Outcome::Waiting => Some("no answer yet".to_owned()),
            other => Some(other.name().replace('-', " ")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub outcome: Outcome,
    /// From when it began to connect until then.
    pub took_ns: i64,
}

/// What of a socket is seen, in whatever order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opens {
    syn_ns: Option<i64>,
    connected_ns: Option<i64>,
    last_ns: Option<i64>,
}

fn least(a: &mut Option<i64>, b: i64) {
    *a = Some(a.map_or(b, |a| a.min(b)));
}

impl Opens {
    pub fn state(&mut self, at_ns: i64, state: i64) {
        if CONNECTS.contains(&state) {
            least(&mut self.syn_ns, at_ns);
        } else if !NO_CONNECTION.contains(&state) {
            least(&mut self.connected_ns, at_ns);
        }
        self.crossing(at_ns);
    }

    pub fn crossing(&mut self, at_ns: i64) {
        self.last_ns = self.last_ns.max(Some(at_ns));
    }

    /// `complete`: the log has TCP's states, and lost none. `None`: it was connected before, or by the other end, or that is not known.
    pub fn finish(self, s: &SocketRow, complete: bool) -> Option<Opening> {
        let taking = |outcome, until: i64| {
            let from = self.syn_ns.map_or(s.first_ns, |at| at.min(s.first_ns));
            Some(Opening { outcome, took_ns: until.saturating_sub(from).max(0) })
        };
        if had_no_port(s) {
            return taking(Outcome::NoPort, s.last_ns);
        }
        let refused = s.error.filter(|e| Outcome::Failed(*e).name() == "refused");
        match (self.syn_ns, self.connected_ns) {
            (Some(_), Some(at)) => taking(Outcome::Connected, at),
            // Of a connection that was made the error would be another.
            (None, None) if refused.is_some() => taking(Outcome::Failed(refused?), s.last_ns),
            // A SYN that waits for its neighbour's address is not seen to leave.
            (None, None) if !complete || self.last_ns.is_some() || !was_never_seen_to_send(s) => None,
            (None, Some(_)) => None,
            (_, None) => match s.error {
                Some(error) => taking(Outcome::Failed(error), s.last_ns),
                // The change of state that ends it is behind all else that is seen of it.
                None if s.last_ns > self.last_ns.unwrap_or(s.first_ns) => taking(Outcome::Closed, s.last_ns),
                None => taking(Outcome::Waiting, s.last_ns),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(error: Option<i32>, last_ns: i64) -> SocketRow {
        SocketRow {
            proto: 6,
            pid: Some(1),
            local_port: 40_000,
            peer_port: 80,
            first_ns: 100,
            last_ns,
            error,
            ..SocketRow::default()
        }
    }

    fn of(states: &[(i64, i64)], s: &SocketRow) -> Option<(String, i64)> {
        let mut opens = Opens::default();
        states.iter().for_each(|(at, state)| opens.state(*at, *state));
        opens.finish(s, true).map(|o| (o.outcome.name().to_owned(), o.took_ns))
    }

    #[test]
    fn what_became_of_an_attempt() {
        let said = |name: &str, ns| Some((name.to_owned(), ns));
        let syn = (110, 2);
        assert_eq!(of(&[syn, (150, 1)], &row(None, 900)), said("connected", 50));
        assert_eq!(of(&[(150, 1), syn], &row(Some(104), 900)), said("connected", 50), "reset later");
        assert_eq!(of(&[syn], &row(Some(111), 130)), said("refused", 30));
        assert_eq!(of(&[syn, (130, 7)], &row(Some(111), 130)), said("refused", 30), "its reset came");
        assert_eq!(of(&[syn, (3000, 2)], &row(Some(113), 3100)), said("unreachable", 3000));
        assert_eq!(of(&[syn, (3000, 2)], &row(Some(110), 9000)), said("timed-out", 8900));
        assert_eq!(of(&[syn], &row(Some(13), 130)), said("failed", 30));
        assert_eq!(of(&[syn, (3000, 2)], &row(None, 3500)), said("closed", 3400));
        assert_eq!(of(&[syn, (3000, 2)], &row(None, 3000)), said("waiting", 2900));
        // Its SYN waits for a neighbour.
        assert_eq!(of(&[], &row(None, 100)), said("waiting", 0));
        assert_eq!(of(&[], &row(None, 700)), said("closed", 600));
        assert_eq!(of(&[], &row(Some(111), 700)), said("refused", 600));
        assert_eq!(of(&[], &SocketRow { local_port: 0, ..row(None, 100) }), said("waiting", 0));
        assert_eq!(of(&[], &SocketRow { local_port: 0, ..row(None, 700) }), said("no-port", 600));
        // It was there before, or taken from a listener.
        assert_eq!(of(&[(150, 1)], &row(None, 900)), None);
        assert_eq!(of(&[(150, 4), (160, 5)], &row(Some(104), 900)), None);
        for other in [
            SocketRow { pid: None, ..row(None, 900) },
            SocketRow { peer_port: 0, ..row(None, 900) },
            SocketRow { proto: 17, ..row(None, 900) },
            SocketRow { sent_seq: Some(5), ..row(None, 900) },
            SocketRow { mptcp_socket: Some(5), ..row(None, 900) },
        ] {
            assert_eq!(of(&[], &other), None, "{other:?}");
        }
        let mut wrote = Opens::default();
        wrote.crossing(200);
        assert_eq!(wrote.finish(&row(None, 900), true), None);
        assert_eq!(Opens::default().finish(&row(None, 900), false), None, "states are not in the log");
    }

    #[test]
    fn what_a_table_says_of_it() {
        let short = |o: Outcome| o.short().unwrap_or_default();
        assert_eq!(short(Outcome::Connected), "");
        assert_eq!(short(Outcome::Failed(110)), "timed out");
        assert_eq!(short(Outcome::Failed(13)), "EACCES");
        assert_eq!((short(Outcome::Closed), short(Outcome::NoPort)), ("closed".into(), "no port".into()));
    }
}
