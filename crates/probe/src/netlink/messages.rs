//! rtnetlink's messages as bytes: links, routes and neighbours, and what of them is an event.
//!
//! Layouts are those of include/uapi/linux/{netlink,rtnetlink,if_link,neighbour}.h. What is malformed ends the message. Any
//! bytes may be given; no socket is known here.

use kpat_model::announced::{AFTERWARDS, ALREADY, BEFORE, NEW, REMOVED, RENAMED};
use kpat_model::link_address::text as link_address;
use kpat_model::{BootNs, Context, Event, EventKind, PacketId, Timed};
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Sequence number of our requests; announcements have 0 or that of the request that caused the change.
pub(super) const QUESTION: u32 = 0x6b70_6174;
/// The same of a question whose answers are events: what is found in a namespace that came.
pub(super) const FOUND: u32 = QUESTION + 1;

pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;

pub(super) struct Message<'a> {
    pub(super) kind: u16,
    sequence: u32,
    pub(super) body: &'a [u8],
}

fn half(b: &[u8], at: usize) -> Option<u16> {
    b.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub(super) fn word(b: &[u8], at: usize) -> Option<u32> {
    b.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn aligned(n: usize) -> usize {
    n.div_ceil(4) * 4
}

/// Takes one length-prefixed piece off the front; `None` at the end or where the length cannot be true.
fn take<'a>(rest: &mut &'a [u8], len: usize, header: usize) -> Option<&'a [u8]> {
    let piece = rest.get(..len).filter(|p| p.len() >= header)?;
    *rest = rest.get(aligned(len)..).unwrap_or_default();
    Some(piece)
}

pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = word(rest, 0)? as usize;
        let m = take(&mut rest, len, 16)?;
        Some(Message { kind: half(m, 4)?, sequence: word(m, 8)?, body: &m[16..] })
    })
}

/// Attributes from `at` on, without the flags in their types.
pub(super) fn attributes(b: &[u8], at: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = b.get(at..).unwrap_or_default();
    std::iter::from_fn(move || {
        let len = half(rest, 0)?.into();
        let a = take(&mut rest, len, 4)?;
        Some((half(a, 2)? & 0x3fff, &a[4..]))
    })
}

pub(super) fn string(b: &[u8]) -> String {
    let end = b.iter().position(|c| *c == 0).unwrap_or(b.len());
    String::from_utf8_lossy(&b[..end]).into_owned()
}

/// By length: 4 IPv4, 16 IPv6, else a link-layer address.
fn address(b: &[u8]) -> String {
    if let Ok(v4) = <[u8; 4]>::try_from(b) {
        Ipv4Addr::from(v4).to_string()
    } else if let Ok(v6) = <[u8; 16]>::try_from(b) {
        Ipv6Addr::from(v6).to_string()
    } else {
        link_address(b)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Link {
    pub(super) ifindex: u32,
    flags: u32,
    carrier: bool,
    pub(super) name: String,
    pub(super) link_type: u16,
    pub(super) mac: String,
    pub(super) mtu: u32,
    /// Index of the bridge or bond it belongs to, 0: none.
    pub(super) master: u32,
    /// Index of the interface of the same namespace that it is above.
    pub(super) above: Option<u32>,
    /// How often its carrier was lost; `None`: the kernel does not count it.
    lost: Option<u32>,
}

impl Link {
    /// What a log's table of devices has of it.
    fn in_the_log(&self) -> (&str, u16, &str, u32, Option<u32>, u32) {
        (&self.name, self.link_type, &self.mac, self.mtu, self.above, self.master)
    }

    fn up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    fn state(&self) -> &'static str {
        match (self.up(), self.carrier) {
            (false, _) => "down",
            (true, true) => "up carrier",
            (true, false) => "up no-carrier",
        }
    }
}

/// A link and its kind, from the body of RTM_NEWLINK or RTM_DELLINK.
pub(super) fn link(body: &[u8]) -> Option<(Link, String)> {
    let (mut l, mut kind) = (Link::default(), String::new());
    let (mut other, mut elsewhere) = (0, false);
    (l.link_type, l.ifindex, l.flags) = (half(body, 2)?, word(body, 4)?, word(body, 8)?);
    l.carrier = l.flags & libc::IFF_LOWER_UP as u32 != 0;
    for (t, v) in attributes(body, 16) {
        match t {
            libc::IFLA_ADDRESS => l.mac = link_address(v),
            libc::IFLA_IFNAME => l.name = string(v),
            libc::IFLA_MTU => l.mtu = word(v, 0)?,
            libc::IFLA_MASTER => l.master = word(v, 0)?,
            libc::IFLA_LINK => other = word(v, 0)?,
            libc::IFLA_LINK_NETNSID => elsewhere = true,
            IFLA_CARRIER_DOWN_COUNT => l.lost = word(v, 0),
            libc::IFLA_CARRIER => l.carrier = *v.first()? != 0,
            libc::IFLA_LINKINFO => {
                kind = attributes(v, 0).find(|a| a.0 == 1).map(|a| string(a.1)).unwrap_or_default();
            }
            _ => {}
        }
    }
    // Of others, as veth, it is the other end, or the way that a tunnel takes at the moment.
    l.above = Some(other).filter(|o| *o != 0 && !elsewhere && ABOVE.contains(&kind.as_str()));
    // What a link that is down says of its carrier depends on driver and version.
    l.carrier &= l.up();
    Some((l, kind))
}

/// Turns rtnetlink messages of one namespace into events; remembers the links, because other messages only name an index.
/// Any bytes may be given.
#[derive(Default)]
pub struct Decoder {
    netns: u32,
    links: HashMap<u32, Link>,
    /// Flags of those that were announced.
    addresses: HashMap<AddressKey, u32>,
    /// Links that came or changed what a log says of its devices, and their kinds.
    changed: Vec<(Link, String)>,
    /// Routes that were found and whose announcements may still come.
    routes: HashSet<String>,
    /// States of bridges' ports.
    ports: HashMap<u32, u8>,
    /// A carrier was lost and back before it was announced.
    flapped: Option<Announced>,
}

/// Index of the device, prefix, address.
type AddressKey = (u32, u8, Vec<u8>);

impl Decoder {
    pub fn new(netns: u32) -> Decoder {
        Decoder { netns, ..Decoder::default() }
    }

    /// This link was there before the first message.
    pub(super) fn knows(&mut self, link: Link) {
        self.links.insert(link.ifindex, link);
    }

    /// Changes of its devices that are not in the log yet.
    pub(super) fn take_changed(&mut self) -> Vec<(Link, String)> {
        std::mem::take(&mut self.changed)
    }

    /// All that was announced before something was found has been read.
    pub(super) fn caught_up(&mut self) {
        self.routes.clear();
    }

    /// Decodes one datagram. Messages that say nothing new (statistics, a repeated state of a link) make no event.
    pub fn decode(&mut self, datagram: &[u8], at: BootNs, sink: &mut dyn FnMut(Event)) {
        for m in messages(datagram) {
            let found = m.sequence == FOUND;
            let reported = match m.kind {
                libc::RTM_NEWLINK => self.link_is(m.body, found).filter(|_| m.sequence != QUESTION),
                libc::RTM_DELLINK => self.link_gone(m.body),
                libc::RTM_NEWROUTE => self.route_is(m.body, found).map(|t| (EventKind::Route, 1, 0, t)),
                libc::RTM_DELROUTE => self.route(m.body).map(|t| (EventKind::Route, 0, 0, t)),
                libc::RTM_NEWNEIGH => self.neighbour(m.body, false),
                libc::RTM_DELNEIGH => self.neighbour(m.body, true),
                libc::RTM_NEWADDR => self.address_is(m.body, found),
                libc::RTM_DELADDR => self.address_gone(m.body),
                libc::RTM_NEWQDISC => self.queueing("qdisc", m.body, 1),
                libc::RTM_DELQDISC => self.queueing("qdisc", m.body, 0),
                libc::RTM_NEWTCLASS => self.queueing("class", m.body, 1),
                libc::RTM_DELTCLASS => self.queueing("class", m.body, 0),
                libc::RTM_NEWTFILTER => self.queueing("filter", m.body, 1),
                libc::RTM_DELTFILTER => self.queueing("filter", m.body, 0),
                RTM_NEWNSID => nsid(m.body).map(|t| (EventKind::Namespace, 1, 0, t)),
                RTM_DELNSID => nsid(m.body).map(|t| (EventKind::Namespace, 0, 0, t)),
                _ => None,
            };
            for (kind, a, b, text) in self.flapped.take().into_iter().chain(reported) {
                let (ctx, packet, netns) = (Context::Unknown, PacketId::NONE, self.netns);
                // The caller, who read it, knows how long before.
                let timed = Timed::Read { within_ns: 0 };
                sink(Event { kind, ctx, pid: 0, at, timed, packet, netns, a, b, text });
            }
        }
    }

    fn name(&self, ifindex: u32) -> String {
        self.links.get(&ifindex).map_or_else(|| format!("if{ifindex}"), |l| l.name.clone())
    }

    fn link_is(&mut self, body: &[u8], found: bool) -> Option<Announced> {
        // An announcement of a radio's old interface has the link's name and nothing else of it.
        let of_radio = attributes(body, 16).any(|(t, _)| t == libc::IFLA_WIRELESS);
        if of_bridge(body) {
            return self.port_is(body);
        }
        if of_radio {
            return None;
        }
        let (new, kind) = link(body)?;
        let old = self.links.insert(new.ifindex, new.clone());
        if old.as_ref() == Some(&new) {
            return None;
        }
        // The kernel announces carriers once a second at most, and then as they are.
        let times = old.as_ref().and_then(|old| new.lost?.checked_sub(old.lost?)).unwrap_or(0);
        if times > 0 && new.carrier && old.as_ref().is_some_and(|old| old.carrier) {
            let flags = new.flags & !(libc::IFF_LOWER_UP | libc::IFF_RUNNING) as u32;
            let often = if times == 1 { String::new() } else { format!(", {times} times") };
            let text = format!("{} up no-carrier {AFTERWARDS}{often}", new.name);
            self.flapped = Some((EventKind::Link, new.ifindex.into(), flags.into(), text));
        }
        if old.as_ref().is_some_and(|old| Link { lost: new.lost, ..old.clone() } == new) {
            // That it is as it was is news where it was not meanwhile.
            self.flapped.as_ref()?;
        }
        if old.as_ref().is_none_or(|old| old.in_the_log() != new.in_the_log()) {
            self.changed.push((new.clone(), kind));
        }
        let mut text = format!("{} {}", new.name, new.state());
        match old {
            None => text += if found { ALREADY } else { NEW },
            Some(old) => {
                if old.mtu != new.mtu {
                    text += &format!(" mtu {}", new.mtu);
                }
                if old.mac != new.mac {
                    text += &format!(" address {}", new.mac);
                }
                match new.master {
                    m if m == old.master => {}
                    0 => text += &format!(" left {}", self.name(old.master)),
                    m => text += &format!(" master {}", self.name(m)),
                }
                if old.name != new.name {
                    text += &format!("{RENAMED}{})", old.name);
                }
                if old.state() != new.state() {
                    text += &format!(" {BEFORE}{})", old.state());
                }
            }
        }
        Some((EventKind::Link, new.ifindex.into(), new.flags.into(), text))
    }

    /// What a bridge announces of a port.
    fn port_is(&mut self, body: &[u8]) -> Option<Announced> {
        let ifindex = word(body, 4)?;
        let find = |kind: u16| attributes(body, 16).find(move |a| a.0 == kind).map(|a| a.1);
        let nested = find(IFLA_PROTINFO)?;
        let state = *attributes(nested, 0).find(|a| a.0 == IFLA_BRPORT_STATE)?.1.first()?;
        if self.ports.insert(ifindex, state) == Some(state) {
            return None;
        }
        let name = ["disabled", "listening", "learning", "forwarding", "blocking"].get(usize::from(state));
        let bridge = find(libc::IFLA_MASTER)
            .and_then(|v| word(v, 0))
            .map_or(String::new(), |m| format!(" ({})", self.name(m)));
        let text = format!("{} {}{bridge}", self.name(ifindex), name.unwrap_or(&"in an unknown state"));
        Some((EventKind::BridgePort, state.into(), ifindex.into(), text))
    }

    fn link_gone(&mut self, body: &[u8]) -> Option<Announced> {
        if of_bridge(body) {
            // It left the bridge, and is a port no more.
            self.ports.remove(&word(body, 4)?);
            return None;
        }
        let (gone, _) = link(body)?;
        let name = if gone.name.is_empty() { self.name(gone.ifindex) } else { gone.name };
        self.links.remove(&gone.ifindex);
        Some((EventKind::Link, gone.ifindex.into(), gone.flags.into(), format!("{name}{REMOVED}")))
    }

    /// The kernel repeats an address when its lifetime is renewed: that is no change.
    fn address_is(&mut self, body: &[u8], found: bool) -> Option<Announced> {
        let (key, flags, text) = self.address(body)?;
        if self.addresses.insert(key.clone(), flags) == Some(flags) {
            return None;
        }
        let names = ADDRESS_FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name);
        let mut text = names.fold(text, |text, name| text + " " + name);
        if found {
            text += ALREADY;
        }
        Some((EventKind::Address, 1, key.0.into(), text))
    }

    fn address_gone(&mut self, body: &[u8]) -> Option<Announced> {
        let (key, _, text) = self.address(body)?;
        self.addresses.remove(&key);
        Some((EventKind::Address, 0, key.0.into(), text))
    }

    fn address(&self, body: &[u8]) -> Option<(AddressKey, u32, String)> {
        let (prefix, ifindex) = (*body.get(1)?, word(body, 4)?);
        let find = |t| attributes(body, 8).find(move |a| a.0 == t).map(|a| a.1);
        let (local, other) = (find(libc::IFA_LOCAL), find(libc::IFA_ADDRESS));
        let flags = find(IFA_FLAGS).and_then(|v| word(v, 0)).unwrap_or_else(|| u32::from(body[2]));
        let of = local.or(other)?;
        let mut text = format!("{}/{prefix} dev {}", address(of), self.name(ifindex));
        if let (Some(_), Some(peer)) = (local, other.filter(|p| Some(*p) != local)) {
            text += &format!(" peer {}", address(peer));
        }
        Some(((ifindex, prefix, of.to_vec()), flags, text))
    }

    fn queueing(&self, what: &str, body: &[u8], is: u64) -> Option<Announced> {
        const ROOT: u32 = u32::MAX;
        let (ifindex, handle, parent) = (word(body, 4)?, word(body, 8)?, word(body, 12)?);
        let kind =
            attributes(body, 20).find(|a| a.0 == libc::TCA_KIND).map(|a| string(a.1)).unwrap_or_default();
        let id = |h: u32| match h & 0xffff {
            0 => format!("{:x}:", h >> 16),
            minor => format!("{:x}:{minor:x}", h >> 16),
        };
        let place = match parent {
            ROOT => " root".to_owned(),
            0 => String::new(),
            other => format!(" parent {}", id(other)),
        };
        let own = if what == "filter" { String::new() } else { format!(" {}", id(handle)) };
        let text = format!("{what} {kind}{own} dev {}{place}", self.name(ifindex));
        Some((EventKind::Queueing, is, ifindex.into(), text))
    }

    fn route_is(&mut self, body: &[u8], found: bool) -> Option<String> {
        let text = self.route(body)?;
        if found {
            self.routes.insert(text.clone());
            return Some(text + ALREADY);
        }
        Some(text).filter(|t| !self.routes.remove(t))
    }

    fn route(&self, body: &[u8]) -> Option<String> {
        const CLONED: u32 = 0x200;
        let (prefix, kind) = (*body.get(1)?, *body.get(7)?);
        if word(body, 8)? & CLONED != 0 {
            return None;
        }
        let full = if body[0] as i32 == libc::AF_INET6 { 128 } else { 32 };
        let mut table = u32::from(body[4]);
        let (mut to, mut how, mut tail) = ("default".to_string(), String::new(), String::new());
        for (t, v) in attributes(body, 12) {
            match t {
                libc::RTA_DST if prefix == full => to = address(v),
                libc::RTA_DST => to = format!("{}/{prefix}", address(v)),
                libc::RTA_TABLE => table = word(v, 0)?,
                libc::RTA_PREFSRC => tail += &format!(" src {}", address(v)),
                libc::RTA_PRIORITY => tail += &format!(" metric {}", word(v, 0)?),
                RTA_NH_ID => tail += &format!(" nhid {}", word(v, 0)?),
                libc::RTA_MULTIPATH => {
                    let mut rest = v;
                    while let Some(hop) = half(rest, 0).and_then(|len| take(&mut rest, len.into(), 8)) {
                        how += &format!(" nexthop{} dev {}", via(hop, 8), self.name(word(hop, 4)?));
                        how += &format!(" weight {}", u32::from(hop[3]) + 1);
                    }
                }
                _ => {}
            }
        }
        let mut text = match KINDS.split(' ').nth(kind.into()) {
            Some("unicast") | None => String::new(),
            Some(name) => format!("{name} "),
        };
        text += &to;
        text += &via(body, 12);
        if let Some(ifindex) = attributes(body, 12).find(|a| a.0 == libc::RTA_OIF).and_then(|a| word(a.1, 0))
        {
            text += &format!(" dev {}", self.name(ifindex));
        }
        text += &how;
        match table {
            254 => {}
            255 => text += " table local",
            n => text += &format!(" table {n}"),
        }
        Some(text + &tail)
    }

    fn neighbour(&self, body: &[u8], gone: bool) -> Option<Announced> {
        let (family, ifindex, state) = (*body.first()?, word(body, 4)?, half(body, 8)?);
        let find = |t| attributes(body, 12).find(move |a| a.0 == t).map(|a| a.1);
        let (to, at) = (find(libc::NDA_DST), find(libc::NDA_LLADDR));
        let mut text = if family as i32 == libc::AF_BRIDGE {
            format!("{} dev {} fdb", link_address(at?), self.name(ifindex))
        } else {
            let lladdr = at.map(|a| format!(" lladdr {}", link_address(a))).unwrap_or_default();
            format!("{}{lladdr} dev {}", address(to?), self.name(ifindex))
        };
        let names = STATES.split(' ').enumerate().filter(|(bit, _)| state >> bit & 1 != 0).map(|(_, s)| s);
        for word in if gone { vec!["removed"] } else { names.collect() } {
            text += " ";
            text += word;
        }
        Some((EventKind::Neighbour, if gone { 0 } else { state.into() }, ifindex.into(), text))
    }
}

/// Kind, a, b, text.
type Announced = (EventKind, u64, u64, String);

const RTA_NH_ID: u16 = 30;
const IFA_FLAGS: u16 = 8;
const RTM_NEWNSID: u16 = 88;
const RTM_DELNSID: u16 = 89;

/// IFA_F_* of linux/if_addr.h that are worth logging; permanent is the default.
const ADDRESS_FLAGS: [(u32, &str); 5] = [
    (0x01, "secondary"),
    (0x04, "optimistic"),
    (0x08, "dadfailed"),
    (0x20, "deprecated"),
    (0x40, "tentative"),
];

/// Another namespace got a number in this one, or lost it.
fn nsid(body: &[u8]) -> Option<String> {
    const NETNSA_NSID: u16 = 1;
    let id = attributes(body, 4).find(|a| a.0 == NETNSA_NSID).and_then(|a| word(a.1, 0))?;
    Some(format!("link-netnsid {}", id as i32))
}

/// RTN_*, from 0 on.
const KINDS: &str = "unspec unicast local broadcast anycast multicast blackhole unreachable prohibit throw";

/// NUD_*, from bit 0 on.
const STATES: &str = "INCOMPLETE REACHABLE STALE DELAY PROBE FAILED NOARP PERMANENT";

/// Kinds of links that are above another one, through which all goes that goes through them.
const ABOVE: [&str; 6] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"];
/// A bridge says of its ports what changed in the bridge; a port that "goes" has only left it.
/// Of include/uapi/linux/if_link.h; the last of what a bridge says of a port, and the binding has none of them.
const IFLA_CARRIER_DOWN_COUNT: u16 = 48;
const IFLA_PROTINFO: u16 = 12;
const IFLA_BRPORT_STATE: u16 = 1;
fn of_bridge(body: &[u8]) -> bool {
    body.first().is_some_and(|family| i32::from(*family) == libc::AF_BRIDGE)
}

/// The gateway among the attributes, of either family.
fn via(b: &[u8], at: usize) -> String {
    let gateway = attributes(b, at).find_map(|(t, v)| match t {
        libc::RTA_GATEWAY => Some(v),
        libc::RTA_VIA => v.get(2..),
        _ => None,
    });
    gateway.map(|g| format!(" via {}", address(g))).unwrap_or_default()
}
