//! Which functions handle a packet, and how the packet is reached from their arguments. KPAT searched the source; we
//! search BTF.
//!
//! *Direct*: takes `sk_buff *` or `sk_buff **`, or returns one. *Carrier*: takes a pointer to a structure of at most 256
//! bytes with exactly one plain `sk_buff *` member: from it one load leads to one packet. The full closure over nested
//! structures is computed for the paper's table only ([`statistics`]): on today's kernels it ends in half of all
//! functions, control code mostly.

mod via;

use crate::btf::{Btf, kind};
use crate::roles::{role, role_of, settle};
use kpat_model::functions::{self, Never};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

pub use via::{Value, Via};

/// Tracepoints' own functions: the places where they stand are probed, not they.
const GLUE: &[&str] = &[
    "__bpf_trace_",
    "__probestub_",
    "__traceiter_",
    "trace_event_raw_",
    "perf_trace_",
    "trace_raw_output_",
    "bpf_prog_",
];

/// Structures that carry a netlink message, not a packet.
const NOT_PACKETS: &[&str] = &[
    "netlink_callback",
    "audit_buffer",
    "gnet_dump",
    "sk_buff_head",
    "genl_info",
    "nlmsg_perm",
    "net_generic",
];

/// A function that could be probed.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub name: String,
    /// Empty: vmlinux.
    pub module: String,
    pub btf_id: u32,
    pub via: Via,
    pub roles: u16,
    /// More than six arguments, a structure by value or variable arguments: typed mechanisms refuse it.
    pub odd_arguments: bool,
    /// Entered with the packet as the probe before saw it (see `SETTLED`).
    pub settled: bool,
    /// Its returns are not recorded ([`crate::entries`]).
    pub entry_only: bool,
}

impl Candidate {
    /// The attach cookie of bpf/include/wire.h.
    pub fn cookie(&self, func: u16) -> u64 {
        let mut c = func as u64 & 0x1fff | (self.via.argument().unwrap_or(7) as u64) << 14;
        match self.via {
            Via::Pointer(_) => c |= 1 << 17,
            Via::Carrier { offset, .. } => c |= 1 << 17 | (offset as u64 & 0xfff) << 18,
            _ => {}
        }
        c | (self.special() as u64) << 13 | (self.settled as u64) << 30 | (self.roles as u64) << 32
    }

    /// It has no packet of its own.
    pub fn is_within(&self) -> bool {
        matches!(self.via, Via::Within(_))
    }

    /// `KP_COOKIE_SPECIAL`: more is done than to find the packet behind an argument.
    pub fn special(&self) -> bool {
        self.roles != 0 || matches!(self.via, Via::Pointer(_) | Via::Carrier { .. })
    }
}

/// Everything that handles a packet, by BTF alone, and what had to be left out with the reason.
#[derive(Default)]
pub struct Found {
    pub candidates: Vec<Candidate>,
    pub left_out: Vec<(String, String)>,
    /// All functions in BTF.
    pub functions: usize,
}

/// The one packet of a structure.
struct Carried {
    member: String,
    offset: u32,
    /// See [`acts_alone`].
    may_be_gone: bool,
}

/// A structure with a timer or deferred work does things while no packet is handled, as a sniffer's ring that ends a block: the packet that it
/// last pointed to may be gone by then, and nothing in the structure says so.
fn acts_alone(b: &Btf, id: u32, depth: u32) -> bool {
    const ACTORS: [&str; 4] = ["timer_list", "hrtimer", "work_struct", "tasklet_struct"];
    b.members(id).iter().any(|m| {
        let inner = b.strip(m.type_id);
        b.get(inner).is_some_and(|t| matches!(t.kind, kind::STRUCT | kind::UNION))
            && (ACTORS.contains(&b.name_of(inner)) || (depth < 4 && acts_alone(b, inner, depth + 1)))
    })
}

fn carriers(btfs: &[Arc<Btf>]) -> HashMap<String, Carried> {
    let mut out = HashMap::new();
    for b in btfs {
        for id in b.own_ids() {
            let Some(t) = b.get(id) else { continue };
            if t.kind != kind::STRUCT || t.size_or_type > 256 || t.name_off == 0 {
                continue;
            }
            let name = b.str(t.name_off);
            if NOT_PACKETS.contains(&name) || name == "sk_buff" {
                continue;
            }
            let hits: Vec<_> = skb_members(b, id, 0, 0);
            if let [(member, offset)] = &hits[..] {
                out.entry(name.to_string()).or_insert_with(|| Carried {
                    member: member.clone(),
                    offset: *offset,
                    may_be_gone: acts_alone(b, id, 0),
                });
            }
        }
    }
    out
}

/// Plain `sk_buff *` members, anonymous inner structures flattened: (name, byte offset).
fn skb_members(b: &Btf, id: u32, base: u32, depth: u32) -> Vec<(String, u32)> {
    let mut out = Vec::new();
    for m in b.members(id) {
        let at = base + m.bit_offset / 8;
        let inner = b.strip(m.type_id);
        let (levels, target) = b.pointee(m.type_id);
        if levels == 1 && b.name_of(target) == "sk_buff" {
            out.push((b.str(m.name_off).to_string(), at));
        } else if b.str(m.name_off).is_empty()
            && depth < 4
            && b.get(inner).is_some_and(|t| matches!(t.kind, kind::STRUCT | kind::UNION))
        {
            out.extend(skb_members(b, inner, at, depth + 1));
        }
    }
    out
}

/// All candidates of the given BTF objects. `deep`: closure depth beyond carriers is not for probing, see [`statistics`].
pub fn candidates(btfs: &[Arc<Btf>]) -> Found {
    let carriers = carriers(btfs);
    let mut found = Found::default();
    let mut seen: HashMap<(String, String), usize> = HashMap::new();
    for b in btfs {
        let module = if b.name == "vmlinux" { String::new() } else { b.name.clone() };
        for id in b.own_ids() {
            let Some(t) = b.get(id) else { continue };
            if t.kind != kind::FUNC {
                continue;
            }
            found.functions += 1;
            let name = b.str(t.name_off);
            let Some(proto) = b.get(t.size_or_type) else { continue };
            let params = b.params(t.size_or_type);
            let mut via = None;
            let mut stack_argument = false;
            for (i, (_, ty)) in params.iter().enumerate() {
                let (levels, target) = b.pointee(*ty);
                let target = b.name_of(target);
                let hit = match (levels, target) {
                    (1, "sk_buff") => Some(Via::Argument(i as u8)),
                    (2, "sk_buff") => Some(Via::Pointer(i as u8)),
                    _ => None,
                };
                if let Some(v) = hit {
                    if i < 6 {
                        via = Some(v);
                        break;
                    }
                    stack_argument = true;
                }
            }
            if via.is_none() && is_list_function(name) {
                let list = params.iter().take(6).position(|(_, ty)| {
                    let (levels, target) = b.pointee(*ty);
                    levels == 1 && b.name_of(target) == "list_head"
                });
                via = list.map(|i| Via::List(i as u8));
            }
            if via.is_none() {
                let carried = params.iter().take(6).enumerate().find_map(|(i, (_, ty))| {
                    let (levels, target) = b.pointee(*ty);
                    let structure = b.name_of(target);
                    Some((i as u8, structure, (levels == 1).then(|| carriers.get(structure))??))
                });
                match carried {
                    Some((_, structure, c)) if c.may_be_gone => {
                        let why = format!(
                            "{structure}.{} may point to a packet that is gone: it acts by timers or deferred work",
                            c.member
                        );
                        found.left_out.push((name.into(), why));
                        continue;
                    }
                    Some((arg, structure, c)) => {
                        via = Some(Via::Carrier {
                            arg,
                            structure: structure.into(),
                            member: c.member.clone(),
                            offset: c.offset,
                        });
                    }
                    None => {}
                }
            }
            if via.is_none() {
                let (levels, target) = b.pointee(proto.size_or_type);
                if levels == 1 && b.name_of(target) == "sk_buff" {
                    via = Some(Via::Return);
                }
            }
            if via.is_some() && is_glue(name) {
                found.left_out.push((name.into(), "glue of a tracepoint".into()));
                continue;
            }
            let never = functions::of(name).and_then(|f| f.never);
            if let Some(never) = never.filter(|_| via.is_some()) {
                let why = match never {
                    Never::Freed => "called after the packet's data were given back",
                    Never::Caller => "a probe would hide the place of the drop; the drop event stands for it",
                };
                found.left_out.push((name.into(), why.into()));
                continue;
            }
            let Some(via) = via else {
                if stack_argument {
                    found.left_out.push((
                        name.into(),
                        "the packet is the seventh argument or later, on the stack".into(),
                    ));
                }
                continue;
            };
            let mut roles = role_of(name);
            match via {
                Via::Return => roles |= role::RETURN,
                Via::List(_) => roles |= role::LIST,
                _ => {}
            }
            // __alloc_skb and its like return the skb even where they also take one
            let odd_arguments = odd_arguments(b, t.size_or_type);
            let c = Candidate {
                name: name.into(),
                module: module.clone(),
                btf_id: id,
                via,
                roles,
                odd_arguments,
                settled: false,
                entry_only: false,
            };
            match seen.entry((module.clone(), name.to_string())) {
                std::collections::hash_map::Entry::Vacant(v) => {
                    v.insert(found.candidates.len());
                    found.candidates.push(c);
                }
                std::collections::hash_map::Entry::Occupied(_) => {
                    found.left_out.push((name.into(), "two functions of that name in BTF".into()));
                }
            }
        }
    }
    found
}

/// A function of a tracepoint.
pub(crate) fn is_glue(name: &str) -> bool {
    GLUE.iter().any(|g| name.starts_with(g))
}

/// See [`Candidate::odd_arguments`].
pub(crate) fn odd_arguments(b: &Btf, proto: u32) -> bool {
    let params = b.params(proto);
    let structure =
        |ty: u32| b.get(b.strip(ty)).is_some_and(|t| matches!(t.kind, kind::STRUCT | kind::UNION));
    params.len() > 6
        || params.iter().any(|(_, ty)| *ty == 0 || structure(*ty))
        || b.get(proto).is_some_and(|p| structure(p.size_or_type))
}

fn is_list_function(name: &str) -> bool {
    ["netif_receive_skb_list", "rcv_list", "list_rcv", "sublist_rcv", "gro_normal_list"]
        .iter()
        .any(|p| name.contains(p))
}

/// What will be probed.
#[derive(Default)]
pub struct Chosen {
    pub functions: Vec<Candidate>,
    /// Wanted and impossible: name and reason.
    pub left_out: Vec<(String, String)>,
}

/// Narrows candidates to what the selection wants and the kernel can trace. Functions that only tracking needs are
/// added with their roles; `logged` says of each whether its calls are wanted.
pub fn choose(
    found: &Found,
    selection: &crate::profile::Selection,
    traceable: Option<&HashMap<String, u32>>,
    symbols: &crate::kernel::Symbols,
) -> (Chosen, Vec<bool>) {
    let mut out = Chosen::default();
    let mut logged = Vec::new();
    for (name, reason) in &found.left_out {
        if selection.wants(name, "") {
            out.left_out.push((name.clone(), reason.clone()));
        }
    }
    let mut refused: HashSet<String> = HashSet::new();
    for c in &found.candidates {
        let wanted = selection.wants(&c.name, &c.module);
        let tracking = role::tracks(c.roles);
        if !wanted && !tracking {
            continue;
        }
        let reason = match traceable {
            Some(t) => match t.get(&c.name) {
                None if symbols.count(&c.name) == 0 => Some("inlined everywhere: no such symbol"),
                None => Some("notrace, or an out-of-line copy of an inline function"),
                Some(1) => None,
                Some(_) => Some("the name is ambiguous"),
            },
            None => match symbols.count(&c.name) {
                0 => Some("inlined everywhere: no such symbol"),
                1 => None,
                _ => Some("the name is ambiguous"),
            },
        };
        match reason {
            Some(r) => {
                if wanted && refused.insert(c.name.clone()) {
                    out.left_out.push((c.name.clone(), r.into()));
                }
            }
            None => {
                out.functions.push(c.clone());
                logged.push(wanted);
            }
        }
    }
    settle(&mut out.functions, found);
    for pattern in &selection.add {
        if !pattern.contains(['*', '?']) && !found.candidates.iter().any(|c| c.name == *pattern) {
            let why = if symbols.count(pattern) > 0 {
                "it takes and returns no packet"
            } else {
                "no such function in this kernel"
            };
            out.left_out.push((pattern.clone(), why.into()));
        }
    }
    (out, logged)
}

/// The table of KPAT's paper for this kernel.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Statistics {
    pub functions: usize,
    pub aliases: usize,
    pub takes_skb: usize,
    pub takes_skb_pointer: usize,
    pub returns_skb: usize,
    pub direct: usize,
    pub carrier_structures: usize,
    pub carrier_functions: usize,
    /// Per depth: structures that embed a packet or one of the previous depth, and functions reached in all.
    pub embedded: Vec<(usize, usize)>,
    /// The same through pointers too.
    pub pointed: Vec<(usize, usize)>,
}

/// Computes the whole closure to `depth`.
pub fn statistics(btfs: &[Arc<Btf>], depth: usize) -> Statistics {
    let mut s = Statistics::default();
    struct Func {
        direct: bool,
        types: Vec<String>,
    }
    let mut funcs: HashMap<(String, String), Func> = HashMap::new();
    // structure -> structures and packets it contains, and (second) those it also points to
    let mut embeds: BTreeMap<String, HashSet<String>> = BTreeMap::new();
    let mut points: BTreeMap<String, HashSet<String>> = BTreeMap::new();
    for b in btfs {
        for id in b.own_ids() {
            let Some(t) = b.get(id) else { continue };
            match t.kind {
                kind::TYPEDEF => {
                    let (_, target) = b.pointee(t.size_or_type);
                    s.aliases += (b.name_of(target) == "sk_buff") as usize;
                }
                kind::STRUCT | kind::UNION if t.name_off != 0 => {
                    let name = b.str(t.name_off).to_string();
                    if name != "sk_buff" {
                        let (mut e, mut p) = (HashSet::new(), HashSet::new());
                        contents(b, id, 0, &mut e, &mut p);
                        embeds.entry(name.clone()).or_default().extend(e);
                        points.entry(name).or_default().extend(p);
                    }
                }
                kind::FUNC => {
                    let params = b.params(t.size_or_type);
                    let (mut skb, mut skb2) = (false, false);
                    let mut types = Vec::new();
                    for (_, ty) in &params {
                        let (levels, target) = b.pointee(*ty);
                        match (levels, b.name_of(target)) {
                            (1, "sk_buff") => skb = true,
                            (2, "sk_buff") => skb2 = true,
                            (_, n) if !n.is_empty() => types.push(n.to_string()),
                            _ => {}
                        }
                    }
                    let ret = b.get(t.size_or_type).is_some_and(|p| {
                        let (levels, target) = b.pointee(p.size_or_type);
                        levels == 1 && b.name_of(target) == "sk_buff"
                    });
                    let key = (b.name.clone(), b.str(t.name_off).to_string());
                    if let std::collections::hash_map::Entry::Vacant(v) = funcs.entry(key) {
                        s.takes_skb += skb as usize;
                        s.takes_skb_pointer += skb2 as usize;
                        s.returns_skb += ret as usize;
                        v.insert(Func { direct: skb || skb2 || ret, types });
                    }
                }
                _ => {}
            }
        }
    }
    s.functions = funcs.len();
    s.direct = funcs.values().filter(|f| f.direct).count();
    let carriers = carriers(btfs);
    s.carrier_structures = carriers.len();
    s.carrier_functions =
        funcs.values().filter(|f| !f.direct && f.types.iter().any(|t| carriers.contains_key(t))).count();
    let reach = |edges: &dyn Fn(&str, &HashSet<String>) -> bool| {
        // depth 1: holds a packet in any form; depth n: holds a structure of depth n-1
        let mut reached: HashSet<String> =
            points.iter().filter(|(_, p)| p.contains("sk_buff")).map(|(n, _)| n.clone()).collect();
        let mut rows = Vec::new();
        for d in 0..depth {
            if d > 0 {
                let more: Vec<String> =
                    embeds.keys().filter(|n| !reached.contains(*n) && edges(n, &reached)).cloned().collect();
                if more.is_empty() {
                    break;
                }
                reached.extend(more);
            }
            let functions =
                funcs.values().filter(|f| f.direct || f.types.iter().any(|t| reached.contains(t))).count();
            rows.push((reached.len(), functions));
        }
        rows
    };
    s.embedded = reach(&|n, r| embeds[n].iter().any(|t| r.contains(t)));
    s.pointed = reach(&|n, r| points[n].iter().chain(&embeds[n]).any(|t| r.contains(t)));
    s
}

/// Names of what a structure embeds, and of what it embeds or points to; "sk_buff" counts as pointed to in any form.
pub(crate) fn contents(
    b: &Btf,
    id: u32,
    depth: u32,
    embeds: &mut HashSet<String>,
    points: &mut HashSet<String>,
) {
    for m in b.members(id) {
        let mut ty = b.strip(m.type_id);
        while let Some((element, _)) = b.get(ty).filter(|t| t.kind == kind::ARRAY).and_then(|_| b.array(ty)) {
            ty = b.strip(element);
        }
        let (levels, target) = b.pointee(ty);
        let name = b.name_of(target);
        if levels == 0 && b.get(target).is_some_and(|t| matches!(t.kind, kind::STRUCT | kind::UNION)) {
            if name.is_empty() {
                if depth < 8 {
                    contents(b, target, depth + 1, embeds, points);
                }
            } else {
                embeds.insert(name.to_string());
                points.insert(name.to_string());
            }
        } else if levels > 0 && !name.is_empty() {
            points.insert(name.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_kernel() {
        let btfs = Btf::running().expect("BTF");
        let f = candidates(&btfs);
        let get = |n: &str| f.candidates.iter().find(|c| c.name == n);
        assert_eq!(get("ip_rcv").expect("ip_rcv").via, Via::Argument(0));
        assert_eq!(get("ip_output").expect("ip_output").via, Via::Argument(2));
        assert_eq!(get("skb_release_data").expect("free").roles, role::FREE);
        assert!(get("__alloc_skb").is_some_and(|c| c.roles == role::ALLOC | role::RETURN));
        assert!(get("netlink_dump_start").is_none_or(|c| !matches!(c.via, Via::Carrier { .. })));
        // a sniffer's ring ends its blocks by a timer; what answers a ping holds its packet only while it is called
        let through = |name: &str| {
            let of = |c: &&Candidate| matches!(&c.via, Via::Carrier { structure, .. } if structure == name);
            f.candidates.iter().filter(of).count()
        };
        assert_eq!(through("tpacket_kbdq_core"), 0);
        assert!(f.left_out.iter().any(|(_, why)| why.starts_with("tpacket_kbdq_core.skb may point")));
        assert!(through("icmp_bxm") > 0);
        let s = statistics(&btfs, 4);
        assert!(s.direct > 1500 && s.direct < s.functions / 5, "{s:?}");
        assert!(s.pointed[1].1 > s.embedded[1].1);
    }

    #[test]
    fn cookies() {
        let c = Candidate {
            name: String::new(),
            module: String::new(),
            btf_id: 1,
            via: Via::Carrier { arg: 2, structure: String::new(), member: String::new(), offset: 0x28 },
            roles: role::GRO,
            odd_arguments: false,
            settled: false,
            entry_only: false,
        };
        let k = c.cookie(5);
        assert_eq!(
            (k & 0x1fff, k >> 13 & 1, k >> 14 & 7, k >> 17 & 1, k >> 18 & 0xfff, k >> 30 & 3, k >> 32),
            (5, 1, 2, 1, 0x28, 0, 64)
        );
    }
}
