//! `kpat guest`: guests of QEMU as their host sees them, with nothing installed in them.

mod attach;
mod doctor;
mod list;
mod modules;
mod probe;
mod processes;
mod record;
mod spread;
mod symbols;
mod wall_clock;

use crate::listing::Listing;
use crate::output::Output;
use crate::render::{Table, count};
use kpat_guest::probe::Ended;
use kpat_guest::{Guest, Target};
use serde_json::{Map, Value};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// List the guests of this host
    List(list::Args),
    /// Test what works for a guest: its memory, symbols, types, and each way to probe it
    Doctor(doctor::Args),
    /// List the symbols of a guest's kernel and modules, read from its memory
    Symbols(symbols::Args),
    /// List the processes of a guest from its kernel's memory, and find hidden ones
    Processes(processes::Args),
    /// List the modules of a guest's kernel from its memory, and find hidden ones
    Modules(modules::Args),
    /// Probe functions of a guest's kernel while it runs: arguments, fields, texts, results, durations
    Probe(probe::Args),
    /// Serve a guest's probes with the handlers of a shared object (C, Rust)
    Attach(attach::Args),
    /// Record which functions of a guest's kernel handled which packets, into a log as `kpat record` writes it
    Record(record::Args),
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::List(a) => list::run(a, out),
        What::Doctor(a) => doctor::run(a, out),
        What::Symbols(a) => symbols::run(a, out),
        What::Processes(a) => processes::run(a, out),
        What::Modules(a) => modules::run(a, out),
        What::Probe(a) => probe::run(a, out),
        What::Attach(a) => attach::run(a, out),
        What::Record(a) => record::run(a, out),
    }
}

/// Which guest a command is about.
#[derive(clap::Args)]
struct Which {
    /// The guest: its name (`-name`), the process of its QEMU, or the path of its QMP socket
    #[arg(value_name = "GUEST")]
    guest: String,
}

impl Which {
    fn target(&self) -> Target {
        Target::parse(&self.guest)
    }

    fn attach(&self) -> anyhow::Result<Guest> {
        Ok(Guest::attach(&self.target())?)
    }
}

/// Of which guest, and how, a list is shown in which something may be hidden.
#[derive(clap::Args)]
struct Hiding {
    #[command(flatten)]
    which: Which,
    /// Only hidden ones; with --strict the exit status is 3 if there are any
    #[arg(long)]
    hidden: bool,
    #[command(flatten)]
    listing: Listing,
}

/// The rows of such a list: what they are, their fields in the order of columns, and how one is shown.
struct Hidden<'a, T> {
    what: &'a str,
    fields: &'static [&'static str],
    all: &'a [T],
    is_hidden: fn(&T) -> bool,
    value: &'a dyn Fn(&T) -> Value,
    table: &'a dyn Fn(&[&T]) -> Table,
}

impl<T> Hidden<'_, T> {
    fn show(&self, args: &Hiding, out: &Output) -> anyhow::Result<ExitCode> {
        let hidden = self.all.iter().filter(|x| (self.is_hidden)(x)).count();
        let rows: Vec<&T> = self.all.iter().filter(|x| !args.hidden || (self.is_hidden)(x)).collect();
        let values = || rows.iter().map(|x| (self.value)(x));
        if let Some(tsv) = args.listing.tsv(self.fields)? {
            tsv.rows(values(), out)?;
        } else if out.json {
            let mut of = Map::from_iter([(self.what.to_owned(), values().collect())]);
            of.insert("hidden".into(), hidden.into());
            out.value(&Value::Object(of))?;
        } else {
            if !rows.is_empty() {
                args.listing.print((self.table)(&rows), out)?;
            }
            out.say(&format!("{} {}, {hidden} hidden", count(self.all.len() as u64), self.what));
        }
        Ok(out.ended(hidden > 0))
    }
}

/// An address, as all commands show and take it.
/// What is said where the guest ended it.
fn over(guest: &str, ended: &Ended) -> Option<String> {
    match ended {
        Ended::Gone => Some(format!("{guest} is off")),
        Ended::Reset => Some(format!("{guest} began anew; its probes are gone")),
        Ended::SetBack => {
            Some(format!("{guest} was set back to a snapshot from before; its probes are gone"))
        }
        Ended::Stopped | Ended::Time => None,
    }
}

fn address(a: u64) -> String {
    format!("0x{a:x}")
}
