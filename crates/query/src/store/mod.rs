//! An open integrated log: its tables, and what is asked of it again and again.

mod datagrams;
mod ends;
mod own_clock;
mod owners;
mod passings;
mod sockets;
mod streams;
mod times;
mod touching;
mod unqueued;

use crate::error::{Error, Result};
use crate::names::nearest;
use crate::roles::Roles;
pub(crate) use datagrams::{Datagrams, Sighting};
pub(crate) use ends::{BothEnds, End, Ends};
use kpat_store::tables::*;
use kpat_store::{Manifest, Row, TableFile};
pub use own_clock::OwnClock;
pub use owners::Owner;
pub(crate) use owners::{KnownOwners, Owners, Threads};
pub(crate) use passings::{Passing, Wanted};
pub(crate) use sockets::Sockets;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
pub(crate) use streams::StreamCall;
use streams::Streams;
pub(crate) use times::Times;
use touching::Touching;
pub(crate) use unqueued::Unqueued;

/// An integrated log, open for questions. Tables are opened when a question needs them.
pub struct Store {
    pub(crate) dir: PathBuf,
    pub(crate) manifest: Manifest,
    /// By `func_id`.
    pub(crate) functions: Vec<FunctionRow>,
    pub(crate) roles: Vec<Roles>,
    pub(crate) drop_reasons: HashMap<i32, String>,
    pub(crate) symbols: HashMap<i64, String>,
    /// What each thread was called, in order of time.
    pub(crate) processes: HashMap<i32, Vec<ProcessRow>>,
    pub(crate) clocks: Vec<ClockRow>,
    own_clock: Option<OwnClock>,
    pub(crate) devices: Vec<DeviceRow>,
    /// Tables that were asked for.
    open: Mutex<HashMap<&'static str, Arc<TableFile>>>,
    pub(crate) touching: OnceLock<Touching>,
    streams: Mutex<Streams>,
    sockets: sockets::Known,
    datagrams: datagrams::Known,
    passings: passings::Passings,
    pub(crate) known: ends::Known,
}

/// Not a crossing of applications, a place in a program or an event of a radio.
pub(crate) fn meets_packets(f: &FunctionRow) -> bool {
    !f.name.is_empty() && !["crossing", "program", "wifi"].contains(&f.kind.as_str())
}

impl Store {
    pub fn open(dir: &Path) -> Result<Store> {
        let manifest = Manifest::read(dir)?;
        let mut store = Store {
            dir: dir.to_owned(),
            own_clock: OwnClock::of(&manifest),
            manifest,
            functions: Vec::new(),
            roles: Vec::new(),
            drop_reasons: HashMap::new(),
            symbols: HashMap::new(),
            processes: HashMap::new(),
            clocks: Vec::new(),
            devices: Vec::new(),
            open: Mutex::default(),
            touching: OnceLock::new(),
            streams: Mutex::default(),
            sockets: sockets::Known::default(),
            datagrams: datagrams::Known::default(),
            passings: passings::Passings::default(),
            known: ends::Known::default(),
        };
        for f in store.all::<FunctionRow>()? {
            let id = f.func_id.clamp(0, i32::from(u16::MAX)) as usize;
            if store.functions.len() <= id {
                store.functions.resize_with(id + 1, FunctionRow::default);
            }
            store.functions[id] = f;
        }
        store.roles = store.functions.iter().map(|f| Roles::of(&f.name)).collect();
        store.drop_reasons = store.all::<DropReasonRow>()?.into_iter().map(|r| (r.reason, r.name)).collect();
        store.symbols = store.all::<SymbolRow>()?.into_iter().map(|r| (r.addr, r.text)).collect();
        for p in store.all::<ProcessRow>()? {
            store.processes.entry(p.pid).or_default().push(p);
        }
        // The log has them as it was read from each CPU.
        store.processes.values_mut().for_each(|names| names.sort_by_key(|p| p.at_ns));
        store.clocks = store.all()?;
        store.devices = store.all()?;
        Ok(store)
    }

    /// What the log was made from.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A table of this log, opened at its first use.
    pub fn table<R: Row>(&self) -> Result<Arc<TableFile>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = open.get(R::TABLE.name) {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(TableFile::open(&self.dir, R::TABLE)?);
        open.insert(R::TABLE.name, Arc::clone(&table));
        Ok(table)
    }

    /// All rows of a table.
    pub fn all<R: Row>(&self) -> Result<Vec<R>> {
        Ok(self.table::<R>()?.all()?)
    }

    /// Name of a function, `?` where the log does not say.
    pub fn function_name(&self, func_id: i32) -> &str {
        self.functions.get(func_id as usize).map_or("?", |f| if f.name.is_empty() { "?" } else { &f.name })
    }

    /// Module (empty: vmlinux) and layer of a function.
    pub fn function_place(&self, func_id: i32) -> (&str, &str) {
        self.functions.get(func_id as usize).map_or(("", ""), |f| (&f.module, &f.layer))
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Was a function of that name probed, called or not? Compiler clones count as the function.
    pub fn knows_function(&self, name: &str) -> bool {
        self.functions.iter().any(|f| !f.name.is_empty() && f.name.split('.').next() == Some(name))
    }

    pub fn drop_reason(&self, reason: i32) -> Option<&str> {
        self.drop_reasons.get(&reason).map(String::as_str)
    }

    /// Name of an interface, the last one that it had.
    pub fn interface(&self, ifindex: i32, netns: Option<i64>) -> String {
        let fits = |d: &&DeviceRow| d.ifindex == ifindex && netns.is_none_or(|n| n == d.netns);
        self.devices.iter().rev().find(fits).map_or_else(|| format!("ifindex {ifindex}"), |d| d.name.clone())
    }

    /// The interface of this number there, as it was last.
    pub fn device(&self, netns: Option<i64>, ifindex: Option<i32>) -> Option<&DeviceRow> {
        let is = |d: &&DeviceRow| netns == Some(d.netns) && ifindex == Some(d.ifindex);
        self.devices.iter().rev().find(is)
    }

    /// What the thread was called at that time.
    pub fn process(&self, pid: i32, at_ns: i64) -> Option<&ProcessRow> {
        let names = self.processes.get(&pid)?;
        names.iter().rev().find(|p| p.at_ns <= at_ns).or(names.first())
    }

    /// What the function with this number does with packets; none: the log does not say.
    pub(crate) fn role_of(&self, func_id: i64) -> Roles {
        usize::try_from(func_id).ok().and_then(|id| self.roles.get(id)).copied().unwrap_or_default()
    }

    /// How far `boot_ns` of a frame may be off: the bound of its clock segment. By its number, where the log has it: a clock that was
    /// set back shows one time twice.
    pub fn clock_at(&self, capture_id: i32, number: i64, wall_ns: i64) -> Option<&ClockRow> {
        let of_capture = || self.clocks.iter().filter(|c| c.capture_id == capture_id);
        let holds = |c: &&ClockRow| match (c.from_number, c.to_number) {
            (Some(from), Some(to)) => (from..=to).contains(&number),
            _ => (c.from_wall_ns..=c.to_wall_ns).contains(&wall_ns),
        };
        // At a seam the wider of both.
        of_capture().filter(holds).max_by_key(|c| c.bound_ns).or_else(|| of_capture().next())
    }

    /// The device's wall clock, if the log knows it.
    pub fn own_clock(&self) -> Option<&OwnClock> {
        self.own_clock.as_ref()
    }

    /// The first moment in the log, boot clock.
    pub fn start_ns(&self) -> i64 {
        self.manifest.first_ns
    }

    /// The last moment of the recording, boot clock: when it ended, where the log says so in earnest, else its last record.
    pub fn end_ns(&self) -> i64 {
        const LONGEST_NS: i64 = 7 * 86_400_000_000_000;
        let last = self.manifest.last_ns;
        let ended = self.manifest.summary.as_ref().map(|s| s.at.boot.0);
        ended.filter(|at| (0..LONGEST_NS).contains(&at.saturating_sub(last))).unwrap_or(last)
    }

    /// Functions that were probed, in the order of the table.
    pub fn function_names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|f| f.name.as_str()).filter(|n| !n.is_empty())
    }

    /// No function was recorded, only tracepoints.
    pub fn points_only(&self) -> bool {
        self.functions.iter().filter(|f| meets_packets(f)).all(|f| f.kind == "tracepoint")
    }

    /// The function of that name, or an error with the nearest name.
    pub(crate) fn find_function(&self, name: &str) -> Result<&FunctionRow> {
        let bare = |s: &str| s.split('.').next().unwrap_or(s).to_owned();
        let found = self.functions.iter().find(|f| f.name == name);
        if let Some(f) =
            found.or_else(|| self.functions.iter().find(|f| !f.name.is_empty() && bare(&f.name) == name))
        {
            return Ok(f);
        }
        let nearest = nearest(name, self.function_names()).map(str::to_owned);
        Err(Error::NoSuchFunction { name: name.to_owned(), nearest })
    }
}

/// Places in a row group whose integer column fits.
pub(crate) fn places(
    table: &TableFile,
    group: usize,
    column: &str,
    fits: impl Fn(i64) -> bool,
) -> Result<Vec<u32>> {
    let values = table.ints(group, column)?;
    Ok(values.iter().enumerate().filter(|(_, v)| fits(**v)).map(|(i, _)| i as u32).collect())
}
