//! A page with every socket: tables of what crossed, waited and held back, and the picture over time.

use super::name;
use super::picture::drawing;
use crate::page::{cells, row, table};
use crate::style::{self, color};
use crate::svg::{Px, Sheet, escape};
use kpat_model::Crossing;
use kpat_query::app::{Held, Limits, Opening, Series, Spread, Traffic};
use kpat_text::{bytes, count, duration, percent, plural};
use std::fmt::Write as _;

/// What a page is of.
pub struct Page<'a> {
    /// One line on the log.
    pub about: &'a str,
    pub start_ns: i64,
    pub events_lost: u64,
    /// Of `total`.
    pub sockets: &'a [Traffic],
    pub total: usize,
}

/// `series`: of one socket, or of all in sum.
///
/// *Errors*: those of `series`.
pub fn html<E>(
    page: &Page<'_>,
    series: &mut dyn FnMut(Option<i64>) -> Result<Option<Series>, E>,
) -> Result<String, E> {
    let Page { about, start_ns, events_lost, sockets, total } = *page;
    let mut body = format!("<h1>What applications asked of the network</h1>\n<p>{}</p>\n", escape(about));
    if events_lost > 0 {
        let _ = writeln!(
            body,
            "<p><strong>{} events are missing</strong> in this log (hatched); sums are too small by what they held.</p>",
            count(events_lost)
        );
    }
    if sockets.len() < total {
        let _ = writeln!(body, "<p>{} of {} sockets, those with the most bytes.</p>", sockets.len(), total);
    }
    list(&mut body, sockets);
    if sockets.len() > 1
        && let Some(s) = series(None)?
    {
        body.push_str("<h2>All sockets in sum</h2>\n");
        body.push_str(&drawing("All sockets", "all", &s, start_ns, false));
    }
    for t in sockets {
        let id = t.socket.socket_id;
        let _ = writeln!(body, "<h2 id=\"s{id}\">{}</h2>", escape(&name(t)));
        facts(&mut body, t);
        if let Some(s) = series(Some(id))? {
            body.push_str(&drawing(&name(t), &id.to_string(), &s, start_ns, false));
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
    let style = [style::BASE, style::APP, style::APP_PAGE].concat();
    Ok(crate::page::html(&format!("Applications, {about}"), &style, &body))
}

/// Wide ones are moved under the window.
fn wide_table(body: &mut String, of: &'static str, columns: &[&'static str]) {
    body.push_str("<div class=wide>");
    table(body, &[of], columns);
}

const END: &str = "</tbody></table></div>\n";

fn list(body: &mut String, sockets: &[Traffic]) {
    let columns = [
        "written",
        "writes",
        "read",
        "reads",
        "packets",
        "frames",
        "again",
        "round trip",
        "held back by",
        "not connected",
    ];
    wide_table(body, "socket", &columns);
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
            t.opening.as_ref().and_then(unopened).unwrap_or_default(),
        ];
        row(body, &format!("<a href=\"#s{}\">{}</a>", t.socket.socket_id, escape(&name(t))), &[], &cells);
    }
    body.push_str(END);
}

/// What became of a connection that was not made, and after which time.
fn unopened(o: &Opening) -> Option<String> {
    Some(format!("{}, {}", o.outcome.short()?, duration(o.took_ns)))
}

fn facts(body: &mut String, t: &Traffic) {
    let s = &t.socket;
    let mut facts =
        vec![format!("socket {} (sk:{:x})", s.socket_id, s.socket_id), format!("IPv{}", s.version)];
    facts.extend(s.congestion.as_ref().map(|c| format!("congestion control {c}")));
    facts.extend(s.pid.map(|p| format!("first used by thread {p}")));
    facts.extend(t.opening.as_ref().and_then(unopened).map(|what| format!("not connected: {what}")));
    facts.push(format!("seen for {}", duration(s.last_ns - s.first_ns)));
    let _ = writeln!(body, "<p>{}</p>", escape(&facts.join(", ")));
}

/// A distribution over powers of two, as small bars.
fn sizes(s: &Spread) -> String {
    let powers = s.powers();
    let full = powers.iter().max().copied().unwrap_or(1).max(1) as f64;
    let mut bars = Sheet::default();
    for (class, n) in powers.iter().enumerate().filter(|(_, n)| **n > 0) {
        let tall = (16.0 * (*n as f64 / full).sqrt()).max(1.5);
        let x = (class * 6).min(138) as f64;
        bars.element("rect").at(Px(x, 0), Px(18.0 - tall, 1)).size(Px(5.0, 0), Px(tall, 1)).end();
    }
    bars.small(144, 18)
}

fn layers(body: &mut String, t: &Traffic) {
    let columns = [
        "events", "bytes", "frames", "least", "median", "mean", "most", "apart", "mean", "99 %", "failed",
        "sizes",
    ];
    wide_table(body, "layer crossing", &columns);
    for (c, l) in &t.layers {
        let size = &l.size_bytes;
        let some = size.count > 0;
        let show = |n: Option<i64>| n.map(|n| count(n.max(0) as u64)).unwrap_or_default();
        let numbers = [
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
        cells(body, &escape(c.layers()), &[], &numbers);
        let _ = writeln!(body, "<td class=sizes>{}</tr>", sizes(size));
    }
    body.push_str(END);
    if let Some(words) = t.failures() {
        let _ = writeln!(body, "<p>{}</p>", escape(&words));
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
    wide_table(body, "where bytes waited", &["bytes", "least", "median", "mean", "99 %", "most"]);
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
        row(body, &escape(w.leg.name()), &[], &cells);
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
        escape(&held.join(", ")),
        share(l.recovery_ns),
        plural(l.total_retrans.max(0).unsigned_abs(), "segment"),
        duration(l.known_ns)
    );
}
