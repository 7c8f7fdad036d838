//! Records of a profile that say how complete it is and what its processes belong to.

use super::{InColumns, at, cut, narrow, text};
use crate::columns::Row;
use kpat_model::{BootNs, CpuPackets, ProcessLabel, Record};

impl InColumns for CpuPackets {
    const PLACE: usize = 28;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.opened.0 as u64, self.counted, self.received], [])
    }
}

pub(super) fn cpu_packets(row: &Row<'_>) -> Option<Record> {
    let [_, opened, counted, received, ..] = row.numbers;
    let opened = BootNs(opened as i64);
    Some(Record::CpuPackets(Box::new(CpuPackets { at: at(row), opened, counted, received })))
}

impl InColumns for ProcessLabel {
    const PLACE: usize = 29;

    fn row(&self) -> Row<'_> {
        Row::new(
            [self.at.0 as u64, self.started.0 as u64, self.process.into(), self.uid.into(), self.cgroup],
            [cut(&self.path), cut(&self.name)],
        )
    }
}

pub(super) fn process_label(row: &Row<'_>) -> Option<Record> {
    let [_, started, process, uid, cgroup, ..] = row.numbers;
    Some(Record::ProcessLabel(Box::new(ProcessLabel {
        at: at(row),
        process: narrow(process)?,
        started: BootNs(started as i64),
        uid: narrow(uid)?,
        cgroup,
        path: text(row.bytes[0]),
        name: text(row.bytes[1]),
    })))
}
