//! `kpat app X.kpat --connections`: bytes from the application that wrote them to the one that read them.

use super::{Args, json::spread};
use crate::export::target::Target;
use crate::open::{self, OfDevice as Log};
use crate::output::{Meter, Output, usage};
use crate::render::{Column, Line, Pairs, Style, Table, bytes, clean, count, duration, plural};
use anyhow::Context;
use kpat_model::Crossing;
use kpat_query::app::connections::{self as ends, Connection, Connections, Direction, Host, Life, Pair};
use kpat_query::app::{self, Limits, Spread, Which};
use kpat_store::tables::SocketRow;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let path = args.log.as_deref().unwrap_or(Path::new(""));
    let logs = open::each_device(path, &args.device)?;
    let hosts: Vec<Host<'_>> =
        logs.iter().map(|l| Host { store: &l.log, boot_id: l.log.manifest.log.boot_id.clone() }).collect();
    let mut sockets = Vec::new();
    for h in &hosts {
        sockets.extend(h.store.table::<SocketRow>()?.all::<SocketRow>()?);
    }
    if sockets.is_empty() {
        return Err(usage(super::NOTHING));
    }
    if let Some(id) = args.socket.filter(|id| !sockets.iter().any(|s| s.socket_id == *id)) {
        return Err(usage(super::no_socket(id)));
    }
    let mut meter = Meter::default();
    let mut progress = |done, parts| {
        out.progress(&mut meter, "following bytes", done, parts);
        true
    };
    let mut lost = 0;
    for h in &hosts {
        lost += app::lost(h.store)?;
    }
    if args.format.is_some() {
        return ranges(&logs, &hosts, args, lost, &mut progress, out);
    }
    let found = ends::connections(&hosts, args.socket, &mut |_, _, _| {}, &mut progress)?;
    let limits = limits(&hosts, &found.connections, &mut progress)?;
    out.clear_progress();
    let total = found.connections.len();
    let shown = if args.limit > 0 { total.min(args.limit) } else { total };
    if out.json {
        out.value(&json!({
            "hosts": logs.iter().map(|l| json!({"name": l.name, "boot_id": l.log.manifest.log.boot_id, "start_boot_ns": l.log.start_ns()})).collect::<Vec<_>>(),
            "events_lost": lost, "total": total, "shown": shown, "alone": found.alone, "ambiguous": found.ambiguous,
            "connections": found.connections[..shown].iter().map(|c| as_json(&logs, c, &limits)).collect::<Vec<_>>(),
        }))?;
        return Ok(out.ended(lost > 0));
    }
    match &found.connections[..] {
        [] => {}
        [one] => detail(&logs, one, &limits, out)?,
        all => list(&logs, &all[..shown], &limits, out)?,
    }
    words(&found, shown, lost, out);
    Ok(out.ended(lost > 0))
}

/// What held a sender back, by its log and socket.
type Held = HashMap<(usize, i64), Limits>;

fn limits(
    hosts: &[Host<'_>],
    all: &[Connection],
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> anyhow::Result<Held> {
    let mut out = Held::new();
    for (n, host) in hosts.iter().enumerate() {
        let ends = all.iter().flat_map(|c| &c.pair.ends).filter(|e| e.host == n);
        let ids: Vec<i64> = ends.map(|e| e.socket.socket_id).collect();
        if ids.is_empty() {
            continue;
        }
        for t in app::traffic(host.store, &ids, progress)? {
            out.extend(t.limits.map(|l| ((n, t.socket.socket_id), l)));
        }
    }
    Ok(out)
}

fn of<'a>(limits: &'a Held, p: &Pair, side: usize) -> Option<&'a Limits> {
    limits.get(&(p.ends[side].host, p.ends[side].socket.socket_id))
}

fn words(found: &Connections, shown: usize, lost: u64, out: &Output) {
    let total = found.connections.len();
    if total == 0 {
        out.say(
            "no connection has both its ends here; record both namespaces in one log, or integrate the recordings of both \
             hosts together: kpat integrate A.kbl B.kbl -o X.kpat",
        );
    }
    if found.alone > 0 {
        out.say(&format!("{} whose other end is not in the log", plural(found.alone, "TCP socket")));
    }
    if found.ambiguous > 0 {
        out.say(&format!(
            "{} that may be the end of more than one connection, not joined",
            plural(found.ambiguous, "TCP socket")
        ));
    }
    if lost > 0 {
        out.say(&format!("{} events are missing: what is unexplained may be theirs", count(lost)));
    }
    if shown < total {
        out.say(&format!("{shown} of {total} connections shown; --limit 0 shows all"));
    }
}

fn end(logs: &[Log], p: &Pair, side: usize) -> String {
    let e = &p.ends[side];
    let l = &logs[e.host];
    let (own, _) = app::ends(&e.socket);
    let mut text = own;
    if let Some(process) = l.log.socket_process(&e.socket) {
        text += &format!(" {}", clean(process));
    }
    if !l.name.is_empty() {
        text += &format!(" on {}", clean(&l.name));
    }
    text
}

/// What of a direction is not explained, or that everything is.
fn balance(d: &Direction) -> (String, Style) {
    match (d.written, d.read, d.unexplained()) {
        (None, _, _) | (_, None, _) => ("one end does not show".into(), Style::Faint),
        (_, _, 0) => ("adds up".into(), Style::Good),
        (_, _, n) => (format!("{} unexplained", bytes(n as u64)), Style::Bad),
    }
}

fn left(d: &Direction) -> i64 {
    d.left.values().sum()
}

fn list(logs: &[Log], all: &[Connection], limits: &Held, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::right("socket", 3),
        Column::left("from", 0, 16),
        Column::left("to", 0, 16),
        Column::right("written", 0),
        Column::right("read", 0),
        Column::right("on the way", 2),
        Column::left("", 0, 0),
        Column::right("median", 0),
        Column::right("99 %", 1),
        Column::right("most", 4),
        Column::right("±", 5),
        Column::left("held back by", 6, 10),
    ]);
    let size = |n: Option<i64>| n.map(|n| bytes(n as u64)).unwrap_or_default();
    for c in all {
        for (side, d) in c.directions.iter().enumerate().filter(|(_, d)| d.ranges > 0) {
            let plain = |text: String| (text, Style::Plain);
            let time = |n: Option<i64>| plain(n.map(duration).unwrap_or_default());
            let held = of(limits, &c.pair, side).and_then(Limits::most);
            let held = held.map(|(h, s)| format!("{} {:.0} %", h.name(), s * 100.0)).unwrap_or_default();
            let bound = c.clock.as_ref().map(|c| c.bound_ns).filter(|b| *b > 0);
            table.row(vec![
                plain(c.pair.ends[side].socket.socket_id.to_string()),
                (end(logs, &c.pair, side), Style::Strong),
                plain(end(logs, &c.pair, 1 - side)),
                plain(size(d.written)),
                plain(size(d.read)),
                plain(size(Some(left(d)).filter(|n| *n > 0))),
                balance(d),
                time(d.total_ns.quantile(0.5)),
                time(d.total_ns.quantile(0.99)),
                time((d.total_ns.count > 0).then_some(d.total_ns.max)),
                time(bound),
                plain(held),
            ]);
        }
    }
    let (lines, hidden) = table.render(out.width);
    out.lines(&lines)?;
    crate::packets::hint_hidden(out, &hidden);
    out.line(&Line::of("Times are from write to read, by bytes. --socket ID shows every leg.", Style::Faint))
}

fn detail(logs: &[Log], c: &Connection, limits: &Held, out: &Output) -> anyhow::Result<()> {
    let mut facts = Pairs::new();
    facts.add("connection", format!("{} and {}", end(logs, &c.pair, 0), end(logs, &c.pair, 1)));
    let ids = c.pair.ends.iter().map(|e| e.socket.socket_id.to_string()).collect::<Vec<_>>();
    facts.add("sockets", ids.join(" and "));
    facts.add(
        "clock",
        match &c.clock {
            None => "the two kernels' are not related: too little went to and fro".into(),
            Some(k) if k.bound_ns == 0 => "one for both".into(),
            Some(k) => {
                let word = if k.offset_ns < 0 { "behind" } else { "ahead" };
                format!(
                    "the second is {} {word}, ± {}; drift {:.3} ± {:.3} ppm",
                    duration(k.offset_ns.abs()),
                    duration(k.bound_ns),
                    k.drift * 1e6,
                    k.drift_bound * 1e6
                )
            }
        },
    );
    let [first, second] = [0, 1].map(|n| app::ends(&c.pair.ends[n].socket));
    if let (Some(to), Some(back)) = (&first.1, &second.1)
        && (*to != second.0 || *back != first.0)
    {
        let words = format!("{} spoke to {to}, and {} to {back}", first.0, second.0);
        facts.add("translated", words);
    }
    let known = ended(c, limits);
    let who = |side: Option<usize>, did: &str| side.map(|n| format!("{} {did}", end(logs, &c.pair, n)));
    let unread = match known.unread_bytes {
        0 => "reset it".to_owned(),
        n => format!("reset it, as it closed it with {} unread", plural(n as u64, "byte")),
    };
    let words = [who(known.closed_first, "closed it first"), who(known.reset_by, &unread)];
    let words = words.into_iter().flatten().collect::<Vec<_>>().join("; ");
    facts
        .add("ended", if words.is_empty() { "not while it was recorded, or not seen".into() } else { words });
    out.lines(&facts.render(out.width))?;
    for (side, d) in c.directions.iter().enumerate().filter(|(_, d)| d.ranges > 0) {
        out.line(&Line::new())?;
        let title = format!("{} to {}", end(logs, &c.pair, side), end(logs, &c.pair, 1 - side));
        out.line(&Line::of(title, Style::Strong))?;
        let above = [side, 1 - side].map(|i| c.pair.ends[i].socket.mptcp_socket);
        direction(d, above, of(limits, &c.pair, side), out)?;
    }
    Ok(())
}

/// How it ended, by the sides of its pair.
#[derive(Default)]
struct Ended {
    closed_first: Option<usize>,
    reset_by: Option<usize>,
    unread_bytes: i64,
}

/// What either end shows of it, what an end shows of itself first.
fn ended(c: &Connection, limits: &Held) -> Ended {
    let mut out = Ended::default();
    for wanted in [Which::This, Which::Other] {
        for side in 0..2 {
            let Some(e) = of(limits, &c.pair, side).map(|l| &l.ending) else { continue };
            let whose = |w: Option<Which>| {
                w.filter(|w| *w == wanted).map(|w| if w == Which::This { side } else { 1 - side })
            };
            out.closed_first = out.closed_first.or(whose(e.closed_first));
            if out.reset_by.is_none() {
                (out.reset_by, out.unread_bytes) = (whose(e.reset_by), e.unread_bytes);
            }
        }
    }
    out
}

/// Where bytes are that were not read.
fn place(reached: Option<Crossing>) -> &'static str {
    match reached {
        None => "not sent",
        Some(Crossing::Ask | Crossing::ToTransport | Crossing::Send) => "not sent",
        Some(Crossing::ToNetwork) => "in the sender's network layer",
        Some(Crossing::ToDevice) => "in the device's queue",
        Some(Crossing::ToDriver) => "with the driver, not seen to come",
        Some(Crossing::FromDevice | Crossing::FromNetwork) => "with the other kernel, not yet in the socket",
        Some(_) => "in the other socket",
    }
}

/// `above`: MPTCP's sockets of who sends and who receives, whose calls the writes and the reads are.
fn direction(
    d: &Direction,
    above: [Option<i64>; 2],
    limits: Option<&Limits>,
    out: &Output,
) -> anyhow::Result<()> {
    let mut sum = Pairs::new();
    let n = |n: i64| format!("{} bytes", count(n.max(0) as u64));
    let known = |v: Option<i64>, above: Option<i64>| match (v, above) {
        (Some(v), _) => n(v),
        (None, Some(above)) => format!("by the socket of MPTCP above, {above}"),
        (None, None) => "not shown by this kernel, or nothing".to_owned(),
    };
    sum.add("written", known(d.written, above[0]));
    sum.add("read", known(d.read, above[1]));
    for (reached, bytes) in &d.left {
        // Where no read is shown, what came to the socket may have been read.
        let came = d.read.is_none() && *reached == Some(Crossing::ToSocket);
        match came {
            true => sum.add("came", format!("{}, to the other socket", n(*bytes))),
            false => sum.add("not read", format!("{}, {}", n(*bytes), place(*reached))),
        }
    }
    if d.before > 0 {
        sum.add("before", format!("{} whose write was before the log, or is not shown", n(d.before)));
    }
    if d.again > 0 {
        sum.add("again", format!("{} came only after having been sent again", n(d.again)));
    }
    let (text, style) = balance(d);
    sum.line("together", Line::of(text, style));
    for (bytes, what) in [
        (d.unseen_writes, "of a write that is not in the log"),
        (
            d.unseen_reads,
            "taken, but not by a read in the log (splice, TCP_ZEROCOPY_RECEIVE, or lost events)",
        ),
        (d.impossible, "came before they were sent, by these clocks"),
    ] {
        if bytes > 0 {
            sum.line("", Line::of(format!("{} {what}", n(bytes)), Style::Bad));
        }
    }
    if let Some(l) = limits {
        let share = |ns: i64| 100.0 * ns as f64 / l.known_ns.max(1) as f64;
        let mut all: Vec<_> = l.held().filter(|(_, ns)| *ns > 0).collect();
        all.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let all = all.iter().map(|(h, ns)| format!("{} {:.1} %", h.name(), share(*ns)));
        sum.add("held back", format!("by {}", all.collect::<Vec<_>>().join(", ")));
    }
    out.lines(&sum.render(out.width))?;
    let mut table = Table::new(&[
        Column::left("where bytes were", 0, 12),
        Column::right("bytes", 2),
        Column::right("least", 4),
        Column::right("median", 0),
        Column::right("mean", 1),
        Column::right("99 %", 0),
        Column::right("most", 3),
        Column::right("share", 1),
    ]);
    let all: i128 = d.legs.iter().map(|l| l.ns.sum).sum();
    let mut row = |name: String, ns: &Spread, share: Option<f64>, style| {
        let plain = |text: String| (text, Style::Plain);
        let time = |n: Option<i64>| plain(n.map(duration).unwrap_or_default());
        table.row(vec![
            (name, style),
            plain(count(ns.count)),
            time(Some(ns.min)),
            time(ns.quantile(0.5)),
            time(ns.mean().map(|m| m as i64)),
            time(ns.quantile(0.99)),
            time(Some(ns.max)),
            plain(share.map(|s| format!("{:.1} %", s * 100.0)).unwrap_or_default()),
        ]);
    };
    for l in d.legs.iter().filter(|l| l.ns.count > 0) {
        row(l.name(), &l.ns, Some(l.ns.sum as f64 / all.max(1) as f64), Style::Plain);
    }
    if d.total_ns.count > 0 {
        row("write to read".into(), &d.total_ns, None, Style::Strong);
    }
    out.lines(&table.render(out.width).0)?;
    out.line(&Line::of("Medians and shares of bytes are exact to 1 in 64.", Style::Faint))
}

fn as_json(logs: &[Log], c: &Connection, limits: &Held) -> Value {
    let side = |n: usize| {
        let e = &c.pair.ends[n];
        let s = &e.socket;
        json!({
            "host": e.host, "socket_id": s.socket_id, "local_addr": s.local_addr, "local_port": s.local_port,
            "peer_addr": s.peer_addr, "peer_port": s.peer_port, "pid": s.pid,
            "process": logs[e.host].log.socket_process(s),
        })
    };
    let way = |n: usize| {
        let d = &c.directions[n];
        json!({
            "held_back": of(limits, &c.pair, n).map(super::json::limits),
            "written": d.written, "read": d.read, "before": d.before, "unseen_writes": d.unseen_writes,
            "left": d.left.iter().map(|(c, n)| json!({"reached": c.map(|c| c.name()), "bytes": n})).collect::<Vec<_>>(),
            "unseen_reads": d.unseen_reads, "sent_again": d.again, "impossible": d.impossible, "ranges": d.ranges,
            "write_to_read_ns": spread(&d.total_ns),
            "legs": d.legs.iter().map(|l| json!({
                "name": l.name(), "from": l.from.name(), "to": l.to.name(), "again": l.again, "ns": spread(&l.ns),
            })).collect::<Vec<_>>(),
        })
    };
    let e = ended(c, limits);
    json!({
        "ends": [side(0), side(1)],
        "ended": {"closed_first": e.closed_first, "reset_by": e.reset_by, "unread_bytes": e.unread_bytes},
        "clock": c.clock.as_ref().map(|k| json!({
            "origin_ns": k.origin_ns, "to_ns": k.to_ns, "drift_bound_ppb": k.drift_bound * 1e9, "offset_ns": k.offset_ns, "drift_ppb": k.drift * 1e9, "bound_ns": k.bound_ns,
        })),
        "directions": [way(0), way(1)],
    })
}

/// Every range's life a line.
fn ranges(
    logs: &[Log],
    hosts: &[Host<'_>],
    args: &Args,
    lost: u64,
    progress: &mut dyn FnMut(u64, u64) -> bool,
    out: &Output,
) -> anyhow::Result<ExitCode> {
    let file = args.output.as_deref().filter(|p| *p != Path::new("-"));
    let first = logs.first().context("a log")?;
    let mut to = Target::open(file, &first.log.dir)?;
    let start = first.log.start_ns();
    let mut lines = 0u64;
    let written = (|| -> kpat_formats::Result<()> {
        let w = to.writer();
        let stages = ends::STAGES.map(|c| format!("{}_ns", c.name().replace('-', "_")));
        writeln!(w, "from_socket\tto_socket\toffset\tbytes\tsent_again\t{}", stages.join("\t"))?;
        let mut failed = None;
        let mut each = |p: &Pair, side: usize, life: &Life| {
            let ids = [side, 1 - side].map(|n| p.ends[n].socket.socket_id);
            let at = life.at.map(|t| t.map(|t| (t - start).to_string()).unwrap_or_default()).join("\t");
            let (from, again) = (life.offset, u8::from(life.again));
            let line = writeln!(w, "{}\t{}\t{from}\t{}\t{again}\t{at}", ids[0], ids[1], life.bytes);
            lines += 1;
            failed = failed.take().or(line.err());
        };
        ends::connections(hosts, args.socket, &mut each, progress)?;
        failed.map_or(Ok(()), |e| Err(e.into()))
    })();
    out.clear_progress();
    to.finish(written)?;
    match file {
        Some(path) if out.json => {
            out.value(&json!({"file": path.display().to_string(), "ranges": lines, "events_lost": lost}))?
        }
        Some(path) => out.say(&format!("{}: {}", path.display(), plural(lines, "range"))),
        None => {}
    }
    Ok(out.ended(lost > 0))
}
