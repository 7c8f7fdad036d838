//! Packets while they are alive: what they did, what their headers were when, and, when they are over, where they met
//! the wire and what became of them.
//!
//! A packet is over when the log says that its buffer was freed and a while has passed (its last calls return after
//! that). Packets that are never freed wait for the end of the log, or until too many wait.

use super::arrivals::{Arrival, Arrivals};
use super::headers;
use super::over::Over;
use crate::hash::Map;
use crate::matching::Sighting;
use crate::matching::keys::Keys;
use crate::query::{match_key, verdict};
use crate::roles::*;
use kpat_model::{Context, Event, EventKind, Footprint, FootprintRecord, Lineage, LineageKind, Place};
use kpat_store::tables::PacketRow;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;

mod row;
mod sightings;

/// Waiting packets that are kept at most.
const MAX_LIVE: usize = 400_000;
const MAX_PRINTS: usize = 16;
const MAX_SPANS: usize = 24;
const MAX_READERS: usize = 4;
/// Sniffers on the DUT that are remembered.
const MAX_SNIFFERS: usize = 64;

/// The packet's keys from a moment on.
struct Print {
    at: i64,
    ifindex: u32,
    netns: u32,
    keys: Vec<Keys>,
}

impl Print {
    /// An 802.11 frame in which nothing else can be read.
    fn on_air(&self) -> bool {
        self.keys.first().is_some_and(|k| k.kind == match_key::WIFI)
    }

    /// For sniffers at a device.
    fn is_usable(&self) -> bool {
        !self.keys.is_empty() && !self.on_air()
    }
}

/// See [`super::datagrams`].
#[derive(Clone, Copy, Default)]
pub(super) struct Fragment {
    /// It was a whole datagram, or no IP at all, in some header before.
    pub whole: bool,
    /// Of the datagram that it is, or was, a fragment of; 0: never was.
    pub key: u64,
    /// What the whole of that has in common with it.
    pub same: u64,
    /// The kernel told which packet it was cut from.
    pub told: bool,
}

struct Live {
    first: i64,
    last: i64,
    /// Of its earliest call or point: when that was, the CPU, the context.
    cpu: (i64, u16, Context),
    /// As it was first seen.
    arrival: Option<Arrival>,
    kernel_ns: i64,
    calls: u32,
    points: u32,
    len_bytes: u32,
    /// `len_bytes` is from the headers, not from a point, whose length may include a link header.
    len_known: bool,
    /// Roles seen, as bits.
    roles: u32,
    /// Earliest entry with a role that receives, and that makes or sends.
    rx_at: i64,
    tx_at: i64,
    /// Outermost calls that received, and that gave it to a device or to the queue above.
    received: Vec<(i64, i64)>,
    xmits: Vec<(i64, i64)>,
    queued: Vec<(i64, i64)>,
    /// Shown to sniffers.
    taps: Vec<(i64, i64)>,
    local_in_at: i64,
    /// First and last entry with a role that queues to a socket.
    queued_at: (i64, i64),
    prints: Vec<Print>,
    shown: Option<Box<Footprint>>,
    /// The newest footprint: a packet that comes to another device has its headers.
    newest: Option<Box<FootprintRecord>>,
    funcs: Vec<u16>,
    drop: Option<(i64, i32)>,
    /// Where that was, and where it was last given to a driver: CPU and context.
    drop_on: Option<(u16, Context)>,
    xmit_on: Option<(u16, Context)>,
    freed: bool,
    /// Last time that a buffer of it was seen to be freed.
    free_at: i64,
    transformed: bool,
    /// Put together with others to the datagram that they were cut from.
    whole_again_at: i64,
    /// What its headers said of fragments so far.
    pub(super) fragment: Fragment,
    /// Cut from a packet that was received.
    received_by_parent: bool,
    task_pid: u32,
    /// Tasks that took it from a socket, and when: the first few.
    readers: Vec<(i64, u32)>,
}

impl Live {
    fn new(at: i64) -> Live {
        Live {
            first: at,
            last: at,
            cpu: (i64::MAX, 0, Context::Unknown),
            arrival: None,
            kernel_ns: 0,
            calls: 0,
            points: 0,
            len_bytes: 0,
            len_known: false,
            roles: 0,
            rx_at: i64::MAX,
            tx_at: i64::MAX,
            received: Vec::new(),
            xmits: Vec::new(),
            queued: Vec::new(),
            taps: Vec::new(),
            local_in_at: i64::MIN,
            queued_at: (i64::MAX, i64::MIN),
            prints: Vec::new(),
            shown: None,
            newest: None,
            funcs: Vec::new(),
            drop: None,
            drop_on: None,
            xmit_on: None,
            freed: false,
            free_at: i64::MIN,
            transformed: false,
            whole_again_at: i64::MIN,
            fragment: Fragment::default(),
            received_by_parent: false,
            task_pid: 0,
            readers: Vec::new(),
        }
    }

    /// Came in from outside, as far as its functions tell.
    fn was_received(&self) -> bool {
        self.received_by_parent
            || (self.rx_at != i64::MAX && self.rx_at <= self.tx_at)
            || (self.tx_at == i64::MAX && self.roles & (LOCAL_IN | FORWARD) != 0)
    }

    /// Last given to a device or to the queue above it.
    fn sent(&self) -> Option<(i64, i64)> {
        self.xmits.last().or(self.queued.last()).copied()
    }

    /// Received again after that: a virtual link to another namespace.
    fn hopped_at(&self) -> Option<i64> {
        let sent = self.sent()?;
        self.received.iter().map(|r| r.0).filter(|at| *at > sent.0).min()
    }

    fn verdict(&self, log_end: i64, refused: &[i32]) -> i32 {
        let sent = self.sent();
        let hopped = self.hopped_at();
        let after_sent = |at: i64| sent.is_none_or(|s| at >= s.0);
        let read = self.roles & SOCK_READ != 0 && after_sent(self.local_in_at);
        let queued = self.queued_at.1 != i64::MIN && after_sent(self.queued_at.1);
        let dropped = self.drop.is_some_and(|(at, reason)| {
            let here = match (sent, hopped) {
                (None, _) => true,
                // Before that it was another clone: this one went on.
                (Some(s), _) if at < s.0 => false,
                // Later only where it arrived again: else it was a clone, or is on the wire already. So it is where another CPU
                // or an interrupt frees it while the driver's function still runs.
                (Some(s), hop) => {
                    let by_driver = self.xmit_on.is_none() || self.xmit_on == self.drop_on;
                    at <= s.1 && by_driver || hop.is_some_and(|h| at >= h)
                }
            };
            let of_sniffer = self.taps.iter().any(|t| (t.0..=t.1).contains(&at));
            let taken = read || (queued && !refused.contains(&reason));
            here && !of_sniffer && !taken
        });
        if dropped {
            verdict::DROPPED
        } else if self.whole_again_at != i64::MIN && after_sent(self.whole_again_at) {
            // Its bytes may be read one by one later: the datagram is what is delivered then.
            verdict::TRANSFORMED
        } else if read || queued || (self.roles & LOCAL_IN != 0 && after_sent(self.local_in_at)) {
            verdict::DELIVERED
        } else if hopped.is_some_and(|h| self.free_at >= h) && self.drop.is_none() && !self.transformed {
            // Came over a virtual link, was neither sent on nor dropped, and is gone: somebody there took it.
            verdict::DELIVERED
        } else if sent.is_some() {
            if self.was_received() { verdict::FORWARDED } else { verdict::SENT }
        } else if self.transformed {
            verdict::TRANSFORMED
        } else if self.taps.iter().any(|t| (t.0..=t.1).contains(&self.free_at)) {
            // A sniffer was its only receiver.
            verdict::DELIVERED
        } else if !self.freed && self.last >= log_end - 1_000_000_000 {
            verdict::IN_FLIGHT
        } else {
            verdict::UNKNOWN
        }
    }

    /// The task that took it as its receiver: not a sniffer, who can read it before, or without, its being queued to a
    /// socket of its own.
    fn reader(&self, code: i32, sniffers: &[u32]) -> Option<u32> {
        if code != verdict::DELIVERED {
            return None;
        }
        let tapped = self.roles & TAP != 0;
        let early = |at: i64| tapped && at < self.queued_at.0;
        let mut others = self.readers.iter().filter(|(at, pid)| !early(*at) && !sniffers.contains(pid));
        others.next().map(|r| r.1)
    }

    /// Readers that can only be sniffers.
    fn sniffers(&self) -> impl Iterator<Item = u32> {
        let (tapped, queued_at) = (self.roles & TAP != 0, self.queued_at.0);
        self.readers.iter().filter(move |(at, _)| tapped && *at < queued_at).map(|r| r.1)
    }

    /// Header fields at a time: the last that were logged until then, else the first after.
    fn print_at(&self, at: i64) -> Option<&Print> {
        let usable = || self.prints.iter().filter(|p| p.is_usable());
        usable().rev().find(|p| p.at <= at).or_else(|| usable().next())
    }

    /// The device that it was last given to. Within the call the other end of a virtual link may already have it.
    fn out_by(&self) -> Option<&Print> {
        let (from, to) = self.sent()?;
        let until = if self.hopped_at().is_some() { from } else { to };
        let with_device = || self.prints.iter().filter(|p| p.ifindex != 0);
        with_device().rev().find(|p| p.at <= until).or_else(|| with_device().find(|p| p.at <= to))
    }
}

/// An outermost span replaces those within it.
fn add_span(spans: &mut Vec<(i64, i64)>, span: (i64, i64)) {
    while spans.last().is_some_and(|s| s.0 >= span.0 && s.1 <= span.1) {
        spans.pop();
    }
    if spans.len() < MAX_SPANS {
        spans.push(span);
    }
}

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
    /// `skb->len` of a point.
    pub point_len: Option<u32>,
}

#[derive(Default)]
pub(super) struct Packets {
    live: Map<u64, Box<Live>>,
    freed: VecDeque<(i64, u64)>,
    /// Which numbers are over.
    over: Over,
    /// Of packets that are over, for the caller to take.
    pub sightings: Vec<Sighting>,
    /// No capture to match with: nobody wants to know where packets met the wire.
    no_captures: bool,
    /// Records of packets that were over.
    pub late: u64,
    /// Packets that were ended because too many waited.
    pub forced: u64,
    /// Drop reasons of packets that a socket did not take.
    refused: Vec<i32>,
    /// Threads that were seen to read what no socket of theirs was given.
    sniffers: Vec<u32>,
}

impl Packets {
    pub fn new(no_captures: bool, refused: Vec<i32>) -> Packets {
        Packets { no_captures, refused, ..Packets::default() }
    }

    /// Packets that are not over.
    pub fn alive(&self) -> usize {
        self.live.len()
    }

    /// What is known of the packet as a fragment; `None`: it is over.
    pub fn fragment(&mut self, packet: u64) -> Option<&mut Fragment> {
        self.live.get_mut(&packet).map(|p| &mut p.fragment)
    }

    /// It came in from outside, as far as is known by now; `None`: it is over.
    pub fn was_received(&self, packet: u64) -> Option<bool> {
        self.live.get(&packet).map(|p| p.was_received())
    }

    /// Nothing was told of it yet.
    pub fn is_new(&self, packet: u64) -> bool {
        packet != 0 && !self.live.contains_key(&packet) && !self.over.has(packet)
    }

    /// It is seen for the first time.
    pub fn arrival(&mut self, packet: u64, at: i64, arrival: Option<Arrival>) {
        if let Some(p) = self.get(packet, at) {
            p.arrival = arrival;
        }
    }

    fn get(&mut self, packet: u64, at: i64) -> Option<&mut Live> {
        if packet == 0 {
            return None;
        }
        let live = match self.live.entry(packet) {
            Entry::Occupied(live) => live.into_mut(),
            Entry::Vacant(_) if self.over.has(packet) => {
                self.late += 1;
                return None;
            }
            Entry::Vacant(place) => place.insert(Box::new(Live::new(at))),
        };
        live.first = live.first.min(at);
        live.last = live.last.max(at);
        Some(live)
    }

    /// Says whether this is the packet's first meeting with the function.
    pub fn touch(&mut self, t: &Touch, roles: Roles) -> bool {
        let Some(p) = self.get(t.packet, t.entry) else { return false };
        p.last = p.last.max(t.end);
        if t.entry < p.cpu.0 {
            p.cpu = (t.entry, t.cpu, t.ctx);
        }
        p.kernel_ns = p.kernel_ns.saturating_add(t.self_ns);
        match t.point_len {
            Some(len) => {
                p.points += 1;
                if p.len_bytes == 0 {
                    p.len_bytes = len;
                }
            }
            None => p.calls += 1,
        }
        if p.task_pid == 0 && t.ctx == Context::Task {
            p.task_pid = t.pid;
        }
        if roles.0 != 0 {
            p.roles |= roles.0;
            let span = (t.entry, t.end);
            if roles.has(RX) {
                p.rx_at = p.rx_at.min(t.entry);
                add_span(&mut p.received, span);
            }
            if roles.has(LOCAL_OUT | XMIT | XMIT_QUEUE) {
                p.tx_at = p.tx_at.min(t.entry);
            }
            if roles.has(XMIT) {
                add_span(&mut p.xmits, span);
                p.xmit_on = Some((t.cpu, t.ctx));
            }
            if roles.has(XMIT_QUEUE) {
                add_span(&mut p.queued, span);
            }
            if roles.has(LOCAL_IN | SOCK_READ) {
                p.local_in_at = p.local_in_at.max(t.entry);
            }
            if roles.has(FREE) {
                p.free_at = p.free_at.max(t.entry);
            }
            if roles.has(TAP) {
                add_span(&mut p.taps, span);
            }
            if roles.has(SOCK_QUEUE) {
                p.queued_at = (p.queued_at.0.min(t.entry), p.queued_at.1.max(t.entry));
            }
            if roles.has(SOCK_READ)
                && t.ctx == Context::Task
                && p.readers.len() < MAX_READERS
                && p.readers.iter().all(|r| r.1 != t.pid)
            {
                p.readers.push((t.entry, t.pid));
            }
        }
        if p.funcs.contains(&t.func) {
            return false;
        }
        p.funcs.push(t.func);
        true
    }

    /// What the packet's footprint is at another device; `None` if there is none, because it was lost.
    pub fn at_place(&mut self, place: &Place) -> Option<FootprintRecord> {
        let p = self.get(place.packet.0, place.at.0)?;
        let mut f = **p.newest.as_ref()?;
        f.at = place.at;
        (f.ifindex, f.netns, f.link_type) = (place.ifindex, place.netns, place.link_type);
        f.skb_tag = place.skb_tag;
        Some(f)
    }

    pub fn footprint(&mut self, record: &FootprintRecord, f: &Footprint) {
        let Some(p) = self.get(record.packet.0, record.at.0) else { return };
        p.newest = Some(Box::new(*record));
        if !p.len_known
            && let Some((len, known)) = headers::network_len(f, record)
        {
            p.len_bytes = len;
            p.len_known = known;
        }
        let keys = Keys::on_wire(f, record);
        let better = |old: &Footprint| {
            let known = |f: &Footprint| {
                usize::from(f.network.is_some()) + usize::from(headers::is_transport_known(f))
            };
            known(f) > known(old)
        };
        if p.shown.as_deref().is_none_or(better) {
            p.shown = Some(Box::new(f.clone()));
        }
        if p.prints.len() < MAX_PRINTS {
            p.prints.push(Print { at: record.at.0, ifindex: record.ifindex, netns: record.netns, keys });
        }
    }

    pub fn lineage(&mut self, l: &Lineage) {
        if l.parent == l.child {
            return;
        }
        let mut received = false;
        if let Some(parent) = self.get(l.parent.0, l.at.0) {
            // The datagram's own buffer goes on as its first fragment.
            let goes_on = l.kind == LineageKind::Fragment && parent.fragment.key != 0;
            parent.transformed |= l.kind != LineageKind::Copy && !goes_on;
            received = parent.was_received();
            if l.kind == LineageKind::Reassembly {
                parent.whole_again_at = l.at.0;
            }
        }
        if matches!(l.kind, LineageKind::Segment | LineageKind::Fragment | LineageKind::Copy)
            && let Some(child) = self.get(l.child.0, l.at.0)
        {
            child.received_by_parent |= received;
            child.fragment.told |= l.kind == LineageKind::Fragment;
        }
    }

    pub fn event(&mut self, cpu: u16, e: &Event) {
        let Some(p) = self.get(e.packet.0, e.at.0) else { return };
        match e.kind {
            EventKind::Drop => {
                p.drop = Some((e.at.0, e.a as i32));
                p.drop_on = Some((cpu, e.ctx));
            }
            EventKind::Free => {
                p.freed = true;
                p.free_at = p.free_at.max(e.at.0);
                self.freed.push_back((e.at.0, e.packet.0));
            }
            _ => {}
        }
    }

    /// Ends packets that were freed before `before`, and the longest idle ones where too many wait.
    pub fn end<E>(
        &mut self,
        before: i64,
        log_end: i64,
        arrivals: &Arrivals,
        mut give: impl FnMut(Ended) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(&(at, packet)) = self.freed.front() {
            if at >= before {
                break;
            }
            self.freed.pop_front();
            self.end_one(packet, log_end, arrivals, &mut give)?;
        }
        if self.live.len() > MAX_LIVE {
            let mut idle: Vec<(i64, u64)> = self.live.iter().map(|(id, p)| (p.last, *id)).collect();
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
        let mut ids: Vec<u64> = self.live.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().try_for_each(|packet| self.end_one(packet, log_end, arrivals, &mut give))
    }

    fn end_one<E>(
        &mut self,
        packet: u64,
        log_end: i64,
        arrivals: &Arrivals,
        give: &mut impl FnMut(Ended) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(p) = self.live.remove(&packet) else { return Ok(()) };
        self.over.add(packet);
        if !self.no_captures {
            p.sightings(packet, &mut self.sightings);
        }
        for pid in p.sniffers() {
            if self.sniffers.len() < MAX_SNIFFERS && !self.sniffers.contains(&pid) {
                self.sniffers.push(pid);
            }
        }
        let mut row = p.row(packet, log_end, &self.refused, &self.sniffers);
        p.before(arrivals, &mut row);
        give(Ended { row })
    }
}

#[cfg(test)]
mod tests;
