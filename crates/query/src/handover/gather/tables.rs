//! Links, addresses and data, out of the tables that every log has, as marks.

use super::{Feed, Place, rows};
use crate::codes::verdict;
use crate::error::Result;
use crate::handover::mark::{Mark, Source, What};
use crate::store::Store;
use kpat_model::EventKind;
use kpat_model::announced::{BEFORE, REMOVED, RENAMED, had_carrier, is_first_seen};
use kpat_store::TableFile;
use kpat_store::tables::{DeviceRow, EventRow, PacketRow};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

const IFF_UP: i64 = 1;
const IFF_LOWER_UP: i64 = 0x1_0000;
/// As many as the kernel allows (MAX_NEST_DEV).
const MOST_ABOVE: usize = 8;

pub(super) fn feeds<'a>(store: &'a Store, interfaces: &Interfaces) -> Result<Vec<Box<dyn Feed + 'a>>> {
    let loopback =
        store.devices.iter().filter(|d| d.link_type == 772).map(|d| (d.netns, d.ifindex)).collect();
    let carriers = super::wifi::has_carriers(store)?;
    let mut events = Events {
        links: HashMap::new(),
        carriers,
        say_before: interfaces.say_before,
        gone: interfaces.gone.clone(),
    };
    Ok(vec![
        rows(store.table::<EventRow>()?, move |row, number, out| events.marks(row, number, out)),
        Box::new(Packets {
            table: store.table::<PacketRow>()?,
            loopback,
            below: interfaces.below.clone(),
            bridge_of: interfaces.bridge_of.clone(),
        }),
    ])
}

/// What all announcements of links together say of interfaces.
#[derive(Default)]
pub(super) struct Interfaces {
    /// Those that were removed and came again by the same name, as when a driver is loaded anew: each later one with the first.
    pub same: BTreeMap<Place, Place>,
    /// Those that were removed and did not come again: when.
    gone: HashMap<Place, i64>,
    /// Whether those that were there when the recording began had a link then.
    pub began: BTreeMap<Place, bool>,
    /// Of ports that were, or became, a bridge's: the bridge. What the host receives there it receives at the bridge.
    pub bridge_of: BTreeMap<Place, Place>,
    /// Of VLANs and others that are above an interface: that one.
    below: BTreeMap<Place, Place>,
    /// Some say what it was before.
    say_before: bool,
    /// What interfaces were called, and since when, in order of time.
    names: BTreeMap<Place, Vec<(i64, String)>>,
}

/// Interfaces that it is above, one above the other.
fn all_below(below: &BTreeMap<Place, Place>, place: Place) -> impl Iterator<Item = Place> {
    // What a log says may go in a circle.
    std::iter::successors(below.get(&place), |next| below.get(next)).copied().take(MOST_ABOVE)
}

impl Interfaces {
    /// Indices of interfaces that are above it: what they receive comes in by it, though a filter may have seen it there first.
    pub fn above(&self, place: Place) -> Vec<i32> {
        let over = |upper: &&Place| all_below(&self.below, **upper).any(|p| p == place);
        self.below.keys().filter(over).map(|upper| upper.1).collect()
    }

    /// What it was called then, as far as it was announced.
    pub fn name(&self, place: Place, at_ns: i64) -> Option<&str> {
        let names = self.names.get(&place)?;
        names.iter().rev().find(|n| n.0 <= at_ns).or(names.first()).map(|n| n.1.as_str())
    }

    fn called(&mut self, place: Place, at_ns: i64, text: &str) {
        let name = text.split(' ').next().unwrap_or_default();
        let names = self.names.entry(place).or_default();
        if names.last().is_some_and(|last| last.1 == name) {
            return;
        }
        let before =
            text.split_once(RENAMED).map(|(_, name)| name.trim_end_matches(')')).filter(|_| names.is_empty());
        names.extend(before.map(|name| (i64::MIN, name.to_owned())));
        names.push((at_ns, name.to_owned()));
    }

    pub fn read(store: &Store) -> Result<Interfaces> {
        let table = store.table::<EventRow>()?;
        let (link, port) = (i64::from(EventKind::Link as i32), i64::from(EventKind::BridgePort as i32));
        let mut announced = Announced::default();
        let above = |d: &DeviceRow| Some(((d.netns, d.ifindex), (d.netns, d.above?)));
        announced.of.below = store.devices.iter().filter_map(above).collect();
        for group in 0..table.groups() {
            if !table.ints(group, "kind")?.iter().any(|k| [link, port].contains(k)) {
                continue;
            }
            table.each(vec![group], |row: EventRow| match i64::from(row.kind) {
                kind if kind == port => announced.of.port(store, &row),
                kind if kind == link => announced.link(&row),
                _ => {}
            })?;
        }
        Ok(announced.finish())
    }

    /// Text: name, state and bridge.
    fn port(&mut self, store: &Store, row: &EventRow) {
        let (_, bridge) = row.text.rsplit_once('(').unwrap_or_default();
        let (bridge, netns) = (bridge.trim_end_matches(')'), row.netns.unwrap_or(0));
        let of_it = |d: &&DeviceRow| d.name == bridge && d.netns == netns;
        if let (Some(d), Ok(port)) = (store.devices.iter().rev().find(of_it), i32::try_from(row.b)) {
            self.bridge_of.insert((netns, port), (netns, d.ifindex));
        }
    }
}

/// What announcements of links said so far, in order of time.
#[derive(Default)]
struct Announced {
    of: Interfaces,
    seen: HashSet<Place>,
    /// When those came that were not there before.
    came: HashMap<Place, i64>,
    /// By its name the last that was removed, which it was at first, and when.
    gone: HashMap<(i64, String), (Place, Place, i64)>,
    /// Whose first announcement says nothing of what it was.
    same_state: BTreeMap<Place, bool>,
}

impl Announced {
    fn link(&mut self, row: &EventRow) {
        let place = (row.netns.unwrap_or(0), i32::try_from(row.a).unwrap_or(0));
        let name = (place.0, row.text.split(' ').next().unwrap_or_default().to_owned());
        let removed = row.text.ends_with(REMOVED);
        self.of.called(place, row.at_ns, &row.text);
        let (first, came) = (self.seen.insert(place), is_first_seen(&row.text));
        self.of.say_before |= row.text.contains(BEFORE);
        match had_carrier(&row.text) {
            Some(up) if first => drop(self.of.began.insert(place, up)),
            None if first && !removed && !came => {
                self.same_state.insert(place, row.b & IFF_LOWER_UP != 0);
            }
            _ => {}
        }
        if removed {
            let before = self.of.same.get(&place).copied().unwrap_or(place);
            self.gone.insert(name, (place, before, row.at_ns));
            self.of.gone.insert(place, row.at_ns);
            return;
        }
        // By its number, as from another namespace.
        self.of.gone.remove(&place);
        if came {
            self.came.insert(place, row.at_ns);
        }
        let Some((last, before, at_ns)) = self.gone.get(&name).copied() else { return };
        // The kernel has a name of its own for what comes, and another one is given to it then.
        let named = row.text.contains(RENAMED) && self.came.get(&place).is_some_and(|came| *came >= at_ns);
        if place == last {
            self.gone.remove(&name);
        } else if (first || named) && before != place {
            self.gone.remove(&name);
            self.of.gone.remove(&last);
            self.of.same.insert(place, before);
        }
    }

    fn finish(self) -> Interfaces {
        let mut of = self.of;
        if of.say_before {
            of.began.extend(self.same_state);
        }
        of
    }
}

/// Of `event`: links and addresses.
struct Events {
    /// Flags as last seen.
    links: HashMap<Place, i64>,
    /// Another table has carriers.
    carriers: bool,
    /// Announcements say what a link was before.
    say_before: bool,
    /// When those were removed that did not come again.
    gone: HashMap<Place, i64>,
}

impl Events {
    /// The first announcement of an interface that was there: it is up, or has a carrier, and was or had not; or something else of it changed.
    fn changes_state(&self, text: &str) -> bool {
        let other = [" mtu ", " address ", " master ", " left ", RENAMED];
        had_carrier(text).is_some() || !self.say_before && !other.iter().any(|o| text.contains(o))
    }

    fn marks(&mut self, row: &EventRow, number: i64, out: &mut Vec<(Place, Mark)>) {
        let Some(kind) = EventKind::from_number(row.kind) else { return };
        let netns = row.netns.unwrap_or(0);
        let place = |ifindex: i64| (netns, i32::try_from(ifindex).unwrap_or(0));
        let mut put = |place: Place, what: What, text: Option<&str>| {
            let mut mark = Mark::new(row.at_ns, what, Source::Event(number));
            mark.within_ns = row.after_ns.map_or(0, |after| row.at_ns - after);
            mark.text = text.filter(|t| !t.is_empty()).map(Box::from);
            if place.1 != 0 {
                out.push((place, mark));
            }
        };
        match kind {
            EventKind::Link if row.text.ends_with(REMOVED) => {
                let place = place(row.a);
                let gone = self.gone.get(&place) == Some(&row.at_ns);
                put(place, if gone { What::Gone } else { What::Removed }, None);
            }
            EventKind::Link => {
                let place = place(row.a);
                let before = self.links.insert(place, row.b);
                if before.is_none() && is_first_seen(&row.text) {
                    put(place, What::Found { up: row.b & IFF_LOWER_UP != 0 }, None);
                }
                let first = is_first_seen(&row.text) || self.changes_state(&row.text);
                let changed = |bit: i64| before.map_or(first, |b| (b ^ row.b) & bit != 0);
                if changed(IFF_UP) && (before.is_some() || row.b & IFF_UP == 0) {
                    put(place, if row.b & IFF_UP != 0 { What::AdminUp } else { What::AdminDown }, None);
                }
                if changed(IFF_LOWER_UP) && !self.carriers {
                    put(
                        place,
                        if row.b & IFF_LOWER_UP != 0 { What::CarrierOn } else { What::CarrierOff },
                        None,
                    );
                }
            }
            EventKind::Address => {
                let address = row.text.split(' ').next().unwrap_or_default();
                let flag = |name: &str| row.text.split(' ').any(|w| w == name);
                let v6 = address.contains(':');
                let what = match row.a {
                    _ if flag("dadfailed") => What::Duplicate,
                    0 => What::AddressRemoved { v6 },
                    _ if row.text.ends_with("(found)") => What::AddressFound,
                    _ => What::AddressAdded { v6, tentative: flag("tentative") },
                };
                put(place(row.b), what, Some(address));
            }
            _ => {}
        }
    }
}

/// Of `packet`: data that was received.
struct Packets {
    table: Arc<TableFile>,
    loopback: Vec<Place>,
    below: BTreeMap<Place, Place>,
    bridge_of: BTreeMap<Place, Place>,
}

impl Feed for Packets {
    fn groups(&self) -> usize {
        self.table.groups()
    }

    fn read(&mut self, group: usize) -> Result<Vec<(Place, Mark)>> {
        let column = |name| self.table.ints(group, name);
        let (id, first, proto) = (column("packet_id")?, column("first_ns")?, column("proto")?);
        let (ifindex, netns, fate) = (column("if_in")?, column("if_in_netns")?, column("verdict")?);
        let (sport, dport, icmp) = (column("sport")?, column("dport")?, column("icmp_kind")?);
        let (if_out, home) = (column("if_out")?, column("netns")?);
        let mut out = Vec::new();
        for i in 0..id.len() {
            let place = (netns[i].max(0), i32::try_from(ifindex[i]).unwrap_or(0));
            let to = (home[i].max(0), i32::try_from(if_out[i]).unwrap_or(0));
            let sent = ifindex[i] <= 0 && to.1 > 0;
            if sent && is_data(proto[i], sport[i], dport[i], icmp[i]) && !self.loopback.contains(&to) {
                let mark = Mark::new(first[i], What::Sent, Source::Packet(id[i]));
                out.extend(self.bridge_of.get(&to).map(|bridge| (*bridge, mark.clone())));
                out.extend(all_below(&self.below, to).map(|below| (below, mark.clone())));
                out.push((to, mark));
            }
            let received = place.1 > 0 && fate[i] != i64::from(verdict::DROPPED);
            if received && is_data(proto[i], sport[i], dport[i], icmp[i]) && !self.loopback.contains(&place) {
                let mark = Mark::new(first[i], What::Received, Source::Packet(id[i]));
                // What goes on from port to port is none of the host's.
                let bridge = self.bridge_of.get(&place).filter(|_| if_out[i] <= 0);
                out.extend(bridge.map(|bridge| (*bridge, mark.clone())));
                out.extend(all_below(&self.below, place).map(|below| (below, mark.clone())));
                out.push((place, mark));
            }
        }
        Ok(out)
    }
}

/// Neither what finds addresses and neighbours nor what is sent to everybody.
pub(super) fn is_data(proto: i64, sport: i64, dport: i64, icmp: i64) -> bool {
    let aside = |port: i64| matches!(port, 67 | 68 | 546 | 547 | 1900 | 5353 | 5355);
    match proto {
        6 => true,
        17 => !aside(sport) && !aside(dport),
        1 => matches!(icmp, 0 | 8),
        58 => matches!(icmp, 128 | 129),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[(i64, &str)]) -> Interfaces {
        let mut announced = Announced::default();
        for (i, (ifindex, text)) in texts.iter().enumerate() {
            let (a, text) = (*ifindex, (*text).to_owned());
            announced.link(&EventRow {
                at_ns: i as i64 * 1_000,
                netns: Some(7),
                a,
                text,
                ..EventRow::default()
            });
        }
        announced.finish()
    }

    /// As the kernel announces an adapter that is plugged in again: as wlan0, which udev renames.
    #[test]
    fn what_comes_again_by_its_old_name_is_the_same() {
        let back = read(&[(3, "wlp3s0 removed"), (9, "wlan0 down (new)"), (9, "wlp3s0 down (was wlan0)")]);
        assert_eq!((back.same.get(&(7, 9)), back.gone.len()), (Some(&(7, 3)), 0));
        // Again and again, and for good at last.
        let gone = read(&[
            (3, "wlan0 removed"),
            (9, "wlan0 down (new)"),
            (9, "wlan0 removed"),
            (11, "wlan0 down (new)"),
            (11, "wlan0 removed"),
        ]);
        assert_eq!((gone.same.get(&(7, 9)), gone.same.get(&(7, 11))), (Some(&(7, 3)), Some(&(7, 3))));
        assert_eq!(gone.gone, HashMap::from([((7, 11), 4_000)]));
        // By its number, from another namespace.
        let mut moved = vec![(3, "eth0 removed"), (3, "eth0 down (new)")];
        assert!(read(&moved).gone.is_empty());
        moved.extend([(3, "eth1 down (was eth0)"), (5, "eth0 down (new)")]);
        assert!(read(&moved).same.is_empty());
    }

    #[test]
    fn an_interface_has_the_name_that_it_had() {
        let read = read(&[
            (4, "w2 up"),
            (4, "w2x up carrier (was w2)"),
            (4, "w2 up (was w2x)"),
            (5, "wlp3s0 down (was wlan0)"),
        ]);
        let names: Vec<_> = [0, 1_000, 1_999, 2_000].iter().map(|at| read.name((7, 4), *at)).collect();
        assert_eq!(names, [Some("w2"), Some("w2x"), Some("w2x"), Some("w2")]);
        assert_eq!((read.name((7, 5), 0), read.name((7, 6), 0)), (Some("wlan0"), None));
    }

    #[test]
    fn another_interface_that_takes_the_name_is_another() {
        let other = read(&[
            (3, "eth0 up carrier (before: down)"),
            (4, "eth1 up carrier"),
            (3, "eth0 removed"),
            (4, "eth0 up carrier (was eth1)"),
        ]);
        assert_eq!((other.same.len(), other.gone), (0, HashMap::from([((7, 3), 2_000)])));
    }
}
