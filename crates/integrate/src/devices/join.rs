//! Frames that one kernel sent and another received.
//!
//! Who sent and who received says each device's own association, never the order of the logs. Behind a host that
//! forwards, a frame may be recognised by kernels that are further away as well: of several senders the last one before
//! the frame is the one whose frame it is, of several receivers the first. Where the clocks' bounds do not tell them
//! apart the frame's link addresses may; else nothing is concluded.

use crate::error::Result;
use kpat_query::{SURE_PERCENT, Store, side};
use kpat_store::tables::*;
use kpat_store::{CrossingCounts, TableWriter};
use std::collections::HashSet;
use std::path::PathBuf;

/// A device's association with the frame, on the capture's clock.
#[derive(Clone)]
struct Seen {
    device: usize,
    row: AssociationRow,
    /// When this kernel had it, and how sure.
    at: i64,
    bound: i64,
}

/// How a frame fared.
enum Fate {
    OneKernel,
    Undirected,
    Ambiguous,
    Crossed,
}

/// Writes the crossings of all frames.
///
/// Memory: the associations of all devices (100 bytes each).
pub(super) fn join(folders: &[PathBuf], out: &mut TableWriter<CrossingRow>) -> Result<CrossingCounts> {
    let stores = folders.iter().map(|f| Store::open(f)).collect::<kpat_query::Result<Vec<_>>>()?;
    let mut macs: Vec<HashSet<String>> = Vec::new();
    let mut all: Vec<(usize, AssociationRow)> = Vec::new();
    for (device, store) in stores.iter().enumerate() {
        let own = store.all::<DeviceRow>()?.into_iter().map(|d| d.mac.to_lowercase());
        macs.push(own.filter(|m| !m.is_empty() && m != "00:00:00:00:00:00").collect());
        all.extend(store.all::<AssociationRow>()?.into_iter().map(|a| (device, a)));
    }
    let place = |a: &AssociationRow| (a.capture_id, a.number);
    all.sort_by_key(|(device, a)| (place(a), *device, -a.confidence, a.packet_id));
    let mut counts = CrossingCounts::default();
    let Some(first) = stores.first() else { return Ok(counts) };
    let frames = first.table::<FrameRow>()?;
    let mut rows: Vec<CrossingRow> = Vec::new();
    for group in 0..frames.groups() {
        frames.each(vec![group], |frame: FrameRow| {
            counts.frames += 1;
            let here = (frame.capture_id, frame.number);
            let from = all.partition_point(|(_, a)| place(a) < here);
            let seen: Vec<Seen> = all[from..]
                .iter()
                .take_while(|(_, a)| place(a) == here)
                .map(|(device, a)| seen(&stores[*device], *device, a, frame.wall_ns))
                .collect();
            if seen.is_empty() {
                counts.unmatched += 1;
                return;
            }
            let before = rows.len();
            match cross(&frame, &seen, &macs, &mut rows) {
                Fate::OneKernel => counts.one_kernel += 1,
                Fate::Undirected => counts.undirected += 1,
                Fate::Ambiguous => counts.ambiguous += 1,
                Fate::Crossed => counts.crossed += 1,
            }
            counts.rows += (rows.len() - before) as u64;
        })?;
        for row in rows.drain(..) {
            out.push(&row)?;
        }
    }
    Ok(counts)
}

fn seen(store: &Store, device: usize, row: &AssociationRow, wall: i64) -> Seen {
    let drift = store.clock_at(row.capture_id, row.number, wall).map_or(0.0, |c| c.drift_ppb as f64 / 1e9);
    // The residual is by the device's clock; on the capture's it is longer or shorter by the drift.
    let residual = row.residual_ns as f64 / (1.0 + drift);
    Seen { device, row: row.clone(), at: wall.saturating_sub(residual.round() as i64), bound: row.bound_ns }
}

fn cross(frame: &FrameRow, seen: &[Seen], macs: &[HashSet<String>], out: &mut Vec<CrossingRow>) -> Fate {
    if seen.iter().all(|s| s.device == seen[0].device) {
        return Fate::OneKernel;
    }
    let owns = |s: &Seen, mac: &Option<String>| mac.as_ref().is_some_and(|m| macs[s.device].contains(m));
    // Left open at which of its devices it was; that it left this kernel, or came to it, the link addresses say.
    let way = |s: &Seen| match (s.row.side, owns(s, &frame.mac_src), owns(s, &frame.mac_dst)) {
        (side::UNKNOWN, true, false) => side::TRANSMITTED,
        (side::UNKNOWN, false, true) => side::RECEIVED,
        (known, ..) => known,
    };
    let of_side = |wanted: i32| seen.iter().filter(|s| way(s) == wanted).cloned().collect::<Vec<_>>();
    let (senders, receivers) = (of_side(side::TRANSMITTED), of_side(side::RECEIVED));
    let apart = senders.iter().any(|s| receivers.iter().any(|r| r.device != s.device));
    if !apart {
        return Fate::Undirected;
    }
    let wall = frame.wall_ns;
    // A sniffer on the device itself has its tap within the kernel, on the wrong side of what the probes see: the owner
    // of the link address may always be.
    let before = |s: &Seen| s.at - s.bound <= wall || owns(s, &frame.mac_src);
    let Some(from) = nearest(possible(senders, before), 1, &|s| owns(s, &frame.mac_src)) else {
        return Fate::Ambiguous;
    };
    let mut others = receivers;
    others.retain(|r| r.device != from.device);
    let others = possible(others, |r| r.at + r.bound >= wall || owns(r, &frame.mac_dst));
    if others.is_empty() {
        return Fate::Undirected;
    }
    let to = if is_group(frame.mac_dst.as_deref()) {
        // For all that listen: each device that received it, by itself.
        let mut devices: Vec<usize> = others.iter().map(|r| r.device).collect();
        devices.dedup();
        let of = |d: usize| others.iter().filter(|r| r.device == d).cloned().collect();
        devices.into_iter().filter_map(|d| nearest(of(d), -1, &|_| false)).collect()
    } else {
        Vec::from_iter(nearest(others, -1, &|r| owns(r, &frame.mac_dst)))
    };
    let sure: Vec<&Seen> = to.iter().filter(|t| t.row.confidence >= SURE_PERCENT).collect();
    if from.row.confidence < SURE_PERCENT || sure.is_empty() {
        return Fate::Ambiguous;
    }
    out.extend(sure.into_iter().map(|to| row(frame, &from, to)));
    Fate::Crossed
}

/// Those that may be; all, where none may.
fn possible(all: Vec<Seen>, may: impl Fn(&Seen) -> bool) -> Vec<Seen> {
    let kept: Vec<Seen> = all.iter().filter(|s| may(s)).cloned().collect();
    if kept.is_empty() { all } else { kept }
}

/// The last (`sign` 1) or first (-1) by time, if it is certain or its device owns the link address; `None`: not certain,
/// or two packets of one device fit equally well.
fn nearest(mut all: Vec<Seen>, sign: i64, owner: &dyn Fn(&Seen) -> bool) -> Option<Seen> {
    all.sort_by_key(|s| -sign * s.at);
    let best = all.first()?.clone();
    let mut close: Vec<Seen> = all
        .into_iter()
        .filter(|s| (best.at - s.at).abs() <= best.bound.saturating_add(s.bound) || s.device == best.device)
        .collect();
    if close.iter().any(|s| s.device != best.device) {
        close.retain(|s| owner(s));
    }
    let device = close.first()?.device;
    if close.iter().any(|s| s.device != device) {
        return None;
    }
    close.sort_by_key(|s| -s.row.confidence);
    match close.as_slice() {
        [a, b, ..] if a.row.confidence == b.row.confidence && a.row.packet_id != b.row.packet_id => None,
        [a, ..] => Some(a.clone()),
        [] => None,
    }
}

/// Broadcast or multicast on the link.
fn is_group(mac: Option<&str>) -> bool {
    mac.and_then(|m| u8::from_str_radix(m.get(..2)?, 16).ok()).is_some_and(|first| first & 1 == 1)
}

fn row(frame: &FrameRow, from: &Seen, to: &Seen) -> CrossingRow {
    let worse = if to.row.confidence < from.row.confidence { to } else { from };
    CrossingRow {
        from_device: from.device as i32,
        from_packet_id: from.row.packet_id,
        to_device: to.device as i32,
        to_packet_id: to.row.packet_id,
        capture_id: frame.capture_id,
        number: frame.number,
        left_ns: from.row.kernel_ns,
        wall_ns: frame.wall_ns,
        arrived_ns: to.row.kernel_ns,
        left_wall_ns: from.at,
        left_bound_ns: from.bound,
        arrived_wall_ns: to.at,
        arrived_bound_ns: to.bound,
        flight_ns: to.at.saturating_sub(from.at),
        flight_bound_ns: from.bound.saturating_add(to.bound),
        key: worse.row.key,
        confidence: worse.row.confidence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: i64 = 1_000_000;
    const MACS: [&str; 3] = ["02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"];

    /// Device (its packet has the same number), side, time, confidence.
    fn saw(device: usize, side: i32, at: i64, confidence: i32) -> Seen {
        let row = AssociationRow { packet_id: device as i64, side, confidence, ..AssociationRow::default() };
        Seen { device, row, at, bound: 100 }
    }

    fn check(seen: &[Seen], macs: [&str; 2], want: &[(i32, i32)]) {
        let frame = FrameRow {
            wall_ns: WALL,
            mac_src: Some(macs[0].to_owned()),
            mac_dst: Some(macs[1].to_owned()),
            ..FrameRow::default()
        };
        let own: Vec<HashSet<String>> = MACS.iter().map(|m| HashSet::from([(*m).to_owned()])).collect();
        let mut rows = Vec::new();
        let fate = cross(&frame, seen, &own, &mut rows);
        let got: Vec<(i32, i32)> = rows.iter().map(|r| (r.from_device, r.to_device)).collect();
        assert_eq!(got, want);
        assert_eq!(matches!(fate, Fate::Crossed), !want.is_empty());
    }

    #[test]
    fn the_nearest_hop_is_taken() {
        let (sent, got) = (side::TRANSMITTED, side::RECEIVED);
        let none = ["02:00:00:00:00:77", "02:00:00:00:00:78"];
        let two = [saw(0, sent, WALL - 50_000, 99), saw(1, got, WALL + 50_000, 95)];
        check(&two, none, &[(0, 1)]);
        // The order of the logs says nothing.
        check(&[saw(0, got, WALL + 900, 99), saw(1, sent, WALL - 900, 99)], none, &[(1, 0)]);
        // Device 1 forwards from 0 to 2: before it ...
        let before =
            [saw(0, sent, WALL - 9_000, 99), saw(1, got, WALL + 9_000, 99), saw(2, got, WALL + 50_000, 99)];
        check(&before, none, &[(0, 1)]);
        // ... and behind it, where its own receiving lies before the frame.
        let behind = [
            saw(0, sent, WALL - 90_000, 99),
            saw(1, got, WALL - 50_000, 99),
            saw(1, sent, WALL - 9_000, 99),
            saw(2, got, WALL + 9_000, 99),
        ];
        check(&behind, none, &[(1, 2)]);
        // Bounds leave it open: the link address knows, or nobody.
        let close =
            [saw(0, sent, WALL - 1_050, 99), saw(1, sent, WALL - 1_000, 99), saw(2, got, WALL + 9_000, 99)];
        check(&close, [MACS[0], MACS[2]], &[(0, 2)]);
        check(&close, [MACS[1], MACS[2]], &[(1, 2)]);
        check(&close, none, &[]);
    }

    /// The tap is behind the first probe of the receiver, and before the last one of the sender.
    #[test]
    fn a_sniffer_on_the_device_itself_is_no_reason_to_take_the_next_one() {
        let (sent, got) = (side::TRANSMITTED, side::RECEIVED);
        let macs = [MACS[0], MACS[1]];
        let at_receiver =
            [saw(0, sent, WALL - 9_000, 99), saw(1, got, WALL - 900, 99), saw(2, got, WALL + 9_000, 99)];
        check(&at_receiver, macs, &[(0, 1)]);
        let at_sender =
            [saw(2, sent, WALL - 90_000, 99), saw(0, sent, WALL + 900, 99), saw(1, got, WALL + 9_000, 99)];
        check(&at_sender, macs, &[(0, 1)]);
    }

    #[test]
    fn what_is_not_sure_is_no_crossing() {
        let (sent, got) = (side::TRANSMITTED, side::RECEIVED);
        let macs = [MACS[0], MACS[1]];
        check(&[saw(0, sent, WALL - 900, 40), saw(1, got, WALL + 900, 99)], macs, &[]);
        check(&[saw(0, sent, WALL - 900, 99), saw(1, got, WALL + 900, 40)], macs, &[]);
        // Left open at which of a kernel's devices it was recorded; whose source address it has left that kernel.
        let open = [saw(0, side::UNKNOWN, WALL - 900, 99), saw(1, got, WALL + 900, 99)];
        check(&open, ["02:00:00:00:00:77", "02:00:00:00:00:78"], &[]);
        check(&open, macs, &[(0, 1)]);
        check(&[saw(0, got, WALL + 800, 99), saw(1, got, WALL + 900, 99)], macs, &[]);
        let mut second = saw(1, got, WALL + 900, 99);
        second.row.packet_id = 77;
        check(&[saw(0, sent, WALL - 900, 99), saw(1, got, WALL + 900, 99), second], macs, &[]);
    }

    #[test]
    fn a_broadcast_arrives_at_all() {
        let (sent, got) = (side::TRANSMITTED, side::RECEIVED);
        let seen =
            [saw(0, sent, WALL - 900, 99), saw(1, got, WALL + 900, 99), saw(2, got, WALL + 90_000, 99)];
        check(&seen, [MACS[0], "ff:ff:ff:ff:ff:ff"], &[(0, 1), (0, 2)]);
    }
}
