//! What makes the flight recorder dump by itself, how often, and how much at most.

use super::{Error, Written};
use crate::filter::pcap::{self, Instruction};
use crate::plan::Decision;
use crate::profile::glob;
use crate::sink::Sink;
use kpat_model::{BootNs, FootprintRecord, PacketId};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// What was typed.
#[derive(Clone, Debug)]
pub struct DumpWhen {
    /// A packet was dropped: with one of these reasons or at one of these functions (globs); `Some` of none: any.
    pub drop: Option<Vec<String>>,
    /// A packet was in the kernel for longer.
    pub slower: Option<Duration>,
    /// Only packets that match (pcap-filter); empty: all.
    pub filter: String,
    /// At most one dump in this time ...
    pub every: Duration,
    /// ... and so many in all ...
    pub files: u32,
    /// ... of so many bytes together.
    pub bytes: u64,
}

struct Known {
    first: BootNs,
    matches: bool,
}

/// Looks at each record on its way into memory; what it finds is judged at leisure.
pub struct Watch {
    drops: bool,
    slower_ns: Option<i64>,
    /// For packets that start at the link header, and at the network header.
    filter: Option<(Vec<Instruction>, Vec<Instruction>)>,
    packets: HashMap<PacketId, Known>,
    /// By reason and place of the drop.
    dropped: BTreeMap<(u64, u64), u64>,
    slow: u64,
}

/// More packets at a time are forgotten, as if they had come just now.
const MOST_PACKETS: usize = 1 << 17;

impl Watch {
    fn new(when: &DumpWhen) -> Result<Watch, String> {
        let filter = match when.filter.trim() {
            "" => None,
            text => Some((
                pcap::compile(text, pcap::ETHERNET)?,
                pcap::compile(text, pcap::RAW_IP).unwrap_or_default(),
            )),
        };
        Ok(Watch {
            drops: when.drop.is_some(),
            slower_ns: when.slower.map(|d| d.as_nanos() as i64),
            filter,
            packets: HashMap::new(),
            dropped: BTreeMap::new(),
            slow: 0,
        })
    }

    pub fn footprint(&mut self, f: &FootprintRecord) {
        if self.filter.is_none() && self.slower_ns.is_none() {
            return;
        }
        let matches = self.filter.as_ref().is_none_or(|(link, network)| match f.start_layer {
            2 => pcap::matches(link, &f.header),
            3 => !network.is_empty() && pcap::matches(network, &f.header),
            _ => false,
        });
        if self.packets.len() >= MOST_PACKETS {
            self.packets.clear();
        }
        self.packets.entry(f.packet).or_insert(Known { first: f.at, matches: false }).matches |= matches;
    }

    fn wanted(&self, packet: PacketId) -> bool {
        self.filter.is_none() || self.packets.get(&packet).is_some_and(|k| k.matches)
    }

    pub fn dropped(&mut self, packet: PacketId, reason: u64, place: u64) {
        if self.drops && self.wanted(packet) {
            *self.dropped.entry((reason, place)).or_default() += 1;
        }
    }

    /// A probe met it; `ends`: and its buffer was freed there.
    pub fn seen(&mut self, packet: PacketId, at: BootNs, ends: bool) {
        let slow = |k: &Known| {
            k.matches && self.slower_ns.is_some_and(|limit| at.0.saturating_sub(k.first.0) > limit)
        };
        let slow = self.packets.get(&packet).is_some_and(slow);
        self.slow += u64::from(slow);
        if slow || ends {
            self.packets.remove(&packet);
        }
    }
}

/// When a flight recorder dumps by itself, and how much of that it did.
pub(super) struct Triggers {
    when: DumpWhen,
    last: Option<Instant>,
    files: u32,
    bytes: u64,
    /// What would have dumped, but came too early or beyond the budget.
    pub(super) suppressed: u64,
}

/// What is to be looked for.
///
/// *Errors*: a reason that this kernel does not have, a filter that is none.
pub(super) fn watch(when: &DumpWhen, decision: &Decision) -> Result<Watch, Error> {
    for name in when.drop.iter().flatten() {
        let fits = decision.drop_reasons.iter().any(|(_, r)| glob(name, r));
        // Reasons are in capitals, functions are not.
        if !fits && !name.chars().any(|c| c.is_ascii_lowercase() || c == '*') {
            return Err(Error::NoSuchReason(name.clone()));
        }
    }
    let watch =
        Watch::new(when).map_err(|why| crate::filter::Error::Syntax { text: when.filter.clone(), why })?;
    Ok(watch)
}

impl Triggers {
    pub(super) fn new(when: DumpWhen) -> Triggers {
        Triggers { when, last: None, files: 0, bytes: 0, suppressed: 0 }
    }

    /// Why to dump now: something happened that was asked for, and not too often.
    pub(super) fn due(&mut self, sink: &mut Sink, decision: &Decision) -> Option<String> {
        let watch = sink.watch.as_mut()?;
        let (dropped, slow) = (std::mem::take(&mut watch.dropped), std::mem::take(&mut watch.slow));
        let mut found: Vec<(u64, String)> = Vec::new();
        if slow > 0 {
            found.push((slow, "a packet that was slow".into()));
        }
        for ((reason, place), n) in dropped {
            let place = decision.symbols.resolve(place).unwrap_or_default();
            let function = place.split('+').next().unwrap_or_default();
            let name = decision.drop_reasons.iter().find(|(r, _)| u64::from(*r) == reason);
            let name = name.map_or("", |(_, name)| name.as_str());
            let asked = self.when.drop.as_deref().unwrap_or_default();
            if asked.is_empty() || asked.iter().any(|g| glob(g, name) || glob(g, function)) {
                found.push((n, format!("drop {name} at {place}")));
            }
        }
        let (_, why) = found.first()?;
        let all: u64 = found.iter().map(|(n, _)| n).sum();
        let early = self.last.is_some_and(|t| t.elapsed() < self.when.every);
        if early || self.files >= self.when.files || self.bytes >= self.when.bytes {
            self.suppressed += all;
            return None;
        }
        self.suppressed += all - 1;
        self.last = Some(Instant::now());
        Some(format!("dump: {why}; {} triggers suppressed so far", self.suppressed))
    }

    pub(super) fn dumped(&mut self, written: &Written) {
        self.files += 1;
        self.bytes += written.bytes;
    }
}
