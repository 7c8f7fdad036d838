//! Messages of name servers, RFC 1035: what is asked, and with which code it is answered.

use super::{CUT, array};
use std::fmt::Write as _;

/// Labels of a name and places that refer to others, together: no name of 255 bytes has more.
const MAX_STEPS: usize = 160;
/// RFC 1035, 2.3.4.
const MAX_NAME: usize = 255;

/// `protocol`: whose format it is. `None`: it is no such message.
pub(super) fn message(protocol: &str, data: &[u8]) -> Option<String> {
    let h = array::<12>(data, 0)?;
    let word = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    let (id, flags, questions, answers) = (word(0), word(2), word(4), word(6));
    let response = flags & 0x8000 != 0;
    let what = match ((flags >> 11) & 15, response) {
        (0, false) => "query",
        (0, true) => "answer",
        (1, false) => "inverse query",
        (1, true) => "inverse answer",
        (2, false) => "status request",
        (2, true) => "status",
        (4, false) => "notify",
        (4, true) => "notify answer",
        (5, false) => "update",
        (5, true) => "update answer",
        _ => return None,
    };
    let mut out = format!("{protocol} {what} {id:#06x}");
    // Without a question the first record says what it is about.
    let about = (questions > 0 || answers > 0).then(|| asked(data, 12));
    match about {
        Some(Some((name, kind))) => out += &format!(" {} {name}", type_name(kind)),
        Some(None) => {
            out.push(' ');
            out += CUT;
        }
        None => {}
    }
    if questions > 1 {
        out += &format!(" and {} more", questions - 1);
    }
    if response {
        out += &format!(": {}", code_name(flags & 15));
        if answers > 0 {
            out += &format!(", {answers} record{}", if answers == 1 { "" } else { "s" });
        }
    }
    if flags & 0x0200 != 0 {
        out += ", truncated";
    }
    Some(out)
}

/// Name and type of the question or record at a place.
fn asked(data: &[u8], at: usize) -> Option<(String, u16)> {
    let (name, end) = name(data, at)?;
    let kind = u16::from_be_bytes(array(data, end)?);
    Some((name, kind))
}

/// A name, and where what follows it begins.
fn name(data: &[u8], at: usize) -> Option<(String, usize)> {
    let mut out = String::new();
    let (mut place, mut end, mut bytes) = (at, None, 0);
    for _ in 0..MAX_STEPS {
        let len = usize::from(*data.get(place)?);
        match len >> 6 {
            0 if len == 0 => {
                if out.is_empty() {
                    out.push_str("<root>");
                }
                return Some((out, end.unwrap_or(place + 1)));
            }
            0 => {
                bytes += len + 1;
                if bytes >= MAX_NAME {
                    return None;
                }
                if !out.is_empty() {
                    out.push('.');
                }
                escaped(data.get(place + 1..place + 1 + len)?, &mut out);
                place += 1 + len;
            }
            3 => {
                let to = usize::from(u16::from_be_bytes(array(data, place)?) & 0x3fff);
                end = end.or(Some(place + 2));
                // Only backwards: otherwise a name could have no end.
                if to >= place {
                    return None;
                }
                place = to;
            }
            _ => return None,
        }
    }
    None
}

/// As zone files have it, RFC 1035, 5.1.
fn escaped(label: &[u8], out: &mut String) {
    for b in label {
        match b {
            b'.' | b'\\' => {
                out.push('\\');
                out.push(char::from(*b));
            }
            0x21..=0x7e => out.push(char::from(*b)),
            // Writing to a string does not fail.
            _ => drop(write!(out, "\\{b:03}")),
        }
    }
}

fn type_name(kind: u16) -> String {
    match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        13 => "HINFO",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        29 => "LOC",
        33 => "SRV",
        35 => "NAPTR",
        39 => "DNAME",
        41 => "OPT",
        43 => "DS",
        44 => "SSHFP",
        46 => "RRSIG",
        47 => "NSEC",
        48 => "DNSKEY",
        50 => "NSEC3",
        51 => "NSEC3PARAM",
        52 => "TLSA",
        59 => "CDS",
        60 => "CDNSKEY",
        64 => "SVCB",
        65 => "HTTPS",
        99 => "SPF",
        250 => "TSIG",
        251 => "IXFR",
        252 => "AXFR",
        255 => "ANY",
        257 => "CAA",
        other => return format!("type {other}"),
    }
    .to_owned()
}

/// RFC 6895, 2.3.
fn code_name(code: u16) -> String {
    const NAMES: [&str; 12] = [
        "no error",
        "FORMERR",
        "SERVFAIL",
        "NXDOMAIN",
        "NOTIMP",
        "REFUSED",
        "YXDOMAIN",
        "YXRRSET",
        "NXRRSET",
        "NOTAUTH",
        "NOTZONE",
        "DSOTYPENI",
    ];
    NAMES.get(usize::from(code)).map_or_else(|| format!("code {code}"), |n| (*n).to_owned())
}
