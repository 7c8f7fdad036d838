//! Dates at the beginning of a line.

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// What stamps do not say themselves.
pub struct Stamp {
    /// East of UTC.
    pub zone_ns: i64,
    /// A year without a number is the one that comes nearest to this.
    pub near_ns: i64,
}

/// `+02:00`, `-0330`, `Z`, `UTC`: nanoseconds east of UTC.
pub fn parse_zone(text: &str) -> Option<i64> {
    if ["Z", "z", "UTC"].contains(&text) {
        return Some(0);
    }
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, &text[1..]),
        b'-' => (-1, &text[1..]),
        _ => return None,
    };
    let digits: String = rest.chars().filter(|c| *c != ':').collect();
    if !digits.bytes().all(|b| b.is_ascii_digit()) || ![2, 4].contains(&digits.len()) {
        return None;
    }
    let hours: i64 = digits[..2].parse().ok()?;
    let minutes: i64 = if digits.len() == 4 { digits[2..].parse().ok()? } else { 0 };
    (hours <= 14 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60) * SECOND)
}

/// Days since 1970 of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let era = y.div_euclid(400);
    let of_era = y.rem_euclid(400);
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * m + 2) / 5 + day - 1 - 719_468
}

/// The year that a moment is in.
fn year_of(ns: i64) -> i64 {
    let mut year = 1970 + ns.div_euclid(DAY) / 366;
    while days(year + 1, 1, 1) <= ns.div_euclid(DAY) {
        year += 1;
    }
    year
}

fn number(text: &str, digits: usize) -> Option<(i64, &str)> {
    let (head, rest) = text.split_at_checked(digits)?;
    head.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
    Some((head.parse().ok()?, rest))
}

/// `HH:MM:SS`, with a fraction after a point or a comma: since midnight, how precise, and what follows.
fn clock(text: &str) -> Option<(i64, i64, &str)> {
    let (hours, rest) = number(text, 2)?;
    let (minutes, rest) = number(rest.strip_prefix(':')?, 2)?;
    let (seconds, mut rest) = number(rest.strip_prefix(':')?, 2)?;
    if hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let mut ns = (hours * 3600 + minutes * 60 + seconds) * SECOND;
    let mut precision = SECOND;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        for b in fraction.bytes().take(digits.min(9)) {
            precision /= 10;
            ns += i64::from(b - b'0') * precision;
        }
        rest = &fraction[digits..];
    }
    Some((ns, precision, rest))
}

/// Seconds since 1970, as wpa_supplicant, hostapd and `iw event` write them: `1795518204.572008: text`.
fn epoch(line: &str) -> Option<(i64, i64)> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if !(9..=10).contains(&digits) {
        return None;
    }
    let (seconds, rest) = number(line, digits)?;
    let (mut ns, mut precision) = (seconds * SECOND, SECOND);
    let fraction = rest.strip_prefix('.').unwrap_or_default();
    let written = fraction.bytes().take_while(u8::is_ascii_digit).count();
    for b in fraction.bytes().take(written.min(9)) {
        precision /= 10;
        ns += i64::from(b - b'0') * precision;
    }
    let end = if written > 0 { &fraction[written..] } else { rest };
    // A number alone is a number.
    (end.starts_with(": ") || written >= 3 && end.starts_with(' ')).then_some((ns, precision))
}

impl Stamp {
    /// Nanoseconds since 1970 of what stands at the beginning, and how many of them it may be later.
    pub fn find(&self, line: &str) -> Option<(i64, i64)> {
        let line = line.strip_prefix('[').unwrap_or(line);
        self.iso(line).or_else(|| self.syslog(line)).or_else(|| epoch(line))
    }

    fn iso(&self, line: &str) -> Option<(i64, i64)> {
        let (year, rest) = number(line, 4)?;
        let separator = rest.chars().next().filter(|c| ['-', '/'].contains(c))?;
        let (month, rest) = number(rest.strip_prefix(separator)?, 2)?;
        let (day, rest) = number(rest.strip_prefix(separator)?, 2)?;
        let (since, precision, rest) = clock(rest.strip_prefix(['T', 't', ' '])?)?;
        let rest = rest.strip_prefix(' ').filter(|r| r.starts_with(['+', '-'])).unwrap_or(rest);
        let end = rest.find(|c: char| c.is_whitespace() || [']', ','].contains(&c)).unwrap_or(rest.len());
        let zone = parse_zone(&rest[..end]).unwrap_or(self.zone_ns);
        self.moment(year, month, day, since, precision, zone)
    }

    fn syslog(&self, line: &str) -> Option<(i64, i64)> {
        let month = 1 + MONTHS.iter().position(|m| line.starts_with(m))? as i64;
        let rest = line.get(3..)?.strip_prefix(' ')?.trim_start();
        let (day, rest) = rest.split_once(' ')?;
        let day = day.parse().ok()?;
        let (since, precision, _) = clock(rest)?;
        let here = year_of(self.near_ns.max(0));
        let years = [here - 1, here, here + 1].into_iter();
        years
            .filter_map(|year| self.moment(year, month, day, since, precision, self.zone_ns))
            .min_by_key(|(ns, _)| (ns - self.near_ns).abs())
    }

    fn moment(
        &self,
        year: i64,
        month: i64,
        day: i64,
        since: i64,
        precision: i64,
        zone: i64,
    ) -> Option<(i64, i64)> {
        if !(1970..2262).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        Some((days(year, month, day) * DAY + since - zone, precision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `date -u -d @...` says the same.
    #[test]
    fn stamps() {
        let utc = Stamp { zone_ns: 0, near_ns: 1_795_460_625 * SECOND };
        let ms = 1_000_000;
        for (line, found) in [
            ("2026-11-23T19:03:45.682+00:00 x", Some((1_795_460_625_682 * ms, ms))),
            ("2026-11-23T21:03:45.682+0200 x", Some((1_795_460_625_682 * ms, ms))),
            ("2026-11-23 19:03:45,682 INFO x", Some((1_795_460_625_682 * ms, ms))),
            ("[2026-11-23 19:03:45 +0000] x", Some((1_795_460_625 * SECOND, SECOND))),
            ("2026/11/23 19:03:45 [error] 7#7: x", Some((1_795_460_625 * SECOND, SECOND))),
            ("2026-11-23T19:03:45.682773Z x", Some((1_795_460_625_682_773_000, 1_000))),
            ("Nov 23 19:03:45 vm dhclient[3]: bound", Some((1_795_460_625 * SECOND, SECOND))),
            ("Nov 23 19:03:45.682773 vm x", Some((1_795_460_625_682_773_000, 1_000))),
            ("Jan  2 00:00:00 vm x", Some((1_798_848_000 * SECOND, SECOND))),
            ("2024-02-29T00:00:00Z", Some((1_709_164_800 * SECOND, SECOND))),
            (
                "1795460625.682773: w2: State: SCANNING -> AUTHENTICATING",
                Some((1_795_460_625_682_773_000, 1_000)),
            ),
            ("1795460625: x", Some((1_795_460_625 * SECOND, SECOND))),
            ("1795460625 packets", None),
            ("1795460625.5 seconds", None),
            ("at 19:03:45 x", None),
            ("2026-13-01 00:00:00 x", None),
            ("Nov", None),
        ] {
            assert_eq!(utc.find(line), found, "{line}");
        }
        let berlin = Stamp { zone_ns: parse_zone("+01:00").unwrap(), ..utc };
        assert_eq!(berlin.find("Nov 23 20:03:45 vm x"), Some((1_795_460_625 * SECOND, SECOND)));
        assert_eq!(berlin.find("2026-11-23T19:03:45Z x"), Some((1_795_460_625 * SECOND, SECOND)));
        assert_eq!(
            ["", "1", "+1", "+99:00", "-03:30"].map(parse_zone),
            [None, None, None, None, Some(-12_600 * SECOND)]
        );
    }
}
