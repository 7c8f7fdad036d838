//! 802.11 headers, plain and behind the headers that monitor interfaces put before them.

use kpat_model::{Footprint, Wifi};

use super::{Bytes, frame, link};

const TO_DS: u16 = 0x0100;
const FROM_DS: u16 = 0x0200;
const PROTECTED: u16 = 0x4000;
const ORDER: u16 = 0x8000;

const SUBTYPE_QOS: u16 = 8;
const SUBTYPE_NO_DATA: u16 = 4;

/// `padded`: the driver put padding between header and body so that the body starts at a multiple of four.
pub(super) fn plain(out: &mut Footprint, d: Bytes, padded: bool) {
    let (Some(fc), Some(receiver)) = (d.array::<2>(0).map(u16::from_le_bytes), d.array(4)) else {
        out.cut = true;
        return;
    };
    let (kind, subtype) = (fc >> 2 & 3, fc >> 4 & 15);
    let mut wifi = Wifi { frame_control: fc, receiver, transmitter: [0; 6], sequence_control: 0 };
    // Clear to send, acknowledgement and control wrapper name the receiver only; extension frames are none of ours.
    let alone = matches!((kind, subtype), (1, 7 | 12 | 13) | (3, _));
    if !alone {
        let Some(transmitter) = d.array(10) else {
            out.cut = true;
            return;
        };
        wifi.transmitter = transmitter;
    }
    if matches!(kind, 0 | 2) {
        let Some(sequence) = d.array(22) else {
            out.cut = true;
            return;
        };
        wifi.sequence_control = u16::from_le_bytes(sequence);
    }
    out.wifi = Some(wifi);
    if kind == 2 {
        data_body(out, d, fc, subtype, wifi.sequence_control, padded);
    }
}

fn data_body(out: &mut Footprint, d: Bytes, fc: u16, subtype: u16, sequence: u16, padded: bool) {
    let qos = subtype & SUBTYPE_QOS != 0;
    let mut header = if fc & TO_DS != 0 && fc & FROM_DS != 0 { 30 } else { 24 };
    let mut aggregated = false;
    if qos {
        let Some(control) = d.u8(header) else {
            out.cut = true;
            return;
        };
        aggregated = control & 0x80 != 0;
        header += 2;
        if fc & ORDER != 0 {
            header += 4;
        }
    }
    out.cut |= d.data.len() < header;
    let later_fragment = sequence & 15 != 0;
    if subtype & SUBTYPE_NO_DATA != 0 || fc & PROTECTED != 0 || later_fragment || out.cut {
        return;
    }
    if padded {
        header = header.next_multiple_of(4);
    }
    // The first subframe of an A-MSDU: destination, source, length.
    if aggregated {
        header += 14;
    }
    link::llc(out, d.behind(header), 0);
}

/// <https://www.radiotap.org>: length at 2, presence bits from 4; of the fields only the flags matter here.
pub(super) fn radiotap(out: &mut Footprint, d: Bytes) {
    let Some(len) = d.array(2).map(u16::from_le_bytes) else {
        out.cut = true;
        return;
    };
    let len = usize::from(len);
    if d.data.len() < len {
        out.cut = true;
        return;
    }
    if len < 8 {
        return;
    }
    let header = Bytes { data: &d.data[..len], ..d };
    plain(out, d.behind(len), radiotap_flags(header).is_some_and(|flags| flags & 0x20 != 0));
}

/// The flags field, which is the second; a timestamp may be before it.
fn radiotap_flags(d: Bytes) -> Option<u8> {
    let first = u32::from_le_bytes(d.array(4)?);
    let (mut present, mut at) = (first, 8);
    while present & 1 << 31 != 0 {
        present = u32::from_le_bytes(d.array(at)?);
        at += 4;
    }
    if first & 1 != 0 {
        at = at.next_multiple_of(8) + 8;
    }
    if first & 2 != 0 { d.u8(at) } else { None }
}

/// Behind a private header whose length is `len`.
fn after(out: &mut Footprint, d: Bytes, len: Option<[u8; 4]>, from: fn([u8; 4]) -> u32) {
    match len.map(|len| from(len) as usize) {
        Some(len) if len <= d.data.len() && len >= 8 => plain(out, d.behind(len), false),
        Some(8..) | None => out.cut = true,
        Some(_) => {}
    }
}

/// ARPHRD_IEEE80211_PRISM: drivers send either header under it, and the AVS header names its version.
pub(super) fn prism_or_avs(out: &mut Footprint, d: Bytes) {
    match d.array::<3>(0) {
        Some([0x80, 0x21, 0x10]) => avs(out, d),
        _ => prism(out, d),
    }
}

/// Prism monitoring header: message code, message length, in the sniffer's byte order (taken to be little-endian).
pub(super) fn prism(out: &mut Footprint, d: Bytes) {
    after(out, d, d.array(4), u32::from_le_bytes);
}

/// AVS monitoring header: version, length, big-endian.
pub(super) fn avs(out: &mut Footprint, d: Bytes) {
    after(out, d, d.array(4), u32::from_be_bytes);
}

/// Per-packet information: version, flags, length, and the link type of what follows.
pub(super) fn ppi(out: &mut Footprint, d: Bytes) {
    let (Some(len), Some(kind)) = (d.array(2).map(u16::from_le_bytes), d.array(4).map(u32::from_le_bytes))
    else {
        out.cut = true;
        return;
    };
    let len = usize::from(len);
    if len < 8 || kind == 192 {
        return;
    }
    if d.data.len() < len {
        out.cut = true;
        return;
    }
    let inner = d.behind(len);
    *out = frame(u16::try_from(kind).unwrap_or(u16::MAX), inner.data, inner.wire);
}
