//! Records out of a log: of one CPU in file order, or of all CPUs in one order of time.

use crate::decode::{Decoder, PAD, Spare, Step};
use crate::header::{ChunkKind, HEADER_LEN};
use crate::kinds::{InColumns, KINDS};
use crate::log::Log;
use crate::walk::ChunkInfo;
use kpat_model::*;
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};

/// The moment at which a record was finished: a call's return, the end of a loss, else its time (a member has its
/// call's entry).
pub fn end_time(record: &Record) -> BootNs {
    match record {
        Record::Call(r) => BootNs(r.entry.0.wrapping_add(r.dur_ns as i64)),
        Record::Point(r) => r.at,
        Record::Member(r) => r.entry,
        Record::Footprint(r) => r.at,
        Record::Lineage(r) => r.at,
        Record::Event(r) => r.at,
        Record::Process(r) => r.at,
        Record::Loss(r) => r.to,
        Record::Place(r) => r.at,
        Record::OffCpu(r) => r.to,
        Record::Poll(r) => r.at,
        Record::PollEnd(r) => r.at,
        Record::CardStamp(r) => r.at,
        Record::CardReading(r) => r.at,
        Record::Work(r) => r.at,
        Record::SocketUse(r) => r.at,
        Record::CpuTime(r) => r.at,
        Record::CpuPackets(r) => r.at,
        Record::BlockRequests(r) => r.at,
        Record::ProcessLabel(r) => r.at,
        Record::Peer(r) => r.at,
        Record::Sample(r) => r.at,
        Record::Stack(r) => r.at,
        Record::Mapping(r) => r.at,
        Record::Program(r) => r.at,
        Record::Wifi(r) => r.at,
        Record::Link(r) => r.at,
        Record::Exchange(r) => r.at,
        Record::GuestClock(r) => r.at,
    }
}

/// The name of a record's kind, as the log declares it.
pub fn kind_name(record: &Record) -> &'static str {
    match record {
        Record::Call(_) => "call",
        Record::Point(_) => "point",
        Record::Member(_) => "member",
        Record::Footprint(_) => "footprint",
        Record::Lineage(_) => "lineage",
        Record::Place(_) => "place",
        Record::Event(_) => KINDS[Event::PLACE].name,
        Record::Process(_) => KINDS[Process::PLACE].name,
        Record::Loss(_) => KINDS[Loss::PLACE].name,
        Record::OffCpu(_) => KINDS[OffCpu::PLACE].name,
        Record::Poll(_) => KINDS[Poll::PLACE].name,
        Record::PollEnd(_) => KINDS[PollEnd::PLACE].name,
        Record::CardStamp(_) => KINDS[CardStamp::PLACE].name,
        Record::CardReading(_) => KINDS[CardReading::PLACE].name,
        Record::Work(_) => KINDS[Work::PLACE].name,
        Record::SocketUse(_) => KINDS[SocketUse::PLACE].name,
        Record::CpuTime(_) => KINDS[CpuTime::PLACE].name,
        Record::CpuPackets(_) => KINDS[CpuPackets::PLACE].name,
        Record::BlockRequests(_) => KINDS[BlockRequests::PLACE].name,
        Record::ProcessLabel(_) => KINDS[ProcessLabel::PLACE].name,
        Record::Peer(_) => KINDS[Peer::PLACE].name,
        Record::Sample(_) => KINDS[CpuSample::PLACE].name,
        Record::Stack(_) => KINDS[SampledStack::PLACE].name,
        Record::Mapping(_) => KINDS[Mapping::PLACE].name,
        Record::Program(_) => KINDS[ProgramRecord::PLACE].name,
        Record::Wifi(_) => KINDS[WifiEvent::PLACE].name,
        Record::Link(_) => KINDS[LinkEvent::PLACE].name,
        Record::Exchange(_) => KINDS[Exchange::PLACE].name,
        Record::GuestClock(_) => KINDS[GuestClock::PLACE].name,
    }
}

/// The same of an application record.
pub fn app_kind_name(record: &AppRecord) -> &'static str {
    match record {
        AppRecord::Crossing(_) => "crossing",
        AppRecord::Tcp(_) => "tcp-state",
        AppRecord::Socket(_) => KINDS[SocketRecord::PLACE].name,
        AppRecord::Gap(_) => KINDS[Gap::PLACE].name,
        AppRecord::ThreadTime(_) => KINDS[ThreadTime::PLACE].name,
    }
}

struct Open<'a> {
    info: ChunkInfo,
    decoder: Decoder<'a>,
    /// Records not yet given.
    left: u32,
    /// Of kinds that are known, with codes that are not.
    unknown: u32,
    /// Of kinds that are not known, by their place in the schema.
    unknown_kinds: BTreeMap<usize, u32>,
}

/// The records of one CPU; holds one decoded chunk.
pub struct Records<'a> {
    log: &'a Log,
    cpu: u16,
    next_chunk: usize,
    /// Header, payload, padding.
    buf: Vec<u8>,
    open: Option<Open<'a>>,
    spare: Spare,
}

impl<'a> Records<'a> {
    pub(crate) fn new(log: &'a Log, cpu: u16) -> Records<'a> {
        Records { log, cpu, next_chunk: 0, buf: Vec::new(), open: None, spare: Spare::default() }
    }

    /// Opens the next good chunk; false at the end of the log.
    fn open_next(&mut self) -> bool {
        while let Some(info) = self.log.chunk_index().get(self.next_chunk) {
            self.next_chunk += 1;
            if info.kind != ChunkKind::Records || info.cpu != self.cpu {
                continue;
            }
            match self.log.payload(info, &mut self.buf) {
                Ok(payload) => {
                    let len = payload.len();
                    self.buf.extend_from_slice(&[0; PAD]);
                    let decoder = Decoder::new(self.log.schema(), len, info.packet_base);
                    let (left, unknown_kinds) = (info.count, BTreeMap::new());
                    self.open = Some(Open { info: *info, decoder, left, unknown: 0, unknown_kinds });
                    return true;
                }
                Err(why) => self.log.add_issue(info, why),
            }
        }
        false
    }

    /// Leaves the open chunk, telling what was odd about it.
    fn close(&mut self, odd: Option<&'static str>) {
        let Some(open) = self.open.take() else { return };
        if let Some(odd) = odd {
            let reason = format!("{odd}; {} of its {} records are lost", open.left, open.info.count);
            self.log.add_issue(&open.info, reason);
        }
        self.log.unknown(&open.info, open.unknown, &open.unknown_kinds);
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    #[inline]
    fn next(&mut self) -> Option<Record> {
        loop {
            let Some(open) = &mut self.open else {
                if self.open_next() {
                    continue;
                }
                return None;
            };
            if open.left == 0 {
                let odd = if open.decoder.at_end() {
                    None
                } else {
                    Some("the chunk holds more records than its header says")
                };
                self.close(odd);
                continue;
            }
            match open.decoder.next(&self.buf[HEADER_LEN..], &mut self.spare) {
                Ok(step) => {
                    open.left -= 1;
                    match step {
                        Step::Record(mut record) => {
                            self.log.numbers().assign(&mut record);
                            return Some(record);
                        }
                        Step::Unknown => open.unknown += 1,
                        Step::UnknownKind(kind) => *open.unknown_kinds.entry(kind).or_default() += 1,
                    }
                }
                Err(odd) => self.close(Some(odd)),
            }
        }
    }
}

/// Of what the recorder noted itself, so much is held until its turn comes.
const MAX_ASIDE: usize = 1 << 12;

/// The records of all CPUs by end time; holds one decoded chunk per CPU.
///
/// What the recorder noted itself (system events, losses) stands in a CPU's stream before records of the kernel that are older and were read
/// later. It is held until its time, else all that is behind it would come as late as the recorder was behind, which on a busy machine is
/// tenths of a second, and one packet's records on two CPUs would not be in order.
pub struct Merged<'a> {
    streams: Vec<(u16, Records<'a>, Option<Record>)>,
    /// Head of each stream by end time, then by CPU.
    heap: BinaryHeap<Reverse<(i64, usize)>>,
    /// What the recorder noted, by time, then as it was read.
    aside: BTreeMap<(i64, u64), (u16, Record)>,
    read: u64,
}

fn is_of_recorder(record: &Record) -> bool {
    match record {
        Record::Event(e) => e.kind.is_of_user_space(),
        Record::Loss(_) | Record::CardReading(_) | Record::GuestClock(_) => true,
        Record::Work(_) | Record::SocketUse(_) | Record::CpuTime(_) => true,
        Record::CpuPackets(_) | Record::BlockRequests(_) | Record::ProcessLabel(_) => true,
        // Another ring than that of packets: what is in it is read before or after.
        Record::Sample(_) | Record::Stack(_) | Record::Mapping(_) | Record::Peer(_) => true,
        // It comes from a ring of its own.
        Record::Program(_) => true,
        Record::Wifi(_) | Record::Link(_) | Record::Exchange(_) => true,
        _ => false,
    }
}

impl<'a> Merged<'a> {
    pub(crate) fn new(log: &'a Log) -> Merged<'a> {
        let mut merged =
            Merged { streams: Vec::new(), heap: BinaryHeap::new(), aside: BTreeMap::new(), read: 0 };
        for cpu in log.cpus() {
            merged.streams.push((cpu, log.records(cpu), None));
            let stream = merged.streams.len() - 1;
            merged.streams[stream].2 = merged.read(stream);
            if let Some(record) = &merged.streams[stream].2 {
                merged.heap.push(Reverse((end_time(record).0, stream)));
            }
        }
        merged
    }

    /// Takes the memory of records that nobody needs any more, for those to come.
    pub fn recycle(&mut self, used: &mut Vec<(u16, Record)>) {
        for (cpu, record) in used.drain(..) {
            if let Record::Footprint(memory) = record
                && let Ok(stream) = self.streams.binary_search_by_key(&cpu, |s| s.0)
            {
                self.streams[stream].1.spare.keep(memory);
            }
        }
    }

    /// The next record of a stream that is not put aside.
    fn read(&mut self, stream: usize) -> Option<Record> {
        loop {
            let (cpu, records, _) = &mut self.streams[stream];
            let record = records.next()?;
            if !is_of_recorder(&record) || self.aside.len() >= MAX_ASIDE {
                return Some(record);
            }
            self.read += 1;
            self.aside.insert((end_time(&record).0, self.read), (*cpu, record));
        }
    }
}

impl Iterator for Merged<'_> {
    type Item = (u16, Record);

    fn next(&mut self) -> Option<(u16, Record)> {
        let earliest = self.heap.peek().map(|top| top.0);
        if let Some(held) = self.aside.first_entry()
            && earliest.is_none_or(|(at, _)| held.key().0 <= at)
        {
            return Some(held.remove());
        }
        let stream = earliest?.1;
        let next = self.read(stream);
        let mut top = self.heap.peek_mut()?;
        match &next {
            // Often it stays where it is: changing the head is cheaper than taking it out and putting it in again.
            Some(record) => top.0.0 = end_time(record).0,
            None => drop(PeekMut::pop(top)),
        }
        let (cpu, _, head) = &mut self.streams[stream];
        Some((*cpu, std::mem::replace(head, next)?))
    }
}
