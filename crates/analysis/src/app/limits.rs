//! What held a TCP sender back: one rule, for the shares over a socket's life and for those of each bin of a series.

use super::Spread;
use kpat_store::tables::TcpStateRow;

/// TCP's state is said again with the first segment or acknowledgement after a second: a longer silence is of the application.
const HEARTBEAT_NS: i64 = 1_100_000_000;

/// `enum tcp_chrono` of include/linux/tcp.h.
const RWND_LIMITED: i32 = 2;
const SNDBUF_LIMITED: i32 = 3;
/// SK_PACING_NEEDED of include/net/sock.h: TCP waits by its own timer.
const BY_TIMER: i32 = 1;
/// TCP_CA_Recovery of include/uapi/linux/tcp.h; behind it comes Loss.
const RECOVERY: i32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Nothing to send.
    Application,
    CongestionWindow,
    ReceiveWindow,
    SendBuffer,
    /// None of these, and TCP paces by its own timer.
    Pacing,
    /// None of these, and it does not: it sends as quickly as the device takes it, with what the device's queue makes it wait (`fq`
    /// paces there).
    Device,
    /// One of the last two: the log does not say who paces.
    PacingOrDevice,
}

impl Held {
    pub const ALL: [Held; 7] = [
        Held::Application,
        Held::CongestionWindow,
        Held::ReceiveWindow,
        Held::SendBuffer,
        Held::Pacing,
        Held::Device,
        Held::PacingOrDevice,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Held::Application => "application",
            Held::CongestionWindow => "congestion window",
            Held::ReceiveWindow => "receive window",
            Held::SendBuffer => "send buffer",
            Held::Pacing => "pacing",
            Held::Device => "device",
            Held::PacingOrDevice => "pacing or device",
        }
    }

    /// By a state that was in force for so long, until the next was told.
    pub fn by(state: &TcpStateRow, for_ns: i64) -> Held {
        match state.busy {
            _ if for_ns > HEARTBEAT_NS || state.app_limited != 0 => Held::Application,
            RWND_LIMITED => Held::ReceiveWindow,
            SNDBUF_LIMITED => Held::SendBuffer,
            _ if state.cwnd_limited != 0 => Held::CongestionWindow,
            _ if !waits(state) => Held::Application,
            _ => match state.pacing {
                None => Held::PacingOrDevice,
                Some(BY_TIMER) => Held::Pacing,
                Some(_) => Held::Device,
            },
        }
    }
}

/// Is there anything to send, be it the segment at hand, or to be sent again?
fn waits(state: &TcpStateRow) -> bool {
    state.write_seq != state.snd_nxt || state.lost_out > 0
}

/// Is it sending lost segments again?
pub(super) fn repairs(state: &TcpStateRow) -> bool {
    state.ca_state >= RECOVERY
}

/// What held a TCP sender back, of the time over which its state is known.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub known_ns: i64,
    held_ns: [i64; Held::ALL.len()],
    /// In recovery or loss; beside the others, not one of them.
    pub recovery_ns: i64,
    pub srtt_ns: Spread,
    pub snd_cwnd: Spread,
    /// Segments sent again, as TCP counts them.
    pub total_retrans: i64,
}

impl Limits {
    pub fn held_ns(&self, by: Held) -> i64 {
        self.held_ns[by as usize]
    }

    /// All that may be said of what held it back: who paces is either known or not.
    pub fn held(&self) -> impl Iterator<Item = (Held, i64)> + '_ {
        let unknown = self.held_ns(Held::PacingOrDevice) > 0;
        Held::ALL.into_iter().map(|h| (h, self.held_ns(h))).filter(move |(h, ns)| match h {
            Held::Pacing | Held::Device => *ns > 0 || !unknown,
            Held::PacingOrDevice => unknown,
            _ => true,
        })
    }

    /// What held it back longest, and for which share of the known time.
    pub fn most(&self) -> Option<(Held, f64)> {
        let held = Held::ALL.into_iter().filter(|h| !matches!(h, Held::Device | Held::PacingOrDevice));
        let most = held.max_by_key(|h| self.held_ns(*h)).filter(|h| self.held_ns(*h) > 0)?;
        Some((most, self.held_ns(most) as f64 / self.known_ns.max(1) as f64))
    }

    pub(super) fn add(&mut self, before: Option<&TcpStateRow>, now: &TcpStateRow) {
        self.total_retrans = now.total_retrans;
        if now.srtt_ns > 0 {
            self.srtt_ns.add(now.srtt_ns, 1);
        }
        self.snd_cwnd.add(now.snd_cwnd, 1);
        let Some(b) = before else { return };
        let gone = (now.at_ns - b.at_ns).max(0);
        self.known_ns += gone;
        self.held_ns[Held::by(b, gone) as usize] += gone;
        if repairs(b) {
            self.recovery_ns += gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_is_by_who_paces() {
        let s = TcpStateRow { busy: 1, write_seq: 3000, snd_nxt: 1500, ..TcpStateRow::default() };
        let paced = |pacing| TcpStateRow { pacing, ..s.clone() };
        let by = |s: TcpStateRow| Held::by(&s, 1_000_000);
        assert_eq!(by(paced(None)), Held::PacingOrDevice);
        assert_eq!([0, 1, 2].map(|p| by(paced(Some(p)))), [Held::Device, Held::Pacing, Held::Device]);
        // Whoever paces, others come first; and what is not there does not wait.
        assert_eq!(by(TcpStateRow { cwnd_limited: 1, ..paced(Some(1)) }), Held::CongestionWindow);
        assert_eq!(by(TcpStateRow { busy: RWND_LIMITED, ..paced(Some(1)) }), Held::ReceiveWindow);
        assert_eq!(by(TcpStateRow { app_limited: 9, ..paced(Some(1)) }), Held::Application);
        let all_sent = TcpStateRow { snd_nxt: 3000, ..paced(Some(1)) };
        assert_eq!(by(all_sent.clone()), Held::Application);
        assert_eq!(by(TcpStateRow { lost_out: 1, ..all_sent }), Held::Pacing);
        // Said again a little after a second; longer is a silence.
        assert_eq!(Held::by(&paced(Some(1)), 1_005_000_000), Held::Pacing);
        assert_eq!(Held::by(&paced(Some(1)), 1_500_000_000), Held::Application);
    }

    #[test]
    fn nothing_is_said_of_pacing_where_nobody_knows() {
        let names = |pacing| {
            let at = |at_ns| TcpStateRow { at_ns, busy: 1, write_seq: 9, pacing, ..TcpStateRow::default() };
            let mut l = Limits::default();
            l.add(None, &at(0));
            l.add(Some(&at(0)), &at(1000));
            let known = |h: &(Held, i64)| h.0 >= Held::Pacing;
            l.held().filter(known).map(|(h, ns)| (h.name(), ns)).collect::<Vec<_>>()
        };
        assert_eq!(names(None), [("pacing or device", 1000)]);
        assert_eq!(names(Some(1)), [("pacing", 1000), ("device", 0)]);
    }
}
