//! What is asked for once the port is open: an address, whether another host has it, and the next hop.

use super::mark::{Dhcp, Mark, What};
use super::open::Open;
use super::phase::Phase;
use std::collections::BTreeMap;

/// Addresses that an interface has (true) or had, as far as the log says: those from before the recording it does not have.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(BTreeMap<Box<str>, bool>);

impl Held {
    pub fn see(&mut self, mark: &Mark) {
        let there = match mark.what {
            What::AddressAdded { .. } | What::AddressFound => true,
            What::AddressRemoved { .. } | What::Duplicate => false,
            What::Removed | What::Gone => return self.0.values_mut().for_each(|there| *there = false),
            _ => return,
        };
        if let Some(text) = mark.text.as_deref() {
            self.0.insert(bare(text).into(), there);
        }
    }

    /// Whether it has the address that the mark names; `None`: not known.
    pub fn has(&self, mark: &Mark) -> Option<bool> {
        self.0.get(bare(mark.text.as_deref()?)).copied()
    }
}

/// Without the length of its prefix.
fn bare(address: &str) -> &str {
    address.split('/').next().unwrap_or(address)
}

impl Open {
    pub(super) fn dhcp(&mut self, message: Dhcp) -> Option<Phase> {
        if message.is_aside() {
            return None;
        }
        if !self.ready {
            self.facts.early_dhcp += u32::from(!message.is_answer() && self.stop.is_some());
            return None;
        }
        let v4 = !message.is_v6();
        let now = self.phase();
        self.facts.dhcp_v4 |= v4;
        // Beside an exchange of the other version it is a step and no more.
        if !v4 && self.facts.dhcp_v4 {
            return (now == Phase::Dhcp).then_some(now);
        }
        match (message.is_done(), now) {
            // What was confirmed may be on the interface already. DHCPv6's answers are recorded without their address.
            (true, Phase::Dhcp | Phase::ClientStart | Phase::RouterWait | Phase::DuplicateCheck) => {
                self.facts.unseen = v4 && self.confirmed.is_none();
                Some(if self.confirmed == Some(true) { Phase::FirstData } else { Phase::Address })
            }
            (true, _) => None,
            (false, Phase::Address) if !v4 && !message.is_answer() => self.gave_none(),
            (false, Phase::Neighbour | Phase::FirstData) if message.is_answer() => None,
            (false, _) => Some(Phase::Dhcp),
        }
    }

    pub(super) fn address(&mut self, mark: &Mark) -> Option<Phase> {
        if !self.ready {
            return None;
        }
        let now = self.phase();
        let early =
            matches!(now, Phase::ClientStart | Phase::RouterWait | Phase::DuplicateCheck | Phase::Address);
        let local = mark.text.as_deref().is_some_and(|t| t.starts_with("fe80"));
        match mark.what {
            What::AddressAdded { v6: false, tentative } if early || now == Phase::Dhcp => {
                Some(if tentative { Phase::DuplicateCheck } else { Phase::FirstData })
            }
            // Where the old address is no good, data waits for the new one.
            What::AddressAdded { v6: true, tentative } if !early && !local && !self.facts.dhcp_v4 => {
                let waits = matches!(now, Phase::FirstData | Phase::Neighbour);
                if waits {
                    self.announced();
                }
                waits.then_some(if tentative { Phase::DuplicateCheck } else { Phase::FirstData })
            }
            What::RouterAdvert if !early => {
                self.facts.advert = Some(mark.clone());
                None
            }
            _ if !early || self.facts.dhcp_v4 => None,
            What::AddressAdded { v6: true, tentative: true } => Some(Phase::DuplicateCheck),
            // A host has this one without asking anybody.
            What::AddressAdded { v6: true, .. } if local => {
                (now == Phase::DuplicateCheck).then_some(Phase::ClientStart)
            }
            What::AddressAdded { v6: true, .. } => Some(Phase::FirstData),
            What::RouterSolicit => {
                self.facts.solicited = true;
                Some(Phase::RouterWait)
            }
            What::RouterAdvert => {
                self.facts.advert = Some(mark.clone());
                (now == Phase::RouterWait || now == Phase::ClientStart).then_some(Phase::Address)
            }
            _ => None,
        }
    }

    pub(super) fn duplicates(&mut self, mark: &Mark) -> Option<Phase> {
        let now = self.phase();
        self.facts.duplicate |= mark.what == What::Duplicate && self.ready;
        self.facts.probed = mark.text.clone();
        let global = mark.text.as_deref().is_some_and(|t| t.contains(':') && !t.starts_with("fe80"));
        if self.ready && global && !self.facts.dhcp_v4 && matches!(now, Phase::FirstData | Phase::Neighbour) {
            self.announced();
            return Some(Phase::DuplicateCheck);
        }
        let fits = match now {
            Phase::ClientStart => !self.facts.dhcp_v4,
            Phase::Address | Phase::DuplicateCheck => true,
            _ => false,
        };
        (self.ready && fits).then_some(Phase::DuplicateCheck)
    }

    pub(super) fn neighbour(&mut self, mark: &Mark) -> Option<Phase> {
        let now = self.phase();
        match mark.what {
            What::ArpRequest { sent: true } if !self.ready && self.stop.is_some() => {
                self.facts.early_arp.get_or_insert(mark.at_ns);
                None
            }
            What::ArpRequest { sent: true } if self.ready => {
                matches!(now, Phase::FirstData | Phase::ClientStart | Phase::Neighbour)
                    .then_some(Phase::Neighbour)
            }
            What::ArpReply { sent: false } if now == Phase::DuplicateCheck => {
                let same = mark.text.is_some() && mark.text == self.facts.probed;
                self.facts.duplicate |= same;
                same.then_some(now)
            }
            What::ArpReply { sent: false } => (now == Phase::Neighbour).then_some(Phase::FirstData),
            _ => None,
        }
    }
}
