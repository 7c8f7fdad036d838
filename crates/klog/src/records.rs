//! Records out of a log: of one CPU in file order, or of all CPUs in one order of time.

use crate::decode::{Decoder, PAD, Step};
use crate::header::{ChunkKind, HEADER_LEN};
use crate::log::Log;
use crate::walk::ChunkInfo;
use kpat_model::{BootNs, Record};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

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
    }
}

struct Open {
    info: ChunkInfo,
    decoder: Decoder,
    /// Records not yet given.
    left: u32,
    unknown: u32,
}

/// The records of one CPU; holds one decoded chunk.
pub struct Records<'a> {
    log: &'a Log,
    cpu: u16,
    next_chunk: usize,
    /// Header, payload, padding.
    buf: Vec<u8>,
    open: Option<Open>,
}

impl<'a> Records<'a> {
    pub(crate) fn new(log: &'a Log, cpu: u16) -> Records<'a> {
        Records { log, cpu, next_chunk: 0, buf: Vec::new(), open: None }
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
                    let decoder = Decoder::new(len, info.packet_base);
                    self.open = Some(Open { info: *info, decoder, left: info.count, unknown: 0 });
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
        if open.unknown > 0 {
            let reason = format!("{} records are of kinds that only a newer kpat knows", open.unknown);
            self.log.add_issue(&open.info, reason);
        }
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
            match open.decoder.next(&self.buf[HEADER_LEN..]) {
                Ok(step) => {
                    open.left -= 1;
                    match step {
                        Step::Record(record) => return Some(record),
                        Step::Unknown => open.unknown += 1,
                    }
                }
                Err(odd) => self.close(Some(odd)),
            }
        }
    }
}

/// The records of all CPUs by end time; holds one decoded chunk per CPU.
pub struct Merged<'a> {
    streams: Vec<(u16, Records<'a>, Option<Record>)>,
    /// Head of each stream by end time, then by CPU.
    heap: BinaryHeap<Reverse<(i64, usize)>>,
}

impl<'a> Merged<'a> {
    pub(crate) fn new(log: &'a Log) -> Merged<'a> {
        let mut merged = Merged { streams: Vec::new(), heap: BinaryHeap::new() };
        for cpu in log.cpus() {
            merged.streams.push((cpu, log.records(cpu), None));
            merged.refill(merged.streams.len() - 1);
        }
        merged
    }

    /// Reads the first record of a stream.
    fn refill(&mut self, stream: usize) {
        let (_, records, head) = &mut self.streams[stream];
        *head = records.next();
        if let Some(record) = head {
            self.heap.push(Reverse((end_time(record).0, stream)));
        }
    }
}

impl Iterator for Merged<'_> {
    type Item = (u16, Record);

    fn next(&mut self) -> Option<(u16, Record)> {
        let mut top = self.heap.peek_mut()?;
        let stream = top.0.1;
        let (cpu, records, head) = &mut self.streams[stream];
        let next = records.next();
        match &next {
            // Often it stays where it is: changing the head is cheaper than taking it out and putting it in again.
            Some(record) => top.0.0 = end_time(record).0,
            None => drop(PeekMut::pop(top)),
        }
        Some((*cpu, std::mem::replace(head, next)?))
    }
}
