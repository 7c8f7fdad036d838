//! What held a TCP sender back: its causes, and how much of the time each has.

use super::Spread;
use super::ending::Ending;
use super::follow::{Call, Span};
use kpat_store::tables::TcpStateRow;

/// TCP_CA_Recovery of include/uapi/linux/tcp.h; behind it comes Loss.
const RECOVERY: i32 = 3;
const LOSS: i32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Everything that it gave has left, and it is not refused: it has nothing to send.
    Application,
    /// The connection is not made: nobody has answered its SYN.
    Handshake,
    CongestionWindow,
    ReceiveWindow,
    /// The receive window, while data lay unread in the other end's socket all the time.
    Reader,
    /// Everything in it has left and waits for its acknowledgement; the application would give more.
    SendBuffer,
    /// Less than a full segment waits for more, as the application wants it (`MSG_MORE`, `TCP_CORK`).
    Cork,
    /// Less than a full segment waits until the last such one that was sent before is acknowledged.
    Nagle,
    /// TCP waits for a timer to send again what was lost.
    Retransmission,
    /// None of these, and TCP paces by its own timer.
    Pacing,
    /// None of these, and it does not: it sends as quickly as the device takes it, with what the device's queue makes it wait (`fq`
    /// paces there).
    Device,
    /// One of the last two: the log does not say who paces.
    PacingOrDevice,
}

impl Held {
    /// The name of its nanoseconds in JSON.
    pub fn field(self) -> String {
        match self {
            Held::Nagle => "nagle_ns".to_owned(),
            _ => self.name().replace(' ', "_") + "_ns",
        }
    }

    pub const ALL: [Held; 12] = [
        Held::Application,
        Held::Handshake,
        Held::CongestionWindow,
        Held::ReceiveWindow,
        Held::Reader,
        Held::SendBuffer,
        Held::Cork,
        Held::Nagle,
        Held::Retransmission,
        Held::Pacing,
        Held::Device,
        Held::PacingOrDevice,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Held::Application => "application",
            Held::Handshake => "handshake",
            Held::CongestionWindow => "congestion window",
            Held::ReceiveWindow => "receive window",
            Held::Reader => "reading application",
            Held::SendBuffer => "send buffer",
            Held::Cork => "cork",
            Held::Nagle => "Nagle's rule",
            Held::Retransmission => "retransmission",
            Held::Pacing => "pacing",
            Held::Device => "device",
            Held::PacingOrDevice => "pacing or device",
        }
    }
}

/// Is it sending lost segments again?
pub(super) fn repairs(state: &TcpStateRow) -> bool {
    state.ca_state >= RECOVERY
}

/// Has a timer sent again what was first of all that was lost, and nothing been acknowledged since? The timer leaves a window of one segment
/// (`tcp_enter_loss`), and what is acknowledged opens it.
pub(super) fn timed_out(state: &TcpStateRow) -> bool {
    state.ca_state == LOSS && state.snd_cwnd <= 1
}

/// What held a TCP sender back, of the time over which its state is known.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub known_ns: i64,
    held_ns: [i64; Held::ALL.len()],
    /// Of it, while the application was refused or in a call that sends.
    wanting_ns: [i64; Held::ALL.len()],
    /// From a call that was refused, or took a part, to the next that was taken, or until all was acknowledged.
    pub refused_ns: i64,
    /// In calls that send.
    pub in_call_ns: i64,
    /// In recovery or loss; beside the others, not one of them.
    pub recovery_ns: i64,
    pub srtt_ns: Spread,
    pub snd_cwnd: Spread,
    /// Segments sent again, as TCP counts them.
    pub total_retrans: i64,
    pub ending: Ending,
}

impl Limits {
    pub fn held_ns(&self, by: Held) -> i64 {
        self.held_ns[by as usize]
    }

    /// Of this, how long the application would have sent more.
    pub fn wanting_ns(&self, by: Held) -> i64 {
        self.wanting_ns[by as usize]
    }

    /// All that is known of what held it back: who paces is either known or not; whether the reader is slow, and waits for a
    /// timer and for the connection, only where it was so.
    pub fn held(&self) -> impl Iterator<Item = (Held, i64)> + '_ {
        let unknown = self.held_ns(Held::PacingOrDevice) > 0;
        Held::ALL.into_iter().map(|h| (h, self.held_ns(h))).filter(move |(h, ns)| match h {
            Held::Pacing | Held::Device => *ns > 0 || !unknown,
            Held::PacingOrDevice => unknown,
            Held::Reader | Held::Cork | Held::Nagle | Held::Retransmission | Held::Handshake => *ns > 0,
            _ => true,
        })
    }

    /// What held it back longest, and for which share of the known time.
    pub fn most(&self) -> Option<(Held, f64)> {
        let most = Held::ALL.into_iter().max_by_key(|h| self.held_ns(*h)).filter(|h| self.held_ns(*h) > 0)?;
        Some((most, self.held_ns(most) as f64 / self.known_ns.max(1) as f64))
    }

    pub(super) fn state(&mut self, now: &TcpStateRow) {
        self.total_retrans = now.total_retrans;
        self.ending.observe(now);
        if now.srtt_ns > 0 {
            self.srtt_ns.add(now.srtt_ns, 1);
        }
        self.snd_cwnd.add(now.snd_cwnd, 1);
    }

    pub(super) fn span(&mut self, s: &Span) {
        let ns = s.to_ns - s.from_ns;
        self.known_ns += ns;
        self.held_ns[s.held as usize] += ns;
        self.recovery_ns += if s.repairs { ns } else { 0 };
        match s.call {
            Call::None => return,
            Call::Refused => self.refused_ns += ns,
            Call::Inside => self.in_call_ns += ns,
        }
        self.wanting_ns[s.held as usize] += ns;
    }
}
