//! When a line was written, by the date that it has.

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// What loggers that write an object a line call its time.
const JSON_NAMES: [&str; 6] = ["time", "timestamp", "@timestamp", "ts", "t", "datetime"];
/// The date of an access log stands after address, names and brackets, within so many bytes.
const ACCESS_LOG_WITHIN: usize = 200;

/// What stamps do not say themselves.
pub struct Stamp {
    /// East of UTC.
    pub zone_ns: i64,
    /// A year without a number is the one that comes nearest to this.
    pub near_ns: i64,
}

/// `+02:00`, `-0330`, `Z`, `UTC`, `GMT`: nanoseconds east of UTC.
pub fn parse_zone(text: &str) -> Option<i64> {
    if ["Z", "z", "UTC", "GMT"].contains(&text) {
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

/// The digits at the beginning as a fraction of a unit: nanoseconds, how precise, and what follows.
fn fraction(text: &str, unit: i64) -> (i64, i64, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (mut ns, mut precision) = (0, unit);
    for b in text.bytes().take(digits) {
        if precision < 10 {
            break;
        }
        precision /= 10;
        ns += i64::from(b - b'0') * precision;
    }
    (ns, precision, &text[digits..])
}

/// `HH:MM:SS`, with a fraction after a point or a comma: since midnight, how precise, and what follows.
fn clock(text: &str) -> Option<(i64, i64, &str)> {
    let (hours, rest) = number(text, 2)?;
    let (minutes, rest) = number(rest.strip_prefix(':')?, 2)?;
    let (seconds, mut rest) = number(rest.strip_prefix(':')?, 2)?;
    if hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let (mut ns, mut precision) = ((hours * 3600 + minutes * 60 + seconds) * SECOND, SECOND);
    if let Some(written) = rest.strip_prefix(['.', ',']) {
        let more;
        (more, precision, rest) = fraction(written, SECOND);
        ns += more;
    }
    Some((ns, precision, rest))
}

/// Seconds since 1970, as wpa_supplicant, hostapd and `iw event` write them: `1795518204.572008: text`; in brackets, `[1795518204.5720]`, NetworkManager.
fn epoch(line: &str) -> Option<(i64, i64)> {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    if !(9..=10).contains(&digits) {
        return None;
    }
    let (seconds, rest) = number(line, digits)?;
    let behind = rest.strip_prefix('.').unwrap_or_default();
    let (more, precision, after) = fraction(behind, SECOND);
    let written = behind.len() - after.len();
    let end = if written > 0 { after } else { rest };
    // A number alone is a number, and one in brackets is unbound's stamp.
    if !end.starts_with(": ") && !end.starts_with("] ") && (written < 3 || !end.starts_with([' ', ']'])) {
        return None;
    }
    Some((seconds.checked_mul(SECOND)?.checked_add(more)?, precision))
}

/// `Mon `, `Mon, `.
fn without_weekday(line: &str) -> &str {
    let known = DAYS.iter().any(|d| line.starts_with(d));
    let rest = line.get(3..).filter(|_| known);
    rest.map(|r| r.strip_prefix(',').unwrap_or(r)).and_then(|r| r.strip_prefix(' ')).unwrap_or(line)
}

/// `<30>` or `<30>1 `: what syslog's senders put before it; `<info> `: NetworkManager.
fn without_priority(line: &str) -> &str {
    let Some((priority, rest)) = line.strip_prefix('<').and_then(|r| r.split_once('>')) else { return line };
    if priority.len() > 6 || !priority.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return line;
    }
    rest.strip_prefix("1 ").unwrap_or(rest).trim_start()
}

/// `1234:M `: what Redis puts before it.
fn without_process(line: &str) -> &str {
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let role = line[digits..].strip_prefix(':').filter(|_| digits > 0);
    role.and_then(|r| r.strip_prefix(['M', 'S', 'C', 'X'])).and_then(|r| r.strip_prefix(' ')).unwrap_or(line)
}

/// A number of a program's log, as JSON: seconds since 1970 with a fraction, or milli-, micro- or nanoseconds since then.
fn since_1970(number: &str) -> Option<(i64, i64)> {
    let (whole, behind) = number.split_once('.').unwrap_or((number, ""));
    let unit = match whole.len() {
        9..=10 => SECOND,
        12..=13 => 1_000_000,
        15..=16 => 1_000,
        18..=19 => 1,
        _ => return None,
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(behind) {
        return None;
    }
    let (more, precision, _) = fraction(behind, unit);
    Some((whole.parse::<i64>().ok()?.checked_mul(unit)?.checked_add(more)?, precision))
}

impl Stamp {
    /// Nanoseconds since 1970 of what stands at the beginning, or in an access log's brackets, and how many of them it may be later.
    pub fn find(&self, line: &str) -> Option<(i64, i64)> {
        let line = without_priority(line);
        let line = without_weekday(line.strip_prefix('[').unwrap_or(line));
        self.iso(line)
            .or_else(|| self.syslog(line))
            .or_else(|| epoch(line))
            .or_else(|| self.day_first(without_process(line)))
            .or_else(|| self.of_a_level(line))
            .or_else(|| self.access_log(line))
            .or_else(|| self.assigned(line))
    }

    /// Of a line that is an object: the first of the names that loggers give it that it has.
    pub fn of_json(&self, object: &serde_json::Map<String, serde_json::Value>) -> Option<(i64, i64)> {
        JSON_NAMES.iter().filter_map(|name| object.get(*name)).find_map(|value| match value {
            serde_json::Value::String(text) => self.find(text).or_else(|| since_1970(text)),
            serde_json::Value::Number(number) => since_1970(&number.to_string()),
            _ => None,
        })
    }

    /// The common log format of web servers: `10.0.0.1 - - [23/Nov/2026:19:03:45 +0000] "GET /`.
    fn access_log(&self, line: &str) -> Option<(i64, i64)> {
        let from = line.get(..line.floor_char_boundary(ACCESS_LOG_WITHIN))?;
        from.match_indices('[').find_map(|(at, _)| {
            let (day, rest) = number(&line[at + 1..], 2)?;
            let (name, rest) = rest.strip_prefix('/')?.split_once('/')?;
            let month = 1 + MONTHS.iter().position(|m| *m == name)? as i64;
            let (year, rest) = number(rest, 4)?;
            let (since, precision, rest) = clock(rest.strip_prefix(':')?)?;
            let zone = rest.split([' ', ']']).find_map(parse_zone).unwrap_or(self.zone_ns);
            self.moment(year, month, day, since, precision, zone)
        })
    }

    /// `28-Nov-2026 20:48:01.123`: BIND, Tomcat; `28 Nov 2026 20:48:01.123`: Redis, mail.
    fn day_first(&self, line: &str) -> Option<(i64, i64)> {
        let (day, rest) = number(line, 2).or_else(|| number(line, 1))?;
        let separator = rest.chars().next().filter(|c| ['-', ' '].contains(c))?;
        let (name, rest) = rest.strip_prefix(separator)?.split_once(separator)?;
        let month = 1 + MONTHS.iter().position(|m| *m == name)? as i64;
        let (year, rest) = number(rest, 4)?;
        let (since, precision, rest) = clock(rest.strip_prefix(' ')?)?;
        let zone = rest.strip_prefix(' ').and_then(|r| parse_zone(r.split(' ').next()?));
        self.moment(year, month, day, since, precision, zone.unwrap_or(self.zone_ns))
    }

    /// `I1128 20:48:01.123456   12 file.go:7] text`: glog and klog (Kubernetes).
    fn of_a_level(&self, line: &str) -> Option<(i64, i64)> {
        let (month, rest) = number(line.strip_prefix(['I', 'W', 'E', 'F'])?, 2)?;
        let (day, rest) = number(rest, 2)?;
        let (since, precision, _) = clock(rest.strip_prefix(' ')?)?;
        self.nearest(month, day, since, precision)
    }

    /// `time="2026-11-28T20:48:01Z" level=info`, `level=info ts=2026-11-28T20:48:01.123Z`: logfmt.
    fn assigned(&self, line: &str) -> Option<(i64, i64)> {
        let from = line.get(..line.floor_char_boundary(ACCESS_LOG_WITHIN))?;
        from.match_indices('=').find_map(|(at, _)| {
            let name = from[..at].rsplit(' ').next()?;
            let value = &line[at + 1..];
            let value = value.strip_prefix('"').unwrap_or(value);
            let end = value.find(['"', ' ']).unwrap_or(value.len());
            let of = || self.iso(value).or_else(|| since_1970(&value[..end]));
            JSON_NAMES.contains(&name).then(of).flatten()
        })
    }

    fn iso(&self, line: &str) -> Option<(i64, i64)> {
        let (year, rest) = number(line, 4)?;
        let separator = rest.chars().next().filter(|c| ['-', '/'].contains(c))?;
        let (month, rest) = number(rest.strip_prefix(separator)?, 2)?;
        let (day, rest) = number(rest.strip_prefix(separator)?, 2)?;
        let (since, precision, rest) = clock(rest.strip_prefix(['T', 't', ' '])?)?;
        let named = |r: &&str| r.starts_with(['+', '-']) || r.starts_with("UTC") || r.starts_with("GMT");
        let rest = rest.strip_prefix(' ').filter(named).unwrap_or(rest);
        let end =
            rest.find(|c: char| c.is_whitespace() || [']', ',', '"'].contains(&c)).unwrap_or(rest.len());
        let zone = parse_zone(&rest[..end]).unwrap_or(self.zone_ns);
        self.moment(year, month, day, since, precision, zone)
    }

    fn syslog(&self, line: &str) -> Option<(i64, i64)> {
        let month = 1 + MONTHS.iter().position(|m| line.starts_with(m))? as i64;
        let rest = line.get(3..)?.strip_prefix(' ')?.trim_start();
        let (day, rest) = rest.split_once(' ')?;
        let day = day.parse().ok()?;
        let (since, precision, rest) = clock(rest)?;
        // As ctime() has it: the year stands behind.
        let year = rest
            .strip_prefix(' ')
            .and_then(|r| number(r, 4))
            .filter(|(_, r)| !r.starts_with(|c: char| c.is_alphanumeric()));
        if let Some((year, _)) = year {
            return self.moment(year, month, day, since, precision, self.zone_ns);
        }
        self.nearest(month, day, since, precision)
    }

    /// In the year of which it is nearest.
    fn nearest(&self, month: i64, day: i64, since: i64, precision: i64) -> Option<(i64, i64)> {
        let here = year_of(self.near_ns.max(0));
        let years = [here - 1, here, here + 1].into_iter();
        years
            .filter_map(|year| self.moment(year, month, day, since, precision, self.zone_ns))
            .min_by_key(|(ns, _)| ns.abs_diff(self.near_ns))
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
        // The next month's first is not before this day is over.
        let next = if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) };
        if days(year, month, day) >= next {
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
            ("<30>Nov 23 19:03:45 vm app[1]: x", Some((1_795_460_625 * SECOND, SECOND))),
            ("<34>1 2026-11-23T19:03:45.682Z vm app 12 - - x", Some((1_795_460_625_682 * ms, ms))),
            ("<info>  [1795460625.6827] device (w2): x", Some((1_795_460_625_682_700_000, 100_000))),
            ("Mon 2026-11-23 19:03:45 UTC vm x", Some((1_795_460_625 * SECOND, SECOND))),
            ("Mon Nov 23 19:03:45 2026 x", Some((1_795_460_625 * SECOND, SECOND))),
            ("[Sat Nov 23 19:03:45 2024] x", Some((1_732_388_625 * SECOND, SECOND))),
            ("Nov 23 19:03:45 2024x y", Some((1_795_460_625 * SECOND, SECOND))),
            (
                "10.0.0.1 - - [23/Nov/2026:21:03:45 +0200] \"GET / HTTP/1.1\" 200 5",
                Some((1_795_460_625 * SECOND, SECOND)),
            ),
            ("fd00::1 - [x] [23/Nov/2026:19:03:45.682 +0000] x", Some((1_795_460_625_682 * ms, ms))),
            ("10.0.0.1 - - [23/Nov/2026]", None),
            ("<b>bold</b> 19:03:45", None),
            ("[ 1234.567890] w2: authenticated", None),
            ("1795460625 packets", None),
            // the year 2271, which 64 bits of nanoseconds do not have
            ("9520205000: x", None),
            ("9223372036.9999: x", None),
            ("1795460625.5 seconds", None),
            ("23-Nov-2026 19:03:45.682 queries: info: client", Some((1_795_460_625_682 * ms, ms))),
            ("1234:M 23 Nov 2026 19:03:45.682 * Ready", Some((1_795_460_625_682 * ms, ms))),
            ("Mon, 23 Nov 2026 20:03:45 +0100", Some((1_795_460_625 * SECOND, SECOND))),
            ("[1795460625] unbound[7:0] info: x", Some((1_795_460_625 * SECOND, SECOND))),
            ("I1123 19:03:45.682773   12345 file.go:12] x", Some((1_795_460_625_682_773_000, 1_000))),
            ("2026-11-23 19:03:45.682 UTC [12] LOG:  x", Some((1_795_460_625_682 * ms, ms))),
            ("time=\"2026-11-23T19:03:45Z\" level=info msg=x", Some((1_795_460_625 * SECOND, SECOND))),
            ("level=info ts=2026-11-23T19:03:45.682Z caller=x", Some((1_795_460_625_682 * ms, ms))),
            ("Feb 29 00:00:00 vm x", None),
            ("2026-02-29 00:00:00 x", None),
            ("2026-12-31 23:59:60 x", Some((1_798_761_600 * SECOND, SECOND))),
            ("at 19:03:45 x", None),
            ("2026-13-01 00:00:00 x", None),
            ("Nov", None),
        ] {
            assert_eq!(utc.find(line), found, "{line}");
        }
        for (line, found) in [
            (r#"{"time":"2026-11-23T19:03:45.682Z","msg":"x"}"#, Some((1_795_460_625_682 * ms, ms))),
            (r#"{"level":30,"time":1795460625682,"msg":"x"}"#, Some((1_795_460_625_682 * ms, ms))),
            (r#"{"ts":1795460625.682,"msg":"x"}"#, Some((1_795_460_625_682 * ms, ms))),
            (r#"{"@timestamp":"2026-11-23T20:03:45+01:00"}"#, Some((1_795_460_625 * SECOND, SECOND))),
            (r#"{"t":"1795460625682773001"}"#, Some((1_795_460_625_682_773_001, 1))),
            (r#"{"time":12,"ts":1795460625}"#, Some((1_795_460_625 * SECOND, SECOND))),
            (r#"{"msg":"2026-11-23T19:03:45Z","time":-1}"#, None),
        ] {
            assert_eq!(utc.of_json(&serde_json::from_str(line).unwrap()), found, "{line}");
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
