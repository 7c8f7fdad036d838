//! An integrated log.

use super::recorded::device_table;
use super::{
    LossSum, STRETCHES, add_losses, add_recording, balance, clock_json, clock_lines, cost_json, cost_line,
    recording_json, shown,
};
use crate::open::{self, Integrated};
use crate::output::Output;
use crate::render::{
    Column, Line, Pairs, Style, Table, bytes, count, duration, percent, plural, time_of_day,
};
use kpat_capture::decode;
use kpat_model::meta::Device;
use kpat_query::devices::Several;
use kpat_query::{Estimate, Estimates, Info, verdict};
use kpat_store::SourceFile;
use kpat_store::tables::{DeviceRow, InterfaceRow};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

pub fn run(path: &Path, device: &open::Device, out: &Output) -> anyhow::Result<ExitCode> {
    if device.name.is_none()
        && let Ok(several) = Several::open(path)
    {
        return crate::devices::info(path, &several, out);
    }
    let log = open::integrated(path, device)?;
    let info = log.info()?;
    let losses = LossSum::of(&info.losses);
    if out.json {
        print_json(&log, &info, &losses, out)?;
    } else {
        print_text(&log, &info, &losses, out)?;
    }
    Ok(out.ended(!losses.is_empty() || info.manifest.summary.as_ref().is_none_or(|s| !s.complete)))
}

fn rows(info: &Info, table: &str) -> u64 {
    info.manifest.tables.iter().find(|t| t.table == table).map_or(0, |t| t.rows)
}

fn device(d: &DeviceRow) -> Device {
    Device {
        netns: u32::try_from(d.netns).unwrap_or(0),
        netns_since: None,
        netns_name: d.netns_name.clone(),
        ifindex: d.ifindex.cast_unsigned(),
        name: d.name.clone(),
        link_type: u16::try_from(d.link_type).unwrap_or(0),
        mac: d.mac.clone(),
        mtu: u32::try_from(d.mtu).unwrap_or(0),
        driver: d.driver.clone(),
        phc: d.phc.and_then(|n| n.try_into().ok()),
        above: d.above.and_then(|n| n.try_into().ok()),
        master: d.master.and_then(|n| n.try_into().ok()),
    }
}

fn print_text(log: &Integrated, info: &Info, losses: &[LossSum], out: &Output) -> anyhow::Result<()> {
    let manifest = &info.manifest;
    let meta = &manifest.log;
    let mut pairs = Pairs::new();
    pairs.line("log", Line::of(log.dir.display().to_string(), Style::Strong).plain("  integrated log"));
    match &manifest.summary {
        Some(s) if s.complete => {
            let why = if s.end_reason.is_empty() { String::new() } else { format!(": {}", s.end_reason) };
            let open = super::recorded::open_calls_words(meta, Some(s));
            pairs.line("state", Line::of(format!("recording complete{why}{open}"), Style::Good));
        }
        _ => pairs.line(
            "state",
            Line::of("the recording was not closed; what it had written is here", Style::Warn),
        ),
    }
    for source in &manifest.sources {
        let what = if source.role == "log" { "kernel" } else { "wire" };
        pairs.add(&format!("{what} source"), format!("{}, {}", source.name, bytes(source.bytes)));
    }
    let functions = format!("{} of {} were called", count(info.functions_hit), count(info.functions));
    add_recording(&mut pairs, meta, &functions);
    if meta.started.wall.0 != 0 {
        pairs.add("started", format!("{} UTC", time_of_day(meta.started.wall.0, true)));
    }
    pairs.add("duration", duration(manifest.last_ns.saturating_sub(manifest.first_ns)));
    let verdicts: Vec<String> = info
        .conservation
        .verdicts
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(code, n)| format!("{} {}", count(*n), verdict::name(*code)))
        .collect();
    let packets: u64 = info.conservation.packets();
    let list = if verdicts.is_empty() { String::new() } else { format!(": {}", verdicts.join(", ")) };
    pairs.add("packets", format!("{}{list}", count(packets)));
    if let Some(e) = log.estimates()? {
        pairs.add("estimated", estimate_words(&e));
    }
    for (i, line) in balance::lines(info).into_iter().enumerate() {
        pairs.line(if i == 0 { "trust" } else { "" }, line);
    }
    pairs.add("calls", format!("{}, {} events", count(rows(info, "call")), count(rows(info, "event"))));
    let (frames, matched) = info
        .interfaces
        .iter()
        .fold((0u64, 0u64), |(f, m), i| (f + i.frames.unsigned_abs(), m + i.matched.unsigned_abs()));
    if frames > 0 {
        pairs.add(
            "frames",
            format!("{}, {} matched ({})", count(frames), count(matched), percent(matched, frames)),
        );
    }
    let mut captures: Vec<i32> = info.clocks.iter().map(|c| c.capture_id).collect();
    captures.dedup();
    for id in captures {
        let (clocks, left) = shown(&info.clocks, id, STRETCHES);
        for clock in &clocks {
            let mut name = log.capture(id).to_owned();
            if clocks.len() > 1 {
                let lasts = duration(clock.to_wall_ns.saturating_sub(clock.from_wall_ns));
                name += &format!(", from {} for {lasts}", time_of_day(clock.from_wall_ns, false));
            }
            for (i, line) in clock_lines(&name, clock, info.dut_offset_ns).into_iter().enumerate() {
                pairs.line(if i == 0 { "clock" } else { "" }, line);
            }
        }
        if let Some(left) = left {
            pairs.line("", left);
        }
    }
    let unknown =
        |s: &&SourceFile| s.role == "capture" && info.clocks.iter().all(|c| c.capture_id != s.capture_id);
    for (i, s) in manifest.sources.iter().filter(unknown).enumerate() {
        let first = i == 0 && info.clocks.is_empty();
        let line = Line::of(s.name.clone(), Style::Strong)
            .put(": its clock is unknown: no frame of it was recognised", Style::Warn);
        pairs.line(if first { "clock" } else { "" }, line);
    }
    add_losses(&mut pairs, losses, 0, manifest.summary.as_ref().is_some_and(|s| s.complete));
    let cost = manifest.summary.as_ref().and_then(|s| cost_line(&s.cost, s.bytes, s.written_records()));
    pairs.add("cost", cost.unwrap_or_default());
    for (i, text) in notes(info).into_iter().enumerate() {
        pairs.line(if i == 0 { "doubtful" } else { "" }, Line::of(text, Style::Warn));
    }
    out.lines(&pairs.render(out.width))?;
    if info.interfaces.iter().any(|i| i.frames > 0) {
        out.line(&Line::new())?;
        out.lines(&interface_table(log, &info.interfaces).render(out.width).0)?;
    }
    if !info.devices.is_empty() {
        out.line(&Line::new())?;
        let devices: Vec<Device> = info.devices.iter().map(device).collect();
        out.lines(&device_table(&devices).render(out.width).0)?;
    }
    Ok(())
}

/// `about 19,200 ± 2,100 packets (one standard error, from 51 flows): 9,600 ± 1,050 delivered`.
fn estimate_words(e: &Estimates) -> String {
    let one = |e: &Estimate| format!("{} ± {}", super::rounded(e.packets), super::rounded(e.error as u64));
    let verdicts: Vec<String> =
        e.verdicts.iter().map(|(code, v)| format!("{} {}", one(v), verdict::name(*code))).collect();
    let list = if verdicts.is_empty() { String::new() } else { format!(": {}", verdicts.join(", ")) };
    format!(
        "{} packets (one standard error, from {}){list}",
        one(&e.all),
        plural(e.units, e.sample.by.noun())
    )
}

fn estimates_json(e: &Estimates) -> Value {
    let one = |e: &Estimate| json!({"counted": e.counted, "packets": e.packets, "standard_error": e.error});
    json!({
        "sample": e.sample,
        "units": e.units,
        "all": one(&e.all),
        "by_verdict": e.verdicts.iter()
            .map(|(code, e)| (verdict::name(*code).to_owned(), one(e))).collect::<serde_json::Map<_, _>>(),
    })
}

/// What is missing or doubtful in the integrated log, in words. The counters themselves are in --json.
fn notes(info: &Info) -> Vec<String> {
    let reported = |key: &str, n: u64| {
        let (one, what) = match key {
            "calls.crossing" => ("call overlaps", "calls overlap"),
            "calls.self_clamped" => ("call is shorter", "calls are shorter"),
            "calls.more_pauses" => ("call was", "calls were"),
            "times.absurd" => ("time", "times"),
            "members.orphaned" => ("packet", "packets"),
            "packets.late" => ("record", "records"),
            "frames.ambiguous" => ("frame matches", "frames match"),
            _ => return None,
        };
        let rest = match key {
            "calls.crossing" => {
                "a neighbour without one enclosing the other: which called which is not certain"
            }
            "calls.self_clamped" => "than what was called within: self time taken as 0",
            "calls.more_pauses" => {
                "off the CPU more often than is kept of one: some of that stands as self time"
            }
            "times.absurd" => "in damaged records that no clock shows",
            "members.orphaned" => "of lists whose call is not in the log",
            "packets.late" => "came after their packet had ended, and are not in its sums",
            _ => "several packets about equally well (kpat packet shows how many)",
        };
        Some(format!("{} {} {rest}", count(n), if n == 1 { one } else { what }))
    };
    let note = |p: &kpat_store::tables::ProvenanceRow| match p.key.as_str() {
        "warning" => Some(p.value.clone()),
        key => p.value.parse().ok().filter(|n| *n > 0).and_then(|n| reported(key, n)),
    };
    info.provenance.iter().filter_map(note).collect()
}

fn interface_table(log: &Integrated, rows: &[InterfaceRow]) -> Table {
    let mut table = Table::new(&[
        Column::left("capture", 0, 12),
        Column::left("interface", 0, 9),
        Column::left("link type", 1, 0),
        Column::right("frames", 0),
        Column::right("matched", 0),
        Column::right("share", 0),
    ]);
    for i in rows {
        let plain = |text: String| (text, Style::Plain);
        let name = if i.name.is_empty() { i.interface.to_string() } else { i.name.clone() };
        let (frames, matched) = (i.frames.unsigned_abs(), i.matched.unsigned_abs());
        table.row(vec![
            plain(log.capture(i.capture_id).to_owned()),
            plain(name),
            plain(link_type(i.link_type)),
            plain(count(frames)),
            plain(count(matched)),
            plain(percent(matched, frames)),
        ]);
    }
    table
}

/// Its name, and whether anything behind such a header is recognised.
pub fn link_type(code: i32) -> String {
    let code = u16::try_from(code).unwrap_or(u16::MAX);
    let name = decode::link_type_name(code).map_or_else(|| format!("link type {code}"), str::to_owned);
    if decode::is_decoded(code) { name } else { format!("{name}, not decoded") }
}

pub fn device_json(d: &Device) -> Value {
    json!({
        "name": d.name,
        "ifindex": d.ifindex,
        "netns": d.netns,
        "netns_name": d.netns_name,
        "mac": d.mac,
        "mtu_bytes": d.mtu,
        "driver": d.driver,
    })
}

fn print_json(log: &Integrated, info: &Info, losses: &[LossSum], out: &Output) -> anyhow::Result<()> {
    let manifest = &info.manifest;
    out.value(&json!({
        "kind": "integrated_log",
        "schema": manifest.schema,
        "writer": manifest.writer,
        "recording_complete": manifest.summary.as_ref().is_some_and(|s| s.complete),
        "end_reason": manifest.summary.as_ref().map(|s| &s.end_reason),
        "open_calls": manifest.summary.as_ref().and_then(|s| s.open_calls),
        "sources": manifest.sources.iter().map(|s| json!({
            "role": s.role,
            "capture_id": (s.capture_id >= 0).then_some(s.capture_id),
            "name": s.name,
            "file_bytes": s.bytes,
        })).collect::<Vec<_>>(),
        "recording": recording_json(&manifest.log),
        "first_boot_ns": manifest.first_ns,
        "last_boot_ns": manifest.last_ns,
        "rows": manifest.tables.iter().map(|t| (t.table.clone(), json!(t.rows))).collect::<serde_json::Map<_, _>>(),
        "packets_by_verdict": info.conservation.verdicts.iter()
            .map(|(code, n)| (verdict::name(*code).to_owned(), json!(n))).collect::<serde_json::Map<_, _>>(),
        "estimates": log.estimates()?.as_ref().map(estimates_json),
        "trust": balance::trust_json(&info.trust()),
        "conservation": balance::as_json(&info.conservation),
        "functions": info.functions,
        "functions_called": info.functions_hit,
        "interfaces": info.interfaces.iter().map(|i| json!({
            "capture": log.capture(i.capture_id),
            "capture_id": i.capture_id,
            "interface": i.interface,
            "name": i.name,
            "link_type": i.link_type,
            "frames": i.frames,
            "matched_frames": i.matched,
        })).collect::<Vec<_>>(),
        "clocks": info.clocks.iter().map(|c| clock_json(c, info.dut_offset_ns)).collect::<Vec<_>>(),
        "dut_offset_ns": info.dut_offset_ns,
        "losses": losses.iter().map(LossSum::as_json).collect::<Vec<_>>(),
        "cost": manifest.summary.as_ref().map(|s| cost_json(&s.cost)),
        "notes": info.provenance.iter().map(|p| json!({
            "key": p.key, "value": p.value, "meaning": p.meaning,
        })).collect::<Vec<_>>(),
        "devices": info.devices.iter().map(|d| device_json(&device(d))).collect::<Vec<_>>(),
    }))
}
