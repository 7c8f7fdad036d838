//! QEMU's machine protocol: a line of JSON per command, answer and event, over a socket of one client at a time.
//!
//! Events come whenever they like, also before an answer; they are kept, oldest first, until somebody takes them.

use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An answer longer than this is not believed; `info mtree -f` of large machines has some 100 KB.
const LONGEST: usize = 32 << 20;
/// Kept events; of more, the oldest are dropped and counted.
const EVENTS: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(10);
/// Until QEMU takes a client and greets it.
const GREETING: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// SHUTDOWN, RESET, STOP ...
    pub name: String,
    pub data: Value,
    /// By the host's wall clock.
    pub at_wall_us: i64,
}

struct Connection {
    stream: UnixStream,
    /// Received and not yet a whole line.
    rest: Vec<u8>,
    events: VecDeque<Event>,
    dropped: u64,
    next_id: u64,
}

/// One connection. All methods may be called by several threads; commands take turns.
pub struct Qmp {
    path: PathBuf,
    connection: Mutex<Connection>,
    peer: Option<u32>,
    version: String,
}

/// A socket whose queue of clients is full lets a further one wait without end, so its patience is set before: then it is `WouldBlock`.
fn open(path: &Path) -> std::io::Result<UnixStream> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: zeros are a value of it.
    let mut to: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if bytes.is_empty() || bytes.len() >= to.sun_path.len() || bytes.contains(&0) {
        return Err(ErrorKind::InvalidInput.into());
    }
    to.sun_family = libc::AF_UNIX as libc::sa_family_t;
    to.sun_path.iter_mut().zip(bytes).for_each(|(at, b)| *at = *b as libc::c_char);
    // SAFETY: no memory is handed over.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it was made above, and nobody else has it.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    stream.set_write_timeout(Some(GREETING))?;
    // SAFETY: the address lives until then, and its size is its own.
    let made = unsafe { libc::connect(fd, (&raw const to).cast(), size_of_val(&to) as libc::socklen_t) };
    if made < 0 {
        return Err(std::io::Error::last_os_error());
    }
    stream.set_write_timeout(None)?;
    Ok(stream)
}

impl Qmp {
    pub fn connect(path: &Path) -> Result<Qmp> {
        let name = path.display().to_string();
        let taken = || {
            Error::NoGuest(format!(
                "{name} does not answer: QEMU serves one client at a time, and another program has it"
            ))
        };
        let stream = open(path).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => taken(),
            _ => Error::io(name.clone())(e),
        })?;
        let peer = peer(&stream);
        let mut c = Connection { stream, rest: Vec::new(), events: VecDeque::new(), dropped: 0, next_id: 1 };
        let greeting = c.message(Instant::now() + GREETING).map_err(|e| match e {
            Error::Timeout(_) => taken(),
            e => e,
        })?;
        let Some(version) = greeting.get("QMP").map(|q| &q["version"]["qemu"]) else {
            return Err(Error::NoGuest(format!("{name} is not a QMP socket")));
        };
        let version = ["major", "minor", "micro"].map(|k| version[k].as_u64().unwrap_or(0).to_string());
        let qmp = Qmp { path: path.into(), connection: Mutex::new(c), peer, version: version.join(".") };
        qmp.command("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process that listens at the other end, as the kernel knows it.
    pub fn peer(&self) -> Option<u32> {
        self.peer
    }

    /// QEMU's, such as 7.2.22.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// One command, and what it returns.
    pub fn command(&self, command: &str, arguments: Value) -> Result<Value> {
        let mut c = self.lock();
        let id = c.next_id;
        c.next_id += 1;
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        c.stream.write_all(line.as_bytes()).map_err(gone)?;
        c.answer(command, id)
    }

    /// Gives QEMU an open socket or file under a name, for a command that follows.
    pub fn pass(&self, name: &str, what: &impl AsRawFd) -> Result<()> {
        // Nothing is sent between the descriptor and its command: QEMU takes what came last.
        let sent = {
            let mut c = self.lock();
            let id = c.next_id;
            c.next_id += 1;
            let line = json!({"execute": "getfd", "arguments": {"fdname": name}, "id": id});
            send_with(&c.stream, format!("{line}\n").as_bytes(), what.as_raw_fd()).map_err(gone)?;
            c.answer("getfd", id)
        };
        sent.map(drop)
    }

    /// Of the connection, for a process that outlives this one.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.lock().stream.as_raw_fd()
    }

    /// One line for QEMU's monitor for people, and its text.
    pub fn monitor(&self, line: &str) -> Result<String> {
        self.monitor_of(line, None)
    }

    /// The same, of one processor where the command depends on it.
    pub fn monitor_of(&self, line: &str, vcpu: Option<u32>) -> Result<String> {
        let mut arguments = json!({"command-line": line});
        if let Some(v) = vcpu {
            arguments["cpu-index"] = v.into();
        }
        let text = self.command("human-monitor-command", arguments)?;
        Ok(text.as_str().unwrap_or_default().replace('\r', ""))
    }

    /// The oldest event that nobody took yet; waits up to `patience` for one.
    pub fn event(&self, patience: Duration) -> Result<Option<Event>> {
        let mut c = self.lock();
        let until = Instant::now() + patience;
        loop {
            if let Some(e) = c.events.pop_front() {
                return Ok(Some(e));
            }
            match c.message(until) {
                Ok(m) => {
                    c.event(&m);
                }
                Err(Error::Timeout(_)) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// Events that came while more were kept than there is room for.
    pub fn dropped_events(&self) -> u64 {
        self.lock().dropped
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A thread that panicked with it leaves whole messages only.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    fn answer(&mut self, command: &str, id: u64) -> Result<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut answer = self.message(until).map_err(|e| match e {
                Error::Timeout(_) => Error::Timeout(format!("QEMU to {command}")),
                e => e,
            })?;
            if self.event(&answer) || answer.get("id").and_then(Value::as_u64) != Some(id) {
                continue;
            }
            if let Some(e) = answer.get("error") {
                let words = e["desc"].as_str().unwrap_or("no reason given").to_owned();
                return Err(Error::Refused { command: command.into(), words });
            }
            return Ok(answer["return"].take());
        }
    }

    /// The next message of whatever kind.
    fn message(&mut self, until: Instant) -> Result<Value> {
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.rest[searched..]) {
                let line: Vec<u8> = self.rest.drain(..=searched + end).collect();
                searched = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return serde_json::from_slice(&line)
                    .map_err(|e| Error::damaged("a message of QMP", e.to_string()));
            }
            searched = self.rest.len();
            if searched > LONGEST {
                return Err(Error::damaged("a message of QMP", "it does not end"));
            }
            // Zero would mean: for ever.
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
            self.stream.set_read_timeout(Some(left)).map_err(gone)?;
            let mut piece = [0; 16384];
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(Error::Gone("QEMU closed its QMP socket".into())),
                Ok(n) => self.rest.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if Instant::now() >= until {
                        return Err(Error::Timeout("QEMU".into()));
                    }
                }
                Err(e) => return Err(gone(e)),
            }
        }
    }

    /// Keeps `message` if it is an event.
    fn event(&mut self, message: &Value) -> bool {
        let Some(e) = read_event(message) else { return false };
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.dropped += 1;
        }
        self.events.push_back(e);
        true
    }
}

/// An event, if the message is one.
pub fn read_event(message: &Value) -> Option<Event> {
    let name = message.get("event")?.as_str()?.to_owned();
    let at = |k: &str| message["timestamp"][k].as_i64().unwrap_or(0);
    Some(Event {
        name,
        data: message.get("data").cloned().unwrap_or(Value::Null),
        at_wall_us: at("seconds").saturating_mul(1_000_000).saturating_add(at("microseconds")),
    })
}

fn gone(e: std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            Error::Gone("QEMU closed its QMP socket".into())
        }
        _ => Error::Io { what: "the QMP socket".into(), source: e },
    }
}

/// A message with a descriptor beside its bytes.
fn send_with(stream: &UnixStream, bytes: &[u8], fd: RawFd) -> std::io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // Room for one descriptor behind its header, aligned as the header has to be.
    let mut control = [0u64; 8];
    // SAFETY: all zero is a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: arithmetic only; the header lies in `control`, which is larger than the space for one descriptor.
    let sent = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd);
        libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(n) if n == bytes.len() => Ok(()),
        // Some hundred bytes always fit into a socket that is empty.
        Ok(_) => Err(ErrorKind::WriteZero.into()),
        Err(_) => Err(std::io::Error::last_os_error()),
    }
}

fn peer(stream: &UnixStream) -> Option<u32> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `who` and `len` are valid for writes of their sizes, and the descriptor is open.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    };
    (rc == 0 && who.pid > 0).then_some(who.pid as u32)
}

#[cfg(test)]
#[path = "qmp_tests.rs"]
mod tests;
