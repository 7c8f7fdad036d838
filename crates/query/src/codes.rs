//! What the numbers in the tables mean.

use kpat_model::EventKind;
use kpat_store::tables::ClockRow;

pub use kpat_model::codes::{match_key, side, verdict};

/// A kernel's stack has room for fewer calls within each other, also with those of interrupts upon it. In a damaged log deeper ones stand beside each other:
/// who reads their tree may take a step into itself for each level, and each stack is written with all of its functions.
pub const DEEPEST_CALLS: usize = 512;

/// The error of a call that would have had to wait, as a size in `app_event`.
pub const EAGAIN: i64 = -11;

pub mod clock_method {
    //! Codes of `clock.method`.
    use kpat_store::tables::ClockRow;

    pub use kpat_model::codes::clock_method::*;

    /// What the relation rests on: bounds, and no ways of frames. On a link within the device a frame gives one of each.
    pub fn basis(c: &ClockRow, number: impl Fn(i64) -> String) -> String {
        let (received, transmitted) = (number(c.received), number(c.transmitted));
        let carried = c.received + c.transmitted == 0 && (c.method == HULL || c.method == ONE_WAY);
        let from = if carried {
            return "no match of this time was used: carried on from those beside it".to_owned();
        } else if c.method == ON_DUT {
            format!("from {received} received and {transmitted} transmitted matches at one device")
        } else {
            format!("bounds: {received} from above, {transmitted} from below")
        };
        format!("{from}, {} rejected: {}", number(c.rejected), name(c.method))
    }
}

pub mod clock_assumed {
    //! Bits of `clock.assumed`.
    pub const NOISE: i32 = 1;
    pub const DELAY: i32 = 2;
    pub const CHANGE: i32 = 4;

    const WORDS: [(i32, &str); 3] = [
        (NOISE, "how much the sniffer's stamps scatter (too few matches show it)"),
        (DELAY, "how fast the fastest packet of one-way traffic was"),
        (CHANGE, "that the clock's speed changes no faster than it was seen to"),
    ];

    pub fn words(bits: i32) -> Vec<&'static str> {
        WORDS.iter().filter(|w| bits & w.0 != 0).map(|w| w.1).collect()
    }
}

/// What a capture's clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeScale {
    /// The device's own wall clock, within a second.
    Utc,
    /// Atomic time, 37 s ahead of UTC: a card's clock under PTP.
    Tai,
    /// GPS time, 18 s ahead of UTC.
    Gps,
    /// From some moment of its own: an adapter's clock, never set.
    Own,
    /// Another time of day.
    Other,
    /// The log does not say what time it was.
    Unknown,
}

impl TimeScale {
    pub fn name(self) -> &'static str {
        match self {
            TimeScale::Utc => "UTC",
            TimeScale::Tai => "TAI",
            TimeScale::Gps => "GPS",
            TimeScale::Own => "own epoch",
            TimeScale::Other => "other",
            TimeScale::Unknown => "unknown",
        }
    }
}

/// What a capture's clock counts. `dut_offset_ns`: the device's boot time less its wall time.
pub fn time_scale(c: &ClockRow, dut_offset_ns: Option<i64>) -> TimeScale {
    const SEC: i64 = 1_000_000_000;
    // Long before anybody captured packets with a clock that was set.
    const SET: i64 = 315_532_800 * SEC;
    // TAI less UTC, GPS less UTC, since 2017.
    const SCALES: [(i64, TimeScale); 3] = [(0, TimeScale::Utc), (37, TimeScale::Tai), (18, TimeScale::Gps)];
    if c.from_wall_ns < SET {
        return TimeScale::Own;
    }
    let Some(own) = dut_offset_ns else { return TimeScale::Unknown };
    let ahead = own.saturating_sub(c.offset_ns);
    let near = |s: &i64| ahead.saturating_sub(s * SEC).saturating_abs() < SEC;
    SCALES.iter().find(|(s, _)| near(s)).map_or(TimeScale::Other, |(_, scale)| *scale)
}

pub mod call_flag {
    //! Bits of `call.flags` beyond those of [`kpat_model::Call`].
    pub const LIST: i32 = 1;
    pub const NO_RETURN: i32 = 2;
    pub const RETURNED: i32 = 4;
    pub const ENDS: i32 = 8;
    pub const WITHIN: i32 = 16;
    pub const ENTRY_ONLY: i32 = 32;
    pub const POINT: i32 = 256;
    pub const SELF_CLAMPED: i32 = 512;
}

/// Below this an association says that others fit as well.
pub const SURE_PERCENT: i32 = 60;

/// Name of a code of `event.kind`.
pub fn event_kind(kind: i32) -> String {
    EventKind::from_number(kind).map_or_else(|| format!("kind {kind}"), |k| k.name().to_owned())
}
