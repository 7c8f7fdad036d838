//! `kpat handover`: why the host was without a network, phase by phase.

mod json;
mod text;

use crate::listing::Listing;
use crate::open::{self, Integrated};
use crate::output::{Meter, Output, usage};
use crate::page;
use crate::times;
use kpat_draw::handover as draw;
use kpat_query::handover::{Asked, Found, Handover, Statistics};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(override_usage = "kpat handover [OPTIONS] <X.kpat>... [NUMBER]")]
pub struct Args {
    /// Integrated logs, and the number of one handover to show it phase by phase
    #[arg(value_names = ["X.kpat"], num_args = 1.., required = true)]
    words: Vec<String>,
    /// Only this network interface
    #[arg(long, short, value_name = "NAME")]
    interface: Option<String>,
    /// The application's flow whose gap is shown, by a port of it [default: the one that received most]
    #[arg(long, value_name = "PORT")]
    port: Option<i32>,
    /// Show every step of each phase: channels, messages
    #[arg(long)]
    steps: bool,
    /// Show all marks, not phases: what was seen, when, and where it stands in the log
    #[arg(long)]
    marks: bool,
    /// What another host recorded of the same handovers (an access point, a router), beside these on one axis; may be repeated. Of an integrated log of several devices
    /// the others are beside the one of --device
    #[arg(long, value_name = "OTHER.kpat")]
    beside: Vec<PathBuf>,
    /// Write a picture of one handover to this file: the one asked for, else the longest
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with pictures and tables to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    device: open::Device,
    #[command(flatten)]
    times: times::Clock,
    #[command(flatten)]
    listing: Listing,
}

/// A log with its handovers.
struct Read {
    name: String,
    log: Integrated,
    found: Found,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let (number, paths) = match args.words.split_last() {
        Some((last, rest)) if !rest.is_empty() && !Path::new(last).exists() => match last.parse::<u32>() {
            Ok(n) => (Some(n), rest),
            Err(_) => (None, &args.words[..]),
        },
        _ => (None, &args.words[..]),
    };
    let asked = Asked { interface: args.interface.clone(), port: args.port };
    let mut logs = Vec::new();
    for path in paths {
        let log = open::integrated(Path::new(path), &args.device)?;
        let mut meter = Meter::default();
        let found = log.handovers(&asked, &mut |done, of| {
            out.progress(&mut meter, "looking for handovers", done, of);
            true
        });
        out.clear_progress();
        let mut found = found?;
        if !found.handovers.is_empty() {
            for (name, other) in others(args, &log)? {
                log.beside(&other, &name, &mut found.handovers)?;
            }
        }
        logs.push(Read { name: path.clone(), log, found });
    }
    // Numbers go on from log to log.
    let mut next = 0;
    for h in logs.iter_mut().flat_map(|l| &mut l.found.handovers) {
        next += 1;
        h.number = next;
    }
    let all: Vec<(&Read, &Handover)> =
        logs.iter().flat_map(|l| l.found.handovers.iter().map(move |h| (l, h))).collect();
    let one = number.map(|n| {
        let found = all.iter().find(|(_, h)| h.number == n).copied();
        found.ok_or_else(|| usage(format!("there is no handover {n}; {}", how_many(all.len()))))
    });
    let one = one.transpose()?;
    pictures(args, &all, one, out)?;
    match one {
        Some((read, h)) if out.json => out.value(&json::whole(&read.log, h))?,
        Some((read, h)) => text::one(args, &read.log, h, out)?,
        None if out.json => {
            out.value(&json::list(&logs, &all, &Statistics::of(all.iter().map(|(_, h)| *h))))?
        }
        None => match args.listing.tsv(&json::FIELDS)? {
            Some(tsv) => tsv.rows(all.iter().map(|(read, h)| json::line(&read.log, h)), out)?,
            None => text::list(args, &logs, &all, out)?,
        },
    }
    Ok(out.ended(logs.iter().any(|l| l.found.left_out > 0)))
}

fn how_many(handovers: usize) -> String {
    match handovers {
        0 => "the log has none".to_owned(),
        1 => "there is one, number 1".to_owned(),
        n => format!("there are {n}"),
    }
}

/// Logs that are shown beside one, with their names.
fn others(args: &Args, log: &Integrated) -> anyhow::Result<Vec<(String, Integrated)>> {
    let mut all = Vec::new();
    if let Some((several, own)) = &log.among {
        for place in (0..several.manifest.devices.len() as i32).filter(|p| p != own) {
            all.push((several.name(place).to_owned(), open::of_device(several.again()?, place)?));
        }
    }
    for path in &args.beside {
        let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        all.push((name, open::integrated(path, &open::Device::default())?));
    }
    Ok(all)
}

fn pictures(
    args: &Args,
    all: &[(&Read, &Handover)],
    one: Option<(&Read, &Handover)>,
    out: &Output,
) -> anyhow::Result<()> {
    if let Some(path) = &args.svg {
        let shown = one.or_else(|| all.iter().max_by_key(|(_, h)| h.whole_ns()).copied());
        let (read, h) = shown.ok_or_else(|| usage("there is no handover to draw".to_owned()))?;
        page::write(path, &draw::svg(h, &page::about(&read.log)), out)?;
    }
    if let Some(path) = &args.html {
        let shown: Vec<&Handover> = match one {
            Some((_, h)) => vec![h],
            None => all.iter().map(|(_, h)| *h).collect(),
        };
        let mut about: Vec<String> = all.iter().map(|(read, _)| page::about(&read.log)).collect();
        about.dedup();
        page::write(path, &draw::html(&shown, &about.join("; ")), out)?;
    }
    Ok(())
}
