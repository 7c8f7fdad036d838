//! The kernel behaviour log, `.kbl`: written on the device under test while it runs, read on any machine, also while
//! it is still being written or after the device lost its power.
//!
//! The one idea: a log is nothing but chunks, and each chunk stands alone. It names itself by a magic, carries its
//! own checksums, belongs to one CPU and starts its delta coding afresh. So a recorder may keep chunks in memory and
//! write them later or never, a cut file is a shorter log, and a damaged stretch costs the chunks it touches.
//!
//! This room must not know kernels, probes or analyses: it stores the types of `kpat-model`. It reads hostile bytes
//! without panic and without allocating what a length field merely claims. The format is specified in
//! `docs/kbl-format.md`. Rejected: one stream with an index at the end (an index that a crash prevents is none), and
//! fixed-width records (five times the bytes, and slower, because memory is what costs).
//!
//! Way of one record: [`Encoder`] -> [`Chunk`] -> [`Writer`] -> file -> [`Log`] -> [`Records`].

mod app;
mod columns;
mod decode;
mod encode;
mod error;
mod header;
mod kinds;
mod log;
mod part;
mod records;
mod schema;
mod state;
mod varint;
mod walk;
mod write;

pub use app::{AppDecoder, AppEncoder, AppRecords};
pub use encode::{Chunk, Encoder, TARGET_BYTES};
pub use error::{Error, Room};
pub use header::{ChunkKind, Codec, HEADER_LEN, MAX_RAW_LEN, VERSION};
pub use log::{EndState, Forgotten, Issue, Log, Missing};
pub use part::{Adopted, PART_ENDING, adopt, finish, is_being_written, place, remove_abandoned};
pub use records::{Merged, Records, app_kind_name, end_time, kind_name};
pub use schema::declared;
pub use walk::ChunkInfo;
pub use write::Writer;
