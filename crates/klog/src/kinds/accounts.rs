//! Records of a profile: sums, what they are of, how complete they are, and what processes belong to.

use super::{InColumns, at, cut, narrow, text};
use crate::columns::Row;
use kpat_model::{
    BlockRequests, BootNs, Busy, CpuPackets, CpuTime, Peer, ProcessLabel, Purpose, Record, SocketUse,
    UseKind, Work,
};

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

impl InColumns for CpuPackets {
    const PLACE: usize = 24;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.opened.0 as u64, self.counted, self.received], [])
    }
}

pub(super) fn cpu_packets(row: &Row<'_>) -> Option<Record> {
    let [_, opened, counted, received, ..] = row.numbers;
    let opened = BootNs(opened as i64);
    Some(Record::CpuPackets(Box::new(CpuPackets { at: at(row), opened, counted, received })))
}

impl InColumns for BlockRequests {
    const PLACE: usize = 31;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.opened.0 as u64, self.counted, self.completed], [])
    }
}

pub(super) fn block_requests(row: &Row<'_>) -> Option<Record> {
    let [_, opened, counted, completed, ..] = row.numbers;
    let opened = BootNs(opened as i64);
    Some(Record::BlockRequests(Box::new(BlockRequests { at: at(row), opened, counted, completed })))
}

impl InColumns for ProcessLabel {
    const PLACE: usize = 25;

    fn row(&self) -> Row<'_> {
        Row::new(
            [self.at.0 as u64, self.started.0 as u64, self.process.into(), self.uid.into(), self.cgroup],
            [cut(&self.path), cut(&self.name), cut(&self.user)],
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
        user: text(row.bytes[2]),
    })))
}

impl InColumns for Peer {
    const PLACE: usize = 32;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                self.number,
                self.socket,
                self.process.into(),
                self.datagrams.into(),
                self.local_port.into(),
                self.peer_port.into(),
            ],
            [cut(&self.local), cut(&self.peer)],
        )
    }
}

pub(super) fn peer(row: &Row<'_>) -> Option<Record> {
    let [_, number, socket, process, datagrams, local_port, peer_port, ..] = row.numbers;
    Some(Record::Peer(Box::new(Peer {
        at: at(row),
        number,
        socket,
        process: narrow(process)?,
        datagrams: datagrams != 0,
        local: text(row.bytes[0]),
        local_port: narrow(local_port)?,
        peer: text(row.bytes[1]),
        peer_port: narrow(peer_port)?,
    })))
}
