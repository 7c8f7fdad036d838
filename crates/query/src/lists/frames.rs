//! The wire's side of the join: every frame with the packets that it was matched to.

use crate::codes::SURE_PERCENT;
use crate::error::Result;
use crate::store::Store;
use kpat_model::hash::Map;
use kpat_store::tables::*;

/// Which frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameFilter {
    /// Only of this capture.
    pub capture_id: Option<i32>,
    /// Only those that have no packet.
    pub unmatched: bool,
    /// Only those of which several packets may be the one.
    pub ambiguous: bool,
}

/// A frame's packet.
#[derive(Clone, Debug)]
pub struct PacketOfFrame {
    pub association: AssociationRow,
    /// Least number among all packets that the packet's lineage connects it with, itself included: segments and the
    /// packet they were cut from, fragments and the whole, copies, what receive offload merged.
    pub family: i64,
}

#[derive(Clone, Debug)]
pub struct FrameWithPackets {
    pub frame: FrameRow,
    /// Most likely first.
    pub packets: Vec<PacketOfFrame>,
}

impl FrameWithPackets {
    pub fn is_ambiguous(&self) -> bool {
        self.packets.first().is_some_and(|p| p.association.confidence < SURE_PERCENT)
    }
}

/// Packets connected by lineage, by the least of them.
pub(crate) struct Families(Map<i64, i64>);

impl Families {
    pub(crate) fn new() -> Families {
        Families(Map::default())
    }

    pub(crate) fn join(&mut self, a: i64, b: i64) {
        let (a, b) = (self.of(a), self.of(b));
        if a != b {
            self.0.insert(a.max(b), a.min(b));
        }
    }

    pub(crate) fn of(&mut self, id: i64) -> i64 {
        let mut root = id;
        while let Some(&up) = self.0.get(&root) {
            root = up;
        }
        // So that the next way is short.
        let mut at = id;
        while at != root {
            at = self.0.insert(at, root).unwrap_or(root);
        }
        root
    }
}

impl Store {
    /// Calls `f` with every frame that fits, in the order of the captures, until it says `false`. Gives how many it was
    /// called with.
    ///
    /// Memory: the associations (100 bytes each) and the lineage of the log.
    pub fn each_frame<E: From<crate::error::Error>>(
        &self,
        filter: &FrameFilter,
        f: &mut dyn FnMut(FrameWithPackets) -> std::result::Result<bool, E>,
    ) -> std::result::Result<u64, E> {
        let mut families = self.families()?;
        let mut associations: Vec<AssociationRow> = self.all()?;
        associations.retain(|a| filter.capture_id.is_none_or(|c| a.capture_id == c));
        let place = |a: &AssociationRow| (a.capture_id, a.number);
        associations.sort_by_key(|a| (place(a), -a.confidence, a.packet_id));
        let table = self.table::<FrameRow>()?;
        let mut count = 0;
        let mut failed: Option<E> = None;
        for group in 0..table.groups() {
            let of_capture =
                |c: i32| table.range(group, "capture_id").is_none_or(|r| r.contains(&i64::from(c)));
            if failed.is_some() || !filter.capture_id.is_none_or(of_capture) {
                continue;
            }
            let mut stop = false;
            table
                .each(vec![group], |frame: FrameRow| {
                    if stop || filter.capture_id.is_some_and(|c| c != frame.capture_id) {
                        return;
                    }
                    let here = (frame.capture_id, frame.number);
                    let from = associations.partition_point(|a| place(a) < here);
                    let packets: Vec<PacketOfFrame> = associations[from..]
                        .iter()
                        .take_while(|a| place(a) == here)
                        .map(|a| PacketOfFrame { association: a.clone(), family: families.of(a.packet_id) })
                        .collect();
                    let with = FrameWithPackets { frame, packets };
                    if (filter.unmatched && !with.packets.is_empty())
                        || (filter.ambiguous && !with.is_ambiguous())
                    {
                        return;
                    }
                    count += 1;
                    match f(with) {
                        Ok(more) => stop = !more,
                        Err(e) => {
                            failed = Some(e);
                            stop = true;
                        }
                    }
                })
                .map_err(crate::error::Error::from)?;
            if stop {
                break;
            }
        }
        failed.map_or(Ok(count), Err)
    }

    fn families(&self) -> Result<Families> {
        let mut families = Families::new();
        let table = self.table::<LineageRow>()?;
        table.each((0..table.groups()).collect(), |l: LineageRow| families.join(l.parent_id, l.child_id))?;
        Ok(families)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_go_by_the_least() {
        let mut f = Families::new();
        for (a, b) in [(7, 9), (9, 8), (3, 8), (20, 21)] {
            f.join(a, b);
        }
        assert_eq!([3, 7, 8, 9, 20, 21, 5].map(|id| f.of(id)), [3, 3, 3, 3, 20, 20, 5]);
    }
}
