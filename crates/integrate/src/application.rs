//! The application records of a log into tables: crossings with their place in the stream, sockets, TCP's state. One pass
//! in order of time; memory is the sockets.

mod described;
mod early;
mod subflows;
mod taken;

use crate::absurd::tame_app_record;
use crate::error::Result;
use described::describe;
use early::Early;
use kpat_klog::Log;
use kpat_model::hash::Map;
use kpat_model::*;
use kpat_store::TableWriter;
use kpat_store::tables::*;
use std::path::Path;
use taken::Write;

/// What the pass leaves.
pub(super) struct Passed {
    pub records: u64,
    pub events: u64,
    pub sockets: u64,
    /// Times that no clock shows.
    pub absurd: u64,
    /// `i64::MAX`, `i64::MIN`: there was nothing.
    pub first: i64,
    pub last: i64,
}

/// Sequence numbers of one direction as offsets: 32 bits wrap, offsets do not.
#[derive(Clone, Copy, Default)]
struct Stream {
    /// The number seen last and its offset; `None`: none was.
    near: Option<(u32, i64)>,
    /// The number at offset 0.
    first: Option<u32>,
}

impl Stream {
    fn offset(&mut self, seq: u32) -> i64 {
        self.first.get_or_insert(seq);
        let (near, at) = *self.near.get_or_insert((seq, 0));
        let offset = at + i64::from(seq.wrapping_sub(near) as i32);
        // only forwards: what is sent again is no new place
        if offset > at {
            self.near = Some((seq, offset));
        }
        offset
    }
}

#[derive(Default)]
struct Socket {
    row: SocketRow,
    sent: Stream,
    received: Stream,
    /// Calls that gave bytes to the transport and are not over.
    under_way: Vec<Write>,
    /// Without a stream: what was read before it was reported.
    early: Early,
    /// TCP's sequence number behind the last byte that was seen to leave.
    left_to: Option<u32>,
    /// What of it calls took.
    read: Read,
    /// Its number behind the last byte that was written by a call that is over, and that could be read.
    written_to: Option<u32>,
    readable_to: Option<u32>,
    /// Where a direction begins in which nothing has gone, by TCP's state.
    unsent: Option<u32>,
    unreceived: Option<u32>,
    /// What crossed before the log said what socket it is: its first packet came from the device before it was the socket's.
    undescribed: Vec<(u16, CrossingRecord)>,
}

/// More than that of a socket whose description is not in the log are taken as they are.
const MOST_UNDESCRIBED: usize = 64;

/// Of include/net/tcp_states.h: it is connected; of these, those in which it has sent its end, which has a number of its own, and those in which the other
/// end's has come.
const CONNECTED: [u8; 7] = [1, 4, 5, 6, 8, 9, 11];
const END_SENT: [u8; 5] = [4, 5, 6, 9, 11];
const END_CAME: [u8; 4] = [6, 8, 9, 11];
const CLOSED: u8 = 7;
/// Of the flags (RFC 9293, section 3.1).
const RST: u8 = 4;

impl Socket {
    /// Where its streams begin: a connection whose one end never said anything is known by it as well.
    fn begins(&mut self, r: &TcpRecord) {
        // One that it resets is closed by then.
        let resets = r.state == CLOSED && r.tcp_flags & RST != 0;
        if !CONNECTED.contains(&r.state) && !resets {
            return;
        }
        let less = |number: u32, states: &[u8]| number.wrapping_sub(u32::from(states.contains(&r.state)));
        if self.sent.first.is_none() && self.unsent.is_none() {
            self.unsent = Some(less(r.write_seq, &END_SENT));
        }
        if self.received.first.is_none() && self.unreceived.is_none() {
            self.unreceived = Some(less(r.rcv_nxt, &END_CAME));
        }
    }

    fn cross(&mut self, r: &CrossingRecord, cpu: u16, rows: &mut Vec<AppEventRow>) {
        // Those that waited come first.
        self.catch_up(rows);
        self.pass(r, cpu, rows);
    }

    fn pass(&mut self, r: &CrossingRecord, cpu: u16, rows: &mut Vec<AppEventRow>) {
        let row = event(self, r, cpu);
        if is_sent(r.what) || [TCP, MPTCP].contains(&self.row.proto) {
            taken::pass(self, r, row, rows);
        } else {
            self.early.pass(row, rows);
        }
    }

    fn catch_up(&mut self, rows: &mut Vec<AppEventRow>) {
        for (cpu, r) in std::mem::take(&mut self.undescribed) {
            self.pass(&r, cpu, rows);
        }
    }
}

const TCP: i32 = 6;
const MPTCP: i32 = 262;

/// Does it belong to what the socket sends?
fn is_sent(c: Crossing) -> bool {
    !matches!(c, Crossing::FromDevice | Crossing::FromNetwork | Crossing::ToSocket | Crossing::Recv)
}

/// Fills the tables of applications; they are empty where the log has none.
pub(super) fn pass(log: &Log, dir: &Path) -> Result<Passed> {
    let mut events = TableWriter::create_threaded(dir)?;
    let mut states = TableWriter::create(dir)?;
    let mut gaps = TableWriter::create(dir)?;
    let mut times = TableWriter::create(dir)?;
    let mut sockets: Map<u32, Socket> = Map::default();
    let mut out = Passed { records: 0, events: 0, sockets: 0, absurd: 0, first: i64::MAX, last: i64::MIN };
    let mut rows: Vec<AppEventRow> = Vec::new();
    let tick_ns = match log.meta().hz {
        0 => None,
        hz => Some(1_000_000_000 / i64::from(hz)),
    };
    for (cpu, mut record) in log.app_records() {
        out.records += 1;
        tame_app_record(&mut record, &mut out.absurd);
        let at = record.at().0;
        (out.first, out.last) = (out.first.min(at), out.last.max(at));
        match record {
            AppRecord::Crossing(r) => {
                out.events += 1;
                let s = sockets.entry(r.sock).or_default();
                if s.row.proto == 0 && s.undescribed.len() < MOST_UNDESCRIBED {
                    s.undescribed.push((cpu, r));
                    continue;
                }
                s.cross(&r, cpu, &mut rows);
            }
            AppRecord::Tcp(r) => {
                let s = sockets.entry(r.sock).or_default();
                see(&mut s.row, r.sock, at);
                s.begins(&r);
                states.push(&state(&s.row, &r, tick_ns))?;
            }
            AppRecord::Socket(r) => {
                let s = sockets.entry(r.cookie as u32).or_default();
                describe(&mut s.row, &r);
                s.catch_up(&mut rows);
            }
            AppRecord::ThreadTime(t) => {
                let s = sockets.entry(t.sock).or_default();
                see(&mut s.row, t.sock, at);
                times.push(&ThreadTimeRow {
                    from_ns: t.since.0,
                    to_ns: t.until.0,
                    socket_id: s.row.socket_id,
                    thread: t.thread as i32,
                    ran_ns: t.ran_ns as i64,
                    waited_ns: t.waited_ns as i64,
                    slept: t.slept.into(),
                })?;
            }
            AppRecord::Gap(g) => gaps.push(&GapRow {
                from_ns: g.since.0,
                to_ns: g.until.0,
                cpu: i32::from(cpu),
                lost: i64::from(g.lost),
            })?,
        }
        for row in rows.drain(..) {
            events.push(&row)?;
        }
    }
    for s in sockets.values_mut() {
        s.catch_up(&mut rows);
        for w in std::mem::take(&mut s.under_way) {
            rows.extend(taken::at_the_end(s, w));
        }
        s.early.over(&mut rows);
        for row in rows.drain(..) {
            events.push(&row)?;
        }
    }
    let row = |mut s: Socket| {
        // Of a direction in which nothing went, where it would have begun.
        s.row.sent_seq = s.sent.first.or(s.unsent).map(i64::from);
        s.row.received_seq = s.received.first.or(s.unreceived).map(i64::from);
        // Who used it first is one of many.
        s.row.pid = s.row.pid.filter(|_| s.row.kernels == 0);
        s.row
    };
    let mut rows: Vec<SocketRow> = sockets.into_values().map(row).collect();
    rows.sort_by_key(|r| r.socket_id);
    subflows::name_owners(&mut rows);
    out.sockets = rows.len() as u64;
    let mut table = TableWriter::create(dir)?;
    rows.iter().try_for_each(|r| table.push(r))?;
    table.finish()?;
    events.finish()?;
    states.finish()?;
    gaps.finish()?;
    times.finish()?;
    Ok(out)
}

fn see(row: &mut SocketRow, sock: u32, at: i64) {
    if row.socket_id == 0 {
        (row.socket_id, row.first_ns, row.last_ns) = (i64::from(sock), at, at);
    }
    row.first_ns = row.first_ns.min(at);
    row.last_ns = row.last_ns.max(at);
}

fn event(s: &mut Socket, r: &CrossingRecord, cpu: u16) -> AppEventRow {
    see(&mut s.row, r.sock, r.at.0);
    let tcp = s.row.proto == TCP;
    s.row.events += 1;
    match r.what {
        Crossing::Send => s.row.sent_bytes += i64::from(r.size.max(0)),
        Crossing::Recv => s.row.received_bytes += i64::from(r.size.max(0)),
        _ => {}
    }
    if s.row.pid.is_none() && r.pid != 0 {
        s.row.pid = Some(r.pid as i32);
    }
    let seq = match r.what {
        Crossing::Retransmit if tcp => Some(sent_again_from(s, r)),
        Crossing::Send if tcp => written_from(s, r),
        _ if tcp => read_from(s, r),
        _ => None,
    };
    let stream = if is_sent(r.what) { &mut s.sent } else { &mut s.received };
    // The end of a stream without bytes is behind its beginning.
    let begins = stream.first.is_some() || r.what != Crossing::Recv || r.size != 0;
    AppEventRow {
        at_ns: r.at.0,
        socket_id: s.row.socket_id,
        crossing: r.what as i32,
        size_bytes: i64::from(r.size),
        segments: i32::from(r.segments),
        // a call that failed moved nothing
        offset: seq.filter(|_| r.size >= 0 && begins).map(|seq| stream.offset(seq)),
        tag: (!tcp && r.seq != 0).then_some(i64::from(r.seq)),
        pid: (r.pid != 0).then_some(r.pid as i32),
        ctx: r.ctx as i32,
        cpu: i32::from(cpu),
        asked_bytes: None,
    }
}

/// A SYN has a number of its own, before that of the first byte. Sent again before anything else was seen it would be taken for that.
fn sent_again_from(s: &Socket, r: &CrossingRecord) -> u32 {
    let behind = r.seq.wrapping_add(1);
    if r.size == 0 && s.sent.first.is_none_or(|first| first == behind) { behind } else { r.seq }
}

/// Number of the first byte that a call wrote, whose end is where the stream ends. If that is where it was, it was given nothing: what a program of BPF redirects
/// to another socket (a sockmap's), or what another thread wrote as well and told of before.
fn written_from(s: &mut Socket, r: &CrossingRecord) -> Option<u32> {
    let end = r.seq.wrapping_add(r.size.max(0) as u32);
    if r.size > 0 {
        if s.written_to.is_some_and(|to| !is_behind(end, to)) {
            return None;
        }
        s.written_to = Some(end);
    }
    Some(r.seq)
}

/// Number of the first byte. A call that takes the last bytes before the end of the stream takes that, too, and it has a number of its
/// own (RFC 9293, section 3.4), so by its end such a call seems to begin one byte later.
fn read_from(s: &mut Socket, r: &CrossingRecord) -> Option<u32> {
    let end = r.seq.wrapping_add(r.size.max(0) as u32);
    match r.what {
        Crossing::ToSocket => s.readable_to = Some(end),
        Crossing::Recv if r.size > 0 => {
            let late = s.read.to.is_some_and(|to| r.seq == to.wrapping_add(1));
            let all = s.readable_to.is_none_or(|to| end == to || is_behind(end, to));
            let from = r.seq.wrapping_sub(u32::from(late && all));
            return s.read.take(from, end).then_some(from);
        }
        _ => {}
    }
    Some(r.seq)
}

/// Is this number of the stream behind that one?
fn is_behind(number: u32, than: u32) -> bool {
    number.wrapping_sub(than) as i32 > 0
}

/// What calls took of a stream. Nothing is taken twice: what a call seems to have taken again came another way (from a sockmap), or another thread took it and
/// told of it before.
#[derive(Default)]
struct Read {
    /// The number behind the last byte.
    to: Option<u32>,
    /// What before it no call took, from and to: an urgent byte, which is taken by itself; what splice() took; what is not in the log.
    left: Vec<(u32, u32)>,
}

/// Of a stream no more are remembered, the newest.
const MOST_LEFT: usize = 16;

impl Read {
    fn take(&mut self, from: u32, end: u32) -> bool {
        let Some(to) = self.to else {
            self.to = Some(end);
            // An urgent byte may be taken before all that is ahead of it.
            self.leave(from.wrapping_sub(1 << 30), from);
            return true;
        };
        if is_behind(end, to) {
            if is_behind(from, to) {
                self.leave(to, from);
            }
            self.to = Some(end);
            return true;
        }
        let Some(i) = self.left.iter().position(|l| !is_behind(l.0, from) && !is_behind(end, l.1)) else {
            return false;
        };
        let (a, b) = self.left.remove(i);
        self.leave(a, from);
        self.leave(end, b);
        true
    }

    fn leave(&mut self, from: u32, to: u32) {
        if from == to {
            return;
        }
        if self.left.len() == MOST_LEFT {
            self.left.remove(0);
        }
        self.left.push((from, to));
    }
}

/// TCP_INFINITE_SSTHRESH of include/net/tcp.h.
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// Of [`TcpRecord`]'s `limit`: what is unsent waits for more.
const MORE: u8 = 1 << 7;

fn state(socket: &SocketRow, r: &TcpRecord, tick_ns: Option<i64>) -> TcpStateRow {
    let segment = r.ip_version != 0;
    let v4 = r.ip_version == 4;
    let rate = || {
        let bytes = i64::from(r.rate_delivered) * i64::from(r.mss) * 1_000_000;
        (r.rate_interval_us > 0).then(|| bytes / i64::from(r.rate_interval_us))
    };
    TcpStateRow {
        at_ns: r.at.0,
        socket_id: socket.socket_id,
        crossing: i32::from(r.what),
        state: i32::from(r.state),
        ca_state: i32::from(r.ca_state),
        snd_cwnd: i64::from(r.snd_cwnd),
        snd_ssthresh: (r.snd_ssthresh != NO_THRESHOLD).then_some(i64::from(r.snd_ssthresh)),
        snd_wnd: i64::from(r.snd_wnd),
        rcv_wnd: i64::from(r.rcv_wnd),
        mss: i64::from(r.mss),
        srtt_ns: i64::from(r.srtt_us8) * 125,
        rttvar_ns: i64::from(r.rttvar_us4) * 250,
        rto_ns: tick_ns.map(|t| i64::from(r.rto_jiffies) * t),
        in_flight: i64::from(r.in_flight),
        retrans_out: i64::from(r.retrans_out),
        lost_out: i64::from(r.lost_out),
        sacked_out: i64::from(r.sacked_out),
        total_retrans: i64::from(r.total_retrans),
        write_seq: i64::from(r.write_seq),
        snd_una: i64::from(r.snd_una),
        snd_nxt: i64::from(r.snd_nxt),
        copied_seq: i64::from(r.copied_seq),
        rcv_nxt: i64::from(r.rcv_nxt),
        delivered: i64::from(r.delivered),
        app_limited: i32::from(r.app_limited != 0),
        busy: i32::from(r.limit & 3),
        cwnd_limited: i32::from(r.limit >> 2 & 1),
        pacing: i32::from(r.limit >> 3 & 3).checked_sub(1).filter(|p| *p >= 0),
        rate_bytes_s: rate(),
        pacing_bytes_s: (r.pacing_rate < 1 << 62).then_some(r.pacing_rate as i64),
        wmem_queued: i64::from(r.wmem_queued),
        rmem_alloc: i64::from(r.rmem_alloc),
        ip_version: segment.then_some(i32::from(r.ip_version)),
        tos: segment.then_some(i32::from(r.tos)),
        ttl: segment.then_some(i32::from(r.ttl)),
        ip_id: v4.then_some(i32::from(r.ip_id)),
        ip_fragment: v4.then_some(i32::from(r.ip_fragment)),
        tcp_flags: (r.tcp_flags != 0).then_some(i32::from(r.tcp_flags)),
        no_room: i32::from(r.limit >> 5 & 3).checked_sub(1).filter(|n| *n >= 0),
        // An older recorder leaves the bit 0, too.
        more: (r.limit & MORE != 0).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_do_not_wrap() {
        let mut s = Stream::default();
        let start = u32::MAX - 999;
        assert_eq!(s.offset(start), 0);
        assert_eq!(s.offset(start.wrapping_add(1448)), 1448);
        assert_eq!(s.offset(start), 0, "sent again");
        assert_eq!(s.offset(start.wrapping_add(2896)), 2896);
        for i in 1..=5i64 {
            assert_eq!(s.offset(start.wrapping_add((i * 1_000_000_000) as u32)), i * 1_000_000_000);
        }
    }

    #[test]
    fn the_end_of_a_stream_is_not_a_byte() {
        let mut s = Socket { row: SocketRow { proto: TCP, ..Default::default() }, ..Default::default() };
        let mut offset = |what, seq, size| {
            let ctx = Context::Task;
            let r = CrossingRecord { what, ctx, pid: 1, sock: 1, at: BootNs(1), size, segments: 1, seq };
            event(&mut s, &r, 0).offset
        };
        assert_eq!(offset(Crossing::ToSocket, 100, 50), Some(0));
        assert_eq!(offset(Crossing::Recv, 100, 20), Some(0));
        assert_eq!(offset(Crossing::Recv, 121, 10), Some(21), "a byte was passed over, and more can be read");
        assert_eq!(offset(Crossing::Recv, 132, 19), Some(31), "with the end of the stream");
    }

    #[test]
    fn a_stream_without_bytes_begins_where_its_state_says() {
        let mut s = Socket { row: SocketRow { proto: TCP, ..Default::default() }, ..Default::default() };
        let state =
            |state, write_seq, rcv_nxt| TcpRecord { state, write_seq, rcv_nxt, ..TcpRecord::default() };
        s.begins(&state(2, 70, 0));
        s.begins(&state(7, 70, 0));
        assert_eq!((s.unsent, s.unreceived), (None, None), "it connects, and gives up");
        let mut reset = Socket::default();
        reset.begins(&TcpRecord { tcp_flags: 20, ..state(7, 70, 50) });
        assert_eq!((reset.unsent, reset.unreceived), (Some(70), Some(50)));
        // Both ends are closed: each has a number.
        s.begins(&state(9, 71, 51));
        assert_eq!((s.unsent, s.unreceived), (Some(70), Some(50)));
        s.begins(&state(1, 900, 900));
        assert_eq!((s.unsent, s.unreceived), (Some(70), Some(50)));
        let (what, ctx) = (Crossing::Recv, Context::Task);
        let r = CrossingRecord { what, ctx, pid: 1, sock: 1, at: BootNs(1), size: 0, segments: 1, seq: 51 };
        assert_eq!((event(&mut s, &r, 0).offset, s.received.first), (None, None), "its end is no byte");
    }

    #[test]
    fn nothing_is_taken_twice() {
        use Crossing::*;
        let mut s = Socket { row: SocketRow { proto: TCP, ..Default::default() }, ..Default::default() };
        let mut offset = |what, seq, size| {
            let ctx = Context::Task;
            let r = CrossingRecord { what, ctx, pid: 1, sock: 1, at: BootNs(1), size, segments: 1, seq };
            event(&mut s, &r, 0).offset
        };
        // Calls know but the end: of what came out of a sockmap it is where the stream was before.
        let calls = [(100, 1000), (200, 900), (0, 1100), (1100, 500), (1590, 10), (1600, 50)];
        let found = calls.map(|(seq, size)| offset(Recv, seq, size));
        assert_eq!(found, [Some(0), None, None, Some(1000), None, Some(1500)]);
        let found = [(5000, 1000), (4000, 2000), (6000, 7)].map(|(seq, size)| offset(Send, seq, size));
        assert_eq!(found, [Some(0), None, Some(1000)]);
    }

    #[test]
    fn an_urgent_byte_is_taken_by_itself() {
        let mut s = Socket { row: SocketRow { proto: TCP, ..Default::default() }, ..Default::default() };
        let mut offset = |seq, size| {
            let (what, ctx) = (Crossing::Recv, Context::Task);
            let r = CrossingRecord { what, ctx, pid: 1, sock: 1, at: BootNs(1), size, segments: 1, seq };
            event(&mut s, &r, 0).offset
        };
        // Before what is ahead of it, behind it, and not at all.
        let calls = [(500, 1), (100, 300), (400, 100), (501, 99), (700, 50), (600, 1), (300, 10), (800, 5)];
        let found = calls.map(|(seq, size)| offset(seq, size));
        let at = |seq: i64| Some(seq - 500);
        let want = [at(500), at(100), at(400), at(501), at(700), at(600), None, at(800)];
        assert_eq!(found, want);
    }

    #[test]
    fn a_syn_that_is_sent_again_is_before_the_first_byte() {
        let mut s = Socket { row: SocketRow { proto: TCP, ..Default::default() }, ..Default::default() };
        let mut offset = |what, seq, size| {
            let ctx = Context::Task;
            let r = CrossingRecord { what, ctx, pid: 1, sock: 1, at: BootNs(1), size, segments: 1, seq };
            event(&mut s, &r, 0).offset
        };
        assert_eq!([99, 99].map(|syn| offset(Crossing::Retransmit, syn, 0)), [Some(0), Some(0)]);
        assert_eq!(offset(Crossing::ToTransport, 100, 50), Some(0));
        assert_eq!(offset(Crossing::Retransmit, 100, 50), Some(0));
        assert_eq!(offset(Crossing::Retransmit, 150, 0), Some(50), "the end of the stream");
    }

    #[test]
    fn who_paces_is_not_known_of_a_log_that_does_not_say() {
        let of = |limit| {
            let s = state(&SocketRow::default(), &TcpRecord { limit, ..TcpRecord::default() }, None);
            (s.busy, s.cwnd_limited, s.pacing)
        };
        assert_eq!([0, 0b101].map(of), [(0, 0, None), (1, 1, None)]);
        assert_eq!([0b01101, 0b10001, 0b11010].map(of), [(1, 1, Some(0)), (1, 0, Some(1)), (2, 0, Some(2))]);
    }
}
