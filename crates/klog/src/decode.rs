//! The encoder backwards, over one chunk's decoded payload. The checksum held, so what is odd here was written odd:
//! it ends the chunk with a reason and never panics.

use crate::state::*;
use crate::varint::{MAX_LEN, get, unzigzag};
use kpat_model::record::{
    Call, Event, FootprintRecord, HeaderBytes, Lineage, Loss, Member, Place, Point, Process,
};
use kpat_model::*;

/// Zero bytes that must follow the payload in the decoder's buffer.
pub const PAD: usize = 2 * MAX_LEN;

/// One step of the decoder.
pub enum Step {
    Record(Record),
    /// A kind of event, lineage or loss that this version has no word for.
    Unknown,
}

pub struct Decoder {
    state: State,
    pos: usize,
    end: usize,
}

/// The bytes of a record do not add up; says what.
pub type Odd = &'static str;

const SHORT: Odd = "a record runs past the end of its chunk";

struct Cursor<'a> {
    buf: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    fn byte(&mut self) -> Result<u8, Odd> {
        let b = *self.buf.get(self.pos).ok_or(SHORT)?;
        self.pos += 1;
        Ok(b)
    }

    #[inline(always)]
    fn number(&mut self) -> Result<u64, Odd> {
        let (v, pos) = get(self.buf, self.pos).ok_or(SHORT)?;
        self.pos = pos;
        Ok(v)
    }

    fn u32(&mut self) -> Result<u32, Odd> {
        u32::try_from(self.number()?).map_err(|_| "a number is too large for its field")
    }

    fn u16(&mut self) -> Result<u16, Odd> {
        u16::try_from(self.number()?).map_err(|_| "a number is too large for its field")
    }

    fn signed(&mut self) -> Result<i64, Odd> {
        Ok(unzigzag(self.number()?))
    }

    fn text(&mut self) -> Result<String, Odd> {
        let len = usize::try_from(self.number()?).map_err(|_| SHORT)?;
        let end = self.pos.checked_add(len).ok_or(SHORT)?;
        let bytes: &'a [u8] = self.buf.get(self.pos..end).ok_or(SHORT)?;
        self.pos = end;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    #[inline]
    fn time(&mut self, s: &mut State) -> Result<BootNs, Odd> {
        s.time = s.time.wrapping_add(self.signed()?);
        Ok(BootNs(s.time))
    }

    #[inline]
    fn id(&mut self, s: &mut State) -> Result<u64, Odd> {
        s.newest = s.newest.wrapping_add(self.signed()? as u64);
        Ok(s.newest)
    }

    #[inline]
    fn packet(&mut self, s: &mut State, mode: u8) -> Result<(PacketId, u16), Odd> {
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

impl Decoder {
    /// For a payload of `len` bytes.
    pub fn new(len: usize, packet_base: u64) -> Decoder {
        let mut state = State::new();
        state.newest = packet_base;
        Decoder { state, pos: 0, end: len }
    }

    /// Whether all bytes are used up.
    pub fn at_end(&self) -> bool {
        self.pos >= self.end
    }

    /// The next record. `buf` is the payload and [`PAD`] zero bytes.
    #[inline]
    pub fn next(&mut self, buf: &[u8]) -> Result<Step, Odd> {
        if self.pos >= self.end {
            return Err("the chunk holds fewer records than its header says");
        }
        let s = &mut self.state;
        let mut c = Cursor { buf, pos: self.pos };
        let t = c.byte()?;
        let step = if t & tag::CALL != 0 {
            Step::Record(Record::Call(call(&mut c, s, t)?))
        } else {
            other(&mut c, s, t)?
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
    s.time = if t & tag::CALL_BACKWARDS != 0 { s.time.wrapping_sub(step) } else { s.time.wrapping_add(step) };
    let end = s.time;
    let slot = usize::from(s.func) % GUESSES;
    if t & tag::CALL_FUNC != 0 {
        s.guess[slot] = c.u16()?;
    }
    s.func = s.guess[slot];
    let mode = t & 3;
    let (packet, skb_tag) =
        if mode == 0 { (PacketId(s.recent[0].0), s.recent[0].1) } else { c.packet(s, mode)? };
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

fn other(c: &mut Cursor<'_>, s: &mut State, t: u8) -> Result<Step, Odd> {
    let mode_a = t >> tag::MODE_A_SHIFT & 3;
    let mode_b = t >> tag::MODE_B_SHIFT & 3;
    let record = match t & tag::KIND_MASK {
        tag::POINT => {
            let fields = c.byte()?;
            let at = c.time(s)?;
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
            Record::Point(Point { func, ctx, skb_tag, pid, packet, at, len_bytes, ends })
        }
        tag::MEMBER => {
            if mode_a != 0 {
                s.member_func = c.u16()?;
                s.member_entry = s.time.wrapping_add(c.signed()?);
            }
            let packet = PacketId(c.id(s)?);
            Record::Member(Member { func: FuncId(s.member_func), packet, entry: BootNs(s.member_entry) })
        }
        tag::FOOTPRINT => {
            let at = c.time(s)?;
            let (packet, skb_tag) = c.packet(s, mode_a)?;
            let place = c.place(s, mode_b)?;
            let base = usize::from(c.byte()?);
            let old = s.prints.get_mut(base).ok_or("a footprint is coded against one that cannot be")?;
            let print = print(c, *old)?;
            *old = print;
            Record::Footprint(Box::new(FootprintRecord {
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
            let at = c.time(s)?;
            let (packet, skb_tag) = c.packet(s, mode_a)?;
            let Where { ifindex, netns, link_type } = c.place(s, mode_b)?;
            Record::Place(Place { packet, at, ifindex, netns, link_type, skb_tag })
        }
        tag::LINEAGE => {
            let at = c.time(s)?;
            let parent = c.id(s)?;
            let child = if t & 0x40 != 0 { c.id(s)? } else { parent };
            match LineageKind::from_u8(t >> 3 & 7) {
                Some(kind) => {
                    Record::Lineage(Lineage { kind, at, parent: PacketId(parent), child: PacketId(child) })
                }
                None => return Ok(Step::Unknown),
            }
        }
        tag::EVENT => return event(c, s, mode_a, mode_b),
        tag::PROCESS => {
            let at = c.time(s)?;
            let pid = c.u32()?;
            let tgid = if mode_a != 0 { c.u32()? } else { pid };
            Record::Process(Box::new(Process { at, pid, tgid, comm: c.text()? }))
        }
        tag::LOSS => {
            let cause = c.byte()?;
            let to = c.time(s)?;
            let from = BootNs(to.0.wrapping_sub(c.signed()?));
            let cpu = i32::try_from(c.signed()?).map_err(|_| "a number is too large for its field")?;
            let count = c.number()?;
            match LossCause::from_u8(cause) {
                Some(cause) => Record::Loss(Loss { cause, cpu, from, to, count }),
                None => return Ok(Step::Unknown),
            }
        }
        _ => unreachable!("three bits"),
    };
    Ok(Step::Record(record))
}

fn event(c: &mut Cursor<'_>, s: &mut State, packet_mode: u8, task_mode: u8) -> Result<Step, Odd> {
    let kind = c.byte()?;
    let fields = c.byte()?;
    let at = c.time(s)?;
    let packet = match packet_mode {
        event_packet::NONE => PacketId::NONE,
        event_packet::RECENT => PacketId(s.recent[0].0),
        event_packet::DELTA => PacketId(c.id(s)?),
        _ => return Err("an event has an impossible packet mode"),
    };
    let (pid, ctx) = c.task(s, task_mode)?;
    if fields & event_field::A_SAME == 0 {
        s.event_a = if fields & event_field::A_FOLLOWS != 0 { c.number()? } else { 0 };
    }
    if fields & event_field::B_SAME == 0 {
        s.event_b = if fields & event_field::B_FOLLOWS != 0 { c.number()? } else { 0 };
    }
    if fields & event_field::NETNS != 0 {
        s.event_netns = c.u32()?;
    }
    let text = if fields & event_field::TEXT != 0 { c.text()? } else { String::new() };
    let Some(kind) = EventKind::from_u8(kind) else { return Ok(Step::Unknown) };
    let (a, b, netns) = (s.event_a, s.event_b, s.event_netns);
    Ok(Step::Record(Record::Event(Box::new(Event { kind, ctx, pid, at, packet, netns, a, b, text }))))
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
