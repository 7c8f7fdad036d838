//! An open integrated log: lists of packets, functions and events.

use super::touching::Touching;
use super::types::*;
use crate::error::{Error, Result};
use crate::roles::Roles;
use kpat_model::EventKind;
use kpat_store::tables::*;
use kpat_store::{Manifest, Row, TableFile};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An integrated log, open for questions. Tables are opened when a question needs them.
pub struct Store {
    pub(super) dir: PathBuf,
    pub(crate) manifest: Manifest,
    /// By `func_id`.
    pub(crate) functions: Vec<FunctionRow>,
    pub(super) roles: Vec<Roles>,
    pub(crate) drop_reasons: HashMap<i32, String>,
    pub(super) symbols: HashMap<i64, String>,
    pub(crate) processes: HashMap<i32, Vec<ProcessRow>>,
    pub(crate) clocks: Vec<ClockRow>,
    /// Tables that were asked for.
    open: Mutex<HashMap<&'static str, Arc<TableFile>>>,
    pub(super) touching: OnceLock<Touching>,
}

impl Store {
    pub fn open(dir: &Path) -> Result<Store> {
        let manifest = Manifest::read(dir)?;
        let mut store = Store {
            dir: dir.to_owned(),
            manifest,
            functions: Vec::new(),
            roles: Vec::new(),
            drop_reasons: HashMap::new(),
            symbols: HashMap::new(),
            processes: HashMap::new(),
            clocks: Vec::new(),
            open: Mutex::default(),
            touching: OnceLock::new(),
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
        store.clocks = store.all()?;
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

    pub(crate) fn all<R: Row>(&self) -> Result<Vec<R>> {
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

    /// Was a function of that name probed, called or not? Compiler clones count as the function.
    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn knows_function(&self, name: &str) -> bool {
        self.functions.iter().any(|f| !f.name.is_empty() && f.name.split('.').next() == Some(name))
    }

    pub fn drop_reason(&self, reason: i32) -> Option<&str> {
        self.drop_reasons.get(&reason).map(String::as_str)
    }

    /// What the thread was called at that time.
    pub fn process(&self, pid: i32, at_ns: i64) -> Option<&ProcessRow> {
        let names = self.processes.get(&pid)?;
        names.iter().rev().find(|p| p.at_ns <= at_ns).or(names.first())
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

    /// Boot time less wall time of the device when recording began, if the log knows.
    pub fn wall_offset_ns(&self) -> Option<i64> {
        let started = self.manifest.log.started;
        (started.wall.0 != 0).then(|| started.boot.0.wrapping_sub(started.wall.0))
    }

    /// The first moment in the log, boot clock.
    pub fn start_ns(&self) -> i64 {
        self.manifest.first_ns
    }

    pub fn info(&self) -> Result<Info> {
        Ok(Info {
            manifest: self.manifest.clone(),
            devices: self.all()?,
            interfaces: self.all()?,
            clocks: self.clocks.clone(),
            losses: self.all()?,
            provenance: self.all()?,
            conservation: self.conservation()?,
            dut_offset_ns: self.wall_offset_ns(),
            functions_hit: self.functions.iter().filter(|f| f.calls > 0).count() as u64,
            functions: self.functions.iter().filter(|f| !f.name.is_empty()).count() as u64,
        })
    }

    /// Functions that fit, best `limit` by `sort` (0: all).
    pub fn functions(&self, filter: &FunctionFilter, sort: FunctionSort, limit: usize) -> FunctionList {
        let mut rows: Vec<&FunctionRow> = self
            .functions
            .iter()
            .filter(|f| !f.name.is_empty() && (filter.unused || f.calls > 0))
            .filter(|f| filter.glob.is_empty() || glob_fits(&filter.glob, &f.name))
            .filter(|f| filter.slower_than_ns.is_none_or(|n| f.max_ns.is_some_and(|m| m >= n)))
            .filter(|f| filter.faster_than_ns.is_none_or(|n| f.min_ns.is_some_and(|m| m <= n)))
            .collect();
        let key = |f: &FunctionRow| match sort {
            FunctionSort::SelfTime => -f.self_ns,
            FunctionSort::Total => -f.total_ns,
            FunctionSort::Calls => -f.calls,
            FunctionSort::Packets => -f.packets,
            FunctionSort::Median => -f.median_ns.unwrap_or(-1),
            FunctionSort::P99 => -f.p99_ns.unwrap_or(-1),
            FunctionSort::Max => -f.max_ns.unwrap_or(-1),
            FunctionSort::Name => 0,
        };
        rows.sort_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)));
        let total = rows.len() as u64;
        if limit > 0 {
            rows.truncate(limit);
        }
        FunctionList { rows: rows.into_iter().cloned().collect(), total }
    }

    /// Events that fit, first `limit` in order of time (0: all).
    pub fn events(&self, filter: &EventFilter, limit: usize) -> Result<EventList> {
        let table = self.table::<EventRow>()?;
        let range = filter.from_ns.unwrap_or(i64::MIN)..=filter.to_ns.unwrap_or(i64::MAX);
        let mut place = 0u64;
        // The table is in the order in which the log was written, which events of other sources join late.
        let mut top = Top::new(limit, |e: &(u64, EventRow)| (e.1.at_ns, e.0));
        table.each(table.groups_where("at_ns", &range), |row: EventRow| {
            let kind_fits = filter.kinds.is_empty() || filter.kinds.contains(&row.kind);
            let packet_fits = filter.packet.is_none_or(|p| row.packet_id == Some(p));
            if kind_fits && packet_fits && range.contains(&row.at_ns) {
                place += 1;
                top.push((place, row));
            }
        })?;
        let (rows, total) = top.finish();
        let list = EventList { rows: rows.into_iter().map(|(_, row)| self.explain(row)).collect(), total };
        Ok(list)
    }

    pub(super) fn explain(&self, event: EventRow) -> EventOfPacket {
        let (mut reason, mut place) = (String::new(), String::new());
        if event.kind == EventKind::Drop as i32 {
            reason = self.drop_reason(event.a as i32).unwrap_or_default().to_owned();
            place = self.symbols.get(&event.b).cloned().unwrap_or_default();
        }
        EventOfPacket { event, reason, place }
    }

    /// Functions that were probed, in the order of the table.
    pub fn function_names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().map(|f| f.name.as_str()).filter(|n| !n.is_empty())
    }

    /// The function of that name, or an error with the nearest name.
    pub(super) fn find_function(&self, name: &str) -> Result<&FunctionRow> {
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

/// The `limit` least by a key (0: all), and how many there were.
pub(super) struct Top<T, K, F: Fn(&T) -> K> {
    rows: Vec<T>,
    limit: usize,
    total: u64,
    key: F,
}

impl<T, K: Ord, F: Fn(&T) -> K> Top<T, K, F> {
    pub(super) fn new(limit: usize, key: F) -> Self {
        Top { rows: Vec::new(), limit, total: 0, key }
    }

    pub(super) fn push(&mut self, row: T) {
        self.total += 1;
        self.rows.push(row);
        if self.limit > 0 && self.rows.len() >= 2 * self.limit + 1024 {
            self.rows.select_nth_unstable_by_key(self.limit, &self.key);
            self.rows.truncate(self.limit);
        }
    }

    pub(super) fn finish(mut self) -> (Vec<T>, u64) {
        self.rows.sort_by_key(&self.key);
        if self.limit > 0 {
            self.rows.truncate(self.limit);
        }
        (self.rows, self.total)
    }
}

/// `*` stands for any text, `?` for one character.
pub fn glob_fits(glob: &str, text: &str) -> bool {
    let (g, t): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut i, mut k) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while k < t.len() {
        if i < g.len() && g[i] == '*' {
            star = Some((i, k));
            i += 1;
        } else if i < g.len() && (g[i] == '?' || g[i] == t[k]) {
            i += 1;
            k += 1;
        } else if let Some((si, sk)) = star {
            i = si + 1;
            k = sk + 1;
            star = Some((si, sk + 1));
        } else {
            return false;
        }
    }
    g[i..].iter().all(|&c| c == '*')
}

/// The one of these names that may have been meant: nobody mistypes more than a third of a name.
pub fn nearest<'a>(name: &str, of: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (apart, _, near) = of.map(|n| (edit_distance(n, name), n.len(), n)).min()?;
    (apart <= (name.chars().count() / 3).max(usize::from(name.len() > 1))).then_some(near)
}

/// Letters that are wrong, missing or too many; two that changed places count once.
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for k in 0..=b.len() {
            rows[i][k] = match (i, k) {
                (0, n) | (n, 0) => n,
                _ => {
                    let changed = rows[i - 1][k - 1] + usize::from(a[i - 1] != b[k - 1]);
                    let swapped = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
                    let swap = if swapped { rows[i - 2][k - 2] + 1 } else { changed };
                    changed.min(swap).min(rows[i - 1][k] + 1).min(rows[i][k - 1] + 1)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_have_been_meant() {
        let names = ["ip_rcv", "gap", "call", "name", "from", "arp", "len"];
        for (typed, meant) in [
            ("ip_rvc", Some("ip_rcv")),
            ("calls", Some("call")),
            ("form", Some("from")),
            ("foo", None),
            ("nope", None),
            ("vlan", None),
            ("mark", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names.into_iter()), meant, "{typed}");
        }
    }

    #[test]
    fn globs() {
        for (glob, text, fits) in [
            ("ip_*", "ip_rcv", true),
            ("*rcv", "ip_rcv", true),
            ("i?_rcv", "ip_rcv", true),
            ("ip_rcv", "ip_rcv_core", false),
            ("", "x", false),
            ("**", "", true),
            ("a*b*c", "a__b__b_c", true),
        ] {
            assert_eq!(glob_fits(glob, text), fits, "{glob} {text}");
        }
    }

    #[test]
    fn top_keeps_the_least() {
        let mut top = Top::new(3, |v: &i32| *v);
        (0..10_000).rev().for_each(|v| top.push(v));
        assert_eq!(top.finish(), (vec![0, 1, 2], 10_000));
    }
}
