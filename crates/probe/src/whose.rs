//! Whose packets and sockets are recorded, where only some processes are chosen (`kpat record --only`): what the kernel side (bpf/whose.bpf.h) does not see
//! by itself. That is what chosen processes had open before the recording, and sockets of datagrams, which are bound without an event; a thread looks for
//! them once a second. Also which addresses a namespace has: a port at all of them is the port of these, and not the same port of another host.
//!
//! All is read from /proc (`proc(5)`: PID/fd, PID/net), which shows a process's own namespace without entering it. Rejected: `sock_diag`, for which kernels
//! load a module for each protocol.

mod members;
mod sockets;

use crate::object::Loaded;
use crate::sys;
use crate::work::{self, ChangeChoice, Choice, Term};
use kpat_model::flow;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

/// How often it is looked at what processes have open, and rules are evaluated anew.
const EVERY: Duration = Duration::from_secs(1);

/// Lengths of the kernel side's tables where processes are chosen, by name; where none are they have one entry.
pub const TABLES: [(&str, u32); 3] = [("flows", 32768), ("ends", 16384), ("begun", 4096)];

/// Those of the choice itself, which a profile always has.
pub const TABLES_OF_CHOICE: [&str; 2] = ["chosen_pids", "fitting"];

/// Programs of the kernel side that are for this alone begin so.
pub const PROGRAMS: &str = "whose_";

/// The choice of one source, as its kernel side has it.
pub struct Whose {
    choice: Choice,
    round: Instant,
}

impl Whose {
    /// *Errors*: a process, cgroup or user that is not there.
    pub fn new(loaded: &Loaded, terms: &[Term]) -> io::Result<Whose> {
        Ok(Whose { choice: Choice::new(loaded, terms)?, round: Instant::now() })
    }

    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// Rules are evaluated anew when it is time for that.
    pub fn look(&mut self) {
        if self.round.elapsed() >= EVERY {
            self.round = Instant::now();
            self.choice.next_round();
        }
    }

    /// Who is chosen changes; flows that were chosen before are not, unless they are again.
    ///
    /// *Errors*: nothing has changed.
    pub fn change(&mut self, loaded: &Loaded, change: &ChangeChoice) -> io::Result<()> {
        self.choice.change(loaded, change)?;
        work::forget(loaded, &TABLES.map(|(name, _)| name));
        Ok(())
    }
}

/// The tables of one source.
struct Tables {
    flows: MapHandle,
    ends: MapHandle,
    turn: MapHandle,
}

/// Keys of the kernel side's table of ends: each goes when what it stands for is not there any more.
#[derive(Clone, Default)]
struct Ends {
    /// Of TCP, which are looked for only where something was there before it was chosen.
    listeners: BTreeSet<u64>,
    datagrams: BTreeSet<u64>,
    locals: BTreeSet<u64>,
}

impl Ends {
    fn all(&self) -> BTreeSet<u64> {
        [&self.listeners, &self.datagrams, &self.locals].into_iter().flatten().copied().collect()
    }
}

/// Looks for what chosen processes have open, until it is dropped.
pub struct Finder {
    changes: SyncSender<(Vec<Term>, SyncSender<()>)>,
}

impl Finder {
    /// Has looked once when it returns. `all`: of each source whose kernel side asks.
    pub fn start<'a>(all: impl Iterator<Item = &'a Loaded>, terms: Vec<Term>) -> io::Result<Finder> {
        let mut tables = Vec::new();
        for loaded in all {
            let handle = |name: &str| {
                let map = loaded.map(name).ok_or_else(|| io::Error::other(format!("no map {name}")))?;
                MapHandle::try_from(&map).map_err(io::Error::other)
            };
            tables.push(Tables {
                flows: handle("flows")?,
                ends: handle("ends")?,
                turn: handle(".data.turn")?,
            });
        }
        let (changes, asked) = mpsc::sync_channel(1);
        let mut search = Search::new(tables, terms);
        search.look(true);
        std::thread::Builder::new().name("kpat-whose".into()).spawn(move || search.run(&asked))?;
        Ok(Finder { changes })
    }

    /// Others are chosen from now on; what they have open is known when it returns.
    pub fn change(&self, terms: Vec<Term>) {
        let (done, over) = mpsc::sync_channel(1);
        if self.changes.send((terms, done)).is_ok() {
            // An error: the thread is gone, as at the end of a recording.
            let _ = over.recv_timeout(Duration::from_secs(10));
        }
    }
}

struct Search {
    tables: Vec<Tables>,
    terms: Vec<Term>,
    /// What was entered.
    ends: Ends,
    members: BTreeSet<u32>,
    /// Sockets of datagrams that were there the last time, by namespace: if none is new, nobody's descriptors are read.
    datagrams: BTreeMap<u32, HashSet<u32>>,
    looked: u64,
}

impl Search {
    fn new(tables: Vec<Tables>, terms: Vec<Term>) -> Search {
        let (ends, members, datagrams) = Default::default();
        Search { tables, terms, ends, members, datagrams, looked: 0 }
    }

    fn run(mut self, asked: &Receiver<(Vec<Term>, SyncSender<()>)>) {
        loop {
            match asked.recv_timeout(EVERY) {
                Ok((terms, done)) => {
                    let (tables, looked) = (std::mem::take(&mut self.tables), self.looked);
                    self = Search { looked, ..Search::new(tables, terms) };
                    self.look(true);
                    // Nobody waits any more.
                    let _ = done.send(());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => self.look(false),
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// `whole`: also what is connected and who listens, which the kernel side sees by itself where it begins from now on.
    fn look(&mut self, whole: bool) {
        if self.terms.is_empty() {
            return;
        }
        let members: BTreeSet<u32> = members::of(&self.terms).into_iter().collect();
        // One that was there before, and came to be chosen since: what it has open nobody saw.
        let moved = |pid: &u32| !self.members.contains(pid) && members::started(*pid) < self.looked;
        let whole = whole || members.iter().any(moved);
        self.looked = members::now();
        let mut by_netns: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for pid in &members {
            by_netns.entry(members::netns(*pid).unwrap_or(0)).or_default().push(*pid);
        }
        by_netns.remove(&0);
        let (mut flows, mut ends) = (BTreeSet::new(), self.ends.clone());
        ends.locals.clear();
        let mut changed = whole || members != self.members;
        let mut sockets = Vec::new();
        for (netns, pids) in &by_netns {
            let (all, datagrams) = sockets::of(pids[0], whole);
            changed |= self.datagrams.get(netns) != Some(&datagrams);
            self.datagrams.insert(*netns, datagrams);
            ends.locals.extend(sockets::locals(pids[0]).into_iter().map(|ip| flow::local_key(*netns, ip)));
            sockets.push((*netns, all));
        }
        self.members = members;
        if !changed {
            // What they have is as it was; only addresses come and go.
            return self.enter(&flows, ends);
        }
        ends.datagrams.clear();
        if whole {
            ends.listeners.clear();
        }
        for ((netns, all), pids) in sockets.into_iter().zip(by_netns.values()) {
            let theirs: HashSet<u32> = pids.iter().flat_map(|pid| members::sockets(*pid)).collect();
            for s in all.into_iter().filter(|s| theirs.contains(&s.inode)) {
                let of_protocol = if s.is_of_datagrams() { &mut ends.datagrams } else { &mut ends.listeners };
                match s.peer {
                    Some(peer) => flows.insert(flow::flow_key(s.own, peer, s.protocol)),
                    None if s.own.0.is_unspecified() => {
                        of_protocol.insert(flow::port_key(netns, s.protocol, s.own.1))
                    }
                    None => of_protocol.insert(flow::end_key(s.own, s.protocol)),
                };
            }
        }
        self.enter(&flows, ends);
    }

    /// Flows stay until others take their place; ends that were entered and are not there now go.
    fn enter(&mut self, flows: &BTreeSet<u64>, ends: Ends) {
        let one = 1u32.to_ne_bytes();
        let (before, now) = (self.ends.all(), ends.all());
        let mut news = false;
        for t in &self.tables {
            for key in flows {
                // A table that is full has no room for it: its packets are as those of others.
                news |= t.flows.update(&key.to_ne_bytes(), &one, MapFlags::ANY).is_ok();
            }
            for key in now.difference(&before) {
                news |= t.ends.update(&key.to_ne_bytes(), &one, MapFlags::ANY).is_ok();
            }
            for key in before.difference(&now) {
                // It may have had no room.
                let _ = t.ends.delete(&key.to_ne_bytes());
            }
            if news {
                // Any other number says that something may be wanted that was not; the kernel side counts in ones.
                let turn = sys::boot_now().0 as u64;
                let _ = t.turn.update(&0u32.to_ne_bytes(), &turn.to_ne_bytes(), MapFlags::ANY);
            }
        }
        self.ends = ends;
    }
}
