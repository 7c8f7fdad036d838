//! Records as rows; a footprint's layers as columns.

use crate::error::Result;
use crate::nesting::{Node, Placed};
use kpat_model::{Footprint, FootprintRecord, Link, Network, OffCpu, PacketId, Transport};
use kpat_store::tables::{CallRow, FootprintRow, FrameRow, PauseRow};
use kpat_store::{TableWriter, rows_at_once};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Strings of rows that were written, for the next ones: a row has four.
#[derive(Default)]
pub(super) struct Texts(Vec<String>);

impl Texts {
    fn empty(&mut self) -> String {
        let mut text = self.0.pop().unwrap_or_else(|| String::with_capacity(17));
        text.clear();
        text
    }

    /// ASCII.
    fn with(&mut self, text: &[u8]) -> String {
        let mut out = self.empty();
        out.push_str(std::str::from_utf8(text).unwrap_or_default());
        out
    }

    fn mac(&mut self, mac: &[u8; 6]) -> String {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b':'; 17];
        for (i, b) in mac.iter().enumerate() {
            text[3 * i] = HEX[usize::from(b >> 4)];
            text[3 * i + 1] = HEX[usize::from(b & 15)];
        }
        self.with(&text)
    }

    /// Source and destination of the network layer.
    fn addresses(&mut self, f: &Footprint) -> (Option<String>, Option<String>) {
        match &f.network {
            Some(Network::V4 { src, dst, .. }) => (Some(self.v4(*src)), Some(self.v4(*dst))),
            Some(Network::V6 { src, dst, .. }) => (Some(self.v6(*src)), Some(self.v6(*dst))),
            Some(Network::Arp { sender_ip, target_ip, .. }) => {
                (Some(self.v4(*sender_ip)), Some(self.v4(*target_ip)))
            }
            _ => (None, None),
        }
    }

    /// `Ipv4Addr`'s own formatter is three times slower, and this runs twice per frame.
    fn v4(&mut self, addr: Ipv4Addr) -> String {
        let (mut text, mut len) = ([b'.'; 16], 0);
        for b in addr.octets() {
            let digits = [b / 100, b / 10 % 10, b % 10];
            let from = if b >= 100 { 0 } else { 2 - usize::from(b >= 10) };
            for d in &digits[from..] {
                text[len] = b'0' + d;
                len += 1;
            }
            text[len] = b'.';
            len += 1;
        }
        self.with(&text[..len - 1])
    }

    fn v6(&mut self, addr: Ipv6Addr) -> String {
        let mut out = self.empty();
        // Writing to a string does not fail.
        let _ = write!(out, "{addr}");
        out
    }

    /// Of a row that is written. (Rows are large: they are not moved for this.)
    fn of_footprint(&mut self, row: &mut FootprintRow) {
        let texts = [&mut row.mac_src, &mut row.mac_dst, &mut row.ip_src, &mut row.ip_dst];
        self.0.extend(texts.into_iter().filter_map(Option::take));
    }

    pub(super) fn of_frame(&mut self, row: &mut FrameRow) {
        let texts = [&mut row.mac_src, &mut row.mac_dst, &mut row.ip_src, &mut row.ip_dst];
        self.0.extend(texts.into_iter().filter_map(Option::take));
    }
}

pub(super) fn mac_text(mac: &[u8; 6]) -> String {
    Texts::default().mac(mac)
}

/// EtherType of a footprint, also where no link header was seen.
pub(super) fn ethertype(f: &Footprint) -> Option<i32> {
    match &f.network {
        Some(Network::V4 { .. }) => Some(0x0800),
        Some(Network::V6 { .. }) => Some(0x86dd),
        Some(Network::Arp { .. }) => Some(0x0806),
        Some(Network::Other(ty, _)) => Some(i32::from(*ty)),
        None => f.link.map(|l| i32::from(l.ethertype)),
    }
}

/// Source and destination of the network layer.
pub(super) fn addresses(f: &Footprint) -> (Option<String>, Option<String>) {
    Texts::default().addresses(f)
}

pub(super) fn ip_proto(f: &Footprint) -> Option<i32> {
    match &f.network {
        Some(Network::V4 { proto, .. } | Network::V6 { proto, .. }) => Some(i32::from(*proto)),
        _ => None,
    }
}

/// TCP's timestamps.
pub(super) fn stamps(f: &Footprint) -> (Option<i64>, Option<i64>) {
    (f.tcp_stamps.map(|s| i64::from(s.0)), f.tcp_stamps.map(|s| i64::from(s.1)))
}

pub(super) fn id(packet: PacketId) -> Option<i64> {
    (packet != PacketId::NONE).then_some(packet.0 as i64)
}

macro_rules! fill {
    ($row:expr, $f:expr, $texts:expr) => {{
        let (row, f, texts) = ($row, $f, $texts);
        if let Some(l) = &f.link {
            row.mac_src = l.src.as_ref().map(|mac| texts.mac(mac));
            row.mac_dst = l.dst.as_ref().map(|mac| texts.mac(mac));
            row.vlan = (l.vlan[0] != Link::NO_VLAN).then_some(i32::from(l.vlan[0]));
            row.vlan_inner = (l.vlan[1] != Link::NO_VLAN).then_some(i32::from(l.vlan[1]));
        }
        if let Some(w) = &f.wifi {
            row.wifi_fc = Some(i32::from(w.frame_control));
            row.wifi_ra = Some(mac_text(&w.receiver));
            row.wifi_ta = Some(mac_text(&w.transmitter));
            row.wifi_seq = Some(i32::from(w.sequence_control));
        }
        row.ethertype = ethertype(f);
        (row.ip_src, row.ip_dst) = texts.addresses(f);
        row.ip_proto = ip_proto(f);
        match &f.network {
            Some(Network::V4 { id, ttl, frag_offset, more_frags, total_len, .. }) => {
                row.ip_id = Some(i64::from(*id));
                row.ttl = Some(i32::from(*ttl));
                row.ip_len = Some(i32::from(*total_len));
                if *more_frags || *frag_offset > 0 {
                    row.frag_offset = Some(i32::from(*frag_offset));
                    row.more_frags = Some(i32::from(*more_frags));
                }
            }
            Some(Network::V6 { hop_limit, payload_len, fragment, .. }) => {
                row.ttl = Some(i32::from(*hop_limit));
                row.ip_len = Some(i32::from(*payload_len));
                if let Some((id, offset, more)) = fragment {
                    row.ip_id = Some(i64::from(*id));
                    row.frag_offset = Some(i32::from(*offset));
                    row.more_frags = Some(i32::from(*more));
                }
            }
            Some(Network::Arp { op, .. }) => row.arp_op = Some(i32::from(*op)),
            _ => {}
        }
        match &f.transport {
            Some(Transport::Tcp { sport, dport, seq, ack, flags, window, checksum, payload_len }) => {
                row.sport = Some(i32::from(*sport));
                row.dport = Some(i32::from(*dport));
                row.tcp_seq = Some(i64::from(*seq));
                row.tcp_ack = Some(i64::from(*ack));
                row.tcp_flags = Some(i32::from(*flags));
                row.tcp_window = Some(i32::from(*window));
                row.l4_checksum = Some(i32::from(*checksum));
                row.payload_bytes = Some(i64::from(*payload_len));
            }
            Some(Transport::Udp { sport, dport, len, checksum }) => {
                row.sport = Some(i32::from(*sport));
                row.dport = Some(i32::from(*dport));
                row.l4_checksum = Some(i32::from(*checksum));
                row.payload_bytes = Some(i64::from(len.saturating_sub(8)));
            }
            Some(
                Transport::Icmp { kind, code, id, seq, checksum }
                | Transport::Icmpv6 { kind, code, id, seq, checksum },
            ) => {
                row.icmp_kind = Some(i32::from(*kind));
                row.icmp_code = Some(i32::from(*code));
                row.icmp_id = Some(i32::from(*id));
                row.icmp_seq = Some(i32::from(*seq));
                row.l4_checksum = Some(i32::from(*checksum));
            }
            Some(Transport::Other { .. }) | None => {}
        }
        (row.tcp_tsval, row.tcp_tsecr) = stamps(f);
        row.message = f.message.as_ref().map(|m| m.text.to_string());
    }};
}

pub(super) fn frame(row: &mut FrameRow, f: &Footprint, texts: &mut Texts) {
    fill!(row, f, texts);
}

/// The table of footprints.
pub(super) struct Prints {
    table: TableWriter<FootprintRow>,
    rows: Vec<FootprintRow>,
    texts: Texts,
}

impl Prints {
    pub fn create(dir: &Path) -> Result<Prints> {
        let table = TableWriter::create_threaded(dir)?;
        Ok(Prints {
            table,
            rows: Vec::with_capacity(rows_at_once::<FootprintRow>()),
            texts: Texts::default(),
        })
    }

    pub fn add(&mut self, f: &FootprintRecord, print: &Footprint) -> Result<()> {
        self.rows.push(FootprintRow {
            packet_id: f.packet.0 as i64,
            at_ns: f.at.0,
            netns: (f.netns != 0).then_some(i64::from(f.netns)),
            ifindex: (f.ifindex != 0).then_some(f.ifindex as i32),
            len_bytes: i64::from(f.len_bytes),
            gso_size: (f.gso_size != 0).then_some(i32::from(f.gso_size)),
            gso_segs: (f.gso_size != 0).then_some(i32::from(f.gso_segs)),
            skb_tag: i32::from(f.skb_tag),
            start_layer: i32::from(f.start_layer),
            ..FootprintRow::default()
        });
        if let Some(row) = self.rows.last_mut() {
            fill!(row, print, &mut self.texts);
        }
        if self.rows.len() < rows_at_once::<FootprintRow>() { Ok(()) } else { self.put() }
    }

    fn put(&mut self) -> Result<()> {
        self.table.push_all(&self.rows)?;
        self.rows.iter_mut().for_each(|row| self.texts.of_footprint(row));
        self.rows.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<()> {
        self.put()?;
        self.table.finish()?;
        Ok(())
    }
}

pub fn off_cpu_row(p: &OffCpu) -> PauseRow {
    PauseRow {
        pid: p.pid as i32,
        from_ns: p.from.0,
        to_ns: p.to.0,
        preempted: i32::from(p.preempted),
        woken_ns: (p.wait_ns > 0 && !p.preempted).then(|| p.to.0 - i64::from(p.wait_ns)),
        cpu_out: i32::from(p.cpu_out),
        cpu_in: i32::from(p.cpu_in),
        slept_for: p.sleep.map(|s| s as i32),
    }
}

pub fn call_row(p: &Placed<'_>) -> CallRow {
    let n: &Node = p.node;
    let timed = n.timed();
    CallRow {
        call_id: p.call_id,
        packet_id: (n.packet != 0).then_some(n.packet as i64),
        func_id: i32::from(n.func),
        entry_ns: n.entry,
        dur_ns: timed.then_some(n.end - n.entry),
        self_ns: timed.then_some(n.self_ns),
        irq_ns: timed.then_some(n.irq_ns),
        off_ns: timed.then_some(n.off_ns),
        parent_id: p.parent_id,
        depth: p.depth,
        cpu: i32::from(n.cpu),
        ctx: n.ctx as i32,
        pid: n.pid as i32,
        flags: i32::from(n.flags),
        skb_tag: i32::from(n.skb_tag),
        len_bytes: n.is_point().then_some(n.len as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for a in ["0.0.0.0", "10.0.0.1", "192.168.100.255", "1.22.99.100"] {
            assert_eq!(Texts::default().v4(a.parse().unwrap()), a);
        }
        assert_eq!(mac_text(&[0, 0x1a, 0xff, 3, 4, 5]), "00:1a:ff:03:04:05");
    }
}
