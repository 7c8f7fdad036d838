//! Writing one table: rows are gathered into a batch, a full batch becomes a row group.
//!
//! Encoding and compressing cost more than everything else in an integration, so a table may be given a thread of its
//! own; memory stays bounded because at most two batches wait for it.

use crate::batch::Batch;
use crate::encode::{Encoder, compression};
use crate::error::{Error, Result};
use crate::tables::{ColType, Row, Table};
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{Type as SchemaType, TypePtr};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Appends rows to one table file. Nothing is readable before [`TableWriter::finish`].
pub struct TableWriter<R: Row> {
    path: PathBuf,
    batch: Batch,
    /// Rows of [`TableWriter::give`] that are not columns yet.
    given: Vec<R>,
    rows: u64,
    sink: Sink,
}

/// Bytes of rows that become columns at a time: each column goes through all of them, and they are to stay in the smallest cache.
const AT_ONCE_BYTES: usize = 1 << 14;

/// Rows of a table that will fill row groups.
const MANY: usize = 1 << 13;

/// How many rows of a type that is.
pub const fn rows_at_once<R>() -> usize {
    let rows = AT_ONCE_BYTES / size_of::<R>();
    if rows < 16 { 16 } else { rows }
}

enum Sink {
    Here(Box<FileSink>),
    Thread { full: SyncSender<Batch>, empty: Receiver<Batch>, thread: JoinHandle<Result<()>> },
}

impl<R: Row> TableWriter<R> {
    /// Creates `DIR/TABLE.parquet`; row groups are encoded on the caller's thread.
    pub fn create(dir: &Path) -> Result<Self> {
        let path = dir.join(R::TABLE.file_name());
        let sink = FileSink::create(&path, R::TABLE)?;
        Ok(Self::with(path, Sink::Here(Box::new(sink))))
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
        TableWriter { path, batch: Batch::new(R::TABLE), given: Vec::new(), rows: 0, sink }
    }

    pub fn push(&mut self, row: &R) -> Result<()> {
        self.put_given()?;
        row.put(&mut self.batch);
        self.rows += 1;
        if self.batch.rows >= R::TABLE.group_rows { self.flush() } else { Ok(()) }
    }

    /// As [`TableWriter::push`], for tables of many rows: some dozens become columns together, which is quicker.
    pub fn give(&mut self, row: R) -> Result<()> {
        self.given.push(row);
        self.rows += 1;
        if self.given.len() < rows_at_once::<R>() { Ok(()) } else { self.put_given() }
    }

    /// As [`TableWriter::give`] of each, where the caller keeps the rows.
    pub fn push_all(&mut self, rows: &[R]) -> Result<()> {
        self.put_given()?;
        self.rows += rows.len() as u64;
        self.put_all(rows)
    }

    fn put_given(&mut self) -> Result<()> {
        if self.given.is_empty() {
            return Ok(());
        }
        let mut given = std::mem::take(&mut self.given);
        let put = self.put_all(&given);
        given.clear();
        self.given = given;
        put
    }

    fn put_all(&mut self, mut rows: &[R]) -> Result<()> {
        while !rows.is_empty() {
            let room = R::TABLE.group_rows - self.batch.rows;
            let (now, later) = rows.split_at(rows.len().min(room));
            if self.batch.rows < MANY && self.batch.rows + now.len() >= MANY {
                self.batch.reserve(R::TABLE.group_rows);
            }
            R::put_all(now, &mut self.batch);
            if now.len() == room {
                self.flush()?;
            }
            rows = later;
        }
        Ok(())
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
        let flushed = self.put_given().and_then(|()| self.flush());
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
    table: &'static Table,
    writer: SerializedFileWriter<File>,
    encoder: Encoder,
}

/// A new file for its owner alone. Whatever had that name is removed; a link is not followed.
pub fn new_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => File::options().write(true).create_new(true).mode(0o600).open(path),
    }
}

impl FileSink {
    fn create(path: &Path, table: &'static Table) -> Result<FileSink> {
        let file = new_file(path).map_err(Error::io(path, "create"))?;
        let schema = schema(table).map_err(Error::parquet(path))?;
        let writer =
            SerializedFileWriter::new(file, schema, Arc::new(properties())).map_err(Error::written(path))?;
        let encoder = Encoder::new().map_err(Error::parquet(path))?;
        Ok(FileSink { path: path.to_owned(), table, writer, encoder })
    }

    fn write(&mut self, batch: &Batch) -> Result<()> {
        self.group(batch).map_err(Error::written(&self.path))
    }

    fn group(&mut self, batch: &Batch) -> parquet::errors::Result<()> {
        let descriptions = self.writer.schema_descr().columns().to_vec();
        let mut group = self.writer.next_row_group()?;
        for ((values, column), description) in batch.columns.iter().zip(self.table.columns).zip(&descriptions)
        {
            let (bytes, close) = self.encoder.column(values, column.encoding, description)?;
            group.append_column(&bytes, close)?;
        }
        group.close()?;
        Ok(())
    }

    fn close(self) -> Result<()> {
        self.writer.close().map_err(Error::written(&self.path))?;
        Ok(())
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

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_created_by(concat!("kpat ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(compression())
        .build()
}
