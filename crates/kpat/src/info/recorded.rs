//! A kernel behaviour log as recorded.

use super::{LossSum, add_losses, add_recording, cost_json, cost_line, recording_json};
use crate::output::{Meter, Output};
use crate::render::{Column, Line, Pairs, Style, Table, bytes, count, duration, plural, time_of_day};
use kpat_klog::{EndState, Issue, Log, app_kind_name, end_time, kind_name};
use kpat_model::meta::{Device, Meta, Summary};
use kpat_model::{Loss, Record};
use kpat_store::tables::LossRow;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

/// Records by the name of their kind.
#[derive(Default)]
struct Counts {
    kinds: BTreeMap<&'static str, u64>,
    losses: Vec<LossRow>,
    first_ns: Option<i64>,
    last_ns: i64,
}

impl Counts {
    fn total(&self) -> u64 {
        self.kinds.values().sum()
    }

    fn read(log: &Log, out: &Output) -> Counts {
        let mut n = Counts { last_ns: i64::MIN, ..Counts::default() };
        let total: u64 = log.chunk_index().iter().map(|c| u64::from(c.count)).sum();
        let (mut meter, mut done) = (Meter::default(), 0u64);
        let mut progress = || {
            done += 1;
            if done.is_multiple_of(1 << 16) {
                out.progress(&mut meter, "reading", done, total);
            }
        };
        for cpu in log.cpus() {
            for record in log.records(cpu) {
                n.add(&record);
                progress();
            }
        }
        for (_, record) in log.app_records() {
            *n.kinds.entry(app_kind_name(&record)).or_default() += 1;
            n.spans(record.at().0, record.at().0);
            progress();
        }
        out.clear_progress();
        n
    }

    fn add(&mut self, record: &Record) {
        *self.kinds.entry(kind_name(record)).or_default() += 1;
        let end = end_time(record).0;
        match record {
            Record::Call(c) => self.spans(c.entry.0, end),
            // May be logged long after it happened.
            Record::Process(_) => {}
            Record::Loss(l) => self.losses.push(loss_row(l)),
            _ => self.spans(end, end),
        }
    }

    fn spans(&mut self, start: i64, end: i64) {
        self.first_ns = Some(self.first_ns.map_or(start, |f| f.min(start)));
        self.last_ns = self.last_ns.max(end);
    }
}

fn loss_row(l: &Loss) -> LossRow {
    LossRow {
        cause: l.cause as i32,
        cpu: (l.cpu >= 0).then_some(l.cpu),
        from_ns: l.from.0,
        to_ns: l.to.0,
        count: i64::try_from(l.count).unwrap_or(i64::MAX),
    }
}

/// Calls that were open at the end are a loss; where their number is not known, that is reported.
pub(super) fn open_calls_words(meta: &Meta, summary: Option<&Summary>) -> String {
    match summary {
        Some(Summary { open_calls: None, .. }) if meta.mechanism.contains("session") => format!(
            "; calls that had not returned by then are not in it and not counted ({} keeps them to itself)",
            meta.mechanism
        ),
        _ => String::new(),
    }
}

/// How the file ends, whether that is as it should be, and in one word for JSON.
fn end_words(log: &Log) -> (String, Style, &'static str) {
    match log.end_state() {
        EndState::Complete => {
            let why = log.summary().map(|s| s.end_reason.as_str()).unwrap_or_default();
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            (format!("complete{why}{}", open_calls_words(log.meta(), log.summary())), Style::Good, "complete")
        }
        EndState::Open { tail_bytes: 0 } => (
            "not closed: still being written, or the recorder was killed; all that was written is readable"
                .to_owned(),
            Style::Warn,
            "open",
        ),
        EndState::Open { tail_bytes } => (
            format!(
                "not closed: still being written, or the recorder was killed; the last {} are the beginning of a chunk and were left out",
                bytes(*tail_bytes)
            ),
            Style::Warn,
            "open",
        ),
    }
}

pub fn run(path: &Path, out: &Output) -> anyhow::Result<ExitCode> {
    let log = Log::open(path)?;
    let counts = Counts::read(&log, out);
    let issues = log.issues();
    let losses = LossSum::of(&counts.losses);
    let file_bytes = std::fs::metadata(path).map(|m| m.len()).unwrap_or(0);
    let damaged = !issues.is_empty() || *log.end_state() != EndState::Complete;
    if out.json {
        print_json(&log, &counts, &issues, &losses, file_bytes, out)?;
    } else {
        print_text(&log, &counts, &issues, &losses, file_bytes, out)?;
        out.say(&format!("to look packets up: kpat integrate {} [WIRE.pcapng ...]", path.display()));
    }
    Ok(out.ended(damaged || !losses.is_empty()))
}

fn print_text(
    log: &Log,
    counts: &Counts,
    issues: &[Issue],
    losses: &[LossSum],
    file_bytes: u64,
    out: &Output,
) -> anyhow::Result<()> {
    let meta = log.meta();
    let mut pairs = Pairs::new();
    let name = log.path().display().to_string();
    pairs.line(
        "log",
        Line::of(name, Style::Strong)
            .plain(format!("  kernel behaviour log, {}, not integrated", bytes(file_bytes))),
    );
    let (end, style, _) = end_words(log);
    pairs.line("state", Line::of(end, style));
    for (i, issue) in issues.iter().take(20).enumerate() {
        let text = format!("offset {}, {}: {}", count(issue.offset), bytes(issue.len), issue.reason);
        pairs.line(if i == 0 { "damage" } else { "" }, Line::of(text, Style::Bad));
    }
    if issues.len() > 20 {
        pairs.add("", format!("and {} more (--json lists all)", count(issues.len() as u64 - 20)));
    }
    add_recording(&mut pairs, meta, &functions(log));
    if meta.started.wall.0 != 0 {
        pairs.add("started", format!("{} UTC", time_of_day(meta.started.wall.0, true)));
    }
    if let Some(first) = counts.first_ns {
        pairs.add("duration", duration(counts.last_ns.saturating_sub(first)));
    }
    pairs.add("records", records(counts));
    add_losses(&mut pairs, losses, 0, *log.end_state() == EndState::Complete);
    if let Some(cost) = log.summary().and_then(|s| cost_line(&s.cost, file_bytes, counts.total())) {
        pairs.add("cost", cost);
    }
    out.lines(&pairs.render(out.width))?;
    let devices: Vec<Device> = log.devices().to_vec();
    if !devices.is_empty() {
        out.line(&Line::new())?;
        out.lines(&device_table(&devices).render(out.width).0)?;
    }
    Ok(())
}

fn functions(log: &Log) -> String {
    let meta = log.meta();
    let points = meta.functions.iter().filter(|f| f.kind == "tracepoint").count();
    let mut text = plural((meta.functions.len() - points) as u64, "function");
    if points > 0 {
        text += &format!(", {}", plural(points as u64, "tracepoint"));
    }
    if !meta.left_out.is_empty() {
        text += &format!("; {} wanted and left out", count(meta.left_out.len() as u64));
    }
    text
}

/// Kinds of records, as JSON has them and as people read them. Losses have lines of their own.
const KINDS: [(&str, &str, &str); 33] = [
    ("call", "calls", "calls"),
    ("point", "points", "points"),
    ("member", "members", "list members"),
    ("footprint", "footprints", "footprints"),
    ("place", "places", "changes of place"),
    ("lineage", "lineage", "lineage"),
    ("event", "events", "events"),
    ("pause", "pauses", "pauses of tasks"),
    ("poll", "polls", "beginnings of polls"),
    ("poll-end", "poll_ends", "ends of polls"),
    ("card-stamp", "card_stamps", "stamps of cards"),
    ("card-reading", "card_readings", "readings of cards' clocks"),
    ("guest-clock", "guest_clocks", "readings of the guest's clock"),
    ("process", "processes", "process names"),
    ("crossing", "crossings", "crossings"),
    ("tcp-state", "tcp_states", "TCP states"),
    ("socket", "sockets", "sockets"),
    ("gap", "gaps", "gaps"),
    ("thread-time", "thread_times", "times of threads"),
    ("work", "work", "sums of work"),
    ("socket-use", "socket_uses", "uses of sockets"),
    ("cpu-time", "cpu_times", "accounts of CPUs"),
    ("cpu-packets", "cpu_packets", "counts of CPUs' packets"),
    ("process-label", "process_labels", "labels of processes"),
    ("sample", "samples", "samples"),
    ("stack", "stacks", "stacks"),
    ("mapping", "mappings", "mappings of processes"),
    ("program", "programs", "hits in programs"),
    ("wifi-event", "wifi_events", "events of radios"),
    ("link-event", "link_events", "events of links"),
    ("exchange", "exchanges", "exchanges (DHCP, ARP, ND, EAPOL)"),
    ("block-requests", "block_requests", "counts of disks' requests"),
    ("peer", "peers", "ends on other hosts"),
];

fn records(n: &Counts) -> String {
    let parts: Vec<String> = KINDS
        .iter()
        .filter_map(|(kind, _, words)| Some(format!("{} {words}", count(*n.kinds.get(kind)?))))
        .collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

pub fn device_table(devices: &[Device]) -> Table {
    let mut table = Table::new(&[
        Column::left("device", 0, 0),
        Column::right("ifindex", 0),
        Column::left("namespace", 0, 10),
        Column::left("link address", 0, 0),
        Column::right("MTU", 1),
        Column::left("driver", 2, 0),
    ]);
    for d in devices {
        let plain = |text: String| (text, Style::Plain);
        let netns = if d.netns_name.is_empty() { d.netns.to_string() } else { d.netns_name.clone() };
        table.row(vec![
            plain(d.name.clone()),
            plain(d.ifindex.to_string()),
            plain(netns),
            plain(d.mac.clone()),
            plain(d.mtu.to_string()),
            plain(d.driver.clone()),
        ]);
    }
    table
}

fn print_json(
    log: &Log,
    counts: &Counts,
    issues: &[Issue],
    losses: &[LossSum],
    file_bytes: u64,
    out: &Output,
) -> anyhow::Result<()> {
    let meta = log.meta();
    let summary = log.summary();
    let tail = match log.end_state() {
        EndState::Complete => 0,
        EndState::Open { tail_bytes } => *tail_bytes,
    };
    out.value(&json!({
        "kind": "kernel_behaviour_log",
        "file_bytes": file_bytes,
        "state": end_words(log).2,
        "end_reason": summary.filter(|s| s.complete).map(|s| &s.end_reason),
        "open_calls": summary.filter(|s| s.complete).and_then(|s| s.open_calls),
        "tail_bytes": tail,
        "issues": issues.iter().map(|i| json!({
            "offset_bytes": i.offset, "len_bytes": i.len, "reason": i.reason,
        })).collect::<Vec<_>>(),
        "recording": recording_json(meta),
        "functions": meta.functions.len(),
        "left_out": meta.left_out.iter().map(|l| json!({ "name": l.name, "reason": l.reason })).collect::<Vec<_>>(),
        "first_boot_ns": counts.first_ns,
        "last_boot_ns": counts.first_ns.map(|_| counts.last_ns),
        "records": KINDS
            .iter()
            .map(|(kind, key, _)| ((*key).to_owned(), json!(counts.kinds.get(kind).copied().unwrap_or(0))))
            .chain([("losses".to_owned(), json!(counts.losses.len()))])
            .collect::<serde_json::Map<_, _>>(),
        "losses": losses.iter().map(LossSum::as_json).collect::<Vec<_>>(),
        "cost": summary.map(|s| cost_json(&s.cost)),
        "devices": log.devices().iter().map(super::integrated::device_json).collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_kind_of_record_is_shown() {
        for kind in kpat_klog::declared().iter().filter(|k| k.name != "loss") {
            assert!(super::KINDS.iter().any(|(name, ..)| *name == kind.name), "{}", kind.name);
        }
        assert!(super::KINDS.iter().all(|(name, ..)| kpat_klog::declared().iter().any(|k| k.name == *name)));
    }
}
