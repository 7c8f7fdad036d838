//! What is typed of a recording of whom the CPUs work for (`--profile profile`).

use crate::output::usage;
use crate::probes::Select;
use kpat_probe::sampling::MOST_RATE;
use kpat_probe::work::{Resources, Term};

#[derive(clap::Args)]
pub struct ProfileArgs {
    /// With --profile profile: samples with stacks, so many of each CPU in a second; 0: none, the sums alone
    #[arg(long, value_name = "HZ", default_value_t = 199, value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_RATE)))]
    pub rate: u32,
    /// Record only packets and sockets of these processes, and with --profile profile profile the others together as one: pid=N (and its
    /// children), comm=NAME (`?`, `*` at the end), cgroup=PATH (and below), container=ID, pod=NAME, user=NAME, or command (CMD and its children); may be
    /// repeated, one is enough
    #[arg(long, value_name = "WHICH", value_parser = Term::parse)]
    only: Vec<Term>,
    /// With --profile profile: what is accounted, of cpu, packets, bytes and blocks [default: all]
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    resource: Vec<Resource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Resource {
    /// CPU time, which is always accounted
    Cpu,
    /// Packets, and the interrupts' work for their sockets
    Packets,
    /// Their bytes: the same tracepoints
    Bytes,
    /// Requests of disks and writeback
    Blocks,
}

impl ProfileArgs {
    /// The choice and what is accounted.
    pub fn profiled(&self, select: &Select, has_command: bool) -> anyhow::Result<(Vec<Term>, Resources)> {
        if !self.resource.is_empty() && !select.work() {
            return Err(usage("--resource needs --profile profile"));
        }
        let there_are = select.work() || select.applications() || select.selection().is_some();
        if !self.only.is_empty() && !there_are {
            return Err(usage(
                "--only needs a profile that records packets, applications or whom the CPUs work for",
            ));
        }
        if self.only.contains(&Term::Command) && !has_command {
            return Err(usage("--only command: give the command after `--`"));
        }
        let has = |wanted: &[Resource]| {
            self.resource.is_empty() || self.resource.iter().any(|r| wanted.contains(r))
        };
        let packets = has(&[Resource::Packets, Resource::Bytes]);
        Ok((self.only.clone(), Resources { packets, blocks: has(&[Resource::Blocks]) }))
    }
}
