//! Tab separated: every call and point a line, ids written out as names, for spreadsheets, awk and R.

use crate::names::{Names, context};
use crate::text::cell;
use crate::{Counts, Result};
use kpat_query::Parts;
use kpat_query::trace::{Chosen, TreeOfCalls};
use kpat_query::{Store, call_flag};
use std::collections::HashSet;
use std::io::Write;

/// The columns, in order, and what they mean. Empty means: not known, or does not apply.
pub const COLUMNS: [(&str, &str); 18] = [
    ("call_id", "number of the call"),
    ("packet_ids", "packets that it touched, separated by commas; more than one where it handled a list"),
    ("function", "function, or tracepoint as group:name"),
    ("module", "kernel module, or vmlinux"),
    ("layer", "driver, link, network, transport, socket or other"),
    ("kind", "call or point"),
    ("entry_ns", "entry, boot clock of the device under test, ns"),
    ("dur_ns", "entry to return, ns; empty: a point, or the return was not seen"),
    ("self_ns", "dur_ns less callees, interrupts and off_ns, ns"),
    ("irq_ns", "interrupts in it, ns"),
    ("off_ns", "off-CPU intervals of its task, ns"),
    ("parent_id", "call that encloses it"),
    ("depth", "0: no recorded caller"),
    ("cpu", "CPU of the return"),
    ("context", "task, softirq, hardirq, nmi or ?"),
    ("pid", "thread that was current"),
    ("process", "its name"),
    ("flags", "as in the table call"),
];

pub fn write(store: &Store, chosen: &Chosen, out: &mut dyn Write, progress: Parts<'_>) -> Result<Counts> {
    let names = Names::of(store)?;
    let head: Vec<&str> = COLUMNS.iter().map(|c| c.0).collect();
    writeln!(out, "{}", head.join("\t"))?;
    let mut counts = Counts::default();
    let mut seen: HashSet<i64> = HashSet::new();
    let opt = |v: Option<i64>| v.map(|v| v.to_string()).unwrap_or_default();
    store.each_tree(chosen, progress, &mut |tree: &TreeOfCalls<'_>| -> Result<()> {
        for (i, row) in tree.rows().iter().enumerate().filter(|(i, _)| tree.is_chosen(*i)) {
            counts.call(row);
            write!(out, "{}\t", row.call_id)?;
            for (k, packet) in tree.packets(i).enumerate() {
                seen.insert(packet);
                write!(out, "{}{packet}", if k > 0 { "," } else { "" })?;
            }
            let f = row.func_id;
            let kind = if row.flags & call_flag::POINT != 0 { "point" } else { "call" };
            let comm = store.process(row.pid, row.entry_ns).map_or("", |p| p.comm.as_str());
            writeln!(
                out,
                "\t{}\t{}\t{}\t{kind}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                cell(names.name(f)),
                cell(names.module(f)),
                cell(names.layer(f)),
                row.entry_ns,
                opt(row.dur_ns),
                opt(row.self_ns),
                opt(row.irq_ns),
                opt(row.off_ns),
                opt(row.parent_id),
                row.depth,
                row.cpu,
                context(row.ctx),
                row.pid,
                cell(comm),
                row.flags,
            )?;
        }
        Ok(())
    })?;
    counts.packets = seen.len() as u64;
    Ok(counts)
}
