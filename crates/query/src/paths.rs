//! Time by call path: which functions led to a call, how often, how long. Counted while calls are integrated, and again
//! for the calls of chosen packets.

use crate::error::Result;
use kpat_model::hash::Map;
use kpat_store::TableWriter;
use kpat_store::tables::{CallPathRow, CallRow};
use std::path::Path;

/// Different paths kept; what comes beyond goes to one nameless callee of its caller.
const MOST: usize = 1 << 20;

/// Stands for all functions that found no room.
const OTHERS: i32 = -1;

struct Node {
    parent: u32,
    func: i32,
    depth: i32,
    calls: i64,
    timed: i64,
    total_ns: i64,
    self_ns: i64,
    /// The callee that was met last: most calls repeat it.
    last: (i32, u32),
}

const NOWHERE: u32 = u32::MAX;

pub struct Paths {
    nodes: Vec<Node>,
    known: Map<u64, u32>,
    /// Paths of the callers of the next call, by depth.
    open: Vec<u32>,
    /// The root that was met last.
    last: (i32, u32),
}

impl Default for Paths {
    fn default() -> Paths {
        Paths { nodes: Vec::new(), known: Map::default(), open: Vec::new(), last: (OTHERS, NOWHERE) }
    }
}

impl Paths {
    /// Calls come in preorder, tree after tree. What does not count is only the way to what does.
    #[inline]
    pub fn add(&mut self, row: &CallRow, counts: bool) {
        self.open.truncate(usize::try_from(row.depth).unwrap_or(0));
        let parent = self.open.last().copied().unwrap_or(NOWHERE);
        let path = self.path(parent, row.func_id);
        self.open.push(path);
        if !counts {
            return;
        }
        let node = &mut self.nodes[path as usize];
        node.calls += 1;
        if let (Some(dur), Some(own)) = (row.dur_ns, row.self_ns) {
            node.timed += 1;
            node.total_ns = node.total_ns.saturating_add(dur);
            node.self_ns = node.self_ns.saturating_add(own);
        }
    }

    #[inline]
    fn path(&mut self, parent: u32, func: i32) -> u32 {
        let last = if parent == NOWHERE { self.last } else { self.nodes[parent as usize].last };
        if last.0 == func && last.1 != NOWHERE {
            return last.1;
        }
        let full = self.nodes.len() >= MOST;
        let key = |func: i32| u64::from(parent) << 32 | u64::from(func.cast_unsigned());
        let (key, func) = match self.known.contains_key(&key(func)) {
            false if full => (key(OTHERS), OTHERS),
            _ => (key(func), func),
        };
        let next = self.nodes.len() as u32;
        let path = *self.known.entry(key).or_insert(next);
        if path == next {
            let depth = if parent == NOWHERE { 0 } else { self.nodes[parent as usize].depth + 1 };
            let last = (OTHERS, NOWHERE);
            self.nodes.push(Node { parent, func, depth, calls: 0, timed: 0, total_ns: 0, self_ns: 0, last });
        }
        let place = if parent == NOWHERE { &mut self.last } else { &mut self.nodes[parent as usize].last };
        *place = (func, path);
        path
    }

    /// Takes what others counted.
    pub fn join(&mut self, other: &Paths) {
        let mut places: Vec<u32> = Vec::with_capacity(other.nodes.len());
        for theirs in &other.nodes {
            let parent = if theirs.parent == NOWHERE { NOWHERE } else { places[theirs.parent as usize] };
            let path = self.path(parent, theirs.func);
            places.push(path);
            let ours = &mut self.nodes[path as usize];
            ours.calls += theirs.calls;
            ours.timed += theirs.timed;
            ours.total_ns = ours.total_ns.saturating_add(theirs.total_ns);
            ours.self_ns = ours.self_ns.saturating_add(theirs.self_ns);
        }
    }

    pub fn rows(&self) -> impl Iterator<Item = CallPathRow> {
        (0..).zip(&self.nodes).map(|(path_id, n)| CallPathRow {
            path_id,
            parent_id: (n.parent != NOWHERE).then_some(i64::from(n.parent)),
            func_id: n.func,
            depth: n.depth,
            calls: n.calls,
            timed: n.timed,
            total_ns: n.total_ns,
            self_ns: n.self_ns,
        })
    }

    pub fn write(&self, dir: &Path) -> Result<()> {
        let mut table = TableWriter::create(dir)?;
        for row in self.rows() {
            table.push(&row)?;
        }
        table.finish()?;
        Ok(())
    }
}
