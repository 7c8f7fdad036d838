//! The part of a packet's headers that does not lie in its header area: many a driver leaves a frame in the page that it was received into, all but its first bytes,
//! until a protocol asks for more. It is copied from the first page to where it belongs behind those bytes.
//!
//! Only where headers are wanted: not of a packet whose transport header is in the header area, which is every one that carries data in pages and was looked at
//! by its protocol, or made by it.

use super::skb::*;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

/// Bytes of a transport header without which nothing is known of it: its ports.
const TRANSPORT: i32 = 8;
/// A page's bytes for each of those of its description: 4096 for 64.
const PAGE_FOR: u32 = 6;

/// Where a packet's pages are, by the kernel's description of its types: in `skb_shared_info`, and in the first of its `frags`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pages {
    /// A byte: how many there are.
    pub count: u32,
    /// The first one's page, offset within it, and length.
    pub page: u32,
    pub offset: u32,
    pub len: u32,
    /// Address of the description of the first page of all, each of which has 64 bytes (`vmemmap`).
    pub first: u64,
}

impl Pages {
    /// Bytes of a `skb_shared_info` that are read.
    pub(super) fn reach(&self) -> u32 {
        (self.page + 8).max(self.offset + 4).max(self.len + 4).max(self.count + 1)
    }
}

/// In: rdi, an `sk_buff`; rsi, its `skb_shared_info`, as far as [`Pages::reach`]; rdx, an entry with the headers of the header area. On to `done` where there is
/// nothing more. Changes rax, rcx, rsi, r8 to r11.
pub(super) fn copy(
    a: &mut CodeAssembler,
    span: u64,
    s: &Shape,
    pages: &Pages,
    direct_map: u64,
    done: CodeLabel,
) -> Result<(), IcedError> {
    let (mut wanted, mut long) = (a.create_label(), a.create_label());
    let skb = |offset: u32| rdi + offset as i32;
    let shared = |offset: u32| rsi + offset as i32;
    a.cmp(dword_ptr(skb(s.data_len)), 0)?;
    a.je(done)?;
    a.cmp(byte_ptr(shared(pages.count)), 0)?;
    a.je(done)?;
    // r8: where the header area's bytes end.
    a.mov(r8, qword_ptr(skb(s.data)))?;
    a.sub(r8, qword_ptr(skb(s.head)))?;
    a.mov(eax, dword_ptr(skb(s.len)))?;
    a.sub(eax, dword_ptr(skb(s.data_len)))?;
    a.add(r8, rax)?;
    a.movzx(ecx, word_ptr(skb(s.transport)))?;
    a.cmp(ecx, UNSET)?;
    a.je(wanted)?;
    a.movzx(eax, word_ptr(skb(s.network)))?;
    a.cmp(ecx, eax)?;
    a.jbe(wanted)?;
    a.add(ecx, TRANSPORT)?;
    a.cmp(r8, rcx)?;
    a.jae(done)?;
    a.set_label(&mut wanted)?;
    a.movzx(ecx, word_ptr(rdx + START))?;
    a.sub(r8, rcx)?;
    a.jb(done)?;
    a.cmp(r8, HEADERS as i32)?;
    a.jae(done)?;
    // The memory of a device has no page of the kernel's: that is marked in the lowest bit.
    a.mov(rax, qword_ptr(shared(pages.page)))?;
    a.test(al, 1)?;
    a.jne(done)?;
    a.mov(r9, pages.first)?;
    a.sub(rax, r9)?;
    a.jb(done)?;
    a.shl(rax, PAGE_FOR)?;
    a.mov(r9, direct_map)?;
    a.add(rax, r9)?;
    a.mov(r9d, dword_ptr(shared(pages.offset)))?;
    a.add(rax, r9)?;
    a.mov(r9d, dword_ptr(shared(pages.len)))?;
    a.mov(ecx, HEADERS as i32)?;
    a.sub(ecx, r8d)?;
    a.cmp(ecx, r9d)?;
    a.cmova(ecx, r9d)?;
    a.test(ecx, ecx)?;
    a.je(done)?;
    a.mov(rsi, rax)?;
    a.push(r8)?;
    a.call(span)?;
    // Flags stay.
    a.pop(r8)?;
    a.jc(done)?;
    a.mov(word_ptr(rdx + PAGED), cx)?;
    a.lea(eax, qword_ptr(r8 + rcx))?;
    a.cmp(word_ptr(rdx + HEADER_LEN), ax)?;
    a.jae(long)?;
    a.mov(word_ptr(rdx + HEADER_LEN), ax)?;
    a.set_label(&mut long)?;
    a.mov(r9, rdi)?;
    a.lea(rdi, qword_ptr(rdx + r8 + HEADER))?;
    a.rep().movsb()?;
    a.mov(rdi, r9)
}
