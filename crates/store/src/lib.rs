//! The integrated log `NAME.kpat/`: a directory of Parquet files and a manifest.
//!
//! Tables are declared once, in [`tables`]; the row types, the Parquet schema and the documentation come from that
//! declaration. This room knows how a table is laid out on disk and how to find rows without reading all of it. It
//! must not know what a row is for: no matching, no call tree, no text for people.
//!
//! Only signed integers and plain strings are stored, no nested columns: every engine (DuckDB, Spark, polars) reads
//! those alike. Written through Parquet's low-level column writers; Arrow would triple the size of the program and
//! give nothing to rows that are made one at a time.

mod batch;
mod budget;
mod contents;
mod encode;
mod error;
mod guard;
pub mod manifest;
mod pages;
mod read;
pub mod tables;
mod write;

pub use batch::{Batch, Cell, Values};
pub use budget::Budget;
pub use contents::Contents;
pub use error::{Error, Result};
pub use manifest::{CrossingCounts, DeviceLog, Manifest, SourceFile, TableCount};
pub use read::{BatchReader, NULL, TableFile};
pub use tables::{ColType, Column, Row, Table};
pub use write::{TableWriter, new_file, rows_at_once};
