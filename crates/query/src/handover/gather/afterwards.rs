//! A carrier that was lost and back before rtnetlink announced it: it was gone somewhen in the second before. Data says when.
//!
//! A flow that goes on at its pace has one hole in that time, as long as the carrier was gone at least. Where there is one such hole, the two marks stand at its end, so that the handover
//! has it; their bound stays that of the announcement. Without a flow, or with more than one hole, they stay where they were announced.

use super::{Place, Waiting};
use crate::handover::mark::{Mark, What};
use kpat_model::announced::AFTERWARDS;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Packets that show a pace.
const FEWEST: usize = 16;
/// A hole is so many times as long as what is usual between two packets, and as the next longest time without one.
const HOLE: i64 = 4;
const ALONE: i64 = 2;

/// Marks that were moved: from where to where, by interface.
#[derive(Default)]
pub(super) struct Afterwards(HashMap<Place, (i64, i64)>);

impl Afterwards {
    /// `waiting`: marks of the time before; older ones than `passed_ns` are none of these any more.
    pub fn place(
        &mut self,
        place: Place,
        mark: &mut Mark,
        waiting: &BinaryHeap<Reverse<Waiting>>,
        passed_ns: i64,
    ) {
        let to = match mark.what {
            What::CarrierOff if mark.text.as_deref() == Some(AFTERWARDS) => {
                self.0.remove(&place);
                let from = mark.at_ns.saturating_sub_unsigned(mark.within_ns.unsigned_abs());
                let of = waiting
                    .iter()
                    .map(|w| &w.0)
                    .filter(|w| w.place == place && w.mark.what == What::Received);
                let mut times: Vec<i64> =
                    of.map(|w| w.at_ns).filter(|t| (from..mark.at_ns).contains(t)).collect();
                times.sort_unstable();
                let Some(end) = hole(&times).filter(|end| *end > passed_ns) else { return };
                self.0.insert(place, (mark.at_ns, end - 1));
                end - 1
            }
            // What the same announcement says.
            What::CarrierOn | What::OperState(_) => match self.0.get(&place) {
                Some((at, to)) if *at == mark.at_ns => *to,
                _ => return,
            },
            _ => return,
        };
        mark.within_ns = mark.within_ns.saturating_sub(mark.at_ns - to);
        mark.at_ns = to;
    }
}

/// The end of the one hole in a flow; `times` in order.
fn hole(times: &[i64]) -> Option<i64> {
    if times.len() < FEWEST {
        return None;
    }
    let mut apart: Vec<(i64, i64)> = times.windows(2).map(|w| (w[1] - w[0], w[1])).collect();
    apart.sort_unstable();
    let (longest, end) = apart[apart.len() - 1];
    let (usual, next) = (apart[apart.len() / 2].0, apart[apart.len() - 2].0);
    (longest >= HOLE * usual && longest >= ALONE * next).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::mark::Source;

    const MS: i64 = 1_000_000;

    fn moved(data: &[i64], passed_ns: i64) -> (Mark, Mark) {
        let place = (7, 2);
        let received = |(i, at): (usize, &i64)| {
            let mark = Mark::new(*at, What::Received, Source::Packet(i as i64));
            Reverse(Waiting { at_ns: *at, number: i as u64, place, mark })
        };
        let waiting: BinaryHeap<_> = data.iter().enumerate().map(received).collect();
        let mut off = Mark::new(2_000 * MS, What::CarrierOff, Source::Link(0));
        off.within_ns = 1_005 * MS;
        off.text = Some(AFTERWARDS.into());
        let mut on = Mark::new(2_000 * MS, What::CarrierOn, Source::Link(1));
        on.within_ns = 1_005 * MS;
        let mut state = Afterwards::default();
        state.place(place, &mut off, &waiting, passed_ns);
        state.place(place, &mut on, &waiting, passed_ns);
        (off, on)
    }

    #[test]
    fn marks_stand_where_data_was_missing() {
        let flow = |skip: std::ops::Range<i64>| -> Vec<i64> {
            (0..100).map(|i| i * 20).filter(|t| !skip.contains(t)).map(|t| t * MS).collect()
        };
        let (off, on) = moved(&flow(1_100..1_620), 0);
        assert_eq!((off.at_ns, on.at_ns), (1_620 * MS - 1, 1_620 * MS - 1));
        // The announcement's earliest moment is as it was.
        assert_eq!(off.at_ns - off.within_ns, 995 * MS);
        // No hole, one too short, two of them, one before what the announcement can be of, and one that is over already.
        for data in [flow(0..0), flow(1_100..1_140), flow(300..700)] {
            assert_eq!(moved(&data, 0).0.at_ns, 2_000 * MS, "{data:?}");
        }
        let two: Vec<i64> =
            flow(1_100..1_400).into_iter().filter(|t| !(1_600 * MS..1_850 * MS).contains(t)).collect();
        assert_eq!(moved(&two, 0).0.at_ns, 2_000 * MS);
        assert_eq!(moved(&flow(1_100..1_620), 1_700 * MS).0.at_ns, 2_000 * MS);
    }
}
