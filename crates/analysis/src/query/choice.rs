//! Does a packet fit? What a filter needs of other tables is read once, before the first packet is asked about.

use super::store::Store;
use super::types::PacketFilter;
use crate::catalog::{Entry, Facts, Names, facts};
use crate::error::Result;
use crate::filter::Condition;
use crate::hash::Numbers;
use kpat_store::TableFile;
use kpat_store::tables::PacketRow;
use std::cell::RefCell;

/// A filter made ready for one log.
pub(crate) struct Choice<'a> {
    store: &'a Store,
    filter: &'a PacketFilter,
    /// Packets that a function touched, if that was asked for.
    touched: Option<Numbers>,
    expression: Option<Expression>,
}

struct Expression {
    condition: Condition,
    names: RefCell<Names>,
    facts: Facts,
}

impl<'a> Choice<'a> {
    pub fn new(
        store: &'a Store,
        filter: &'a PacketFilter,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Choice<'a>> {
        let touched = match &filter.func {
            Some(glob) => Some(store.packets_of_functions(&|name| super::glob_fits(glob, name), progress)?),
            None => None,
        };
        let expression = match &filter.expression {
            Some(e) => Some(Expression {
                condition: e.prepare(store, progress)?,
                names: RefCell::new(Names::of(store)?),
                facts: if e.needs_facts() { facts(store)? } else { Facts::default() },
            }),
            None => None,
        };
        Ok(Choice { store, filter, touched, expression })
    }

    /// Columns of the packet table that it looks at besides those of the filter's own conditions.
    pub fn columns(filter: &PacketFilter) -> Vec<&'static str> {
        filter.expression.as_ref().map(|e| e.columns()).unwrap_or_default()
    }

    /// May this row group hold packets that fit?
    pub fn may(&self, table: &TableFile, group: usize) -> bool {
        let filter = self.filter;
        let overlaps = |column, from: i64, to: i64| {
            table.range(group, column).is_none_or(|have| *have.start() <= to && *have.end() >= from)
        };
        filter.from_ns.is_none_or(|from| overlaps("last_ns", from, i64::MAX))
            && filter.to_ns.is_none_or(|to| overlaps("first_ns", i64::MIN, to))
            && filter.ids.as_ref().is_none_or(|ids| {
                table.range(group, "packet_id").is_none_or(|have| {
                    let next = ids.partition_point(|id| id < have.start());
                    ids.get(next).is_some_and(|id| id <= have.end())
                })
            })
    }

    pub fn fits(&self, p: &PacketRow) -> bool {
        self.filter.ids.as_ref().is_none_or(|ids| ids.binary_search(&p.packet_id).is_ok())
            && self.touched.as_ref().is_none_or(|t| t.contains(p.packet_id))
            && self.store.fits(self.filter, p)
            && self.expression.as_ref().is_none_or(|e| {
                let mut names = e.names.borrow_mut();
                let entry = Entry::of_packet(p, &mut names, &e.facts);
                e.condition.fits(&entry, &names)
            })
    }
}
