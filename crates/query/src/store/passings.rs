//! Where both recordings of a log see a packet: where the device's queue gets it, and where it comes from a device.

use super::Store;
use crate::error::Result;
use kpat_model::Crossing;
use kpat_store::NULL;
use kpat_store::tables::*;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Row groups that are kept.
const MOST: usize = 8;

/// A packet where the device's queue got it, or where it came from a device: as the log of applications or that of packets has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passing {
    pub at_ns: i64,
    pub cpu: i32,
    /// Low 16 bits.
    pub tag: i32,
    pub sent: bool,
    /// Socket, or packet.
    pub of: i64,
}

/// By row group, the newest last: of `app_event`, and of `call`.
#[derive(Default)]
pub(crate) struct Passings {
    crossings: Mutex<Vec<(usize, Arc<[Passing]>)>>,
    points: Mutex<Vec<(usize, Arc<[Passing]>)>>,
    /// Numbers of the functions of [`BOTH`], where the log has them.
    functions: OnceLock<[Option<i64>; 2]>,
}

/// What both logs see, by function and crossing.
const BOTH: [(&str, Crossing, bool); 2] =
    [("net:net_dev_queue", Crossing::ToDevice, true), ("net:netif_receive_skb", Crossing::FromDevice, false)];

impl Store {
    /// What recordings of applications saw of packets without a stream from one moment to another.
    pub(crate) fn crossings_of_datagrams(&self, from_ns: i64, to_ns: i64) -> Result<Vec<Passing>> {
        let table = self.table::<AppEventRow>()?;
        let read = |group| -> Result<Vec<Passing>> {
            let column = |name| table.ints(group, name);
            let (what, at, tags) = (column("crossing")?, column("at_ns")?, column("tag")?);
            let (cpus, sockets) = (column("cpu")?, column("socket_id")?);
            let one = |i: usize| {
                let sent = BOTH.iter().find(|b| b.1 as i64 == what[i])?.2;
                let tag = (tags[i] & 0xffff) as i32;
                let fits = tags[i] != NULL;
                fits.then_some(Passing { at_ns: at[i], cpu: cpus[i] as i32, tag, sent, of: sockets[i] })
            };
            Ok((0..what.len()).filter_map(one).collect())
        };
        within(
            &self.passings.crossings,
            table.groups_where("at_ns", &(from_ns..=to_ns)),
            from_ns,
            to_ns,
            &read,
        )
    }

    /// The same of packets, all of them.
    pub(crate) fn points_of_packets(&self, from_ns: i64, to_ns: i64) -> Result<Vec<Passing>> {
        let table = self.table::<CallRow>()?;
        // Once for the log: its functions may be thousands, and this is asked for each packet.
        let points = self.passings.functions.get_or_init(|| {
            BOTH.map(|b| self.functions.iter().find(|f| f.name == b.0).map(|f| i64::from(f.func_id)))
        });
        let read = |group| -> Result<Vec<Passing>> {
            let column = |name| table.ints(group, name);
            let (functions, at, packets) = (column("func_id")?, column("entry_ns")?, column("packet_id")?);
            let (tags, cpus) = (column("skb_tag")?, column("cpu")?);
            let one = |i: usize| {
                let sent = points.iter().position(|p| *p == Some(functions[i]))? == 0;
                let fits = packets[i] != NULL;
                fits.then_some(Passing {
                    at_ns: at[i],
                    cpu: cpus[i] as i32,
                    tag: tags[i] as i32,
                    sent,
                    of: packets[i],
                })
            };
            Ok((0..functions.len()).filter_map(one).collect())
        };
        within(
            &self.passings.points,
            table.groups_where("entry_ns", &(from_ns..=to_ns)),
            from_ns,
            to_ns,
            &read,
        )
    }
}

type Kept = Mutex<Vec<(usize, Arc<[Passing]>)>>;

fn within(
    kept: &Kept,
    groups: Vec<usize>,
    from_ns: i64,
    to_ns: i64,
    read: &dyn Fn(usize) -> Result<Vec<Passing>>,
) -> Result<Vec<Passing>> {
    let mut out: Vec<Passing> = Vec::new();
    for group in groups {
        let known = || kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().iter().find(|k| k.0 == group).map(|k| Arc::clone(&k.1));
        let rows = match found {
            Some(rows) => rows,
            None => {
                let mut rows = read(group)?;
                rows.sort_by_key(|p| p.at_ns);
                let rows: Arc<[Passing]> = rows.into();
                let mut known = known();
                if known.len() >= MOST {
                    known.remove(0);
                }
                known.push((group, Arc::clone(&rows)));
                rows
            }
        };
        let first = rows.partition_point(|p| p.at_ns < from_ns);
        out.extend(rows[first..].iter().take_while(|p| p.at_ns <= to_ns));
    }
    out.sort_by_key(|p| p.at_ns);
    Ok(out)
}
