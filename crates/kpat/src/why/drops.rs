//! What was dropped of a connection, as notes of text.

use super::text::on;
use crate::open::OfDevice;
use crate::render::{Line, Pairs, Style, plural};
use kpat_model::explained::drop_reason;
use kpat_query::why::Drops;

/// Kinds of drops that are named.
const MOST: usize = 3;

pub fn add(logs: &[OfDevice], all: &[Drops], notes: &mut Pairs) {
    let mut name = "dropped";
    for (does, drops) in by_meaning(all.iter().take(MOST)) {
        for d in drops {
            notes.add(std::mem::take(&mut name), dropped(logs, d));
        }
        if let Some(does) = does {
            notes.line("", Line::of(does, Style::Faint));
        }
    }
}

/// Drops that mean the same side by side, so that they are explained once. In the order of the first of each.
fn by_meaning<'a>(drops: impl Iterator<Item = &'a Drops>) -> Vec<(Option<&'static str>, Vec<&'a Drops>)> {
    let mut out: Vec<(Option<&'static str>, Vec<&Drops>)> = Vec::new();
    for d in drops {
        let does = drop_reason(&d.reason, &d.place).map(|e| e.does);
        match out.iter_mut().find(|(known, _)| does.is_some() && *known == does) {
            Some((_, those)) => those.push(d),
            None => out.push((does, vec![d])),
        }
    }
    out
}

/// What became of segments after the handshake.
fn dropped(logs: &[OfDevice], d: &Drops) -> String {
    let mut text = format!("its packets, {}", plural(d.drops, "time"));
    if !d.reason.is_empty() {
        text += &format!(": {}", d.reason);
    }
    if !d.place.is_empty() {
        text += &format!(" at {}", d.place);
    }
    text += &on(d.device.as_ref());
    if d.no_room() {
        text += ", the listener's accept queue was full";
    }
    let device = logs[d.host].name.as_str();
    text += &format!("; first packet {}", d.packet);
    if device.is_empty() { text } else { format!("{text} of {device}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_the_same_is_said_once() {
        let drop = |reason: &str, place: &str| Drops {
            host: 0,
            reason: reason.into(),
            place: place.into(),
            device: None,
            drops: 1,
            packet: 1,
        };
        let all = [
            drop("NO_SOCKET", "udp_queue_rcv_skb"),
            drop("IP_CSUM", "ip_rcv"),
            drop("NO_SOCKET", "tcp_v4_rcv"),
            drop("no such reason", "a"),
            drop("no such reason", "b"),
        ];
        let joined = by_meaning(all.iter());
        let places: Vec<Vec<&str>> =
            joined.iter().map(|(_, of)| of.iter().map(|d| d.place.as_str()).collect()).collect();
        assert_eq!(places, [vec!["udp_queue_rcv_skb", "tcp_v4_rcv"], vec!["ip_rcv"], vec!["a"], vec!["b"]]);
        assert!(joined[0].0.is_some() && joined[1].0.is_some() && joined[2].0.is_none());
    }
}
