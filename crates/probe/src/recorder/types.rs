//! What a recording is told, what it says, how it ends.

use crate::app::{Addresses, States};
use crate::mechanism::Mechanism;
use crate::profile::Selection;
use crate::{control, filter, netlink, plan};
use kpat_klog::Codec;
use kpat_model::LossCause;
use kpat_model::meta;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub enum Mode {
    Disk,
    /// Flight recorder: this many bytes of memory; a dump holds the last so many seconds (None: all there is).
    Memory {
        bytes: usize,
        last: Option<Duration>,
        dump_on_drop: bool,
    },
}

#[derive(Clone, Debug)]
pub struct Options {
    pub output: PathBuf,
    /// The recording goes on from file to file; their names are made of `output`'s.
    pub rotate: Option<Rotate>,
    pub mechanism: Option<Mechanism>,
    pub selection: Selection,
    pub filter: String,
    /// Empty: all.
    pub netns: Vec<netlink::NetnsRef>,
    /// Interface names, looked up in the namespaces above. Empty: all.
    pub interfaces: Vec<String>,
    pub ring_bytes: usize,
    /// Packets tracked at once.
    pub packets: u32,
    pub codec: Codec,
    pub mode: Mode,
    /// Attached, but not logging until told to resume.
    pub paused: bool,
    pub duration: Option<Duration>,
    pub command: Vec<String>,
    pub ready_file: Option<PathBuf>,
    /// Let the kernel time our programs, in short windows.
    pub measure_cost: bool,
    /// This process reads packets itself (a capture): its own doings are left out.
    pub own_packets: bool,
    pub words: Vec<String>,
    /// Record what applications ask of the network instead of what the kernel does with packets.
    pub application: Option<Application>,
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
    #[error("no interface is called {0} in the namespaces recorded")]
    NoInterface(String),
    #[error("the kernel does not let its rings be mapped: {0}")]
    Map(std::io::Error),
    #[error("cannot run {program}: {source}")]
    Command { program: String, source: std::io::Error },
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
}

/// What the person at the terminal should hear.
pub enum Note {
    Decided {
        mechanism: Mechanism,
        passed_over: Vec<String>,
        functions: usize,
        left_out: usize,
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
    DiskFull,
    /// A file of a recording that goes on is whole.
    Finished(Written),
    /// A file that a killed recorder left was given its name.
    Adopted(PathBuf),
    /// A finished file could not be given its name, or an old one not be removed.
    Unnamed(String),
    Detaching,
}

/// A log that was written.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Written {
    pub path: PathBuf,
    pub records: u64,
    pub bytes: u64,
}

/// How it ended.
pub struct Outcome {
    pub summary: meta::Summary,
    pub functions: usize,
    pub left_out: Vec<(String, String)>,
    pub mechanism: Mechanism,
    /// Exit code of the command that was recorded, if there was one.
    pub command_code: Option<i32>,
    /// The newest of them, if they are very many.
    pub outputs: Vec<Written>,
}
