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
    /// On a device: send the finished logs in a folder to a target, and remove those that have arrived
    Send(send::Args),
    /// Receive logs from devices over HTTP; a device can only add files of its own
    Receive(serve::Receive),
    /// Receive logs from one device on standard input, as a forced command in ssh's authorized_keys
    Accept(serve::Accept),
    /// Create or revoke the secret by which a device authenticates to a receiver
    Token(serve::Token),
    /// List what was collected: devices, gaps, losses, clocks
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
fn logged(e: kpat_collect::Error) -> anyhow::Error {
    match e {
        kpat_collect::Error::Target(_) | kpat_collect::Error::Name(..) => usage(e.to_string()),
        e => e.into(),
    }
}
