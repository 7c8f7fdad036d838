//! Which call sent and which received each datagram of a socket that has no stream, from what crossed in order of time.
//!
//! A send makes its packets within the call, so they are by its thread, and together have its bytes; those of a call that the kernel refused
//! are its own if nothing waited to be sent. What no device's queue had is seen where it was dropped (`dropped.rs`). What does not add up is reported as
//! unknown: corked and given away otherwise than by a send, or sent later, when the neighbour's address had come. Receive calls take
//! datagrams in the order in which they came into the socket's queue. Where a call and the queue contradict each other (one too many
//! taken, more bytes than the datagram has, nothing there though something is), nothing is known back to when the queue was empty for sure.
//! Rejected: the nearest call in time. A full queue is read long after.

use super::Store;
use super::dropped::{Dropped, Skipped};
use crate::error::Result;
use kpat_model::Crossing;
use kpat_store::TableFile;
use kpat_store::tables::*;
use std::collections::{HashMap, VecDeque};
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

/// A packet of the socket where the device's queue got it, where it came from a device, or where it was dropped before any queue had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub at_ns: i64,
    pub cpu: i32,
    pub tag: i64,
    pub sent: bool,
    pub bytes: i64,
    /// Its number, where it was dropped.
    pub dropped: Option<i64>,
    /// Places in [`Datagrams::calls`]; empty: not known. Several: a datagram that several sends filled.
    pub calls: Vec<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// In order of time.
    pub sightings: Vec<Sighting>,
    pub calls: Vec<DatagramCall>,
}

/// By socket, the newest last.
pub(crate) type Known = Mutex<Vec<(i64, Arc<Datagrams>)>>;

const MOST: usize = 8;
const EAGAIN: i64 = -11;
/// The queue is filled on several CPUs at once: which came first is not known if they are nearer than this.
const AT_ONCE_NS: i64 = 50_000;
/// A datagram that came so much earlier is there for whoever asks.
const THERE_NS: i64 = 1_000_000;

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
    /// The packet that was dropped there.
    dropped: Option<i64>,
}

impl Event {
    /// As if a device's queue had got it.
    fn of_dropped(d: &Dropped) -> Event {
        Event {
            id: -1,
            at_ns: d.at_ns,
            what: Crossing::ToDevice,
            bytes: d.bytes,
            tag: 0,
            pid: Some(d.pid),
            in_task: true,
            cpu: d.cpu,
            dropped: Some(d.packet_id),
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
        let table = self.table::<AppEventRow>()?;
        let groups = table.groups_where("socket_id", &(socket..=socket));
        let mut events: Vec<Event> = Vec::new();
        let mut first = 0i64;
        for group in 0..table.groups() {
            if groups.contains(&group) {
                each_event(&table, (group, first), &|s| s == socket, &mut |_, e| events.push(e))?;
            }
            first += table.group_rows(group) as i64;
        }
        let dropped = self.dropped_in_calls()?;
        events.extend(dropped.get(&socket).into_iter().flatten().map(Event::of_dropped));
        events.sort_by_key(|e| e.at_ns);
        let gaps: Vec<i64> = self.all::<GapRow>()?.into_iter().map(|g| g.to_ns).collect();
        let known = Arc::new(follow(&events, gaps, &self.skipped()?));
        let mut kept = kept();
        if kept.len() >= MOST {
            kept.remove(0);
        }
        kept.push((socket, Arc::clone(&known)));
        Ok(known)
    }

    /// The same of all sockets that `wanted` has, from one pass.
    pub(crate) fn all_datagrams(&self, wanted: &dyn Fn(i64) -> bool) -> Result<HashMap<i64, Datagrams>> {
        let table = self.table::<AppEventRow>()?;
        let mut events: HashMap<i64, Vec<Event>> = HashMap::new();
        let mut first = 0i64;
        for group in 0..table.groups() {
            each_event(&table, (group, first), wanted, &mut |s, e| events.entry(s).or_default().push(e))?;
            first += table.group_rows(group) as i64;
        }
        for (socket, dropped) in self.dropped_in_calls()?.iter() {
            if let Some(events) = events.get_mut(socket) {
                events.extend(dropped.iter().map(Event::of_dropped));
            }
        }
        let gaps: Vec<i64> = self.all::<GapRow>()?.into_iter().map(|g| g.to_ns).collect();
        let skipped = self.skipped()?;
        let known = events.into_iter().map(|(socket, mut events)| {
            events.sort_by_key(|e| e.at_ns);
            (socket, follow(&events, gaps.clone(), &skipped))
        });
        Ok(known.collect())
    }
}

/// Events of a row group, whose first row has number `first`, with their socket.
fn each_event(
    table: &TableFile,
    (group, first): (usize, i64),
    wanted: &dyn Fn(i64) -> bool,
    give: &mut dyn FnMut(i64, Event),
) -> Result<()> {
    let sockets = table.ints(group, "socket_id")?;
    let places: Vec<u32> = (0..).zip(&sockets).filter(|(_, s)| wanted(**s)).map(|(i, _)| i).collect();
    let rows = table.rows_at::<AppEventRow>(group, &places)?;
    for (place, e) in places.iter().zip(rows) {
        let Some(what) = u8::try_from(e.crossing).ok().and_then(Crossing::from_u8) else { continue };
        let event = Event {
            id: first + i64::from(*place),
            at_ns: e.at_ns,
            what,
            bytes: e.size_bytes,
            tag: e.tag.unwrap_or(0),
            pid: e.pid,
            in_task: e.ctx == kpat_model::Context::Task as i32,
            cpu: e.cpu,
            dropped: None,
        };
        give(e.socket_id, event);
    }
    Ok(())
}

/// `events` in order of time.
fn follow(events: &[Event], mut gaps: Vec<i64>, skipped: &[Skipped]) -> Datagrams {
    let mut out = Datagrams::default();
    let (mut sends, mut queue) = (Sends::default(), Queue::default());
    gaps.sort_unstable();
    let mut gaps = gaps.into_iter().peekable();
    for e in events {
        while gaps.next_if(|g| *g <= e.at_ns).is_some() {
            sends = Sends { unsure: true, ..Sends::default() };
            queue.doubt(&mut out);
        }
        match e.what {
            Crossing::ToDevice => sends.packet(e, &mut out),
            Crossing::Send => sends.over(e, skipped, &mut out),
            Crossing::FromDevice => queue.came(e, &mut out),
            Crossing::ToSocket if e.bytes < 0 => queue.refused(e),
            Crossing::ToSocket => queue.push(e),
            Crossing::Recv => queue.take(e, &mut out),
            _ => {}
        }
    }
    out
}

fn call(e: &Event, out: &mut Datagrams) -> u32 {
    let error = (e.bytes < 0).then_some(-e.bytes as i32);
    out.calls.push(DatagramCall { id: e.id, at_ns: e.at_ns, bytes: e.bytes.max(0), pid: e.pid, error });
    (out.calls.len() - 1) as u32
}

fn sighting(e: &Event, sent: bool, out: &mut Datagrams) -> u32 {
    let (at_ns, cpu, tag, bytes) = (e.at_ns, e.cpu, e.tag, e.bytes);
    let dropped = e.dropped;
    out.sightings.push(Sighting { at_ns, cpu, tag, sent, bytes, dropped, calls: Vec::new() });
    (out.sightings.len() - 1) as u32
}

/// What threads have sent and calls that are not yet over.
#[derive(Default)]
struct Sends {
    /// Packets by thread, since its last call was over.
    packets: HashMap<i32, Vec<u32>>,
    /// Calls without a packet: what they gave waits for more, or went no further.
    waiting: Vec<u32>,
    /// More may wait than is known.
    unsure: bool,
}

/// Sends without a packet, of which a later packet may be. More were not sent at all.
const MOST_WAITING: usize = 64;

impl Sends {
    fn packet(&mut self, e: &Event, out: &mut Datagrams) {
        let place = sighting(e, true, out);
        match e.pid {
            Some(pid) if e.in_task => self.packets.entry(pid).or_default().push(place),
            _ => self.later(e, place, out),
        }
    }

    /// Not by a thread that sends: by one call without a packet that has as many bytes, if there is one only.
    fn later(&mut self, e: &Event, place: u32, out: &mut Datagrams) {
        let fits = |c: &&u32| out.calls[**c as usize].bytes == e.bytes;
        let mut fitting = self.waiting.iter().filter(fits);
        if let (Some(&one), None) = (fitting.next(), fitting.next()) {
            self.waiting.retain(|c| *c != one);
            out.sightings[place as usize].calls = vec![one];
        }
    }

    fn over(&mut self, e: &Event, skipped: &[Skipped], out: &mut Datagrams) {
        let Some(pid) = e.pid else { return };
        let packets = self.packets.remove(&pid).unwrap_or_default();
        if e.bytes < 0 {
            return self.refused(e, &packets, skipped, out);
        }
        let own = call(e, out);
        if packets.is_empty() {
            if self.waiting.len() == MOST_WAITING {
                self.waiting.remove(0);
            }
            self.waiting.push(own);
            return;
        }
        let bytes = |of: &[u32]| of.iter().map(|p| out.sightings[*p as usize].bytes).sum::<i64>();
        let once = once(&packets, out);
        let before: i64 = self.waiting.iter().map(|c| out.calls[*c as usize].bytes).sum();
        let whole = |bytes_sent: i64| [bytes(&packets), bytes(&once)].contains(&bytes_sent);
        // What waited may have been released by a socket option, without a send; then this call's own may wait.
        let released = before > 0 && whole(before);
        let calls = match packets.len() {
            _ if released => Vec::new(),
            _ if whole(e.bytes) => vec![own],
            1 if before > 0 && whole(before + e.bytes) => self.waiting.iter().copied().chain([own]).collect(),
            _ => Vec::new(),
        };
        self.waiting.clear();
        self.unsure = calls.is_empty();
        for p in packets {
            out.sightings[p as usize].calls.clone_from(&calls);
        }
    }

    /// The kernel made packets of it and then refused it. If something waited they may be of that; it does not wait any longer.
    fn refused(&mut self, e: &Event, packets: &[u32], skipped: &[Skipped], out: &mut Datagrams) {
        let Some(first) = packets.first() else { return };
        let may_have_waited = self.unsure || !self.waiting.is_empty();
        (self.waiting, self.unsure) = (Vec::new(), false);
        // Nor are there bytes to tell them from those of a call before, if its end was skipped.
        let first_ns = out.sightings[*first as usize].at_ns;
        if may_have_waited || skipped.iter().any(|s| s.meets(first_ns, e.at_ns)) {
            return;
        }
        let own = call(e, out);
        out.calls[own as usize].bytes =
            once(packets, out).iter().map(|p| out.sightings[*p as usize].bytes).sum();
        for p in packets {
            out.sightings[*p as usize].calls = vec![own];
        }
    }
}

/// A packet that goes through one device into another is seen in both queues: of these the first.
fn once(packets: &[u32], out: &Datagrams) -> Vec<u32> {
    let mut once: Vec<u32> = Vec::new();
    for p in packets {
        if once.iter().all(|o| out.sightings[*o as usize].tag != out.sightings[*p as usize].tag) {
            once.push(*p);
        }
    }
    once
}

/// A datagram in a socket's queue.
struct Waiting {
    /// `None`: not known which.
    place: Option<u32>,
    /// It has no more bytes.
    most: i64,
    at_ns: i64,
    cpu: i32,
}

impl Waiting {
    /// Several may have come in its place.
    fn is_any(&mut self) {
        (self.place, self.most) = (None, i64::MAX);
    }
}

/// What waits in a socket to be received.
#[derive(Default)]
struct Queue {
    /// By tag, the newest that came from a device, and whether it is in the queue.
    came: HashMap<i64, (u32, bool)>,
    waiting: VecDeque<Waiting>,
    last: Option<(i64, i32)>,
    /// Reported received since the queue was empty for sure.
    reported: Vec<u32>,
    /// How much is in the queue is not known.
    lost: bool,
}

impl Queue {
    fn came(&mut self, e: &Event, out: &mut Datagrams) {
        let same = |c: &&(u32, bool)| out.sightings[c.0 as usize].at_ns == e.at_ns;
        if self.came.get(&e.tag).as_ref().is_some_and(same) {
            return; // logged twice
        }
        let place = sighting(e, false, out);
        self.came.insert(e.tag, (place, false));
    }

    fn push(&mut self, e: &Event) {
        let at_once = self.last.is_some_and(|(at, cpu)| cpu != e.cpu && e.at_ns - at < AT_ONCE_NS);
        self.last = Some((e.at_ns, e.cpu));
        let mut which = None;
        if let Some((place, queued)) = self.came.get_mut(&e.tag).filter(|_| e.tag != 0) {
            // Several were put into the queue before the first was reported: each report is of the last.
            if *queued && let Some(before) = self.waiting.iter_mut().find(|w| w.place == Some(*place)) {
                before.is_any();
            }
            *queued = true;
            which = Some(*place);
        }
        if at_once {
            which = None;
            if let Some(before) = self.waiting.back_mut() {
                before.is_any();
            }
        }
        let most = if which.is_some() { e.bytes } else { i64::MAX };
        self.waiting.push_back(Waiting { place: which, most, at_ns: e.at_ns, cpu: e.cpu });
    }

    /// The one that this CPU was about to put into the queue did not go in.
    fn refused(&mut self, e: &Event) {
        let own = |w: &Waiting| w.cpu == e.cpu && e.at_ns - w.at_ns < THERE_NS;
        if let Some(i) = self.waiting.iter().rposition(own) {
            self.waiting.remove(i);
        }
    }

    fn take(&mut self, e: &Event, out: &mut Datagrams) {
        if e.bytes == EAGAIN {
            if self.waiting.front().is_some_and(|w| w.at_ns + THERE_NS < e.at_ns) {
                self.doubt(out);
            }
            if self.waiting.is_empty() || self.lost {
                (self.lost, self.reported) = (false, Vec::new());
                self.waiting.retain(|w| w.at_ns + THERE_NS >= e.at_ns);
            }
            return;
        }
        if e.bytes < 0 {
            return;
        }
        let own = call(e, out);
        let Some(Waiting { place, most, .. }) = self.waiting.pop_front() else { return self.doubt(out) };
        let since = place.map_or(i64::MIN, |p| out.sightings[p as usize].at_ns);
        if e.bytes > most || since > e.at_ns {
            return self.doubt(out);
        }
        if let Some(place) = place.filter(|_| !self.lost) {
            out.sightings[place as usize].calls = vec![own];
            self.reported.push(place);
        }
    }

    fn doubt(&mut self, out: &mut Datagrams) {
        for place in self.reported.drain(..) {
            out.sightings[place as usize].calls.clear();
        }
        self.waiting.clear();
        self.lost = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Crossing::*;

    /// Crossings of one socket: when, what, bytes, tag, thread (0: none, in a softirq). For each packet: its tag, and when its calls were over.
    fn reads(rows: &[(i64, Crossing, i64, i64, i32)]) -> Vec<(i64, Vec<i64>)> {
        let event = |(id, &(at, what, bytes, tag, pid)): (usize, &(i64, Crossing, i64, i64, i32))| {
            let pid = (pid != 0).then_some(pid);
            let (id, in_task, dropped) = (id as i64, pid.is_some(), None);
            Event { id, at_ns: at * 1000, what, bytes, tag, pid, in_task, cpu: 0, dropped }
        };
        let events: Vec<Event> = rows.iter().enumerate().map(event).collect();
        let d = follow(&events, Vec::new(), &[]);
        let calls = |s: &Sighting| s.calls.iter().map(|c| d.calls[*c as usize].at_ns / 1000).collect();
        d.sightings.iter().map(|s| (s.tag, calls(s))).collect()
    }

    #[test]
    fn a_packet_is_of_the_send_of_its_thread() {
        let rows = [
            (1, ToDevice, 50, 1, 7),
            // another thread's call ends first
            (2, ToDevice, 50, 2, 8),
            (3, Send, 50, 0, 8),
            (4, Send, 50, 0, 7),
            // fragments of one datagram, the second with the address that the first had
            (5, ToDevice, 100, 3, 7),
            (6, ToDevice, 20, 3, 7),
            (7, Send, 120, 0, 7),
            // through a tunnel's device and another
            (8, ToDevice, 60, 4, 7),
            (9, ToDevice, 90, 4, 7),
            (10, Send, 60, 0, 7),
        ];
        let want = [(1, vec![4]), (2, vec![3]), (3, vec![7]), (3, vec![7]), (4, vec![10]), (4, vec![10])];
        assert_eq!(reads(&rows), want);
    }

    #[test]
    fn what_does_not_add_up_is_not_known() {
        let rows = [
            // two sends fill one datagram
            (1, Send, 10, 0, 7),
            (2, ToDevice, 30, 1, 7),
            (3, Send, 20, 0, 7),
            // released by setsockopt, and a send; the same, and one that waits
            (4, Send, 10, 0, 7),
            (5, ToDevice, 10, 2, 7),
            (6, ToDevice, 15, 3, 7),
            (7, Send, 15, 0, 7),
            (7, Send, 10, 0, 7),
            (7, ToDevice, 10, 5, 7),
            (7, Send, 10, 0, 7),
            // refused after the device's queue had it; the call before may have waited
            (8, ToDevice, 15, 4, 7),
            (9, Send, -105, 0, 7),
        ];
        assert_eq!(reads(&rows), [(1, vec![1, 3]), (2, vec![]), (3, vec![]), (5, vec![]), (4, vec![])]);
        // The neighbour's address was not known: sent by a softirq, when it came. One fits, then two do.
        let late = [
            (1, Send, 10, 0, 7),
            (2, ToDevice, 10, 1, 0),
            (3, Send, 9, 0, 7),
            (4, Send, 9, 0, 7),
            (5, ToDevice, 9, 2, 0),
        ];
        assert_eq!(reads(&late), [(1, vec![1]), (2, vec![])]);
    }

    #[test]
    fn a_refused_call_has_its_packets_if_nothing_waited() {
        let rows = [
            // no packet was made of the second, and none of the fourth, whose thread had one before
            (1, ToDevice, 50, 1, 7),
            (2, Send, -105, 0, 7),
            (3, Send, -13, 0, 7),
            (4, ToDevice, 60, 2, 7),
            (5, Send, 60, 0, 7),
            (6, Send, -13, 0, 7),
            // two threads at once; two fragments
            (7, ToDevice, 50, 3, 7),
            (8, ToDevice, 50, 4, 8),
            (8, ToDevice, 20, 5, 8),
            (9, Send, -1, 0, 8),
            (10, Send, -1, 0, 7),
            // a part waited: of the second call's packet it is not known whether it has it; then nothing waits
            (11, Send, 10, 0, 7),
            (12, ToDevice, 30, 6, 7),
            (13, Send, -1, 0, 7),
            (14, ToDevice, 30, 7, 7),
            (15, Send, -1, 0, 7),
        ];
        let want = [
            (1, vec![2]),
            (2, vec![5]),
            (3, vec![10]),
            (4, vec![9]),
            (5, vec![9]),
            (6, vec![]),
            (7, vec![15]),
        ];
        assert_eq!(reads(&rows), want);
    }

    #[test]
    fn reads_take_datagrams_in_their_order() {
        let came = |at, tag| [(at, FromDevice, 9, tag, 0), (at + 1, ToSocket, 9, tag, 0)];
        let mut rows = [came(1, 1), came(3, 2)].concat();
        // cut to what the reader had room for
        rows.extend([(5, Recv, 4, 0, 7), (6, Recv, 9, 0, 8)]);
        // two were put there before anybody was woken, who then looks at the last
        rows.extend([
            (7, FromDevice, 9, 3, 0),
            (7, FromDevice, 9, 4, 0),
            (8, ToSocket, 9, 4, 0),
            (8, ToSocket, 9, 4, 0),
        ]);
        rows.extend([(9, Recv, 9, 0, 7), (10, Recv, 9, 0, 7)]);
        assert_eq!(reads(&rows), [(1, vec![5]), (2, vec![6]), (3, vec![]), (4, vec![10])]);
    }

    #[test]
    fn a_contradiction_takes_back_what_was_said() {
        let came = |at, tag| [(at, FromDevice, 9, tag, 0), (at + 1, ToSocket, 9, tag, 0)];
        // one was there before the recording: each read seems to be the next datagram's
        let mut rows = [came(1, 1), came(3, 2)].concat();
        rows.extend([(5, Recv, 9, 0, 7), (6, Recv, 9, 0, 7), (7, Recv, 9, 0, 7)]);
        // until the reader finds nothing, nothing is sure
        rows.extend(came(10, 3));
        rows.extend([(12, Recv, 9, 0, 7), (13, Recv, -11, 0, 7)]);
        rows.extend(came(20, 4));
        rows.push((22, Recv, 9, 0, 7));
        assert_eq!(reads(&rows), [(1, vec![]), (2, vec![]), (3, vec![]), (4, vec![22])]);
    }
}
