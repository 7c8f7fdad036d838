//! Which tracepoints a recording of packets has, and what the log calls them.

use super::{Fixed, Tracepoint};
use crate::btf::{Btf, kind};
use crate::kernel::Symbols;
use crate::object::{self, Build, MAX_FUNCS, Side};
use crate::profile::{self, Selection};
use kpat_model::functions;
use std::collections::BTreeSet;
use std::path::Path;

/// Points that are passed right before another one, in the same function or in one that it calls: they add no information,
/// and cost as much.
const TWINS: &[&str] = &["netif_rx_entry", "netif_receive_skb_entry"];

/// Groups of events that cost something at each switch of every task, at each softirq: they may be left out.
const OPTIONAL: &[&str] = &["sched:", "irq:", "napi:"];

/// Where a driver has returned. The kernel side leaves it out where a virtual device has handed the packet on and its other end has
/// received it, which has the same information (bpf/points.bpf.h), unless it is requested by name or with profile *all*.
const RETURN: &str = "net_dev_xmit";

/// Constants of the kernel side that the selection decides.
pub fn constants(selection: &Selection) -> Vec<(&'static str, u64)> {
    let asked = selection.names("all") || selection.add.iter().any(|g| fits(g, RETURN));
    vec![("every_return", u64::from(asked))]
}

fn fits(glob: &str, name: &str) -> bool {
    profile::glob(glob, &tracepoint_name(name)) || profile::glob(glob, name)
}

/// A module's own is here with its module.
fn is_here(full: &str) -> bool {
    let modules = functions::of(full).map_or(&[][..], |f| &f.modules);
    modules.is_empty() || modules.iter().any(|m| Path::new("/sys/kernel/btf").join(m).exists())
}

/// Programs of a side and their tracepoints. Those for packets that know their tracepoint's types are of tracepoints that every kernel has for which that build
/// is chosen.
pub(super) fn programs(build: Build, side: Side) -> impl Iterator<Item = (String, String, Fixed)> {
    let with = |fixed: Fixed| move |(program, name)| (program, name, fixed);
    let raw = object::tracepoint_programs(build, side).into_iter().map(with(Fixed::Raw));
    let typed = object::typed_programs(build, side).into_iter();
    raw.chain(typed.map(with(Fixed::Typed(crate::sys::ATTACH_RAW_TP))))
}

/// Those that a recording needs: events and bookkeeping always, points only where they are the mechanism.
pub fn tracepoints(build: Build, selection: &Selection, points: bool) -> Vec<Tracepoint> {
    let number = |program: &str| program.split('_').nth(1).and_then(|n| n.parse::<usize>().ok());
    programs(build, Side::Packets)
        .filter_map(|(program, name, fixed)| {
            let (mut func, mut switch) = (None, None);
            let full = tracepoint_name(&name);
            let named = |globs: &[String]| globs.iter().any(|g| fits(g, &name));
            if program.starts_with("point_") {
                let by_profile = selection.profiles().any(|p| match p {
                    "none" => false,
                    "all" => true,
                    _ => !TWINS.contains(&name.as_str()),
                });
                let chosen = by_profile || named(&selection.add);
                if !points || named(&selection.remove) || !chosen || !is_here(&full) {
                    return None;
                }
                let f = MAX_FUNCS - 1 - number(&program)?;
                (func, switch) = (Some(f as u16), Some(f));
            } else if program.starts_with("event_") {
                let left_out =
                    OPTIONAL.iter().any(|group| full.starts_with(group)) && named(&selection.remove);
                // It keeps the context, too (bpf/polls.bpf.h): then only its switch stays off.
                if left_out && !(build.traced_context && name == "softirq_entry") {
                    return None;
                }
                switch = if left_out { None } else { Some(MAX_FUNCS - 65 - number(&program)?) };
            }
            Some(Tracepoint { program, name, fixed, func, switch })
        })
        .collect()
}

/// Name in the log.
pub fn tracepoint_name(name: &str) -> String {
    format!("{}:{name}", tracepoint_group(name))
}

/// The points that a recording of packets can have, by their names in the log; sorted.
pub fn point_names() -> Vec<String> {
    let points = Build::ALL
        .iter()
        .flat_map(|b| programs(*b, Side::Packets))
        .filter(|(program, ..)| program.starts_with("point_"));
    points.map(|(_, name, _)| tracepoint_name(&name)).collect::<BTreeSet<_>>().into_iter().collect()
}

fn tracepoint_group(name: &str) -> &'static str {
    match name {
        "consume_skb" | "kfree_skb" | "skb_copy_datagram_iovec" => "skb",
        n if n.starts_with("qdisc_") => "qdisc",
        n if n.starts_with("tcp_") => "tcp",
        n if n.starts_with("sched_") => "sched",
        n if n.starts_with("softirq_") => "irq",
        n if n.starts_with("neigh_") => "neigh",
        n if n.starts_with("ovs_") => "openvswitch",
        "napi_poll" => "napi",
        _ => "net",
    }
}

pub(super) fn tracepoint_layer(name: &str) -> &'static str {
    functions::of(&tracepoint_name(name)).map_or("link", |f| f.layer)
}

/// How many arguments a tracepoint has on this kernel; 0: it is not there.
fn arguments(btf: &Btf, name: &str) -> usize {
    let point = btf.find(kind::TYPEDEF, &format!("btf_trace_{name}"));
    // The first is what is passed to every tracepoint's programs.
    point.map_or(0, |id| btf.params(btf.pointee(id).1).len().saturating_sub(1))
}

/// kfree_skb has, behind its three arguments, the socket that would have had the packet (6.11).
pub(crate) fn drops_have_sockets(btf: &Btf) -> bool {
    arguments(btf, "kfree_skb") > 3
}

/// The second program of a tracepoint at which tasks may be preempted (bpf/pairs.bpf.h): the name of the first, and this.
const SECOND: &str = "_second";

/// Of a second program the name of the first.
pub(crate) fn first_of_pair(program: &str) -> Option<&str> {
    program.strip_suffix(SECOND)
}

/// Tracepoints' programs run with preemption on: tracepoints are guarded by SRCU (7.0), whose guard has this type, as before they were by being not preemptible.
pub(super) fn programs_are_preempted(btf: &Btf) -> bool {
    btf.find(kind::TYPEDEF, "class_srcu_fast_notrace_t").is_some()
}

/// Programs that run whole even so, as they are at events of tracefs: program, tracepoint, the event's number. Those of which this kernel tells the number.
pub(super) fn whole(build: Build) -> impl Iterator<Item = (String, String, u64)> {
    let tracefs = crate::kernel::tracefs();
    object::event_programs(build, Side::Profile).into_iter().filter_map(move |(program, event)| {
        let number = std::fs::read_to_string(format!("{}/events/{event}/id", tracefs?)).ok()?;
        Some((program, event.rsplit('/').next()?.to_string(), number.trim().parse().ok()?))
    })
}

/// Where a CPU frees what others have read (skb_defer_free_flush in net/core/dev.c, or what it is compiled into).
const FLUSHES: [(&str, &str, &str); 3] = [
    ("skb_defer_free_flush", "flush_from_0", "flush_bytes_0"),
    ("net_rx_action", "flush_from_1", "flush_bytes_1"),
    ("napi_threaded_poll_loop", "flush_from_2", "flush_bytes_2"),
];

/// tcp_retransmit_skb has, behind its two arguments, the error with which sending again failed, and is passed then, too.
pub(super) fn retransmit_has_error(btf: &Btf) -> (&'static str, u64) {
    ("retransmit_has_error", u64::from(arguments(btf, "tcp_retransmit_skb") > 2))
}

/// Constants of the packets' side (bpf/config.bpf.h): what its tracepoints tell on this kernel. consume_skb has had, behind its argument, where it was called
/// since 6.3, which says something where the kernel's addresses are known.
pub(super) fn point_constants(btf: &Btf, symbols: &Symbols) -> Vec<(&'static str, u64)> {
    let located = arguments(btf, "consume_skb") > 1;
    let mut all = vec![retransmit_has_error(btf), ("consume_has_location", u64::from(located))];
    for (name, from, bytes) in FLUSHES {
        if let Some((at, size)) = symbols.place(name) {
            all.extend([(from, at), (bytes, size)]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(build: Build, remove: &[&str], points: bool) -> Vec<Tracepoint> {
        let remove = remove.iter().map(|g| (*g).to_owned()).collect();
        tracepoints(build, &Selection { profile: "path".into(), remove, ..Selection::default() }, points)
    }

    fn names(remove: &[&str], points: bool) -> Vec<String> {
        chosen(Build::ALL[0], remove, points).into_iter().map(|t| t.name).collect()
    }

    #[test]
    fn what_keeps_the_context_stays_without_its_events() {
        for (build, stays) in Build::ALL.map(|b| (b, b.traced_context)) {
            let entries = |remove: &[&str]| -> Vec<Option<usize>> {
                let all = chosen(build, remove, true).into_iter();
                all.filter(|t| t.name == "softirq_entry").map(|t| t.switch).collect()
            };
            assert!(matches!(entries(&[])[..], [Some(_)]), "one program, whatever it does: {}", build.name());
            assert_eq!(entries(&["irq:*"]), if stays { vec![None] } else { vec![] }, "{}", build.name());
        }
    }

    #[test]
    fn points_and_the_schedulers_may_be_left_out_and_nothing_else() {
        for points in [true, false] {
            let all = names(&[], points);
            assert!(all.contains(&"sched_switch".into()) && all.contains(&"sched_process_exit".into()));
            assert_eq!(all.contains(&"net_dev_queue".into()), points);
            let without = names(&["sched:*", "irq:*", "napi:*", "net:net_dev_queue"], points);
            let gone: Vec<&String> = all.iter().filter(|n| !without.contains(n)).collect();
            let mut expected =
                vec!["sched_switch", "sched_wakeup", "softirq_raise", "softirq_entry", "napi_poll"];
            expected.extend(points.then_some("net_dev_queue"));
            assert_eq!(gone.len(), expected.len(), "{gone:?}");
            assert!(expected.iter().all(|n| gone.iter().any(|g| g == n)));
        }
    }
}
