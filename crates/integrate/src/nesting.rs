//! Which call was made by which, and how much of its time was its own.
//!
//! Calls come in order of return, so within one flow of control the callees of a call are those finished calls that
//! began after it did: a stack per flow, and no depth is needed in the record. A flow is a task (by thread id, so it may
//! change the CPU) or the softirq, hardirq or NMI work of one CPU; the idle task, which every CPU has, counts per CPU.
//!
//! Self time = duration - direct callees - interrupt work that cut in directly into this call - off-CPU intervals of its task. Interrupt work
//! is finished top-level calls of a higher context on the same CPU within the call's time; the innermost call that encloses
//! them returns first, takes them, and they are not seen by its callers again. The same holds for off-CPU intervals, which the log has before the
//! call that they lie in. What cuts in on the CPU that the task has left cuts in on somebody else. So over a tree
//! `sum(self) + sum(irq) + sum(off) = duration of the root`, to the nanosecond.
//!
//! A call's number and that of its caller are known only when no caller can come any more. Trees wait for that for the
//! horizon; then they are given out in order of their end, each in order of entry.

use crate::ahead;
use crate::away::Away;
use kpat_model::hash::Map;
use kpat_model::{Call, Context, OffCpu, Point};

/// The call's self time would be negative: siblings overlap.
pub(super) const SELF_CLAMPED: u16 = 512;
pub(super) const POINT: u16 = 256;
/// Trees before one of which its memory is asked for.
const AHEAD: usize = 6;

#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub entry: i64,
    pub end: i64,
    pub self_ns: i64,
    pub irq_ns: i64,
    pub off_ns: i64,
    pub packet: u64,
    pub pid: u32,
    /// Nodes in its subtree, itself included.
    size: u32,
    /// `skb->len` at a point.
    pub len: u32,
    pub func: u16,
    pub skb_tag: u16,
    pub cpu: u16,
    pub flags: u16,
    pub ctx: Context,
}

impl Node {
    pub fn is_point(&self) -> bool {
        self.flags & POINT != 0
    }

    /// Entry and return are known.
    pub fn timed(&self) -> bool {
        self.flags & (POINT | u16::from(Call::NO_RETURN)) == 0
    }
}

/// A node as it is given out.
pub(super) struct Placed<'a> {
    pub node: &'a Node,
    pub call_id: i64,
    pub parent_id: Option<i64>,
    pub depth: i32,
}

/// Top-level times of one interrupting context on one CPU, not yet taken by what they interrupted.
#[derive(Default)]
struct Cuts {
    spans: Vec<(i64, i64)>,
}

/// A call without a known caller, with how many nodes its tree has.
#[derive(Clone, Copy)]
struct Root {
    end: i64,
    size: u32,
}

/// Trees of one flow of control, each behind its callees. The roots are held beside: every sweep looks at all of them, and none of the nodes.
#[derive(Default)]
struct Flow {
    nodes: Vec<Node>,
    roots: Vec<Root>,
    /// Of each, from the front: given out already. They go when they are the half.
    nodes_gone: usize,
    roots_gone: usize,
}

impl Flow {
    fn is_empty(&self) -> bool {
        self.nodes_gone == self.nodes.len()
    }

    /// The last root and where its tree begins.
    fn last(&self, end: usize) -> Option<(&Node, usize)> {
        let root = end.checked_sub(1).filter(|_| end > self.nodes_gone).map(|i| &self.nodes[i])?;
        Some((root, end - root.size as usize))
    }

    /// A root that has taken the last `callees` roots as its own.
    fn push(&mut self, node: Node, callees: usize) {
        self.roots.truncate(self.roots.len() - callees);
        self.roots.push(Root { end: node.end, size: node.size });
        self.nodes.push(node);
    }

    /// Each root that ended before `before`, with the number of its first node and its own.
    fn ended(&self, before: i64) -> impl Iterator<Item = (Root, usize, usize)> + '_ {
        let mut end = self.nodes_gone;
        self.roots[self.roots_gone..].iter().filter_map(move |r| {
            let start = end;
            end += r.size as usize;
            (r.end < before).then_some((*r, start, end - 1))
        })
    }

    /// Those are given out. Returns how many nodes they had.
    fn forget(&mut self, before: i64) -> usize {
        let waiting = self.nodes.len() - self.nodes_gone;
        while let Some(r) = self.roots.get(self.roots_gone).filter(|r| r.end < before) {
            self.nodes_gone += r.size as usize;
            self.roots_gone += 1;
        }
        // Trees need not end in order (a record may be late): then there are gaps to close.
        let gaps = self.roots[self.roots_gone..].iter().any(|r| r.end < before);
        if gaps || self.nodes_gone > self.nodes.len() / 2 {
            let (mut from, mut to) = (self.nodes_gone, 0);
            for r in &self.roots[self.roots_gone..] {
                let size = r.size as usize;
                if r.end >= before {
                    self.nodes.copy_within(from..from + size, to);
                    to += size;
                }
                from += size;
            }
            self.nodes.truncate(to);
            self.roots.drain(..self.roots_gone);
            self.roots.retain(|r| r.end >= before);
            (self.nodes_gone, self.roots_gone) = (0, 0);
        }
        waiting - (self.nodes.len() - self.nodes_gone)
    }
}

#[derive(Default)]
pub(super) struct Nesting {
    flows: Map<u64, Flow>,
    /// By CPU, then softirq, hardirq, NMI.
    cuts: Vec<[Cuts; 3]>,
    away: Away,
    next_id: i64,
    /// Calls that neither enclose nor follow their predecessor in the same flow.
    pub crossing: u64,
    pub clamped: u64,
    /// Nodes waiting.
    pub pending: usize,
}

fn flow_key(cpu: u16, ctx: Context, pid: u32) -> u64 {
    match ctx {
        Context::Task if pid != 0 => u64::from(pid),
        _ => 1 << 40 | u64::from(ctx as u8) << 32 | u64::from(cpu),
    }
}

fn level(ctx: Context) -> usize {
    match ctx {
        Context::Softirq => 1,
        Context::Hardirq => 2,
        Context::Nmi => 3,
        Context::Task | Context::Unknown => 0,
    }
}

impl Nesting {
    /// Takes a finished call; gives its self time.
    pub fn call(&mut self, cpu: u16, c: &Call) -> i64 {
        // Without a return there is no duration, whatever stands there: nothing comes off its caller's time.
        let known = c.flags & Call::NO_RETURN == 0;
        let dur = if known { i64::try_from(c.dur_ns).unwrap_or(i64::MAX) } else { 0 };
        let node = Node {
            entry: c.entry.0,
            end: c.entry.0.saturating_add(dur),
            self_ns: dur,
            irq_ns: 0,
            off_ns: 0,
            packet: c.packet.0,
            pid: c.pid,
            size: 1,
            len: 0,
            func: c.func.0,
            skb_tag: c.skb_tag,
            cpu,
            flags: u16::from(c.flags),
            ctx: c.ctx,
        };
        self.push(node)
    }

    /// A task was off the CPU; logged before the calls that it was in the midst of.
    pub fn off_cpu(&mut self, p: &OffCpu) {
        self.away.add(p);
    }

    pub fn point(&mut self, cpu: u16, p: &Point) {
        self.push(Node {
            entry: p.at.0,
            end: p.at.0,
            self_ns: 0,
            irq_ns: 0,
            off_ns: 0,
            packet: p.packet.0,
            pid: p.pid,
            size: 1,
            len: p.len_bytes,
            func: p.func.0,
            skb_tag: p.skb_tag,
            cpu,
            flags: POINT,
            ctx: p.ctx,
        });
    }

    fn push(&mut self, mut node: Node) -> i64 {
        let flow = self.flows.entry(flow_key(node.cpu, node.ctx, node.pid)).or_default();
        let mut taken = 0;
        if node.timed() {
            let mut at = flow.nodes.len();
            let mut callees = 0i64;
            while let Some((last, start)) = flow.last(at) {
                if last.entry < node.entry || last.end > node.end {
                    // The one before must be over before we began.
                    if last.end > node.entry && !last.is_point() {
                        self.crossing += 1;
                    }
                    break;
                }
                callees = callees.saturating_add(last.end.saturating_sub(last.entry));
                taken += 1;
                at = start;
            }
            node.size += (flow.nodes.len() - at) as u32;
            let ran = if node.ctx == Context::Task {
                self.away.take(&mut node.off_ns, node.pid, node.cpu, (node.entry, node.end))
            } else {
                Vec::new()
            };
            node.irq_ns = if ran.is_empty() {
                take_cuts(&mut self.cuts, &node)
            } else {
                take_cuts_of(&mut self.cuts, &ran)
            };
            let own = (node.end - node.entry)
                .saturating_sub(callees)
                .saturating_sub(node.irq_ns)
                .saturating_sub(node.off_ns);
            if own < 0 {
                node.flags |= SELF_CLAMPED;
                self.clamped += 1;
            }
            node.self_ns = own.max(0);
        }
        flow.push(node, taken);
        self.pending += 1;
        node.self_ns
    }

    /// Calls in which their task was off the CPU more often than the log can say.
    pub fn more_pauses(&self) -> u64 {
        self.away.unknown
    }

    /// Gives out trees whose root ended before `before`.
    pub fn release<E>(
        &mut self,
        before: i64,
        mut give: impl FnMut(Placed<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // (end of the root, flow, first node, root)
        let mut roots: Vec<(i64, u64, usize, usize)> = Vec::new();
        for (&key, flow) in &self.flows {
            roots.extend(flow.ended(before).map(|(r, start, root)| (r.end, key, start, root)));
        }
        // Each flow's are in order but for those that came late, which is what this sort is quick with.
        roots.sort();
        let mut todo: Vec<(usize, Option<i64>, i32)> = Vec::new();
        for (n, &(_, key, _, root)) in roots.iter().enumerate() {
            if let Some((_, key, start, root)) = roots.get(n + AHEAD)
                && let Some(flow) = self.flows.get(key)
            {
                ahead::fetch(&flow.nodes[*start..=*root]);
            }
            let Some(flow) = self.flows.get(&key).map(|f| &f.nodes) else { continue };
            todo.push((root, None, 0));
            while let Some((i, parent_id, depth)) = todo.pop() {
                let call_id = self.next_id;
                self.next_id += 1;
                give(Placed { node: &flow[i], call_id, parent_id, depth })?;
                let first = i + 1 - flow[i].size as usize;
                let mut end = i;
                while end > first {
                    todo.push((end - 1, Some(call_id), depth + 1));
                    end -= flow[end - 1].size as usize;
                }
            }
        }
        for flow in self.flows.values_mut() {
            self.pending -= flow.forget(before);
        }
        self.flows.retain(|_, flow| !flow.is_empty());
        self.away.forget(before);
        for cuts in self.cuts.iter_mut().flatten() {
            let old = cuts.spans.partition_point(|&(_, end)| end < before);
            cuts.spans.drain(..old);
        }
        Ok(())
    }
}

/// Interrupts that cut in directly into this call; and, for an interrupt, its own span for what it interrupted.
fn take_cuts(all: &mut Vec<[Cuts; 3]>, node: &Node) -> i64 {
    if node.ctx == Context::Unknown {
        return 0;
    }
    let cpu = usize::from(node.cpu);
    if all.len() <= cpu {
        all.resize_with(cpu + 1, Default::default);
    }
    let own_level = level(node.ctx);
    let mut irq_ns = 0i64;
    for cuts in &mut all[cpu][own_level..] {
        while let Some(&(entry, end)) = cuts.spans.last() {
            if entry < node.entry || end > node.end {
                break;
            }
            irq_ns = irq_ns.saturating_add(end - entry);
            cuts.spans.pop();
        }
    }
    if own_level > 0 {
        let own = &mut all[cpu][own_level - 1].spans;
        while own.last().is_some_and(|&(entry, end)| entry >= node.entry && end <= node.end) {
            own.pop();
        }
        own.push((node.entry, node.end));
    }
    irq_ns
}

/// The same for a task's call that was not on one CPU all the time: what cut in while it was running, where it was.
fn take_cuts_of(all: &mut [[Cuts; 3]], ran: &[(u16, i64, i64)]) -> i64 {
    let mut irq_ns = 0i64;
    for &(cpu, from, to) in ran {
        let Some(of_cpu) = all.get_mut(usize::from(cpu)) else { continue };
        for cuts in of_cpu {
            let first = cuts.spans.partition_point(|&(_, end)| end < from);
            let after = first + cuts.spans[first..].partition_point(|&(_, end)| end <= to);
            let mut at = first;
            for i in first..after {
                let (entry, end) = cuts.spans[i];
                if entry >= from {
                    irq_ns = irq_ns.saturating_add(end - entry);
                } else {
                    cuts.spans[at] = (entry, end);
                    at += 1;
                }
            }
            cuts.spans.drain(at..after);
        }
    }
    irq_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{BootNs, FuncId, PacketId};

    fn call(func: u16, ctx: Context, pid: u32, entry: i64, end: i64) -> Call {
        Call {
            func: FuncId(func),
            ctx,
            flags: 0,
            skb_tag: 0,
            pid,
            packet: PacketId(1),
            entry: BootNs(entry),
            dur_ns: (end - entry) as u64,
        }
    }

    /// Calls as (cpu, func, ctx, pid, entry, end) in order of return; wanted as (func, parent func, depth, self, irq) in
    /// the order given out.
    fn check(calls: &[(u16, u16, Context, u32, i64, i64)], want: &[(u16, Option<u16>, i32, i64, i64)]) {
        check_paused(&[], calls, want);
    }

    /// With off-CPU intervals as (pid, from, to, cpu before, cpu after), all of which are logged first.
    fn check_paused(
        pauses: &[(u32, i64, i64, u16, u16)],
        calls: &[(u16, u16, Context, u32, i64, i64)],
        want: &[(u16, Option<u16>, i32, i64, i64)],
    ) {
        let mut n = Nesting::default();
        for &(pid, from, to, cpu_out, cpu_in) in pauses {
            n.off_cpu(&OffCpu {
                pid,
                from: BootNs(from),
                to: BootNs(to),
                preempted: true,
                wait_ns: 0,
                more: false,
                cpu_out,
                cpu_in,
                sleep: None,
            });
        }
        for &(cpu, func, ctx, pid, entry, end) in calls {
            n.call(cpu, &call(func, ctx, pid, entry, end));
        }
        let mut got = Vec::new();
        let mut by_id: Vec<u16> = Vec::new();
        n.release::<()>(i64::MAX, |p| {
            by_id.push(p.node.func);
            let parent = p.parent_id.map(|i| by_id[i as usize]);
            got.push((p.node.func, parent, p.depth, p.node.self_ns, p.node.irq_ns));
            Ok(())
        })
        .unwrap();
        assert_eq!(got, want);
        assert_eq!(n.pending, 0);
    }

    const T: Context = Context::Task;
    const S: Context = Context::Softirq;
    const H: Context = Context::Hardirq;

    #[test]
    fn nested_calls() {
        check(
            &[(0, 3, T, 7, 20, 30), (0, 2, T, 7, 10, 40), (0, 4, T, 7, 50, 60), (0, 1, T, 7, 0, 100)],
            &[(1, None, 0, 60, 0), (2, Some(1), 1, 20, 0), (3, Some(2), 2, 10, 0), (4, Some(1), 1, 10, 0)],
        );
    }

    #[test]
    fn interrupt_belongs_to_the_innermost() {
        // 1 calls 2; a softirq (5 calls 6) cuts into 2, a hardirq 7 into 6, another hardirq 8 into 1.
        check(
            &[
                (0, 7, H, 7, 33, 35),
                (0, 6, S, 7, 32, 36),
                (0, 5, S, 7, 30, 40),
                (0, 2, T, 7, 10, 60),
                (0, 8, H, 7, 70, 73),
                (0, 1, T, 7, 0, 100),
            ],
            &[
                (7, None, 0, 2, 0),
                (5, None, 0, 6, 0),
                (6, Some(5), 1, 2, 2),
                (8, None, 0, 3, 0),
                (1, None, 0, 47, 3),
                (2, Some(1), 1, 40, 10),
            ],
        );
    }

    #[test]
    fn a_task_may_change_its_cpu_and_idle_may_not() {
        check(&[(1, 2, T, 7, 10, 20), (0, 1, T, 7, 0, 30)], &[(1, None, 0, 20, 0), (2, Some(1), 1, 10, 0)]);
        check(&[(1, 2, T, 0, 10, 20), (0, 1, T, 0, 0, 30)], &[(2, None, 0, 10, 0), (1, None, 0, 30, 0)]);
    }

    #[test]
    fn off_cpu_intervals_are_in_no_self_time() {
        // Task 7: 1 calls 2 and sleeps in it; once more in 1 itself. A softirq (5) cuts into 2 before, another (6) into task 8 (4) on
        // the CPU that 7 has left.
        check_paused(
            &[(7, 30, 60, 0, 0), (7, 80, 85, 0, 0)],
            &[
                (0, 5, S, 7, 20, 24),
                (0, 6, S, 8, 40, 45),
                (0, 4, T, 8, 35, 50),
                (0, 2, T, 7, 10, 70),
                (0, 1, T, 7, 0, 100),
            ],
            &[
                (5, None, 0, 4, 0),
                (6, None, 0, 5, 0),
                (4, None, 0, 10, 5),
                (1, None, 0, 35, 0),
                (2, Some(1), 1, 26, 4),
            ],
        );
        // It comes back on another CPU: interrupts of either count while it was there, and only then.
        check_paused(
            &[(7, 30, 60, 0, 1)],
            &[
                (0, 5, S, 7, 10, 20),
                (1, 5, S, 0, 10, 20),
                (0, 6, S, 0, 70, 80),
                (1, 6, S, 7, 70, 80),
                (1, 1, T, 7, 0, 100),
            ],
            &[
                (5, None, 0, 10, 0),
                (5, None, 0, 10, 0),
                (6, None, 0, 10, 0),
                (6, None, 0, 10, 0),
                (1, None, 0, 50, 20),
            ],
        );
        // Before it, and of another task: not its.
        check_paused(&[(7, 0, 10, 0, 0), (8, 12, 14, 0, 0)], &[(0, 1, T, 7, 10, 20)], &[(1, None, 0, 10, 0)]);
    }

    #[test]
    fn trees_wait_for_their_caller() {
        let mut n = Nesting::default();
        n.call(0, &call(2, T, 7, 10, 20));
        n.call(0, &call(3, T, 8, 10, 200));
        let mut given = 0;
        n.release::<()>(100, |_| {
            given += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!((given, n.pending), (1, 1));
    }

    /// Given out sweep by sweep, with records that come late among them, a tree is what it is when all are given out at once.
    #[test]
    fn sweeps_give_out_what_one_sweep_does() {
        let mut random = kpat_model::random::below(7);
        let mut calls = Vec::new();
        for tree in 0..400i64 {
            let (pid, t) = (1 + random(3) as u32, tree * 100);
            let leaves = random(4) as i64;
            calls.extend((0..leaves).map(|n| call(2, Context::Task, pid, t + 10 * n + 1, t + 10 * n + 9)));
            calls.push(call(1, Context::Task, pid, t, t + 60));
            if random(9) == 0 {
                let late = calls.len() - 1 - leaves as usize;
                calls[late..].rotate_left(1);
            }
        }
        let logged = |every: usize| {
            let (mut n, mut out) = (Nesting::default(), Vec::new());
            let mut sweep = |n: &mut Nesting, before: i64| {
                n.release(before, |p| {
                    out.push((p.node.entry, p.node.end, p.node.self_ns, p.depth, p.node.pid));
                    Ok::<(), ()>(())
                })
                .unwrap();
            };
            for (i, c) in calls.iter().enumerate() {
                n.call(0, c);
                if i % every == 0 {
                    sweep(&mut n, c.entry.0 - 300);
                }
            }
            sweep(&mut n, i64::MAX);
            assert_eq!((n.pending, n.flows.len()), (0, 0));
            out.sort_unstable();
            out
        };
        let at_once = logged(usize::MAX);
        assert_eq!(at_once.len(), calls.len());
        for every in [1, 3, 17] {
            assert_eq!(logged(every), at_once, "{every}");
        }
    }
}
