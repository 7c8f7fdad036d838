//! A recorded log over and over: as long as one likes, and nothing in it but what a recorder wrote. Each time the times and the
//! packets' numbers go on where they ended. Shared by `tests/recorded_logs.rs` and `examples/repeat.rs`.

#![allow(dead_code, clippy::unwrap_used, reason = "each user needs a part; a test may panic")]

use kpat_klog::{Codec, Encoder, Log, Writer};
use kpat_model::meta::{Json, Meta, Summary};
use kpat_model::*;
use std::collections::BTreeMap;
use std::path::Path;

/// By how much a record is moved.
#[derive(Clone, Copy)]
struct Shift {
    ns: i64,
    packets: u64,
}

impl Shift {
    fn id(self, p: &mut PacketId) {
        if *p != PacketId::NONE {
            p.0 += self.packets;
        }
    }

    fn record(self, r: &mut Record) {
        let (at, id) = match r {
            Record::Call(c) => (&mut c.entry, &mut c.packet),
            Record::Point(p) => (&mut p.at, &mut p.packet),
            Record::Member(m) => (&mut m.entry, &mut m.packet),
            Record::Footprint(f) => (&mut f.at, &mut f.packet),
            Record::Place(p) => (&mut p.at, &mut p.packet),
            Record::Event(e) => (&mut e.at, &mut e.packet),
            Record::Poll(p) => (&mut p.at, &mut p.packet),
            Record::PollEnd(p) => (&mut p.at, &mut p.packet),
            Record::CardStamp(s) => (&mut s.at, &mut s.packet),
            Record::CardReading(r) => {
                r.at.0 += self.ns;
                return;
            }
            Record::Work(w) => {
                w.at.0 += self.ns;
                return;
            }
            Record::SocketUse(u) => {
                u.at.0 += self.ns;
                return;
            }
            Record::Program(p) => {
                p.at.0 += self.ns;
                return;
            }
            Record::Wifi(w) => {
                w.at.0 += self.ns;
                return;
            }
            Record::Link(l) => {
                l.at.0 += self.ns;
                return;
            }
            Record::GuestClock(r) => {
                r.at.0 += self.ns;
                return;
            }
            Record::Exchange(x) => {
                x.at.0 += self.ns;
                return;
            }
            Record::CpuTime(c) => {
                c.at.0 += self.ns;
                c.opened.0 += self.ns;
                return;
            }
            Record::CpuPackets(c) => {
                c.at.0 += self.ns;
                c.opened.0 += self.ns;
                return;
            }
            Record::BlockRequests(b) => {
                b.at.0 += self.ns;
                b.opened.0 += self.ns;
                return;
            }
            Record::Peer(p) => {
                p.at.0 += self.ns;
                return;
            }
            Record::ProcessLabel(l) => {
                l.at.0 += self.ns;
                return;
            }
            Record::Sample(s) => {
                s.at.0 += self.ns;
                return;
            }
            Record::Stack(s) => {
                s.at.0 += self.ns;
                return;
            }
            Record::Mapping(m) => {
                m.at.0 += self.ns;
                return;
            }
            Record::OffCpu(p) => {
                p.from.0 += self.ns;
                p.to.0 += self.ns;
                return;
            }
            Record::Lineage(l) => {
                self.id(&mut l.child);
                (&mut l.at, &mut l.parent)
            }
            Record::Process(p) => {
                p.at.0 += self.ns;
                return;
            }
            Record::Loss(l) => {
                l.from.0 += self.ns;
                l.to.0 += self.ns;
                return;
            }
        };
        at.0 += self.ns;
        self.id(id);
    }
}

/// Packets of a recorded log: the highest number, which a recorder counts up; its first and last moment.
pub fn extent(log: &Log) -> (u64, i64, i64) {
    let (mut packets, mut first, mut last) = (0, i64::MAX, i64::MIN);
    for (_, r) in log.all_merged() {
        let packet = match &r {
            Record::Call(c) => c.packet.0,
            Record::Point(p) => p.packet.0,
            Record::Footprint(f) => f.packet.0,
            _ => 0,
        };
        packets = packets.max(packet);
        if !matches!(r, Record::Loss(_) | Record::Member(_)) {
            let end = kpat_klog::end_time(&r).0;
            (first, last) = (first.min(end), last.max(end));
        }
    }
    (packets, first, last)
}

/// Writes the log `from` `times` times into `to`; what the recorder knew of its machine is left out.
pub fn repeat(from: &Path, to: &Path, times: u64) {
    let log = Log::open(from).unwrap();
    let (packets, first, last) = extent(&log);
    let mut writer = Writer::create(to).unwrap();
    let meta =
        Meta { hostname: String::new(), command: Vec::new(), boot_id: String::new(), ..log.meta().clone() };
    writer.json(&Json::Meta(Box::new(meta))).unwrap();
    writer.json(&Json::Devices(log.devices().to_vec())).unwrap();
    writer.json(&Json::Symbols(log.symbols().to_vec())).unwrap();
    let mut encoders: BTreeMap<u16, Encoder> = BTreeMap::new();
    let mut records = 0;
    for i in 0..times {
        let shift = Shift { ns: i as i64 * (last - first + 1_000_000), packets: i * packets };
        for (cpu, mut record) in log.all_merged() {
            shift.record(&mut record);
            let encoder = encoders.entry(cpu).or_insert_with(|| Encoder::new(cpu, Codec::Zstd));
            encoder.record(&record);
            records += 1;
            if encoder.is_full() {
                writer.chunk(encoder.finish().unwrap()).unwrap();
            }
        }
    }
    for encoder in encoders.values_mut() {
        if let Some(chunk) = encoder.finish() {
            writer.chunk(chunk).unwrap();
        }
    }
    let before = log.summary().cloned().unwrap_or_default();
    let summary = Summary { records, bytes: writer.bytes_written(), ..before };
    writer.json(&Json::Summary(Box::new(summary))).unwrap();
    writer.flush().unwrap();
}
