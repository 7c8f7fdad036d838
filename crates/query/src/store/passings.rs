//! Where both recordings of a log see a packet: where the device's queue gets it, and where it comes from a device.

use super::Store;
use super::times::Times;
use crate::error::Result;
use kpat_model::Crossing;
use kpat_store::tables::*;
use kpat_store::{NULL, TableFile};
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
    /// Its socket could not tell of it any more, it is what came last from a device: so many bytes were read (`application/early.rs` of kpat-integrate).
    pub claimed: Option<i64>,
}

/// Those of one table.
#[derive(Default)]
struct Known {
    times: OnceLock<Times>,
    /// By row group, the newest last; each in order of direction, CPU and time.
    groups: Mutex<Vec<(usize, Arc<[Passing]>)>>,
}

/// Of `app_event`, and of `call`.
#[derive(Default)]
pub(crate) struct Passings {
    crossings: Known,
    points: Known,
    /// Numbers of the functions of [`BOTH`], where the log has them.
    functions: OnceLock<[Option<i64>; 2]>,
}

/// Which passings are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub sent: bool,
    /// `None`: of all CPUs.
    pub cpu: Option<i32>,
    pub from_ns: i64,
    pub to_ns: i64,
}

/// Passings beside a moment.
#[derive(Debug)]
pub(crate) struct Beside {
    /// In order of time.
    pub all: Vec<Passing>,
    /// There are no others between these two.
    pub from_ns: i64,
    pub to_ns: i64,
}

/// What both logs see, by function and crossing.
const BOTH: [(&str, Crossing, bool); 2] =
    [("net:net_dev_queue", Crossing::ToDevice, true), ("net:netif_receive_skb", Crossing::FromDevice, false)];

impl Store {
    /// What recordings of applications saw of packets without a stream.
    pub(crate) fn crossings_of_datagrams(&self, wanted: Wanted) -> Result<Vec<Passing>> {
        let table = self.table::<AppEventRow>()?;
        self.passings
            .crossings
            .within(wanted, &|| Times::of(&table, "at_ns"), &|group| read_crossings(&table, group))
    }

    /// The same, as many as `most` before a moment on a CPU and as many from it on, none of them further away than `reach_ns`.
    pub(crate) fn crossings_beside(&self, at: &Passing, reach_ns: i64, most: usize) -> Result<Beside> {
        let table = self.table::<AppEventRow>()?;
        let read = |group| read_crossings(&table, group);
        self.passings.crossings.beside((at, reach_ns, most), &|| Times::of(&table, "at_ns"), &read)
    }

    /// Packets, all of them.
    pub(crate) fn points_of_packets(&self, wanted: Wanted) -> Result<Vec<Passing>> {
        let table = self.table::<CallRow>()?;
        self.passings
            .points
            .within(wanted, &|| Times::of(&table, "entry_ns"), &|group| self.read_points(&table, group))
    }

    /// As [`Store::crossings_beside`], of packets.
    pub(crate) fn points_beside(&self, at: &Passing, reach_ns: i64, most: usize) -> Result<Beside> {
        let table = self.table::<CallRow>()?;
        let read = |group| self.read_points(&table, group);
        self.passings.points.beside((at, reach_ns, most), &|| Times::of(&table, "entry_ns"), &read)
    }

    fn read_points(&self, table: &TableFile, group: usize) -> Result<Vec<Passing>> {
        // Once for the log: its functions may be thousands.
        let points = self.passings.functions.get_or_init(|| {
            BOTH.map(|b| self.functions.iter().find(|f| f.name == b.0).map(|f| i64::from(f.func_id)))
        });
        let column = |name| table.ints(group, name);
        let (functions, at, packets) = (column("func_id")?, column("entry_ns")?, column("packet_id")?);
        let (tags, cpus) = (column("skb_tag")?, column("cpu")?);
        let one = |i: usize| {
            let sent = points.iter().position(|p| *p == Some(functions[i]))? == 0;
            let (at_ns, cpu, tag, of) = (at[i], cpus[i] as i32, tags[i] as i32, packets[i]);
            (of != NULL).then_some(Passing { at_ns, cpu, tag, sent, of, claimed: None })
        };
        Ok((0..functions.len()).filter_map(one).collect())
    }
}

fn read_crossings(table: &TableFile, group: usize) -> Result<Vec<Passing>> {
    let column = |name| table.ints(group, name);
    let (what, at, tags) = (column("crossing")?, column("at_ns")?, column("tag")?);
    let (cpus, sockets) = (column("cpu")?, column("socket_id")?);
    let (frames, sizes) = (column("segments")?, column("size_bytes")?);
    let one = |i: usize| {
        let sent = BOTH.iter().find(|b| b.1 as i64 == what[i])?.2;
        let (at_ns, cpu, tag, of) = (at[i], cpus[i] as i32, (tags[i] & 0xffff) as i32, sockets[i]);
        let claimed = (!sent && frames[i] == 0).then_some(sizes[i]);
        (tags[i] != NULL).then_some(Passing { at_ns, cpu, tag, sent, of, claimed })
    };
    Ok((0..what.len()).filter_map(one).collect())
}

/// Those of one direction and CPU, of rows in order of these and time.
fn lane(rows: &[Passing], sent: bool, cpu: i32) -> &[Passing] {
    let from = rows.partition_point(|p| (p.sent, p.cpu) < (sent, cpu));
    let count = rows[from..].partition_point(|p| (p.sent, p.cpu) == (sent, cpu));
    &rows[from..from + count]
}

/// One after the other, those of each CPU.
fn lanes(rows: &[Passing], sent: bool) -> impl Iterator<Item = &[Passing]> {
    let mut rest = &rows[rows.partition_point(|p| sent && !p.sent)..];
    std::iter::from_fn(move || {
        let first = rest.first().filter(|p| p.sent == sent)?;
        let own = lane(rest, sent, first.cpu);
        rest = &rest[own.len()..];
        Some(own)
    })
}

impl Known {
    fn group(&self, group: usize, read: &dyn Fn(usize) -> Result<Vec<Passing>>) -> Result<Arc<[Passing]>> {
        let known = || self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = known().iter().find(|k| k.0 == group) {
            return Ok(Arc::clone(rows));
        }
        let mut rows = read(group)?;
        rows.sort_by_key(|p| (p.sent, p.cpu, p.at_ns));
        let rows: Arc<[Passing]> = rows.into();
        let mut known = known();
        if known.len() >= MOST {
            known.remove(0);
        }
        known.push((group, Arc::clone(&rows)));
        Ok(rows)
    }

    fn within(
        &self,
        Wanted { sent, cpu, from_ns, to_ns }: Wanted,
        times: &dyn Fn() -> Times,
        read: &dyn Fn(usize) -> Result<Vec<Passing>>,
    ) -> Result<Vec<Passing>> {
        let mut out: Vec<Passing> = Vec::new();
        let mut take = |of: &[Passing]| {
            let first = of.partition_point(|p| p.at_ns < from_ns);
            out.extend(of[first..].iter().take_while(|p| p.at_ns <= to_ns));
        };
        let times = self.times.get_or_init(times);
        for group in times.between(from_ns, to_ns) {
            let rows = self.group(group, read)?;
            match cpu {
                Some(cpu) => take(lane(&rows, sent, cpu)),
                None => lanes(&rows, sent).for_each(&mut take),
            }
        }
        out.sort_by_key(|p| p.at_ns);
        Ok(out)
    }

    fn beside(
        &self,
        (at, reach_ns, most): (&Passing, i64, usize),
        times: &dyn Fn() -> Times,
        read: &dyn Fn(usize) -> Result<Vec<Passing>>,
    ) -> Result<Beside> {
        let (from_ns, to_ns) = (at.at_ns.saturating_sub(reach_ns), at.at_ns.saturating_add(reach_ns));
        let (mut before, mut behind): (Vec<Passing>, Vec<Passing>) = Default::default();
        let times = self.times.get_or_init(times);
        for group in times.between(from_ns, to_ns) {
            let rows = self.group(group, read)?;
            let own = lane(&rows, at.sent, at.cpu);
            let (early, late) = own.split_at(own.partition_point(|p| p.at_ns < at.at_ns));
            before.extend(early.iter().rev().take(most).take_while(|p| p.at_ns >= from_ns));
            behind.extend(late.iter().take(most).take_while(|p| p.at_ns <= to_ns));
        }
        // Of those at one moment the last are the nearest to what comes.
        before.reverse();
        before.sort_by_key(|p| p.at_ns);
        before.drain(..before.len().saturating_sub(most));
        behind.sort_by_key(|p| p.at_ns);
        behind.truncate(most);
        let full = |of: &[Passing]| of.len() == most;
        let mut out = Beside { all: Vec::new(), from_ns, to_ns };
        if let Some(first) = before.first().filter(|_| full(&before)) {
            out.from_ns = first.at_ns;
        }
        if let Some(last) = behind.last().filter(|_| full(&behind)) {
            out.to_ns = last.at_ns;
        }
        out.all = before;
        out.all.append(&mut behind);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_ns: i64, cpu: i32, sent: bool) -> Passing {
        Passing { at_ns, cpu, tag: 0, sent, of: 0, claimed: None }
    }

    #[test]
    fn those_of_a_cpu_and_a_direction_are_found() {
        let mut rows = [at(4, 1, true), at(1, 0, true), at(2, 0, false), at(3, 1, true), at(5, 7, true)];
        rows.sort_by_key(|p| (p.sent, p.cpu, p.at_ns));
        let times = |of: &[Passing]| of.iter().map(|p| p.at_ns).collect::<Vec<_>>();
        assert_eq!(
            [(0, true), (1, true), (0, false), (2, true)].map(|(cpu, sent)| times(lane(&rows, sent, cpu))),
            [vec![1], vec![3, 4], vec![2], vec![]]
        );
        assert_eq!(lanes(&rows, true).map(times).collect::<Vec<_>>(), [vec![1], vec![3, 4], vec![5]]);
        assert_eq!(lanes(&rows, false).map(times).collect::<Vec<_>>(), [vec![2]]);
    }

    #[test]
    fn of_many_beside_a_moment_the_nearest_are_taken() {
        // Two row groups that overlap, of another CPU and direction beside.
        let of = |times: &[i64]| -> Vec<Passing> {
            times.iter().flat_map(|t| [at(*t, 0, true), at(*t, 1, true), at(*t, 0, false)]).collect()
        };
        let groups = [of(&[1, 2, 3, 5, 8]), of(&[4, 6, 7, 9])];
        let times = || Times::new(vec![(1, 8), (4, 9)]);
        let known = Known::default();
        let beside = |at_ns, reach, most| {
            let found = known.beside((&at(at_ns, 0, true), reach, most), &times, &|g| Ok(groups[g].clone()));
            let found = found.expect("read");
            (found.all.iter().map(|p| p.at_ns).collect::<Vec<_>>(), found.from_ns, found.to_ns)
        };
        assert_eq!(beside(5, 100, 2), (vec![3, 4, 5, 6], 3, 6));
        // What is not full ends where there may be more.
        assert_eq!(beside(5, 2, 3), (vec![3, 4, 5, 6, 7], 3, 7));
        assert_eq!(beside(8, 10, 3), (vec![5, 6, 7, 8, 9], 5, 18));
        let wanted = |cpu| Wanted { sent: true, cpu, from_ns: 3, to_ns: 4 };
        let within = |cpu| known.within(wanted(cpu), &times, &|g| Ok(groups[g].clone())).expect("read");
        let cpus = |of: Vec<Passing>| of.iter().map(|p| (p.at_ns, p.cpu)).collect::<Vec<_>>();
        assert_eq!(cpus(within(Some(1))), [(3, 1), (4, 1)]);
        assert_eq!(cpus(within(None)), [(3, 0), (3, 1), (4, 0), (4, 1)]);
    }
}
