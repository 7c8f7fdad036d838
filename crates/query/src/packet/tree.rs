//! From the calls of one packet to its tree, with the asynchronous edges between the trees.
//!
//! Callers that did not touch this packet are not in its rows, so the tree is nested by `parent_id` where the parent is
//! shown and by enclosure in time within one context otherwise.

use super::*;
use crate::codes::DEEPEST_CALLS;
use crate::roles::*;
use kpat_store::tables::{CallRow, FunctionRow};
use std::collections::{HashMap, VecDeque};

/// What the calls of a packet are, and what their names say.
pub(super) struct Names<'a> {
    pub functions: &'a [FunctionRow],
    pub roles: &'a [Roles],
}

impl Names<'_> {
    fn role(&self, call: &CallRow) -> Roles {
        self.roles.get(call.func_id as usize).copied().unwrap_or_default()
    }

    fn name(&self, call: &CallRow) -> String {
        self.functions.get(call.func_id as usize).map_or("?".to_owned(), |f| f.name.clone())
    }
}

pub(super) fn end_ns(call: &CallRow) -> i64 {
    call.entry_ns.saturating_add(call.dur_ns.unwrap_or(0))
}

/// Same flow of control, as far as the record tells.
pub(crate) fn same_context(a: &CallRow, b: &CallRow) -> bool {
    a.ctx == b.ctx && if a.ctx == 0 && a.pid != 0 { a.pid == b.pid } else { a.cpu == b.cpu }
}

/// Rows in any order. `path_end`: of the packet, boot clock.
pub(super) fn build(mut rows: Vec<CallRow>, names: &Names<'_>, path_end: i64) -> Vec<CallNode> {
    rows.sort_by_key(|c| (c.entry_ns, c.call_id));
    let place: HashMap<i64, usize> = rows.iter().enumerate().map(|(i, c)| (c.call_id, i)).collect();
    let mut parent: Vec<Option<usize>> = Vec::with_capacity(rows.len());
    // Calls that may still enclose later ones, one stack for all contexts (a packet is in few at once).
    let mut open: VecDeque<usize> = VecDeque::new();
    let mut depths: Vec<usize> = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        open.retain(|&k| end_ns(&rows[k]) >= row.entry_ns);
        let by_id = row.parent_id.and_then(|p| place.get(&p).copied()).filter(|&k| k != i);
        let by_time = || {
            open.iter().rev().copied().find(|&k| {
                same_context(&rows[k], row)
                    && end_ns(&rows[k]) >= end_ns(row)
                    && rows[k].dur_ns.is_some_and(|d| d > 0)
            })
        };
        // A parent has an earlier place, or (equal entries) may not: then it would be a cycle.
        let mut own = by_id.or_else(by_time).filter(|&p| p < i);
        if let Some(p) = own.filter(|&p| depths[p] >= DEEPEST_CALLS) {
            own = parent[p];
        }
        depths.push(own.map_or(0, |p| depths[p] + 1));
        parent.push(own);
        open.push_back(i);
        if open.len() > 2 * DEEPEST_CALLS {
            open.pop_front();
        }
    }
    let mut gaps = vec![0; rows.len()];
    let mut last: Option<i64> = None;
    for (i, row) in rows.iter().enumerate() {
        // Exits count as well: the latest exit before this entry.
        gaps[i] = last.map_or(0, |l| row.entry_ns.saturating_sub(l).max(0));
        let exits = rows[..i].iter().rev().take(64).map(end_ns).filter(|&e| e <= row.entry_ns).max();
        if let Some(e) = exits {
            gaps[i] = gaps[i].min(row.entry_ns.saturating_sub(e));
        }
        last = Some(row.entry_ns);
    }
    let mut handovers = handovers(&rows, &parent, names);
    for h in handovers.iter_mut().flatten().filter(|h| h.to_ns > path_end) {
        h.kind = HandoverKind::Freed;
    }
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
    let mut roots = Vec::new();
    for (i, p) in parent.iter().enumerate() {
        match p {
            Some(p) => children[*p].push(i),
            None => roots.push(i),
        }
    }
    let mut nodes: Vec<Option<CallNode>> = rows
        .into_iter()
        .zip(gaps)
        .zip(handovers)
        .map(|((call, gap_ns), handover)| {
            let f = names.functions.get(call.func_id as usize);
            Some(CallNode {
                returned: (call.flags & call_flag::WITHIN != 0)
                    .then(|| kpat_model::functions::returned(&f?.via, call.skb_tag as u16))
                    .flatten(),
                name: names.name(&call),
                module: f.map(|f| f.module.clone()).unwrap_or_default(),
                layer: f.map(|f| f.layer.clone()).unwrap_or_default(),
                depth: 0,
                gap_ns,
                handover,
                children: Vec::new(),
                call,
            })
        })
        .collect();
    // Children come after their parents, so from the end each node is complete when it is taken.
    for i in (0..nodes.len()).rev() {
        let taken: Vec<CallNode> = children[i].iter().filter_map(|&k| nodes[k].take()).collect();
        if let Some(node) = &mut nodes[i] {
            node.children = taken;
        }
    }
    let mut tree: Vec<CallNode> = roots.into_iter().filter_map(|i| nodes[i].take()).collect();
    let mut todo: Vec<(&mut CallNode, u32)> = tree.iter_mut().map(|n| (n, 0)).collect();
    while let Some((node, depth)) = todo.pop() {
        node.depth = depth;
        todo.extend(node.children.iter_mut().map(|c| (c, depth + 1)));
    }
    tree
}

/// For each top-level call but the first: how the packet came there from the one that ended last before.
fn handovers(rows: &[CallRow], parent: &[Option<usize>], names: &Names<'_>) -> Vec<Option<Handover>> {
    let mut out = vec![None; rows.len()];
    // Roles of each top-level tree, so that the inner function that queued the packet is seen.
    let mut root_of: Vec<usize> = (0..rows.len()).collect();
    for i in 0..rows.len() {
        if let Some(p) = parent[i] {
            root_of[i] = root_of[p];
        }
    }
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
    root_of.iter().enumerate().for_each(|(i, &root)| members[root].push(i));
    let mut before: Option<usize> = None;
    // Put into a backlog and not yet seen to be taken out: the place that did it.
    let mut queued: Option<usize> = None;
    // The same of a device's queue. The device above may say meanwhile that it has given it away.
    let mut in_qdisc: Option<usize> = None;
    for i in 0..rows.len() {
        // What cut in on the packet's call is not where the packet went.
        if root_of[i] != i || rows[i].flags & call_flag::WITHIN != 0 {
            continue;
        }
        let last_with =
            |role: u32| members[i].iter().rev().copied().find(|&k| names.role(&rows[k]).has(role));
        let taken = members[i].iter().copied().find(|&k| takes_from_backlog(names.role(&rows[k])));
        let leaves = members[i].iter().copied().find(|&k| names.role(&rows[k]).has(QDISC_OUT | XMIT));
        if let Some(b) = before {
            let (from_ns, to_ns) = (end_ns(&rows[b]), rows[i].entry_ns);
            // Within another tree's time it was interrupted into, not handed over.
            if to_ns >= from_ns {
                let kind_by = |role: u32, root: usize| {
                    members[root].iter().rev().copied().find(|&k| names.role(&rows[k]).has(role))
                };
                let (kind, from, to) = match (queued, taken) {
                    (Some(from), Some(to)) => (HandoverKind::Backlog, from, to),
                    _ => match (kind_of(rows, b, i, &kind_by), in_qdisc, leaves) {
                        ((kind, ..), Some(from), Some(to)) if is_context(kind) => {
                            (HandoverKind::Qdisc, from, to)
                        }
                        (found, ..) => found,
                    },
                };
                // Without a return it may still be in that call.
                let known = kind != HandoverKind::Unrecorded || rows[b].flags & call_flag::ENTRY_ONLY == 0;
                out[i] = known.then(|| Handover {
                    kind,
                    from_ns,
                    to_ns,
                    wait_ns: to_ns - from_ns,
                    from: names.name(&rows[from]),
                    to: names.name(&rows[to]),
                });
            }
        }
        if taken.is_some() {
            queued = None;
        }
        queued = last_with(BACKLOG_IN).or(queued);
        if leaves.is_some() {
            in_qdisc = None;
        }
        in_qdisc = last_with(QDISC_IN).filter(|q| last_with(XMIT).is_none_or(|x| x < *q)).or(in_qdisc);
        if before.is_none_or(|b| end_ns(&rows[i]) >= end_ns(&rows[b])) {
            before = Some(i);
        }
    }
    out
}

/// Nothing but the contexts of both ends tells.
fn is_context(kind: HandoverKind) -> bool {
    use HandoverKind::*;
    matches!(kind, Softirq | OtherCpu | Scheduled | Unrecorded)
}

/// Received, and not by being put into a backlog: `netif_rx` both receives and queues, its tracepoints too.
fn takes_from_backlog(roles: Roles) -> bool {
    roles.has(BACKLOG_OUT) || (roles.has(RX) && !roles.has(BACKLOG_IN))
}

fn kind_of(
    rows: &[CallRow],
    b: usize,
    i: usize,
    find: &dyn Fn(u32, usize) -> Option<usize>,
) -> (HandoverKind, usize, usize) {
    let out_of = |role: u32, into: u32| Some((find(role, b)?, find(into, i)?));
    // The rest of what was read in part.
    let read_again =
        out_of(SOCK_READ, SOCK_READ).filter(|(from, to)| rows[*from].func_id == rows[*to].func_id);
    let edges = [
        (HandoverKind::SocketQueue, out_of(SOCK_QUEUE, SOCK_READ)),
        (HandoverKind::SocketQueue, out_of(LOCAL_IN, SOCK_READ)),
        (HandoverKind::SocketQueue, read_again),
        (HandoverKind::Device, out_of(XMIT, RX)),
        (HandoverKind::Device, out_of(XMIT, FREE)),
        (HandoverKind::Qdisc, out_of(QDISC_IN, QDISC_OUT)),
        (HandoverKind::Qdisc, out_of(QDISC_IN, XMIT)),
        // Dropped as it was to be taken out, or to make room.
        (HandoverKind::Qdisc, out_of(QDISC_IN, FREE)),
        (HandoverKind::Neighbour, out_of(NEIGHBOUR, XMIT_QUEUE | FREE)),
        (HandoverKind::SendQueue, out_of(XMIT | XMIT_QUEUE | SEND_QUEUE, SEND_QUEUE)),
        (HandoverKind::Gro, out_of(GRO, RX)),
    ];
    for (kind, found) in edges {
        if let Some((from, to)) = found
            && (kind != HandoverKind::Gro || same_context(&rows[b], &rows[i]))
        {
            return (kind, from, to);
        }
    }
    let (x, y) = (&rows[b], &rows[i]);
    let kind = if same_context(x, y) {
        HandoverKind::Unrecorded
    } else if y.ctx == 1 && x.cpu == y.cpu {
        HandoverKind::Softirq
    } else if y.ctx == 1 {
        HandoverKind::OtherCpu
    } else if find(SOCK_READ, i).is_some() {
        // Tracepoints alone do not say when it was put there.
        HandoverKind::SocketQueue
    } else {
        HandoverKind::Scheduled
    };
    (kind, b, i)
}
