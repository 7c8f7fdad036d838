//! Chunks of application records: own coding, same chunks. Its one idea: what crosses at one place of one socket is like
//! what crossed there before, the stream continues where it ended, so most events are a tag and a step of time.

mod merged;

use crate::columns::{Cursor, MOST, Odd, ROW_SLACK, SHORT, Shared, put_row};
use crate::encode::{Chunk, TARGET_BYTES};
use crate::header::{ChunkKind, Codec, HEADER_LEN, Header, MAX_RAW_LEN, may_unpack};
use crate::kinds::{Coding, FIRST_DECLARED, InColumns, KINDS, task_key};
use crate::schema::{Found, Schema};
use crate::state::Before;
use crate::varint::{MAX_LEN, put, zigzag};
use kpat_model::*;
pub use merged::AppRecords;

/// Places in the table of what to expect.
const EXPECTED: usize = 256;
/// States that a new one may be coded against.
const STATES: usize = 64;
/// Sockets that an event is likely to be of.
const RECENT: usize = 3;
/// No record is longer.
const SLACK: usize = 48 * MAX_LEN;
const _: () = assert!(SLACK >= ROW_SLACK + 64);

/// Tag: bits 0-3 the crossing, or 0; bits 4-5 the socket among the recent ones, 3: follows; bit 6: something was not as
/// expected and a byte says what.
const SOCK_SHIFT: u8 = 4;
const SOCK_NEW: u8 = 3;
const ODD: u8 = 0x40;

mod odd {
    pub const SIZE: u8 = 1;
    pub const SEGMENTS: u8 = 2;
    pub const SEQ: u8 = 4;
    pub const TASK: u8 = 8;
}

/// Kind of a TCP record, after a tag whose crossing is 0: the others are coded by their columns.
const TCP: u8 = 7;

#[derive(Clone, Copy, Default)]
struct Expected {
    size: i32,
    segments: u16,
    seq: u32,
    task: u64,
}

/// What writer and reader remember from record to record; both start afresh at each chunk.
struct State {
    shared: Shared,
    recent: [u32; RECENT],
    expected: Box<[Expected; EXPECTED]>,
    states: Box<[[u64; TcpRecord::FIELDS]; STATES]>,
}

impl State {
    fn new() -> State {
        State {
            shared: Shared::new(),
            recent: [0; RECENT],
            expected: Box::new([Expected::default(); EXPECTED]),
            states: Box::new([[0; TcpRecord::FIELDS]; STATES]),
        }
    }

    fn slot(sock: u32, what: u8) -> usize {
        (sock.wrapping_mul(0x9e37_79b1) >> 24) as usize ^ usize::from(what) << 4 & (EXPECTED - 1)
    }

    fn use_recent(&mut self, i: usize) {
        self.recent[..=i].rotate_right(1);
    }

    fn push(&mut self, sock: u32) {
        self.recent.rotate_right(1);
        self.recent[0] = sock;
    }
}

/// The number that the next record at the same place begins with, if nothing is lost between.
fn next_seq(seq: u32, size: i32) -> u32 {
    seq.wrapping_add(size.max(0) as u32)
}

/// Codes the application records of one CPU.
pub struct AppEncoder {
    cpu: u16,
    state: State,
    before: Before,
    buf: Vec<u8>,
    pos: usize,
    count: u32,
    first: i64,
    last: i64,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl AppEncoder {
    pub fn new(cpu: u16, codec: Codec) -> AppEncoder {
        let zstd = match codec {
            Codec::None => None,
            Codec::Zstd => zstd::bulk::Compressor::new(1).ok(),
        };
        AppEncoder {
            cpu,
            state: State::new(),
            before: [[0; MOST]; KINDS.len()],
            buf: vec![0; TARGET_BYTES + SLACK],
            pos: 0,
            count: 0,
            first: i64::MAX,
            last: i64::MIN,
            zstd,
        }
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn is_full(&self) -> bool {
        self.pos >= TARGET_BYTES
    }

    pub fn crossing(&mut self, r: &CrossingRecord) {
        self.reserve();
        let (s, out) = (&mut self.state, &mut self.buf[self.pos..]);
        let e = &mut s.expected[State::slot(r.sock, r.what as u8)];
        let task = task_key(r.pid, r.ctx);
        let mut differs = 0;
        differs |= if e.size != r.size { odd::SIZE } else { 0 };
        differs |= if e.segments != r.segments { odd::SEGMENTS } else { 0 };
        differs |= if e.seq != r.seq { odd::SEQ } else { 0 };
        differs |= if e.task != task { odd::TASK } else { 0 };
        let was = std::mem::replace(
            e,
            Expected { size: r.size, segments: r.segments, seq: next_seq(r.seq, r.size), task },
        );
        let mut n = 1;
        if differs != 0 {
            out[n] = differs;
            n += 1;
        }
        n = s.shared.put_time(r.at.0, out, n);
        let mode;
        (mode, n) = put_sock(s, r.sock, out, n);
        if differs & odd::SIZE != 0 {
            n = put(out, n, zigzag(i64::from(r.size)));
        }
        if differs & odd::SEGMENTS != 0 {
            n = put(out, n, u64::from(r.segments));
        }
        if differs & odd::SEQ != 0 {
            n = put(out, n, zigzag(i64::from(r.seq.wrapping_sub(was.seq) as i32)));
        }
        if differs & odd::TASK != 0 {
            n = put(out, n, task);
        }
        out[0] = r.what as u8 | mode << SOCK_SHIFT | if differs != 0 { ODD } else { 0 };
        self.done(n, r.at.0);
    }

    pub fn tcp(&mut self, r: &TcpRecord) {
        self.reserve();
        let (s, out) = (&mut self.state, &mut self.buf[self.pos..]);
        let mut n = s.shared.put_time(r.at.0, out, 2);
        let mode;
        (mode, n) = put_sock(s, r.sock, out, n);
        let (was, is) = (&mut s.states[r.sock as usize % STATES], r.values());
        let mut mask = 0u64;
        for (i, (a, b)) in was.iter().zip(&is).enumerate() {
            mask |= u64::from(a != b) << i;
        }
        n = put(out, n, mask);
        for (a, b) in was.iter_mut().zip(&is).filter(|(a, b)| a != b) {
            n = put(out, n, zigzag(b.wrapping_sub(*a) as i64));
            *a = *b;
        }
        (out[0], out[1]) = (mode << SOCK_SHIFT, TCP);
        self.done(n, r.at.0);
    }

    pub fn socket(&mut self, r: &SocketRecord) {
        self.columns(r);
    }

    pub fn gap(&mut self, g: &Gap) {
        self.columns(g);
    }

    pub fn thread_time(&mut self, t: &ThreadTime) {
        self.columns(t);
    }

    /// A record whose kind is coded column by column.
    fn columns<K: InColumns>(&mut self, record: &K) {
        self.reserve();
        let (row, kind) = (record.row(), &KINDS[K::PLACE]);
        let out = &mut self.buf[self.pos..];
        (out[0], out[1]) = (0, kind.id as u8);
        let n = put_row(kind.columns, &mut self.state.shared, &mut self.before[K::PLACE], &row, out, 2);
        self.done(n, row.numbers[0] as i64);
    }

    pub fn record(&mut self, r: &AppRecord) {
        match r {
            AppRecord::Crossing(r) => self.crossing(r),
            AppRecord::Socket(r) => self.socket(r),
            AppRecord::Tcp(r) => self.tcp(r),
            AppRecord::Gap(r) => self.gap(r),
            AppRecord::ThreadTime(r) => self.thread_time(r),
        }
    }

    /// The chunk so far, and a fresh start; `None` if there was no record.
    pub fn finish(&mut self) -> Option<Chunk> {
        if self.count == 0 {
            return None;
        }
        let raw = &self.buf[..self.pos];
        let packed = self
            .zstd
            .as_mut()
            .and_then(|z| z.compress(raw).ok())
            .filter(|p| p.len() < raw.len() && may_unpack(p.len(), raw.len()));
        let (codec, payload) = packed.as_deref().map_or((Codec::None, raw), |p| (Codec::Zstd, p));
        let header = Header {
            kind: ChunkKind::Application,
            codec,
            cpu: self.cpu,
            count: self.count,
            payload_len: payload.len() as u32,
            raw_len: raw.len() as u32,
            seq: 0,
            first_ts: self.first,
            last_ts: self.last,
            packet_base: self.state.shared.base.unwrap_or(0),
            crc: 0,
        };
        let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(payload);
        let chunk = Chunk {
            cpu: self.cpu,
            count: self.count,
            first: BootNs(self.first),
            last: BootNs(self.last),
            losses: Vec::new(),
            bytes,
        };
        self.state = State::new();
        self.before = [[0; MOST]; KINDS.len()];
        (self.pos, self.count, self.first, self.last) = (0, 0, i64::MAX, i64::MIN);
        Some(chunk)
    }

    #[inline]
    fn reserve(&mut self) {
        if self.buf.len() - self.pos < SLACK {
            assert!(self.pos + SLACK <= MAX_RAW_LEN as usize, "finish() was not called on a full chunk");
            self.buf.resize(self.pos + SLACK + TARGET_BYTES, 0);
        }
    }

    #[inline]
    fn done(&mut self, len: usize, at: i64) {
        self.pos += len;
        self.count += 1;
        self.first = self.first.min(at);
        self.last = self.last.max(at);
    }
}

fn put_sock(s: &mut State, sock: u32, out: &mut [u8], n: usize) -> (u8, usize) {
    match s.recent.iter().position(|k| *k == sock) {
        Some(i) => {
            s.use_recent(i);
            (i as u8, n)
        }
        None => {
            s.push(sock);
            (SOCK_NEW, put(out, n, u64::from(sock)))
        }
    }
}

/// The encoder backwards, over one chunk's decoded payload followed by [`AppDecoder::PAD`] zeros.
pub struct AppDecoder<'s> {
    schema: &'s Schema,
    state: State,
    before: Vec<u64>,
    pos: usize,
    end: usize,
}

/// One step of the decoder.
pub enum AppStep {
    Record(AppRecord),
    /// A code that this version has no word for.
    Unknown,
    /// A kind that this version does not know, by its place in the schema.
    UnknownKind(usize),
}

fn sock(c: &mut Cursor<'_>, s: &mut State, mode: u8) -> Result<u32, Odd> {
    match mode {
        SOCK_NEW => s.push(c.number()? as u32),
        i => s.use_recent(usize::from(i)),
    }
    Ok(s.recent[0])
}

impl<'s> AppDecoder<'s> {
    pub const PAD: usize = 2 * MAX_LEN;

    pub fn new(schema: &'s Schema, end: usize, packet_base: u64) -> AppDecoder<'s> {
        let mut state = State::new();
        state.shared.newest = packet_base;
        AppDecoder { schema, state, before: schema.start(), pos: 0, end }
    }

    /// The next record; `None` at the end. `Err`: the chunk was written odd, nothing more comes of it.
    pub fn next(&mut self, buf: &[u8]) -> Option<Result<AppStep, Odd>> {
        if self.pos >= self.end {
            return None;
        }
        let mut c = Cursor { buf, pos: self.pos };
        let got = self.read(&mut c);
        self.pos = if got.is_err() || c.pos > self.end { self.end } else { c.pos };
        Some(if c.pos > self.end { Err(SHORT) } else { got })
    }

    fn read(&mut self, c: &mut Cursor<'_>) -> Result<AppStep, Odd> {
        let s = &mut self.state;
        let tag = c.byte()?;
        let mode = tag >> SOCK_SHIFT & 3;
        if tag & 0xf != 0 {
            return crossing(c, s, tag, mode);
        }
        match c.byte()? {
            TCP => tcp(c, s, mode),
            kind if u16::from(kind) < FIRST_DECLARED => Err("a record is of a kind that has no coding"),
            kind => Ok(match self.schema.get(kind.into(), c, &mut s.shared, &mut self.before)? {
                Found::Known(kind, row) => match kind.coding {
                    Coding::Application(record) => record(&row).map_or(AppStep::Unknown, AppStep::Record),
                    Coding::Records(_) | Coding::Own(_) => AppStep::Unknown,
                },
                Found::Unknown(kind) => AppStep::UnknownKind(kind),
            }),
        }
    }
}

fn crossing(c: &mut Cursor<'_>, s: &mut State, tag: u8, mode: u8) -> Result<AppStep, Odd> {
    let differs = if tag & ODD != 0 { c.byte()? } else { 0 };
    let at = BootNs(c.time(&mut s.shared)?);
    let sock = sock(c, s, mode)?;
    let what = tag & 0xf;
    let place = State::slot(sock, what);
    let mut e = s.expected[place];
    if differs & odd::SIZE != 0 {
        e.size = c.signed()? as i32;
    }
    if differs & odd::SEGMENTS != 0 {
        e.segments = c.number()? as u16;
    }
    if differs & odd::SEQ != 0 {
        e.seq = e.seq.wrapping_add(c.signed()? as u32);
    }
    if differs & odd::TASK != 0 {
        e.task = c.number()?;
    }
    s.expected[place] = Expected { seq: next_seq(e.seq, e.size), ..e };
    let Some(what) = Crossing::from_u8(what) else { return Ok(AppStep::Unknown) };
    Ok(AppStep::Record(AppRecord::Crossing(CrossingRecord {
        what,
        ctx: Context::from_u8((e.task & 7) as u8),
        pid: (e.task >> 3) as u32,
        sock,
        at,
        size: e.size,
        segments: e.segments,
        seq: e.seq,
    })))
}

fn tcp(c: &mut Cursor<'_>, s: &mut State, mode: u8) -> Result<AppStep, Odd> {
    let at = BootNs(c.time(&mut s.shared)?);
    let sock = sock(c, s, mode)?;
    let mask = c.number()?;
    let values = &mut s.states[sock as usize % STATES];
    for (i, v) in values.iter_mut().enumerate() {
        if mask >> i & 1 != 0 {
            *v = v.wrapping_add(c.signed()? as u64);
        }
    }
    Ok(AppStep::Record(AppRecord::Tcp(Box::new(TcpRecord::from_values(at, sock, values)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<AppRecord> {
        let crossing = |what, sock, at, size, seq| {
            AppRecord::Crossing(CrossingRecord {
                what,
                ctx: Context::Softirq,
                pid: 0,
                sock,
                at: BootNs(at),
                size,
                segments: 1,
                seq,
            })
        };
        let mut all = vec![AppRecord::Socket(Box::new(SocketRecord {
            at: BootNs(5),
            cookie: 0x1_0000_0007,
            cgroup: 44,
            version: 6,
            protocol: 6,
            port: 443,
            peer_port: 65535,
            addr: [7; 16],
            congestion: *b"cubic\0\0\0\0\0\0\0\0\0\0\0",
            privacy: Privacy::Hashed,
            ..Default::default()
        }))];
        for i in 0..200u32 {
            let at = 10 + i64::from(i) * 1000;
            all.push(crossing(Crossing::Send, i % 7, at, 1448, i.wrapping_mul(1448).wrapping_sub(9999)));
            all.push(crossing(Crossing::Recv, 7, at - 300, if i % 50 == 0 { -104 } else { 1 << 20 }, i));
        }
        let tcp = TcpRecord {
            at: BootNs(300_000),
            sock: 7,
            snd_cwnd: 10,
            pacing_rate: u64::MAX,
            ..Default::default()
        };
        all.push(AppRecord::Tcp(Box::new(tcp)));
        all.push(AppRecord::Tcp(Box::new(TcpRecord { at: BootNs(300_100), snd_cwnd: 9, ..tcp })));
        all.push(AppRecord::Gap(Gap { since: BootNs(300_100), until: BootNs(300_200), lost: 17 }));
        all.push(AppRecord::ThreadTime(ThreadTime {
            since: BootNs(300_000),
            until: BootNs(9_300_210),
            sock: 3,
            thread: 4_194_303,
            ran_ns: 4_000_000,
            waited_ns: 2_500_000,
            slept: u32::MAX,
        }));
        all
    }

    fn decode(mut raw: Vec<u8>) -> Vec<Result<AppRecord, &'static str>> {
        let schema = Schema::default();
        let mut d = AppDecoder::new(&schema, raw.len(), 0);
        raw.extend_from_slice(&[0; AppDecoder::PAD]);
        let record = |step| match step {
            AppStep::Record(r) => Ok(r),
            AppStep::Unknown | AppStep::UnknownKind(_) => Err("unknown"),
        };
        std::iter::from_fn(|| d.next(&raw)).map(|got| got.and_then(record)).collect()
    }

    #[test]
    fn what_goes_in_comes_out() {
        let mut e = AppEncoder::new(3, Codec::None);
        some().iter().for_each(|r| e.record(r));
        let chunk = e.finish().unwrap();
        assert_eq!(chunk.count as usize, some().len());
        let out: Vec<AppRecord> =
            decode(chunk.bytes[HEADER_LEN..].to_vec()).into_iter().map(Result::unwrap).collect();
        assert_eq!(out, some());
        assert!(e.finish().is_none());
    }

    /// A steady stream costs a tag and a step of time.
    #[test]
    fn what_is_expected_costs_little() {
        let mut e = AppEncoder::new(0, Codec::None);
        for i in 0..1000u32 {
            e.crossing(&CrossingRecord {
                what: Crossing::Send,
                ctx: Context::Task,
                pid: 4711,
                sock: 99,
                at: BootNs(1_000_000 + i64::from(i) * 5_000),
                size: 1448,
                segments: 1,
                seq: i * 1448,
            });
        }
        let bytes = e.finish().unwrap().len_bytes() - HEADER_LEN;
        assert!(bytes < 1000 * 3 + 50, "{bytes}");
    }

    #[test]
    fn damaged_bytes_end_a_chunk_and_nothing_else() {
        let mut e = AppEncoder::new(0, Codec::None);
        some().iter().for_each(|r| e.record(r));
        let raw = e.finish().unwrap().bytes[HEADER_LEN..].to_vec();
        for cut in 0..raw.len() {
            assert!(decode(raw[..cut].to_vec()).len() <= some().len());
        }
        let mut x = 1u32;
        for _ in 0..8_000 {
            let mut bad = raw.clone();
            for _ in 0..3 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = x as usize % bad.len();
                bad[at] ^= (x >> 24) as u8;
            }
            decode(bad);
        }
    }
}
