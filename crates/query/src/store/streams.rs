//! Calls that wrote or read a TCP stream, in order of their bytes; those of the streams that were asked for last stay in memory.

use super::Store;
use crate::error::Result;
use kpat_model::Crossing;
use kpat_store::tables::AppEventRow;
use kpat_store::{NULL, TableFile};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError};

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

/// Socket and crossing.
type Key = (i64, i64);

/// What is kept of streams.
#[derive(Default)]
pub(crate) struct Streams {
    /// Those that were asked for last, the newest last.
    last: Vec<(Key, Arc<[StreamCall]>)>,
    /// How often one was asked for that was not here.
    missed: usize,
    /// Bytes' calls of each socket that has any; `None`: not counted yet.
    counts: Option<BTreeMap<i64, usize>>,
    /// Those that were read in one pass with one that was asked for, of these sockets.
    ahead: HashMap<Key, Arc<[StreamCall]>>,
    sockets: HashSet<i64>,
}

/// A packet asks for two.
const MOST: usize = 8;
/// Who asks for more asks for packet after packet, of connection after connection: as many calls as these are read at once, 40 bytes each.
const AHEAD: usize = 1_000_000;
const OF_STREAMS: [Crossing; 3] = [Crossing::ToTransport, Crossing::Recv, Crossing::Acked];

fn is_of_streams(crossing: i64) -> bool {
    OF_STREAMS.iter().any(|c| i64::from(*c as u8) == crossing)
}

impl Streams {
    fn get(&self, key: Key) -> Option<Arc<[StreamCall]>> {
        let last = self.last.iter().find(|(k, _)| *k == key).map(|(_, calls)| calls);
        if let Some(calls) = last.or_else(|| self.ahead.get(&key)) {
            return Some(Arc::clone(calls));
        }
        // A socket that was never connected has none, and there may be many of those.
        let has_none = self.counts.as_ref().is_some_and(|counts| !counts.contains_key(&key.0));
        ((has_none || self.sockets.contains(&key.0)) && is_of_streams(key.1)).then(|| Arc::from([]))
    }

    /// This socket, and as many of those that come after it as there is room for.
    fn choose(&self, socket: i64, most: usize) -> HashSet<i64> {
        let order = self.counts.iter().flat_map(|c| c.range(socket..).chain(c.range(..socket)));
        let mut all = 0;
        let fit = order.take_while(|(_, n)| {
            all += **n;
            all <= most
        });
        fit.map(|(s, _)| *s).chain([socket]).collect()
    }
}

impl Store {
    /// Calls of a socket at one crossing, by offset.
    pub(crate) fn stream(&self, socket: i64, what: Crossing) -> Result<Arc<[StreamCall]>> {
        let key = (socket, i64::from(what as u8));
        let mut kept = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = kept.get(key) {
            return Ok(calls);
        }
        kept.missed += 1;
        if kept.missed > MOST && is_of_streams(key.1) {
            if kept.counts.is_none() {
                kept.counts = Some(self.count_calls()?);
                if let Some(none) = kept.get(key) {
                    return Ok(none);
                }
            }
            kept.sockets = kept.choose(socket, AHEAD);
            let streams = self.all_streams(&|s, c| is_of_streams(c) && kept.sockets.contains(&s))?;
            kept.ahead = streams.into_iter().map(|(k, calls)| (k, calls.into())).collect();
            return Ok(kept.get(key).unwrap_or_else(|| Arc::from([])));
        }
        let table = self.table::<AppEventRow>()?;
        let mut calls = Vec::new();
        for group in table.groups_where("socket_id", &(socket..=socket)) {
            let first: i64 = (0..group).map(|g| table.group_rows(g) as i64).sum();
            let fits = |s: i64, c: i64| (s, c) == key;
            each_call(&table, (group, first), &fits, &mut |_, _, call| calls.push(call))?;
        }
        calls.sort_by_key(|c| (c.offset, c.at_ns));
        let calls: Arc<[StreamCall]> = calls.into();
        if kept.last.len() >= MOST {
            kept.last.remove(0);
        }
        kept.last.push((key, Arc::clone(&calls)));
        Ok(calls)
    }

    /// How many calls each socket has with bytes of a stream.
    fn count_calls(&self) -> Result<BTreeMap<i64, usize>> {
        let table = self.table::<AppEventRow>()?;
        let mut counts = BTreeMap::new();
        for group in 0..table.groups() {
            let (sockets, crossings) = (table.ints(group, "socket_id")?, table.ints(group, "crossing")?);
            for (s, _) in sockets.iter().zip(crossings.iter()).filter(|(_, c)| is_of_streams(**c)) {
                *counts.entry(*s).or_default() += 1;
            }
        }
        Ok(counts)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_streams_are_read_ahead_as_there_is_room_for() {
        let counts = [(1, 5), (2, 5), (3, 5), (9, 100)].into_iter().collect();
        let streams = Streams { counts: Some(counts), ..Streams::default() };
        let chosen = |socket, most| {
            let mut all: Vec<i64> = streams.choose(socket, most).into_iter().collect();
            all.sort_unstable();
            all
        };
        assert_eq!(chosen(2, 10), [2, 3]);
        assert_eq!(chosen(9, 110), [1, 2, 9]);
        // the one that is asked for is read whatever it takes, also if it has none
        assert_eq!(chosen(9, 10), [9]);
        assert_eq!(chosen(4, 10), [4]);
    }

    #[test]
    fn what_was_read_ahead_and_has_no_calls_is_known() {
        let sockets = [7].into_iter().collect();
        let streams = Streams { sockets, ..Streams::default() };
        let of = |socket, c: Crossing| streams.get((socket, i64::from(c as u8))).map(|calls| calls.len());
        assert_eq!(
            (of(7, Crossing::Recv), of(8, Crossing::Recv), of(7, Crossing::ToDevice)),
            (Some(0), None, None)
        );
        // Nor is one looked for whose calls were counted, and are none.
        let streams = Streams { counts: Some([(7, 5)].into_iter().collect()), ..Streams::default() };
        assert_eq!([7, 8].map(|s| streams.get((s, Crossing::Recv as i64)).is_some()), [false, true]);
        assert!(streams.get((8, Crossing::ToDevice as i64)).is_none());
    }
}
