//! The code that copies an `sk_buff` into the ring: of entries, of returns, of lists, and each function's own few instructions.

use super::code::{FRAME, OWN_ARGUMENT, OWN_CELL, OWN_END, OWN_HOW, OWN_INSTANCE, OWN_LEFT, OWN_NEXT};
use super::code::{OWN_PROBE, OWN_SECOND, OWN_TICKET, Place, Shared, live, saved, whose};
use super::layout::*;
use super::skb::*;
use super::skb_pages;
use super::stub::{Failed, Made, Maker};
use crate::x86::{Displaced, Flow, Register};
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// Packets of one list that are copied: as many as a datagram is cut into at most (`UDP_MAX_SEGMENTS` of include/linux/udp.h).
const LIST_MOST: i32 = 128;

/// Addresses of the code that all functions with packets share.
#[derive(Debug, Clone, Copy, Default)]
pub struct PacketCode {
    entry: u64,
    at_return: u64,
}

/// One register's worth of a frame's word, seen from a routine that a stub called.
fn own(word: i32) -> AsmMemoryOperand {
    qword_ptr(rsp + word + 8)
}

/// The shared code as bytes for the address `start`, and where its parts are.
pub fn packet_code(
    place: &Place,
    shared: Shared,
    shape: &Shape,
    start: u64,
) -> Result<(Vec<u8>, PacketCode), IcedError> {
    let mut code = Vec::new();
    let mut part =
        |make: &mut dyn FnMut(&mut CodeAssembler) -> Result<(), IcedError>| -> Result<u64, IcedError> {
            let at = start + code.len() as u64;
            let mut a = CodeAssembler::new(64)?;
            make(&mut a)?;
            code.extend(a.assemble(at)?);
            code.resize(code.len().next_multiple_of(16), 0xcc);
            Ok(at)
        };
    let span = part(&mut |a| span(a, place, shared.walk))?;
    let direct_map = place.kernel.as_ref().map_or(0, |k| k.direct_map);
    let copy = part(&mut |a| copy(a, span, shape, direct_map))?;
    let here = Here { place, open: shared.open, span, copy };
    let members = part(&mut |a| here.members(a))?;
    let entry = part(&mut |a| here.entry(a, members, shape.head))?;
    let returns = part(&mut |a| here.at_return(a, members))?;
    Ok((code, PacketCode { entry, at_return: returns }))
}

/// In: rsi, an address of the kernel's; ecx, bytes, at most a page. Carry if they cannot be read there. Changes rax, r8 to r11.
fn span(a: &mut CodeAssembler, place: &Place, walk: u64) -> Result<(), IcedError> {
    let (mut bad, mut good) = (a.create_label(), a.create_label());
    if place.kernel.is_some() {
        a.test(rsi, rsi)?;
        a.jns(bad)?;
    }
    a.call(walk)?;
    a.jc(good)?;
    a.mov(eax, esi)?;
    a.and(eax, 4095)?;
    a.add(eax, ecx)?;
    a.cmp(eax, 4097)?;
    a.cmc()?;
    a.jnc(good)?;
    a.push(rsi)?;
    a.lea(rsi, qword_ptr(rsi + rcx - 1))?;
    a.call(walk)?;
    a.pop(rsi)?;
    a.set_label(&mut good)?;
    a.ret()?;
    a.set_label(&mut bad)?;
    a.stc()?;
    a.ret()
}

/// In: rsi, an `sk_buff`; rdx, an entry. Changes all that a stub has saved but rdx.
fn copy(a: &mut CodeAssembler, span: u64, s: &Shape, direct_map: u64) -> Result<(), IcedError> {
    let (mut link, mut network, mut transport, mut started, mut headless, mut sockless, mut done) = (
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
        a.create_label(),
    );
    let skb = |offset: u32| rdi + offset as i32;
    a.mov(qword_ptr(rdx + SKB), rsi)?;
    // What was in this place of the ring before; a packet that cannot be read has no next one.
    a.mov(qword_ptr(rdx + NEXT), 0)?;
    a.mov(ecx, s.size as i32)?;
    a.call(span)?;
    a.jc(done)?;
    a.mov(rdi, rsi)?;
    for (to, from) in [(NEXT, s.next), (DATA, s.data), (DEV, s.dev), (SK, s.sk), (HEAD, s.head)] {
        a.mov(rax, qword_ptr(skb(from)))?;
        a.mov(qword_ptr(rdx + to), rax)?;
    }
    for (to, from) in [(LEN, s.len), (DATA_LEN, s.data_len), (END, s.end), (VLAN, s.vlan), (USERS, s.users)] {
        a.mov(eax, dword_ptr(skb(from)))?;
        a.mov(dword_ptr(rdx + to), eax)?;
    }
    for (n, from) in [s.protocol, s.transport, s.network, s.mac].into_iter().enumerate() {
        a.mov(ax, word_ptr(skb(from)))?;
        a.mov(word_ptr(rdx + OFFSETS + 2 * n), ax)?;
    }
    for (n, from) in s.bits.into_iter().enumerate() {
        a.mov(al, byte_ptr(skb(from)))?;
        a.mov(byte_ptr(rdx + BITS + n), al)?;
    }
    // Headers begin at the link's, if it is right before the network's; at the network's; where only a driver has seen the packet
    // at the link's; else at the transport's.
    a.movzx(eax, word_ptr(skb(s.mac)))?;
    a.movzx(ecx, word_ptr(skb(s.network)))?;
    a.cmp(eax, UNSET)?;
    a.je(network)?;
    a.mov(r8d, ecx)?;
    a.sub(r8d, eax)?;
    a.cmp(r8d, 14)?;
    a.jl(link)?;
    a.cmp(r8d, 64)?;
    a.jle(started)?;
    a.set_label(&mut link)?;
    a.test(ecx, ecx)?;
    a.jne(network)?;
    a.cmp(word_ptr(skb(s.protocol)), 0)?;
    a.jne(started)?;
    a.jmp(transport)?;
    a.set_label(&mut network)?;
    a.mov(eax, ecx)?;
    a.test(ecx, ecx)?;
    a.je(transport)?;
    a.cmp(ecx, UNSET)?;
    a.jne(started)?;
    a.set_label(&mut transport)?;
    a.movzx(eax, word_ptr(skb(s.transport)))?;
    a.cmp(eax, UNSET)?;
    a.je(headless)?;
    a.set_label(&mut started)?;
    a.mov(word_ptr(rdx + START), ax)?;
    a.mov(ecx, dword_ptr(skb(s.end)))?;
    a.sub(ecx, eax)?;
    a.jbe(headless)?;
    a.mov(r8d, HEADERS as i32)?;
    a.cmp(ecx, r8d)?;
    a.cmova(ecx, r8d)?;
    a.mov(word_ptr(rdx + HEADER_LEN), cx)?;
    a.mov(rsi, qword_ptr(skb(s.head)))?;
    a.add(rsi, rax)?;
    // Behind the header area there are always more bytes than are read here.
    a.mov(ecx, HEADERS as i32)?;
    let mut readable = a.create_label();
    a.call(span)?;
    a.jnc(readable)?;
    a.mov(word_ptr(rdx + HEADER_LEN), 0)?;
    a.jmp(headless)?;
    a.set_label(&mut readable)?;
    for n in (0..HEADERS).step_by(8) {
        a.mov(rax, qword_ptr(rsi + n))?;
        a.mov(qword_ptr(rdx + HEADER + n), rax)?;
    }
    a.set_label(&mut headless)?;
    a.mov(eax, dword_ptr(skb(s.end)))?;
    a.mov(rsi, qword_ptr(skb(s.head)))?;
    a.add(rsi, rax)?;
    let mut unshared = a.create_label();
    let reach = s.dataref.max(s.gso_size).max(s.gso_segs) + 4;
    a.mov(ecx, s.pages.map_or(reach, |p| p.reach().max(reach)) as i32)?;
    a.call(span)?;
    a.jc(unshared)?;
    a.mov(eax, dword_ptr(rsi + s.dataref))?;
    a.mov(dword_ptr(rdx + DATAREF), eax)?;
    for (to, from) in [(GSO_SIZE, s.gso_size), (GSO_SEGS, s.gso_segs)] {
        a.mov(ax, word_ptr(rsi + from))?;
        a.mov(word_ptr(rdx + to), ax)?;
    }
    if let Some(pages) = &s.pages {
        skb_pages::copy(a, span, s, pages, direct_map, unshared)?;
    }
    a.set_label(&mut unshared)?;
    a.mov(rsi, qword_ptr(skb(s.sk)))?;
    a.test(rsi, rsi)?;
    a.je(sockless)?;
    a.mov(ecx, s.sk_family.max(s.sk_protocol).max(s.sk_net) as i32 + 8)?;
    a.call(span)?;
    a.jc(sockless)?;
    for (to, from) in [(SK_FAMILY, s.sk_family), (SK_PROTOCOL, s.sk_protocol)] {
        a.mov(ax, word_ptr(rsi + from))?;
        a.mov(word_ptr(rdx + to), ax)?;
    }
    a.mov(rax, qword_ptr(rsi + s.sk_net))?;
    a.mov(qword_ptr(rdx + SK_NET), rax)?;
    a.set_label(&mut sockless)?;
    a.zero_bytes()?;
    a.set_label(&mut done)?;
    a.ret()
}

/// What the routines that a stub calls know of each other.
struct Here<'a> {
    place: &'a Place,
    open: u64,
    span: u64,
    copy: u64,
}

impl Here<'_> {
    fn at(&self, offset: usize) -> i32 {
        (self.place.base + offset as u64) as i32
    }

    /// An entry of `cells` begins: its number and place are in the frame, its address in rdx. On to `full` if there is no room.
    fn begin(
        &self,
        a: &mut CodeAssembler,
        cells: i32,
        kind: u32,
        up: i32,
        full: CodeLabel,
    ) -> Result<(), IcedError> {
        a.mov(r9d, dword_ptr(rsp + OWN_PROBE + up))?;
        a.mov(ecx, cells)?;
        a.call(self.open)?;
        a.jc(full)?;
        a.mov(qword_ptr(rsp + OWN_TICKET + up), r8)?;
        a.mov(qword_ptr(rsp + OWN_CELL + up), rdx)?;
        a.mov(qword_ptr(rdx + HOST), rsi)?;
        a.mov(dword_ptr(rdx + KIND), kind as i32)
    }

    fn publish(&self, a: &mut CodeAssembler, up: i32) -> Result<(), IcedError> {
        a.mov(rdx, qword_ptr(rsp + OWN_CELL + up))?;
        a.mov(rax, qword_ptr(rsp + OWN_TICKET + up))?;
        a.mov(qword_ptr(rdx + EN_SEQUENCE), rax)
    }

    /// In the frame: the first packet, where the list ends; the number of the call's entry is in place of the argument. Called by what a stub called.
    fn members(&self, a: &mut CodeAssembler) -> Result<(), IcedError> {
        let up = 16;
        let (mut next, mut cut, mut end) = (a.create_label(), a.create_label(), a.create_label());
        a.mov(dword_ptr(rsp + OWN_LEFT + up), LIST_MOST)?;
        a.set_label(&mut next)?;
        a.mov(rax, qword_ptr(rsp + OWN_NEXT + up))?;
        a.test(rax, rax)?;
        a.je(end)?;
        a.cmp(rax, qword_ptr(rsp + OWN_END + up))?;
        a.je(end)?;
        a.dec(dword_ptr(rsp + OWN_LEFT + up))?;
        a.js(cut)?;
        self.begin(a, WHOLE, OF_MEMBER, up, end)?;
        a.mov(rax, qword_ptr(rsp + OWN_ARGUMENT + up))?;
        a.mov(qword_ptr(rdx + CALL), rax)?;
        a.mov(rsi, qword_ptr(rsp + OWN_NEXT + up))?;
        a.call(self.copy)?;
        a.mov(rax, qword_ptr(rdx + NEXT))?;
        a.mov(qword_ptr(rsp + OWN_NEXT + up), rax)?;
        self.publish(a, up)?;
        a.jmp(next)?;
        a.set_label(&mut cut)?;
        a.mov(eax, dword_ptr(rsp + OWN_PROBE + up))?;
        a.shl(eax, CONTROL.trailing_zeros())?;
        a.lock().inc(qword_ptr(rax + self.at(CONTROLS + MISSED)))?;
        a.set_label(&mut end)?;
        a.ret()
    }

    /// In the frame: probe, how, argument, second value; no open call.
    fn entry(&self, a: &mut CodeAssembler, members: u64, head: u32) -> Result<(), IcedError> {
        let (mut plain, mut one, mut unclaimed, mut another, mut got, mut full) = (
            a.create_label(),
            a.create_label(),
            a.create_label(),
            a.create_label(),
            a.create_label(),
            a.create_label(),
        );
        let (mut lost, mut bare, mut single, mut done, mut second) =
            (a.create_label(), a.create_label(), a.create_label(), a.create_label(), a.create_label());
        let how = dword_ptr(rsp + OWN_HOW + 8);
        a.test(how, BEHIND as i32)?;
        a.je(plain)?;
        a.mov(eax, how)?;
        a.shr(eax, OFFSET_SHIFT)?;
        a.mov(rsi, own(OWN_ARGUMENT))?;
        a.add(rsi, rax)?;
        a.mov(ecx, 8)?;
        a.call(self.span)?;
        a.jc(done)?;
        a.mov(rax, qword_ptr(rsi))?;
        a.mov(own(OWN_ARGUMENT), rax)?;
        a.set_label(&mut plain)?;
        a.test(how, SECOND as i32)?;
        a.je(one)?;
        a.mov(rsi, own(OWN_SECOND))?;
        a.mov(own(OWN_SECOND), 0)?;
        a.add(rsi, head as i32)?;
        a.mov(ecx, 8)?;
        a.call(self.span)?;
        a.jc(one)?;
        a.mov(rax, qword_ptr(rsi))?;
        a.mov(own(OWN_SECOND), rax)?;
        a.set_label(&mut one)?;
        // Without a packet there is nothing to record, unless one is to come.
        a.test(how, NONE as i32)?;
        a.jne(second)?;
        a.cmp(own(OWN_ARGUMENT), 0)?;
        a.je(done)?;
        a.set_label(&mut second)?;

        a.test(how, 0xff << RETURN_SHIFT)?;
        a.je(unclaimed)?;
        a.mov(r8d, 1)?;
        a.lock().xadd(dword_ptr(self.place.base + SHARED_HINT as u64), r8d)?;
        a.mov(r9d, 64)?;
        a.set_label(&mut another)?;
        a.dec(r9d)?;
        a.js(full)?;
        a.and(r8d, SHARED_COUNT as i32 - 1)?;
        a.mov(edx, r8d)?;
        a.shl(edx, INSTANCE_SIZE.trailing_zeros())?;
        a.add(rdx, self.at(INSTANCES + SHARED_FIRST * INSTANCE_SIZE))?;
        a.inc(r8d)?;
        a.xor(eax, eax)?;
        a.mov(ecx, IN_CLAIMED as i32)?;
        a.lock().cmpxchg(dword_ptr(rdx + IN_STATE), ecx)?;
        a.je(got)?;
        a.jmp(another)?;
        a.set_label(&mut full)?;
        a.mov(eax, dword_ptr(rsp + OWN_PROBE + 8))?;
        a.shl(eax, CONTROL.trailing_zeros())?;
        a.lock().inc(qword_ptr(rax + self.at(CONTROLS + NO_RETURN)))?;
        a.jmp(unclaimed)?;
        a.set_label(&mut got)?;
        a.mov(own(OWN_INSTANCE), rdx)?;
        a.set_label(&mut unclaimed)?;

        self.begin(a, WHOLE, OF_ENTRY, 8, lost)?;
        a.mov(rax, own(OWN_SECOND))?;
        a.mov(qword_ptr(rdx + VALUE), rax)?;
        a.mov(rax, own(FRAME))?;
        a.mov(qword_ptr(rdx + LOCATION), rax)?;
        a.mov(rax, own(OWN_INSTANCE))?;
        a.mov(qword_ptr(rdx + CALL), rax)?;
        a.test(how, (LIST | NONE) as i32)?;
        a.jne(bare)?;
        a.mov(rsi, own(OWN_ARGUMENT))?;
        a.call(self.copy)?;
        a.mov(rax, qword_ptr(rdx + NEXT))?;
        a.mov(own(OWN_NEXT), rax)?;
        a.set_label(&mut bare)?;
        self.publish(a, 8)?;
        a.mov(eax, dword_ptr(rsp + OWN_PROBE + 8))?;
        a.shl(eax, CONTROL.trailing_zeros())?;
        a.lock().inc(qword_ptr(rax + self.at(CONTROLS + HITS)))?;

        let mut unarmed = a.create_label();
        a.mov(rdx, own(OWN_INSTANCE))?;
        a.test(rdx, rdx)?;
        a.je(unarmed)?;
        a.mov(eax, dword_ptr(rsp + OWN_PROBE + 8))?;
        a.mov(dword_ptr(rdx + IN_PROBE), eax)?;
        for (n, word) in [OWN_TICKET, OWN_ARGUMENT, OWN_HOW].into_iter().enumerate() {
            a.mov(rax, own(word))?;
            a.mov(qword_ptr(rdx + IN_SAVED + 8 * n), rax)?;
        }
        whose(a, self.place)?;
        a.lea(r8, qword_ptr(rsp + FRAME + 8))?;
        a.mov(qword_ptr(rdx + IN_PLACE), r8)?;
        a.mov(rax, qword_ptr(r8))?;
        a.mov(qword_ptr(rdx + IN_RETURN), rax)?;
        a.mov(dword_ptr(rdx + IN_STATE), IN_ARMED as i32)?;
        // The trampoline has the number of the open call.
        a.sub(rdx, self.at(INSTANCES))?;
        a.shr(rdx, (INSTANCE_SIZE / TRAMPOLINE).trailing_zeros())?;
        a.add(rdx, self.at(TRAMPOLINES))?;
        a.mov(qword_ptr(r8), rdx)?;
        a.set_label(&mut unarmed)?;

        let (mut chain, mut follow) = (a.create_label(), a.create_label());
        a.mov(rsi, own(OWN_ARGUMENT))?;
        a.test(how, CHAIN as i32)?;
        a.jne(chain)?;
        a.test(how, LIST as i32)?;
        a.je(single)?;
        a.mov(own(OWN_END), rsi)?;
        a.mov(ecx, 8)?;
        a.call(self.span)?;
        a.jc(done)?;
        a.mov(rax, qword_ptr(rsi))?;
        a.mov(own(OWN_NEXT), rax)?;
        a.jmp(follow)?;
        // A chain ends with nothing, and its first was copied.
        a.set_label(&mut chain)?;
        a.cmp(own(OWN_NEXT), 0)?;
        a.je(single)?;
        a.mov(own(OWN_END), 0)?;
        a.set_label(&mut follow)?;
        a.mov(rax, own(OWN_TICKET))?;
        a.mov(own(OWN_ARGUMENT), rax)?;
        a.call(members)?;
        a.set_label(&mut single)?;
        a.ret()?;
        a.set_label(&mut lost)?;
        a.mov(rdx, own(OWN_INSTANCE))?;
        a.test(rdx, rdx)?;
        a.je(done)?;
        a.mov(dword_ptr(rdx + IN_STATE), IN_FREE as i32)?;
        a.set_label(&mut done)?;
        a.ret()
    }

    /// In the frame: the open call.
    fn at_return(&self, a: &mut CodeAssembler, members: u64) -> Result<(), IcedError> {
        let (mut short, mut begun, mut result, mut copied, mut end) =
            (a.create_label(), a.create_label(), a.create_label(), a.create_label(), a.create_label());
        let way = |a: &mut CodeAssembler| -> Result<(), IcedError> {
            a.mov(eax, dword_ptr(rsp + OWN_HOW + 8))?;
            a.shr(eax, RETURN_SHIFT)?;
            a.and(eax, 0xff)
        };
        let returned = qword_ptr(rsp + saved(Register::Rax).unwrap_or(0) + 8);
        a.mov(rdx, own(OWN_INSTANCE))?;
        for (n, word) in [OWN_NEXT, OWN_ARGUMENT, OWN_HOW].into_iter().enumerate() {
            a.mov(rax, qword_ptr(rdx + IN_SAVED + 8 * n))?;
            a.mov(own(word), rax)?;
        }
        a.mov(eax, dword_ptr(rdx + IN_PROBE))?;
        a.and(eax, PROBES as i32 - 1)?;
        a.mov(dword_ptr(rsp + OWN_PROBE + 8), eax)?;
        way(a)?;
        a.cmp(eax, AtReturn::Time as i32)?;
        a.jbe(short)?;
        self.begin(a, WHOLE, OF_RETURN, 8, end)?;
        a.jmp(begun)?;
        a.set_label(&mut short)?;
        self.begin(a, SHORT, OF_RETURN, 8, end)?;
        a.set_label(&mut begun)?;
        a.mov(rax, own(OWN_NEXT))?;
        a.mov(qword_ptr(rdx + CALL), rax)?;
        a.mov(rax, returned)?;
        a.mov(qword_ptr(rdx + VALUE), rax)?;
        a.mov(rsi, rax)?;
        way(a)?;
        a.cmp(eax, AtReturn::Time as i32)?;
        a.jbe(copied)?;
        a.cmp(eax, AtReturn::Argument as i32)?;
        a.jne(result)?;
        a.mov(rsi, own(OWN_ARGUMENT))?;
        a.set_label(&mut result)?;
        a.call(self.copy)?;
        a.mov(rax, qword_ptr(rdx + NEXT))?;
        a.mov(own(OWN_SECOND), rax)?;
        a.set_label(&mut copied)?;
        self.publish(a, 8)?;
        way(a)?;
        a.cmp(eax, AtReturn::Results as i32)?;
        a.jne(end)?;
        a.mov(rax, own(OWN_NEXT))?;
        a.mov(own(OWN_ARGUMENT), rax)?;
        a.mov(own(OWN_END), 0)?;
        a.mov(rax, own(OWN_SECOND))?;
        a.mov(own(OWN_NEXT), rax)?;
        a.call(members)?;
        a.set_label(&mut end)?;
        a.ret()
    }
}

impl Maker<'_> {
    /// The code of a probe at the entry of a function that has a packet, for the address `at`.
    pub fn packet_site(
        &self,
        at: u64,
        displaced: &Displaced,
        id: usize,
        function: &Function,
        code: PacketCode,
    ) -> Result<Made, Failed> {
        let mut all = Vec::new();
        let mut back = displaced.next();
        if displaced.flow != Flow::Nothing {
            all = displaced.elsewhere(at, back)?;
            back = at;
        }
        all.resize(all.len().next_multiple_of(16), 0xcc);
        let entry = at + all.len() as u64;
        let mut a = CodeAssembler::new(64)?;
        let mut off = a.create_label();
        a.cmp(dword_ptr(self.control(id, ENABLED)), 1)?;
        a.jne(off)?;
        a.lea(rsp, qword_ptr(rsp - 8))?;
        a.lea(rsp, qword_ptr(rsp - 8))?;
        self.push_registers(&mut a)?;
        for (word, register) in [(OWN_ARGUMENT, function.argument), (OWN_SECOND, function.second)] {
            match saved(register) {
                Some(offset) => {
                    a.mov(rax, qword_ptr(rsp + offset))?;
                    a.mov(qword_ptr(rsp + word), rax)?;
                }
                None => a.mov(qword_ptr(rsp + word), live(register))?,
            }
        }
        a.mov(dword_ptr(rsp + OWN_PROBE), id as i32)?;
        a.mov(qword_ptr(rsp + OWN_HOW), function.how.word() as i32)?;
        a.mov(qword_ptr(rsp + OWN_INSTANCE), 0)?;
        a.call(code.entry)?;
        self.pop_frame(&mut a)?;
        // At a function's entry nobody looks at flags.
        a.lea(rsp, qword_ptr(rsp + 16))?;
        a.set_label(&mut off)?;
        a.zero_bytes()?;
        let made = Self::leave(&mut a, entry, back)?;
        all.extend(&made.code);
        Ok(Made { code: all, ..made })
    }

    /// The code that runs when any of these functions returns.
    pub fn packet_return(&self, at: u64, code: PacketCode) -> Result<Vec<u8>, Failed> {
        let mut a = CodeAssembler::new(64)?;
        let mut done = a.create_label();
        self.begin_return(&mut a)?;
        a.mov(ecx, dword_ptr(rax + IN_PROBE))?;
        a.and(ecx, PROBES as i32 - 1)?;
        a.shl(ecx, CONTROL.trailing_zeros())?;
        a.cmp(dword_ptr(rcx + (self.place.base + (CONTROLS + ENABLED) as u64) as i32), 0)?;
        a.je(done)?;
        a.call(code.at_return)?;
        a.set_label(&mut done)?;
        self.end_return(&mut a)?;
        Ok(a.assemble(at)?)
    }
}
