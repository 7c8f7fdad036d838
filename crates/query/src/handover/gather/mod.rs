//! From the tables of a log to marks in order of time, interface by interface, and from these to handovers.
//!
//! Every table is about in order of time; a heap over a window makes it so. Memory is a row group of each table, the window and what is open.

mod afterwards;
pub(super) mod air;
mod align;
mod flows;
pub(super) mod programs;
mod tables;
mod wifi;

use afterwards::Afterwards;
use tables::Interfaces;
pub(super) use wifi::message_of;

use super::flow::FlowGap;
use super::machine::{Handover, Machine};
use super::mark::Mark;
use crate::abreast::Progress;
use crate::error::{Error, Result};
use crate::store::Store;
use kpat_store::tables::{LossRow, PacketRow};
use kpat_store::{Row, TableFile};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::Arc;

/// So much later than newer ones a row may stand in its table.
const WINDOW_NS: i64 = 2_000_000_000;
/// Marks that wait for older ones.
const MOST_WAITING: usize = 1 << 20;
/// Handovers of one log.
const MOST: usize = 10_000;

/// Network namespace (0: not known) and index of an interface.
pub(super) type Place = (i64, i32);

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Only this interface, by name.
    pub interface: Option<String>,
    /// The flow whose gap is shown: by a port; otherwise the one that received most.
    pub port: Option<i32>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub handovers: Vec<Handover>,
    /// More were found than are kept.
    pub left_out: u64,
    /// The log has what a radio did.
    pub radio: bool,
    /// Radios were recorded, whether one did anything or not.
    pub radios_recorded: bool,
    /// The log has packets, so that data is known.
    pub data: bool,
}

impl Found {
    /// Where it has no handovers: why.
    pub fn none(&self) -> &'static str {
        match (self.radio, self.radios_recorded) {
            (true, _) => "in the log's time no network was joined or lost",
            (_, true) => "in the log's time no radio did anything, and no link went down",
            _ => "the log has nothing of a radio (record with -p wifi), and no link that went down",
        }
    }
}

/// A mark of an interface; in order of time.
struct Waiting {
    at_ns: i64,
    number: u64,
    place: Place,
    mark: Mark,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        (self.at_ns, self.number) == (other.at_ns, other.number)
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

/// A table, row group by row group.
trait Feed {
    fn groups(&self) -> usize;
    fn read(&mut self, group: usize) -> Result<Vec<(Place, Mark)>>;
}

/// Rows of a table, of which `marks` makes marks; each row with its number in the table.
struct Rows<R, F> {
    table: Arc<TableFile>,
    next: i64,
    marks: F,
    of: PhantomData<R>,
}

fn rows<'a, R: Row + 'a>(
    table: Arc<TableFile>,
    marks: impl FnMut(&R, i64, &mut Vec<(Place, Mark)>) + 'a,
) -> Box<dyn Feed + 'a> {
    Box::new(Rows { table, next: 0, marks, of: PhantomData })
}

impl<R: Row, F: FnMut(&R, i64, &mut Vec<(Place, Mark)>)> Feed for Rows<R, F> {
    fn groups(&self) -> usize {
        self.table.groups()
    }

    fn read(&mut self, group: usize) -> Result<Vec<(Place, Mark)>> {
        let mut out = Vec::new();
        self.table.each(vec![group], |row: R| {
            (self.marks)(&row, self.next, &mut out);
            self.next += 1;
        })?;
        Ok(out)
    }
}

struct Fed<'a> {
    feed: Box<dyn Feed + 'a>,
    next: usize,
    rows: VecDeque<(Place, Mark)>,
}

impl Fed<'_> {
    fn head(&mut self) -> Result<Option<i64>> {
        while self.rows.is_empty() && self.next < self.feed.groups() {
            let mut rows = self.feed.read(self.next)?;
            rows.sort_by_key(|r| r.1.at_ns);
            self.rows = rows.into();
            self.next += 1;
        }
        Ok(self.rows.front().map(|r| r.1.at_ns))
    }
}

#[derive(Default)]
struct Machines {
    all: BTreeMap<Place, Machine>,
    interfaces: Interfaces,
    found: Found,
    /// See [`Machine::without_requests`].
    without_requests: bool,
    /// The first moment of the log.
    since_ns: i64,
    /// The mark before, and whose it was.
    last: Option<(Place, Mark)>,
}

impl Machines {
    fn push(&mut self, (netns, ifindex): Place, mark: &Mark) {
        // One that is being made has no number yet, and its driver says that it has no carrier.
        if ifindex == 0 {
            return;
        }
        // Of one without a namespace it is the interface of that number, if there is one.
        let place = match netns {
            0 => self.all.keys().copied().find(|k| k.1 == ifindex).unwrap_or((0, ifindex)),
            _ => (netns, ifindex),
        };
        let place = self.interfaces.same.get(&place).copied().unwrap_or(place);
        // What only the radio is known of is a mark of each of its interfaces: of one that came again twice.
        if self.last.as_ref().is_some_and(|(of, last)| *of == place && last == mark) {
            return;
        }
        self.last = Some((place, mark.clone()));
        let began = self.interfaces.began.get(&place);
        let machine = self.all.entry(place).or_insert_with(|| {
            began
                .map_or_else(Machine::default, |up| Machine::starting(*up))
                .without_data(!self.found.data)
                .without_requests(self.without_requests)
                .recorded_since(self.since_ns)
        });
        machine.push(mark);
        let done = machine.take();
        self.keep(place, done);
    }

    fn keep(&mut self, (netns, ifindex): Place, done: Vec<Handover>) {
        for mut h in done {
            if self.found.handovers.len() >= MOST {
                self.found.left_out += 1;
                continue;
            }
            (h.netns, h.ifindex) = ((netns != 0).then_some(netns), ifindex);
            let again = self.interfaces.same.iter().filter(|(_, first)| **first == (netns, ifindex));
            h.again = again.map(|(later, _)| later.1).collect();
            let places = h.again.iter().map(|later| (netns, *later)).chain([(netns, ifindex)]);
            h.above = places.flat_map(|place| self.interfaces.above(place)).collect();
            self.found.handovers.push(h);
        }
    }
}

impl Store {
    /// All handovers of the log, in order of time.
    ///
    /// Errors: [`Error::Abandoned`].
    pub fn handovers(&self, asked: &Asked, progress: Progress<'_>) -> Result<Found> {
        let interfaces = Interfaces::read(self)?;
        let mut feeds: Vec<Fed<'_>> = tables::feeds(self, &interfaces)?
            .into_iter()
            .chain(wifi::feeds(self)?)
            .map(|feed| Fed { feed, next: 0, rows: VecDeque::new() })
            .collect();
        let groups: usize = feeds.iter().map(|f| f.feed.groups()).sum();
        let mut heap: BinaryHeap<Reverse<Waiting>> = BinaryHeap::new();
        let mut machines = Machines { interfaces, ..Machines::default() };
        machines.found.radio = wifi::has_radio(self)?;
        machines.without_requests = machines.found.radio && !wifi::has_requests(self);
        machines.since_ns = self.manifest.first_ns;
        let log = &self.manifest.log;
        machines.found.radios_recorded =
            log.sources.iter().any(|s| s.name == "wifi") || log.profile.split(',').any(|p| p == "wifi");
        machines.found.data = self.table::<PacketRow>()?.rows() > 0;
        let (mut number, mut read) = (0, usize::MAX);
        let (mut afterwards, mut passed_ns) = (Afterwards::default(), i64::MIN);
        // Recorded until then, even where nothing happened any more.
        let stopped = self.manifest.summary.as_ref().map_or(i64::MIN, |s| s.at.boot.0);
        let mut last_ns = self.manifest.last_ns.max(stopped);
        loop {
            let done: usize = feeds.iter().map(|f| f.next).sum();
            if done != read && !progress(done as u64, groups as u64) {
                return Err(Error::Abandoned);
            }
            read = done;
            let mut first: Option<(i64, usize)> = None;
            for (i, f) in feeds.iter_mut().enumerate() {
                if let Some(at) = f.head()? {
                    first = first.filter(|(least, _)| *least <= at).or(Some((at, i)));
                }
            }
            let Some((head_ns, i)) = first else { break };
            let old_ns = head_ns.saturating_sub(WINDOW_NS);
            while heap.len() >= MOST_WAITING || heap.peek().is_some_and(|w| w.0.at_ns < old_ns) {
                let Some(Reverse(w)) = heap.pop() else { break };
                passed_ns = w.at_ns;
                machines.push(w.place, &w.mark);
            }
            if let Some((place, mut mark)) = feeds[i].rows.pop_front() {
                last_ns = last_ns.max(mark.at_ns);
                afterwards.place(place, &mut mark, &heap, passed_ns);
                heap.push(Reverse(Waiting { at_ns: mark.at_ns, number, place, mark }));
                number += 1;
            }
        }
        while let Some(Reverse(w)) = heap.pop() {
            machines.push(w.place, &w.mark);
        }
        for (place, machine) in std::mem::take(&mut machines.all) {
            let done = machine.finish(last_ns);
            machines.keep(place, done);
        }
        let (mut found, interfaces) = (machines.found, machines.interfaces);
        for h in &mut found.handovers {
            let name = interfaces.name((h.netns.unwrap_or(0), h.ifindex), h.begin_ns);
            h.interface = name.map_or_else(|| self.interface(h.ifindex, h.netns), str::to_owned);
        }
        found.handovers.sort_by_key(|h| (h.begin_ns, h.ifindex));
        if let Some(name) = &asked.interface {
            // By what it was called then, or is called now.
            found.handovers.retain(|h| h.interface == *name || self.interface(h.ifindex, h.netns) == *name);
        }
        if found.handovers.is_empty() {
            return Ok(found);
        }
        let by_wall = air::by_wall(self)?;
        let losses: Vec<LossRow> = self.all()?;
        let said = programs::Said::read(self)?;
        let mut over: HashMap<(Option<i64>, i32), (i64, Option<FlowGap>)> = HashMap::new();
        for (i, h) in found.handovers.iter_mut().enumerate() {
            h.number = i as u32 + 1;
            let of_it = losses.iter().filter(|l| l.from_ns <= h.end_ns && l.to_ns >= h.begin_ns);
            h.lost = of_it.map(|l| l.count.unsigned_abs()).sum();
            let before = over.remove(&(h.netns, h.ifindex));
            h.flow = flows::gap(self, h, asked.port, before.as_ref().and_then(|(_, flow)| flow.as_ref()))?;
            air::add(self, h, by_wall, before.map(|(end_ns, _)| end_ns))?;
            over.insert((h.netns, h.ifindex), (h.end_ns, h.flow.clone()));
            said.add(self, h);
            h.asked_by_log();
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::mark::{Source, What};

    /// As recorded of a VLAN by the kernel's function: its carrier is off before it is registered.
    #[test]
    fn an_interface_without_a_number_loses_nothing() {
        let mut machines = Machines::default();
        machines.push((7, 0), &Mark::new(1, What::CarrierOff, Source::Link(0)));
        assert!(machines.all.is_empty());
    }

    /// A radio's event is of both numbers of an interface that was removed and came again.
    #[test]
    fn an_event_of_a_radio_is_one_mark() {
        let (first, again) = ((7, 4), (7, 2));
        let mut machines = Machines::default();
        machines.interfaces.same.insert(again, first);
        let at = |ns: i64, what| Mark::new(ns, what, Source::Wifi(ns));
        machines.push(first, &at(1, What::PortAuthorised));
        machines.push(first, &at(10, What::Removed));
        for ns in [20, 30] {
            let mark = at(ns, What::Channel { mhz: 2_412 });
            machines.push(first, &mark);
            machines.push(again, &mark);
        }
        let machine = machines.all.remove(&first).expect("that interface was looked at");
        assert!(machines.all.is_empty());
        let whats: Vec<What> = machine.finish(40)[0].marks.iter().map(|m| m.what).collect();
        assert_eq!(whats, [What::Removed, What::Channel { mhz: 2_412 }, What::Channel { mhz: 2_412 }]);
    }
}
