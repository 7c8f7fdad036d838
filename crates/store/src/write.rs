//! Writing one table: rows are gathered into a batch, a full batch becomes a row group.
//!
//! Encoding and compressing cost more than everything else in an integration, so a table may be given a thread of its
//! own; memory stays bounded because at most two batches wait for it.

use crate::batch::{Batch, Values};
use crate::error::{Error, Result};
use crate::tables::{ColType, Encoding, Row, Table};
use parquet::basic::{
    Compression, ConvertedType, Encoding as PqEncoding, LogicalType, Repetition, Type, ZstdLevel,
};
use parquet::data_type::{ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, Type as SchemaType, TypePtr};
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Rows per data page: what a look-up of single rows must decode.
const PAGE_ROWS: usize = 8192;

/// Appends rows to one table file. Nothing is readable before [`TableWriter::finish`].
pub struct TableWriter<R: Row> {
    path: PathBuf,
    batch: Batch,
    rows: u64,
    sink: Sink,
    row: PhantomData<R>,
}

enum Sink {
    Here(FileSink),
    Thread { full: SyncSender<Batch>, empty: Receiver<Batch>, thread: JoinHandle<Result<()>> },
}

impl<R: Row> TableWriter<R> {
    /// Creates `DIR/TABLE.parquet`; row groups are encoded on the caller's thread.
    pub fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(R::TABLE.file_name());
        let sink = FileSink::create(&path, R::TABLE)?;
        Ok(Self::with(path, Sink::Here(sink)))
    }

    /// Same, but row groups are encoded on a thread of their own.
    pub fn create_threaded(dir: &Path) -> Result<Self> {
        let path = dir.join(R::TABLE.file_name());
        let mut sink = FileSink::create(&path, R::TABLE)?;
        let (full, to_write) = sync_channel::<Batch>(1);
        let (give_back, empty) = sync_channel::<Batch>(2);
        let thread = std::thread::spawn(move || {
            while let Ok(mut batch) = to_write.recv() {
                sink.write(&batch)?;
                batch.clear();
                // The other side may be gone already; then nobody needs the empty batch.
                let _ = give_back.try_send(batch);
            }
            sink.close()
        });
        Ok(Self::with(path, Sink::Thread { full, empty, thread }))
    }

    fn with(path: PathBuf, sink: Sink) -> Self {
        TableWriter { path, batch: Batch::new(R::TABLE), rows: 0, sink, row: PhantomData }
    }

    pub fn push(&mut self, row: &R) -> Result<()> {
        row.put(&mut self.batch);
        self.rows += 1;
        if self.batch.rows >= R::TABLE.group_rows { self.flush() } else { Ok(()) }
    }

    /// Rows pushed so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn flush(&mut self) -> Result<()> {
        if self.batch.rows == 0 {
            return Ok(());
        }
        match &mut self.sink {
            Sink::Here(sink) => {
                sink.write(&self.batch)?;
                self.batch.clear();
                Ok(())
            }
            Sink::Thread { full, empty, .. } => {
                let next = empty.try_recv().unwrap_or_else(|_| Batch::new(R::TABLE));
                let batch = std::mem::replace(&mut self.batch, next);
                full.send(batch).map_err(|_| Error::WriterGone { path: self.path.clone() })
            }
        }
    }

    /// Writes what is left and the footer; says how many rows there are.
    pub fn finish(mut self) -> Result<u64> {
        let flushed = self.flush();
        match self.sink {
            Sink::Here(sink) => {
                flushed?;
                sink.close()?;
            }
            Sink::Thread { full, thread, .. } => {
                drop(full);
                // The thread's own error says more than "it has stopped".
                thread.join().map_err(|_| Error::WriterGone { path: self.path.clone() })??;
                flushed?;
            }
        }
        Ok(self.rows)
    }
}

struct FileSink {
    path: PathBuf,
    writer: SerializedFileWriter<File>,
    levels: Vec<i16>,
}

/// A new file for its owner alone. Whatever had that name is removed; a link is not followed.
pub fn new_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => File::options().write(true).create_new(true).mode(0o600).open(path),
    }
}

impl FileSink {
    fn create(path: &Path, table: &Table) -> Result<FileSink> {
        let file = new_file(path).map_err(Error::io(path, "create"))?;
        let schema = schema(table).map_err(Error::parquet(path))?;
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties(table)))
            .map_err(Error::parquet(path))?;
        Ok(FileSink { path: path.to_owned(), writer, levels: Vec::new() })
    }

    fn write(&mut self, batch: &Batch) -> Result<()> {
        self.group(batch).map_err(Error::parquet(&self.path))
    }

    fn group(&mut self, batch: &Batch) -> parquet::errors::Result<()> {
        let mut group = self.writer.next_row_group()?;
        for values in &batch.columns {
            let Some(mut column) = group.next_column()? else { break };
            write_column(&mut column, values, &mut self.levels)?;
            column.close()?;
        }
        group.close()?;
        Ok(())
    }

    fn close(self) -> Result<()> {
        self.writer.close().map_err(Error::parquet(&self.path))?;
        Ok(())
    }
}

fn write_column(
    column: &mut SerializedColumnWriter<'_>,
    values: &Values,
    levels: &mut Vec<i16>,
) -> parquet::errors::Result<()> {
    levels.clear();
    let nulls = values.nulls();
    if let Some(nulls) = nulls {
        levels.extend(nulls.iter().map(|&null| i16::from(!null)));
    }
    let def = nulls.is_some().then_some(levels.as_slice());
    match values {
        Values::I32 { data, .. } => {
            let kept = present(data, nulls);
            column.typed::<Int32Type>().write_batch(&kept, def, None)?;
        }
        Values::I64 { data, .. } => {
            let kept = present(data, nulls);
            column.typed::<Int64Type>().write_batch(&kept, def, None)?;
        }
        Values::Text { .. } => {
            column.typed::<ByteArrayType>().write_batch(&values.byte_arrays(), def, None)?;
        }
        Values::Absent => {}
    }
    Ok(())
}

/// The values that are there; borrowed where all are.
fn present<'a, T: Copy>(data: &'a [T], nulls: Option<&[bool]>) -> std::borrow::Cow<'a, [T]> {
    match nulls {
        Some(nulls) if nulls.contains(&true) => {
            data.iter().zip(nulls).filter(|(_, null)| !**null).map(|(v, _)| *v).collect()
        }
        _ => data.into(),
    }
}

fn schema(table: &Table) -> parquet::errors::Result<TypePtr> {
    let fields = table
        .columns
        .iter()
        .map(|c| {
            let (ty, logical) = match c.ty {
                ColType::I32 => (Type::INT32, None),
                ColType::I64 => (Type::INT64, None),
                ColType::Text => (Type::BYTE_ARRAY, Some(LogicalType::String)),
            };
            let rep = if c.nullable() { Repetition::OPTIONAL } else { Repetition::REQUIRED };
            let mut field = SchemaType::primitive_type_builder(c.name, ty).with_repetition(rep);
            if logical.is_some() {
                field = field.with_converted_type(ConvertedType::UTF8).with_logical_type(logical);
            }
            Ok(Arc::new(field.build()?))
        })
        .collect::<parquet::errors::Result<Vec<_>>>()?;
    Ok(Arc::new(SchemaType::group_type_builder(table.name).with_fields(fields).build()?))
}

fn properties(table: &Table) -> WriterProperties {
    let mut b = WriterProperties::builder()
        .set_created_by(concat!("kpat ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(PAGE_ROWS)
        .set_dictionary_enabled(false);
    for c in table.columns {
        let path = ColumnPath::from(c.name);
        b = match c.encoding {
            Encoding::Delta => b.set_column_encoding(path, PqEncoding::DELTA_BINARY_PACKED),
            Encoding::Dict => b.set_column_dictionary_enabled(path, true),
        };
    }
    b.build()
}
