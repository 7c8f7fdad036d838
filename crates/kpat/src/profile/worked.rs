//! `kpat profile --function`: the packets that a function worked on, by the samples that found it there.

use crate::open::Integrated;
use crate::output::{Output, usage};
use crate::packets::{as_json, expression, verdict_style};
use crate::render::{Column, Pairs, Style, Table, count};
use kpat_query::sampled::worked::{Part, worked};
use kpat_query::{PacketFilter, PacketSort, protocol, verdict};
use kpat_store::tables::PacketRow;
use serde_json::{Value, json};
use std::process::ExitCode;

/// `which`: an expression of the filter language; empty: all packets.
pub fn run(
    log: &Integrated,
    function: &str,
    which: &str,
    limit: usize,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let filter =
        PacketFilter { expression: expression::parse(which).map_err(usage)?, ..PacketFilter::default() };
    let found = worked(log, function)?.ok_or_else(|| usage(super::sampled::NOTHING))?;
    if found.all.samples == 0 {
        return Err(usage(format!("no sample in this log has {function} on its stack")));
    }
    let mut rows: Vec<(Part, PacketRow)> = Vec::new();
    log.each_packet(&filter, PacketSort::Time, false, &mut |p| -> anyhow::Result<bool> {
        if let Some(part) = found.packets.get(&p.packet_id) {
            rows.push((*part, p));
        }
        Ok(true)
    })?;
    if found.packets.is_empty() && log.table::<PacketRow>()?.rows() == 0 {
        return Err(usage("this log has no packets; record both with `kpat record -p path,profile`"));
    }
    rows.sort_by_key(|(part, p)| (-part.ns, p.packet_id));
    if out.json {
        let packet = |(part, p): &(Part, PacketRow)| json!({ "samples": part.samples, "ns": part.ns, "packet": as_json(log, p) });
        out.value(&json!({
            "function": function, "samples": found.all.samples, "ns": found.all.ns,
            "without_packet": { "samples": found.without.samples, "ns": found.without.ns },
            "total": rows.len(), "packets": rows.iter().take(limit).map(packet).collect::<Vec<Value>>(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut facts = Pairs::new();
    facts.add(
        "samples",
        format!(
            "{} with {} on the stack, {:.3} s; {} with no packet at hand, {:.3} s",
            count(found.all.samples as u64),
            kpat_text::clean(function),
            found.all.ns as f64 / 1e9,
            count(found.without.samples as u64),
            found.without.ns as f64 / 1e9
        ),
    );
    out.lines(&facts.render(out.width))?;
    let mut table = Table::new(&[
        Column::right("packet", 0),
        Column::right("time, ms", 0),
        Column::right("samples", 0),
        Column::left("source", 0, 13),
        Column::left("destination", 0, 13),
        Column::right("length", 2),
        Column::left("info", 1, 12),
        Column::left("verdict", 0, 0),
    ]);
    for (part, p) in rows.iter().take(limit) {
        let plain = |text: String| (text, Style::Plain);
        table.row(vec![
            plain(p.packet_id.to_string()),
            plain(format!("{:.3}", part.ns as f64 / 1e6)),
            plain(part.samples.to_string()),
            plain(protocol::endpoint(p.src_addr.as_deref(), p.sport)),
            plain(protocol::endpoint(p.dst_addr.as_deref(), p.dport)),
            plain(p.len_bytes.to_string()),
            plain(protocol::summary(p)),
            (verdict::name(p.verdict).into(), verdict_style(p.verdict)),
        ]);
    }
    out.lines(&table.render(out.width).0)?;
    if rows.len() > limit {
        out.say(&format!("{} of {} packets shown; --limit 0 shows all", limit, count(rows.len() as u64)));
    }
    Ok(ExitCode::SUCCESS)
}
