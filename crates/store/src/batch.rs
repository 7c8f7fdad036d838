//! Rows as columns in memory: what goes into a row group and what comes out of one.

use crate::tables::{ColType, Table};

/// One column of a batch. `nulls[i]` says that row `i` has no value; its place in `data` is filled.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    I32 {
        data: Vec<i32>,
        nulls: Option<Vec<bool>>,
    },
    I64 {
        data: Vec<i64>,
        nulls: Option<Vec<bool>>,
    },
    /// One arena for all texts; `ends[i]` is where text `i` ends.
    Text {
        arena: Vec<u8>,
        ends: Vec<u32>,
        nulls: Option<Vec<bool>>,
    },
    /// Not read, or not in the file: reads as null, zero or empty.
    Absent,
}

impl Values {
    pub(crate) fn new(ty: ColType, nullable: bool) -> Values {
        let nulls = nullable.then(Vec::new);
        match ty {
            ColType::I32 => Values::I32 { data: Vec::new(), nulls },
            ColType::I64 => Values::I64 { data: Vec::new(), nulls },
            ColType::Text => Values::Text { arena: Vec::new(), ends: Vec::new(), nulls },
        }
    }

    /// What its texts take beside the rows.
    pub(crate) fn text_bytes(&self) -> usize {
        if let Values::Text { arena, .. } = self { arena.len() } else { 0 }
    }

    /// The same of one row.
    pub(crate) fn text_bytes_of(&self, row: usize) -> usize {
        let Values::Text { ends, .. } = self else { return 0 };
        let from = row.checked_sub(1).map_or(0, |before| ends[before]);
        (ends[row] - from) as usize
    }

    /// Room for so many rows.
    fn reserve(&mut self, rows: usize) {
        fn room<T>(of: &mut Vec<T>, rows: usize) {
            of.reserve_exact(rows.saturating_sub(of.len()));
        }
        match self {
            Values::I32 { data, nulls } => {
                room(data, rows);
                nulls.iter_mut().for_each(|n| room(n, rows));
            }
            Values::I64 { data, nulls } => {
                room(data, rows);
                nulls.iter_mut().for_each(|n| room(n, rows));
            }
            Values::Text { ends, nulls, .. } => {
                room(ends, rows);
                nulls.iter_mut().for_each(|n| room(n, rows));
            }
            Values::Absent => {}
        }
    }

    pub(crate) fn nulls(&self) -> Option<&[bool]> {
        match self {
            Values::I32 { nulls, .. } | Values::I64 { nulls, .. } | Values::Text { nulls, .. } => {
                nulls.as_deref()
            }
            Values::Absent => None,
        }
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls().is_some_and(|n| n[row])
    }

    #[inline]
    fn push_i64(&mut self, v: Option<i64>) {
        if let Values::I64 { data, nulls } = self {
            data.push(v.unwrap_or_default());
            if let Some(n) = nulls {
                n.push(v.is_none());
            }
        }
    }

    #[inline]
    fn push_i32(&mut self, v: Option<i32>) {
        if let Values::I32 { data, nulls } = self {
            data.push(v.unwrap_or_default());
            if let Some(n) = nulls {
                n.push(v.is_none());
            }
        }
    }

    #[inline]
    fn push_text(&mut self, v: Option<&str>) {
        if let Values::Text { arena, ends, nulls } = self {
            arena.extend_from_slice(v.unwrap_or_default().as_bytes());
            ends.push(arena.len() as u32);
            if let Some(n) = nulls {
                n.push(v.is_none());
            }
        }
    }

    /// Row as text; empty when null or absent.
    fn text(&self, row: usize) -> String {
        match self {
            Values::Text { arena, ends, .. } => {
                let to = ends[row] as usize;
                String::from_utf8_lossy(&arena[to - self.text_bytes_of(row)..to]).into_owned()
            }
            _ => String::new(),
        }
    }

    fn clear(&mut self) {
        match self {
            Values::I32 { data, nulls } => {
                data.clear();
                nulls.iter_mut().for_each(Vec::clear);
            }
            Values::I64 { data, nulls } => {
                data.clear();
                nulls.iter_mut().for_each(Vec::clear);
            }
            Values::Text { arena, ends, nulls } => {
                arena.clear();
                ends.clear();
                nulls.iter_mut().for_each(Vec::clear);
            }
            Values::Absent => {}
        }
    }
}

/// Some rows of one table, column by column, in the order of its declaration.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    pub columns: Vec<Values>,
    pub rows: usize,
}

impl Batch {
    pub fn new(table: &Table) -> Batch {
        let columns = table.columns.iter().map(|c| Values::new(c.ty, c.nullable())).collect();
        Batch { columns, rows: 0 }
    }

    /// Room for so many rows: columns that grow all at once are moved, and their pages zeroed by the kernel, again and again.
    pub(crate) fn reserve(&mut self, rows: usize) {
        self.columns.iter_mut().for_each(|c| c.reserve(rows));
    }

    pub(crate) fn clear(&mut self) {
        self.columns.iter_mut().for_each(Values::clear);
        self.rows = 0;
    }
}

/// A Rust type that can be a column.
pub trait Cell: Sized {
    const TYPE: ColType;
    const NULLABLE: bool;
    fn put(&self, to: &mut Values);
    /// The same of many rows: which column it is, is asked once. Plain loops: there is one of these for each column of each table, and
    /// `extend` of an iterator takes the compiler twice as long for each.
    fn put_all<'a>(cells: impl Iterator<Item = &'a Self>, to: &mut Values)
    where
        Self: 'a,
    {
        cells.for_each(|c| c.put(to));
    }
    fn get(from: &Values, row: usize) -> Self;
}

impl Cell for i64 {
    const TYPE: ColType = ColType::I64;
    const NULLABLE: bool = false;
    fn put_all<'a>(cells: impl Iterator<Item = &'a Self>, to: &mut Values) {
        if let Values::I64 { data, .. } = to {
            for c in cells {
                data.push(*c);
            }
        }
    }
    #[inline]
    fn put(&self, to: &mut Values) {
        to.push_i64(Some(*self));
    }
    fn get(from: &Values, row: usize) -> Self {
        if let Values::I64 { data, .. } = from { data[row] } else { 0 }
    }
}

impl Cell for i32 {
    const TYPE: ColType = ColType::I32;
    const NULLABLE: bool = false;
    fn put_all<'a>(cells: impl Iterator<Item = &'a Self>, to: &mut Values) {
        if let Values::I32 { data, .. } = to {
            for c in cells {
                data.push(*c);
            }
        }
    }
    #[inline]
    fn put(&self, to: &mut Values) {
        to.push_i32(Some(*self));
    }
    fn get(from: &Values, row: usize) -> Self {
        if let Values::I32 { data, .. } = from { data[row] } else { 0 }
    }
}

impl Cell for String {
    const TYPE: ColType = ColType::Text;
    const NULLABLE: bool = false;
    #[inline]
    fn put(&self, to: &mut Values) {
        to.push_text(Some(self));
    }
    fn get(from: &Values, row: usize) -> Self {
        from.text(row)
    }
}

impl Cell for Option<i64> {
    const TYPE: ColType = ColType::I64;
    const NULLABLE: bool = true;
    fn put_all<'a>(cells: impl Iterator<Item = &'a Self>, to: &mut Values) {
        if let Values::I64 { data, nulls: Some(nulls) } = to {
            for c in cells {
                data.push(c.unwrap_or_default());
                nulls.push(c.is_none());
            }
        }
    }
    #[inline]
    fn put(&self, to: &mut Values) {
        to.push_i64(*self);
    }
    fn get(from: &Values, row: usize) -> Self {
        match from {
            Values::I64 { data, .. } if !from.is_null(row) => Some(data[row]),
            _ => None,
        }
    }
}

impl Cell for Option<i32> {
    const TYPE: ColType = ColType::I32;
    const NULLABLE: bool = true;
    fn put_all<'a>(cells: impl Iterator<Item = &'a Self>, to: &mut Values) {
        if let Values::I32 { data, nulls: Some(nulls) } = to {
            for c in cells {
                data.push(c.unwrap_or_default());
                nulls.push(c.is_none());
            }
        }
    }
    #[inline]
    fn put(&self, to: &mut Values) {
        to.push_i32(*self);
    }
    fn get(from: &Values, row: usize) -> Self {
        match from {
            Values::I32 { data, .. } if !from.is_null(row) => Some(data[row]),
            _ => None,
        }
    }
}

impl Cell for Option<String> {
    const TYPE: ColType = ColType::Text;
    const NULLABLE: bool = true;
    #[inline]
    fn put(&self, to: &mut Values) {
        to.push_text(self.as_deref());
    }
    fn get(from: &Values, row: usize) -> Self {
        match from {
            Values::Text { .. } if !from.is_null(row) => Some(from.text(row)),
            _ => None,
        }
    }
}
