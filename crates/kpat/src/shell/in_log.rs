//! What TAB finds in the log that is named on the line: its functions, captures, sockets, processes and handovers.

use super::complete::{MOST, Named};
use crate::render::duration;
use kpat_query::handover::Asked;
use kpat_query::{SlowWrite, Store};
use kpat_store::tables::{
    AppEventRow, LinkEventRow, PROCESS, PROCESS_LABEL, PacketRow, ProcessLabelRow, ProcessRow, SOCKET,
    SYMBOL, SocketRow, SymbolRow, WifiEventRow,
};
use kpat_store::{Manifest, Row, Table, TableFile};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Above it nobody waits at a prompt until they are read.
const MOST_ROWS: u64 = 200_000;

/// So many of the slowest writes are offered: who types a number has seen it elsewhere.
const MOST_WRITES: usize = 100;

/// The integrated log that was named already.
fn log() -> Option<PathBuf> {
    let is_log = |w: &OsString| Path::new(w).join("manifest.json").is_file();
    std::env::args_os().skip(1).find(is_log).map(PathBuf::from)
}

fn store() -> Option<Store> {
    Store::open(&log()?).ok()
}

fn rows<R: Row>(table: &'static Table, f: impl FnMut(R)) {
    let file = log().and_then(|dir| TableFile::open(&dir, table).ok());
    // What is damaged is not offered.
    let _ = file.map(|file| file.each((0..file.groups()).collect(), f));
}

pub fn functions() -> Vec<Named> {
    let Some(store) = store() else { return Vec::new() };
    let mut names: Vec<Named> = store.function_names().map(|n| (n.to_owned(), String::new())).collect();
    names.sort();
    names
}

/// Functions of the kernel that stacks of its samples have.
pub fn sampled() -> Vec<Named> {
    let mut names = BTreeSet::new();
    rows(&SYMBOL, |r: SymbolRow| _ = names.insert(r.text.split('+').next().unwrap_or_default().to_owned()));
    names.into_iter().map(|n| (n, String::new())).collect()
}

pub fn captures() -> Vec<Named> {
    let manifest = log().and_then(|p| Manifest::read(&p).ok());
    let sources = manifest.map(|m| m.sources).unwrap_or_default();
    sources.into_iter().filter(|s| s.role == "capture").map(|s| (s.name, String::new())).collect()
}

/// Those that moved most first.
pub fn sockets() -> Vec<Named> {
    let mut found: Vec<SocketRow> = Vec::new();
    rows(&SOCKET, |r: SocketRow| found.push(r));
    found.sort_by_key(|s| std::cmp::Reverse(s.sent_bytes.saturating_add(s.received_bytes)));
    found.truncate(MOST);
    let end = |addr: &Option<String>, port: i32| format!("{}:{port}", addr.as_deref().unwrap_or("*"));
    let about =
        |s: &SocketRow| format!("{} > {}", end(&s.local_addr, s.local_port), end(&s.peer_addr, s.peer_port));
    found.iter().map(|s| (s.socket_id.to_string(), about(s))).collect()
}

/// Each process of the log, by number, with the name that it took last.
fn named_processes() -> BTreeMap<i32, String> {
    // By its first thread rather than by another, and by the last name, however the log has them.
    let mut found: BTreeMap<i32, (bool, i64, String)> = BTreeMap::new();
    rows(&PROCESS, |r: ProcessRow| {
        let (first, at) = (r.pid == r.tgid, r.at_ns);
        if found.get(&r.tgid).is_none_or(|known| (known.0, known.1) <= (first, at)) {
            found.insert(r.tgid, (first, at, r.comm));
        }
    });
    found.into_iter().map(|(tgid, (.., comm))| (tgid, comm)).collect()
}

pub fn processes() -> Vec<Named> {
    named_processes().into_iter().map(|(pid, comm)| (pid.to_string(), comm)).collect()
}

pub fn names_of_processes() -> Vec<Named> {
    let names: BTreeSet<String> = named_processes().into_values().collect();
    names.into_iter().map(|n| (n, String::new())).collect()
}

fn count<R: Row>(store: &Store) -> u64 {
    store.table::<R>().map_or(0, |table| table.rows())
}

/// The slowest first.
pub fn writes() -> Vec<Named> {
    let Some(store) = store().filter(|s| count::<AppEventRow>(s) <= MOST_ROWS) else { return Vec::new() };
    let Ok((slowest, ..)) = store.slow_writes(None, None, MOST_WRITES) else { return Vec::new() };
    let about =
        |w: &SlowWrite| format!("{} bytes, acknowledged after {}", w.bytes, duration(w.acked_after_ns));
    slowest.iter().map(|w| (w.id.to_string(), about(w))).collect()
}

pub fn cgroups() -> Vec<Named> {
    let mut paths = BTreeSet::new();
    rows(&PROCESS_LABEL, |r: ProcessLabelRow| _ = paths.insert(r.path));
    paths.into_iter().filter(|p| !p.is_empty()).map(|p| (p, String::new())).collect()
}

/// By name, and by number what has none.
pub fn users() -> Vec<Named> {
    let mut users = BTreeMap::new();
    rows(&PROCESS_LABEL, |r: ProcessLabelRow| _ = users.insert(r.uid, r.user));
    let name = |(uid, user): (i64, String)| match user.is_empty() {
        true => (uid.to_string(), String::new()),
        false => (user, uid.to_string()),
    };
    users.into_iter().map(name).collect()
}

pub fn handovers() -> Vec<Named> {
    let Some(store) = store() else { return Vec::new() };
    if count::<WifiEventRow>(&store) + count::<LinkEventRow>(&store) == 0
        || count::<PacketRow>(&store) > MOST_ROWS
    {
        return Vec::new();
    }
    let Ok(found) = store.handovers(&Asked::default(), &mut |_, _| true) else { return Vec::new() };
    let about = |h: &kpat_query::handover::Handover| format!("{} {}", h.interface, h.kind.label());
    found.handovers.iter().map(|h| (h.number.to_string(), about(h))).collect()
}
