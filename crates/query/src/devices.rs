//! Questions to an integrated log of several devices: where a packet came from, where it went on to, how the devices'
//! clocks relate.

use crate::error::Result;
use crate::store::Store;
use kpat_store::tables::{CROSSING, ClockRow, CrossingRow, FRAME, FrameRow};
use kpat_store::{Manifest, TableFile};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};

/// An integrated log of several devices, open for questions. Devices go by their place in the manifest.
pub struct Several {
    dir: PathBuf,
    pub manifest: Manifest,
    crossings: TableFile,
}

/// A packet's crossings, in order of the frames.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Way {
    pub came: Vec<CrossingRow>,
    pub went: Vec<CrossingRow>,
}

/// Everything that hangs together with a packet over the wires.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain {
    /// Device and packet, earlier ones first.
    pub packets: Vec<(i32, i64)>,
    /// The wires between them.
    pub crossings: Vec<CrossingRow>,
    /// There is more.
    pub cut: bool,
}

/// How the boot clocks of two devices relate, by the capture that tells it best, or because they are one clock (a host's and its
/// guests', which it recorded; `capture_id` is -1 then):
/// to's = from's + offset + drift * (from's - from's at `at_wall_ns`).
#[derive(Clone, Debug, PartialEq)]
pub struct ClockBetween {
    pub from_device: i32,
    pub to_device: i32,
    pub capture_id: i32,
    /// Where the offset is given, by the capture's clock: the middle of what both know.
    pub at_wall_ns: i64,
    pub offset_ns: i64,
    /// The offset is within plus or minus this.
    pub bound_ns: i64,
    pub drift_ppb: i64,
    pub drift_bound_ppb: i64,
}

/// Takes a frame and its crossings; `false`: that is enough.
pub type EachFrame<'a, E> = dyn FnMut(FrameRow, &[CrossingRow]) -> std::result::Result<bool, E> + 'a;

/// Packets of one chain, at most.
const MOST: usize = 64;

impl Chain {
    /// What is added to a device's times to be on the axis of the chain's first: as its crossings say, within their bounds.
    pub fn shifts(&self) -> BTreeMap<i32, i64> {
        let mut known: BTreeMap<i32, i64> =
            self.packets.first().map(|(device, _)| (*device, 0)).into_iter().collect();
        loop {
            let before = known.len();
            for c in &self.crossings {
                // What left there arrived so much later here.
                let apart = c.left_ns.saturating_add(c.flight_ns).saturating_sub(c.arrived_ns);
                match (known.get(&c.from_device).copied(), known.get(&c.to_device).copied()) {
                    (Some(from), None) => {
                        known.insert(c.to_device, from.saturating_add(apart));
                    }
                    (None, Some(to)) => {
                        known.insert(c.from_device, to.saturating_sub(apart));
                    }
                    _ => {}
                }
            }
            if known.len() == before {
                return known;
            }
        }
    }
}

impl Several {
    /// Errors: not an integrated log of several devices.
    pub fn open(dir: &Path) -> Result<Several> {
        let manifest = Manifest::read(dir)?;
        if manifest.devices.is_empty() {
            let why = "it is of one device".to_owned();
            return Err(kpat_store::Error::NotALog { path: dir.to_owned(), why }.into());
        }
        let crossings = TableFile::open(dir, &CROSSING)?;
        Ok(Several { dir: dir.to_owned(), manifest, crossings })
    }

    /// The same log, open a second time.
    pub fn again(&self) -> Result<Several> {
        Several::open(&self.dir)
    }

    /// Place of the device of that name.
    pub fn device(&self, name: &str) -> Option<i32> {
        self.manifest.devices.iter().position(|d| d.name == name).map(|i| i as i32)
    }

    pub fn name(&self, device: i32) -> &str {
        usize::try_from(device).ok().and_then(|i| self.manifest.devices.get(i)).map_or("?", |d| &d.name)
    }

    /// Folder of a device's own integrated log.
    pub fn folder(&self, device: i32) -> PathBuf {
        let of = usize::try_from(device).ok().and_then(|i| self.manifest.devices.get(i));
        self.dir.join(of.map_or("", |d| &d.folder))
    }

    /// Where a packet came from and went on to; its nearest relatives by lineage (segments, fragments, what was merged)
    /// count as itself.
    pub fn way(&self, device: i32, packet_id: i64) -> Result<Way> {
        self.way_in(&Store::open(&self.folder(device))?, device, packet_id)
    }

    fn way_in(&self, store: &Store, device: i32, packet_id: i64) -> Result<Way> {
        let lineage = store.lineage(packet_id)?;
        let mut ids: Vec<i64> = lineage.iter().flat_map(|l| [l.parent_id, l.child_id]).collect();
        ids.push(packet_id);
        ids.sort_unstable();
        ids.dedup();
        let mut way = Way {
            came: self.crossings.rows_equal("to_packet_id", &ids)?,
            went: self.crossings.rows_equal("from_packet_id", &ids)?,
        };
        way.came.retain(|c| c.to_device == device);
        way.went.retain(|c| c.from_device == device);
        Ok(way)
    }

    /// Where a device's log begins, by its boot clock.
    pub fn start_ns(&self, device: i32) -> Result<i64> {
        Ok(Manifest::read(&self.folder(device))?.first_ns)
    }

    /// All packets that are connected with this one over wires, at most some dozens.
    pub fn chain(&self, device: i32, packet_id: i64) -> Result<Chain> {
        let stores = (0..self.manifest.devices.len() as i32)
            .map(|d| Store::open(&self.folder(d)))
            .collect::<Result<Vec<_>>>()?;
        let way = |(device, packet): (i32, i64)| match stores.get(device as usize) {
            Some(store) => self.way_in(store, device, packet),
            None => Ok(Way::default()),
        };
        // Back to where it began, then forward from there.
        let mut known: HashSet<(i32, i64)> = HashSet::from([(device, packet_id)]);
        let mut next = VecDeque::from([(device, packet_id)]);
        let mut starts = Vec::new();
        while let Some(at) = next.pop_front() {
            let came = way(at)?.came;
            if came.is_empty() {
                starts.push(at);
            }
            for c in came {
                let before = (c.from_device, c.from_packet_id);
                if known.len() < MOST && known.insert(before) {
                    next.push_back(before);
                }
            }
        }
        let mut chain = Chain::default();
        let mut wires: BTreeSet<(i32, i64, i32, i32)> = BTreeSet::new();
        let mut done: HashSet<(i32, i64)> = HashSet::new();
        next.extend(starts);
        while let Some(at) = next.pop_front() {
            if !done.insert(at) {
                continue;
            }
            if chain.packets.len() == MOST {
                chain.cut = true;
                break;
            }
            chain.packets.push(at);
            for c in way(at)?.went {
                next.push_back((c.to_device, c.to_packet_id));
                if wires.insert((c.capture_id, c.number, c.from_device, c.to_device)) {
                    chain.crossings.push(c);
                }
            }
        }
        Ok(chain)
    }

    /// Frames and different packets that crossed, by direction.
    pub fn directions(&self) -> Result<BTreeMap<(i32, i32), (u64, u64)>> {
        let mut out: BTreeMap<(i32, i32), (u64, HashSet<i64>)> = BTreeMap::new();
        self.crossings.each((0..self.crossings.groups()).collect(), |c: CrossingRow| {
            let (frames, packets) = out.entry((c.from_device, c.to_device)).or_default();
            *frames += 1;
            packets.insert(c.from_packet_id);
        })?;
        Ok(out.into_iter().map(|(way, (frames, packets))| (way, (frames, packets.len() as u64))).collect())
    }

    /// Calls `f` with every frame of the captures and its crossings, in the order of the captures, until it says `false`.
    ///
    /// Memory: the crossings (120 bytes each).
    pub fn each_frame<E: From<crate::error::Error>>(
        &self,
        f: &mut EachFrame<'_, E>,
    ) -> std::result::Result<(), E> {
        // Every device has the same frames; only their times on its own clock differ.
        let frames = TableFile::open(&self.folder(0), &FRAME).map_err(crate::error::Error::from)?;
        let crossings: Vec<CrossingRow> = self.crossings.all().map_err(crate::error::Error::from)?;
        let (mut failed, mut stop) = (None, false);
        for group in 0..frames.groups() {
            frames
                .each(vec![group], |frame: FrameRow| {
                    let here = (frame.capture_id, frame.number);
                    let from = crossings.partition_point(|c| (c.capture_id, c.number) < here);
                    let of_it = crossings[from..].iter().take_while(|c| (c.capture_id, c.number) == here);
                    let to = from + of_it.count();
                    if !stop {
                        match f(frame, &crossings[from..to]) {
                            Ok(more) => stop = !more,
                            Err(e) => (failed, stop) = (Some(e), true),
                        }
                    }
                })
                .map_err(crate::error::Error::from)?;
            if stop {
                break;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The clocks of every two devices that are one, or that a capture relates.
    pub fn clocks(&self) -> Result<Vec<ClockBetween>> {
        let devices = self.manifest.devices.len() as i32;
        let rows = (0..devices)
            .map(|d| Ok(TableFile::open(&self.folder(d), &kpat_store::tables::CLOCK)?.all::<ClockRow>()?))
            .collect::<Result<Vec<_>>>()?;
        let mut out = Vec::new();
        for from in 0..devices {
            for to in from + 1..devices {
                let pairs = rows[from as usize]
                    .iter()
                    .flat_map(|a| rows[to as usize].iter().filter_map(move |b| between((from, a), (to, b))));
                out.extend(pairs.chain(self.one_clock(from, to)).min_by_key(|c| c.bound_ns));
            }
        }
        Ok(out)
    }
}

impl Several {
    /// Of one boot, and one of them by its host's clock at least: they are one clock, as far as that is known of the guests' times.
    fn one_clock(&self, from_device: i32, to_device: i32) -> Option<ClockBetween> {
        let device = |d: i32| self.manifest.devices.get(usize::try_from(d).ok()?);
        let (a, b) = (device(from_device)?, device(to_device)?);
        let bounds: Vec<i64> = [a, b].iter().filter_map(|d| d.host_bound_ns).collect();
        (!bounds.is_empty() && !a.boot_id.is_empty() && a.boot_id == b.boot_id).then(|| ClockBetween {
            from_device,
            to_device,
            capture_id: -1,
            at_wall_ns: 0,
            offset_ns: 0,
            bound_ns: bounds.iter().fold(0, |sum, b| sum.saturating_add(*b)),
            drift_ppb: 0,
            drift_bound_ppb: 0,
        })
    }
}

/// Two lines over the same capture's clock, where both hold.
fn between((from_device, a): (i32, &ClockRow), (to_device, b): (i32, &ClockRow)) -> Option<ClockBetween> {
    let (start, end) = (a.from_wall_ns.max(b.from_wall_ns), a.to_wall_ns.min(b.to_wall_ns));
    if a.capture_id != b.capture_id || start > end {
        return None;
    }
    let at = start + (end - start) / 2;
    let offset = |c: &ClockRow| {
        let since = at.saturating_sub(c.from_wall_ns) as f64;
        c.offset_ns.saturating_add((since * c.drift_ppb as f64 / 1e9).round() as i64)
    };
    Some(ClockBetween {
        from_device,
        to_device,
        capture_id: a.capture_id,
        at_wall_ns: at,
        offset_ns: offset(b).saturating_sub(offset(a)),
        bound_ns: a.bound_ns.saturating_add(b.bound_ns),
        drift_ppb: b.drift_ppb.saturating_sub(a.drift_ppb),
        drift_bound_ppb: a.drift_bound_ppb.saturating_add(b.drift_bound_ppb),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_moved_onto_the_axis_of_the_first_whichever_way_they_are_reached() {
        let crossing = |from_device, to_device, left_ns, arrived_ns, flight_ns| CrossingRow {
            from_device,
            to_device,
            left_ns,
            arrived_ns,
            flight_ns,
            ..CrossingRow::default()
        };
        // 1 sent it at 1,000 of its clock, 0 had it 50 later at 7,050, and gave it to 2, whose clock is 0's.
        let crossings = vec![crossing(0, 2, 7_100, 7_130, 30), crossing(1, 0, 1_000, 7_050, 50)];
        let chain = Chain { packets: vec![(1, 4), (0, 9), (2, 1)], crossings, cut: false };
        assert_eq!(chain.shifts(), BTreeMap::from([(0, -6_000), (1, 0), (2, -6_000)]));
        // Nothing says where it would be.
        let alone = Chain { packets: vec![(1, 4), (5, 6)], ..Chain::default() };
        assert_eq!(alone.shifts(), BTreeMap::from([(1, 0)]));
    }
}
