//! What servers did for clients on other hosts; recordings of those hosts say which processes they are.

use super::{called, s};
use crate::open::{self, Device, Integrated};
use crate::output::usage;
use crate::render::{Column, Style, Table, count};
use kpat_model::ProcessNumber;
use kpat_query::Store;
use kpat_query::profile::peers::{Across, across};
use kpat_query::profile::{Profile, Wanted, pid as pid_of, profile};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A recording of another host.
struct Other {
    name: String,
    log: Integrated,
    profile: Profile,
}

/// The hosts, and what was done between them.
pub struct Hosts {
    others: Vec<Other>,
    pub all: Vec<Across>,
}

impl Hosts {
    /// Errors: one of the others is no integrated log, or has no profile.
    pub fn open(log: &Store, others: &[PathBuf]) -> anyhow::Result<Hosts> {
        let other = |path: &PathBuf| -> anyhow::Result<Other> {
            let log = open::integrated(path, &Device::default())?;
            let none = || usage(format!("{} has no profile", path.display()));
            let profile = profile(&log, &Wanted::default())?.ok_or_else(none)?;
            Ok(Other { name: name_of(path), log, profile })
        };
        let others: Vec<Other> = others.iter().map(other).collect::<anyhow::Result<_>>()?;
        let mut logs = vec![log];
        logs.extend(others.iter().map(|o| &*o.log));
        let all = across(&logs)?;
        Ok(Hosts { others, all })
    }

    /// Of one that is in the log that was asked for, if it is.
    fn own(end: Option<(usize, i32)>) -> Option<i32> {
        end.and_then(|(log, pid)| (log == 0).then_some(pid))
    }

    /// Only what this concerns.
    pub fn keep(&mut self, limit: usize, wanted: impl Fn(i32) -> bool) {
        self.all.retain(|a| [Some(a.server), a.client].into_iter().filter_map(Hosts::own).any(&wanted));
        self.all.truncate(limit);
    }

    fn process(&self, own: &Profile, (log, pid): (usize, i32)) -> (Option<&str>, String) {
        let (host, p) = match log.checked_sub(1).map(|i| &self.others[i]) {
            Some(other) => (Some(other.name.as_str()), &other.profile),
            None => (None, own),
        };
        let name = p.processes.iter().find(|x| x.number == pid).map_or_else(|| "?".into(), called);
        (host, name)
    }

    fn shown(&self, own: &Profile, end: (usize, i32)) -> String {
        match self.process(own, end) {
            (Some(host), name) => {
                format!("{name} {} on {}", ProcessNumber::from(end.1), kpat_text::clean(host))
            }
            (None, name) => format!("{name} {}", ProcessNumber::from(end.1)),
        }
    }

    pub fn table(&self, own: &Profile) -> Table {
        let mut table = Table::new(&[
            Column::left("server", 0, 12),
            Column::left("since a message of", 0, 12),
            Column::right("s", 0),
            Column::right("connections", 1),
        ]);
        for a in &self.all {
            let client = match (a.client, &a.address) {
                (Some(end), _) => self.shown(own, end),
                (None, Some(address)) => kpat_text::clean(address),
                (None, None) => "another host".into(),
            };
            let plain = |text: String| (text, Style::Plain);
            table.row(vec![
                plain(self.shown(own, a.server)),
                plain(client),
                plain(s(a.ns)),
                plain(count(a.ends as u64)),
            ]);
        }
        table
    }

    pub fn json(&self, own: &Profile) -> Value {
        let end = |end: (usize, i32)| {
            let (host, name) = self.process(own, end);
            json!({ "log": host, "pid": pid_of(end.1), "instance": ProcessNumber::from(end.1).instance(), "name": name })
        };
        let row = |a: &Across| {
            json!({
                "server": end(a.server), "client": a.client.map(end), "address": a.address, "connections": a.ends, "ns": a.ns,
            })
        };
        self.all.iter().map(row).collect()
    }
}

fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
