//! Which frames could have a packet: those of flows that were recorded, while the log lasts. What the recording's filter left
//! out can have none, and is no gap.

use kpat_model::hash::{Fold, Set};
use kpat_model::{Footprint, Network, Transport};
use std::net::IpAddr;

/// Flows that are remembered; of more, none of the others counts.
const MAX_FLOWS: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Flows {
    seen: Set<u64>,
    /// The log's first and last moment, boot clock.
    first: i64,
    last: i64,
}

impl Flows {
    /// For the log that began and ended then.
    pub fn lasting(self, first: i64, last: i64) -> Flows {
        Flows { first, last, ..self }
    }

    pub fn add(&mut self, f: &Footprint) {
        if self.seen.len() < MAX_FLOWS
            && let Some(flow) = flow(f)
        {
            self.seen.insert(flow);
        }
    }

    /// `at`: boot clock; `None`: the capture's clock is not known.
    pub fn expects(&self, f: &Footprint, at: Option<i64>) -> bool {
        at.is_none_or(|at| (self.first..=self.last).contains(&at))
            && flow(f).is_some_and(|f| self.seen.contains(&f))
    }
}

/// Addresses, protocol and ports, one way; of an echo its identifier.
fn flow(f: &Footprint) -> Option<u64> {
    let (src, dst) = match &f.network {
        Some(Network::V4 { src, dst, .. }) => (IpAddr::V4(*src), IpAddr::V4(*dst)),
        Some(Network::V6 { src, dst, .. }) => (IpAddr::V6(*src), IpAddr::V6(*dst)),
        _ => return None,
    };
    let (proto, a, b) = match &f.transport {
        Some(Transport::Tcp { sport, dport, .. }) => (6, *sport, *dport),
        Some(Transport::Udp { sport, dport, .. }) => (17, *sport, *dport),
        Some(Transport::Icmp { id, .. }) => (1, *id, 0),
        Some(Transport::Icmpv6 { id, .. }) => (58, *id, 0),
        Some(Transport::Other { .. }) | None => return None,
    };
    let address = |h: Fold, a: IpAddr| match a {
        IpAddr::V4(a) => h.with(u64::from(a.to_bits())),
        IpAddr::V6(a) => h.with((a.to_bits() >> 64) as u64).with(a.to_bits() as u64),
    };
    let ends = address(address(Fold::default(), src), dst);
    Some(ends.with(proto << 32 | u64::from(a) << 16 | u64::from(b)).value())
}
