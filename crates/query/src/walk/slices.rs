//! As [`super::lives`], but the packets are taken slice by slice of their numbers, each slice with the row groups in which its
//! packets lived, and several slices at once. What was summed up of the slices is joined in their order: a sum over the
//! first slices is one over the first packets, there long before that of all. The first slices are small therefore.

use super::lives::{Chosen, Life, Members, Open, Tree, walk_chosen};
use crate::abreast::Progress as Parts;
use crate::abreast::abreast;
use crate::choice::PacketFilter;
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_model::hash::Map;
use kpat_store::TableFile;
use kpat_store::tables::*;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// Packets of the first slice, and of later ones.
const FIRST: usize = 2_048;
pub(crate) const MOST: usize = 65_536;
/// Packets that live longer than this part of the log are walked over together, once: each slice that has one reads
/// the row groups of its whole life.
const LONG: i64 = 16;

/// What to do with packets, calls and lives. One for each slice, joined.
pub(crate) trait Sum: Send {
    fn packet(&mut self, _: &PacketRow) {}
    fn tree(&mut self, _: &Tree<'_>) {}
    fn life(&mut self, life: Life);
}

/// Packets by number, or all; `None`: the filter asks for more, and all packets have to be looked at first.
pub(crate) fn numbers(filter: &PacketFilter) -> Option<Option<&[i64]>> {
    let only = PacketFilter { ids: filter.ids.clone(), ..PacketFilter::default() };
    (*filter == only).then_some(filter.ids.as_deref())
}

/// Walks over the packets with these numbers (sorted; `None`: all; calls without a packet are left out). `join` is given
/// the sums, in order of the packets' numbers, but for the packets that live long, which come last. `most` packets make a
/// slice: the more, the fewer row groups are read twice.
///
/// Errors: [`Error::Abandoned`].
pub(crate) fn walk_slices<S: Sum>(
    store: &Store,
    ids: Option<&[i64]>,
    most: usize,
    progress: Parts<'_>,
    new: &(dyn Fn() -> S + Sync),
    join: &mut dyn FnMut(S),
) -> Result<()> {
    let table = store.table::<PacketRow>()?;
    let calls = store.table::<CallRow>()?;
    let members = Members::open(store)?;
    let span = store.manifest.last_ns.saturating_sub(store.manifest.first_ns);
    let long_ns = if calls.groups() > LONG as usize { span / LONG } else { i64::MAX };
    let late: Mutex<Vec<PacketRow>> = Mutex::default();
    let lives = |mut rows: Vec<PacketRow>, awaited: &dyn Fn() -> bool| {
        rows.sort_unstable_by_key(|p| p.packet_id);
        let mut sum = new();
        rows.iter().for_each(|p| sum.packet(p));
        let open: Map<i64, Open> = rows.iter().map(|p| (p.packet_id, Open::new(p, 0))).collect();
        let chosen = |p: i64| ids.is_none_or(|ids| ids.binary_search(&p).is_ok());
        let elsewhere = |p: i64| chosen(p) && rows.binary_search_by_key(&p, |r| r.packet_id).is_err();
        let chosen = Chosen { all: false, open, elsewhere: &elsewhere };
        let shared = std::cell::RefCell::new(&mut sum);
        let tree = &mut |tree: &Tree<'_>| shared.borrow_mut().tree(tree);
        let life = &mut |life: Life| shared.borrow_mut().life(life);
        walk_chosen(store, chosen, &members, &mut |_, _| awaited(), tree, life)?;
        Ok(sum)
    };
    let work = |slice: &RangeInclusive<i64>, awaited: &dyn Fn() -> bool| {
        let mut rows: Vec<PacketRow> = Vec::new();
        for group in table.groups_where("packet_id", slice) {
            if !awaited() {
                return Err(Error::Abandoned);
            }
            let wanted = |p: &i64| slice.contains(p) && ids.is_none_or(|ids| ids.binary_search(p).is_ok());
            let have = table.ints(group, "packet_id")?;
            let places: Vec<u32> = (0..).zip(&have).filter(|(_, p)| wanted(p)).map(|(i, _)| i).collect();
            rows.extend(table.rows_at::<PacketRow>(group, &places)?);
        }
        let (long, rows): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|p| p.last_ns.saturating_sub(p.first_ns) > long_ns);
        late.lock().unwrap_or_else(PoisonError::into_inner).extend(long);
        lives(rows, awaited)
    };
    let slices = slices(&table, ids, most)?;
    abreast(&slices, progress, &work, join)?;
    let late = late.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !late.is_empty() {
        let work = |rows: &Vec<PacketRow>, awaited: &dyn Fn() -> bool| lives(rows.clone(), awaited);
        abreast(&[late], progress, &work, join)?;
    }
    Ok(())
}

/// Stretches of packet numbers, in order, each of so many packets; only those that hold a wanted one.
fn slices(table: &TableFile, ids: Option<&[i64]>, most: usize) -> Result<Vec<RangeInclusive<i64>>> {
    let mut all: Vec<i64> = Vec::new();
    for group in 0..table.groups() {
        all.extend(table.ints(group, "packet_id")?);
    }
    all.sort_unstable();
    if let Some(twice) = all.windows(2).find(|p| p[0] == p[1]) {
        return Err(table.damaged(format!("packet {} stands in it more than once", twice[0])).into());
    }
    let (mut out, mut rest, mut size) = (Vec::new(), all.as_slice(), FIRST.min(most));
    while let Some(&first) = rest.first() {
        let (slice, further) = rest.split_at(rest.len().min(size));
        let last = slice.last().copied().unwrap_or(first);
        rest = further;
        if ids.is_none_or(|ids| ids.get(ids.partition_point(|p| *p < first)).is_some_and(|p| *p <= last)) {
            out.push(first..=last);
            size = (size * 2).min(most);
        }
    }
    Ok(out)
}
