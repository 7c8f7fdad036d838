//! What time a hit was. The probes write the processor's time stamp counter; the log has the host's boot clock, so that it is on one axis with the
//! host's own logs and captures, and beside it stands what the guest's boot clock showed.
//!
//! The host's clock is bound from two sides by each hit: the probe copies what the host last wrote there, and the host looks at its clock
//! when it sees the entry. No hit is before the one or after the other, whatever stood still in between. Between these moments the time
//! goes by the counter ([`Axis`]). Rejected: the guest's clock as the log's. A guest that nobody disciplines may run a thousandth too fast or
//! slow, as emulated ones do, and then its frames do not match a capture of the host.
//!
//! The guest's clock comes out of its kernel's own record of time (`tk_core`), read while it runs: the same sum that the kernel does. That
//! needs the counter to be what the guest keeps time by; where it is not (an emulated timer, a counter that the guest distrusts) the
//! counter's rate is used, from one reading on, which is up to a tick off: [`Reader::within_ns`] says it.

use kpat_guest::{Guest, Symbols};
use kpat_model::BootNs;
use std::time::{Duration, Instant};

/// Where members are in the guest's structures.
struct Shape {
    at: u64,
    sequence: u64,
    clock: u64,
    name: u64,
    mask: u64,
    last: u64,
    mult: u64,
    shift: u64,
    nanoseconds: u64,
    base: u64,
    boot: u64,
}

/// The kernel's record of time, as of its last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timekeeper {
    pub mask: u64,
    pub last: u64,
    pub mult: u32,
    pub shift: u32,
    pub nanoseconds: u64,
    pub base: i64,
    pub boot: i64,
}

impl Timekeeper {
    /// The monotonic clock when the source showed `cycles`, which may be before the last tick.
    pub fn monotonic(&self, cycles: u64) -> i64 {
        let wide = self.mask.leading_zeros().min(63);
        let passed = (cycles.wrapping_sub(self.last) << wide) as i64 >> wide;
        let scaled = i128::from(passed) * i128::from(self.mult) + i128::from(self.nanoseconds);
        self.base.wrapping_add((scaled >> self.shift.min(63)) as i64)
    }
}

pub struct Reader {
    shape: Shape,
    now: Timekeeper,
    source: String,
    /// Without the counter as the source: a counter's value and the boot clock then, and its rate.
    guessed: Option<(u64, i64)>,
    hz: f64,
    read: Instant,
}

/// How often the kernel's record is read.
const FRESH: Duration = Duration::from_millis(50);
/// A tick of the slowest clock that kernels are built with.
const TICK_NS: u64 = 10_000_000;

impl Reader {
    pub fn new(guest: &Guest, symbols: &Symbols, hz: f64) -> kpat_guest::Result<Reader> {
        let keeper = |path: &str| symbols.offset(&format!("timekeeper.{path}"));
        let missing =
            || kpat_guest::Error::Unsupported("the guest's kernel has no record of time (tk_core)".into());
        // One of several since 6.17; a structure with a name since 6.13.
        let at =
            symbols.address("tk_core").or_else(|| symbols.address("timekeeper_data")).ok_or_else(missing)?;
        let mono = keeper("tkr_mono")?;
        let base = |member: &str| Ok(mono + symbols.offset(&format!("tk_read_base.{member}"))?);
        let shape = Shape {
            at: symbols.offset("tk_data.timekeeper").unwrap_or(8),
            sequence: at,
            clock: base("clock")?,
            name: symbols.offset("clocksource.name")?,
            mask: base("mask")?,
            last: base("cycle_last")?,
            mult: base("mult")?,
            shift: base("shift")?,
            nanoseconds: base("xtime_nsec")?,
            base: base("base")?,
            boot: keeper("offs_boot")?,
        };
        let mut clock = Reader {
            shape,
            now: Timekeeper::default(),
            source: String::new(),
            guessed: None,
            hz,
            read: Instant::now(),
        };
        clock.read(guest)?;
        Ok(clock)
    }

    fn read(&mut self, guest: &Guest) -> kpat_guest::Result<()> {
        let (m, s) = (guest.memory(), &self.shape);
        let keeper = s.sequence.wrapping_add(s.at);
        let word = |offset: u64| m.u64_at(keeper.wrapping_add(offset));
        for _ in 0..1000 {
            let sequence = m.u32_at(s.sequence)?;
            if sequence & 1 != 0 {
                std::hint::spin_loop();
                continue;
            }
            let now = Timekeeper {
                mask: word(s.mask)?,
                last: word(s.last)?,
                mult: m.u32_at(keeper.wrapping_add(s.mult))?,
                shift: m.u32_at(keeper.wrapping_add(s.shift))?,
                nanoseconds: word(s.nanoseconds)?,
                base: word(s.base)? as i64,
                boot: word(s.boot)? as i64,
            };
            let name = m.string_at(m.u64_at(word(s.clock)?.wrapping_add(s.name))?, 32)?;
            if m.u32_at(s.sequence)? == sequence {
                self.now = now;
                self.source = String::from_utf8_lossy(&name).into_owned();
                self.read = Instant::now();
                return Ok(());
            }
        }
        Err(kpat_guest::Error::Unsupported("the guest's record of time changes at each look".into()))
    }

    /// The guest's boot clock when its counter showed `tsc`. Reads the guest's record again now and then.
    pub fn boot(&mut self, guest: &Guest, tsc: u64) -> BootNs {
        if self.read.elapsed() > FRESH {
            // An old record is as good, for a while.
            let _ = self.read(guest);
        }
        if self.is_exact() {
            return BootNs(self.now.monotonic(tsc).wrapping_add(self.now.boot));
        }
        let now = self.last_tick();
        let (from, at) = *self.guessed.get_or_insert((tsc, now));
        BootNs(at.saturating_add((tsc.wrapping_sub(from) as i64 as f64 / self.hz * 1e9) as i64))
    }

    fn last_tick(&self) -> i64 {
        self.now.monotonic(self.now.last).wrapping_add(self.now.boot)
    }

    /// What the guest keeps time by.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn is_exact(&self) -> bool {
        self.source.starts_with("tsc")
    }

    /// How far the log's times may be off the guest's boot clock, all of them by the same.
    pub fn within_ns(&self) -> u64 {
        if self.is_exact() { 0 } else { TICK_NS }
    }
}

/// Hits within which the clocks are compared for one reading of the log, and later ones that bound these.
const WINDOW_NS: i64 = 200_000_000;
const AHEAD_NS: i64 = 100_000_000;
/// How far the counter's rate may be off what was measured, in parts of a million: a clock that NTP slews changes by less.
const RATE_PPM: i64 = 100;

/// The host's boot clock as a line over the guest's counter, held between the moments that each hit was not before and not after.
#[derive(Debug)]
pub struct Axis {
    /// The counter from which it is counted, and nanoseconds of a tick.
    from: u64,
    tick_ns: f64,
    /// The host's clock there.
    start: i64,
    /// The hits since the last reading.
    window: Vec<Held>,
    /// Of the hits before: the host's clock was at least this far before the counter's own line, at that place of the line.
    least: Option<(i64, i64)>,
}

/// A hit on the line, all in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Held {
    tsc: u64,
    /// The counter's own line, which is never moved, and how far from it the hit was put.
    line: i64,
    put: i64,
    /// Where it has to be.
    least: i64,
    most: i64,
}

/// A hit's counter, and moments of the host's that it was not before and not after.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub tsc: u64,
    pub not_before: u64,
    pub not_after: u64,
}

impl Axis {
    /// Out of the first hits, of which there is one at least: in the middle of what they allow.
    pub fn new(first: &[Bounds], ticks_per_second: f64) -> Axis {
        let from = first.first().map_or(0, |b| b.tsc);
        let mut axis =
            Axis { from, tick_ns: 1e9 / ticks_per_second, start: 0, window: Vec::new(), least: None };
        let ahead = |to: u64, b: &Bounds| (to as i64).wrapping_sub(axis.line(b.tsc));
        let most = first.iter().map(|b| ahead(b.not_after, b)).min().unwrap_or(0);
        let least = first.iter().filter(|b| b.not_before != 0).map(|b| ahead(b.not_before, b)).max();
        axis.start = least.map_or(most, |least| i64::midpoint(least, most));
        axis
    }

    /// The counter's own line, which begins at 0.
    fn line(&self, tsc: u64) -> i64 {
        (tsc.wrapping_sub(self.from) as i64 as f64 * self.tick_ns) as i64
    }

    /// When a hit was. The line moves where the hit says that it must: the counter stood still, or runs at another rate. And, now and then,
    /// how far the line may have been off.
    pub fn at(&mut self, b: Bounds) -> (BootNs, Option<Reading>) {
        let line = self.line(b.tsc);
        let at = line.saturating_add(self.start);
        let moved = at.min(b.not_after as i64).max(b.not_before as i64);
        self.start = self.start.saturating_add(moved.saturating_sub(at));
        let least = if b.not_before == 0 { i64::MIN } else { (b.not_before as i64).saturating_sub(line) };
        let most = (b.not_after as i64).saturating_sub(line);
        self.window.push(Held { tsc: b.tsc, line, put: self.start, least, most });
        let began = self.window[0].line;
        let reading = if line.saturating_sub(began) > WINDOW_NS + AHEAD_NS {
            // Hits of several processors come nearly in order.
            self.window.sort_by_key(|h| h.line);
            let began = self.window[0].line;
            self.reading(self.window.partition_point(|h| h.line <= began + WINDOW_NS))
        } else {
            None
        };
        (BootNs(moved), reading)
    }

    /// The last reading.
    pub fn close(&mut self) -> Option<Reading> {
        self.window.sort_by_key(|h| h.line);
        self.reading(self.window.len())
    }

    /// Of the first `covered` hits. A counter that stands still makes the host's clock later against the line, nothing but its rate makes it
    /// earlier: so what an earlier hit was not before holds for this one, and what a later one was not after. Where that is a contradiction
    /// the counter is no clock (it counts instructions, or was written to), and each hit has only its own word.
    fn reading(&mut self, covered: usize) -> Option<Reading> {
        let drift =
            |from: i64, to: i64| to.saturating_sub(from).max(0).saturating_mul(RATE_PPM) / 1_000_000 + 1;
        let mut most: Option<(i64, i64)> = None;
        let mut ends = vec![0; self.window.len()];
        for (end, h) in ends.iter_mut().zip(&self.window).rev() {
            let later = most.map_or(i64::MAX, |(line, most)| most.saturating_add(drift(h.line, line)));
            *end = h.most.min(later);
            most = Some((h.line, *end));
        }
        let (mut bound, mut own, mut holds) = (0, 0, true);
        for (end, h) in ends.into_iter().zip(&self.window).take(covered) {
            let earlier = match self.least {
                Some((line, least)) if line <= h.line => least.saturating_sub(drift(line, h.line)),
                _ => i64::MIN,
            };
            let least = h.least.max(earlier);
            holds &= least <= end;
            let off = |least: i64, most: i64| h.put.saturating_sub(least).max(most.saturating_sub(h.put));
            bound = bound.max(off(least, end));
            own = own.max(off(h.least, h.most));
            self.least = Some((h.line, if holds { least } else { h.least }));
        }
        let last = self.window.drain(..covered).next_back()?;
        let bound = if holds { bound } else { own }.saturating_add(1);
        Some(Reading {
            at: BootNs(last.line.saturating_add(last.put)),
            tsc: last.tsc,
            bound_ns: u32::try_from(bound).unwrap_or(u32::MAX),
        })
    }
}

/// How far hits' times may be off the host's clock: those since the reading before.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The last of these hits.
    pub at: BootNs,
    pub tsc: u64,
    pub bound_ns: u32,
}

/// The rate of this host's counter, measured between two moments. A guest's counter runs at it, unless the hypervisor scales it.
pub struct Rate {
    began: (u64, u64),
}

impl Rate {
    pub fn begin() -> Rate {
        Rate { began: Rate::now() }
    }

    /// Ticks a second, `None`: too little time has passed, or this processor has no such counter.
    pub fn measured(&self) -> Option<f64> {
        let now = Rate::now();
        let passed = now.1.saturating_sub(self.began.1);
        (passed > 100_000_000 && now.0 > self.began.0)
            .then(|| (now.0 - self.began.0) as f64 / passed as f64 * 1e9)
    }

    /// The counter and the boot clock, by the closest of some readings.
    fn now() -> (u64, u64) {
        let once = || {
            let before = counter();
            let at = kpat_guest::probe::host_now();
            let after = counter();
            (after - before, (before + (after - before) / 2, at))
        };
        (0..32).map(|_| once()).min().map_or((0, 0), |(_, pair)| pair)
    }
}

#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_sum_forwards_and_backwards() {
        let t = Timekeeper {
            mask: u64::MAX,
            last: 1_000_000,
            mult: 1 << 23,
            shift: 24,
            nanoseconds: 3 << 24,
            base: 500,
            ..Timekeeper::default()
        };
        assert_eq!(t.monotonic(1_000_000), 503);
        assert_eq!((t.monotonic(1_000_100), t.monotonic(999_900)), (553, 453));
        // A counter of 32 bits goes round.
        let short = Timekeeper { mask: 0xffff_ffff, last: 0xffff_fff0, ..t };
        assert_eq!(short.monotonic(0x10), 503 + 16);
    }

    #[test]
    fn the_line_is_within_its_bound_whatever_the_delays_and_when_the_counter_stands() {
        let mut seed = 7u64;
        let mut chance = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        // 2 GHz, 40 ppm faster than is believed; in the middle the guest stands for 3 ms.
        let truth = |n: i64| 7_000_000_000 + n * 200_000 + if n > 10_000 { 3_000_000 } else { 0 };
        let mut hits = Vec::new();
        for n in 0..20_000i64 {
            let at = truth(n);
            let tsc = 5_000_000 + n as u64 * 400_000 + n as u64 * 16;
            let (early, late) = (chance(50_000) + 200, chance(80_000) + 300);
            hits.push((at, Bounds { tsc, not_before: at as u64 - early, not_after: at as u64 + late }));
        }
        let (readings, worst) = held(&hits, 40, 1);
        assert!(readings.iter().all(|(_, bound)| *bound < 150_000), "{readings:?}");
        assert!(readings.len() >= 18 && worst < 80_000, "{} {worst}", readings.len());
    }

    /// The worst error of the hits that a reading is of and its bound, for each, which is checked; and the worst of all.
    fn held(hits: &[(i64, Bounds)], ppm: i64, stops: u64) -> (Vec<(i64, i64)>, i64) {
        let first: Vec<Bounds> = hits.iter().take(100).map(|(_, b)| *b).collect();
        let mut axis = Axis::new(&first, 2e9);
        let mut errors = Vec::new();
        let mut readings = Vec::new();
        let mut worst = 0;
        let mut check = |errors: &mut Vec<(u64, i64)>, reading: Reading| {
            let covered = errors.iter().take_while(|(tsc, _)| *tsc <= reading.tsc).count();
            let error = errors.drain(..covered).map(|(_, e)| e).max().unwrap();
            assert!(
                error <= i64::from(reading.bound_ns),
                "{error} {reading:?} at {ppm} ppm with {stops} stops"
            );
            readings.push((error, i64::from(reading.bound_ns)));
            worst = worst.max(error);
        };
        for (truth, b) in hits {
            let (at, reading) = axis.at(*b);
            errors.push((b.tsc, (at.0 - truth).abs()));
            if let Some(reading) = reading {
                check(&mut errors, reading);
            }
        }
        check(&mut errors, axis.close().unwrap());
        assert!(errors.is_empty());
        (readings, worst)
    }

    /// Many guests: rates, delays and stops at random. The bound holds for every hit, and is not a formality.
    #[test]
    fn every_hit_is_within_its_bound() {
        let mut seed = 11u64;
        let mut chance = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let (mut readings, mut tightness) = (0, Vec::new());
        for _ in 0..200 {
            let (ppm, stops) = (chance(181) as i64 - 90, chance(4));
            let (early, late) = (chance(200_000) + 1_000, chance(900_000) + 1_000);
            let mut stood = 0i64;
            let hits: Vec<(i64, Bounds)> = (0..5_000i64)
                .map(|n| {
                    if stops > 0 && chance(1_500) < stops {
                        stood += chance(400_000) as i64;
                    }
                    let at = 7_000_000_000 + n * 200_000 + stood;
                    let tsc = (5_000_000 + n * 400_000 + n * 400_000 * ppm / 1_000_000) as u64;
                    let not_before = at as u64 - chance(early) - 100;
                    (at, Bounds { tsc, not_before, not_after: at as u64 + chance(late) + 100 })
                })
                .collect();
            for (error, bound) in held(&hits, ppm, stops).0 {
                readings += 1;
                tightness.push(bound as f64 / error.max(1) as f64);
            }
        }
        tightness.sort_by(f64::total_cmp);
        let median = tightness[tightness.len() / 2];
        println!("{readings} readings, each bound held; median {median:.1} of the error");
        assert!(readings > 700 && median < 8.0, "{readings} {median}");
    }
}
