//! 802.11 data read with a key that the user has: WPA2 with a passphrase, or any 4-way handshake whose PMK is given (SAE, 802.1X).
//!
//! The keys of a session come from its handshake, so a capture that begins later shows nothing of it. A key is taken when it proves itself: message 2's MIC is made with
//! it. Frames are given back as they would be without encryption, but for the bit that says that they were. Not read: fast transition (its keys
//! come of another hierarchy), TKIP, WEP, GCMP, and keys of 256 bits.

mod aes;
mod hash;

use crate::decode;
use aes::Aes;
use kpat_model::Footprint;
use std::collections::HashMap;
use std::sync::Arc;

const PROTECTED: u8 = 0x40;
const EAPOL: [u8; 8] = [0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0x8e];
/// Of EAPOL-Key, from the EAPOL header on.
const NONCE: std::ops::Range<usize> = 17..49;
const MIC: std::ops::Range<usize> = 81..97;
const KEY_DATA: usize = 99;
/// Sessions that are remembered.
const MOST: usize = 4_096;

type Address = [u8; 6];

/// Keys that are given, for any network that they fit.
#[derive(Clone, Debug, Default)]
pub struct Secrets(Arc<Vec<[u8; 32]>>);

impl Secrets {
    /// Lines of `SSID:passphrase`, or of a PMK in 64 hexadecimal digits; empty ones and those that begin with # are passed over.
    ///
    /// *Errors*: the line that is neither.
    pub fn parse(text: &str) -> Result<Secrets, String> {
        let mut all = Vec::new();
        for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'))
        {
            let line = line.trim_end_matches('\r');
            let wrong = || {
                format!(
                    "line {} is neither SSID:passphrase (8 to 63 characters) nor 64 hexadecimal digits",
                    i + 1
                )
            };
            if let Some(key) = of_digits(line.trim()) {
                all.push(key);
                continue;
            }
            // A passphrase may have colons, an SSID with one has to be given by its PMK.
            let (ssid, passphrase) = line.split_once(':').ok_or_else(wrong)?;
            if !(8..=63).contains(&passphrase.len()) || ssid.len() > 32 {
                return Err(wrong());
            }
            all.push(hash::pmk(passphrase.as_bytes(), ssid.as_bytes()));
        }
        Ok(Secrets(Arc::new(all)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn of_digits(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut out = [0; 32];
    for (i, b) in out.iter_mut().enumerate() {
        *b = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(out)
}

/// Of one station at one access point.
#[derive(Default)]
struct Session {
    /// The access point's last nonce.
    nonce: Option<[u8; 32]>,
    /// Message 2, which waits for a nonce: from the EAPOL header on.
    second: Option<Vec<u8>>,
    kek: Option<[u8; 16]>,
    /// The newest key, and the one before it, which frames on their way still have.
    keys: Vec<[u8; 16]>,
}

/// Decodes a capture's frames in their order, encrypted ones with the keys that are given.
pub struct Plain {
    secrets: Secrets,
    /// By access point and station.
    sessions: HashMap<(Address, Address), Session>,
    /// Of an access point, by number.
    groups: HashMap<(Address, u8), [u8; 16]>,
    buffer: Vec<u8>,
    /// Frames that were read with a key, and encrypted ones that were not.
    pub read: u64,
    pub unread: u64,
}

/// The parts of an 802.11 data frame.
struct Data<'a> {
    frame: &'a [u8],
    header: usize,
    qos: Option<u8>,
}

impl Data<'_> {
    fn address(&self, n: usize) -> Address {
        let mut out = [0; 6];
        out.copy_from_slice(&self.frame[4 + 6 * n..10 + 6 * n]);
        out
    }

    fn protected(&self) -> bool {
        self.frame[1] & PROTECTED != 0
    }

    /// Access point and station.
    fn ends(&self) -> Option<(Address, Address)> {
        match self.frame[1] & 3 {
            1 => Some((self.address(0), self.address(1))),
            2 => Some((self.address(1), self.address(0))),
            _ => None,
        }
    }

    fn is_for_all(&self) -> bool {
        self.frame[4] & 1 != 0
    }
}

/// Where the 802.11 frame begins, and whether it has its check sequence at the end.
fn of_link(link_type: u16, data: &[u8]) -> Option<(usize, bool)> {
    match link_type {
        105 => Some((0, false)),
        127 => {
            let len = usize::from(u16::from_le_bytes([*data.get(2)?, *data.get(3)?]));
            let present = u32::from_le_bytes(data.get(4..8)?.try_into().ok()?);
            let (mut at, mut more) = (8, present);
            while more & 1 << 31 != 0 {
                more = u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?);
                at += 4;
            }
            if present & 1 != 0 {
                at = at.next_multiple_of(8) + 8;
            }
            let flags = if present & 2 != 0 { *data.get(at)? } else { 0 };
            // Padding between header and body: as it is only found in some drivers' captures, it is left as it is.
            (flags & 0x20 == 0 && len <= data.len()).then_some((len, flags & 0x10 != 0))
        }
        _ => None,
    }
}

fn data_frame(frame: &[u8]) -> Option<Data<'_>> {
    let [control, flags] = *frame.first_chunk::<2>()?;
    let (kind, subtype) = (control >> 2 & 3, control >> 4);
    if kind != 2 || subtype & 4 != 0 || flags & 3 == 3 || flags & 3 == 0 {
        return None;
    }
    let qos = (subtype & 8 != 0).then(|| frame.get(24).copied()).flatten();
    let header = 24 + if subtype & 8 != 0 { 2 + if flags & 0x80 != 0 { 4 } else { 0 } } else { 0 };
    (frame.len() > header).then_some(Data { frame, header, qos })
}

impl Plain {
    pub fn new(secrets: Secrets) -> Plain {
        let (sessions, groups) = (HashMap::new(), HashMap::new());
        Plain { secrets, sessions, groups, buffer: Vec::new(), read: 0, unread: 0 }
    }

    pub fn has_keys(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// As [`decode::frame`].
    pub fn frame(&mut self, link_type: u16, data: &[u8], len_wire: u32) -> Footprint {
        if self.secrets.is_empty() {
            return decode::frame(link_type, data, len_wire);
        }
        let found = of_link(link_type, data).and_then(|(at, fcs)| {
            let whole = data.len() == len_wire as usize;
            let end = data.len() - if fcs && whole { 4.min(data.len() - at) } else { 0 };
            data_frame(&data[at..end]).map(|d| (at, d, whole))
        });
        let Some((at, d, whole)) = found else { return decode::frame(link_type, data, len_wire) };
        if !d.protected() {
            let body = &d.frame[d.header..];
            if let (Some(key), Some(ends)) = (body.strip_prefix(&EAPOL[..]), d.ends()) {
                self.handshake(ends, key);
            }
            return decode::frame(link_type, data, len_wire);
        }
        let Some(body) = self.body(&d, whole) else {
            self.unread += 1;
            return decode::frame(link_type, data, len_wire);
        };
        self.read += 1;
        if let (Some(key), Some(ends)) = (body.strip_prefix(&EAPOL[..]), d.ends()) {
            self.handshake(ends, key);
        }
        self.buffer.clear();
        self.buffer.extend_from_slice(&data[..at + d.header]);
        self.buffer[at + 1] &= !PROTECTED;
        self.buffer.extend_from_slice(&body);
        // Less the header and the MIC of CCMP, and the check sequence if it was there.
        let shorter = (data.len() - self.buffer.len()) as u32;
        let len = if whole { self.buffer.len() as u32 } else { len_wire.saturating_sub(shorter.max(16)) };
        let mut out = decode::frame(link_type, &self.buffer, len);
        if let Some(wifi) = &mut out.wifi {
            wifi.frame_control |= u16::from(PROTECTED) << 8;
        }
        out
    }

    /// What is behind the header, if a key fits. `whole`: its MIC was captured, too.
    fn body(&self, d: &Data<'_>, whole: bool) -> Option<Vec<u8>> {
        let crypted = &d.frame[d.header..];
        let ccmp = crypted.first_chunk::<8>().filter(|c| c[3] & 0x20 != 0)?;
        let from_station = d.frame[1] & 3 == 1;
        let keys: Vec<[u8; 16]> = if d.is_for_all() && !from_station {
            self.groups.get(&(d.address(1), ccmp[3] >> 6)).copied().into_iter().collect()
        } else {
            self.sessions.get(&d.ends()?).map(|s| s.keys.clone()).unwrap_or_default()
        };
        let (text, mic) = match crypted.len().checked_sub(16).filter(|_| whole) {
            Some(len) => (&crypted[8..8 + len], crypted[8 + len..].first_chunk::<8>()),
            None => (&crypted[8..], None),
        };
        let tid = d.qos.map_or(0, |q| q & 15);
        let mut nonce = [0; 13];
        nonce[0] = tid;
        nonce[1..7].copy_from_slice(&d.address(1));
        nonce[7..].copy_from_slice(&[ccmp[7], ccmp[6], ccmp[5], ccmp[4], ccmp[1], ccmp[0]]);
        let mut aad = Vec::with_capacity(24);
        // Retry, power management and more data change on the way, the subtype's low bits are not covered.
        let kept = if d.qos.is_some() { 0x47 } else { 0xc7 };
        aad.extend([d.frame[0] & 0x8f, (d.frame[1] & kept) | PROTECTED]);
        aad.extend(&d.frame[4..22]);
        aad.extend([d.frame[22] & 15, 0]);
        if d.qos.is_some() {
            aad.extend([tid, 0]);
        }
        keys.iter().rev().find_map(|key| {
            let mut out = text.to_vec();
            let fits = Aes::new(key).ccm(&nonce, &aad, &mut out, mic);
            // Where the MIC is cut off, what every 802.11 body begins with has to do; A-MSDU has a header before it.
            (fits && (mic.is_some() || out.starts_with(&EAPOL[..3]) || out.get(14..17) == Some(&EAPOL[..3])))
                .then_some(out)
        })
    }

    /// `key`: from the EAPOL header on.
    fn handshake(&mut self, ends: (Address, Address), key: &[u8]) {
        let Some(len) = key.get(2..4).map(|l| usize::from(u16::from_be_bytes([l[0], l[1]])) + 4) else {
            return;
        };
        let Some(key) =
            key.get(..len.min(key.len())).filter(|k| k.len() >= KEY_DATA && k[1] == 3 && k.len() == len)
        else {
            return;
        };
        let info = u16::from_be_bytes([key[5], key[6]]);
        let (pairwise, acknowledge, mic) = (info & 8 != 0, info & 0x80 != 0, info & 0x100 != 0);
        if self.sessions.len() >= MOST && !self.sessions.contains_key(&ends) {
            self.sessions.clear();
        }
        let s = self.sessions.entry(ends).or_default();
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&key[NONCE]);
        match (pairwise, acknowledge, mic) {
            (true, true, false) => (s.nonce, s.second) = (Some(nonce), None),
            // Message 2 has a nonce, message 4 as a rule none.
            (true, false, true) if nonce != [0; 32] && info & 0x200 == 0 => s.second = Some(key.to_vec()),
            // Message 3 has the nonce of message 1, in case that is missing.
            (true, true, true) => s.nonce = Some(nonce),
            _ => {}
        }
        if let (Some(ours), Some(second)) = (s.nonce, s.second.as_deref())
            && let Some(made) = self.secrets.0.iter().find_map(|pmk| derive(pmk, ends, &ours, second))
        {
            let (mut kek, mut temporal) = ([0; 16], [0; 16]);
            kek.copy_from_slice(&made[16..32]);
            temporal.copy_from_slice(&made[32..]);
            s.kek = Some(kek);
            s.second = None;
            if s.keys.last() != Some(&temporal) {
                s.keys.push(temporal);
                if s.keys.len() > 2 {
                    s.keys.remove(0);
                }
            }
        }
        // Message 3, and the first of a handshake of the group, have the group's key.
        let encrypted = info & 0x1000 != 0;
        if let Some(kek) = s.kek.filter(|_| acknowledge && mic && encrypted)
            && let Some(data) = Aes::new(&kek).unwrap(&key[KEY_DATA..])
            && let Some((number, group)) = group_key(&data)
        {
            self.groups.insert((ends.0, number), group);
        }
    }
}

/// KCK, KEK and temporal key, if this PMK made message 2.
fn derive(
    pmk: &[u8; 32],
    (ap, station): (Address, Address),
    ours: &[u8; 32],
    second: &[u8],
) -> Option<[u8; 48]> {
    let theirs = &second[NONCE];
    let (low, high) = if ap < station { (ap, station) } else { (station, ap) };
    let (first, last) = if &ours[..] < theirs { (&ours[..], theirs) } else { (theirs, &ours[..]) };
    let context = [&low[..], &high[..], first, last].concat();
    let mut blank = second.to_vec();
    blank[MIC].fill(0);
    // Version 2 of the key descriptor is WPA2's; 3, and 0 of SAE, have keys by SHA-256 and MICs by AES.
    let version = second[6] & 7;
    let made = hash::ptk(pmk, &context, version != 2);
    let mut kck = [0; 16];
    kck.copy_from_slice(&made[..16]);
    let mic = match version {
        2 => hash::hmac::<hash::Sha1>(&kck, &[&blank])[..16].to_vec(),
        0 | 3 => Aes::new(&kck).cmac(&blank).to_vec(),
        _ => return None,
    };
    (mic == second[MIC]).then_some(made)
}

/// Number and key of the KDE that has the group's.
fn group_key(mut data: &[u8]) -> Option<(u8, [u8; 16])> {
    while let [kind, len, rest @ ..] = data {
        let body = rest.get(..usize::from(*len))?;
        if *kind == 0xdd && body.starts_with(&[0, 0x0f, 0xac, 1]) {
            return Some((body.get(4)? & 3, body.get(6..22)?.try_into().ok()?));
        }
        data = &rest[usize::from(*len)..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines() {
        assert!(Secrets::parse("# none\n\n").is_ok_and(|s| s.is_empty()));
        let by_name = Secrets::parse("IEEE:password\n").unwrap();
        let by_key =
            Secrets::parse("f42c6fc52df0ebef9ebb4b90b38a5f902e83fe1b135a70e23aed762e9710a12e").unwrap();
        assert_eq!(by_name.0, by_key.0);
        for wrong in ["network", "IEEE:short", "f42c"] {
            assert!(Secrets::parse(wrong).unwrap_err().contains("line 1"), "{wrong}");
        }
    }

    /// Any bytes are survived.
    #[test]
    fn noise() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let mut plain = Plain::new(Secrets::parse("IEEE:password").unwrap());
        for round in 0..200_000 {
            let mut data: Vec<u8> = (0..next() % 160).map(|_| next() as u8).collect();
            if let [a, b, ..] = &mut data[..] {
                (*a, *b) = (0x08 | *a & 0x80, *b & 0x43 | 1 << (round & 1));
            }
            let qos = data.first().is_some_and(|a| a & 0x80 != 0);
            let header = if qos { 26 } else { 24 };
            if round % 3 == 0 && data.len() > header + 20 {
                data[1] &= !PROTECTED;
                data[header..header + 8].copy_from_slice(&EAPOL);
                let len = (data.len() - header - 12) as u16;
                data[header + 9] = 3;
                data[header + 10..header + 12].copy_from_slice(&len.to_be_bytes());
            }
            let len = data.len() as u32 + (next() % 3) as u32;
            plain.frame(105, &data, len);
        }
    }
}
