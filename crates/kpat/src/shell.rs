//! What the shell and the manual know of the commands: made from the same declaration as the help.

use crate::cli::Cli;
use crate::output::Output;
use clap::CommandFactory;
use std::process::ExitCode;

pub mod completion {
    use super::*;

    #[derive(clap::Args)]
    pub struct Args {
        /// Which shell
        shell: Shell,
    }

    #[derive(Clone, Copy, Debug, clap::ValueEnum)]
    enum Shell {
        Bash,
        Zsh,
        Fish,
    }

    pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
        let shell = match args.shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "kpat", &mut script);
        out.raw(&script)?;
        Ok(ExitCode::SUCCESS)
    }
}

pub mod man {
    use super::*;
    use anyhow::Context;
    use std::path::PathBuf;

    #[derive(clap::Args)]
    pub struct Args {
        /// The page of this command [default: that of kpat]
        command: Option<String>,
        /// Write kpat.1 and one page per command into this folder
        #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
        all: Option<PathBuf>,
    }

    pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
        if let Some(folder) = &args.all {
            let failed = || format!("cannot write the manual pages into {}", folder.display());
            std::fs::create_dir_all(folder).with_context(failed)?;
            clap_mangen::generate_to(Cli::command(), folder).with_context(failed)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut all = Cli::command();
        all.build();
        let command = match &args.command {
            None => all,
            Some(name) => match all.find_subcommand(name) {
                Some(found) => found.clone(),
                None => {
                    return Err(crate::output::usage(format!(
                        "`{name}` is no command; `kpat --help` lists them"
                    )));
                }
            },
        };
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        out.raw(&page)?;
        Ok(ExitCode::SUCCESS)
    }
}
