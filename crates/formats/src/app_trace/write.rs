//! Out of an integrated log.

use super::lines::*;
use crate::Result;
use crate::names::clean;
use kpat_query::Store;
use kpat_query::app;
use kpat_query::app::trace::{As, Connection, End, Item, Seen, Side, Totals, trace};
use serde::Serialize;
use std::io::Write;

/// As what it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON lines.
    Lines,
    /// Tab separated, the writes alone.
    Tsv,
}

fn line<T: Serialize>(out: &mut dyn Write, value: &T) -> Result<()> {
    serde_json::to_writer(crate::text::PlainJson(&mut *out), value).map_err(std::io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

/// `log`: the name of the integrated log. `only`: connections of these sockets; empty: all.
pub fn write(
    store: &Store,
    log: &str,
    only: &[i64],
    layer: As,
    form: Form,
    out: &mut dyn Write,
) -> Result<Totals> {
    let from = &store.manifest().log;
    let header = Header {
        kpat_app_trace: FORMAT_VERSION,
        time_unit: "ns".into(),
        size_unit: "bytes".into(),
        clock: "boot clock of the recorded host".into(),
        layer: if layer == As::Application { "application" } else { "network" }.into(),
        source: Source {
            log: log.into(),
            host: from.hostname.clone(),
            kernel: from.kernel_release.clone(),
            writer: format!("kpat {}", env!("CARGO_PKG_VERSION")),
            started_wall_ns: from.started.wall.0,
        },
        events_lost: i64::try_from(app::lost(store)?).unwrap_or(i64::MAX),
    };
    match form {
        Form::Lines => line(out, &header)?,
        Form::Tsv => {
            writeln!(out, "connection\tside\tproto\tat_ns\tsize_bytes\tread_before_bytes\tthink_ns")?
        }
    }
    let mut about: Vec<(i64, i32)> = Vec::new();
    let totals = trace(store, only, layer, |item| -> Result<()> {
        match (item, form) {
            (Item::Connection(c), Form::Lines) => line(out, &connection(c)),
            (Item::Connection(c), Form::Tsv) => {
                about.push((c.at_ns, c.proto));
                Ok(())
            }
            (Item::Write(w), Form::Lines) => {
                let s = if w.side == Side::A { 'a' } else { 'b' };
                let (r, t) = (w.after.map(|a| a.read_bytes), w.after.map(|a| a.think_ns));
                line(out, &WriteLine { c: w.connection, s, t: w.at_ns, n: w.size_bytes, r, w: t })
            }
            (Item::Write(w), Form::Tsv) => {
                let (at, proto) = usize::try_from(w.connection - 1)
                    .ok()
                    .and_then(|i| about.get(i))
                    .copied()
                    .unwrap_or_default();
                let side = if w.side == Side::A { 'a' } else { 'b' };
                let after = w.after.map_or("\t".to_owned(), |a| format!("{}\t{}", a.read_bytes, a.think_ns));
                let (c, at, n) = (w.connection, at + w.at_ns, w.size_bytes);
                Ok(writeln!(out, "{c}\t{side}\t{}\t{at}\t{n}\t{after}", protocol(proto))?)
            }
            (Item::Gap(g, t), Form::Lines) => {
                let gap = GapLine { t, until: t + (g.to_ns - g.from_ns), lost: g.lost };
                line(out, &serde_json::json!({ "gap": gap }))
            }
            (Item::Gap(g, t), Form::Tsv) => Ok(writeln!(out, "\tgap\t\t{t}\t\t\t# {} events lost", g.lost)?),
        }
    })?;
    if form == Form::Lines {
        let Totals { connections, writes, bytes, lost } = totals;
        line(out, &serde_json::json!({ "end": Sums { connections, writes, bytes, lost } }))?;
    }
    Ok(totals)
}

pub(super) fn protocol(proto: i32) -> String {
    match proto {
        6 => "tcp".into(),
        17 => "udp".into(),
        other => other.to_string(),
    }
}

fn end(e: &End) -> EndLine {
    EndLine {
        addr: e.addr.as_deref().map(clean),
        port: e.port,
        process: e.process.as_deref().map(clean),
        socket: e.socket_id,
        seen: if e.seen == Seen::Written { "written" } else { "read" }.into(),
    }
}

fn connection(c: &Connection) -> ConnectionLine {
    ConnectionLine {
        connection: c.number,
        at: c.at_ns,
        proto: protocol(c.proto),
        ip: c.version,
        a: end(&c.a),
        b: end(&c.b),
    }
}
