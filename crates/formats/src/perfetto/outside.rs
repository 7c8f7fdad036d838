//! What is before, between and behind the functions of a packet: the call that wrote its bytes, its frames on the wire, the call that read
//! them. Each is an instant in the flow of its packets, so that the arrows lead from the write through functions and frames to the read.

use super::messages::*;
use super::{OF_APPLICATION, OF_FRAME, Writer, flow, number, text};
use crate::Result;
use crate::names::clean;
use kpat_query::{CallOfPacket, CarriedByAll, Parts, Store, app};
use kpat_store::NULL;
use kpat_store::tables::{AssociationRow, FrameRow};
use std::collections::{BTreeMap, HashMap, HashSet};

fn instant(at_ns: i64, w: &mut Writer<'_>, event: TrackEvent) -> Result<()> {
    w.event(at_ns, TrackEvent { r#type: Some(INSTANT), ..event })
}

/// A call with the packets that have bytes of it.
struct Call {
    /// With its first packet.
    first: CallOfPacket,
    packets: Vec<i64>,
}

/// Calls of applications, a track for each thread.
pub(super) fn calls(
    store: &Store,
    ids: Option<&HashSet<i64>>,
    w: &mut Writer<'_>,
    progress: Parts<'_>,
) -> Result<()> {
    let all: CarriedByAll = store.carried_by(progress)?;
    let mut by_call: BTreeMap<i64, Call> = BTreeMap::new();
    let wanted = |packet: i64| ids.is_none_or(|ids| ids.contains(&packet));
    for c in all.calls().iter().filter(|c| wanted(c.packet_id)) {
        let new = || Call { first: *c, packets: Vec::new() };
        by_call.entry(c.call.id).or_insert_with(new).packets.push(c.packet_id);
    }
    let mut tracks: HashMap<Option<i32>, u64> = HashMap::new();
    for (id, Call { first, packets }) in by_call {
        let (of, call, is_read) = (all.end_of(&first), first.call, first.is_read);
        let track = match tracks.get(&call.pid) {
            Some(track) => *track,
            None => {
                let comm = call.pid.and_then(|pid| store.process(pid, call.at_ns)).map(|p| clean(&p.comm));
                let thread = call.pid.map_or_else(|| "unknown thread".to_owned(), |pid| pid.to_string());
                let name = format!("writes and reads of {} {thread}", comm.unwrap_or_default());
                let track = w.new_track(super::APPLICATIONS, name, call.pid.unwrap_or(0))?;
                tracks.insert(call.pid, track);
                track
            }
        };
        let what = if is_read { "read" } else { "write" };
        let refused = call.error.map(|e| format!(", refused with {}", app::errno(e))).unwrap_or_default();
        let mut notes = vec![number("call", id), number("len_bytes", call.bytes)];
        notes.extend(of.as_ref().map(|e| number("socket", e.socket_id)));
        notes.extend(of.and_then(|e| e.process.map(|p| text("process", p))));
        notes.extend(call.pid.map(|pid| number("pid", i64::from(pid))));
        let event = TrackEvent {
            category_iids: vec![OF_APPLICATION],
            track_uuid: Some(track),
            name: Some(format!("{what} {id}, {} B{refused}", call.bytes)),
            flow_ids: packets.iter().map(|p| flow(*p)).collect(),
            debug_annotations: notes,
            ..TrackEvent::default()
        };
        instant(call.at_ns, w, event)?;
    }
    Ok(())
}

/// Frames of packets where the clocks could be related, a track for each capture.
pub(super) fn frames(store: &Store, ids: Option<&HashSet<i64>>, w: &mut Writer<'_>) -> Result<()> {
    let table = store.table::<AssociationRow>()?;
    let mut packets: HashMap<(i64, i64), Vec<i64>> = HashMap::new();
    for group in 0..table.groups() {
        let [of, captures, numbers] =
            ["packet_id", "capture_id", "number"].map(|column| table.ints(group, column));
        for ((packet, capture), number) in of?.into_iter().zip(captures?).zip(numbers?) {
            if ids.is_none_or(|ids| ids.contains(&packet)) {
                packets.entry((capture, number)).or_default().push(packet);
            }
        }
    }
    let names: HashMap<i64, String> = store
        .manifest()
        .sources
        .iter()
        .filter(|s| s.role == "capture")
        .map(|s| (i64::from(s.capture_id), clean(&s.name)))
        .collect();
    let mut tracks: HashMap<i64, u64> = HashMap::new();
    let table = store.table::<FrameRow>()?;
    for group in 0..table.groups() {
        let [captures, numbers, at, len] =
            ["capture_id", "number", "boot_ns", "len_bytes"].map(|column| table.ints(group, column));
        let (captures, numbers, at, len) = (captures?, numbers?, at?, len?);
        for i in (0..captures.len()).filter(|i| at[*i] != NULL) {
            let Some(of) = packets.get(&(captures[i], numbers[i])) else { continue };
            let track = match tracks.get(&captures[i]) {
                Some(track) => *track,
                None => {
                    let name = names.get(&captures[i]).cloned().unwrap_or_default();
                    let track = w.new_track(super::WIRE, name, captures[i] as i32)?;
                    tracks.insert(captures[i], track);
                    track
                }
            };
            let event = TrackEvent {
                category_iids: vec![OF_FRAME],
                track_uuid: Some(track),
                name: Some(format!("frame {}", numbers[i])),
                flow_ids: of.iter().map(|p| flow(*p)).collect(),
                debug_annotations: vec![number("frame", numbers[i]), number("len_bytes", len[i])],
                ..TrackEvent::default()
            };
            instant(at[i], w, event)?;
        }
    }
    Ok(())
}
