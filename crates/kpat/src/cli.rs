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
    after_help = "Data goes to standard output, words to standard error.\n\
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
    /// Colour: never the only carrier of a meaning. NO_COLOR is obeyed
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_default_value = true,
        help_heading = "Output"
    )]
    pub color: ColorChoice,
    /// Columns of text [default: the terminal's; not a terminal: as many as needed]; 0: as many as needed
    #[arg(long, global = true, value_name = "N", help_heading = "Output")]
    pub width: Option<usize>,
    /// No progress line, also on a terminal
    #[arg(long, global = true, help_heading = "Output")]
    pub no_progress: bool,
    /// Only errors on standard error
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
    /// Exit with 3 if something was lost or left out
    #[arg(long, global = true, help_heading = "Output")]
    pub strict: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal
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
    /// What this kernel can do for us: which ways to probe find packets of our own, tried one by one
    Doctor => doctor,
    /// Which functions would be probed, and how the packet is reached in each
    Probes => probes,
    /// Record what the kernel does with packets
    Record => record,
    /// Ask a running recording, or tell it to do otherwise
    Ctl => ctl,
    /// Bring finished logs from many devices to where they are kept, and say what is there
    Collect => collect,

    // Anywhere.
    /// Join a kernel behaviour log with captures of the wire
    Integrate => integrate,
    /// What a log is: kernel, mechanism, losses, cost, clocks
    Info => info,
    /// List packets
    Packets => packets,
    /// One packet: its headers, its frames on the wire, every kernel function that handled it
    Packet => packet,
    /// List the frames of the captures with their packets
    Frames => frames,
    /// List kernel functions with their times
    Functions => functions,
    /// One function: its times and the packets it handled
    Function => function,
    /// Where the time goes: per function, layer and wait; two logs compared
    Time => time,
    /// The phases of packets through this host, and the functions within each
    Phases => phases,
    /// What applications asked of the network and what became of it, socket by socket
    App => app,
    /// Why a connection is slow: from write to read stage by stage, and what takes longest
    Why => why,
    /// Whom the CPUs worked for: each process with what interrupts did for it, and whose time that took
    Profile => profile,
    /// List events: drops, retransmissions, state changes
    Events => events,
    /// Write it for other tools: Wireshark, Perfetto, pprof, flame graphs, tables
    Export => export,
    /// Look at it in the browser: a local service with all views
    View => view,
    /// Ask the tables in SQL
    Sql => sql,
    /// Be a part of Wireshark: dissector and capture interfaces
    Wireshark => wireshark,
    /// Print a completion script for a shell
    Completion => shell::completion,
    /// Print the manual page, or write all of them into a folder
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
