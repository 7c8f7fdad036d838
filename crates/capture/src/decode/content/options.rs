//! TCP's options, RFC 9293 and 7323, 2018.

use super::CUT;
use std::fmt::Write as _;

/// Options of a header from byte 20 on: a text of all but the timestamps, empty where there are no others; and those.
pub(in super::super) fn of_tcp(options: &[u8], whole: bool) -> (String, Option<(u32, u32)>) {
    // Nearly all segments have just this, aligned as the RFC's appendix has it.
    if let [1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3] = *options {
        return (String::new(), Some((word([v0, v1, v2, v3]), word([e0, e1, e2, e3]))));
    }
    let (mut out, mut stamps, mut at) = (String::new(), None, 0);
    let mut cut = !whole;
    while let Some(&kind) = options.get(at) {
        match kind {
            0 => {
                cut = false;
                break;
            }
            1 => at += 1,
            _ => {
                let len = options.get(at + 1).map_or(0, |len| usize::from(*len));
                let Some(value) = options.get(at + 2..at + len).filter(|_| len >= 2) else {
                    // With a length that cannot be, what follows has no place.
                    cut = true;
                    break;
                };
                option(kind, value, &mut out, &mut stamps);
                at += len;
            }
        }
    }
    if cut {
        if !out.is_empty() {
            out.push(' ');
        }
        out += CUT;
    }
    (out, stamps)
}

fn option(kind: u8, value: &[u8], out: &mut String, stamps: &mut Option<(u32, u32)>) {
    if let (8, &[v0, v1, v2, v3, e0, e1, e2, e3]) = (kind, value) {
        *stamps = Some((word([v0, v1, v2, v3]), word([e0, e1, e2, e3])));
        return;
    }
    if !out.is_empty() {
        out.push(' ');
    }
    // Writing to a string does not fail.
    let _ = match (kind, value) {
        (2, &[a, b]) => write!(out, "mss {}", u16::from_be_bytes([a, b])),
        (3, [shift]) => write!(out, "wscale {shift}"),
        (4, []) => write!(out, "sackOK"),
        (5, blocks) if !blocks.is_empty() && blocks.len().is_multiple_of(8) => {
            out.push_str("sack");
            blocks.as_chunks::<8>().0.iter().try_for_each(|&[a, b, c, d, e, f, g, h]| {
                write!(out, " {}:{}", word([a, b, c, d]), word([e, f, g, h]))
            })
        }
        (19, _) => write!(out, "MD5"),
        (29, _) => write!(out, "AO"),
        (30, _) => write!(out, "MPTCP"),
        (34, []) => write!(out, "fast open"),
        (34, _) => write!(out, "fast open cookie"),
        _ => write!(out, "option {kind}"),
    };
}

fn word(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}
