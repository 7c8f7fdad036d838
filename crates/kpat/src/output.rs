//! Where text goes: data to standard output, words to standard error. Whoever reads standard output may leave early
//! (`| head`); that ends the command quietly.

use crate::cli::{ColorChoice, Global};
use crate::render::{Line, clean, count};
use crate::room;
use kpat_formats::text::{PlainJson, plain_json};
use kpat_model::Sample;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The user asked for something that makes no sense; exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// For `return Err(usage(...))`.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// What could not be written to standard output.
pub fn unwritten(e: io::Error) -> anyhow::Error {
    anyhow::Error::new(e).context("cannot write to standard output")
}

/// What a command writes to, and how the user wants it.
pub struct Output {
    /// Print JSON instead of text.
    pub json: bool,
    /// Something lost means exit status 3.
    pub strict: bool,
    /// Columns; 0: as many as needed.
    pub width: usize,
    color: bool,
    quiet: bool,
    progress: bool,
    stdout: RefCell<BufWriter<Stdout>>,
    /// A progress line stands on the terminal.
    line_open: Cell<bool>,
}

impl Output {
    pub fn new(global: &Global) -> Output {
        QUIET.store(global.quiet, Ordering::Relaxed);
        let terminal = io::stdout().is_terminal();
        let color = match global.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
                let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
                terminal && !no_color && !dumb
            }
        };
        let width = global.width.unwrap_or_else(|| if terminal { terminal_width().unwrap_or(80) } else { 0 });
        Output {
            json: global.json,
            strict: global.strict,
            // Narrower than this nothing can be laid out.
            width: if width == 0 { 0 } else { width.max(40) },
            color,
            quiet: global.quiet,
            progress: !global.no_progress && !global.quiet && io::stderr().is_terminal(),
            stdout: RefCell::new(BufWriter::with_capacity(1 << 16, io::stdout())),
            line_open: Cell::new(false),
        }
    }

    /// Data: one line of text.
    pub fn line(&self, line: &Line) -> anyhow::Result<()> {
        self.to_stdout(|out| writeln!(out, "{}", line.paint(self.color)))
    }

    fn to_stdout(&self, write: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>) -> anyhow::Result<()> {
        write(&mut self.stdout.borrow_mut()).map_err(unwritten)
    }

    /// Data: several lines of text.
    pub fn lines<'a>(&self, lines: impl IntoIterator<Item = &'a Line>) -> anyhow::Result<()> {
        lines.into_iter().try_for_each(|line| self.line(line))
    }

    /// Data: one JSON value.
    pub fn value(&self, value: &Value) -> anyhow::Result<()> {
        self.to_stdout(|out| {
            serde_json::to_writer_pretty(PlainJson(&mut *out), value).map_err(io::Error::from)?;
            out.write_all(b"\n")
        })
    }

    /// Data: bytes as they are.
    pub fn raw(&self, bytes: &[u8]) -> anyhow::Result<()> {
        self.to_stdout(|out| out.write_all(bytes))
    }

    /// Data: a piece of JSON.
    pub fn json_text(&self, text: &str) -> anyhow::Result<()> {
        self.raw(plain_json(text).as_bytes())
    }

    pub fn flush(&self) -> anyhow::Result<()> {
        self.to_stdout(BufWriter::flush)
    }

    /// Words for the user; not with `--quiet`.
    pub fn say(&self, words: &str) {
        if !self.quiet {
            // Data and words may share a terminal: keep their order.
            let _ = self.flush();
            self.clear_progress();
            let _ = writeln!(io::stderr(), "kpat: {}", clean(words));
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Exit status of a command that ended in order.
    pub fn ended(&self, lost: bool) -> ExitCode {
        if lost && self.strict { ExitCode::from(3) } else { ExitCode::SUCCESS }
    }

    /// A progress line on the terminal, at most ten times a second.
    pub fn progress(&self, meter: &mut Meter, doing: &str, done: u64, total: u64) {
        if !self.progress || !meter.due(doing) {
            return;
        }
        let bar = match total {
            0 => crate::render::count(done),
            _ => {
                let full = (done.min(total) as u128 * 24 / u128::from(total)) as usize;
                format!("{}{} {:3} %", "━".repeat(full), "─".repeat(24 - full), percent(done, total))
            }
        };
        let _ = write!(io::stderr(), "\r\x1b[K{doing:<10} {bar}");
        self.line_open.set(true);
    }

    pub fn clear_progress(&self) {
        if self.line_open.replace(false) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn percent(done: u64, total: u64) -> u64 {
    (u128::from(done.min(total)) * 100 / u128::from(total.max(1))) as u64
}

/// When the progress line was last drawn.
#[derive(Default)]
pub struct Meter {
    last: Option<(Instant, String)>,
}

impl Meter {
    fn due(&mut self, doing: &str) -> bool {
        let due = self
            .last
            .as_ref()
            .is_none_or(|(at, what)| what != doing || at.elapsed() >= Duration::from_millis(100));
        if due {
            self.last = Some((Instant::now(), doing.to_owned()));
        }
        due
    }
}

static QUIET: AtomicBool = AtomicBool::new(false);
static SAMPLED: AtomicBool = AtomicBool::new(false);

/// Says once that a log has a part of the packets only, whichever command reads it.
pub fn mark_sampled(sample: &Sample, log: &Path) {
    if !SAMPLED.swap(true, Ordering::Relaxed) && !QUIET.load(Ordering::Relaxed) {
        let log = log.display();
        say_last(&format!(
            "{sample}: {} (kpat info {log} estimates how many there were)",
            sample_words(sample)
        ));
    }
}

/// Whoever asks what the log is reads it there.
pub fn sample_is_shown() {
    SAMPLED.store(true, Ordering::Relaxed);
}

/// What a log has that was asked to leave packets out.
pub fn sample_words(s: &Sample) -> String {
    format!("one of {} {}s was recorded, counts are of these", count(s.one_in.into()), s.by.noun())
}

static BROKEN_OFF: AtomicBool = AtomicBool::new(false);

/// Whether the user broke the command off; `now`: does.
pub fn is_broken_off(now: bool) -> bool {
    BROKEN_OFF.fetch_or(now, Ordering::SeqCst) || now
}

/// The last words of a command that is broken off, where a progress line may stand.
pub fn say_last(words: &str) {
    let clear = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    let _ = writeln!(io::stderr(), "{clear}kpat: {}", clean(words));
}

/// Says why a command failed and with which status.
pub fn report(error: &anyhow::Error) -> ExitCode {
    // Whoever breaks off knows why, and ends the program when all is removed.
    while is_broken_off(false) {
        std::thread::park();
    }
    let broken = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken) {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(io::stderr(), "kpat: {}", chain(error));
    if error.chain().any(|e| e.is::<Usage>()) { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// The error and its causes on one line; a cause that the sentence before already tells is not repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    for io in error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()) {
        if let Some(why) = room::why(io) {
            text = text.replace(&io.to_string(), &why);
        }
    }
    clean(&text)
}

/// Columns of the terminal that standard output is.
fn terminal_width() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes a `winsize` to the pointer, which is to one that outlives the call.
    let done = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    (done == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_told_once() {
        let io = io::Error::other("disk on fire");
        let e = Err::<(), _>(io).context("X.kbl: cannot read: disk on fire").context("opening the log");
        assert_eq!(chain(&e.unwrap_err()), "opening the log: X.kbl: cannot read: disk on fire");
    }

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(chain(&anyhow::anyhow!("a\nb\x1b[31m")), "a b\\x1b[31m");
    }
}
