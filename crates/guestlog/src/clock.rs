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

/// Hits within which the clocks are compared for one reading of the log.
const WINDOW_NS: i64 = 200_000_000;

/// The host's boot clock as a line over the guest's counter, held between the moments that each hit was not before and not after.
#[derive(Debug)]
pub struct Axis {
    /// The counter from which it is counted, and nanoseconds of a tick.
    from: u64,
    tick_ns: f64,
    /// The host's clock there.
    start: i64,
    /// Of the hits of this window: how far the line might be moved back and forth.
    back: i64,
    forth: i64,
    began: Option<i64>,
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
        let mut axis = Axis {
            from,
            tick_ns: 1e9 / ticks_per_second,
            start: 0,
            back: i64::MAX,
            forth: i64::MAX,
            began: None,
        };
        let ahead = |to: u64, b: &Bounds| (to as i64).wrapping_sub(axis.line(b.tsc));
        let most = first.iter().map(|b| ahead(b.not_after, b)).min().unwrap_or(0);
        let least = first.iter().filter(|b| b.not_before != 0).map(|b| ahead(b.not_before, b)).max();
        axis.start = least.map_or(most, |least| i64::midpoint(least, most));
        axis
    }

    fn line(&self, tsc: u64) -> i64 {
        self.start.saturating_add((tsc.wrapping_sub(self.from) as i64 as f64 * self.tick_ns) as i64)
    }

    /// When a hit was. The line moves where the hit says that it must: the counter stood still, or runs at another rate. And, now and then,
    /// a time and how far the line may be off there.
    pub fn at(&mut self, b: Bounds) -> (BootNs, Option<(BootNs, u32)>) {
        let at = self.line(b.tsc);
        let moved = at.min(b.not_after as i64).max(b.not_before as i64);
        self.start = self.start.saturating_add(moved.saturating_sub(at));
        let done = match self.began {
            Some(began) if moved.saturating_sub(began) > WINDOW_NS => self.close(BootNs(moved)),
            _ => None,
        };
        self.began.get_or_insert(moved);
        if b.not_before != 0 {
            self.back = self.back.min(moved - b.not_before as i64);
        }
        self.forth = self.forth.min(b.not_after as i64 - moved);
        (BootNs(moved), done)
    }

    /// What the hits since the last time said.
    pub fn close(&mut self, at: BootNs) -> Option<(BootNs, u32)> {
        self.began.take()?;
        let bound = self.back.max(self.forth).saturating_add(1);
        (self.back, self.forth) = (i64::MAX, i64::MAX);
        Some((at, u32::try_from(bound).unwrap_or(u32::MAX)))
    }
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
        let first: Vec<Bounds> = hits.iter().take(100).map(|(_, b)| *b).collect();
        let mut axis = Axis::new(&first, 2e9);
        let (mut readings, mut worst) = (0, 0);
        for (truth, b) in hits {
            let (at, reading) = axis.at(b);
            worst = worst.max((at.0 - truth).abs());
            if let Some((at, bound)) = reading {
                readings += 1;
                assert!((at.0 - truth).abs() <= i64::from(bound), "{at:?} {truth} {bound}");
                assert!(bound < 150_000, "{bound}");
            }
        }
        assert!(readings >= 18 && worst < 80_000, "{readings} {worst}");
    }
}
