//! For ns-3's `UdpTraceClient`: a file for each connection and direction, a line a write: index, type, milliseconds, bytes.
//!
//! How that class reads shapes what is written: its type B means "together with the one before", so all are P; an index of 0 or
//! equal to the last is skipped by newer versions, so it counts from 1; a line end behind the last line makes older versions take
//! the last entry twice, so there is none; and a first entry at 0 is sent once more after the last, without the loop, too, so times begin
//! at 1. Milliseconds are all the time it has.

use super::write::protocol;
use crate::{Error, Result};
use kpat_query::Store;
use kpat_query::app::trace::{As, Item, Side, Totals, trace};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

struct Stream {
    path: PathBuf,
    lines: i64,
    /// Of its first write: ns-3 sends that at once, whatever its time is.
    first_ns: i64,
    text: Vec<u8>,
}

impl Stream {
    /// Files stay closed: there may be more streams than a process may have files open.
    fn flush(&mut self) -> io::Result<()> {
        File::options().append(true).create(true).mode(0o600).open(&self.path)?.write_all(&self.text)?;
        self.text.clear();
        Ok(())
    }
}

/// Writes the files into a folder that must be empty or not there; gives their names.
pub fn write_ns3(store: &Store, only: &[i64], layer: As, folder: &Path) -> Result<(Totals, Vec<PathBuf>)> {
    let mut streams: BTreeMap<(i64, Side), Stream> = BTreeMap::new();
    let mut protos: Vec<i32> = Vec::new();
    let mut done = Vec::new();
    let totals = trace(store, only, layer, |item| -> Result<()> {
        match item {
            Item::Connection(c) => protos.push(c.proto),
            Item::Write(w) => {
                let s = streams.entry((w.connection, w.side)).or_insert_with(|| {
                    let proto = usize::try_from(w.connection - 1)
                        .ok()
                        .and_then(|i| protos.get(i))
                        .copied()
                        .unwrap_or(0);
                    let side = if w.side == Side::A { 'a' } else { 'b' };
                    let path = folder.join(format!("{}-{}{side}.dat", protocol(proto), w.connection));
                    done.push(path.clone());
                    Stream { path, lines: 0, first_ns: w.at_ns, text: Vec::new() }
                });
                s.lines += 1;
                let (end, ms) =
                    (if s.lines > 1 { "\n" } else { "" }, 1 + (w.at_ns - s.first_ns + 500_000) / 1_000_000);
                write!(s.text, "{end}{} P {ms} {}", s.lines, w.size_bytes)?;
                if s.text.len() > 1 << 16 {
                    s.flush()?;
                }
            }
            Item::Gap(..) => {}
        }
        Ok(())
    })?;
    streams.values_mut().try_for_each(Stream::flush).map_err(Error::Write)?;
    Ok((totals, done))
}
