//! What is written about a packet in the comments of its frames: one line for people, one line of JSON for programs.
//!
//! The JSON line is what our Wireshark dissector reads; [`VERSION`] is its version. What belongs to the packet is made once,
//! in one pass over the calls, and waits on disk until its frames come by; what belongs to a frame is put before it.

use super::kernel::Devices;
use crate::names::{Names, clean, context, drop_reason, packet, process};
use crate::{Counts, Result};
use kpat_query::Parts;
use kpat_query::trace::Chosen;
use kpat_query::{CarriedByAll, EndOfPacket, Store, app, call_flag, match_key, side, verdict};
use kpat_store::tables::{AssociationRow, CallRow, PacketRow};
use serde::Serialize;
use serde::ser::SerializeTuple;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Of the JSON line; a new field does not change it.
pub const VERSION: u32 = 1;
/// Calls that are listed one by one; of more only the functions' names.
pub const MAX_PATH: usize = 120;
/// Functions named in the line for people.
const MAX_NAMED: usize = 12;

/// The part of the JSON line that is the packet's.
#[derive(Serialize)]
struct OfPacket<'a> {
    packet: i64,
    what: String,
    verdict: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    drop: Option<String>,
    path_ns: i64,
    kernel_ns: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_ns: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    softirq_ns: Option<i64>,
    calls: i32,
    points: i32,
    frames: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writer: Option<OfEnd<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reader: Option<OfEnd<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    further_readers: Vec<OfEnd<'a>>,
    path: Vec<Step<'a>>,
    /// Calls that are not in `path`.
    more: usize,
    /// Functions that are only among those.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<&'a str>,
}

/// Who wrote or read its bytes.
#[derive(Serialize)]
struct OfEnd<'a> {
    socket: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a str>,
    /// Numbers of the calls.
    calls: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ns: Option<i64>,
}

impl<'a> OfEnd<'a> {
    fn of(e: &EndOfPacket<'a>) -> OfEnd<'a> {
        OfEnd {
            socket: e.socket_id,
            pid: e.pid,
            process: e.process,
            calls: e.calls.iter().take(MAX_NAMED).map(|c| c.call.id).collect(),
            wait_ns: e.wait_ns,
        }
    }
}

/// `[function, depth, ns since the packet's first moment, duration or null, CPU, context]`.
struct Step<'a> {
    name: &'a str,
    depth: usize,
    at_ns: i64,
    dur_ns: Option<i64>,
    cpu: i32,
    context: &'static str,
}

impl Serialize for Step<'_> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        let mut t = s.serialize_tuple(6)?;
        t.serialize_element(self.name)?;
        t.serialize_element(&self.depth)?;
        t.serialize_element(&self.at_ns)?;
        t.serialize_element(&self.dur_ns)?;
        t.serialize_element(&self.cpu)?;
        t.serialize_element(self.context)?;
        t.end()
    }
}

/// The part of the JSON line that is the frame's.
#[derive(Serialize)]
struct OfFrame {
    kpat: u32,
    seen: &'static str,
    side: &'static str,
    #[serde(rename = "match")]
    confidence: i32,
    key: &'static str,
    alternatives: i32,
    residual_ns: i64,
    bound_ns: i64,
}

/// Of a sighting in the kernel.
#[derive(Serialize)]
struct OfSighting<'a> {
    kpat: u32,
    seen: &'static str,
    packet: i64,
    device: &'a str,
    layer: u8,
    at_boot_ns: i64,
    bound_ns: i64,
}

/// The comments on one packet.
struct Comment {
    people: String,
    json: String,
}

/// Notes of all chosen packets, on disk.
pub(super) struct Notes {
    file: File,
    /// By packet.
    places: Vec<NotePosition>,
    /// Devices that packets came in and went out by.
    devices: Vec<Devices>,
}

/// Where a packet's note is, and what else is known of it without reading.
struct NotePosition {
    packet: i64,
    offset: u64,
    /// Bytes for people, bytes of JSON.
    people: u32,
    json: u32,
    devices: u32,
    /// The whole note was written at some row.
    shown: bool,
}

impl Notes {
    /// One pass over the calls; `beside` is the folder in which the notes wait. They are gone when this is.
    pub fn gather(
        store: &Store,
        chosen: &Chosen,
        names: &Names,
        beside: &Path,
        counts: &mut Counts,
        progress: Parts<'_>,
    ) -> Result<Notes> {
        let (file, reader) = nameless(beside)?;
        let mut out = BufWriter::with_capacity(1 << 18, file);
        let (mut places, mut devices): (Vec<NotePosition>, Vec<Devices>) = (Vec::new(), Vec::new());
        let mut known: HashMap<Devices, u32> = HashMap::new();
        let mut offset = 0u64;
        let carried = store.carried_by(progress)?;
        let of = |p: &PacketRow, rows: &[CallRow]| {
            let mut counts = Counts::default();
            rows.iter().for_each(|r| counts.call(r));
            (p.packet_id, devices_of(p), counts, say(store, names, &carried, p, rows))
        };
        store.each_life(chosen, progress, &of, &mut |(packet, its, of, reported)| -> Result<()> {
            counts.packets += 1;
            counts.add(&of);
            out.write_all(reported.people.as_bytes())?;
            out.write_all(reported.json.as_bytes())?;
            let next = devices.len() as u32;
            let at = *known.entry(its).or_insert(next);
            if at == next {
                devices.push(its);
            }
            let (people, json) = (reported.people.len() as u32, reported.json.len() as u32);
            places.push(NotePosition { packet, offset, people, json, devices: at, shown: false });
            offset += u64::from(people) + u64::from(json);
            Ok(())
        })?;
        out.flush()?;
        places.sort_unstable_by_key(|p| p.packet);
        Ok(Notes { file: reader, places, devices })
    }

    fn place(&self, packet: i64) -> Option<usize> {
        self.places.binary_search_by_key(&packet, |p| p.packet).ok()
    }

    pub fn has(&self, packet: i64) -> bool {
        self.place(packet).is_some()
    }

    /// All that is known of this packet stands somewhere; false: it does already.
    pub fn tell(&mut self, packet: i64) -> bool {
        self.place(packet).is_some_and(|i| !std::mem::replace(&mut self.places[i].shown, true))
    }

    /// By which devices a chosen packet came in and went out.
    pub fn devices(&self, packet: i64) -> Option<Devices> {
        self.place(packet).map(|i| self.devices[self.places[i].devices as usize])
    }

    fn read(&self, packet: i64) -> Result<Option<Comment>> {
        let Some(p) = self.place(packet).map(|i| &self.places[i]) else { return Ok(None) };
        let mut bytes = vec![0; (p.people + p.json) as usize];
        self.file.read_exact_at(&mut bytes, p.offset)?;
        let rest = bytes.split_off(p.people as usize);
        let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
        Ok(Some(Comment { people: text(bytes), json: text(rest) }))
    }

    /// The two lines for a frame of this packet.
    pub fn of_frame(&self, a: &AssociationRow) -> Result<Option<[String; 2]>> {
        let Some(reported) = self.read(a.packet_id)? else { return Ok(None) };
        let certain = match a.alternatives {
            0 => String::new(),
            1 => ", 1 other packet fits as well".to_owned(),
            n => format!(", {n} other packets fit as well"),
        };
        let people = format!(
            "{}; {} by the device, match {} %{certain}, clocks ±{}",
            reported.people,
            side::name(a.side),
            a.confidence,
            duration(a.bound_ns)
        );
        let head = OfFrame {
            kpat: VERSION,
            seen: "wire",
            side: side::name(a.side),
            confidence: a.confidence,
            key: match_key::name(a.key),
            alternatives: a.alternatives,
            residual_ns: a.residual_ns,
            bound_ns: a.bound_ns,
        };
        Ok(Some([people, joined(&head, &reported.json)]))
    }

    /// The two lines for a sighting in the kernel; all that is known where the packet has no frame to say it.
    pub fn of_sighting(&self, s: &Sighting<'_>, whole: bool) -> Result<[String; 2]> {
        let head = OfSighting {
            kpat: VERSION,
            seen: "kernel",
            packet: s.packet,
            device: s.device,
            layer: s.layer,
            at_boot_ns: s.at_boot_ns,
            bound_ns: s.bound_ns,
        };
        let place = if s.device.is_empty() { String::new() } else { format!(" at {}", clean(s.device)) };
        let short = format!("kpat: packet {} as the kernel held it{place}", s.packet);
        if whole && let Some(reported) = self.read(s.packet)? {
            let people = format!("{short}; {}", reported.people.trim_start_matches("kpat: "));
            return Ok([people, joined(&head, &reported.json)]);
        }
        Ok([short, serde_json::to_string(&head).map_err(io::Error::from)?])
    }
}

/// A packet as the kernel held it, somewhere on its way.
pub(super) struct Sighting<'a> {
    pub packet: i64,
    /// Name of the device; empty: none.
    pub device: &'a str,
    pub layer: u8,
    pub at_boot_ns: i64,
    pub bound_ns: i64,
}

/// One object of two.
fn joined(head: &impl Serialize, rest: &str) -> String {
    let head = serde_json::to_string(head).unwrap_or_default();
    let rest = rest.strip_prefix('{').unwrap_or(rest);
    // A sighting names its packet itself.
    let rest = if head.contains("\"packet\":") { rest.split_once(',').map_or(rest, |r| r.1) } else { rest };
    format!("{},{rest}", head.strip_suffix('}').unwrap_or(&head))
}

/// Where a packet came in and went out.
fn devices_of(p: &PacketRow) -> Devices {
    let with = |ifindex: Option<i32>, netns| ifindex.map(|i| (i, netns));
    [with(p.if_in, p.if_in_netns), with(p.if_out, p.if_out_netns)]
}

fn say(store: &Store, names: &Names, carried: &CarriedByAll, p: &PacketRow, rows: &[CallRow]) -> Comment {
    let (writer, readers) = carried.of(p.packet_id);
    let process = process(store, p);
    let drop = drop_reason(store, p);
    let steps = steps(names, p, rows);
    let mut named: HashSet<&str> = HashSet::new();
    let mut order: Vec<&str> = Vec::new();
    for s in &steps {
        if named.insert(s.name) {
            order.push(s.name);
        }
    }
    let people = {
        let reason = drop.as_ref().map(|r| format!(" ({})", clean(r))).unwrap_or_default();
        let mut line = format!(
            "kpat: packet {} {}{reason}, {} from first to last",
            p.packet_id,
            verdict::name(p.verdict),
            duration(p.path_ns)
        );
        if p.calls > 0 {
            line += &format!(", {} in {} recorded calls", duration(p.kernel_ns), p.calls);
        }
        if let Some((pid, comm)) = process {
            line += &format!(", process {} {pid}", clean(comm));
        }
        let written = writer.iter().map(|end| (end, "written", "write"));
        let read = readers.iter().map(|end| (end, "read", "read"));
        for (end, done, call) in written.chain(read).filter(|(end, _, _)| !end.calls.is_empty()) {
            let pid = end.pid.map(|p| format!(" {p}")).unwrap_or_default();
            line += &format!(", {done} by {}{pid}", clean(end.process.unwrap_or("an unknown thread")));
            line += &match end.calls {
                [one] => {
                    let refused = one.call.error.map(|e| format!(", {}", app::errno(e)));
                    format!(" ({call} {}{})", one.call.id, refused.unwrap_or_default())
                }
                all => format!(" ({call} {} and {} more)", all[0].call.id, all.len() - 1),
            };
        }
        if !order.is_empty() {
            let more = order.len().saturating_sub(MAX_NAMED);
            line += &format!("; {}", clean(&order[..order.len() - more].join(" > ")));
            if more > 0 {
                line += &format!(" > … {more} more");
            }
        }
        line
    };
    let also = {
        let shown: HashSet<&str> = steps.iter().take(MAX_PATH).map(|s| s.name).collect();
        order.iter().copied().filter(|n| !shown.contains(n)).collect()
    };
    let more = steps.len().saturating_sub(MAX_PATH);
    let mut path = steps;
    path.truncate(MAX_PATH);
    let of = OfPacket {
        packet: p.packet_id,
        what: packet(p),
        verdict: verdict::name(p.verdict),
        drop,
        path_ns: p.path_ns,
        kernel_ns: p.kernel_ns,
        driver_ns: p.driver_ns,
        softirq_ns: p.softirq_ns,
        calls: p.calls,
        points: p.points,
        frames: p.frames,
        pid: process.map(|q| q.0),
        process: process.map(|q| q.1),
        writer: writer.as_ref().map(OfEnd::of),
        reader: readers.first().map(OfEnd::of),
        further_readers: readers.iter().skip(1).map(OfEnd::of).collect(),
        path,
        more,
        also,
    };
    Comment { people, json: serde_json::to_string(&of).unwrap_or_default() }
}

/// The packet's calls and points in order, nested as far as their callers touched the packet, too.
fn steps<'a>(names: &'a Names, p: &PacketRow, rows: &[CallRow]) -> Vec<Step<'a>> {
    let mut depths: HashMap<i64, usize> = HashMap::new();
    rows.iter()
        .map(|r| {
            let depth = r.parent_id.and_then(|p| depths.get(&p)).map_or(0, |d| d + 1);
            depths.insert(r.call_id, depth);
            let is_point = r.flags & call_flag::POINT != 0;
            Step {
                name: names.name(r.func_id),
                depth,
                at_ns: r.entry_ns.saturating_sub(p.first_ns),
                dur_ns: r.dur_ns.filter(|_| !is_point),
                cpu: r.cpu,
                context: context(r.ctx),
            }
        })
        .collect()
}

/// With three digits and a unit.
pub(super) fn duration(ns: i64) -> String {
    let size = ns.unsigned_abs() as f64;
    let (value, unit) = match size {
        s if s < 1e3 => return format!("{ns} ns"),
        s if s < 1e6 => (s / 1e3, "µs"),
        s if s < 1e9 => (s / 1e6, "ms"),
        s => (s / 1e9, "s"),
    };
    let digits = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{}{value:.digits$} {unit}", if ns < 0 { "-" } else { "" })
}

/// A file without a name: one handle to write, one to read.
fn nameless(folder: &Path) -> Result<(File, File)> {
    let path = folder.join(format!(".kpat-notes-{}", std::process::id()));
    let write = File::options().write(true).create_new(true).open(&path)?;
    let read = File::open(&path);
    std::fs::remove_file(&path)?;
    Ok((write, read?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (ns, text) in
            [(0, "0 ns"), (999, "999 ns"), (93_000, "93.0 µs"), (1_234_567, "1.23 ms"), (-5_000, "-5.00 µs")]
        {
            assert_eq!(duration(ns), text);
        }
    }
}
