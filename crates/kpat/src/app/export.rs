//! `kpat app export`: an application trace out of an integrated log.

use crate::export::target::{self, Target};
use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::render::{bytes, count, plural};
use anyhow::{Context, bail};
use kpat_formats::app_trace::{self, Form};
use kpat_query::app::trace::{As, Totals};
use serde_json::json;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
    /// Only the connection of this socket (may be repeated)
    #[arg(long, short, value_name = "ID")]
    socket: Vec<i64>,
    /// In which form
    #[arg(long, value_name = "FORM", default_value = "trace")]
    format: Format,
    /// The traffic of which layer
    #[arg(long = "as", value_name = "LAYER", default_value = "application")]
    layer: Layer,
    /// The file to write [default: standard output]; ns3: the folder
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// JSON lines, as docs/app-trace.md has them; `kpat app replay` plays it
    Trace,
    /// A file a connection and direction for ns-3's UdpTraceClient
    Ns3,
    /// A write a line, tab separated
    Tsv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Layer {
    /// As applications wrote it
    Application,
    /// As it was handed to the device's driver, each byte once
    Network,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let log = open::integrated(&args.log, &args.device)?;
    super::table::known(&log, &args.socket)?;
    let layer = match args.layer {
        Layer::Application => As::Application,
        Layer::Network => As::Network,
    };
    let file = args.output.as_deref().filter(|p| *p != Path::new("-"));
    let (totals, files) = if args.format == Format::Ns3 {
        let Some(folder) = file else {
            return Err(usage(
                "ns-3 reads a file for each connection and direction; give a folder: -o FOLDER",
            ));
        };
        ns3(&log, args, layer, folder)?
    } else {
        let form = if args.format == Format::Tsv { Form::Tsv } else { Form::Lines };
        let name = args.log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut to = Target::open(file, &log.dir)?;
        let written = app_trace::write(&log, &name, &args.socket, layer, form, to.writer());
        (to.finish(written)?, 1)
    };
    let Totals { connections, writes, bytes: sum, lost } = totals;
    if let Some(file) = file {
        let file = file.display().to_string();
        if out.json {
            out.value(&json!({
                "file": file, "files": files, "connections": connections, "writes": writes, "bytes": sum, "events_lost": lost,
            }))?;
        } else {
            let what =
                [plural(connections.max(0) as u64, "connection"), plural(writes.max(0) as u64, "write")];
            out.say(&format!("{file}: {}, {}", what.join(", "), bytes(sum.max(0) as u64)));
        }
    }
    if lost > 0 {
        let lost = count(lost as u64);
        out.say(&format!("{lost} events are missing in this log; what was written then is not in the trace"));
    }
    Ok(out.ended(lost > 0))
}

/// A new folder has its name only when it is whole; one that is there stays, and stays empty if its files cannot be written.
fn ns3(log: &Integrated, args: &Args, layer: As, folder: &Path) -> anyhow::Result<(Totals, usize)> {
    let failed = || format!("cannot make {}", folder.display());
    let fill = |at: &Path| {
        let (totals, files) = app_trace::write_ns3(log, &args.socket, layer, at)?;
        Ok((totals, files.len()))
    };
    if !folder.exists() {
        if let Some(above) = folder.parent().filter(|p| !p.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(above).with_context(failed)?;
        }
        return target::new_folder(folder, fill);
    }
    if fs::read_dir(folder).with_context(failed)?.next().is_some() {
        bail!("{} is not empty; give another folder", folder.display());
    }
    let written = fill(folder);
    if written.is_err() {
        let own = fs::read_dir(folder).into_iter().flatten().flatten();
        own.for_each(|file| drop(fs::remove_file(file.path())));
    }
    written.with_context(|| format!("cannot write {}", folder.display()))
}
