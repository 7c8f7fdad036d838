//! What held a TCP sender back: one rule, for the shares over a socket's life and for those of each bin of a series.

use super::Spread;
use kpat_store::tables::TcpStateRow;

/// TCP's state is said at least this often while the socket is in use: a longer silence is of the application.
const HEARTBEAT_NS: i64 = 1_000_000_000;

/// `enum tcp_chrono` of include/linux/tcp.h.
const RWND_LIMITED: i32 = 2;
const SNDBUF_LIMITED: i32 = 3;
/// TCP_CA_Recovery of include/uapi/linux/tcp.h; behind it comes Loss.
const RECOVERY: i32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Nothing to send.
    Application,
    CongestionWindow,
    ReceiveWindow,
    SendBuffer,
    /// None of these: it sends, as quickly as pacing and the device let it.
    Nothing,
}

impl Held {
    pub const ALL: [Held; 5] =
        [Held::Application, Held::CongestionWindow, Held::ReceiveWindow, Held::SendBuffer, Held::Nothing];

    pub fn name(self) -> &'static str {
        match self {
            Held::Application => "application",
            Held::CongestionWindow => "congestion window",
            Held::ReceiveWindow => "receive window",
            Held::SendBuffer => "send buffer",
            Held::Nothing => "pacing or device",
        }
    }

    /// By a state that was in force for so long, until the next was told.
    pub fn by(state: &TcpStateRow, for_ns: i64) -> Held {
        match state.busy {
            _ if for_ns > HEARTBEAT_NS || state.app_limited != 0 => Held::Application,
            RWND_LIMITED => Held::ReceiveWindow,
            SNDBUF_LIMITED => Held::SendBuffer,
            _ if state.cwnd_limited != 0 => Held::CongestionWindow,
            _ => Held::Nothing,
        }
    }
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

    /// What held it back longest, and for which share of the known time.
    pub fn most(&self) -> Option<(Held, f64)> {
        let held = Held::ALL.into_iter().filter(|h| *h != Held::Nothing);
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
