//! Calls summed up by the functions that enclose them: what flame graphs and profilers are made of.
//!
//! A tree of functions, one per context; memory is the number of different stacks. A caller stands in a stack also where
//! it touched no chosen packet, but its own time counts only where it did.

use crate::names::Names;
use crate::{Counts, Result};
use kpat_query::Parts;
use kpat_query::trace::{Chosen, TreeOfCalls};
use kpat_query::{DEEPEST_CALLS, Store, call_flag};
use std::collections::HashMap;

/// What the calls of one stack sum up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Calls and points.
    pub calls: i64,
    pub self_ns: i64,
    /// Recorded interrupts within.
    pub irq_ns: i64,
    /// Entry to return.
    pub total_ns: i64,
}

struct Node {
    /// `None`: a context.
    caller: Option<u32>,
    depth: usize,
    /// Function, or code of the context.
    id: i32,
    sums: Sums,
}

#[derive(Default)]
pub(crate) struct Stacks {
    nodes: Vec<Node>,
    below: HashMap<(Option<u32>, i32), u32>,
    pub counts: Counts,
}

/// One stack: context, functions from the outermost to the innermost.
pub(crate) struct Stack {
    pub context: i32,
    pub functions: Vec<i32>,
    pub sums: Sums,
}

impl Stacks {
    pub fn gather(store: &Store, chosen: &Chosen, progress: Parts<'_>) -> Result<Stacks> {
        let mut stacks = Stacks::default();
        let mut places: Vec<u32> = Vec::new();
        store.each_tree(chosen, progress, &mut |tree: &TreeOfCalls<'_>| -> Result<()> {
            places.clear();
            for (i, row) in tree.rows().iter().enumerate() {
                let caller = match tree.parent(i) {
                    Some(p) => places[p],
                    None => stacks.node(None, row.ctx),
                };
                let place = stacks.node(Some(caller), row.func_id);
                places.push(place);
                if tree.is_chosen(i) {
                    stacks.counts.call(row);
                    let sums = &mut stacks.nodes[place as usize].sums;
                    sums.calls += 1;
                    if row.flags & call_flag::POINT == 0 {
                        sums.self_ns = sums.self_ns.saturating_add(row.self_ns.unwrap_or(0));
                        sums.irq_ns = sums.irq_ns.saturating_add(row.irq_ns.unwrap_or(0));
                        sums.total_ns = sums.total_ns.saturating_add(row.dur_ns.unwrap_or(0));
                    }
                }
            }
            Ok(())
        })?;
        Ok(stacks)
    }

    fn node(&mut self, mut caller: Option<u32>, id: i32) -> u32 {
        let of = |place: u32| &self.nodes[place as usize];
        if let Some(c) = caller.filter(|&c| of(c).depth >= DEEPEST_CALLS) {
            caller = of(c).caller;
        }
        let depth = caller.map_or(0, |c| of(c).depth + 1);
        if let Some(place) = self.below.get(&(caller, id)) {
            return *place;
        }
        let place = self.nodes.len() as u32;
        self.nodes.push(Node { caller, depth, id, sums: Sums::default() });
        self.below.insert((caller, id), place);
        place
    }

    /// All stacks with a call, by their names.
    pub fn sorted(&self, names: &Names) -> Vec<Stack> {
        let mut out: Vec<Stack> = self
            .nodes
            .iter()
            .filter(|n| n.caller.is_some() && n.sums.calls > 0)
            .map(|n| {
                let mut functions = vec![n.id];
                let mut at = n.caller;
                let mut context = 0;
                while let Some(node) = at.map(|a| &self.nodes[a as usize]) {
                    match node.caller {
                        Some(_) => functions.push(node.id),
                        None => context = node.id,
                    }
                    at = node.caller;
                }
                functions.reverse();
                Stack { context, functions, sums: n.sums }
            })
            .collect();
        out.sort_by_cached_key(|s| {
            (s.context, s.functions.iter().map(|f| names.name(*f)).collect::<Vec<_>>().join(";"))
        });
        out
    }
}
