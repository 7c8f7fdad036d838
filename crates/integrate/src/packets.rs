//! Packets while they are alive: what they did, what their headers were when, and, when they are over, where they met
//! the wire and what became of them.
//!
//! A packet is over when the log says that its buffer was freed ([`Call::ENDS`](kpat_model::Call::ENDS)) and a while has
//! passed: its last calls return after that. Not every end is seen: tracepoints are not passed by all that frees, records
//! are lost. Where more than [`FEW`] wait, a packet that was idle for [`REST_NS`] is taken as over, too, and the longest idle
//! ones where more than [`MAX_LIVE`] wait; what is seen of them later is counted.

use crate::arrivals::{Arrival, Arrivals};
use crate::headers;
use crate::matching::Sighting;
use crate::matching::keys::{KeyList, Keys};
use crate::nesting::Node;
use crate::over::Over;
use crate::stamps::Stamp;
use kpat_model::hash::{Map, Set};
use kpat_model::{
    Context, Event, EventKind, Footprint, FootprintRecord, Lineage, LineageKind, Loss, Owner, Place,
};
use kpat_query::roles::*;
use kpat_store::tables::PacketRow;
use std::collections::VecDeque;

mod cases;
mod control;
mod counted;
mod fate;
mod live;
mod living;
mod losses;
mod origin;
mod parts;
mod prints;
mod reason;
mod row;
mod sightings;
mod taken;
mod verdict;
mod way;

pub(super) use live::Fragment;
use live::Live;
use living::Living;
use losses::Losses;
pub(super) use reason::{Reason, dropper};
pub(super) use verdict::Knows;
use verdict::{Drop, NEVER, judge};

/// Packets that are kept at most: more than wait in the queues of a busy host.
const MAX_LIVE: usize = 1 << 17;
/// After so long without a record a packet is over: the kernel side may forget it then, too (`EVICT_NS` in bpf/packets.bpf.h).
const REST_NS: i64 = 10_000_000_000;
/// So many wait on, however idle: one may lie in a socket for a minute before its reader comes.
const FEW: usize = 1 << 12;
/// Packets before one that is over of which its memory is asked for.
const AHEAD: usize = 3;
/// Sniffers on the DUT that are remembered.
const MAX_SNIFFERS: usize = 64;

/// A packet that is over.
pub(super) struct Ended {
    pub row: PacketRow,
}

/// A call or a point, as it concerns a packet.
pub(super) struct Touch {
    pub packet: u64,
    pub func: u16,
    pub cpu: u16,
    pub entry: i64,
    pub end: i64,
    pub self_ns: i64,
    pub ctx: Context,
    pub pid: u32,
    /// Low bits of the skb's address; 0: not known.
    pub skb_tag: u16,
    /// `skb->len` of a point.
    pub point_len: Option<u32>,
    /// Its return is not known: a point, or a call of which only the entry was recorded.
    pub moment: bool,
    /// The packet's buffer was freed in it.
    pub ends: bool,
    /// See [`kpat_model::Point`]; of a call it is not known.
    pub put_off: bool,
}

impl Touch {
    /// The tag of a point: its footprints are of the moment.
    fn point_tag(&self) -> u16 {
        if self.point_len.is_some() { self.skb_tag } else { 0 }
    }

    /// A call that had a list of packets, as it concerns one of them.
    pub(super) fn of_member(n: &Node, packet: u64) -> Touch {
        Touch {
            packet,
            func: n.func,
            cpu: n.cpu,
            entry: n.entry,
            end: n.end,
            self_ns: n.self_ns,
            ctx: n.ctx,
            pid: n.pid,
            skb_tag: 0,
            point_len: None,
            moment: !n.timed(),
            ends: false,
            put_off: false,
        }
    }
}

#[derive(Default)]
pub(super) struct Packets {
    live: Living,
    /// Whose buffer was freed, and when that call returned.
    ended: VecDeque<(i64, u64)>,
    /// Until when idle packets were looked for.
    rested: i64,
    /// Which numbers are over.
    over: Over,
    /// Which of them were seen again.
    again: Over,
    /// Of packets that are over, for the caller to take.
    pub sightings: Vec<Sighting>,
    /// No capture to match with: sightings are not needed.
    no_captures: bool,
    /// Frames of a capture end behind the network header, so packets are looked for by that alone, too.
    cut_captures: bool,
    /// Records of packets that were over, and packets of which there were such.
    pub late: u64,
    pub late_packets: u64,
    /// Packets that were ended because too many waited.
    pub forced: u64,
    /// What the log says of drops and could have seen.
    terms: Terms,
    /// Threads that were seen to read what no socket of theirs was given.
    sniffers: Vec<u32>,
    losses: Losses,
    numbers: Numbers,
    origins: origin::Origins,
    control: control::Control,
    wholes: parts::Wholes,
}

/// The functions that packets met, from 0 in the order of their first: few, however high their own numbers are.
#[derive(Default)]
struct Numbers {
    /// By function; 0: none yet, else one more.
    all: Vec<u32>,
    given: u32,
}

impl Numbers {
    fn of(&mut self, func: u16) -> u32 {
        let func = usize::from(func);
        if self.all.len() <= func {
            self.all.resize(func + 1, 0);
        }
        if self.all[func] == 0 {
            self.given += 1;
            self.all[func] = self.given;
        }
        self.all[func] - 1
    }
}

/// What a log says of itself that verdicts need.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    pub knows: Knows,
    /// By the code of a drop.
    pub reasons: Map<i32, Reason>,
    /// By the kernel address where it was dropped, where that tells who dropped.
    pub droppers: Map<u64, Reason>,
    /// Namespace and index of the interfaces behind which there is a program (drivers/net/tun.c): what comes in by one of them, a thread wrote.
    pub of_programs: Set<(u32, u32)>,
    /// Those that are ports of a bridge.
    pub ports: Set<(u32, u32)>,
    /// The point at which what is dropped is freed, where it is recorded.
    pub drop_point: Option<u16>,
}

impl Packets {
    pub fn new(no_captures: bool, cut_captures: bool, terms: Terms) -> Packets {
        Packets { no_captures, cut_captures, terms, rested: NEVER, ..Packets::default() }
    }

    pub fn loss(&mut self, l: &Loss) {
        self.losses.add(l);
    }

    /// Packets that are not over.
    pub fn alive(&self) -> usize {
        self.live.len()
    }

    /// What is known of the packet as a fragment; `None`: it is over.
    pub fn fragment(&mut self, packet: u64) -> Option<&mut Fragment> {
        let place = self.live.find(packet)?;
        Some(&mut self.live.at(place).fragment)
    }

    /// It came in from outside, as far as is known by now; `None`: it is over.
    pub fn was_received(&mut self, packet: u64) -> Option<bool> {
        let place = self.live.find(packet)?;
        Some(self.live.at(place).way.was_received())
    }

    /// Nothing was logged of it yet.
    pub fn is_new(&mut self, packet: u64) -> bool {
        packet != 0 && self.live.find(packet).is_none() && !self.over.has(packet)
    }

    /// It is seen for the first time.
    pub fn arrival(&mut self, packet: u64, at: i64, known: (Option<Arrival>, Option<Stamp>)) {
        if let Some(p) = self.at_work(packet, at) {
            (p.arrival, p.stamp) = known;
        }
    }

    fn get(&mut self, packet: u64, at: i64) -> Option<&mut Live> {
        if packet == 0 {
            return None;
        }
        let place = match self.live.find(packet) {
            Some(place) => place,
            None if self.over.has(packet) => {
                self.late += 1;
                if !self.again.has(packet) {
                    self.again.add(packet);
                    self.late_packets += 1;
                }
                return None;
            }
            None => self.live.add(packet, at),
        };
        let live = self.live.at(place);
        live.first = live.first.min(at);
        live.last = live.last.max(at);
        Some(live)
    }

    /// The same, when something is done with it.
    fn at_work(&mut self, packet: u64, at: i64) -> Option<&mut Live> {
        let live = self.get(packet, at)?;
        live.done.goes_on(at);
        Some(live)
    }

    /// Says whether this is the packet's first meeting with the function.
    pub fn touch(&mut self, t: &Touch, roles: Roles) -> bool {
        self.losses.record(t.end);
        let number = self.numbers.of(t.func);
        let as_dropped = self.terms.drop_point == Some(t.func);
        let ends_at = t.ends.then(|| self.control.at(t.cpu, t.ctx, t.packet));
        let Some(p) = self.get(t.packet, t.entry) else { return false };
        p.last = p.last.max(t.end);
        p.done.touch(t, roles, &p.taken);
        p.counted.count(t);
        p.play(t, roles);
        let of_drop = as_dropped && p.fate.frees_dropped(t);
        let first = p.counted.meets(number);
        let made = if p.way.was_received() { i64::MIN } else { p.first };
        if let Some(at) = ends_at
            && !p.headers.freed(t.point_tag())
        {
            p.fate.ends(t, roles, at);
            if as_dropped && !of_drop {
                let reason = Reason::of(None);
                p.fate.freed_as_dropped(Drop {
                    at: t.entry,
                    code: None,
                    reason,
                    cpu: t.cpu,
                    ctx: t.ctx,
                    within: at,
                    freed_at: t.entry,
                });
            }
            self.ended.push_back((t.end, t.packet));
        }
        self.control.touch(t, roles, made);
        first
    }

    /// The same of a function that has no packet, within one of the packet's calls: it counts, and says nothing of the packet's way.
    pub fn within(&mut self, t: &Touch) -> bool {
        let number = self.numbers.of(t.func);
        let Some(p) = self.at_work(t.packet, t.entry) else { return false };
        p.last = p.last.max(t.end);
        p.done.goes_on(t.end);
        p.counted.count(t);
        p.counted.meets(number)
    }

    /// What the packet's footprint is at another device; `None` if there is none, because it was lost.
    pub fn at_place(&mut self, place: &Place) -> Option<FootprintRecord> {
        self.at_work(place.packet.0, place.at.0)?.headers.at_place(place)
    }

    pub fn footprint(&mut self, record: &FootprintRecord, f: &Footprint) {
        let (cut, no_captures) = (self.cut_captures, self.no_captures);
        let Some(p) = self.at_work(record.packet.0, record.at.0) else { return };
        if !p.counted.len_known
            && let Some(len) = headers::network_len(f, record)
        {
            (p.counted.len_bytes, p.counted.len_known) = len;
        }
        // They are of use beside a capture only.
        let keys = if no_captures { KeyList::default() } else { Keys::on_wire(f, record, cut) };
        p.headers.add(record, f, keys);
    }

    pub fn lineage(&mut self, l: &Lineage) {
        if l.parent == l.child {
            if let Some(place) = self.live.find(l.parent.0) {
                self.live.at(place).headers.replaced(l.at.0);
            }
            return;
        }
        let (mut received, mut sent) = (false, false);
        if let Some(parent) = self.at_work(l.parent.0, l.at.0) {
            // The datagram's own buffer goes on as its first fragment.
            let goes_on = l.kind == LineageKind::Fragment && parent.fragment.key != 0;
            parent.fate.became(l, goes_on);
            received = parent.way.was_received();
            sent = !received;
        }
        if matches!(l.kind, LineageKind::Segment | LineageKind::Fragment | LineageKind::Copy)
            && let Some(child) = self.at_work(l.child.0, l.at.0)
        {
            child.way.received_by_parent |= received;
            child.way.sent_by_parent |= sent;
            child.fragment.logged |= l.kind == LineageKind::Fragment;
        }
    }

    /// A driver's poll on this CPU is over.
    pub fn polled(&mut self, cpu: u16) {
        self.control.polled(cpu);
    }

    /// Why a frame of spanning tree was freed as what is dropped is: by a bridge that took it from a port, or by a device that is none.
    fn at_port(&mut self, drop: &Event) -> Reason {
        let device =
            self.live.find(drop.packet.0).and_then(|at| self.live.at(at).headers.device_at(drop.at.0));
        if device.is_some_and(|d| self.terms.ports.contains(&d)) { Reason::Handled } else { Reason::of(None) }
    }

    /// Says whether it is what it seems: a part of another packet is not dropped where it is freed as if it were.
    pub fn event(&mut self, cpu: u16, e: &Event) -> bool {
        if e.kind != EventKind::Drop {
            self.at_work(e.packet.0, e.at.0);
            return true;
        }
        let code = e.drop_code();
        let by = match (self.terms.droppers.get(&e.b), self.terms.reasons.get(&code)) {
            // Where that function gives a reason, it dropped it. Kernels without reasons (before 5.17) never give one.
            (
                Some(Reason::TimeWait | Reason::Closing | Reason::Handled | Reason::Port | Reason::Part),
                known,
            ) if known != Some(&Reason::Unspecified) => known.copied().unwrap_or(Reason::of(None)),
            (Some(by), _) => *by,
            (None, Some(reason)) => *reason,
            (None, None) => Reason::of(None),
        };
        let reason = match e.copy_of() {
            Some(Owner::Raw) => Reason::Raw,
            Some(Owner::Sniffer) => Reason::Sniffer,
            None => by,
        };
        let reason = if reason == Reason::Port { self.at_port(e) } else { reason };
        let within = self.control.at(cpu, e.ctx, e.packet.0);
        let live = self.live.find(e.packet.0).map(|place| self.live.at(place));
        let (datagram, part, copied) =
            live.map_or((0, false, false), |p| (p.fragment.key, p.may_be_part(), p.taken.by_others()));
        let with_whole = reason != Reason::Part || !part || self.control.drops_parts(cpu, e.ctx, datagram);
        // Of what a raw socket has a copy the data stay.
        if with_whole && !copied {
            self.control.dropped(cpu, e.ctx, datagram);
        }
        let Some(p) = self.at_work(e.packet.0, e.at.0) else { return with_whole };
        if reason == Reason::Handled {
            p.taken.by_protocol(e.at.0);
        }
        if with_whole {
            p.fate.dropped(Drop {
                at: e.at.0,
                code: Some(code),
                reason,
                cpu,
                ctx: e.ctx,
                within,
                freed_at: NEVER,
            });
        } else {
            p.fate.joined(e.at.0);
        }
        with_whole
    }

    /// Ends packets that were freed before `before`, where more than a few wait those that did nothing for long, and the
    /// longest idle ones where too many wait.
    pub fn end<E>(
        &mut self,
        before: i64,
        log_end: i64,
        arrivals: &Arrivals,
        mut give: impl FnMut(Ended) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(&(at, packet)) = self.ended.front() {
            if at >= before {
                break;
            }
            self.ended.pop_front();
            if let Some((_, next)) = self.ended.get(AHEAD) {
                self.live.expect(*next);
            }
            self.end_one(packet, log_end, arrivals, &mut give)?;
        }
        let rest = before.saturating_sub(REST_NS);
        if self.live.len() > FEW && rest > self.rested.saturating_add(REST_NS / 10) {
            self.rested = rest;
            let mut idle: Vec<u64> =
                self.live.iter().filter(|(_, p)| p.last < rest).map(|(id, _)| id).collect();
            idle.sort_unstable();
            idle.into_iter().try_for_each(|packet| self.end_one(packet, log_end, arrivals, &mut give))?;
        }
        if self.live.len() > MAX_LIVE {
            let mut idle: Vec<(i64, u64)> = self.live.iter().map(|(id, p)| (p.last, id)).collect();
            let (oldest, ..) = idle.select_nth_unstable(self.live.len() / 4);
            let mut oldest = oldest.to_vec();
            oldest.sort_unstable_by_key(|o| o.1);
            for (_, packet) in oldest {
                self.forced += 1;
                self.end_one(packet, log_end, arrivals, &mut give)?;
            }
        }
        Ok(())
    }

    /// Ends all that are left.
    pub fn end_all<E>(
        &mut self,
        log_end: i64,
        arrivals: &Arrivals,
        mut give: impl FnMut(Ended) -> Result<(), E>,
    ) -> Result<(), E> {
        // Whose end was seen first: others may end with them.
        let mut ids: Vec<(bool, u64)> = self.live.iter().map(|(id, p)| (!p.is_gone(), id)).collect();
        ids.sort_unstable();
        ids.into_iter().try_for_each(|(_, packet)| self.end_one(packet, log_end, arrivals, &mut give))?;
        self.origins.decide().try_for_each(|row| give(Ended { row }))
    }

    fn end_one<E>(
        &mut self,
        packet: u64,
        log_end: i64,
        arrivals: &Arrivals,
        give: &mut impl FnMut(Ended) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(mut p) = self.live.remove(packet) else { return Ok(()) };
        self.over.add(packet);
        if p.fragment.key != 0 {
            self.wholes.end(&mut p);
            self.wholes.ended(&p);
        }
        if !self.no_captures {
            p.sightings(packet, &mut self.sightings);
        }
        for pid in p.reads_of_sniffers() {
            if pid != 0 && self.sniffers.len() < MAX_SNIFFERS && !self.sniffers.contains(&pid) {
                self.sniffers.push(pid);
            }
        }
        let lost = self.losses.after(p.last, p.way.is_within_softirq() && p.fragment.key == 0);
        let evidence = p.evidence(self.terms.knows, lost, log_end, &self.sniffers);
        let mut row = p.row(packet, judge(&evidence), &self.sniffers, &self.terms.of_programs);
        p.before(arrivals, &mut row);
        self.live.keep_memory(p);
        match self.origins.meet(&evidence, row) {
            Some(row) => give(Ended { row }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
