//! `kpat packets --follow`: packets of a running recording, each once, in order of time. Of what is recorded the end is integrated
//! whenever something came ([`Recent`]); a packet is printed when all that was recorded until its first moment is in the log, so
//! that what other CPUs have to tell is there, and its end was seen; or a second after that, as it is then.

use super::recent::Recent;
use super::{Args, as_json, fields, foot, table};
use crate::listing::Tsv;
use crate::open::{self, Integrated};
use crate::output::{Output, usage};
use crate::render::{Layout, count};
use crate::signals::Signals;
use crate::times::Times;
use crate::view::recording;
use anyhow::Context;
use kpat_probe::sys::boot_now;
use kpat_query::{PacketFilter, PacketSort};
use kpat_store::tables::PacketRow;
use std::collections::{HashMap, HashSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So much longer a packet is waited for whose end was not seen.
const GRACE_NS: i64 = 1_000_000_000;
/// Between two looks at the files.
const LOOK: Duration = Duration::from_millis(50);

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    // Before any thread is made.
    let signals = Signals::block()?;
    let Some((kbl, captures)) = recording(&args.log, &[])? else {
        return Err(usage(format!(
            "--follow needs a running recording; {} is an integrated log",
            args.log.display()
        )));
    };
    let tsv = args.listing.tsv(&fields())?;
    let mut recent =
        Recent::open(&kbl, &captures).with_context(|| format!("cannot follow {}", kbl.display()))?;
    let leave = Arc::new(AtomicBool::new(false));
    let left = Arc::clone(&leave);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        left.store(true, Ordering::Relaxed);
    })?;
    let mut following = Following {
        args,
        out,
        tsv,
        seen: Seen::default(),
        until_ns: i64::MIN,
        printed: 0,
        late: 0,
        lost: 0,
        layout: None,
        begun: false,
    };
    // Something came that is not integrated yet.
    let mut news = true;
    // As long as a round took nothing is done after it.
    let mut rest = Instant::now();
    // When a packet that is held back may be printed, boot clock.
    let mut due = None;
    while !leave.load(Ordering::Relaxed) {
        let now = boot_now();
        news |= recent.grow()?;
        let over = recent.is_over();
        if over || (news && Instant::now() >= rest) {
            let started = Instant::now();
            recent.integrate(following.until_ns)?;
            due = following.take(&recent, now)?;
            (news, rest) = (false, Instant::now() + started.elapsed());
        } else if recent.rounds() > 0 && due.is_some_and(|at| now.0 >= at) {
            due = following.take(&recent, now)?;
        }
        if over {
            break;
        }
        std::thread::sleep(LOOK);
    }
    following.end(&recent)?;
    Ok(out.ended(following.lost > 0))
}

/// Packets by number, a bit each.
#[derive(Default)]
struct Seen(HashMap<i64, u64>);

impl Seen {
    fn has(&self, id: i64) -> bool {
        self.0.get(&(id >> 6)).is_some_and(|bits| bits >> (id & 63) & 1 == 1)
    }

    fn add(&mut self, id: i64) {
        *self.0.entry(id >> 6).or_default() |= 1 << (id & 63);
    }
}

struct Following<'a> {
    args: &'a Args,
    out: &'a Output,
    tsv: Option<Tsv>,
    /// Packets whose turn was, whether or not they fit.
    seen: Seen,
    /// The turn of packets first seen until then was.
    until_ns: i64,
    printed: u64,
    late: u64,
    lost: u64,
    layout: Option<Layout>,
    begun: bool,
}

impl Following<'_> {
    /// Prints what is new and settled in a log that was read at `now`; of a recording that is over all. When there will be more of the same
    /// round, boot clock.
    fn take(&mut self, recent: &Recent, now: kpat_model::BootNs) -> anyhow::Result<Option<i64>> {
        let store = open::integrated(&recent.path(), &open::Device::default())?;
        let filter = self.args.which.filter(&store)?;
        let times = Times::of(&self.args.times, &store)?;
        let settled = recent.settled(now, store.manifest.last_ns);
        let (mut until, mut due) = (settled, None);
        let mut turn = HashSet::new();
        store.each_packet(&PacketFilter::default(), PacketSort::Time, false, &mut |p| -> anyhow::Result<
            bool,
        > {
            if self.seen.has(p.packet_id) {
                return Ok(true);
            }
            let wait_ns = if p.end_ns.is_some() { 0 } else { GRACE_NS };
            if p.first_ns > settled.saturating_sub(wait_ns) {
                until = settled.min(p.first_ns.saturating_sub(1));
                due = Some(now.0.saturating_add(p.first_ns + wait_ns - settled));
                return Ok(false);
            }
            turn.insert(p.packet_id);
            self.late += u64::from(p.first_ns <= self.until_ns);
            Ok(true)
        })?;
        let mut rows = Vec::new();
        store.each_packet(&filter, PacketSort::Time, false, &mut |p| -> anyhow::Result<bool> {
            let is_behind = p.first_ns > until;
            if turn.contains(&p.packet_id) {
                rows.push(p);
            }
            Ok(!is_behind)
        })?;
        turn.into_iter().for_each(|id| self.seen.add(id));
        self.printed += rows.len() as u64;
        self.until_ns = self.until_ns.max(until);
        self.print(&store, &times, &rows)?;
        self.losses(&store)?;
        Ok(due)
    }

    fn print(&mut self, store: &Integrated, times: &Times, rows: &[PacketRow]) -> anyhow::Result<()> {
        let (out, first) = (self.out, !std::mem::replace(&mut self.begun, true));
        if let Some(tsv) = &self.tsv {
            if first {
                tsv.head(out)?;
            }
            rows.iter().try_for_each(|p| tsv.row(&as_json(store, p), out))?;
        } else if out.json {
            rows.iter().try_for_each(|p| out.json_text(&format!("{}\n", as_json(store, p))))?;
        } else if !rows.is_empty() {
            let part = self.args.listing.choose(table(store, times, rows, self.args.listing.is_chosen()))?;
            if self.layout.is_none() {
                let made = part.layout(out.width, true);
                if self.args.listing.has_header() {
                    out.line(&part.head(&made))?;
                }
                self.layout = Some(made);
            }
            if let Some(layout) = &mut self.layout {
                out.lines(&part.body(layout))?;
            }
        }
        out.flush()
    }

    /// As soon as they are known.
    fn losses(&mut self, store: &Integrated) -> anyhow::Result<()> {
        let lost = store.info()?.losses.iter().map(|l| l.count.unsigned_abs()).sum();
        if lost > self.lost {
            self.out.say(&format!("{} lost so far, packets may be missing or incomplete", count(lost)));
        }
        self.lost = lost;
        Ok(())
    }

    fn end(&mut self, recent: &Recent) -> anyhow::Result<()> {
        if self.late > 0 {
            self.out.say(&format!(
                "{} were found after later packets had been printed, and are listed out of order",
                count(self.late)
            ));
        }
        if self.printed == 0 {
            self.out.say("no packet matches");
        }
        if recent.is_abandoned() {
            let words = "was not closed: its recorder was killed; what it had not written is lost";
            self.out.say(&format!("{} {words}", self.args.log.display()));
        }
        // What is integrated piece by piece has no sum of it.
        if recent.rounds() == 1 {
            foot(&open::integrated(&recent.path(), &open::Device::default())?, self.out)?;
        }
        Ok(())
    }
}
