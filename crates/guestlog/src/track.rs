//! Which packet is this buffer, what changed of it, which packets became which, and the records that say so: the rules of the kernel side
//! (`bpf/packets.bpf.h`, `footprint.bpf.h`, `calls.bpf.h`), applied to what probes in a guest copied. Here there is memory for every buffer, so
//! none is forgotten but when it is freed; and the hits come in one order for all processors.
//!
//! Nothing is read from the guest here but devices ([`crate::world`]): a buffer may be another packet's by now.

use crate::filter::Filter;
use crate::headers::{
    UNSET, bytes_from, context, ethertype, length_from, link_valid, network, signature, word,
};
use crate::types::Bits;
use crate::world::{Where, World, is_kernel};
use kpat_guest::Guest;
use kpat_guest::mailbox::skb::{Packet, PacketHit, PacketMoment};
use kpat_model::{
    BootNs, Call, Context, Event, EventKind, FootprintRecord, FuncId, Lineage, LineageKind, Loss, LossCause,
    Member,
};
use kpat_model::{PacketId, Place, Process, Record, Timed};
use kpat_probe::roles::role;
use kpat_probe::{sink, wire};
use std::collections::HashMap;

/// `KP_VLAN_PRESENT` of bpf/include/wire.h.
const VLAN_PRESENT: u16 = 0x1000;
const INET: [u16; 2] = [2, 10];
/// Buffers, calls and tasks that are remembered, whatever a guest does.
const MOST: usize = 1 << 18;
const MOST_SEGMENTED: usize = 4096;

/// A probed function.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    pub func: FuncId,
    pub roles: u16,
    /// Its calls are wanted.
    pub logged: bool,
    /// The packet lies behind a pointer, or is not an argument: its address says nothing.
    pub hidden: bool,
    /// Frees packets for a reason, which is the second value.
    pub drops: Option<Drops>,
}

/// How many a function frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    One,
    Chain,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    id: u64,
    sig: u64,
    link: u64,
    dev: u64,
}

struct Open {
    probe: usize,
    at: BootNs,
    packet: u64,
    skb: u64,
    pid: u32,
    ctx: Context,
    ends: bool,
    /// The first packet of a list, or the first wanted one of a chain, is the call's own.
    list: bool,
    /// Others of a chain are in the call, too.
    chain: bool,
    /// Where the packet's number is waited for: its buffer, else 0.
    head: u64,
}

/// Takes a record for a processor's part of the log.
pub type Out<'a> = dyn FnMut(u16, Record) + 'a;

pub struct Tracker {
    pub functions: HashMap<usize, Tracked>,
    pub world: World,
    filter: Option<Filter>,
    bits: Bits,
    packets: HashMap<u64, Known>,
    open: HashMap<u64, Open>,
    /// Open calls whose packet was not known at their entry, as its headers were not whole: by its buffer.
    waiting: HashMap<u64, Vec<u64>>,
    /// While a packet's buffer is replaced: by the `sk_buff`.
    moving: HashMap<u64, u64>,
    /// Packets that were cut, by the call: their segments come right behind.
    segmented: HashMap<u64, u64>,
    /// Chains that are freed, by the call: why and from where. What is behind their first comes right behind.
    chains: HashMap<u64, (u64, u64)>,
    tasks: HashMap<u32, (u32, Vec<u8>)>,
    next: u64,
    last: BootNs,
    /// Calls whose return was not seen.
    pub unreturned: u64,
    pub homeless: u64,
}

impl Tracker {
    pub fn new(
        functions: HashMap<usize, Tracked>,
        world: World,
        filter: Option<Filter>,
        bits: Bits,
    ) -> Tracker {
        Tracker {
            functions,
            world,
            filter,
            bits,
            packets: HashMap::new(),
            open: HashMap::new(),
            waiting: HashMap::new(),
            moving: HashMap::new(),
            segmented: HashMap::new(),
            chains: HashMap::new(),
            tasks: HashMap::new(),
            next: 1,
            last: BootNs(0),
            unreturned: 0,
            homeless: 0,
        }
    }

    /// A hit, with its time.
    pub fn hit(&mut self, guest: &Guest, hit: &PacketHit, at: BootNs, out: &mut Out) {
        let Some(f) = self.functions.get(&hit.probe).copied() else { return };
        self.last = at.max(self.last);
        let mut here = Here { guest, cpu: hit.cpu as u16, at, out };
        match hit.what {
            PacketMoment::Entry { number, returns } => self.entry(f, hit, number, returns, &mut here),
            PacketMoment::Return { entry } => self.back(f, hit, entry, &mut here),
            PacketMoment::Member { entry } => self.member(f, hit, entry, &mut here),
        }
    }

    fn entry(&mut self, f: Tracked, hit: &PacketHit, number: u64, returns: bool, here: &mut Here) {
        let is = |roles: u16| f.roles & roles != 0;
        let packet = hit.packet.as_deref();
        let (mut id, mut ends, mut head) = (0, false, 0);
        if is(role::MOVED) {
            id = packet.and_then(|p| self.moving.get(&p.skb)).copied().unwrap_or(0);
        } else if let Some(p) = packet {
            // One with this role writes the transport header: what is there at its entry may be another packet's. It is known by what it calls.
            id = self.packet_of(p, is(role::FREE | role::FLOW), here);
            if id == 0 && returns && self.may_become(f.roles, p) {
                head = p.head;
                self.waiting.entry(head).or_default().push(number);
            }
            if id == 0 && is(role::FREE) && self.last_holder(p) {
                self.waiting.remove(&p.head);
            }
            if id != 0 {
                ends = self.roles_at_entry(f.roles, p, id, hit.value, here);
            }
        }
        let ctx = context(hit.contexts);
        if let Some(drops) = f.drops {
            if drops == Drops::Chain {
                if self.chains.len() >= MOST_SEGMENTED {
                    self.chains.clear();
                }
                self.chains.insert(number, (hit.value, hit.location));
            }
            return self.dropped(hit, ctx, id, (hit.value, hit.location), here);
        }
        let list = is(role::LIST);
        // A driver is given packets one by one that a queue gave up together, or that one was cut into.
        let chain = is(role::LINK) && packet.is_some_and(|p| p.next != 0);
        let later = list || chain || head != 0 || is(role::RETURN | role::ALLOC | role::FLOW);
        if id == 0 && !later {
            return;
        }
        if !returns {
            // Of what only keeps track of packets the return is not wanted.
            if id != 0 && f.logged {
                self.unreturned += 1;
                self.task(hit, here);
                here.put(Record::Call(Call {
                    func: f.func,
                    ctx,
                    flags: Call::NO_RETURN | if ends { Call::ENDS } else { 0 },
                    skb_tag: tag(f, packet),
                    pid: hit.pid,
                    packet: PacketId(id),
                    entry: here.at,
                    dur_ns: 0,
                }));
            }
            return;
        }
        if self.open.len() >= MOST {
            self.unreturned += self.open.len() as u64;
            self.open.clear();
            self.waiting.clear();
        }
        let skb = packet.map_or(0, |p| p.skb);
        let (probe, pid) = (hit.probe, hit.pid);
        let open = Open { probe, at: here.at, packet: id, skb, pid, ctx, ends, list, chain: false, head };
        self.open.insert(number, open);
    }

    /// Not known, but a socket's, without headers for the filter to decide by: whether it is wanted turns out while it is in this call.
    fn may_become(&self, roles: u16, p: &Packet) -> bool {
        let socket = self.filter.is_some() && p.sk != 0 && INET.contains(&p.sk_family) && signature(p) == 0;
        p.head != 0
            && (roles & role::FLOW != 0 || socket && roles & role::FREE == 0)
            && self.waiting.len() < MOST
    }

    /// Says whether the buffer goes with this call.
    fn roles_at_entry(&mut self, roles: u16, p: &Packet, id: u64, second: u64, here: &mut Here) -> bool {
        let is = |role: u16| roles & role != 0;
        if is(role::FREE) {
            if self.last_holder(p) {
                self.packets.remove(&p.head);
                return true;
            }
        } else if is(role::EXPAND) {
            if self.moving.len() < MOST {
                self.moving.insert(p.skb, id);
            }
            // The old buffer is freed inside, unless a clone still holds it.
            if !self.cloned(p) {
                self.packets.remove(&p.head);
            }
        } else if is(role::GRO) {
            if let Some(merged) = self.packets.get(&second) {
                here.lineage(LineageKind::GroMerge, merged.id, id);
            }
        } else if is(role::LINK) {
            self.has_link(p, id, here);
        }
        false
    }

    /// Its link header is complete.
    fn has_link(&mut self, p: &Packet, id: u64, here: &mut Here) {
        let link = self.link_signature(p);
        if let Some(k) = self.packets.get_mut(&p.head)
            && link != 0
            && link != k.link
        {
            k.link = link;
            self.footprint(p, id, here);
        }
    }

    fn back(&mut self, f: Tracked, hit: &PacketHit, entry: u64, here: &mut Here) {
        let Some(open) = self.open.remove(&entry).filter(|o| o.probe == hit.probe) else { return };
        if let Some(numbers) = self.waiting.get_mut(&open.head) {
            numbers.retain(|number| *number != entry);
            if numbers.is_empty() {
                self.waiting.remove(&open.head);
            }
        }
        let id = self.roles_at_return(f.roles, &open, hit, here);
        if id == 0 || !f.logged {
            return;
        }
        let returned = f.roles & role::RETURN != 0;
        let flags = if open.list || open.chain { Call::LIST } else { 0 }
            | if returned { Call::RETURNED } else { 0 }
            | if open.ends { Call::ENDS } else { 0 };
        self.task(hit, here);
        here.put(Record::Call(Call {
            func: f.func,
            ctx: open.ctx,
            flags,
            skb_tag: if f.hidden || open.list || returned { 0 } else { (open.skb >> 6) as u16 },
            pid: open.pid,
            packet: PacketId(id),
            entry: open.at,
            dur_ns: here.at.0.saturating_sub(open.at.0).max(0) as u64,
        }));
    }

    fn roles_at_return(&mut self, roles: u16, open: &Open, hit: &PacketHit, here: &mut Here) -> u64 {
        let is = |role: u16| roles & role != 0;
        let (id, packet) = (open.packet, hit.packet.as_deref());
        if is(role::EXPAND) {
            self.moving.remove(&open.skb);
            let Some(p) = packet.filter(|_| id != 0) else { return id };
            if self.packets.get(&p.head).is_none_or(|k| k.id != id) && self.insert(p, id).is_some() {
                here.lineage(LineageKind::Realloc, id, id);
            }
            return id;
        }
        // What failed returns a number.
        let Some(p) = packet.filter(|_| hit.value != 0 && hit.value < -4095i64 as u64) else { return id };
        if is(role::ALLOC) {
            self.packets.remove(&p.head);
            return id;
        }
        if is(role::RETURN) {
            return self.packet_of(p, false, here);
        }
        if id == 0 {
            return id;
        }
        if is(role::CLONE) {
            here.lineage(LineageKind::Clone, id, id);
        } else if is(role::COPY | role::SEGMENT | role::FRAGMENT) {
            self.born(roles, p, id, here);
        }
        if let (true, PacketMoment::Return { entry }) = (is(role::SEGMENT), hit.what) {
            if self.segmented.len() >= MOST_SEGMENTED {
                self.segmented.clear();
            }
            self.segmented.insert(entry, id);
        }
        id
    }

    /// A packet that came out of a call: one of its own unless it shares its parent's buffer.
    fn born(&mut self, roles: u16, p: &Packet, parent: u64, here: &mut Here) {
        if self.packets.get(&p.head).is_some_and(|k| k.id == parent) {
            return;
        }
        let kind = match roles {
            r if r & role::COPY != 0 => LineageKind::Copy,
            r if r & role::SEGMENT != 0 => LineageKind::Segment,
            _ => LineageKind::Fragment,
        };
        let id = self.new_id();
        // Nothing is logged of its headers yet.
        if self.keep(p.head, Known { id, sig: 0, link: 0, dev: 0 }).is_some() {
            here.lineage(kind, parent, id);
        }
    }

    /// A packet is freed for a reason, unless others hold it still.
    fn dropped(&mut self, hit: &PacketHit, ctx: Context, id: u64, why: (u64, u64), here: &mut Here) {
        if id != 0 && hit.packet.as_ref().is_some_and(|p| p.users <= 1) {
            self.task(hit, here);
            here.put(drop_event(hit.pid, ctx, id, why, here.at));
        }
    }

    fn member(&mut self, f: Tracked, hit: &PacketHit, entry: u64, here: &mut Here) {
        let Some(p) = hit.packet.as_deref() else { return };
        if f.drops.is_some() {
            if let Some(why) = self.chains.get(&entry).copied() {
                let id = self.packet_of(p, true, here);
                self.dropped(hit, context(hit.contexts), id, why, here);
            }
            return;
        }
        if f.roles & role::SEGMENT != 0 {
            if let Some(parent) = self.segmented.get(&entry).copied() {
                self.born(f.roles, p, parent, here);
            }
            return;
        }
        let id = self.packet_of(p, false, here);
        if id != 0 && f.roles & role::LINK != 0 {
            self.has_link(p, id, here);
        }
        let Some(open) = self.open.get_mut(&entry).filter(|_| id != 0) else { return };
        if open.packet == 0 {
            (open.packet, open.list) = (id, true);
            return;
        }
        open.chain = true;
        let (entry, func) = (open.at, f.func);
        here.put(Record::Member(Member { func, packet: PacketId(id), entry }));
    }

    /// The number of a packet; 0: not wanted, or not known. `settled`: what is not known begins no packet here.
    fn packet_of(&mut self, p: &Packet, settled: bool, here: &mut Here) -> u64 {
        if p.head == 0 {
            return 0;
        }
        let Some(known) = self.packets.get(&p.head).copied() else {
            return if settled { 0 } else { self.admit(p, here) };
        };
        let sig = signature(p);
        if !settled && sig != 0 && (sig != known.sig || p.dev != known.dev) {
            let link = self.link_signature(p);
            if sig == known.sig && link == known.link {
                self.place(p, known.id, here);
            } else {
                self.footprint(p, known.id, here);
            }
            self.packets.insert(p.head, Known { id: known.id, sig, link, dev: p.dev });
        }
        known.id
    }

    /// First sight of a buffer: is it a packet, and is it wanted?
    fn admit(&mut self, p: &Packet, here: &mut Here) -> u64 {
        let sig = signature(p);
        if sig == 0 && (self.filter.is_some() || p.sk == 0 || !INET.contains(&p.sk_family)) {
            return 0;
        }
        let place = self.world.locate(here.guest, p.dev, p.sk_net);
        if place.netns == 0 {
            if sig != 0 && is_kernel(p.dev) && ethertype(p) >= 0x600 && self.is_wanted(p, &place) {
                here.put(Record::Loss(Loss {
                    cause: LossCause::NoDevice,
                    cpu: here.cpu.into(),
                    from: here.at,
                    to: here.at,
                    count: 1,
                }));
            }
            return 0;
        }
        if sig != 0 && (ethertype(p) < 0x600 || !self.is_wanted(p, &place)) {
            return 0;
        }
        let id = self.new_id();
        if self.insert(p, id).is_none() {
            self.homeless += 1;
            return 0;
        }
        for number in self.waiting.remove(&p.head).unwrap_or_default() {
            if let Some(open) = self.open.get_mut(&number) {
                open.packet = id;
            }
        }
        if sig != 0 || p.transport != UNSET {
            self.footprint(p, id, here);
        }
        id
    }

    fn is_wanted(&self, p: &Packet, place: &Where) -> bool {
        let Some(filter) = &self.filter else { return true };
        let link = link_valid(p, place.link_type);
        let start = if link { p.mac } else { network(p) };
        filter.matches(link, bytes_from(p, start), length_from(p, start))
    }

    fn new_id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn insert(&mut self, p: &Packet, id: u64) -> Option<()> {
        let known = Known { id, sig: signature(p), link: self.link_signature(p), dev: p.dev };
        self.keep(p.head, known)
    }

    fn keep(&mut self, head: u64, known: Known) -> Option<()> {
        if self.packets.len() >= MOST && !self.packets.contains_key(&head) {
            return None;
        }
        self.packets.insert(head, known);
        Some(())
    }

    fn cloned(&self, p: &Packet) -> bool {
        p.bits[0] >> self.bits.cloned & 1 != 0
    }

    fn last_holder(&self, p: &Packet) -> bool {
        let without_header = p.bits[1] >> self.bits.nohdr & 1 != 0;
        !self.cloned(p) || p.dataref == if without_header { (1 << 16) + 1 } else { 1 }
    }

    /// A VLAN tag that is not in the data but beside it, 0: none.
    fn hidden_tag(&self, p: &Packet) -> u16 {
        let tci = match self.bits.vlan_present {
            Some(bit) if p.bits[2] >> bit & 1 == 0 => return 0,
            Some(_) => p.vlan as u16,
            None if p.vlan == 0 => return 0,
            None => (p.vlan >> 16) as u16,
        };
        tci & 0xefff | VLAN_PRESENT
    }

    fn link_signature(&self, p: &Packet) -> u64 {
        let tag = u64::from(self.hidden_tag(p)) << 1;
        if p.mac == UNSET || u32::from(p.network) < u32::from(p.mac) + 14 {
            return tag;
        }
        (word(p, p.mac.into()) ^ word(p, u32::from(p.mac) + 8).wrapping_mul(131) ^ tag) | 1
    }

    fn footprint(&mut self, p: &Packet, id: u64, here: &mut Here) {
        let place = self.world.locate(here.guest, p.dev, p.sk_net);
        let nh = network(p);
        let protocol = if nh != 0 && nh != UNSET { ethertype(p) } else { 0 };
        let (start_layer, start, ip_proto) = match protocol {
            0 => (4, p.transport, if p.sk == 0 { 0 } else { p.sk_protocol as u8 }),
            _ if link_valid(p, place.link_type) => (2, p.mac, 0),
            _ => (3, nh, 0),
        };
        let bytes = if start == UNSET { &[][..] } else { bytes_from(p, start) };
        let mut header = [0; FootprintRecord::MAX_HEADER];
        let n = bytes.len().min(header.len());
        header[..n].copy_from_slice(&bytes[..n]);
        let record = wire::Footprint {
            h: wire::Head { kind: 0, slots: 0, func: 0, pid: 0, ts: here.at.0 as u64 },
            packet: id as u32,
            ifindex: place.ifindex,
            netns: place.netns,
            // Room for a tag that is put back.
            len: length_from(p, start).min(u32::MAX - 4),
            gso_size: p.gso_size,
            gso_segs: p.gso_segs,
            protocol,
            link_type: place.link_type,
            skb_tag: (p.skb >> 6) as u16,
            start_layer,
            ip_proto,
            header_len: n as u8,
            ctx: 0,
            vlan_tci: self.hidden_tag(p),
            header,
        };
        here.put(Record::Footprint(Box::new(sink::footprint(id + 1, &record))));
    }

    fn place(&mut self, p: &Packet, id: u64, here: &mut Here) {
        let Some(w) = self.world.device(here.guest, p.dev) else { return };
        here.put(Record::Place(Place {
            packet: PacketId(id),
            at: here.at,
            ifindex: w.ifindex,
            netns: w.netns,
            link_type: w.link_type,
            skb_tag: (p.skb >> 6) as u16,
        }));
    }

    /// Names the task of a hit, if the log has not done so.
    fn task(&mut self, hit: &PacketHit, here: &mut Here) {
        let name = (hit.tgid, hit.comm.clone());
        if self.tasks.get(&hit.pid) == Some(&name) {
            return;
        }
        here.put(Record::Process(Box::new(Process {
            at: here.at,
            pid: hit.pid,
            tgid: hit.tgid,
            comm: String::from_utf8_lossy(&hit.comm).into_owned(),
        })));
        if self.tasks.len() >= MOST {
            self.tasks.clear();
        }
        self.tasks.insert(hit.pid, name);
    }

    /// The recording is over: calls that are still open.
    pub fn end(&mut self) {
        self.unreturned += self.open.drain().filter(|(_, o)| o.packet != 0).count() as u64;
    }

    pub fn last(&self) -> BootNs {
        self.last
    }
}

/// Where and when a hit was.
struct Here<'a, 'b> {
    guest: &'a Guest,
    cpu: u16,
    at: BootNs,
    out: &'a mut Out<'b>,
}

impl Here<'_, '_> {
    fn put(&mut self, record: Record) {
        (self.out)(self.cpu, record);
    }

    fn lineage(&mut self, kind: LineageKind, parent: u64, child: u64) {
        let (parent, child) = (PacketId(parent), PacketId(child));
        self.put(Record::Lineage(Lineage { kind, at: self.at, parent, child }));
    }
}

fn drop_event(pid: u32, ctx: Context, id: u64, (reason, place): (u64, u64), at: BootNs) -> Record {
    Record::Event(Box::new(Event {
        kind: EventKind::Drop,
        ctx,
        pid,
        at,
        timed: Timed::Kernel,
        packet: PacketId(id),
        netns: 0,
        a: u64::from(reason as u32),
        b: place,
        text: String::new(),
    }))
}

fn tag(f: Tracked, p: Option<&Packet>) -> u16 {
    if f.hidden { 0 } else { p.map_or(0, |p| (p.skb >> 6) as u16) }
}
