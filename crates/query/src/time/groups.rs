//! Packets by profile.

use super::GroupTime;
use crate::codes::verdict;
use crate::store::Store;
use kpat_model::hash::Map;
use kpat_store::tables::PacketRow;

/// By what packets are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    Proto,
    /// Network length, by powers of two.
    Size,
    /// The lower of the two ports: the service's, as a rule.
    Port,
    /// Received, sent, passed through, or never at a device.
    Direction,
    Verdict,
    /// Devices that it came in and went out by.
    Interface,
}

pub(super) struct Groups<'a> {
    by: Option<GroupBy>,
    store: &'a Store,
    known: Map<String, u32>,
    /// What to sort by, and the label.
    all: Vec<(i64, String)>,
}

impl<'a> Groups<'a> {
    pub fn new(store: &'a Store, by: Option<GroupBy>) -> Groups<'a> {
        Groups { by, store, known: Map::default(), all: Vec::new() }
    }

    pub fn of(&mut self, p: &PacketRow) -> u32 {
        let (order, label) = self.label(p);
        if let Some(group) = self.known.get(&label) {
            return *group;
        }
        let group = self.all.len() as u32;
        self.known.insert(label.clone(), group);
        self.all.push((order, label));
        group
    }

    fn label(&self, p: &PacketRow) -> (i64, String) {
        let Some(by) = self.by else { return (0, String::new()) };
        match by {
            GroupBy::Proto => (0, proto(p)),
            GroupBy::Size if p.len_bytes <= 0 => (-1, "unknown".to_owned()),
            GroupBy::Size => {
                let low = 1i64 << (63 - p.len_bytes.leading_zeros());
                (low, format!("{low} to {} B", low.saturating_mul(2) - 1))
            }
            GroupBy::Port => match p.sport.into_iter().chain(p.dport).min() {
                Some(port) => (i64::from(port), format!("port {port}")),
                None => (-1, "no port".to_owned()),
            },
            GroupBy::Direction => match (p.if_in, p.if_out) {
                (Some(_), Some(_)) => (0, "in and out".to_owned()),
                (Some(_), None) => (1, "in".to_owned()),
                (None, Some(_)) => (2, "out".to_owned()),
                (None, None) => (3, "no device".to_owned()),
            },
            GroupBy::Verdict => (i64::from(p.verdict), verdict::name(p.verdict).to_owned()),
            GroupBy::Interface => {
                let name = |ifindex: Option<i32>, netns: Option<i64>| {
                    ifindex.map(|i| self.store.interface(i, netns))
                };
                let label = match (name(p.if_in, p.if_in_netns), name(p.if_out, p.if_out_netns)) {
                    (Some(a), Some(b)) => format!("{a} → {b}"),
                    (Some(a), None) => format!("{a} →"),
                    (None, Some(b)) => format!("→ {b}"),
                    (None, None) => "no device".to_owned(),
                };
                (0, label)
            }
        }
    }

    pub fn labels(&self) -> Vec<String> {
        self.all.iter().map(|(_, label)| label.clone()).collect()
    }

    /// Numbers in their order, names by how many packets there are.
    pub fn sort(&self, groups: &mut [GroupTime]) {
        let order = |g: &GroupTime| self.known.get(&g.label).map_or(0, |i| self.all[*i as usize].0);
        groups.sort_by(|a, b| {
            order(a).cmp(&order(b)).then(b.packets.cmp(&a.packets)).then_with(|| a.label.cmp(&b.label))
        });
    }
}

fn proto(p: &PacketRow) -> String {
    match (p.ethertype, p.proto) {
        (_, Some(1)) => "ICMP".to_owned(),
        (_, Some(6)) => "TCP".to_owned(),
        (_, Some(17)) => "UDP".to_owned(),
        (_, Some(58)) => "ICMPv6".to_owned(),
        (_, Some(other)) => format!("IP protocol {other}"),
        (Some(0x0806), None) => "ARP".to_owned(),
        (Some(other), None) => format!("EtherType 0x{other:04x}"),
        (None, None) => "unknown".to_owned(),
    }
}
