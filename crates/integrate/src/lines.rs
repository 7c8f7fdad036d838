//! Lines of log files as events. Their stamps are of the device's wall clock; how precisely a stamp is written is how well its time is known.
//!
//! Read: text whose lines begin with a date of ISO 8601, of syslog (RFC 3164, RFC 5424) or of ctime(), with the day first or with seconds since 1970, access logs, logfmt, objects with a time
//! (JSON lines), and the journal (`journalctl -o export`, `-o json`).

mod stamp;

use crate::clock::set::Shown;
use crate::error::{Error, Result};
use crate::report::LogFile;
use kpat_model::meta::ClockAnchor;
use kpat_model::{Context, EventKind};
use kpat_store::TableWriter;
use kpat_store::tables::EventRow;
use stamp::Stamp;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

pub use stamp::parse_zone;

/// Longer lines are cut, and so is what an event has of one.
const MOST_LINE: u64 = 1 << 16;
const MOST_TEXT: usize = 400;
/// Lines so long before and after what was recorded are events, too.
const AROUND_NS: i64 = 1_000_000_000;

/// What became of a file's lines.
#[derive(Default)]
struct Count {
    taken: u64,
    elsewhere: u64,
    unstamped: u64,
    /// ... of which these are stamped as the kernel stamps its messages.
    since_boot: u64,
}

struct Reader<'a> {
    file: i64,
    name: String,
    own: &'a Shown,
    from_ns: i64,
    to_ns: i64,
    count: Count,
    give: &'a mut dyn FnMut(EventRow) -> Result<()>,
}

/// Adds the lines of `files` in the time of a recording to its events. Returns a sentence for each file.
pub(super) fn add(
    files: &[LogFile],
    anchors: &[ClockAnchor],
    (first, last): (i64, i64),
    events: &mut TableWriter<EventRow>,
) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let own = &Shown::of(anchors);
    for (i, f) in files.iter().enumerate() {
        let name = f.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (from_ns, to_ns) = (first.saturating_sub(AROUND_NS), last.saturating_add(AROUND_NS));
        let (file, count) = (i as i64, Count::default());
        let give = &mut |row| Ok(events.push(&row)?);
        let mut reader = Reader { file, name, own, from_ns, to_ns, count, give };
        let stamp = Stamp { zone_ns: f.zone_ns, near_ns: near(anchors) };
        let failed = |doing| move |source| Error::Io { path: f.path.clone(), doing, source };
        let mut input = BufReader::new(File::open(&f.path).map_err(failed("open"))?);
        let packed = is_packed(input.fill_buf().map_err(failed("read"))?);
        reader.read(&mut input, &f.path, &stamp)?;
        let Count { taken, elsewhere, unstamped, since_boot } = reader.count;
        let mut text = format!(
            "{}: {taken} of {} lines are in the recording's time",
            reader.name,
            taken + elsewhere + unstamped
        );
        if packed {
            text += "; it is compressed, and has to be unpacked before";
        } else if unstamped > 0 {
            text += &format!(
                "; {unstamped} have no stamp that is known (ISO 8601, syslog, seconds since 1970, access logs, logfmt, JSON lines, the journal's)"
            );
        }
        if since_boot > 0 {
            text += &format!(
                "; {since_boot} of these say how long the machine had run, by a clock that is not set: for the kernel's messages take journalctl -k -o export"
            );
        }
        words.push(text);
    }
    Ok(words)
}

/// By gzip, zstd, xz or bzip2, as rotated logs are?
fn is_packed(begin: &[u8]) -> bool {
    let marks: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh"];
    marks.iter().any(|m| begin.starts_with(m))
}

/// A moment of the recording, wall clock.
fn near(anchors: &[ClockAnchor]) -> i64 {
    anchors.iter().find(|a| a.wall.0 != 0).map_or(0, |a| a.wall.0)
}

/// The events of lines as they stand in a file, of a device whose clocks were read together once and that recorded from then on for so long.
pub fn events_of_lines(mut input: &[u8], anchor: ClockAnchor, for_ns: i64) -> Result<Vec<EventRow>> {
    let mut rows = Vec::new();
    let anchors = [anchor];
    let mut reader = Reader {
        file: 0,
        name: "lines".to_owned(),
        own: &Shown::of(&anchors),
        from_ns: anchor.boot.0,
        to_ns: anchor.boot.0.saturating_add(for_ns),
        count: Count::default(),
        give: &mut |row| {
            rows.push(row);
            Ok(())
        },
    };
    reader.read(&mut input, Path::new("lines"), &Stamp { zone_ns: 0, near_ns: near(&anchors) })?;
    Ok(rows)
}

impl Reader<'_> {
    fn read(&mut self, mut input: &mut dyn BufRead, path: &Path, stamp: &Stamp) -> Result<()> {
        let failed = |doing| move |source| Error::Io { path: path.to_owned(), doing, source };
        let (mut number, mut line) = (0, Vec::new());
        // Of the journal's export the entry that is being read.
        let (mut entry, mut at) = (Entry::default(), 0);
        loop {
            line.clear();
            let read = (&mut input).take(MOST_LINE).read_until(b'\n', &mut line).map_err(failed("read"))?;
            if read > 0 && line.last() != Some(&b'\n') {
                // The rest of a line that is too long.
                skip_line(&mut input).map_err(failed("read"))?;
            }
            number += 1;
            let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
            if text.is_empty() && !entry.is_empty() {
                self.entry(&std::mem::take(&mut entry), at)?;
            } else if read > 0 && (text.starts_with("__CURSOR=") || !entry.is_empty()) {
                if entry.is_empty() {
                    at = number;
                }
                if !text.contains('=') {
                    // A field of bytes: its name alone, then its length in eight bytes.
                    let Some(value) = field_of_bytes(&mut input).map_err(failed("read"))? else {
                        return Ok(());
                    };
                    entry.field(&text, value);
                } else if let Some((name, value)) = text.split_once('=') {
                    entry.field(name, value.to_owned());
                }
            } else if !text.is_empty() {
                let object = object(&text);
                let of_journal = object.as_ref().and_then(Entry::of_json);
                let stamped = || object.as_ref().map_or_else(|| stamp.find(&text), |o| stamp.of_json(o));
                if let Some(entry) = of_journal {
                    self.entry(&entry, number)?;
                } else if let Some((wall, precision)) = stamped() {
                    self.line(number, wall, precision, &text)?;
                } else {
                    self.count.unstamped += 1;
                    self.count.since_boot += u64::from(since_boot(&text));
                }
            }
            if read == 0 {
                return Ok(());
            }
        }
    }

    fn entry(&mut self, e: &Entry, number: i64) -> Result<()> {
        // When it was sent, where that is known, for the journal may come to it later.
        let Some(us) = e.source_us.or(e.realtime_us) else {
            self.count.unstamped += 1;
            return Ok(());
        };
        let who = match (e.identifier.is_empty(), e.pid.is_empty()) {
            (true, _) => String::new(),
            (false, true) => format!("{}: ", e.identifier),
            (false, false) => format!("{}[{}]: ", e.identifier, e.pid),
        };
        self.line(number, us.saturating_mul(1_000), 1_000, &format!("{who}{}", e.message))
    }

    /// A stamp says that it was then, or so much later that the next stamp was not reached.
    fn line(&mut self, number: i64, wall: i64, precision: i64, text: &str) -> Result<()> {
        let Some((after, latest)) = self.own.at(wall, (self.from_ns, self.to_ns)) else {
            self.count.unstamped += 1;
            return Ok(());
        };
        let at = latest.saturating_add(precision);
        if at < self.from_ns || after > self.to_ns {
            self.count.elsewhere += 1;
            return Ok(());
        }
        self.count.taken += 1;
        let end = (0..=text.len().min(MOST_TEXT)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        let cut = if end < text.len() { "…" } else { "" };
        (self.give)(EventRow {
            at_ns: at,
            kind: EventKind::LogLine as i32,
            packet_id: None,
            cpu: None,
            ctx: Context::Unknown as i32,
            pid: None,
            netns: None,
            a: self.file,
            b: number,
            text: format!("{}: {}{cut}", self.name, &text[..end]),
            after_ns: Some(after),
            socket_id: None,
        })?;
        Ok(())
    }
}

fn skip_line(input: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let some = input.fill_buf()?;
        if some.is_empty() {
            return Ok(());
        }
        let (len, done) = match some.iter().position(|b| *b == b'\n') {
            Some(at) => (at + 1, true),
            None => (some.len(), false),
        };
        input.consume(len);
        if done {
            return Ok(());
        }
    }
}

/// Its beginning, if it is long; `None`: the file ends in it.
fn field_of_bytes(input: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut len = [0; 8];
    match input.read_exact(&mut len) {
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    }
    let (len, mut value) = (u64::from_le_bytes(len), Vec::new());
    input.take(len.min(MOST_LINE)).read_to_end(&mut value)?;
    std::io::copy(&mut input.take(len.saturating_sub(MOST_LINE)), &mut std::io::sink())?;
    Ok(Some(String::from_utf8_lossy(value.trim_ascii_end()).into_owned()))
}

/// What is wanted of an entry of the journal.
#[derive(Default)]
struct Entry {
    realtime_us: Option<i64>,
    source_us: Option<i64>,
    identifier: String,
    pid: String,
    message: String,
    fields: usize,
}

impl Entry {
    fn is_empty(&self) -> bool {
        self.fields == 0
    }

    fn field(&mut self, name: &str, value: String) {
        self.fields += 1;
        match name {
            "__REALTIME_TIMESTAMP" => self.realtime_us = value.parse().ok(),
            "_SOURCE_REALTIME_TIMESTAMP" => self.source_us = value.parse().ok(),
            "SYSLOG_IDENTIFIER" => self.identifier = value,
            "_PID" => self.pid = value,
            "MESSAGE" => self.message = value,
            _ => {}
        }
    }

    fn of_json(object: &Object) -> Option<Entry> {
        let mut e = Entry::default();
        for (name, value) in object {
            if let serde_json::Value::String(value) = value {
                e.field(name, value.clone());
            }
        }
        e.realtime_us.is_some().then_some(e)
    }
}

type Object = serde_json::Map<String, serde_json::Value>;

/// A line of JSON.
fn object(line: &str) -> Option<Object> {
    line.starts_with('{').then(|| serde_json::from_str(line).ok()).flatten()
}

/// `[ 1234.567890] text`, as dmesg has it.
fn since_boot(line: &str) -> bool {
    let stamp = line.strip_prefix('[').and_then(|l| l.split_once(']'));
    stamp.is_some_and(|(s, _)| {
        s.contains('.') && s.trim_start().bytes().all(|b| b.is_ascii_digit() || b == b'.')
    })
}
