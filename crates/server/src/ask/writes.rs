//! A connection's writes: where their time goes, which took longest, and which packets carried one.

use super::{Answer, Ask, Failure, Progress};
use crate::answers::apps::*;
use crate::answers::{Big, Ns};
use crate::open::Log;
use kpat_query::why;
use kpat_query::{app, protocol, verdict};
use kpat_store::tables::SocketRow;
use std::sync::Arc;

/// Writes that a page lists.
const MOST: usize = 100;

/// What a program's threads slept for.
fn slept_for(t: &why::Threads) -> Vec<WhySleep> {
    let of = |(sleep, ns): (kpat_model::Sleep, f64)| WhySleep {
        what: why::slept_for(sleep).to_owned(),
        ns: Ns(ns.round() as i64),
    };
    t.slept_for.longest().into_iter().map(of).collect()
}

fn since(ask: &Ask<'_>, at_ns: i64) -> Ns {
    Ns(at_ns.saturating_sub(ask.log.start_ns()))
}

fn socket(ask: &Ask<'_>) -> Answer<SocketRow> {
    let id: i64 = ask.needed("socket")?;
    let all: Vec<SocketRow> = ask.log.store.all()?;
    let found = all.into_iter().find(|s| s.socket_id == id);
    found.ok_or_else(|| Failure::words(format!("the log has no socket {id}")))
}

/// The logs in which the other end may be, and the place of the asked one among them.
fn beside<'a>(ask: &Ask<'a>) -> (usize, Vec<&'a Log>) {
    let all: Vec<&Log> = ask.opened.devices.iter().map(Arc::as_ref).collect();
    match all.iter().position(|l| std::ptr::eq(*l, ask.log.as_ref())) {
        Some(at) => (at, all),
        // A run beside this one.
        None => (0, vec![ask.log]),
    }
}

pub fn why(ask: &Ask<'_>, progress: Progress<'_>) -> Answer<SocketWhy> {
    let socket = socket(ask)?;
    let (at, logs) = beside(ask);
    let hosts: Vec<why::Host<'_>> = logs
        .iter()
        .map(|l| why::Host { store: &l.store, boot_id: l.info.manifest.log.boot_id.clone() })
        .collect();
    let mut follow = |done, parts| progress("following writes", done, parts);
    let found = why::why(&hosts, at, &socket, None, &mut follow)?;
    let device = |host: usize| logs[host].among.as_ref().map(|a| a.name.clone());
    let reasons = |w: &why::Why| Reasons {
        socket: Big(w.sender.socket_id),
        device: device(w.host),
        peer: w.peer.as_ref().map(|p| Big(p.socket_id)),
        peer_device: w.peer.as_ref().and_then(|_| device(w.peer_host)),
        clock: w.clock.as_ref().map(|c| Ns(c.bound_ns)),
        whole: Ns(w.whole_ns()),
        certain: w.is_certain(),
        first: w.first().map(|s| s.stage.name().to_owned()),
        stages: w
            .stages
            .iter()
            .map(|s| {
                let (low, high) = w.bounds_ns(s);
                let of_threads = |ns: fn(&why::Threads) -> f64| s.threads.map(|t| Ns(ns(&t).round() as i64));
                WhyStage {
                    stage: s.stage.name().to_owned(),
                    meaning: w.meaning(s.stage),
                    evidence: w.records(s.stage).to_owned(),
                    ns: Ns(s.ns.round() as i64),
                    share: w.share(s),
                    low: Ns(low.round() as i64),
                    high: Ns(high.round() as i64),
                    ran: of_threads(|t| t.ran_ns),
                    waited: of_threads(|t| t.waited_ns),
                    slept: of_threads(|t| t.slept_ns),
                    slept_for: s.threads.iter().flat_map(slept_for).collect(),
                }
            })
            .collect(),
        writes: w.writes(),
        slowest: w.slowest.first().map(|l| Ns(l.to_ns.saturating_sub(l.from_ns))),
        slowest_packet: w.slowest.first().and_then(|l| l.packet),
        lost: w.lost,
    };
    Ok(SocketWhy { why: found.as_ref().map(reasons) })
}

pub fn slow(ask: &Ask<'_>) -> Answer<SocketWrites> {
    let store = &ask.log.store;
    let (writes, total, open) = store.slow_writes(Some(socket(ask)?.socket_id), None, MOST)?;
    let line = |w: &kpat_query::SlowWrite| SlowWriteLine {
        id: w.id,
        t: since(ask, w.at_ns),
        bytes: w.bytes,
        process: w.pid.and_then(|p| store.process(p, w.at_ns)).map(|p| p.comm.clone()),
        acked_after: Ns(w.acked_after_ns),
    };
    Ok(SocketWrites { total, open, writes: writes.iter().map(line).collect() })
}

pub fn one(ask: &Ask<'_>) -> Answer<WriteDetail> {
    let id: i64 = ask.needed("id")?;
    let found = ask.log.store.written(id)?;
    let w = found.ok_or_else(|| Failure::words(format!("no write of this log has the number {id}")))?;
    Ok(WriteDetail {
        id,
        socket: Big(w.socket.socket_id),
        t: since(ask, w.at_ns),
        bytes: w.bytes,
        error: w.error.map(app::errno),
        acked: w.acked_ns.map(|at| since(ask, at)),
        packets: w
            .packets
            .iter()
            .map(|p| WritePacket {
                id: p.packet.packet_id,
                t: since(ask, p.packet.first_ns),
                to: since(ask, p.packet.last_ns),
                carried: p.carried_bytes,
                verdict: verdict::name(p.packet.verdict).to_owned(),
                info: protocol::summary(&p.packet),
                read: p.reads.iter().map(|r| r.at_ns).max().map(|at| since(ask, at)),
            })
            .collect(),
        cut: w.cut,
    })
}
