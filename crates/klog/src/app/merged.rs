//! The application records of a log in one order of time.

use super::{AppDecoder, AppStep};
use crate::header::ChunkKind;
use crate::log::Log;
use kpat_model::AppRecord;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The application records of all CPUs, by time; those of one CPU stay in the order in which they were written unless
/// time says otherwise within a chunk.
pub struct AppRecords<'a> {
    log: &'a Log,
    cpus: Vec<Stream>,
    heap: BinaryHeap<Reverse<(i64, u64, usize)>>,
    given: u64,
}

/// One CPU: its chunks one after another, each sorted by time.
struct Stream {
    cpu: u16,
    next_chunk: usize,
    records: std::vec::IntoIter<AppRecord>,
    front: Option<AppRecord>,
}

impl Log {
    /// Is this the log of applications?
    pub fn has_application(&self) -> bool {
        self.chunk_index().iter().any(|c| c.kind == ChunkKind::Application)
    }

    /// The application records of all CPUs in order of time, each with its CPU. What stands in different chunks of a CPU is
    /// in order but for the few events that were written when their socket became known.
    pub fn app_records(&self) -> AppRecords<'_> {
        let of = |k: ChunkKind| self.chunk_index().iter().filter(move |c| c.kind == k);
        let mut cpus: Vec<u16> = of(ChunkKind::Application).map(|c| c.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let streams = cpus
            .into_iter()
            .map(|cpu| Stream { cpu, next_chunk: 0, records: Vec::new().into_iter(), front: None })
            .collect();
        let mut all = AppRecords { log: self, cpus: streams, heap: BinaryHeap::new(), given: 0 };
        (0..all.cpus.len()).for_each(|i| all.advance(i));
        all
    }
}

impl AppRecords<'_> {
    fn advance(&mut self, i: usize) {
        let s = &mut self.cpus[i];
        loop {
            if let Some(r) = s.records.next() {
                self.given += 1;
                self.heap.push(Reverse((r.at().0, self.given, i)));
                s.front = Some(r);
                return;
            }
            let Some(info) = self.log.chunk_index().get(s.next_chunk) else { return };
            s.next_chunk += 1;
            if info.kind != ChunkKind::Application || info.cpu != s.cpu {
                continue;
            }
            let mut buf = Vec::new();
            match self.log.payload(info, &mut buf) {
                Ok(payload) => {
                    let mut payload = payload.to_vec();
                    let schema = self.log.schema();
                    let mut decoder = AppDecoder::new(schema, payload.len(), info.packet_base);
                    payload.extend_from_slice(&[0; AppDecoder::PAD]);
                    let mut records = Vec::with_capacity(info.count.min(1 << 16) as usize);
                    let (mut unknown, mut unknown_kinds) = (0, BTreeMap::new());
                    while let Some(step) = decoder.next(&payload) {
                        match step {
                            Ok(AppStep::Record(mut r)) => {
                                self.log.numbers().assign_application(&mut r);
                                records.push(r);
                            }
                            Ok(AppStep::Unknown) => unknown += 1,
                            Ok(AppStep::UnknownKind(kind)) => *unknown_kinds.entry(kind).or_default() += 1,
                            Err(why) => self.log.add_issue(info, why.into()),
                        }
                    }
                    self.log.unknown(info, unknown, &unknown_kinds);
                    records.sort_by_key(|r| r.at().0);
                    s.records = records.into_iter();
                }
                Err(why) => self.log.add_issue(info, why),
            }
        }
    }
}

impl Iterator for AppRecords<'_> {
    type Item = (u16, AppRecord);

    fn next(&mut self) -> Option<(u16, AppRecord)> {
        let Reverse((_, _, i)) = self.heap.pop()?;
        let record = self.cpus[i].front.take();
        let cpu = self.cpus[i].cpu;
        self.advance(i);
        record.map(|r| (cpu, r))
    }
}
