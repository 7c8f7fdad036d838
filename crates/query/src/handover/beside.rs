//! What another host recorded of a handover: an access point, a router, the DHCP server. Its marks by the clock of the host that had the handover.
//!
//! Logs of one kernel have one clock. Of two kernels the clocks are bounded by what passed between them: a message is received after it was sent, so each of the
//! handshake that both recorded bounds the difference from one side. Without any, both hosts' wall clocks are taken, and the answer reports it.

use super::machine::Handover;
use super::mark::{Mark, What};
use crate::error::Result;
use crate::store::Store;
use kpat_model::link_address::parse;
use kpat_model::{Exchanged, WifiWhat};
use kpat_store::tables::{ExchangeRow, WifiEventRow};
use std::collections::BTreeMap;

/// What it recorded so long before and after the handover.
const AROUND_NS: i64 = 500_000_000;
/// Wall clocks of two hosts are no farther apart, or nothing is found.
const WALL_NS: i64 = 60_000_000_000;
/// Marks of one host beside one handover.
const MOST: usize = 4_096;

/// Another host's marks of a handover, by the clock of the first.
#[derive(Clone, Debug)]
pub struct Beside {
    pub name: String,
    /// Theirs = ours + offset.
    pub offset_ns: i64,
    /// `None`: as well as both wall clocks agree.
    pub bound_ns: Option<i64>,
    /// Messages that bound it.
    pub messages: usize,
    pub marks: Vec<Mark>,
}

impl Beside {
    /// How the clocks relate, in words.
    pub fn clock(&self) -> String {
        match self.bound_ns {
            Some(0) => "the same clock".into(),
            Some(ns) => format!(
                "clocks within ± {:.3} ms, by {} messages between them",
                ns as f64 / 1e6,
                self.messages
            ),
            None => "by both hosts' wall clocks: no message of both bounds them".into(),
        }
    }
}

/// Protocol, message, id: what tells messages apart.
type Key = (i32, i32, i64);

/// Sent or received by an interface.
struct Passed {
    at_ns: i64,
    sent: bool,
    key: Key,
}

fn passed(store: &Store) -> Result<Vec<Passed>> {
    let mut out = Vec::new();
    if !store.dir().join("exchange.parquet").exists() {
        return Ok(out);
    }
    let table = store.table::<ExchangeRow>()?;
    table.each((0..table.groups()).collect(), |row: ExchangeRow| {
        let told_apart = matches!(
            Exchanged::from_number(row.protocol),
            Some(Exchanged::Eapol | Exchanged::Dhcp4 | Exchanged::Dhcp6)
        );
        if told_apart {
            out.push(Passed {
                at_ns: row.at_ns,
                sent: row.sent != 0,
                key: (row.protocol, row.message, row.id),
            });
        }
    })?;
    Ok(out)
}

/// Theirs less ours: at least, at most, and by how many messages.
fn bounds(ours: &[Passed], theirs: &[Passed], guess_ns: i64) -> (Option<i64>, Option<i64>, usize) {
    let mut by: BTreeMap<(bool, Key), Vec<i64>> = BTreeMap::new();
    for t in theirs {
        by.entry((t.sent, t.key)).or_default().push(t.at_ns);
    }
    let count =
        |all: &[Passed], sent: bool, key| all.iter().filter(|p| p.sent == sent && p.key == key).count();
    let (mut least, mut most, mut used): (Option<i64>, Option<i64>, usize) = (None, None, 0);
    for o in ours {
        let Some([at]) = by.get(&(!o.sent, o.key)).map(Vec::as_slice) else { continue };
        let apart = at - o.at_ns;
        if (apart - guess_ns).abs() > WALL_NS || count(ours, o.sent, o.key) != 1 {
            continue;
        }
        used += 1;
        // What we sent they received later; what they sent we did.
        if o.sent {
            most = Some(most.map_or(apart, |m| m.min(apart)));
        } else {
            least = Some(least.map_or(apart, |l| l.max(apart)));
        }
    }
    (least, most, used)
}

impl Store {
    /// Adds what another host's log has of these handovers.
    pub fn beside(&self, other: &Store, name: &str, all: &mut [Handover]) -> Result<()> {
        let (a, b) = (&self.manifest.log, &other.manifest.log);
        let one = !a.boot_id.is_empty() && a.boot_id == b.boot_id;
        // As it was set last: at the beginning it may not have been set yet.
        let last = |s: &Store| s.own_clock().map(|c| c.offset_ns(i64::MAX));
        let walls = (last(self), last(other));
        let guess_ns = match walls {
            (Some(ours), Some(theirs)) => theirs.saturating_sub(ours),
            _ => 0,
        };
        let (offset_ns, bound_ns, messages) = if one {
            (0, Some(0), 0)
        } else {
            match bounds(&passed(self)?, &passed(other)?, guess_ns) {
                (Some(least), Some(most), used) if least <= most => {
                    (least + (most - least) / 2, Some((most - least + 1) / 2), used)
                }
                _ => (guess_ns, None, 0),
            }
        };
        let said = super::gather::programs::Said::read(other)?;
        for h in all {
            let stations = self.addresses_of(h);
            let from_ns = h.begin_ns.saturating_add(offset_ns).saturating_sub(AROUND_NS);
            let range = from_ns..=h.end_ns.saturating_add(offset_ns).saturating_add(AROUND_NS);
            let mut marks = other.radio_of(&stations, &range)?;
            marks.extend(other.exchanges_of(&stations, &range)?);
            let of_station = |m: &&Mark| {
                let text = m.text.as_deref().unwrap_or_default().to_ascii_lowercase();
                let other_station = text.contains(" sta ")
                    && !stations.iter().any(|s| text.contains(&kpat_model::link_address::text(*s)));
                range.contains(&m.at_ns) && !other_station
            };
            marks.extend(said.all().iter().filter(of_station).cloned());
            for m in &mut marks {
                m.at_ns = m.at_ns.saturating_sub(offset_ns);
            }
            marks.sort_by_key(|m| m.at_ns);
            marks.truncate(MOST);
            h.beside.push(Beside { name: name.to_owned(), offset_ns, bound_ns, messages, marks });
        }
        Ok(())
    }

    /// Link addresses of a handover's interface.
    pub(super) fn addresses_of(&self, h: &Handover) -> Vec<[u8; 6]> {
        let own =
            |d: &&kpat_store::tables::DeviceRow| h.is_of(d.ifindex) && h.netns.is_none_or(|n| n == d.netns);
        let mut all: Vec<[u8; 6]> =
            self.devices.iter().rev().filter(own).filter_map(|d| parse(&d.mac)).collect();
        all.retain(|a| *a != [0; 6]);
        all.dedup();
        all
    }

    /// What its radio did for these stations.
    fn radio_of(&self, stations: &[[u8; 6]], range: &std::ops::RangeInclusive<i64>) -> Result<Vec<Mark>> {
        let mut out = Vec::new();
        if !self.dir().join("wifi_event.parquet").exists() {
            return Ok(out);
        }
        let table = self.table::<WifiEventRow>()?;
        let mut at = 0;
        table.each((0..table.groups()).collect(), |row: WifiEventRow| {
            let number = at;
            at += 1;
            let address = row.address.as_deref().and_then(parse);
            let of_all = matches!(
                WifiWhat::from_number(row.event),
                Some(WifiWhat::ApStart | WifiWhat::ApStop | WifiWhat::ChannelSwitch)
            );
            if !range.contains(&row.at_ns) || !(of_all || address.is_some_and(|a| stations.contains(&a))) {
                return;
            }
            let Some(what) = WifiWhat::from_number(row.event) else { return };
            let mut mark = Mark::new(row.at_ns, What::Other, super::Source::Wifi(number));
            mark.text = Some(
                match what {
                    WifiWhat::StationState => format!("station-state {} to {}", row.a, row.b),
                    _ => what.name().to_owned(),
                }
                .into(),
            );
            out.push(mark);
        })?;
        Ok(out)
    }

    /// Messages of these stations, and those of which it is not known whose they are.
    fn exchanges_of(&self, stations: &[[u8; 6]], range: &std::ops::RangeInclusive<i64>) -> Result<Vec<Mark>> {
        let mut out = Vec::new();
        if !self.dir().join("exchange.parquet").exists() {
            return Ok(out);
        }
        let table = self.table::<ExchangeRow>()?;
        let mut at = 0;
        table.each((0..table.groups()).collect(), |row: ExchangeRow| {
            let number = at;
            at += 1;
            let is = |a: &Option<String>| a.as_deref().and_then(parse).is_some_and(|a| stations.contains(&a));
            let eapol = Exchanged::from_number(row.protocol) == Some(Exchanged::Eapol);
            let whose = is(&row.mac_src) || is(&row.mac_dst) || eapol && row.mac_src.is_none();
            if !range.contains(&row.at_ns) || !whose {
                return;
            }
            let Some(protocol) = Exchanged::from_number(row.protocol) else { return };
            let way = if row.sent != 0 { "sent" } else { "received" };
            let mut mark = Mark::new(row.at_ns, What::Other, super::Source::Exchange(number));
            mark.text = Some(format!("{}, {way}", super::gather::message_of(protocol, row.message)).into());
            out.push(mark);
        })?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_was_sent_before() {
        let p = |at_ns, sent, message| Passed { at_ns, sent, key: (5, message, 9) };
        // Theirs is 1,000 ahead; a message takes 3 to 8.
        let theirs = [p(1_100, true, 1), p(1_160, false, 2), p(1_200, true, 3), p(1_263, false, 4)];
        let ours = [p(108, false, 1), p(155, true, 2), p(203, false, 3), p(260, true, 4)];
        assert_eq!(bounds(&ours, &theirs, 0), (Some(997), Some(1_003), 4));
        // One that was sent again says nothing.
        let again = [p(108, false, 1), p(109, false, 1)];
        assert_eq!(bounds(&again, &theirs, 0), (None, None, 0));
    }
}
