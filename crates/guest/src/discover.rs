//! The guests of this host: processes that are a QEMU, what their command lines say, and which sockets they listen on.

use crate::error::{Error, Result};
use crate::qmp::Qmp;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// A process that is a QEMU with a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub pid: u32,
    pub executable: String,
    /// By `-name`; empty: none.
    pub name: String,
    /// `tcg`, `kvm` ... as asked for; empty: QEMU's own choice.
    pub accelerator: String,
    /// As the command line has it; `None`: QEMU's own choice.
    pub memory_bytes: Option<u64>,
    pub vcpus: u32,
    /// Sockets of the machine protocol by the command line that the process listens on; if that names none, others that it listens on.
    pub qmp: Vec<PathBuf>,
}

/// All of this host that may be looked at, by process.
pub fn all() -> Vec<Found> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .map(|d| d.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
    pids.sort_unstable();
    pids.into_iter().filter_map(look).collect()
}

/// The QEMU that is this process.
pub fn one(pid: u32) -> Result<Found> {
    look(pid).ok_or_else(|| {
        Error::NoGuest(format!("process {pid} is no QEMU with a guest, or may not be looked at"))
    })
}

/// The only guest of that name.
pub fn named(name: &str) -> Result<Found> {
    let mut found: Vec<Found> = all().into_iter().filter(|f| f.name == name).collect();
    match (found.pop(), found.is_empty()) {
        (Some(f), true) => Ok(f),
        (Some(f), false) => Err(Error::NoGuest(format!(
            "{} guests are called {name}; name a process, such as {}",
            found.len() + 1,
            f.pid
        ))),
        (None, _) => {
            let names: Vec<String> = all().into_iter().map(|f| f.name).filter(|n| !n.is_empty()).collect();
            let there = if names.is_empty() {
                "no guest here has a name".into()
            } else {
                format!("there are {}", names.join(", "))
            };
            Err(Error::NoGuest(format!("no guest is called {name}; {there}")))
        }
    }
}

/// The machine protocol of a guest, by the first of its sockets that speaks it.
pub fn connect(found: &Found) -> Result<Qmp> {
    let mut why = None;
    for path in &found.qmp {
        match Qmp::connect(path) {
            Ok(q) => return Ok(q),
            Err(e) => why = Some(e),
        }
    }
    Err(why.unwrap_or_else(|| {
        Error::NoGuest(format!(
            "QEMU {} has no QMP socket; start it with -qmp unix:PATH,server=on,wait=off",
            found.pid
        ))
    }))
}

/// The process whose guest is behind a connection. Who listens is not always who serves: a manager may have opened the socket.
pub fn process_of(qmp: &Qmp) -> Result<u32> {
    if let Some(pid) = qmp.peer().filter(|p| look(*p).is_some()) {
        return Ok(pid);
    }
    let path = fs::canonicalize(qmp.path()).unwrap_or_else(|_| qmp.path().into());
    let found = all().into_iter().find(|f| f.qmp.contains(&path));
    found.map(|f| f.pid).ok_or_else(|| {
        Error::NoGuest(format!("no process of this host is the QEMU behind {}", qmp.path().display()))
    })
}

fn look(pid: u32) -> Option<Found> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<String> =
        line.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
    let executable = fs::read_link(format!("/proc/{pid}/exe"))
        .map_or_else(|_| words.first().cloned().unwrap_or_default(), |p| p.display().to_string());
    let program = Path::new(executable.trim_end_matches(" (deleted)")).file_name()?.to_str()?.to_owned();
    if !(program.starts_with("qemu-system-") || program == "qemu-kvm" || program == "kvm") {
        return None;
    }
    let asked = Asked::read(words.get(1..)?);
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_else(|_| "/".into());
    let said: Vec<PathBuf> = asked.qmp.iter().map(|p| cwd.join(p)).collect();
    let mut qmp: Vec<PathBuf> =
        said.iter().map(|p| fs::canonicalize(p).unwrap_or_else(|_| p.clone())).collect();
    if qmp.is_empty() {
        let other: BTreeSet<PathBuf> = asked.sockets.iter().map(|p| cwd.join(p)).collect();
        // Not those that are known to be something else: a connection to a console takes it from its user.
        qmp = listening(pid).into_iter().map(|p| cwd.join(p)).filter(|p| !other.contains(p)).collect();
    }
    Some(Found {
        pid,
        executable,
        name: asked.name,
        accelerator: asked.accelerator,
        memory_bytes: asked.memory_bytes,
        vcpus: asked.vcpus.unwrap_or(1),
        qmp,
    })
}

/// What a command line of QEMU asks for, as far as it matters here.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub name: String,
    pub accelerator: String,
    pub memory_bytes: Option<u64>,
    pub vcpus: Option<u32>,
    /// Unix sockets of the machine protocol.
    pub qmp: Vec<String>,
    /// Other unix sockets.
    pub sockets: Vec<String>,
}

impl Asked {
    pub fn read(words: &[String]) -> Asked {
        let mut a = Asked::default();
        let mut chardevs: HashMap<String, String> = HashMap::new();
        let mut controls: BTreeSet<String> = BTreeSet::new();
        for (i, word) in words.iter().enumerate() {
            let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else { continue };
            let value = words.get(i + 1).map_or("", String::as_str);
            let part = |key: &str| {
                pieces(value)
                    .into_iter()
                    .find_map(|p| p.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
            };
            let first = pieces(value).into_iter().next().unwrap_or_default();
            match option {
                "name" => a.name = part("guest").unwrap_or(first),
                "accel" => a.accelerator = first,
                "enable-kvm" => a.accelerator = "kvm".into(),
                "machine" | "M" => {
                    if let Some(v) = part("accel") {
                        a.accelerator = v;
                    }
                }
                "m" => a.memory_bytes = size(&part("size").unwrap_or(first)),
                "smp" => a.vcpus = part("cpus").unwrap_or(first).parse().ok(),
                "qmp" | "qmp-pretty" => match first.strip_prefix("unix:") {
                    Some(path) => a.qmp.push(path.into()),
                    None => {
                        controls.insert(first.strip_prefix("chardev:").unwrap_or(&first).to_owned());
                    }
                },
                "mon" if part("mode").as_deref() == Some("control") => {
                    controls.insert(part("chardev").unwrap_or(first));
                }
                "chardev" => {
                    if let (Some(id), Some(path)) = (part("id"), part("path")) {
                        chardevs.insert(id, path);
                    }
                }
                "serial" | "monitor" | "gdb" => {
                    a.sockets.extend(first.strip_prefix("unix:").map(str::to_owned));
                }
                _ => {}
            }
        }
        let mut chardevs: Vec<(String, String)> = chardevs.into_iter().collect();
        chardevs.sort();
        for (id, path) in chardevs {
            if controls.contains(&id) { a.qmp.push(path) } else { a.sockets.push(path) }
        }
        a
    }
}

/// Parts between commas, of which two stand for one.
fn pieces(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == ',' && chars.next_if_eq(&',').is_none() {
            all.push(String::new());
        } else if let Some(last) = all.last_mut() {
            last.push(c);
        }
    }
    all
}

/// QEMU's sizes of memory: MB without a letter.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.char_indices().last()? {
        (at, c) if c.is_ascii_alphabetic() => (&text[..at], c.to_ascii_uppercase()),
        _ => (text, 'M'),
    };
    let shift = match unit {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Paths of unix sockets that a process listens on.
fn listening(pid: u32) -> Vec<PathBuf> {
    let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let inodes: BTreeSet<String> = fds
        .flatten()
        .filter_map(|e| fs::read_link(e.path()).ok())
        .filter_map(|l| Some(l.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    // Of its own network namespace, in which its unix sockets are.
    let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    table.lines().skip(1).filter_map(|l| listener(l, &inodes)).collect()
}

/// `Num RefCount Protocol Flags Type St Inode Path`; the flag 0x10000 is: accepts connections.
fn listener(line: &str, inodes: &BTreeSet<String>) -> Option<PathBuf> {
    let mut words = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode = words.nth(2)?;
    let path = line.split_once(inode)?.1.trim_start();
    (flags & 0x10000 != 0 && inodes.contains(inode) && path.starts_with('/')).then(|| path.into())
}

#[cfg(test)]
#[path = "discover_tests.rs"]
mod tests;
