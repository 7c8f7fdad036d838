//! Calls that wrote or read a TCP stream, in order of their bytes; those of the streams that were asked for last stay in memory.

use super::Store;
use crate::error::Result;
use kpat_model::Crossing;
use kpat_store::tables::AppEventRow;
use kpat_store::{NULL, TableFile};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that a call gave to a stream or took from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamCall {
    /// Place of its row in `app_event`.
    pub id: i64,
    pub offset: i64,
    pub bytes: i64,
    pub at_ns: i64,
    pub pid: Option<i32>,
}

/// By socket and crossing, the newest last.
pub(crate) type Streams = Mutex<Vec<((i64, Crossing), Arc<[StreamCall]>)>>;

/// A packet asks for two.
const MOST: usize = 8;

impl Store {
    /// Calls of a socket at one crossing, by offset.
    pub(crate) fn stream(&self, socket: i64, what: Crossing) -> Result<Arc<[StreamCall]>> {
        let key = (socket, what);
        let kept = || self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, calls)) = kept().iter().find(|(k, _)| *k == key) {
            return Ok(Arc::clone(calls));
        }
        let table = self.table::<AppEventRow>()?;
        let mut calls = Vec::new();
        for group in table.groups_where("socket_id", &(socket..=socket)) {
            let first: i64 = (0..group).map(|g| table.group_rows(g) as i64).sum();
            let fits = |s: i64, c: i64| s == socket && c == i64::from(what as u8);
            each_call(&table, (group, first), &fits, &mut |_, _, call| calls.push(call))?;
        }
        calls.sort_by_key(|c| (c.offset, c.at_ns));
        let calls: Arc<[StreamCall]> = calls.into();
        let mut kept = kept();
        if kept.len() >= MOST {
            kept.remove(0);
        }
        kept.push((key, Arc::clone(&calls)));
        Ok(calls)
    }

    /// Calls by socket and crossing, those of which `wanted` is true, from one pass.
    pub(crate) fn all_streams(
        &self,
        wanted: &dyn Fn(i64, i64) -> bool,
    ) -> Result<HashMap<(i64, i64), Vec<StreamCall>>> {
        let table = self.table::<AppEventRow>()?;
        let mut out: HashMap<(i64, i64), Vec<StreamCall>> = HashMap::new();
        let mut first = 0i64;
        for group in 0..table.groups() {
            each_call(&table, (group, first), wanted, &mut |s, c, call| {
                out.entry((s, c)).or_default().push(call)
            })?;
            first += table.group_rows(group) as i64;
        }
        out.values_mut().for_each(|calls| calls.sort_by_key(|c| (c.offset, c.at_ns)));
        Ok(out)
    }
}

/// Calls in a row group, whose first row has number `first`, with socket and crossing.
fn each_call(
    table: &TableFile,
    (group, first): (usize, i64),
    wanted: &dyn Fn(i64, i64) -> bool,
    give: &mut dyn FnMut(i64, i64, StreamCall),
) -> Result<()> {
    let (sockets, crossings) = (table.ints(group, "socket_id")?, table.ints(group, "crossing")?);
    let (sizes, offsets) = (table.ints(group, "size_bytes")?, table.ints(group, "offset")?);
    let fits = |i: &usize| offsets[*i] != NULL && sizes[*i] > 0 && wanted(sockets[*i], crossings[*i]);
    let places: Vec<u32> = (0..sockets.len()).filter(fits).map(|i| i as u32).collect();
    for (place, e) in places.iter().zip(table.rows_at::<AppEventRow>(group, &places)?) {
        let call = StreamCall {
            id: first + i64::from(*place),
            offset: e.offset.unwrap_or_default(),
            bytes: e.size_bytes,
            at_ns: e.at_ns,
            pid: e.pid,
        };
        give(e.socket_id, e.crossing.into(), call);
    }
    Ok(())
}
