//! Samples of a profile and their stacks as rows.

use super::{InColumns, at, cut, narrow, text};
use crate::columns::Row;
use kpat_model::*;

impl InColumns for CpuSample {
    const PLACE: usize = 21;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                self.thread.into(),
                self.process.into(),
                self.busy as u64,
                self.purpose as u64,
                self.flags.into(),
                self.socket,
                self.kernel,
                self.user,
                self.period_ns,
            ],
            [],
        )
    }
}

pub(super) fn sample(row: &Row<'_>) -> Option<Record> {
    let [_, thread, process, busy, purpose, flags, socket, kernel, user, period_ns, ..] = row.numbers;
    Some(Record::Sample(Box::new(CpuSample {
        at: at(row),
        thread: narrow(thread)?,
        process: narrow(process)?,
        busy: Busy::from_u8(narrow(busy)?)?,
        purpose: Purpose::from_u8(narrow(purpose)?)?,
        flags: narrow(flags)?,
        socket,
        kernel,
        user,
        period_ns,
    })))
}

impl InColumns for SampledStack {
    const PLACE: usize = 22;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.number, self.process.into()], [&self.frames])
    }
}

pub(super) fn stack(row: &Row<'_>) -> Option<Record> {
    let [_, number, process, ..] = row.numbers;
    let (process, frames) = (narrow(process)?, row.bytes[0].to_vec());
    Some(Record::Stack(Box::new(SampledStack { at: at(row), number, process, frames })))
}

impl InColumns for Mapping {
    const PLACE: usize = 23;

    fn row(&self) -> Row<'_> {
        Row::new(
            [self.at.0 as u64, self.process.into(), self.what as u64, self.start, self.length, self.offset],
            [cut(&self.name), &self.build_id],
        )
    }
}

pub(super) fn mapping(row: &Row<'_>) -> Option<Record> {
    let [_, process, what, start, length, offset, ..] = row.numbers;
    Some(Record::Mapping(Box::new(Mapping {
        at: at(row),
        process: narrow(process)?,
        what: MappingKind::from_u8(narrow(what)?)?,
        start,
        length,
        offset,
        name: text(row.bytes[0]),
        build_id: row.bytes[1].to_vec(),
    })))
}
