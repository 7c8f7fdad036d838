//! What the log is.

use super::{Answer, Ask};
use crate::answers::log::{CaptureFile, Counts, Device, Field, FieldKind, Info, Loss, WallStep, Words};
use crate::answers::{Big, Ns};
use crate::open::Log;
use kpat_model::LossCause;
use kpat_model::meta::{Cost, Interval};
use kpat_query::filter::{FIELDS, Kind};
use kpat_store::tables::LossRow;
use kpat_text::count;

pub fn rows(log: &Log, table: &str) -> u64 {
    log.info.manifest.tables.iter().find(|t| t.table == table).map_or(0, |t| t.rows)
}

pub fn cause(code: i32) -> String {
    LossCause::from_number(code).map_or_else(|| format!("cause {code}"), |c| c.name().to_owned())
}

pub fn losses(log: &Log, rows: &[LossRow]) -> Vec<Loss> {
    let start = log.start_ns();
    rows.iter()
        .map(|l| Loss {
            cause: cause(l.cause),
            advice: LossCause::from_number(l.cause).map_or("", LossCause::advice).to_owned(),
            cpu: l.cpu,
            from: Ns(l.from_ns.saturating_sub(start)),
            to: Ns(l.to_ns.saturating_sub(start)),
            count: l.count,
        })
        .collect()
}

/// What is doubtful, one sentence each.
fn notes(log: &Log, live: bool) -> Vec<String> {
    let reported = |key: &str, n: u64| match key {
        "calls.crossing" => Some(format!("{n} calls overlap a neighbour: which called which is not certain")),
        "calls.self_clamped" => {
            Some(format!("{n} calls are shorter than what they called: self time taken as 0"))
        }
        "times.absurd" => Some(format!("{n} times in damaged records that no clock shows")),
        "members.orphaned" => Some(format!("{n} packets of lists whose call is not in the log")),
        "packets.late" => Some(format!("{n} records came after their packet had ended")),
        "frames.ambiguous" => Some(format!("{n} frames match several packets about equally well")),
        _ => None,
    };
    let mut out: Vec<String> = Vec::new();
    for p in &log.info.provenance {
        // That a running recording is not closed is not a fault.
        if p.key == "warning" && live && p.value.contains("was not closed in order") {
            continue;
        }
        if p.key == "warning" {
            out.push(p.value.clone());
        } else {
            out.extend(p.value.parse().ok().filter(|n| *n > 0).and_then(|n| reported(&p.key, n)));
        }
    }
    if !live && log.info.manifest.summary.as_ref().is_none_or(|s| !s.complete) {
        out.push("the recording was not closed; what it had written is here".to_owned());
    }
    if let Some(catalog) = log.loaded() {
        if catalog.cut > 0 {
            out.push(format!(
                "the list of packets is cut: {} more rows do not fit into memory",
                count(catalog.cut)
            ));
        }
        if catalog.unplaced > 0 {
            out.push(format!("{} frames are not listed: their time is not known", count(catalog.unplaced)));
        }
    }
    out
}

/// What the probes cost, in one sentence.
fn cost(log: &Log) -> Option<Words> {
    let cost = &log.info.manifest.summary.as_ref()?.cost;
    if cost.probe_hits == 0 && cost.bounds.is_none() {
        return None;
    }
    let mut words = format!("{} runs of probes", hits(cost));
    if let Some(each) = cost.ns_per_hit() {
        words += &format!(", {each:.0} ns each");
    }
    if cost.probe_ns > 0 {
        words += &format!(
            ": {} of all CPUs",
            share(cost, cost.probe_ns, cost.bounds.as_ref().and_then(|b| b.probe_ns))
        );
    }
    Some(Words { words })
}

/// Number of runs with its bounds, or that it is not known.
pub(super) fn hits(cost: &Cost) -> String {
    match cost.bounds.as_ref().map(|b| (b.probe_hits, b.sampled_hits)) {
        None => format!("{} (no bound known)", count(cost.probe_hits)),
        Some((None, least)) => format!("at least {} (not all was sampled)", count(least)),
        Some((bounds, _)) => bounded(cost.probe_hits, bounds),
    }
}

pub(super) fn bounded(n: u64, bounds: Option<Interval>) -> String {
    match bounds {
        Some(Interval { low, high }) if low != high => {
            format!("about {} ({} to {})", count(n), count(low), count(high))
        }
        _ => count(n),
    }
}

/// Of the time of all CPUs, with its bounds.
pub(super) fn share(cost: &Cost, ns: u64, bounds: Option<Interval>) -> String {
    let all = cost.wall_ns.max(1) as f64 * f64::from(cost.cpus.max(1));
    let of = |ns: u64| ns as f64 * 100.0 / all;
    match bounds {
        Some(Interval { low, high }) if low != high => {
            format!("{:.2} % ({:.2} to {:.2})", of(ns), of(low), of(high))
        }
        _ => format!("{:.2} %", of(ns)),
    }
}

fn fields(log: &Log) -> Vec<Field> {
    let devices = || {
        let mut names: Vec<String> = log.info.devices.iter().map(|d| d.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    let of = |f: &kpat_query::filter::Field| {
        let fixed = f.values();
        let values = match f.name {
            "if_in" | "if_out" | "interface" => Some(devices()),
            "capture" => Some(captures(log).into_iter().map(|c| c.name).collect()),
            _ => (!fixed.is_empty()).then(|| fixed.into_iter().map(str::to_owned).collect()),
        };
        Field {
            name: f.name.to_owned(),
            kind: match f.kind {
                Kind::Number => FieldKind::Number,
                Kind::Duration => FieldKind::Duration,
                Kind::Text => FieldKind::Text,
                Kind::Address => FieldKind::Address,
                Kind::Word => FieldKind::Word,
                Kind::Flag => FieldKind::Flag,
            },
            words: f.words.to_owned(),
            values,
        }
    };
    FIELDS.iter().map(of).collect()
}

fn wall_steps(log: &Log) -> Vec<WallStep> {
    let mut ahead = 0i64;
    let step = |s: &kpat_model::wall::WallStep| {
        ahead = ahead.wrapping_add(s.by_ns);
        WallStep { at_ns: Ns(s.before.0.saturating_sub(log.start_ns())), ahead_ns: Big(ahead) }
    };
    log.info.manifest.wall_steps.iter().map(step).collect()
}

fn captures(log: &Log) -> Vec<CaptureFile> {
    let sources = log.info.manifest.sources.iter().filter(|s| s.role == "capture");
    sources
        .map(|s| {
            let of = || log.info.interfaces.iter().filter(|i| i.capture_id == s.capture_id);
            CaptureFile {
                id: s.capture_id,
                name: s.name.clone(),
                frames: of().map(|i| i.frames.unsigned_abs()).sum(),
                matched: of().map(|i| i.matched.unsigned_abs()).sum(),
            }
        })
        .collect()
}

pub fn info(ask: &Ask<'_>) -> Answer<Info> {
    let log = ask.log;
    ask.service.load(log);
    let manifest = &log.info.manifest;
    let meta = &manifest.log;
    let catalog = log.loaded();
    let trust = log.info.trust();
    let name_of = |netns: i64, name: &str| if name.is_empty() { netns.to_string() } else { name.to_owned() };
    Ok(Info {
        name: ask.opened.name.clone(),
        generation: ask.service.generation(),
        live: ask.service.is_live(),
        loaded: catalog.is_some(),
        device: log.among.as_ref().map(|a| a.name.clone()),
        device_names: ask
            .opened
            .devices
            .iter()
            .filter_map(|d| d.among.as_ref().map(|a| a.name.clone()))
            .collect(),
        host: meta.hostname.clone(),
        kernel: meta.kernel_release.clone(),
        arch: meta.arch.clone(),
        mechanism: meta.mechanism.clone(),
        filter: meta.filter.clone(),
        only: meta.only.clone(),
        sample: meta.sample.map(|s| format!("1/{} of {}s", s.one_in, s.by.noun())),
        profile: match meta.detail.as_str() {
            "" => meta.profile.clone(),
            detail => format!("{}, {detail}", meta.profile),
        },
        start_boot_ns: Big(log.start_ns()),
        start_wall_ns: log.info.dut_offset_ns.map(|o| Big(log.start_ns().wrapping_sub(o))),
        wall_steps: wall_steps(log),
        length_ns: Ns(manifest.last_ns.saturating_sub(manifest.first_ns)),
        counts: Counts {
            packets: rows(log, "packet"),
            frames: rows(log, "frame"),
            calls: rows(log, "call"),
            events: rows(log, "event"),
            functions: log.info.functions,
            sockets: rows(log, "socket"),
            rows: catalog.map_or_else(|| rows(log, "packet"), |c| c.entries.len() as u64),
        },
        captures: captures(log),
        devices: log
            .info
            .devices
            .iter()
            .map(|d| Device {
                netns: name_of(d.netns, &d.netns_name),
                ifindex: d.ifindex,
                name: d.name.clone(),
                driver: d.driver.clone(),
            })
            .collect(),
        cpus: meta.cpus,
        losses: losses(log, &log.info.losses),
        cost: cost(log),
        trust_ppm: trust.worst().map(kpat_query::TrustPart::ppm),
        trust_words: trust.worst().map(|p| p.words.clone()),
        compare: super::functions::compared_with(ask.opened),
        fields: fields(log),
        notes: notes(log, ask.service.is_live()),
    })
}

/// File name of a log.
pub fn name(log: &Log) -> String {
    log.dir.file_name().unwrap_or(log.dir.as_os_str()).to_string_lossy().into_owned()
}
