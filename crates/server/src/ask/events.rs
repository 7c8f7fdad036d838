//! Events of the log.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::Ns;
use crate::answers::log::{DropPlace, Event, EventSums, Events};
use kpat_model::EventKind;
use kpat_query::event_kind;

pub fn events(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Events> {
    let (from, count) = ask.page()?;
    let mut kinds = Vec::new();
    for name in ask.request.get("kind").unwrap_or_default().split(',').filter(|k| !k.is_empty()) {
        kinds.push(
            EventKind::from_name(name)
                .ok_or_else(|| Failure::words(format!("there is no kind of event `{name}`")))?
                as i32,
        );
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
                process: e.event.pid.and_then(|pid| {
                    let known = ask.log.store.process(pid, e.event.at_ns);
                    known.map(|p| p.comm.clone()).or((pid == 0).then(|| "idle".to_owned()))
                }),
                pid: e.event.pid,
                cpu: e.event.cpu,
                words: e.what(),
                place: e.place,
                reason: e.reason,
                within: e.event.after_ns.map(|after| Ns(e.event.at_ns.saturating_sub(after))),
            })
            .collect(),
    })
}

/// All events, however many: what the axis is drawn from.
pub fn sums(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<EventSums> {
    let bins = ask.number::<usize>("bins")?.unwrap_or(200).clamp(1, 4_000);
    let start = ask.log.start_ns();
    let last = ask.log.info.manifest.last_ns.max(start);
    let bound = |name, otherwise: i64| -> Answer<i64> {
        Ok(ask.number::<i64>(name)?.map_or(otherwise, |t| start.saturating_add(t)))
    };
    let (from, to) = (bound("from", start)?, bound("to", last)?);
    let packets = ask.ids(progress)?;
    let found =
        ask.log.store.moment_sums(packets.as_deref(), (from, to.max(from)), bins, &mut |done, parts| {
            progress("counting events", done, parts)
        })?;
    Ok(EventSums {
        from: Ns(from - start),
        to: Ns(to - start),
        bins: found.bins.into_iter().map(|(k, n)| (event_kind(k), n)).collect(),
        drops: found
            .drops
            .into_iter()
            .map(|(reason, place, count)| DropPlace { reason, place, count })
            .collect(),
    })
}
