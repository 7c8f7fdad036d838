//! What the end of a handover shows of phases that were named before it was known.

use super::mark::{Mark, What};
use super::open::Open;
use super::phase::{Phase, Span, Step};
use super::tile::Tiles;

impl Open {
    /// An address is of a prefix that a router announced unasked.
    pub(super) fn announced(&mut self) {
        if let Some(advert) = self.facts.advert.take() {
            self.tiles.enter(Phase::Address, &advert);
        }
    }

    /// The client asks again: the reply before gave no address. It refused the old one, for which DHCPv6 has no message of its own.
    pub(super) fn gave_none(&mut self) -> Option<Phase> {
        self.tiles.rename(Phase::Dhcp);
        Some(Phase::Dhcp)
    }

    /// Data came, and nobody had given the interface the address that was confirmed last: it was there before the recording. What was waited for is the next hop, and data.
    pub(super) fn was_there(&self, spans: &mut Vec<Span>) {
        let Some(last) = spans.last().filter(|s| s.phase == Phase::Address) else { return };
        let (from_ns, to_ns, begin) = (last.from_ns, last.to_ns, last.begin.clone());
        let given = |m: &Mark| m.at_ns >= from_ns && matches!(m.what, What::AddressAdded { v6: false, .. });
        let answered = matches!(begin.what, What::Dhcp(m) if m.is_done() && !m.is_v6());
        if !answered || self.marks_left_out > 0 || self.marks.iter().any(given) {
            return;
        }
        let mut tiles = Tiles::begin(Phase::FirstData, from_ns, &begin);
        for m in self.marks.iter().filter(|m| (from_ns..to_ns).contains(&m.at_ns)) {
            match (m.what, tiles.phase()) {
                (What::ArpRequest { sent: true }, Phase::Neighbour) => tiles.step(m, m.words()),
                (What::ArpRequest { sent: true }, _) => tiles.enter(Phase::Neighbour, m),
                (What::ArpReply { sent: false }, Phase::Neighbour) => tiles.enter(Phase::FirstData, m),
                _ => {}
            }
        }
        spans.pop();
        spans.extend(tiles.finish(to_ns));
    }

    pub(super) fn settle(&self, spans: &mut Vec<Span>) {
        let f = &self.facts;
        let wired = !f.radio && self.from.bssid.is_none();
        let exchange = spans.iter().any(|s| s.phase == Phase::Dhcp);
        // With fast transition keys are there without a handshake; an open network has none at all.
        let keys = f.algorithm == 2 || spans.iter().any(|s| s.phase == Phase::KeyInstall);
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
                Phase::DuplicateCheck | Phase::RouterWait if f.dhcp_v4 && exchange && i < first_dhcp => {
                    s.phase = Phase::ClientStart;
                }
                // The carrier was the first to show it.
                Phase::LinkDown if f.radio => s.phase = Phase::Reaction,
                // With an address of the old network nothing was found: the client had yet to start.
                Phase::FirstData | Phase::Neighbour if i < first_dhcp => s.phase = Phase::ClientStart,
                // The router's announcement, which brought the new address, was what was missing.
                Phase::FirstData | Phase::Neighbour if unasked => s.phase = Phase::RouterWait,
                Phase::Reaction | Phase::Retry if wired => s.phase = Phase::LinkDown,
                Phase::KeyWait
                    if then != Some(Phase::Retry)
                        && f.first_key == 0
                        && s.steps.is_empty()
                        && self.link_up.is_some() =>
                {
                    s.phase = if keys { Phase::KeyInstall } else { Phase::PortOpening };
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

    /// A link that was lost in the middle of a scan, by the access point's word or its silence, was not given up for what the scan found: data went on meanwhile, and the
    /// handover begins with its last.
    pub(super) fn begins_with_the_loss(&mut self, spans: &mut Vec<Span>) {
        let f = &self.facts;
        let scan = matches!(
            self.begin.what,
            What::ScanStart | What::Channel { .. } | What::ProbeRequest { .. } | What::ScanDone { .. }
        );
        let taken = matches!(f.deauth, Some((false, _))) || f.beacon_loss;
        let Some(stop) = self.stop.clone().filter(|_| scan && taken && !f.first_join) else { return };
        let begin = match self.data.take() {
            Some(data) if data.at_ns > self.begin.at_ns && data.at_ns <= stop.at_ns => data,
            Some(_) => return,
            None => stop.clone(),
        };
        // What was before the stop is one span, and what the stop was in begins with it.
        spans.retain(|s| s.to_ns > stop.at_ns);
        if let Some(first) = spans.first_mut() {
            if first.from_ns < stop.at_ns && matches!(first.phase, Phase::Selection | Phase::ProbingPause) {
                // That scan was over, and what it found was not joined.
                (first.phase, first.begin) = (Phase::Reaction, stop.clone());
                first.steps.clear();
            }
            first.from_ns = first.from_ns.max(stop.at_ns);
            first.steps.retain(|x| x.to_ns > stop.at_ns);
            if let Some(step) = first.steps.first_mut() {
                step.from_ns = step.from_ns.max(stop.at_ns);
            }
        }
        let to_ns = spans.first().map_or(stop.at_ns, |s| s.from_ns);
        if begin.at_ns < to_ns {
            let (phase, from_ns, steps) = (Phase::Detection, begin.at_ns, Vec::new());
            let detection = Span { phase, from_ns, to_ns, begin: begin.clone(), steps, times: 1, why: None };
            spans.insert(0, detection);
        }
        self.begin = begin;
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
