//! What is new in a running recording, integrated: the end of its log and of the captures beside it. Each round costs what came
//! since the last one and a little before, however long the recording is.

use super::tail::Tail;
use anyhow::Context;
use kpat_integrate::{Options, integrate_opened};
use kpat_klog::{ChunkKind, EndState, Log};
use kpat_model::BootNs;
use kpat_probe::sys::boot_now;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A packet's records need so much of the log before them: calls around them, fragments and packets that it was made of.
const LOOKBACK_NS: i64 = 1_500_000_000;
/// The recorder writes what it has at an age of half a second; the rest is for reading the rings, and for writing.
const WRITTEN_NS: i64 = 700_000_000;
/// It is later on a busy machine, as the newest record of a chunk tells (the oldest may be of a task that slept for long).
const MOST_WRITTEN_NS: i64 = 3_000_000_000;
/// Between two looks, and for reading.
const LOOKED_NS: i64 = 100_000_000;
/// The same of a recorder elsewhere, whose clock is not known here: by the log's own times.
const ELSEWHERE_NS: i64 = 1_000_000_000;
/// A file that did not grow for so long has all that its recorder knows.
const QUIET: Duration = Duration::from_millis(1500);

pub struct Recent {
    kbl: PathBuf,
    log: Log,
    captures: Vec<Tail>,
    folder: PathBuf,
    rounds: u64,
    /// The device's clock is this machine's.
    is_here: bool,
    is_abandoned: bool,
    grew: Instant,
    /// How old the newest records of a chunk are when it comes, lately at most.
    age_ns: i64,
}

impl Recent {
    /// Opens a log that is being written; results go to a folder that only this user can read, and that goes away with it.
    pub fn open(kbl: &Path, captures: &[PathBuf]) -> anyhow::Result<Recent> {
        let log = Log::open(kbl)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let is_here = !boot.is_empty() && log.meta().boot_id == boot.trim();
        let folder = kpat_server::own_folder("kpat-follow").context("cannot make a folder")?;
        let mut recent = Recent {
            kbl: kbl.into(),
            log,
            captures: Vec::new(),
            folder,
            rounds: 0,
            is_here,
            is_abandoned: false,
            grew: Instant::now(),
            age_ns: 0,
        };
        recent.captures = captures.iter().map(|c| Tail::open(c)).collect::<anyhow::Result<_>>()?;
        Ok(recent)
    }

    /// Nothing more will come: the recording was closed in order, or its recorder is gone.
    pub fn is_over(&self) -> bool {
        self.is_abandoned || self.is_closed()
    }

    fn is_closed(&self) -> bool {
        *self.log.end_state() == EndState::Complete
    }

    /// Its recorder ended without closing it.
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// The integrated log of the last round.
    pub fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.kpat", self.rounds))
    }

    /// Reads on; whether anything came.
    pub fn grow(&mut self) -> anyhow::Result<bool> {
        let known = self.log.chunk_index().len();
        let grew = self.log.grow()?;
        if grew {
            self.grew = Instant::now();
            let now = boot_now().0;
            let come = self.log.chunk_index()[known..].iter().filter(|c| c.kind == ChunkKind::Records);
            let oldest = come.map(|c| now.saturating_sub(c.last.0)).max().unwrap_or(0);
            self.age_ns = oldest.max(self.age_ns / 2);
        } else if self.is_here && self.grew.elapsed() > QUIET && !self.is_closed() {
            // A recorder holds its file locked.
            let is_alone = !kpat_klog::is_being_written(&self.kbl);
            let grew = self.log.grow()?;
            self.is_abandoned = is_alone && !grew;
            return Ok(grew);
        }
        Ok(grew)
    }

    /// Packets that were first seen until then have all their records of that time in a log that was read `now` and
    /// ends at `last_ns`.
    pub fn settled(&self, now: BootNs, last_ns: i64) -> i64 {
        match (self.is_here, self.grew.elapsed() > QUIET) {
            _ if self.is_over() => i64::MAX,
            (true, _) => now.0 - (self.age_ns + LOOKED_NS).clamp(WRITTEN_NS, MOST_WRITTEN_NS),
            (false, true) => last_ns,
            (false, false) => last_ns.saturating_sub(ELSEWHERE_NS),
        }
    }

    /// Integrates what there is of packets that were first seen after `from_ns`.
    pub fn integrate(&mut self, from_ns: i64) -> anyhow::Result<()> {
        let since = BootNs(from_ns.saturating_sub(LOOKBACK_NS));
        self.log.forget(since);
        let next = self.folder.join(format!("{}.kpat", self.rounds + 1));
        let mut captures = Vec::new();
        for (i, tail) in self.captures.iter_mut().enumerate() {
            captures.push(tail.since(since, &self.folder.join(format!("capture-{i}")))?);
        }
        let kbls = [self.kbl.clone()];
        integrate_opened(&self.log, &kbls, &captures, &next, &Options::default(), &mut |_| ())
            .with_context(|| format!("cannot integrate {}", self.kbl.display()))?;
        let last = self.path();
        self.rounds += 1;
        let _ = fs::remove_dir_all(last);
        Ok(())
    }
}

impl Drop for Recent {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
