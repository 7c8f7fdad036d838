//! Time by call path: a flame graph, and who calls whom.

use crate::error::Result;
use crate::store::Store;
use kpat_store::tables::CallPathRow;
use std::collections::BTreeMap;

/// One function called in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlameNode {
    /// -1: others, where there were too many paths.
    pub func_id: i32,
    pub depth: u32,
    /// Place in the list.
    pub parent: Option<usize>,
    pub calls: u64,
    /// At least what is below it.
    pub total_ns: i64,
    pub self_ns: i64,
}

/// Nodes in preorder, most time first among siblings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flame {
    pub nodes: Vec<FlameNode>,
    /// Of the outermost calls.
    pub total_ns: i64,
}

/// A caller or callee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// `None`: nothing that was recorded.
    pub func_id: Option<i32>,
    /// Calls from the one to the other.
    pub calls: u64,
    pub total_ns: i64,
}

impl Flame {
    pub(crate) fn of(rows: &[CallPathRow]) -> Flame {
        let place = |id: i64| usize::try_from(id).ok().filter(|i| *i < rows.len());
        // A caller stands before its callees; anything else is no caller.
        let parent: Vec<Option<usize>> =
            (0..).zip(rows).map(|(i, r)| r.parent_id.and_then(place).filter(|p| *p < i)).collect();
        let mut total: Vec<i64> = rows.iter().map(|r| r.total_ns).collect();
        let mut calls: Vec<bool> = rows.iter().map(|r| r.calls > 0).collect();
        let mut below = vec![0i64; rows.len()];
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); rows.len()];
        let mut roots = Vec::new();
        for i in (0..rows.len()).rev() {
            // A call whose return was not seen has no time of its own, and is as long as what it called.
            total[i] = total[i].max(below[i].saturating_add(rows[i].self_ns));
            if !calls[i] {
                continue;
            }
            match parent[i] {
                Some(p) => {
                    below[p] = below[p].saturating_add(total[i]);
                    calls[p] = true;
                    children[p].push(i);
                }
                None => roots.push(i),
            }
        }
        let most_first = |of: &mut Vec<usize>| of.sort_by_key(|&i| (total[i], std::cmp::Reverse(i)));
        most_first(&mut roots);
        children.iter_mut().for_each(most_first);
        let mut out = Flame { nodes: Vec::new(), total_ns: roots.iter().map(|&i| total[i]).sum() };
        let mut todo: Vec<(usize, Option<usize>, u32)> = roots.into_iter().map(|i| (i, None, 0)).collect();
        while let Some((i, parent, depth)) = todo.pop() {
            let here = out.nodes.len();
            todo.extend(children[i].iter().map(|&k| (k, Some(here), depth + 1)));
            out.nodes.push(FlameNode {
                func_id: rows[i].func_id,
                depth,
                parent,
                calls: rows[i].calls.max(0).unsigned_abs(),
                total_ns: total[i],
                self_ns: rows[i].self_ns,
            });
        }
        out
    }

    /// Who called a function, and what it called; most time first.
    pub fn neighbours(&self, func_id: i32) -> (Vec<Neighbour>, Vec<Neighbour>) {
        let mut callers: BTreeMap<Option<i32>, (u64, i64)> = BTreeMap::new();
        let mut callees: BTreeMap<Option<i32>, (u64, i64)> = BTreeMap::new();
        for n in &self.nodes {
            let caller = n.parent.map(|p| self.nodes[p].func_id);
            let add = |to: &mut BTreeMap<Option<i32>, (u64, i64)>, who: Option<i32>| {
                let sum = to.entry(who).or_default();
                sum.0 += n.calls;
                sum.1 = sum.1.saturating_add(n.total_ns);
            };
            if n.func_id == func_id {
                add(&mut callers, caller);
            }
            if caller == Some(func_id) {
                add(&mut callees, Some(n.func_id));
            }
        }
        let list = |of: BTreeMap<Option<i32>, (u64, i64)>| {
            let mut list: Vec<Neighbour> = of
                .into_iter()
                .map(|(func_id, (calls, total_ns))| Neighbour { func_id, calls, total_ns })
                .collect();
            list.sort_by_key(|n| std::cmp::Reverse((n.total_ns, n.calls)));
            list
        };
        (list(callers), list(callees))
    }
}

impl Store {
    /// Of all calls.
    pub fn flame(&self) -> Result<Flame> {
        Ok(Flame::of(&self.all::<CallPathRow>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_up_and_the_longest_stands_first() {
        let row = |path_id, parent_id, func_id, calls, total_ns, self_ns| CallPathRow {
            path_id,
            parent_id,
            func_id,
            calls,
            timed: calls,
            total_ns,
            self_ns,
            ..CallPathRow::default()
        };
        // f1 -> (f2, f3 -> f2), and f2 alone; path 4 of f9 only leads to f2.
        let rows = [
            row(0, None, 1, 2, 100, 10),
            row(1, Some(0), 2, 4, 30, 30),
            row(2, Some(0), 3, 1, 60, 20),
            row(3, Some(2), 2, 1, 40, 40),
            row(4, None, 9, 0, 0, 0),
            row(5, Some(4), 2, 1, 7, 7),
            row(6, None, 8, 0, 0, 0),
        ];
        let flame = Flame::of(&rows);
        let shape: Vec<(i32, u32, i64)> =
            flame.nodes.iter().map(|n| (n.func_id, n.depth, n.total_ns)).collect();
        assert_eq!(shape, [(1, 0, 100), (3, 1, 60), (2, 2, 40), (2, 1, 30), (9, 0, 7), (2, 1, 7)]);
        assert_eq!(flame.total_ns, 107);
        let (callers, callees) = flame.neighbours(2);
        let who: Vec<(Option<i32>, u64)> = callers.iter().map(|n| (n.func_id, n.calls)).collect();
        assert_eq!(who, [(Some(3), 1), (Some(1), 4), (Some(9), 1)]);
        assert!(callees.is_empty());
        assert_eq!(flame.neighbours(1).0[0].func_id, None);
    }
}
