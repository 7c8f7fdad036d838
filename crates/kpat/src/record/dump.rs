//! When the flight recorder dumps by itself.

use super::parse_size;
use crate::output::usage;
use crate::render::parse_duration;
use kpat_probe::recorder::DumpWhen;
use std::time::Duration;

#[derive(clap::Args)]
pub struct DumpArgs {
    /// Dump the flight recorder when a packet is dropped; with a list: only for these reasons or in these functions (globs)
    #[arg(long, requires = "memory", value_name = "REASON|FUNCTION,...", num_args = 0..=1, require_equals = true, default_missing_value = "", value_delimiter = ',')]
    dump_on_drop: Option<Vec<String>>,
    /// Dump the flight recorder when a packet was in the kernel for longer than this
    #[arg(long, requires = "memory", value_name = "TIME", value_parser = parse_duration)]
    dump_slower: Option<i64>,
    /// Only packets that match trigger a dump (pcap-filter syntax)
    #[arg(long, requires = "memory", value_name = "FILTER")]
    dump_filter: Option<String>,
    /// Minimum time between triggered dumps
    #[arg(long, requires = "memory", value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    dump_every: i64,
    /// Maximum number of triggered dumps
    #[arg(long, requires = "memory", value_name = "N", default_value_t = 100)]
    dump_files: u32,
    /// Maximum total size of triggered dumps
    #[arg(long, requires = "memory", value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    dump_bytes: u64,
}

impl DumpArgs {
    /// `None`: it dumps only when it is asked to.
    pub fn when(&self) -> anyhow::Result<Option<DumpWhen>> {
        if self.dump_on_drop.is_none() && self.dump_slower.is_none() {
            return match self.dump_filter {
                Some(_) => Err(usage("--dump-filter needs --dump-on-drop or --dump-slower")),
                None => Ok(None),
            };
        }
        let some = |names: &Vec<String>| names.iter().filter(|n| !n.is_empty()).cloned().collect();
        Ok(Some(DumpWhen {
            drop: self.dump_on_drop.as_ref().map(some),
            slower: self.dump_slower.map(|ns| Duration::from_nanos(ns.max(0) as u64)),
            filter: self.dump_filter.clone().unwrap_or_default(),
            every: Duration::from_nanos(self.dump_every.max(0) as u64),
            files: self.dump_files,
            bytes: self.dump_bytes,
        }))
    }
}
