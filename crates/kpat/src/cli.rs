//! What can be typed. Global flags here; each command's own arguments in the command's file.

use crate::output::Output;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "kpat",
    version,
    about = "What the Linux kernel did with a packet that was seen on the wire",
    long_about = "What the Linux kernel did with a packet that was seen on the wire: which functions, in what order, how long, for whom.\n\n\
                  Record on the device under test, integrate with a capture from anywhere, look a packet up:\n\n  \
                  kpat record -o X.kbl --sniff eth0 --for 10s\n  \
                  kpat integrate X.kbl X.pcapng\n  \
                  kpat packets X.kpat\n  \
                  kpat packet 42 X.kpat",
    after_help = "Data goes to standard output, messages to standard error.\n\
                  Exit status: 0 complete, 1 failed, 2 wrong usage, 3 finished but something was lost (with --strict).",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args, Clone, Debug, Default)]
pub struct Global {
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// Use colour; text says the same without it. `auto` respects NO_COLOR
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub color: ColorChoice,
    /// Width of text output in columns; 0: unlimited [default: width of the terminal; unlimited if there is none]
    #[arg(long, global = true, value_name = "N", help_heading = "Output")]
    pub width: Option<usize>,
    /// Do not show a progress line
    #[arg(long, global = true, help_heading = "Output")]
    pub no_progress: bool,
    /// Print nothing but errors to standard error
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Exit with status 3 if anything was lost or left out
    #[arg(long, global = true, help_heading = "Output")]
    pub strict: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// If the output is a terminal
    #[default]
    Auto,
    Always,
    Never,
}

/// The commands in the order of the help: one line each, `Name => module`. The line's comment is the help's.
macro_rules! commands {
    ($($(#[$about:meta])+ $name:ident => $($module:ident)::+,)+) => {
        #[derive(Subcommand)]
        pub enum Command {
            $($(#[$about])+ $name(crate::$($module)::+::Args),)+
        }

        impl Command {
            pub fn run(&self, out: &Output) -> anyhow::Result<ExitCode> {
                match self {
                    $(Command::$name(args) => crate::$($module)::+::run(args, out),)+
                }
            }
        }
    };
}

commands! {
    // On the device under test.
    /// Test what this kernel supports: each probing mechanism, with packets of our own
    Doctor => doctor,
    /// List the functions that would be probed, and how each gives access to the packet
    Probes => probes,
    /// Record what the kernel does with packets, and what applications ask of the network
    Record => record,
    /// Query or control a running recording
    Ctl => ctl,
    /// Collect finished logs from many devices in one place, and list them
    Collect => collect,
    /// On a virtual machine's host: look into guests of QEMU from outside, with nothing installed in them
    Guest => guest,

    // Anywhere.
    /// Join kernel behaviour logs with captures of the wire
    Integrate => integrate,
    /// Describe a log: kernel, mechanism, losses, cost, clocks
    Info => info,
    /// List packets
    Packets => packets,
    /// Show one packet: its headers, its frames on the wire, every kernel function that handled it
    Packet => packet,
    /// List the frames of the captures with their packets
    Frames => frames,
    /// List kernel functions with their times
    Functions => functions,
    /// Show one function: its times and the packets it handled
    Function => function,
    /// Show where the time goes: per function, layer and wait; compare logs
    Time => time,
    /// Show the phases of packets through this host, and the functions within each
    Phases => phases,
    /// Show what applications asked of the network and what happened to it, per socket; what held TCP back (where the time went: `kpat why`)
    App => app,
    /// Explain why a connection is slow: each stage from write to read, and which takes longest (what TCP was waiting for: `kpat app`)
    Why => why,
    /// Why the host was without a network: each change of access point or link, phase by phase
    Handover => handover,
    /// Whom the CPUs worked for: each process with what interrupts did for it, and whose time that took
    Profile => profile,
    /// List events: drops, retransmissions, state changes
    Events => events,
    /// Write a log for other tools: Wireshark, Perfetto, pprof, flame graphs, tables
    Export => export,
    /// Show a log in the browser, served by a local service
    View => view,
    /// Query the tables with SQL
    Sql => sql,
    /// Integrate kpat into Wireshark: dissector and capture interfaces
    Wireshark => wireshark,
    /// Print a completion script for a shell
    Completion => shell::completion,
    /// Print a manual page, or write all of them to a folder
    Man => shell::man,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declaration_is_sound() {
        Cli::command().debug_assert();
    }
}
