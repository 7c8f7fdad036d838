//! What the shell and the manual know of the commands: made from the same declaration as the help.

pub mod complete;
pub mod examples;
mod in_log;
pub mod man;

use crate::output::Output;
use std::process::ExitCode;

pub mod completion {
    use super::*;

    #[derive(clap::Args)]
    pub struct Args {
        /// The shell
        shell: Shell,
    }

    #[derive(Clone, Copy, Debug, clap::ValueEnum)]
    enum Shell {
        Bash,
        Zsh,
        Fish,
    }

    pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
        out.raw(match args.shell {
            Shell::Bash => include_str!("kpat.bash").as_bytes(),
            Shell::Zsh => include_str!("kpat.zsh").as_bytes(),
            Shell::Fish => include_str!("kpat.fish").as_bytes(),
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
