//! What the samples of a profile say: functions, who calls whom, formats for other tools; and how far they agree with the exact sums.

use crate::export::target::{self, Target};
use crate::open::Integrated;
use crate::output::{Output, usage};
use crate::render::{Column, Line, Pairs, Style, Table, count};
use clap::ValueEnum;
use kpat_model::ProcessNumber;
use kpat_query::Store;
use kpat_query::profile::{Profile, pid as pid_of};
use kpat_query::sampled::timed::timed;
use kpat_query::sampled::{Agreement, Sampled, agreement, sampled};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct SampledArgs {
    /// Functions by the time in them, as gprof's flat profile
    #[arg(long)]
    flat: bool,
    /// Who calls whom, as gprof's call graph, from user mode into the kernel
    #[arg(long)]
    graph: bool,
    /// Write the samples in a format of other tools
    #[arg(long = "to", short = 't', value_name = "FORMAT", conflicts_with_all = ["flat", "graph"])]
    format: Option<Format>,
    /// With --to: the file to write [default: standard output]
    #[arg(long, short, value_name = "FILE", requires = "format")]
    output: Option<PathBuf>,
    /// With --to: a file for each process in this folder, which must not exist, and one for what is no process's
    #[arg(long, value_name = "DIR", requires = "format", conflicts_with = "output")]
    per_process: Option<PathBuf>,
    /// Packets that this function worked on (`NAME`, or `PIDk:NAME`), by samples; of a log that has packets, too
    #[arg(long, value_name = "NAME", conflicts_with_all = ["flat", "graph", "format", "pid", "comm", "cgroup", "user"])]
    pub function: Option<String>,
    /// With --function: only these packets, for example: udp port 53
    #[arg(long, value_name = "EXPRESSION", requires = "function")]
    pub packets: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Flat profile and call graph, as GNU gprof prints them
    Gprof,
    /// Stacks of functions, one per line; for flame graphs
    Folded,
    /// Stacks with whom they served and whose time it was as labels; for go tool pprof and compatible tools
    Pprof,
    /// Samples over time by the process that they served, and charges as counters; for ui.perfetto.dev
    Perfetto,
    /// A flame graph as a picture
    Svg,
    /// Stacks, one JSON object per line
    Json,
}

impl SampledArgs {
    pub fn is_asked(&self) -> bool {
        self.flat || self.graph || self.format.is_some()
    }
}

pub const NOTHING: &str = "this log has no samples: of what it profiles nothing ran when one was taken, or it was recorded with --rate 0";

/// Whom they `served`; `None`: all.
pub fn run(
    args: &super::Args,
    log: &Integrated,
    p: &Profile,
    served: Option<&BTreeSet<i32>>,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let s = sampled(log, served)?.ok_or_else(|| usage(NOTHING))?;
    let own = &args.sampled;
    let limit = if args.limit == 0 || own.format.is_some() { usize::MAX } else { args.limit };
    if out.json && own.format.is_none() {
        out.value(&functions_json(&s, limit))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(dir) = &own.per_process {
        return per_process(args, log, p, &s, dir, out);
    }
    let target = own.output.as_deref().filter(|p| *p != Path::new("-"));
    let binary = matches!(own.format, Some(Format::Pprof | Format::Perfetto));
    if target.is_none() && binary && target::stdout_is_terminal() {
        return Err(usage("this format cannot be shown in a terminal; give a file with -o"));
    }
    let mut to = Target::open(target, &args.log)?;
    let title = args.log.file_stem().unwrap_or_default().to_string_lossy();
    let done = write(own, log, p, &s, &title, limit, to.writer());
    to.finish(done)?;
    Ok(ExitCode::SUCCESS)
}

fn write(
    own: &SampledArgs,
    log: &Integrated,
    p: &Profile,
    s: &Sampled,
    title: &str,
    limit: usize,
    w: &mut dyn std::io::Write,
) -> kpat_formats::Result<()> {
    use kpat_formats::sampled as write;
    let text = |w: &mut dyn std::io::Write, flat, graph| {
        if flat {
            write::flat(s, limit, w)?;
        }
        if flat && graph {
            writeln!(w)?;
        }
        if graph { write::graph(s, limit, w) } else { Ok(()) }
    };
    match own.format {
        None => text(w, own.flat, own.graph),
        Some(Format::Gprof) => text(w, true, true),
        Some(Format::Folded) => write::folded(s, w),
        Some(Format::Pprof) => write::pprof(log, s, w),
        Some(Format::Perfetto) => write::perfetto(p, timed(log)?.as_ref(), w),
        Some(Format::Json) => write::json(s, w),
        Some(Format::Svg) => w.write_all(kpat_draw::flame::flame(s, title).as_bytes()).map_err(Into::into),
    }
}

/// A file for each process that samples are charged to, and one for what is no process's.
fn per_process(
    args: &super::Args,
    log: &Integrated,
    p: &Profile,
    s: &Sampled,
    dir: &Path,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let own = &args.sampled;
    let Some(ending) = own.format.and_then(Format::ending) else {
        return Err(usage(
            "Perfetto's trace has all processes in one file; --per-process is for the other formats",
        ));
    };
    if dir.exists() {
        return Err(usage(format!("{} exists; --per-process makes a new folder", dir.display())));
    }
    let all: BTreeSet<Option<i32>> = s.stacks.iter().map(|w| w.served).collect();
    target::new_folder(dir, |partial| {
        for served in &all {
            let name = match served {
                Some(n) => format!("{}.{}", file_name(s.process_name(*n)), ProcessNumber::from(*n)),
                None => "no-process".into(),
            };
            let path = partial.join(format!("{name}.{ending}"));
            let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
            let mut to = std::io::BufWriter::new(file);
            write(own, log, p, &s.of(*served), &name, usize::MAX, &mut to)?;
            std::io::Write::flush(&mut to)?;
        }
        Ok(())
    })?;
    out.say(&format!("{}: {} files", dir.display(), all.len()));
    Ok(ExitCode::SUCCESS)
}

/// Of a process: no folder, no hidden file.
fn file_name(process: &str) -> String {
    let fit = |c: char| if c == '/' || c.is_control() || c.is_whitespace() { '_' } else { c };
    let name: String = process.chars().map(fit).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

impl Format {
    /// Of the name of a file for one process.
    fn ending(self) -> Option<&'static str> {
        match self {
            Format::Gprof => Some("gprof"),
            Format::Folded => Some("folded"),
            Format::Pprof => Some("pb.gz"),
            Format::Svg => Some("svg"),
            Format::Json => Some("json"),
            Format::Perfetto => None,
        }
    }
}

fn functions_json(s: &Sampled, limit: usize) -> Value {
    let function = |f: u32| {
        let f = s.function(f);
        json!({ "label": f.label(), "process": pid_of(f.process), "kernel": f.is_kernel, "function": f.name, "file": f.file })
    };
    let arcs = |all: &[(u32, kpat_query::sampled::Time)]| {
        let arc = |(f, t): &(u32, kpat_query::sampled::Time)| json!({ "label": s.function(*f).label(), "self_ns": t.self_ns, "total_ns": t.total_ns });
        all.iter().map(arc).collect::<Vec<_>>()
    };
    let all: Vec<Value> = s
        .graph()
        .iter()
        .take(limit)
        .map(|n| {
            let mut v = function(n.function);
            v["self_ns"] = n.time.self_ns.into();
            v["total_ns"] = n.time.total_ns.into();
            v["samples"] = n.time.samples.into();
            v["callers"] = arcs(&n.callers).into();
            v["callees"] = arcs(&n.callees).into();
            v
        })
        .collect();
    json!({ "period_ns": s.period_ns, "total_ns": s.total_ns(), "samples": s.samples, "functions": all })
}

/// Samples that the clocks should have taken.
fn expected(p: &Profile, s: &Sampled) -> i64 {
    p.passed_ns / s.period_ns.max(1)
}

/// What samples of CPUs that were not idle should stand for.
fn busy_ns(p: &Profile) -> i64 {
    p.passed_ns - p.buckets.idle_ns - p.buckets.unseen_ns
}

/// Of those that can be compared, how many agree. Who ran for less than ten samples' time is among the rows mostly because a sample came upon it, and then has
/// too large a share.
fn inside(all: &[Agreement], s: &Sampled) -> (usize, usize) {
    let compared = all.iter().filter(|a| a.exact_ns >= 10 * s.period_ns);
    (compared.clone().filter(|a| a.is_inside()).count(), compared.count())
}

fn chosen(
    log: &Store,
    p: &Profile,
    served: Option<&BTreeSet<i32>>,
) -> anyhow::Result<Option<(Sampled, Vec<Agreement>)>> {
    let Some(s) = sampled(log, None)? else { return Ok(None) };
    let mut all = agreement(p, &s);
    all.retain(|a| served.is_none_or(|s| s.contains(&a.number)));
    Ok(Some((s, all)))
}

pub fn beside_json(log: &Store, p: &Profile, served: Option<&BTreeSet<i32>>) -> anyhow::Result<Value> {
    let Some((s, all)) = chosen(log, p, served)? else { return Ok(Value::Null) };
    let row = |a: &Agreement| {
        json!({
            "pid": pid_of(a.number), "instance": ProcessNumber::from(a.number).instance(), "what": what(a), "exact_ns": a.exact_ns, "samples": a.samples, "exact_share": a.exact,
            "sampled_share": a.sampled, "low": a.low, "high": a.high, "inside": a.is_inside(),
        })
    };
    let (inside, compared) = inside(&all, &s);
    Ok(json!({
        "period_ns": s.period_ns, "samples": s.samples, "idle": s.idle, "drawn": s.drawn, "expected": expected(p, &s),
        "busy_ns": s.busy_ns, "exact_busy_ns": busy_ns(p), "inside": inside, "compared": compared, "processes": all.iter().map(row).collect::<Vec<_>>(),
    }))
}

fn what(a: &Agreement) -> &'static str {
    if a.is_own { "own" } else { "done for it" }
}

/// The sampled shares beside the exact ones.
pub fn beside(
    log: &Store,
    p: &Profile,
    served: Option<&BTreeSet<i32>>,
    limit: usize,
    out: &Output,
) -> anyhow::Result<()> {
    let Some((s, all)) = chosen(log, p, served)? else { return Ok(()) };
    out.line(&Line::new())?;
    let mut facts = Pairs::new();
    let number = |n: i64| count(n.max(0) as u64);
    facts.add(
        "samples",
        format!(
            "{}{}, {:.3} ms apart; {} of idle CPUs, the others stand for {:.3} s of {:.3} s; of {} for whom was drawn by lot",
            number(s.samples),
            if p.is_of_chosen { " for those who were chosen" } else { "" },
            s.period_ns as f64 / 1e6,
            number(s.idle),
            s.busy_ns as f64 / 1e9,
            busy_ns(p) as f64 / 1e9,
            number(s.drawn)
        ),
    );
    let (within, compared) = inside(&all, &s);
    facts.add(
        "agreement",
        format!(
            "{within} of {compared} exact shares of ten samples' time or more lie within the samples' interval of 95 %"
        ),
    );
    out.lines(&facts.render(out.width))?;
    let mut table = Table::new(&[
        Column::right("pid", 0),
        Column::left("process", 0, 12),
        Column::left("time", 0, 0),
        Column::right("exact %", 0),
        Column::right("sampled %", 0),
        Column::right("difference", 0),
        Column::right("interval", 1),
    ]);
    for a in all.iter().take(limit) {
        let plain = |text: String| (text, Style::Plain);
        let percent = |share: f64| format!("{:.3}", share * 100.0);
        table.row(vec![
            plain(ProcessNumber::from(a.number).to_string()),
            plain(kpat_text::clean(s.process_name(a.number))),
            plain(what(a).into()),
            plain(percent(a.exact)),
            plain(percent(a.sampled)),
            (
                format!("{:+.3}", (a.sampled - a.exact) * 100.0),
                if a.is_inside() { Style::Plain } else { Style::Strong },
            ),
            (format!("{} to {}", percent(a.low), percent(a.high)), Style::Faint),
        ]);
    }
    out.lines(&table.render(out.width).0)?;
    Ok(())
}
