//! What a log has of applications in exact order of time: crossings, words of TCP's state, gaps.
//!
//! A table's rows are in order but for a few that were logged late. A row may go as soon as no row group behind it begins
//! earlier, which the groups' statistics say; so what is held is about one row group, however long the log.

use crate::error::{Error, Result};
use crate::store::{Store, Times};
use kpat_model::hash::Set;
use kpat_store::tables::*;
use kpat_store::{Row, TableFile};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Sockets that are asked for; none named: all.
#[derive(Clone)]
pub(super) struct Only(Arc<Set<i64>>);

impl Only {
    pub fn of(ids: &[i64]) -> Only {
        Only(Arc::new(ids.iter().copied().collect()))
    }

    pub fn has(&self, id: i64) -> bool {
        self.0.is_empty() || self.0.contains(&id)
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub enum Moment<'a> {
    Crossing(&'a AppEventRow),
    State(&'a TcpStateRow),
    Gap(&'a GapRow),
}

pub(super) struct Ordered<R> {
    table: Arc<TableFile>,
    column: &'static str,
    within: RangeInclusive<i64>,
    at: fn(&R) -> i64,
    wanted: Box<dyn Fn(&R) -> bool>,
    group: usize,
    times: Times,
    held: VecDeque<R>,
}

impl<R: Row> Ordered<R> {
    pub(super) fn new(
        store: &Store,
        column: &'static str,
        at: fn(&R) -> i64,
        wanted: Box<dyn Fn(&R) -> bool>,
    ) -> Result<Ordered<R>> {
        let table = store.table::<R>()?;
        let times = Times::of(&table, column);
        let within = i64::MIN..=i64::MAX;
        Ok(Ordered { table, column, within, at, wanted, group: 0, times, held: VecDeque::new() })
    }

    /// Row groups without a row in this time are passed over.
    fn within(self, within: RangeInclusive<i64>) -> Ordered<R> {
        Ordered { within, ..self }
    }

    pub(super) fn pop(&mut self) -> Option<R> {
        self.held.pop_front()
    }

    /// When the next row is, which is then the first of those held.
    pub(super) fn peek(&mut self) -> Result<Option<i64>> {
        loop {
            let first = self.held.front().map(self.at);
            match first {
                Some(at) if at <= self.times.earliest_from(self.group) => return Ok(first),
                _ if self.group == self.table.groups() => return Ok(first),
                _ => {}
            }
            let range = self.table.range(self.group, self.column);
            if range.is_some_and(|r| r.start() > self.within.end() || r.end() < self.within.start()) {
                self.group += 1;
                continue;
            }
            let (held, wanted) = (&mut self.held, &self.wanted);
            self.table.each(vec![self.group], |row: R| {
                if wanted(&row) {
                    held.push_back(row);
                }
            })?;
            self.group += 1;
            self.held.make_contiguous().sort_by_key(self.at);
        }
    }
}

/// Everything of these sockets (empty: of all) and every gap, in order of time. At one moment a gap comes first, then what
/// crossed, then the state.
pub fn in_order<E: From<Error>>(
    store: &Store,
    only: &[i64],
    each: impl FnMut(Moment<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    in_order_within(store, only, i64::MIN..=i64::MAX, each)
}

/// The same of the row groups that have anything of this time, whole.
pub(super) fn in_order_within<E: From<Error>>(
    store: &Store,
    only: &[i64],
    within: RangeInclusive<i64>,
    mut each: impl FnMut(Moment<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let of_event = Only::of(only);
    let of_state = of_event.clone();
    let mut events: Ordered<AppEventRow> = Ordered::new(
        store,
        "at_ns",
        |e| e.at_ns,
        Box::new(move |e: &AppEventRow| of_event.has(e.socket_id)),
    )?
    .within(within.clone());
    let mut states: Ordered<TcpStateRow> = Ordered::new(
        store,
        "at_ns",
        |s| s.at_ns,
        Box::new(move |s: &TcpStateRow| of_state.has(s.socket_id)),
    )?
    .within(within.clone());
    let mut gaps: Ordered<GapRow> =
        Ordered::new(store, "from_ns", |g: &GapRow| g.from_ns, Box::new(|_| true))?.within(within);
    loop {
        let heads = [gaps.peek()?, events.peek()?, states.peek()?];
        let next = (0..3).filter_map(|i| heads[i].map(|at| (at, i))).min();
        match next {
            None => return Ok(()),
            Some((_, 0)) => gaps.held.pop_front().map_or(Ok(()), |g| each(Moment::Gap(&g)))?,
            Some((_, 1)) => events.held.pop_front().map_or(Ok(()), |e| each(Moment::Crossing(&e)))?,
            Some(_) => states.held.pop_front().map_or(Ok(()), |s| each(Moment::State(&s)))?,
        }
    }
}
