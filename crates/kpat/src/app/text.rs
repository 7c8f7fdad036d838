//! Sockets as tables of text.

use crate::listing::Listing;
use crate::open::Integrated;
use crate::output::Output;
use crate::render::{Column, Line, Pairs, Style, Table, bytes, count, duration, plural, seconds};
use kpat_model::Crossing;
use kpat_query::app::{
    Held, Limits, Opening, Outcome, Questions, Spread, Traffic, ended_in_words, had_no_port, protocol,
};
use kpat_query::owners::Name;

fn ends(t: &Traffic) -> String {
    match kpat_query::app::ends(&t.socket) {
        (own, Some(far)) => format!("{own} > {far}"),
        (own, None) => own,
    }
}

fn mean(s: &Spread) -> String {
    s.mean().map(|m| bytes(m.round() as u64)).unwrap_or_default()
}

/// Nothing for none.
pub(super) fn number(n: u64) -> String {
    if n == 0 { String::new() } else { count(n) }
}

/// Bytes; nothing for none, or if they are not known.
pub(super) fn size(n: i64) -> String {
    if n <= 0 { String::new() } else { bytes(n as u64) }
}

pub fn list(all: &[Traffic], listing: &Listing, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::right("socket", 0),
        Column::left("process", 1, 8),
        Column::left("", 0, 0),
        Column::left("ends", 0, 20),
        Column::left("not connected", 0, 0),
        Column::right("sent", 0),
        Column::right("writes", 2),
        Column::right("mean", 4),
        Column::right("packets", 3),
        Column::right("frames", 5),
        Column::right("received", 0),
        Column::right("reads", 6),
        Column::right("again", 7),
        Column::right("round trip", 8),
        Column::left("held back by", 9, 10),
    ]);
    for t in all {
        let (send, device, recv) =
            (t.layer(Crossing::Send), t.layer(Crossing::ToDevice), t.layer(Crossing::Recv));
        let l = t.limits.as_ref();
        let held = l.and_then(Limits::most).map(|(h, s)| format!("{} {:.0} %", h.name(), s * 100.0));
        let plain = |text: String| (text, Style::Plain);
        table.row(vec![
            plain(t.socket.socket_id.to_string()),
            plain(t.user().unwrap_or_default()),
            (protocol(t.socket.proto), Style::Faint),
            plain(ends(t)),
            (t.opening.as_ref().and_then(unopened).unwrap_or_default(), Style::Warn),
            (size(t.socket.sent_bytes), Style::Strong),
            plain(number(send.events)),
            plain(mean(&send.size_bytes)),
            plain(number(device.events)),
            plain(number(device.segments)),
            (size(t.socket.received_bytes), Style::Strong),
            plain(number(recv.events)),
            (number(t.layer(Crossing::Retransmit).segments), Style::Warn),
            plain(l.and_then(|l| l.srtt_ns.mean()).map(|m| duration(m as i64)).unwrap_or_default()),
            plain(held.unwrap_or_default()),
        ]);
    }
    let hidden = listing.print(table, out)?;
    crate::packets::hint_hidden(out, &hidden);
    Ok(())
}

/// What became of a connection that was not made, and after which time.
pub fn unopened(o: &Opening) -> Option<String> {
    Some(format!("{}, {}", o.outcome.short()?, duration(o.took_ns)))
}

/// What became of its connect().
fn opening(o: &Opening) -> String {
    let why = match o.outcome {
        Outcome::Closed => {
            ": by its process, which waited no longer, or got the error of an ICMP message (one that comes within connect() ends nothing by itself)"
        }
        _ => "",
    };
    let what = o.outcome.short().unwrap_or_else(|| o.outcome.name().to_owned());
    format!("{what} after {}{why}", duration(o.took_ns))
}

pub fn detail(log: &Integrated, t: &Traffic, out: &Output) -> anyhow::Result<()> {
    let s = &t.socket;
    let mut facts = Pairs::new();
    let version = match s.version {
        0 => "an unknown IP version".to_owned(),
        v => format!("IPv{v}"),
    };
    facts.add(
        "socket",
        format!("{} (sk:{:x}), {} over {version}", s.socket_id, s.socket_id, protocol(s.proto)),
    );
    facts.add("ends", ends(t));
    let thread = s.pid.map(|p| format!(" (thread {p})")).unwrap_or_default();
    let process =
        t.process.as_deref().unwrap_or(if t.listener.is_some() { "none used it" } else { "not known" });
    facts.add("process", format!("{process}{thread}"));
    if let Some((l, _)) = &t.listener {
        let name = log.process_name(l.pid.unwrap_or_default(), l.last_ns);
        facts.add(
            "came to",
            format!(
                "socket {}, on which {name} listens: it waits to be accepted, or was and lies idle",
                l.socket_id
            ),
        );
    }
    let owner = log.owner_of_socket(s.socket_id).unwrap_or_default();
    match owner.names(Name::User) {
        [Some(user), Some(uid)] => facts.add("user", format!("{user} ({uid})")),
        [_, Some(uid)] => facts.add("user", uid),
        _ => {}
    }
    if let Some(path) = &owner.path {
        facts.add("cgroup", path);
    }
    if let Some(c) = &s.congestion {
        facts.add("congestion", c);
    }
    facts.add("seen for", duration(s.last_ns - s.first_ns));
    if let Some(o) = &t.opening {
        facts.add("opening", opening(o));
    }
    if let Some(words) = ended_in_words(s.error, t.limits.as_ref().map(|l| &l.ending)) {
        facts.add("ended by", words);
    } else if had_no_port(s) {
        facts.add("ended by", kpat_query::app::NO_PORT);
    }
    if let Some(q) = &t.questions {
        questions(log, q, &mut facts);
    }
    out.lines(&facts.render(out.width))?;
    out.line(&Line::new())?;
    layers(t, out)?;
    if let Some(n) = t.writes_per_packet() {
        let send = t.layer(Crossing::ToTransport).events.max(1);
        let packets = t.layer(Crossing::ToDevice);
        out.line(&Line::of(
            format!(
                "A packet carries {n:.2} writes in the mean, a write is in {:.2} packets; {:.2} frames a packet.",
                t.writes_in_packets as f64 / send as f64,
                packets.segments as f64 / packets.events.max(1) as f64,
            ),
            Style::Plain,
        ))?;
    }
    if !t.waits.is_empty() {
        out.line(&Line::new())?;
        waits(t, out)?;
    }
    if let Some(l) = &t.limits {
        out.line(&Line::new())?;
        limits(l, out)?;
        let words = format!("Where the time from a write to its read went: kpat why {}", s.socket_id);
        out.line(&Line::of(words, Style::Faint))?;
    }
    Ok(())
}

/// How long it waited for answers.
fn questions(log: &Integrated, q: &Questions, facts: &mut Pairs) {
    let of = |s: &Spread| duration(s.quantile(0.5).unwrap_or_default());
    let mut text = format!("{} sent, {} read", plural(q.sent, "datagram"), count(q.read));
    if q.wait_ns.count > 0 {
        let longest = duration(q.wait_ns.max);
        text += &format!(
            "; {} for an answer, {} in the median, longest {longest}",
            plural(q.wait_ns.count, "wait"),
            of(&q.wait_ns)
        );
    }
    if q.longest_asked > 1 {
        text += &format!(" ({} were sent in it)", count(q.longest_asked));
    }
    if let Some(at) = q.open_since_ns {
        text += &format!(
            "; what was sent at {} s has no answer in this log",
            seconds(at.saturating_sub(log.start_ns()))
        );
    }
    facts.add("questions", text);
    if q.away_ns.count > 0 {
        let words = format!(
            "until the driver had it {}, until an answer came {}, until it was read {} in the median",
            of(&q.leaving_ns),
            of(&q.away_ns),
            of(&q.reading_ns)
        );
        facts.add("of a wait", words);
    }
}

fn layers(t: &Traffic, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::left("layer crossing", 0, 12),
        Column::right("events", 0),
        Column::right("bytes", 0),
        Column::right("frames", 2),
        Column::right("least", 5),
        Column::right("median", 3),
        Column::right("mean", 1),
        Column::right("most", 4),
        Column::right("apart", 6),
        Column::right("mean", 7),
        Column::right("99 %", 8),
        Column::right("failed", 9),
    ]);
    for (c, l) in &t.layers {
        let plain = |text: String| (text, Style::Plain);
        let size = |n: Option<i64>| plain(n.map(|n| count(n.max(0) as u64)).unwrap_or_default());
        let time = |n: Option<i64>| plain(n.map(duration).unwrap_or_default());
        table.row(vec![
            (c.layers().into(), Style::Strong),
            plain(count(l.events)),
            plain(count(l.bytes.max(0) as u64)),
            plain(if c.is_packet() { count(l.segments) } else { String::new() }),
            size((l.size_bytes.count > 0).then_some(l.size_bytes.min)),
            size(l.size_bytes.quantile(0.5)),
            plain(l.size_bytes.mean().map(|m| format!("{m:.0}")).unwrap_or_default()),
            size((l.size_bytes.count > 0).then_some(l.size_bytes.max)),
            time(l.spacing_ns.quantile(0.5)),
            time(round(&l.spacing_ns)),
            time(l.spacing_ns.quantile(0.99)),
            (if l.errors > 0 { count(l.errors) } else { String::new() }, Style::Warn),
        ]);
    }
    out.lines(&table.render(out.width).0)?;
    if let Some(text) = t.failures() {
        out.line(&Line::of(text, Style::Warn))?;
    }
    Ok(())
}

fn round(s: &Spread) -> Option<i64> {
    s.mean().map(|m| m.round() as i64)
}

fn waits(t: &Traffic, out: &Output) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        Column::left("where bytes waited", 0, 12),
        Column::right("bytes", 1),
        Column::right("least", 3),
        Column::right("median", 0),
        Column::right("mean", 0),
        Column::right("99 %", 2),
        Column::right("most", 0),
    ]);
    for w in &t.waits {
        let plain = |text: String| (text, Style::Plain);
        let time = |n: Option<i64>| plain(n.map(duration).unwrap_or_default());
        table.row(vec![
            (w.leg.name().into(), Style::Strong),
            plain(count(w.ns.count)),
            time(Some(w.ns.min)),
            time(w.ns.quantile(0.5)),
            time(round(&w.ns)),
            time(w.ns.quantile(0.99)),
            time(Some(w.ns.max)),
        ]);
    }
    out.lines(&table.render(out.width).0)?;
    out.line(&Line::of(EXACT, Style::Faint))
}

pub const EXACT: &str =
    "Medians and shares are exact to 1 in 64; apart is the median, of calls that moved something.";

/// What a cause is called in front of its share, and behind it.
pub fn words(by: Held) -> (&'static str, &'static str) {
    match by {
        Held::Application => ("application", "of it had nothing to send"),
        Held::Handshake => ("handshake", "waiting for an answer to its SYN: not connected yet"),
        Held::CongestionWindow => ("congestion", "held by the congestion window"),
        Held::ReceiveWindow => ("receiver", "held by the receiver's window"),
        Held::Reader => (
            "reader",
            "held by the receiver's window, with data unread all the time: its application is slow",
        ),
        Held::SendBuffer => {
            ("send buffer", "held by the send buffer: all in it was sent and not yet acknowledged")
        }
        Held::Cork => (
            "cork",
            "less than a full segment waited for more, as the application asked (MSG_MORE, TCP_CORK)",
        ),
        Held::Nagle => (
            "Nagle's rule",
            "less than a full segment waited until the last such one was acknowledged (TCP_NODELAY sends it at once)",
        ),
        Held::Retransmission => ("timer", "waiting for a timer to send again what was lost"),
        Held::Pacing => ("pacing", "held by TCP's own pacing"),
        Held::Device => ("device", "held by none of these: as the device took it"),
        Held::PacingOrDevice => ("unknown", "held by pacing or the device: who paces is not in the log"),
    }
}

fn limits(l: &Limits, out: &Output) -> anyhow::Result<()> {
    let mut facts = Pairs::new();
    let part = |ns: i64| format!("{:.1} %", 100.0 * ns as f64 / l.known_ns.max(1) as f64);
    facts.add("state known", duration(l.known_ns));
    for (by, ns) in l.held() {
        let (name, words) = words(by);
        facts.add(name, format!("{} {words}", part(ns)));
    }
    let mut calls = vec![format!("{} in calls that send", part(l.in_call_ns))];
    if l.refused_ns > 0 {
        calls.push(format!("{} refused", part(l.refused_ns)));
        let most = Held::ALL.into_iter().max_by_key(|h| l.wanting_ns(*h));
        calls.extend(most.map(|h| format!("mostly by the {}", h.name())));
    }
    facts.add("calls", calls.join(", "));
    facts.add(
        "recovery",
        format!("{} repairing losses; {} segments sent again", part(l.recovery_ns), l.total_retrans),
    );
    if let (Some(low), Some(mid), Some(high)) =
        (Some(l.srtt_ns.min), l.srtt_ns.quantile(0.5), Some(l.srtt_ns.max))
    {
        facts.add("round trip", format!("{} to {}, median {}", duration(low), duration(high), duration(mid)));
    }
    facts.add("window", format!("{} to {} segments", l.snd_cwnd.min, l.snd_cwnd.max));
    out.lines(&facts.render(out.width))
}
