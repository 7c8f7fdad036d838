//! The sockets that the kernel side announced: which are wanted (by the filter of now), and how their addresses go into
//! the log. The filter is pcap-filter text, asked of a header made of the socket's addresses and ports, in both directions;
//! what has no peer yet (a bound datagram socket) has zeros there.

use super::held::Listeners;
use crate::btf::{Btf, kind};
use crate::filter::{self, pcap};
use crate::netlink::Listener;
use crate::object::Loaded;
use crate::sys::Mapping;
use crate::{elf, object, wire};
use kpat_model::{AppRecord, BootNs, Privacy, SocketRecord};
use std::collections::{HashMap, VecDeque};

/// How addresses go into the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Addresses {
    #[default]
    Plain,
    /// By a keyed hash: only the owner of the key can check whether an address is one that he knows.
    Hashed([u8; 16]),
    LeftOut,
}

/// Marks of the kernel side's entries (bpf/sockets.bpf.h).
const OFF: u8 = 1;
const AGAIN: u8 = 2;

const TCP: u16 = 6;

struct Known {
    record: SocketRecord,
    /// Its place in the kernel side's table.
    slot: u32,
    wanted: bool,
    /// It is not, as it has no peer: to some it could send, or get from them, what the filter wants.
    peerless: bool,
}

/// All sockets so far, by the low half of their cookies.
pub struct Sockets {
    table: Mapping,
    entry_bytes: usize,
    cookie_at: usize,
    marks_at: usize,
    entries: usize,
    known: HashMap<u32, Known>,
    filter: Vec<pcap::Instruction>,
    addresses: Addresses,
    /// Of sockets that were not announced yet, each with its CPU.
    early: VecDeque<(u16, AppRecord)>,
    listeners: Listeners,
    peerless: u64,
}

/// What is known of an event's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Wanted,
    Unwanted,
    /// Its announcement lies in another CPU's ring, which is read later.
    NotKnown,
}

/// More events than this do not wait: the announcement does not come.
const MOST_EARLY: usize = 1 << 16;

impl Sockets {
    pub fn new(
        loaded: &Loaded,
        build: object::Build,
        text: &str,
        addresses: Addresses,
    ) -> std::io::Result<Sockets> {
        let odd = |what: &str| std::io::Error::other(format!("kpat's own object has no {what}"));
        let bytes = build.object(object::Side::Application);
        let map = elf::map(bytes).ok_or_else(|| odd("sections"))?;
        let types = map.sections.iter().find(|s| s.name == ".BTF").ok_or_else(|| odd("types"))?;
        let btf = Btf::parse("object", &bytes[types.offset..types.offset + types.size], None)
            .map_err(std::io::Error::other)?;
        let entry = btf.find(kind::STRUCT, "sock_entry").ok_or_else(|| odd("sock_entry"))?;
        let at = |name: &str| btf.member_offset(entry, name).map(|o| o as usize).ok_or_else(|| odd(name));
        let size = map.symbols.get("sock_buckets").ok_or_else(|| odd("sock_buckets"))?.size;
        let fd = loaded.map_fd(".bss.socks").ok_or_else(|| odd(".bss.socks"))?;
        let entry_bytes = btf.size_of(entry) as usize;
        Ok(Sockets {
            table: Mapping::new(fd, size)?,
            entry_bytes,
            cookie_at: at("cookie")?,
            marks_at: at("marks")?,
            entries: size / entry_bytes,
            known: HashMap::new(),
            filter: compile(text).map_err(std::io::Error::other)?,
            addresses,
            early: VecDeque::new(),
            listeners: Listeners::default(),
            peerless: 0,
        })
    }

    /// A socket was announced. What goes into the log; `None`: it is not wanted, and the kernel side now knows.
    pub fn announced(&mut self, r: &wire::Socket) -> Option<SocketRecord> {
        let record = decode(r);
        let whole = completed(record, self.known.get(&r.sock).map(|k| &k.record));
        let wanted = wants(&self.filter, &whole);
        // Two announcements may be read at once, of which the first, before it was connected, turned it off.
        let turned_off = self.known.get(&r.sock).is_some_and(|k| !k.wanted);
        if !wanted || turned_off {
            self.switch(r.slot, record.cookie, !wanted);
        }
        let peerless = !wanted && lacks_a_peer(&self.filter, &whole);
        let before = self.known.insert(r.sock, Known { record: whole, slot: r.slot, wanted, peerless });
        recount(&mut self.peerless, before.is_some_and(|k| k.peerless), peerless);
        wanted.then(|| self.shown(record))
    }

    /// Sockets of datagrams whose calls are not in the log though the filter may want what they carry: they are not connected, so whom they speak to is not theirs to say.
    pub fn peerless(&self) -> u64 {
        self.peerless
    }

    /// These were there before the recording.
    pub fn listen(&mut self, found: Vec<Listener>) {
        self.listeners = Listeners::new(found);
    }

    /// A socket was announced that is wanted: what the file needs of those that listen where it came, so that it shows whose it is. Their
    /// addresses are as they go into the log.
    pub fn listeners(&mut self, r: &wire::Socket) -> Vec<Listener> {
        if r.protocol != TCP || self.known.get(&r.sock).is_none_or(|k| !k.wanted) {
            return Vec::new();
        }
        let record = decode(r);
        if r.pid != 0 {
            self.listeners.used(&record);
            return Vec::new();
        }
        let mut out = self.listeners.take(&record);
        out.iter_mut().for_each(|l| l.socket = self.addresses.socket(l.socket));
        out
    }

    /// Are events of this socket wanted? Without a filter all are, and none is looked up: that is asked for every event.
    pub fn wish(&self, sock: u32) -> Wish {
        if self.filter.is_empty() {
            return Wish::Wanted;
        }
        match self.known.get(&sock) {
            None => Wish::NotKnown,
            Some(k) if k.wanted => Wish::Wanted,
            Some(_) => Wish::Unwanted,
        }
    }

    /// Keeps an event until it is known whether its socket is wanted.
    pub fn wait(&mut self, cpu: u16, event: AppRecord) {
        if self.early.len() == MOST_EARLY {
            self.early.pop_front();
        }
        self.early.push_back((cpu, event));
    }

    /// Events of this CPU that waited and whose sockets turned out to be wanted.
    pub fn due(&mut self, cpu: u16) -> Vec<AppRecord> {
        let waiting = std::mem::take(&mut self.early);
        let mut due = Vec::new();
        for (of, event) in waiting {
            let sock = match &event {
                AppRecord::Crossing(r) => r.sock,
                AppRecord::Tcp(r) => r.sock,
                _ => continue,
            };
            match self.wish(sock) {
                Wish::NotKnown => self.early.push_back((of, event)),
                Wish::Wanted if of == cpu => due.push(event),
                Wish::Wanted => self.early.push_back((of, event)),
                Wish::Unwanted => {}
            }
        }
        due
    }

    /// From now on another filter. Sockets that come to be wanted are given, for the log.
    pub fn refilter(&mut self, text: &str) -> Result<Vec<SocketRecord>, filter::Error> {
        self.filter = compile(text)?;
        let mut changed = Vec::new();
        let mut fresh = Vec::new();
        for k in self.known.values_mut() {
            let wanted = wants(&self.filter, &k.record);
            let peerless = !wanted && lacks_a_peer(&self.filter, &k.record);
            recount(&mut self.peerless, k.peerless, peerless);
            k.peerless = peerless;
            if wanted != k.wanted {
                k.wanted = wanted;
                changed.push((k.slot, k.record.cookie, !wanted));
                fresh.extend(wanted.then_some(k.record));
            }
        }
        changed.into_iter().for_each(|(slot, cookie, off)| self.switch(slot, cookie, off));
        Ok(fresh.into_iter().map(|r| self.shown(r)).collect())
    }

    fn shown(&self, r: SocketRecord) -> SocketRecord {
        self.addresses.socket(r)
    }

    /// A file begins that knows none of them: each is announced once more at its next event.
    pub fn announce_again(&mut self) {
        let mut there = std::collections::HashSet::new();
        for slot in 0..self.entries {
            let cookie = self.cookie(slot);
            if cookie != 0 {
                there.insert(cookie);
                self.mark(slot, |marks| marks | AGAIN);
            }
        }
        self.known.retain(|_, k| there.contains(&k.record.cookie));
        self.listeners.again();
    }

    /// Nothing happens if the place has another socket by now.
    fn switch(&self, slot: u32, cookie: u64, off: bool) {
        let slot = slot as usize;
        if slot < self.entries && self.cookie(slot) == cookie {
            self.mark(slot, |_| if off { OFF } else { 0 });
        }
    }

    fn entry(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.entries);
        // SAFETY: the place lies inside the mapped table.
        unsafe { self.table.as_ptr().add(slot * self.entry_bytes) }
    }

    fn cookie(&self, slot: usize) -> u64 {
        // SAFETY: an aligned word inside the entry, which the kernel writes at any time; any value is valid.
        unsafe { self.entry(slot).add(self.cookie_at).cast::<u64>().read_volatile() }
    }

    fn mark(&self, slot: usize, to: impl Fn(u8) -> u8) {
        // SAFETY: a byte inside the entry; what the kernel makes of a mark that crosses with its own is a socket announced
        // once too often or at its next event but one.
        unsafe {
            let at = self.entry(slot).add(self.marks_at);
            at.write_volatile(to(at.read_volatile()));
        }
    }
}

fn compile(text: &str) -> Result<Vec<pcap::Instruction>, filter::Error> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    filter::compile(text)?;
    pcap::compile(text, pcap::RAW_IP).map_err(|why| filter::Error::Syntax { text: text.to_string(), why })
}

/// KP_SOCKET_KERNELS of the kernel side.
const KERNELS: u8 = 0x80;

fn decode(r: &wire::Socket) -> SocketRecord {
    let whole = SocketRecord {
        at: BootNs(r.ts as i64),
        cookie: r.cookie,
        cgroup: r.cgroup,
        netns: r.netns,
        version: if r.what & 1 != 0 { 6 } else { 4 },
        protocol: r.protocol,
        state: r.state & !KERNELS,
        kernels: r.state & KERNELS != 0,
        pid: r.pid,
        port: r.port,
        peer_port: r.peer_port,
        addr: r.addr,
        peer: r.peer,
        privacy: Privacy::Plain,
        congestion: r.congestion,
        uid: Some(r.uid),
        error: r.what >> 1,
        above: r.above,
    };
    whole.unmapped()
}

/// With the addresses that it had before: a socket that closes forgets them, and what was logged of it on another CPU before it had
/// them may be read later. Its events on other CPUs are not all read by then.
fn completed(mut r: SocketRecord, before: Option<&SocketRecord>) -> SocketRecord {
    let Some(b) = before.filter(|b| b.cookie == r.cookie) else { return r };
    for (to, from) in [(&mut r.port, b.port), (&mut r.peer_port, b.peer_port)] {
        if *to == 0 {
            *to = from;
        }
    }
    for (to, from) in [(&mut r.addr, &b.addr), (&mut r.peer, &b.peer)] {
        if *to == [0; 16] {
            *to = *from;
        }
    }
    r.above = if r.above == 0 { b.above } else { r.above };
    r
}

/// No filter wants all.
fn wants(filter: &[pcap::Instruction], r: &SocketRecord) -> bool {
    filter.is_empty() || [false, true].iter().any(|back| pcap::matches(filter, &header(r, *back)))
}

/// One of `n` was among them, or was not, and is or is not now.
fn recount(n: &mut u64, was: bool, is: bool) {
    *n = *n + u64::from(is) - u64::from(was);
}

/// Is it a socket that speaks to anybody, and could the filter want some of that?
fn lacks_a_peer(filter: &[pcap::Instruction], r: &SocketRecord) -> bool {
    r.protocol != TCP
        && r.peer_port == 0
        && [false, true].iter().any(|back| {
            let unknown = unknown(r, *back);
            let bytes = header(r, *back);
            let known: Vec<_> = bytes.iter().enumerate().map(|(i, b)| (!unknown(i)).then_some(*b)).collect();
            filter::could_match(filter, &known)
        })
}

/// Which bytes of [`header`] a socket without a peer does not know: the peer's address and port, and its own where it has none.
fn unknown(r: &SocketRecord, back: bool) -> impl Fn(usize) -> bool {
    let (from, bytes) = if r.version == 6 { (8, 16) } else { (12, 4) };
    let (own, peer) = if back { (1, 0) } else { (0, 1) };
    let (no_address, no_port) = (r.addr == [0; 16], r.port == 0);
    move |i| {
        let address = |end: usize| (from + end * bytes..from + (end + 1) * bytes).contains(&i);
        let port = |end: usize| (from + 2 * bytes + 2 * end..from + 2 * bytes + 2 * end + 2).contains(&i);
        address(peer) || port(peer) || no_address && address(own) || no_port && port(own)
    }
}

/// A datagram or segment as this socket would send it, or get it.
fn header(r: &SocketRecord, back: bool) -> Vec<u8> {
    let (from, to) = if back { (&r.peer, &r.addr) } else { (&r.addr, &r.peer) };
    let (from_port, to_port) = if back { (r.peer_port, r.port) } else { (r.port, r.peer_port) };
    let mut out;
    if r.version == 6 {
        out = vec![0; 40];
        (out[0], out[4], out[6], out[7]) = (0x60, 0, r.protocol as u8, 64);
        out[5] = 20;
        out[8..24].copy_from_slice(from);
        out[24..40].copy_from_slice(to);
    } else {
        out = vec![0; 20];
        (out[0], out[3], out[8], out[9]) = (0x45, 40, 64, r.protocol as u8);
        out[12..16].copy_from_slice(&from[..4]);
        out[16..20].copy_from_slice(&to[..4]);
    }
    out.extend(from_port.to_be_bytes());
    out.extend(to_port.to_be_bytes());
    out.extend([0; 16]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(version: u8, protocol: u16, port: u16, peer_port: u16) -> SocketRecord {
        let mut r = SocketRecord { version, protocol, port, peer_port, ..Default::default() };
        r.addr[..4].copy_from_slice(&[10, 0, 0, 1]);
        r.peer[..4].copy_from_slice(&[10, 0, 0, 2]);
        r
    }

    fn matches(text: &str, r: &SocketRecord) -> bool {
        wants(&compile(text).unwrap(), r)
    }

    #[test]
    fn a_filter_is_asked_of_the_socket_in_both_directions() {
        let tcp = socket(4, 6, 40_000, 443);
        for text in [
            "",
            "tcp",
            "port 443",
            "dst port 443",
            "src port 443",
            "host 10.0.0.2 and tcp",
            "src host 10.0.0.2",
        ] {
            assert!(matches(text, &tcp), "{text}");
        }
        for text in ["udp", "port 80", "ip6", "host 10.0.0.3", "src host 10.0.0.2 and dst port 443"] {
            assert!(!matches(text, &tcp), "{text}");
        }
        assert!(matches("ip6 and udp port 53", &socket(6, 17, 53, 0)));
        assert!(compile("port nonsense and and").is_err());
    }

    #[test]
    fn a_socket_without_a_peer_may_carry_what_is_wanted() {
        let lacks = |text: &str, r: &SocketRecord| lacks_a_peer(&compile(text).unwrap(), r);
        let bound = SocketRecord { peer: [0; 16], ..socket(4, 17, 7001, 0) };
        let anywhere = SocketRecord { addr: [0; 16], ..bound };
        for (text, is) in [
            ("host 10.0.0.9", true),
            ("net 10.50.0.0/16", true),
            ("udp port 53", true),
            ("src host 10.0.0.1 and src port 7002 and dst host 10.0.0.9", false),
            ("tcp", false),
            ("ip6", false),
        ] {
            assert_eq!(lacks(text, &bound), is, "{text}");
            assert!(!matches(text, &bound), "{text}");
        }
        assert!(lacks("src host 10.0.0.9 and src port 7001", &anywhere));
        assert!(!lacks("port 53", &socket(4, 17, 7001, 54)), "connected");
        assert!(!lacks("port 53", &SocketRecord { peer: [0; 16], ..socket(4, 6, 7001, 0) }), "it listens");
        assert!(lacks("ip6 host fe80::1", &SocketRecord { version: 6, ..anywhere }));
    }

    #[test]
    fn a_socket_that_closes_is_still_wanted() {
        let open = socket(4, 6, 40_000, 443);
        let closed = SocketRecord { port: 0, peer_port: 0, peer: [0; 16], ..open };
        assert!(!matches("port 443", &closed));
        assert!(matches("port 443 and host 10.0.0.2", &completed(closed, Some(&open))));
        let other = SocketRecord { cookie: 9, ..closed };
        assert!(!matches("port 443", &completed(other, Some(&open))), "another socket in its place");
        assert_eq!(completed(open, Some(&socket(4, 6, 1, 2))), open, "what it says itself counts");
    }
}
