//! Control of a running recording: a unix socket in /run/kpat, one JSON request a line, one JSON reply a line. Only
//! root and the user who records can reach it (mode 0600). Its state, renewed every second, stands in a file beside it that everybody may read.

mod reach;

use crate::work::ChangeChoice;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Status,
    /// Globs of functions to log from now on.
    On(Vec<String>),
    Off(Vec<String>),
    /// Log nothing, with as little as possible on the packets' way; and back.
    Pause,
    Resume,
    /// What is `None` stays.
    Set(Change),
    /// Of a profile: which processes are profiled each for itself.
    Choose(ChangeChoice),
    /// Flight recorder: write what is in memory.
    Dump,
    /// Begin the next file now.
    Rotate,
    /// Begin the only file anew: what is in it is gone.
    Reset,
    Stop,
}

/// What can be changed of a recording while it runs; all but the rings of recordings of applications only.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// pcap-filter text; empty: all.
    pub filter: Option<String>,
    /// Nanoseconds after which TCP's state is written though nothing changed; 0: with every event.
    pub state_every_ns: Option<u64>,
    /// `false`: TCP's state is not written.
    pub states: Option<bool>,
    pub acks: Option<bool>,
    /// How much of each CPU's ring is used.
    pub ring_bytes: Option<u64>,
}

impl Change {
    pub fn of_applications(&self) -> bool {
        self.filter.is_some() || self.state_every_ns.is_some() || self.states.is_some() || self.acks.is_some()
    }
}

/// How a recording is; numbers are of the whole recording. Rates and fill are of the last whole second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub pid: u32,
    pub output: String,
    /// What is being written now; empty in memory.
    pub file: String,
    /// Of a recording that goes from file to file: number of that file, from 1; else 0.
    pub file_number: u32,
    pub file_bytes: u64,
    /// When the recording started: wall clock then, in nanoseconds.
    pub started_wall_ns: i64,
    pub mode: String,
    pub mechanism: String,
    pub paused: bool,
    /// Programs with a fixed hook (tracepoints; of applications also functions) that are attached now: none while paused ...
    pub points_attached: usize,
    /// ... and when it logs.
    pub points: usize,
    /// How long the last resumption took, from the request until everything logged; 0: there was none.
    pub resume_ns: u64,
    pub seconds: f64,
    pub functions: usize,
    pub functions_on: usize,
    pub records: u64,
    pub records_per_second: f64,
    pub bytes: u64,
    pub bytes_per_second: f64,
    /// What is recorded now is lost until there is room.
    pub disk_full: bool,
    /// CPU time of the recorder itself.
    pub drain_cpu_seconds: f64,
    pub memory_bytes: u64,
    /// Of a flight recorder: what would have dumped it, but came too early or beyond its budget.
    pub suppressed_dumps: u64,
    /// What the programs cost so far.
    pub cost: kpat_model::meta::Cost,
    pub losses: Vec<kpat_model::meta::LossTotal>,
    /// Of the fullest ring.
    pub ring_fill_percent: f64,
    /// Of each CPU's ring: how full it was at most.
    pub rings_fill_percent: Vec<f64>,
    /// Of each CPU's ring: how much of it is used ...
    pub ring_bytes: u64,
    /// ... and how much it has.
    pub ring_allocated_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Status(Box<Status>),
    Done(String),
    Refused(String),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("no recording is running (nothing in {0})")]
    NoneRunning(String),
    #[error("several recordings are running ({0}); choose one with --pid")]
    Several(String),
    #[error("no recording has process id {0}; `kpat ctl list` lists those that run")]
    NoSuch(u32),
    #[error(
        "only root and the user who records may control recording {0}; `kpat ctl status` needs no such right"
    )]
    NotAllowed(u32),
    #[error("whether a recording runs is not known: {0} may not be read by this user; run as root")]
    Hidden(String),
    #[error("recording {0} did not answer: {1}")]
    NoAnswer(u32, String),
    #[error(
        "recording {0} did not answer within {1} s: is it stopped, or its cgroup frozen? (`ps -o stat,wchan {0}`)"
    )]
    Silent(u32, u64),
}

const SYSTEM: &str = "/run/kpat";

/// Where sockets and states are: of root and of services, and of this user.
fn directories() -> Vec<PathBuf> {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let own = PathBuf::from(format!("/run/user/{user}"));
    [PathBuf::from(SYSTEM)].into_iter().chain((user != 0).then(|| own.join("kpat"))).collect()
}

/// Everything in them.
fn entries() -> impl Iterator<Item = PathBuf> {
    directories().into_iter().filter_map(|d| std::fs::read_dir(d).ok()).flatten().flatten().map(|e| e.path())
}

/// The socket of a recording, whether it is there or not.
fn socket_of(pid: u32) -> PathBuf {
    let mut all = directories().into_iter().map(|d| d.join(format!("{pid}.sock")));
    all.find(|p| p.exists()).unwrap_or_else(|| Path::new(SYSTEM).join(format!("{pid}.sock")))
}

/// The recorder's end.
pub struct Server {
    listener: UnixListener,
    clients: VecDeque<Client>,
    path: PathBuf,
}

impl Server {
    /// In the first folder in which this user may.
    pub fn start() -> Result<Server, Error> {
        // What killed recorders left.
        running();
        clear();
        let mut refused = None;
        for dir in directories() {
            match Server::start_in(&dir) {
                Ok(server) => return Ok(server),
                Err(e) => _ = refused.get_or_insert(e),
            }
        }
        Err(refused.unwrap_or_else(|| Error::NoneRunning(SYSTEM.into())))
    }

    fn start_in(dir: &Path) -> Result<Server, Error> {
        let path = dir.join(format!("{}.sock", std::process::id()));
        let io = |source| Error::Io { path: path.display().to_string(), source };
        if !dir.is_dir() {
            std::fs::create_dir(dir).map_err(io)?;
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).map_err(io)?;
        }
        let _ = std::fs::remove_file(&path);
        // SAFETY: sets a number of this process; nothing else makes files at this moment.
        let before = unsafe { libc::umask(0o177) };
        let listener = UnixListener::bind(&path);
        // SAFETY: as above.
        unsafe { libc::umask(before) };
        let listener = listener.map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        Ok(Server { listener, clients: VecDeque::new(), path })
    }

    /// Renews the state that everybody may read. What hinders it (a full /run) hinders no recording.
    pub fn publish(&self, status: &Status) {
        let Ok(text) = serde_json::to_vec(status) else { return };
        let new = self.path.with_extension("new");
        let written = std::fs::write(&new, text)
            .and_then(|()| std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)))
            .and_then(|()| std::fs::rename(&new, state_of(&self.path)));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
    }

    /// Answers pending requests. Never blocks: what a client has sent so far is kept until the rest arrives, and a
    /// reply that it does not take is its loss.
    pub fn serve(&mut self, answer: &mut dyn FnMut(Request) -> Reply) {
        for _ in 0..MOST_ACCEPTED {
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_ok() {
                self.clients.push_back(Client { stream, line: Vec::new(), since: Instant::now() });
            }
        }
        self.clients.retain_mut(|c| {
            let reply = match c.read() {
                Ok(None) => return c.since.elapsed() < PATIENCE,
                Ok(Some(r)) => answer(r),
                Err(why) => Reply::Refused(why),
            };
            if let Ok(text) = serde_json::to_string(&reply) {
                let _ = c.stream.write_all((text + "\n").as_bytes());
            }
            false
        });
        // Now that each was read once: who has asked is not among them.
        self.clients.drain(..self.clients.len().saturating_sub(MOST_CLIENTS));
    }
}

/// Clients that are listened to at a time; the oldest gives way.
const MOST_CLIENTS: usize = 16;
/// Those that are accepted in one call: as many as a listening socket lets wait.
const MOST_ACCEPTED: usize = 128;
/// For a request to be whole.
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST: usize = 1 << 16;

/// Whoever connected and has not sent a whole line yet.
struct Client {
    stream: UnixStream,
    line: Vec<u8>,
    since: Instant,
}

impl Client {
    /// `None`: more has to come.
    fn read(&mut self) -> Result<Option<Request>, String> {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e.to_string()),
                // No line end: what has come is all.
                Ok(0) => break,
                Ok(n) => self.line.extend_from_slice(&piece[..n]),
            }
            if self.line.contains(&b'\n') {
                break;
            }
            if self.line.len() > LONGEST {
                return Err("not a request: too long".into());
            }
        }
        let line = self.line.split(|b| *b == b'\n').next().unwrap_or_default();
        serde_json::from_slice(line).map(Some).map_err(|e| format!("not a request: {e}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(state_of(&self.path));
    }
}

fn state_of(socket: &Path) -> PathBuf {
    socket.with_extension("json")
}

/// For a recording to take a connection, a request, and to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// To tell whether one listens.
const AT_HAND: Duration = Duration::from_millis(500);

/// Pids of recordings that run, also of those that only root may ask.
pub fn running() -> Vec<u32> {
    let mut out: Vec<u32> = entries()
        .filter_map(|path| {
            let pid: u32 = path.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()?;
            // a socket of a recording that was killed refuses the connection
            match reach::connect(&path, AT_HAND) {
                Ok(_) => Some(pid),
                // One that is stopped, or has much to do, runs all the same.
                Err(e) if e.kind() == ErrorKind::WouldBlock => Some(pid),
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => lives(pid).then_some(pid),
                // One that is about to listen refuses it, too.
                Err(_) if lives(pid) => None,
                Err(_) => {
                    let _ = std::fs::remove_file(&path);
                    let _ = std::fs::remove_file(state_of(&path));
                    None
                }
            }
        })
        .collect();
    out.sort_unstable();
    out
}

/// Some process has that number.
fn lives(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Removes states without a recording.
fn clear() {
    for path in entries() {
        let state = path.extension().is_some_and(|e| e == "json" || e == "new");
        let pid = path.file_stem().and_then(|s| s.to_str()).and_then(|s| s.parse::<u32>().ok());
        if state && pid.is_some_and(|pid| !lives(pid)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The state that a recording writes for users who have no access to its socket.
fn published(pid: u32) -> Option<Reply> {
    let text = std::fs::read(state_of(&socket_of(pid))).ok()?;
    serde_json::from_slice(&text).ok().map(|s| Reply::Status(Box::new(s)))
}

/// Sends a request to a recording; `pid` may be left out when only one runs.
pub fn ask(pid: Option<u32>, request: &Request) -> Result<Reply, Error> {
    let pid = match pid {
        Some(p) => p,
        None => match running()[..] {
            [] if std::fs::read_dir(SYSTEM).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied) => {
                return Err(Error::Hidden(SYSTEM.into()));
            }
            [] => return Err(Error::NoneRunning(SYSTEM.into())),
            [one] => one,
            ref several => {
                let list: Vec<String> = several.iter().map(u32::to_string).collect();
                return Err(Error::Several(list.join(", ")));
            }
        },
    };
    let path = socket_of(pid);
    let io = |source| Error::Io { path: path.display().to_string(), source };
    let stream = reach::connect(&path, ANSWER);
    if stream.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied) {
        let state = if matches!(request, Request::Status) { published(pid) } else { None };
        return state.ok_or(Error::NotAllowed(pid));
    }
    let stream = stream.map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::NoSuch(pid),
        ErrorKind::WouldBlock => Error::Silent(pid, ANSWER.as_secs()),
        _ => io(e),
    })?;
    stream.set_read_timeout(Some(ANSWER)).map_err(io)?;
    let text = serde_json::to_string(request).map_err(|e| Error::NoAnswer(pid, e.to_string()))?;
    let failed = |e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock => Error::Silent(pid, ANSWER.as_secs()),
        _ => Error::NoAnswer(pid, e.to_string()),
    };
    (&stream).write_all((text + "\n").as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(failed)?;
    serde_json::from_str(&line).map_err(|e| Error::NoAnswer(pid, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_asked_does_not_give_way_to_those_who_say_nothing() {
        let dir = std::env::temp_dir().join(format!("kpat-control-many-{}", std::process::id()));
        let mut server = Server::start_in(&dir).unwrap();
        let connect = || UnixStream::connect(&server.path).unwrap();
        let mut asks = connect();
        asks.write_all(b"\"status\"\n").unwrap();
        let silent: Vec<UnixStream> = (0..3 * MOST_CLIENTS).map(|_| connect()).collect();
        server.serve(&mut |_| Reply::Done("here".into()));
        asks.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut line = String::new();
        BufReader::new(&asks).read_line(&mut line).unwrap();
        assert!(line.contains("here"), "{line}");
        assert_eq!(server.clients.len(), MOST_CLIENTS);
        drop((silent, server));
        std::fs::remove_dir(&dir).unwrap();
    }

    /// One call answers every client with a complete request, also if earlier clients have not finished theirs; those are answered when they have.
    #[test]
    fn nobody_waits_for_a_slow_client() {
        let dir = std::env::temp_dir().join(format!("kpat-control-{}", std::process::id()));
        let mut server = Server::start_in(&dir).unwrap();
        let connect = || UnixStream::connect(&server.path).unwrap();
        let (mut silent, mut slow, mut whole) = (connect(), connect(), connect());
        slow.write_all(b"\"st").unwrap();
        whole.write_all(b"\"stop\"\n").unwrap();
        let mut asked = Vec::new();
        let mut look = |server: &mut Server| {
            server.serve(&mut |r| {
                asked.push(format!("{r:?}"));
                Reply::Done("so be it".into())
            });
            asked.clone()
        };
        assert_eq!(look(&mut server), ["Stop"]);
        let mut line = String::new();
        BufReader::new(&whole).read_line(&mut line).unwrap();
        assert!(line.contains("so be it"), "{line}");
        slow.write_all(b"atus\"\n").unwrap();
        assert_eq!(look(&mut server), ["Stop", "Status"]);
        silent.write_all(&[b' '; LONGEST + 1]).unwrap();
        assert_eq!(look(&mut server).len(), 2);
        let mut line = String::new();
        BufReader::new(&silent).read_line(&mut line).unwrap();
        assert!(line.contains("too long"), "{line}");
        drop(server);
        std::fs::remove_dir(&dir).unwrap();
    }
}
