//! Reading one table: choose row groups by the minimum and maximum of a column, then stream batches or fetch rows.

use crate::batch::{Batch, Values};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::guard::guarded;
use crate::pages::{MOST_COLUMN_BYTES, MOST_GROUP_BYTES, plain, unpacked};
use crate::tables::{ColType, Row, Table};
use bytes::{Buf, Bytes};
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};
use parquet::file::statistics::Statistics;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stands for null in [`TableFile::ints`].
pub const NULL: i64 = i64::MIN;

/// Rows of a row group that are believed: what a file claims is memory that its reader takes.
const MOST_GROUP_ROWS: i64 = 1 << 20;
/// Rows of a table that are believed: so many, and so many for each byte of its file.
const MOST_ROWS: u64 = 1 << 20;
const MOST_ROWS_A_BYTE: u64 = 16;
/// Rows of a table that is read as a whole, and what they may take in memory.
const MOST_ROWS_AT_ONCE: u64 = 1 << 22;
const MOST_BYTES_AT_ONCE: usize = 512 << 20;
/// Text of one column that is in memory at once: few bytes of a dictionary can stand for much.
const MOST_TEXT: usize = 64 << 20;

/// A row group is unpacked whole, and kept until rows of another one are asked for, when it was asked for so often: opening each of its columns
/// again costs more than reading them. Not larger ones: what is kept of a table takes at most some 25 MiB.
const ASKED_OFTEN: u32 = 3;
const MOST_KEPT_VALUES: usize = 1 << 20;
const MOST_KEPT_TEXT: usize = 16 << 20;

/// The row group that rows were last asked of.
#[derive(Default)]
struct Kept {
    group: usize,
    asked: u32,
    rows: Option<Arc<Batch>>,
}

/// An open table.
pub struct TableFile {
    path: PathBuf,
    table: &'static Table,
    file: File,
    len: u64,
    meta: ParquetMetaData,
    /// Place in the file of each declared column; `None`: the file does not have it.
    places: Vec<Option<usize>>,
    kept: Mutex<Kept>,
}

impl TableFile {
    /// Opens `DIR/TABLE.parquet`. Columns that the file has and we do not know are ignored; missing ones read as null.
    ///
    /// Errors: a column that may not be null is missing, or one has another type.
    pub fn open(dir: &Path, table: &'static Table) -> Result<TableFile> {
        let path = dir.join(table.file_name());
        let file = open_file(dir, &path)?;
        let len = file.metadata().map_err(Error::io(&path, "read"))?.len();
        refuse_odd_footer(&path, &file, len)?;
        let meta = guarded(&path, || ParquetMetaDataReader::new().parse_and_finish(&file))?;
        if let Some(rows) =
            meta.row_groups().iter().map(|g| g.num_rows()).find(|n| !(0..=MOST_GROUP_ROWS).contains(n))
        {
            let what = format!("a row group of {rows} rows; kpat writes at most {MOST_GROUP_ROWS}");
            return Err(Error::parquet(&path)(ParquetError::General(what)));
        }
        let rows = meta.row_groups().iter().map(|g| g.num_rows().max(0) as u64).sum::<u64>();
        let most = len.saturating_mul(MOST_ROWS_A_BYTE).saturating_add(MOST_ROWS);
        if rows > most {
            let what = format!("{rows} rows in {len} bytes; of such a file at most {most} are read");
            return Err(Error::parquet(&path)(ParquetError::General(what)));
        }
        let schema = meta.file_metadata().schema_descr();
        let mut places = Vec::with_capacity(table.columns.len());
        for c in table.columns {
            let place = schema.columns().iter().position(|d| d.path().parts() == [c.name]);
            let fits = |i: usize| {
                let d = schema.column(i);
                let ty = match c.ty {
                    ColType::I32 => Type::INT32,
                    ColType::I64 => Type::INT64,
                    ColType::Text => Type::BYTE_ARRAY,
                };
                d.physical_type() == ty
                    && d.max_rep_level() == 0
                    && d.max_def_level() <= i16::from(c.nullable())
            };
            if !place.map_or(c.nullable(), fits) {
                return Err(Error::Column { path, column: c.name.to_owned() });
            }
            places.push(place);
        }
        Ok(TableFile { path, table, file, len, meta, places, kept: Mutex::default() })
    }

    /// An error about this file, with what is odd about it.
    pub fn damaged(&self, what: String) -> Error {
        Error::parquet(&self.path)(ParquetError::General(what))
    }

    pub fn rows(&self) -> u64 {
        self.meta.file_metadata().num_rows().max(0) as u64
    }

    pub fn groups(&self) -> usize {
        self.meta.num_row_groups()
    }

    pub fn group_rows(&self, group: usize) -> usize {
        self.meta.row_group(group).num_rows().max(0) as usize
    }

    /// A column of a row group: its bytes, read at once, and how many they are unpacked.
    fn open_column(&self, group: usize, place: usize) -> Result<(ColumnReader, u64)> {
        let column = self.meta.row_group(group).column(place);
        // Not `byte_range`, which asserts what a damaged file may not keep.
        let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
        let (start, len) = (start.max(0) as u64, column.compressed_size().max(0) as u64);
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            let what = format!("column {place} of row group {group} lies beyond the end of the file");
            return Err(Error::parquet(&self.path)(ParquetError::EOF(what)));
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, start).map_err(Error::io(&self.path, "read"))?;
        let most = match unpacked(&bytes) {
            Some(n) if n <= MOST_COLUMN_BYTES => n,
            Some(n) => {
                return Err(self.damaged(format!(
                    "column {place} of row group {group} unpacks to {n} bytes; kpat writes at most {MOST_COLUMN_BYTES}"
                )));
            }
            None => {
                return Err(
                    self.damaged(format!("the pages of column {place} of row group {group} do not add up"))
                );
            }
        };
        let chunk = Arc::new(Chunk { start, bytes: bytes.into() });
        guarded(&self.path, || {
            let pages = SerializedPageReader::new(chunk, column, self.group_rows(group), None)?;
            Ok((get_column_reader(column.column_descr_ptr(), Box::new(pages)), most))
        })
    }

    fn column(&self, name: &str) -> Result<usize> {
        self.table
            .column(name)
            .ok_or_else(|| Error::Column { path: self.path.clone(), column: name.to_owned() })
    }

    /// Least and greatest value of an integer column in one row group; `None`: not known.
    pub fn range(&self, group: usize, column: &str) -> Option<RangeInclusive<i64>> {
        let place = self.places[self.table.column(column)?]?;
        match self.meta.row_group(group).column(place).statistics()? {
            Statistics::Int32(s) => Some(i64::from(*s.min_opt()?)..=i64::from(*s.max_opt()?)),
            Statistics::Int64(s) => Some(*s.min_opt()?..=*s.max_opt()?),
            _ => None,
        }
    }

    /// Row groups that may hold a row whose `column` lies within `wanted`.
    pub fn groups_where(&self, column: &str, wanted: &RangeInclusive<i64>) -> Vec<usize> {
        (0..self.groups())
            .filter(|&g| {
                self.range(g, column)
                    .is_none_or(|have| have.start() <= wanted.end() && have.end() >= wanted.start())
            })
            .collect()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of a row group of which rows are asked, if it is small and was asked for often. `None`: to be read in parts, which is also what
    /// reports damage.
    fn whole(&self, group: usize) -> Option<Arc<Batch>> {
        if self.group_rows(group).saturating_mul(self.table.columns.len()) > MOST_KEPT_VALUES {
            return None;
        }
        let mut kept = self.kept();
        if kept.group != group {
            *kept = Kept { group, ..Kept::default() };
        }
        kept.asked = kept.asked.saturating_add(1);
        if kept.rows.is_none() && kept.asked >= ASKED_OFTEN {
            let read = self.batches(vec![group], &[]).and_then(|mut parts| parts.next(usize::MAX));
            let fits = |b: &Batch| b.columns.iter().map(Values::text_bytes).sum::<usize>() <= MOST_KEPT_TEXT;
            kept.rows = read.ok().flatten().filter(fits).map(Arc::new);
            kept.asked = 0;
        }
        kept.rows.clone()
    }

    /// One integer column of one row group, 32 bit widened, null as [`NULL`].
    pub fn ints(&self, group: usize, column: &str) -> Result<Vec<i64>> {
        let index = self.column(column)?;
        let mut out = Vec::new();
        let mut take = |batch: &Batch| {
            let values = &batch.columns[index];
            let at = out.len();
            match values {
                Values::I32 { data, .. } => out.extend(data.iter().map(|&v| i64::from(v))),
                Values::I64 { data, .. } => out.extend_from_slice(data),
                _ => out.resize(at + batch.rows, NULL),
            }
            if let Some(nulls) = values.nulls() {
                out[at..].iter_mut().zip(nulls).filter(|(_, null)| **null).for_each(|(v, _)| *v = NULL);
            }
        };
        // What passes over columns leaves the group that is kept.
        let kept = Some(self.kept()).filter(|k| k.group == group).and_then(|k| k.rows.clone());
        if let Some(batch) = kept {
            take(&batch);
            return Ok(out);
        }
        let mut reader = BatchReader::open(self, vec![group], &[index])?;
        while let Some(batch) = reader.next(usize::MAX)? {
            take(&batch);
        }
        Ok(out)
    }

    /// Streams batches of the named columns (all if empty) of these row groups.
    pub fn batches(&self, groups: Vec<usize>, columns: &[&str]) -> Result<BatchReader<'_>> {
        let wanted = if columns.is_empty() {
            (0..self.table.columns.len()).collect()
        } else {
            columns.iter().map(|c| self.column(c)).collect::<Result<Vec<_>>>()?
        };
        BatchReader::open(self, groups, &wanted)
    }

    /// Calls `f` with every row of these row groups.
    pub fn each<R: Row>(&self, groups: Vec<usize>, mut f: impl FnMut(R)) -> Result<()> {
        let mut reader = self.batches(groups, &[])?;
        while let Some(batch) = reader.next(8192)? {
            (0..batch.rows).for_each(|i| f(R::get(&batch, i)));
        }
        Ok(())
    }

    /// All rows: for tables that are known to be small.
    ///
    /// Errors: there are more than 4 million, or they take more than 512 MiB.
    pub fn all<R: Row>(&self) -> Result<Vec<R>> {
        if self.rows() > MOST_ROWS_AT_ONCE {
            let what = format!("{} rows; of this table at most {MOST_ROWS_AT_ONCE} are read", self.rows());
            return Err(self.damaged(what));
        }
        let mut out = Vec::new();
        if self.groups() == 1
            && let Some(batch) = self.whole(0)
        {
            out.extend((0..batch.rows).map(|i| R::get(&batch, i)));
            return Ok(out);
        }
        let mut reader = self.batches((0..self.groups()).collect(), &[])?;
        let mut budget = Budget::new(MOST_BYTES_AT_ONCE, "; this table is read as a whole");
        while let Some(batch) = reader.next(8192)? {
            budget.take::<R>(self, batch.rows, batch.columns.iter().map(Values::text_bytes).sum())?;
            (0..batch.rows).for_each(|i| out.push(R::get(&batch, i)));
        }
        Ok(out)
    }

    /// The rows at these places (ascending) of one row group; pages between them are skipped, not decoded.
    pub fn rows_at<R: Row>(&self, group: usize, places: &[u32]) -> Result<Vec<R>> {
        self.rows_within(group, places, &mut Budget::new(MOST_BYTES_AT_ONCE, ""))
    }

    /// As [`TableFile::rows_at`], of several groups together.
    ///
    /// Errors: the budget is spent.
    pub fn rows_within<R: Row>(&self, group: usize, places: &[u32], budget: &mut Budget) -> Result<Vec<R>> {
        budget.take::<R>(self, places.len(), 0)?;
        let mut out = Vec::with_capacity(places.len());
        if places.is_empty() {
            return Ok(out);
        }
        if let Some(batch) = self.whole(group) {
            let within = places.iter().map(|i| *i as usize).take_while(|i| *i < batch.rows);
            out.extend(within.map(|i| R::get(&batch, i)));
            return Ok(out);
        }
        let mut reader = self.batches(vec![group], &[])?;
        let mut at = 0usize;
        let mut i = 0;
        while i < places.len() {
            // Take near neighbours in one read.
            let first = places[i] as usize;
            let mut k = i;
            while k + 1 < places.len() && places[k + 1] as usize - first < 4096 {
                k += 1;
            }
            let count = places[k] as usize - first + 1;
            reader.skip(first - at)?;
            at = first;
            while at < first + count {
                let Some(batch) = reader.next((first + count - at).min(8192))? else { return Ok(out) };
                while i <= k && (places[i] as usize) < at + batch.rows {
                    let text = batch.columns.iter().map(|c| c.text_bytes_of(places[i] as usize - at)).sum();
                    budget.take::<R>(self, 0, text)?;
                    out.push(R::get(&batch, places[i] as usize - at));
                    i += 1;
                }
                at += batch.rows;
            }
        }
        Ok(out)
    }

    /// Rows whose integer `column` equals one of `wanted` (sorted), found by statistics, then by that column alone.
    ///
    /// Errors: they take more than 128 MiB.
    pub fn rows_equal<R: Row>(&self, column: &str, wanted: &[i64]) -> Result<Vec<R>> {
        let mut out = Vec::new();
        let (Some(&low), Some(&high)) = (wanted.first(), wanted.last()) else { return Ok(out) };
        let mut budget = Budget::of_few();
        for group in self.groups_where(column, &(low..=high)) {
            if let Some(have) = self.range(group, column) {
                let next = wanted.partition_point(|w| w < have.start());
                if wanted.get(next).is_none_or(|w| w > have.end()) {
                    continue;
                }
            }
            let places: Vec<u32> = self
                .ints(group, column)?
                .iter()
                .enumerate()
                .filter(|(_, v)| wanted.binary_search(v).is_ok())
                .map(|(i, _)| i as u32)
                .collect();
            out.extend(self.rows_within::<R>(group, &places, &mut budget)?);
        }
        Ok(out)
    }
}

/// A file of the log in `dir`. A pipe or a device in its place would be waited for, or never end.
pub(crate) fn open_file(dir: &Path, path: &Path) -> Result<File> {
    if !std::fs::metadata(path).map_err(Error::io(path, "open"))?.is_file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        return Err(Error::NotALog { path: dir.to_owned(), why: format!("its {name} is no file") });
    }
    File::open(path).map_err(Error::io(path, "open"))
}

/// A description of the table that the parquet crate would read for ever or end the program with. What is no Parquet file is left to it.
fn refuse_odd_footer(path: &Path, file: &File, len: u64) -> Result<()> {
    let mut tail = [0; 8];
    let Some(end) = len.checked_sub(8) else { return Ok(()) };
    file.read_exact_at(&mut tail, end).map_err(Error::io(path, "read"))?;
    let own = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let Some(start) = end.checked_sub(own).filter(|_| tail[4..] == *b"PAR1") else { return Ok(()) };
    let mut bytes = vec![0; own as usize];
    file.read_exact_at(&mut bytes, start).map_err(Error::io(path, "read"))?;
    if plain(&bytes) {
        return Ok(());
    }
    let what = "its description is not one of a plain table".to_owned();
    Err(Error::parquet(path)(ParquetError::General(what)))
}

/// A stretch of the file in memory.
struct Chunk {
    start: u64,
    bytes: Bytes,
}

impl Chunk {
    fn from(&self, offset: u64) -> parquet::errors::Result<Bytes> {
        let at = offset.checked_sub(self.start).filter(|at| *at <= self.bytes.len() as u64);
        let at = at.ok_or_else(|| {
            ParquetError::EOF(format!("a page at offset {offset} is outside of its column"))
        })?;
        Ok(self.bytes.slice(at as usize..))
    }
}

impl Length for Chunk {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Chunk {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let rest = self.from(start)?;
        if length > rest.len() {
            return Err(ParquetError::EOF(format!("a page at offset {start} runs out of its column")));
        }
        Ok(rest.slice(..length))
    }
}

/// Streams batches; columns that were not asked for are [`Values::Absent`].
pub struct BatchReader<'a> {
    file: &'a TableFile,
    groups: std::vec::IntoIter<usize>,
    wanted: Vec<usize>,
    open: Vec<(usize, ColumnReader)>,
    left: usize,
}

impl<'a> BatchReader<'a> {
    fn open(file: &'a TableFile, groups: Vec<usize>, wanted: &[usize]) -> Result<BatchReader<'a>> {
        Ok(BatchReader {
            file,
            groups: groups.into_iter(),
            wanted: wanted.to_vec(),
            open: Vec::new(),
            left: 0,
        })
    }

    /// Moves to the next row group that has rows; false at the end.
    fn advance(&mut self) -> Result<bool> {
        while self.left == 0 {
            let Some(group) = self.groups.next() else { return Ok(false) };
            self.left = self.file.group_rows(group);
            self.open.clear();
            let mut bytes = 0;
            for &index in &self.wanted {
                if let Some(place) = self.file.places[index] {
                    let (column, unpacked) = self.file.open_column(group, place)?;
                    bytes += unpacked;
                    if bytes > MOST_GROUP_BYTES {
                        let what = format!(
                            "row group {group} unpacks to more than {MOST_GROUP_BYTES} bytes; kpat writes less"
                        );
                        return Err(self.file.damaged(what));
                    }
                    self.open.push((index, column));
                }
            }
        }
        Ok(true)
    }

    /// The next rows, at most `max`, never from two row groups.
    #[allow(clippy::should_implement_trait)] // a lending, fallible step with an argument is no iterator
    pub fn next(&mut self, max: usize) -> Result<Option<Batch>> {
        if !self.advance()? {
            return Ok(None);
        }
        let rows = self.left.min(max);
        let mut columns = vec![Values::Absent; self.file.table.columns.len()];
        for (index, reader) in &mut self.open {
            let nullable = self.file.table.columns[*index].nullable();
            columns[*index] = guarded(&self.file.path, || read_column(reader, rows, nullable))?;
        }
        self.left -= rows;
        Ok(Some(Batch { columns, rows }))
    }

    fn skip(&mut self, rows: usize) -> Result<()> {
        if !self.advance()? {
            return Ok(());
        }
        let rows = rows.min(self.left);
        for (_, reader) in &mut self.open {
            guarded(&self.file.path, || match reader {
                ColumnReader::Int32ColumnReader(r) => r.skip_records(rows),
                ColumnReader::Int64ColumnReader(r) => r.skip_records(rows),
                ColumnReader::ByteArrayColumnReader(r) => r.skip_records(rows),
                _ => Ok(0),
            })?;
        }
        self.left -= rows;
        Ok(())
    }
}

fn read_column(reader: &mut ColumnReader, rows: usize, nullable: bool) -> parquet::errors::Result<Values> {
    Ok(match reader {
        ColumnReader::Int32ColumnReader(r) => {
            let (data, nulls) = read_values(r, rows, nullable)?;
            Values::I32 { data, nulls }
        }
        ColumnReader::Int64ColumnReader(r) => {
            let (data, nulls) = read_values(r, rows, nullable)?;
            Values::I64 { data, nulls }
        }
        ColumnReader::ByteArrayColumnReader(r) => {
            let (data, nulls): (Vec<ByteArray>, _) = read_values(r, rows, nullable)?;
            let mut arena = Vec::new();
            let mut ends = Vec::with_capacity(data.len());
            for text in &data {
                // A null has no bytes behind it.
                if !text.is_empty_or_unset() {
                    if arena.len() + text.len() > MOST_TEXT {
                        let what = format!("more than {MOST_TEXT} bytes of text in one column");
                        return Err(ParquetError::General(what));
                    }
                    arena.extend_from_slice(text.data());
                }
                ends.push(arena.len() as u32);
            }
            Values::Text { arena, ends, nulls }
        }
        _ => Values::Absent,
    })
}

trait MaybeUnset {
    fn is_empty_or_unset(&self) -> bool;
}

impl MaybeUnset for ByteArray {
    fn is_empty_or_unset(&self) -> bool {
        *self == ByteArray::new() || self.is_empty()
    }
}

/// Values, and which of them are null.
type Spread<T> = (Vec<T>, Option<Vec<bool>>);

/// Exactly `rows` values with nulls spread to their places.
fn read_values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    nullable: bool,
) -> parquet::errors::Result<Spread<T::T>> {
    let mut data: Vec<T::T> = Vec::new();
    let mut levels: Vec<i16> = Vec::new();
    let mut got = 0;
    while got < rows {
        // No more at once than there is memory for: the number of rows is only a claim until they are there.
        let step = (rows - got).min(1 << 16);
        let (records, _, _) = reader.read_records(step, Some(&mut levels), None, &mut data)?;
        if records == 0 {
            return Err(parquet::errors::ParquetError::EOF(format!("{got} of {rows} rows in a column")));
        }
        got += records;
    }
    if !nullable {
        return Ok((data, None));
    }
    if data.len() == rows {
        return Ok((data, Some(vec![false; rows])));
    }
    let mut present = data.into_iter();
    let mut spread = Vec::with_capacity(rows);
    let mut nulls = Vec::with_capacity(rows);
    for level in levels {
        let value = if level > 0 { present.next() } else { None };
        nulls.push(value.is_none());
        spread.push(value.unwrap_or_default());
    }
    Ok((spread, Some(nulls)))
}
