//! Names in a log are anybody's: nothing of them moves a terminal, ends a cell, or is a formula in a spreadsheet; JSON stays
//! JSON. Every name of every table is replaced by a hostile one, and every command is asked.

use crate::fixture;

use fixture::{Folder, START};
use kpat_formats::text::is_hidden;
use kpat_store::tables::*;
use kpat_store::{Row, TableFile, TableWriter};
use std::path::Path;
use std::process::{Command, Output};

/// Escape sequences of one and of eight bits, a title, a bell, ends of lines and cells, text turned around.
const MOVES: &str = "\u{1b}[2J\u{9b}31m\u{1b}]0;x\u{7}\r\n\t\u{7f}\u{202e}\u{2066}\u{200b}\u{85}";
/// What a spreadsheet calculates.
const FORMULAS: [&str; 4] = ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1:A9)"];

fn name(i: usize) -> String {
    format!("{}{MOVES}", FORMULAS[i % FORMULAS.len()])
}

/// Each row of a table, as `change` leaves it.
pub fn change_rows<R: Row>(dir: &Path, change: impl Fn(usize, &mut R)) {
    let mut rows: Vec<R> = TableFile::open(dir, R::TABLE).unwrap().all().unwrap();
    std::fs::remove_file(dir.join(R::TABLE.file_name())).unwrap();
    rows.iter_mut().enumerate().for_each(|(i, r)| change(i, r));
    let mut w = TableWriter::create(dir).unwrap();
    rows.iter().for_each(|r| w.push(r).unwrap());
    w.finish().unwrap();
}

fn hostile() -> Folder {
    let folder = Folder::new("hostile-names");
    let dir = fixture::integrated(&folder);
    change_rows(&dir, |i, r: &mut FunctionRow| {
        (r.name, r.module, r.layer, r.via) = (name(i), name(i + 1), name(i + 2), name(i));
    });
    change_rows(&dir, |i, r: &mut ProcessRow| r.comm = name(i));
    change_rows(&dir, |i, r: &mut DeviceRow| {
        (r.name, r.netns_name, r.driver) = (name(i), name(i + 1), name(i));
        r.mac = name(i + 2);
    });
    change_rows(&dir, |i, r: &mut InterfaceRow| r.name = name(i));
    change_rows(&dir, |i, r: &mut DropReasonRow| r.name = name(i));
    change_rows(&dir, |i, r: &mut SymbolRow| r.text = name(i));
    change_rows(&dir, |i, r: &mut EventRow| r.text = name(i));
    change_rows(&dir, |i, r: &mut PacketRow| {
        (r.src_addr, r.dst_addr) = (Some(name(i)), Some(name(i + 1)));
    });
    let mut sockets = TableWriter::create(&dir).unwrap();
    for i in 0..4 {
        sockets
            .push(&SocketRow {
                socket_id: i,
                first_ns: START,
                last_ns: START + 10,
                proto: 6,
                version: 4,
                local_addr: Some(name(i as usize)),
                peer_addr: Some(name(i as usize + 1)),
                congestion: Some(name(i as usize)),
                pid: Some(900),
                ..SocketRow::default()
            })
            .unwrap();
    }
    sockets.finish().unwrap();
    let mut events = TableWriter::create(&dir).unwrap();
    for i in 0..4 {
        let e = AppEventRow {
            at_ns: START + i,
            socket_id: i,
            crossing: 2,
            size_bytes: 5,
            segments: 1,
            offset: Some(0),
            pid: Some(900),
            ..Default::default()
        };
        events.push(&e).unwrap();
    }
    events.finish().unwrap();
    folder
}

fn kpat(folder: &Folder, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap()
}

#[test]
fn no_name_reaches_a_terminal_or_a_spreadsheet_as_it_is() {
    let folder = hostile();
    let mut asked = 0;
    for command in [
        &["info", "x.kpat"][..],
        &["packets", "x.kpat"],
        &["packet", "1", "x.kpat"],
        &["functions", "x.kpat"],
        &["phases", "x.kpat"],
        &["time", "x.kpat"],
        &["events", "x.kpat"],
        &["app", "x.kpat"],
        &["app", "x.kpat", "--to", "tsv"],
        &["why", "x.kpat"],
        &["frames", "x.kpat"],
        &["sql", "x.kpat", "select * from function, device, process"],
        &["sql", "x.kpat", "--tsv", "select * from function, device, process"],
        &["sql", "x.kpat", "--tsv", "select src_addr, '=1+1' as \"=2+2\", -5, '-5.5' from packet"],
        &["export", "x.kpat", "--to", "tsv"],
        &["export", "x.kpat", "--to", "json"],
        &["export", "x.kpat", "--to", "folded"],
    ] {
        let table = command.contains(&"tsv") || command.contains(&"--tsv");
        for json in [false, true] {
            let mut args = command.to_vec();
            if json && table {
                continue;
            }
            args.extend(json.then_some("--json"));
            let done = kpat(&folder, &args);
            let (out, words) =
                (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
            assert!(done.status.success(), "{args:?}: {words}");
            let moves = |c: char| is_hidden(c) && c != '\n' && !(c == '\t' && table);
            for text in [&out, &words] {
                assert!(!text.contains(moves), "{args:?}: {text:?}");
            }
            if json && command[0] != "export" {
                serde_json::from_str::<serde_json::Value>(&out)
                    .unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"));
            }
            if command.contains(&"json") {
                out.lines().for_each(|l| drop(serde_json::from_str::<serde_json::Value>(l).unwrap()));
            }
            if table {
                let columns = out.lines().next().unwrap().split('\t').count();
                for line in out.lines() {
                    assert_eq!(line.split('\t').count(), columns, "{args:?}: {line:?}");
                    for cell in line.split('\t') {
                        let formula = cell.starts_with(['=', '+', '-', '@']) && cell.parse::<f64>().is_err();
                        assert!(!formula, "{args:?}: {cell:?}");
                    }
                }
                assert!(out.contains("'=1+1") || out.contains("'@SUM"), "{args:?}: {out}");
                asked += 1;
            }
        }
    }
    assert_eq!(asked, 4);
    // Negative numbers are numbers.
    let done = kpat(&folder, &["sql", "x.kpat", "--tsv", "select -5, '-5.5'"]);
    assert_eq!(String::from_utf8(done.stdout).unwrap().lines().nth(1).unwrap(), "-5\t-5.5");
    // Names of files and what was typed.
    let done = kpat(&folder, &["info", "no\u{1b}[2J\u{9b}such.kpat"]);
    assert!(!String::from_utf8(done.stderr).unwrap().contains(|c| is_hidden(c) && c != '\n'));
    let done = kpat(&folder, &["packets", "x.kpat", "host \u{1b}[2J\u{202e}"]);
    assert!(!String::from_utf8(done.stderr).unwrap().contains(|c| is_hidden(c) && c != '\n'));
}
