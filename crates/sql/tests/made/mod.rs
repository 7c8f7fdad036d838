//! A log whose rows are known: calls over three row groups, packets, functions; of the other tables a few, empty.

#![allow(dead_code, clippy::unwrap_used, reason = "each test needs some of it; a test may panic")]

use kpat_store::tables::*;
use kpat_store::{Manifest, Row, TableWriter};
use std::path::{Path, PathBuf};

/// Three row groups of calls, the last one not full.
pub const CALLS: i64 = 131_072 * 2 + 1000;

/// A folder that goes away.
pub struct Log(pub PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn table<R: Row>(dir: &Path, rows: impl IntoIterator<Item = R>) {
    let mut w = TableWriter::create(dir).unwrap();
    rows.into_iter().for_each(|r| w.push(&r).unwrap());
    w.finish().unwrap();
}

pub fn call(id: i64) -> CallRow {
    CallRow {
        call_id: id,
        packet_id: (id % 11 != 0).then_some(id / 10),
        func_id: (id % 7) as i32,
        entry_ns: 1_000 + id * 10,
        dur_ns: (id % 5 != 0).then_some(id % 100),
        self_ns: (id % 5 != 0).then_some(id % 50),
        ..CallRow::default()
    }
}

pub fn log(name: &str) -> Log {
    let dir = std::env::temp_dir().join(format!("kpat-sql-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    table(&dir, (0..CALLS).map(call));
    let packet = |id| PacketRow {
        packet_id: id,
        src_addr: (id % 2 == 0).then(|| format!("10.0.0.{}", id % 200)),
        ..PacketRow::default()
    };
    table(&dir, (0..=CALLS / 10).map(packet));
    let function = |id| FunctionRow { func_id: id, name: format!("f{id}"), ..FunctionRow::default() };
    table(&dir, (0..7).map(function));
    // The questions of the guide ask these, too; they are empty.
    table::<EventRow>(&dir, []);
    table::<FrameRow>(&dir, []);
    table::<AssociationRow>(&dir, []);
    table::<DropReasonRow>(&dir, []);
    table::<SymbolRow>(&dir, []);
    Manifest { schema: SCHEMA_VERSION, ..Manifest::default() }.write(&dir).unwrap();
    Log(dir)
}
