//! The loop: hits that wait are handled, entries handed on, until somebody stops it.

use super::apart::Apart;
use super::*;
use crate::life::Life;
use crate::mailbox::host::{Answer, Entry, Taken};
use crate::mailbox::returns::free_ended;

/// How often the guest's end is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How long the loop spins after a hit before it sleeps between its looks.
const SPIN: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(50);
/// With probes for which nobody waits.
const LONG_NAP: Duration = Duration::from_millis(1);

/// Why the loop ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// A handler or the caller wanted it.
    Stopped,
    /// The time was over.
    Time,
    /// The guest was shut down, or its QEMU ended: there is nothing to put back.
    Gone,
    /// The guest began anew: its probes are gone.
    Reset,
    /// The guest was set back to a snapshot from before the probes: they are gone.
    SetBack,
}

impl Ended {
    /// As results name it.
    pub fn name(&self) -> &'static str {
        match self {
            Ended::Stopped => "stopped",
            Ended::Time => "time",
            Ended::Gone => "guest-off",
            Ended::Reset => "guest-reset",
            Ended::SetBack => "guest-set-back",
        }
    }
}

/// Of one guest: when something was there last, and when its end was looked for.
struct Turn {
    looked: Instant,
    last: Instant,
    turns: u32,
    /// Something came since `last` was set.
    busy: bool,
    /// It spins: something came just now that waits for an answer.
    waits: bool,
}

/// Is the guest stopped, and was it reported?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stands {
    #[default]
    No,
    Seen,
    Reported,
}

enum Turned {
    Ended(Ended),
    Again,
    /// Nothing has come for a while.
    Nap(Duration),
}

/// Serves the probes of several guests in one loop, until the first of them ends or is stopped: which one, and why. Called again it goes on with those that
/// it is given.
pub fn run_all<'h>(all: &mut [&mut Probes<'h>], until: Option<Instant>) -> Result<(usize, Ended)> {
    let now = Instant::now();
    let mut turns: Vec<Turn> =
        all.iter().map(|_| Turn { looked: now, last: now, turns: 0, busy: false, waits: false }).collect();
    for (n, probes) in all.iter_mut().enumerate() {
        if let Some(ended) = probes.begin()? {
            return Ok((n, ended));
        }
    }
    let (mut apart, mut looks) = (Apart::of(all), 0u32);
    let first = 'first: loop {
        let mut nap = Some(LONG_NAP);
        for (n, (probes, turn)) in all.iter_mut().zip(&mut turns).enumerate() {
            match probes.turn(turn, until)? {
                Turned::Ended(ended) => break 'first (n, ended),
                Turned::Again => nap = None,
                Turned::Nap(own) => nap = nap.map(|n| n.min(own)),
            }
        }
        match nap {
            // With none there is nothing to wait for.
            Some(_) if all.is_empty() => return Ok((0, Ended::Stopped)),
            Some(nap) => std::thread::sleep(nap),
            None => {
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(1024) {
                    apart.keep(Instant::now());
                }
                std::hint::spin_loop();
            }
        }
    };
    // What the others have in their rings was before that.
    for (n, probes) in all.iter_mut().enumerate() {
        let over = n == first.0 && !matches!(first.1, Ended::Stopped | Ended::Time);
        if over {
            probes.rest();
        } else {
            probes.entries();
        }
    }
    Ok(first)
}

impl<'h> Probes<'h> {
    /// Serves the probes. Ends at `until`, if it is given.
    pub fn run(&mut self, until: Option<Instant>) -> Result<Ended> {
        run_all(&mut [self], until).map(|(_, ended)| ended)
    }

    fn begin(&mut self) -> Result<Option<Ended>> {
        self.commit()?;
        self.look()
    }

    /// One look at hits and entries, and now and then at all else.
    fn turn(&mut self, t: &mut Turn, until: Option<Instant>) -> Result<Turned> {
        let mut control = Control::default();
        let mut busy = false;
        if let Some(taken) = self.host.take() {
            self.handle(&taken, &mut control)?;
            busy = true;
        }
        t.turns = t.turns.wrapping_add(1);
        if t.turns.is_multiple_of(64) || !busy {
            busy |= self.entries() > 0;
        }
        if control.stop || is_set(&self.stopped) {
            self.entries();
            self.stopped.store(false, Ordering::Relaxed);
            return Ok(Turned::Ended(Ended::Stopped));
        }
        t.busy |= busy;
        // Clocks are read now and then: between two hits of one processor there is less time than that takes.
        if t.waits && !t.turns.is_multiple_of(256) {
            return Ok(Turned::Again);
        }
        let now = Instant::now();
        let called = |p: &Probe| p.live && matches!(p.does, Does::Handler(_));
        if std::mem::take(&mut t.busy) {
            t.last = now;
        }
        // For handlers the guest waits, and of hits with packets the host's clock is written and read so often. Of all else the ring has room for 20 ms.
        let urgent = self.hits.is_some() || self.probes.iter().any(called);
        t.waits = urgent && now.duration_since(t.last) <= SPIN;
        let nap = (!t.waits).then_some(if urgent { NAP } else { LONG_NAP });
        if until.is_some_and(|u| now >= u) {
            self.entries();
            return Ok(Turned::Ended(Ended::Time));
        }
        if now.duration_since(t.looked) > LOOK {
            t.looked = now;
            if let Some(ended) = self.look()? {
                return Ok(Turned::Ended(ended));
            }
        }
        Ok(nap.map_or(Turned::Again, Turned::Nap))
    }

    /// Has the guest ended? What else happened to it is reported.
    ///
    /// A stop counts if it lasts from one look to the next: those for putting in and taking out probes, at the start or because a handler asked for
    /// it, are over by then.
    fn look(&mut self) -> Result<Option<Ended>> {
        self.look_aside()?;
        self.free_ended();
        let before = self.stands;
        loop {
            let event = match self.guest.qmp().event(Duration::ZERO) {
                Ok(Some(e)) => e,
                Ok(None) => break,
                Err(Error::Gone(_)) => return Ok(Some(Ended::Gone)),
                Err(e) => return Err(e),
            };
            match event.name.as_str() {
                "SHUTDOWN" => return Ok(Some(Ended::Gone)),
                "RESET" => {
                    self.installed.forget();
                    return Ok(Some(Ended::Reset));
                }
                // A snapshot is loaded while the guest stands.
                "RESUME" if !self.installed.is_there() => {
                    self.installed.forget();
                    return Ok(Some(Ended::SetBack));
                }
                "STOP" => {
                    if self.stands == Stands::No {
                        self.stands = Stands::Seen;
                    }
                }
                "RESUME" => {
                    if std::mem::replace(&mut self.stands, Stands::No) == Stands::Reported {
                        self.report(&Life::Resume);
                    }
                }
                _ => self.report(&Life::of(&event)),
            }
        }
        if (before, self.stands) == (Stands::Seen, Stands::Seen) {
            self.stands = Stands::Reported;
            self.report(&Life::Stop);
        }
        Ok(None)
    }

    /// Where calls found no room, that of those is free again whose threads have ended within the function.
    fn free_ended(&mut self) {
        for (id, probe) in self.probes.iter().enumerate().filter(|(_, p)| p.live && p.entry) {
            let now = self.host.counts(id).no_return;
            if self.beyond.insert(id, now).unwrap_or(0) != now {
                let count = free_ended(&self.guest, &self.installed.region, probe.instances.clone());
                self.tally.never_return(probe.of, count);
            }
        }
    }

    fn report(&mut self, life: &Life) {
        if let Some(news) = &mut self.news {
            news(life);
        }
    }

    fn handle(&mut self, taken: &Taken, control: &mut Control) -> Result<()> {
        let id = taken.probe;
        let mut registers = taken.registers;
        let Some(probe) = self.probes.get_mut(id).filter(|p| p.live) else {
            self.host.answer(taken, Answer::GoOn, &registers);
            return Ok(());
        };
        if let Does::Watch(what) = probe.does {
            let after = probe.after;
            let done = self.seen(what, after, taken);
            self.host.answer(taken, Answer::GoOn, &registers);
            return done;
        }
        let (of, after, entry) = (probe.of, probe.after, probe.entry);
        let known = probe.instances.contains(&taken.instance);
        let mut none = Vec::new();
        let mut code = 0;
        if let Does::Handler(handler) = &mut probe.does {
            // Data of an open call that the probe does not have is nobody's.
            let data = if known { &mut self.data[taken.instance] } else { &mut none };
            if entry {
                data.clear();
            }
            let mut hit = Hit {
                handle: of,
                registers: &mut registers,
                memory: self.guest.memory(),
                cpu: taken.cpu,
                task: taken.task,
                tsc: taken.tsc,
                data,
                control,
            };
            code = handler(&mut hit);
        }
        registers.general[crate::x86::Register::Rsp as usize] =
            taken.registers.get(crate::x86::Register::Rsp);
        let answer = if entry && code != 0 {
            Answer::NoReturn
        } else if !after && !entry && code != 0 || after && registers.rip != taken.registers.rip {
            Answer::Elsewhere
        } else if registers != taken.registers {
            Answer::Changed
        } else {
            Answer::GoOn
        };
        for (probe, on) in std::mem::take(&mut control.switched) {
            self.switch(probe, on);
        }
        let unregistered = std::mem::take(&mut control.unregistered);
        if !unregistered.is_empty() {
            self.unregister_all(&unregistered)?;
        }
        self.host.answer(taken, answer, &registers);
        Ok(())
    }

    /// Hands on what was recorded.
    fn entries(&mut self) -> usize {
        if self.hits.is_some() {
            self.installed.region.set64(HOST_NOW, packets::host_now());
        }
        self.hand_on(false)
    }

    /// The same of a guest that is over: nothing more comes.
    fn rest(&mut self) -> usize {
        self.hand_on(true)
    }

    fn hand_on(&mut self, over: bool) -> usize {
        let not_before = std::mem::replace(&mut self.read_at, SystemTime::now());
        let (probes, hits) = (&mut self.probes, &mut self.hits);
        let each = |entry: Entry| {
            let Some(probe) = probes.get_mut(entry.probe) else { return };
            if let (Does::Packets, Some(hits)) = (&probe.does, &mut *hits) {
                return hits.take(&entry);
            }
            if let Does::Recorder(items, to) = &mut probe.does {
                let values = entry.values(items);
                to(&Recorded {
                    handle: probe.of,
                    tsc: entry.tsc,
                    cpu: entry.cpu,
                    pid: entry.pid,
                    tgid: entry.tgid,
                    comm: entry.comm,
                    values,
                    not_before,
                });
            }
        };
        if over { self.host.rest(each) } else { self.host.entries(each) }
    }
}
