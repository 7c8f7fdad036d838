//! `kpat man`: a manual page per command, from the declaration and the examples.

use super::examples;
use crate::cli::Cli;
use crate::output::{Output, usage};
use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// The command whose page to print [default: kpat itself]
    command: Option<String>,
    /// Write kpat.1 and one page per command into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    all: Option<PathBuf>,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let mut all = Cli::command();
    all.build();
    if let Some(folder) = &args.all {
        let failed = || format!("cannot write the manual pages into {}", folder.display());
        std::fs::create_dir_all(folder).with_context(failed)?;
        return write_all(&all, folder).with_context(failed).map(|()| ExitCode::SUCCESS);
    }
    let command = match &args.command {
        None => &all,
        Some(name) => all
            .find_subcommand(name)
            .ok_or_else(|| usage(format!("there is no command `{name}`; `kpat --help` lists them")))?,
    };
    out.raw(&page(command)?)?;
    Ok(ExitCode::SUCCESS)
}

fn write_all(command: &Command, folder: &std::path::Path) -> std::io::Result<()> {
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        write_all(sub, folder)?;
    }
    std::fs::write(folder.join(Man::new(command.clone()).get_filename()), page(command)?)
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    out.extend_from_slice(b".SH SYNOPSIS\n");
    let usage = command.clone().render_usage().to_string();
    for line in usage.trim_start_matches("Usage:").lines().map(str::trim).filter(|l| !l.is_empty()) {
        out.extend_from_slice(format!("\\fB{}\\fR\n.br\n", escaped(line)).as_bytes());
    }
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    if let Some(more) = command.get_after_help() {
        out.extend_from_slice(b".SH NOTES\n.nf\n");
        for line in more.to_string().lines() {
            out.extend_from_slice(format!("{}\n", escaped(line)).as_bytes());
        }
        out.extend_from_slice(b".fi\n");
    }
    let called = command.get_display_name().unwrap_or("kpat");
    let path: Vec<&str> = called.split('-').skip(1).collect();
    // A command of a command has the examples of the whole.
    let mut lines = examples::of(path.first().unwrap_or(&"")).peekable();
    if lines.peek().is_some() {
        out.extend_from_slice(b".SH EXAMPLES\n");
        for (line, what_for) in lines {
            out.extend_from_slice(
                format!(".TP\n\\fB{}\\fR\n{}\n", escaped(line), escaped(what_for)).as_bytes(),
            );
        }
    }
    out.extend_from_slice(EXIT_STATUS.as_bytes());
    out.extend_from_slice(b".SH SEE ALSO\n");
    let also = match path.len() {
        0 => command
            .get_subcommands()
            .filter(|s| !s.is_hide_set())
            .map(|s| format!("kpat-{}", s.get_name()))
            .collect(),
        1 => vec!["kpat".to_owned()],
        _ => vec!["kpat".to_owned(), format!("kpat-{}", path[0])],
    };
    let also: Vec<String> = also.iter().map(|a| format!("\\fB{}\\fR(1)", escaped(a))).collect();
    out.extend_from_slice(format!("{}\n", also.join(", ")).as_bytes());
    Ok(out)
}

const EXIT_STATUS: &str = "\
.SH EXIT STATUS
.TP
\\fB0\\fR
Complete. That no packet, function or event fits is an answer, too.
.TP
\\fB1\\fR
Failed; one sentence on standard error has the reason.
.TP
\\fB2\\fR
Wrong usage.
.TP
\\fB3\\fR
Finished, but something was lost or damaged (only with \\fB\\-\\-strict\\fR).
.TP
\\fB130\\fR
Interrupted by Ctrl\\-C; nothing half made is left.
";

/// As text of a line: no requests, no escapes.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}
