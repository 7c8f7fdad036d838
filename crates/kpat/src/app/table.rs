//! `kpat app X.kpat --to tsv`: every event a line.

use crate::export::target::Target;
use crate::open::Integrated;
use crate::output::{Output, usage};
use crate::render::{count, plural};
use kpat_formats::app_tsv;
use kpat_store::tables::SocketRow;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tab separated, with a line of column names
    Tsv,
}

pub fn run(log: &Integrated, only: &[i64], file: Option<&Path>, out: &Output) -> anyhow::Result<ExitCode> {
    known(log, only)?;
    let file = file.filter(|p| *p != Path::new("-"));
    let mut to = Target::open(file, &log.dir)?;
    let written = app_tsv::write(log, only, to.writer());
    let c = to.finish(written)?;
    match file {
        Some(path) if out.json => out.value(&json!({
            "file": path.display().to_string(), "sockets": c.sockets, "events": c.events, "tcp_states": c.states,
            "gaps": c.gaps, "events_lost": c.lost,
        }))?,
        Some(path) => {
            let what = [plural(c.sockets, "socket"), plural(c.events, "event"), plural(c.states, "TCP state")];
            out.say(&format!("{}: {}", path.display(), what.join(", ")));
        }
        None => {}
    }
    if c.lost > 0 {
        let gaps = plural(c.gaps, "gap");
        out.say(&format!(
            "{} events are missing in this log, in {gaps} shown at their places",
            count(c.lost)
        ));
    }
    Ok(out.ended(c.lost > 0))
}

/// Refuses sockets that the log does not have, and a log without any.
pub fn known(log: &Integrated, only: &[i64]) -> anyhow::Result<()> {
    let have: Vec<SocketRow> = log.table::<SocketRow>()?.all()?;
    if have.is_empty() {
        return Err(usage(super::NOTHING));
    }
    match only.iter().find(|id| !have.iter().any(|s| s.socket_id == **id)) {
        Some(id) => Err(usage(super::no_socket(*id))),
        None => Ok(()),
    }
}
