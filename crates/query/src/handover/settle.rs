//! What the end of a handover shows of phases that were named before it was known.

use super::mark::What;
use super::open::Open;
use super::phase::{Phase, Span, Step};

impl Open {
    pub(super) fn settle(&self, spans: &mut Vec<Span>) {
        let f = &self.facts;
        let wired = !f.radio && self.from.bssid.is_none();
        let exchange = spans.iter().any(|s| s.phase == Phase::Dhcp);
        // A router that never answered is none that an address was waited for from.
        let asked = |p: Phase| {
            matches!(p, Phase::Dhcp | Phase::Address | Phase::DuplicateCheck)
                || p == Phase::RouterWait && f.advert.is_some()
        };
        let first_dhcp = spans.iter().position(|s| s.phase == Phase::Dhcp).unwrap_or(0);
        let last_asked = spans.iter().rposition(|s| asked(s.phase));
        for i in 0..spans.len() {
            let then = spans.get(i + 1).map(|next| next.phase);
            let is_last_start = last_asked.is_none_or(|last| i >= last);
            let unasked = spans.get(i + 1).is_some_and(|next| {
                next.phase == Phase::Address && next.begin.what == What::RouterAdvert && !f.solicited
            });
            let s = &mut spans[i];
            match s.phase {
                // Nobody asked for an address: the old one was good, and only data was missing.
                Phase::ClientStart if last_asked.is_none() || is_last_start => s.phase = Phase::FirstData,
                // No client was started: a router was waited for, or only the next hop.
                Phase::ClientStart if !exchange => {
                    let router =
                        matches!(then, Some(Phase::RouterWait | Phase::Address | Phase::DuplicateCheck));
                    s.phase = if router { Phase::RouterWait } else { Phase::FirstData };
                }
                Phase::RouterWait if last_asked.is_none() => s.phase = Phase::FirstData,
                // IPv6 looked around while the client for IPv4 had yet to start.
                Phase::DuplicateCheck | Phase::RouterWait if f.dhcp_v4 && exchange && !is_last_start => {
                    s.phase = Phase::ClientStart;
                }
                // The carrier was the first to show it.
                Phase::LinkDown if f.radio => s.phase = Phase::Reaction,
                // With an address of the old network nothing was found: the client had yet to start.
                Phase::FirstData | Phase::Neighbour if i < first_dhcp => s.phase = Phase::ClientStart,
                // The router's announcement, which brought the new address, was what was missing.
                Phase::FirstData | Phase::Neighbour if unasked => s.phase = Phase::RouterWait,
                Phase::Reaction | Phase::Retry if wired => s.phase = Phase::LinkDown,
                // An open network has no keys.
                Phase::KeyWait if f.first_key == 0 && s.steps.is_empty() && self.link_up.is_some() => {
                    s.phase = Phase::KeyInstall;
                }
                _ => {}
            }
            if s.phase == Phase::Probing {
                channels(&mut s.steps);
            }
        }
        self.early_request(spans);
        super::tile::merge(spans);
    }

    /// The kernel asked for the next hop before the link was there, and waits for that request's timer.
    fn early_request(&self, spans: &mut [Span]) {
        let Some(up) = self.link_up.as_ref().filter(|_| self.facts.early_arp.is_some()) else { return };
        let asks = |s: &Span| matches!(s.begin.what, What::ArpRequest { sent: true });
        let first = spans.iter().position(|s| s.phase == Phase::Neighbour && asks(s));
        let Some(first) = first.filter(|i| *i > 0) else { return };
        let before = &mut spans[first - 1];
        if before.phase == Phase::FirstData && before.from_ns == up.at_ns {
            before.phase = Phase::Neighbour;
        }
    }
}

/// The frequencies of a scan: what is between two is the first one's.
fn channels(steps: &mut Vec<Step>) {
    let mut out: Vec<Step> = Vec::with_capacity(steps.len());
    for s in steps.drain(..) {
        match out.last_mut() {
            // A probe request on the channel that is listened on.
            Some(last) if s.words.starts_with("probe request") && last.words.starts_with("listening") => {
                last.to_ns = s.to_ns
            }
            Some(last) if last.words == s.words => last.to_ns = s.to_ns,
            _ => out.push(s),
        }
    }
    *steps = out;
}
