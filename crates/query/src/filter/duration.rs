//! Durations as people write them.

/// Nanoseconds of `10us`, `1.5 ms` ...
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let at = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let per_unit = match unit.trim() {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 6e10,
        "h" => 3.6e12,
        "" => return Err(format!("`{text}` needs a unit: ns, us, ms or s (as in 10us)")),
        other => return Err(format!("`{other}` is no unit of time: use ns, us, ms, s, min or h")),
    };
    let value: f64 =
        number.parse().map_err(|_| format!("`{text}` is not a duration (as in 10us or 1.5ms)"))?;
    let ns = value * per_unit;
    // Beyond this an i64 holds no nanoseconds.
    if ns.abs() < 9.2e18 { Ok(ns.round() as i64) } else { Err(format!("`{text}` is too long")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        assert_eq!(parse_duration("10us"), Ok(10_000));
        assert_eq!(parse_duration("1.5 ms"), Ok(1_500_000));
        assert_eq!(parse_duration("250ns"), Ok(250));
        for bad in ["10", "", "us", "1x", "1e99s", "--1s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
