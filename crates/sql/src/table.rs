//! A table of the log as SQLite's virtual table.
//!
//! SQLite tells which columns it wants and which conditions it could hand over; conditions on integer columns are taken. What
//! a look-up costs follows from how a column's values are spread over the row groups, so that in a join the table that is
//! small, or in the order of the key, is looked up in, and the other one is read through.

use crate::cache::{Group, Groups};
use crate::scan::{self, Condition, Op, Test};
use kpat_store::tables::{ColType, Table};
use rusqlite::types::{Null, ValueRef};
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor,
    sqlite3_vtab, sqlite3_vtab_cursor,
};
use rusqlite::{Error, Result};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::sync::Arc;

pub(crate) const MODULE: &Module<'static, LogTable> = &Module::eponymous_only_module();

/// A cursor that was asked so often makes an index.
const INDEX_FROM: u32 = 3;

#[derive(Clone)]
pub(crate) struct Source {
    pub declared: &'static Table,
    pub open: Arc<Groups>,
}

impl Source {
    fn names(&self) -> Vec<&'static str> {
        self.declared.columns.iter().map(|c| c.name).collect()
    }
}

#[repr(C)]
pub(crate) struct LogTable {
    base: sqlite3_vtab,
    source: Source,
    names: Vec<&'static str>,
    /// By column: see [`scan::spread`].
    spread: Vec<f64>,
}

// SAFETY: the first field is SQLite's, and the struct is laid out as C does.
unsafe impl<'vtab> VTab<'vtab> for LogTable {
    type Aux = Source;
    type Cursor = Cursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&Source>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, LogTable)> {
        let source = aux.ok_or_else(|| failed("a table without a file"))?.clone();
        db.config(VTabConfig::Innocuous)?;
        let columns: Vec<String> = source
            .declared
            .columns
            .iter()
            .map(|c| format!("\"{}\" {}", c.name, if c.ty == ColType::Text { "text" } else { "integer" }))
            .collect();
        let sql = format!("create table x({})", columns.join(", "));
        let sql = CString::new(sql).map_err(|e| failed(&e.to_string()))?;
        let names = source.names();
        let spread = names.iter().map(|n| scan::spread(&source.open.file, n)).collect();
        Ok((Cow::Owned(sql), LogTable { base: sqlite3_vtab::default(), source, names, spread }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut plan = format!("{:x}", info.col_used());
        let rows = self.source.open.file.rows().max(1) as f64;
        let groups = self.source.open.file.groups().max(1) as f64;
        let (mut cost, mut found) = (rows, rows);
        let mut taken = 0;
        let possible: Vec<(usize, usize, Op)> = info
            .constraints()
            .enumerate()
            .filter(|(_, c)| c.is_usable())
            .filter_map(|(i, c)| Some((i, usize::try_from(c.column()).ok()?, op(&c.operator())?)))
            .filter(|(_, column, _)| {
                self.source.declared.columns.get(*column).is_some_and(|c| c.ty != ColType::Text)
            })
            .collect();
        for (i, column, mut op) in possible {
            if op == Op::Eq && info.is_in_constraint(i)? && info.set_in_constraint(i, true)? {
                op = Op::In;
            }
            taken += 1;
            info.constraint_usage(i).set_argv_index(taken);
            plan += &format!(" {}{column}", op.letter());
            let spread = self.spread[column];
            let share = match op {
                // What lies in few row groups is kept and found by an index; what lies in all is read through.
                Op::Eq | Op::In if spread <= 4.0 => (spread * 20.0 / rows).min(1.0),
                Op::Eq | Op::In => spread / groups,
                _ => 0.3,
            };
            cost *= share;
            found *= if matches!(op, Op::Eq | Op::In) { (25.0 / rows).min(0.1) } else { 0.3 };
        }
        info.set_idx_str(&plan);
        info.set_estimated_cost(cost.max(1.0));
        info.set_estimated_rows(found.max(1.0) as i64);
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor {
            base: sqlite3_vtab_cursor::default(),
            source: self.source.clone(),
            names: self.names.clone(),
            asked: 0,
            wanted: 0,
            conditions: Vec::new(),
            groups: Vec::new(),
            next_group: 0,
            group: None,
            places: None,
            at: 0,
            phantom: PhantomData,
        })
    }
}

fn op(found: &IndexConstraintOp) -> Option<Op> {
    Some(match found {
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ => Op::Eq,
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT => Op::Greater,
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => Op::AtLeast,
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT => Op::Less,
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => Op::AtMost,
        _ => return None,
    })
}

fn failed(what: &str) -> Error {
    Error::ModuleError(what.to_owned())
}

#[repr(C)]
pub(crate) struct Cursor<'vtab> {
    base: sqlite3_vtab_cursor,
    source: Source,
    names: Vec<&'static str>,
    /// Times that it was sent to look.
    asked: u32,
    /// Columns to read, a bit each.
    wanted: u64,
    conditions: Vec<Condition>,
    groups: Vec<usize>,
    next_group: usize,
    /// The row group that it stands in; `None`: at the end.
    group: Option<(usize, Arc<Group>)>,
    /// Rows there that come into question, and how many are behind it; `None`: all.
    places: Option<(Vec<u32>, usize)>,
    /// The row that it stands on.
    at: usize,
    phantom: PhantomData<&'vtab ()>,
}

impl Cursor<'_> {
    /// The next row group with something in it; at the end there is none.
    fn enter(&mut self) -> Result<()> {
        self.group = None;
        while let Some(&number) = self.groups.get(self.next_group) {
            self.next_group += 1;
            let group = self
                .source
                .open
                .read(number, self.wanted, &self.names)
                .map_err(|e| failed(&e.to_string()))?;
            self.at = 0;
            self.places = None;
            let single = self.conditions.iter().find_map(|c| Some((c.column, c.test.single()?)));
            if let Some((column, value)) = single.filter(|_| self.asked >= INDEX_FROM) {
                self.places = Some((group.places(column, value).to_vec(), 0));
            }
            self.group = Some((number, group));
            if self.seek() {
                return Ok(());
            }
        }
        self.group = None;
        Ok(())
    }

    /// Stands on the next row that fits, from here on; false: there is none in this row group.
    fn seek(&mut self) -> bool {
        let Some((_, group)) = &self.group else { return false };
        if let Some((places, behind)) = &mut self.places {
            while let Some(&place) = places.get(*behind) {
                *behind += 1;
                self.at = place as usize;
                if scan::fits(group, self.at, &self.conditions) {
                    return true;
                }
            }
            return false;
        }
        while self.at < group.rows {
            if scan::fits(group, self.at, &self.conditions) {
                return true;
            }
            self.at += 1;
        }
        false
    }
}

/// A number as SQLite compares it with an integer column; `None`: leave it to SQLite.
fn number(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::Integer(v) => Some(v),
        _ => None,
    }
}

// SAFETY: the first field is SQLite's, and the struct is laid out as C does.
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, plan: Option<&str>, args: &Filters<'_>) -> Result<()> {
        use std::iter::zip;
        let mut words = plan.unwrap_or_default().split(' ');
        self.wanted = words.next().and_then(|w| u64::from_str_radix(w, 16).ok()).unwrap_or(u64::MAX);
        self.conditions.clear();
        self.asked = self.asked.saturating_add(1);
        let mut nothing = false;
        for ((i, word), value) in zip(words.enumerate(), args.iter()) {
            let mut chars = word.chars();
            let op = chars.next().and_then(Op::of);
            let (Some(op), Ok(column)) = (op, chars.as_str().parse::<usize>()) else { continue };
            let test = if op == Op::In {
                among(args, i)?
            } else if value == ValueRef::Null {
                // Nothing is equal to null, nor greater, nor less.
                nothing = true;
                None
            } else {
                number(value).map(|v| Test::compare(op, v))
            };
            if let Some(test) = test {
                self.wanted |= 1 << column;
                self.conditions.push(Condition { column, test });
            }
        }
        self.groups = if nothing {
            Vec::new()
        } else {
            scan::groups(&self.source.open.file, &self.names, &self.conditions)
        };
        self.next_group = 0;
        self.enter()
    }

    fn next(&mut self) -> Result<()> {
        if self.places.is_none() {
            self.at += 1;
        }
        if self.seek() { Ok(()) } else { self.enter() }
    }

    fn eof(&self) -> bool {
        self.group.is_none()
    }

    fn column(&self, ctx: &mut Context, i: c_int) -> Result<()> {
        let Some((_, group)) = &self.group else { return ctx.set_result(Null) };
        let column = usize::try_from(i).unwrap_or(usize::MAX);
        if let Some(v) = group.int(column, self.at) {
            return ctx.set_result(v);
        }
        match group.text(column, self.at) {
            Some(text) => ctx.set_result(String::from_utf8_lossy(text)),
            None => ctx.set_result(Null),
        }
    }

    fn rowid(&self) -> Result<i64> {
        let Some((group, _)) = &self.group else { return Ok(0) };
        Ok((*group * self.source.declared.group_rows + self.at) as i64)
    }
}

/// The values of `in (...)`; `None`: some are no integers, and SQLite must judge.
fn among(args: &Filters<'_>, i: usize) -> Result<Option<Test>> {
    use rusqlite::fallible_iterator::FallibleIterator;
    let mut values = Vec::new();
    let mut list = args.in_values(i)?;
    while let Some(value) = list.next()? {
        match value {
            ValueRef::Integer(v) => values.push(v),
            ValueRef::Null => {}
            _ => return Ok(None),
        }
    }
    values.sort_unstable();
    values.dedup();
    Ok(Some(Test::Among(values)))
}
