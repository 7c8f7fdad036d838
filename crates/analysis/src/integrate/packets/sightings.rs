//! Where and when a packet met the wire, or a device at which a sniffer may sit.

use super::{Live, MAX_PRINTS, Print};
use crate::matching::{self, Side, Sighting};
use crate::roles::*;

impl Live {
    pub(super) fn sightings(&self, packet: u64, out: &mut Vec<Sighting>) {
        let devices = self.devices();
        // A packet that only a queue is known to have had waited behind that edge for nobody knows how long.
        let only_queued = std::ptr::eq(self.handed_on(), self.queued.as_slice());
        let mut see = |print: Option<&Print>, at: i64, side: Side| {
            let sent = side == Side::Transmitted;
            let tap = if sent { self.tap_of(at) } else { (0, 0) };
            for keys in print.iter().flat_map(|p| &p.keys) {
                out.push(Sighting {
                    keys: *keys,
                    packet,
                    at,
                    first: self.first,
                    last: self.last,
                    side,
                    devices,
                    weak: sent && only_queued,
                    tap,
                });
            }
        };
        let received = self.was_received();
        let sent = self.handed_on();
        if received && !self.received_by_parent {
            see(self.print_at(i64::MIN), self.first, Side::Received);
            // Receive offload made it longer: it stands for further frames, which the kernel had by then.
            let until = sent.first().map_or(i64::MAX, |s| s.0);
            let mut longest = tcp_len(self.print_at(i64::MIN));
            for print in self.prints.iter().filter(|p| p.at < until) {
                let len = tcp_len(Some(print));
                if longest.is_some() && len > longest {
                    longest = len;
                    see(Some(print), print.at, Side::Received);
                }
            }
        }
        self.unwrapped().for_each(|(at, print)| see(Some(print), at, Side::Received));
        for (i, &(from, to)) in sent.iter().enumerate() {
            let print = self.print_at(to);
            see(print, from, Side::Transmitted);
            // Into another namespace over a virtual link: it is received again.
            let until = sent.get(i + 1).map_or(i64::MAX, |s| s.0);
            let hop = self.received.iter().map(|r| r.0).filter(|&at| at > from && at < until).min();
            if let Some(at) = hop {
                let there = self.prints.iter().find(|p| p.at >= from && p.at < until && p.is_usable());
                see(there.or(print), at, Side::Received);
            }
            // A tunnel's device was given what the wire gets wrapped.
            let inner = self.print_at(from);
            if inner.zip(print).is_some_and(|(a, b)| differs(a, b)) {
                see(inner, from, Side::Transmitted);
            }
        }
        // On the air, encrypted: for a sniffer there. The other headers are for those at the device.
        let out_from = sent.first().map_or(i64::MAX, |s| s.0);
        for print in self.prints.iter().filter(|p| p.on_air()) {
            let side = match received {
                true if print.at < out_from => Side::Received,
                false if sent.is_empty() => Side::Unknown,
                _ => Side::Transmitted,
            };
            see(Some(print), print.at, side);
        }
        if !received && sent.is_empty() && self.roles & (LOCAL_OUT | SEND_QUEUE) == 0 {
            see(self.print_at(i64::MIN), self.first, Side::Unknown);
        }
    }

    /// When it was given to a driver; where that is not in the log, when a sniffer of the device was shown it right before, behind any
    /// queue; else to a queue.
    fn handed_on(&self) -> &[(i64, i64)] {
        if !self.xmits.is_empty() {
            return &self.xmits;
        }
        let queued_at = self.queued.first().map_or(i64::MAX, |q| q.0);
        match self.taps.iter().position(|t| t.0 >= queued_at) {
            Some(first) => &self.taps[first..],
            None => &self.queued,
        }
    }

    /// Between which edges a tap of the device stamps what a driver was given at `at`: within the function that hands it on, or, of
    /// a tracepoint behind the tap, since the queue's.
    fn tap_of(&self, at: i64) -> (i64, i64) {
        let Some(&(from, to)) = self.xmits.iter().find(|x| x.0 == at) else { return (0, 0) };
        if to > from {
            return (from, to);
        }
        let before = self.queued.iter().map(|q| q.0).filter(|q| *q <= from).max();
        before.map_or((0, 0), |queue| (queue, from))
    }

    /// Where it was; 0 where not every place was kept.
    fn devices(&self) -> u64 {
        let all = || self.prints.iter().fold(0, |all, p| all | matching::device(p.netns, p.ifindex));
        if self.prints.len() < MAX_PRINTS { all() } else { 0 }
    }

    /// Receptions on another device with other headers than at the one before, with nothing sent between: a tunnel was
    /// taken off.
    fn unwrapped(&self) -> impl Iterator<Item = (i64, &Print)> {
        self.received.windows(2).filter_map(|w| {
            let (a, b) = (self.print_at(w[0].0)?, self.print_at(w[1].0)?);
            let sent_between = self.xmits.iter().any(|x| x.0 > w[0].0 && x.0 < w[1].0);
            (!sent_between && differs(a, b)).then_some((w[1].0, b))
        })
    }
}

/// Other headers on another device: a tunnel between them. (Address translation does not change the device.)
fn differs(a: &Print, b: &Print) -> bool {
    let exact = |p: &Print| p.keys.first().map(|k| k.exact);
    (a.ifindex, a.netns) != (b.ifindex, b.netns) && exact(a) != exact(b)
}

fn tcp_len(print: Option<&Print>) -> Option<u32> {
    print?.keys.first()?.tcp.map(|t| t.len)
}
