//! Which radios and interfaces a recording is of, and raw records of radios as events of the log.
//!
//! Tracepoints of cfg80211 name the interface by its index and name, those of mac80211 the radio and the interface by name, neither the namespace: a radio's name is
//! unique on the machine, so it decides, and nl80211 says what belongs to what.

use super::{Point, place};
use crate::netlink::{self, NetnsRef, Radio};
use crate::wire;
use kpat_model::wifi::Slot;
use kpat_model::{BootNs, Context, FuncId, WifiEvent, WifiWhat};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Radios are asked for again at most so often.
const AGAIN: Duration = Duration::from_millis(500);

#[derive(Default)]
pub struct Radios {
    points: HashMap<u16, &'static Point>,
    watched: Vec<NetnsRef>,
    /// Others than those of the watched namespaces are left out.
    only: bool,
    /// Interfaces by name; empty: all.
    interfaces: Vec<String>,
    known: Vec<Radio>,
    asked: Option<Instant>,
}

impl Radios {
    pub fn new(
        points: &[&'static Point],
        watched: Vec<NetnsRef>,
        only: bool,
        interfaces: Vec<String>,
    ) -> Radios {
        let points = points.iter().map(|p| (p.function.id, *p)).collect();
        let mut new = Radios { points, watched, only, interfaces, known: Vec::new(), asked: None };
        new.ask();
        new
    }

    fn ask(&mut self) {
        if self.asked.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        self.asked = Some(Instant::now());
        self.known = self.watched.iter().flat_map(|n| netlink::radios(n).unwrap_or_default()).collect();
    }

    /// The radio that an event is of, and the index of its interface.
    fn of(&self, wiphy: &str, ifindex: u32, name: &str) -> Option<(&Radio, u32)> {
        let has = |r: &&Radio| {
            if !wiphy.is_empty() {
                r.name == wiphy
            } else {
                r.interfaces.iter().any(|i| i.0 == ifindex && i.1 == name)
            }
        };
        let radio = self.known.iter().find(has)?;
        let index = radio.interfaces.iter().find(|(_, n)| !name.is_empty() && n == name).map(|(i, _)| *i);
        Some((radio, if ifindex != 0 { ifindex } else { index.unwrap_or(0) }))
    }

    /// `None`: it is not of what is recorded, or not known to this version.
    pub fn event(&mut self, r: &wire::Radio) -> Option<WifiEvent> {
        let p = *self.points.get(&r.h.func)?;
        let (wiphy, name) = (text(&r.data[place::WIPHY..][..32]), text(&r.data[place::INTERFACE..][..16]));
        let number = |at: usize| u64::from_le_bytes(r.data[at..at + 8].try_into().unwrap_or_default());
        let ifindex = number(place::IFINDEX) as u32;
        if self.of(&wiphy, ifindex, &name).is_none() {
            self.ask();
        }
        let (netns, ifindex, wiphy) = match self.of(&wiphy, ifindex, &name) {
            Some((radio, ifindex)) => (radio.netns, ifindex, radio.name.clone()),
            None if self.only => return None,
            None => (0, ifindex, wiphy),
        };
        if !self.interfaces.is_empty() && !self.interfaces.contains(&name) {
            // A radio's own events belong to each of its interfaces.
            let of_radio = self.known.iter().find(|k| k.name == wiphy && name.is_empty());
            of_radio?.interfaces.iter().find(|(_, n)| self.interfaces.contains(n))?;
        }
        let value = |n: usize, at: usize| {
            let (size, signed) = p.numbers[n];
            let raw = number(at);
            if p.wire_order[n] {
                return (raw.swap_bytes() >> (64 - 8 * u32::from(size.clamp(1, 8)))) as i64;
            }
            let unused = 64 - 8 * u32::from(size.clamp(1, 8));
            if signed { ((raw << unused) as i64) >> unused } else { (raw << unused >> unused) as i64 }
        };
        let has = |slot: Slot| p.row.fields.iter().any(|(s, _)| *s == slot);
        let bytes = &r.data[place::TEXT..][..usize::from(r.text_len).min(place::MOST_TEXT)];
        let address: [u8; 6] = r.data[place::ADDRESS..][..6].try_into().unwrap_or_default();
        let mut e = WifiEvent {
            at: BootNs(r.h.ts as i64),
            ctx: Context::from_u8(r.ctx),
            pid: r.h.pid,
            point: FuncId(r.h.func),
            what: p.row.what,
            netns,
            ifindex,
            frequency: number(place::FREQUENCY) as u32,
            a: value(0, place::A),
            b: value(1, place::B),
            c: value(2, place::C),
            address: (has(Slot::Address) && address != [0; 6]).then_some(address),
            wiphy,
            text: if has(Slot::Text) { text(bytes) } else { String::new() },
        };
        if e.what == WifiWhat::AssocFrame {
            e.c = -1;
        }
        if has(Slot::Frame) {
            frame(&mut e, bytes);
        }
        Some(e)
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Of the body of a frame of BSS transition management (IEEE 802.11, 9.6.13.8 to 9.6.13.10): which, its mode, status or reason, and the BSSID to go to, 0: none.
/// `None`: it is another.
fn transition(body: &[u8]) -> Option<(i64, i64, i64)> {
    const QUERY: u8 = 6;
    const REQUEST: u8 = 7;
    const RESPONSE: u8 = 8;
    const NEIGHBOUR: u8 = 52;
    let [10, action @ QUERY..=RESPONSE, _, said, rest @ ..] = body else { return None };
    let bssid = |at: usize| {
        let bytes: Option<[u8; 6]> = rest.get(at..at + 6).and_then(|b| b.try_into().ok());
        bytes.map_or(0, |b| b.iter().fold(0, |n, byte| n << 8 | i64::from(*byte)))
    };
    let to = match *action {
        // Timer and interval, and what its mode says is there: duration of the termination, address of a page.
        REQUEST => {
            let mut at = 3 + if said & 0x08 != 0 { 12 } else { 0 };
            if said & 0x10 != 0 {
                at += 1 + usize::from(rest.get(at).copied().unwrap_or(0));
            }
            if rest.get(at) == Some(&NEIGHBOUR) { bssid(at + 2) } else { 0 }
        }
        // Where it is accepted.
        RESPONSE if *said == 0 => bssid(1),
        _ => 0,
    };
    Some((i64::from(*action), i64::from(*said), to))
}

/// What a management frame says: IEEE 802.11, 9.3.3.
fn frame(e: &mut WifiEvent, bytes: &[u8]) {
    const BODY: usize = 24;
    let half = |at: usize| Some(i64::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?)));
    let Some(control) = bytes.first().copied() else { return };
    e.address = bytes.get(16..22).and_then(|b| b.try_into().ok());
    let sent = matches!(e.what, WifiWhat::FrameSent | WifiWhat::FrameRequest);
    if control & 0xfc == 0xd0
        && let Some((action, b, c)) = transition(&bytes[BODY.min(bytes.len())..])
    {
        e.what = if sent { WifiWhat::TransitionSent } else { WifiWhat::TransitionReceived };
        // The other side: whom it is sent to, or who sent it.
        let other = if sent { 4..10 } else { 10..16 };
        e.address = bytes.get(other).and_then(|b| b.try_into().ok());
        (e.a, e.b, e.c) = (action, b, c);
        return;
    }
    let of = |what, reason: Option<i64>| (what, reason.unwrap_or(0), 0, 0);
    (e.what, e.a, e.b, e.c) = match (control & 0xfc, sent) {
        (0xb0, false) => (
            WifiWhat::AuthFrame,
            half(BODY).unwrap_or(0),
            half(BODY + 2).unwrap_or(0),
            half(BODY + 4).unwrap_or(-1),
        ),
        // Capabilities, and the status.
        (0x10 | 0x30, false) if e.what == WifiWhat::AssocFrame => {
            (WifiWhat::AssocFrame, 0, 0, half(BODY + 2).unwrap_or(-1))
        }
        (0xa0, true) => of(WifiWhat::DisassocSent, half(BODY)),
        (0xa0, false) => of(WifiWhat::DisassocReceived, half(BODY)),
        (0xc0, true) => of(WifiWhat::DeauthSent, half(BODY)),
        (0xc0, false) => of(WifiWhat::DeauthReceived, half(BODY)),
        (other, _) => (e.what, i64::from(other), 0, 0),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As hostapd 2.10 refuses an association whose keys it has forgotten (PMKID not valid).
    #[test]
    fn an_answer_to_an_association_has_its_status() {
        let event = |what| WifiEvent {
            at: BootNs(0),
            ctx: Context::Softirq,
            pid: 0,
            point: FuncId(0),
            what,
            netns: 0,
            ifindex: 4,
            frequency: 0,
            a: 0,
            b: 0,
            c: -1,
            address: None,
            wiphy: String::new(),
            text: String::new(),
        };
        let bytes = |control: u8| {
            let head = [control, 0, 0, 0, 2, 0, 0, 0, 2, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x10, 0];
            [&head[..], &[0x11, 0x04, 53, 0, 0, 0]].concat()
        };
        for control in [0x10, 0x30] {
            let mut e = event(WifiWhat::AssocFrame);
            frame(&mut e, &bytes(control));
            assert_eq!((e.what, e.c, e.address), (WifiWhat::AssocFrame, 53, Some([2, 0, 0, 0, 0, 0])));
        }
        // Where it could not be read.
        let mut e = event(WifiWhat::AssocFrame);
        frame(&mut e, &[]);
        assert_eq!(e.c, -1);
    }

    /// As hostapd 2.10 sends them, and wpa_supplicant 2.10 answers: BSS_TM_REQ with one neighbour; the answer accepts it; without one; refused.
    #[test]
    fn frames_of_a_transition_are_read() {
        let to = [2, 0, 0, 0, 1, 0];
        let neighbour = [52, 13, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 81, 6, 7];
        let request = |mode: u8, between: &[u8]| [&[10, 7, 1, mode, 0, 0, 1], between, &neighbour].concat();
        let named = 0x0200_0000_0100;
        assert_eq!(transition(&request(3, &[])), Some((7, 3, named)));
        assert_eq!(transition(&request(0x0b, &[0; 12])), Some((7, 0x0b, named)));
        assert_eq!(
            transition(&request(0x1b, &[&[0; 12][..], b"\x03http"[..4].as_ref()].concat())),
            Some((7, 0x1b, named))
        );
        assert_eq!(transition(&[10, 7, 1, 4, 50, 0, 255]), Some((7, 4, 0)));
        assert_eq!(transition(&[&[10, 8, 1, 0, 0][..], &to].concat()), Some((8, 0, named)));
        assert_eq!(transition(&[10, 8, 1, 7, 0]), Some((8, 7, 0)));
        // Others of its category, and another's; one that is cut off.
        for other in [&[10, 26, 1, 0, 0][..], &[4, 7, 1, 0, 0], &[10, 7, 1], &[]] {
            assert_eq!(transition(other), None);
        }
    }
}
