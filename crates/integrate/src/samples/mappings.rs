//! What was mapped at an address of a process then. A process may have tens of thousands of mappings, functions that it compiled among them, and each
//! frame of each stack asks: a tree over the addresses answers in as many steps as it has levels.

use kpat_model::{BootNs, Mapping};
use std::collections::HashMap;

/// Of all processes.
#[derive(Default)]
pub(super) struct Mappings(HashMap<u32, Process>);

#[derive(Default)]
struct Process {
    /// In the order in which they were logged.
    all: Vec<Mapping>,
    /// Where mappings begin or end. Between two neighbours is a leaf of the tree.
    bounds: Vec<u64>,
    /// The root is 1, those below n are 2n and 2n + 1. A mapping is in the fewest that make up its addresses.
    nodes: Vec<Vec<Held>>,
}

/// A mapping that has all addresses of a node, in the order in which they were logged.
struct Held {
    index: usize,
    /// When this one or a later one of the node was known first.
    since: BootNs,
}

impl Mappings {
    pub fn add(&mut self, m: Mapping) {
        self.0.entry(m.process).or_default().all.push(m);
    }

    /// There are no more.
    pub fn end(&mut self) {
        self.0.values_mut().for_each(Process::end);
    }

    /// The newest of those that were known by then and have the address: the process may run another program later, and its number may be another
    /// process's. Else the first that has it: a stack on another CPU may have been read before.
    pub fn at(&self, process: u32, at: u64, then: BootNs) -> Option<&Mapping> {
        let p = self.0.get(&process)?;
        let leaf = p.bounds.partition_point(|b| *b <= at).checked_sub(1)?;
        let mut node = p.nodes.len() / 2 + leaf;
        let (mut newest, mut first) = (None, None);
        while let Some(held) = p.nodes.get(node).filter(|_| node > 0) {
            let known = held.partition_point(|h| h.since <= then);
            newest = newest.max(known.checked_sub(1).map(|k| held[k].index));
            first = held.first().map(|h| h.index).into_iter().chain(first).min();
            node /= 2;
        }
        p.all.get(newest.or(first)?)
    }
}

fn ends(m: &Mapping) -> (u64, u64) {
    (m.start, m.start.saturating_add(m.length))
}

impl Process {
    fn end(&mut self) {
        self.bounds = self.all.iter().map(ends).flat_map(|(start, end)| [start, end]).collect();
        self.bounds.sort_unstable();
        self.bounds.dedup();
        let leaves = self.bounds.len();
        self.nodes = std::iter::repeat_with(Vec::new).take(2 * leaves).collect();
        for (index, m) in self.all.iter().enumerate() {
            let (start, end) = ends(m);
            let leaf = |at: u64| leaves + self.bounds.partition_point(|b| *b < at);
            let (mut left, mut right) = (leaf(start), leaf(end));
            let mut hold = |node: usize| self.nodes[node].push(Held { index, since: m.at });
            while left < right {
                if left % 2 == 1 {
                    hold(left);
                    left += 1;
                }
                if right % 2 == 1 {
                    right -= 1;
                    hold(right);
                }
                (left, right) = (left / 2, right / 2);
            }
        }
        for held in &mut self.nodes {
            let mut since = BootNs(i64::MAX);
            for h in held.iter_mut().rev() {
                since = since.min(h.since);
                h.since = since;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::MappingKind;

    fn mapping(name: &str, start: u64, length: u64, at: i64) -> Mapping {
        let (at, what) = (BootNs(at), MappingKind::File);
        Mapping { at, process: 7, what, start, length, offset: 0, name: name.into(), build_id: Vec::new() }
    }

    #[test]
    fn the_newest_mapping_of_then_counts() {
        let mut all = Mappings::default();
        [("a", 0x1000, 10), ("lib", 0x8000, 10), ("b", 0x1000, 20)]
            .into_iter()
            .for_each(|(name, start, at)| all.add(mapping(name, start, 0x1000, at)));
        all.end();
        let at = |a, then| all.at(7, a, BootNs(then)).map(|m| m.name.as_str());
        assert_eq!([at(0x1fff, 20), at(0x8000, 20), at(0x2000, 20)], [Some("b"), Some("lib"), None]);
        assert_eq!(
            [at(0x1fff, 19), at(0x1fff, 9)],
            [Some("a"), Some("a")],
            "before the next program, and before any was read"
        );
        assert_eq!([at(0xfff, 20), at(0x9000, 20), all.at(8, 0x1000, BootNs(20)).map(|_| "")], [None; 3]);
    }

    /// Against the search through all of them.
    #[test]
    fn the_tree_says_what_a_search_says() {
        let mut seed = 7u64;
        let mut below = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for turn in 0..200 {
            let rows: Vec<Mapping> = (0..=turn % 40)
                .map(|i| {
                    let (start, length) = (below(30), below(12));
                    let far = below(20) == 0;
                    mapping(&i.to_string(), if far { u64::MAX - 3 } else { start }, length, below(9) as i64)
                })
                .collect();
            let mut all = Mappings::default();
            rows.iter().for_each(|m| all.add(m.clone()));
            all.end();
            for at in (0..45).chain(u64::MAX - 5..=u64::MAX) {
                for then in -1..10 {
                    let has = |m: &&Mapping| (m.start..m.start.saturating_add(m.length)).contains(&at);
                    let known = rows.iter().rev().filter(has).find(|m| m.at.0 <= then);
                    let want = known.or_else(|| rows.iter().find(has)).map(|m| &m.name);
                    assert_eq!(all.at(7, at, BootNs(then)).map(|m| &m.name), want, "{at} {then} {rows:?}");
                }
            }
        }
    }
}
