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

use crate::output::Output;
use kpat_guest::{Guest, Target};
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

/// An address, as all commands show and take it.
fn address(a: u64) -> String {
    format!("0x{a:x}")
}
