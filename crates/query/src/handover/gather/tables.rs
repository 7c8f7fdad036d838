//! Links, addresses and data, out of the tables that every log has, as marks.

use super::{Feed, Place, rows};
use crate::codes::verdict;
use crate::error::Result;
use crate::handover::mark::{Mark, Source, What};
use crate::store::Store;
use kpat_model::EventKind;
use kpat_model::announced::{BEFORE, REMOVED, had_carrier, is_first_seen};
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

    pub fn read(store: &Store) -> Result<Interfaces> {
        let table = store.table::<EventRow>()?;
        let (link, port) = (i64::from(EventKind::Link as i32), i64::from(EventKind::BridgePort as i32));
        // By its name the last that was removed, and which it was at first.
        let mut gone: HashMap<(i64, String), (Place, Place)> = HashMap::new();
        let (mut seen, mut out): (HashSet<Place>, Interfaces) = Default::default();
        let above = |d: &DeviceRow| Some(((d.netns, d.ifindex), (d.netns, d.above?)));
        out.below = store.devices.iter().filter_map(above).collect();
        // Whose first announcement says nothing of what it was.
        let mut same_state = BTreeMap::new();
        for group in 0..table.groups() {
            if !table.ints(group, "kind")?.iter().any(|k| [link, port].contains(k)) {
                continue;
            }
            table.each(vec![group], |row: EventRow| {
                if i64::from(row.kind) == port {
                    out.port(store, &row);
                }
                if i64::from(row.kind) != link {
                    return;
                }
                let place = (row.netns.unwrap_or(0), i32::try_from(row.a).unwrap_or(0));
                let name = (place.0, row.text.split(' ').next().unwrap_or_default().to_owned());
                let removed = row.text.ends_with(REMOVED);
                let first = seen.insert(place);
                out.say_before |= row.text.contains(BEFORE);
                match had_carrier(&row.text) {
                    Some(up) if first => drop(out.began.insert(place, up)),
                    None if first && !removed && !is_first_seen(&row.text) => {
                        same_state.insert(place, row.b & IFF_LOWER_UP != 0);
                    }
                    _ => {}
                }
                if removed {
                    gone.insert(name, (place, out.same.get(&place).copied().unwrap_or(place)));
                    out.gone.insert(place, row.at_ns);
                    return;
                }
                // By its number, as from another namespace.
                out.gone.remove(&place);
                if first
                    && let Some((last, before)) = gone.remove(&name).filter(|(_, before)| *before != place)
                {
                    out.gone.remove(&last);
                    out.same.insert(place, before);
                }
            })?;
        }
        if out.say_before {
            out.began.extend(same_state);
        }
        Ok(out)
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
        let other = [" mtu ", " address ", " master ", " left ", " (was "];
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
                    // Found when the recording began.
                    _ if row.text.ends_with("(found)") => What::Other,
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
