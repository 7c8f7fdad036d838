//! What is typed of a recording of applications (`--profile app`).

use crate::output::usage;
use crate::probes::Select;
use crate::render::parse_duration;
use anyhow::Context;
use kpat_probe::app::{Addresses, States};
use kpat_probe::recorder::Application;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
pub struct AppArgs {
    /// With --profile app: when the TCP state is logged: change, off, all (with each crossing, and the IP header of datagrams), or at least
    /// every TIME
    #[arg(long, value_name = "WHEN", help_heading = "Applications")]
    tcp_state: Option<String>,
    /// With --profile app: log segments without data (acknowledgements), too
    #[arg(long, help_heading = "Applications")]
    acks: bool,
    /// With --profile app: replace addresses (network, link), host name and boot id by a keyed hash, or with `drop` leave them out; the filter
    /// and the arguments of the command line are left out
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        default_missing_value = "hash",
        value_parser = ["hash", "drop"],
        help_heading = "Applications"
    )]
    anonymise: Option<String>,
    /// File with the key of the hash, 16 bytes or more [default: a new key for each recording]
    #[arg(long, value_name = "FILE", requires = "anonymise", help_heading = "Applications")]
    key_file: Option<PathBuf>,
}

pub fn parse_states(text: &str) -> Option<States> {
    States::parse(text, |t| parse_duration(t).ok().map(|ns| Duration::from_nanos(ns.max(0) as u64)))
}

impl AppArgs {
    pub fn is_anonymous(&self) -> bool {
        self.anonymise.is_some()
    }

    /// `None`: they are not recorded.
    pub fn application(&self, select: &Select) -> anyhow::Result<Option<Application>> {
        if !select.applications() {
            let given = [
                (self.tcp_state.is_some(), "--tcp-state"),
                (self.acks, "--acks"),
                (self.anonymise.is_some(), "--anonymise"),
            ];
            return match given.iter().find(|(is, _)| *is) {
                Some((_, flag)) => Err(usage(format!("{flag} needs --profile app"))),
                None => Ok(None),
            };
        }
        let states = match self.tcp_state.as_deref() {
            None => States::Changed,
            Some(text) => parse_states(text).ok_or_else(|| {
                usage(format!("--tcp-state {text}: change, off, all or a time such as 10ms"))
            })?,
        };
        let addresses = match self.anonymise.as_deref() {
            None => Addresses::Plain,
            Some("drop") => Addresses::LeftOut,
            Some(_) => Addresses::Hashed(key(self.key_file.as_deref())?),
        };
        Ok(Some(Application { states, empty: self.acks, addresses }))
    }
}

fn key(file: Option<&Path>) -> anyhow::Result<[u8; 16]> {
    let path = file.unwrap_or(Path::new("/dev/urandom"));
    let mut key = [0; 16];
    std::fs::File::open(path)
        .and_then(|mut f| f.read_exact(&mut key))
        .with_context(|| format!("the key in {} (16 bytes are needed)", path.display()))?;
    Ok(key)
}
