//! One packet's life in one order: calls in their nesting, and between them what happened at a moment (a frame on the
//! wire, an event, a change of headers), each hung where it belongs.
//!
//! Work that cut in on the same CPU is hung into the call that it cut into. A frame is placed where it can have been: a
//! received one not after the kernel knew it, a transmitted one not before the kernel gave it away, as far as the estimate's
//! bound lets it; the time shown is the estimate. (A tap on the device itself sees a packet before the device gets it.)

use kpat_query::{CallNode, EventOfPacket, FrameOfPacket, Handover, side};
use kpat_store::tables::{CallRow, LineageRow};

/// Deeper than this nobody reads, and a hostile log shall not make us draw it.
const DEEPEST: usize = 256;

#[derive(Clone, Copy)]
pub enum What<'a> {
    Call(&'a CallNode),
    Handover(&'a Handover),
    Frame(&'a FrameOfPacket),
    Event(&'a EventOfPacket),
    Lineage(&'a LineageRow),
    /// Number of the footprint that differs from the one before.
    Headers(usize),
}

struct Item<'a> {
    at: i64,
    end: i64,
    what: What<'a>,
    /// Interrupt work under the call that it cut into.
    cut_in: bool,
    children: Vec<usize>,
}

/// One line to draw.
pub struct Row<'a> {
    pub at: i64,
    pub what: What<'a>,
    /// See [`crate::render::Branches::lines`].
    pub last: Vec<bool>,
    /// Starts a flow of control of its own: a root, or interrupt work that cut in.
    pub starts: bool,
    pub cut_in: bool,
}

pub struct Timeline<'a> {
    items: Vec<Item<'a>>,
    roots: Vec<usize>,
}

pub fn end_ns(call: &CallRow) -> i64 {
    call.entry_ns.saturating_add(call.dur_ns.unwrap_or(0).max(0))
}

impl<'a> Timeline<'a> {
    pub fn new(calls: &'a [CallNode]) -> Timeline<'a> {
        let mut line = Timeline { items: Vec::new(), roots: Vec::new() };
        for root in calls {
            let item = line.add_tree(root);
            let host = if root.handover.is_none() { line.cut_into(&root.call) } else { None };
            match host {
                Some(host) => {
                    line.items[item].cut_in = true;
                    let at = line.items[item].at;
                    let place = line.place_in(&line.items[host].children, at);
                    line.items[host].children.insert(place, item);
                }
                None => {
                    if let Some(handover) = &root.handover {
                        let at = handover.from_ns;
                        let wait = line.add(at, at, What::Handover(handover));
                        line.roots.push(wait);
                    }
                    line.roots.push(item);
                }
            }
        }
        line
    }

    fn add(&mut self, at: i64, end: i64, what: What<'a>) -> usize {
        self.items.push(Item { at, end, what, cut_in: false, children: Vec::new() });
        self.items.len() - 1
    }

    fn add_tree(&mut self, root: &'a CallNode) -> usize {
        let top = self.add(root.call.entry_ns, end_ns(&root.call), What::Call(root));
        let mut todo = vec![(top, root)];
        while let Some((item, node)) = todo.pop() {
            for child in &node.children {
                let index = self.add(child.call.entry_ns, end_ns(&child.call), What::Call(child));
                self.items[item].children.push(index);
                todo.push((index, child));
            }
        }
        top
    }

    /// The deepest call on that CPU during which this one began, in another context.
    fn cut_into(&self, call: &CallRow) -> Option<usize> {
        let fits = |&i: &usize| match self.items[i].what {
            What::Call(host) => {
                host.call.cpu == call.cpu
                    && host.call.ctx < call.ctx
                    && self.items[i].at <= call.entry_ns
                    && self.items[i].end >= end_ns(call)
                    && host.call.dur_ns.is_some()
            }
            _ => false,
        };
        let mut found = self.roots.iter().copied().rfind(fits)?;
        while let Some(deeper) = self.items[found].children.iter().copied().rfind(fits) {
            found = deeper;
        }
        Some(found)
    }

    fn place_in(&self, level: &[usize], at: i64) -> usize {
        level.iter().rposition(|&i| self.items[i].at <= at).map_or(0, |p| p + 1)
    }

    /// Hangs a moment into the deepest call that spans it.
    fn hang(&mut self, at: i64, shown_at: i64, what: What<'a>) {
        let item = self.add(shown_at, shown_at, what);
        let mut host: Option<usize> = None;
        loop {
            let level = host.map_or(&self.roots, |h| &self.items[h].children);
            let spans = |&i: &usize| {
                matches!(self.items[i].what, What::Call(c) if c.call.dur_ns.is_some())
                    && self.items[i].at <= at
                    && self.items[i].end >= at
            };
            match level.iter().copied().rfind(spans) {
                Some(deeper) => host = Some(deeper),
                None => {
                    let place = self.place_in(level, at);
                    match host {
                        Some(h) => self.items[h].children.insert(place, item),
                        None => self.roots.insert(place, item),
                    }
                    return;
                }
            }
        }
    }

    pub fn frame(&mut self, frame: &'a FrameOfPacket) {
        let kernel = frame.association.kernel_ns;
        let shown = frame.frame.boot_ns.unwrap_or(kernel);
        // Before the call that first knew it, not inside.
        let at = match frame.association.side {
            side::RECEIVED => shown.min(kernel.saturating_sub(1)),
            side::TRANSMITTED => shown.max(kernel),
            _ => shown,
        };
        let certain = frame.association.bound_ns.max(0) < shown.abs_diff(at).try_into().unwrap_or(i64::MAX);
        self.hang(if certain { shown } else { at }, shown, What::Frame(frame));
    }

    pub fn moment(&mut self, at: i64, what: What<'a>) {
        self.hang(at, at, what);
    }

    /// First and last moment.
    pub fn range(&self) -> Option<(i64, i64)> {
        let from = self.items.iter().map(|i| i.at).min()?;
        let to = self.items.iter().map(|i| i.end).max()?;
        Some((from, to))
    }

    pub fn rows(&self) -> Vec<Row<'a>> {
        let mut rows = Vec::with_capacity(self.items.len());
        // (item, its line of ancestors and itself, root?)
        let mut todo: Vec<(usize, Vec<bool>)> = self.roots.iter().rev().map(|&i| (i, Vec::new())).collect();
        while let Some((i, last)) = todo.pop() {
            let item = &self.items[i];
            let is_call = |&k: &usize| matches!(self.items[k].what, What::Call(_));
            let last_call = item.children.iter().rposition(is_call);
            for (k, &child) in item.children.iter().enumerate().rev() {
                let mut line = last.clone();
                if line.len() < DEEPEST {
                    line.push(last_call.is_none_or(|l| k >= l));
                }
                todo.push((child, line));
            }
            rows.push(Row {
                at: item.at,
                what: item.what,
                starts: last.is_empty() || item.cut_in,
                cut_in: item.cut_in,
                last,
            });
        }
        rows
    }
}
