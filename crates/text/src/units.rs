//! Numbers for people: durations with their unit, aligned at the decimal point; counts, bytes, moments.

/// A duration in its own unit, 10 columns wide or more, so that decimal points and units of a column stand under each other.
pub fn duration_aligned(ns: i64) -> String {
    let (whole, fraction, unit) = split(ns);
    let fraction = fraction.map_or("    ".to_owned(), |f| format!(".{f:03}"));
    format!("{whole:>3}{fraction} {unit:<2}")
}

/// As [`duration_aligned`], for running text.
pub fn duration(ns: i64) -> String {
    let (whole, fraction, unit) = split(ns);
    match fraction {
        Some(f) => format!("{whole}.{f:03} {unit}"),
        None => format!("{whole} {unit}"),
    }
}

fn split(ns: i64) -> (String, Option<u64>, &'static str) {
    let sign = if ns < 0 { "-" } else { "" };
    let n = ns.unsigned_abs();
    match n {
        0..1_000 => (format!("{sign}{n}"), None, "ns"),
        1_000..1_000_000 => (format!("{sign}{}", n / 1_000), Some(n % 1_000), "µs"),
        1_000_000..1_000_000_000 => (format!("{sign}{}", n / 1_000_000), Some(n / 1_000 % 1_000), "ms"),
        _ => (format!("{sign}{}", n / 1_000_000_000), Some(n / 1_000_000 % 1_000), "s"),
    }
}

/// One unit for the moments of one packet, so that a column of them can be compared at a glance.
#[derive(Clone, Copy, Debug)]
pub struct TimeAxis {
    pub unit: &'static str,
    per_unit: i64,
    digits: usize,
    width: usize,
}

impl TimeAxis {
    /// For moments between the two, relative to zero.
    pub fn for_range(from_ns: i64, to_ns: i64) -> TimeAxis {
        let (unit, per_unit, digits) = match from_ns.unsigned_abs().max(to_ns.unsigned_abs()) {
            0..10_000_000 => ("µs", 1_000, 3),
            10_000_000..10_000_000_000 => ("ms", 1_000_000, 6),
            _ => ("s", 1_000_000_000, 9),
        };
        let mut axis = TimeAxis { unit, per_unit, digits, width: 0 };
        axis.width = [from_ns, to_ns].map(|t| axis.number(t).len()).into_iter().max().unwrap_or(0);
        axis
    }

    fn number(&self, ns: i64) -> String {
        let sign = if ns < 0 { "-" } else { "" };
        let (n, per) = (ns.unsigned_abs(), self.per_unit.unsigned_abs());
        format!("{sign}{}.{:0digits$}", n / per, n % per, digits = self.digits)
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// Right-aligned, without the unit.
    pub fn show(&self, ns: i64) -> String {
        format!("{:>width$}", self.number(ns), width = self.width)
    }
}

/// Seconds with microseconds: the time column of lists.
pub fn seconds(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let n = ns.unsigned_abs();
    format!("{sign}{}.{:06}", n / 1_000_000_000, n / 1_000 % 1_000_000)
}

/// `12,034`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

/// `1 call`, `12,034 calls`.
pub fn plural(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `1.4 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `98.3 %`; 100 and 0 only where they are exact.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    if part == whole {
        return "100 %".to_owned();
    }
    let value = part as f64 * 100.0 / whole as f64;
    let value = if part > 0 { value.max(0.1) } else { value };
    let value = if part < whole { value.min(99.9) } else { value };
    format!("{value:.1} %")
}

/// Nanoseconds since 1970 as date and time of day, UTC. `date`: with the date.
pub fn time_of_day(wall_ns: i64, date: bool) -> String {
    let (days, ns) = (wall_ns.div_euclid(86_400_000_000_000), wall_ns.rem_euclid(86_400_000_000_000));
    let s = ns / 1_000_000_000;
    let time = format!("{:02}:{:02}:{:02}.{:09}", s / 3600, s / 60 % 60, s % 60, ns % 1_000_000_000);
    if !date {
        return time;
    }
    // Civil date from days, Howard Hinnant's algorithm: years start in March, eras of 400 years.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {time}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_points_stand_under_each_other() {
        let shown: Vec<String> =
            [0, 7, 999, 1_000, 12_345, 999_999, 1_203_456, 59_999_999_999].map(duration_aligned).into();
        assert_eq!(
            shown.join("\n"),
            "  0     ns\n  7     ns\n999     ns\n  1.000 µs\n 12.345 µs\n999.999 µs\n  1.203 ms\n 59.999 s "
        );
        assert_eq!(duration(-1_234), "-1.234 µs");
        assert_eq!(duration(i64::MIN), "-9223372036.854 s");
    }

    #[test]
    fn an_axis_has_one_unit() {
        let axis = TimeAxis::for_range(-1_500, 48_213);
        assert_eq!(
            (axis.unit, axis.show(-1_500), axis.show(48_213)),
            ("µs", "-1.500".into(), "48.213".into())
        );
        assert_eq!(TimeAxis::for_range(0, 1_203_000_001).show(5), "   0.000005");
    }

    #[test]
    fn counts_bytes_shares() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1023, 1024, 1_048_575, 5 << 30].map(bytes), ["1023 B", "1.0 KiB", "1.0 MiB", "5.0 GiB"]);
        assert_eq!([plural(1, "call"), plural(2000, "call")], ["1 call", "2,000 calls"]);
        assert_eq!(percent(999_999, 1_000_000), "99.9 %");
        assert_eq!(percent(1, 1_000_000), "0.1 %");
        assert_eq!(
            (percent(0, 5), percent(5, 5), percent(0, 0)),
            ("0.0 %".into(), "100 %".into(), "-".into())
        );
    }

    #[test]
    fn dates() {
        assert_eq!(time_of_day(0, true), "1970-01-01 00:00:00.000000000");
        assert_eq!(time_of_day(1_709_210_096_123_456_789, true), "2024-02-29 12:34:56.123456789");
        assert_eq!(time_of_day(-1, true), "1969-12-31 23:59:59.999999999");
    }
}
