//! The balance of packets as rows of a table, so that a log of any length is asked for it at once.

use super::{Conservation, Difference, Fates, OfInterface, Unexplained};
use crate::error::Result;
use kpat_store::tables::{BALANCE, BalanceRow};
use kpat_store::{NULL, TableFile};
use std::path::Path;

/// What a row counts; numbers as in the declaration of the table.
mod scope {
    pub const ALL: i32 = 0;
    pub const INTERFACE: i32 = 1;
    pub const CPU: i32 = 2;
    pub const UNEXPLAINED: i32 = 3;
    pub const VERDICT: i32 = 4;
    pub const UNREAD: i32 = 5;
}

fn row(scope: i32, f: &Fates) -> BalanceRow {
    let n = |v: u64| v as i64;
    BalanceRow {
        scope,
        packets: n(f.sum()),
        forwarded: n(f.forwarded),
        sent: n(f.sent),
        delivered: n(f.delivered),
        dropped: n(f.dropped),
        transformed: n(f.transformed),
        in_flight: n(f.in_flight),
        lost: n(f.lost),
        unexplained: n(f.unexplained),
        ..BalanceRow::default()
    }
}

fn fates(r: &BalanceRow) -> Fates {
    let n = |v: i64| v.max(0) as u64;
    Fates {
        forwarded: n(r.forwarded),
        sent: n(r.sent),
        delivered: n(r.delivered),
        dropped: n(r.dropped),
        transformed: n(r.transformed),
        in_flight: n(r.in_flight),
        lost: n(r.lost),
        unexplained: n(r.unexplained),
    }
}

/// Namespace and ifindex, where known, and back.
fn place(interface: (i64, i64)) -> (Option<i64>, Option<i32>) {
    ((interface.0 != NULL).then_some(interface.0), (interface.1 != NULL).then_some(interface.1 as i32))
}

fn interface(r: &BalanceRow) -> (i64, i64) {
    (r.netns.unwrap_or(NULL), r.ifindex.map_or(NULL, i64::from))
}

pub fn rows(c: &Conservation) -> Vec<BalanceRow> {
    let mut out = vec![BalanceRow {
        code: Some(i32::from(c.ends_recorded)),
        received: c.received as i64,
        made_here: c.made_here as i64,
        from_others: c.from_others as i64,
        ..row(scope::ALL, &c.fates)
    }];
    if c.unread > 0 {
        out.push(BalanceRow { scope: scope::UNREAD, packets: c.unread as i64, ..BalanceRow::default() });
    }
    out.extend(c.interfaces.iter().map(|(at, i)| {
        let (netns, ifindex) = place(*at);
        BalanceRow { netns, ifindex, given: i.given as i64, ..row(scope::INTERFACE, &i.received) }
    }));
    out.extend(c.cpus.iter().map(|(cpu, f)| BalanceRow { cpu: Some(*cpu as i32), ..row(scope::CPU, f) }));
    out.extend(c.differences.iter().map(|d| {
        let (netns, ifindex) = place(d.interface.unwrap_or((NULL, NULL)));
        let code = Some(match d.why {
            Difference::NoFate => 1,
            Difference::NoEnd => 2,
        });
        let fates = Fates { unexplained: d.packets, ..Fates::default() };
        BalanceRow {
            netns,
            ifindex,
            cpu: d.cpu,
            code,
            packet_id: Some(d.packet_id),
            ..row(scope::UNEXPLAINED, &fates)
        }
    }));
    out.extend(c.verdicts.iter().map(|(code, packets)| BalanceRow {
        scope: scope::VERDICT,
        code: Some(*code),
        packets: *packets as i64,
        ..BalanceRow::default()
    }));
    out
}

/// `None`: the log has no such table, or it is empty.
pub(super) fn read(dir: &Path) -> Result<Option<Conservation>> {
    if !dir.join(BALANCE.file_name()).exists() {
        return Ok(None);
    }
    let rows: Vec<BalanceRow> = TableFile::open(dir, &BALANCE)?.all()?;
    let Some(all) = rows.iter().find(|r| r.scope == scope::ALL) else { return Ok(None) };
    let n = |v: i64| v.max(0) as u64;
    let mut out = Conservation {
        received: n(all.received),
        made_here: n(all.made_here),
        from_others: n(all.from_others),
        fates: fates(all),
        ends_recorded: all.code == Some(1),
        ..Conservation::default()
    };
    for r in &rows {
        match r.scope {
            scope::INTERFACE => {
                out.interfaces.insert(interface(r), OfInterface { received: fates(r), given: n(r.given) });
            }
            scope::CPU => {
                out.cpus.insert(i64::from(r.cpu.unwrap_or(-1)), fates(r));
            }
            scope::UNEXPLAINED => out.differences.push(Unexplained {
                why: if r.code == Some(2) { Difference::NoEnd } else { Difference::NoFate },
                cpu: r.cpu,
                interface: r.ifindex.is_some().then(|| interface(r)),
                packets: n(r.packets),
                packet_id: r.packet_id.unwrap_or(0),
            }),
            scope::UNREAD => out.unread = n(r.packets),
            scope::VERDICT => {
                out.verdicts.insert(r.code.unwrap_or(0), n(r.packets));
            }
            _ => {}
        }
    }
    Ok(Some(out))
}
