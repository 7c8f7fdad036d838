//! What a socket's events in order of time say of its datagrams: see [`super`].

use super::sends::Sends;
use super::{Calls, DatagramCall, Datagrams, Event, Sighting};
use crate::codes::EAGAIN;
use crate::store::unqueued::Skipped;
use kpat_model::Crossing;
use std::collections::{HashMap, VecDeque};

/// The queue is filled on several CPUs at once: which came first is not known if they are nearer than this.
const AT_ONCE_NS: i64 = 50_000;
/// A datagram that came so much earlier is there for whoever asks.
const THERE_NS: i64 = 1_000_000;

/// A socket's datagrams as far as its events were seen, which come in order of time.
pub(super) struct Followed<'a> {
    pub out: Datagrams,
    sends: Sends,
    queue: Queue,
    /// When those of the log's gaps end that are still to come, in order of time.
    gaps: &'a [i64],
    skipped: &'a [Skipped],
}

impl<'a> Followed<'a> {
    pub fn new(gaps: &'a [i64], skipped: &'a [Skipped]) -> Followed<'a> {
        let (out, sends, queue) = (Datagrams::default(), Sends::default(), Queue::default());
        Followed { out, sends, queue, gaps, skipped }
    }

    pub fn event(&mut self, e: &Event) {
        let out = &mut self.out;
        let over = self.gaps.partition_point(|to_ns| *to_ns <= e.at_ns);
        if over > 0 {
            self.gaps = &self.gaps[over..];
            self.sends = Sends::unsure();
            self.queue.doubt(out);
        }
        match e.what {
            Crossing::ToDevice => self.sends.packet(e, out),
            Crossing::Send => self.sends.over(e, self.skipped, out),
            Crossing::FromDevice => self.queue.came(e, out),
            Crossing::ToSocket if e.bytes < 0 => self.queue.refused(e),
            Crossing::ToSocket => self.queue.push(e),
            Crossing::Recv => self.queue.take(e, out),
            _ => {}
        }
    }

    /// No event comes any more.
    pub fn over(mut self) -> Datagrams {
        self.sends.finish(&mut self.out);
        if !self.queue.lost {
            self.out.waiting = self.queue.waiting.iter().filter_map(|w| w.place).collect();
        }
        self.out
    }
}

pub(super) fn call(e: &Event, out: &mut Datagrams) -> u32 {
    let error = (e.bytes < 0).then_some(-e.bytes as i32);
    out.calls.push(DatagramCall { id: e.id, at_ns: e.at_ns, bytes: e.bytes.max(0), pid: e.pid, error });
    (out.calls.len() - 1) as u32
}

pub(super) fn sighting(e: &Event, sent: bool, out: &mut Datagrams) -> u32 {
    let (at_ns, cpu, tag, bytes) = (e.at_ns, e.cpu, e.tag, e.bytes);
    let (unqueued, asks) = (e.unqueued, e.waits.is_some());
    out.sightings.push(Sighting { at_ns, cpu, tag, sent, bytes, unqueued, asks, calls: Calls::NotKnown });
    (out.sightings.len() - 1) as u32
}

/// A packet that came from a device.
struct Came {
    place: u32,
    /// It is, or was, in the queue.
    queued: bool,
    /// So many that were taken before their socket could report them are still to be reported, and claim to be this one, which is the last of a list: the last
    /// of them is, if it is not reported itself.
    claims: u32,
    itself: bool,
}

impl Came {
    fn is_reported(&mut self, claimed: bool) -> bool {
        self.claims -= u32::from(claimed && self.claims > 0);
        !claimed || (self.claims == 0 && !self.itself)
    }
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
    /// By tag, the newest that came from a device.
    came: HashMap<i64, Came>,
    waiting: VecDeque<Waiting>,
    last: Option<(i64, i32)>,
    /// By CPU, when its last one was on its way into the queue.
    on_its_way: HashMap<i32, i64>,
    /// Reported received since the queue was empty for sure.
    reported: Vec<u32>,
    /// How much is in the queue is not known.
    lost: bool,
}

impl Queue {
    fn came(&mut self, e: &Event, out: &mut Datagrams) {
        let same = |c: &&mut Came| out.sightings[c.place as usize].at_ns == e.at_ns;
        let (claims, itself) = (u32::from(e.claimed), !e.claimed);
        if let Some(known) = self.came.get_mut(&e.tag).filter(same) {
            // logged twice, or so claimed
            known.claims += claims;
            if !known.itself {
                out.sightings[known.place as usize].bytes = e.bytes;
            }
            known.itself |= itself;
            return;
        }
        let place = sighting(e, false, out);
        self.came.insert(e.tag, Came { place, queued: false, claims, itself });
    }

    fn push(&mut self, e: &Event) {
        let at_once = self.last.is_some_and(|(at, cpu)| cpu != e.cpu && e.at_ns - at < AT_ONCE_NS);
        self.last = Some((e.at_ns, e.cpu));
        self.on_its_way.insert(e.cpu, e.at_ns);
        let mut which = None;
        let came = self.came.get_mut(&e.tag).filter(|_| e.tag != 0);
        if let Some(Came { place, queued, .. }) = came.and_then(|c| c.is_reported(e.claimed).then_some(c)) {
            let before = self.waiting.iter_mut().find(|w| w.place == Some(*place));
            // One that was read is no more, and its `sk_buff` is that of a datagram that was not seen to come: a part of a larger one.
            which = (!*queued || before.is_some()).then_some(*place);
            // Several were put into the queue before the first was reported: each report is of the last.
            if let Some(before) = before {
                before.is_any();
            }
            *queued = true;
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

    /// The one that this CPU was about to put into the queue did not go in. It puts none there meanwhile, however long a virtual CPU did not run.
    fn refused(&mut self, e: &Event) {
        let Some(since) = self.on_its_way.remove(&e.cpu) else { return };
        if let Some(i) = self.waiting.iter().rposition(|w| (w.cpu, w.at_ns) == (e.cpu, since)) {
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
            out.sightings[place as usize].calls = Calls::One(own);
            self.reported.push(place);
        }
    }

    fn doubt(&mut self, out: &mut Datagrams) {
        for place in self.reported.drain(..) {
            out.sightings[place as usize].calls = Calls::NotKnown;
        }
        self.waiting.clear();
        self.lost = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::unqueued::Waits;
    use Crossing::*;

    /// `pid`: 0: none, in a softirq.
    fn crossing(id: i64, at_ns: i64, what: Crossing, bytes: i64, tag: i64, pid: i32) -> Event {
        let pid = (pid != 0).then_some(pid);
        let in_task = pid.is_some();
        Event {
            id,
            at_ns,
            what,
            bytes,
            tag,
            pid,
            in_task,
            cpu: 0,
            unqueued: None,
            waits: None,
            claimed: false,
        }
    }

    /// Crossings of one socket: when, what, bytes, tag, thread (0: none, in a softirq). For each packet: its tag, and when its calls were over.
    fn reads(rows: &[(i64, Crossing, i64, i64, i32)]) -> Vec<(i64, Vec<i64>)> {
        let event = |(id, &(at, what, bytes, tag, pid)): (usize, &(i64, Crossing, i64, i64, i32))| {
            crossing(id as i64, at * 1000, what, bytes, tag, pid)
        };
        let events: Vec<Event> = rows.iter().enumerate().map(event).collect();
        let mut followed = Followed::new(&[], &[]);
        events.iter().for_each(|e| followed.event(e));
        let d = followed.over();
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
    fn what_waited_for_its_neighbour_is_of_its_call() {
        let at = |at, what, bytes, tag, pid| crossing(at, at, what, bytes, tag, pid);
        let waits = |from: i64, until_ns, tag: i64, pid| Event {
            unqueued: Some(100 + from),
            waits: Some(Waits { tag: tag as i32, until_ns }),
            ..at(from, ToDevice, 10, 0, pid)
        };
        let events = [
            waits(1, 9, 5, 7),
            at(2, Send, 10, 0, 7),
            waits(3, 20, 6, 7),
            at(4, Send, 10, 0, 7),
            // The second goes first; then one in another thread's call, with the address of the first, which was dropped before.
            at(8, ToDevice, 10, 6, 0),
            at(10, ToDevice, 10, 5, 8),
            at(11, Send, 10, 0, 8),
        ];
        let mut followed = Followed::new(&[], &[]);
        events.iter().for_each(|e| followed.event(e));
        let d = followed.out;
        let calls = |s: &Sighting| s.calls.iter().map(|c| d.calls[*c as usize].at_ns).collect::<Vec<_>>();
        let found: Vec<_> = d.sightings.iter().map(|s| (s.at_ns, s.unqueued, calls(s))).collect();
        let want =
            [(1, Some(101), vec![2]), (3, Some(103), vec![4]), (8, None, vec![4]), (10, None, vec![11])];
        assert_eq!(found, want);
        assert_eq!(d.asked().collect::<Vec<_>>(), [(101, 1), (103, 3)]);
    }

    #[test]
    fn a_datagram_of_several_sends_is_of_all_of_them() {
        let corked = [(1, Send, 10, 0, 7), (2, Send, 20, 0, 8)];
        let with = |more: &[_]| reads(&[&corked[..], more].concat());
        // The last is a plain one; it is released by setsockopt, then nothing, a plain send, or one that waits; through two devices.
        assert_eq!(with(&[(3, ToDevice, 35, 1, 7), (4, Send, 5, 0, 7)]), [(1, vec![1, 2, 4])]);
        let released = (3, ToDevice, 30, 1, 7);
        assert_eq!(with(&[released]), [(1, vec![1, 2])]);
        let plain = [released, (4, ToDevice, 5, 2, 7), (5, Send, 5, 0, 7)];
        assert_eq!(with(&plain), [(1, vec![1, 2]), (2, vec![5])]);
        let waits = [released, (4, Send, 5, 0, 7), (5, ToDevice, 12, 2, 7), (6, Send, 7, 0, 7)];
        assert_eq!(with(&waits), [(1, vec![1, 2]), (2, vec![4, 6])]);
        let twice = [released, (3, ToDevice, 70, 1, 7), (4, ToDevice, 30, 2, 7), (5, Send, 30, 0, 7)];
        assert_eq!(with(&twice), [(1, vec![1, 2]), (1, vec![1, 2]), (2, vec![5])]);
        // The next one is in the same buffer.
        for bytes in [5, 70] {
            let again = [released, (4, ToDevice, bytes, 1, 7), (5, Send, bytes, 0, 7)];
            assert_eq!(with(&again), [(1, vec![1, 2]), (1, vec![5])]);
        }
        // As many as the send has: of which it is is not known.
        assert_eq!(with(&[released, (4, Send, 30, 0, 7)]), [(1, vec![])]);
        assert_eq!(with(&[(3, ToDevice, 29, 1, 7)]), [(1, vec![])]);
    }

    #[test]
    fn what_does_not_add_up_is_not_known() {
        let rows = [
            // two sends fill one datagram
            (1, Send, 10, 0, 7),
            (2, ToDevice, 30, 1, 7),
            (3, Send, 20, 0, 7),
            // released by setsockopt, and one that waits, or not
            (7, Send, 10, 0, 7),
            (7, ToDevice, 10, 5, 7),
            (7, Send, 10, 0, 7),
            // refused after the device's queue had it; the call before may have waited
            (8, ToDevice, 15, 4, 7),
            (9, Send, -105, 0, 7),
        ];
        assert_eq!(reads(&rows), [(1, vec![1, 3]), (5, vec![]), (4, vec![])]);
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
    fn of_what_was_taken_before_it_was_reported_the_last_is_what_came_last() {
        let claim = |at, what, bytes, tag| Event { claimed: true, ..crossing(at, at, what, bytes, tag, 0) };
        let seen = |at, what, bytes, tag| crossing(at, at, what, bytes, tag, 0);
        let read = |at| crossing(at, at, Recv, 9, 0, 7);
        // What came last was reported itself: the one before is none that is known. Then it was taken as well; then alone.
        let events = [
            [claim(10, FromDevice, 9, 3), seen(10, FromDevice, 9, 3)].to_vec(),
            [claim(11, ToSocket, 9, 3), read(12), seen(13, ToSocket, 9, 3), read(14)].to_vec(),
            [claim(20, FromDevice, 9, 4), claim(20, FromDevice, 9, 4)].to_vec(),
            [claim(21, ToSocket, 9, 4), read(22), claim(23, ToSocket, 9, 4), read(24)].to_vec(),
            [claim(30, FromDevice, 9, 5), claim(31, ToSocket, 9, 5), read(32)].to_vec(),
        ];
        let mut followed = Followed::new(&[], &[]);
        events.concat().iter().for_each(|e| followed.event(e));
        let d = followed.out;
        let calls = |s: &Sighting| s.calls.iter().map(|c| d.calls[*c as usize].at_ns).collect::<Vec<_>>();
        let found: Vec<_> = d.sightings.iter().map(|s| (s.tag, calls(s))).collect();
        assert_eq!(found, [(3, vec![14]), (4, vec![24]), (5, vec![32])]);
    }

    #[test]
    fn what_was_read_is_not_read_again_as_a_datagram_in_its_place() {
        let mut rows = vec![(1, FromDevice, 535, 1, 0), (2, ToSocket, 535, 1, 0), (3, Recv, 535, 0, 7)];
        // parts of a larger one, which are not seen to come: one has the `sk_buff` of the datagram before
        rows.extend([
            (4, ToSocket, 114, 1, 0),
            (5, ToSocket, 114, 9, 0),
            (6, Recv, 114, 0, 7),
            (7, Recv, 114, 0, 7),
        ]);
        rows.extend([(8, FromDevice, 40, 9, 0), (8, ToSocket, 40, 9, 0), (9, Recv, 40, 0, 7)]);
        assert_eq!(reads(&rows), [(1, vec![3]), (9, vec![9])]);
    }

    #[test]
    fn what_lies_in_the_socket_at_the_end_is_known_unless_the_queue_is_in_doubt() {
        let left = |rows: &[(i64, Crossing, i64, i64)]| {
            let mut followed = Followed::new(&[], &[]);
            for (id, &(at, what, bytes, tag)) in rows.iter().enumerate() {
                let pid = if what == Recv { 7 } else { 0 };
                followed.event(&crossing(id as i64, at * 1000, what, bytes, tag, pid));
            }
            let out = followed.over();
            out.waiting.iter().map(|place| out.sightings[*place as usize].tag).collect::<Vec<_>>()
        };
        let mut rows: Vec<_> = (1..=3).flat_map(|n| [(n, FromDevice, 9, n), (n, ToSocket, 9, n)]).collect();
        rows.push((5, Recv, 9, 0));
        // The read is later than all of them, and the first's.
        assert_eq!(left(&rows), [2, 3]);
        // One more is read than came.
        rows.extend([(6, Recv, 9, 0), (7, Recv, 9, 0), (8, Recv, 9, 0)]);
        rows.extend([(9, FromDevice, 9, 4), (9, ToSocket, 9, 4)]);
        assert!(left(&rows).is_empty());
    }

    #[test]
    fn what_a_full_socket_refused_is_read_by_nobody_however_late_it_says_so() {
        let on_its_way = |at, bytes, tag| [(at, FromDevice, bytes, tag, 0), (at, ToSocket, bytes, tag, 0)];
        let mut rows = on_its_way(1, 9, 1).to_vec();
        // the virtual CPU did not run for 5 ms; of a further refusal it was not seen what was on its way
        rows.extend(on_its_way(2, 10, 2));
        rows.extend([(5_002, ToSocket, -12, 0, 0), (5_003, ToSocket, -12, 0, 0)]);
        rows.extend([(9_000, Recv, 9, 0, 7)]);
        rows.extend(on_its_way(9_001, 11, 3));
        rows.extend([(9_002, Recv, 11, 0, 7), (9_003, Recv, -11, 0, 7)]);
        assert_eq!(reads(&rows), [(1, vec![9_000]), (2, vec![]), (3, vec![9_002])]);
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
