//! `kpat app --write ID` and `--slow-writes`: from a write to its packets, and the writes that took longest.

use crate::listing::Listing;
use crate::open::Integrated;
use crate::output::{Output, usage};
use crate::packets::expression;
use crate::render::{Column, Line, Pairs, Style, Table, bytes, count, duration};
use kpat_query::{BytesOfCall, PacketOfWrite, SlowWrite, app, protocol, verdict};
use serde_json::{Value, json};
use std::process::ExitCode;

fn by(log: &Integrated, pid: Option<i32>, at_ns: i64) -> String {
    pid.map_or_else(|| "not known".to_owned(), |pid| log.process_name(pid, at_ns))
}

/// Fields of the packets of a write, in the order of `--tsv`.
const FIELDS_OF_ONE: [&str; 6] =
    ["packet_id", "carried_bytes", "first_boot_ns", "last_boot_ns", "verdict", "read_boot_ns"];
/// Fields of slow writes.
const FIELDS: [&str; 7] = ["id", "socket_id", "pid", "process", "at_boot_ns", "bytes", "acked_after_ns"];

pub fn one(log: &Integrated, id: i64, listing: &Listing, out: &Output) -> anyhow::Result<ExitCode> {
    let Some(w) = log.written(id)? else {
        return Err(usage(format!(
            "no write of this log has the number {id}; kpat packet lists the writes of a packet, --slow-writes the slowest ones"
        )));
    };
    let read = |b: &BytesOfCall| json!({"id": b.id, "at_boot_ns": b.at_ns, "bytes": b.bytes, "carried_bytes": b.carried_bytes, "pid": b.pid});
    let packet = |p: &PacketOfWrite| {
        json!({
            "packet_id": p.packet.packet_id, "carried_bytes": p.carried_bytes, "first_boot_ns": p.packet.first_ns,
            "last_boot_ns": p.packet.last_ns, "verdict": verdict::name(p.packet.verdict),
            "read_boot_ns": p.reads.iter().map(|r| r.at_ns).max(), "reads": p.reads.iter().map(read).collect::<Vec<_>>(),
        })
    };
    if let Some(tsv) = listing.tsv(&FIELDS_OF_ONE)? {
        tsv.rows(w.packets.iter().map(packet), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if out.json {
        let packets: Vec<Value> = w.packets.iter().map(packet).collect();
        out.value(&json!({
            "start_boot_ns": log.start_ns(), "id": w.id, "socket_id": w.socket.socket_id, "pid": w.pid,
            "process": w.pid.and_then(|p| log.process(p, w.at_ns)).map(|p| p.comm.as_str()), "at_boot_ns": w.at_ns, "bytes": w.bytes,
            "error": w.error.map(app::errno), "acked_boot_ns": w.acked_ns, "packets": packets, "packets_cut": w.cut,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut facts = Pairs::new();
    let stream = w.socket.proto == 6;
    let size = bytes(w.bytes.max(0) as u64);
    let what = match w.error.map(app::errno) {
        Some(error) if w.packets.is_empty() => format!("refused ({error}), by"),
        Some(error) => format!("{size}, refused ({error}), by"),
        None => format!("{size} by"),
    };
    facts.add("write", format!("{id}, {what} {}", by(log, w.pid, w.at_ns)));
    facts.add("socket", w.socket.socket_id.to_string());
    let (what, since_what) = match stream {
        true => ("given to TCP", "it was given to TCP"),
        false => ("call over", "the call was over: its packets were there before"),
    };
    facts.add(what, format!("{} after the start of the log", duration(w.at_ns - log.start_ns())));
    if stream {
        let acked = w.acked_ns.map(|at| format!("all of it, {} later", duration(at - w.at_ns)));
        facts.add("acknowledged", acked.unwrap_or_else(|| "not seen".to_owned()));
    }
    out.lines(&facts.render(out.width))?;
    out.line(&Line::new())?;
    if w.packets.is_empty() {
        let unknown = match w.error {
            Some(_) => "No packet of it is known: the kernel mostly refuses before it makes one.",
            None => "Which packets carried it is not known.",
        };
        out.line(&Line::of(unknown, Style::Faint))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        Column::right("packet", 0),
        Column::right("bytes of it", 0),
        Column::right("first seen", 0),
        Column::right("last", 1),
        Column::left("verdict", 2, 6),
        Column::right("read", 0),
        Column::left("", 3, 12),
    ]);
    for p in &w.packets {
        let since = |at: i64| (duration(at - w.at_ns), Style::Plain);
        let read = p.reads.iter().map(|r| r.at_ns).max();
        table.row(vec![
            (p.packet.packet_id.to_string(), Style::Plain),
            (count(p.carried_bytes.max(0) as u64), Style::Strong),
            since(p.packet.first_ns),
            since(p.packet.last_ns),
            (verdict::name(p.packet.verdict).to_owned(), Style::Plain),
            read.map_or_else(|| ("not known".to_owned(), Style::Faint), since),
            (protocol::summary(&p.packet), Style::Faint),
        ]);
    }
    listing.print(table, out)?;
    out.line(&Line::of(format!("Times since {since_what}."), Style::Faint))?;
    if w.cut {
        out.say("more packets may have carried it than are shown");
    }
    Ok(ExitCode::SUCCESS)
}

/// `expression`: of which writes; empty: of all.
pub fn slow(
    log: &Integrated,
    socket: Option<i64>,
    expression: &str,
    limit: usize,
    listing: &Listing,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let only: Vec<i64> = socket.into_iter().collect();
    super::table::known(log, &only)?;
    let filter = expression::of_writes(expression).map_err(usage)?;
    let most = if limit == 0 { usize::MAX } else { limit };
    let (writes, all, open) = log.slow_writes(socket, filter.as_ref(), most)?;
    let one = |w: &SlowWrite| {
        json!({
            "id": w.id, "socket_id": w.socket_id, "pid": w.pid, "process": w.pid.and_then(|p| log.process(p, w.at_ns)).map(|p| p.comm.as_str()),
            "at_boot_ns": w.at_ns, "bytes": w.bytes, "acked_after_ns": w.acked_after_ns,
        })
    };
    if let Some(tsv) = listing.tsv(&FIELDS)? {
        tsv.rows(writes.iter().map(one), out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if out.json {
        out.value(&json!({
            "start_boot_ns": log.start_ns(), "total": all, "not_acknowledged": open, "shown": writes.len(),
            "writes": writes.iter().map(one).collect::<Vec<_>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&[
        Column::right("write", 0),
        Column::right("acknowledged after", 0),
        Column::right("bytes", 0),
        Column::right("at", 1),
        Column::right("socket", 0),
        Column::left("process", 2, 8),
    ]);
    for w in &writes {
        table.row(vec![
            (w.id.to_string(), Style::Plain),
            (duration(w.acked_after_ns), Style::Strong),
            (count(w.bytes.max(0) as u64), Style::Plain),
            (duration(w.at_ns - log.start_ns()), Style::Plain),
            (w.socket_id.to_string(), Style::Plain),
            (by(log, w.pid, w.at_ns), Style::Plain),
        ]);
    }
    listing.print(table, out)?;
    out.say(&format!(
        "{} of {} writes to TCP{} shown; {} were not seen acknowledged",
        writes.len(),
        count(all),
        if filter.is_some() { " that fit" } else { "" },
        count(open)
    ));
    Ok(ExitCode::SUCCESS)
}
