//! Several devices in one integrated log: which there are, how their clocks relate, and a packet's way over the wires
//! between them.

use crate::info::LossSum;
use crate::listing::Listing;
use crate::output::Output;
use crate::packets::hint_hidden;
use crate::render::{Column, Line, Pairs, Style, Table, clean, count, duration, plural, time_of_day};
use kpat_query::devices::{ClockBetween, Several, Way};
use kpat_query::frame_text;
use kpat_query::{Store, match_key};
use kpat_store::tables::{CrossingRow, FrameRow};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

fn capture(log: &Several, capture_id: i32) -> String {
    let source = log.manifest.sources.iter().find(|s| s.role == "capture" && s.capture_id == capture_id);
    source.map_or_else(|| "?".to_owned(), |s| clean(&s.name))
}

fn with_bound(ns: i64, bound: i64) -> String {
    format!("{} ± {}", duration(ns), duration(bound))
}

/// `kpat info` of several devices.
pub fn info(path: &Path, log: &Several, out: &Output) -> anyhow::Result<ExitCode> {
    let mut losses = Vec::new();
    for device in 0..log.manifest.devices.len() as i32 {
        losses.push(LossSum::of(&Store::open(&log.folder(device))?.info()?.losses));
    }
    let lost = losses.iter().any(|l| !l.is_empty());
    let clocks = log.clocks()?;
    let directions = log.directions()?;
    let c = &log.manifest.crossings;
    if out.json {
        out.value(&json!({
            "kind": "integrated_log_of_devices",
            "schema": log.manifest.schema,
            "writer": log.manifest.writer,
            "devices": log.manifest.devices.iter().zip(&losses).map(|(d, l)| json!({
                "name": d.name,
                "integrated_log": path.join(&d.folder).display().to_string(),
                "source": d.log,
                "hostname": d.hostname,
                "boot_id": d.boot_id,
                "kernel_release": d.kernel_release,
                "packets": d.packets,
                "losses": l.iter().map(LossSum::as_json).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "captures": log.manifest.sources.iter().filter(|s| s.role == "capture").map(|s| json!({
                "capture_id": s.capture_id, "name": s.name, "file_bytes": s.bytes,
            })).collect::<Vec<_>>(),
            "frames": c.received.is_none().then(|| json!({
                "all": c.frames, "crossed": c.crossed, "one_kernel": c.one_kernel, "unmatched": c.unmatched,
                "ambiguous": c.ambiguous, "undirected": c.undirected,
            })),
            "received": c.received.map(|all| json!({
                "all": all, "crossed": c.crossed, "unmatched": c.unmatched, "ambiguous": c.ambiguous,
            })),
            "crossings": directions.iter().map(|((from, to), (frames, packets))| json!({
                "from": log.name(*from), "to": log.name(*to), "frames": frames, "packets": packets,
            })).collect::<Vec<_>>(),
            "clocks": clocks.iter().map(|c| clock_json(log, c)).collect::<Vec<_>>(),
        }))?;
        return Ok(out.ended(lost));
    }
    let mut pairs = Pairs::new();
    let title = format!("  integrated log of {}", plural(log.manifest.devices.len() as u64, "device"));
    pairs.line("log", Line::of(path.display().to_string(), Style::Strong).plain(title));
    for (n, (d, l)) in log.manifest.devices.iter().zip(&losses).enumerate() {
        let mut about = vec![clean(&d.hostname), clean(&d.kernel_release), plural(d.packets, "packet")];
        about.retain(|a| !a.is_empty());
        let mut line = Line::of(clean(&d.name), Style::Strong).plain(format!("  {}", about.join(", ")));
        let missing: u64 = l.iter().map(|l| l.count).sum();
        if missing > 0 {
            line = line.put(format!(", {} lost", plural(missing, "record")), Style::Bad);
        }
        pairs.line(if n == 0 { "devices" } else { "" }, line);
    }
    let sources = log.manifest.sources.iter().filter(|s| s.role == "capture");
    let names = sources.map(|s| clean(&s.name)).collect::<Vec<_>>().join(", ");
    let (unmatched, ambiguous) = match c.received {
        Some(received) => {
            pairs.add("captures", "none: a host's packets and its guests', by their headers and one clock");
            pairs.add(
                "received",
                format!("{}, {} from another kernel", plural(received, "packet"), count(c.crossed)),
            );
            ("that no other kernel sent", "that several packets fit equally well: not counted as crossed")
        }
        None => {
            pairs.add("captures", names);
            pairs.add(
                "frames",
                format!("{}, {} from one kernel into another", count(c.frames), count(c.crossed)),
            );
            ("seen by none", "that match several packets equally well: not counted as crossed")
        }
    };
    for (n, what) in [
        (c.one_kernel, "seen by one kernel only"),
        (c.unmatched, unmatched),
        (c.undirected, "for which sender and receiver are not known"),
        (c.ambiguous, ambiguous),
    ] {
        if n > 0 {
            pairs.line("", Line::new().plain(format!("{} {what}", count(n))));
        }
    }
    for (n, ((from, to), (frames, packets))) in directions.iter().enumerate() {
        let way = format!("{} → {}: ", clean(log.name(*from)), clean(log.name(*to)));
        let text = match c.received {
            Some(_) => plural(*packets, "packet"),
            None => format!("{} in {}", plural(*packets, "packet"), plural(*frames, "frame")),
        };
        pairs.line(if n == 0 { "crossings" } else { "" }, Line::new().plain(way + &text));
    }
    for (n, c) in clocks.iter().enumerate() {
        if c.capture_id < 0 {
            let (a, b) = (clean(log.name(c.from_device)), clean(log.name(c.to_device)));
            let text = format!("{a} and {b} have one clock, ± {}", duration(c.bound_ns));
            pairs.line(if n == 0 { "boot clocks" } else { "" }, Line::new().plain(text));
            continue;
        }
        let ahead = if c.offset_ns < 0 { "behind" } else { "ahead of" };
        let text = format!(
            "{}'s is {} {ahead} {}'s, ± {}, by {}; drift {:.3} ± {:.3} ppm",
            clean(log.name(c.to_device)),
            duration(c.offset_ns.saturating_abs()),
            clean(log.name(c.from_device)),
            duration(c.bound_ns),
            capture(log, c.capture_id),
            c.drift_ppb as f64 / 1e3,
            c.drift_bound_ppb as f64 / 1e3,
        );
        pairs.line(if n == 0 { "boot clocks" } else { "" }, Line::new().plain(text));
    }
    let first = log.manifest.devices.first().map_or("", |d| &d.name);
    pairs.add("next", format!("kpat packets {} --device {}", path.display(), clean(first)));
    out.lines(&pairs.render(out.width))?;
    Ok(out.ended(lost))
}

fn clock_json(log: &Several, c: &ClockBetween) -> Value {
    json!({
        "from": log.name(c.from_device),
        "to": log.name(c.to_device),
        "capture": (c.capture_id >= 0).then(|| capture(log, c.capture_id)),
        "at_wall_ns": (c.capture_id >= 0).then_some(c.at_wall_ns),
        "offset_ns": c.offset_ns,
        "bound_ns": c.bound_ns,
        "drift_ppb": c.drift_ppb,
        "drift_bound_ppb": c.drift_bound_ppb,
    })
}

/// It was seen between the two, by a sniffer.
fn has_frame(c: &CrossingRow) -> bool {
    c.capture_id >= 0
}

pub fn as_json(log: &Several, c: &CrossingRow) -> Value {
    json!({
        "from": log.name(c.from_device),
        "from_packet_id": c.from_packet_id,
        "to": log.name(c.to_device),
        "to_packet_id": c.to_packet_id,
        "capture": has_frame(c).then(|| capture(log, c.capture_id)),
        "number": has_frame(c).then_some(c.number),
        "left_boot_ns": c.left_ns,
        "wall_ns": has_frame(c).then_some(c.wall_ns),
        "arrived_boot_ns": c.arrived_ns,
        "left_wall_ns": c.left_wall_ns,
        "left_bound_ns": c.left_bound_ns,
        "arrived_wall_ns": c.arrived_wall_ns,
        "arrived_bound_ns": c.arrived_bound_ns,
        "flight_ns": c.flight_ns,
        "flight_bound_ns": c.flight_bound_ns,
        "key": match_key::name(c.key),
        "confidence_percent": c.confidence,
    })
}

/// Frames, and which packet of whom became which of whom.
pub fn frames(
    log: &Several,
    rows: &[(FrameRow, Vec<CrossingRow>)],
    listing: &Listing,
    out: &Output,
) -> anyhow::Result<()> {
    if out.json {
        out.value(&json!({
            "frames": rows.iter().map(|(f, crossings)| json!({
                "capture": capture(log, f.capture_id),
                "number": f.number,
                "wall_ns": f.wall_ns,
                "len_bytes": f.len_bytes,
                "crossings": crossings.iter().map(|c| as_json(log, c)).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "shown": rows.len(),
        }))?;
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::left("capture", 0, 8),
        Column::right("frame", 0),
        Column::left("source", 2, 13),
        Column::left("destination", 2, 13),
        Column::left("proto", 2, 0),
        Column::right("length", 3),
        Column::left("info", 4, 12),
        Column::left("from", 0, 6),
        Column::right("packet", 0),
        Column::left("to", 0, 6),
        Column::right("packet", 0),
        Column::left("flight", 1, 0),
        Column::right("sure", 3),
    ]);
    for (f, crossings) in rows {
        let about = |c: Option<&CrossingRow>| {
            let text = |t: Option<String>| (t.unwrap_or_default(), Style::Plain);
            let [from, to] = frame_text::ends(f);
            vec![
                text(Some(capture(log, f.capture_id))),
                (f.number.to_string(), Style::Wire),
                text(Some(from)),
                text(Some(to)),
                text(Some(frame_text::name(f))),
                text(Some(f.len_bytes.to_string())),
                text(Some(frame_text::summary(f))),
                text(c.map(|c| clean(log.name(c.from_device)))),
                text(c.map(|c| c.from_packet_id.to_string())),
                text(c.map(|c| clean(log.name(c.to_device)))),
                text(c.map(|c| c.to_packet_id.to_string())),
                text(c.map(|c| with_bound(c.flight_ns, c.flight_bound_ns))),
                text(c.map(|c| format!("{} %", c.confidence))),
            ]
        };
        if crossings.is_empty() {
            table.row(about(None));
        }
        crossings.iter().for_each(|c| table.row(about(Some(c))));
    }
    hint_hidden(out, &listing.print(table, out)?);
    Ok(())
}

/// Where a packet came from and went on to: the end of `kpat packet`.
pub fn way_lines(log: &Several, way: &Way, width: usize) -> Vec<Line> {
    let mut lines = vec![Line::new(), Line::of("From kernel to kernel", Style::Strong)];
    if way.came.is_empty() && way.went.is_empty() {
        lines.push(Line::new().plain("no other device of this log is known to have had it"));
        return lines;
    }
    let mut table = Table::new(&[
        Column::left("way", 0, 0),
        Column::left("device", 0, 6),
        Column::right("packet", 0),
        Column::left("capture", 1, 6),
        Column::right("frame", 2),
        Column::left("flight", 0, 0),
        Column::right("sure", 3),
    ]);
    let both = [("came from", &way.came, true), ("went on to", &way.went, false)];
    for (words, crossings, came) in both {
        for c in crossings {
            let (device, packet) =
                if came { (c.from_device, c.from_packet_id) } else { (c.to_device, c.to_packet_id) };
            table.row(vec![
                (words.to_owned(), Style::Plain),
                (clean(log.name(device)), Style::Strong),
                (packet.to_string(), Style::Plain),
                (if has_frame(c) { capture(log, c.capture_id) } else { String::new() }, Style::Plain),
                (if has_frame(c) { c.number.to_string() } else { String::new() }, Style::Wire),
                (with_bound(c.flight_ns, c.flight_bound_ns), Style::Plain),
                (format!("{} %", c.confidence), Style::Plain),
            ]);
        }
    }
    lines.extend(table.render(width).0);
    lines
}

/// The wire between two kernels, by the sniffer's clock.
pub fn wire_lines(log: &Several, went: &[CrossingRow], width: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for c in went {
        let mut pairs = Pairs::new();
        let title = format!("to {}, packet {}", clean(log.name(c.to_device)), c.to_packet_id);
        pairs.line("wire", Line::of(title, Style::Wire).plain(format!("; {} % sure", c.confidence)));
        pairs.add(
            "left",
            format!("{} UTC ± {}", time_of_day(c.left_wall_ns, false), duration(c.left_bound_ns)),
        );
        let frame = format!(
            "{} UTC, frame {} of {}",
            time_of_day(c.wall_ns, false),
            c.number,
            capture(log, c.capture_id)
        );
        if has_frame(c) {
            pairs.add("seen", frame);
        }
        let arrived = time_of_day(c.arrived_wall_ns, false);
        pairs.add("arrived", format!("{arrived} UTC ± {}", duration(c.arrived_bound_ns)));
        pairs.add("flight", with_bound(c.flight_ns, c.flight_bound_ns));
        lines.push(Line::new());
        lines.extend(pairs.render(width));
    }
    lines
}
