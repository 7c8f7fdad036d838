//! `kpat collect`: finished logs from the devices that record to the machine that keeps them.

mod list;
mod send;
mod serve;
mod service;

use crate::output::{Output, usage};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// On a device: bring finished logs of a folder to a target, and remove what has arrived
    Send(send::Args),
    /// Gather from devices over HTTP: each adds its own files and can do nothing else
    Receive(serve::Receive),
    /// Gather from one device on standard input, for ssh: a forced command in authorized_keys
    Accept(serve::Accept),
    /// Make the secret that a device shows to a receiver, or take it away
    Token(serve::Token),
    /// What was gathered: devices, gaps, losses, clocks
    List(list::Args),
    /// Print a service for systemd or OpenWrt
    Service(service::Args),
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Send(a) => send::run(a, out),
        What::Receive(a) => serve::receive(a, out),
        What::Accept(a) => serve::accept(a),
        What::Token(a) => serve::token(a, out),
        What::List(a) => list::run(a, out),
        What::Service(a) => service::run(a, out),
    }
}

/// What the user can mend by typing something else is wrong usage.
fn told(e: kpat_collect::Error) -> anyhow::Error {
    match e {
        kpat_collect::Error::Target(_) | kpat_collect::Error::Name(..) => usage(e.to_string()),
        e => e.into(),
    }
}
