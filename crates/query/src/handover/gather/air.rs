//! Frames that sniffers heard of a handover: each beside the kernel's mark of the same thing, with the difference of their times; frames that the kernel has
//! no mark of, as probe requests, are marks of their own. Phases begin by the kernel's clock: a frame's time has the bound of
//! its capture's.

use super::align::aligned;
use crate::error::Result;
use crate::handover::machine::Handover;
use crate::handover::mark::{Mark, Source, What};
use crate::handover::open::SENT;
use crate::store::Store;
use kpat_model::link_address::parse;
use kpat_store::NULL;
use kpat_store::tables::FrameRow;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Frames before and after it that are looked at.
const AROUND_NS: i64 = 1_000_000_000;
/// Frame and mark of one thing are no farther apart.
const APART_NS: i64 = 100_000_000;
/// What a frame or a mark without the other costs: two of them more than the farthest pair.
const ALONE_NS: i64 = APART_NS / 4 * 3;
/// Frames of one handover.
const MOST: usize = 4_096;
/// Pairs that show that two clocks are one.
const AGREE: usize = 3;
const EAPOL: i32 = 0x888e;
const ALL: [u8; 6] = [0xff; 6];

/// What both a frame and a mark can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::handover) enum Sort {
    Probe,
    Auth {
        sent: bool,
    },
    Assoc {
        sent: bool,
    },
    Gone {
        sent: bool,
    },
    Key {
        sent: bool,
    },
    /// Of an open network, or read with its key.
    Dhcp {
        sent: bool,
    },
    Arp {
        sent: bool,
    },
}

/// A frame of the station, or to it.
#[derive(Clone, Debug)]
pub(in crate::handover) struct Heard {
    pub at_ns: i64,
    pub capture: i32,
    pub number: i64,
    pub sort: Sort,
    pub peer: [u8; 6],
    pub again: bool,
    /// Sequence control: with transmitter and kind it is one frame, whoever heard it.
    pub sequence: i32,
}

fn is_dhcp(port: i32) -> bool {
    matches!(port, 67 | 68)
}

fn sort_of(mark: &Mark) -> Option<Sort> {
    Some(match mark.what {
        What::ProbeRequest { .. } => Sort::Probe,
        What::AuthStart { .. } => Sort::Auth { sent: true },
        What::AuthReply { .. } => Sort::Auth { sent: false },
        What::AssocStart { .. } => Sort::Assoc { sent: true },
        What::AssocReply { .. } => Sort::Assoc { sent: false },
        What::Deauthenticated { own, .. } => Sort::Gone { sent: own },
        What::Unprotected { .. } => Sort::Gone { sent: false },
        What::Dhcp(m) => Sort::Dhcp { sent: !m.is_answer() },
        What::ArpRequest { sent: true } => Sort::Arp { sent: true },
        What::ArpReply { sent: false } => Sort::Arp { sent: false },
        What::Eap { sent, .. } => Sort::Key { sent },
        What::KeyFrame(_) => Sort::Key { sent: mark.text.as_deref() == Some(SENT) },
        _ => return None,
    })
}

/// What a frame is to the station of that address.
fn heard(row: &FrameRow, station: [u8; 6]) -> Option<Heard> {
    let control = row.wifi_fc?;
    let address = |a: &Option<String>| a.as_deref().and_then(parse);
    let (to, from) = (address(&row.wifi_ra)?, address(&row.wifi_ta).unwrap_or_default());
    let sent = from == station;
    if !sent && to != station && to != ALL {
        return None;
    }
    let (kind, subtype) = (control >> 2 & 3, control >> 4 & 15);
    let sort = match (kind, subtype) {
        (0, 4) if sent => Sort::Probe,
        (0, 11) if to != ALL => Sort::Auth { sent },
        (0, 0 | 2) if sent => Sort::Assoc { sent },
        (0, 1 | 3) if !sent => Sort::Assoc { sent },
        (0, 10 | 12) => Sort::Gone { sent },
        (2, _) if row.ethertype == Some(EAPOL) => Sort::Key { sent },
        // A broadcast of the station comes back from the access point: that is no answer.
        (2, _) if row.sport == Some(if sent { 68 } else { 67 }) && row.dport.is_some_and(is_dhcp) => {
            Sort::Dhcp { sent }
        }
        (2, _) if row.arp_op == Some(if sent { 1 } else { 2 }) => Sort::Arp { sent },
        _ => return None,
    };
    Some(Heard {
        at_ns: row.boot_ns?,
        capture: row.capture_id,
        number: row.number,
        sort,
        peer: if sent { to } else { from },
        again: control & 0x0800 != 0,
        sequence: row.wifi_seq.unwrap_or(-1),
    })
}

/// The log has frames of the air whose time by the device's clock is not known.
pub(super) fn by_wall(store: &Store) -> Result<bool> {
    let table = store.table::<FrameRow>()?;
    for group in 0..table.groups() {
        let (boot, control) = (table.ints(group, "boot_ns")?, table.ints(group, "wifi_fc")?);
        if boot.iter().zip(&control).any(|(b, c)| *b == NULL && *c != NULL) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where a frame without a mark of the kernel is one of the handover: as long before it as is looked at, but not in the time of the one before, nor of the next one.
/// `before_ns`: the end of the one before.
fn own_time(begin_ns: i64, end_ns: i64, before_ns: Option<i64>) -> RangeInclusive<i64> {
    let free_ns = before_ns.map_or(i64::MIN, |end| end.saturating_add(APART_NS).min(begin_ns));
    begin_ns.saturating_sub(AROUND_NS).max(free_ns)..=end_ns.saturating_add(APART_NS)
}

/// Adds what was heard to the handover's marks. `by_wall`, `before_ns`: see there.
pub(super) fn add(store: &Store, h: &mut Handover, by_wall: bool, before_ns: Option<i64>) -> Result<()> {
    let own = |d: &&kpat_store::tables::DeviceRow| h.is_of(d.ifindex) && h.netns.is_none_or(|n| n == d.netns);
    let addresses = store.devices.iter().rev().filter(own).filter_map(|d| parse(&d.mac));
    let Some(station) = addresses.into_iter().find(|s| *s != [0; 6]) else { return Ok(()) };
    let range = h.begin_ns.saturating_sub(AROUND_NS)..=h.end_ns.saturating_add(AROUND_NS);
    let table = store.table::<FrameRow>()?;
    let own = store.own_clock();
    let mut groups = table.groups_where("boot_ns", &range);
    if let Some(own) = own.filter(|_| by_wall) {
        // It may have been set back meanwhile.
        let (from, to) = (own.wall(*range.start()), own.wall(*range.end()));
        let by_wall = from.min(to)..=from.max(to);
        groups.extend(table.groups_where("wall_ns", &by_wall));
        groups.sort_unstable();
        groups.dedup();
    }
    let mut found = Vec::new();
    table.each(groups, |mut row: FrameRow| {
        row.boot_ns = row.boot_ns.or(own.map(|own| own.boot(row.wall_ns)));
        if found.len() < MOST && row.boot_ns.is_some_and(|at| range.contains(&at)) {
            // Everybody's farewell is the old access point's, or nothing to this station.
            let known = |f: &Heard| {
                row.wifi_ra.as_deref() != Some("ff:ff:ff:ff:ff:ff")
                    || matches!(f.sort, Sort::Probe | Sort::Dhcp { .. } | Sort::Arp { .. })
                    || Some(f.peer) == h.from.bssid
            };
            found.extend(heard(&row, station).filter(known));
        }
    })?;
    found.sort_by_key(|f| f.at_ns);
    once(&mut found);
    let mut marks = h.marks.clone();
    pair(&mut marks, &found, own_time(h.begin_ns, h.end_ns, before_ns));
    // Of a capture whose clock is not known, the device's own wall clock is tried: right if what both saw agrees.
    if by_wall && marks.iter().filter(|m| m.frame.is_some()).count() < AGREE {
        return Ok(());
    }
    let frame = |m: &mut Mark| {
        if let Some(same) = marks.iter().find(|x| x.source == m.source && x.what == m.what) {
            m.frame = same.frame;
        }
    };
    h.spans.iter_mut().for_each(|s| frame(&mut s.begin));
    let named = [&mut h.stop, &mut h.link_down, &mut h.link_up, &mut h.first_auth];
    named.into_iter().flatten().for_each(frame);
    frame(&mut h.begin);
    frame(&mut h.end);
    h.marks = marks;
    Ok(())
}

/// What makes frames one: kind, peer, sequence control, and whether it was sent again.
type Identity = (Sort, [u8; 6], i32, bool);

/// Of a frame that several sniffers heard the first stays. In order of time.
pub(in crate::handover) fn once(frames: &mut Vec<Heard>) {
    let mut heard: HashMap<Identity, (i64, i32)> = HashMap::new();
    frames.retain(|f| {
        let of = (f.sort, f.peer, f.sequence, f.again);
        let same =
            heard.get(&of).is_some_and(|(at, capture)| f.capture != *capture && f.at_ns - at <= APART_NS);
        if !same {
            heard.insert(of, (f.at_ns, f.capture));
        }
        !same || f.sequence < 0
    });
}

/// Gives each mark its frame, in their order and nearest in time, and each of the other frames within `own` a mark. Both are in order of time.
pub(in crate::handover) fn pair(marks: &mut Vec<Mark>, frames: &[Heard], own: RangeInclusive<i64>) {
    let mut taken = vec![false; frames.len()];
    let mut of_sort: HashMap<Sort, (Vec<usize>, Vec<usize>)> = HashMap::new();
    for (i, m) in marks.iter().enumerate() {
        if let Some(sort) = sort_of(m) {
            of_sort.entry(sort).or_default().0.push(i);
        }
    }
    for (i, f) in frames.iter().enumerate() {
        if let Some((_, heard)) = of_sort.get_mut(&f.sort) {
            heard.push(i);
        }
    }
    for (seen, heard) in of_sort.values() {
        let apart = |i: usize, j: usize| {
            let (m, f) = (&marks[seen[i]], &frames[heard[j]]);
            let ns = (f.at_ns - m.at_ns).abs();
            // One that was sent again is not the first.
            let again = if f.again { APART_NS / 4 } else { 0 };
            (ns <= APART_NS && m.bssid.is_none_or(|b| b == f.peer)).then_some(ns + again)
        };
        for (i, j) in aligned(seen.len(), heard.len(), ALONE_NS, apart) {
            let f = &frames[heard[j]];
            taken[heard[j]] = true;
            marks[seen[i]].frame = Some((f.capture, f.number, f.at_ns));
        }
    }
    let rest =
        frames.iter().zip(taken).filter(|(f, taken)| !taken && own.contains(&f.at_ns)).map(|(f, _)| alone(f));
    let mut all: Vec<Mark> = marks.drain(..).chain(rest).collect();
    all.sort_by_key(|m| m.at_ns);
    *marks = all;
}

fn alone(f: &Heard) -> Mark {
    let (what, words) = match f.sort {
        Sort::Probe => (What::ProbeRequest { mhz: 0 }, None),
        Sort::Auth { sent: true } => (What::Other, Some("authentication frame sent")),
        Sort::Auth { .. } => (What::Other, Some("authentication frame received")),
        Sort::Assoc { sent: true } => (What::Other, Some("association frame sent")),
        Sort::Assoc { .. } => (What::Other, Some("association frame received")),
        Sort::Gone { sent: true } => (What::Other, Some("deauthentication frame sent")),
        Sort::Gone { .. } => (What::Other, Some("deauthentication frame received")),
        Sort::Key { sent: true } => (What::Other, Some("EAPOL frame sent")),
        Sort::Key { .. } => (What::Other, Some("EAPOL frame received")),
        Sort::Dhcp { sent: true } => (What::Other, Some("DHCP frame sent")),
        Sort::Dhcp { .. } => (What::Other, Some("DHCP frame received")),
        Sort::Arp { sent: true } => (What::Other, Some("ARP frame sent")),
        Sort::Arp { .. } => (What::Other, Some("ARP frame received")),
    };
    let mut mark = Mark::new(f.at_ns, what, Source::Frame { capture: f.capture, number: f.number });
    mark.bssid = Some(f.peer).filter(|p| *p != ALL);
    mark.text = words.map(|w| if f.again { format!("{w} again").into() } else { w.into() });
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As recorded on 7.2: the frames of a fast transition 0.77 s after a handover's end, which is also when the one before it ended.
    #[test]
    fn a_frame_of_the_next_handover_is_none_of_this_one() {
        const MS: i64 = 1_000_000;
        let auth = |ms: i64, sent| Heard {
            at_ns: ms * MS,
            capture: 0,
            number: ms,
            sort: Sort::Auth { sent },
            peer: [2, 0, 0, 0, 0, 0],
            again: false,
            sequence: ms as i32,
        };
        let frames = [auth(112, true), auth(8_005, false), auth(8_783, true), auth(8_890, false)];
        let shown = |begin: i64, end: i64, before: Option<i64>| {
            let mut marks = Vec::new();
            pair(&mut marks, &frames, own_time(begin * MS, end * MS, before.map(|ms| ms * MS)));
            marks.iter().map(|m| m.at_ns / MS).collect::<Vec<_>>()
        };
        assert_eq!(shown(0, 8_010, None), [112, 8_005]);
        assert_eq!(shown(8_558, 9_979, Some(8_010)), [8_783, 8_890]);
        // What was heard before the first sign of it is.
        assert_eq!(shown(8_558, 9_979, None), [8_005, 8_783, 8_890]);
    }
}
