//! A column of a row group as Parquet's pages.
//!
//! The parquet crate's own column writer hashes each value of a column with a dictionary and counts references to each text, which was a
//! quarter of an integration. Here a value that repeats the one before costs a comparison, the least and greatest of a dictionary are
//! looked for among its few entries, and texts stay in one arena. The crate still writes page headers, metadata and footer, and
//! reads all of it.
//!
//! Version 1 data pages: definition levels where the column may be null, then values, compressed together. Values are indices of a
//! dictionary or DELTA_BINARY_PACKED, as the column's declaration says. A dictionary that gets too large is given up for the row group.

mod bits;
mod intern;

use crate::batch::Values;
use crate::tables::Encoding;
use bits::{RUN, delta, hybrid, run, width_of};
use bytes::Bytes;
use intern::Interner;
use parquet::basic::{Compression, Encoding as PqEncoding, EncodingMask, PageType, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, OffsetIndexBuilder, PageEncodingStats};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use std::borrow::Cow;

/// Rows per data page: what a look-up of single rows must decode.
const PAGE_ROWS: usize = 8192;
/// Bytes of a text that is stated as a column's least or greatest, at most.
const MOST_STATED: usize = 64;
const LEVEL: i32 = 1;

/// Where a text is in its column's arena.
type Place = (u32, u32);

/// A number of a column.
trait Number: Copy + Ord {
    /// Numbers packed in bits of one width, where they are coded by differences.
    const MINI: usize;
    /// Without what does not fit, as Parquet counts.
    fn since(self, before: Self) -> i64;
    fn wide(self) -> i64;
    fn put(self, out: &mut Vec<u8>);
    fn content(values: Cow<'_, [Self]>) -> Content<'_>;
    /// Memory for those of a column that are there.
    fn spare(of: &mut Encoder) -> &mut Vec<Self>;
}

impl Number for i32 {
    const MINI: usize = 32;

    #[inline]
    fn since(self, before: i32) -> i64 {
        i64::from(self.wrapping_sub(before))
    }

    #[inline]
    fn wide(self) -> i64 {
        i64::from(self)
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn content(values: Cow<'_, [i32]>) -> Content<'_> {
        Content::I32(values)
    }

    fn spare(of: &mut Encoder) -> &mut Vec<i32> {
        &mut of.numbers_32
    }
}

impl Number for i64 {
    const MINI: usize = 64;

    #[inline]
    fn since(self, before: i64) -> i64 {
        self.wrapping_sub(before)
    }

    #[inline]
    fn wide(self) -> i64 {
        self
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn content(values: Cow<'_, [i64]>) -> Content<'_> {
        Content::I64(values)
    }

    fn spare(of: &mut Encoder) -> &mut Vec<i64> {
        &mut of.numbers_64
    }
}

/// The values that are there.
enum Content<'a> {
    /// The dictionary's page and how many entries it has; of each value its entry.
    Dictionary {
        page: Vec<u8>,
        entries: usize,
        indices: Vec<u32>,
    },
    I32(Cow<'a, [i32]>),
    I64(Cow<'a, [i64]>),
    Text(&'a [u8], Vec<Place>),
}

impl Content<'_> {
    fn encoding(&self) -> PqEncoding {
        match self {
            Content::Dictionary { .. } => PqEncoding::RLE_DICTIONARY,
            Content::I32(_) | Content::I64(_) => PqEncoding::DELTA_BINARY_PACKED,
            Content::Text(..) => PqEncoding::PLAIN,
        }
    }

    /// The values `from..to` for a page.
    fn put(&self, from: usize, to: usize, out: &mut Vec<u8>) {
        match self {
            Content::Dictionary { entries, indices, .. } => {
                let width = width_of(entries.saturating_sub(1) as u64);
                out.push(width);
                hybrid(&indices[from..to], width, out);
            }
            Content::I32(values) => delta(&values[from..to], out),
            Content::I64(values) => delta(&values[from..to], out),
            Content::Text(arena, places) => places[from..to].iter().for_each(|p| put_text(arena, *p, out)),
        }
    }
}

fn text(arena: &[u8], place: Place) -> &[u8] {
    &arena[place.0 as usize..place.1 as usize]
}

fn put_text(arena: &[u8], place: Place, out: &mut Vec<u8>) {
    let text = text(arena, place);
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

/// The values that are there: those of `data`, or, where only some are, in `memory`.
fn present<'a, T: Copy>(
    data: &'a [T],
    nulls: Option<&[bool]>,
    missing: usize,
    memory: &mut Vec<T>,
) -> Cow<'a, [T]> {
    match nulls {
        Some(_) if missing == data.len() => (&data[..0]).into(),
        Some(nulls) => {
            let mut some = std::mem::take(memory);
            some.clear();
            some.extend(data.iter().zip(nulls).filter(|(_, null)| !**null).map(|(v, _)| *v));
            Cow::Owned(some)
        }
        None => data.into(),
    }
}

fn external(e: std::io::Error) -> ParquetError {
    ParquetError::External(Box::new(e))
}

/// How all columns are compressed.
pub(crate) fn compression() -> Compression {
    Compression::ZSTD(ZstdLevel::try_new(LEVEL).unwrap_or_default())
}

/// Encodes one column after the other, in the same memory.
pub(crate) struct Encoder {
    zstd: zstd::bulk::Compressor<'static>,
    interner: Interner,
    /// Taken by a column and given back.
    indices: Vec<u32>,
    numbers_32: Vec<i32>,
    numbers_64: Vec<i64>,
    places: Vec<Place>,
    levels: Vec<u32>,
    body: Vec<u8>,
}

impl Encoder {
    pub fn new() -> Result<Encoder> {
        Ok(Encoder {
            zstd: zstd::bulk::Compressor::new(LEVEL).map_err(external)?,
            interner: Interner::default(),
            indices: Vec::new(),
            numbers_32: Vec::new(),
            numbers_64: Vec::new(),
            places: Vec::new(),
            levels: Vec::new(),
            body: Vec::new(),
        })
    }

    /// The column in memory, and what the file has to know of it.
    pub fn column(
        &mut self,
        values: &Values,
        encoding: Encoding,
        descr: &ColumnDescPtr,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let nulls = values.nulls().filter(|n| n.contains(&true));
        let missing = nulls.map_or(0, |n| n.iter().filter(|null| **null).count());
        let (content, rows, statistics) = match values {
            Values::I32 { data, .. } => {
                let there = present(data, nulls, missing, &mut self.numbers_32);
                let (content, ends) = self.numbers(there, encoding);
                (content, data.len(), Statistics::Int32(stated(ends, missing, true)))
            }
            Values::I64 { data, .. } => {
                let there = present(data, nulls, missing, &mut self.numbers_64);
                let (content, ends) = self.numbers(there, encoding);
                (content, data.len(), Statistics::Int64(stated(ends, missing, true)))
            }
            Values::Text { arena, ends, .. } => {
                let rows = ends.len();
                let from = std::iter::once(0).chain(ends.iter().copied());
                let mut places = std::mem::take(&mut self.places);
                places.clear();
                let all = from.zip(ends.iter().copied());
                match nulls {
                    Some(nulls) => places.extend(all.zip(nulls).filter(|(_, null)| !**null).map(|(p, _)| p)),
                    None => places.extend(all),
                }
                let (content, ends) = self.texts(arena, places);
                (content, rows, Statistics::ByteArray(stated(ends, missing, false)))
            }
            Values::Absent => return Err(ParquetError::General("a column without values".to_owned())),
        };
        let encoded = self.pages(&content, rows, values.nulls(), missing, statistics, descr);
        match content {
            Content::Dictionary { indices, .. } => self.indices = indices,
            Content::I32(Cow::Owned(memory)) => self.numbers_32 = memory,
            Content::I64(Cow::Owned(memory)) => self.numbers_64 = memory,
            Content::Text(_, memory) => self.places = memory,
            Content::I32(Cow::Borrowed(_)) | Content::I64(Cow::Borrowed(_)) => {}
        }
        encoded
    }

    fn numbers<'a, T: Number>(
        &mut self,
        values: Cow<'a, [T]>,
        encoding: Encoding,
    ) -> (Content<'a>, Option<(T, T)>) {
        let ends = |of: &[T]| {
            let first = *of.first()?;
            Some(of.iter().fold((first, first), |(least, most), v| (least.min(*v), most.max(*v))))
        };
        let mut indices = std::mem::take(&mut self.indices);
        if encoding == Encoding::Dict
            && let Some(found) = self.interner.numbers(&values, &mut indices)
        {
            let mut page = Vec::new();
            found.iter().for_each(|v| v.put(&mut page));
            let ends = ends(&found);
            if let Cow::Owned(memory) = values {
                *T::spare(self) = memory;
            }
            return (Content::Dictionary { page, entries: found.len(), indices }, ends);
        }
        self.indices = indices;
        let ends = ends(&values);
        (T::content(values), ends)
    }

    fn texts<'a>(
        &mut self,
        arena: &'a [u8],
        places: Vec<Place>,
    ) -> (Content<'a>, Option<(ByteArray, ByteArray)>) {
        let stated = |p: Option<&Place>| {
            p.map(|p| text(arena, *p)).filter(|t| t.len() <= MOST_STATED).map(|t| ByteArray::from(t.to_vec()))
        };
        let ends = |of: &[Place]| {
            let least = of.iter().min_by_key(|p| text(arena, **p));
            stated(least).zip(stated(of.iter().max_by_key(|p| text(arena, **p))))
        };
        let mut indices = std::mem::take(&mut self.indices);
        let Some(found) = self.interner.texts(arena, &places, &mut indices) else {
            self.indices = indices;
            let ends = ends(&places);
            return (Content::Text(arena, places), ends);
        };
        let mut page = Vec::new();
        found.iter().for_each(|p| put_text(arena, *p, &mut page));
        self.places = places;
        (Content::Dictionary { page, entries: found.len(), indices }, ends(&found))
    }

    fn compressed(&mut self) -> Result<Bytes> {
        Ok(self.zstd.compress(&self.body).map_err(external)?.into())
    }

    /// `nulls`: of a column that may be null; `missing` of them are.
    fn pages(
        &mut self,
        content: &Content<'_>,
        rows: usize,
        nulls: Option<&[bool]>,
        missing: usize,
        statistics: Statistics,
        descr: &ColumnDescPtr,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let mut out = TrackedWrite::new(Vec::new());
        let mut writer = SerializedPageWriter::new(&mut out);
        let mut offsets = OffsetIndexBuilder::new();
        let mut stats = Vec::new();
        let (mut unpacked, mut first_data) = (0i64, 0u64);
        if let Content::Dictionary { page, entries, .. } = content {
            self.body.clear();
            self.body.extend_from_slice(page);
            let encoding = PqEncoding::PLAIN;
            let buf = self.compressed()?;
            let page = Page::DictionaryPage { buf, num_values: *entries as u32, encoding, is_sorted: false };
            let spec = writer.write_page(CompressedPage::new(page, self.body.len()))?;
            unpacked += spec.uncompressed_size as i64;
            first_data = spec.bytes_written;
            stats.push(PageEncodingStats { page_type: PageType::DICTIONARY_PAGE, encoding, count: 1 });
        }
        let encoding = content.encoding();
        let (mut row, mut at, mut count) = (0, 0, 0);
        while row < rows {
            let end = rows.min(row + PAGE_ROWS);
            self.body.clear();
            let mut here = end - row;
            if let Some(nulls) = nulls {
                // Their length stands before them.
                self.body.extend_from_slice(&[0; 4]);
                if missing == 0 {
                    run(1, here, 1, &mut self.body);
                } else if missing == rows && here >= RUN {
                    run(0, here, 1, &mut self.body);
                    here = 0;
                } else {
                    self.levels.clear();
                    self.levels.extend(nulls[row..end].iter().map(|null| u32::from(!null)));
                    here = self.levels.iter().sum::<u32>() as usize;
                    hybrid(&self.levels, 1, &mut self.body);
                }
                let len = self.body.len() as u32 - 4;
                self.body[..4].copy_from_slice(&len.to_le_bytes());
            }
            content.put(at, at + here, &mut self.body);
            let page = Page::DataPage {
                buf: self.compressed()?,
                num_values: (end - row) as u32,
                encoding,
                def_level_encoding: PqEncoding::RLE,
                rep_level_encoding: PqEncoding::RLE,
                statistics: None,
            };
            let spec = writer.write_page(CompressedPage::new(page, self.body.len()))?;
            offsets.append_row_count((end - row) as i64);
            offsets.append_offset_and_size(spec.offset as i64, spec.compressed_size as i32);
            unpacked += spec.uncompressed_size as i64;
            (row, at, count) = (end, at + here, count + 1);
        }
        writer.close()?;
        stats.push(PageEncodingStats { page_type: PageType::DATA_PAGE, encoding, count });
        let bytes: Bytes = out.into_inner()?.into();
        let dictionary = matches!(content, Content::Dictionary { .. });
        let encodings = [PqEncoding::RLE, encoding, if dictionary { PqEncoding::PLAIN } else { encoding }];
        let metadata = ColumnChunkMetaData::builder(descr.clone())
            .set_compression(compression())
            .set_encodings_mask(EncodingMask::new_from_encodings(encodings.iter()))
            .set_page_encoding_stats(stats)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(unpacked)
            .set_num_values(rows as i64)
            .set_data_page_offset(first_data as i64)
            .set_dictionary_page_offset(dictionary.then_some(0))
            .set_statistics(statistics)
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: Some(offsets.build()),
        };
        Ok((bytes, close))
    }
}

fn stated<T>(ends: Option<(T, T)>, missing: usize, signed: bool) -> ValueStatistics<T> {
    let (least, most) = ends.unzip();
    ValueStatistics::new(least, most, None, Some(missing as u64), false)
        .with_backwards_compatible_min_max(signed)
}
