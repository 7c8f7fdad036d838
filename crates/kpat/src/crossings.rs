//! Which crossings between layers a recording of applications sees on this kernel, and by what: for `kpat doctor` and
//! `kpat probes --profile app`.

use crate::output::Output;
use crate::render::{Column, Line, Style, Table};
use kpat_model::Crossing;
use kpat_probe::app::{self, Chosen, Hook};
use kpat_probe::btf::Btf;
use serde_json::{Value, json};

const PROTOCOLS: [&str; 4] = ["tcp", "udp", "raw", "ping"];

/// `functions`: function probes of the kind that it takes (fentry) are offered.
pub fn here(functions: bool) -> anyhow::Result<Chosen> {
    Ok(app::choose(&Btf::running()?[0], functions))
}

pub fn value(chosen: &Chosen) -> Value {
    let row = |c: Crossing, p: &str| {
        let by: Vec<Value> = app::seen_by(chosen, c, p)
            .iter()
            .map(|s| json!({"name": s.at, "kind": if s.hook == Hook::Tracepoint { "tracepoint" } else { "function" }}))
            .collect();
        json!({"crossing": c.name(), "layers": c.layers(), "protocol": p, "seen": !by.is_empty(), "by": by})
    };
    let applies = |c: Crossing, p: &str| p == "tcp" || !matches!(c, Crossing::Retransmit | Crossing::Acked);
    Crossing::ALL
        .iter()
        .copied()
        .flat_map(|c| PROTOCOLS.map(|p| (c, p)))
        .filter(|(c, p)| applies(*c, p))
        .map(|(c, p)| row(c, p))
        .collect()
}

pub fn table(chosen: &Chosen, out: &Output) -> anyhow::Result<()> {
    let mut t = Table::new(&[
        Column::left("crossing", 0, 0),
        Column::left("layers", 1, 0),
        Column::left("TCP", 0, 12),
        Column::left("UDP", 0, 12),
        Column::left("raw, ping", 0, 8),
    ]);
    let cell = |c: Crossing, protocols: &[&str]| {
        let mut by: Vec<&str> =
            protocols.iter().flat_map(|p| app::seen_by(chosen, c, p)).map(|s| s.at).collect();
        by.dedup();
        match (by.first(), c) {
            (Some(first), _) if by.len() > 1 => (format!("{first} +{}", by.len() - 1), Style::Plain),
            (Some(first), _) => ((*first).to_string(), Style::Plain),
            (None, Crossing::Retransmit | Crossing::Acked) if protocols != ["tcp"] => {
                (String::new(), Style::Plain)
            }
            (None, _) => ("not here".to_string(), Style::Warn),
        }
    };
    for c in Crossing::ALL.iter().copied() {
        t.row(vec![
            (c.name().into(), Style::Strong),
            (c.layers().into(), Style::Faint),
            cell(c, &["tcp"]),
            cell(c, &["udp"]),
            cell(c, &["raw", "ping"]),
        ]);
    }
    out.lines(&t.render(out.width).0)?;
    out.line(&Line::of(
        "Tracepoints go first; functions stand where a kernel has no tracepoint.",
        Style::Faint,
    ))
}
