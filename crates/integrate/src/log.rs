//! The pass over the kernel behaviour log: every record once, in order of end time, into the tables that need nothing
//! else, and into what matching needs.

use crate::absurd::{MAX_TIME, tame_record};
use crate::ahead;
use crate::arrivals::Arrivals;
use crate::captures::Met;
use crate::charges::Charges;
use crate::clock::sample::Seen;
use crate::datagrams::Datagrams;
use crate::error::Result;
use crate::flatten::{Prints, call_row, id, off_cpu_row};
use crate::flows::Flows;
use crate::functions::{CallIndex, Stats};
use crate::lines;
use crate::matching::Sighting;
use crate::nesting::{Nesting, Placed};
use crate::packets::{Ended, Knows, Packets, Reason, Terms, Touch, dropper};
use crate::polls::Polls;
use crate::programs::Programs;
use crate::report::{Held, Options, Progress, Stage};
use crate::samples::Samples;
use crate::spill::Sorter;
use crate::stamps::{Clocks, Stamps};
use crate::wifi::Network;
use kpat_klog::{Log, end_time};
use kpat_model::hash::{Map, Set};
use kpat_model::meta::Device;
use kpat_model::{
    BootNs, Call, EventKind, FootprintRecord, GuestClock, Loss, LossCause, Member, Record, Timed,
};
use kpat_query::paths::Paths;
use kpat_query::roles::{LOCAL_IN, QDISC_IN, Roles, XMIT};
use kpat_store::TableWriter;
use kpat_store::tables::*;
use std::path::Path;
use std::sync::mpsc::sync_channel;

/// Writers of the tables that the log alone fills.
struct Tables {
    call: TableWriter<CallRow>,
    member: TableWriter<CallMemberRow>,
    event: TableWriter<EventRow>,
    footprint: Prints,
    lineage: TableWriter<LineageRow>,
    pause: TableWriter<PauseRow>,
    process: TableWriter<ProcessRow>,
    loss: TableWriter<LossRow>,
    poll: TableWriter<PollRow>,
    packet: TableWriter<PacketRow>,
    index: CallIndex,
    paths: Paths,
}

/// What the pass leaves for the rest.
pub(super) struct Passed {
    pub stats: Vec<Stats>,
    pub stamps: Clocks,
    /// What became of the lines of log files, a sentence for each.
    pub lines: Vec<String>,
    pub met: Met,
    pub held: Held,
    /// Records of packets that were over, and packets that were ended because too many were alive.
    pub late: u64,
    pub late_packets: u64,
    pub forced: u64,
    pub records: u64,
    pub calls: u64,
    pub packet_rows: u64,
    pub lost: u64,
    pub damaged_bytes: u64,
    pub crossing: u64,
    pub clamped: u64,
    pub more_pauses: u64,
    /// Times outside of what a clock can show.
    pub absurd: u64,
    /// Members whose call never came.
    pub orphans: u64,
    pub first: i64,
    pub last: i64,
    pub guest_clock: Vec<GuestClock>,
}

struct Pass<'a> {
    options: &'a Options,
    tables: Tables,
    nesting: Nesting,
    packets: Packets,
    datagrams: Datagrams,
    /// By CPU, of the event behind: when, how long before that at most, and whether the kernel stamped it.
    arrivals: Arrivals,
    polls: Polls,
    stamps: Stamps,
    charges: Charges,
    samples: Samples,
    programs: Programs,
    network: Network,
    sightings: Sorter<Sighting>,
    seen: Seen,
    flows: Flows,
    held: Held,
    stats: Vec<Stats>,
    roles: Vec<Roles>,
    /// Further packets of list calls that have not returned or not been given out, by CPU-independent key.
    members: Map<(u64, i64), Vec<u64>>,
    lost: u64,
    /// Times outside of what a clock can show, moved to its limit.
    absurd: u64,
    first: i64,
    last: i64,
    /// When recording ended, as far as the log says.
    closed: i64,
    swept: i64,
    guest_clock: Vec<GuestClock>,
}

/// Records decoded ahead at a time.
const BATCH: usize = 4096;
/// Records before a footprint when its memory is asked for.
const AHEAD: usize = 8;

/// Packet rows are written to `early` if they lack what matching or the cards' clocks add, everything else to `dir`.
pub(super) fn pass(
    log: &Log,
    dir: &Path,
    early: &Path,
    captures: &[std::path::PathBuf],
    no_sightings: bool,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Passed> {
    let functions = &log.meta().functions;
    let most = functions.iter().map(|f| usize::from(f.id) + 1).max().unwrap_or(0);
    let mut roles = vec![Roles::default(); most];
    functions.iter().for_each(|f| roles[usize::from(f.id)] = Roles::of(&f.name));
    let stamps = Stamps::new(log, dir)?;
    let rewritten = !captures.is_empty() || stamps.expected;
    let mut pass = Pass {
        options,
        tables: Tables {
            call: TableWriter::create_threaded(dir)?,
            member: TableWriter::create(dir)?,
            event: TableWriter::create(dir)?,
            footprint: Prints::create(dir)?,
            lineage: TableWriter::create(dir)?,
            pause: TableWriter::create(dir)?,
            process: TableWriter::create(dir)?,
            loss: TableWriter::create(dir)?,
            poll: TableWriter::create(dir)?,
            packet: TableWriter::create_threaded(if rewritten { early } else { dir })?,
            index: CallIndex::new(early),
            paths: Paths::default(),
        },
        nesting: Nesting::default(),
        packets: Packets::new(no_sightings, crate::cut::behind_network(captures), terms(log, &roles)),
        datagrams: Datagrams::default(),
        arrivals: Arrivals::default(),
        polls: Polls::default(),
        stamps,
        charges: Charges::default(),
        samples: Samples::new(early),
        programs: Programs::new(functions, early),
        network: Network::new(functions),
        sightings: Sorter::new(early, "sightings", 1 << 18),
        seen: Seen::default(),
        flows: Flows::default(),
        held: Held::default(),
        stats: vec![Stats::default(); most],
        roles,
        members: Map::default(),
        lost: 0,
        absurd: 0,
        first: log.forgotten().map_or(i64::MAX, |f| f.first.0.clamp(0, MAX_TIME)),
        last: i64::MIN,
        closed: closed_at(log),
        swept: i64::MIN,
        guest_clock: Vec::new(),
    };
    for t in log.tasks() {
        // Not through the stream: they were named before this log begins.
        let (pid, tgid, comm) = (t.pid as i32, t.tgid as i32, t.comm.clone());
        pass.programs.thread(t.at, t.pid, t.tgid);
        pass.tables.process.push(&ProcessRow { at_ns: t.at.0, pid, tgid, comm })?;
    }
    for m in log.missing() {
        let Some(count) = m.records.filter(|n| *n > 0) else { continue };
        let loss = Loss { cause: LossCause::MissingPart, cpu: -1, from: m.from, to: m.to, count };
        pass.record(0, &mut Record::Loss(loss))?;
    }
    for l in log.forgotten().map_or(&[][..], |f| &f.losses) {
        pass.record(0, &mut Record::Loss(*l))?;
    }
    let total: u64 = log.chunk_index().iter().map(|c| u64::from(c.count)).sum();
    let mut records = 0u64;
    // Decoding has a thread of its own: it is a fifth of the work, and needs nothing of the rest.
    std::thread::scope(|threads| {
        let (give, take) = sync_channel::<Vec<(u16, Record)>>(4);
        // They come back with what is in them, to be used again: memory that one thread gives out and another frees is slow.
        let (give_back, used) = sync_channel::<Vec<(u16, Record)>>(8);
        threads.spawn(move || {
            let mut merged = log.all_merged();
            loop {
                let mut some = used.try_recv().unwrap_or_else(|_| Vec::with_capacity(BATCH));
                merged.recycle(&mut some);
                some.extend(merged.by_ref().take(BATCH));
                // Whoever took them met an error, and tells it.
                if some.is_empty() || give.send(some).is_err() {
                    break;
                }
            }
        });
        for mut batch in take {
            records += batch.len() as u64;
            for i in 0..batch.len() {
                if let Some((_, Record::Footprint(next))) = batch.get(i + AHEAD) {
                    ahead::fetch_one(&**next);
                }
                let (cpu, record) = &mut batch[i];
                pass.record(*cpu, record)?;
            }
            // At the end nobody needs it.
            let _ = give_back.try_send(batch);
            progress(Progress { stage: Stage::Log, done: records, total });
        }
        Ok::<_, crate::Error>(())
    })?;
    progress(Progress { stage: Stage::Log, done: records, total });
    pass.finish(log, dir, early, records)
}

impl Pass<'_> {
    fn footprint(&mut self, cpu: u16, f: &FootprintRecord) -> Result<()> {
        if self.packets.is_new(f.packet.0) {
            let arrival = self.arrivals.first(cpu, f.at.0);
            let stamp = self.stamps.of(cpu, f.packet);
            self.packets.arrival(f.packet.0, f.at.0, (arrival, stamp));
            self.polls.first(cpu, f);
        }
        let print = kpat_capture::decode::packet(f);
        self.packets.footprint(f, &print);
        self.datagrams.print(f, &print, &mut self.packets);
        self.flows.add(&print);
        self.tables.footprint.add(f, &print)
    }

    /// What the record has of texts may be taken out of it.
    fn record(&mut self, cpu: u16, record: &mut Record) -> Result<()> {
        tame_record(record, &mut self.absurd);
        let now = end_time(record).0;
        // A loss may span the whole recording, and a member has its call's entry: neither is a time of the stream.
        if !matches!(record, Record::Loss(_) | Record::Member(_)) {
            self.last = self.last.max(now);
            let began = if let Record::Call(c) = record { c.entry.0 } else { now };
            self.first = self.first.min(began);
            if self.swept == i64::MIN {
                self.swept = now;
            }
            // Half a horizon apart, or sooner where much waits.
            let step = self.options.horizon_ns / 2;
            if now.saturating_sub(self.swept) >= step || self.nesting.pending > 4_000_000 {
                self.swept = now;
                let wait = if self.nesting.pending > 4_000_000 { 0 } else { self.options.horizon_ns };
                self.sweep(now.saturating_sub(wait))?;
            }
        }
        match record {
            Record::Call(c) => self.call(cpu, c),
            Record::Point(p) => {
                self.nesting.point(cpu, p);
                self.arrivals.unknown(cpu);
                let stats = stats_of(&mut self.stats, p.func.0);
                stats.calls += 1;
                let touch = Touch {
                    packet: p.packet.0,
                    func: p.func.0,
                    cpu,
                    entry: p.at.0,
                    end: p.at.0,
                    self_ns: 0,
                    ctx: p.ctx,
                    pid: p.pid,
                    skb_tag: p.skb_tag,
                    point_len: Some(p.len_bytes),
                    moment: true,
                    ends: p.ends,
                    put_off: p.put_off,
                };
                stats.packets += u64::from(self.packets.touch(&touch, roles_of(&self.roles, p.func.0)));
            }
            Record::Member(m) => self.member(m),
            Record::Footprint(f) => self.footprint(cpu, f)?,
            Record::Place(p) => {
                if let Some(f) = self.packets.at_place(p) {
                    self.footprint(cpu, &f)?;
                }
            }
            Record::Lineage(l) => {
                self.packets.lineage(l);
                self.tables.lineage.push(&LineageRow {
                    at_ns: l.at.0,
                    kind: l.kind as i32,
                    parent_id: l.parent.0 as i64,
                    child_id: l.child.0 as i64,
                    inferred: None,
                })?;
            }
            Record::OffCpu(p) => {
                self.nesting.off_cpu(p);
                self.tables.pause.push(&off_cpu_row(p))?;
            }
            Record::Poll(p) => {
                self.arrivals.poll(cpu, p);
                self.polls.began(cpu, p);
            }
            Record::PollEnd(p) => {
                self.packets.polled(cpu);
                self.tables.poll.push(&self.polls.ended(cpu, p))?;
            }
            Record::CardStamp(s) => self.stamps.logged(cpu, *s),
            Record::CardReading(r) => self.stamps.reading((**r).clone())?,
            Record::Work(w) => self.charges.work(cpu, w),
            Record::SocketUse(u) => self.charges.used(u),
            Record::CpuTime(t) => self.charges.time(cpu, t),
            Record::CpuPackets(p) => self.charges.packets(cpu, p),
            Record::BlockRequests(b) => self.charges.requests(b),
            Record::ProcessLabel(l) => self.charges.label((**l).clone()),
            Record::Peer(p) => self.charges.peer(p),
            Record::Sample(s) => self.samples.sample(cpu, s)?,
            Record::Stack(s) => self.samples.stack(s)?,
            Record::Mapping(m) => self.samples.mapping((**m).clone()),
            Record::Program(p) => self.programs.hit(cpu, p)?,
            Record::Wifi(e) => self.network.radio(cpu, (**e).clone()),
            Record::Link(e) => self.network.link(cpu, (**e).clone()),
            Record::Exchange(e) => self.network.exchange(cpu, (**e).clone()),
            // The log has the host's clock, as the captures of the host.
            Record::GuestClock(r) => self.guest_clock.push(*r),
            // What becomes of a part of another packet is that one's.
            Record::Event(e) if !self.packets.event(cpu, e) => {}
            Record::Event(e) => {
                let of_user_space = e.timed != Timed::Kernel;
                self.tables.event.push(&EventRow {
                    at_ns: e.at.0,
                    kind: e.kind as i32,
                    packet_id: id(e.packet),
                    cpu: (!of_user_space).then_some(i32::from(cpu)),
                    ctx: e.ctx as i32,
                    pid: (!of_user_space || e.pid != 0).then_some(e.pid as i32),
                    netns: (e.netns != 0).then_some(i64::from(e.netns)),
                    a: if e.kind == EventKind::Drop { i64::from(e.drop_code()) } else { e.a as i64 },
                    b: e.b as i64,
                    text: std::mem::take(&mut e.text),
                    after_ns: match e.timed {
                        Timed::Read { within_ns } => Some(e.at.0.saturating_sub_unsigned(within_ns)),
                        Timed::Kernel | Timed::Recorder => None,
                    },
                    socket_id: None,
                })?;
            }
            Record::Process(p) => {
                self.programs.thread(p.at, p.pid, p.tgid);
                let (pid, tgid, comm) = (p.pid as i32, p.tgid as i32, std::mem::take(&mut p.comm));
                self.tables.process.push(&ProcessRow { at_ns: p.at.0, pid, tgid, comm })?;
            }
            Record::Loss(l) => {
                self.lost = self.lost.saturating_add(l.count);
                self.arrivals.loss(l);
                self.packets.loss(l);
                if matches!(l.cause, LossCause::RingFull | LossCause::TooOften) {
                    self.programs.lost(l.from, l.to);
                }
                self.tables.loss.push(&LossRow {
                    cause: l.cause as i32,
                    cpu: (l.cpu >= 0).then_some(l.cpu),
                    from_ns: l.from.0,
                    to_ns: l.to.0,
                    count: l.count.min(i64::MAX as u64) as i64,
                })?;
            }
        }
        Ok(())
    }

    fn call(&mut self, cpu: u16, c: &Call) {
        let self_ns = self.nesting.call(cpu, c);
        let dur = c.dur_ns.min(i64::MAX as u64) as i64;
        let within = c.flags & Call::WITHIN != 0;
        // The packet's own call around it is what counts for its way.
        if !within {
            self.arrivals.call(cpu, c.ctx, c, c.entry.0.saturating_add(dur));
        }
        let timed = c.flags & Call::NO_RETURN == 0;
        let stats = stats_of(&mut self.stats, c.func.0);
        stats.calls += 1;
        if timed {
            stats.timed(dur, self_ns, c.packet.0);
        }
        let touch = Touch {
            packet: c.packet.0,
            func: c.func.0,
            cpu,
            entry: c.entry.0,
            end: c.entry.0.saturating_add(dur),
            self_ns: if timed { self_ns } else { 0 },
            ctx: c.ctx,
            pid: c.pid,
            skb_tag: c.skb_tag,
            point_len: None,
            moment: !timed,
            ends: c.flags & Call::ENDS != 0,
            put_off: false,
        };
        stats.packets += u64::from(match within {
            true => self.packets.within(&touch),
            false => self.packets.touch(&touch, roles_of(&self.roles, c.func.0)),
        });
    }

    fn member(&mut self, m: &Member) {
        // Two CPUs do not enter the same function in the same nanosecond often enough to matter.
        self.members.entry((u64::from(m.func.0), m.entry.0)).or_default().push(m.packet.0);
    }

    /// Gives out what is older than `before`.
    fn sweep(&mut self, before: i64) -> Result<()> {
        let Pass { tables, nesting, packets, stats, roles, members, held, .. } = self;
        held.calls = held.calls.max(nesting.pending as u64);
        held.packets = held.packets.max(packets.alive() as u64);
        let list = u16::from(Call::LIST);
        nesting.release(before, |p: Placed<'_>| -> Result<()> {
            let row = call_row(&p);
            tables.index.add(&row)?;
            tables.paths.add(&row, true);
            tables.call.give(row)?;
            let n = p.node;
            if n.flags & list != 0
                && let Some(ids) = members.remove(&(u64::from(n.func), n.entry))
            {
                for packet in ids {
                    let touch = Touch::of_member(n, packet);
                    stats_of(stats, n.func).packets +=
                        u64::from(packets.touch(&touch, roles_of(roles, n.func)));
                    tables.member.push(&CallMemberRow {
                        call_id: p.call_id,
                        packet_id: packet as i64,
                        entry_ns: n.entry,
                    })?;
                }
            }
            Ok(())
        })?;
        let mut found = Vec::new();
        self.datagrams.conclude(before, &mut self.packets, &mut found);
        for l in found {
            self.packets.lineage(&l);
            self.tables.lineage.push(&LineageRow {
                at_ns: l.at.0,
                kind: l.kind as i32,
                parent_id: l.parent.0 as i64,
                child_id: l.child.0 as i64,
                inferred: Some(1),
            })?;
        }
        // List members get their calls only when those are given out, so packets wait longer.
        let before = before.saturating_sub(self.options.horizon_ns);
        let log_end = self.last.max(self.closed);
        self.packets.end(before, log_end, &self.arrivals, |ended: Ended| {
            Ok::<_, crate::Error>(self.tables.packet.give(ended.row)?)
        })?;
        self.keep_sightings()
    }

    fn keep_sightings(&mut self) -> Result<()> {
        for s in self.packets.sightings.drain(..) {
            self.seen.add(s.keys.exact);
            self.sightings.push(s)?;
        }
        Ok(())
    }

    /// What could not be read of the log's files, known when all of it was: it may have held anything.
    fn damage(&mut self, log: &Log) -> Result<u64> {
        let damaged = log.issues().iter().map(|i| i.len).sum::<u64>();
        if damaged > 0 {
            let (from, to) = (self.first.min(self.last), self.last);
            let cause = LossCause::Damaged;
            let loss = Loss { cause, cpu: -1, from: BootNs(from), to: BootNs(to), count: damaged };
            self.packets.loss(&loss);
            self.tables.loss.push(&LossRow {
                cause: cause as i32,
                cpu: None,
                from_ns: from,
                to_ns: to,
                count: damaged.min(i64::MAX as u64) as i64,
            })?;
        }
        Ok(damaged)
    }

    fn finish(mut self, log: &Log, dir: &Path, early: &Path, records: u64) -> Result<Passed> {
        let damaged_bytes = self.damage(log)?;
        self.sweep(i64::MAX)?;
        let log_end = self.last.max(self.closed);
        self.packets.end_all(log_end, &self.arrivals, |ended: Ended| {
            Ok::<_, crate::Error>(self.tables.packet.give(ended.row)?)
        })?;
        self.keep_sightings()?;
        let mut t = self.tables;
        self.programs.finish(log, early, &mut t.event)?;
        self.network.finish(dir)?;
        let began = log.meta().started.boot.0.clamp(0, MAX_TIME);
        let whole = (self.first.min(began), log_end.max(began));
        let lines = lines::add(&self.options.logs, log.anchors(), whole, &mut t.event)?;
        let calls = t.call.finish()?;
        t.index.write(dir)?;
        t.paths.write(dir)?;
        t.member.finish()?;
        t.event.finish()?;
        t.footprint.finish()?;
        t.lineage.finish()?;
        t.pause.finish()?;
        t.process.finish()?;
        t.loss.finish()?;
        t.poll.finish()?;
        self.charges.settle(log.summary().is_some_and(|s| s.complete));
        self.charges.finish(dir)?;
        let kernel = log.symbols().iter().map(|s| (s.addr, s.text.clone())).collect();
        self.samples.finish(dir, &self.charges, &kernel)?;
        let packet_rows = t.packet.finish()?;
        let empty = self.first > self.last;
        let flows = self.flows.lasting(self.first, self.last);
        Ok(Passed {
            stats: self.stats,
            stamps: self.stamps.finish()?,
            met: Met { sightings: self.sightings.finish()?, keys: self.seen, flows },
            held: self.held,
            late: self.packets.late,
            late_packets: self.packets.late_packets,
            forced: self.packets.forced,
            records,
            calls,
            packet_rows,
            lost: self.lost,
            damaged_bytes,
            crossing: self.nesting.crossing,
            clamped: self.nesting.clamped,
            more_pauses: self.nesting.more_pauses(),
            absurd: self.absurd,
            lines,
            orphans: self.members.values().map(|m| m.len() as u64).sum(),
            first: if empty { 0 } else { self.first },
            last: if empty { 0 } else { self.last },
            guest_clock: self.guest_clock,
        })
    }
}

/// When logging ended: long after the last record where nothing came any more.
fn closed_at(log: &Log) -> i64 {
    let summary = log.summary().filter(|s| s.complete);
    summary.map_or(i64::MIN, |s| s.at.boot.0.min(MAX_TIME))
}

/// What verdicts need to know of the log as a whole.
fn terms(log: &Log, roles: &[Roles]) -> Terms {
    let any = |role: u32| roles.iter().any(|r| r.has(role));
    // Since Linux 6.3 ICMPv6 gives a reason for what it does not take, as neighbour discovery does; none then says that nobody handles that type.
    let says = log.drop_reasons().any(|(_, name)| name.starts_with("IPV6_NDISC_"));
    let dropper = |place: &str| dropper(place).filter(|d| *d != Reason::Handled || !says);
    let droppers = log.symbols().iter().filter_map(|s| Some((s.addr, dropper(&s.text)?))).collect();
    let places = |which: &dyn Fn(&Device) -> bool| {
        log.devices().iter().filter(|d| which(d)).map(|d| (d.netns, d.ifindex)).collect::<Set<_>>()
    };
    let bridges = places(&|d| d.driver == "bridge");
    Terms {
        knows: Knows { local: any(LOCAL_IN), driver: any(XMIT), queue: any(QDISC_IN) },
        reasons: log.drop_reasons().map(|(code, name)| (*code as i32, Reason::of(Some(name)))).collect(),
        droppers,
        of_programs: places(&|d| d.driver == "tun"),
        ports: places(&|d| d.master.is_some_and(|m| bridges.contains(&(d.netns, m)))),
        drop_point: log.meta().functions.iter().find(|f| f.name == "skb:kfree_skb").map(|f| f.id),
    }
}

fn stats_of(stats: &mut Vec<Stats>, func: u16) -> &mut Stats {
    let i = usize::from(func);
    if stats.len() <= i {
        stats.resize_with(i + 1, Stats::default);
    }
    &mut stats[i]
}

fn roles_of(roles: &[Roles], func: u16) -> Roles {
    roles.get(usize::from(func)).copied().unwrap_or_default()
}
