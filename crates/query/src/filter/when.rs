//! Moments as people write them: since the start of a log, or by the clock on the wall.

use super::duration::parse_duration;
use crate::error::{Error, Result};
use crate::store::Store;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;

/// A moment, of no log in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So many nanoseconds after the first moment in the log.
    Since(i64),
    /// Nanoseconds since midnight, UTC; of the day on which the log has it, or is nearest to it.
    OfDay(i64),
    /// Nanoseconds since 1970, UTC.
    Wall(i64),
}

impl When {
    /// `1.5s`; `10:22:30`, `10:22:30.25Z`, `12:22+02:00`; `2026-11-22T10:22:30Z`. Without a zone it is UTC.
    pub fn parse(text: &str) -> std::result::Result<When, String> {
        let text = text.trim();
        if !text.contains(':') {
            if text.starts_with(|c: char| c.is_alphabetic()) {
                return Err(format!("`{text}` is not a time (as in 1.5s, 10:22:30 or 2026-11-22T10:22:30Z)"));
            }
            return parse_duration(text).map(When::Since);
        }
        let wrong = || {
            format!(
                "`{text}` is not a time of day (as in 10:22:30, 10:22:30.5+02:00 or 2026-11-22T10:22:30Z; UTC without a zone)"
            )
        };
        let (date, rest) = match text.split_once(['T', '_']) {
            Some((date, rest)) => (Some(day(date).ok_or_else(wrong)?), rest),
            None => (None, text),
        };
        let (clock, zone) = match rest.find(['Z', '+', '-', 'U']) {
            None => (rest, 0),
            Some(at) => (&rest[..at], zone(&rest[at..]).ok_or_else(wrong)?),
        };
        let of_day = of_day(clock).ok_or_else(wrong)? - zone;
        Ok(match date {
            Some(days) => When::Wall(days * DAY + of_day),
            None => When::OfDay(of_day.rem_euclid(DAY)),
        })
    }

    /// Boot time in this log, by the device's wall clock as it stood then.
    ///
    /// Errors: [`Error::NoWallClock`].
    pub fn in_log(self, store: &Store) -> Result<i64> {
        if let When::Since(ns) = self {
            return Ok(store.start_ns().saturating_add(ns));
        }
        let own = store.own_clock().ok_or(Error::NoWallClock)?;
        Ok(match self {
            When::OfDay(of_day) => own.nearest(|start| {
                // Half a day before the start at most: what was meant is in the log, or near it.
                let from = start.saturating_sub(DAY / 2);
                from.saturating_add(of_day.saturating_sub(from).rem_euclid(DAY))
            }),
            When::Wall(wall) | When::Since(wall) => own.boot(wall),
        })
    }
}

fn number(text: &str, digits: usize, most: i64) -> Option<i64> {
    let fits = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| fits && *n <= most)
}

fn of_day(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':');
    let hours = number(parts.next()?, 2, 23)?;
    let minutes = number(parts.next()?, 2, 59)?;
    let (seconds, fraction) = parts.next().map_or(("00", ""), |s| s.split_once('.').unwrap_or((s, "")));
    if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let ns: i64 = format!("{fraction:0<9}").parse().ok()?;
    Some(((hours * 60 + minutes) * 60 + number(seconds, 2, 60)?) * SECOND + ns)
}

fn zone(text: &str) -> Option<i64> {
    if text == "Z" || text == "UTC" {
        return Some(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let rest = text.get(1..)?;
    let (hours, minutes) = rest
        .split_once(':')
        .unwrap_or((rest.get(..2)?, rest.get(2..).filter(|m| !m.is_empty()).unwrap_or("00")));
    Some(sign * (number(hours, 2, 14)? * 60 + number(minutes, 2, 59)?) * 60 * SECOND)
}

/// Days since 1970 of `2026-11-22`.
fn day(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let year = number(parts.next()?, 4, 9999)?;
    let month = number(parts.next()?, 2, 12).filter(|m| *m > 0)?;
    let of_month = number(parts.next()?, 2, 31).filter(|d| *d > 0)?;
    // Years that start in March: the leap day is the last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * m + 2) / 5 + of_month - 1;
    Some(y * 365 + y / 4 - y / 100 + y / 400 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read() {
        let hms = |h: i64, m: i64, s: i64| ((h * 60 + m) * 60 + s) * SECOND;
        // `date -u -d '2026-11-22 10:22:30' +%s`
        let wall = 1_795_342_950 * SECOND;
        for (text, moment) in [
            ("1.5s", When::Since(1_500_000_000)),
            ("10:22:30", When::OfDay(hms(10, 22, 30))),
            ("10:22", When::OfDay(hms(10, 22, 0))),
            ("10:22:30.25Z", When::OfDay(hms(10, 22, 30) + 250_000_000)),
            ("01:00+02:00", When::OfDay(hms(23, 0, 0))),
            ("23:30-0130", When::OfDay(hms(1, 0, 0))),
            ("2026-11-22T10:22:30", When::Wall(wall)),
            ("2026-11-22T12:22:30+02", When::Wall(wall)),
            ("2000-02-29T00:00:00Z", When::Wall(951_782_400 * SECOND)),
            ("1970-01-01T00:00:00Z", When::Wall(0)),
        ] {
            assert_eq!(When::parse(text), Ok(moment), "{text}");
        }
        for bad in [
            "10",
            "25:00:00",
            "10:60",
            "1:2",
            "10:22:30.x",
            "10:22:30+x",
            "2026-13-01T10:00:00",
            "x:y",
            "10:22:30é",
            "é:",
        ] {
            assert!(When::parse(bad).is_err(), "{bad}");
        }
    }
}
