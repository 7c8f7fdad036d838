//! DHCP: RFC 2131 and 2132 over BOOTP (RFC 951), and DHCPv6 (RFC 8415).

use super::{CUT, array, mac, v4 as address, v6 as address6};
use std::net::Ipv4Addr;

/// Of BOOTP's fixed fields; options begin behind the cookie.
const FIXED: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const SERVER_NAME: std::ops::Range<usize> = 44..108;
const FILE: std::ops::Range<usize> = 108..236;

/// Of a DHCPv6 message that are shown.
const MOST_ADDRESSES: usize = 4;

/// What options say; RFC 2132.
#[derive(Default)]
struct Options {
    kind: Option<u8>,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    lease: Option<u32>,
    overload: u8,
    /// All of them are there.
    whole: bool,
}

impl Options {
    /// From the first option on.
    fn read(&mut self, data: &[u8]) {
        let mut at = 0;
        self.whole = false;
        while let Some(&code) = data.get(at) {
            match code {
                0 => at += 1,
                255 => {
                    self.whole = true;
                    return;
                }
                _ => {
                    let Some(&len) = data.get(at + 1) else { return };
                    let Some(value) = data.get(at + 2..at + 2 + usize::from(len)) else { return };
                    match (code, value.len()) {
                        (53, 1) => self.kind = Some(value[0]),
                        (50, 4) => self.requested = address(value, 0),
                        (54, 4) => self.server = address(value, 0),
                        (51, 4) => self.lease = array(value, 0).map(u32::from_be_bytes),
                        (52, 1) => self.overload = value[0],
                        _ => {}
                    }
                    at += 2 + usize::from(len);
                }
            }
        }
    }
}

pub(super) fn v4(data: &[u8]) -> Option<String> {
    let h = array::<20>(data, 0)?;
    let (op, hardware, len) = (h[0], h[1], h[2]);
    if !matches!(op, 1 | 2) {
        return None;
    }
    let cookie = data.get(FIXED..FIXED + 4);
    let mut options = Options::default();
    if cookie == Some(&COOKIE) {
        options.read(&data[FIXED + 4..]);
        // Where there was not room enough they go on in fields that nobody uses.
        let whole = options.whole;
        for (bit, field) in [(1, FILE), (2, SERVER_NAME)] {
            if options.overload & bit != 0 {
                options.read(&data[field]);
            }
        }
        options.whole = whole;
    }
    let what = match options.kind {
        Some(kind) => format!("DHCP {}", kind_name(kind)),
        None if data.len() < FIXED + 4 || (cookie == Some(&COOKIE) && !options.whole) => {
            format!("DHCP {CUT}")
        }
        None if op == 1 => "BOOTP request".to_owned(),
        None => "BOOTP reply".to_owned(),
    };
    let mut out = format!("{what} {:#010x}", u32::from_be_bytes([h[4], h[5], h[6], h[7]]));
    // Ethernet: others' addresses are longer than their field, or not to be read as this one.
    if (hardware, len) == (1, 6)
        && let Some(client) = data.get(28..34)
    {
        out += &format!(" client {}", mac(client));
    }
    let mut say = |what: &str, addr: Option<Ipv4Addr>| {
        if let Some(addr) = addr.filter(|a| !a.is_unspecified()) {
            out += &format!(" {what} {addr}");
        }
    };
    say("has", address(&h, 12));
    say("requests", options.requested);
    say(if options.kind == Some(2) { "offers" } else { "gives" }, address(&h, 16));
    say("server", options.server);
    if let Some(lease) = options.lease {
        out += &match lease {
            u32::MAX => " for ever".to_owned(),
            s => format!(" for {s} s"),
        };
    }
    if options.kind.is_some() && !options.whole {
        out += &format!(" {CUT}");
    }
    Some(out)
}

fn kind_name(kind: u8) -> String {
    const NAMES: [&str; 18] = [
        "discover",
        "offer",
        "request",
        "decline",
        "ack",
        "nak",
        "release",
        "inform",
        "force renew",
        "lease query",
        "lease unassigned",
        "lease unknown",
        "lease active",
        "bulk lease query",
        "lease query done",
        "active lease query",
        "lease query status",
        "TLS",
    ];
    let place = usize::from(kind).checked_sub(1);
    place.and_then(|p| NAMES.get(p)).map_or_else(|| format!("type {kind}"), |n| (*n).to_owned())
}

pub(super) fn v6(data: &[u8]) -> Option<String> {
    const NAMES: [&str; 13] = [
        "solicit",
        "advertise",
        "request",
        "confirm",
        "renew",
        "rebind",
        "reply",
        "release",
        "decline",
        "reconfigure",
        "information request",
        "relay",
        "relay reply",
    ];
    let [kind, a, b, c] = array::<4>(data, 0)?;
    let name = NAMES.get(usize::from(kind).checked_sub(1)?)?;
    // A relay's message has another form, and the client's within.
    if kind >= 12 {
        return Some(format!("DHCPv6 {name}"));
    }
    let mut out = format!("DHCPv6 {name} {:#08x}", u32::from_be_bytes([0, a, b, c]));
    let (mut at, mut addresses) = (4, 0);
    while let Some(h) = array::<4>(data, at) {
        let (code, len) = (u16::from_be_bytes([h[0], h[1]]), usize::from(u16::from_be_bytes([h[2], h[3]])));
        let Some(value) = data.get(at + 4..at + 4 + len) else {
            out += &format!(" {CUT}");
            break;
        };
        // An identity association has 12 bytes before its options (temporary addresses: 4), of which the first is the address.
        let inside = match code {
            3 => value.get(12..),
            4 => value.get(4..),
            _ => None,
        };
        if let Some(inside) = inside.filter(|i| i.starts_with(&[0, 5]))
            && let Some(address) = address6(inside, 4)
            && addresses < MOST_ADDRESSES
        {
            addresses += 1;
            out += &format!(" address {address}");
        }
        at += 4 + len;
    }
    Some(out)
}
