//! A log of two sockets whose traffic is known: tables made by hand.

#![allow(dead_code, clippy::unwrap_used, reason = "each user needs a part; a test may panic")]

use kpat_model::Crossing;
use kpat_store::tables::*;
use kpat_store::{Manifest, Row, TableCount, TableWriter};
use std::path::{Path, PathBuf};

/// A folder that goes away.
pub struct Log(pub PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn table<R: Row>(dir: &Path, counts: &mut Vec<TableCount>, rows: &[R]) {
    let mut w = TableWriter::create(dir).unwrap();
    rows.iter().for_each(|r| w.push(r).unwrap());
    counts.push(TableCount { table: R::TABLE.name.into(), rows: w.finish().unwrap() });
}

/// An integrated log with these rows, and with three gaps: two that overlap, and one of a moment.
pub fn log(name: &str, sockets: &[SocketRow], events: &[AppEventRow], states: &[TcpStateRow]) -> Log {
    let dir = std::env::temp_dir().join(format!("kpat-sockets-{}-{name}.kpat", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let mut tables = Vec::new();
    let gap = |from, to, lost| GapRow { from_ns: START + from, to_ns: START + to, lost, ..GapRow::default() };
    table(&dir, &mut tables, sockets);
    table(&dir, &mut tables, events);
    table(&dir, &mut tables, states);
    table(&dir, &mut tables, &[gap(500, 520, 7), gap(505, 530, 3), gap(900, 900, 1)]);
    let process =
        |at_ns, comm: &str| ProcessRow { pid: 77, at_ns, comm: comm.into(), ..ProcessRow::default() };
    // As the log of several CPUs has them: out of order.
    let names = [process(START, "<b>writer\u{1b}[31m"), process(START - 10, "shell")];
    table(&dir, &mut tables, &names);
    table::<FunctionRow>(&dir, &mut tables, &[]);
    table::<DropReasonRow>(&dir, &mut tables, &[]);
    table::<SymbolRow>(&dir, &mut tables, &[]);
    table::<ClockRow>(&dir, &mut tables, &[]);
    table::<PacketRow>(&dir, &mut tables, &[]);
    table::<CallRow>(&dir, &mut tables, &[]);
    table::<CallMemberRow>(&dir, &mut tables, &[]);
    table::<EventRow>(&dir, &mut tables, &[]);
    table::<FrameRow>(&dir, &mut tables, &[]);
    table::<AssociationRow>(&dir, &mut tables, &[]);
    table::<LossRow>(&dir, &mut tables, &[]);
    table::<ProvenanceRow>(&dir, &mut tables, &[]);
    table::<DeviceRow>(&dir, &mut tables, &[]);
    table::<InterfaceRow>(&dir, &mut tables, &[]);
    table::<PauseRow>(&dir, &mut tables, &[]);
    table::<LineageRow>(&dir, &mut tables, &[]);
    Manifest {
        schema: SCHEMA_VERSION,
        first_ns: START,
        last_ns: START + 1000,
        tables,
        ..Manifest::default()
    }
    .write(&dir)
    .unwrap();
    Log(dir)
}

pub const START: i64 = 7_000_000_000_000;

fn event(at: i64, socket_id: i64, what: Crossing, size_bytes: i64) -> AppEventRow {
    AppEventRow {
        at_ns: START + at,
        socket_id,
        crossing: what as i32,
        size_bytes,
        segments: if what.is_packet() { ((size_bytes.max(1) + 999) / 1000) as i32 } else { 1 },
        ..AppEventRow::default()
    }
}

/// Two sockets. The first writes 1500 bytes each 100 ns from 0 to 900; each write becomes a packet 10 ns later; the one of 300 is
/// sent again at 350; the write of 400 finds no room and that of 600 fails. The second sends 64 bytes at 50 and at 950.
pub fn events() -> Vec<AppEventRow> {
    let mut all = Vec::new();
    for at in (0..1000).step_by(100) {
        let size = match at {
            400 => -11,
            600 => -32,
            _ => 1500,
        };
        all.push(event(at, 1, Crossing::Send, size));
        if size > 0 {
            all.push(event(at + 10, 1, Crossing::ToDevice, size));
        }
        if at == 300 {
            all.push(event(350, 1, Crossing::Retransmit, 1500));
        }
    }
    all.push(event(50, 2, Crossing::Send, 64));
    all.push(event(950, 2, Crossing::Send, 64));
    all.sort_by_key(|e| e.at_ns);
    all
}

/// The congestion window has filled at 100, halves at 350 with three segments lost, is no longer what holds at 600; at 700 the
/// other side closes its window and opens it at 800.
pub fn states() -> Vec<TcpStateRow> {
    let s = |at: i64, snd_cwnd: i64| TcpStateRow {
        at_ns: START + at,
        socket_id: 1,
        state: 1,
        busy: 1,
        snd_cwnd,
        snd_wnd: 60_000,
        srtt_ns: 1000 + at,
        rto_ns: Some(200_000),
        in_flight: snd_cwnd / 2,
        snd_una: (1 << 32) - 500,
        snd_nxt: 500,
        write_seq: 1500,
        ..TcpStateRow::default()
    };
    vec![
        TcpStateRow { app_limited: 1, write_seq: 500, ..s(0, 10) },
        TcpStateRow { cwnd_limited: 1, ..s(100, 40) },
        TcpStateRow { cwnd_limited: 1, ca_state: 3, lost_out: 3, snd_ssthresh: Some(20), ..s(350, 20) },
        TcpStateRow { snd_ssthresh: Some(20), ..s(600, 22) },
        TcpStateRow { snd_ssthresh: Some(20), busy: 2, snd_wnd: 0, ..s(700, 22) },
        TcpStateRow { snd_ssthresh: Some(20), ..s(800, 23) },
    ]
}

pub fn sockets() -> Vec<SocketRow> {
    let s = |socket_id, first, last| SocketRow {
        socket_id,
        first_ns: START + first,
        last_ns: START + last,
        proto: 6,
        version: 4,
        pid: Some(77),
        local_addr: Some("10.0.0.1".into()),
        local_port: 40_000 + socket_id as i32,
        peer_addr: Some("10.0.0.2".into()),
        peer_port: 80,
        sent_bytes: if socket_id == 1 { 8 * 1500 } else { 128 },
        ..SocketRow::default()
    };
    vec![s(1, 0, 999), s(2, 50, 950)]
}
