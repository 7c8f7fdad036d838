//! Records of a profile as rows: sums of work, samples and their stacks.

use super::{InColumns, at, cut, narrow, text};
use crate::columns::Row;
use kpat_model::*;

impl InColumns for Work {
    const PLACE: usize = 18;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                self.busy as u64,
                self.purpose as u64,
                self.victim.into(),
                self.socket,
                self.ns,
                self.packets,
                self.bytes,
            ],
            [],
        )
    }
}

pub(super) fn work(row: &Row<'_>) -> Option<Record> {
    let [_, busy, purpose, victim, socket, ns, packets, bytes, ..] = row.numbers;
    Some(Record::Work(Box::new(Work {
        at: at(row),
        busy: Busy::from_u8(narrow(busy)?)?,
        purpose: Purpose::from_u8(narrow(purpose)?)?,
        victim: narrow(victim)?,
        socket,
        ns,
        packets,
        bytes,
    })))
}

impl InColumns for SocketUse {
    const PLACE: usize = 19;

    fn row(&self) -> Row<'_> {
        Row::new(
            [self.at.0 as u64, self.how as u64, self.socket, self.process.into(), self.bytes, self.times],
            [],
        )
    }
}

pub(super) fn socket_use(row: &Row<'_>) -> Option<Record> {
    let [_, how, socket, process, bytes, times, ..] = row.numbers;
    let (how, process) = (UseKind::from_u8(narrow(how)?)?, narrow(process)?);
    Some(Record::SocketUse(Box::new(SocketUse { at: at(row), how, socket, process, bytes, times })))
}

impl InColumns for CpuTime {
    const PLACE: usize = 20;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                self.opened.0 as u64,
                self.unplaced_ns,
                self.user_ns,
                self.system_ns,
                self.idle_ns,
                self.irq_ns,
                self.softirq_ns,
                self.steal_ns,
            ],
            [],
        )
    }
}

pub(super) fn cpu_time(row: &Row<'_>) -> Option<Record> {
    let [_, opened, unplaced_ns, user_ns, system_ns, idle_ns, irq_ns, softirq_ns, steal_ns, ..] = row.numbers;
    let opened = BootNs(opened as i64);
    Some(Record::CpuTime(Box::new(CpuTime {
        at: at(row),
        opened,
        unplaced_ns,
        user_ns,
        system_ns,
        idle_ns,
        irq_ns,
        softirq_ns,
        steal_ns,
    })))
}

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
