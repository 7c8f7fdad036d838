//! Events of the log.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::Ns;
use crate::answers::log::{Event, Events};
use kpat_analysis::query::event_kind;
use kpat_model::EventKind;

pub fn events(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Events> {
    let (from, count) = ask.page()?;
    let mut kinds = Vec::new();
    for name in ask.request.get("kind").unwrap_or_default().split(',').filter(|k| !k.is_empty()) {
        let known = (0..=u8::MAX).filter_map(EventKind::from_u8).find(|k| k.name() == name);
        kinds.push(known.ok_or_else(|| Failure::words(format!("`{name}` is no kind of event")))? as i32);
    }
    let packets = ask.ids(progress)?;
    let found = ask.log.store.moments(&kinds, packets.as_deref(), from, count, &mut |done, parts| {
        progress("reading events", done, parts)
    })?;
    let start = ask.log.start_ns();
    Ok(Events {
        total: found.total,
        kinds: found.kinds.iter().map(|(k, n)| (event_kind(*k), *n)).collect(),
        rows: found
            .rows
            .into_iter()
            .map(|e| Event {
                t: Ns(e.event.at_ns.saturating_sub(start)),
                kind: event_kind(e.event.kind),
                packet: e.event.packet_id,
                cpu: e.event.cpu,
                words: e.what(),
                place: e.place,
                reason: e.reason,
                within: e.event.after_ns.map(|after| Ns(e.event.at_ns.saturating_sub(after))),
            })
            .collect(),
    })
}
