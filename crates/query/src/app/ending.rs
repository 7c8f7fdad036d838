//! How a connection ended, as TCP's states and the segments at hand show it: which end closed it first, which one reset it.

use super::connections::is_received;
use kpat_model::Crossing;
use kpat_store::tables::{SocketRow, TcpStateRow};

/// Of the flags (RFC 9293, section 3.1).
const RST: i32 = 4;
/// TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_TIME_WAIT of include/net/tcp_states.h: this end has closed it, and the other one not before.
const CLOSED_HERE: [i32; 3] = [4, 5, 6];
/// TCP_CLOSE_WAIT, TCP_LAST_ACK: the other end has.
const CLOSED_THERE: [i32; 2] = [8, 9];
/// Not known, TCP_CLOSE: its numbers may have been cleared.
const OVER: [i32; 2] = [0, 7];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    This,
    Other,
}

impl Which {
    pub fn name(self) -> &'static str {
        match self {
            Which::This => "this",
            Which::Other => "other",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Which::This => "this end",
            Which::Other => "the other end",
        }
    }
}

/// Of one socket. All absent: it did not end while it was recorded, or that was not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The end whose FIN came first.
    pub closed_first: Option<Which>,
    /// The end that reset it.
    pub reset_by: Option<Which>,
    /// What this end had not read when it reset it, which is why it did (RFC 1122, section 4.2.2.13).
    pub unread_bytes: i64,
    /// The number behind all that was written, where all had been acknowledged when it was last seen: what it sent then were keepalives.
    pub all_acked: Option<i64>,
}

const TCP: i32 = 6;
/// connect() looks for a port for not nearly so long, and a SYN that nobody answers waits for longer.
const LOOKS_NS: i64 = 20_000_000;

/// The words for a socket that [`had_no_port`].
pub const NO_PORT: &str = "EADDRNOTAVAIL: no port of its own was free for it, so connect() sent nothing";

/// Was no port free for it? connect() has the socket in SYN_SENT when it looks for one, and closes it again if there is none (`tcp_v4_connect()`
/// of net/ipv4/tcp_ipv4.c); any other that connects has a port with its SYN.
pub fn had_no_port(s: &SocketRow) -> bool {
    let took_ns = s.last_ns.saturating_sub(s.first_ns);
    let no_port = s.local_port == 0 && s.error.is_none();
    no_port && was_never_seen_to_send(s) && (1..LOOKS_NS).contains(&took_ns)
}

/// A socket of TCP that a process connects, or has connected, and of which no segment is in the log.
pub(super) fn was_never_seen_to_send(s: &SocketRow) -> bool {
    let connects =
        s.proto == TCP && (s.pid.is_some() || s.kernels != 0) && s.peer_port != 0 && s.mptcp_socket.is_none();
    connects && s.sent_seq.is_none()
}

impl Ending {
    /// States in order of time.
    pub fn observe(&mut self, s: &TcpStateRow) {
        let closed = match s.state {
            state if CLOSED_HERE.contains(&state) => Some(Which::This),
            state if CLOSED_THERE.contains(&state) => Some(Which::Other),
            _ => None,
        };
        self.closed_first = self.closed_first.or(closed);
        if !OVER.contains(&s.state) {
            self.all_acked = Some(s.write_seq).filter(|end| *end == s.snd_una);
        }
        if self.reset_by.is_some() || s.tcp_flags.is_none_or(|f| f & RST == 0) {
            return;
        }
        let what = u8::try_from(s.crossing).ok().and_then(Crossing::from_u8);
        self.reset_by = what.map(|what| if is_received(what) { Which::Other } else { Which::This });
        if self.reset_by == Some(Which::This) {
            // The end of what came has a number, too.
            let end = i32::from(self.closed_first == Some(Which::Other));
            let unread = (s.rcv_nxt as u32).wrapping_sub(s.copied_seq as u32) as i32;
            self.unread_bytes = i64::from((unread - end).max(0));
        }
    }

    /// `None`: nothing is known of it.
    pub fn words(&self) -> Option<String> {
        let reset = self.reset_by.map(|who| match self.unread_bytes {
            0 => format!("{} reset it", who.words()),
            n => format!("{} reset it, as it closed it with {n} bytes unread", who.words()),
        });
        let closed = self.closed_first.map(|who| format!("{} closed it first", who.words()));
        match (closed, reset) {
            (Some(closed), Some(reset)) => Some(format!("{closed}, then {reset}")),
            (closed, reset) => closed.or(reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States, each with its crossing, flags, `copied_seq` and `rcv_nxt`.
    fn ending(states: &[(i32, Crossing, i32, i64, i64)]) -> (Ending, Option<String>) {
        let mut out = Ending::default();
        for &(state, what, flags, copied_seq, rcv_nxt) in states {
            let tcp_flags = Some(flags).filter(|f| *f != 0);
            let crossing = what as i32;
            out.observe(&TcpStateRow {
                state,
                crossing,
                tcp_flags,
                copied_seq,
                rcv_nxt,
                write_seq: 1,
                ..Default::default()
            });
        }
        let words = out.words();
        (out, words)
    }

    #[test]
    fn what_connects_without_a_port_had_none() {
        let given_up = SocketRow {
            proto: TCP,
            pid: Some(1),
            peer_port: 80,
            first_ns: 1000,
            last_ns: 3500,
            ..SocketRow::default()
        };
        assert!(had_no_port(&given_up));
        for other in [
            SocketRow { local_port: 40_000, ..given_up.clone() },
            SocketRow { last_ns: 1000, ..given_up.clone() },
            SocketRow { last_ns: 3_000_000_000, ..given_up.clone() },
            SocketRow { sent_seq: Some(1), ..given_up.clone() },
            SocketRow { peer_port: 0, ..given_up.clone() },
            SocketRow { proto: 17, ..given_up.clone() },
            SocketRow { pid: None, ..given_up },
        ] {
            assert!(!had_no_port(&other), "{other:?}");
        }
    }

    #[test]
    fn what_was_unacknowledged_when_it_was_last_seen() {
        let mut e = Ending::default();
        let mut after = |state, snd_una, write_seq| {
            e.observe(&TcpStateRow { state, snd_una, write_seq, ..Default::default() });
            e.all_acked
        };
        assert_eq!(after(2, 5, 6), None);
        assert_eq!(after(1, 9, 9), Some(9));
        assert_eq!(after(1, 9, 12), None);
        assert_eq!((after(1, 12, 12), after(7, 0, 0)), (Some(12), Some(12)));
    }

    #[test]
    fn who_closed_it_first_and_who_reset_it() {
        use Crossing::{FromNetwork, ToDevice};
        let open = (1, ToDevice, 24, 5, 5);
        assert_eq!(ending(&[open]), (Ending::default(), None));
        let words = |states: &[_]| ending(states).1.unwrap_or_default();
        assert_eq!(
            words(&[open, (4, ToDevice, 17, 5, 5), (5, ToDevice, 0, 5, 6)]),
            "this end closed it first"
        );
        assert_eq!(
            words(&[open, (8, ToDevice, 16, 5, 6), (9, ToDevice, 17, 6, 6)]),
            "the other end closed it first"
        );
        assert_eq!(words(&[open, (1, FromNetwork, 20, 5, 5)]), "the other end reset it");
        assert_eq!(words(&[open, (7, ToDevice, 20, 5, 5)]), "this end reset it");
        let unread = "this end reset it, as it closed it with 10 bytes unread";
        assert_eq!(words(&[open, (7, ToDevice, 20, u32::MAX.into(), 9)]), unread);
        // The end that came is no byte.
        let both = "the other end closed it first, then this end reset it";
        assert_eq!(words(&[open, (8, ToDevice, 16, 5, 6), (7, ToDevice, 20, 5, 6)]), both);
    }
}
