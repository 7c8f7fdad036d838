//! Records in, chunks out: one encoder per CPU, fed in the order of the ring (calls by their return). Runs on the
//! device under test for every event, so the call path is straight and touches few cache lines.

use crate::columns::{MOST, ROW_SLACK, put_row};
use crate::header::{ChunkKind, Codec, HEADER_LEN, Header, MAX_RAW_LEN, may_unpack};
use crate::kinds::{FIRST_DECLARED, InColumns, KINDS, task_key};
use crate::state::*;
use crate::varint::{put, zigzag};
use kpat_model::*;

/// A chunk is full when its decoded payload has reached this.
pub const TARGET_BYTES: usize = 64 * 1024;

/// Codes the records of one CPU; reused from chunk to chunk.
pub struct Encoder {
    cpu: u16,
    state: State,
    before: Before,
    /// Always longer than `pos`, so that numbers are written as whole words.
    buf: Vec<u8>,
    pos: usize,
    count: u32,
    first: i64,
    last: i64,
    losses: Vec<Loss>,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

/// Coded records of one CPU, complete but for the sequence number and the checksums, which [`crate::Writer`] sets.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub cpu: u16,
    pub count: u32,
    /// Earliest moment in it: the entry of a call counts.
    pub first: BootNs,
    /// Latest moment in it.
    pub last: BootNs,
    /// The losses that it reports: where it cannot be written they are not to go with it.
    pub losses: Vec<Loss>,
    pub(crate) bytes: Vec<u8>,
}

impl Chunk {
    /// Bytes that it takes in memory and in the file.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl Encoder {
    pub fn new(cpu: u16, codec: Codec) -> Self {
        let zstd = match codec {
            Codec::None => None,
            // Without memory for a compressor the chunks are stored as they are: larger, but there.
            Codec::Zstd => zstd::bulk::Compressor::new(1).ok(),
        };
        Encoder {
            cpu,
            state: State::new(),
            before: [[0; MOST]; KINDS.len()],
            buf: vec![0; TARGET_BYTES + 4096],
            pos: 0,
            count: 0,
            first: i64::MAX,
            last: i64::MIN,
            losses: Vec::new(),
            zstd,
        }
    }

    /// Bytes coded since the last [`Encoder::finish`].
    pub fn raw_len(&self) -> usize {
        self.pos
    }

    /// Records since the last [`Encoder::finish`].
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Time for [`Encoder::finish`]. Going on is allowed up to [`MAX_RAW_LEN`]; beyond it is a bug of the caller and panics.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.pos >= TARGET_BYTES
    }

    #[inline]
    pub fn call(&mut self, c: &Call) {
        self.reserve(CALL_SLACK);
        let s = &mut self.state;
        let out = self.buf[self.pos..].first_chunk_mut::<CALL_SLACK>().expect("reserved above");
        let end = c.entry.0.wrapping_add(c.dur_ns as i64);
        let step = end.wrapping_sub(s.shared.time);
        s.shared.time = end;
        let mut tag = tag::CALL;
        tag |= u8::from(step < 0) * tag::CALL_BACKWARDS;
        let mut n = put(out, 1, step.unsigned_abs());
        n = put(out, n, c.dur_ns);
        let guess = &mut s.guess[usize::from(s.func) % GUESSES];
        s.func = c.func.0;
        // Written in any case and kept if the guess was wrong: no branch that half the time goes the other way.
        let missed = *guess != c.func.0;
        *guess = c.func.0;
        let after = put(out, n, u64::from(c.func.0));
        n = if missed { after } else { n };
        tag |= u8::from(missed) * tag::CALL_FUNC;
        let key = (c.packet.0, c.skb_tag);
        if s.shared.recent[0] != key {
            let mode;
            (mode, n) = put_packet(s, key, out, n);
            tag |= mode;
        }
        let task = task_key(c.pid, c.ctx);
        if s.shared.tasks[0] != task {
            let mode;
            (mode, n) = put_task(s, task, out, n);
            tag |= mode << tag::CALL_TASK_SHIFT;
        }
        if c.flags != 0 {
            tag |= tag::CALL_FLAGS;
            out[n] = c.flags;
            n += 1;
        }
        out[0] = tag;
        self.pos += n;
        self.count += 1;
        self.first = self.first.min(c.entry.0);
        self.last = self.last.max(end);
    }

    #[inline]
    pub fn point(&mut self, p: &Point) {
        self.reserve(FIXED_SLACK);
        let (s, out) = (&mut self.state, &mut self.buf[self.pos..]);
        let mut n = s.shared.put_time(p.at.0, out, 2);
        let mut fields =
            (u8::from(p.ends) * point_field::ENDS) | (u8::from(p.put_off) * point_field::PUT_OFF);
        let guess = &mut s.guess[usize::from(s.func) % GUESSES];
        s.func = p.func.0;
        if *guess != p.func.0 {
            *guess = p.func.0;
            fields |= point_field::FUNC;
            n = put(out, n, u64::from(p.func.0));
        }
        if s.len_bytes != p.len_bytes {
            s.len_bytes = p.len_bytes;
            fields |= point_field::LEN;
            n = put(out, n, u64::from(p.len_bytes));
        }
        out[1] = fields;
        let (packet_mode, task_mode);
        (packet_mode, n) = put_packet(s, (p.packet.0, p.skb_tag), out, n);
        (task_mode, n) = put_task(s, task_key(p.pid, p.ctx), out, n);
        out[0] = tag::POINT | packet_mode << tag::MODE_A_SHIFT | task_mode << tag::MODE_B_SHIFT;
        self.done(n, p.at.0, p.at.0);
    }

    pub fn member(&mut self, m: &Member) {
        self.reserve(FIXED_SLACK);
        let (s, out) = (&mut self.state, &mut self.buf[self.pos..]);
        let mut n = 1;
        let same = s.member_func == m.func.0 && s.member_entry == m.entry.0;
        if !same {
            s.member_func = m.func.0;
            s.member_entry = m.entry.0;
            n = put(out, n, u64::from(m.func.0));
            n = put(out, n, zigzag(m.entry.0.wrapping_sub(s.shared.time)));
        }
        n = s.shared.put_id(m.packet.0, out, n);
        out[0] = tag::MEMBER | u8::from(!same) << tag::MODE_A_SHIFT;
        self.done(n, m.entry.0, m.entry.0);
    }

    pub fn footprint(&mut self, f: &FootprintRecord) {
        self.reserve(FIXED_SLACK);
        let (s, out) = (&mut self.state, &mut self.buf[self.pos..]);
        let mut n = s.shared.put_time(f.at.0, out, 1);
        let (packet_mode, place_mode);
        (packet_mode, n) = put_packet(s, (f.packet.0, f.skb_tag), out, n);
        let place = Where { ifindex: f.ifindex, netns: f.netns, link_type: f.link_type };
        (place_mode, n) = put_place(s, place, out, n);
        let base = print_slot(f);
        out[n] = base as u8;
        n = put_print(&mut s.prints[base], f, out, n + 1);
        out[0] = tag::FOOTPRINT | packet_mode << tag::MODE_A_SHIFT | place_mode << tag::MODE_B_SHIFT;
        self.done(n, f.at.0, f.at.0);
    }

    pub fn place(&mut self, p: &Place) {
        self.reserve(FIXED_SLACK);
        let (s, out) = (&mut self.state, &mut self.buf[self.pos..]);
        let mut n = s.shared.put_time(p.at.0, out, 1);
        let (packet_mode, place_mode);
        (packet_mode, n) = put_packet(s, (p.packet.0, p.skb_tag), out, n);
        let place = Where { ifindex: p.ifindex, netns: p.netns, link_type: p.link_type };
        (place_mode, n) = put_place(s, place, out, n);
        out[0] = tag::PLACE | packet_mode << tag::MODE_A_SHIFT | place_mode << tag::MODE_B_SHIFT;
        self.done(n, p.at.0, p.at.0);
    }

    pub fn lineage(&mut self, l: &Lineage) {
        self.reserve(FIXED_SLACK);
        let (s, out) = (&mut self.state, &mut self.buf[self.pos..]);
        let mut n = s.shared.put_time(l.at.0, out, 1);
        n = s.shared.put_id(l.parent.0, out, n);
        let other = l.child != l.parent;
        if other {
            n = s.shared.put_id(l.child.0, out, n);
        }
        out[0] = tag::LINEAGE | (l.kind as u8) << 3 | u8::from(other) << 6;
        self.done(n, l.at.0, l.at.0);
    }

    /// Texts beyond 65,535 bytes are cut.
    #[inline]
    pub fn event(&mut self, e: &Event) {
        self.columns(e);
    }

    pub fn process(&mut self, p: &Process) {
        self.columns(p);
    }

    pub fn loss(&mut self, l: &Loss) {
        self.losses.push(*l);
        self.columns(l);
        self.first = self.first.min(l.from.0);
    }

    /// A record whose kind is coded column by column.
    pub fn columns<K: InColumns>(&mut self, record: &K) {
        let (row, kind) = (record.row(), &KINDS[K::PLACE]);
        self.reserve(ROW_SLACK + row.byte_len());
        let out = &mut self.buf[self.pos..];
        let small = (kind.id - FIRST_DECLARED).min(u16::from(tag::COLUMNS_OTHER)) as u8;
        out[0] = tag::COLUMNS | small << tag::COLUMNS_SHIFT;
        let mut n = 1;
        if small == tag::COLUMNS_OTHER {
            n = put(out, n, kind.id.into());
        }
        n = put_row(kind.columns, &mut self.state.shared, &mut self.before[K::PLACE], &row, out, n);
        let at = row.numbers[0] as i64;
        self.done(n, at, at);
    }

    /// Any of the above.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Call(r) => self.call(r),
            Record::Point(r) => self.point(r),
            Record::Member(r) => self.member(r),
            Record::Footprint(r) => self.footprint(r),
            Record::Lineage(r) => self.lineage(r),
            Record::Event(r) => self.event(r),
            Record::Process(r) => self.process(r),
            Record::Loss(r) => self.loss(r),
            Record::Place(r) => self.place(r),
            Record::OffCpu(r) => self.columns(r),
            Record::Poll(r) => self.columns(r),
            Record::PollEnd(r) => self.columns(r),
            Record::CardStamp(r) => self.columns(r),
            Record::CardReading(r) => self.columns(&**r),
            Record::Work(r) => self.columns(&**r),
            Record::SocketUse(r) => self.columns(&**r),
            Record::CpuTime(r) => self.columns(&**r),
            Record::CpuPackets(r) => self.columns(&**r),
            Record::BlockRequests(r) => self.columns(&**r),
            Record::ProcessLabel(r) => self.columns(&**r),
            Record::Peer(r) => self.columns(&**r),
            Record::Sample(r) => self.columns(&**r),
            Record::Stack(r) => self.columns(&**r),
            Record::Mapping(r) => self.columns(&**r),
            Record::Program(r) => self.columns(&**r),
            Record::Wifi(r) => self.columns(&**r),
            Record::Link(r) => self.columns(&**r),
            Record::Exchange(r) => self.columns(&**r),
            Record::GuestClock(r) => self.columns(r),
        }
    }

    /// The chunk so far, and a fresh start; `None` if there was no record.
    pub fn finish(&mut self) -> Option<Chunk> {
        if self.count == 0 {
            return None;
        }
        let raw = &self.buf[..self.pos];
        let mut codec = Codec::None;
        let mut bytes;
        let packed = self.zstd.as_mut().and_then(|z| z.compress(raw).ok());
        match packed {
            Some(packed) if packed.len() < raw.len() && may_unpack(packed.len(), raw.len()) => {
                codec = Codec::Zstd;
                bytes = Vec::with_capacity(HEADER_LEN + packed.len());
                bytes.resize(HEADER_LEN, 0);
                bytes.extend_from_slice(&packed);
            }
            _ => {
                bytes = Vec::with_capacity(HEADER_LEN + raw.len());
                bytes.resize(HEADER_LEN, 0);
                bytes.extend_from_slice(raw);
            }
        }
        let header = Header {
            kind: ChunkKind::Records,
            codec,
            cpu: self.cpu,
            count: self.count,
            payload_len: (bytes.len() - HEADER_LEN) as u32,
            raw_len: self.pos as u32,
            seq: 0,
            first_ts: self.first,
            last_ts: self.last,
            packet_base: self.state.shared.base.unwrap_or(0),
            crc: 0,
        };
        bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        let chunk = Chunk {
            cpu: self.cpu,
            count: self.count,
            first: BootNs(self.first),
            last: BootNs(self.last),
            losses: std::mem::take(&mut self.losses),
            bytes,
        };
        self.state = State::new();
        self.before = [[0; MOST]; KINDS.len()];
        self.pos = 0;
        self.count = 0;
        self.first = i64::MAX;
        self.last = i64::MIN;
        Some(chunk)
    }

    #[inline(always)]
    fn reserve(&mut self, room: usize) {
        if self.buf.len() - self.pos < room {
            self.grow(room);
        }
    }

    #[cold]
    fn grow(&mut self, room: usize) {
        assert!(self.pos + room <= MAX_RAW_LEN as usize, "finish() was not called on a full chunk");
        self.buf.resize(self.pos + room + TARGET_BYTES, 0);
    }

    #[inline]
    fn done(&mut self, len: usize, first: i64, last: i64) {
        self.pos += len;
        self.count += 1;
        self.first = self.first.min(first);
        self.last = self.last.max(last);
    }
}

fn put_packet(s: &mut State, key: (u64, u16), out: &mut [u8], n: usize) -> (u8, usize) {
    let s = &mut s.shared;
    if let Some(mode) = s.recent.iter().position(|k| *k == key) {
        s.use_recent(mode);
        return (mode as u8, n);
    }
    let n = s.put_id(key.0, out, n);
    out[n..n + 2].copy_from_slice(&key.1.to_le_bytes());
    s.push_recent(key);
    (PACKET_NEW, n + 2)
}

fn put_task(s: &mut State, task: u64, out: &mut [u8], n: usize) -> (u8, usize) {
    let s = &mut s.shared;
    if task == s.tasks[0] {
        return (0, n);
    }
    s.tasks.swap(0, 1);
    if task == s.tasks[0] {
        return (1, n);
    }
    s.tasks[0] = task;
    (TASK_NEW, put(out, n, task))
}

fn put_place(s: &mut State, place: Where, out: &mut [u8], n: usize) -> (u8, usize) {
    if let Some(mode) = s.places.iter().position(|p| *p == place) {
        s.use_place(mode);
        return (mode as u8, n);
    }
    let n = put(out, n, u64::from(place.ifindex));
    let n = put(out, n, u64::from(place.netns));
    let n = put(out, n, u64::from(place.link_type));
    s.push_place(place);
    (PLACE_NEW, n)
}

/// Where the footprint before of the same flow at the same place is likely to be.
fn print_slot(f: &FootprintRecord) -> usize {
    // Addresses and ports of an IPv4 header, and what lies there in others.
    let at = if f.start_layer == 2 { 26 } else { 12 };
    let word = |at: usize| f.header.padded()[at..].first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
    let mixed = (word(at) ^ word(at + 4).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(f.ifindex) << 8 | u64::from(f.start_layer)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 58) as usize % PRINTS
}

/// Codes `new` against `old`, which becomes it.
fn put_print(old: &mut Print, new: &FootprintRecord, out: &mut [u8], n: usize) -> usize {
    let fields_at = n;
    let mut fields = 0;
    let mut n = n + 1;
    if old.len_bytes != new.len_bytes {
        fields |= print_field::LEN;
        old.len_bytes = new.len_bytes;
        n = put(out, n, u64::from(new.len_bytes));
    }
    if (old.gso_size, old.gso_segs) != (new.gso_size, new.gso_segs) {
        fields |= print_field::GSO;
        (old.gso_size, old.gso_segs) = (new.gso_size, new.gso_segs);
        n = put(out, n, u64::from(new.gso_size));
        n = put(out, n, u64::from(new.gso_segs));
    }
    if old.protocol != new.protocol {
        fields |= print_field::PROTOCOL;
        old.protocol = new.protocol;
        n = put(out, n, u64::from(new.protocol));
    }
    if (old.start_layer, old.ip_proto) != (new.start_layer, new.ip_proto) {
        fields |= print_field::LAYER;
        (old.start_layer, old.ip_proto) = (new.start_layer, new.ip_proto);
        out[n] = new.start_layer;
        out[n + 1] = new.ip_proto;
        n += 2;
    }
    let len = new.header.len();
    if usize::from(old.header_len) != len {
        fields |= print_field::HEADER_LEN;
        old.header_len = len as u8;
        out[n] = len as u8;
        n += 1;
    }
    out[fields_at] = fields;

    // Which groups of eight bytes differ, then for each which bytes, then those bytes.
    let mut groups = 0u64;
    let mut differing = [0u64; MAX_HEADER / 8];
    let padded = new.header.padded();
    for (i, (was, is)) in old.header.chunks_exact_mut(8).zip(padded.chunks_exact(8)).enumerate() {
        if 8 * i >= len {
            was.fill(0);
            continue;
        }
        let word = |b: &[u8]| b.first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
        differing[i] = word(was) ^ word(is);
        groups |= u64::from(differing[i] != 0) << i;
        was.copy_from_slice(is);
    }
    n = put(out, n, groups);
    while groups != 0 {
        let i = groups.trailing_zeros() as usize;
        groups &= groups - 1;
        let mask_at = n;
        let mut mask = 0;
        n += 1;
        let mut left = differing[i];
        while left != 0 {
            let bit = left.trailing_zeros() as usize / 8;
            left &= !(0xff << (8 * bit));
            mask |= 1u8 << bit;
            out[n] = padded[8 * i + bit];
            n += 1;
        }
        out[mask_at] = mask;
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_the_specification() {
        let call = |func, end: i64, dur_ns| Call {
            func: FuncId(func),
            ctx: Context::Softirq,
            flags: 0,
            skb_tag: 0x1234,
            pid: 0,
            packet: PacketId(1),
            entry: BootNs(end - dur_ns as i64),
            dur_ns,
        };
        let mut e = Encoder::new(0, Codec::None);
        e.call(&call(7, 1000, 100));
        e.call(&call(8, 1050, 300));
        let bytes = e.finish().unwrap().bytes;
        assert_eq!(bytes[48..56], 1u64.to_le_bytes());
        let spec = include_str!("../../../docs/kbl-format.md");
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
        for part in [&bytes[HEADER_LEN..HEADER_LEN + 9], &bytes[HEADER_LEN + 9..]] {
            assert!(spec.contains(&format!("    {} ", hex(part))), "{}", hex(part));
        }
    }
}
