//! Which call sent and which received each datagram of a socket that has no stream, from what crossed in order of time.
//!
//! A send makes its packets within the call, so they are by its thread, and together have its bytes; those of a call that the kernel refused
//! are its own if nothing waited to be sent. What no device's queue had is seen where it was dropped, or began to
//! wait for the neighbour's address (`unqueued.rs`). A datagram that waited
//! (`MSG_MORE`, `UDP_CORK`) is of all the sends that filled it, where it has their bytes, also if a socket option released it. What does not add up is reported as unknown. Receive calls take
//! datagrams in the order in which they came into the socket's queue. Where a call and the queue contradict each other (one too many
//! taken, more bytes than the datagram has, nothing there though something is), nothing is known back to when the queue was empty for sure.
//! Rejected: the nearest call in time. A full queue is read long after.

mod follow;
mod sends;

use super::Store;
use super::times::Times;
use super::unqueued::{Unqueued, Waits};
use crate::error::Result;
use follow::Followed;
use kpat_model::Crossing;
use kpat_store::TableFile;
use kpat_store::tables::*;
use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// A call that sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramCall {
    /// Place of its row in `app_event`.
    pub id: i64,
    /// It was over.
    pub at_ns: i64,
    /// Refused: as many as its packets have.
    pub bytes: i64,
    pub pid: Option<i32>,
    /// It was refused with this error.
    pub error: Option<i32>,
}

/// A packet of the socket where the device's queue got it, where it came from a device, or where it was dropped, or began to wait, before any queue had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub at_ns: i64,
    pub cpu: i32,
    pub tag: i64,
    pub sent: bool,
    pub bytes: i64,
    /// Its number, where no queue had it within its call.
    pub unqueued: Option<i64>,
    /// It waited for the next hop's link address from then on.
    pub asks: bool,
    pub calls: Calls,
}

/// Places in [`Datagrams::calls`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Calls {
    #[default]
    NotKnown,
    One(u32),
    /// A datagram that several sends filled.
    Several(Box<[u32]>),
}

impl Deref for Calls {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Calls::NotKnown => &[],
            Calls::One(one) => std::slice::from_ref(one),
            Calls::Several(all) => all,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// In order of time.
    pub sightings: Vec<Sighting>,
    pub calls: Vec<DatagramCall>,
    /// Places of those that lie in the socket when the log ends, for sure.
    pub waiting: BTreeSet<u32>,
}

/// By socket, the newest last.
pub(crate) type Known = Mutex<Vec<(i64, Arc<Datagrams>)>>;

const MOST: usize = 8;

/// One row of `app_event`, as far as it is of use.
#[derive(Clone, Copy, Debug)]
struct Event {
    id: i64,
    at_ns: i64,
    what: Crossing,
    bytes: i64,
    /// 0: none.
    tag: i64,
    pid: Option<i32>,
    in_task: bool,
    cpu: i32,
    /// The packet that was dropped, or began to wait, there.
    unqueued: Option<i64>,
    waits: Option<Waits>,
    /// It was taken before its socket could report it: it is what came last, unless that is reported later.
    claimed: bool,
}

impl Event {
    /// As if a device's queue had got it.
    fn of_unqueued(d: &Unqueued) -> Event {
        Event {
            id: -1,
            at_ns: d.at_ns,
            what: Crossing::ToDevice,
            bytes: d.bytes,
            tag: 0,
            pid: Some(d.pid),
            in_task: true,
            cpu: d.cpu,
            unqueued: Some(d.packet_id),
            waits: d.waits,
            claimed: false,
        }
    }
}

impl Store {
    /// The datagrams of a socket, with their calls.
    pub(crate) fn datagrams(&self, socket: i64) -> Result<Arc<Datagrams>> {
        let kept = || self.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = kept().iter().find(|(s, _)| *s == socket) {
            return Ok(Arc::clone(known));
        }
        let groups = self.table::<AppEventRow>()?.groups_where("socket_id", &(socket..=socket));
        let mut of_it = self.follow_datagrams(&groups, &|s| s == socket)?;
        let known = Arc::new(of_it.remove(&socket).unwrap_or_default());
        let mut kept = kept();
        if kept.len() >= MOST {
            kept.remove(0);
        }
        kept.push((socket, Arc::clone(&known)));
        Ok(known)
    }

    /// The same of all sockets that `wanted` has, from one pass.
    pub(crate) fn all_datagrams(&self, wanted: &dyn Fn(i64) -> bool) -> Result<HashMap<i64, Datagrams>> {
        let groups: Vec<usize> = (0..self.table::<AppEventRow>()?.groups()).collect();
        self.follow_datagrams(&groups, wanted)
    }

    /// Follows what these row groups (ascending) have of the sockets. In memory are events that one still to be read may come before.
    fn follow_datagrams(
        &self,
        groups: &[usize],
        wanted: &dyn Fn(i64) -> bool,
    ) -> Result<HashMap<i64, Datagrams>> {
        let table = self.table::<AppEventRow>()?;
        let times = Times::of(&table, "at_ns");
        let skipped = self.skipped()?;
        let mut gaps: Vec<i64> = self.all::<GapRow>()?.into_iter().map(|g| g.to_ns).collect();
        gaps.sort_unstable();
        let unqueued = self.unqueued()?;
        let of_wanted = unqueued.iter().filter(|(socket, _)| wanted(**socket));
        let mut events: Vec<(i64, Event)> =
            of_wanted.flat_map(|(s, of)| of.iter().map(|d| (*s, Event::of_unqueued(d)))).collect();
        let mut followed: HashMap<i64, Followed<'_>> = HashMap::new();
        let mut follow = |(socket, e): (i64, Event)| {
            followed.entry(socket).or_insert_with(|| Followed::new(&gaps, &skipped)).event(&e);
        };
        let (mut first, mut read) = (0i64, 0);
        for group in groups {
            first += (read..*group).map(|g| table.group_rows(g) as i64).sum::<i64>();
            read = *group;
            each_event(&table, (*group, first), wanted, &mut |s, e| events.push((s, e)))?;
            events.sort_by_key(|(_, e)| (e.at_ns, e.unqueued.is_some()));
            let behind_ns = times.earliest_behind(*group);
            let sure = events.partition_point(|(_, e)| e.at_ns < behind_ns);
            events.drain(..sure).for_each(&mut follow);
        }
        events.into_iter().for_each(follow);
        Ok(followed.into_iter().map(|(socket, f)| (socket, f.over())).collect())
    }
}

/// Events of a row group, whose first row has number `first`, with their socket.
fn each_event(
    table: &TableFile,
    (group, first): (usize, i64),
    wanted: &dyn Fn(i64) -> bool,
    give: &mut dyn FnMut(i64, Event),
) -> Result<()> {
    if !table.ints(group, "socket_id")?.into_iter().any(wanted) {
        return Ok(());
    }
    let columns = ["at_ns", "socket_id", "crossing", "size_bytes", "segments", "tag", "pid", "ctx", "cpu"];
    let mut reader = table.batches(vec![group], &columns)?;
    let mut id = first;
    while let Some(batch) = reader.next(8192)? {
        for e in (0..batch.rows).map(|i| <AppEventRow as Row>::get(&batch, i)) {
            id += 1;
            let what = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8);
            let Some(what) = what.filter(|what| wanted(e.socket_id) && FOLLOWED.contains(what)) else {
                continue;
            };
            let event = Event {
                id: id - 1,
                at_ns: e.at_ns,
                what,
                bytes: e.size_bytes,
                tag: e.tag.unwrap_or(0),
                pid: e.pid,
                in_task: e.ctx == kpat_model::Context::Task as i32,
                cpu: e.cpu,
                unqueued: None,
                waits: None,
                claimed: e.segments == 0,
            };
            give(e.socket_id, event);
        }
    }
    Ok(())
}

const FOLLOWED: [Crossing; 5] =
    [Crossing::ToDevice, Crossing::Send, Crossing::FromDevice, Crossing::ToSocket, Crossing::Recv];
