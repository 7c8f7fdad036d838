//! Of network cards that stamp packets.

use super::*;

impl InColumns for CardStamp {
    const PLACE: usize = 14;

    fn row(&self) -> Row<'_> {
        Row::new(
            [self.at.0 as u64, self.packet.0, self.netns.into(), self.ifindex.into(), self.card_ns as u64],
            [],
        )
    }
}

pub(super) fn card_stamp(row: &Row<'_>) -> Option<Record> {
    let [_, packet, netns, ifindex, card, ..] = row.numbers;
    let (netns, ifindex, card_ns) = (narrow(netns)?, narrow(ifindex)?, card as i64);
    Some(Record::CardStamp(CardStamp { at: at(row), packet: PacketId(packet), netns, ifindex, card_ns }))
}

impl InColumns for CardReading {
    const PLACE: usize = 15;

    fn row(&self) -> Row<'_> {
        Row::new(
            [
                self.at.0 as u64,
                self.netns.into(),
                self.ifindex.into(),
                self.card_ns as u64,
                self.bound_ns.into(),
            ],
            [cut(&self.clock)],
        )
    }
}

pub(super) fn card_reading(row: &Row<'_>) -> Option<Record> {
    let [_, netns, ifindex, card, bound, ..] = row.numbers;
    Some(Record::CardReading(Box::new(CardReading {
        at: at(row),
        netns: narrow(netns)?,
        ifindex: narrow(ifindex)?,
        card_ns: card as i64,
        bound_ns: narrow(bound)?,
        clock: text(row.bytes[0]),
    })))
}
