//! From a part of the packets to all of them: a log that was recorded with `--sample`.
//!
//! Each flow (or packet) was in the recording with the same chance p = 1/N, one as independent of the other as their hashes are. So N
//! times what was counted is an unbiased estimate of what there was, and the sum of (1 - p)/p² x² over the flows recorded, x being the packets
//! of one, an unbiased estimate of its variance (Horvitz and Thompson, 1952; Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992,
//! result 2.8.1 with Poisson sampling). Flows are as different as they are: of few flows, or where one has most packets, the
//! error is itself an estimate of little worth, and it says nothing of flows larger than all that were recorded.

use crate::error::Result;
use crate::store::Store;
use kpat_model::hash::Map;
use kpat_model::sample::{Sample, Unit};
use kpat_store::tables::{LINEAGE, PACKET, PacketRow, Row};
use kpat_store::{NULL, TableFile};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Packets of a verdict, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// In the log.
    pub counted: u64,
    /// How many there were, by these.
    pub packets: u64,
    /// Standard error of that.
    pub error: f64,
}

/// What a sampled log says of the packets that it left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimates {
    pub sample: Sample,
    /// Flows (or packets) that were chosen.
    pub units: u64,
    pub all: Estimate,
    /// By code, see [`crate::verdict`].
    pub verdicts: BTreeMap<i32, Estimate>,
}

/// Packets of a flow, and of these by verdict. What cannot be chosen was recorded whole, and is no flow.
type Counts = BTreeMap<i32, u64>;

impl Store {
    /// `None`: nothing was left out on purpose. Reads the packet table's addresses and verdicts.
    pub fn estimates(&self) -> Result<Option<Estimates>> {
        let Some(sample) = self.manifest.log.sample else { return Ok(None) };
        let table = TableFile::open(&self.dir, &PACKET)?;
        let parents = match sample.by {
            Unit::Flow => Map::default(),
            Unit::Packet => parents(&TableFile::open(&self.dir, &LINEAGE)?)?,
        };
        let columns =
            ["packet_id", "ethertype", "proto", "src_addr", "dst_addr", "sport", "dport", "verdict"];
        let mut units: Map<u64, Counts> = Map::default();
        let mut whole = Counts::default();
        let mut reader = table.batches((0..table.groups()).collect(), &columns)?;
        while let Some(batch) = reader.next(8192)? {
            for row in (0..batch.rows).map(|i| PacketRow::get(&batch, i)) {
                let counts = match unit(&row, sample.by, &parents) {
                    Some(unit) => units.entry(unit).or_default(),
                    None => &mut whole,
                };
                *counts.entry(row.verdict).or_default() += 1;
            }
        }
        Ok(Some(estimate(sample, units.values(), &whole)))
    }
}

/// What it was chosen by; `None`: no IP packet.
fn unit(row: &PacketRow, by: Unit, parents: &Map<i64, i64>) -> Option<u64> {
    let mut hash = DefaultHasher::new();
    if by == Unit::Packet {
        let mut id = row.packet_id;
        // Segments of segments; a damaged log may have a circle.
        for _ in 0..16 {
            id = *parents.get(&id).unwrap_or(&id);
        }
        id.hash(&mut hash);
        return row.proto.map(|_| hash.finish());
    }
    let (from, to) = ((&row.src_addr, row.sport), (&row.dst_addr, row.dport));
    (row.proto, from.min(to), from.max(to)).hash(&mut hash);
    row.proto.map(|_| hash.finish())
}

/// Packets that were made of a recorded one were not chosen for themselves.
fn parents(table: &TableFile) -> Result<Map<i64, i64>> {
    let mut out = Map::default();
    for group in 0..table.groups() {
        let (parents, children) = (table.ints(group, "parent_id")?, table.ints(group, "child_id")?);
        let new = children.iter().zip(&parents).filter(|(c, p)| c != p && **c != NULL);
        out.extend(new.map(|(c, p)| (*c, *p)));
    }
    Ok(out)
}

fn estimate<'a>(sample: Sample, units: impl Iterator<Item = &'a Counts>, whole: &Counts) -> Estimates {
    let n = u64::from(sample.one_in);
    let mut out = Estimates { sample, units: 0, all: Estimate::default(), verdicts: BTreeMap::new() };
    let add = |e: &mut Estimate, counted: u64, times: u64| {
        e.counted += counted;
        e.packets = e.packets.saturating_add(counted.saturating_mul(times));
        // its square, until all are added
        e.error += (times * (times - 1)) as f64 * (counted as f64).powi(2);
    };
    let mut of = |counts: &Counts, times: u64| {
        add(&mut out.all, counts.values().sum(), times);
        for (verdict, counted) in counts {
            add(out.verdicts.entry(*verdict).or_default(), *counted, times);
        }
    };
    let mut chosen = 0;
    for counts in units {
        chosen += 1;
        of(counts, n);
    }
    of(whole, 1);
    out.units = chosen;
    out.verdicts.values_mut().chain([&mut out.all]).for_each(|e| e.error = e.error.sqrt());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::random::below;

    /// 4,000 worlds of flows of very different size, each sampled by chance: the mean of estimates is the truth, and the mean of the
    /// squared errors stated is that of the squared errors made.
    #[test]
    fn errors_are_as_large_as_they_are_told() {
        let mut random = below(20);
        let sample = Sample { one_in: 8, by: Unit::Flow };
        let world: Vec<u64> =
            (0..400).map(|_| if random(10) == 0 { 1 + random(300) } else { 1 + random(8) }).collect();
        let truth = world.iter().sum::<u64>() as f64;
        let (mut mean, mut made, mut logged, mut within) = (0.0, 0.0, 0.0, 0);
        const WORLDS: u32 = 4000;
        for _ in 0..WORLDS {
            let chosen: Vec<Counts> =
                world.iter().filter(|_| random(8) == 0).map(|x| Counts::from([(1, *x)])).collect();
            let e = estimate(sample, chosen.iter(), &Counts::from([(1, 10)])).all;
            let off = e.packets as f64 - (truth + 10.0);
            mean += off / f64::from(WORLDS);
            made += off * off / f64::from(WORLDS);
            logged += e.error * e.error / f64::from(WORLDS);
            within += u32::from(off.abs() <= 2.0 * e.error);
        }
        println!(
            "truth {truth}, bias {mean:.1}, errors {:.1}, stated {:.1}, {within} of {WORLDS} within two",
            made.sqrt(),
            logged.sqrt()
        );
        assert!(mean.abs() < 4.0 * made.sqrt() / f64::from(WORLDS).sqrt());
        assert!((0.95..1.05).contains(&(logged / made).sqrt()));
        assert!(within > WORLDS * 85 / 100);
    }
}
