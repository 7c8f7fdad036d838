//! Which packets are fragments of which datagram, concluded from equal header fields.
//!
//! The kernel is asked about it only where it copies ("slow path"); where it splits up what the sender had put together
//! from the start, where it puts fragments together, and where only tracepoints were recorded, nothing tells. But all
//! fragments of a datagram have addresses and identification in common, and a packet is its header buffer, so:
//!
//! - a packet that was whole and now is a fragment is the datagram's own buffer: fragments that were not received from
//!   elsewhere came of it. Without one, of the whole packet that had the same fields a moment ago (IPv4 only: IPv6 has no
//!   identification until it is cut), else of the first fragment;
//! - a packet that was a fragment and now is whole has taken in the others.
//!
//! Whether a packet came from elsewhere is known only when the calls have returned that it was in, so fragments are
//! judged a while later. Memory: the datagrams that are or were in pieces within the last half minute.

use crate::packets::Packets;
use kpat_model::hash::{Fold, Map};
use kpat_model::{BootNs, Footprint, FootprintRecord, Lineage, LineageKind, Network, PacketId};
use std::collections::VecDeque;

/// An identification may be used again after that.
const AGAIN_NS: i64 = 1_000_000_000;
/// The kernel waits no longer for the rest of a datagram (IPv6 has a minute, and is cut short here).
const WAIT_NS: i64 = 30_000_000_000;
const MAX_DATAGRAMS: usize = 1 << 18;
/// Whole packets that are remembered, by their fields: a power of two.
const RECENT: usize = 1 << 12;

/// A packet is, or is no longer, a fragment.
struct Change {
    at: i64,
    packet: u64,
    key: u64,
    what: What,
}

enum What {
    Fragment {
        first: bool,
        /// It had been whole before.
        was_whole: bool,
        /// The whole packet that had the same fields just before.
        cut_from: Option<u64>,
    },
    Whole,
}

#[derive(Default)]
struct Datagram {
    /// Its fragments since it was last put together.
    fragments: Vec<u64>,
    parent: Option<u64>,
    /// It was put together or cut here, so fragments are made here, wherever their buffers came from.
    here: bool,
    last: i64,
}

#[derive(Default)]
pub(super) struct Datagrams {
    changes: VecDeque<Change>,
    open: Map<u64, Datagram>,
    /// Key, packet and time of whole packets, by key; newer ones overwrite.
    recent: Vec<(u64, u64, i64)>,
}

/// What a header says of the datagram.
struct Fields {
    /// What all of its fragments have in common; 0: there is no such thing.
    key: u64,
    /// What the whole has in common with its fragments, also where addresses are translated on the way. A tunnel's header
    /// around a fragment has not.
    same: u64,
    /// Offset; `None`: it is whole.
    fragment: Option<u16>,
}

fn fields(f: &Footprint) -> Option<Fields> {
    let start = Fold::default();
    Some(match f.network.as_ref()? {
        Network::V4 { src, dst, id, proto, frag_offset, more_frags, .. } => {
            let same = start.with(4).with(u64::from(*id) << 8 | u64::from(*proto));
            let key = same.with(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
            let fragment = (*more_frags || *frag_offset > 0).then_some(*frag_offset);
            Fields { key: key.value().max(1), same: same.value(), fragment }
        }
        Network::V6 { src, dst, proto, fragment, .. } => {
            let both = [src.to_bits(), dst.to_bits()];
            let h = both.iter().fold(start.with(6), |h, a| h.with((a >> 64) as u64).with(*a as u64));
            let same = h.with(u64::from(*proto)).value();
            let key = fragment.map_or(0, |(id, ..)| h.with(u64::from(id) << 8).value().max(1));
            Fields { key, same, fragment: fragment.map(|(_, offset, _)| offset) }
        }
        Network::Arp { .. } | Network::Other(..) => Fields { key: 0, same: 0, fragment: None },
    })
}

/// Can it be cut later? Most packets say that they must not be, which saves remembering them.
fn may_be_cut(f: &Footprint) -> bool {
    matches!(&f.network, Some(Network::V4 { dont_frag: false, .. }))
}

impl Datagrams {
    /// A packet's headers, in order of time.
    pub fn print(&mut self, record: &FootprintRecord, f: &Footprint, packets: &mut Packets) {
        let Some(Fields { key, same, fragment }) = fields(f) else { return };
        let (at, packet) = (record.at.0, record.packet.0);
        let Some(known) = packets.fragment(packet) else { return };
        let what = match fragment {
            Some(offset) => {
                let was_whole = known.whole;
                (known.whole, known.key, known.same) = (false, key, same);
                let cut_from = self
                    .recent
                    .get(key as usize % RECENT)
                    .filter(|r| r.0 == key && r.1 != packet && at.saturating_sub(r.2) < AGAIN_NS);
                What::Fragment { first: offset == 0, was_whole, cut_from: cut_from.map(|r| r.1) }
            }
            None => {
                let was = (!known.whole && known.key != 0 && known.same == same).then_some(known.key);
                known.whole = true;
                if key != 0 && may_be_cut(f) {
                    self.recent.resize(RECENT, (0, 0, 0));
                    self.recent[key as usize % RECENT] = (key, packet, at);
                }
                let Some(key) = was else { return };
                return self.changes.push_back(Change { at, packet, key, what: What::Whole });
            }
        };
        self.changes.push_back(Change { at, packet, key, what });
    }

    /// Judges what happened before `before`.
    pub fn conclude(&mut self, before: i64, packets: &mut Packets, out: &mut Vec<Lineage>) {
        while self.changes.front().is_some_and(|c| c.at < before) {
            let Some(c) = self.changes.pop_front() else { break };
            let d = self.open.entry(c.key).or_default();
            if c.at.saturating_sub(d.last) > WAIT_NS {
                *d = Datagram::default();
            }
            let mut tell = |kind, parent: u64, child: u64| {
                out.push(Lineage {
                    kind,
                    at: BootNs(c.at),
                    parent: PacketId(parent),
                    child: PacketId(child),
                });
            };
            match c.what {
                What::Whole => {
                    for &f in d.fragments.iter().filter(|f| **f != c.packet) {
                        tell(LineageKind::Reassembly, f, c.packet);
                    }
                    *d = Datagram { here: true, ..Datagram::default() };
                }
                What::Fragment { first, was_whole, cut_from } => {
                    let known = d.fragments.contains(&c.packet);
                    // The same identification once more.
                    if first && !known && !d.fragments.is_empty() && c.at.saturating_sub(d.last) > AGAIN_NS {
                        *d = Datagram::default();
                    }
                    if was_whole {
                        (d.parent, d.here) = (Some(c.packet), true);
                    }
                    if !known {
                        let received = packets.was_received(c.packet).unwrap_or(true) && !d.here;
                        let logged = packets.fragment(c.packet).is_none_or(|f| f.logged);
                        if !received {
                            d.parent = d.parent.or(cut_from).or(first.then_some(c.packet));
                        }
                        if let Some(parent) = d.parent.filter(|p| !received && !logged && *p != c.packet) {
                            tell(LineageKind::Fragment, parent, c.packet);
                        }
                        d.fragments.push(c.packet);
                    }
                }
            }
            d.last = c.at;
        }
        if self.open.len() > MAX_DATAGRAMS / 4 {
            let old = before.saturating_sub(WAIT_NS);
            self.open.retain(|_, d| d.last >= old);
            if self.open.len() > MAX_DATAGRAMS {
                self.open.clear();
            }
        }
    }
}
