//! On which lane of a picture a mark stands, and words that text, picture and page have in common.

use super::machine::Handover;
use super::mark::{Mark, Source, What};
use super::open::Peer;
use super::phase::{Phase, Span};
use kpat_model::link_address;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Frames that a sniffer heard.
    Air,
    /// What radio and link did, by the kernel.
    Kernel,
    /// EAPOL, DHCP, neighbours and addresses.
    Exchange,
    /// Supplicant, DHCP client and others, by their logs and by places in them.
    Program,
}

impl Lane {
    pub const ALL: [Lane; 4] = [Lane::Air, Lane::Kernel, Lane::Exchange, Lane::Program];

    pub fn name(self) -> &'static str {
        match self {
            Lane::Air => "air",
            Lane::Kernel => "radio and link",
            Lane::Exchange => "keys and addresses",
            Lane::Program => "programs",
        }
    }

    pub fn of(mark: &Mark) -> Lane {
        match mark.what {
            _ if matches!(mark.source, Source::Frame { .. }) => Lane::Air,
            What::Program => Lane::Program,
            What::KeyFrame(_)
            | What::Eap { .. }
            | What::KeyAdded { .. }
            | What::Dhcp(_)
            | What::AddressAdded { .. }
            | What::AddressRemoved { .. }
            | What::AddressFound
            | What::Duplicate
            | What::DuplicateProbe
            | What::RouterSolicit
            | What::RouterAdvert
            | What::ArpRequest { .. }
            | What::ArpReply { .. } => Lane::Exchange,
            _ => Lane::Kernel,
        }
    }
}

impl Peer {
    /// `office (02:00:00:00:01:00, 2437 MHz)`, as far as known.
    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.bssid.map(link_address::text));
        if self.mhz > 0 {
            parts.push(format!("{} MHz", self.mhz));
        }
        match (&self.ssid, parts.join(", ")) {
            (Some(ssid), rest) if rest.is_empty() => ssid.to_string(),
            (Some(ssid), rest) => format!("{ssid} ({rest})"),
            (None, rest) => rest,
        }
    }
}

impl Handover {
    /// Phases in the order in which they first come, each with all its spans.
    pub fn phases(&self) -> Vec<(Phase, Vec<&Span>)> {
        let mut out: Vec<(Phase, Vec<&Span>)> = Vec::new();
        for s in &self.spans {
            match out.iter_mut().find(|(p, _)| *p == s.phase) {
                Some((_, all)) => all.push(s),
                None => out.push((s.phase, vec![s])),
            }
        }
        out
    }

    /// The phase that took longest, and its time.
    pub fn longest(&self) -> Option<(Phase, i64)> {
        Phase::ALL.iter().map(|p| (*p, self.of(*p))).filter(|(_, ns)| *ns > 0).max_by_key(|(_, ns)| *ns)
    }

    /// Marks of a lane, each with its time there. One that has a frame stands on the lane of the air, too, by the frame's time.
    pub fn on_lane(&self, lane: Lane) -> impl Iterator<Item = (i64, &Mark)> {
        self.marks.iter().filter_map(move |m| match m.frame {
            Some((.., at_ns)) if lane == Lane::Air => Some((at_ns, m)),
            _ => (Lane::of(m) == lane).then_some((m.at_ns, m)),
        })
    }

    /// Moments that have a name.
    pub fn moments(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let all = [
            ("data stops", self.stop.as_ref()),
            ("link up", self.link_up.as_ref()),
            ("first data", self.first_data()),
        ];
        all.into_iter().filter_map(|(name, m)| Some((name, m?.at_ns)))
    }

    /// What it was, in a line.
    pub fn headline(&self) -> String {
        let to = match (self.from.words(), self.to.words()) {
            (from, to) if from.is_empty() && to.is_empty() => String::new(),
            (from, to) if from.is_empty() => format!(": to {to}"),
            (from, to) if to.is_empty() => format!(": from {from}"),
            (from, to) if from == to => format!(": {to}"),
            (from, to) => format!(": {from} > {to}"),
        };
        format!("{} {}, {}{to}", self.interface, self.kind.label(), self.cause.label())
    }
}

/// A mark that is less sure than this says so.
const NOTABLE_NS: i64 = 50_000_000;

impl Mark {
    /// By what it is known: `wifi event 12; frame 3, 0.4 ms before`.
    pub fn evidence(&self) -> String {
        let mut own = self.source.words();
        if self.within_ns >= NOTABLE_NS && !own.is_empty() {
            own += &format!(", up to {:.1} s earlier", self.within_ns as f64 / 1e9);
        }
        let Some((capture, number, at_ns)) = self.frame else { return own };
        let frame = Source::Frame { capture, number }.words();
        let apart = (at_ns - self.at_ns) as f64 / 1e6;
        let side = if apart <= 0.0 { "before" } else { "after" };
        format!("{own}; {frame}, {:.3} ms {side}", apart.abs())
    }
}
