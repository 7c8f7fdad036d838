//! Times outside of what a clock can show: a damaged log has them, and they are counted and moved to the limit.

use kpat_model::{AppRecord, BootNs, Record};

/// 36 years of uptime: beyond that a record is damaged, and sums would overflow.
pub(crate) const MAX_TIME: i64 = 1 << 60;

fn tame(t: &mut i64, absurd: &mut u64) {
    if !(0..=MAX_TIME).contains(t) {
        *absurd += 1;
        *t = (*t).clamp(0, MAX_TIME);
    }
}

/// A stretch that ends before it begins is one of no length.
fn tame_stretch(from: &mut BootNs, to: &mut BootNs, absurd: &mut u64) {
    tame(&mut from.0, absurd);
    tame(&mut to.0, absurd);
    if from > to {
        *absurd += 1;
        *from = *to;
    }
}

fn tame_length(ns: &mut u64, absurd: &mut u64) {
    if *ns > MAX_TIME as u64 {
        *absurd += 1;
        *ns = MAX_TIME as u64;
    }
}

/// Brings every time in a record into the range of a clock.
pub(crate) fn tame_record(record: &mut Record, absurd: &mut u64) {
    match record {
        Record::Call(r) => {
            tame(&mut r.entry.0, absurd);
            tame_length(&mut r.dur_ns, absurd);
        }
        Record::Point(r) => tame(&mut r.at.0, absurd),
        Record::Member(r) => tame(&mut r.entry.0, absurd),
        Record::Footprint(r) => tame(&mut r.at.0, absurd),
        Record::Place(r) => tame(&mut r.at.0, absurd),
        Record::Lineage(r) => tame(&mut r.at.0, absurd),
        Record::Event(r) => tame(&mut r.at.0, absurd),
        Record::Process(r) => tame(&mut r.at.0, absurd),
        Record::Loss(r) => tame_stretch(&mut r.from, &mut r.to, absurd),
        Record::OffCpu(r) => tame_stretch(&mut r.from, &mut r.to, absurd),
        Record::Poll(r) => tame(&mut r.at.0, absurd),
        Record::PollEnd(r) => tame(&mut r.at.0, absurd),
        Record::CardStamp(r) => tame(&mut r.at.0, absurd),
        Record::CardReading(r) => tame(&mut r.at.0, absurd),
        Record::Work(r) => tame(&mut r.at.0, absurd),
        Record::SocketUse(r) => tame(&mut r.at.0, absurd),
        Record::CpuTime(r) => {
            tame(&mut r.at.0, absurd);
            tame(&mut r.opened.0, absurd);
        }
        Record::CpuPackets(r) => {
            tame(&mut r.at.0, absurd);
            tame(&mut r.opened.0, absurd);
        }
        Record::BlockRequests(r) => {
            tame(&mut r.at.0, absurd);
            tame(&mut r.opened.0, absurd);
        }
        Record::ProcessLabel(r) => tame(&mut r.at.0, absurd),
        Record::Peer(r) => tame(&mut r.at.0, absurd),
        Record::Program(r) => tame(&mut r.at.0, absurd),
        Record::Wifi(r) => tame(&mut r.at.0, absurd),
        Record::Link(r) => tame(&mut r.at.0, absurd),
        Record::Exchange(r) => tame(&mut r.at.0, absurd),
        Record::GuestClock(r) => tame(&mut r.at.0, absurd),
        Record::Sample(r) => tame(&mut r.at.0, absurd),
        Record::Stack(r) => tame(&mut r.at.0, absurd),
        Record::Mapping(r) => tame(&mut r.at.0, absurd),
    }
}

/// The same of what applications asked.
pub(crate) fn tame_app_record(record: &mut AppRecord, absurd: &mut u64) {
    match record {
        AppRecord::Crossing(r) => tame(&mut r.at.0, absurd),
        AppRecord::Socket(r) => tame(&mut r.at.0, absurd),
        AppRecord::Tcp(r) => tame(&mut r.at.0, absurd),
        AppRecord::Gap(g) => tame_stretch(&mut g.since, &mut g.until, absurd),
        AppRecord::ThreadTime(t) => {
            tame_stretch(&mut t.since, &mut t.until, absurd);
            tame_length(&mut t.ran_ns, absurd);
            tame_length(&mut t.waited_ns, absurd);
        }
    }
}
