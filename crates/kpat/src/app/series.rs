//! A socket, or all in sum, over time: a row of text for each piece of time, or columns of JSON.

use super::none;
use crate::open::Integrated;
use crate::output::{Meter, Output};
use crate::render::{Column, Style, Table, TimeAxis, bytes, count, duration, plural};
use crate::times::{Clock, Times};
use kpat_model::Crossing;
use kpat_query::app::{self, Held, Mark, Metric, Series, Window};
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// Pieces of time: as many as fit on a screen, or make a curve.
const ROWS: usize = 24;
const POINTS: usize = 400;

pub fn show(
    log: &Integrated,
    window: &Window,
    bins: Option<u16>,
    clock: &Clock,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let bins = bins.map_or(if out.json { POINTS } else { ROWS }, usize::from);
    let (socket, window) = (window.socket, Window { bins, ..window.clone() });
    let mut meter = Meter::default();
    let found = app::series(log, &window, &mut |done, parts| {
        out.progress(&mut meter, "reading", done, parts);
        true
    })?;
    out.clear_progress();
    let Some(series) = found else { return Err(none(socket)) };
    if out.json {
        out.value(&as_json(log, socket, &series))?;
    } else {
        text(log, &Times::of(clock, log)?, &series, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What held it back for most of what is known of a bin.
fn held(s: &Series, bin: usize) -> Option<Held> {
    let tcp = s.tcp.as_ref()?;
    let most = Held::ALL.into_iter().max_by_key(|h| tcp.held_ns(*h)[bin])?;
    (tcp.held_ns(most)[bin] > 0).then_some(most)
}

fn text(log: &Integrated, times: &Times, s: &Series, out: &Output) -> anyhow::Result<()> {
    let axis = TimeAxis::for_range(s.from_ns - log.start_ns(), s.to_ns - log.start_ns());
    let mut columns = vec![
        Column::right(times.heading_of("from", "from UTC"), 0),
        Column::right("written", 0),
        Column::right("sent", 0),
        Column::right("frames", 4),
        Column::right("acknowledged", 5),
        Column::right("received", 2),
        Column::right("read", 0),
    ];
    if s.tcp.is_some() {
        columns.extend([
            Column::right("cwnd", 0),
            Column::right("in flight", 3),
            Column::right("round trip", 1),
            Column::left("held back by", 0, 0),
        ]);
    }
    columns.push(Column::left("what happened", 0, 10));
    let mut table = Table::new(&columns);
    let at = |c: Crossing, bin: usize| s.crossings.get(&c).map(|v| v[bin]).unwrap_or_default();
    let size = |n: i64| (if n > 0 { bytes(n as u64) } else { String::new() }, Style::Plain);
    for bin in 0..s.bins {
        let sent = at(Crossing::ToDevice, bin);
        let mut row = vec![
            (
                times.of_day(s.edge(bin)).unwrap_or_else(|| axis.show(s.edge(bin) - log.start_ns())),
                Style::Faint,
            ),
            size(at(Crossing::Send, bin).bytes),
            size(sent.bytes),
            (if sent.frames > 0 { count(sent.frames) } else { String::new() }, Style::Plain),
            size(at(Crossing::Acked, bin).bytes),
            size(at(Crossing::ToSocket, bin).bytes),
            size(at(Crossing::Recv, bin).bytes),
        ];
        if let Some(tcp) = &s.tcp {
            let range = |of: Metric, show: &dyn Fn(i64) -> String| {
                let t = tcp.track(of);
                let text = match (t.low[bin], t.high[bin]) {
                    (Some(a), Some(b)) if a == b => show(a),
                    (Some(a), Some(b)) => format!("{} – {}", show(a), show(b)),
                    _ => String::new(),
                };
                (text, Style::Plain)
            };
            let number = |n: i64| count(n.max(0) as u64);
            row.push(range(Metric::Cwnd, &number));
            row.push(range(Metric::InFlight, &number));
            row.push(range(Metric::Srtt, &duration));
            row.push((held(s, bin).map_or("", Held::name).to_owned(), Style::Plain));
        }
        row.push((happened(s, bin), Style::Warn));
        table.row(row);
    }
    let (lines, hidden) = table.render(out.width);
    out.lines(&lines)?;
    let lost: i64 = s.gaps.iter().map(|g| g.lost).sum();
    if lost > 0 {
        out.say(&format!(
            "{} events are missing in this time; sums are too small by what they held",
            count(lost.unsigned_abs())
        ));
    }
    if times.of_day(s.from_ns).is_none() {
        out.say(&format!("times in {} since the log's start", axis.unit));
    }
    crate::packets::hint_hidden(out, &hidden);
    Ok(())
}

fn happened(s: &Series, bin: usize) -> String {
    let marks = Mark::ALL.into_iter().filter_map(|m| {
        let n = s.marks.get(&m)?[bin];
        let what = match m {
            Mark::Retransmission => format!("{} sent again", plural(n, "frame")),
            Mark::Loss => format!("{} taken for lost", count(n)),
            Mark::Congestion => format!("congestion state changed {}", plural(n, "time")),
            Mark::ZeroWindow => "zero window".to_owned(),
            Mark::WouldBlock => format!("{} would block", plural(n, "call")),
            Mark::Failure => format!("{} failed", plural(n, "call")),
        };
        (n > 0).then_some(what)
    });
    let (from, to) = (s.edge(bin), s.edge(bin + 1));
    let lost: i64 = s.gaps.iter().filter(|g| g.from_ns < to && g.to_ns >= from).map(|g| g.lost).sum();
    let gap = (lost > 0).then(|| "events are missing".to_owned());
    gap.into_iter().chain(marks).collect::<Vec<_>>().join(", ")
}

fn as_json(log: &Integrated, socket: Option<i64>, s: &Series) -> Value {
    let start = log.start_ns();
    let crossings: Map<String, Value> = s
        .crossings
        .iter()
        .map(|(c, v)| {
            let ints = |of: &dyn Fn(&app::Crossed) -> i64| v.iter().map(of).collect::<Vec<i64>>();
            let value = json!({
                "events": ints(&|x| x.events as i64), "bytes": ints(&|x| x.bytes), "frames": ints(&|x| x.frames as i64),
                "least_bytes": ints(&|x| x.least), "most_bytes": ints(&|x| x.most),
            });
            (c.name().to_owned(), value)
        })
        .collect();
    let marks: Map<String, Value> = s.marks.iter().map(|(m, v)| (m.name().to_owned(), json!(v))).collect();
    let tcp = s.tcp.as_ref().map(|tcp| {
        let state: Map<String, Value> = Metric::ALL
            .into_iter()
            .map(|m| {
                let t = tcp.track(m);
                (m.name().to_owned(), json!({"unit": m.unit(), "low": t.low, "high": t.high, "last": t.last}))
            })
            .collect();
        let held: Map<String, Value> =
            Held::ALL.into_iter().map(|h| (h.name().to_owned(), json!(tcp.held_ns(h)))).collect();
        json!({"state": state, "held_back_ns": held, "recovery_ns": tcp.recovery_ns})
    });
    json!({
        "start_boot_ns": start,
        "start_wall_ns": crate::times::wall(log, start),
        "socket_id": socket,
        "from_ns": s.from_ns - start,
        "to_ns": s.to_ns - start,
        "bins": s.bins,
        "bin_from_ns": (0..s.bins).map(|b| s.edge(b) - start).collect::<Vec<_>>(),
        "crossings": crossings,
        "marks": marks,
        "tcp": tcp,
        "gaps": s.gaps.iter().map(|g| json!({"from_ns": g.from_ns - start, "to_ns": g.to_ns - start, "lost": g.lost})).collect::<Vec<_>>(),
    })
}
