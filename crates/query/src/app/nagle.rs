//! What waits by Nagle's rule (RFC 9293, 3.7.4): less than a full segment is kept until the last such one that was sent before is acknowledged ([`super::flight`]).
//!
//! TCP's state does not say so, and until it leaves nothing does: it may as well wait for the device. That it leaves at once when what was
//! before it is acknowledged tells, or while that is not, when a further write makes it a full segment, or when its task sends it in a call that writes nothing:
//! it has set `TCP_NODELAY`, or closed its end. Timers, acknowledgements and a device that has room again send in interrupts. So pieces of time in which less than
//! a segment waits are kept here until then.
//!
//! A socket with `TCP_NODELAY` shows by its calls that it does not keep the rule: a small segment leaves in one while another is in flight.

use super::follow::{Call, Span};
use super::limits::Held;

/// What an acknowledgement, or a further write, allows to be sent leaves so soon behind it.
const AT_ONCE_NS: i64 = 200_000;

/// Pieces of a sender's time whose cause is known when what waits has left.
#[derive(Default)]
pub(super) struct Kept {
    spans: Vec<Span>,
    acked_ns: i64,
    /// When anything was acknowledged.
    heard_ns: i64,
    /// It has `TCP_NODELAY`.
    no_delay: bool,
}

/// A segment that had not been sent before.
#[derive(Clone, Copy)]
pub(super) struct Leaving {
    pub at_ns: i64,
    /// Since when a call is at work that has made a full segment of it, while a small one that was sent before is not acknowledged.
    pub filled_ns: Option<i64>,
    /// It is a small one itself, while such a one that was sent before is not acknowledged.
    pub second: bool,
    /// In a call that sends, or refused by one.
    pub call: Call,
    /// In a task, and not in an interrupt; and the log has when its calls begin.
    pub by_task: bool,
}

impl Kept {
    /// The next piece of time; `small`: less than a segment waits in it, `in_flight`: and something that was sent is not acknowledged. Those
    /// that are decided by now are added to `out`.
    pub fn next(&mut self, span: Span, small: bool, in_flight: bool, out: &mut Vec<Span>) {
        let begins = in_flight && may_be(&span);
        let waits = !self.spans.is_empty() && (small || span.call == Call::Inside);
        if small && begins || waits {
            self.spans.push(span);
        } else {
            self.release(out);
            out.push(span);
        }
    }

    /// Something is, `small`: and so is the last small segment that was sent.
    pub fn acknowledged(&mut self, at_ns: i64, small: bool) {
        self.heard_ns = at_ns;
        if small {
            self.acked_ns = at_ns;
        }
    }

    pub fn leaves(&mut self, l: Leaving, out: &mut Vec<Span>) {
        self.no_delay |= l.second && l.call == Call::Inside;
        let unasked = l.call == Call::None && l.by_task && l.at_ns - self.heard_ns >= AT_ONCE_NS;
        let let_go = Some(l.at_ns).filter(|_| l.second && unasked && !self.no_delay);
        let until_ns = self.acked_ns.max(l.filled_ns.or(let_go).unwrap_or(0));
        if l.at_ns - until_ns < AT_ONCE_NS {
            // What is behind the acknowledgement, or the call, is the way out.
            let waits = self.spans.iter_mut().filter(|s| s.from_ns < until_ns);
            waits.filter(|s| may_be(s)).for_each(|s| s.held = Held::Nagle);
        }
        self.release(out);
    }

    /// No more is known of these.
    pub fn release(&mut self, out: &mut Vec<Span>) {
        out.append(&mut self.spans);
    }
}

/// Is there nothing else that TCP waited for? Within a call nothing is known of what it will leave unsent.
fn may_be(span: &Span) -> bool {
    span.call == Call::None && matches!(span.held, Held::Pacing | Held::Device | Held::PacingOrDevice)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    const IN_INTERRUPT: Leaving =
        Leaving { at_ns: 0, filled_ns: None, second: false, call: Call::None, by_task: false };

    fn span(from_ms: i64, to_ms: i64, held: Held, call: Call) -> Span {
        Span { from_ns: from_ms * MS, to_ns: to_ms * MS, held, call, repairs: false }
    }

    /// The pieces of 40 ms in which less than a segment waits; in the middle the application writes more. It leaves so long behind the
    /// acknowledgement.
    fn waited(small: bool, acked: bool, behind_ns: i64) -> Vec<Held> {
        let (mut kept, mut out) = (Kept::default(), Vec::new());
        kept.next(span(0, 20, Held::Device, Call::None), small, true, &mut out);
        kept.next(span(20, 21, Held::Device, Call::Inside), small, true, &mut out);
        kept.next(span(21, 40, Held::Pacing, Call::None), small, true, &mut out);
        if acked {
            kept.acknowledged(40 * MS, true);
        }
        kept.leaves(Leaving { at_ns: 40 * MS + behind_ns, ..IN_INTERRUPT }, &mut out);
        kept.next(span(40, 50, Held::Application, Call::None), false, false, &mut out);
        assert!(out.is_sorted_by_key(|s| s.from_ns));
        out.iter().map(|s| s.held).collect()
    }

    #[test]
    fn what_leaves_when_a_small_segment_is_acknowledged_waited_for_that() {
        use Held::*;
        assert_eq!(waited(true, true, 9000), [Nagle, Device, Nagle, Application]);
        let other = [Device, Device, Pacing, Application];
        assert_eq!(waited(true, false, 9000), other, "it is still in flight");
        assert_eq!(waited(true, true, MS), other, "long after");
        assert_eq!(waited(false, true, 9000), other, "full segments do not wait for that");
    }

    /// It waits for 40 ms, then a write that takes so long makes a full segment of it, or does not; other calls were at work before.
    fn filled(takes_ns: i64, full: bool) -> Vec<Held> {
        let (mut kept, mut out) = (Kept::default(), Vec::new());
        kept.next(span(0, 20, Held::Device, Call::None), true, true, &mut out);
        kept.next(span(20, 40, Held::Pacing, Call::None), true, true, &mut out);
        let call = Span { to_ns: 40 * MS + takes_ns, ..span(40, 40, Held::Device, Call::Inside) };
        kept.next(call, false, true, &mut out);
        let filled_ns = Some(40 * MS).filter(|_| full);
        kept.leaves(Leaving { at_ns: call.to_ns, filled_ns, call: Call::Inside, ..IN_INTERRUPT }, &mut out);
        kept.next(span(41, 50, Held::Device, Call::None), true, true, &mut out);
        kept.release(&mut out);
        out.iter().map(|s| s.held).collect()
    }

    #[test]
    fn what_leaves_when_a_write_fills_its_segment_waited_for_an_acknowledgement() {
        use Held::*;
        assert_eq!(filled(9000, true), [Nagle, Nagle, Device, Device]);
        assert_eq!(filled(9000, false), [Device, Pacing, Device, Device]);
        assert_eq!(filled(MS, true), [Device, Pacing, Device, Device], "not at once");
    }

    #[test]
    fn what_its_task_sends_without_a_write_waited_for_an_acknowledgement() {
        use Held::*;
        let let_go = |before: &[Leaving], heard_ns: i64, l: Leaving| {
            let (mut kept, mut out) = (Kept::default(), Vec::new());
            before.iter().for_each(|l| kept.leaves(*l, &mut out));
            kept.next(span(0, 20, Pacing, Call::None), true, true, &mut out);
            kept.next(span(20, 40, Device, Call::None), true, true, &mut out);
            kept.acknowledged(heard_ns, false);
            kept.leaves(Leaving { at_ns: 40 * MS, second: true, ..l }, &mut out);
            out.iter().map(|s| s.held).collect::<Vec<_>>()
        };
        let by_task = Leaving { by_task: true, ..IN_INTERRUPT };
        let other = [Pacing, Device];
        assert_eq!(let_go(&[], 0, by_task), [Nagle, Nagle]);
        assert_eq!(let_go(&[], 0, IN_INTERRUPT), other, "a timer, or the device");
        assert_eq!(let_go(&[], 40 * MS - 1, by_task), other, "a segment that came");
        assert_eq!(let_go(&[], 0, Leaving { call: Call::Refused, ..by_task }), other);
        let in_call = Leaving { second: true, call: Call::Inside, ..by_task };
        assert_eq!(let_go(&[in_call], 0, by_task), other, "it has TCP_NODELAY");
        assert_eq!(let_go(&[Leaving { second: false, ..in_call }], 0, by_task), [Nagle, Nagle]);
    }

    #[test]
    fn what_waits_for_a_window_or_for_nothing_in_flight_is_not_kept() {
        let (mut kept, mut out) = (Kept::default(), Vec::new());
        kept.next(span(0, 10, Held::Device, Call::None), true, false, &mut out);
        kept.next(span(10, 20, Held::CongestionWindow, Call::None), true, true, &mut out);
        assert_eq!(out.len(), 2);
        kept.next(span(20, 30, Held::Device, Call::None), true, true, &mut out);
        assert_eq!(out.len(), 2);
        kept.release(&mut out);
        assert_eq!((out.len(), out[2].held), (3, Held::Device));
    }
}
