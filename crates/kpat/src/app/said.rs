//! What programs said of a socket.

use crate::events::as_json;
use crate::open::Integrated;
use crate::output::Output;
use crate::render::{Column, Line, Style, Table, count};
use crate::times::{Clock, Times};
use kpat_query::{EventFilter, EventList};
use serde_json::Value;

/// Of `kpat app --socket` as text.
const MOST: usize = 12;

fn of(log: &Integrated, socket: i64, limit: usize) -> anyhow::Result<EventList> {
    Ok(log.events(&EventFilter { socket: Some(socket), ..EventFilter::default() }, limit)?)
}

/// All of it; `None`: no single socket is asked for.
pub fn json(log: &Integrated, socket: Option<i64>) -> anyhow::Result<Option<Vec<Value>>> {
    let Some(socket) = socket else { return Ok(None) };
    Ok(Some(of(log, socket, 0)?.rows.iter().map(|e| as_json(log, e)).collect()))
}

pub fn print(log: &Integrated, socket: i64, out: &Output) -> anyhow::Result<()> {
    let list = of(log, socket, MOST)?;
    if list.rows.is_empty() {
        return Ok(());
    }
    out.line(&Line::new())?;
    let times = Times::of(&Clock::default(), log)?;
    let mut table = Table::new(&[
        Column::right(times.heading(), 0),
        Column::left("process", 1, 8),
        Column::left("what it said", 0, 20),
    ]);
    for e in &list.rows {
        let process = e.event.pid.map(|pid| log.process_name(pid, e.event.at_ns)).unwrap_or_default();
        table.row(vec![
            (times.show(e.event.at_ns), Style::Plain),
            (process, Style::Faint),
            (e.what(), Style::Plain),
        ]);
    }
    out.lines(&table.render(out.width).0)?;
    let more = list.total - list.rows.len() as u64;
    if more > 0 {
        let words = format!("and {} more: kpat events --socket {socket} --limit 0", count(more));
        out.line(&Line::of(words, Style::Faint))?;
    }
    Ok(())
}
