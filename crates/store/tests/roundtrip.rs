//! What is written is read back, whatever mixture of nulls, and look-ups agree with a full scan.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_store::tables::{CALL, CallRow, EVENT, EventRow};
use kpat_store::{Error, Manifest, Row, TableFile, TableWriter};
use std::path::PathBuf;

fn dir(name: &str) -> PathBuf {
    let d = std::env::temp_dir().join(format!("kpat-store-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&d);
    std::fs::create_dir_all(&d).unwrap();
    d
}

fn call(i: i64) -> CallRow {
    CallRow {
        call_id: i,
        packet_id: (i % 7 != 0).then_some(i / 30 + 1),
        func_id: (i % 97) as i32,
        entry_ns: 1_000_000_000 + i * 10,
        dur_ns: (i % 5 != 0).then_some(i % 1000),
        self_ns: (i % 5 != 0).then_some(i % 500),
        depth: (i % 4) as i32,
        flags: if i % 5 == 0 { 256 } else { 0 },
        ..CallRow::default()
    }
}

#[test]
fn rows_come_back() {
    for threaded in [false, true] {
        let d = dir(if threaded { "t" } else { "h" });
        let n = 300_001;
        let mut w =
            if threaded { TableWriter::create_threaded(&d) } else { TableWriter::create(&d) }.unwrap();
        for i in 0..n {
            w.push(&call(i)).unwrap();
        }
        assert_eq!(w.finish().unwrap(), n as u64);
        let t = TableFile::open(&d, &CALL).unwrap();
        assert_eq!((t.rows(), t.groups()), (n as u64, 3));
        let mut i = 0;
        t.each(vec![0, 1, 2], |row: CallRow| {
            assert_eq!(row, call(i));
            i += 1;
        })
        .unwrap();
        assert_eq!(i, n);
        let rows: Vec<CallRow> = t.rows_at(1, &[0, 5, 6, 9000, 100_000, 131_071]).unwrap();
        let want: Vec<CallRow> =
            [0, 5, 6, 9000, 100_000, 131_071].iter().map(|i| call(131_072 + i)).collect();
        assert_eq!(rows, want);
        let found: Vec<CallRow> = t.rows_equal("packet_id", &[5000]).unwrap();
        assert_eq!(found, (0..n).map(call).filter(|c| c.packet_id == Some(5000)).collect::<Vec<_>>());
        assert_eq!(t.groups_where("entry_ns", &(0..=999_999_999)), Vec::<usize>::new());
        std::fs::remove_dir_all(&d).unwrap();
    }
}

#[test]
fn empty_and_text() {
    let d = dir("e");
    TableWriter::<CallRow>::create(&d).unwrap().finish().unwrap();
    assert_eq!(TableFile::open(&d, &CALL).unwrap().all::<CallRow>().unwrap(), vec![]);
    let rows: Vec<EventRow> = (0..10)
        .map(|i| EventRow {
            at_ns: i,
            text: if i % 2 == 0 { String::new() } else { format!("é{i}") },
            ..EventRow::default()
        })
        .collect();
    let mut w = TableWriter::create(&d).unwrap();
    rows.iter().for_each(|r| w.push(r).unwrap());
    w.finish().unwrap();
    assert_eq!(TableFile::open(&d, &EVENT).unwrap().all::<EventRow>().unwrap(), rows);
    std::fs::remove_dir_all(&d).unwrap();
}

#[test]
fn hostile_files_are_errors() {
    let d = dir("x");
    assert!(matches!(Manifest::read(&d), Err(Error::NotALog { .. })));
    std::fs::write(d.join("manifest.json"), b"{\"schema\": 99}").unwrap();
    assert!(matches!(Manifest::read(&d), Err(Error::TooNew { .. })));
    std::fs::write(d.join("manifest.json"), b"[").unwrap();
    assert!(matches!(Manifest::read(&d), Err(Error::Manifest { .. })));
    std::fs::write(d.join("call.parquet"), b"PAR1 not really PAR1").unwrap();
    assert!(matches!(TableFile::open(&d, &CALL), Err(Error::Parquet { .. })));
    // Another table under this name.
    TableWriter::<EventRow>::create(&d).unwrap().finish().unwrap();
    std::fs::rename(d.join(EventRow::TABLE.file_name()), d.join("call.parquet")).unwrap();
    assert!(matches!(TableFile::open(&d, &CALL), Err(Error::Column { .. })));
    std::fs::remove_dir_all(&d).unwrap();
}
