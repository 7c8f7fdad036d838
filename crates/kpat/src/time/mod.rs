//! `kpat time`: where the time goes.

mod compare;
mod json;
mod text;

use crate::open;
use crate::output::{Meter, Output, usage};
use crate::packets::{HELP, Which};
use crate::render::parse_duration;
use anyhow::Context;
use clap::ValueEnum;
use kpat_query::phases::Boundaries;
use kpat_query::time::{GroupBy, TimeQuestion, TimeReport, time};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub use json::spread;

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The integrated log; with --compare further runs of the same kind
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
    #[command(flatten)]
    which: Which,
    /// Only this packet
    #[arg(long, value_name = "ID")]
    packet: Option<i64>,
    /// Only functions whose name matches this glob
    #[arg(long, value_name = "GLOB", default_value = "", hide_default_value = true)]
    function: String,
    /// Only calls of at least this duration, for example 10us
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    slower: Option<i64>,
    /// Only calls of at most this duration
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    faster: Option<i64>,
    /// Group packets by this property
    #[arg(long)]
    by: Option<By>,
    /// Which time the columns min to max refer to
    #[arg(long, default_value = "self")]
    of: Of,
    /// Sort order of the functions
    #[arg(long, default_value = "self")]
    sort: Sort,
    /// Show at most this many functions; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 30)]
    limit: usize,
    /// Draw the distributions, too
    #[arg(long)]
    histogram: bool,
    /// Subtract the estimated cost of the probes from every call
    #[arg(long)]
    subtract_cost: bool,
    /// Compare with these logs: their times minus those of the logs before --compare; each log is one run
    #[arg(long, value_name = "B.kpat", num_args = 1.., conflicts_with_all = ["packet", "by", "histogram"])]
    compare: Vec<String>,
    /// The figure that represents a run in a comparison
    #[arg(long, default_value = "mean", requires = "compare")]
    statistic: Stands,
    /// File with further phase boundaries, in addition to the built-in ones (see `kpat phases --boundaries`)
    #[arg(long, value_name = "FILE")]
    boundaries: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// TCP, UDP, ICMP ...
    Proto,
    /// Length, by powers of two
    Size,
    /// The lower of both ports
    Port,
    /// Received, transmitted or both
    Direction,
    /// Verdict: delivered, forwarded, dropped ...
    Verdict,
    /// Network devices by which it came in and went out
    Interface,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    /// Self time: without the functions it calls
    #[value(name = "self")]
    Own,
    /// Duration: with the functions it calls
    Total,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Stands {
    /// The mean: sensitive to outliers
    Mean,
    /// The median: the typical case
    Median,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    /// Most self time first
    #[value(name = "self")]
    Own,
    /// Most time including what it calls first
    Total,
    /// Most calls first
    Calls,
    /// Largest median first
    Median,
    /// Largest 99th percentile first
    P99,
    /// Largest maximum first
    Max,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    if args.slower.zip(args.faster).is_some_and(|(slower, faster)| slower > faster) {
        return Err(usage("--slower is above --faster: no call can match"));
    }
    if !args.compare.is_empty() {
        return compare::run(args, out);
    }
    if let Some(second) = args.which.split_logs(&[]).0.first() {
        return Err(usage(format!(
            "{} is a second log; give the runs to compare with after --compare: --compare B1.kpat [B2.kpat ...]",
            second.display()
        )));
    }
    let log = open::integrated(&args.log, &args.device)?;
    let report = counted(&log, &question(args, &args.which, &log)?, out)?;
    if args.subtract_cost && report.run_cost.is_none() {
        out.say("this log does not have the cost of its probes, so nothing is subtracted");
    }
    let violated = report.closure.violations > 0;
    if out.json {
        out.value(&json::value(&report))?;
    } else if report.groups.iter().all(|g| g.packets == 0) {
        out.say(&log.nothing("packet"));
    } else {
        text::show(args, &report, out)?;
    }
    Ok(out.ended(violated))
}

fn question(args: &Args, which: &Which, log: &open::Integrated) -> anyhow::Result<TimeQuestion> {
    Ok(TimeQuestion {
        filter: which.filter(log)?,
        packet: args.packet,
        slower_ns: args.slower,
        faster_ns: args.faster,
        glob: args.function.clone(),
        by: args.by.map(|by| match by {
            By::Proto => GroupBy::Proto,
            By::Size => GroupBy::Size,
            By::Port => GroupBy::Port,
            By::Direction => GroupBy::Direction,
            By::Verdict => GroupBy::Verdict,
            By::Interface => GroupBy::Interface,
        }),
        subtract_cost: args.subtract_cost,
        boundaries: boundaries(args.boundaries.as_deref())?,
    })
}

fn counted(log: &open::Integrated, question: &TimeQuestion, out: &Output) -> anyhow::Result<TimeReport> {
    let mut meter = Meter::default();
    let report = time(log, question, &mut |done, total| {
        out.progress(&mut meter, "reading", done, total);
        true
    });
    out.clear_progress();
    Ok(report?)
}

/// The built-in boundaries and those of a file.
pub fn boundaries(file: Option<&Path>) -> anyhow::Result<Boundaries> {
    let mut boundaries = Boundaries::default();
    if let Some(path) = file {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        boundaries.read(&text).map_err(|e| usage(format!("{}: {e}", path.display())))?;
    }
    Ok(boundaries)
}
