//! Live capture: an interface in, a pcapng file out.
//!
//! One thread reads a packet socket in batches and writes what it got; memory is bounded by the socket's buffer and
//! one batch. What the kernel had to drop is in the file's interface statistics. A plain socket and not a memory-mapped ring:
//! a ring hands over a block when it is full or old, so the last frames before `stop` would need a wait.

mod socket;
mod write;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Error;
use kpat_model::Sample;
use socket::{Batch, PacketSocket, Ready, Refused};
use write::{Description, PcapngFile, Seen};

/// Interface name that means all interfaces of the namespace; frames then have a cooked header.
pub const ANY: &str = "any";

/// Kept of a frame where the caller gave no limit.
const MAX_SNAPLEN: u32 = 256 << 10;
/// Losses are counted so often.
const LOOKED: Duration = Duration::from_millis(100);
/// What was captured so long ago is in the file.
const FLUSHED: Duration = Duration::from_millis(250);

/// What a sniffer saw; `bytes` counts whole frames as they were on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SniffStats {
    pub frames: u64,
    pub bytes: u64,
    pub kernel_drops: u64,
}

/// What is captured of the frames at an interface.
#[derive(Clone, Debug, Default)]
pub struct Want {
    /// Bytes kept of each frame, 0: all.
    pub snaplen: u32,
    /// Makes the classic BPF program that frames of a link type (LINKTYPE_*) have to pass; for a cooked capture, whose filter sees
    /// frames from their network header on, it is asked for LINKTYPE_RAW. `None`: all frames.
    pub filter: Option<Compile>,
    pub filter_text: String,
    /// The recording beside has only this part of the packets: frames of others are not written.
    pub sample: Option<Sample>,
    /// Called by the capturing thread once it has its socket and file: what it may do beyond that can be given up.
    pub settled: Option<fn()>,
}

/// An instruction of classic BPF: code, two jumps, constant.
pub type Instruction = (u16, u8, u8, u32);

/// Filter text and LINKTYPE_* to classic BPF; the error is words.
pub type Compile = fn(&str, u16) -> Result<Vec<Instruction>, String>;

/// Frames that the kernel had no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// After this and not after `to`.
    pub from: Instant,
    pub to: Instant,
    pub frames: u64,
}

/// A running capture. Dropping it ends it, too, but then its statistics are lost.
pub struct Sniffer {
    /// Closing it tells the thread to end.
    running: Option<UnixStream>,
    thread: Option<JoinHandle<Result<SniffStats, Error>>>,
    dropped: mpsc::Receiver<Dropped>,
}

impl Sniffer {
    /// Starts to write all frames of `ifname` ([`ANY`]: of all interfaces) to `out`; when it returns, frames are being captured.
    ///
    /// `netns` is a name under `/run/netns`, or a whole path; only the capturing thread enters it. The interface is promiscuous while the
    /// sniffer runs.
    ///
    /// *Errors*: [`Error::Sniff`], and [`Error::Open`] if `out` cannot be created.
    pub fn start(ifname: &str, netns: Option<&str>, out: &Path, want: &Want) -> Result<Sniffer, Error> {
        let job = Job {
            ifname: ifname.to_string(),
            netns: netns.map(str::to_string),
            out: out.to_path_buf(),
            snaplen: if want.snaplen == 0 { MAX_SNAPLEN } else { want.snaplen.min(MAX_SNAPLEN) },
            want: want.clone(),
        };
        let (report, dropped) = mpsc::channel();
        let refuse = |doing| move |source| refused(ifname, Refused { doing, source });
        let (running, stopped) = UnixStream::pair().map_err(refuse("making a pair of sockets"))?;
        let (tell, logged) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("kpat-sniff".into())
            .spawn(move || job.run(&stopped, &tell, &report))
            .map_err(refuse("starting a thread"))?;
        let mut sniffer = Sniffer { running: Some(running), thread: Some(thread), dropped };
        match logged.recv() {
            Ok(()) => Ok(sniffer),
            // The thread ended before it was ready: its result says why.
            Err(_) => match sniffer.stop() {
                Err(e) => Err(e),
                Ok(_) => unreachable!("the sniffer's thread says that it is ready before it succeeds"),
            },
        }
    }

    /// Losses that were not handed over yet.
    pub fn dropped(&self) -> Vec<Dropped> {
        self.dropped.try_iter().collect()
    }

    /// Ends the capture: frames seen before the call are in the file, and so are the statistics.
    pub fn stop(&mut self) -> Result<SniffStats, Error> {
        self.end().unwrap_or(Ok(SniffStats::default()))
    }

    fn end(&mut self) -> Option<Result<SniffStats, Error>> {
        self.running = None;
        match self.thread.take()?.join() {
            Ok(result) => Some(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

struct Job {
    ifname: String,
    netns: Option<String>,
    out: PathBuf,
    snaplen: u32,
    want: Want,
}

impl Job {
    fn wants(&self, seen: &Seen, link_type: u16) -> bool {
        self.want.sample.is_none_or(|s| !s.leaves_out(seen.network(link_type)))
    }

    fn run(
        self,
        stopped: &UnixStream,
        ready: &mpsc::SyncSender<()>,
        report: &mpsc::Sender<Dropped>,
    ) -> Result<SniffStats, Error> {
        let refuse = |r| refused(&self.ifname, r);
        if let Some(name) = &self.netns {
            socket::enter_netns(name).map_err(refuse)?;
        }
        let program = |link_type| match self.want.filter {
            None => Ok(Vec::new()),
            Some(make) => make(&self.want.filter_text, link_type)
                .map_err(|why| Refused { doing: "compiling the filter", source: io::Error::other(why) }),
        };
        let socket = PacketSocket::open(&self.ifname, self.snaplen, program).map_err(refuse)?;
        let create = |source| Error::Open { path: self.out.clone(), source };
        // Not through a link, and for its owner alone: there are payloads in it.
        let new = File::options().write(true).create_new(true).mode(0o600).open(&self.out);
        let file = new.map_err(create)?;
        let comment = self.netns.as_ref().map(|name| format!("network namespace {name}"));
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let description = Description {
            interface: &self.ifname,
            link_type: socket.link_type(),
            snaplen: self.snaplen,
            os: &socket::kernel_name(),
            boot_id: boot_id.trim(),
            comment: comment.as_deref(),
        };
        let started_ns = now_ns();
        let broken = |offset, source| Error::Io { path: self.out.clone(), offset, source };
        let mut file = PcapngFile::begin(file, &description).map_err(|e| broken(0, e))?;
        self.want.settled.into_iter().for_each(|f| f());
        let _ = ready.send(());
        let mut batch = Batch::new(self.snaplen as usize);
        let mut stats = SniffStats::default();
        let (mut flushed, mut looked) = (Instant::now(), Instant::now());
        loop {
            let waited = socket.wait(stopped.as_fd()).map_err(refuse)?;
            if waited == Ready::Stop {
                socket.close_tap().map_err(refuse)?;
            }
            loop {
                let got = socket.receive(&mut batch).map_err(refuse)?;
                for seen in batch.frames(got, &socket).filter(|seen| self.wants(seen, socket.link_type())) {
                    stats.frames += 1;
                    stats.bytes += u64::from(seen.len_wire);
                    file.frame(&seen, self.snaplen).map_err(|e| broken(file.offset(), e))?;
                }
                // While stopping the rest of the queue is finite, for nothing more goes in.
                if got == 0 || waited != Ready::Stop {
                    break;
                }
            }
            // Also where frames come one by one and it is never idle: readers that follow the file wait for them.
            if waited == Ready::Idle || flushed.elapsed() >= FLUSHED {
                file.flush().map_err(|e| broken(file.offset(), e))?;
                flushed = Instant::now();
            }
            if waited == Ready::Stop || looked.elapsed() >= LOOKED {
                let (from, frames) = (looked, socket.drops().map_err(refuse)?);
                looked = Instant::now();
                stats.kernel_drops += frames;
                if frames > 0 {
                    let _ = report.send(Dropped { from, to: looked, frames });
                }
            }
            if waited == Ready::Stop {
                break;
            }
        }
        file.end(started_ns, now_ns(), stats.frames + stats.kernel_drops, stats.kernel_drops)
            .map_err(|e| broken(file.offset(), e))?;
        Ok(stats)
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

fn refused(interface: &str, Refused { doing, source }: Refused) -> Error {
    let remedy = match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "run as root, or with CAP_NET_RAW (and CAP_SYS_ADMIN for a namespace)"
        }
        Some(libc::ENODEV | libc::ENXIO) => "name an interface that `ip link` shows in that namespace",
        Some(libc::ENOENT) => "name a namespace that `ip netns` shows",
        Some(libc::ENETDOWN) => "set the interface up",
        Some(libc::EAFNOSUPPORT) => "the kernel needs CONFIG_PACKET",
        _ if source.kind() == io::ErrorKind::InvalidInput => "give a plain name",
        _ => "see the system's message",
    };
    Error::Sniff { interface: interface.into(), doing, source, remedy }
}
