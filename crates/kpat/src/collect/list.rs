//! `kpat collect list`: devices, gaps, losses, clocks.

use super::logged;
use crate::output::Output;
use crate::render::{Column, Line, Style, Table, bytes, count, duration, plural, time_of_day};
use kpat_collect::list::{Clock, Device, Gap, list};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Folder with the devices' folders
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Only these devices
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let mut devices = list(&args.folder).map_err(logged)?;
    if let Some(name) = args.devices.iter().find(|n| !devices.iter().any(|d| d.name == **n)) {
        return Err(crate::output::usage(format!("no device {name} in {}", args.folder.display())));
    }
    devices.retain(|d| args.devices.is_empty() || args.devices.contains(&d.name));
    if out.json {
        out.value(&serde_json::to_value(&devices)?)?;
    } else {
        table(&devices, out)?;
        for d in &devices {
            details(d, out)?;
        }
    }
    let bad = |d: &Device| !(d.gaps.is_empty() && d.losses.is_empty() && d.unreadable.is_empty());
    Ok(out.ended(devices.iter().any(bad)))
}

fn wall(ns: Option<i64>) -> String {
    ns.map_or_else(
        || "-".to_owned(),
        |ns| time_of_day(ns - ns.rem_euclid(1_000_000_000), true).chars().take(19).collect(),
    )
}

fn table(devices: &[Device], out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::left("device", 0, 0),
        Column::right("files", 1),
        Column::right("size", 2),
        Column::right("records", 1),
        Column::left("from (UTC)", 0, 0),
        Column::left("to (UTC)", 0, 0),
        Column::right("gaps", 0),
        Column::right("lost", 0),
        Column::left("clock", 0, 0),
    ]);
    for d in devices {
        let plain = |text: String| (text, Style::Plain);
        let lost: u64 = d.losses.iter().map(|l| l.count).sum();
        let warn = |n: u64| (count(n), if n > 0 { Style::Warn } else { Style::Plain });
        table.row(vec![
            plain(d.name.clone()),
            plain(count(d.files)),
            plain(bytes(d.bytes)),
            plain(count(d.records)),
            plain(wall(d.from_wall_ns)),
            plain(wall(d.to_wall_ns)),
            warn(d.gaps.len() as u64),
            warn(lost),
            plain(clock_words(d)),
        ]);
    }
    out.lines(&table.render(out.width).0)
}

/// Of the worst of its recordings.
fn clock_words(d: &Device) -> String {
    let steps: usize = d.recordings.iter().map(|r| r.clock.steps.len()).sum();
    let longest = d.recordings.iter().max_by_key(|r| r.to_boot_ns - r.from_boot_ns);
    let mut words = longest.map_or_else(String::new, |r| one_clock(&r.clock));
    if steps > 0 {
        words += &format!(", {} set", if steps == 1 { "once".into() } else { format!("{steps} times") });
    }
    words
}

fn one_clock(c: &Clock) -> String {
    let known = format!("known to {}", duration(c.uncertainty_ns));
    match (c.drift_ppm, c.drift_bound_ppm) {
        (Some(d), Some(b)) => format!("{known}, {d:+.2} ±{b:.2} ppm"),
        _ => known,
    }
}

fn details(d: &Device, out: &Output) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for g in &d.gaps {
        lines.push(Line::new().plain(format!("{}: ", d.name)).put(gap_words(g), Style::Warn));
    }
    if let Some(last) = d.recordings.last().filter(|r| r.end == "open") {
        let words = format!(
            "{} UTC: the last recording was not closed: its recorder was killed, and no recording followed",
            wall(Some(last.to_wall_ns))
        );
        lines.push(Line::new().plain(format!("{}: ", d.name)).put(words, Style::Warn));
    }
    for r in &d.recordings {
        for s in &r.clock.steps {
            let at = r.from_wall_ns + (s.after_boot_ns - r.from_boot_ns);
            let by = if s.by_ns < 0 {
                format!("-{}", duration(-s.by_ns))
            } else {
                format!("+{}", duration(s.by_ns))
            };
            lines.push(Line::new().plain(format!("{}: ", d.name)).put(
                format!(
                    "the clock was set by {by} within {} after {} UTC",
                    duration(s.before_boot_ns - s.after_boot_ns),
                    wall(Some(at))
                ),
                Style::Warn,
            ));
        }
    }
    for l in &d.losses {
        let place = if l.cpu >= 0 { format!(" on CPU {}", l.cpu) } else { String::new() };
        lines.push(
            Line::new()
                .plain(format!("{}: ", d.name))
                .put(format!("lost {} ({}){place}", count(l.count), l.cause), Style::Warn),
        );
    }
    for u in &d.unreadable {
        lines.push(Line::new().plain(format!("{}: ", d.name)).put(u.clone(), Style::Bad));
    }
    if !lines.is_empty() {
        out.line(&Line::new())?;
    }
    out.lines(&lines)
}

fn gap_words(g: &Gap) -> String {
    let span = format!("{} to {} UTC", wall(Some(g.from_wall_ns)), wall(Some(g.to_wall_ns)));
    let long = match g.seconds {
        Some(s) => format!(", {}", duration((s * 1e9) as i64)),
        None if g.kind == "files" => String::new(),
        None => ", the device rebooted in between".to_owned(),
    };
    let what = match (g.kind, g.first_file, g.last_file) {
        ("killed", ..) => "the recorder was killed; what it recorded after its last chunk is lost".to_owned(),
        ("between", ..) => "nothing was recorded, or its files are missing".to_owned(),
        (_, a, b) if a == b => format!("file {a} of the recording is missing"),
        (_, a, b) => format!("files {a} to {b} of the recording are missing"),
    };
    let records = g.records.map_or_else(String::new, |n| format!(", {}", plural(n, "record")));
    let thrown = if g.thrown_away { "; the device deleted them because its spool was full" } else { "" };
    format!("{span}{long}: {what}{records}{thrown}")
}
