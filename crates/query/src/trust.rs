//! How far the log is to be trusted: the share of what should be in it that is, by each way in which something can be missing
//! or doubtful. The figure is that of the worst, since what follows from the log stands on all of them.

use crate::info::Info;
use kpat_model::LossCause;
use kpat_store::tables::LossRow;

/// One way in which something can be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustPart {
    /// Machine word: `packets`, `records`, `whole`, `frames`, `matches`, `file`, `ends`.
    pub part: &'static str,
    /// What is there, of what should be.
    pub good: u64,
    pub all: u64,
    /// One sentence with both numbers.
    pub words: String,
}

impl TrustPart {
    /// Parts per million, rounded down; of nothing all is there.
    pub fn ppm(&self) -> u64 {
        (u128::from(self.good.min(self.all)) * 1_000_000)
            .checked_div(u128::from(self.all))
            .unwrap_or(1_000_000) as u64
    }
}

/// The parts, in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    pub parts: Vec<TrustPart>,
}

impl Trust {
    /// The part that the figure is of: of equal ones the first.
    pub fn worst(&self) -> Option<&TrustPart> {
        self.parts.iter().min_by_key(|p| p.ppm())
    }

    /// Parts per million.
    pub fn ppm(&self) -> u64 {
        self.worst().map_or(1_000_000, TrustPart::ppm)
    }

    /// Parts in which something is missing, but for the worst one.
    pub fn others(&self) -> impl Iterator<Item = &TrustPart> {
        let worst = self.worst().map(|p| p.part);
        self.parts.iter().filter(move |p| Some(p.part) != worst && p.good < p.all)
    }
}

fn part(part: &'static str, good: u64, all: u64, words: String) -> TrustPart {
    TrustPart { part, good: good.min(all), all, words }
}

/// Records that are not there, and what could not be read of those that are. That the flight recorder keeps the last seconds only is what it is for; damage is
/// counted in bytes.
fn missing(losses: &[LossRow]) -> (u64, u64) {
    let of = |causes: &[LossCause], l: &LossRow| causes.iter().any(|c| *c as i32 == l.cause);
    let sum = |those: &dyn Fn(&LossRow) -> bool| -> u64 {
        losses.iter().filter(|l| those(l)).map(|l| l.count.unsigned_abs()).sum()
    };
    let unread = [LossCause::ReadFault];
    let other = [LossCause::Evicted, LossCause::Damaged, LossCause::ReadFault];
    (sum(&|l| !of(&other, l)), sum(&|l| of(&unread, l)))
}

impl Info {
    fn counted(&self, key: &str) -> Option<u64> {
        self.provenance.iter().find(|p| p.key == key).and_then(|p| p.value.parse().ok())
    }

    /// Bytes of the log that are damaged or could not be read.
    pub fn damaged_bytes(&self) -> u64 {
        let damaged = self.losses.iter().filter(|l| l.cause == LossCause::Damaged as i32);
        damaged.map(|l| l.count.unsigned_abs()).sum()
    }

    /// Of a log without packets and frames (of applications): what was lost and damaged.
    pub fn trust(&self) -> Trust {
        let mut parts = Vec::new();
        let c = &self.conservation;
        let (packets, explained) = (c.packets(), c.packets() - c.fates.unexplained);
        if packets > 0 {
            let words = if explained == packets {
                "of the packets are explained".to_owned()
            } else {
                format!("of the packets are explained, {} are not", share(packets - explained, packets))
            };
            parts.push(part("packets", explained, packets, words));
        }
        let (lost, unread) = missing(&self.losses);
        let all = |records: &u64| records.saturating_add(lost);
        if let Some(records) = self.counted("records").filter(|r| all(r) > 0) {
            let all = all(&records);
            let words = format!("of the records are there, {} were lost", share(lost, all));
            parts.push(part("records", records, all, words));
        }
        if let Some(records) = self.counted("records").filter(|r| *r > 0 && unread > 0) {
            let words =
                format!("of the records are whole, {} lack what could not be read", share(unread, records));
            parts.push(part("whole", records.saturating_sub(unread), records, words));
        }
        let frames: u64 = self.interfaces.iter().map(|i| i.frames.unsigned_abs()).sum();
        let matched: u64 = self.interfaces.iter().map(|i| i.matched.unsigned_abs()).sum();
        if let Some(expected) = self.counted("frames.expected").filter(|_| frames > 0) {
            let all = expected.max(matched);
            let words = format!(
                "of the frames of recorded flows have a packet, {} have none",
                share(all - matched, all)
            );
            parts.push(part("frames", matched, all, words));
        }
        if let Some(ambiguous) = self.counted("frames.ambiguous").filter(|_| matched > 0) {
            let words =
                format!("of the matches are sure, {} fit other packets as well", share(ambiguous, matched));
            parts.push(part("matches", matched.saturating_sub(ambiguous), matched, words));
        }
        let bytes: u64 = self.manifest.sources.iter().filter(|s| s.role == "log").map(|s| s.bytes).sum();
        let damaged = self.damaged_bytes();
        if bytes > 0 {
            let words = format!("of the log could be read, {} bytes are damaged", share(damaged, bytes));
            parts.push(part("file", bytes.saturating_sub(damaged), bytes, words));
        }
        if let Some(late) = self.counted("packets.late_packets").filter(|_| packets > 0) {
            let words =
                format!("of the packets were followed to their end, {} went on after", share(late, packets));
            parts.push(part("ends", packets.saturating_sub(late), packets, words));
        }
        Trust { parts }
    }
}

fn share(part: u64, whole: u64) -> String {
    format!("{} of {}", kpat_text::count(part), kpat_text::count(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_lacks_bytes_is_there() {
        let loss = |cause: LossCause, count| LossRow { cause: cause as i32, count, ..LossRow::default() };
        let all = [loss(LossCause::ReadFault, 4), loss(LossCause::RingFull, 2), loss(LossCause::Evicted, 7)];
        assert_eq!(missing(&all), (2, 4));
    }
}
