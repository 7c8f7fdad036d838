//! `kpat events --by`: how many events of each sort there are, and from when to when.

use super::kind_style;
use crate::listing::Listing;
use crate::open::Integrated;
use crate::output::Output;
use crate::render::{Column, Style, Table, count};
use crate::times::{self, Times};
use clap::ValueEnum;
use kpat_query::{EventOfPacket, event_kind};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// By kind
    Kind,
    /// By kind and the kernel's drop reason
    Reason,
    /// By kind and the function that dropped
    Place,
    /// By kind and the process that ran at the time
    Process,
}

/// Events that have kind and name in common.
struct Group {
    kind: i32,
    /// Empty: not known, or events of this kind have none.
    name: String,
    count: u64,
    packets: BTreeSet<i64>,
    first_ns: i64,
    last_ns: i64,
}

impl By {
    fn word(self) -> &'static str {
        match self {
            By::Kind => "kind",
            By::Reason => "reason",
            By::Place => "place",
            By::Process => "process",
        }
    }

    fn name(self, log: &Integrated, e: &EventOfPacket) -> String {
        match self {
            By::Kind => String::new(),
            By::Reason => e.reason.clone(),
            By::Place => e.place.clone(),
            By::Process => {
                let task = e.event.pid.map(|pid| (pid, log.process(pid, e.event.at_ns)));
                task.map_or_else(String::new, |(pid, p)| p.map_or(pid.to_string(), |p| p.comm.clone()))
            }
        }
    }

    /// Most frequent first.
    fn groups(self, log: &Integrated, events: &[EventOfPacket]) -> Vec<Group> {
        let mut groups: HashMap<(i32, String), Group> = HashMap::new();
        for e in events {
            let (kind, at) = (e.event.kind, e.event.at_ns);
            let name = self.name(log, e);
            let g = groups.entry((kind, name.clone())).or_insert_with(|| Group {
                kind,
                name,
                count: 0,
                packets: BTreeSet::new(),
                first_ns: at,
                last_ns: at,
            });
            g.count += 1;
            g.packets.extend(e.event.packet_id);
            (g.first_ns, g.last_ns) = (g.first_ns.min(at), g.last_ns.max(at));
        }
        let mut groups: Vec<Group> = groups.into_values().collect();
        groups.sort_by(|a, b| (b.count, a.kind, &a.name).cmp(&(a.count, b.kind, &b.name)));
        groups
    }

    /// Prints at most `limit` (0: all) of the groups of all `events`.
    pub fn print(
        self,
        log: &Integrated,
        events: &[EventOfPacket],
        times: &Times,
        listing: &Listing,
        limit: usize,
        out: &Output,
    ) -> anyhow::Result<()> {
        let mut groups = self.groups(log, events);
        let all = groups.len();
        groups.truncate(if limit == 0 { all } else { limit });
        let json = |g: &Group| self.as_json(log, g);
        if out.json {
            return out.value(&json!({
                "start_boot_ns": log.start_ns(),
                "start_wall_ns": times::wall(log, log.start_ns()),
                "by": self.word(),
                "events": events.len(),
                "total": all,
                "shown": groups.len(),
                "groups": groups.iter().map(json).collect::<Vec<Value>>(),
            }));
        }
        if let Some(tsv) = listing.tsv(&FIELDS)? {
            return tsv.rows(groups.iter().map(json), out);
        }
        if groups.is_empty() {
            out.say("no event matches");
            return Ok(());
        }
        let mut columns = vec![
            Column::right("events", 0),
            Column::right("packets", 3),
            Column::left("event", 0, 0),
            Column::left(self.word(), 0, 14),
            Column::right(times.heading_of("first s", "first UTC"), 4),
            Column::right(times.heading_of("last s", "last UTC"), 5),
        ];
        if self == By::Kind {
            columns.remove(3);
        }
        let mut table = Table::new(&columns);
        for g in &groups {
            let plain = |text: String| (text, Style::Plain);
            let mut row = vec![
                plain(count(g.count)),
                plain(count(g.packets.len() as u64)),
                (event_kind(g.kind), kind_style(g.kind)),
                plain(g.name.clone()),
                plain(times.show(g.first_ns)),
                plain(times.show(g.last_ns)),
            ];
            if self == By::Kind {
                row.remove(3);
            }
            table.row(row);
        }
        let hidden = listing.print(table, out)?;
        if groups.len() < all {
            out.say(&format!("{} of {all} shown; --limit 0 shows all", groups.len()));
        }
        crate::packets::hint_hidden(out, &hidden);
        Ok(())
    }

    fn as_json(self, log: &Integrated, g: &Group) -> Value {
        json!({
            "kind": event_kind(g.kind),
            "name": (!g.name.is_empty()).then_some(&g.name),
            "events": g.count,
            "packets": g.packets.len(),
            "first_boot_ns": g.first_ns,
            "first_wall_ns": times::wall(log, g.first_ns),
            "last_boot_ns": g.last_ns,
            "last_wall_ns": times::wall(log, g.last_ns),
        })
    }
}

/// What [`By::as_json`] has, in the order of `--tsv`.
const FIELDS: [&str; 8] =
    ["kind", "name", "events", "packets", "first_boot_ns", "first_wall_ns", "last_boot_ns", "last_wall_ns"];
