//! What a device does to have a network: events of its radio, of links, and messages by which addresses are found.

use super::{InColumns, at, cut, narrow, task_key, text, timed_key, timed_of};
use crate::columns::Row;
use kpat_model::{Context, Exchange, Exchanged, FuncId, LinkEvent, LinkWhat, Record, WifiEvent, WifiWhat};

impl InColumns for WifiEvent {
    const PLACE: usize = 27;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                task_key(self.pid, self.ctx),
                self.point.0.into(),
                self.what as u64,
                self.netns.into(),
                self.ifindex.into(),
                self.frequency.into(),
                self.a as u64,
                self.b as u64,
                self.c as u64,
            ],
            [self.address.as_ref().map_or(&[], |a| &a[..]), cut(&self.wiphy), cut(&self.text)],
        )
    }
}

pub(super) fn wifi_event(row: &Row<'_>) -> Option<Record> {
    let [_, task, point, what, netns, ifindex, frequency, a, b, c, ..] = row.numbers;
    Some(Record::Wifi(Box::new(WifiEvent {
        at: at(row),
        ctx: Context::from_u8(task as u8 & 7),
        pid: narrow(task >> 3)?,
        point: FuncId(narrow(point)?),
        what: WifiWhat::from_u8(narrow(what)?)?,
        netns: narrow(netns)?,
        ifindex: narrow(ifindex)?,
        frequency: narrow(frequency)?,
        a: a as i64,
        b: b as i64,
        c: c as i64,
        address: match row.bytes[0] {
            [] => None,
            bytes => Some(bytes.try_into().ok()?),
        },
        wiphy: text(row.bytes[1]),
        text: text(row.bytes[2]),
    })))
}

impl InColumns for LinkEvent {
    const PLACE: usize = 28;

    fn row(&self) -> Row<'_> {
        let (timed, within) = timed_key(self.timed);
        Row::new(
            [
                self.at.0 as u64,
                task_key(self.pid, self.ctx),
                self.what as u64,
                timed,
                within,
                self.function.into(),
                self.netns.into(),
                self.ifindex.into(),
                self.a as u64,
                self.b as u64,
            ],
            [],
        )
    }
}

pub(super) fn link_event(row: &Row<'_>) -> Option<Record> {
    let [_, task, what, timed, within_ns, function, netns, ifindex, a, b, ..] = row.numbers;
    Some(Record::Link(Box::new(LinkEvent {
        at: at(row),
        ctx: Context::from_u8(task as u8 & 7),
        pid: narrow(task >> 3)?,
        what: LinkWhat::from_u8(narrow(what)?)?,
        timed: timed_of(timed, within_ns)?,
        function: function != 0,
        netns: narrow(netns)?,
        ifindex: narrow(ifindex)?,
        a: a as i64,
        b: b as i64,
    })))
}

impl InColumns for Exchange {
    const PLACE: usize = 29;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                task_key(self.pid, self.ctx),
                self.protocol as u64,
                self.message.into(),
                self.sent.into(),
                self.netns.into(),
                self.ifindex.into(),
                self.length.into(),
                self.id,
            ],
            [self.link.as_ref().map_or(&[], |l| l.as_flattened()), &self.network, &self.subject],
        )
    }
}

pub(super) fn exchange(row: &Row<'_>) -> Option<Record> {
    let [_, task, protocol, message, sent, netns, ifindex, length, id, ..] = row.numbers;
    Some(Record::Exchange(Box::new(Exchange {
        at: at(row),
        ctx: Context::from_u8(task as u8 & 7),
        pid: narrow(task >> 3)?,
        protocol: Exchanged::from_u8(narrow(protocol)?)?,
        message: narrow(message)?,
        sent: sent != 0,
        netns: narrow(netns)?,
        ifindex: narrow(ifindex)?,
        length: narrow(length)?,
        id,
        link: match row.bytes[0] {
            [] => None,
            bytes => Some([bytes.get(..6)?.try_into().ok()?, bytes.get(6..)?.try_into().ok()?]),
        },
        network: row.bytes[1].to_vec(),
        subject: row.bytes[2].to_vec(),
    })))
}
