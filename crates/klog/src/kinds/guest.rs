//! Of guests that their host recorded.

use super::*;

impl InColumns for GuestClock {
    const PLACE: usize = 30;

    fn row(&self) -> Row<'_> {
        Row::new([self.at.0 as u64, self.guest.0 as u64, self.bound_ns.into()], [])
    }
}

pub(super) fn guest_clock(row: &Row<'_>) -> Option<Record> {
    let [_, guest, bound, ..] = row.numbers;
    Some(Record::GuestClock(GuestClock {
        at: at(row),
        guest: BootNs(guest as i64),
        bound_ns: narrow(bound)?,
    }))
}
