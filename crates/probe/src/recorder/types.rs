//! What a recording is asked for, what it reports, how it ends.

use super::trigger::DumpWhen;
use crate::app::{Addresses, States};
use crate::mechanism::Mechanism;
use crate::profile::{Detail, Selection};
use crate::work::{Resources, Term};
use crate::{control, filter, netlink, plan};
use kpat_klog::{Codec, Room};
use kpat_model::meta;
use kpat_model::programs::Row;
use kpat_model::{BootNs, LossCause, Sample};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub enum Mode {
    Disk,
    /// Flight recorder: this many bytes of memory; a dump holds the last so many seconds (None: all there is).
    Memory {
        bytes: usize,
        last: Option<Duration>,
    },
}

#[derive(Clone, Debug)]
pub struct Options {
    pub output: PathBuf,
    /// What has the names of the recording's files is replaced, once it runs.
    pub replace: bool,
    /// The recording goes on from file to file; their names are made of `output`'s.
    pub rotate: Option<Rotate>,
    pub mechanism: Option<Mechanism>,
    /// What of packets; `None`: nothing.
    pub selection: Option<Selection>,
    pub filter: String,
    /// Only this part of what the filter wants.
    pub sample: Option<Sample>,
    /// Empty: all.
    pub netns: Vec<netlink::NetnsRef>,
    /// Interface names, looked up in the namespaces above. Empty: all.
    pub interfaces: Vec<String>,
    pub ring_bytes: usize,
    /// Packets tracked at once.
    pub packets: u32,
    pub codec: Codec,
    pub mode: Mode,
    /// Of a flight recorder: when it dumps by itself.
    pub dump: Option<DumpWhen>,
    /// Attached, but not logging until it is resumed.
    pub paused: bool,
    pub duration: Option<Duration>,
    pub command: Vec<String>,
    pub ready_file: Option<PathBuf>,
    /// Let the kernel time our programs, in short windows.
    pub measure_cost: bool,
    /// This process reads packets itself (a capture): its own doings are left out.
    pub own_packets: bool,
    pub words: Vec<String>,
    /// What applications ask of the network; `None`: nothing.
    pub application: Option<Application>,
    /// Whom each CPU works for.
    pub work: bool,
    /// Of that, samples with stacks: so many of each CPU in a second, 0: none.
    pub sample_rate: u32,
    /// Only the packets and sockets of these processes are recorded, and of a profile they are profiled each for itself; empty: all.
    pub only: Vec<Term>,
    /// Of that, what is accounted.
    pub resources: Resources,
    /// What programs say of their work.
    pub programs: Option<Programs>,
    /// What a device does to have a network.
    pub wifi: bool,
}

impl Options {
    /// Not everybody's packets and sockets are recorded.
    pub fn by_process(&self) -> bool {
        !self.only.is_empty() && (self.selection.is_some() || self.application.is_some())
    }
}

/// Of a recording of what programs say: rows of the table of programs.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// What is not found of them is no surprise.
    pub built_in: Vec<Row>,
    /// The user's own.
    pub wanted: Vec<Row>,
    /// Calls of a function, or hits of another place, that are recorded in a second at most; 0: all.
    pub most_a_second: u32,
}

/// Of a recording of applications.
#[derive(Clone, Debug)]
pub struct Application {
    pub states: States,
    /// Acknowledgements without data are crossings, too.
    pub empty: bool,
    pub addresses: Addresses,
}

/// When a file is whole and the next one begins; at least one of the first two.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotate {
    pub bytes: Option<u64>,
    pub every: Option<Duration>,
    /// Only so many finished files stay.
    pub keep: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Plan(#[from] plan::Error),
    #[error(transparent)]
    Filter(#[from] filter::Error),
    #[error(transparent)]
    Log(#[from] kpat_klog::Error),
    #[error(transparent)]
    Control(#[from] control::Error),
    #[error("cannot watch interfaces and routes: {0}")]
    Netlink(#[from] netlink::Error),
    #[error("there is no interface {name} in the namespaces to be recorded; there are {there}")]
    NoInterface { name: String, there: String },
    #[error("this kernel has no drop reason {0}; names of functions are written in lower case")]
    NoSuchReason(String),
    #[error("the kernel refused the clocks that take samples: {0}; --rate 0 records the sums without them")]
    Samples(std::io::Error),
    #[error("not to be chosen: {0}")]
    Chosen(std::io::Error),
    #[error("the kernel refused to map the rings: {0}")]
    Map(std::io::Error),
    #[error("cannot run {program}: {source}")]
    Command { program: String, source: std::io::Error },
    #[error("{} exists; use --force to replace it, or -o for another name", .0.display())]
    Exists(PathBuf),
    #[error("{} is in the way, and no recording that was killed left it; remove it, or give another name by -o", .0.display())]
    InTheWay(PathBuf),
    #[error("{} is being written by another recording; -o gives another name", .0.display())]
    Busy(PathBuf),
    #[error("{} was removed while it was written: what was recorded is lost", .0.display())]
    Removed(PathBuf),
    #[error("too few file descriptors: {has} (ulimit -n); this recording needs {needs}")]
    Descriptors { has: u64, needs: u64 },
    #[error("files are limited to {has} bytes (ulimit -f); a log needs {needs}")]
    FileSize { has: u64, needs: u64 },
    #[error("cannot write into {}: {why}", .folder.display())]
    NoPlace { folder: PathBuf, why: String },
    #[error("{0}")]
    Beside(String),
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
}

/// What the person at the terminal should hear.
pub enum Note {
    Decided {
        /// Which source: what it records.
        source: &'static str,
        mechanism: Mechanism,
        /// How many of the functions go by fentry though the mechanism is another.
        by_fentry: usize,
        /// Of functions; `None`: there are none.
        detail: Option<Detail>,
        passed_over: Vec<String>,
        functions: usize,
        left_out: usize,
        /// Name of the build of the BPF program.
        build: &'static str,
        /// It is slower than this kernel allows.
        build_warning: Option<String>,
        /// Asked for by name and not recorded: what, and why.
        unmet: Vec<(String, String)>,
    },
    Attaching {
        done: usize,
        of: usize,
    },
    Attached {
        functions: usize,
        seconds: f64,
    },
    Ready,
    Lost {
        cause: LossCause,
        cpu: i32,
        count: u64,
    },
    Dumped {
        path: PathBuf,
        records: u64,
    },
    /// Nothing was recorded since the last dump: no file is made.
    NothingToDump,
    Full(Room),
    /// The log's file may have so many bytes at most: what is recorded beyond is lost.
    SizeLimit(u64),
    /// A file of a recording that goes on is whole.
    Finished(Written),
    /// A file that a killed recorder left was given its name.
    Adopted(PathBuf),
    /// Something beside the log does not work or is not recorded, and why.
    Hindered(String),
    Detaching,
}

/// A log that was written.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Written {
    pub path: PathBuf,
    pub records: u64,
    pub bytes: u64,
}

/// Something that runs beside a recording and ends with it: captures of the wire.
pub trait Beside {
    /// Everything else runs: files get their names.
    ///
    /// *Errors*: words for people; the recording does not start.
    fn started(&mut self) -> Result<(), String>;
    /// Logging ends now.
    fn stopping(&mut self);
    /// What was lost since the last call; called several times a second, and once after [`Beside::stopping`].
    fn losses(&mut self) -> Vec<BesideLoss>;
}

/// Frames that a capture lost, after the time of the loss before and not after `to`.
#[derive(Clone, Debug)]
pub struct BesideLoss {
    /// The interface.
    pub place: String,
    pub from: BootNs,
    pub to: BootNs,
    pub count: u64,
}

/// How it ended.
pub struct Outcome {
    pub summary: meta::Summary,
    pub functions: usize,
    pub left_out: Vec<(String, String)>,
    /// Asked for by name and not recorded: what, and why.
    pub unmet: Vec<(String, String)>,
    pub mechanism: Mechanism,
    /// How many of the functions went by fentry though the mechanism is another.
    pub by_fentry: usize,
    /// Name of the build of the BPF program.
    pub build: &'static str,
    /// Better builds, and why each was not taken.
    pub build_passed_over: Vec<String>,
    /// Packets that were admitted to the log.
    pub packets: u64,
    /// Probe hits of packets that the filter, the namespaces or the interfaces leave out.
    pub refused_hits: u64,
    /// Sockets of datagrams that the filter leaves out because they have no peer, though it may want what they carry.
    pub peerless_sockets: u64,
    /// Exit code of the command that was recorded, if there was one.
    pub command_code: Option<i32>,
    /// The newest of them, if they are very many.
    pub outputs: Vec<Written>,
    /// What would have dumped the flight recorder, but came too early after a dump or beyond its budget.
    pub suppressed: u64,
}
