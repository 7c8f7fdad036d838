//! The encoder backwards, over one chunk's decoded payload. The checksum held, so what is odd here was written odd:
//! it ends the chunk with a reason and never panics.

use crate::columns::{Cursor, Odd, SHORT};
use crate::kinds::{Coding, FIRST_DECLARED};
use crate::schema::{Found, Schema};
use crate::state::*;
use crate::varint::MAX_LEN;
use kpat_model::record::{Call, FootprintRecord, HeaderBytes, Lineage, Member, Place, Point};
use kpat_model::*;

/// Zero bytes that must follow the payload in the decoder's buffer.
pub const PAD: usize = 2 * MAX_LEN;

/// One step of the decoder.
pub enum Step {
    Record(Record),
    /// A code of an event, lineage or loss that this version has no word for.
    Unknown,
    /// A kind that this version does not know, by its place in the schema.
    UnknownKind(usize),
}

pub struct Decoder<'s> {
    schema: &'s Schema,
    state: State,
    /// Values of the record before of each kind that the log declares.
    before: Vec<u64>,
    pos: usize,
    end: usize,
}

/// Memory of footprints that nobody needs any more: every packet has some.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they become records' as they are")]
pub struct Spare(Vec<Box<FootprintRecord>>);

impl Spare {
    /// Footprints kept at most.
    const MOST: usize = 1 << 12;

    pub fn keep(&mut self, of: Box<FootprintRecord>) {
        if self.0.len() < Spare::MOST {
            self.0.push(of);
        }
    }

    fn boxed(&mut self, record: FootprintRecord) -> Box<FootprintRecord> {
        match self.0.pop() {
            Some(mut memory) => {
                *memory = record;
                memory
            }
            None => Box::new(record),
        }
    }
}

/// What is coded by hand.
trait ByHand {
    fn u32(&mut self) -> Result<u32, Odd>;
    fn u16(&mut self) -> Result<u16, Odd>;
    fn packet(&mut self, s: &mut State, mode: u8) -> Result<(PacketId, u16), Odd>;
    fn place(&mut self, s: &mut State, mode: u8) -> Result<Where, Odd>;
    fn task(&mut self, s: &mut State, mode: u8) -> Result<(u32, Context), Odd>;
}

impl ByHand for Cursor<'_> {
    fn u32(&mut self) -> Result<u32, Odd> {
        u32::try_from(self.number()?).map_err(|_| "a number is too large for its field")
    }

    fn u16(&mut self) -> Result<u16, Odd> {
        u16::try_from(self.number()?).map_err(|_| "a number is too large for its field")
    }

    #[inline]
    fn packet(&mut self, s: &mut State, mode: u8) -> Result<(PacketId, u16), Odd> {
        let s = &mut s.shared;
        if mode == PACKET_NEW {
            let id = self.id(s)?;
            let tag = u16::from(self.byte()?) | u16::from(self.byte()?) << 8;
            s.push_recent((id, tag));
        } else {
            s.use_recent(usize::from(mode));
        }
        Ok((PacketId(s.recent[0].0), s.recent[0].1))
    }

    fn place(&mut self, s: &mut State, mode: u8) -> Result<Where, Odd> {
        if mode == PLACE_NEW {
            let (ifindex, netns, link_type) = (self.u32()?, self.u32()?, self.u16()?);
            s.push_place(Where { ifindex, netns, link_type });
        } else {
            s.use_place(usize::from(mode));
        }
        Ok(s.places[0])
    }

    #[inline]
    fn task(&mut self, s: &mut State, mode: u8) -> Result<(u32, Context), Odd> {
        let s = &mut s.shared;
        match mode {
            0 => {}
            1 => s.tasks.swap(0, 1),
            TASK_NEW => {
                let task = self.number()?;
                if task >> 35 != 0 {
                    return Err("a number is too large for its field");
                }
                s.tasks = [task, s.tasks[0]];
            }
            _ => return Err("a record has an impossible task mode"),
        }
        let task = s.tasks[0];
        Ok(((task >> 3) as u32, Context::from_u8(task as u8 & 7)))
    }
}

impl<'s> Decoder<'s> {
    /// For a payload of `len` bytes of a log that declares `schema`.
    pub fn new(schema: &'s Schema, len: usize, packet_base: u64) -> Decoder<'s> {
        let mut state = State::new();
        state.shared.newest = packet_base;
        Decoder { schema, state, before: schema.start(), pos: 0, end: len }
    }

    /// Whether all bytes are used up.
    pub fn at_end(&self) -> bool {
        self.pos >= self.end
    }

    /// The next record. `buf` is the payload and [`PAD`] zero bytes.
    #[inline]
    pub fn next(&mut self, buf: &[u8], spare: &mut Spare) -> Result<Step, Odd> {
        if self.pos >= self.end {
            return Err("the chunk holds fewer records than its header says");
        }
        let s = &mut self.state;
        let mut c = Cursor { buf, pos: self.pos };
        let t = c.byte()?;
        let step = if t & tag::CALL != 0 {
            Step::Record(Record::Call(call(&mut c, s, t)?))
        } else if t & tag::KIND_MASK == tag::COLUMNS {
            let id = match t >> tag::COLUMNS_SHIFT & 15 {
                tag::COLUMNS_OTHER => c.number()?,
                small => u64::from(FIRST_DECLARED) + u64::from(small),
            };
            match self.schema.get(id, &mut c, &mut s.shared, &mut self.before)? {
                Found::Known(kind, row) => match kind.coding {
                    Coding::Records(record) => record(&row).map_or(Step::Unknown, Step::Record),
                    Coding::Application(_) | Coding::Own(_) => Step::Unknown,
                },
                Found::Unknown(kind) => Step::UnknownKind(kind),
            }
        } else {
            other(&mut c, s, t, spare)?
        };
        if c.pos > self.end {
            return Err(SHORT);
        }
        self.pos = c.pos;
        Ok(step)
    }
}

#[inline]
fn call(c: &mut Cursor<'_>, s: &mut State, t: u8) -> Result<Call, Odd> {
    let step = c.number()? as i64;
    let dur_ns = c.number()?;
    let time = &mut s.shared.time;
    *time = if t & tag::CALL_BACKWARDS != 0 { time.wrapping_sub(step) } else { time.wrapping_add(step) };
    let end = *time;
    let slot = usize::from(s.func) % GUESSES;
    if t & tag::CALL_FUNC != 0 {
        s.guess[slot] = c.u16()?;
    }
    s.func = s.guess[slot];
    let mode = t & 3;
    let (packet, skb_tag) =
        if mode == 0 { (PacketId(s.shared.recent[0].0), s.shared.recent[0].1) } else { c.packet(s, mode)? };
    let (pid, ctx) = c.task(s, t >> tag::CALL_TASK_SHIFT & 3)?;
    let flags = if t & tag::CALL_FLAGS != 0 { c.byte()? } else { 0 };
    Ok(Call {
        func: FuncId(s.func),
        ctx,
        flags,
        skb_tag,
        pid,
        packet,
        entry: BootNs(end.wrapping_sub(dur_ns as i64)),
        dur_ns,
    })
}

fn other(c: &mut Cursor<'_>, s: &mut State, t: u8, spare: &mut Spare) -> Result<Step, Odd> {
    let mode_a = t >> tag::MODE_A_SHIFT & 3;
    let mode_b = t >> tag::MODE_B_SHIFT & 3;
    let record = match t & tag::KIND_MASK {
        tag::POINT => {
            let fields = c.byte()?;
            let at = BootNs(c.time(&mut s.shared)?);
            let slot = usize::from(s.func) % GUESSES;
            if fields & point_field::FUNC != 0 {
                s.guess[slot] = c.u16()?;
            }
            s.func = s.guess[slot];
            if fields & point_field::LEN != 0 {
                s.len_bytes = c.u32()?;
            }
            let (func, len_bytes) = (FuncId(s.func), s.len_bytes);
            let (packet, skb_tag) = c.packet(s, mode_a)?;
            let (pid, ctx) = c.task(s, mode_b)?;
            let ends = fields & point_field::ENDS != 0;
            let put_off = fields & point_field::PUT_OFF != 0;
            Record::Point(Point { func, ctx, skb_tag, pid, packet, at, len_bytes, ends, put_off })
        }
        tag::MEMBER => {
            if mode_a != 0 {
                s.member_func = c.u16()?;
                s.member_entry = s.shared.time.wrapping_add(c.signed()?);
            }
            let packet = PacketId(c.id(&mut s.shared)?);
            Record::Member(Member { func: FuncId(s.member_func), packet, entry: BootNs(s.member_entry) })
        }
        tag::FOOTPRINT => {
            let at = BootNs(c.time(&mut s.shared)?);
            let (packet, skb_tag) = c.packet(s, mode_a)?;
            let place = c.place(s, mode_b)?;
            let base = usize::from(c.byte()?);
            let old = s.prints.get_mut(base).ok_or("a footprint is coded against one that cannot be")?;
            let print = print(c, *old)?;
            *old = print;
            Record::Footprint(spare.boxed(FootprintRecord {
                packet,
                at,
                ifindex: place.ifindex,
                netns: place.netns,
                len_bytes: print.len_bytes,
                gso_size: print.gso_size,
                gso_segs: print.gso_segs,
                protocol: print.protocol,
                start_layer: print.start_layer,
                ip_proto: print.ip_proto,
                link_type: place.link_type,
                skb_tag,
                header: HeaderBytes::new(&print.header[..usize::from(print.header_len)]),
            }))
        }
        tag::PLACE => {
            let at = BootNs(c.time(&mut s.shared)?);
            let (packet, skb_tag) = c.packet(s, mode_a)?;
            let Where { ifindex, netns, link_type } = c.place(s, mode_b)?;
            Record::Place(Place { packet, at, ifindex, netns, link_type, skb_tag })
        }
        tag::LINEAGE => {
            let at = BootNs(c.time(&mut s.shared)?);
            let parent = c.id(&mut s.shared)?;
            let child = if t & 0x40 != 0 { c.id(&mut s.shared)? } else { parent };
            match LineageKind::from_u8(t >> 3 & 7) {
                Some(kind) => {
                    Record::Lineage(Lineage { kind, at, parent: PacketId(parent), child: PacketId(child) })
                }
                None => return Ok(Step::Unknown),
            }
        }
        _ => return Err("a record is of a kind that has no coding"),
    };
    Ok(Step::Record(record))
}

/// The footprint that differs from `p` as the bytes say.
fn print(c: &mut Cursor<'_>, mut p: Print) -> Result<Print, Odd> {
    let fields = c.byte()?;
    if fields & print_field::LEN != 0 {
        p.len_bytes = c.u32()?;
    }
    if fields & print_field::GSO != 0 {
        p.gso_size = c.u16()?;
        p.gso_segs = c.u16()?;
    }
    if fields & print_field::PROTOCOL != 0 {
        p.protocol = c.u16()?;
    }
    if fields & print_field::LAYER != 0 {
        p.start_layer = c.byte()?;
        p.ip_proto = c.byte()?;
    }
    if fields & print_field::HEADER_LEN != 0 {
        p.header_len = c.byte()?;
        if usize::from(p.header_len) > MAX_HEADER {
            return Err("a footprint has too many header bytes");
        }
    }
    let len = usize::from(p.header_len);
    let groups = c.number()?;
    if groups >> len.div_ceil(8) != 0 {
        return Err("a footprint changes bytes past its header");
    }
    for group in 0..len.div_ceil(8) {
        if groups >> group & 1 == 0 {
            continue;
        }
        let mask = c.byte()?;
        for bit in 0..8 {
            if mask >> bit & 1 != 0 {
                p.header[8 * group + bit] = c.byte()?;
            }
        }
    }
    p.header[len..].fill(0);
    Ok(p)
}
