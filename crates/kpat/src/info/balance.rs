//! Whether the packets add up: a figure of trust, and what is not explained.

use crate::render::{Line, Style, count};
use kpat_query::{Conservation, Fates, Info, Trust, TrustPart, Unexplained};
use kpat_store::tables::DeviceRow;
use serde_json::{Value, json};

/// Unexplained packets that are listed in text; all are in --json.
const LISTED: usize = 5;

/// The figure with its reason; then what else is missing, and the balance of packets.
pub fn lines(info: &Info) -> Vec<Line> {
    let (devices, c, trust) = (&info.devices, &info.conservation, info.trust());
    let mut out = headline(&trust);
    out.extend(trust.others().map(trust_line));
    if c.packets() == 0 {
        return out;
    }
    let limits = if c.ends_recorded { "" } else { "; not all ends of packets were recorded" };
    let unread = if c.unread > 0 {
        format!("; {} of the delivered were not read yet", count(c.unread))
    } else {
        String::new()
    };
    out.push(Line::new().plain(format!("{} = {}{unread}{limits}", origins(c), fates(&c.fates))));
    for d in c.differences.iter().take(LISTED) {
        let text =
            format!("{}{}: {}; packet {}", count(d.packets), place(devices, d), d.why.name(), d.packet_id);
        out.push(Line::of(text, Style::Warn));
    }
    if c.differences.len() > LISTED {
        out.push(Line::new().faint("more in --json"));
    }
    out
}

/// The figure of trust, and what it is of.
pub fn headline(trust: &Trust) -> Vec<Line> {
    trust.worst().map(trust_line).into_iter().collect()
}

fn trust_line(p: &TrustPart) -> Line {
    let ppm = p.ppm();
    let style = if p.good == p.all { Style::Good } else { Style::Warn };
    Line::of(format!("{}.{:04} %", ppm / 10_000, ppm % 10_000), style).plain(format!(" {}", p.words))
}

pub fn trust_json(trust: &Trust) -> Value {
    let part = |p: &TrustPart| json!({ "part": p.part, "ppm": p.ppm(), "good": p.good, "all": p.all, "words": p.words });
    json!({
        "ppm": trust.ppm(),
        "part": trust.worst().map(|p| p.part),
        "words": trust.worst().map(|p| &p.words),
        "parts": trust.parts.iter().map(part).collect::<Vec<_>>(),
    })
}

fn origins(c: &Conservation) -> String {
    joined(&[(c.received, "received"), (c.made_here, "made here"), (c.from_others, "from others")])
}

fn fates(f: &Fates) -> String {
    joined(&[
        (f.forwarded, "forwarded"),
        (f.sent, "sent"),
        (f.delivered, "delivered"),
        (f.dropped, "dropped"),
        (f.transformed, "merged or split"),
        (f.in_flight, "in flight"),
        (f.lost, "lost in recording"),
        (f.unexplained, "unexplained"),
    ])
}

fn joined(parts: &[(u64, &str)]) -> String {
    let there: Vec<String> =
        parts.iter().filter(|p| p.0 > 0).map(|(n, what)| format!("{} {what}", count(*n))).collect();
    if there.is_empty() { "0".to_owned() } else { there.join(" + ") }
}

fn place(devices: &[DeviceRow], d: &Unexplained) -> String {
    let from = d.interface.map(|(netns, ifindex)| {
        let named =
            devices.iter().find(|r| i64::from(r.ifindex) == ifindex && (r.netns == netns || netns < 0));
        named.map_or_else(|| format!("interface {ifindex}"), |r| r.name.clone())
    });
    let from = from.map_or(" made here".to_owned(), |name| format!(" received by {name}"));
    let cpu = d.cpu.map(|c| format!(" on CPU {c}")).unwrap_or_default();
    from + &cpu
}

fn of_fates(f: &Fates) -> Value {
    json!({
        "packets": f.sum(),
        "forwarded": f.forwarded,
        "sent": f.sent,
        "delivered": f.delivered,
        "dropped": f.dropped,
        "transformed": f.transformed,
        "in_flight": f.in_flight,
        "lost": f.lost,
        "unexplained": f.unexplained,
    })
}

pub fn as_json(c: &Conservation) -> Value {
    let known = |n: i64| (n >= 0).then_some(n);
    json!({
        "explained_ppm": c.explained_ppm(),
        "ends_recorded": c.ends_recorded,
        "received": c.received,
        "made_here": c.made_here,
        "from_others": c.from_others,
        "fates": of_fates(&c.fates),
        "unread": c.unread,
        "interfaces": c.interfaces.iter().map(|((netns, ifindex), i)| json!({
            "netns": known(*netns),
            "ifindex": ifindex,
            "received": of_fates(&i.received),
            "given": i.given,
        })).collect::<Vec<_>>(),
        "cpus": c.cpus.iter().map(|(cpu, f)| json!({ "cpu": known(*cpu), "fates": of_fates(f) })).collect::<Vec<_>>(),
        "unexplained": c.differences.iter().map(|d| json!({
            "why": d.why.name(),
            "packets": d.packets,
            "packet_id": d.packet_id,
            "cpu": d.cpu,
            "netns": d.interface.and_then(|i| known(i.0)),
            "ifindex": d.interface.map(|i| i.1),
        })).collect::<Vec<_>>(),
    })
}
