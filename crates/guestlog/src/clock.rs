//! What time a hit was: the probes write the processor's time stamp counter, the log has the guest's boot clock, and beside it stands the
//! host's.
//!
//! The guest's clock comes out of its kernel's own record of time (`tk_core`), read while it runs: the same sum that the kernel does. That
//! needs the counter to be what the guest keeps time by; where it is not (an emulated timer, a counter that the guest distrusts) the
//! counter's rate is used, from one reading on, which is up to a tick off: [`GuestClock::within_ns`] says it.
//!
//! The host's clock is bound from two sides by each hit: the probe copies what the host last wrote there, and the host looks at its clock
//! when it sees the entry. No hit is before the one or after the other, whatever stood still in between.

use kpat_guest::{Guest, Symbols};
use kpat_model::{BootNs, HostClock, WallNs};
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
    real: u64,
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
    pub real: i64,
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

pub struct GuestClock {
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

impl GuestClock {
    pub fn new(guest: &Guest, symbols: &Symbols, hz: f64) -> kpat_guest::Result<GuestClock> {
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
            real: keeper("offs_real")?,
        };
        let mut clock = GuestClock {
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
        let keeper = s.sequence + s.at;
        let word = |offset: u64| m.u64_at(keeper + offset);
        for _ in 0..1000 {
            let sequence = m.u32_at(s.sequence)?;
            if sequence & 1 != 0 {
                std::hint::spin_loop();
                continue;
            }
            let now = Timekeeper {
                mask: word(s.mask)?,
                last: word(s.last)?,
                mult: m.u32_at(keeper + s.mult)?,
                shift: m.u32_at(keeper + s.shift)?,
                nanoseconds: word(s.nanoseconds)?,
                base: word(s.base)? as i64,
                boot: word(s.boot)? as i64,
                real: word(s.real)? as i64,
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
        BootNs(at + (tsc.wrapping_sub(from) as i64 as f64 / self.hz * 1e9) as i64)
    }

    fn last_tick(&self) -> i64 {
        self.now.monotonic(self.now.last).wrapping_add(self.now.boot)
    }

    /// As of the last tick that was read: boot clock and wall clock.
    pub fn tick(&self) -> (BootNs, WallNs) {
        let monotonic = self.now.monotonic(self.now.last);
        (BootNs(monotonic + self.now.boot), WallNs(monotonic + self.now.real))
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

/// How often the two clocks are compared in the log.
const WINDOW_NS: i64 = 200_000_000;

/// The two sides of one interval.
#[derive(Clone, Copy, Debug)]
struct Side {
    at: i64,
    ahead: i64,
}

/// The host's boot clock beside the guest's.
#[derive(Debug, Default)]
pub struct Beside {
    began: Option<i64>,
    /// The host was at least, at most, so far ahead.
    least: Option<Side>,
    most: Option<Side>,
    /// The first comparison, for how the clocks drift.
    first: Option<(i64, i64, i64)>,
    last: Option<HostClock>,
}

impl Beside {
    /// A hit by the guest's clock, and moments of the host's that it was not before and not after. A comparison, when one is due.
    pub fn hit(&mut self, at: BootNs, not_before: u64, not_after: u64) -> Option<HostClock> {
        let done = match self.began {
            Some(began) if at.0.saturating_sub(began) > WINDOW_NS => self.close(),
            _ => None,
        };
        self.began.get_or_insert(at.0);
        if not_before != 0 {
            let ahead = (not_before as i64).wrapping_sub(at.0);
            if self.least.is_none_or(|s| ahead > s.ahead) {
                self.least = Some(Side { at: at.0, ahead });
            }
        }
        let ahead = (not_after as i64).wrapping_sub(at.0);
        if self.most.is_none_or(|s| ahead < s.ahead) {
            self.most = Some(Side { at: at.0, ahead });
        }
        done
    }

    /// What the hits since the last comparison say.
    pub fn close(&mut self) -> Option<HostClock> {
        self.began = None;
        let (least, most) = (self.least.take()?, self.most.take()?);
        let at = i64::midpoint(least.at, most.at);
        // Within one interval the clocks drift, too: how much is known from the comparisons before, else it is what clocks may.
        let apart = (least.at - most.at).unsigned_abs() as i64;
        let drift = match self.first {
            Some((from, ahead, bound)) if at > from => {
                let now = i64::midpoint(least.ahead, most.ahead);
                let width = (most.ahead - least.ahead).abs() / 2;
                ((now - ahead).abs() + bound + width) as f64 / (at - from) as f64
            }
            _ => 1e-3,
        };
        let slack = (apart as f64 * drift.min(1e-3)).ceil() as i64;
        let ahead = i64::midpoint(least.ahead, most.ahead);
        let bound = (most.ahead - least.ahead).abs() / 2 + 1 + slack;
        self.first.get_or_insert((at, ahead, bound));
        let reading = HostClock {
            at: BootNs(at),
            host: BootNs(at.wrapping_add(ahead)),
            bound_ns: u32::try_from(bound).unwrap_or(u32::MAX),
        };
        self.last = Some(reading);
        Some(reading)
    }

    /// The newest comparison.
    pub fn last(&self) -> Option<HostClock> {
        self.last
    }
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
    fn a_comparison_holds_the_truth_whatever_the_delays() {
        let mut seed = 7u64;
        let mut chance = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let mut beside = Beside::default();
        let (mut readings, mut inside) = (Vec::new(), 0);
        // The host is 5 s ahead and 40 ppm faster.
        let truth = |at: i64| 5_000_000_000 + at + at / 25_000;
        for n in 0..20_000i64 {
            let at = n * 200_000;
            let (early, late) = (chance(50_000) + 200, chance(80_000) + 300);
            readings.extend(beside.hit(BootNs(at), truth(at) as u64 - early, truth(at) as u64 + late));
        }
        readings.extend(beside.close());
        assert!(readings.len() >= 19, "{}", readings.len());
        for r in &readings {
            inside += usize::from((truth(r.at.0) - r.host.0).abs() <= i64::from(r.bound_ns));
            assert!(r.bound_ns < 200_000, "{r:?}");
        }
        assert_eq!(inside, readings.len());
    }
}
