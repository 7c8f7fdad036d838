//! A log, opened: what it says of itself, where its chunks are, and in what state its file is. Records are read
//! through [`crate::Records`], a chunk at a time; memory does not grow with the length of the log but for the index.
//! The files of one recording can be opened as one log: `join.rs`.

use crate::error::Error;
use crate::header::{ChunkKind, Codec, Fault, HEADER_LEN};
use crate::records::{Merged, Records};
use crate::schema::Schema;
use crate::walk::{ChunkInfo, Source, Unread, Walk, read_chunk, walk};
use kpat_model::meta::{ClockAnchor, Device, Json, Meta, Summary, Symbol, Task};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Most issues that are kept one by one.
const MAX_ISSUES: usize = 20_000;
/// Memory that what a file says of its recording may take: so much, and so much for each byte of it as it is stored.
const MOST_WORDS: u64 = 128 << 20;
const MOST_WORDS_A_BYTE: u64 = 128;

mod grow;
mod join;
mod numbers;

pub use grow::Forgotten;
pub use join::Missing;
pub(crate) use numbers::Numbers;

/// How the file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndState {
    /// Closed in order: the last summary says so.
    Complete,
    /// Still being written, or the recorder was killed.
    Open {
        /// Bytes at the end that are the beginning of a chunk; not read.
        tail_bytes: u64,
    },
}

/// A stretch of the file that was not understood and was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Which of the log's files, from 0; see [`Log::file_name`].
    pub file: u32,
    pub offset: u64,
    /// Bytes left out; 0: nothing is there that should be.
    pub len: u64,
    pub reason: String,
}

/// A kernel behaviour log, open for reading; may be shared between threads.
pub struct Log {
    /// Never empty; in the order of recording.
    files: Vec<Opened>,
    meta: Meta,
    schema: Schema,
    anchors: Vec<ClockAnchor>,
    devices: Vec<Device>,
    numbers: Numbers,
    symbols: Vec<Symbol>,
    tasks: Vec<Task>,
    summary: Option<Summary>,
    end_state: EndState,
    chunks: Vec<ChunkInfo>,
    issues: Mutex<Vec<Issue>>,
    missing: Vec<Missing>,
    forgotten: Option<Forgotten>,
}

struct Opened {
    path: PathBuf,
    source: Source,
    /// Where the chunks that are known end.
    walked: u64,
}

/// A row that was written again replaces the one before; a namespace is called what it was called last.
fn newest(rows: Vec<Device>) -> Vec<Device> {
    let mut called: HashMap<u32, String> = HashMap::new();
    let mut at: HashMap<(u32, u32, String, String), usize> = HashMap::new();
    let mut out: Vec<Device> = Vec::new();
    for d in rows {
        if !d.netns_name.is_empty() {
            called.insert(d.netns, d.netns_name.clone());
        }
        match at.entry((d.netns, d.ifindex, d.name.clone(), d.mac.clone())) {
            Entry::Occupied(o) => out[*o.get()] = d,
            Entry::Vacant(v) => {
                v.insert(out.len());
                out.push(d);
            }
        }
    }
    for d in &mut out {
        d.netns_name = called.get(&d.netns).cloned().unwrap_or_default();
    }
    out
}

impl Log {
    /// Opens a log by reading its chunk headers and JSON chunks. What is written after that is not seen.
    pub fn open(path: &Path) -> Result<Log, Error> {
        let failed = |source| Error::Io { path: path.into(), doing: "open", offset: 0, source };
        // Asked before opening: opening a pipe would wait for its writer.
        let kind = std::fs::metadata(path).map_err(failed)?;
        if !kind.is_file() {
            let found = if kind.is_dir() { "a directory" } else { "a pipe or a device, not a file" };
            return Err(Error::NotALog { path: path.into(), found: found.into() });
        }
        let file = File::open(path).map_err(failed)?;
        Log::from_source(Source::File(file), path)
    }

    /// A log that is already in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Log, Error> {
        Log::from_source(Source::Bytes(bytes), Path::new("(memory)"))
    }

    fn from_source(source: Source, path: &Path) -> Result<Log, Error> {
        let failed =
            |e: Unread| Error::Io { path: path.into(), doing: "read", offset: e.offset, source: e.source };
        let size = source.len().map_err(|source| failed(Unread { offset: 0, source }))?;
        if size == 0 {
            return Err(Error::Empty { path: path.into() });
        }
        let found = walk(&source, size).map_err(failed)?;
        match found.first_fault {
            Some(Fault::TooNew(version)) => return Err(Error::TooNew { path: path.into(), version }),
            Some(Fault::TooOld(version)) => return Err(Error::TooOld { path: path.into(), version }),
            _ => {}
        }
        if found.chunks.is_empty() && found.tail_bytes == 0 && found.first_fault == Some(Fault::NoMagic) {
            return Err(Error::NotALog { path: path.into(), found: kind_of_file(&source, size) });
        }
        Log::from_walk(source, path, found)
    }

    fn from_walk(source: Source, path: &Path, found: Walk) -> Result<Log, Error> {
        let walked = found.walked;
        let mut log = Log {
            files: vec![Opened { path: path.into(), source, walked }],
            meta: Meta::default(),
            schema: Schema::default(),
            anchors: Vec::new(),
            devices: Vec::new(),
            numbers: Numbers::default(),
            symbols: Vec::new(),
            tasks: Vec::new(),
            summary: None,
            end_state: EndState::Open { tail_bytes: found.tail_bytes },
            chunks: found.chunks,
            issues: Mutex::new(found.issues),
            missing: Vec::new(),
            forgotten: None,
        };
        let Some(meta) = log.take_json(0, found.tail_bytes) else {
            let first = log.issues().into_iter().next();
            let why = match (first, found.tail_bytes) {
                (Some(issue), _) => format!("damaged: {}", issue.reason),
                (None, 0) => "missing".into(),
                (None, _) => "not yet written or cut off".into(),
            };
            return Err(Error::NoMeta { path: path.into(), offset: 0, why });
        };
        log.meta = meta;
        Ok(log)
    }

    /// Reads what the chunks from `first` on say of the log; gives the first description of a recording among them.
    fn take_json(&mut self, first: usize, tail_bytes: u64) -> Option<Meta> {
        let mut meta = None;
        let mut last = None;
        let mut buf = Vec::new();
        let (mut weight, mut most) = (0u64, MOST_WORDS);
        for i in first..self.chunks.len() {
            let info = self.chunks[i];
            last = Some(info.offset);
            if info.kind != ChunkKind::Json {
                continue;
            }
            let json = match self.payload(&info, &mut buf) {
                Ok(text) => {
                    let own = kpat_model::json_weight(text);
                    most = most.saturating_add(u64::from(info.stored_len) * MOST_WORDS_A_BYTE);
                    if weight.saturating_add(own) > most {
                        Err(format!("its JSON would take {own} bytes of memory, too many for its length"))
                    } else {
                        weight += own;
                        serde_json::from_slice::<Json>(text).map_err(|e| format!("its JSON is invalid: {e}"))
                    }
                }
                Err(why) => Err(why),
            };
            match json {
                Ok(Json::Meta(m)) => {
                    // A part's own clock readings begin with it.
                    self.anchors.push(if m.part.number > 1 { m.part.began } else { m.started });
                    meta.get_or_insert(*m);
                }
                // The files of one recording declare the same.
                Ok(Json::Schema(kinds)) => {
                    let odd;
                    (self.schema, odd) = Schema::of(&kinds);
                    odd.into_iter().for_each(|why| self.add_issue(&info, why));
                }
                Ok(Json::Tasks(t)) => self.tasks.extend(t),
                Ok(Json::Anchor(a)) => self.anchors.push(a),
                Ok(Json::Devices(d)) => {
                    self.devices.extend(d.into_iter().map(|d| self.numbers.device(d)));
                }
                Ok(Json::Symbols(s)) => self.symbols.extend(s),
                Ok(Json::Summary(s)) => {
                    if s.at != ClockAnchor::default() {
                        self.anchors.push(s.at);
                    }
                    if s.complete {
                        self.end_state = EndState::Complete;
                    }
                    last = None;
                    self.summary = Some(*s);
                }
                Err(why) => self.add_issue(&info, why),
            }
        }
        self.devices = newest(std::mem::take(&mut self.devices));
        // A summary counts as the end only if it is one.
        if last.is_some() || !self.summary.as_ref().is_some_and(|s| s.complete) {
            self.end_state = EndState::Open { tail_bytes };
        }
        meta
    }

    /// Of its first file.
    pub fn path(&self) -> &Path {
        &self.files[0].path
    }

    /// Name of one of its files.
    pub fn file_name(&self, file: u32) -> String {
        let path = self.files.get(file as usize).map_or(Path::new(""), |f| &f.path);
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Files of the recording that should be between those that were opened, or before them.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Every pair of clock readings, in file order: at the start, between, and those of the summaries.
    pub fn anchors(&self) -> &[ClockAnchor] {
        &self.anchors
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// In file order; a device whose name or address changed is there more than once. Each namespace has a number of its own, as in the
    /// records.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Number and name of each drop reason, also of modules that were loaded while it was recorded.
    pub fn drop_reasons(&self) -> impl Iterator<Item = &(u32, String)> {
        self.meta.drop_reasons.iter().chain(self.summary.iter().flat_map(|s| &s.drop_reasons))
    }

    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// Tasks that were named in files before the first that was opened.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The newest; of several files the sum.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    pub fn end_state(&self) -> &EndState {
        &self.end_state
    }

    /// Stretches left out so far: those met at opening, and those that reading records met since. Complete after
    /// [`Log::verify`] or after all records were read. In the order of the file.
    pub fn issues(&self) -> Vec<Issue> {
        let mut issues = self.issues.lock().unwrap_or_else(PoisonError::into_inner).clone();
        issues.sort_by_key(|i| (i.file, i.offset));
        issues
    }

    /// CPUs that have records, ascending.
    pub fn cpus(&self) -> Vec<u16> {
        let mut cpus: Vec<u16> =
            self.chunks.iter().filter(|c| c.kind == ChunkKind::Records).map(|c| c.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        cpus
    }

    pub fn chunk_index(&self) -> &[ChunkInfo] {
        &self.chunks
    }

    /// The records of one CPU in the order of the file. A bad chunk is skipped and becomes an issue.
    pub fn records(&self, cpu: u16) -> Records<'_> {
        Records::new(self, cpu)
    }

    /// The records of all CPUs by end time (see [`crate::end_time`]); those of one CPU stay in their order.
    pub fn all_merged(&self) -> Merged<'_> {
        Merged::new(self)
    }

    /// Reads everything once, so that [`Log::issues`] is complete.
    pub fn verify(&self) -> Vec<Issue> {
        for cpu in self.cpus() {
            self.records(cpu).for_each(drop);
        }
        self.issues()
    }

    pub(crate) fn add_issue(&self, info: &ChunkInfo, reason: String) {
        let mut issues = self.issues.lock().unwrap_or_else(PoisonError::into_inner);
        let issue = Issue { file: info.file, offset: info.offset, len: info.end() - info.offset, reason };
        // Records may be read more than once.
        if issues.len() < MAX_ISSUES && !issues.contains(&issue) {
            issues.push(issue);
        }
    }

    /// Says which records of a chunk were passed over: those with codes that are not known, and those of kinds that are not known, by
    /// their place in the schema.
    pub(crate) fn unknown(&self, info: &ChunkInfo, codes: u32, kinds: &BTreeMap<usize, u32>) {
        if codes > 0 {
            self.add_issue(
                info,
                format!("{codes} records have codes that this version of kpat does not know"),
            );
        }
        for (kind, n) in kinds {
            let name = self.schema.name(*kind);
            self.add_issue(
                info,
                format!("{n} records are of kind {name:?}, which this version of kpat does not know"),
            );
        }
    }

    /// A chunk's decoded payload, in `buf`.
    pub(crate) fn payload<'b>(&self, info: &ChunkInfo, buf: &'b mut Vec<u8>) -> Result<&'b [u8], String> {
        read_chunk(&self.files[info.file as usize].source, info, buf)?;
        match info.codec {
            Codec::None => {}
            Codec::Zstd => {
                // The cap bounds the capacity; pages that the payload does not fill are never touched.
                let raw = zstd::bulk::decompress(&buf[HEADER_LEN..], info.raw_len as usize)
                    .map_err(|e| format!("the chunk does not decompress: {e}"))?;
                if raw.len() != info.raw_len as usize {
                    return Err("the chunk decompresses to another length than its header says".into());
                }
                buf.truncate(HEADER_LEN);
                buf.extend_from_slice(&raw);
            }
        }
        Ok(&buf[HEADER_LEN..])
    }
}

/// What a file that is no log looks like.
fn kind_of_file(source: &Source, size: u64) -> String {
    let mut head = [0; 16];
    let len = head.len().min(size as usize);
    if source.read_exact_at(&mut head[..len], 0).is_err() {
        return "nothing readable".into();
    }
    let head = &head[..len];
    let known: [(&[u8], &str); 12] = [
        (
            &[0xd4, 0xc3, 0xb2, 0xa1],
            "a pcap capture (that is a wire log; give it to `kpat integrate` beside the .kbl)",
        ),
        (
            &[0xa1, 0xb2, 0xc3, 0xd4],
            "a pcap capture (that is a wire log; give it to `kpat integrate` beside the .kbl)",
        ),
        (
            &[0x4d, 0x3c, 0xb2, 0xa1],
            "a pcap capture (that is a wire log; give it to `kpat integrate` beside the .kbl)",
        ),
        (
            &[0x0a, 0x0d, 0x0d, 0x0a],
            "a pcapng capture (that is a wire log; give it to `kpat integrate` beside the .kbl)",
        ),
        (&[0x1f, 0x8b], "a gzip file (unpack it first)"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "a zstd file (unpack it first)"),
        (&[0xfd, b'7', b'z', b'X', b'Z'], "an xz file (unpack it first)"),
        (b"PK\x03\x04", "a zip file (unpack it first)"),
        (b"PAR1", "a Parquet table"),
        (b"PERFILE2", "a perf.data file"),
        (b"\x7fELF", "an ELF program"),
        (b"\x89KBL", "the magic of a log that went through a text-mode transfer (fetch it in binary mode)"),
    ];
    if let Some((_, name)) = known.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*name).into();
    }
    if head.iter().all(|b| *b == 0) {
        return "only zero bytes".into();
    }
    if head.iter().all(|b| b.is_ascii_graphic() || b.is_ascii_whitespace()) {
        return format!("text ({:?})", String::from_utf8_lossy(head));
    }
    let hex: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("something unknown (bytes {})", hex.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_row_of_a_device_counts_and_the_last_name_of_its_namespace() {
        let device = |netns_name: &str, name: &str, mtu: u32| Device {
            netns: 7,
            netns_name: netns_name.into(),
            ifindex: 2,
            name: name.into(),
            mtu,
            ..Device::default()
        };
        let rows = vec![device("a", "x", 1), device("a", "x", 2), device("a or b", "y", 3)];
        assert_eq!(newest(rows), [device("a or b", "x", 2), device("a or b", "y", 3)]);
    }
}
