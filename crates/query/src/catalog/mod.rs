//! Every packet of a log, and every frame without one, in memory: 128 bytes each, so that lists are sorted, filtered and
//! turned over at once. Beyond [`MOST`] rows the list ends, and says so.
//!
//! In order of time. Which rows fit a filter is a list of places, in the order asked for.

mod load;
mod order;

pub use crate::entry::{Entry, Names, flag};
pub use order::{Column, UnknownColumn};

use crate::abreast::abreast;
use crate::error::Result;
use crate::filter::Condition;

/// Rows held at most: a gigabyte.
pub const MOST: usize = 8_000_000;

/// The list.
#[derive(Debug, Default)]
pub struct Catalog {
    /// By first moment.
    pub entries: Vec<Entry>,
    pub names: Names,
    /// Rows that were left out.
    pub cut: u64,
    /// Frames that could not be placed in time; not in the list.
    pub unplaced: u64,
    /// (packet, place), by packet.
    by_id: Vec<(i64, u32)>,
}

/// Density over a stretch of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Density {
    pub packets: Vec<u32>,
    pub drops: Vec<u32>,
    pub retransmissions: Vec<u32>,
}

/// Rows between two looks at whether somebody still waits.
const STRIDE: usize = 1 << 16;

impl Catalog {
    /// Place of a packet.
    pub fn place(&self, id: i64) -> Option<usize> {
        self.by_id.binary_search_by_key(&id, |p| p.0).ok().map(|i| self.by_id[i].1 as usize)
    }

    /// Place of a frame without a packet.
    pub fn place_of_frame(&self, capture: u16, number: u32) -> Option<usize> {
        self.entries.iter().position(|e| !e.is_packet() && e.frame == number && e.capture == capture)
    }

    /// Places of the rows that fit, in order of time.
    ///
    /// Errors: [`Error::Abandoned`].
    pub fn fitting(
        &self,
        condition: Option<&Condition>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Vec<u32>> {
        let Some(condition) = condition else { return Ok((0..self.entries.len() as u32).collect()) };
        let mut out = Vec::new();
        let parts: Vec<(usize, &[Entry])> = self.entries.chunks(STRIDE).enumerate().collect();
        let fitting = |(i, part): &(usize, &[Entry]), _: &dyn Fn() -> bool| {
            let places = ((i * STRIDE) as u32..).zip(*part);
            Ok(places.filter(|(_, e)| condition.fits(e, &self.names)).map(|(i, _)| i).collect::<Vec<u32>>())
        };
        abreast(&parts, progress, &fitting, &mut |places| out.extend(places))?;
        Ok(out)
    }

    /// Counts rows by the time of their first moment.
    pub fn density(&self, places: &[u32], from_ns: i64, to_ns: i64, bins: usize) -> Density {
        let mut out =
            Density { packets: vec![0; bins], drops: vec![0; bins], retransmissions: vec![0; bins] };
        let at = |e: &Entry| bin(e.first_ns, from_ns, to_ns, bins);
        for &i in places {
            let e = &self.entries[i as usize];
            let Some(bin) = at(e) else { continue };
            out.packets[bin] += 1;
            out.drops[bin] += u32::from(i32::from(e.verdict) == crate::codes::verdict::DROPPED);
            out.retransmissions[bin] += u32::from(e.has(flag::RETRANSMITTED));
        }
        out
    }
}

/// Which of `bins` equal parts of a stretch a moment lies in.
pub fn bin(at_ns: i64, from_ns: i64, to_ns: i64, bins: usize) -> Option<usize> {
    if !(from_ns..=to_ns).contains(&at_ns) || bins == 0 {
        return None;
    }
    let span = i128::from(to_ns) - i128::from(from_ns) + 1;
    Some(((i128::from(at_ns) - i128::from(from_ns)) * bins as i128 / span) as usize)
}
