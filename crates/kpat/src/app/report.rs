//! A page with every socket: tables of what crossed, waited and held back, and the picture over time.

use super::picture::{self, color, drawing};
use crate::open::Integrated;
use crate::output::{Meter, Output};
use crate::page::{self, text};
use crate::render::{bytes, count, duration, percent, plural};
use kpat_model::Crossing;
use kpat_query::app::{self, Held, Limits, Series, Spread, Traffic, Window};
use std::fmt::Write as _;
use std::path::Path;

/// About as many as the picture has pixels to spare for each.
const BINS: usize = 400;

const STYLE: &str = "
h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0; }
td.sizes svg { display: block; }
.sizes rect { fill: #7d92bd; }
.bar { display: flex; height: 12px; max-width: 40rem; --a: #4a6fe0; --b: #189a90; --c: #d9762b; --e: #7d5fd3; --d: #b453c1; --written: #c8861e; --read: #8e4a9c; --again: #a34a12; --idle: #9aa5b5; }
.wide { overflow-x: auto; }
body { max-width: 68rem; }
a { color: inherit; }
th a { text-decoration-color: #8888; }
.n { white-space: nowrap; }
";

fn series(
    log: &Integrated,
    window: &Window,
    socket: Option<i64>,
    out: &Output,
) -> anyhow::Result<Option<Series>> {
    let window = Window { socket, bins: BINS, ..window.clone() };
    let mut meter = Meter::default();
    let found = app::series(log, &window, &mut |done, parts| {
        out.progress(&mut meter, "drawing", done, parts);
        true
    });
    out.clear_progress();
    Ok(found?)
}

fn name(t: &Traffic) -> String {
    let process = t.process.as_deref().unwrap_or("process not known");
    let (own, far) = app::ends(&t.socket);
    let ends = far.map_or_else(|| own.clone(), |far| format!("{own} > {far}"));
    format!("{process}, {} {ends}", app::protocol(t.socket.proto))
}

/// One socket, or without one all in sum.
pub fn svg(
    log: &Integrated,
    window: &Window,
    one: Option<&Traffic>,
    to: &Path,
    out: &Output,
) -> anyhow::Result<()> {
    let Some(s) = series(log, window, one.map(|t| t.socket.socket_id), out)? else { return Ok(()) };
    let title = one.map_or_else(|| "All sockets".to_owned(), name);
    page::write(to, &page::svg(&drawing(&title, "x", &s, log.start_ns(), true)), out)
}

/// These of `total` sockets.
pub fn html(
    log: &Integrated,
    window: &Window,
    sockets: &[Traffic],
    total: usize,
    to: &Path,
    out: &Output,
) -> anyhow::Result<()> {
    let about = page::about(log);
    let mut body = format!("<h1>What applications asked of the network</h1>\n<p>{}</p>\n", text(&about));
    let lost = app::lost(log)?;
    if lost > 0 {
        let _ = writeln!(
            body,
            "<p><strong>{} events are missing</strong> in this log (hatched); sums are too small by what they held.</p>",
            count(lost)
        );
    }
    if sockets.len() < total {
        let _ = writeln!(body, "<p>{} of {} sockets, those with the most bytes.</p>", sockets.len(), total);
    }
    list(&mut body, sockets);
    if sockets.len() > 1
        && let Some(s) = series(log, window, None, out)?
    {
        body.push_str("<h2>All sockets in sum</h2>\n");
        body.push_str(&drawing("All sockets", "all", &s, log.start_ns(), false));
    }
    for t in sockets {
        let id = t.socket.socket_id;
        let _ = writeln!(body, "<h2 id=\"s{id}\">{}</h2>", text(&name(t)));
        facts(&mut body, t);
        if let Some(s) = series(log, window, Some(id), out)? {
            body.push_str(&drawing(&name(t), &id.to_string(), &s, log.start_ns(), false));
        }
        layers(&mut body, t);
        waits(&mut body, t);
        if let Some(l) = &t.limits {
            limits(&mut body, l);
        }
    }
    body.push_str(
        "<p>A size is that of the application's data, without headers, wherever it crosses. Medians and shares of 99 % are exact \
         to 1 in 64; apart is the median of the time between calls that moved something.</p>\n",
    );
    let style = [page::STYLE, picture::STYLE, STYLE].concat();
    page::write(to, &page::html(&format!("Applications, {about}"), &style, &body), out)
}

fn row(body: &mut String, head: &str, cells: &[String]) {
    let _ = write!(body, "<tr><th scope=row>{head}");
    for cell in cells {
        let _ = write!(body, "<td class=n>{}", text(cell));
    }
    body.push_str("</tr>\n");
}

fn head(body: &mut String, columns: &[&str]) {
    body.push_str("<div class=wide><table><thead><tr>");
    for (i, c) in columns.iter().enumerate() {
        let _ = write!(body, "<th{}>{c}", if i > 0 { " class=n" } else { "" });
    }
    body.push_str("</tr></thead><tbody>\n");
}

const END: &str = "</tbody></table></div>\n";

fn list(body: &mut String, sockets: &[Traffic]) {
    let columns = [
        "socket",
        "written",
        "writes",
        "read",
        "reads",
        "packets",
        "frames",
        "again",
        "round trip",
        "held back by",
    ];
    head(body, &columns);
    for t in sockets {
        let size = |n: i64| bytes(n.max(0) as u64);
        let device = t.layer(Crossing::ToDevice);
        let held = t.limits.as_ref().and_then(Limits::most);
        let trip = t.limits.as_ref().and_then(|l| l.srtt_ns.mean());
        let cells = [
            size(t.socket.sent_bytes),
            count(t.layer(Crossing::Send).events),
            size(t.socket.received_bytes),
            count(t.layer(Crossing::Recv).events),
            count(device.events),
            count(device.segments),
            count(t.layer(Crossing::Retransmit).segments),
            trip.map(|n| duration(n as i64)).unwrap_or_default(),
            held.map(|(h, share)| format!("{} {:.0} %", h.name(), share * 100.0)).unwrap_or_default(),
        ];
        row(body, &format!("<a href=\"#s{}\">{}</a>", t.socket.socket_id, text(&name(t))), &cells);
    }
    body.push_str(END);
}

fn facts(body: &mut String, t: &Traffic) {
    let s = &t.socket;
    let mut facts =
        vec![format!("socket {} (sk:{:x})", s.socket_id, s.socket_id), format!("IPv{}", s.version)];
    facts.extend(s.congestion.as_ref().map(|c| format!("congestion control {c}")));
    facts.extend(s.pid.map(|p| format!("first used by thread {p}")));
    facts.push(format!("seen for {}", duration(s.last_ns - s.first_ns)));
    let _ = writeln!(body, "<p>{}</p>", text(&facts.join(", ")));
}

/// A distribution over powers of two, as small bars.
fn sizes(s: &Spread) -> String {
    let powers = s.powers();
    let full = powers.iter().max().copied().unwrap_or(1).max(1) as f64;
    let mut out = String::from("<svg width=\"144\" height=\"18\" aria-hidden=\"true\">");
    for (class, n) in powers.iter().enumerate().filter(|(_, n)| **n > 0) {
        let tall = (16.0 * (*n as f64 / full).sqrt()).max(1.5);
        let x = (class * 6).min(138);
        let _ = write!(out, "<rect x=\"{x}\" y=\"{:.1}\" width=\"5\" height=\"{tall:.1}\"/>", 18.0 - tall);
    }
    out + "</svg>"
}

fn layers(body: &mut String, t: &Traffic) {
    let columns = [
        "layer crossing",
        "events",
        "bytes",
        "frames",
        "least",
        "median",
        "mean",
        "most",
        "apart",
        "mean",
        "99 %",
        "failed",
        "sizes",
    ];
    head(body, &columns);
    for (c, l) in &t.layers {
        let size = &l.size_bytes;
        let some = size.count > 0;
        let show = |n: Option<i64>| n.map(|n| count(n.max(0) as u64)).unwrap_or_default();
        let cells = [
            count(l.events),
            count(l.bytes.max(0) as u64),
            if c.is_packet() { count(l.segments) } else { String::new() },
            show(some.then_some(size.min)),
            show(size.quantile(0.5)),
            size.mean().map(|m| format!("{m:.0}")).unwrap_or_default(),
            show(some.then_some(size.max)),
            l.spacing_ns.quantile(0.5).map(duration).unwrap_or_default(),
            l.spacing_ns.mean().map(|m| duration(m.round() as i64)).unwrap_or_default(),
            l.spacing_ns.quantile(0.99).map(duration).unwrap_or_default(),
            if l.errors > 0 { count(l.errors) } else { String::new() },
        ];
        let _ = write!(body, "<tr><th scope=row>{}", text(c.layers()));
        for cell in &cells {
            let _ = write!(body, "<td class=n>{cell}");
        }
        let _ = writeln!(body, "<td class=sizes>{}</tr>", sizes(size));
    }
    body.push_str(END);
    if let Some(words) = t.failures() {
        let _ = writeln!(body, "<p>{}</p>", text(&words));
    }
    if let Some(n) = t.writes_per_packet() {
        let packets = t.layer(Crossing::ToDevice);
        let frames = packets.segments as f64 / packets.events.max(1) as f64;
        let _ = writeln!(
            body,
            "<p>A packet carries {n:.2} writes in the mean and becomes {frames:.2} frames.</p>"
        );
    }
}

fn waits(body: &mut String, t: &Traffic) {
    if t.waits.is_empty() {
        return;
    }
    head(body, &["where bytes waited", "bytes", "least", "median", "mean", "99 %", "most"]);
    for w in &t.waits {
        let time = |n: Option<i64>| n.map(duration).unwrap_or_default();
        let cells = [
            count(w.ns.count),
            duration(w.ns.min),
            time(w.ns.quantile(0.5)),
            time(w.ns.mean().map(|m| m as i64)),
            time(w.ns.quantile(0.99)),
            duration(w.ns.max),
        ];
        row(body, &text(w.leg.name()), &cells);
    }
    body.push_str(END);
}

fn limits(body: &mut String, l: &Limits) {
    let known = l.known_ns.max(1).unsigned_abs();
    let share = |ns: i64| percent(ns.max(0).unsigned_abs(), known);
    body.push_str("<div class=bar aria-hidden=\"true\">");
    for h in Held::ALL.into_iter().filter(|h| l.held_ns(*h) > 0) {
        let part = 100.0 * l.held_ns(h) as f64 / known as f64;
        let _ = write!(body, "<i style=\"width:{part:.2}%;background:var(--{})\"></i>", color(h));
    }
    body.push_str("</div>\n");
    let held: Vec<String> = l.held().map(|(h, ns)| format!("{} {}", h.name(), share(ns))).collect();
    let _ = writeln!(
        body,
        "<p>Held back by: {}; repairing losses {}, {} sent again. Of {} in which its state is known.</p>",
        text(&held.join(", ")),
        share(l.recovery_ns),
        plural(l.total_retrans.max(0).unsigned_abs(), "segment"),
        duration(l.known_ns)
    );
}
