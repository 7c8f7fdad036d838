//! `kpat guest list`: processes that are a QEMU, and how each can be reached.

use crate::listing::Listing;
use crate::output::Output;
use crate::render::{Column, Style, Table, bytes, count};
use kpat_guest::discover::{self, Found};
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    listing: Listing,
}

const FIELDS: [&str; 7] = ["pid", "name", "accelerator", "vcpus", "memory_bytes", "qmp", "executable"];

fn value(f: &Found) -> Value {
    let word = |t: &str| if t.is_empty() { Value::Null } else { t.into() };
    json!({
        "pid": f.pid,
        "name": word(&f.name),
        "accelerator": word(&f.accelerator),
        "vcpus": f.vcpus,
        "memory_bytes": f.memory_bytes,
        "qmp": f.qmp.iter().map(|p| p.display().to_string()).collect::<Vec<_>>(),
        "executable": f.executable,
    })
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let found = discover::all();
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.rows(found.iter().map(value), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if out.json {
        out.value(&json!({"guests": found.iter().map(value).collect::<Vec<_>>()}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut t = Table::new(&[
        Column::right("pid", 0),
        Column::left("name", 0, 12),
        Column::left("accelerator", 1, 0),
        Column::right("vcpus", 1),
        Column::right("memory", 1),
        Column::left("QMP socket", 0, 24),
    ]);
    for f in &found {
        let word = |t: &str| (if t.is_empty() { "-".to_owned() } else { t.to_owned() }, Style::Plain);
        let socket = f.qmp.first().map_or_else(|| "none".to_owned(), |p| p.display().to_string());
        t.row(vec![
            (f.pid.to_string(), Style::Plain),
            word(&f.name),
            word(&f.accelerator),
            (count(f.vcpus.into()), Style::Plain),
            word(&f.memory_bytes.map_or_else(String::new, bytes)),
            (socket, if f.qmp.is_empty() { Style::Warn } else { Style::Plain }),
        ]);
    }
    if found.is_empty() {
        out.say("no guest of QEMU runs here, or none that this user may look at");
    } else {
        args.listing.print(t, out)?;
    }
    if found.iter().any(|f| f.qmp.is_empty()) {
        out.say("a guest without a QMP socket cannot be attached; start it with -qmp unix:PATH,server=on,wait=off");
    }
    Ok(ExitCode::SUCCESS)
}
