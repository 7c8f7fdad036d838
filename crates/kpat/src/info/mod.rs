//! `kpat info`: what a log is and how far it can be trusted. Both kinds: as recorded, and integrated.

pub mod balance;
mod integrated;
mod recorded;

use crate::open;
use crate::output::{Output, sample_is_shown, sample_words};
use crate::render::{Line, Pairs, Style, count, duration, percent, plural};
use anyhow::bail;
pub use integrated::link_type;
use kpat_model::LossCause;
use kpat_model::meta::{Cost, Interval, Meta};
use kpat_query::{TimeScale, clock_assumed, clock_method, time_scale};
use kpat_store::tables::{ClockRow, LossRow};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// A kernel behaviour log or an integrated log
    #[arg(value_name = "X.kpat|X.kbl")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    sample_is_shown();
    match open::kind(&args.log)? {
        open::Kind::Integrated => integrated::run(&args.log, &args.device, out),
        open::Kind::Log | open::Kind::Other => recorded::run(&args.log, out),
        open::Kind::Capture => bail!(
            "{} is a capture of the wire; kpat info is about X.kbl and X.kpat (capinfos describes captures)",
            args.log.display()
        ),
    }
}

/// Losses of one cause.
pub struct LossSum {
    pub cause: i32,
    pub count: u64,
    pub cpus: Vec<i32>,
}

impl LossSum {
    pub fn of(rows: &[LossRow]) -> Vec<LossSum> {
        let mut sums: BTreeMap<i32, (u64, Vec<i32>)> = BTreeMap::new();
        for row in rows {
            let (count, cpus) = sums.entry(row.cause).or_default();
            *count = count.saturating_add(row.count.unsigned_abs());
            cpus.extend(row.cpu);
        }
        sums.into_iter()
            .map(|(cause, (count, mut cpus))| {
                cpus.sort_unstable();
                cpus.dedup();
                LossSum { cause, count, cpus }
            })
            .filter(|s| s.count > 0)
            .collect()
    }

    fn known(&self) -> Option<LossCause> {
        LossCause::from_number(self.cause)
    }

    fn name(&self) -> String {
        self.known().map_or_else(|| format!("cause {}", self.cause), |c| c.name().to_owned())
    }

    pub fn as_json(&self) -> Value {
        json!({
            "cause": self.name(),
            "count": self.count,
            "cpus": self.cpus,
            "advice": self.known().map(LossCause::advice),
        })
    }
}

/// One line per cause with what to do about it. `total` is what the log says in all; if it was not `complete`, it is not known
/// what its recorder still had.
pub fn add_losses(pairs: &mut Pairs, losses: &[LossSum], total: u64, complete: bool) {
    if losses.is_empty() {
        match total {
            0 if !complete => {
                let words = "none known; what the recorder had not written is not in the log";
                pairs.line("losses", Line::of(words, Style::Warn));
            }
            0 => pairs.line("losses", Line::of("none", Style::Good)),
            n => pairs.line("losses", Line::of(format!("{} records", count(n)), Style::Bad)),
        }
        return;
    }
    for (i, loss) in losses.iter().enumerate() {
        let mut line = Line::of(format!("{} {}", count(loss.count), loss.name()), Style::Bad);
        if !loss.cpus.is_empty() {
            let cpus: Vec<String> = loss.cpus.iter().map(i32::to_string).collect();
            line = line.plain(format!(" on CPU {}", cpus.join(", ")));
        }
        if let Some(cause) = loss.known() {
            line = line.plain(format!(": {}", cause.advice()));
        }
        pairs.line(if i == 0 { "losses" } else { "" }, line);
    }
}

/// Kernel, mechanism, selection: what both kinds of log say of the recording.
fn add_recording(pairs: &mut Pairs, meta: &Meta, functions: &str) {
    pairs.add("host", &meta.hostname);
    if !meta.kernel_release.is_empty() {
        pairs.add("kernel", format!("{} {}, {} CPUs", meta.kernel_release, meta.arch, meta.cpus));
    }
    if meta.sources.len() > 1 {
        pairs.each("sources", meta.sources.iter().map(|s| format!("{} by {}", s.name, s.mechanism)));
    } else {
        let others = meta.functions.iter().filter(|f| !f.mechanism.is_empty()).count();
        pairs.add(
            "mechanism",
            match others {
                0 => meta.mechanism.clone(),
                n => format!("{}, fentry for {n} functions", meta.mechanism),
            },
        );
    }
    pairs.each("passed over", meta.passed_over.iter().cloned());
    if !meta.build.is_empty() {
        pairs.add("BPF build", &meta.build);
    }
    pairs.each("not taken", meta.build_passed_over.iter().cloned());
    pairs.add("profile", &meta.profile);
    if !meta.detail.is_empty() {
        pairs.add("detail", &meta.detail);
    }
    pairs.add("filter", if meta.filter.is_empty() { "none: all packets" } else { &meta.filter });
    if !meta.only.is_empty() {
        pairs.line("processes", Line::of(format!("only {}", meta.only.join(", ")), Style::Warn));
    }
    if let Some(sample) = &meta.sample {
        pairs.line("sample", Line::of(format!("{sample}: {}", sample_words(sample)), Style::Warn));
    }
    if !meta.netns.is_empty() {
        let list: Vec<String> = meta.netns.iter().map(u32::to_string).collect();
        pairs.add("namespaces", list.join(", "));
    }
    pairs.add("functions", functions);
    match meta.functions.iter().filter(|f| f.entry_only).count() {
        0 => {}
        n => pairs
            .add("entries only", format!("{} functions: their returns were not recorded", count(n as u64))),
    }
    pairs.add("command", meta.command.join(" "));
}

/// The cost line. `bytes`, `records`: of the log.
fn cost_line(cost: &Cost, bytes: u64, records: u64) -> Option<String> {
    if cost.wall_ns == 0 && cost.probe_hits == 0 {
        return None;
    }
    let mut parts = probe_words(cost);
    if let Some(switches) = switch_words(cost) {
        parts.push(switches);
    }
    if cost.wall_ns > 0 {
        parts.push(format!("drain {} of one CPU", percent(cost.drain_cpu_ns, cost.wall_ns)));
    }
    if records > 0 {
        parts.push(format!("{:.1} bytes per record", bytes as f64 / records as f64));
    }
    if cost.attach_ns > 0 {
        parts.push(format!("attached in {}", duration(cost.attach_ns as i64)));
    }
    Some(parts.join(", "))
}

/// Three digits of what is only estimated.
fn rounded(n: u64) -> String {
    let unit = 10u64.pow(n.checked_ilog10().unwrap_or(0).saturating_sub(2));
    count((n + unit / 2) / unit * unit)
}

fn estimate(n: u64, bounds: Option<Interval>) -> String {
    match bounds {
        Some(Interval { low, high }) if low != high => {
            format!("about {} ({} to {})", rounded(n), rounded(low), rounded(high))
        }
        _ => count(n),
    }
}

/// How often programs ran where packets pass, how long each, and what share of the CPUs that was, with bounds.
pub fn probe_words(cost: &Cost) -> Vec<String> {
    let bounds = cost.bounds.as_ref();
    let of_cpus = |ns: u64| 100.0 * ns as f64 / (cost.wall_ns.max(1) as f64 * f64::from(cost.cpus.max(1)));
    let sampled = bounds.map_or(0.0, |b| 100.0 * b.sampled_ns as f64 / cost.wall_ns.max(1) as f64).min(100.0);
    let mut parts = Vec::new();
    match bounds {
        None if cost.probe_hits == 0 => parts.push("probe hits not counted".to_owned()),
        Some(b) if b.probe_hits.is_none() => parts.push(format!(
            "probe hits not known, at least {}: too little of the traffic fell into the {sampled:.1} % of the time in which the kernel counted",
            count(b.sampled_hits)
        )),
        _ => parts.push(format!(
            "{} probe hits",
            estimate(cost.probe_hits, bounds.and_then(|b| b.probe_hits))
        )),
    }
    if let Some(each) = cost.ns_per_hit() {
        let range = match bounds.and_then(|b| b.ns_per_hit) {
            Some(Interval { low, high }) => format!(" ({low} to {high})"),
            None => String::new(),
        };
        parts.push(format!("{each:.0} ns each{range}"));
    }
    if cost.probe_ns > 0 {
        let range = match bounds.and_then(|b| b.probe_ns) {
            Some(Interval { low, high }) if low != high => {
                format!(" ({:.2} to {:.2})", of_cpus(low), of_cpus(high))
            }
            _ => String::new(),
        };
        parts.push(format!("{:.2} %{range} of {} CPUs in probes", of_cpus(cost.probe_ns), cost.cpus));
    }
    match bounds {
        Some(b) if b.probe_hits.is_some_and(|i| i.low != i.high) => {
            parts.push(format!("sampled {sampled:.1} % of the time"));
        }
        None if cost.probe_hits > 0 => parts.push("estimated without a bound".to_owned()),
        _ => {}
    }
    parts
}

fn switch_words(cost: &Cost) -> Option<String> {
    let bounds = cost.bounds.as_ref().and_then(|b| b.switch_hits);
    (cost.switch_hits > 0 && cost.switch_ns > 0).then(|| {
        let each = cost.switch_ns / cost.switch_hits;
        format!(
            "{} switches of tasks, wake-ups and softirqs, {each} ns each",
            estimate(cost.switch_hits, bounds)
        )
    })
}

pub fn cost_json(cost: &Cost) -> Value {
    let interval = |i: Option<Interval>| i.map(|i| json!({ "low": i.low, "high": i.high }));
    let bounds = cost.bounds.as_ref().map(|b| {
        json!({
            "windows": b.windows,
            "sampled_ns": b.sampled_ns,
            "sampled_hits": b.sampled_hits,
            "sampled_probe_ns": b.sampled_probe_ns,
            "probe_hits": interval(b.probe_hits),
            "probe_ns": interval(b.probe_ns),
            "ns_per_hit": interval(b.ns_per_hit),
            "switch_hits": interval(b.switch_hits),
            "switch_ns": interval(b.switch_ns),
        })
    });
    json!({
        "ns_per_hit": cost.ns_per_hit(),
        "bounds": bounds,
        "probe_hits": cost.probe_hits,
        "probe_ns": cost.probe_ns,
        "switch_hits": cost.switch_hits,
        "switch_ns": cost.switch_ns,
        "drain_cpu_ns": cost.drain_cpu_ns,
        "wall_ns": cost.wall_ns,
        "cpus": cost.cpus,
        "attach_ns": cost.attach_ns,
        "detach_ns": cost.detach_ns,
    })
}

fn recording_json(meta: &Meta) -> Value {
    json!({
        "writer": meta.writer,
        "hostname": meta.hostname,
        "kernel_release": meta.kernel_release,
        "kernel_version": meta.kernel_version,
        "arch": meta.arch,
        "boot_id": meta.boot_id,
        "cpus": meta.cpus,
        "mechanism": meta.mechanism,
        "by_fentry": meta.functions.iter().filter(|f| !f.mechanism.is_empty()).map(|f| &f.name).collect::<Vec<_>>(),
        "entry_only": meta.functions.iter().filter(|f| f.entry_only).map(|f| &f.name).collect::<Vec<_>>(),
        "passed_over": meta.passed_over,
        "build": meta.build,
        "build_passed_over": meta.build_passed_over,
        "profile": meta.profile,
        "sources": meta.sources,
        "detail": meta.detail,
        "filter": meta.filter,
        "sample": meta.sample,
        "only": meta.only,
        "netns": meta.netns,
        "command": meta.command,
        "ring_bytes_per_cpu": meta.ring_bytes_per_cpu,
        "started_boot_ns": meta.started.boot.0,
        "started_wall_ns": meta.started.wall.0,
        "started_uncertainty_ns": meta.started.uncertainty_ns,
    })
}

/// How a capture's clock relates to the DUT's. `dut_offset_ns`: boot less wall of the DUT, so that the
/// difference of the two wall clocks is known.
pub fn clock_lines(capture: &str, c: &ClockRow, dut_offset_ns: Option<i64>) -> Vec<Line> {
    if c.method == clock_method::BETWEEN {
        return vec![set_line(capture, c)];
    }
    let scale = match time_scale(c, dut_offset_ns) {
        TimeScale::Tai => " (it counts TAI, 37 s ahead of UTC)",
        TimeScale::Gps => " (it counts GPS time, 18 s ahead of UTC)",
        TimeScale::Own => " (it counts from an epoch of its own and was never set)",
        TimeScale::Utc | TimeScale::Other | TimeScale::Unknown => "",
    };
    let offset = match dut_offset_ns {
        Some(dut) => {
            let behind = c.offset_ns.saturating_sub(dut);
            format!(
                "its wall clock is {} {} the device's",
                duration(behind.saturating_abs()),
                if behind < 0 { "ahead of" } else { "behind" }
            )
        }
        None => format!(
            "boot = wall {}{}",
            if c.offset_ns < 0 { "- " } else { "+ " },
            duration(c.offset_ns.saturating_abs())
        ),
    };
    let bound = if c.method == clock_method::HULL || c.method == clock_method::ON_DUT {
        Style::Good
    } else {
        Style::Warn
    };
    let mut lines = vec![
        Line::of(capture, Style::Strong)
            .plain(format!(": {offset}{scale}, "))
            .put(format!("±\u{a0}{}", duration(c.bound_ns).replace(' ', "\u{a0}")), bound),
        Line::new().plain(format!("drift {} ± {} ppm", ppm(c.drift_ppb), ppm(c.drift_bound_ppb))),
    ];
    lines.push(Line::new().faint(clock_method::basis(c, |n| count(n.unsigned_abs()))));
    // Of the device's own clock nothing scatters.
    if let (Some(stamp), true) = (c.stamp_bound_ns, c.method != clock_method::ON_DUT) {
        let noise = c.noise_ns.map(|n| format!("the sniffer's stamps scatter by up to {}, ", duration(n)));
        let stamp = format!("{}one frame's is within ± {}", noise.unwrap_or_default(), duration(stamp));
        lines.push(Line::new().faint(stamp));
    }
    let assumed = clock_assumed::words(c.assumed.unwrap_or(0));
    if !assumed.is_empty() {
        lines.push(Line::new().put(format!("assumed: {}", assumed.join("; ")), Style::Warn));
    }
    lines
}

/// The clock was set between two frames.
fn set_line(capture: &str, c: &ClockRow) -> Line {
    let between = match (c.from_number, c.to_number) {
        (Some(from), Some(to)) => {
            format!(" between frames {} and {}", count(from.unsigned_abs()), count(to.unsigned_abs()))
        }
        _ => String::new(),
    };
    Line::of(capture, Style::Strong)
        .plain(format!(": its clock was set{between}, there "))
        .put(format!("±\u{a0}{}", duration(c.bound_ns).replace(' ', "\u{a0}")), Style::Warn)
}

/// Stretches of one clock that `info` prints at most, and `integrate`.
pub const STRETCHES: usize = 12;
pub const FEW_STRETCHES: usize = 3;

/// The longest ones, in their order, if there are more; how many are left out, with their bounds.
pub fn shown(clocks: &[ClockRow], capture_id: i32, most: usize) -> (Vec<&ClockRow>, Option<Line>) {
    let of: Vec<&ClockRow> = clocks.iter().filter(|c| c.capture_id == capture_id).collect();
    if of.len() <= most {
        return (of, None);
    }
    let mut by_length: Vec<usize> = (0..of.len()).collect();
    by_length.sort_by_key(|i| std::cmp::Reverse(of[*i].to_wall_ns.saturating_sub(of[*i].from_wall_ns)));
    let mut chosen = by_length[..most].to_vec();
    chosen.sort_unstable();
    let left = by_length[most..].iter().map(|i| of[*i].bound_ns);
    let (low, high) = left.fold((i64::MAX, 0), |(low, high), b| (low.min(b), high.max(b)));
    let words = format!(
        "and {}, ± {} to {}: --json lists all",
        plural((of.len() - most) as u64, "shorter interval"),
        duration(low),
        duration(high)
    );
    (chosen.into_iter().map(|i| of[i]).collect(), Some(Line::new().faint(words)))
}

fn ppm(ppb: i64) -> String {
    format!("{:.3}", ppb as f64 / 1e3)
}

pub fn clock_json(c: &ClockRow, dut_offset_ns: Option<i64>) -> Value {
    json!({
        "capture_id": c.capture_id,
        "from_wall_ns": c.from_wall_ns,
        "to_wall_ns": c.to_wall_ns,
        "offset_ns": c.offset_ns,
        "bound_ns": c.bound_ns,
        "drift_ppb": c.drift_ppb,
        "drift_bound_ppb": c.drift_bound_ppb,
        "received_matches": c.received,
        "transmitted_matches": c.transmitted,
        "rejected_matches": c.rejected,
        "method": clock_method::name(c.method),
        "stamp_bound_ns": c.stamp_bound_ns,
        "noise_ns": c.noise_ns,
        "assumed": clock_assumed::words(c.assumed.unwrap_or(0)),
        "confidence_percent": c.confidence,
        "from_number": c.from_number,
        "to_number": c.to_number,
        "time_scale": time_scale(c, dut_offset_ns).name(),
    })
}
