//! Packets one after the other, each with all that it went through, from one pass over the call table.
//!
//! The table holds whole trees, one after the other, in the order in which their roots ended; a packet's calls lie in
//! several of them. So each chosen packet collects its calls until it has as many as its row says, and is then given
//! out and forgotten: memory is what is open at one time, whatever the log holds. Rejected: a look-up per packet,
//! which reads the same row groups again for each.

use super::rests::{Rest, Rests};
use crate::abreast::Progress;
use crate::choice::{Choice, PacketFilter};
use crate::codes::call_flag;
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::hash::Map;
use kpat_store::TableFile;
use kpat_store::tables::*;

/// What is kept of a packet while its calls are collected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief {
    pub packet_id: i64,
    pub first_ns: i64,
    pub last_ns: i64,
    /// Of its path; later it is only freed.
    pub path_end_ns: i64,
    pub verdict: i32,
    /// What the caller made of it.
    pub group: u32,
    expected: u32,
    pub before: Before,
}

/// Work and wait before a packet was first seen, 0: none, or not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Before {
    pub driver_ns: i64,
    pub softirq_ns: i64,
    /// Since the card stamped it.
    pub card_ns: i64,
    /// Bound of that; `None`: it is not known.
    pub card_bound_ns: Option<i64>,
}

impl Brief {
    fn of(p: &PacketRow, group: u32, expected: u32) -> Brief {
        let known = |ns: Option<i64>| ns.unwrap_or(0).max(0);
        let before = Before {
            driver_ns: known(p.driver_ns),
            softirq_ns: known(p.softirq_ns),
            card_ns: known(p.card_ns),
            card_bound_ns: p.card_ns.and(p.card_bound_ns),
        };
        let PacketRow { packet_id, first_ns, last_ns, verdict, .. } = *p;
        let path_end_ns = first_ns.saturating_add(p.path_ns);
        Brief { packet_id, first_ns, last_ns, path_end_ns, verdict, group, expected, before }
    }
}

/// A stretch of a call's own time: its callees, recorded interrupts and off-CPU intervals of its task are cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub call_id: i64,
    pub func_id: i32,
    pub from: i64,
    pub to: i64,
}

/// One packet with its calls and points in order of entry; calls on lists that it was on included.
#[derive(Debug)]
pub(crate) struct Life {
    pub brief: Brief,
    pub rows: Vec<CallRow>,
    /// In order of their start.
    pub pieces: Vec<Piece>,
    /// When tasks were off the CPU within its calls, and before they began, in order.
    pub rests: Vec<Rest>,
    /// Calls and points directly below each call, by call_id; those that have any.
    below: Vec<(i64, u32)>,
}

impl Life {
    /// Calls and points directly below this call, those that did not touch this packet included.
    pub fn below(&self, call_id: i64) -> u32 {
        self.below.binary_search_by_key(&call_id, |b| b.0).map_or(0, |i| self.below[i].1)
    }
}

impl Life {
    /// A packet with its calls in any order, for what needs no own times.
    pub fn of_calls(store: &Store, packet: &PacketRow, mut rows: Vec<CallRow>) -> Result<Life> {
        rows.sort_unstable_by_key(|c| (c.entry_ns, c.call_id));
        let brief = Brief::of(packet, 0, rows.len() as u32);
        let all = Rests::open(store, packet.first_ns, packet.last_ns)?;
        let mut rests: Vec<Rest> = Vec::new();
        for row in &rows {
            rests.extend(all.before(row));
            rests.extend_from_slice(all.within(row));
        }
        rests.sort_unstable();
        rests.dedup();
        Ok(Life { brief, rows, pieces: Vec::new(), rests, below: Vec::new() })
    }
}

/// Group of calls without a known packet.
pub(crate) const NO_PACKET: u32 = u32::MAX;

/// A whole tree, parents before children, children in order of entry.
pub(crate) struct Tree<'a> {
    pub rows: &'a [CallRow],
    /// Group of the first chosen packet of each call; `None`: not asked for.
    pub groups: &'a [Option<u32>],
    /// Chosen packets of each call, as (place, packet), in the order of the places.
    pub packets: &'a [(usize, i64)],
    /// All of it was read: false where it reaches into row groups in which no chosen packet lived.
    pub whole: bool,
}

impl Tree<'_> {
    /// Place of the caller of the call at `i`.
    pub fn parent(&self, i: usize) -> Option<usize> {
        parent_of(self.rows, i)
    }
}

fn parent_of(rows: &[CallRow], i: usize) -> Option<usize> {
    let place = usize::try_from(rows[i].parent_id?.checked_sub(rows[0].call_id)?).ok()?;
    (place < i).then_some(place)
}

pub(crate) fn end_ns(call: &CallRow) -> i64 {
    call.entry_ns.saturating_add(call.dur_ns.unwrap_or(0).max(0))
}

/// Which packets, and what to do with them.
pub(crate) struct Asked<'a> {
    pub filter: &'a PacketFilter,
    pub packet: Option<i64>,
}

impl Asked<'_> {
    /// Nothing was asked for in particular: calls without a packet count as well.
    fn is_all(&self) -> bool {
        self.packet.is_none() && *self.filter == PacketFilter::default()
    }
}

/// Walks over the chosen packets. `group` sorts them, `tree` sees every tree with a chosen call, `life` every packet
/// when it is whole.
pub(crate) fn walk(
    store: &Store,
    asked: &Asked<'_>,
    progress: Progress<'_>,
    group: &mut dyn FnMut(&PacketRow) -> u32,
    tree: &mut dyn FnMut(&Tree<'_>),
    life: &mut dyn FnMut(Life),
) -> Result<()> {
    let open = choose(store, asked, progress, group)?;
    let chosen = Chosen { all: asked.is_all(), open, elsewhere: &|_| false };
    walk_chosen(store, chosen, &Members::open(store)?, progress, tree, life)
}

/// Packets whose lives are wanted.
pub(crate) struct Chosen<'a> {
    /// Calls without a packet count too.
    pub all: bool,
    pub open: Map<i64, Open>,
    /// Chosen as well, but walked over elsewhere: a call on a list is of the first chosen packet of the list alone.
    pub elsewhere: &'a dyn Fn(i64) -> bool,
}

/// As [`walk`].
pub(crate) fn walk_chosen(
    store: &Store,
    chosen: Chosen<'_>,
    members: &Members,
    progress: Progress<'_>,
    tree: &mut dyn FnMut(&Tree<'_>),
    life: &mut dyn FnMut(Life),
) -> Result<()> {
    let all = chosen.all;
    if chosen.open.is_empty() && !all {
        return Ok(());
    }
    let calls = store.table::<CallRow>()?;
    let groups = if all { (0..calls.groups()).collect() } else { groups_of(&calls, &chosen.open)? };
    let lived = |o: &Open| (o.brief.first_ns, o.brief.last_ns);
    let (first, last) = match all {
        true => (i64::MIN, i64::MAX),
        false => {
            let lives = chosen.open.values().map(lived);
            lives.fold((i64::MAX, i64::MIN), |a, b| (a.0.min(b.0), a.1.max(b.1)))
        }
    };
    let rests = Rests::open(store, first, last)?;
    let mut state = Walk { chosen, members, cuts: Cuts::default(), rests };
    let mut rows: Vec<CallRow> = Vec::new();
    let mut step = |state: &mut Walk<'_>, rows: &mut Vec<CallRow>, end_seen: bool| {
        one_tree(state, rows, end_seen, tree, life);
        rows.clear();
    };
    let mut before: Option<usize> = None;
    let total = groups.len() as u64;
    for (done, group) in (0..).zip(groups) {
        if !progress(done, total) {
            return Err(Error::Abandoned);
        }
        // What was left out in between has the rest of the tree.
        if before.is_some_and(|b| b + 1 != group) && !rows.is_empty() {
            step(&mut state, &mut rows, false);
        }
        // Every chosen packet has all its calls.
        if !all && state.chosen.open.is_empty() {
            return Ok(());
        }
        before = Some(group);
        calls.each(vec![group], |row: CallRow| {
            if row.depth == 0 && !rows.is_empty() {
                step(&mut state, &mut rows, true);
            }
            rows.push(row);
        })?;
    }
    if !rows.is_empty() {
        step(&mut state, &mut rows, before.is_none_or(|b| b + 1 == calls.groups()));
    }
    // Packets whose calls are fewer than their row says, or that have none.
    let mut left: Vec<Open> = state.chosen.open.into_values().collect();
    left.sort_unstable_by_key(|o| o.brief.packet_id);
    left.into_iter().for_each(|o| life(o.whole()));
    Ok(())
}

/// A packet that collects its calls.
pub(crate) struct Open {
    brief: Brief,
    rows: Vec<CallRow>,
    pieces: Vec<Piece>,
    rests: Vec<Rest>,
    below: Vec<(i64, u32)>,
}

impl Open {
    pub fn new(p: &PacketRow, group: u32) -> Open {
        let expected = p.calls.saturating_add(p.points).max(0).unsigned_abs();
        let brief = Brief::of(p, group, expected);
        Open { brief, rows: Vec::new(), pieces: Vec::new(), rests: Vec::new(), below: Vec::new() }
    }

    fn whole(mut self) -> Life {
        self.rows.sort_unstable_by_key(|c| (c.entry_ns, c.call_id));
        self.pieces.sort_unstable_by_key(|p| (p.from, p.call_id));
        self.rests.sort_unstable();
        self.rests.dedup();
        self.below.sort_unstable();
        let Open { brief, rows, pieces, rests, below } = self;
        Life { brief, rows, pieces, rests, below }
    }
}

/// So many packets are looked up one by one.
const FEW: usize = 4096;

fn choose(
    store: &Store,
    asked: &Asked<'_>,
    progress: Progress<'_>,
    group: &mut dyn FnMut(&PacketRow) -> u32,
) -> Result<Map<i64, Open>> {
    let mut open: Map<i64, Open> = Map::default();
    let choice = Choice::new(store, asked.filter, progress)?;
    let table = store.table::<PacketRow>()?;
    let mut take = |p: PacketRow| {
        let wanted = asked.packet.is_none_or(|id| id == p.packet_id) && choice.fits(&p);
        if wanted {
            open.insert(p.packet_id, Open::new(&p, group(&p)));
        }
    };
    match (asked.packet, &asked.filter.ids) {
        (Some(id), _) => table.rows_equal::<PacketRow>("packet_id", &[id])?.into_iter().for_each(take),
        (None, Some(ids)) if ids.len() <= FEW => {
            table.rows_equal::<PacketRow>("packet_id", ids)?.into_iter().for_each(take);
        }
        _ => table.each((0..table.groups()).filter(|g| choice.may(&table, *g)).collect(), &mut take)?,
    }
    Ok(open)
}

/// Row groups in whose time a chosen packet lived, and one before and after each run of them into which a tree reaches.
fn groups_of(calls: &TableFile, open: &Map<i64, Open>) -> Result<Vec<usize>> {
    // Lives by their beginning, each with the latest end up to there.
    let mut lives: Vec<(i64, i64)> = open.values().map(|o| (o.brief.first_ns, o.brief.last_ns)).collect();
    lives.sort_unstable();
    let mut latest = i64::MIN;
    for life in &mut lives {
        latest = latest.max(life.1);
        life.1 = latest;
    }
    let any_within = |have: std::ops::RangeInclusive<i64>| {
        let begun = lives.partition_point(|l| l.0 <= *have.end());
        begun > 0 && lives[begun - 1].1 >= *have.start()
    };
    let lived = |g: &usize| calls.range(*g, "entry_ns").is_none_or(any_within);
    let mut groups: Vec<usize> = (0..calls.groups()).filter(lived).collect();
    let is_new = |g: &usize| groups.binary_search(g).is_err();
    // Whether a tree goes on behind a run is seen when its last group has been read.
    let after: Vec<usize> =
        groups.iter().map(|g| g + 1).filter(|g| *g < calls.groups() && is_new(g)).collect();
    let mut before = Vec::new();
    for g in groups.iter().filter_map(|g| g.checked_sub(1)).filter(is_new) {
        if calls.ints(g + 1, "depth")?.first().is_some_and(|depth| *depth > 0) {
            before.push(g);
        }
    }
    groups.extend(before);
    groups.extend(after);
    groups.sort_unstable();
    groups.dedup();
    Ok(groups)
}

/// What is known while walking.
struct Walk<'a> {
    chosen: Chosen<'a>,
    members: &'a Members,
    cuts: Cuts,
    rests: Rests,
}

fn one_tree(
    walk: &mut Walk<'_>,
    rows: &[CallRow],
    end_seen: bool,
    tree: &mut dyn FnMut(&Tree<'_>),
    life: &mut dyn FnMut(Life),
) {
    let Walk { chosen: Chosen { all, open, elsewhere }, members, cuts, rests } = walk;
    let wanted =
        |r: &CallRow| r.flags & call_flag::LIST != 0 || r.packet_id.is_some_and(|p| open.contains_key(&p));
    if !*all && !rows.iter().any(wanted) {
        cuts.add(&rows[0]);
        return;
    }
    let pieces = pieces(rows, cuts, rests);
    let mut groups: Vec<Option<u32>> = vec![None; rows.len()];
    let mut chosen: Vec<(usize, i64)> = Vec::new();
    let mut below = vec![0u32; rows.len()];
    (0..rows.len()).filter_map(|i| parent_of(rows, i)).for_each(|p| below[p] += 1);
    let mut whole: Vec<i64> = Vec::new();
    let mut at = 0;
    for (i, row) in rows.iter().enumerate() {
        let first = at;
        while pieces.get(at).is_some_and(|p| p.call_id == row.call_id) {
            at += 1;
        }
        if row.packet_id.is_none() && *all {
            groups[i] = Some(NO_PACKET);
        }
        let list = row.flags & call_flag::LIST != 0;
        let further = if list { members.of(row.call_id) } else { Vec::new() };
        let mut counted = false;
        for packet in row.packet_id.into_iter().chain(further) {
            if let Some(o) = open.get_mut(&packet) {
                if !counted {
                    groups[i].get_or_insert(o.brief.group);
                }
                chosen.push((i, packet));
                o.rows.push(row.clone());
                o.pieces.extend_from_slice(&pieces[first..at]);
                o.rests.extend(rests.before(row));
                o.rests.extend_from_slice(rests.within(row));
                if below[i] > 0 {
                    o.below.push((row.call_id, below[i]));
                }
                if o.rows.len() as u64 >= u64::from(o.brief.expected) {
                    whole.push(packet);
                }
            } else if list && groups[i].is_none() && elsewhere(packet) {
                counted = true;
            }
        }
    }
    if groups.iter().any(Option::is_some) {
        tree(&Tree { rows, groups: &groups, packets: &chosen, whole: end_seen && rows[0].depth == 0 });
    }
    whole.sort_unstable();
    whole.dedup();
    for packet in whole {
        if let Some(o) = open.remove(&packet) {
            life(o.whole());
        }
    }
}

/// Own time of every timed call of a tree, in the order of the rows.
fn pieces(rows: &[CallRow], cuts: &mut Cuts, rests: &Rests) -> Vec<Piece> {
    let mut cursor: Vec<i64> = rows.iter().map(|r| r.entry_ns).collect();
    let mut own: Vec<Vec<(i64, i64)>> = vec![Vec::new(); rows.len()];
    for i in 1..rows.len() {
        if let Some(p) = parent_of(rows, i)
            && rows[i].dur_ns.is_some()
        {
            let (from, to) = (rows[i].entry_ns, end_ns(&rows[i]));
            if from > cursor[p] {
                own[p].push((cursor[p], from));
            }
            cursor[p] = cursor[p].max(to);
        }
    }
    let mut out = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate().filter(|(_, r)| r.dur_ns.is_some()) {
        let end = end_ns(row);
        if end > cursor[i] {
            own[i].push((cursor[i], end));
        }
        let mut put = |from, to| {
            if to > from {
                out.push(Piece { call_id: row.call_id, func_id: row.func_id, from, to });
            }
        };
        for &(from, to) in &own[i] {
            let cut = row.irq_ns.unwrap_or(0) > 0;
            rests.running(row, from, to, &mut |from, to, cpu| {
                if cut { cuts.carve(row, cpu, (from, to), &mut put) } else { put(from, to) }
            });
        }
    }
    cuts.add(&rows[0]);
    out
}

/// Interrupt work of late, by CPU: what may have cut into a call that ends now.
#[derive(Default)]
struct Cuts {
    by_cpu: Map<i32, Vec<(i64, i64, i32)>>,
}

/// A call that is longer does not get its interrupts placed (their sum it has).
const LONGEST_NS: i64 = 10_000_000_000;

fn level(ctx: i32) -> i32 {
    if (1..=3).contains(&ctx) { ctx } else { 0 }
}

impl Cuts {
    fn add(&mut self, root: &CallRow) {
        if level(root.ctx) == 0 || root.dur_ns.is_none() {
            return;
        }
        let spans = self.by_cpu.entry(root.cpu).or_default();
        let end = end_ns(root);
        if spans.len() >= 4096 && spans.len().is_multiple_of(4096) {
            let old = spans.partition_point(|s| s.1 < end.saturating_sub(LONGEST_NS));
            spans.drain(..old);
        }
        spans.push((root.entry_ns, end, level(root.ctx)));
    }

    /// What is left of `from..to` of this call when higher contexts on the CPU that it ran on are taken out.
    fn carve(&self, call: &CallRow, cpu: i32, (from, to): (i64, i64), put: &mut dyn FnMut(i64, i64)) {
        let mut hits: Vec<(i64, i64)> = Vec::new();
        if let Some(spans) = self.by_cpu.get(&cpu) {
            // In order of end.
            let first = spans.partition_point(|s| s.1 <= from);
            let higher = |s: &&(i64, i64, i32)| s.2 > level(call.ctx) && s.0 < to && s.0 >= call.entry_ns;
            hits.extend(
                spans[first..].iter().take_while(|s| s.1 <= end_ns(call)).filter(higher).map(|s| (s.0, s.1)),
            );
        }
        hits.sort_unstable();
        let mut at = from;
        for (a, b) in hits {
            put(at, a.min(to));
            at = at.max(b);
        }
        put(at, to);
    }
}

/// Further packets of list calls: two numbers each, and there are few lists, so all are held.
pub(crate) struct Members {
    rows: Vec<(i64, i64)>,
}

impl Members {
    pub fn open(store: &Store) -> Result<Members> {
        let mut rows = Vec::new();
        let table = store.table::<CallMemberRow>()?;
        table.each((0..table.groups()).collect(), |m: CallMemberRow| rows.push((m.call_id, m.packet_id)))?;
        rows.sort_unstable();
        Ok(Members { rows })
    }

    fn of(&self, call_id: i64) -> Vec<i64> {
        let first = self.rows.partition_point(|m| m.0 < call_id);
        self.rows[first..].iter().take_while(|m| m.0 == call_id).map(|m| m.1).collect()
    }
}
