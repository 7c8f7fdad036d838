//! What programs reported of their work, as events: each hit of a place with its sentence, and where something is over how long it took.
//!
//! Hits come from rings of their own, so those of one thread on two CPUs may be read in any order: they are sorted before beginnings are found for
//! ends.

mod sockets;

use crate::error::Result;
use crate::spill::{Fixed, Put, Sorter, Take};
use kpat_klog::Log;
use kpat_model::hash::{Map, Set};
use kpat_model::meta::Function;
use kpat_model::programs::{Row, Shape, VALUES};
use kpat_model::{BootNs, Context, EventKind, FuncId, ProgramRecord, Stage};
use kpat_store::TableWriter;
use kpat_store::tables::EventRow;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of text that are kept: what a recorder reads, and its mark of what it cut.
const TEXT: usize = 72;
/// Beginnings that wait for their end; a log may have any number without one.
const MOST_OPEN: usize = 1 << 18;
/// How deeply a function may be in itself.
const MOST_NESTED: usize = 64;
/// Losses that are remembered.
const MOST_LOST: usize = 1 << 16;

#[derive(Clone, Copy)]
struct Hit {
    at: i64,
    pid: u32,
    func: u16,
    cpu: u16,
    stage: u8,
    faults: u8,
    values: [u64; VALUES],
    text: [u8; TEXT],
}

impl Fixed for Hit {
    const BYTES: usize = 18 + 8 * VALUES + TEXT;
    type Key = i64;

    fn key(&self) -> i64 {
        self.at
    }

    fn write(&self, to: &mut Put<'_>) {
        to.i64(self.at).u32(self.pid).u16(self.func).u16(self.cpu).u8(self.stage).u8(self.faults);
        for v in self.values {
            to.u64(v);
        }
        for b in self.text {
            to.u8(b);
        }
    }

    fn read(from: &mut Take<'_>) -> Self {
        Hit {
            at: from.i64(),
            pid: from.u32(),
            func: from.u16(),
            cpu: from.u16(),
            stage: from.u8(),
            faults: from.u8(),
            values: std::array::from_fn(|_| from.u64()),
            text: std::array::from_fn(|_| from.u8()),
        }
    }
}

impl Hit {
    fn record(&self) -> ProgramRecord {
        let end = self.text.iter().position(|b| *b == 0).unwrap_or(TEXT);
        ProgramRecord {
            at: BootNs(self.at),
            pid: self.pid,
            func: FuncId(self.func),
            stage: Stage::from_u8(self.stage).unwrap_or(Stage::Mark),
            faults: self.faults,
            values: self.values,
            text: String::from_utf8_lossy(&self.text[..end]).into_owned(),
        }
    }
}

pub(super) struct Programs {
    rows: BTreeMap<u16, Row>,
    /// Of each thread the processes that it was of, and since when.
    processes: Map<u32, Vec<(i64, u32)>>,
    /// Threads that were hit.
    threads: Set<u32>,
    /// From when to when some of the records are lost.
    lost: Vec<(i64, i64)>,
    hits: Sorter<Hit>,
}

/// What tells beginnings apart: of a span its place, else the program; the thread, or what the row has as a key, which is an address in its process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Of {
    Place(u16, u32),
    Thread(u32, u32),
    Key(u32, u32, u64),
}

impl Programs {
    pub fn new(functions: &[Function], dir: &Path) -> Programs {
        let of = |f: &Function| Some((f.id, Row::parse(&f.via).ok()?));
        let rows = functions.iter().filter(|f| f.kind == "program").filter_map(of).collect();
        Programs {
            rows,
            processes: Map::default(),
            threads: Set::default(),
            lost: Vec::new(),
            hits: Sorter::new(dir, "programs", 1 << 16),
        }
    }

    /// A thread, or another by the same number, is of this process from then on.
    pub fn thread(&mut self, at: BootNs, pid: u32, tgid: u32) {
        if self.rows.is_empty() {
            return;
        }
        let all = self.processes.entry(pid).or_default();
        if all.last().is_none_or(|(_, last)| *last != tgid) {
            all.push((at.0, tgid));
        }
    }

    pub fn hit(&mut self, cpu: u16, r: &ProgramRecord) -> Result<()> {
        let mut text = [0; TEXT];
        let end = (0..=r.text.len().min(TEXT)).rev().find(|i| r.text.is_char_boundary(*i)).unwrap_or(0);
        text[..end].copy_from_slice(&r.text.as_bytes()[..end]);
        let (at, pid, func, stage) = (r.at.0, r.pid, r.func.0, r.stage as u8);
        self.threads.insert(pid);
        self.hits.push(Hit { at, pid, func, cpu, stage, faults: r.faults, values: r.values, text })
    }

    /// Records are lost in that time.
    pub fn lost(&mut self, from: BootNs, to: BootNs) {
        if !self.rows.is_empty() && self.lost.len() < MOST_LOST {
            self.lost.push((from.0, to.0));
        }
    }

    /// Writes the events. `dir`: for what is sorted on the way.
    pub fn finish(mut self, log: &Log, dir: &Path, events: &mut TableWriter<EventRow>) -> Result<()> {
        self.processes.values_mut().for_each(|all| all.sort_unstable());
        let hits = std::mem::replace(&mut self.hits, Sorter::new(dir, "no-hits", 1)).finish()?;
        if hits.len() == 0 {
            return Ok(());
        }
        let named = sockets::of(&self, &hits, log, dir)?;
        let mut named = named.iter()?;
        let (mut next_named, mut n) = (named.next()?, 0);
        let mut all = hits.iter()?;
        let programs = numbered(&self.rows);
        let mut open: Map<Of, Vec<ProgramRecord>> = Map::default();
        let mut waiting = 0;
        while let Some(hit) = all.next()? {
            let r = hit.record();
            let socket = next_named.filter(|s| s.hit == n).map(|s| s.socket);
            if socket.is_some() {
                next_named = named.next()?;
            }
            n += 1;
            let Some(row) = self.rows.get(&hit.func) else {
                events.push(&event(
                    &hit,
                    r.stage,
                    if r.stage == Stage::End { -1 } else { 0 },
                    format!("place {}, which the log does not name", hit.func),
                    None,
                ))?;
                continue;
            };
            let program = programs.get(row.program.as_str()).copied().unwrap_or(0);
            let of = match (row.shape, row.key()) {
                (Shape::Span, _) => Of::Place(hit.func, hit.pid),
                (_, Some(key)) => {
                    Of::Key(program, process(&self.processes, hit.pid, hit.at), hit.values[key])
                }
                _ => Of::Thread(program, hit.pid),
            };
            let (begin, end) = match r.stage {
                Stage::Mark => (Some(&r), None),
                Stage::Begin => {
                    let nested = open.entry(of).or_default();
                    if waiting < MOST_OPEN && nested.len() < MOST_NESTED {
                        nested.push(r.clone());
                        waiting += 1;
                    }
                    (Some(&r), None)
                }
                Stage::End => (None, Some(&r)),
            };
            let began = end.and_then(|_| open.get_mut(&of)?.pop());
            if began.is_some() {
                waiting -= 1;
                if open.get(&of).is_some_and(Vec::is_empty) {
                    open.remove(&of);
                }
            }
            let took = began.as_ref().map_or(-1, |b| r.at.0.saturating_sub(b.at.0));
            let text = row.say(began.as_ref().filter(|_| row.shape == Shape::Span).or(begin), end);
            let b = match row.connection(&hit.values) {
                Some((local, peer)) if r.stage != Stage::End => i64::from(local) << 16 | i64::from(peer),
                _ if r.stage == Stage::End => took,
                _ => 0,
            };
            events.push(&event(&hit, r.stage, b, format!("{}: {text}", row.program), socket))?;
        }
        Ok(())
    }
}

/// Of which process a thread was then. It is named before its first record, or by the same.
fn process(all: &Map<u32, Vec<(i64, u32)>>, pid: u32, at: i64) -> u32 {
    let Some(all) = all.get(&pid) else { return pid };
    all[..all.partition_point(|(since, _)| *since <= at)]
        .last()
        .or(all.first())
        .map_or(pid, |(_, tgid)| *tgid)
}

fn event(hit: &Hit, stage: Stage, b: i64, text: String, socket_id: Option<i64>) -> EventRow {
    EventRow {
        at_ns: hit.at,
        kind: EventKind::Program as i32,
        packet_id: None,
        cpu: Some(hit.cpu.into()),
        ctx: Context::Task as i32,
        pid: Some(hit.pid as i32),
        netns: None,
        a: stage as i64,
        b,
        text,
        after_ns: None,
        socket_id,
    }
}

/// Programs by number.
fn numbered(rows: &BTreeMap<u16, Row>) -> BTreeMap<&str, u32> {
    let mut out = BTreeMap::new();
    for row in rows.values() {
        let n = out.len() as u32;
        out.entry(row.program.as_str()).or_insert(n);
    }
    out
}
