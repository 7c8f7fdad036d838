//! Functions that have no packet of their own, recorded within the calls of packets: those that the user names, and those that take a structure
//! in which a packet lies nested.
//!
//! *Nested*: a structure of depth 1 has an `sk_buff` or a pointer to some as a member, in whatever form; one of depth n has one of depth n-1 in it. Through
//! pointers the closure has no useful end: it comes to half of a kernel's functions. What holds exactly one packet and is small is no matter
//! of this module: there the packet can be read, and [`choose`] takes it as a packet's function.

use crate::btf::{Btf, kind};
use crate::choose::{self, Candidate, Found, Value, Via};
use crate::kernel::Symbols;
use crate::profile::{Selection, glob};
use crate::roles::role;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// What [`find`] found.
#[derive(Default)]
pub struct Within {
    pub functions: Vec<Candidate>,
    /// Wanted and impossible: name and reason.
    pub left_out: Vec<(String, String)>,
}

/// Functions for [`Selection::also`] and [`Selection::depth`] that this kernel lets us trace.
pub fn find(
    btfs: &[Arc<Btf>],
    selection: &Selection,
    found: &Found,
    traceable: Option<&HashMap<String, u32>>,
    symbols: &Symbols,
) -> Within {
    let mut out = Within::default();
    let packets: HashSet<&str> = found.candidates.iter().map(|c| c.name.as_str()).collect();
    let nested = nested(btfs, selection.depth);
    let mut seen: HashSet<String> = HashSet::new();
    for b in btfs {
        let module = if b.name == "vmlinux" { "" } else { b.name.as_str() };
        for id in b.own_ids() {
            let Some(t) = b.get(id).filter(|t| t.kind == kind::FUNC) else { continue };
            let name = b.str(t.name_off);
            let named = selection.also.iter().any(|g| glob(g, name));
            let wanted = named || takes(b, t.size_or_type, &nested);
            if !wanted || selection.remove.iter().any(|g| glob(g, name)) || choose::is_glue(name) {
                continue;
            }
            let reason =
                match traceable.map_or(symbols.count(name), |t| t.get(name).map_or(0, |n| *n as usize)) {
                    _ if packets.contains(name) => Some("it has a packet of its own: take it by --add"),
                    0 if symbols.count(name) == 0 => Some("inlined everywhere: no such symbol"),
                    0 => Some("notrace, or an out-of-line copy of an inline function"),
                    1 => None,
                    _ => Some("the name is ambiguous"),
                };
            if !seen.insert(name.to_string()) {
                continue;
            }
            match reason {
                Some(why) if named => out.left_out.push((name.to_string(), why.to_string())),
                Some(_) => {}
                None => out.functions.push(candidate(b, module, id, name, t.size_or_type)),
            }
        }
    }
    out
}

/// What was asked for by name and came to nothing.
pub fn unmet(
    selection: &Selection,
    functions: &[Candidate],
    left_out: &[(String, String)],
) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for g in &selection.also {
        if functions.iter().any(|c| c.is_within() && glob(g, &c.name)) {
            continue;
        }
        let why = left_out.iter().find(|(name, _)| glob(g, name)).map_or("no function fits", |(_, why)| why);
        out.push((g.clone(), why.to_string()));
    }
    out
}

fn candidate(b: &Btf, module: &str, id: u32, name: &str, proto: u32) -> Candidate {
    let returns = b.get(proto).map_or(Value::Nothing, |p| value(b, p.size_or_type));
    let roles = match returns {
        Value::Pointer => role::POINTER,
        Value::Truth => role::TRUTH,
        Value::Nothing | Value::Number => 0,
    };
    Candidate {
        name: name.into(),
        module: module.into(),
        btf_id: id,
        via: Via::Within(returns),
        roles: role::WITHIN | roles,
        odd_arguments: choose::odd_arguments(b, proto),
        settled: false,
        entry_only: false,
    }
}

/// What is to be made of a return value of this type.
fn value(b: &Btf, id: u32) -> Value {
    if id == 0 {
        return Value::Nothing;
    }
    match b.get(b.strip(id)) {
        Some(t) if t.kind == kind::PTR => Value::Pointer,
        Some(t) if t.kind == kind::INT && b.name_of(b.strip(id)) == "_Bool" => Value::Truth,
        Some(t) if matches!(t.kind, kind::INT | kind::ENUM) => Value::Number,
        _ => Value::Nothing,
    }
}

fn takes(b: &Btf, proto: u32, nested: &HashSet<String>) -> bool {
    !nested.is_empty()
        && b.params(proto).iter().any(|(_, ty)| {
            let (levels, target) = b.pointee(*ty);
            levels > 0 && nested.contains(b.name_of(target))
        })
}

/// Structures in which a packet lies at most so deep.
fn nested(btfs: &[Arc<Btf>], depth: u8) -> HashSet<String> {
    let mut reached: HashSet<String> = HashSet::new();
    if depth == 0 {
        return reached;
    }
    let mut embeds: BTreeMap<String, HashSet<String>> = BTreeMap::new();
    for b in btfs {
        for id in b.own_ids() {
            let Some(t) = b.get(id) else { continue };
            let name = b.str(t.name_off);
            if !matches!(t.kind, kind::STRUCT | kind::UNION) || name.is_empty() || name == "sk_buff" {
                continue;
            }
            let (mut holds, mut points) = (HashSet::new(), HashSet::new());
            choose::contents(b, id, 0, &mut holds, &mut points);
            if points.contains("sk_buff") {
                reached.insert(name.to_string());
            }
            embeds.entry(name.to_string()).or_default().extend(holds);
        }
    }
    for _ in 1..depth {
        let holds = |e: &HashSet<String>| e.iter().any(|n| reached.contains(n));
        let more: Vec<String> = embeds
            .iter()
            .filter(|(n, e)| !reached.contains(*n) && holds(e))
            .map(|(n, _)| n.clone())
            .collect();
        reached.extend(more);
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(selection: &Selection) -> Within {
        let btfs = Btf::running().expect("BTF");
        find(&btfs, selection, &choose::candidates(&btfs), None, &Symbols::running())
    }

    #[test]
    fn functions_by_name_with_what_they_return() {
        let also = ["kmem_cache_free", "ip_rcv", "mod_timer", "__kmalloc*", "sk_stream_wait_memory"];
        let selection = Selection { also: also.map(String::from).into(), ..Selection::default() };
        let got = found(&selection);
        let of = |n: &str| got.functions.iter().find(|c| c.name == n).map(|c| c.via.clone());
        assert_eq!(of("kmem_cache_free"), Some(Via::Within(Value::Nothing)));
        assert_eq!(of("mod_timer"), Some(Via::Within(Value::Number)));
        assert_eq!(of("ip_rcv"), None);
        assert!(
            got.functions
                .iter()
                .any(|c| c.via == Via::Within(Value::Pointer) && c.name.starts_with("__kmalloc"))
        );
        assert_eq!(
            unmet(&selection, &got.functions, &got.left_out),
            [("ip_rcv".to_string(), "it has a packet of its own: take it by --add".to_string())]
        );
        assert!(got.functions.iter().all(|c| c.special() && !role::tracks(c.roles)));
    }

    #[test]
    fn functions_by_what_their_structures_hold() {
        let at = |depth| {
            let got = found(&Selection { depth, ..Selection::default() });
            got.functions.into_iter().map(|c| c.name).collect::<HashSet<String>>()
        };
        let (none, one, two) = (at(0), at(1), at(2));
        assert!(none.is_empty());
        // a socket's queues are lists of packets, which it holds in itself
        assert!(!one.contains("inet_shutdown") && two.len() > one.len() && one.is_subset(&two));
        assert!(two.contains("sock_def_readable"), "struct sock holds struct sk_buff_head");
    }
}
