//! One row of the list of packets, small: what lists show and filters ask.

mod facts;

pub(crate) use facts::{Facts, facts, facts_of};

use crate::codes::SURE_PERCENT;
use crate::ends::key_of_write;
use crate::frame_text;
use crate::store::{Store, StreamCall};
use kpat_model::hash::Map;
use kpat_store::tables::*;
use std::collections::HashMap;
use std::net::IpAddr;

/// A packet, or a frame that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Entry {
    /// IPv6, or IPv4 mapped into it; see [`flag::SRC`], [`flag::DST`].
    pub src: u128,
    pub dst: u128,
    /// -1: a frame without a packet.
    pub id: i64,
    /// Boot clock.
    pub first_ns: i64,
    pub path_ns: i64,
    pub kernel_ns: i64,
    /// First wire frame, 0: none.
    pub frame: u32,
    pub len_bytes: u32,
    pub calls: u32,
    /// TCP sequence number, or ICMP echo id and sequence.
    pub detail: u32,
    pub pid: i32,
    pub drop_reason: i32,
    /// Inode.
    pub netns: u32,
    pub points: u32,
    /// Place in [`Names::processes`].
    pub process: u32,
    /// Place in what [`Names`] has of messages, 0: none.
    pub(crate) more: u32,
    pub ethertype: u16,
    pub sport: u16,
    pub dport: u16,
    /// TCP flags, ICMP type and above it its code, or ARP operation.
    pub kind: u16,
    /// Place in [`Names::devices`], 0: none.
    pub if_in: u16,
    pub if_out: u16,
    /// Capture of `frame`.
    pub capture: u16,
    pub frames: u16,
    pub cpu: u16,
    pub flags: u16,
    pub proto: u8,
    pub verdict: u8,
    /// Percent.
    pub confidence: u8,
}

pub mod flag {
    //! Bits of [`super::Entry::flags`]: what is known.
    pub const SRC: u16 = 1;
    pub const DST: u16 = 2;
    pub const SPORT: u16 = 4;
    pub const DPORT: u16 = 8;
    pub const ETHER: u16 = 16;
    pub const PROTO: u16 = 32;
    pub const TCP: u16 = 64;
    pub const ICMP: u16 = 128;
    pub const ARP: u16 = 256;
    pub const PID: u16 = 512;
    pub const DROP: u16 = 1024;
    pub const CONFIDENCE: u16 = 2048;
    /// TCP sent it again.
    pub const RETRANSMITTED: u16 = 4096;
    /// A TCP sequence number or an echo id is known.
    pub const DETAIL: u16 = 8192;
    pub const CPU: u16 = 16384;
    pub const NETNS: u16 = 32768;
}

const _: () = assert!(size_of::<Entry>() == 128, "millions of them are in memory");

impl Entry {
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub fn is_packet(&self) -> bool {
        self.id >= 0
    }

    /// Others fit its frame as well.
    pub fn is_ambiguous(&self) -> bool {
        self.has(flag::CONFIDENCE) && i32::from(self.confidence) < SURE_PERCENT
    }

    pub fn last_ns(&self) -> i64 {
        self.first_ns.saturating_add(self.path_ns)
    }

    pub fn addr(&self, flag: u16, addr: u128) -> Option<IpAddr> {
        self.has(flag).then(|| {
            let v6 = std::net::Ipv6Addr::from(addr);
            v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
        })
    }

    fn set<T, U>(&mut self, bit: u16, place: fn(&mut Entry) -> &mut U, value: Option<T>)
    where
        U: TryFrom<T>,
    {
        if let Some(v) = value.and_then(|v| U::try_from(v).ok()) {
            *place(self) = v;
            self.flags |= bit;
        }
    }

    fn set_addr(&mut self, bit: u16, place: fn(&mut Entry) -> &mut u128, text: Option<&str>) {
        if let Some(addr) = text.and_then(|t| t.parse::<IpAddr>().ok()) {
            *place(self) = mapped(addr);
            self.flags |= bit;
        }
    }

    /// Columns that were not read are taken as unknown.
    pub(crate) fn of_packet(p: &PacketRow, names: &mut Names, facts: &Facts) -> Entry {
        let mut e = Entry {
            id: p.packet_id,
            first_ns: p.first_ns,
            path_ns: p.path_ns,
            kernel_ns: p.kernel_ns,
            len_bytes: clamp(p.len_bytes),
            calls: p.calls.max(0).unsigned_abs(),
            points: p.points.max(0).unsigned_abs(),
            verdict: p.verdict.clamp(0, 255) as u8,
            frames: p.frames.clamp(0, i32::from(u16::MAX)) as u16,
            if_in: names.device(p.if_in, p.if_in_netns),
            if_out: names.device(p.if_out, p.if_out_netns),
            ..Entry::default()
        };
        e.set_addr(flag::SRC, |e| &mut e.src, p.src_addr.as_deref());
        e.set_addr(flag::DST, |e| &mut e.dst, p.dst_addr.as_deref());
        e.set(flag::SPORT, |e| &mut e.sport, p.sport);
        e.set(flag::DPORT, |e| &mut e.dport, p.dport);
        e.set(flag::ETHER, |e| &mut e.ethertype, p.ethertype);
        e.set(flag::PROTO, |e| &mut e.proto, p.proto);
        e.set(flag::PID, |e| &mut e.pid, p.pid);
        e.set(flag::DROP, |e| &mut e.drop_reason, p.drop_reason);
        e.set(flag::CONFIDENCE, |e| &mut e.confidence, p.confidence);
        e.set(flag::CPU, |e| &mut e.cpu, p.cpu);
        e.set(flag::NETNS, |e| &mut e.netns, p.netns);
        e.info(
            p.tcp_flags,
            p.tcp_seq,
            p.icmp_kind.map(|k| (k, p.icmp_code.unwrap_or(0))),
            (p.icmp_id, p.icmp_seq),
            p.arp_op,
        );
        e.more = names.more(
            p.message.as_deref(),
            p.message_frame.is_some(),
            Beside::stamps(p.tcp_tsval, p.tcp_tsecr),
        );
        if let Some(pid) = p.pid {
            e.process = names.process(pid, p.last_ns);
        }
        if facts.retransmitted.contains(&p.packet_id) {
            e.flags |= flag::RETRANSMITTED;
        }
        if let Some(&(capture, number)) = facts.frames.get(&p.packet_id) {
            (e.capture, e.frame) = (capture, number);
        }
        e
    }

    pub(crate) fn of_frame(f: &FrameRow, names: &mut Names, at_ns: i64) -> Entry {
        let mut e = Entry {
            id: -1,
            first_ns: at_ns,
            len_bytes: f.len_bytes.max(0).unsigned_abs(),
            frame: clamp(f.number),
            capture: f.capture_id.clamp(0, i32::from(u16::MAX)) as u16,
            frames: 1,
            ..Entry::default()
        };
        e.set_addr(flag::SRC, |e| &mut e.src, f.ip_src.as_deref());
        e.set_addr(flag::DST, |e| &mut e.dst, f.ip_dst.as_deref());
        e.set(flag::SPORT, |e| &mut e.sport, f.sport);
        e.set(flag::DPORT, |e| &mut e.dport, f.dport);
        e.set(flag::ETHER, |e| &mut e.ethertype, f.ethertype);
        e.set(flag::PROTO, |e| &mut e.proto, f.ip_proto);
        e.info(
            f.tcp_flags,
            f.tcp_seq,
            f.icmp_kind.map(|k| (k, f.icmp_code.unwrap_or(0))),
            (f.icmp_id, f.icmp_seq),
            f.arp_op,
        );
        let beside = match frame_text::link_ends(f) {
            Some(ends) => {
                let [name, from, to] =
                    [&frame_text::name(f), ends[0], ends[1]].map(|text| names.place_of(text));
                Beside::Link { name, from, to }
            }
            None => Beside::stamps(f.tcp_tsval, f.tcp_tsecr),
        };
        e.more = names.more(frame_text::message(f).as_deref(), false, beside);
        e
    }

    /// A write of a stream, that took so long to be acknowledged, as a row that conditions can be asked of.
    pub(crate) fn of_write(s: &SocketRow, w: &StreamCall, acked_ns: Option<i64>, names: &Names) -> Entry {
        let mut e = Entry {
            id: key_of_write(w.id),
            first_ns: w.at_ns,
            path_ns: acked_ns.unwrap_or(0),
            len_bytes: clamp(w.bytes),
            ..Entry::default()
        };
        e.set_addr(flag::SRC, |e| &mut e.src, s.local_addr.as_deref());
        e.set_addr(flag::DST, |e| &mut e.dst, s.peer_addr.as_deref());
        e.set(flag::SPORT, |e| &mut e.sport, Some(s.local_port));
        e.set(flag::DPORT, |e| &mut e.dport, Some(s.peer_port));
        e.set(flag::PROTO, |e| &mut e.proto, Some(s.proto));
        e.set(flag::ETHER, |e| &mut e.ethertype, Some(if s.version == 6 { 0x86dd } else { 0x0800 }));
        e.set(flag::NETNS, |e| &mut e.netns, s.netns);
        e.process = w.pid.map_or(0, |pid| names.process(pid, w.at_ns));
        e
    }

    fn info(
        &mut self,
        tcp: Option<i32>,
        seq: Option<i64>,
        icmp: Option<(i32, i32)>,
        echo: (Option<i32>, Option<i32>),
        arp: Option<i32>,
    ) {
        self.set(flag::TCP, |e| &mut e.kind, tcp);
        self.set(flag::ICMP, |e| &mut e.kind, icmp.map(|(kind, code)| kind & 0xff | (code & 0xff) << 8));
        self.set(flag::ARP, |e| &mut e.kind, arp);
        self.set(flag::DETAIL, |e| &mut e.detail, seq);
        if icmp.is_some() && (echo.0.is_some() || echo.1.is_some()) {
            let half = |n: Option<i32>| n.unwrap_or(0).unsigned_abs() & 0xffff;
            self.detail = half(echo.0) << 16 | half(echo.1);
            self.flags |= flag::DETAIL;
        }
    }

    /// The columns that lists make text of.
    pub(crate) fn as_row(&self, names: &Names) -> PacketRow {
        let some = |bit: u16, n: u32| self.has(bit).then_some(n);
        let kind = |bit: u16| self.has(bit).then_some(i32::from(self.kind));
        let detail = some(flag::DETAIL, self.detail);
        let icmp = self.has(flag::ICMP);
        let more = names.more_of(self);
        let stamps = match more.beside {
            Beside::Stamps(value, echo) => Some((i64::from(value), i64::from(echo))),
            Beside::Nothing | Beside::Link { .. } => None,
        };
        PacketRow {
            ethertype: self.has(flag::ETHER).then_some(i32::from(self.ethertype)),
            proto: self.has(flag::PROTO).then_some(i32::from(self.proto)),
            tcp_flags: kind(flag::TCP),
            tcp_seq: detail.filter(|_| self.has(flag::TCP)).map(i64::from),
            icmp_kind: kind(flag::ICMP).map(|k| k & 0xff),
            icmp_code: kind(flag::ICMP).map(|k| k >> 8),
            icmp_id: detail.filter(|_| icmp).map(|d| (d >> 16) as i32),
            icmp_seq: detail.filter(|_| icmp).map(|d| (d & 0xffff) as i32),
            arp_op: kind(flag::ARP),
            tcp_tsval: stamps.map(|s| s.0),
            tcp_tsecr: stamps.map(|s| s.1),
            message: names.message_of(self).map(str::to_owned),
            message_frame: more.of_frame.then_some(1),
            ..PacketRow::default()
        }
    }

    /// What distinguishes it beyond its addresses.
    pub fn info_text(&self, names: &Names) -> String {
        crate::protocol::summary(&self.as_row(names))
    }

    pub fn proto_text(&self, names: &Names) -> String {
        if let Beside::Link { name, .. } = names.more_of(self).beside {
            return names.message(name).unwrap_or_default().to_owned();
        }
        let known = |bit: u16, n: i32| self.has(bit).then_some(n);
        crate::protocol::name(
            known(flag::ETHER, i32::from(self.ethertype)),
            known(flag::PROTO, i32::from(self.proto)),
        )
    }

    pub fn src_text(&self, names: &Names) -> String {
        if let Some([from, _]) = names.link_of(self) {
            return from.to_owned();
        }
        endpoint(self.addr(flag::SRC, self.src), self.has(flag::SPORT).then_some(self.sport))
    }

    pub fn dst_text(&self, names: &Names) -> String {
        if let Some([_, to]) = names.link_of(self) {
            return to.to_owned();
        }
        endpoint(self.addr(flag::DST, self.dst), self.has(flag::DPORT).then_some(self.dport))
    }
}

fn endpoint(addr: Option<IpAddr>, port: Option<u16>) -> String {
    let addr = addr.map(|a| a.to_string());
    crate::protocol::endpoint(addr.as_deref(), port.map(i32::from))
}

pub(crate) fn mapped(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

fn clamp(n: i64) -> u32 {
    n.clamp(0, i64::from(u32::MAX)) as u32
}

/// What few rows have, or only TCP's: beside the rows, so that the others do not have room for it.
#[derive(Clone, Copy, Debug, Default)]
struct More {
    /// Place in [`Names::messages`], 0: none.
    message: u32,
    of_frame: bool,
    beside: Beside,
}

/// What a TCP segment has, or a frame without IP, as places in [`Names::messages`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Beside {
    #[default]
    Nothing,
    Stamps(u32, u32),
    Link {
        name: u32,
        from: u32,
        to: u32,
    },
}

impl Beside {
    /// TCP's timestamps; both are 32 bits wide in the header.
    fn stamps(value: Option<i64>, echo: Option<i64>) -> Beside {
        value.zip(echo).map_or(Beside::Nothing, |(value, echo)| Beside::Stamps(value as u32, echo as u32))
    }
}

/// What entries mean by numbers.
#[derive(Debug, Default)]
pub struct Names {
    /// What times count from, boot clock.
    pub start_ns: i64,
    /// 0: unknown.
    pub processes: Vec<String>,
    /// 0: none.
    pub devices: Vec<String>,
    /// By capture id.
    pub captures: Vec<String>,
    reasons: HashMap<i32, String>,
    known_processes: HashMap<String, u32>,
    threads: Map<i64, Vec<(i64, u32)>>,
    known_devices: Map<i64, u16>,
    /// Each once; the first is none.
    messages: Vec<Box<str>>,
    known_messages: HashMap<Box<str>, u32>,
    /// The first is none.
    more: Vec<More>,
    rows: Vec<DeviceRow>,
}

impl Names {
    pub(crate) fn of(store: &Store) -> crate::Result<Names> {
        let mut names = Names {
            start_ns: store.manifest.first_ns,
            processes: vec![String::new()],
            devices: vec![String::new()],
            captures: Vec::new(),
            reasons: store.drop_reasons.clone(),
            rows: store.devices.clone(),
            ..Names::default()
        };
        for s in store.manifest.sources.iter().filter(|s| s.role == "capture") {
            // Frames have no other.
            let Ok(i) = u16::try_from(s.capture_id).map(usize::from) else { continue };
            if names.captures.len() <= i {
                names.captures.resize(i + 1, String::new());
            }
            names.captures[i].clone_from(&s.name);
        }
        for (pid, rows) in &store.processes {
            let places = rows.iter().map(|p| (p.at_ns, names.intern(&p.comm))).collect();
            names.threads.insert(i64::from(*pid), places);
        }
        Ok(names)
    }

    fn intern(&mut self, comm: &str) -> u32 {
        if let Some(place) = self.known_processes.get(comm) {
            return *place;
        }
        let place = self.processes.len() as u32;
        self.processes.push(comm.to_owned());
        self.known_processes.insert(comm.to_owned(), place);
        place
    }

    fn more(&mut self, message: Option<&str>, of_frame: bool, beside: Beside) -> u32 {
        let message = message.filter(|m| !m.is_empty());
        if message.is_none() && beside == Beside::Nothing {
            return 0;
        }
        if self.more.is_empty() {
            self.more.push(More::default());
        }
        let message = message.map_or(0, |text| self.place_of(text));
        self.more.push(More { message, of_frame, beside });
        self.more.len() as u32 - 1
    }

    /// Of a text in the list of messages; 0: it is empty.
    fn place_of(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        if self.messages.is_empty() {
            self.messages.push(Box::default());
        }
        match self.known_messages.get(text) {
            Some(place) => *place,
            None => {
                let place = self.messages.len() as u32;
                self.messages.push(text.into());
                self.known_messages.insert(text.into(), place);
                place
            }
        }
    }

    /// Addresses of a frame's link, if it has none of IP.
    pub(crate) fn link_of(&self, e: &Entry) -> Option<[&str; 2]> {
        match self.more_of(e).beside {
            Beside::Link { from, to, .. } => {
                Some([from, to].map(|place| self.message(place).unwrap_or_default()))
            }
            Beside::Nothing | Beside::Stamps(..) => None,
        }
    }

    fn more_of(&self, e: &Entry) -> More {
        self.more.get(e.more as usize).copied().unwrap_or_default()
    }

    fn message(&self, place: u32) -> Option<&str> {
        self.messages.get(place as usize).map(AsRef::as_ref).filter(|_| place > 0)
    }

    /// Of rows that are done with: who looks at one row after another keeps none.
    pub(crate) fn forget_messages(&mut self) {
        self.more.clear();
        self.messages.clear();
        self.known_messages.clear();
    }

    /// What it says beyond its fields.
    pub fn message_of(&self, e: &Entry) -> Option<&str> {
        self.message(self.more_of(e).message)
    }

    /// As [`Store::process`].
    fn process(&self, pid: i32, at_ns: i64) -> u32 {
        let Some(names) = self.threads.get(&i64::from(pid)) else { return 0 };
        names.iter().rev().find(|p| p.0 <= at_ns).or(names.first()).map_or(0, |p| p.1)
    }

    fn device(&mut self, ifindex: Option<i32>, netns: Option<i64>) -> u16 {
        let Some(ifindex) = ifindex else { return 0 };
        let key = netns.unwrap_or(-1).wrapping_mul(1 << 20) ^ i64::from(ifindex);
        if let Some(place) = self.known_devices.get(&key) {
            return *place;
        }
        let fits = |d: &&DeviceRow| d.ifindex == ifindex && netns.is_none_or(|n| n == d.netns);
        let name = self
            .rows
            .iter()
            .rev()
            .find(fits)
            .map_or_else(|| format!("ifindex {ifindex}"), |d| d.name.clone());
        let place = match self.devices.iter().position(|d| *d == name) {
            Some(place) => place,
            None if self.devices.len() < usize::from(u16::MAX) => {
                self.devices.push(name);
                self.devices.len() - 1
            }
            None => 0,
        } as u16;
        self.known_devices.insert(key, place);
        place
    }

    pub fn process_of(&self, e: &Entry) -> Option<&str> {
        self.processes.get(e.process as usize).map(String::as_str).filter(|_| e.process > 0)
    }

    pub fn device_name(&self, place: u16) -> Option<&str> {
        self.devices.get(usize::from(place)).map(String::as_str).filter(|_| place > 0)
    }

    pub fn capture_of(&self, e: &Entry) -> Option<&str> {
        self.captures.get(usize::from(e.capture)).map(String::as_str).filter(|_| e.frame > 0)
    }

    pub fn drop_of(&self, e: &Entry) -> Option<&str> {
        e.has(flag::DROP).then(|| self.reasons.get(&e.drop_reason).map_or("unknown reason", String::as_str))
    }

    /// `number`, or `capture:number` where there are several captures.
    pub fn frame_of(&self, e: &Entry) -> Option<String> {
        (e.frame > 0).then(|| match self.capture_of(e) {
            Some(capture) if self.captures.len() > 1 => {
                let stem = capture.rsplit_once('.').map_or(capture, |(stem, _)| stem);
                format!("{stem}:{}", e.frame)
            }
            _ => e.frame.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_without_ip_is_listed_by_its_link() {
        let beacon = FrameRow {
            wifi_fc: Some(0x0080),
            wifi_ta: Some("02:00:00:00:01:00".into()),
            wifi_ra: Some("ff:ff:ff:ff:ff:ff".into()),
            ..FrameRow::default()
        };
        let datagram = FrameRow {
            ethertype: Some(0x0800),
            ip_proto: Some(17),
            ip_src: Some("10.0.0.1".into()),
            ip_dst: Some("10.0.0.2".into()),
            ..beacon.clone()
        };
        let mut names = Names::default();
        for row in [&beacon, &datagram, &beacon] {
            let e = Entry::of_frame(row, &mut names, 0);
            let said = (e.proto_text(&names), [e.src_text(&names), e.dst_text(&names)], e.info_text(&names));
            assert_eq!(said, (frame_text::name(row), frame_text::ends(row), frame_text::summary(row)));
        }
        assert_eq!(names.messages.len(), 5, "each text once, and none");
    }
}
