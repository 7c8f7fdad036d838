//! The same of a socket without a stream: each call that sent, with the way of what it made. Which packets a call made, and which call read each, only the
//! packets tell ([`crate::ends`]); when they were where, the crossings of both sockets do. Of several that a call made (offload, a group's members) the one
//! that was over last counts, and of several that got a copy the one that read first.
//!
//! Whoever sends and reads in turn waits for answers: what lies between a datagram and the next one read is the peer's. What was dropped, of a socket that
//! has had answers or of which nothing ever arrived, is what the time until the next question is for.

use super::gather::{Gathered, MOST_WRITES, Write};
use super::line::{Line, Piece};
use super::{End, Stage};
use crate::app::{Moment, given_on, in_order};
use crate::codes::verdict;
use crate::ends::CarriedByAll;
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::Crossing;
use kpat_store::tables::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is known of a socket's datagrams.
pub(super) struct Datagrams {
    pub gathered: Gathered,
    /// Of each write, in their order.
    pub lines: Vec<Line>,
    pub packets: Vec<Vec<i64>>,
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
    reads: Vec<i64>,
    begins_unknown: bool,
    left_out: u64,
}

/// Where a packet of a write was when; what is `None` is not in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Way {
    packet: i64,
    queue_ns: Option<i64>,
    driver_ns: Option<i64>,
    device_ns: Option<i64>,
    socket_ns: Option<i64>,
    read_ns: Option<i64>,
    /// A socket of this log got it.
    came: bool,
    /// That socket has reads in the log; one of them is later, so that this one is no longer there.
    reads: bool,
    passed_by: bool,
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
    for c in carried.calls() {
        let is_own = carried.end_of(c).is_some_and(|e| e.socket_id == sender.socket_id);
        match (is_own, c.is_read) {
            (true, false) => of_writes.entry((c.call.at_ns, c.call.pid)).or_default().push(c.packet_id),
            // What the kernel itself answers was written by nobody.
            (true, true) if carried.of(c.packet_id).0.is_some() => answers.push(c.packet_id),
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
    let (fates, peers) = fates(store, &written, &answers)?;
    let first_of = |p: &i64| fates.get(p).map(|f| f.first_ns);
    let mut out = Datagrams {
        peer: store.sockets()?.get(most(&counts)).cloned(),
        peers: if sender.peer_port != 0 { 1 } else { peers.max(1) },
        lines: Vec::new(),
        packets: Vec::new(),
        dropped: BTreeSet::new(),
        gathered,
    };
    let g = &mut out.gathered;
    g.answers = answers.iter().filter_map(first_of).collect();
    g.answers.sort_unstable();
    (g.reads, g.begins_unknown, g.left_out) = (own.reads.clone(), own.begins_unknown, own.left_out);
    g.last_ns = store.end_ns();
    let (mut offset, mut drivers) = (0, BTreeSet::new());
    for call in &own.calls {
        let packets = of_writes.get(&(call.at_ns, call.pid)).cloned().unwrap_or_default();
        let ways: Vec<Way> =
            packets.iter().map(|p| way(*p, call, &own, &moments, &carried, &fates)).collect();
        let line = line(call, &ways, &drivers, g.last_ns);
        drivers.extend(ways.iter().filter_map(|w| w.driver_ns));
        out.dropped.extend(ways.iter().filter(|w| w.dropped_ns.is_some()).map(|w| w.packet));
        let at = [None; crate::app::connections::STAGES.len()];
        let (from_ns, at_ns) = (line.from_ns, call.at_ns);
        g.writes.push(Write { offset, bytes: call.bytes, from_ns, at_ns, at, again: false });
        offset += call.bytes;
        out.lines.push(line);
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

/// What became of these packets, and to how many other ends those went that the socket wrote.
fn fates(store: &Store, written: &BTreeSet<i64>, answers: &[i64]) -> Result<(HashMap<i64, Fate>, u64)> {
    let (mut out, mut ends) = (HashMap::new(), BTreeSet::new());
    let wanted: BTreeSet<i64> = written.iter().chain(answers).copied().collect();
    let table = store.table::<PacketRow>()?;
    for group in 0..table.groups() {
        let columns = ["packet_id", "first_ns", "last_ns", "verdict"];
        let [ids, first, last, verdict] = columns.map(|c| table.ints(group, c));
        let (ids, first, last, verdict) = (ids?, first?, last?, verdict?);
        let at: Vec<u32> = (0..ids.len() as u32).filter(|i| wanted.contains(&ids[*i as usize])).collect();
        let rows = table.rows_at::<PacketRow>(group, &at)?.into_iter();
        let of_writes = rows.filter(|row| written.contains(&row.packet_id));
        ends.extend(of_writes.map(|row| (row.dst_addr, row.dport)));
        for i in at.into_iter().map(|i| i as usize) {
            let verdict = verdict[i] as i32;
            out.insert(ids[i], Fate { first_ns: first[i], last_ns: last[i], verdict });
        }
    }
    Ok((out, ends.len() as u64))
}

/// The way of a packet that a call made.
fn way(
    packet: i64,
    call: &Call,
    own: &Moments,
    others: &HashMap<i64, Moments>,
    carried: &CarriedByAll,
    fates: &HashMap<i64, Fate>,
) -> Way {
    let mut out = Way { packet, ..Way::default() };
    let Some(fate) = fates.get(&packet) else { return out };
    let first = |m: &Moments, from_ns: i64| m.passed.partition_point(|p| p.0 < from_ns);
    // Both recordings look at one tracepoint: the crossing that is nearest to when the packet was first seen.
    let from = first(own, call.from_ns.min(fate.first_ns) - APART_NS);
    let queued = own.passed[from..].iter().take_while(|p| p.0 <= fate.last_ns);
    let queued = queued.filter(|p| p.2 == Crossing::ToDevice).min_by_key(|p| (p.0 - fate.first_ns).abs());
    let mut tag = None;
    if let Some(&(at, of, _)) = queued.filter(|p| (p.0 - fate.first_ns).abs() <= APART_NS) {
        (out.queue_ns, tag) = (Some(at), of);
        // Until its address is another's.
        let mine = own.passed[first(own, at + 1)..].iter().filter(|p| p.1 == of);
        let mine = mine.take_while(|p| p.2 != Crossing::ToDevice && p.0 <= fate.last_ns + APART_NS);
        out.driver_ns = mine.filter(|p| p.2 == Crossing::ToDriver).last().map(|p| p.0);
    }
    let readers = carried.of(packet).1;
    out.came = !readers.is_empty();
    let read = |r: &crate::ends::EndOfPacket<'_>| r.calls.iter().map(|c| c.call.at_ns).min();
    let reader = readers.iter().min_by_key(|r| read(r).unwrap_or(i64::MAX));
    if let Some((m, r)) = reader.and_then(|r| Some((others.get(&r.socket_id).unwrap_or(own), r))) {
        out.reads = !m.reads.is_empty();
        out.read_ns = read(r);
        let until_ns = out.read_ns.unwrap_or(i64::MAX);
        let came = m.passed[first(m, fate.first_ns - APART_NS)..].iter();
        let came = came.take_while(|p| p.0 <= until_ns.min(fate.last_ns.saturating_add(APART_NS)));
        let mut came: Vec<_> =
            came.filter(|p| [Crossing::FromDevice, Crossing::ToSocket].contains(&p.2)).collect();
        // Where its buffer stayed the same all the way; else the last that fits.
        if came.iter().any(|p| p.1 == tag && tag.is_some()) {
            came.retain(|p| p.1 == tag);
        }
        let last = |what| came.iter().rev().find(|p| p.2 == what).map(|p| p.0);
        out.socket_ns = last(Crossing::ToSocket);
        let until_ns = out.socket_ns.unwrap_or(i64::MAX);
        out.device_ns =
            came.iter().rev().find(|p| p.2 == Crossing::FromDevice && p.0 <= until_ns).map(|p| p.0);
        let came_ns = out.socket_ns.or(out.device_ns).unwrap_or(fate.first_ns);
        out.passed_by = m.reads.last().is_some_and(|read| *read > came_ns);
    }
    out.verdict = fate.verdict;
    if fate.verdict == verdict::DROPPED && out.read_ns.is_none() && !out.came {
        out.dropped_ns = Some(fate.last_ns);
    }
    out
}

/// Two programs of one moment are not further apart, but for a long interrupt.
const APART_NS: i64 = 1_000_000;

/// Shorter, a call did not wait.
const AT_ONCE_NS: i64 = 200_000;

/// The line of a call that made these. `drivers`: when the driver got what earlier ones made; `end_ns`: of the log.
fn line(call: &Call, ways: &[Way], drivers: &BTreeSet<i64>, end_ns: i64) -> Line {
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
        (.., None, Some(_)) if w.verdict == verdict::IN_FLIGHT => (end_ns, End::Open),
        _ => (call.at_ns, End::Unseen),
    };
    let last = ways.iter().max_by_key(|w| over(w).0).copied().unwrap_or_default();
    let (over_ns, end) = over(&last);
    let begins = last.queue_ns.map_or(call.from_ns, |at| call.from_ns.min(at));
    let mut l = Line { from_ns: begins, pieces: Vec::new(), end };
    let mut to = |stage: Stage, at: Option<i64>| l.go_on(Piece::At(stage), at);
    if end == End::Unseen && !last.came {
        to(Stage::Undecided, Some(over_ns));
        return l;
    }
    // A send buffer has room again when something leaves it.
    let waits =
        |queue_ns: i64| queue_ns - begins > AT_ONCE_NS && drivers.range(begins..queue_ns).next().is_some();
    let first = if last.queue_ns.is_some_and(waits) { Stage::SendBuffer } else { Stage::Transport };
    to(first, last.queue_ns);
    to(Stage::Queue, last.driver_ns);
    if last.device_ns.is_some() || last.socket_ns.is_some() {
        to(Stage::Wire, last.device_ns);
        to(Stage::PeerStack, last.socket_ns);
        to(Stage::PeerApplication, Some(over_ns));
        return l;
    }
    let rest = match (last.driver_ns, last.came) {
        (None, false) => Stage::Queue,
        (_, false) => Stage::Wire,
        // When it came to the socket is not in the log.
        (_, true) => Stage::Undecided,
    };
    to(rest, Some(over_ns));
    l
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call { from_ns: 10, at_ns: 40, pid: None, bytes: 5 };

    fn pieces(ways: &[Way]) -> (End, Vec<(Piece, i64)>) {
        let l = line(&CALL, ways, &BTreeSet::new(), 1000);
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
        let queued = Way { driver_ns: None, ..sent };
        assert_eq!(pieces(&[queued]), (End::Open, at(&[(Transport, 12), (Queue, 1000)])));
        // Of several the last; of none nothing is known.
        let read = Way { read_ns: Some(90), ..came };
        assert_eq!(pieces(&[read, dropped]).0, End::Read);
        assert_eq!(pieces(&[]), (End::Unseen, at(&[(Undecided, 40)])));
    }
}
