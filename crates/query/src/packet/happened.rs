//! What an event says, in a few words.

use super::EventOfPacket;
use crate::protocol;
use crate::store::Store;
use kpat_model::EventKind;
use kpat_store::tables::EventRow;

impl Store {
    pub(crate) fn explain(&self, event: EventRow) -> EventOfPacket {
        let (mut reason, mut place) = (String::new(), String::new());
        if event.kind == EventKind::Drop as i32 {
            reason = self.drop_reason(event.a as i32).unwrap_or_default().to_owned();
            place = self.symbols.get(&event.b).cloned().unwrap_or_default();
        }
        EventOfPacket { event, reason, place }
    }
}

/// Three figures and a unit.
fn words_of(ns: i64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

impl EventOfPacket {
    /// One phrase for what happened, place excepted.
    pub fn what(&self) -> String {
        let e = self;
        let (a, b) = (e.event.a, e.event.b);
        let ports = || format!("port {} → {}", a >> 16 & 0xffff, a & 0xffff);
        match EventKind::from_number(e.event.kind) {
            Some(EventKind::Drop) if e.reason.is_empty() => format!("reason {a}"),
            Some(EventKind::Drop) => e.reason.clone(),
            Some(EventKind::Retransmit) => format!("{}, {}", ports(), protocol::tcp_state(b)),
            Some(EventKind::TcpState) => {
                format!("{}, {} → {}", ports(), protocol::tcp_state(b >> 8), protocol::tcp_state(b & 0xff))
            }
            Some(EventKind::Link) => {
                // IFF_UP, IFF_RUNNING.
                let up = if b & 1 == 0 { "down" } else { "up" };
                let carrier = if b & 0x40 == 0 { "no carrier" } else { "carrier" };
                format!(
                    "{} {up}, {carrier}",
                    if e.event.text.is_empty() { format!("interface {a}") } else { e.event.text.clone() }
                )
            }
            Some(EventKind::Route) => {
                format!("{} {}", if a == 0 { "removed" } else { "added" }, e.event.text)
            }
            Some(EventKind::Neighbour) => {
                let state = protocol::neighbour_state(a);
                // The recorder may have put the state into the text, as `ip neigh` does.
                match e.event.text.rsplit_once(' ') {
                    Some((_, last)) if last.eq_ignore_ascii_case(&state) => e.event.text.clone(),
                    _ => format!("{} {state}", e.event.text),
                }
            }
            Some(EventKind::Address | EventKind::BridgePort | EventKind::Queueing | EventKind::Namespace) => {
                let how = if a == 1 { "" } else { " removed" };
                format!("{}{how}", e.event.text)
            }
            Some(EventKind::Program) => {
                let text = match e.event.socket_id {
                    Some(socket) => format!("{} (socket {socket})", e.event.text),
                    None => e.event.text.clone(),
                };
                match a {
                    1 => format!("{text} begins"),
                    2 if b >= 0 => format!("{text}, after {}", words_of(b)),
                    2 => format!("{text}, over"),
                    _ => text,
                }
            }
            Some(EventKind::Control | EventKind::LogLine) | None => e.event.text.clone(),
        }
    }
}
