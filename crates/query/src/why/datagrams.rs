//! The same of a socket without a stream: each call that sent, with the way of what it made. Which packets a call made, and which call read each, only the
//! packets tell ([`crate::ends`]); when they were where, the crossings of both sockets do. Of several that a call made (offload, a group's members) the one
//! that was over last counts, and of several that got a copy the one that read first.
//!
//! Whoever sends and reads in turn waits for answers: what lies between a datagram and the next one read is the peer's. What was dropped, of a socket that
//! has had answers or of which nothing ever arrived, is what the time until the next question is for.

use super::answer;
use super::gather::{Gathered, MOST_WRITES, Write};
use super::line::{Line, Piece};
use super::owed::{Said, open};
use super::{End, Stage};
use crate::app::{Moment, given_on, in_order};
use crate::codes::verdict;
use crate::ends::CarriedByAll;
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::{Context, Crossing};
use kpat_store::tables::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is known of a socket's datagrams.
pub(super) struct Datagrams {
    pub gathered: Gathered,
    /// Of each write, in their order.
    pub lines: Vec<Line>,
    pub packets: Vec<Vec<i64>>,
    /// Of each, the packet whose way the line is; -1: none.
    pub last: Vec<i64>,
    /// The socket that read most of them, in this log.
    pub peer: Option<SocketRow>,
    /// Other ends that it sent to.
    pub peers: u64,
    pub dropped: BTreeSet<i64>,
}

/// A packet's row, as far as it is of use.
#[derive(Clone, Copy)]
struct Fate {
    first_ns: i64,
    last_ns: i64,
    verdict: i32,
}

/// A call that sent.
struct Call {
    from_ns: i64,
    at_ns: i64,
    pid: Option<i32>,
    bytes: i64,
}

/// Moments of one socket's datagrams.
#[derive(Default)]
struct Moments {
    calls: Vec<Call>,
    /// When, the low bits of the packet's address, which crossing; in order of time.
    passed: Vec<(i64, Option<i64>, Crossing)>,
    /// When packets were queued by an interrupt, and so in no call.
    by_interrupt: BTreeSet<i64>,
    reads: Vec<i64>,
    begins_unknown: bool,
    left_out: u64,
}

impl Moments {
    /// When packets were queued that the driver never got as they were: it got one of this socket that was queued later, or never was, a part of one that the
    /// queue cut; or their buffer was queued again.
    fn overtaken(&self) -> BTreeSet<i64> {
        let (mut out, mut queued) = (BTreeSet::new(), BTreeMap::<i64, i64>::new());
        let mut since: HashMap<i64, i64> = HashMap::new();
        for (at, tag, what) in &self.passed {
            let Some(tag) = tag else { continue };
            match what {
                Crossing::ToDevice => {
                    out.extend(since.insert(*tag, *at).filter(|before| queued.remove(before).is_some()));
                    queued.insert(*at, *tag);
                }
                Crossing::ToDriver => {
                    let own = since.remove(tag).filter(|at| queued.remove(at).is_some());
                    let behind = queued.split_off(&own.unwrap_or(*at));
                    out.extend(std::mem::replace(&mut queued, behind).into_keys());
                }
                _ => {}
            }
        }
        out
    }
}

/// Where a packet of a write was when; what is `None` is not in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Way {
    packet: i64,
    /// It waited for the next hop's link address since.
    asked_ns: Option<i64>,
    queue_ns: Option<i64>,
    /// An interrupt queued it.
    by_interrupt: bool,
    driver_ns: Option<i64>,
    device_ns: Option<i64>,
    socket_ns: Option<i64>,
    read_ns: Option<i64>,
    /// A socket of this log got it.
    came: bool,
    /// That socket has reads in the log; one of them is later, so that this one is no longer there.
    reads: bool,
    passed_by: bool,
    /// The driver got what was behind it in the queue, or was made there: this one is no longer in it, or as parts.
    overtaken: bool,
    dropped_ns: Option<i64>,
    /// What became of it in all.
    verdict: i32,
}

/// `None`: not one call that sent is in the log.
///
/// Errors: [`Error::Abandoned`].
pub(super) fn gather(
    store: &Store,
    sender: &SocketRow,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<Datagrams>> {
    let carried = store.carried_by(progress)?;
    let (mut of_writes, mut answers) = (HashMap::<(i64, Option<i32>), Vec<i64>>::new(), Vec::new());
    let mut heard: BTreeMap<i64, i64> = BTreeMap::new();
    for c in carried.calls() {
        let is_own = carried.end_of(c).is_some_and(|e| e.socket_id == sender.socket_id);
        if is_own && c.is_read {
            heard.entry(c.packet_id).or_insert(c.call.at_ns);
        }
        match (is_own, c.is_read) {
            (true, false) => of_writes.entry((c.call.at_ns, c.call.pid)).or_default().push(c.packet_id),
            // What the kernel itself answers was written by nobody.
            (true, true) if carried.of(c.packet_id).0.is_some() => answers.push((c.packet_id, c.call.at_ns)),
            _ => {}
        }
    }
    let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
    for packet in of_writes.values().flatten() {
        carried.of(*packet).1.iter().for_each(|r| *counts.entry(r.socket_id).or_default() += 1);
    }
    let mut gathered = Gathered { connected: true, ..Gathered::default() };
    let ids: Vec<i64> = counts.keys().copied().chain([sender.socket_id]).collect();
    let mut moments = moments(store, &ids, &mut gathered, progress)?;
    let Some(own) = moments.remove(&sender.socket_id).filter(|m| !m.calls.is_empty()) else {
        return Ok(None);
    };
    let written: BTreeSet<i64> = of_writes.values().flatten().copied().collect();
    let (fates, ends) = fates(store, &written, &heard)?;
    let of_answers: Vec<i64> = answers.iter().map(|(packet, _)| *packet).collect();
    let first_of = |p: &i64| fates.get(p).map(|f| f.first_ns);
    let mut out = Datagrams {
        peer: store.sockets()?.get(most(&counts)).cloned(),
        peers: if sender.peer_port != 0 { 1 } else { ends.written(&written).max(1) },
        lines: Vec::new(),
        packets: Vec::new(),
        last: Vec::new(),
        dropped: BTreeSet::new(),
        gathered,
    };
    let g = &mut out.gathered;
    g.answers = of_answers.iter().filter_map(first_of).collect();
    g.answers.sort_unstable();
    let ways = answers.iter().filter_map(|(packet, read_ns)| Some((first_of(packet)?, *read_ns)));
    g.read_up = answer::read_up(ways.collect(), &own.reads);
    (g.reads, g.begins_unknown, g.left_out) = (own.reads.clone(), own.begins_unknown, own.left_out);
    g.last_ns = store.end_ns();
    let mut talk: Vec<_> =
        heard.iter().filter_map(|(p, at)| Some((*at, ends.of.get(p)?, Said::Read))).collect();
    for ((at, _), packets) in &of_writes {
        talk.extend(packets.iter().find_map(|p| Some((*at, ends.of.get(p)?, Said::Wrote))));
    }
    g.open = open(talk);
    let overtaken = own.overtaken();
    let asked: HashMap<i64, i64> = store.datagrams(sender.socket_id)?.asked().collect();
    let (mut offset, mut drivers) = (0, BTreeSet::new());
    for call in &own.calls {
        let packets = of_writes.get(&(call.at_ns, call.pid)).cloned().unwrap_or_default();
        let way = |p: &i64| Way {
            asked_ns: asked.get(p).copied(),
            ..way(*p, &own, &moments, &carried, &fates, &overtaken)
        };
        let ways: Vec<Way> = packets.iter().map(way).collect();
        let (line, last) = line(call, &ways, &drivers, g.last_ns);
        drivers.extend(ways.iter().filter_map(|w| w.driver_ns));
        out.dropped.extend(ways.iter().filter(|w| w.dropped_ns.is_some()).map(|w| w.packet));
        let at = [None; crate::app::connections::STAGES.len()];
        let (from_ns, at_ns) = (line.from_ns, call.at_ns);
        g.writes.push(Write { offset, bytes: call.bytes, from_ns, at_ns, at, again: false });
        offset += call.bytes;
        out.lines.push(line);
        out.last.push(last);
        out.packets.push(packets);
    }
    let lost = |l: &Line| l.end == End::Dropped;
    if !g.reads.is_empty() || out.lines.iter().all(lost) {
        g.unanswered = out.lines.iter().filter(|l| lost(l)).map(Line::to_ns).collect();
        g.unanswered.sort_unstable();
    }
    Ok(Some(out))
}

fn most(counts: &BTreeMap<i64, u64>) -> i64 {
    counts.iter().max_by_key(|(_, n)| **n).map_or(-1, |(id, _)| *id)
}

/// What these sockets' rows say, and of records that are missing.
fn moments(
    store: &Store,
    ids: &[i64],
    gathered: &mut Gathered,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<HashMap<i64, Moments>> {
    use Crossing::*;
    let mut out: HashMap<i64, Moments> = ids.iter().map(|id| (*id, Moments::default())).collect();
    // By socket and thread: when the call began.
    let mut begun: HashMap<(i64, Option<i32>), i64> = HashMap::new();
    let (mut done, all) = (0u64, store.table::<AppEventRow>()?.rows());
    in_order(store, ids, |moment| {
        done += 1;
        if done % (1 << 16) == 0 && !progress(done, all) {
            return Err(Error::Abandoned);
        }
        match moment {
            Moment::Crossing(e) => {
                let (what, m) =
                    (u8::try_from(e.crossing).ok().and_then(Crossing::from_u8), out.get_mut(&e.socket_id));
                let (Some(what), Some(m)) = (what, m) else { return Ok(()) };
                let key = (e.socket_id, e.pid);
                match what {
                    Ask | ToTransport => _ = begun.entry(key).or_insert(e.at_ns),
                    Send => {
                        let from_ns = begun.remove(&key);
                        if e.size_bytes < 0 {
                            return Ok(());
                        }
                        if m.calls.len() == MOST_WRITES {
                            m.left_out += 1;
                            return Ok(());
                        }
                        m.begins_unknown |= from_ns.is_none();
                        let from_ns = from_ns.unwrap_or(e.at_ns);
                        m.calls.push(Call { from_ns, at_ns: e.at_ns, pid: e.pid, bytes: e.size_bytes });
                    }
                    ToDevice if given_on(e) => {}
                    ToDevice | ToDriver | FromDevice | ToSocket if e.size_bytes >= 0 => {
                        m.passed.push((e.at_ns, e.tag, what));
                        let late = what == ToDevice && e.ctx != Context::Task as i32;
                        m.by_interrupt.extend(late.then_some(e.at_ns));
                    }
                    Recv if e.size_bytes >= 0 => m.reads.push(e.at_ns),
                    _ => {}
                }
            }
            Moment::State(_) => {}
            Moment::Gap(gap) => gathered.gap(gap),
        }
        Ok(())
    })?;
    Ok(out)
}

/// The other end of each packet.
#[derive(Default)]
struct Ends {
    of: HashMap<i64, (Option<String>, Option<i32>)>,
}

impl Ends {
    /// To how many these went.
    fn written(&self, packets: &BTreeSet<i64>) -> u64 {
        let ends: BTreeSet<_> = packets.iter().filter_map(|p| self.of.get(p)).collect();
        // A fragment that is not the first has no port.
        let with_port: BTreeSet<_> = ends.iter().filter(|e| e.1.is_some()).map(|e| &e.0).collect();
        ends.iter().filter(|(addr, port)| port.is_some() || !with_port.contains(addr)).count() as u64
    }
}

/// What became of these packets, which the socket wrote or read (when), and with whom it spoke by them.
fn fates(
    store: &Store,
    written: &BTreeSet<i64>,
    read: &BTreeMap<i64, i64>,
) -> Result<(HashMap<i64, Fate>, Ends)> {
    let (mut out, mut ends) = (HashMap::new(), Ends::default());
    let wanted: BTreeSet<i64> = written.iter().chain(read.keys()).copied().collect();
    let table = store.table::<PacketRow>()?;
    for group in 0..table.groups() {
        let columns = ["packet_id", "first_ns", "last_ns", "verdict"];
        let [ids, first, last, verdict] = columns.map(|c| table.ints(group, c));
        let (ids, first, last, verdict) = (ids?, first?, last?, verdict?);
        let at: Vec<u32> = (0..ids.len() as u32).filter(|i| wanted.contains(&ids[*i as usize])).collect();
        for row in table.rows_at::<PacketRow>(group, &at)? {
            let wrote = written.contains(&row.packet_id);
            let end = if wrote { (row.dst_addr, row.dport) } else { (row.src_addr, row.sport) };
            ends.of.insert(row.packet_id, end);
        }
        for i in at.into_iter().map(|i| i as usize) {
            let verdict = verdict[i] as i32;
            out.insert(ids[i], Fate { first_ns: first[i], last_ns: last[i], verdict });
        }
    }
    Ok((out, ends))
}

/// The way of a packet that a call made.
fn way(
    packet: i64,
    own: &Moments,
    others: &HashMap<i64, Moments>,
    carried: &CarriedByAll,
    fates: &HashMap<i64, Fate>,
    overtaken: &BTreeSet<i64>,
) -> Way {
    let mut out = Way { packet, ..Way::default() };
    let Some(fate) = fates.get(&packet) else { return out };
    let first = |m: &Moments, from_ns: i64| m.passed.partition_point(|p| p.0 < from_ns);
    let crossed = |m: &Moments, at_ns: Option<i64>, what| {
        let of = m.passed[first(m, at_ns?)..].iter().take_while(|p| Some(p.0) == at_ns);
        of.copied().find(|p| p.2 == what)
    };
    let (writer, readers) = carried.of(packet);
    let queued = crossed(own, writer.and_then(|w| w.crossed_ns), Crossing::ToDevice);
    if let Some((at, of, _)) = queued {
        out.queue_ns = Some(at);
        out.by_interrupt = own.by_interrupt.contains(&at);
        // Until its address is another's.
        let mine = own.passed[first(own, at + 1)..].iter().filter(|p| p.1 == of);
        let mine = mine.take_while(|p| p.2 != Crossing::ToDevice && p.0 <= fate.last_ns + APART_NS);
        out.driver_ns = mine.filter(|p| p.2 == Crossing::ToDriver).last().map(|p| p.0);
        out.overtaken = out.driver_ns.is_none() && overtaken.contains(&at);
    }
    out.came = !readers.is_empty();
    let read = |r: &crate::ends::EndOfPacket<'_>| r.calls.iter().map(|c| c.call.at_ns).min();
    let reader = readers.iter().min_by_key(|r| read(r).unwrap_or(i64::MAX));
    if let Some((m, r)) = reader.map(|r| (others.get(&r.socket_id).unwrap_or(own), r)) {
        out.reads = !m.reads.is_empty();
        out.read_ns = read(r);
        let until_ns = out.read_ns.unwrap_or(i64::MAX).min(fate.last_ns.saturating_add(APART_NS));
        let from_device = crossed(m, r.crossed_ns, Crossing::FromDevice);
        out.device_ns = from_device.map(|p| p.0);
        let came = m.passed[first(m, out.device_ns.unwrap_or(fate.first_ns))..].iter();
        let came = came.take_while(|p| p.0 <= until_ns).filter(|p| p.2 == Crossing::ToSocket);
        // The one with its buffer; where that is another, the last that fits.
        let own = came.clone().find(|p| p.1.is_some() && from_device.is_some_and(|d| d.1 == p.1));
        out.socket_ns = own.or(came.last()).map(|p| p.0);
        let came_ns = out.socket_ns.or(out.device_ns).unwrap_or(fate.first_ns);
        out.passed_by = !r.waits && m.reads.last().is_some_and(|read| *read > came_ns);
    }
    out.verdict = fate.verdict;
    // Of what came to a socket, and was no copy: that was closed.
    if fate.verdict == verdict::DROPPED && out.read_ns.is_none() && readers.len() < 2 {
        out.dropped_ns = Some(fate.last_ns);
    }
    out
}

/// Two programs of one moment are not further apart, but for a long interrupt.
const APART_NS: i64 = 1_000_000;

/// Shorter, a call did not wait.
const AT_ONCE_NS: i64 = 200_000;

/// The line of a call that made these, and of which of them it is. `drivers`: when the driver got what earlier ones made; `end_ns`: of the log.
fn line(call: &Call, ways: &[Way], drivers: &BTreeSet<i64>, end_ns: i64) -> (Line, i64) {
    // When each is over, and how.
    let over = |w: &Way| match (w.read_ns, w.dropped_ns, w.driver_ns, w.queue_ns) {
        (Some(at), ..) => (at, End::Read),
        (None, Some(at), ..) => (at, End::Dropped),
        _ if w.came && w.reads && !w.passed_by => (end_ns, End::Open),
        _ if w.came && w.passed_by => (w.socket_ns.or(w.device_ns).unwrap_or(call.at_ns), End::Unseen),
        _ if w.came => (w.socket_ns.or(w.device_ns).unwrap_or(call.at_ns), End::Readable),
        // At a socket of this kernel, which is not known.
        (.., Some(at), _) if w.verdict == verdict::DELIVERED => (at, End::Readable),
        (.., Some(at), _) => (at, End::Sent),
        (.., None, Some(_)) if w.verdict == verdict::IN_FLIGHT && !w.overtaken => (end_ns, End::Open),
        (.., None, None) if w.verdict == verdict::IN_FLIGHT && w.asked_ns.is_some() => (end_ns, End::Open),
        _ => (call.at_ns, End::Unseen),
    };
    let none = Way { packet: -1, ..Way::default() };
    let last = ways.iter().max_by_key(|w| over(w).0).copied().unwrap_or(none);
    let (over_ns, end) = over(&last);
    let begins = last.asked_ns.or(last.queue_ns).map_or(call.from_ns, |at| call.from_ns.min(at));
    let mut l = Line { from_ns: begins, pieces: Vec::new(), end };
    let mut to = |stage: Stage, at: Option<i64>| l.go_on(Piece::At(stage), at);
    if end == End::Unseen && !last.came {
        to(Stage::Undecided, Some(over_ns));
        return (l, last.packet);
    }
    // A send buffer has room again when something leaves it.
    let waits =
        |queue_ns: i64| queue_ns - begins > AT_ONCE_NS && drivers.range(begins..queue_ns).next().is_some();
    let first = match last.queue_ns.filter(|_| last.asked_ns.is_none()) {
        // Its call was over, and had made no packet yet: what it gave waited for more, until a task sent it.
        Some(at) if at > call.at_ns && !last.by_interrupt => Stage::Cork,
        Some(at) if waits(at) => Stage::SendBuffer,
        _ => Stage::Transport,
    };
    to(first, last.asked_ns.or(last.queue_ns));
    to(Stage::Neighbour, last.asked_ns.and(last.queue_ns));
    to(Stage::Queue, last.driver_ns);
    if last.device_ns.is_some() || last.socket_ns.is_some() {
        to(Stage::Wire, last.device_ns);
        to(Stage::PeerStack, last.socket_ns);
        to(Stage::PeerApplication, Some(over_ns));
        return (l, last.packet);
    }
    let rest = match (last.driver_ns, last.came) {
        (None, false) if last.queue_ns.is_none() && last.asked_ns.is_some() => Stage::Neighbour,
        (None, false) => Stage::Queue,
        (_, false) => Stage::Wire,
        // When it came to the socket is not in the log.
        (_, true) => Stage::Undecided,
    };
    to(rest, Some(over_ns));
    (l, last.packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call { from_ns: 10, at_ns: 40, pid: None, bytes: 5 };

    fn pieces(ways: &[Way]) -> (End, Vec<(Piece, i64)>) {
        let (l, _) = line(&CALL, ways, &BTreeSet::new(), 1000);
        assert_eq!(l.from_ns, 10);
        (l.end, l.pieces)
    }

    #[test]
    fn a_line_says_where_a_datagram_was_and_how_it_ended() {
        use Stage::*;
        let at = |of: &[(Stage, i64)]| of.iter().map(|(s, t)| (Piece::At(*s), *t)).collect::<Vec<_>>();
        let sent = Way {
            packet: 1,
            queue_ns: Some(12),
            driver_ns: Some(20),
            verdict: verdict::IN_FLIGHT,
            ..Way::default()
        };
        let came = Way { device_ns: Some(50), socket_ns: Some(55), came: true, reads: true, ..sent };
        let whole = [(Transport, 12), (Queue, 20), (Wire, 50), (PeerStack, 55)];
        let with = |more: &[(Stage, i64)]| at(&[&whole[..], more].concat());
        assert_eq!(pieces(&[Way { read_ns: Some(90), ..came }]), (End::Read, with(&[(PeerApplication, 90)])));
        // Nobody has read it yet; or nothing says whether.
        assert_eq!(pieces(&[came]), (End::Open, with(&[(PeerApplication, 1000)])));
        assert_eq!(pieces(&[Way { reads: false, ..came }]), (End::Readable, with(&[])));
        // Read by a call that is not known to be the one.
        assert_eq!(pieces(&[Way { passed_by: true, ..came }]), (End::Unseen, with(&[])));
        // Away from this host; dropped on the way; still in the queue.
        assert_eq!(pieces(&[sent]), (End::Sent, at(&[(Transport, 12), (Queue, 20)])));
        let delivered = Way { verdict: verdict::DELIVERED, ..sent };
        assert_eq!(pieces(&[delivered]), (End::Readable, at(&[(Transport, 12), (Queue, 20)])));
        let dropped = Way { dropped_ns: Some(70), ..sent };
        assert_eq!(pieces(&[dropped]), (End::Dropped, at(&[(Transport, 12), (Queue, 20), (Wire, 70)])));
        // Unread when the socket was closed.
        let closed = Way { dropped_ns: Some(70), ..came };
        assert_eq!(pieces(&[closed]), (End::Dropped, with(&[(PeerApplication, 70)])));
        let queued = Way { driver_ns: None, ..sent };
        assert_eq!(pieces(&[queued]), (End::Open, at(&[(Transport, 12), (Queue, 1000)])));
        // The call was over before: it waited for more.
        let corked = Way { queue_ns: Some(45), driver_ns: Some(46), ..sent };
        assert_eq!(pieces(&[corked]), (End::Sent, at(&[(Cork, 45), (Queue, 46)])));
        let late = Way { by_interrupt: true, ..corked };
        assert_eq!(pieces(&[late]).1[..1], at(&[(Transport, 45)]));
        let asked = Way { asked_ns: Some(12), ..corked };
        assert_eq!(pieces(&[asked]).1[..2], at(&[(Transport, 12), (Neighbour, 45)]));
        // Of several the last; of none nothing is known.
        let read = Way { read_ns: Some(90), ..came };
        assert_eq!(pieces(&[read, dropped]).0, End::Read);
        assert_eq!(pieces(&[]), (End::Unseen, at(&[(Undecided, 40)])));
    }

    #[test]
    fn what_a_queue_cut_is_not_in_it_any_more() {
        use Crossing::{ToDevice, ToDriver};
        let overtaken = |of: &[(i64, i64, Crossing)]| {
            let passed = of.iter().map(|(at, tag, what)| (*at, Some(*tag), *what)).collect();
            Moments { passed, ..Moments::default() }.overtaken().into_iter().collect::<Vec<_>>()
        };
        // In their order; two are still in the queue.
        let order = [(1, 1, ToDevice), (2, 2, ToDevice), (3, 1, ToDriver), (4, 3, ToDevice)];
        assert!(overtaken(&order).is_empty());
        // The first was cut: the driver got its parts, or what was behind it; or its buffer came again.
        assert_eq!(overtaken(&[(1, 1, ToDevice), (2, 8, ToDriver), (3, 9, ToDriver), (4, 2, ToDevice)]), [1]);
        assert_eq!(overtaken(&[(1, 1, ToDevice), (2, 2, ToDevice), (3, 2, ToDriver)]), [1]);
        assert_eq!(overtaken(&[(1, 1, ToDevice), (2, 1, ToDevice)]), [1]);
        let cut = Way { queue_ns: Some(12), verdict: verdict::IN_FLIGHT, overtaken: true, ..Way::default() };
        assert_eq!(pieces(&[cut]).0, End::Unseen);
    }

    #[test]
    fn a_write_of_which_nothing_is_known_is_part_of_the_time() {
        let unseen = |at| Line { from_ns: at, pieces: Vec::new(), end: End::Unseen };
        let read = Line { from_ns: 60, pieces: vec![(Piece::At(Stage::Wire), 70)], end: End::Read };
        let lines = [unseen(10), read, unseen(90)];
        let write = |l: &Line| {
            let at = [None; crate::app::connections::STAGES.len()];
            Write { offset: 0, bytes: 1, from_ns: l.from_ns, at_ns: l.from_ns, at, again: false }
        };
        let g = Gathered { writes: lines.iter().map(write).collect(), last_ns: 100, ..Gathered::default() };
        let why = crate::why::sums::sums_of(&SocketRow::default(), None, &g, None, &|n| lines[n].clone());
        assert_eq!((why.from_ns, why.to_ns, why.pauses), (10, 90, 2));
        let all: Vec<_> = why.stages.iter().map(|s| (s.stage, s.ns)).collect();
        assert_eq!(all, [(Stage::Application, 70.0), (Stage::Wire, 10.0)]);
    }
}
