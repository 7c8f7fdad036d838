//! What the guest's kernel says of its types: where members of an `sk_buff` are, and which functions have packets. The choice is that of
//! `kpat record` ([`kpat_probe::choose`]), made over the guest's types and symbols.

use crate::error::{Error, Result};
use crate::world::is_kernel;
use kpat_btf::{Btf, kind};
use kpat_guest::mailbox::skb::{AtReturn, Function, How, Pages, Shape};
use kpat_guest::x86::Register;
use kpat_guest::{Guest, Symbols};
use kpat_probe::choose::{Candidate, Via};
use kpat_probe::kernel;
use kpat_probe::roles::role;
use std::sync::Arc;

const MOST_MODULES: usize = 4096;
const MOST_BTF: u32 = 64 << 20;

/// Bits of the bytes that [`Shape::bits`] names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bits {
    pub cloned: u8,
    pub nohdr: u8,
    /// A kernel has the tag's presence in a bit of its own (up to 6.1).
    pub vlan_present: Option<u8>,
}

/// Where members are in the guest's structures.
pub fn shape(guest: &Guest, symbols: &Symbols) -> Result<(Shape, Bits)> {
    let btf = symbols.btf().ok_or_else(|| {
        Error::Unsupported(
            "the guest's kernel does not describe its types (BTF), without which packets cannot be read"
                .into(),
        )
    })?;
    let id = btf.find(kind::STRUCT, "sk_buff");
    let at = |path: &str| -> Result<u32> {
        let at = symbols.offset(path)?;
        // All within what one look at a page or two covers.
        u32::try_from(at)
            .ok()
            .filter(|a| *a < 4000)
            .ok_or_else(|| Error::Unsupported(format!("{path} is at {at:#x}")))
    };
    let skb = |name: &str| at(&format!("sk_buff.{name}"));
    let bit = |name: &str| id.and_then(|id| btf.bit_of(id, name));
    let need = |name: &str| {
        bit(name).ok_or_else(|| Error::Unsupported(format!("the guest's sk_buff has no {name}")))
    };
    let (cloned, nohdr, present) = (need("cloned")?, need("nohdr")?, bit("vlan_present"));
    let vlan = skb("vlan_all").or_else(|_| skb("vlan_tci"))?;
    let mut s = Shape {
        next: skb("next")?,
        dev: skb("dev")?,
        sk: skb("sk")?,
        head: skb("head")?,
        data: skb("data")?,
        len: skb("len")?,
        data_len: skb("data_len")?,
        end: skb("end")?,
        protocol: skb("protocol")?,
        transport: skb("transport_header")?,
        network: skb("network_header")?,
        mac: skb("mac_header")?,
        users: skb("users.refs.counter")?,
        vlan,
        bits: [cloned.0, nohdr.0, present.map_or(cloned.0, |p| p.0)],
        sk_family: at("sock.__sk_common.skc_family")?,
        sk_protocol: at("sock.sk_protocol")?,
        sk_net: at("sock.__sk_common.skc_net.net")?,
        dataref: at("skb_shared_info.dataref")?,
        gso_size: at("skb_shared_info.gso_size")?,
        gso_segs: at("skb_shared_info.gso_segs")?,
        pages: pages(guest, symbols, btf),
        size: 0,
    };
    let words = [
        s.next,
        s.dev,
        s.sk,
        s.head,
        s.data,
        s.len,
        s.data_len,
        s.end,
        s.mac,
        s.network,
        s.transport,
        s.users,
        s.vlan,
    ];
    s.size = words.into_iter().chain(s.bits).max().unwrap_or(0) + 8;
    Ok((s, Bits { cloned: cloned.1, nohdr: nohdr.1, vlan_present: present.map(|p| p.1) }))
}

/// Where a packet's pages are; `None`: this kernel has them in another way.
fn pages(guest: &Guest, symbols: &Symbols, btf: &Btf) -> Option<Pages> {
    let usual = match guest.memory().kernel_space().levels {
        5 => 0xffd4_0000_0000_0000,
        _ => 0xffff_ea00_0000_0000,
    };
    let placed = symbols.address("vmemmap_base").and_then(|at| guest.memory().u64_at(at).ok());
    let first = placed.filter(|at| is_kernel(*at)).unwrap_or(usual);
    pages_of(btf, first).filter(|p| p.page.max(p.offset).max(p.len).max(p.count) < 1000)
}

/// By the types alone; a page's number is that of its description, of which 64 bytes is the usual size.
fn pages_of(btf: &Btf, first: u64) -> Option<Pages> {
    let shared = btf.find(kind::STRUCT, "skb_shared_info")?;
    let (at, array) = btf.path(shared, "frags")?;
    let element = btf.strip(btf.array(btf.strip(array))?.0);
    let member = |names: [&str; 2]| names.iter().find_map(|n| btf.member_offset(element, n));
    let described = btf.find(kind::STRUCT, "page").map(|id| btf.size_of(id));
    (described == Some(64)).then_some(())?;
    // A `bio_vec` before 6.9.
    Some(Pages {
        count: btf.member_offset(shared, "nr_frags")?,
        page: at + member(["netmem", "bv_page"])?,
        offset: at + member(["offset", "bv_offset"])?,
        len: at + member(["len", "bv_len"])?,
        first,
    })
}

/// The types of the kernel and of its modules, which it has in a list of its own.
pub fn all(guest: &Guest) -> Result<Vec<Arc<Btf>>> {
    let symbols = guest.symbols()?;
    let memory = guest.memory();
    let read = |at: u64, stop: u64| -> Option<Arc<Btf>> {
        let mut bytes =
            vec![0; usize::try_from(stop.checked_sub(at)?).ok().filter(|n| *n <= MOST_BTF as usize)?];
        memory.read(at, &mut bytes).ok()?;
        Btf::parse("vmlinux", &bytes, None).ok().map(Arc::new)
    };
    let whole = symbols.address("__start_BTF").zip(symbols.address("__stop_BTF"));
    let Some(base) = whole.and_then(|(from, to)| read(from, to)) else {
        return Err(Error::Unsupported("the guest's kernel does not describe its types (BTF)".into()));
    };
    let mut all = vec![base.clone()];
    let offset = |path: &str| symbols.offset(path);
    let (Some(list), Ok(link), Ok(module), Ok(btf), Ok(data), Ok(size), Ok(name)) = (
        symbols.address("btf_modules"),
        offset("btf_module.list"),
        offset("btf_module.module"),
        offset("btf_module.btf"),
        offset("btf.data"),
        offset("btf.data_size"),
        offset("module.name"),
    ) else {
        return Ok(all);
    };
    let mut next = memory.u64_at(list)?;
    while next != list && all.len() < MOST_MODULES {
        let entry = next.wrapping_sub(link);
        let one = || -> kpat_guest::Result<Option<Btf>> {
            let of = memory.u64_at(entry.wrapping_add(btf))?;
            let mut bytes = vec![0; memory.u32_at(of.wrapping_add(size))?.min(MOST_BTF) as usize];
            memory.read(memory.u64_at(of.wrapping_add(data))?, &mut bytes)?;
            let name = memory.string_at(memory.u64_at(entry.wrapping_add(module))?.wrapping_add(name), 64)?;
            Ok(Btf::parse(&String::from_utf8_lossy(&name), &bytes, Some(base.clone())).ok())
        };
        // A module may go while it is looked at.
        all.extend(one().ok().flatten().map(Arc::new));
        let Ok(follows) = memory.u64_at(next) else { break };
        next = follows;
    }
    Ok(all)
}

/// The guest's symbols as the choice of functions asks for them.
pub fn functions(symbols: &Symbols) -> kernel::Symbols {
    let table = symbols.table();
    let functions = table.iter().filter(|s| matches!(s.kind, 't' | 'T' | 'w' | 'W'));
    kernel::Symbols::of(functions.map(|s| (s.address, s.name)))
}

/// How a function's packet is copied; `logged`: are its calls wanted, or only what it does to packets?
pub fn function(c: &Candidate, logged: bool) -> Function {
    let (argument, behind, list) = match c.via {
        Via::Argument(n) => (n, None, false),
        Via::Pointer(n) => (n, Some(0), false),
        Via::Carrier { arg, offset, .. } => (arg, Some(offset as u16), false),
        Via::List(n) => (n, None, true),
        Via::Return | Via::Within(_) => (0, None, false),
    };
    let has = |roles: u16| c.roles & roles != 0;
    let at_return = if has(role::EXPAND) {
        AtReturn::Argument
    } else if has(role::SEGMENT) {
        AtReturn::Results
    } else if has(role::ALLOC | role::RETURN | role::CLONE | role::COPY | role::FRAGMENT) {
        AtReturn::Result
    } else if logged {
        AtReturn::Time
    } else {
        AtReturn::Nothing
    };
    let register = |n: u8| Register::argument(n.into()).unwrap_or(Register::Rdi);
    Function {
        argument: register(argument),
        second: Register::Rsi,
        how: How {
            behind,
            list,
            // It is given those that a queue gave up together, and what a packet was cut into.
            chain: has(role::LINK),
            none: has(role::RETURN),
            second_is_packet: has(role::GRO),
            at_return,
        },
    }
}

#[cfg(test)]
#[expect(clippy::expect_used, reason = "a test")]
mod tests {
    use super::*;

    /// Other kernels are guests of the lab's, where fragments in pages are joined with what was sent.
    #[test]
    fn pages_are_where_the_types_say() {
        let all = Btf::running().expect("this kernel has BTF");
        let p = pages_of(&all[0], 1 << 63).expect("and pages");
        let begins = p.page.min(p.offset).min(p.len);
        let mut members = [p.page - begins, p.offset - begins, p.len - begins];
        members.sort_unstable();
        assert_eq!(members, [0, 8, 12], "an address and two numbers");
        assert!(p.page.is_multiple_of(8) && p.count < begins, "{p:?}");
    }
}
