//! Row groups in memory, decoded as far as they were asked for. The last few are kept, for a join asks the same ones again
//! and again; in those a value is found by an index that is made at its first use.

use kpat_store::{TableFile, Values};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Row groups kept per table.
const KEPT: usize = 8;

/// Places of each value of a column.
type Index = HashMap<i64, Vec<u32>>;

/// A row group; columns that were not asked for are absent.
pub(crate) struct Group {
    pub rows: usize,
    pub columns: Vec<Values>,
    indexes: Vec<OnceLock<Index>>,
}

impl Group {
    /// Integer at a place; `None`: null, or text.
    pub fn int(&self, column: usize, row: usize) -> Option<i64> {
        let (value, nulls) = match self.columns.get(column)? {
            Values::I32 { data, nulls } => (i64::from(*data.get(row)?), nulls),
            Values::I64 { data, nulls } => (*data.get(row)?, nulls),
            _ => return None,
        };
        if nulls.as_ref().is_some_and(|n| n[row]) { None } else { Some(value) }
    }

    /// Text at a place; `None`: null, or not text.
    pub fn text(&self, column: usize, row: usize) -> Option<&[u8]> {
        let Values::Text { arena, ends, nulls } = self.columns.get(column)? else { return None };
        if nulls.as_ref().is_some_and(|n| n[row]) {
            return None;
        }
        let from = if row == 0 { 0 } else { ends[row - 1] as usize };
        arena.get(from..ends[row] as usize)
    }

    /// Rows whose integer in this column is that.
    pub fn places(&self, column: usize, value: i64) -> &[u32] {
        let Some(slot) = self.indexes.get(column) else { return &[] };
        let index = slot.get_or_init(|| {
            let mut index = Index::new();
            for row in 0..self.rows {
                if let Some(v) = self.int(column, row) {
                    index.entry(v).or_default().push(row as u32);
                }
            }
            index
        });
        index.get(&value).map_or(&[], Vec::as_slice)
    }
}

/// A table's row groups.
pub(crate) struct Groups {
    pub file: TableFile,
    /// By group and columns, the latest used last.
    kept: Mutex<Vec<(usize, u64, Arc<Group>)>>,
}

impl Groups {
    pub fn new(file: TableFile) -> Groups {
        Groups { file, kept: Mutex::default() }
    }

    /// The row group with these columns (a bit each), read or remembered.
    pub fn read(&self, group: usize, wanted: u64, names: &[&'static str]) -> kpat_store::Result<Arc<Group>> {
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut kept = lock();
            if let Some(i) = kept.iter().position(|k| k.0 == group && k.1 & wanted == wanted) {
                let found = kept.remove(i);
                let group = Arc::clone(&found.2);
                kept.push(found);
                return Ok(group);
            }
        }
        let rows = self.file.group_rows(group);
        let columns: Vec<&str> =
            (0..names.len()).filter(|i| wanted >> i & 1 == 1).map(|i| names[i]).collect();
        let mut read = Group {
            rows,
            columns: vec![Values::Absent; names.len()],
            indexes: (0..names.len()).map(|_| OnceLock::new()).collect(),
        };
        if !columns.is_empty()
            && let Some(batch) = self.file.batches(vec![group], &columns)?.next(usize::MAX)?
        {
            read.columns = batch.columns;
        }
        let read = Arc::new(read);
        let mut kept = lock();
        kept.retain(|k| k.0 != group || k.1 & wanted != k.1);
        if kept.len() >= KEPT {
            kept.remove(0);
        }
        kept.push((group, wanted, Arc::clone(&read)));
        Ok(read)
    }
}
