//! Which socket an event of a program is about: the one that its descriptor names, or the one that its thread asked something of between the entry and the
//! return of a function. A thread does one thing at a time, so what a call asks of a socket stands between its own two hits, whatever else the thread serves.
//!
//! A call that asks nothing of the network (TLS that has the bytes already, or room for them) has a key, the object that it is about, and that one's socket is known
//! from an earlier call, until an `end` of the program with this key says that the object is gone.
//!
//! Nothing is named where a call used several sockets, where what the application source recorded has a gap, or for an object that keeps its bytes in memory and
//! leaves it to its program to send them (memory BIOs: node, asyncio): what another call sends later may be of several of them.

use super::{Hit, MOST_NESTED, MOST_OPEN, Of, Programs, numbered, process};
use crate::error::Result;
use crate::spill::{Fixed, Put, Sorted, Sorter, Take};
use kpat_klog::Log;
use kpat_model::hash::Map;
use kpat_model::programs::{Row, Shape};
use kpat_model::{AppRecord, Context, Crossing, Stage};
use std::path::Path;

/// A thread asked something of a socket; `thread` 0: from then until `socket` the log may lack that, [`HITS_LOST`]: it lacks hits.
#[derive(Clone, Copy)]
struct Use {
    at: i64,
    thread: u32,
    socket: i64,
}

const HITS_LOST: i64 = i64::MIN;

impl Fixed for Use {
    const BYTES: usize = 20;
    type Key = i64;

    fn key(&self) -> i64 {
        self.at
    }

    fn write(&self, to: &mut Put<'_>) {
        to.i64(self.at).u32(self.thread).i64(self.socket);
    }

    fn read(from: &mut Take<'_>) -> Self {
        Use { at: from.i64(), thread: from.u32(), socket: from.i64() }
    }
}

/// The hit of this place in their order is about this socket.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub hit: u64,
    pub socket: i64,
}

impl Fixed for Named {
    const BYTES: usize = 16;
    type Key = u64;

    fn key(&self) -> u64 {
        self.hit
    }

    fn write(&self, to: &mut Put<'_>) {
        to.u64(self.hit).i64(self.socket);
    }

    fn read(from: &mut Take<'_>) -> Self {
        Named { hit: from.u64(), socket: from.i64() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Used {
    #[default]
    None,
    One(i64),
    /// Several, or it is not known.
    Unsure,
}

impl Used {
    fn and(self, socket: i64) -> Used {
        match self {
            Used::None => Used::One(socket),
            Used::One(one) if one == socket => self,
            _ => Used::Unsure,
        }
    }
}

/// A call that is not over.
struct Call {
    func: u16,
    program: u32,
    hit: u64,
    key: Option<(u32, u32, u64)>,
    used: Used,
    /// What its program said within it and that names no socket of its own.
    within: Vec<u64>,
}

struct Walk {
    /// Of each thread its calls, innermost last.
    calls: Map<u32, Vec<Call>>,
    open: usize,
    /// Program, process, key.
    objects: Map<(u32, u32, u64), i64>,
    /// Of what begins and ends in calls of its own.
    begun: Map<Of, i64>,
    /// Local port and the peer's; `None`: several sockets have had them.
    by_ports: Map<(u16, u16), Option<i64>>,
    unsure_until: i64,
    named: Sorter<Named>,
}

/// Of all hits those whose socket is known.
pub(super) fn of(programs: &Programs, hits: &Sorted<Hit>, log: &Log, dir: &Path) -> Result<Sorted<Named>> {
    let mut walk = Walk {
        calls: Map::default(),
        open: 0,
        objects: Map::default(),
        begun: Map::default(),
        by_ports: Map::default(),
        unsure_until: i64::MIN,
        named: Sorter::new(dir, "named", 1 << 18),
    };
    let uses = walk.uses(programs, log, dir)?;
    if uses.len() == 0 && walk.by_ports.is_empty() {
        return walk.named.finish();
    }
    let numbers = numbered(&programs.rows);
    let (mut all, mut uses) = (hits.iter()?, uses.iter()?);
    let (mut next, mut n) = (uses.next()?, 0);
    while let Some(hit) = all.next()? {
        while let Some(u) = next.filter(|u| u.at <= hit.at) {
            walk.used(&u);
            next = uses.next()?;
        }
        if let Some(row) = programs.rows.get(&hit.func) {
            let program = numbers.get(row.program.as_str()).copied().unwrap_or(0);
            let of =
                row.key().map(|k| (program, process(&programs.processes, hit.pid, hit.at), hit.values[k]));
            walk.hit(&hit, n, row, program, of)?;
        }
        n += 1;
    }
    // Those that the log ends in: they used what they had used when their thread's next hit would have come.
    while let Some(u) = next {
        walk.used(&u);
        next = uses.next()?;
    }
    let left: Vec<Call> = std::mem::take(&mut walk.calls).into_values().flatten().collect();
    for call in left {
        if let Used::One(socket) = call.used {
            walk.name(&call, None, socket)?;
        }
    }
    walk.named.finish()
}

impl Walk {
    /// What the threads that were hit asked of sockets, and where that is not all in the log.
    fn uses(&mut self, programs: &Programs, log: &Log, dir: &Path) -> Result<Sorted<Use>> {
        let mut uses = Sorter::new(dir, "uses", 1 << 18);
        // Those that have more than a crossing says.
        let mut large: Map<u32, i64> = Map::default();
        for (_, record) in log.app_records() {
            match record {
                AppRecord::Crossing(r) => {
                    let asks = matches!(
                        r.what,
                        Crossing::Ask | Crossing::Send | Crossing::ToTransport | Crossing::Recv
                    );
                    if asks && r.ctx == Context::Task && programs.threads.contains(&r.pid) {
                        let socket = large.get(&r.sock).copied().unwrap_or(i64::from(r.sock));
                        uses.push(Use { at: r.at.0, thread: r.pid, socket })?;
                    }
                }
                AppRecord::Socket(r) => {
                    let id = r.cookie as i64;
                    if r.cookie > u64::from(u32::MAX) {
                        large.insert(r.cookie as u32, id);
                    }
                    if r.port != 0 && r.peer_port != 0 {
                        let of = self.by_ports.entry((r.port, r.peer_port)).or_insert(Some(id));
                        *of = of.filter(|one| *one == id);
                    }
                }
                AppRecord::Gap(g) => uses.push(Use { at: g.since.0, thread: 0, socket: g.until.0 })?,
                AppRecord::Tcp(_) | AppRecord::ThreadTime(_) => {}
            }
        }
        // Of what programs said some is lost: an object may have gone and another come.
        for (from, to) in &programs.lost {
            for at in [*from, *to] {
                uses.push(Use { at, thread: 0, socket: HITS_LOST })?;
            }
        }
        uses.finish()
    }

    fn used(&mut self, u: &Use) {
        if u.thread != 0 {
            self.calls.get_mut(&u.thread).into_iter().flatten().for_each(|c| c.used = c.used.and(u.socket));
            return;
        }
        self.objects.clear();
        if u.socket == HITS_LOST {
            return;
        }
        self.unsure_until = self.unsure_until.max(u.socket);
        self.calls.values_mut().flatten().for_each(|c| c.used = Used::Unsure);
    }

    fn hit(
        &mut self,
        hit: &Hit,
        n: u64,
        row: &Row,
        program: u32,
        key: Option<(u32, u32, u64)>,
    ) -> Result<()> {
        let by_descriptor =
            row.connection(&hit.values).and_then(|ports| self.by_ports.get(&ports).copied().flatten());
        let stage = Stage::from_u8(hit.stage).unwrap_or(Stage::Mark);
        match (row.shape, stage) {
            (Shape::Span, Stage::End) => {
                let calls = self.calls.entry(hit.pid).or_default();
                let Some(i) = calls.iter().rposition(|c| c.func == hit.func) else { return Ok(()) };
                // Those above it have not returned: their ends are lost, or were jumped over.
                self.open -= calls.len() - i;
                let Some(call) = calls.drain(i..).next() else { return Ok(()) };
                let socket = match (call.used, call.key) {
                    (Used::One(socket), _) => Some(socket),
                    (Used::None, Some(key)) => self.objects.get(&key).copied(),
                    _ => None,
                };
                match (call.used, call.key) {
                    (Used::One(socket), Some(key)) if self.objects.len() < MOST_OPEN => {
                        self.objects.insert(key, socket);
                    }
                    (Used::Unsure, Some(key)) => _ = self.objects.remove(&key),
                    _ => {}
                }
                match socket {
                    Some(socket) => self.name(&call, Some(n), socket),
                    None => Ok(()),
                }
            }
            (Shape::Span, _) => {
                let used = match by_descriptor {
                    Some(socket) => Used::One(socket),
                    None if hit.at <= self.unsure_until => Used::Unsure,
                    None => Used::None,
                };
                let calls = self.calls.entry(hit.pid).or_default();
                if self.open < MOST_OPEN && calls.len() < MOST_NESTED {
                    calls.push(Call { func: hit.func, program, hit: n, key, used, within: Vec::new() });
                    self.open += 1;
                }
                Ok(())
            }
            (_, stage) => {
                let of = key.map_or(Of::Thread(program, hit.pid), |k| Of::Key(k.0, k.1, k.2));
                let known = match stage {
                    Stage::End => self.begun.remove(&of),
                    // It is another one by this number.
                    Stage::Begin => {
                        key.map(|k| self.objects.remove(&k));
                        None
                    }
                    Stage::Mark => None,
                };
                let object = key.and_then(|k| self.objects.get(&k).copied());
                if stage == Stage::End {
                    key.map(|k| self.objects.remove(&k));
                }
                let socket = known.or(by_descriptor).or(object);
                if let Some(socket) = socket {
                    if stage == Stage::Begin && self.begun.len() < MOST_OPEN {
                        self.begun.insert(of, socket);
                    }
                    return self.named.push(Named { hit: n, socket });
                }
                let around =
                    self.calls.get_mut(&hit.pid).into_iter().flatten().rfind(|c| c.program == program);
                if let Some(call) = around.filter(|c| c.within.len() < MOST_NESTED) {
                    call.within.push(n);
                }
                Ok(())
            }
        }
    }

    fn name(&mut self, call: &Call, end: Option<u64>, socket: i64) -> Result<()> {
        let all = [Some(call.hit), end].into_iter().flatten().chain(call.within.iter().copied());
        all.map(|hit| Named { hit, socket }).try_for_each(|named| self.named.push(named))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::programs::VALUES;

    const READ: &str = "tls l SSL_read span s=1:key,n=return:int {s} {n}";

    fn walk() -> Walk {
        let dir = std::env::temp_dir();
        Walk {
            calls: Map::default(),
            open: 0,
            objects: Map::default(),
            begun: Map::default(),
            by_ports: Map::default(),
            unsure_until: i64::MIN,
            named: Sorter::new(&dir, "named", 1 << 10),
        }
    }

    #[derive(Clone, Copy)]
    enum Step {
        /// A read of this object begins, in this thread.
        Begin(u32, u64),
        End(u32),
        Uses(u32, i64),
        Gone(u64),
        /// Nothing is known until so many steps on.
        Gap(i64),
        Says(u32),
    }
    use Step::*;

    /// Sockets of the hits in their order.
    fn named(steps: &[Step]) -> Vec<Option<i64>> {
        let (read, free) = (Row::parse(READ).unwrap(), Row::parse("tls l SSL_free end s=1:key {s}").unwrap());
        let says = Row::parse("tls l ERR mark e=1:int {e}").unwrap();
        let (mut walk, mut n) = (walk(), 0);
        for (at, step) in steps.iter().enumerate() {
            let (at, one) = (at as i64, |pid, func, stage: Stage, key| {
                let mut values = [0; VALUES];
                values[0] = key;
                Hit {
                    at: at as i64,
                    pid,
                    func,
                    cpu: 0,
                    stage: stage as u8,
                    faults: 0,
                    values,
                    text: [0; super::super::TEXT],
                }
            });
            let key = |k| Some((1, 9, k));
            let done = match *step {
                Uses(thread, socket) => {
                    walk.used(&Use { at, thread, socket });
                    continue;
                }
                Gap(steps) => {
                    walk.used(&Use { at, thread: 0, socket: at + steps });
                    continue;
                }
                Begin(pid, k) => walk.hit(&one(pid, 1, Stage::Begin, k), n, &read, 1, key(k)),
                End(pid) => walk.hit(&one(pid, 1, Stage::End, 0), n, &read, 1, None),
                Gone(k) => walk.hit(&one(7, 2, Stage::End, k), n, &free, 1, key(k)),
                Says(pid) => walk.hit(&one(pid, 3, Stage::Mark, 0), n, &says, 1, None),
            };
            done.unwrap();
            n += 1;
        }
        let mut out = vec![None; n as usize];
        let all = walk.named.finish().unwrap();
        let mut all = all.iter().unwrap();
        while let Some(named) = all.next().unwrap() {
            out[named.hit as usize] = Some(named.socket);
        }
        out
    }

    #[test]
    fn a_call_is_about_what_its_thread_asks_meanwhile() {
        let two = [Begin(7, 1), Begin(8, 2), Uses(8, 20), Uses(7, 10), Says(7), End(8), Uses(8, 30), End(7)];
        assert_eq!(named(&two), [Some(10), Some(20), Some(10), Some(20), Some(10)]);
        assert_eq!(named(&[Begin(7, 1), Uses(7, 10), Uses(7, 11), End(7)]), [None; 2], "of two");
        assert_eq!(named(&[Uses(7, 10), Begin(7, 1), End(7), Uses(7, 10)]), [None; 2], "beside it");
        assert_eq!(
            named(&[Begin(7, 1), Begin(7, 2), Uses(7, 10), End(7), Uses(7, 10), End(7)]),
            [Some(10); 4]
        );
    }

    #[test]
    fn what_is_read_from_memory_is_the_objects() {
        let again = [Begin(7, 1), Uses(7, 10), End(7), Begin(8, 1), End(8), Begin(7, 2), End(7)];
        assert_eq!(named(&again), [Some(10), Some(10), Some(10), Some(10), None, None]);
        let other = [Begin(7, 1), Uses(7, 10), End(7), Gone(1), Begin(7, 1), End(7)];
        assert_eq!(named(&other), [Some(10), Some(10), Some(10), None, None]);
    }

    #[test]
    fn where_the_log_has_a_gap_nothing_is_named() {
        let gap =
            [Begin(7, 1), Uses(7, 10), End(7), Gap(2), Begin(7, 1), Uses(7, 10), End(7), Begin(7, 1), End(7)];
        assert_eq!(named(&gap), [Some(10), Some(10), None, None, None, None]);
        assert_eq!(named(&[Begin(7, 1), Uses(7, 10), Gap(0), End(7)]), [None; 2]);
    }
}
