//! Where and when a packet met the wire, or a device at which a sniffer may sit.

use super::Live;
use super::prints::{MAX_PRINTS, Print};
use super::verdict::Drop;
use super::way::Way;
use crate::matching::{self, Side, Sighting};
use kpat_model::Transport;
use kpat_query::roles::*;

impl Live {
    pub(super) fn sightings(&self, packet: u64, out: &mut Vec<Sighting>) {
        let devices = self.headers.devices();
        // It waited there for longer than frames are looked for, and it was not freed early: it left right before it was freed.
        let freed = self.left_by();
        // A packet that only a queue is known to have had waited behind that edge for an unknown time.
        let only_queued = std::ptr::eq(self.way.handed_on(), self.way.queued.as_slice());
        let mut see = |print: Option<&Print>, at: i64, side: Side| {
            let sent = side == Side::Transmitted;
            let tap = match side {
                Side::Transmitted if freed.is_some_and(|f| f.1 == at) => freed,
                Side::Transmitted => self.way.tap_out(at),
                Side::Received => self.tap_in(at),
                Side::Unknown => None,
            };
            let place = self.place_at(at, side);
            // Opened long after it was stamped (an algorithm that had to be loaded): a sniffer has it with that stamp.
            let kept = tap.filter(|t| side == Side::Received && at.saturating_sub(t.1) > matching::IN_NS / 2);
            let at = kept.map_or(at, |t| t.1);
            for keys in print.iter().flat_map(|p| p.keys.iter()) {
                out.push(Sighting {
                    keys: *keys,
                    packet,
                    at,
                    first: self.first,
                    last: self.last,
                    side,
                    devices,
                    weak: sent && only_queued,
                    lost: sent && self.fate.drops.iter().any(|d| self.way.took_and_dropped(at, d)),
                    tap: tap.unwrap_or_default(),
                    place,
                });
            }
        };
        let received = self.way.was_received();
        let sent = self.way.handed_on();
        if received && !self.way.received_by_parent {
            see(self.headers.at(i64::MIN), self.first, Side::Received);
            // Receive offload made it longer: it stands for further frames, which the kernel had by then.
            let until = sent.first().map_or(i64::MAX, |s| s.0);
            let mut longest = tcp_len(self.headers.at(i64::MIN));
            for print in self.headers.all.iter().filter(|p| p.at < until) {
                let len = tcp_len(Some(print));
                if longest.is_some() && len > longest {
                    longest = len;
                    see(Some(print), print.at, Side::Received);
                }
            }
        }
        self.unwrapped().for_each(|(at, print)| see(Some(print), at, Side::Received));
        for (i, &(from, to)) in sent.iter().enumerate() {
            let print = self.headers.at(to);
            see(print, from, Side::Transmitted);
            // Into another namespace over a virtual link: it is received again.
            let until = sent.get(i + 1).map_or(i64::MAX, |s| s.0);
            let hop = self.way.received.iter().map(|r| r.0).filter(|&at| at > from && at < until).min();
            if let Some(at) = hop {
                let there = self.headers.all.iter().find(|p| p.at >= from && p.at < until && p.is_usable());
                see(there.or(print), at, Side::Received);
            }
            // A tunnel's device was given what the wire gets wrapped.
            let inner = self.headers.at(from);
            if inner.zip(print).is_some_and(|(a, b)| differs(a, b)) {
                see(inner, from, Side::Transmitted);
            }
        }
        if let Some((from, to)) = freed {
            see(self.headers.at(from), to, Side::Transmitted);
        }
        // On the air, encrypted: for a sniffer there. The other headers are for those at the device.
        let out_from = sent.first().map_or(i64::MAX, |s| s.0);
        for print in self.headers.all.iter().filter(|p| p.on_air()) {
            let side = match received {
                true if print.at < out_from => Side::Received,
                false if sent.is_empty() => Side::Unknown,
                _ => Side::Transmitted,
            };
            see(Some(print), print.at, side);
        }
        if !received && sent.is_empty() && self.way.roles & (LOCAL_OUT | SEND_QUEUE) == 0 {
            see(self.headers.at(i64::MIN), self.first, Side::Unknown);
        }
    }

    /// Put into a queue, not seen to leave it, and freed long after: between those two the device had it.
    fn left_by(&self) -> Option<(i64, i64)> {
        let &(queued, _) = self.way.queued.last()?;
        let freed = self.fate.free_at.max(self.fate.ended_at);
        let dropped = self.fate.drops.iter().any(|d| d.at >= queued);
        let silent = self.way.xmits.is_empty() && !self.way.taps.iter().any(|t| t.0 >= queued) && !dropped;
        (silent && freed > queued.saturating_add(matching::OUT_NS)).then_some((queued, freed))
    }

    /// Between which edges it got the time stamp with which sniffers of the receiving device see it: of what came over a virtual link, which
    /// takes the old one away. It keeps the new one, on whatever devices it is then received. What is first seen at a device may have come
    /// out of a tunnel, with the stamp of the packet around it. What no device of this kernel sent was stamped after it was first seen.
    fn tap_in(&self, at: i64) -> Option<(i64, i64)> {
        // TCP of this kernel has the time at which it is due in the stamp's place, over virtual links too; sniffers stamp it themselves.
        if matches!(self.headers.transport(), Some(Transport::Tcp { .. })) {
            return None;
        }
        let Some(sent) = self.way.drivers.iter().copied().filter(|d| *d <= at).max() else {
            let stamped = self.way.stamped.iter().copied().filter(|s| *s >= at).min()?;
            let first = self.way.received.iter().map(|r| r.0).min()?;
            let known = self.way.was_received() && first < stamped && !self.way.stamped.contains(&first);
            return known.then_some((first, stamped));
        };
        let first = self.way.received.iter().map(|r| r.0).filter(|r| *r >= sent).min();
        // In another namespace it may get a new one.
        let stays = first.filter(|f| {
            let netns = |at| self.place_at(at, Side::Received) >> 32;
            *f <= at && netns(*f) == netns(at)
        });
        let stamped = self.way.stamped.iter().copied().filter(|s| *s >= stays.unwrap_or(at)).min()?;
        // Known before it had one.
        let before = first.filter(|f| *f < stamped && !self.way.stamped.contains(f));
        let from = before.unwrap_or(sent);
        (from < stamped).then_some((from, stamped))
    }

    /// The device that had it then, as [`matching::place`]; 0: not known.
    fn place_at(&self, at: i64, side: Side) -> u64 {
        let before = self.headers.all.iter().rev().find(|p| p.at <= at);
        // Of a point the headers are logged first; of a call a moment after it began, and within it the other end of a virtual link may
        // have the packet.
        let here = match side {
            Side::Received => {
                let sent = self.way.drivers.iter().copied().filter(|d| *d <= at).max();
                let next = self.headers.all.iter().find(|p| p.at > at);
                before.filter(|p| sent.is_none_or(|s| p.at > s)).or(next)
            }
            _ => {
                let call = self.way.hands.iter().find(|h| h.0 == at).map(|h| h.1);
                let edges = self.way.drivers.iter().copied().chain(self.way.received.iter().map(|r| r.0));
                let until = call.map(|end| edges.filter(|e| *e > at).fold(end, i64::min));
                let within = until.and_then(|u| self.headers.all.iter().rev().find(|p| p.at <= u));
                within.or(before).or(self.headers.all.first())
            }
        };
        let full = self.headers.all.len() >= MAX_PRINTS && self.headers.all.last().is_some_and(|p| p.at < at);
        here.filter(|_| !full).map_or(0, |p| matching::place(p.netns, p.ifindex))
    }

    /// Receptions with other headers than at the one before, with nothing sent between: a tunnel was taken off, on another device, or, by
    /// IPsec, on the same, which then shows the packet once more.
    fn unwrapped(&self) -> impl Iterator<Item = (i64, &Print)> {
        self.way.received.windows(2).filter_map(|w| {
            let (a, b) = (self.headers.at(w[0].0)?, self.headers.at(w[1].0)?);
            let sent_between = self.way.xmits.iter().any(|x| x.0 > w[0].0 && x.0 < w[1].0);
            (!sent_between && (differs(a, b) || is_inner(a, b))).then_some((w[1].0, b))
        })
    }
}

impl Way {
    /// Dropped by the driver's function that it was given to at this time.
    fn took_and_dropped(&self, at: i64, d: &Drop) -> bool {
        match self.xmits.iter().position(|x| x.0 == at) {
            Some(n) if n + 1 < self.xmits.len() => {
                let (from, to) = self.xmits[n];
                to > from && (from..=to).contains(&d.at)
            }
            Some(_) => self.by_driver(d),
            None => false,
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

    /// Between which edges a tap of the device stamps what it is given at `at`: behind the queue's, or the call's that shows it to the
    /// sniffers, and before the driver's. Each of them is of this device: nothing else has the packet in between.
    fn tap_out(&self, at: i64) -> Option<(i64, i64)> {
        if let Some(&(from, to)) = self.hands.iter().find(|h| h.0 == at) {
            let driver = self.drivers.iter().copied().filter(|d| (from..=to).contains(d)).min();
            return Some((from, driver.unwrap_or(to)));
        }
        let is_edge =
            self.drivers.contains(&at) || self.xmits.is_empty() && self.taps.iter().any(|t| t.0 == at);
        let queue = self.queued.iter().map(|q| q.0).filter(|q| *q <= at).max();
        let after_driver = self.drivers.iter().copied().filter(|d| *d < at).max();
        // Given away by one device and not queued at the next one: its own edge is not in the log.
        queue.filter(|q| is_edge && after_driver.is_none_or(|d| d <= *q)).map(|q| (q, at))
    }
}

/// Other headers on another device: a tunnel between them. (Address translation does not change the device.)
fn differs(a: &Print, b: &Print) -> bool {
    let exact = |p: &Print| p.keys.first().map(|k| k.exact);
    (a.ifindex, a.netns) != (b.ifindex, b.netns) && exact(a) != exact(b)
}

/// Another packet's headers, on the same device. (Receive offload, which makes a packet longer, leaves the first one's identification.)
fn is_inner(a: &Print, b: &Print) -> bool {
    let known = |p: &Print| p.keys.first().map(|k| (k.exact, k.kind, k.ident));
    let Some((outer, inner)) = known(a).zip(known(b)) else { return false };
    outer.0 != inner.0 && (outer.1 != inner.1 || outer.2 != inner.2)
}

fn tcp_len(print: Option<&Print>) -> Option<u32> {
    print?.keys.first()?.tcp.map(|t| t.len)
}
