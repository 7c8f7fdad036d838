//! Data that went with the SYN (TCP Fast Open, RFC 7413): taken with it, or not, and sent again when the connection was made.
//!
//! The other end has no socket yet when they come: its first state, as it answers the SYN, has them. What a listener does not take (it does not know the option, or
//! the cookie) is no loss: the sender's TCP sends it again with the first acknowledgement (`tcp_rcv_fastopen_synack()` of net/ipv4/tcp_input.c).

use super::gather::Write;
use crate::app::connections::{STAGES, is_received};
use kpat_model::Crossing;
use kpat_store::tables::TcpStateRow;

/// What an answer to the SYN lets TCP send again leaves so soon behind it.
const AT_ONCE_NS: i64 = 200_000;

/// Why it was longer on its way than a handshake.
pub(super) const REFUSED: &str = "what went with its SYN (TCP Fast Open) was not taken, and went again then";

#[derive(Debug, Default)]
pub(super) struct Fast {
    /// The sender was seen to be connected.
    pub connected_ns: Option<i64>,
    /// When the other end had so many bytes, with the SYN.
    pub taken: Option<(i64, i64)>,
    /// Bytes that were sent again with the first acknowledgement begin here.
    refused_from: Option<i64>,
    /// Those that were lost then, too, begin here.
    lost_from: Option<i64>,
    first_again_ns: Option<i64>,
}

impl Fast {
    /// A segment is sent again.
    pub fn again(&mut self, at_ns: i64, offset: Option<i64>) {
        self.first_again_ns = self.first_again_ns.or(Some(at_ns));
        let Some((connected_ns, offset)) = self.connected_ns.zip(offset) else { return };
        let of = if at_ns - connected_ns < AT_ONCE_NS { &mut self.refused_from } else { &mut self.lost_from };
        *of = Some(of.map_or(offset, |from| from.min(offset)));
    }

    /// The other end answers the SYN. `number`: of the first byte.
    pub fn answers(&mut self, s: &TcpStateRow, number: Option<i64>) {
        let taken = number.map_or(0, |from| (s.rcv_nxt as u32).wrapping_sub(from as u32) as i32);
        self.taken = self.taken.or((taken > 0).then_some((s.at_ns, taken.into())));
    }

    /// What the other end took with the SYN can be read then.
    pub fn place(&self, w: &mut Write) {
        let Some((at_ns, _)) = self.taken.filter(|(_, bytes)| w.last() < *bytes) else { return };
        let came =
            STAGES.iter().zip(w.at).any(|(s, at)| is_received(*s) && *s != Crossing::Recv && at.is_some());
        let socket = STAGES.iter().position(|s| *s == Crossing::ToSocket);
        if let Some(i) = socket.filter(|_| !came) {
            w.at[i] = Some(at_ns);
            w.again &= self.first_again_ns.is_some_and(|again| again < at_ns);
        }
    }

    /// When the connection was made, if the last byte of this write went with the SYN and was not taken, but was the next time.
    pub fn refused_ns(&self, w: &Write) -> Option<i64> {
        let taken = self.taken.is_some_and(|(_, bytes)| w.last() < bytes);
        let again = w.again && !taken && self.refused_from.is_some_and(|from| from <= w.last());
        let is = again && self.lost_from.is_none_or(|from| from > w.last());
        self.connected_ns.filter(|at| is && w.left_ns().is_some_and(|left| left < *at))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sums::sums;
    use super::super::{Stage, gather::Gathered};
    use super::*;
    use Crossing::*;
    use kpat_store::tables::SocketRow;

    const MS: i64 = 1_000_000;

    fn write(offset: i64, from_ns: i64, at_ns: i64, at: &[(Crossing, i64)], again: bool) -> Write {
        let when = |s| at.iter().find(|(c, _)| *c == s).map(|(_, t)| *t);
        Write { offset, bytes: 5, from_ns, at_ns, at: STAGES.map(when), again }
    }

    fn answer(rcv_nxt: i64, at_ns: i64) -> TcpStateRow {
        TcpStateRow { state: 3, rcv_nxt, at_ns, ..TcpStateRow::default() }
    }

    #[test]
    fn what_came_with_the_syn_is_there_when_it_is_answered() {
        let with = |rcv_nxt, again: Option<i64>| {
            let mut fast = Fast::default();
            again.iter().for_each(|at| fast.again(*at, Some(0)));
            fast.answers(&answer(rcv_nxt, 20 * MS), Some(1001));
            let mut w = write(0, 0, 0, &[(ToDevice, 0), (Recv, 21 * MS)], true);
            fast.place(&mut w);
            (w.at(ToSocket).map(|at| at / MS), w.again)
        };
        assert_eq!(with(1006, None), (Some(20), false));
        assert_eq!(with(1006, Some(MS)), (Some(20), true), "the SYN was lost");
        assert_eq!(with(1006, Some(40 * MS)), (Some(20), false), "its answer was");
        assert_eq!(with(1005, None), (None, true));
        assert_eq!(with(1001, None), (None, true));
    }

    #[test]
    fn what_was_not_taken_waited_for_the_handshake() {
        let stages = |resent: &[i64]| {
            let mut fast = Fast { connected_ns: Some(40 * MS), ..Fast::default() };
            fast.answers(&answer(1001, 20 * MS), Some(1001));
            resent.iter().for_each(|at| fast.again(*at, Some(0)));
            let way =
                [(ToDevice, 0), (ToDriver, 0), (FromDevice, 60 * MS), (ToSocket, 60 * MS), (Recv, 61 * MS)];
            let g = Gathered {
                writes: vec![write(0, 0, 0, &way, true)],
                fast,
                last_ns: 90 * MS,
                ..Gathered::default()
            };
            let why = sums(&SocketRow::default(), Some(&SocketRow::default()), &g, None);
            why.stages.iter().map(|s| (s.stage, s.ns as i64 / MS)).collect::<Vec<_>>()
        };
        let rest = (Stage::PeerApplication, 1);
        assert_eq!(stages(&[40 * MS + 9]), [(Stage::Handshake, 40), (Stage::Wire, 20), rest]);
        assert_eq!(stages(&[40 * MS + 9, 55 * MS]), [(Stage::Loss, 60), rest]);
        assert_eq!(stages(&[50 * MS]), [(Stage::Loss, 60), rest]);
    }
}
