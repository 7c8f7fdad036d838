//! Calls that wrote or read a TCP stream, in order of their bytes; those of the streams that were asked for last stay in memory.

use super::Store;
use crate::error::Result;
use kpat_model::Crossing;
use kpat_store::NULL;
use kpat_store::tables::AppEventRow;
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
            let (sockets, crossings) = (table.ints(group, "socket_id")?, table.ints(group, "crossing")?);
            let (sizes, offsets) = (table.ints(group, "size_bytes")?, table.ints(group, "offset")?);
            let fits = |i: &usize| {
                sockets[*i] == socket
                    && crossings[*i] == i64::from(what as u8)
                    && offsets[*i] != NULL
                    && sizes[*i] > 0
            };
            let places: Vec<u32> = (0..sockets.len()).filter(fits).map(|i| i as u32).collect();
            let first: i64 = (0..group).map(|g| table.group_rows(g) as i64).sum();
            let rows = places.iter().zip(table.rows_at::<AppEventRow>(group, &places)?);
            calls.extend(rows.map(|(place, e)| StreamCall {
                id: first + i64::from(*place),
                offset: e.offset.unwrap_or_default(),
                bytes: e.size_bytes,
                at_ns: e.at_ns,
                pid: e.pid,
            }));
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
}
