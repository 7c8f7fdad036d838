//! `kpat`: what the Linux kernel did with a packet that was seen on the wire.
//!
//! This room composes the others and turns their answers into text and JSON. It computes no truth: what is shown was
//! asked from `kpat-query`, `kpat-klog` or `kpat-probe`. One file per command; a command is a struct of arguments and
//! `run(&Args, &Output) -> anyhow::Result<ExitCode>`, and is listed once, in `cli.rs`.

mod app;
mod cli;
mod collect;
mod crossings;
mod ctl;
mod devices;
mod doctor;
mod events;
mod export;
mod frames;
mod function;
mod functions;
mod guest;
mod handover;
mod info;
mod integrate;
mod listing;
mod metrics;
mod mistyped;
mod open;
mod output;
mod packet;
mod packets;
mod page;
mod phases;
mod probes;
mod profile;
mod record;
mod render;
mod room;
mod shell;
mod signals;
mod sql;
mod time;
mod times;
mod view;
mod why;
mod wireshark;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use std::process::ExitCode;

fn main() -> ExitCode {
    signals::size_is_an_error();
    if let Some(code) = shell::complete::asked() {
        return code;
    }
    // Wireshark starts a link to this program and asks in its own way.
    let words: Vec<String> = std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
    let typed: Option<Vec<String>> = std::env::args_os().map(|w| w.into_string().ok()).collect();
    if wireshark::extcap::is_asked(&words) {
        // It takes every word on standard error for an error.
        let out = output::Output::new(&cli::Global { quiet: true, ..cli::Global::default() });
        let done = wireshark::extcap::run(&words, &out).and_then(|code| out.flush().map(|()| code));
        return done.unwrap_or_else(|e| output::report(&e));
    }
    let command = shell::examples::with_examples(cli::Cli::command());
    // Words that are no text are for the parser to complain of.
    let typed = typed.map(profile::recording::translated);
    let words = typed.as_ref().map_or(words, |typed| typed.get(1..).unwrap_or_default().to_vec());
    let found = match typed {
        Some(typed) => command.try_get_matches_from(typed),
        None => command.try_get_matches(),
    };
    let typed = found.and_then(|found| cli::Cli::from_arg_matches(&found));
    let cli = match typed {
        Ok(cli) => cli,
        // Help and version are answers and go to stdout; a reader that left early is no fault.
        Err(e) if !e.use_stderr() || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return match e.print() {
                Err(unsaid) => output::report(&output::unwritten(unsaid)),
                Ok(()) if e.use_stderr() => ExitCode::from(2),
                Ok(()) => ExitCode::SUCCESS,
            };
        }
        Err(e) => return output::report(&output::usage(mistyped::sentence(&e, &words))),
    };
    let out = output::Output::new(&cli.global);
    match cli.command.run(&out).and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => code,
        Err(e) => output::report(&e),
    }
}
