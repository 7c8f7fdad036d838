//! What a packet's headers were, and when.

use super::live::emptied;
use crate::headers;
use crate::matching;
use crate::matching::keys::KeyList;
use kpat_model::codes::match_key;
use kpat_model::{Footprint, FootprintRecord, Network, Place, Transport};

pub(super) const MAX_PRINTS: usize = 24;

/// The packet's keys from a moment on.
pub(super) struct Print {
    pub(super) at: i64,
    pub(super) ifindex: u32,
    pub(super) netns: u32,
    pub(super) keys: KeyList,
}

impl Print {
    /// An 802.11 frame in which nothing else can be read.
    pub(super) fn on_air(&self) -> bool {
        self.keys.first().is_some_and(|k| k.kind == match_key::WIFI)
    }

    /// For sniffers at a device.
    pub(super) fn is_usable(&self) -> bool {
        !self.keys.is_empty() && !self.on_air()
    }
}

#[derive(Default)]
pub(super) struct Prints {
    /// In order of time.
    pub(super) all: Vec<Print>,
    /// The one of which most is known.
    pub(super) shown: Option<Box<Footprint>>,
    /// Where that one has none, as it is encrypted: that of the last one that has.
    decrypted: Option<Transport>,
    /// It went to a group or to all, of hosts or of a host's sockets.
    pub(super) for_many: bool,
    /// A packet that comes to another device has its headers.
    newest: Option<Box<FootprintRecord>>,
    /// Where copies of it lie in buffers of their own.
    buffers: Buffers,
    /// The memory of both, of a packet that is over.
    spare: (Option<Box<Footprint>>, Option<Box<FootprintRecord>>),
}

/// The recorder compares a packet with what it last saw in the same buffer, so what it leaves out is as it was there. Copies on ways of their own
/// may lie in several.
#[derive(Default)]
struct Buffers {
    /// A footprint of that time is of a new buffer.
    replaced_at: Option<i64>,
    /// Its last footprint, of each; none where there is only one buffer.
    last: Vec<FootprintRecord>,
    /// In which of them an skb's data were last.
    of: Vec<Holder>,
    /// The one whose place was last in the list of prints.
    shown: usize,
}

/// An skb, by its tag, the buffer in which its data were last, and the namespace.
#[derive(Clone, Copy)]
struct Holder {
    tag: u16,
    buffer: usize,
    netns: u32,
}

/// More copies than this are not told apart.
const MAX_BUFFERS: usize = 8;

impl Buffers {
    fn of(&self, tag: u16) -> Option<usize> {
        self.of.iter().find(|o| o.tag == tag).map(|o| o.buffer)
    }

    /// In which of several an skb's data are that is seen in this namespace, as far as can be told: of one that was not seen before, it was cloned of one that
    /// was there. What is changed for one device is copied for it, so the others are clones of what was first.
    fn probably(&self, tag: u16, netns: u32) -> usize {
        let there = || self.of.iter().filter(|o| o.netns == netns).map(|o| o.buffer).min();
        self.of(tag).or_else(there).unwrap_or(self.shown)
    }

    /// Which one this footprint is of, which is the last of it from now on; `before`: the one before, of any.
    fn add(&mut self, record: &FootprintRecord, before: Option<&FootprintRecord>) {
        let replaced = self.replaced_at.take() == Some(record.at.0);
        if let Some(before) = before.filter(|_| replaced && self.last.is_empty()) {
            self.last.push(*before);
        }
        let new = replaced && (1..MAX_BUFFERS).contains(&self.last.len());
        if new {
            self.last.push(*record);
        }
        let (tag, netns) = (record.skb_tag, record.netns);
        let buffer = if new { self.last.len() - 1 } else { self.probably(tag, netns) };
        let holder = Holder { tag, buffer, netns };
        match self.of.iter().position(|o| o.tag == tag) {
            Some(known) => self.of[known] = holder,
            None if self.of.len() < MAX_BUFFERS => self.of.push(holder),
            None => {}
        }
        if let Some(last) = self.last.get_mut(buffer) {
            *last = *record;
        }
        self.shown = buffer;
    }

    /// The buffer that an skb of this tag lies in was freed. Whether there is another one.
    fn freed(&mut self, tag: u16) -> bool {
        let Some(buffer) = self.of(tag) else { return false };
        self.of.retain(|o| o.buffer != buffer);
        !self.of.is_empty()
    }

    fn renewed(&mut self) -> Buffers {
        Buffers { last: emptied(&mut self.last), of: emptied(&mut self.of), ..Buffers::default() }
    }
}

/// A copy of it, in memory that was another's.
fn boxed<T: Clone>(of: &T, spare: Option<Box<T>>) -> Box<T> {
    match spare {
        Some(mut memory) => {
            (*memory).clone_from(of);
            memory
        }
        None => Box::new(of.clone()),
    }
}

fn is_for_many(f: &Footprint) -> bool {
    let link = f.link.as_ref().and_then(|l| l.dst).is_some_and(|dst| dst[0] & 1 != 0);
    link || match &f.network {
        Some(Network::V4 { dst, .. }) => dst.is_multicast() || dst.is_broadcast(),
        Some(Network::V6 { dst, .. }) => dst.is_multicast(),
        _ => false,
    }
}

impl Prints {
    pub(super) fn renewed(&mut self) -> Prints {
        let shown = self.shown.take().or_else(|| self.spare.0.take());
        let newest = self.newest.take().or_else(|| self.spare.1.take());
        let buffers = self.buffers.renewed();
        Prints { all: emptied(&mut self.all), buffers, spare: (shown, newest), ..Prints::default() }
    }

    pub(super) fn add(&mut self, record: &FootprintRecord, f: &Footprint, keys: KeyList) {
        self.buffers.add(record, self.newest.as_deref());
        match &mut self.newest {
            Some(newest) => **newest = *record,
            None => self.newest = Some(boxed(record, self.spare.1.take())),
        }
        let better = |old: &Footprint| {
            let known = |f: &Footprint| {
                usize::from(f.network.is_some())
                    + usize::from(headers::is_transport_known(f) || headers::has_no_transport(f))
            };
            known(f) > known(old)
        };
        if self.shown.as_deref().is_none_or(better) {
            let memory = self.shown.take().or_else(|| self.spare.0.take());
            self.shown = Some(boxed(f, memory));
        }
        if f.transport.is_some() && self.shown.as_ref().is_some_and(|s| s.transport.is_none()) {
            self.decrypted = f.transport;
        }
        self.for_many |= is_for_many(f);
        self.insert(record.at.0, (record.netns, record.ifindex), keys);
    }

    fn insert(&mut self, at: i64, (netns, ifindex): (u32, u32), keys: KeyList) {
        if self.all.len() < MAX_PRINTS {
            // The recorder may have read another CPU's later.
            let place = self.all.partition_point(|o| o.at <= at);
            self.all.insert(place, Print { at, ifindex, netns, keys });
        }
    }

    /// The buffer was freed in which the skb of this tag lies. Whether a copy of the packet is left that has its own.
    pub(super) fn freed(&mut self, tag: u16) -> bool {
        self.buffers.freed(tag)
    }

    /// What is seen of it next, at this time, is in a new buffer.
    pub(super) fn replaced(&mut self, at: i64) {
        self.buffers.replaced_at = Some(at);
    }

    /// The skb of this tag is seen: it is where the last footprint of its buffer says.
    pub(super) fn turn_to(&mut self, tag: u16, at: i64) {
        let buffers = &mut self.buffers;
        let Some(buffer) = buffers.of(tag).filter(|b| tag != 0 && *b != buffers.shown) else { return };
        buffers.shown = buffer;
        let Some(last) = buffers.last.get(buffer) else { return };
        let here = (last.netns, last.ifindex);
        let same = |p: &&Print| (p.netns, p.ifindex) == here && p.at <= at;
        if let Some(keys) = self.all.iter().rev().find(same).map(|p| p.keys.clone()) {
            self.insert(at, here, keys);
        }
    }

    pub(super) fn transport(&self) -> Option<&Transport> {
        self.shown.as_ref()?.transport.as_ref().or(self.decrypted.as_ref())
    }

    /// What the footprint is at another device; `None` if there is none, because it was lost.
    pub(super) fn at_place(&self, place: &Place) -> Option<FootprintRecord> {
        let buffer = self.buffers.last.get(self.buffers.probably(place.skb_tag, place.netns));
        let mut f = *buffer.or(self.newest.as_deref())?;
        f.at = place.at;
        (f.ifindex, f.netns, f.link_type) = (place.ifindex, place.netns, place.link_type);
        f.skb_tag = place.skb_tag;
        Some(f)
    }

    /// Header fields at a time: the last that were logged until then, else the first after.
    pub(super) fn at(&self, at: i64) -> Option<&Print> {
        let usable = || self.all.iter().filter(|p| p.is_usable());
        usable().rev().find(|p| p.at <= at).or_else(|| usable().next())
    }

    /// The device that it was at; `None`: at none that is known, or not every place was kept.
    pub(super) fn device_at(&self, at: i64) -> Option<(u32, u32)> {
        let known = self.all.iter().rev().find(|p| p.ifindex != 0 && p.at <= at);
        known.filter(|_| self.all.len() < MAX_PRINTS).map(|p| (p.netns, p.ifindex))
    }

    /// Where it was in another namespace before it first was at this device.
    pub(super) fn before(&self, device: (u32, u32)) -> Option<&Print> {
        let first = self.all.iter().position(|p| (p.netns, p.ifindex) == device)?;
        self.all[..first].iter().rev().find(|p| p.ifindex != 0 && p.netns != device.0)
    }

    /// Where it was; 0 where not every place was kept.
    pub(super) fn devices(&self) -> u64 {
        let all = || self.all.iter().fold(0, |all, p| all | matching::device(p.netns, p.ifindex));
        if self.all.len() < MAX_PRINTS { all() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{BootNs, HeaderBytes, PacketId};

    fn record(at: i64, netns: u32, ifindex: u32, skb_tag: u16) -> FootprintRecord {
        FootprintRecord {
            packet: PacketId(1),
            at: BootNs(at),
            ifindex,
            netns,
            len_bytes: 100,
            gso_size: 0,
            gso_segs: 0,
            protocol: 0x800,
            start_layer: 3,
            ip_proto: 0,
            link_type: 1,
            skb_tag,
            header: HeaderBytes::new(&[]),
        }
    }

    #[test]
    fn a_length_that_is_not_yet_written_is_not_believed() {
        let seen = |start_layer, len_bytes, total_len| {
            let v4 = Network::V4 {
                src: [127, 0, 0, 1].into(),
                dst: [127, 0, 0, 1].into(),
                id: 7,
                proto: 17,
                ttl: 64,
                tos: 0,
                frag_offset: 0,
                more_frags: false,
                dont_frag: false,
                total_len,
            };
            let f = Footprint { network: Some(v4), ..Footprint::default() };
            headers::network_len(&f, &FootprintRecord { start_layer, len_bytes, ..record(10, 4, 2, 0x100) })
        };
        // At the entry of __ip_local_out, in memory that was a shorter packet's, a longer one's, nobody's; and behind it.
        assert_eq!([97, 140, 0].map(|stale| seen(3, 131, stale)), [Some((131, false)); 3]);
        assert_eq!(seen(3, 131, 131), Some((131, true)));
        // Of a frame that was made as long as Ethernet's shortest.
        assert_eq!(seen(2, 46, 28), Some((28, true)));
    }

    /// A bridge in namespace 5 sends a copy on, which gets a buffer of its own, and then shows its own host the first.
    #[test]
    fn what_is_left_out_of_one_buffers_records_is_as_it_was_there() {
        const FIRST: u16 = 0x100;
        const COPY: u16 = 0x200;
        let mut p = Prints::default();
        let add = |p: &mut Prints, r: FootprintRecord| p.add(&r, &Footprint::default(), KeyList::default());
        add(&mut p, record(10, 4, 2, FIRST));
        add(&mut p, record(20, 5, 2, FIRST));
        add(&mut p, record(30, 5, 3, COPY));
        p.replaced(40);
        add(&mut p, record(40, 5, 3, COPY));
        add(&mut p, record(50, 6, 2, COPY));
        p.turn_to(FIRST, 60);
        assert_eq!(p.device_at(60), Some((5, 3)), "where its buffer's last footprint was");
        add(&mut p, record(60, 5, 1, FIRST));
        assert_eq!(p.device_at(60), Some((5, 1)));
        p.turn_to(COPY, 70);
        assert_eq!(p.device_at(70), Some((6, 2)), "nothing was recorded of it since");
        assert!(p.freed(FIRST), "the copy is left");
        assert!(!p.freed(COPY), "and was the last");
        // The bridge's next port: a clone of what came to the bridge, not of the copy that went through its own.
        const NEXT: u16 = 0x300;
        let mut p = Prints::default();
        let sum = |at, netns, ifindex, tag, header| FootprintRecord {
            header: HeaderBytes::new(&[header]),
            ..record(at, netns, ifindex, tag)
        };
        add(&mut p, sum(10, 5, 2, FIRST, 1));
        add(&mut p, sum(20, 5, 3, COPY, 1));
        p.replaced(30);
        add(&mut p, sum(30, 5, 3, COPY, 2));
        add(&mut p, sum(40, 6, 2, COPY, 2));
        let place = |at, netns, ifindex| Place {
            packet: PacketId(1),
            at: BootNs(at),
            ifindex,
            netns,
            link_type: 1,
            skb_tag: NEXT,
        };
        for (at, netns, ifindex) in [(50, 5, 4), (60, 7, 2)] {
            let at_next = p.at_place(&place(at, netns, ifindex)).unwrap();
            assert_eq!(at_next.header[..], [1], "as in the buffer that came to the bridge");
            add(&mut p, at_next);
        }
        p.turn_to(COPY, 70);
        assert_eq!(p.device_at(70), Some((6, 2)), "where the copy was, wherever the clone went");
        let mut one = Prints::default();
        add(&mut one, record(10, 4, 2, FIRST));
        one.turn_to(COPY, 20);
        assert_eq!(one.device_at(20), Some((4, 2)));
        assert!(!one.freed(FIRST));
    }

    /// A copy was made of it, in another skb, and the first is freed before that copy is seen.
    #[test]
    fn of_two_buffers_the_first_may_be_freed_before_the_second_is_seen() {
        const FIRST: u16 = 0x100;
        const COPY: u16 = 0x200;
        let mut p = Prints::default();
        let add = |p: &mut Prints, r: FootprintRecord| p.add(&r, &Footprint::default(), KeyList::default());
        add(&mut p, record(10, 4, 2, FIRST));
        assert!(!p.freed(FIRST), "of another buffer nothing is known");
        p.replaced(20);
        add(&mut p, record(20, 5, 2, COPY));
        assert!(!p.freed(COPY), "the first is gone");
    }
}
