//! The order of the work, the directory it happens in, and the tables that need everything.

use crate::application;
use crate::captures::{Join, Writers};
use crate::clock::radio::Heard;
use crate::dut::Dut;
use crate::error::{Error, Result};
use crate::found::Found;
use crate::functions::write_durations;
use crate::log::{Passed, pass};
use crate::matching::Sighting;
use crate::report::{Options, Progress, Report, Stage};
use crate::stamps::Clocks;
use kpat_klog::{EndState, Log, Missing};
use kpat_model::meta::Meta;
use kpat_model::sample::Unit;
use kpat_model::wall::{self, WallStep};
use kpat_model::{BootNs, GuestClock};
use kpat_query::balance;
use kpat_store::tables::*;
use kpat_store::{Contents, Manifest, Row, SourceFile, TableCount, TableFile, TableWriter};
use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory beside the result, renamed to it at the end and removed otherwise.
pub(crate) struct Work {
    pub dir: PathBuf,
}

/// Where a result of that name is until it is whole.
pub fn half_made(out: &Path) -> PathBuf {
    beside(out, "tmp")
}

fn beside(out: &Path, what: &str) -> PathBuf {
    let mut name = out.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{what}-{}", std::process::id()));
    out.with_file_name(name)
}

/// What is at that place, be it a link that leads nowhere; `None`: nothing is.
fn present(out: &Path) -> Result<Option<fs::Metadata>> {
    match fs::symlink_metadata(out) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        there => there.map(Some).map_err(|source| Error::Io { path: out.to_owned(), doing: "read", source }),
    }
}

/// What is removed where an integrated log takes another's place.
///
/// Errors: there is something else, or more.
fn replaceable(out: &Path) -> Result<Contents> {
    Contents::of(out).map_err(|e| {
        let why = match e {
            kpat_store::Error::Foreign { what, .. } => {
                format!("{} in it is no part of an integrated log", what.display())
            }
            kpat_store::Error::NotALog { why, .. } => format!("it is no integrated log ({why})"),
            other => other.to_string(),
        };
        Error::NotReplaced { path: out.to_owned(), why }
    })
}

impl Work {
    pub fn create(out: &Path) -> Result<Work> {
        let work = Work { dir: half_made(out) };
        let _ = fs::remove_dir_all(&work.dir);
        for dir in [work.dir.clone(), work.early()] {
            let made = fs::DirBuilder::new().mode(0o700).create(&dir);
            made.map_err(|source| Error::Io { path: dir, doing: "create", source })?;
        }
        Ok(work)
    }

    /// For tables that are rewritten.
    fn early(&self) -> PathBuf {
        self.dir.join("early")
    }

    pub fn finish(self, out: &Path) -> Result<()> {
        let failed = |path: &Path, doing| {
            let path = path.to_owned();
            move |source| Error::Io { path, doing, source }
        };
        let Some(old) = present(out)? else {
            return fs::rename(&self.dir, out).map_err(failed(out, "create"));
        };
        // Something may have been put there since the work began.
        let contents = replaceable(out)?;
        let aside = beside(out, "old");
        // A link that somebody put there is not followed.
        let _ = fs::remove_file(&aside);
        fs::rename(out, &aside).map_err(failed(out, "replace"))?;
        if let Err(e) = fs::rename(&self.dir, out) {
            let _ = fs::rename(&aside, out);
            return Err(failed(out, "create")(e));
        }
        if old.is_symlink() {
            // What it leads to is in another place.
            return fs::remove_file(&aside).map_err(failed(&aside, "remove"));
        }
        Ok(contents.remove(&aside)?)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // After a rename there is nothing there any more.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Joins a kernel behaviour log with captures into the directory `out`. Nothing is left behind on failure.
///
/// Errors: the log or a capture cannot be read, `out` exists, the disk is full. Damaged stretches are warnings.
pub fn integrate(
    kbl: &Path,
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    integrate_parts(&[kbl.to_owned()], captures, out, options, progress)
}

/// As [`integrate`], from the files of one recording, in any order.
///
/// Errors: also where they are not of one recording. Files that are not given are a loss and a warning.
pub fn integrate_parts(
    kbls: &[PathBuf],
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    is_free(out, options)?;
    let log = Log::open_parts(kbls)?;
    integrate_opened(&log, kbls, captures, out, options, progress)
}

/// What a join of several logs needs besides their tables.
#[derive(Default)]
pub(crate) struct Kept {
    /// Sightings are wanted, though there is no capture.
    pub wanted: bool,
    pub sightings: Vec<Sighting>,
    /// Of a guest's log, how far its times are off its host's clock.
    pub guest_clock: Vec<GuestClock>,
    /// When it was recorded; `None`: something of that is lost.
    pub whole: Option<(i64, i64)>,
}

/// As [`integrate_parts`], of an open log, and keeps what is asked for.
pub(crate) fn integrate_keeping(
    log: &Log,
    kbls: &[PathBuf],
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    kept: &mut Kept,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    is_free(out, options)?;
    let work = Work::create(out)?;
    let report = run(log, kbls, captures, &work, options, kept, progress)?;
    work.finish(out)?;
    Ok(report)
}

/// As [`integrate_parts`], of a log that is open, as far as it was read: it may grow, and have forgotten its beginning
/// ([`Log::grow`], [`Log::forget`]). `kbls` are named as its sources.
///
/// Errors: as [`integrate_parts`], but for those of opening.
pub fn integrate_opened(
    log: &Log,
    kbls: &[PathBuf],
    captures: &[PathBuf],
    out: &Path,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    integrate_keeping(log, kbls, captures, out, options, &mut Kept::default(), progress)
}

impl Kept {
    fn take(&mut self, passed: &Passed) -> Result<()> {
        self.guest_clock.clone_from(&passed.guest_clock);
        let mut all = passed.met.sightings.iter()?;
        while self.wanted
            && let Some(s) = all.next()?
        {
            self.sightings.push(s);
        }
        Ok(())
    }
}

/// Errors: the place for the result is taken, and may not be replaced.
pub(crate) fn is_free(out: &Path, options: &Options) -> Result<()> {
    match (present(out)?, options.overwrite) {
        (None, _) => Ok(()),
        (Some(_), false) => Err(Error::Exists { path: out.to_owned() }),
        // One that only an older kpat could read is an integrated log all the same.
        (Some(_), true) => replaceable(out).map(|_| ()),
    }
}

fn run(
    log: &Log,
    kbls: &[PathBuf],
    captures: &[PathBuf],
    work: &Work,
    options: &Options,
    kept: &mut Kept,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let dir = &work.dir;
    let mut sources = Vec::new();
    for kbl in kbls {
        sources.push(SourceFile::describe("log", -1, kbl, dir)?);
    }
    for path in captures {
        // Before the long work, so that a wrong name is reported immediately.
        kpat_capture::Reader::open(path)?;
    }
    sources.extend(SourceFile::captures(captures, dir)?);
    let no_sightings = captures.is_empty() && !kept.wanted;
    let mut passed = pass(log, dir, &work.early(), captures, no_sightings, options, progress)?;
    kept.take(&passed)?;
    let ended = log.summary().filter(|_| passed.lost == 0 && passed.damaged_bytes == 0);
    kept.whole = ended.map(|s| (log.meta().started.boot.0, s.at.boot.0));
    let application = application::pass(log, dir)?;
    passed.absurd += application.absurd;
    let mut report = Report {
        records: passed.records + application.records,
        calls: passed.calls,
        packets: passed.packet_rows,
        lost: passed.lost,
        damaged_bytes: passed.damaged_bytes,
        complete: *log.end_state() == EndState::Complete,
        held: passed.held,
        sockets: application.sockets,
        app_events: application.events,
        ..Report::default()
    };
    let passed = Passed {
        first: passed.first.min(application.first),
        last: passed.last.max(application.last),
        ..passed
    };
    report.warnings.extend(
        log.issues().iter().map(|i| format!("{}: offset {}: {}", log.file_name(i.file), i.offset, i.reason)),
    );
    report.warnings.extend(passed.lines.iter().cloned());
    report.warnings.extend(set_words(&wall_steps(log), passed.first));
    report.warnings.extend(log.missing().iter().map(missing_words));
    if let EndState::Open { tail_bytes } = log.end_state() {
        report.warnings.push(format!(
            "{} was not closed in order ({tail_bytes} bytes of an unfinished chunk at its end)",
            log.file_name(kbls.len() as u32 - 1)
        ));
    }
    let early = work.early();
    let mut join = Join {
        dut: Dut::new(log),
        met: &passed.met,
        options,
        early: &early,
        found: Found::new(&early),
        heard: Heard::default(),
    };
    let mut frame = TableWriter::create_threaded(dir)?;
    let mut interface = TableWriter::create(dir)?;
    let mut in_order: VecDeque<(usize, bool)> = (0..captures.len()).map(|i| (i, true)).collect();
    while let Some((i, first)) = in_order.pop_front() {
        let mut writers = Writers { frame: &mut frame, interface: &mut interface };
        let wait = first && in_order.iter().any(|other| other.1);
        let Some(outcome) = join.integrate(i as i32, &captures[i], wait, &mut writers, progress)? else {
            in_order.push_back((i, false));
            continue;
        };
        report.held.matching = report.held.matching.max(outcome.held as u64);
        report.frames += outcome.frames;
        report.matched += outcome.matched;
        report.expected += outcome.expected;
        report.ambiguous += outcome.ambiguous;
        report.clocks.extend(outcome.clocks);
        report.warnings.extend(outcome.warnings);
    }
    frame.finish()?;
    interface.finish()?;
    let mut found = join.found;
    found.write(dir)?;
    if !captures.is_empty() || passed.stamps.expected {
        rewrite_packets(dir, &early, &mut found, &passed.stamps, progress)?;
    }
    let _ = fs::remove_dir_all(early);
    write_all(dir, &report.clocks)?;
    write_described(dir, log, &passed)?;
    write_all(dir, &provenance(log.meta(), &passed, &report, options))?;
    let counted = balance::count(dir, &log.meta().mechanism, passed.last)?;
    write_all(dir, &balance::rows(&counted))?;
    manifest(log, sources, &passed, dir)?.write(dir)?;
    Ok(report)
}

fn missing_words(m: &Missing) -> String {
    let held = m.records.map_or_else(|| "what they held is not known".to_owned(), |n| format!("{n} records"));
    match (m.first, m.last) {
        (first, 0) => format!("the recording continues in its file {first}, which was not given"),
        (first, last) if first == last => format!("file {first} of the recording was not given: {held}"),
        (first, last) => format!("files {first} to {last} of the recording were not given: {held}"),
    }
}

fn write_all<R: Row>(dir: &Path, rows: &[R]) -> Result<()> {
    let mut table = TableWriter::create(dir)?;
    rows.iter().try_for_each(|r| table.push(r))?;
    table.finish()?;
    Ok(())
}

/// Packet rows with what matching found, and when their cards stamped them.
fn rewrite_packets(
    dir: &Path,
    early: &Path,
    found: &mut Found,
    stamps: &Clocks,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let from = TableFile::open(early, PacketRow::TABLE)?;
    let mut to = TableWriter::create_threaded(dir)?;
    let total = from.rows();
    let mut failed = Ok(());
    from.each((0..from.groups()).collect(), |mut row: PacketRow| {
        if let Some((frames, confidence)) = found.on_wire(row.packet_id) {
            row.frames = frames;
            row.confidence = Some(confidence);
        }
        if row.message.is_none() {
            row.message = found.message(row.packet_id);
            row.message_frame = row.message.is_some().then_some(1);
        }
        stamps.fill(&mut row);
        if failed.is_ok() {
            failed = to.give(row);
        }
        if to.rows().is_multiple_of(1 << 17) {
            progress(Progress { stage: Stage::Writing, done: to.rows(), total });
        }
    })?;
    failed?;
    to.finish()?;
    Ok(())
}

/// What the log says of functions, devices and names.
fn write_described(dir: &Path, log: &Log, passed: &Passed) -> Result<()> {
    let meta = log.meta();
    let mut functions: Vec<FunctionRow> = meta
        .functions
        .iter()
        // No function of the kernel: events have what they say.
        .filter(|f| f.kind != "program" && f.kind != "wifi")
        .map(|f| FunctionRow {
            func_id: i32::from(f.id),
            name: f.name.clone(),
            module: f.module.clone(),
            kind: f.kind.clone(),
            layer: f.layer.clone(),
            via: f.via.clone(),
            ..FunctionRow::default()
        })
        .collect();
    functions.sort_by_key(|f| f.func_id);
    functions.dedup_by_key(|f| f.func_id);
    for (i, stats) in passed.stats.iter().enumerate() {
        match functions.binary_search_by_key(&(i as i32), |f| f.func_id) {
            Ok(at) => stats.fill(&mut functions[at]),
            // A log that lost its metadata still has its calls.
            Err(at) if stats.calls > 0 => {
                let name = format!("function {i}");
                let mut row = FunctionRow { func_id: i as i32, name, ..FunctionRow::default() };
                stats.fill(&mut row);
                functions.insert(at, row);
            }
            Err(_) => {}
        }
    }
    write_all(dir, &functions)?;
    write_durations(dir, &passed.stats)?;
    let devices: Vec<DeviceRow> = log
        .devices()
        .iter()
        .map(|d| DeviceRow {
            netns: i64::from(d.netns),
            netns_name: d.netns_name.clone(),
            ifindex: d.ifindex as i32,
            name: d.name.clone(),
            link_type: i32::from(d.link_type),
            mac: d.mac.clone(),
            mtu: i64::from(d.mtu),
            driver: d.driver.clone(),
            phc: d.phc.map(|n| n as i32),
            above: d.above.map(|n| n as i32),
            master: d.master.map(|n| n as i32),
        })
        .collect();
    write_all(dir, &devices)?;
    let reasons: Vec<DropReasonRow> = log
        .drop_reasons()
        .map(|(reason, name)| DropReasonRow { reason: *reason as i32, name: name.clone() })
        .collect();
    write_all(dir, &reasons)?;
    let symbols: Vec<SymbolRow> =
        log.symbols().iter().map(|s| SymbolRow { addr: s.addr as i64, text: s.text.clone() }).collect();
    write_all(dir, &symbols)
}

fn provenance(meta: &Meta, passed: &Passed, report: &Report, options: &Options) -> Vec<ProvenanceRow> {
    let row = |key: &str, value: String, meaning: &str| ProvenanceRow {
        key: key.to_owned(),
        value,
        meaning: meaning.to_owned(),
    };
    let mut rows = vec![
        row("records", report.records.to_string(), "Records read from the kernel behaviour log."),
        row(
            "horizon_ns",
            options.horizon_ns.to_string(),
            "A caller that returned later than this after its callee is not joined to it.",
        ),
        row(
            "calls.crossing",
            passed.crossing.to_string(),
            "Calls that overlap a neighbour in the same flow of control without enclosing it.",
        ),
        row(
            "calls.self_clamped",
            passed.clamped.to_string(),
            "Calls whose self time would be negative and was set to 0.",
        ),
        row(
            "calls.more_pauses",
            passed.more_pauses.to_string(),
            "Calls in which their task was off the CPU more often than is kept of one: the earlier off-CPU intervals count as self time.",
        ),
        row(
            "times.absurd",
            passed.absurd.to_string(),
            "Times that no clock shows, in damaged records; moved to its limit.",
        ),
        row("members.orphaned", passed.orphans.to_string(), "List members whose call is not in the log."),
        row(
            "packets.late",
            passed.late.to_string(),
            "Records of a packet that came after its row was written; they are in the call table but not in the packet's sums.",
        ),
        row(
            "packets.late_packets",
            passed.late_packets.to_string(),
            "Packets that such a record was of: their verdict may be of a part of their way.",
        ),
        row(
            "packets.forced",
            passed.forced.to_string(),
            "Packets whose row was written before their end was seen, for want of room. Of no harm where none was seen again.",
        ),
        row("frames", report.frames.to_string(), "Frames in the captures."),
        row(
            "frames.expected",
            report.expected.to_string(),
            "Frames that could have one: of flows that are in the log, while it lasts.",
        ),
        row("frames.matched", report.matched.to_string(), "Frames with an association."),
        row(
            "frames.ambiguous",
            report.ambiguous.to_string(),
            "Of these, frames that other packets fit as well.",
        ),
    ];
    // Frames of packets that were not chosen look like those of packets that were.
    if meta.sample.is_some_and(|s| s.by == Unit::Packet) {
        rows.retain(|r| r.key != "frames.expected");
    }
    rows.extend(report.warnings.iter().map(|w| row("warning", w.clone(), "Met while integrating.")));
    rows
}

/// A part of a recording may be here alone: its times of day are by the clock as it was when the recording began, too.
fn wall_steps(log: &Log) -> Vec<WallStep> {
    wall::steps([log.meta().started].into_iter().chain(log.anchors().iter().copied()))
}

/// `start_ns`: of the log.
fn set_words(all: &[WallStep], start_ns: i64) -> Option<String> {
    const MOST: usize = 8;
    if all.is_empty() {
        return None;
    }
    let seconds = |ns: i64| ns as f64 / 1e9;
    let since = |at: BootNs| seconds(at.0.saturating_sub(start_ns));
    let one = |s: &WallStep| {
        format!("by {:+.6} s between {:.3} and {:.3} s", seconds(s.by_ns), since(s.after), since(s.before))
    };
    let mut words: Vec<String> = all.iter().take(MOST).map(one).collect();
    if let Some(more) = all.len().checked_sub(MOST).filter(|n| *n > 0) {
        words.push(format!("and {more} times more"));
    }
    let list = words.join(", ");
    Some(format!("the device's wall clock was set {list} of the log: a time of day is what it showed then"))
}

fn manifest(log: &Log, sources: Vec<SourceFile>, passed: &Passed, dir: &Path) -> Result<Manifest> {
    let tables = ALL
        .iter()
        .map(|t| Ok(TableCount { table: t.name.to_owned(), rows: TableFile::open(dir, t)?.rows() }))
        .collect::<Result<Vec<_>>>()?;
    // Those are in no table: what a log can have of radios is known by them.
    let radios = log.meta().functions.iter().filter(|f| f.kind == "wifi").cloned().collect();
    Ok(Manifest {
        schema: SCHEMA_VERSION,
        writer: format!("kpat {}", env!("CARGO_PKG_VERSION")),
        sources,
        tables,
        log: Meta { functions: radios, drop_reasons: Vec::new(), ..log.meta().clone() },
        summary: log.summary().cloned(),
        first_ns: passed.first,
        last_ns: passed.last,
        wall_steps: wall_steps(log),
        ..Manifest::default()
    })
}
