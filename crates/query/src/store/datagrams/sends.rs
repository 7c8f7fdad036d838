//! Which calls made the packets that a socket of datagrams sends: see [`super`].

use super::follow::{call, sighting};
use super::{Calls, Datagrams, Event};
use crate::store::unqueued::{Skipped, Waits};
use std::collections::{HashMap, VecDeque};

/// What threads have sent and calls that are not yet over.
#[derive(Default)]
pub(super) struct Sends {
    /// Packets by thread, since its last call was over.
    packets: HashMap<i32, Vec<u32>>,
    /// Calls without a packet: what they gave waits for more, or went no further.
    waiting: Vec<u32>,
    /// Places of packets that wait for the neighbour's address, oldest first.
    asking: VecDeque<(u32, Waits)>,
    /// More may wait than is known.
    unsure: bool,
}

/// Sends without a packet, of which a later packet may be. More were not sent at all.
const MOST_WAITING: usize = 64;
/// A neighbour keeps some hundred packets at most (`unres_qlen`); a socket may send to many.
const MOST_ASKING: usize = 4096;

impl Sends {
    /// As records are missing.
    pub fn unsure() -> Sends {
        Sends { unsure: true, ..Sends::default() }
    }

    pub fn packet(&mut self, e: &Event, out: &mut Datagrams) {
        let place = sighting(e, true, out);
        match (e.waits, e.unqueued) {
            (Some(waits), _) => {
                if self.asking.len() == MOST_ASKING {
                    self.asking.pop_front();
                }
                self.asking.push_back((place, waits));
            }
            (None, None) if self.has_waited(e, place, out) => return,
            _ => {}
        }
        match e.pid {
            Some(pid) if e.in_task => self.packets.entry(pid).or_default().push(place),
            _ => self.later(e, place, out),
        }
    }

    /// Is it one that waited for the neighbour's address? Then it is of the call that made it, whoever sends it.
    fn has_waited(&mut self, e: &Event, place: u32, out: &mut Datagrams) -> bool {
        let same = |(asked, waits): &(u32, Waits)| {
            i64::from(waits.tag & 0xffff) == e.tag & 0xffff
                && out.sightings[*asked as usize].bytes == e.bytes
                && e.at_ns <= waits.until_ns
        };
        let Some((asked, _)) = self.asking.iter().rposition(same).and_then(|i| self.asking.remove(i)) else {
            return false;
        };
        out.sightings[place as usize].calls = out.sightings[asked as usize].calls.clone();
        true
    }

    /// Not by a thread that sends: by one call without a packet that has as many bytes, if there is one only.
    fn later(&mut self, e: &Event, place: u32, out: &mut Datagrams) {
        let fits = |c: &&u32| out.calls[**c as usize].bytes == e.bytes;
        let mut fitting = self.waiting.iter().filter(fits);
        if let (Some(&one), None) = (fitting.next(), fitting.next()) {
            self.waiting.retain(|c| *c != one);
            out.sightings[place as usize].calls = Calls::One(one);
        }
    }

    pub fn over(&mut self, e: &Event, skipped: &[Skipped], out: &mut Datagrams) {
        let Some(pid) = e.pid else { return };
        let packets = self.packets.remove(&pid).unwrap_or_default();
        if e.bytes < 0 {
            return self.refused(e, &packets, skipped, out);
        }
        let own = call(e, out);
        if packets.is_empty() {
            if self.waiting.len() == MOST_WAITING {
                self.waiting.remove(0);
            }
            self.waiting.push(own);
            return;
        }
        // The next one may be in the buffer that the released one had.
        let most = self.released(&packets, out);
        let adds_up = (1..=most).find(|n| whole(&packets[*n..], e.bytes, out));
        let alone = most == packets.len() && before(&self.waiting, out) != e.bytes;
        if let Some(n) = adds_up.or(alone.then_some(most)) {
            let (released, rest) = packets.split_at(n);
            self.give(released, out);
            self.waiting = Vec::from_iter(rest.is_empty().then_some(own));
            rest.iter().for_each(|p| out.sightings[*p as usize].calls = Calls::One(own));
            return;
        }
        let before = before(&self.waiting, out);
        let whole = |bytes_sent: i64| whole(&packets, bytes_sent, out);
        // It may be all this call's own, which then may wait.
        let released = before > 0 && whole(before);
        let calls = match packets.len() {
            _ if released => Calls::NotKnown,
            _ if whole(e.bytes) => Calls::One(own),
            1 if before > 0 && whole(before + e.bytes) => {
                Calls::Several(self.waiting.iter().copied().chain([own]).collect())
            }
            _ => Calls::NotKnown,
        };
        self.waiting.clear();
        self.unsure = calls.is_empty();
        for p in packets {
            out.sightings[p as usize].calls.clone_from(&calls);
        }
    }

    /// How many of a thread's packets, the first ones, may be a datagram that a socket option (`UDP_CORK`) released, without a send: it has all the bytes that waited. They
    /// are one through several devices.
    fn released(&self, packets: &[u32], out: &Datagrams) -> usize {
        let of = |p: &u32| &out.sightings[*p as usize];
        let Some(first) = packets.first().map(of) else { return 0 };
        let waited = before(&self.waiting, out);
        let is = waited > 0 && first.bytes == waited;
        let same = |p: &&u32| of(p).tag == first.tag && of(p).bytes >= first.bytes;
        if is { packets.iter().take_while(same).count() } else { 0 }
    }

    /// These are of all the calls that waited.
    fn give(&mut self, packets: &[u32], out: &mut Datagrams) {
        let calls = match std::mem::take(&mut self.waiting)[..] {
            [one] => Calls::One(one),
            ref several => Calls::Several(several.into()),
        };
        self.unsure = false;
        packets.iter().for_each(|p| out.sightings[*p as usize].calls.clone_from(&calls));
    }

    /// No event comes any more.
    pub fn finish(&mut self, out: &mut Datagrams) {
        let mut left = std::mem::take(&mut self.packets).into_values().filter(|of| !of.is_empty());
        if let (Some(packets), None) = (left.next(), left.next())
            && self.released(&packets, out) == packets.len()
        {
            self.give(&packets, out);
        }
    }

    /// The kernel made packets of it and then refused it. If something waited they may be of that; it does not wait any longer.
    fn refused(&mut self, e: &Event, packets: &[u32], skipped: &[Skipped], out: &mut Datagrams) {
        let Some(first) = packets.first() else { return };
        let may_have_waited = self.unsure || !self.waiting.is_empty();
        (self.waiting, self.unsure) = (Vec::new(), false);
        // Nor are there bytes to tell them from those of a call before, if its end was skipped.
        let first_ns = out.sightings[*first as usize].at_ns;
        if may_have_waited || skipped.iter().any(|s| s.meets(first_ns, e.at_ns)) {
            return;
        }
        let own = call(e, out);
        out.calls[own as usize].bytes =
            once(packets, out).iter().map(|p| out.sightings[*p as usize].bytes).sum();
        for p in packets {
            out.sightings[*p as usize].calls = Calls::One(own);
        }
    }
}

/// Bytes of the calls that wait.
fn before(waiting: &[u32], out: &Datagrams) -> i64 {
    waiting.iter().map(|c| out.calls[*c as usize].bytes).sum()
}

/// Have these packets that many bytes together?
fn whole(packets: &[u32], bytes_sent: i64, out: &Datagrams) -> bool {
    let bytes = |of: &[u32]| of.iter().map(|p| out.sightings[*p as usize].bytes).sum::<i64>();
    !packets.is_empty() && [bytes(packets), bytes(&once(packets, out))].contains(&bytes_sent)
}

/// A packet that goes through one device into another is seen in both queues: of these the first.
fn once(packets: &[u32], out: &Datagrams) -> Vec<u32> {
    let mut once: Vec<u32> = Vec::new();
    for p in packets {
        if once.iter().all(|o| out.sightings[*o as usize].tag != out.sightings[*p as usize].tag) {
            once.push(*p);
        }
    }
    once
}
