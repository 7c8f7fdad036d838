//! What is written is read back, whatever mixture of nulls, and look-ups agree with a full scan.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_store::tables::{CALL, CALL_INDEX, CallIndexRow, CallRow, EVENT, EventRow, FOOTPRINT, FootprintRow};
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

/// Numbers that are all alike, few, near each other, or anything; the same of texts; with and without nulls, page by page.
#[test]
fn any_values_come_back() {
    let mut x = 88_172_645_463_325_252u64;
    let mut random = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let d = dir("any");
    for rows in [1, 2, 7, 8, 9, 31, 32, 33, 129, 255, 257, 8_191, 8_192, 8_193, 66_000] {
        for kind in 0..6 {
            let mut number = |i: i64| match kind {
                0 => -7,
                1 => (random() % 5) as i64,
                2 => 1_000_000_000_000 + i * 100 + (random() % 50) as i64,
                // Runs that are shorter and longer than what is packed at once.
                3 => i / 11,
                4 => random() as i64,
                _ => [i64::MIN, i64::MAX, 0, -1, i64::from(i32::MIN), i64::from(i32::MAX)]
                    [(random() % 6) as usize],
            };
            let index = |i: i64, mut n: Box<dyn FnMut() -> i64>| CallIndexRow {
                func_id: n() as i32,
                row_group: n() as i32,
                calls: n() as i32,
                min_ns: (kind % 2 == 0 || i % 3 > 0).then(&mut n),
                max_ns: (kind != 3).then(&mut n),
            };
            let indices: Vec<CallIndexRow> = (0..rows)
                .map(|i| {
                    let five: Vec<i64> = (0..5).map(|_| number(i)).collect();
                    let mut five = five.into_iter();
                    index(i, Box::new(move || five.next().unwrap()))
                })
                .collect();
            let text = |n: i64| format!("{}é{n}", "long ".repeat((n & 31) as usize));
            let prints: Vec<FootprintRow> = (0..rows)
                .map(|i| FootprintRow {
                    packet_id: number(i),
                    at_ns: number(i),
                    ifindex: (i % 5 != 0).then(|| number(i) as i32),
                    len_bytes: number(i),
                    skb_tag: number(i) as i32,
                    ip_src: (kind == 4 || i % 4 > 0).then(|| text(number(i))),
                    ip_dst: (kind != 1).then(|| text(number(i) & 3)),
                    ip_id: (i > 9_000).then(|| number(i)),
                    tcp_seq: Some(number(i)),
                    ..FootprintRow::default()
                })
                .collect();
            let mut w = TableWriter::create(&d).unwrap();
            w.push_all(&indices).unwrap();
            assert_eq!(w.finish().unwrap(), rows as u64);
            assert_eq!(TableFile::open(&d, &CALL_INDEX).unwrap().all::<CallIndexRow>().unwrap(), indices);
            let mut w = TableWriter::create(&d).unwrap();
            // Some one by one, some given away, some together.
            let (some, others) = prints.split_at(prints.len() / 3);
            some.iter().for_each(|r| w.push(r).unwrap());
            let (given, others) = others.split_at(others.len() / 2);
            given.iter().for_each(|r| w.give(r.clone()).unwrap());
            w.push_all(others).unwrap();
            assert_eq!(w.finish().unwrap(), rows as u64);
            let t = TableFile::open(&d, &FOOTPRINT).unwrap();
            assert_eq!(t.all::<FootprintRow>().unwrap(), prints, "{rows} rows, kind {kind}");
            for group in 0..t.groups() {
                let of = &prints[group * 65_536..prints.len().min((group + 1) * 65_536)];
                let ends = of.iter().map(|r| r.len_bytes).min().zip(of.iter().map(|r| r.len_bytes).max());
                assert_eq!(t.range(group, "len_bytes"), ends.map(|(a, b)| a..=b));
                let some = of.iter().filter_map(|r| r.ifindex.map(i64::from));
                let ends = some.clone().min().zip(some.max());
                assert_eq!(t.range(group, "ifindex"), ends.map(|(a, b)| a..=b));
            }
        }
    }
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
