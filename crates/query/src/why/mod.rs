//! Why a connection is slow, of TCP or of a socket that sends datagrams ([`datagrams`]): the time from each of its writes to the peer's read, stage by stage, and what the connection as a whole
//! waited for.
//!
//! A write is over when its last byte has been read, so the way of that byte is the write's line ([`line`]): stages without gap or overlap, which
//! add up to the whole. What kept it in the socket follows from TCP's state, moment by moment, as in [`crate::app`].
//!
//! Of the connection each moment counts once ([`sums`]): it is divided equally among the writes that are under way then; where none is, it is the
//! application's. Rejected: the sum of all lines, in which a burst counts as often as it has writes and a pause once; and to follow the oldest or
//! the newest byte alone, which in a full pipe is always at its end or always at its beginning.

mod answer;
mod asleep;
mod beside;
mod datagrams;
mod drops;
mod end;
mod fast;
mod gather;
mod large;
mod line;
mod meanwhile;
mod neighbour;
mod opening;
mod owed;
mod packets;
mod path;
mod pause;
mod queue;
mod silent;
mod sums;
mod taken;
mod threads;
mod unreachable;

use crate::abreast::Progress;
pub use crate::app::connections::Host;
use crate::app::connections::{Clock, other_end};
use crate::app::{Ending, Spread, died_idle};
use crate::error::Result;
use crate::packet::PacketDetail;
use crate::store::Store;
pub use asleep::{SleptFor, slept_for};
pub use beside::{Beside, Trouble, beside};
pub use drops::Drops;
pub use end::End;
use gather::Elsewhere;
use kpat_store::tables::{PacketRow, SocketRow};
pub use large::TooLarge;
pub use meanwhile::Meanwhile;
pub use opening::{Opener, Opening};
pub use packets::Waited;
pub use path::PathQueue;
pub use silent::{Silent, Until};
use std::collections::BTreeSet;
pub use threads::Threads;
pub use unreachable::Unreachable;

/// Where a write's last byte was, or why it was not yet further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Handshake,
    Application,
    SendBuffer,
    CongestionWindow,
    ReceiveWindow,
    Pacing,
    Cork,
    Nagle,
    Loss,
    Transport,
    Neighbour,
    Queue,
    Path,
    Wire,
    Beyond,
    PeerStack,
    PeerApplication,
    Answer,
    Undecided,
}

impl Stage {
    /// In the order of the way.
    pub const ALL: [Stage; 19] = [
        Stage::Handshake,
        Stage::Application,
        Stage::SendBuffer,
        Stage::CongestionWindow,
        Stage::ReceiveWindow,
        Stage::Pacing,
        Stage::Cork,
        Stage::Nagle,
        Stage::Loss,
        Stage::Transport,
        Stage::Neighbour,
        Stage::Queue,
        Stage::Path,
        Stage::Wire,
        Stage::Beyond,
        Stage::PeerStack,
        Stage::PeerApplication,
        Stage::Answer,
        Stage::Undecided,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Stage::Handshake => "handshake",
            Stage::Application => "application",
            Stage::SendBuffer => "send buffer",
            Stage::CongestionWindow => "congestion window",
            Stage::ReceiveWindow => "receive window",
            Stage::Pacing => "pacing",
            Stage::Cork => "cork",
            Stage::Nagle => "Nagle's rule",
            Stage::Loss => "loss",
            Stage::Transport => "transport",
            Stage::Neighbour => "neighbour",
            Stage::Queue => "queue",
            Stage::Path => "queue on the path",
            Stage::Wire => "driver and wire",
            Stage::Beyond => "driver, wire and peer",
            Stage::PeerStack => "peer's stack",
            Stage::PeerApplication => "peer's application",
            Stage::Answer => "answer",
            Stage::Undecided => "undecided",
        }
    }

    /// What it means, as half a sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Stage::Handshake => "it was not connected: its SYN had no answer yet",
            Stage::Application => "nothing that it had written was under way",
            Stage::SendBuffer => {
                "the send buffer was full of what was sent and not yet acknowledged; the application would have given more"
            }
            Stage::CongestionWindow => "the congestion window was full",
            Stage::ReceiveWindow => {
                "the peer's receive window was full, though its application left nothing unread"
            }
            Stage::Pacing => "TCP's own timer paced what was to be sent",
            Stage::Cork => "less than a full segment waited for more, as was asked (MSG_MORE, TCP_CORK)",
            Stage::Nagle => {
                "less than a full segment waited until the last such one was acknowledged (TCP_NODELAY sends it at once)"
            }
            Stage::Loss => "what was lost had to be sent again, or kept what came behind it from being read",
            Stage::Transport => "the call was at work, or the segment in the network layer",
            Stage::Neighbour => {
                "the next hop's link address was asked for (ARP, neighbour discovery), and what was sent waited for the answer"
            }
            Stage::Queue => "bytes were in the device's queue, or in the socket until that had room",
            Stage::Path => {
                "bytes were in the queue of a device between the two ends, and what more it had to send would only have waited there"
            }
            Stage::Wire => "between the sender's driver and the peer's device",
            Stage::Beyond => "from the driver until acknowledged",
            Stage::PeerStack => "from the peer's device until it could be read",
            Stage::PeerApplication => {
                "data lay unread in the peer's socket, or its window was full because of that"
            }
            Stage::Answer => {
                "the peer had read all and begun to answer; the answer was on its way, or here, until the application had read it"
            }
            Stage::Undecided => "the records do not tell",
        }
    }

    /// The records that tell, of a stream.
    fn records(self) -> &'static str {
        match self {
            Stage::Application => "calls, reads",
            Stage::SendBuffer => "TCP state, calls",
            Stage::Handshake | Stage::CongestionWindow | Stage::ReceiveWindow | Stage::Pacing => "TCP state",
            Stage::Cork => "TCP state, calls",
            Stage::Nagle => "to-transport, acked, to-device",
            Stage::Loss => "TCP state, retransmit",
            Stage::Transport => "to-transport, to-device",
            Stage::Neighbour | Stage::Path => "packets",
            Stage::Queue => "to-device, to-driver, TCP state",
            Stage::Wire => "to-driver, from-device",
            Stage::Beyond => "to-driver, acked",
            Stage::PeerStack => "from-device, to-socket",
            Stage::PeerApplication => "to-socket, recv, TCP state",
            Stage::Answer => "recv of both ends",
            Stage::Undecided => "",
        }
    }
}

/// Nanoseconds at each of [`Stage::ALL`].
pub type ByStage = [i64; Stage::ALL.len()];

/// A stage of the connection.
#[derive(Clone, Debug)]
pub struct Sum {
    pub stage: Stage,
    /// Each moment counts once.
    pub ns: f64,
    /// Of this, while records were being lost, and of the way between two kernels and of a pause behind it as much as their clocks leave open: it may be another stage's.
    pub unsure_ns: f64,
    /// Of the two applications' stages, what their threads did; `None`: not known.
    pub threads: Option<Threads>,
    /// Writes that were there, and how long.
    pub of_writes: Spread,
    /// The write that was there longest, by its place.
    pub longest: Option<u64>,
}

/// The line of one write.
#[derive(Clone, Debug)]
pub struct WriteLine {
    /// How-manyeth write of the log, from 1.
    pub number: u64,
    pub offset: i64,
    pub bytes: i64,
    /// When the application wanted to write it: the call's beginning, or that of the first call that was refused.
    pub from_ns: i64,
    pub to_ns: i64,
    /// Adds up to the time between.
    pub stages: ByStage,
    pub end: End,
    /// In which its last byte left; `None`: the log has no packets, or not this one.
    pub packet: Option<i64>,
}

/// What is known of why a connection takes its time, in the direction in which `sender` writes.
#[derive(Clone, Debug)]
pub struct Why {
    pub sender: SocketRow,
    /// `None`: in none of the logs.
    pub peer: Option<SocketRow>,
    /// Places of their hosts.
    pub host: usize,
    pub peer_host: usize,
    /// How the peer's clock relates, where it is another kernel's.
    pub clock: Option<Clock>,
    /// From the call that connects, where it is in the log, else from the first write, until the last was read (or what is known of that), and of the
    /// end that asks until it had read the answer.
    pub from_ns: i64,
    pub to_ns: i64,
    /// The last that is counted is the answer to the last write.
    pub until_answer: bool,
    /// In order of the way; those with time only. They add up to the time between.
    pub stages: Vec<Sum>,
    pub write_bytes: Spread,
    /// From wanting to write to having been read.
    pub took_ns: Spread,
    /// By [`End::ALL`].
    pub ends: [u64; End::ALL.len()],
    /// Writes behind those that were looked at.
    pub left_out: u64,
    /// Longest first.
    pub slowest: Vec<WriteLine>,
    /// The write that the packet carries which was asked for.
    pub asked: Option<WriteLine>,
    /// Other ends that a socket of datagrams sent to.
    pub peers: u64,
    /// This end asks: it connected, or of an older connection wrote first.
    pub asks: bool,
    /// Pieces of time with nothing under way.
    pub pauses: u64,
    /// Of these, those in which the application read something from this connection before it wrote again.
    pub answered: u64,
    /// Of the peer's application, the time in which it had read all and had not yet written back.
    pub answering_ns: i64,
    /// Of that, after it had begun to: all that it had written was read, and it wrote more later.
    pub rest_ns: i64,
    /// It asks: pauses in which nothing came, and how long they were together. Whether the application waited for an answer then, nothing tells.
    pub silent: (u64, i64),
    /// Likewise behind its last write; not part of the time.
    pub silent_after: Option<Silent>,
    /// TCP states of the sender in the log; 0: what kept bytes in the socket is not known.
    pub states: u64,
    /// Of the time in which the congestion window was full, that in which TCP repaired a loss. Not divided among writes.
    pub repairs_ns: i64,
    /// Segments sent again, and how many of them before it was connected.
    pub again: u64,
    pub syns_again: u64,
    pub too_large: Option<TooLarge>,
    /// What became of its SYNs; empty where the log has no packets, or where it was connected at once.
    pub opening: Opening,
    /// What came to its host while it was not connected, and never was.
    pub unreachable: Vec<Unreachable>,
    /// A reset answered its SYN.
    pub refused: bool,
    /// Data that went with its SYN were not taken, but sent again when it was connected.
    pub refused_with_syn: bool,
    /// Its handshake was over.
    pub connected: bool,
    /// How it ended, as the sender's states show it.
    pub ending: Ending,
    /// What the peer's process waited for in the longest time in which it owed an answer; `None`: nothing, or it is not certain.
    pub meanwhile: Option<Meanwhile>,
    /// What kernels dropped of what it sent once it was connected.
    pub drops: Vec<Drops>,
    /// Of the write that was longest between driver and device, where its packet waited then.
    pub waited: Option<Waited>,
    /// The queue of the path in which most of the time was; `None`: there was none.
    pub path: Option<PathQueue>,
    /// What TCP was given that no write in the log has, where none has any: MPTCP's connections are given theirs by its own socket.
    pub unwritten_bytes: i64,
    /// fq paces this socket: what waits in the queue may wait for its rate.
    pub fq_paces: bool,
    /// It is not in the log whether TCP paces.
    pub pacing_unknown: bool,
    /// Of some writes only the end of the call is in the log: what kept the application in it is missing.
    pub begins_unknown: bool,
    /// Records that are missing in this time.
    pub lost: u64,
}

impl Why {
    /// It has no stream: each write is one of its own.
    pub fn is_of_datagrams(&self) -> bool {
        self.sender.proto != TCP
    }

    pub fn whole_ns(&self) -> i64 {
        self.to_ns - self.from_ns
    }

    pub fn share(&self, s: &Sum) -> f64 {
        s.ns / self.whole_ns().max(1) as f64
    }

    /// Between these its time lies: without what it has while records were being lost, and with all that others have then or is undecided.
    pub fn bounds_ns(&self, s: &Sum) -> (f64, f64) {
        let lost: f64 = self.stages.iter().map(|s| s.unsure_ns).sum();
        let undecided =
            self.stages.iter().filter(|u| u.stage == Stage::Undecided && s.stage != Stage::Undecided);
        let undecided: f64 = undecided.map(|u| u.ns - u.unsure_ns).sum();
        (s.ns - s.unsure_ns, s.ns + lost - s.unsure_ns + undecided)
    }

    /// Is the first the first, whatever became of what is not known?
    pub fn is_certain(&self) -> bool {
        let Some(first) = self.first() else { return false };
        let others = self.stages.iter().filter(|s| s.stage != first.stage && s.stage != Stage::Undecided);
        let rival = others.map(|s| self.bounds_ns(s).1).fold(0.0, f64::max);
        first.stage != Stage::Undecided && self.bounds_ns(first).0 >= rival
    }

    /// What took longest.
    pub fn first(&self) -> Option<&Sum> {
        self.stages.iter().max_by(|a, b| a.ns.total_cmp(&b.ns))
    }

    /// What a stage means, as far as these logs can tell.
    pub fn meaning(&self, stage: Stage) -> String {
        if stage == Stage::Handshake {
            let why = self.unanswered();
            return if self.connected {
                format!("until it was connected: {why}")
            } else {
                format!("it was not connected: {why}")
            };
        }
        let meaning = match stage {
            Stage::SendBuffer if self.is_of_datagrams() => {
                "the send buffer was full of what waited for the device; the application would have given more"
            }
            Stage::Cork if self.is_of_datagrams() => {
                "the datagram waited for more, as was asked (MSG_MORE, UDP_CORK)"
            }
            Stage::PeerApplication if self.is_of_datagrams() => {
                "what had been sent lay unread in the peer's socket, or had been read and was not yet answered, or not to the end"
            }
            Stage::PeerApplication if self.is_mostly_answering() => answer::meaning(self),
            Stage::Loss if self.is_of_datagrams() => {
                "what was dropped had no answer, until the application sent again"
            }
            Stage::Wire if self.is_of_datagrams() => {
                "between the sender's driver and the peer's device, or where it was dropped"
            }
            Stage::Answer if self.is_of_datagrams() && self.peer.is_none() => {
                "it had been sent: whether the peer was slow to answer, or the question or its answer long on the way, the peer's own log would tell"
            }
            Stage::Loss if self.drops.iter().any(Drops::no_room) => {
                "the listener's accept queue was full: its kernel dropped what came, and it had to be sent again"
            }
            Stage::ReceiveWindow if self.peer.is_none() => {
                "the peer's receive window was full; whether its application had left data unread, its own log would tell"
            }
            Stage::Answer if self.peer.is_none() => {
                "the peer had acknowledged all; whether it was slow to read that or to answer, or the answer was long on its way, its own log would tell"
            }
            _ => stage.meaning(),
        };
        meaning.to_owned()
    }

    /// Of the time of the peer's application most is that in which nothing lay unread.
    pub fn is_mostly_answering(&self) -> bool {
        let all = self.stages.iter().find(|s| s.stage == Stage::PeerApplication).map_or(0.0, |s| s.ns);
        !self.is_of_datagrams() && self.answering_ns as f64 * 2.0 > all
    }

    /// The records that tell of a stage.
    pub fn records(&self, stage: Stage) -> &'static str {
        match stage {
            Stage::SendBuffer | Stage::Queue if self.is_of_datagrams() => "to-device, to-driver",
            Stage::Loss if self.is_of_datagrams() => "drops, calls",
            Stage::PeerApplication if self.is_of_datagrams() => "to-socket, recv",
            Stage::Transport | Stage::Cork if self.is_of_datagrams() => "calls, to-device",
            _ => stage.records(),
        }
    }

    /// Its SYN came to the listener's transport layer, which answered nothing.
    pub fn is_unheard(&self) -> bool {
        !self.refused
            && self.opening.dropped().is_none()
            && self.opening.unanswered().is_some()
            && self.lost == 0
    }

    /// Why its SYN waited for an answer.
    fn unanswered(&self) -> &'static str {
        if self.refused && self.opening.syns.iter().any(|o| o.reason == NO_SOCKET) {
            "nothing listened on that port, and a reset answered its SYN"
        } else if self.refused {
            "a reset answered its SYN"
        } else if self.refused_with_syn && self.opening.dropped().is_none() {
            fast::REFUSED
        } else if self.opening.is_syn_lost() {
            "its SYN was dropped on the way"
        } else if self.opening.dropped().is_some() {
            "the answer to its SYN was dropped on the way"
        } else if self.is_unheard() {
            "its SYN was delivered, and the listener did not answer"
        } else if self.opening.syns.iter().any(|o| o.asks_ns * 2 > self.whole_ns()) {
            "its SYN waited for the next hop's link address"
        } else {
            "its SYN had no answer yet"
        }
    }

    pub fn writes(&self) -> u64 {
        self.ends.iter().sum()
    }

    /// It took long until then.
    fn opens_late(&self) -> bool {
        self.syns_again > 0 || self.first().is_some_and(|s| s.stage == Stage::Handshake)
    }
}

const TCP: i32 = 6;
const NO_SOCKET: &str = "NO_SOCKET";

/// More lines than anybody reads.
const SLOWEST: usize = 16;

/// The direction in which this socket of the host at place `at` writes; if it does not, but its peer does, that one's. The peer may be another
/// host's. `None`: neither has a write in the logs, nor a SYN that waited for an answer. Likewise `None`: a socket of datagrams in a log without
/// packets, from which these are followed, within its own host's log. `packet`: one of that host's log whose write's line is wanted.
///
/// Memory: what is known of the writes, at most the first 262,144; of a peer elsewhere, all that its log has of the connection.
///
/// Errors: [`crate::Error::Abandoned`].
pub fn why(
    hosts: &[Host<'_>],
    at: usize,
    socket: &SocketRow,
    packet: Option<&PacketDetail>,
    progress: Progress<'_>,
) -> Result<Option<Why>> {
    if socket.proto != TCP {
        return of_datagrams(hosts, at, socket, packet, progress);
    }
    let written = packet.map(|p| hosts[at].store.carried(p)).transpose()?.flatten().and_then(|c| c.written);
    let asked = written.filter(|end| end.socket.socket_id == socket.socket_id).and_then(|end| end.offset);
    let mut sender = (at, socket.clone());
    let mut far = other_end(hosts, at, socket)?;
    if let Some((end, _)) =
        far.as_ref().filter(|(end, _)| socket.sent_bytes == 0 && end.socket.sent_bytes > 0)
    {
        sender = (end.host, end.socket.clone());
        far = other_end(hosts, sender.0, &sender.1)?;
    }
    let (at, sender) = sender;
    let elsewhere = far.as_ref().filter(|(end, _)| end.host != at).map(|(end, clock)| Elsewhere {
        store: hosts[end.host].store,
        socket: end.socket.socket_id,
        clock,
    });
    let peer = far.as_ref().map(|(end, clock)| match end.host == at {
        true => end.socket.clone(),
        // A number that no socket has.
        false => SocketRow {
            socket_id: -1,
            first_ns: clock.first(end.socket.first_ns),
            last_ns: clock.first(end.socket.last_ns),
            ..end.socket.clone()
        },
    });
    let mut gathered = gather::gather(hosts[at].store, &sender, peer.as_ref(), elsewhere.as_ref(), progress)?;
    let mut opening = Opening::default();
    if gathered.writes.is_empty() && gathered.states == 0 && sender.peer_port != 0 {
        // The tracepoint of what is sent again is silent where sending failed (6.1, 6.12), as of a SYN that this host itself drops: what is known is when
        // the socket changed its state, and its packets.
        opening = opening::find(hosts, at, &sender, sender.first_ns, sender.last_ns)?;
        if !opening.is_empty() && opening.answers.iter().all(Opener::is_dropped) {
            gathered.never_connected(&sender);
        }
    }
    if gathered.writes.is_empty() && gathered.handshake().is_none() {
        return Ok(None);
    }
    let asks = neighbour::waits(hosts[at].store, &sender)?;
    gather::mark(&mut gathered.held, &asks, |h| h.asks = true);
    let of = path::Of::Stream(&sender, gathered.given_bytes.max(sender.sent_bytes));
    gathered.stays = path::stays(hosts[at].store, &of, sender.netns, sender.first_ns)?;
    gather::mark(&mut gathered.held, &gathered.stays.times(), |h| h.on_path = true);
    let asked = asked.filter(|_| sender.socket_id == socket.socket_id);
    let asked = asked.map(|offset| gathered.writes.partition_point(|w| w.last() < offset));
    let ends = [Some(sender.socket_id), peer.as_ref().map(|p| p.socket_id)];
    gathered.threads = threads::of_sockets(hosts[at].store, ends, |ns| ns)?;
    if let Some(e) = &elsewhere {
        let [_, there] = threads::of_sockets(e.store, [None, Some(e.socket)], |ns| e.clock.first(ns))?;
        gathered.threads[1] = there;
    }
    let mut why = sums::sums(&sender, peer.as_ref(), &gathered, asked);
    if let Some((line, packet)) = why.asked.as_mut().zip(packet) {
        line.packet = Some(packet.packet.packet_id);
    }
    packets::find(hosts[at].store, &sender, &mut why.slowest)?;
    why.waited = packets::waited(hosts[at].store, &why.slowest)?;
    if !why.until_answer && why.writes() > 0 {
        why.silent_after = gathered.silent_after(why.to_ns);
    }
    why.path = gathered.stays.longest(hosts[at].store, |byte| gathered.acked_ns(byte));
    if let Some((from, to)) = gathered.handshake().filter(|_| why.writes() == 0 || why.opens_late()) {
        if opening.is_empty() {
            opening = opening::find(hosts, at, &sender, from, to)?;
        }
        why.opening = opening;
        if !why.connected {
            why.unreachable = unreachable::find(hosts[at].store, &sender, &(from..=to))?;
        }
        why.refused |= !why.opening.refusals.is_empty() && !why.connected;
    }
    let idle = died_idle(sender.error, &why.ending);
    if gathered.again > gathered.syns_again || far.is_none() && why.connected || idle.is_some() {
        let bytes = gathered.given_bytes.max(sender.sent_bytes);
        why.drops = drops::find(hosts, at, &sender, bytes, idle, sender.first_ns..=i64::MAX)?;
    }
    why.host = at;
    if let Some((end, clock)) = far {
        // Who asks owes no answer.
        let asks = (end.host == at).then_some(sender.socket_id);
        let waited = || meanwhile::find(hosts[end.host].store, &end.socket, asks);
        why.meanwhile = if why.asks { waited()? } else { None };
        (why.peer, why.peer_host) = (Some(end.socket), end.host);
        why.clock = (clock != Clock::default()).then_some(clock);
    }
    Ok(Some(why))
}

/// As [`why`], of a socket without a stream.
fn of_datagrams(
    hosts: &[Host<'_>],
    at: usize,
    socket: &SocketRow,
    packet: Option<&PacketDetail>,
    progress: Progress<'_>,
) -> Result<Option<Why>> {
    let store = hosts[at].store;
    if store.table::<PacketRow>()?.rows() == 0 {
        return Ok(None);
    }
    let found = datagrams::gather(store, socket, &mut |done, all| progress(done, all))?;
    let Some(mut found) = found else { return Ok(None) };
    let sent: BTreeSet<i64> = found.last.iter().copied().collect();
    let stays = path::stays(store, &path::Of::Packets(&sent), socket.netns, socket.first_ns)?;
    for (line, packet) in found.lines.iter_mut().zip(&found.last) {
        stays.cut(line, *packet);
    }
    let ends = [Some(socket.socket_id), found.peer.as_ref().map(|p| p.socket_id)];
    found.gathered.threads = threads::of_sockets(store, ends, |ns| ns)?;
    let asked = packet.map(|p| p.packet.packet_id);
    let place = asked.and_then(|id| found.packets.iter().position(|of| of.contains(&id)));
    let line = |n: usize| found.lines[n].clone();
    let mut why = sums::sums_of(socket, found.peer.as_ref(), &found.gathered, place, &line);
    let name = |l: &mut WriteLine| l.packet = found.packets[l.number as usize - 1].first().copied();
    why.slowest.iter_mut().for_each(name);
    if let Some(line) = &mut why.asked {
        line.packet = asked;
    }
    why.drops = drops::of_packets(store, at, &found.dropped)?;
    why.path = stays.longest(store, |_| None);
    (why.host, why.peer_host, why.peers) = (at, at, found.peers);
    Ok(Some(why))
}

/// The socket that wrote what a packet carries, or would have; of whichever end the log has.
pub fn socket_of_packet(store: &Store, packet: &PacketDetail) -> Result<Option<SocketRow>> {
    Ok(store.carried(packet)?.and_then(|c| c.written.or(c.read)).map(|end| end.socket))
}
