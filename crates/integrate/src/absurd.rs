//! Times outside of what a clock can show: a damaged log has them, and they are counted and moved to the limit.

use kpat_model::Record;

/// 36 years of uptime: beyond that a record is damaged, and sums would overflow.
pub(crate) const MAX_TIME: i64 = 1 << 60;

fn tame(t: &mut i64, absurd: &mut u64) {
    if !(0..=MAX_TIME).contains(t) {
        *absurd += 1;
        *t = (*t).clamp(0, MAX_TIME);
    }
}

/// Brings every time in a record into the range of a clock.
pub(crate) fn tame_record(record: &mut Record, absurd: &mut u64) {
    match record {
        Record::Call(r) => {
            tame(&mut r.entry.0, absurd);
            if r.dur_ns > MAX_TIME as u64 {
                *absurd += 1;
                r.dur_ns = MAX_TIME as u64;
            }
        }
        Record::Point(r) => tame(&mut r.at.0, absurd),
        Record::Member(r) => tame(&mut r.entry.0, absurd),
        Record::Footprint(r) => tame(&mut r.at.0, absurd),
        Record::Place(r) => tame(&mut r.at.0, absurd),
        Record::Lineage(r) => tame(&mut r.at.0, absurd),
        Record::Event(r) => tame(&mut r.at.0, absurd),
        Record::Process(r) => tame(&mut r.at.0, absurd),
        Record::Loss(r) => {
            tame(&mut r.from.0, absurd);
            tame(&mut r.to.0, absurd);
        }
        Record::OffCpu(r) => {
            tame(&mut r.from.0, absurd);
            tame(&mut r.to.0, absurd);
            if r.from > r.to {
                *absurd += 1;
                r.from = r.to;
            }
        }
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
