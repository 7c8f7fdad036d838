//! `kpat wireshark`: kpat as a part of Wireshark. What is installed there is a dissector that shows the kernel's path below a
//! packet, and a link by which Wireshark starts this program as capture interfaces ([`extcap`]).

pub mod extcap;
mod install;
mod live;

use crate::output::Output;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Put the dissector and the capture interfaces where Wireshark and tshark look for them
    Install(install::Args),
    /// Capture at an interface with the kernel's path, as pcapng on standard output
    Stream(live::Args),
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    match &args.action {
        Action::Install(args) => install::run(args, out),
        Action::Stream(args) => live::run(args, out),
    }
}
