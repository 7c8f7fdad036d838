//! Back into memory, for who plays it. A file is what others wrote: everything in it is checked before anything is believed.

use super::lines::*;
use serde::Deserialize;
use std::io::{self, BufRead, Read};

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot read: {0}")]
    Read(#[from] io::Error),
    /// Not one: give another file.
    #[error("is not an application trace, which `kpat app export` writes")]
    Foreign,
    #[error(
        "is an application trace of version {0}, and this kpat reads version {FORMAT_VERSION}; export it again"
    )]
    Version(u32),
    #[error("line {line}: {why}")]
    Line { line: u64, why: String },
    /// Its end is missing.
    #[error("ends after line {0} without its sums, so it is not whole; export it again")]
    Cut(u64),
}

/// A write to be played. Absent numbers are -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Since the connection's first write.
    pub at_ns: i64,
    pub size_bytes: i64,
    /// Bytes that have to be read before; none: -1.
    pub read_bytes: i64,
    pub think_ns: i64,
}

/// A connection with the writes of both ends.
#[derive(Clone, Debug, Default)]
pub struct Played {
    pub about: ConnectionLine,
    pub a: Vec<Written>,
    pub b: Vec<Written>,
}

#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub header: Header,
    /// By number, which is the order of their first writes.
    pub connections: Vec<Played>,
    pub sums: Sums,
}

#[derive(Deserialize)]
struct Other {
    gap: Option<GapLine>,
    end: Option<Sums>,
}

/// No line that we write is longer.
const LONGEST: u64 = 1 << 16;

pub fn read(mut from: impl BufRead) -> Result<Trace, TraceError> {
    let mut text = Vec::new();
    let mut line = 0u64;
    let mut next = |text: &mut Vec<u8>, line: &mut u64| -> Result<bool, TraceError> {
        text.clear();
        *line += 1;
        let len = from.by_ref().take(LONGEST).read_until(b'\n', text)?;
        if len as u64 == LONGEST {
            return Err(TraceError::Line { line: *line, why: format!("is longer than {LONGEST} bytes") });
        }
        Ok(len > 0)
    };
    let version = |text: &[u8]| -> Option<u32> {
        let value: serde_json::Value = serde_json::from_slice(text).ok()?;
        u32::try_from(value.get("kpat_app_trace")?.as_u64()?).ok()
    };
    match next(&mut text, &mut line) {
        Ok(true) | Err(TraceError::Line { .. }) => {}
        Ok(false) => return Err(TraceError::Foreign),
        Err(e) => return Err(e),
    }
    match version(&text) {
        None => return Err(TraceError::Foreign),
        Some(FORMAT_VERSION) => {}
        Some(other) => return Err(TraceError::Version(other)),
    }
    let mut out = Trace { header: parse(&text, line)?, ..Default::default() };
    let mut counted = Sums::default();
    let mut last = -1;
    loop {
        if !next(&mut text, &mut line)? {
            return Err(TraceError::Cut(line - 1));
        }
        if text.starts_with(b"{\"c\":") {
            let w: WriteLine = parse(&text, line)?;
            counted.writes += 1;
            counted.bytes = counted.bytes.saturating_add(w.n.max(0));
            out.put(&w).map_err(|why| TraceError::Line { line, why })?;
        } else if text.starts_with(b"{\"connection\":") {
            let c: ConnectionLine = parse(&text, line)?;
            counted.connections += 1;
            if c.connection != counted.connections || c.at < last.max(0) {
                let why = "connections are not numbered in the order of their first writes".to_owned();
                return Err(TraceError::Line { line, why });
            }
            last = c.at;
            out.connections.push(Played { about: c, ..Default::default() });
        } else {
            let other: Other = parse(&text, line)?;
            match (other.gap, other.end) {
                (Some(gap), _) => counted.lost = counted.lost.saturating_add(gap.lost),
                (None, Some(end)) if end == counted => {
                    out.sums = end;
                    return Ok(out);
                }
                (None, Some(_)) => {
                    let why = "the sums are not those of the lines before".to_owned();
                    return Err(TraceError::Line { line, why });
                }
                // a kind of line that a later kpat added
                (None, None) => {}
            }
        }
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8], line: u64) -> Result<T, TraceError> {
    serde_json::from_slice(text).map_err(|e| TraceError::Line { line, why: e.to_string() })
}

impl Trace {
    fn put(&mut self, w: &WriteLine) -> Result<(), String> {
        let place = w.c.checked_sub(1).and_then(|i| usize::try_from(i).ok());
        let Some(c) = place.and_then(|i| self.connections.get_mut(i)) else {
            return Err(format!("a write of connection {}, which was not declared", w.c));
        };
        let datagram = c.about.proto == "udp";
        let end = match w.s {
            'a' => &mut c.a,
            'b' => &mut c.b,
            other => return Err(format!("{other:?} is no end of a connection; there are a and b")),
        };
        if !(i64::from(!datagram)..=if datagram { 65_535 } else { MOST_BYTES }).contains(&w.n) {
            return Err(format!("no call writes {} bytes", w.n));
        }
        let before = end.last();
        if w.t < before.map_or(0, |b| b.at_ns) {
            return Err("writes of one end are not in order of time".into());
        }
        let (read_bytes, think_ns) = match (w.r, w.w) {
            (Some(r), Some(t)) if r >= 0 && t >= 0 => (r, t),
            (None, None) => (-1, -1),
            _ => return Err("what was read before the write makes no sense".into()),
        };
        end.push(Written { at_ns: w.t, size_bytes: w.n, read_bytes, think_ns });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"kpat_app_trace":1,"time_unit":"ns","size_unit":"bytes","clock":"boot","layer":"application","source":{"log":"x","host":"h","kernel":"k","writer":"w","started_wall_ns":0},"events_lost":2}
{"connection":1,"at":0,"proto":"tcp","ip":4,"a":{"port":40000,"seen":"written"},"b":{"port":80,"seen":"read"}}
{"c":1,"s":"a","t":0,"n":100}
{"gap":{"t":5,"until":6,"lost":2}}
{"c":1,"s":"b","t":50,"n":7000,"r":100,"w":40}
{"later":"kinds of lines are passed over"}
{"c":1,"s":"a","t":90,"n":1,"r":7000,"w":3}
{"end":{"connections":1,"writes":3,"bytes":7101,"lost":2}}
"#;

    #[test]
    fn what_was_written_is_read() {
        let t = read(GOOD.as_bytes()).unwrap();
        assert_eq!((t.sums.bytes, t.header.events_lost, t.connections.len()), (7101, 2, 1));
        let w = |at_ns, size_bytes, read_bytes, think_ns| Written { at_ns, size_bytes, read_bytes, think_ns };
        assert_eq!(t.connections[0].a, [w(0, 100, -1, -1), w(90, 1, 7000, 3)]);
        assert_eq!(t.connections[0].b, [w(50, 7000, 100, 40)]);
    }

    /// Bytes changed, taken out and put in anywhere: refused or read, never a panic.
    #[test]
    fn any_bytes_are_survived() {
        let mut seed = 7u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let (mut refused, mut taken) = (0, 0);
        for _ in 0..20_000 {
            let mut text = GOOD.as_bytes().to_vec();
            for _ in 0..1 + next(3) {
                let at = next(text.len());
                match next(4) {
                    0 => text[at] = next(256) as u8,
                    1 => text[at] = b"0123456789-\"{}[]:,\nab"[next(21)],
                    2 => drop(text.drain(at..(at + 1 + next(9)).min(text.len()))),
                    _ => (0..1 + next(20)).for_each(|_| text.insert(at, b'9')),
                }
            }
            if read(&text[..]).is_err() { refused += 1 } else { taken += 1 }
        }
        assert!(refused > 10_000 && taken > 100, "{refused} {taken}");
    }

    /// Each of these is refused, with a word that says why.
    #[test]
    fn what_makes_no_sense_is_refused() {
        let refuse = |from: &str, to: &str, word: &str| {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD);
            let why = read(text.as_bytes()).unwrap_err().to_string();
            assert!(why.contains(word), "{why}");
        };
        refuse(r#""kpat_app_trace":1"#, r#""kpat_app_trace":2"#, "version 2");
        refuse("kpat_app_trace", "something", "not an application trace");
        refuse(r#""n":100"#, r#""n":0"#, "line 3: no call writes 0");
        refuse(r#""n":7000"#, r#""n":9000000000"#, "line 5: no call writes");
        refuse(r#""t":90"#, r#""t":-1"#, "order of time");
        refuse(r#""c":1,"s":"b""#, r#""c":2,"s":"b""#, "connection 2");
        refuse(r#""s":"b""#, r#""s":"z""#, "no end");
        refuse(r#""w":40"#, r#""w":-40"#, "makes no sense");
        refuse(r#""bytes":7101"#, r#""bytes":7100"#, "line 8: the sums");
        refuse(r#"{"end""#, r#"{"dne""#, "without its sums");
        refuse(r#"{"gap":"#, r#"{"gap":["#, "line 4");
        for len in 0..GOOD.len() - 1 {
            assert!(read(&GOOD.as_bytes()[..len]).is_err() || GOOD[..len].ends_with("}}"), "cut at {len}");
        }
        let long = format!("{}{}", &GOOD[..GOOD.find('\n').unwrap() + 1], " ".repeat(100_000));
        assert!(read(long.as_bytes()).unwrap_err().to_string().contains("longer"));
        assert!(matches!(read(&b""[..]), Err(TraceError::Foreign)));
        assert!(matches!(read(&[0x89; 200_000][..]), Err(TraceError::Foreign)));
    }
}
