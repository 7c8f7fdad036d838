//! From rings to chunks: raw records become klog records, per CPU; a chunk goes to disk, or into the bounded memory of
//! the flight recorder. Losses that the kernel side counted become loss records at their place in the stream.

mod applications;
mod profile;
mod strangers;
mod wifi;

use crate::app::{Addresses, Sockets};
use crate::links::Links;
use crate::mappings::Mappings;
use crate::ring::{Raw, Rings};
use crate::work::Labels;
use crate::{headers, sys, wire};
use kpat_klog::{AppEncoder, Chunk, Codec, Encoder};
use kpat_model as model;
use kpat_model::{BootNs, FuncId, PacketId};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
pub use strangers::Strangers;

/// The log's 64-bit id of a packet of whose number only the low `bits` are known, given the number of the `next` one: the
/// newest older one that fits.
fn full_id(next: u64, low: u32, bits: u32) -> PacketId {
    if low == 0 {
        return PacketId::NONE;
    }
    let newest = next.wrapping_sub(1);
    PacketId(newest.wrapping_sub(newest.wrapping_sub(low as u64) & ((1 << bits) - 1)))
}

/// Of a call 24 bits are known: they share a word with the time of its entry.
const CALL_BITS: u32 = 24;

struct Cpu {
    encoder: Encoder,
    app: AppEncoder,
    /// Of each source.
    losses: Vec<[u64; 16]>,
    /// When losses and age of the open chunk were last looked at.
    looked: BootNs,
    opened: BootNs,
}

/// What of drops has a name that the log does not have yet.
#[derive(Default)]
pub struct Drops {
    /// Where packets were dropped.
    pub addresses: HashSet<u64>,
    pub reasons: HashSet<u32>,
}

/// Keeps what was drained until it is written.
pub struct Sink {
    cpus: Vec<Cpu>,
    /// Chunks ready to go.
    ready: Vec<Chunk>,
    pub records: u64,
    /// Totals by cause and CPU, of everything that was lost.
    pub lost: BTreeMap<(u8, i32), u64>,
    /// Of drops, to be named at the end.
    pub drops: Drops,
    /// The kernel's in stacks, too.
    pub frames: HashSet<u64>,
    /// Of a profile with samples.
    pub mappings: Mappings,
    /// Of a flight recorder that dumps by itself.
    pub watch: Option<crate::recorder::Watch>,
    /// Whom the log named, by thread id; `None`: nobody will ask.
    pub tasks: Option<BTreeMap<u32, model::meta::Task>>,
    /// Process and name of tasks that system events named, by thread id.
    announcers: HashMap<u32, (u32, String)>,
    /// Network namespaces of packets and sockets.
    pub strangers: Strangers,
    /// Of an application recording.
    pub sockets: Option<Sockets>,
    /// What of user space's own records identifies somebody is treated so.
    pub identity: Addresses,
    /// Of a profile.
    pub labels: Labels,
    /// Of a recording of radios.
    pub radios: crate::radios::Radios,
    /// The same.
    pub links: Option<Links>,
}

/// Names of tasks that are remembered as logged.
const MOST_ANNOUNCERS: usize = 4096;

/// A chunk is closed at this age even if small, so that a log being written can be followed.
const CHUNK_AGE_NS: i64 = 500_000_000;

impl Sink {
    pub fn new(cpus: usize, sources: usize, codec: Codec) -> Sink {
        let now = sys::boot_now();
        let cpu = |i| Cpu {
            encoder: Encoder::new(i as u16, codec),
            app: AppEncoder::new(i as u16, codec),
            losses: vec![[0; 16]; sources],
            looked: now,
            opened: now,
        };
        Sink {
            cpus: (0..cpus).map(cpu).collect(),
            ready: Vec::new(),
            records: 0,
            lost: Default::default(),
            drops: Drops::default(),
            frames: HashSet::new(),
            mappings: Mappings::default(),
            watch: None,
            tasks: None,
            announcers: HashMap::new(),
            strangers: Strangers::default(),
            sockets: None,
            identity: Default::default(),
            labels: Default::default(),
            radios: Default::default(),
            links: None,
        }
    }

    /// Takes everything out of one CPU's ring of what programs say.
    pub fn drain_programs(&mut self, rings: &Rings, cpu: usize) {
        let (state, tasks, ready) = (&mut self.cpus[cpu], &mut self.tasks, &mut self.ready);
        let identity = &self.identity;
        self.records += rings.drain(cpu, &mut |raw, _| {
            match raw {
                Raw::Process(r) => {
                    if let Some(tasks) = tasks {
                        tasks.insert(r.h.pid, task(r));
                    }
                    state.encoder.process(&process(r, identity));
                }
                Raw::Program(r) => {
                    if let Some(record) = program(r) {
                        state.encoder.columns(&identity.program(record));
                    }
                }
                _ => debug_assert!(false, "the kernel side of programs writes no such record"),
            }
            if state.encoder.is_full() {
                ready.extend(state.encoder.finish());
            }
        });
    }

    /// A record of user space's own about a CPU.
    pub fn of_cpu(&mut self, cpu: u16, record: &model::Record) {
        let Some(state) = self.cpus.get_mut(usize::from(cpu)) else { return };
        state.encoder.record(record);
        self.records += 1;
        if state.encoder.is_full() {
            self.ready.extend(state.encoder.finish());
        }
    }

    /// Takes everything out of one CPU's ring of packets.
    pub fn drain_packets(&mut self, rings: &Rings, cpu: usize) {
        self.label_again(cpu);
        let state = &mut self.cpus[cpu];
        let (ready, drops, watch) = (&mut self.ready, &mut self.drops, &mut self.watch);
        let (encoder, tasks, strangers) = (&mut state.encoder, &mut self.tasks, &mut self.strangers);
        let (labels, identity) = (&mut self.labels, &self.identity);
        let mut labelled = 0;
        self.records += rings.drain(cpu, &mut |raw, next| {
            if let Raw::Process(r) = &raw {
                if let Some(tasks) = &mut *tasks {
                    tasks.insert(r.h.pid, task(r));
                }
                if let Some(label) = labels.of(r, comm(r)) {
                    encoder.record(&label);
                    labelled += 1;
                }
            }
            if let Some(watch) = watch {
                look_at(watch, next, &raw);
            }
            strangers.look(&raw);
            put(encoder, next, raw, drops, identity);
            if encoder.is_full() {
                ready.extend(encoder.finish());
            }
        });
        self.records += labelled;
    }

    /// Looks at the loss counters of one CPU's ring of a source.
    pub fn count_losses(&mut self, source: usize, rings: &Rings, cpu: usize, now: BootNs) {
        let state = &mut self.cpus[cpu];
        let losses = rings.losses(cpu);
        // Counters of causes that the kernel side does not have stay 0, and causes above them have none.
        for (i, (now_lost, before)) in losses.iter().zip(&state.losses[source]).enumerate() {
            let more = now_lost.wrapping_sub(*before);
            if let Some(cause) = model::LossCause::from_u8(i as u8).filter(|_| more > 0) {
                let loss = model::Loss { cause, cpu: cpu as i32, from: state.looked, to: now, count: more };
                state.encoder.loss(&loss);
                *self.lost.entry((cause as u8, cpu as i32)).or_insert(0) += more;
            }
        }
        state.losses[source] = losses;
    }

    /// Closes chunks that have become old. To be called when losses were counted.
    pub fn look(&mut self, now: BootNs, close: bool) {
        for (cpu, state) in self.cpus.iter_mut().enumerate() {
            if let Some(sockets) = &mut self.sockets {
                sockets.due(cpu as u16).iter().for_each(|r| state.app.record(r));
            }
            state.looked = now;
            if state.encoder.count() + state.app.count() == 0 {
                state.opened = now;
            } else if close || now.0 - state.opened.0 > CHUNK_AGE_NS {
                self.ready.extend(state.encoder.finish());
                self.ready.extend(state.app.finish());
                state.opened = now;
            }
        }
    }

    /// Crossings that were lost and after which none came on their CPU: no program runs any more, so they are logged here.
    pub fn tell_gaps(&mut self, rings: &Rings, now: BootNs) {
        for (cpu, state) in self.cpus.iter_mut().enumerate() {
            if let Some((since, lost)) = rings.take_unlogged(cpu) {
                state.app.gap(&model::Gap { since: BootNs(since as i64), until: now, lost: lost as u32 });
                self.records += 1;
            }
        }
    }

    /// A record of user space's own (netlink events, losses seen elsewhere).
    pub fn event(&mut self, e: &model::Event) {
        self.cpus[0].encoder.event(&self.identity.event(e));
        self.records += 1;
    }

    /// What a card's clock showed.
    pub fn card_reading(&mut self, r: &model::CardReading) {
        self.cpus[0].encoder.columns(&self.identity.card_reading(r));
        self.records += 1;
    }

    /// An event that happened after `after`, and not after its time, which is when its announcement was read.
    pub fn event_within(&mut self, mut e: model::Event, after: BootNs) {
        if e.is_namespaces_own() && e.a == 0 {
            self.strangers.gone(e.netns);
        }
        e.timed = model::Timed::Read { within_ns: e.at.0.saturating_sub(after.0).max(0) as u64 };
        self.event(&e);
        self.link(0, &e);
    }

    /// An event that the kernel stamped: it goes to the CPU where it happened, its task is named.
    pub fn event_stamped(&mut self, mut e: model::Event, by: &crate::netlink::Stamp) {
        let cpu = usize::from(by.cpu);
        let Some(state) = self.cpus.get_mut(cpu) else { return self.event_within(e.clone(), e.at) };
        let task = (by.tgid, by.comm.clone());
        if self.announcers.get(&by.pid) != Some(&task) {
            let (at, pid, tgid, comm) = (e.at, by.pid, by.tgid, by.comm.clone());
            if let Some(tasks) = &mut self.tasks {
                tasks.insert(pid, model::meta::Task { at, pid, tgid, comm: comm.clone() });
            }
            let comm = self.identity.thread(comm);
            state.encoder.process(&model::Process { at, pid, tgid, comm });
            self.records += 1;
            if self.announcers.len() >= MOST_ANNOUNCERS {
                self.announcers.clear();
            }
            self.announcers.insert(by.pid, task);
        }
        e.timed = model::Timed::Kernel;
        state.encoder.event(&self.identity.event(&e));
        self.records += 1;
        if state.encoder.is_full() {
            self.ready.extend(state.encoder.finish());
        }
        self.link(cpu, &e);
    }

    /// A socket that is wanted from now on.
    pub fn socket(&mut self, r: &model::SocketRecord) {
        self.cpus[0].app.socket(r);
        self.records += 1;
    }

    pub fn loss(&mut self, l: &model::Loss) {
        self.count(l);
        self.tell(l);
    }

    /// Adds to the totals only: the record itself cannot be written now.
    pub fn count(&mut self, l: &model::Loss) {
        *self.lost.entry((l.cause as u8, l.cpu)).or_insert(0) += l.count;
    }

    /// Puts a loss that was counted before into the stream.
    pub fn tell(&mut self, l: &model::Loss) {
        self.cpus[l.cpu.max(0) as usize].encoder.loss(l);
    }

    pub fn take_ready(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.ready)
    }

    pub fn total_lost(&self, cause: model::LossCause) -> u64 {
        self.lost.iter().filter(|((c, _), _)| *c == cause as u8).map(|(_, n)| n).sum()
    }
}

/// What a flight recorder's triggers have to know of.
fn look_at(watch: &mut crate::recorder::Watch, next: u64, raw: &Raw<'_>) {
    let id = |low| full_id(next, low, 32);
    match raw {
        Raw::Footprint(r) => watch.footprint(&footprint(next, r)),
        Raw::Point(r) => watch.seen(id(r.packet), BootNs(r.h.ts as i64), r.flags & model::Call::ENDS != 0),
        Raw::Call(r) => {
            let ends = r.flags & model::Call::ENDS != 0;
            watch.seen(full_id(next, r.packet, CALL_BITS), BootNs(r.h.ts as i64), ends);
        }
        Raw::Event(r) if r.h.func == model::EventKind::Drop as u16 => {
            watch.dropped(id(r.packet), u64::from(r.a as u32), r.b)
        }
        _ => {}
    }
}

fn put(encoder: &mut Encoder, next: u64, raw: Raw<'_>, drops: &mut Drops, identity: &Addresses) {
    let id = |low| full_id(next, low, 32);
    match raw {
        Raw::Call(r) => encoder.call(&model::Call {
            func: FuncId(r.h.func),
            ctx: model::Context::from_u8(r.ctx),
            flags: r.flags,
            skb_tag: r.skb_tag,
            pid: r.h.pid,
            packet: full_id(next, r.packet, CALL_BITS),
            entry: BootNs(r.h.ts as i64),
            dur_ns: (r.dur_hi as u64) << 32 | r.dur_lo as u64,
        }),
        Raw::Point(r) => encoder.point(&model::Point {
            func: FuncId(r.h.func),
            ctx: model::Context::from_u8(r.ctx),
            skb_tag: r.skb_tag,
            pid: r.h.pid,
            packet: id(r.packet),
            at: BootNs(r.h.ts as i64),
            len_bytes: r.len,
            ends: r.flags & model::Call::ENDS != 0,
            put_off: r.flags & model::Point::PUT_OFF != 0,
        }),
        Raw::Member(r) => encoder.member(&model::Member {
            func: FuncId(r.h.func),
            packet: id(r.packet),
            entry: BootNs(r.h.ts as i64),
        }),
        Raw::Footprint(r) => encoder.footprint(&footprint(next, r)),
        Raw::Place(r) => encoder.place(&model::Place {
            packet: id(r.packet),
            at: BootNs(r.h.ts as i64),
            ifindex: r.ifindex,
            netns: r.netns,
            link_type: r.link_type,
            skb_tag: r.skb_tag,
        }),
        Raw::Lineage(r) => {
            if let Some(kind) = model::LineageKind::from_u8(r.h.func as u8) {
                let (parent, child) = (id(r.parent), id(r.child));
                encoder.lineage(&model::Lineage { kind, at: BootNs(r.h.ts as i64), parent, child });
            }
        }
        Raw::Event(r) => {
            let (at, packet) = (BootNs(r.h.ts as i64), id(r.packet));
            match u32::from(r.h.func) {
                wire::event_kind::EV_POLL => {
                    let (since_ns, wait_ns) = (r.a.checked_sub(1), r.b.checked_sub(1));
                    encoder.columns(&model::Poll { at, packet, since_ns, wait_ns });
                }
                wire::event_kind::EV_POLLED => encoder.columns(&model::PollEnd {
                    at,
                    packet,
                    taken: r.a as u32,
                    budget: (r.a >> 32) as u32,
                    round: r.b,
                }),
                wire::event_kind::EV_STAMP => encoder.columns(&model::CardStamp {
                    at,
                    packet,
                    netns: r.netns,
                    ifindex: r.b as u32,
                    card_ns: r.a as i64,
                }),
                kind => {
                    let kind = u8::try_from(kind).ok().and_then(model::EventKind::from_u8);
                    let Some(kind) = kind else { return debug_assert!(false, "an event of no kind") };
                    if kind == model::EventKind::Drop {
                        drops.addresses.insert(r.b);
                        drops.reasons.insert(r.a as u32);
                    }
                    encoder.event(&model::Event {
                        kind,
                        ctx: model::Context::from_u8(r.ctx),
                        pid: r.h.pid,
                        at,
                        timed: model::Timed::Kernel,
                        packet,
                        netns: r.netns,
                        a: r.a,
                        b: r.b,
                        text: String::new(),
                    });
                }
            }
        }
        Raw::Pause(r) => encoder.columns(&model::OffCpu {
            pid: r.h.pid,
            from: BootNs(r.h.ts.wrapping_sub(r.dur) as i64),
            to: BootNs(r.h.ts as i64),
            preempted: r.h.func & model::OffCpu::PREEMPTED != 0,
            wait_ns: r.wait,
            more: r.h.func & model::OffCpu::MORE != 0,
            cpu_out: r.cpu_out,
            cpu_in: r.cpu_in,
            sleep: model::OffCpu::sleep_of(r.h.func),
        }),
        Raw::Process(r) => encoder.process(&process(r, identity)),
        Raw::Crossing(_)
        | Raw::Socket(_)
        | Raw::Tcp(_)
        | Raw::Gap(_)
        | Raw::ThreadTime(_)
        | Raw::Sample(_)
        | Raw::Stack(_)
        | Raw::Program(_)
        | Raw::Radio(_)
        | Raw::Carrier(_)
        | Raw::Frame(_)
        | Raw::Peer(_) => {
            debug_assert!(false, "the kernel side of packets writes no such record");
        }
    }
}

/// As the log has it; `next`: a number above the packet's.
pub fn footprint(next: u64, r: &wire::Footprint) -> model::FootprintRecord {
    let (header, tag_bytes) = header_as_on_the_wire(r);
    model::FootprintRecord {
        packet: full_id(next, r.packet, 32),
        at: BootNs(r.h.ts as i64),
        ifindex: r.ifindex,
        netns: r.netns,
        len_bytes: r.len + tag_bytes,
        gso_size: r.gso_size,
        gso_segs: r.gso_segs,
        protocol: r.protocol,
        start_layer: r.start_layer,
        ip_proto: r.ip_proto,
        link_type: r.link_type,
        skb_tag: r.skb_tag,
        header,
    }
}

fn program(r: &wire::Program) -> Option<model::ProgramRecord> {
    // More was read than a string has that ends before; one that has no end goes on behind these bytes.
    let read = &r.text[..usize::from(r.text_len).min(r.text.len())];
    let text = match read.iter().position(|c| *c == 0) {
        Some(end) => String::from_utf8_lossy(&read[..end]).into_owned(),
        None if read.len() == r.text.len() => format!("{}…", String::from_utf8_lossy(read)),
        None => String::from_utf8_lossy(read).into_owned(),
    };
    Some(model::ProgramRecord {
        at: BootNs(r.h.ts as i64),
        pid: r.h.pid,
        func: FuncId(r.h.func),
        stage: model::Stage::from_u8(r.stage)?,
        faults: r.faults,
        values: r.value,
        text,
    })
}

fn process(r: &wire::Process, identity: &Addresses) -> model::Process {
    model::Process { at: BootNs(r.h.ts as i64), pid: r.h.pid, tgid: r.tgid, comm: identity.thread(comm(r)) }
}

fn task(r: &wire::Process) -> model::meta::Task {
    model::meta::Task { at: BootNs(r.h.ts as i64), pid: r.h.pid, tgid: r.tgid, comm: comm(r) }
}

fn comm(r: &wire::Process) -> String {
    let end = r.comm.iter().position(|c| *c == 0).unwrap_or(r.comm.len());
    String::from_utf8_lossy(&r.comm[..end]).into_owned()
}

const ARPHRD_IEEE80211: u16 = 801;

/// Header bytes without the data behind them, with the VLAN tag, which the kernel keeps beside the data, put where a frame
/// has it; and the length of that tag.
fn header_as_on_the_wire(r: &wire::Footprint) -> (model::HeaderBytes, u32) {
    const MAX: usize = model::FootprintRecord::MAX_HEADER;
    let kept = usize::from(r.header_len).min(MAX);
    if r.start_layer == 2 && r.link_type == ARPHRD_IEEE80211 {
        return (model::HeaderBytes::new(&r.header[..headers::air_len(&r.header[..kept])]), 0);
    }
    let header = &r.header[..headers::len(&r.header[..kept], r.start_layer, r.protocol, r.ip_proto)];
    if r.vlan_tci == 0 || r.start_layer != 2 || header.len() < 14 {
        return (model::HeaderBytes::new(header), 0);
    }
    let tci = (r.vlan_tci & 0xefff).to_be_bytes();
    let mut tagged = [0; MAX + 4];
    tagged[..12].copy_from_slice(&header[..12]);
    tagged[12..16].copy_from_slice(&[0x81, 0x00, tci[0], tci[1]]);
    tagged[16..header.len() + 4].copy_from_slice(&header[12..]);
    (model::HeaderBytes::new(&tagged[..header.len() + 4]), 4)
}

/// The flight recorder's memory: the newest chunks up to a number of bytes.
pub struct Memory {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    limit: usize,
    pub evicted_records: u64,
}

impl Memory {
    pub fn new(limit: usize) -> Memory {
        Memory { chunks: VecDeque::new(), bytes: 0, limit, evicted_records: 0 }
    }

    pub fn push(&mut self, chunk: Chunk) {
        self.bytes += chunk.len_bytes();
        self.chunks.push_back(chunk);
        while self.bytes > self.limit {
            let Some(old) = self.chunks.pop_front() else { break };
            self.bytes -= old.len_bytes();
            self.evicted_records += old.count as u64;
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Everything whose last record is not older than `since`; the memory is empty afterwards.
    pub fn take(&mut self, since: BootNs) -> Vec<Chunk> {
        self.bytes = 0;
        self.chunks.drain(..).filter(|c| c.last >= since).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_newest_packet_that_fits() {
        assert_eq!(full_id(9, 0, 32), PacketId::NONE);
        assert_eq!(full_id(9, 5, 32).0, 5);
        assert_eq!(full_id(0x1_0000_0003, 2, 32).0, 0x1_0000_0002);
        assert_eq!(full_id(0x1_0000_0003, 0xffff_fffd, 32).0, 0xffff_fffd);
        assert_eq!(full_id(0x300_0005, 4, CALL_BITS).0, 0x300_0004);
        assert_eq!(full_id(0x300_0005, 0xff_ffff, CALL_BITS).0, 0x2ff_ffff);
    }
}
