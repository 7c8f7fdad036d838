//! Applications: sockets, one at each layer, and over time.

use super::packets::process_of;
use super::{Answer, Ask, Failure, Progress};
use crate::answers::apps::*;
use crate::answers::{Big, Ns};
use kpat_model::Crossing;
use kpat_query::app::{self, Held, Layer, Limits, Mark, Metric, Series, Spread, Traffic, Window};
use std::sync::Arc;

/// Sockets that a page lists.
const MOST_SOCKETS: usize = 10_000;
const BINS: usize = 400;

fn all(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Arc<Vec<Traffic>>> {
    const WORDS: &str = "reading what crossed";
    let still = |p: Progress<'_>| if p(WORDS, 0, 1) { Ok(()) } else { Err(Failure::Left) };
    ask.log.traffic.get_or_once(
        (),
        progress,
        |p| still(p),
        |p| {
            let mut all = app::traffic(&ask.log.store, &[], &mut |done, parts| p(WORDS, done, parts))?;
            all.sort_by_key(|t| {
                std::cmp::Reverse(t.socket.sent_bytes.saturating_add(t.socket.received_bytes))
            });
            Ok(all)
        },
    )
}

fn since(ask: &Ask<'_>, at_ns: i64) -> Ns {
    Ns(at_ns.saturating_sub(ask.log.start_ns()))
}

fn round(mean: Option<f64>) -> Option<Ns> {
    mean.map(|m| Ns(m.round() as i64))
}

fn line(ask: &Ask<'_>, t: &Traffic) -> SocketLine {
    let (local, peer) = app::ends(&t.socket);
    let device = t.layer(Crossing::ToDevice);
    SocketLine {
        id: Big(t.socket.socket_id),
        process: t.process.clone(),
        listener: t.listener.as_ref().and_then(|(_, name)| name.clone()),
        pid: t.socket.pid,
        tgid: t.socket.pid.and_then(|pid| process_of(ask, pid, t.socket.last_ns)),
        protocol: app::protocol(t.socket.proto),
        local,
        peer,
        not_connected: t.opening.and_then(|o| o.outcome.short()),
        from: since(ask, t.socket.first_ns),
        to: since(ask, t.socket.last_ns),
        written: t.socket.sent_bytes,
        writes: t.layer(Crossing::Send).events,
        read: t.socket.received_bytes,
        reads: t.layer(Crossing::Recv).events,
        packets: device.events,
        frames: device.segments,
        retransmitted: t.layer(Crossing::Retransmit).segments,
        failed: t.layers.values().map(|l| l.errors).sum(),
        round_trip: t.limits.as_ref().and_then(|l| round(l.srtt_ns.mean())),
        held: t.limits.as_ref().and_then(Limits::most).map(|(h, share)| (h.name().to_owned(), share)),
    }
}

pub fn apps(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<Apps> {
    let all = all(ask, progress)?;
    Ok(Apps {
        total: all.len() as u64,
        lost: app::lost(&ask.log.store)?,
        sockets: all.iter().take(MOST_SOCKETS).map(|t| line(ask, t)).collect(),
    })
}

pub fn app(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<SocketDetail> {
    let id: i64 = ask.needed("socket")?;
    let all = all(ask, progress)?;
    let t = all.iter().find(|t| t.socket.socket_id == id).ok_or_else(|| none(id))?;
    Ok(SocketDetail {
        line: line(ask, t),
        version: t.socket.version,
        congestion: t.socket.congestion.clone(),
        error: kpat_query::app::ended_in_words(t.socket.error, t.limits.as_ref().map(|l| &l.ending)),
        netns: t.socket.netns.map(Big),
        cgroup: t.socket.cgroup.map(Big),
        layers: t.layers.iter().map(|(c, l)| layer(*c, l)).collect(),
        waits: t.waits.iter().map(wait).collect(),
        limits: t.limits.as_ref().map(limits),
        writes_per_packet: t.writes_per_packet(),
        failures: t.failures(),
    })
}

fn none(id: i64) -> Failure {
    Failure::words(format!("the log has no socket {id}"))
}

fn layer(c: Crossing, l: &Layer) -> SocketLayer {
    let size = &l.size_bytes;
    SocketLayer {
        crossing: c.name().to_owned(),
        words: c.layers().to_owned(),
        packets: c.is_packet(),
        events: l.events,
        failed: l.errors,
        bytes: l.bytes,
        frames: l.segments,
        least: size.min,
        most: size.max,
        mean: size.mean(),
        median: size.quantile(0.5),
        apart_mean: round(l.spacing_ns.mean()),
        apart_median: l.spacing_ns.quantile(0.5).map(Ns),
        apart_p99: l.spacing_ns.quantile(0.99).map(Ns),
        sizes: classes(size),
    }
}

fn classes(s: &Spread) -> Vec<(i64, u64)> {
    let from = |class: usize| if class == 0 { 0 } else { 1i64 << (class - 1) };
    s.powers().into_iter().enumerate().filter(|(_, n)| *n > 0).map(|(i, n)| (from(i), n)).collect()
}

fn wait(w: &app::Wait) -> SocketWait {
    SocketWait {
        leg: w.leg.name().to_owned(),
        bytes: w.ns.count,
        least: Ns(w.ns.min),
        mean: round(w.ns.mean()),
        median: w.ns.quantile(0.5).map(Ns),
        p99: w.ns.quantile(0.99).map(Ns),
        most: Ns(w.ns.max),
    }
}

fn limits(l: &Limits) -> SocketLimits {
    SocketLimits {
        known: Ns(l.known_ns),
        held: l.held().map(|(h, ns)| (h.name().to_owned(), Ns(ns))).collect(),
        recovery: Ns(l.recovery_ns),
        refused: Ns(l.refused_ns),
        in_call: Ns(l.in_call_ns),
        total_retrans: l.total_retrans,
    }
}

pub fn series(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<SocketSeries> {
    let start = ask.log.start_ns();
    let at = |ns: Option<i64>| ns.map(|ns| start.saturating_add(ns));
    let window = Window {
        socket: ask.number("socket")?,
        from_ns: at(ask.number("from")?),
        to_ns: at(ask.number("to")?),
        bins: ask.number("bins")?.unwrap_or(BINS),
    };
    let found = app::series(&ask.log.store, &window, &mut |done, parts| {
        progress("reading what crossed", done, parts)
    })?;
    let s =
        found.ok_or_else(|| window.socket.map_or_else(|| Failure::words("the log has no sockets"), none))?;
    Ok(SocketSeries {
        from: since(ask, s.from_ns),
        to: since(ask, s.to_ns),
        bins: s.bins,
        crossings: crossings(&s),
        marks: Mark::ALL
            .iter()
            .filter_map(|m| Some(MarkSeries { mark: m.name().to_owned(), counts: s.marks.get(m)?.clone() }))
            .collect(),
        tcp: s.tcp.as_ref().map(tcp),
        gaps: s
            .gaps
            .iter()
            .map(|g| GapSpan { from: since(ask, g.from_ns), to: since(ask, g.to_ns), lost: g.lost })
            .collect(),
    })
}

fn crossings(s: &Series) -> Vec<CrossingSeries> {
    s.crossings
        .iter()
        .map(|(c, bins)| CrossingSeries {
            crossing: c.name().to_owned(),
            words: c.layers().to_owned(),
            events: bins.iter().map(|b| b.events).collect(),
            bytes: bins.iter().map(|b| b.bytes).collect(),
            frames: bins.iter().map(|b| b.frames).collect(),
            least: bins.iter().map(|b| b.least).collect(),
            most: bins.iter().map(|b| b.most).collect(),
        })
        .collect()
}

fn tcp(t: &app::Tcp) -> TcpSeries {
    TcpSeries {
        tracks: Metric::ALL
            .iter()
            .map(|m| {
                let track = t.track(*m);
                TrackSeries {
                    metric: m.name().to_owned(),
                    unit: m.unit().to_owned(),
                    low: track.low.clone(),
                    high: track.high.clone(),
                    last: track.last.clone(),
                }
            })
            .collect(),
        held: Held::ALL
            .iter()
            .map(|h| HeldSeries { held: h.name().to_owned(), ns: t.held_ns(*h).to_vec() })
            .collect(),
        recovery: t.recovery_ns.clone(),
    }
}
