//! What processes belong to: user and cgroup, logged once for each process and again where it changed. Of processes that were there before it is read
//! from /proc; of others it comes with their names from the kernel side, so that also those have it that are over when anybody looks.

use crate::identity::without_address;
use crate::sys;
use crate::{kernel, wire};
use kpat_model::{BootNs, ProcessLabel, ProcessNumber, Record, UseKind};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Processes and cgroups that are remembered; beyond, all are forgotten and logged again when they come again.
const MOST: usize = 65536;

/// /proc counts starts in hundredths of a second.
const SAME_START_NS: u64 = 10_000_000;

/// What a label is made of.
#[derive(Clone)]
struct Found {
    started: u64,
    uid: u32,
    cgroup: u64,
    name: String,
}

pub struct Labels {
    /// By number what was logged of each process, and when it was known: not when a later file had it again.
    known: HashMap<u32, (BootNs, Found)>,
    /// Processes that began with the id of another, by id and start: their numbers.
    another: BTreeMap<(u32, u64), u32>,
    /// Of the file before: processes that came at its end may have sums in this one, and be gone.
    carried: Vec<(u32, BootNs, Found)>,
    /// Of the file before: the others, by number. They have a label in this file if they have a sum in it.
    before: HashMap<u32, (BootNs, Found)>,
    /// Users and cgroups of sockets that were logged.
    owners: HashSet<(u32, u64)>,
    paths: HashMap<u64, String>,
    /// By number.
    users: Option<HashMap<u32, String>>,
    mount: Option<PathBuf>,
    due: bool,
    /// With `--anonymise`: paths name containers and users' units, and users are people.
    pub without_names: bool,
}

impl Default for Labels {
    fn default() -> Labels {
        let mount = mount();
        Labels {
            known: HashMap::new(),
            another: BTreeMap::new(),
            carried: Vec::new(),
            before: HashMap::new(),
            owners: HashSet::new(),
            users: None,
            paths: HashMap::new(),
            mount,
            due: true,
            without_names: false,
        }
    }
}

impl Labels {
    /// Another file begins.
    pub fn again(&mut self) {
        const LATELY_NS: i64 = 3_000_000_000;
        // Where /proc is not asked, they are the only ones.
        let since = if self.due { i64::MIN } else { crate::sys::boot_now().0 - LATELY_NS };
        self.before = std::mem::take(&mut self.known);
        let lately = self.before.extract_if(|_, (at, _)| at.0 > since);
        self.carried = lately.map(|(process, (at, found))| (process, at, found)).collect();
        self.owners.clear();
        self.due = true;
    }

    /// Labels of all processes that there are and that are `wanted`, once for each file.
    pub fn of_all(&mut self, at: BootNs, wanted: impl Fn(u32) -> bool) -> Vec<Record> {
        let mut out = Vec::new();
        if !std::mem::take(&mut self.due) {
            return out;
        }
        let carried = std::mem::take(&mut self.carried).into_iter();
        for (process, known, found) in carried.filter(|(process, ..)| wanted(ProcessNumber(*process).pid())) {
            out.extend(self.label(at, known, process, found));
        }
        for pid in kernel::processes().filter(|pid| wanted(*pid)) {
            // Gone meanwhile: the kernel side has it, if it ran.
            let Some(found) = self.read_proc(pid, Path::new(&format!("/proc/{pid}"))) else { continue };
            out.extend(self.label(at, at, self.number(pid, found.started + SAME_START_NS), found));
        }
        out
    }

    /// What the file before knew, for this one.
    pub fn of_before(&mut self, at: BootNs) -> Vec<Record> {
        let carried = std::mem::take(&mut self.carried);
        carried
            .into_iter()
            .filter_map(|(process, known, found)| self.label(at, known, process, found))
            .collect()
    }

    /// Of the processes of a sum, those that this file has no label of: they were gone when it began.
    pub fn of_sum(&mut self, at: BootNs, sum: &Record) -> Vec<Record> {
        let processes = match sum {
            Record::Work(w) if w.purpose.is_of_process() => [w.victim, u32::try_from(w.socket).unwrap_or(0)],
            Record::Work(w) => [w.victim, 0],
            Record::SocketUse(u) if matches!(u.how, UseKind::Answer | UseKind::Made) => {
                [u.process, u32::try_from(u.socket).unwrap_or(0)]
            }
            Record::SocketUse(u) => [u.process, 0],
            _ => return Vec::new(),
        };
        let gone = processes.into_iter().filter(|p| !self.known.contains_key(p)).collect::<Vec<_>>();
        gone.into_iter()
            .filter_map(|process| {
                let (known, found) = self.before.remove(&process)?;
                self.label(at, known, process, found)
            })
            .collect()
    }

    /// The label that comes with a name from the kernel side. `None`: it was logged.
    pub fn of(&mut self, r: &wire::Process, thread: String) -> Option<Record> {
        if r.number != 0 {
            if self.another.len() >= MOST {
                // Of each id the newest, whose process may still be there.
                let all = std::mem::take(&mut self.another);
                let newest: BTreeMap<u32, (u64, u32)> =
                    all.into_iter().map(|((pid, started), number)| (pid, (started, number))).collect();
                let few = newest.len() <= MOST / 2;
                let newest = newest.into_iter().filter(|_| few);
                self.another = newest.map(|(pid, (started, n))| ((pid, started), n)).collect();
            }
            self.another.insert((r.tgid, r.started), r.number as u32);
        }
        let number = self.number(r.tgid, r.started);
        let name = match self.known.get(&number) {
            _ if r.h.pid == r.tgid => thread,
            Some((_, known)) if known.started.abs_diff(r.started) < SAME_START_NS => known.name.clone(),
            // Gone meanwhile: as the thread that was seen.
            _ => comm_of(Path::new(&format!("/proc/{}", r.tgid))).unwrap_or(thread),
        };
        let found = Found { started: r.started, uid: r.uid, cgroup: r.cgroup, name };
        let at = BootNs(r.h.ts as i64);
        self.label(at, at, number, found)
    }

    /// Of the process that had this id then.
    fn number(&self, pid: u32, then: u64) -> u32 {
        self.another.range((pid, 0)..=(pid, then)).next_back().map_or(pid, |(_, number)| *number)
    }

    fn label(&mut self, at: BootNs, known: BootNs, process: u32, found: Found) -> Option<Record> {
        let same = |k: &(BootNs, Found)| {
            k.1.started.abs_diff(found.started) < SAME_START_NS
                && (k.1.uid, k.1.cgroup) == (found.uid, found.cgroup)
        };
        if let Some(known) = self.known.get_mut(&process).filter(|k| same(k)) {
            // Another program, or another name: the next file has that.
            known.1.name = found.name;
            return None;
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        self.known.insert(process, (known, found.clone()));
        let Found { started, uid, cgroup, name } = found;
        let (path, user) = self.names(uid, cgroup, ProcessNumber(process).pid());
        let name = if self.without_names { without_address(name) } else { name };
        let started = BootNs(started as i64);
        let label = ProcessLabel { at, process, started, uid, cgroup, path, name, user };
        Some(Record::ProcessLabel(Box::new(label)))
    }

    /// A socket whose user or cgroup was not yet logged.
    pub fn is_new(&self, r: &wire::Socket) -> bool {
        !self.owners.contains(&(r.uid, r.cgroup))
    }

    /// What a socket's user and cgroup are called.
    pub fn of_socket(&mut self, r: &wire::Socket) -> Record {
        if self.owners.len() >= MOST {
            self.owners.clear();
        }
        self.owners.insert((r.uid, r.cgroup));
        let (path, user) = self.names(r.uid, r.cgroup, r.pid);
        Record::ProcessLabel(Box::new(ProcessLabel {
            at: BootNs(r.ts as i64),
            process: 0,
            started: BootNs(0),
            uid: r.uid,
            cgroup: r.cgroup,
            path,
            name: String::new(),
            user,
        }))
    }

    /// Path of a cgroup that this process may be in, and name of a user.
    fn names(&mut self, uid: u32, cgroup: u64, process: u32) -> (String, String) {
        if self.without_names {
            return Default::default();
        }
        let users = self.users.get_or_insert_with(users);
        let user = users.get(&uid).cloned().unwrap_or_default();
        (self.path(cgroup, process), user)
    }

    /// Of the cgroup; of one that went before anybody looked, empty.
    fn path(&mut self, cgroup: u64, process: u32) -> String {
        if let Some(path) = self.paths.get(&cgroup) {
            return path.clone();
        }
        let Some(mount) = &self.mount else { return String::new() };
        let found = cgroup_of(process)
            .filter(|p| inode(mount, p) == Some(cgroup))
            .or_else(|| search(mount, mount, cgroup, 0))
            .unwrap_or_default();
        if self.paths.len() >= MOST {
            self.paths.clear();
        }
        // Also what is not found: it is gone, and its number is not given again.
        self.paths.insert(cgroup, found.clone());
        found
    }

    /// Name, start, user and cgroup.
    fn read_proc(&mut self, pid: u32, at: &Path) -> Option<Found> {
        let name = comm_of(at)?;
        let stat = fs::read_to_string(at.join("stat")).ok()?;
        // The name, in brackets, may have any character in it; the start is the 20th field after it.
        let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        let uid = fs::metadata(at).ok()?.uid();
        let path = cgroup_of(pid).unwrap_or_else(|| "/".into());
        let cgroup = self.mount.as_deref().and_then(|m| inode(m, &path)).unwrap_or(0);
        if cgroup != 0 && self.paths.len() < MOST {
            self.paths.insert(cgroup, path);
        }
        Some(Found { started: ticks * sys::ns_per_tick(), uid, cgroup, name })
    }
}

/// The name of a process, by its folder in /proc.
fn comm_of(at: &Path) -> Option<String> {
    Some(fs::read_to_string(at.join("comm")).ok()?.trim_end_matches('\n').to_owned())
}

/// Where cgroup2 is.
pub(super) fn mount() -> Option<PathBuf> {
    let all = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    all.into_iter().find(|m| m.join("cgroup.controllers").exists())
}

/// Names of users, as the device's own file has them: what a directory service adds is asked for by processes, which a recorder is
/// not to wait for.
pub(super) fn users() -> HashMap<u32, String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?);
        Some((uid.parse().ok()?, name.to_owned()))
    };
    // Of several names of one user the first.
    text.lines().rev().filter_map(entry).collect()
}

/// Its path in cgroup2, as far as this process's cgroup namespace shows it.
fn cgroup_of(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|l| l.strip_prefix("0::")).map(str::to_owned)
}

pub(super) fn inode(mount: &Path, path: &str) -> Option<u64> {
    fs::metadata(mount.join(path.trim_start_matches('/'))).ok().map(|m| m.ino())
}

fn search(mount: &Path, folder: &Path, cgroup: u64, depth: usize) -> Option<String> {
    const DEEPEST: usize = 16;
    if fs::metadata(folder).ok()?.ino() == cgroup {
        return Some(format!("/{}", folder.strip_prefix(mount).ok()?.to_str()?));
    }
    if depth == DEEPEST {
        return None;
    }
    let folders = fs::read_dir(folder).ok()?.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    folders.into_iter().find_map(|e| search(mount, &e.path(), cgroup, depth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::{Busy, Purpose, Work};

    /// A process as the kernel side says it: `number` is 0 but for the start of one with another's id.
    fn seen(tgid: u32, ts: u64, started: u64, number: u64) -> wire::Process {
        let h = wire::Head { kind: 0, slots: 2, func: 0, pid: tgid, ts };
        wire::Process { h, tgid, uid: 0, comm: [0; 16], cgroup: 1, started, number }
    }

    fn labels() -> Labels {
        Labels { mount: None, users: Some(HashMap::new()), ..Labels::default() }
    }

    fn called(all: Vec<Record>) -> Vec<(u32, String)> {
        let label = |r| match r {
            Record::ProcessLabel(l) => (l.process, l.name),
            _ => unreachable!("labels only"),
        };
        all.into_iter().map(label).collect()
    }

    #[test]
    fn the_next_file_has_the_newest_name() {
        let mut l = labels();
        assert!(l.of(&seen(7, 100, 90, 0), "sh".into()).is_some());
        assert!(l.of(&seen(7, 200, 90, 0), "true".into()).is_none());
        l.due = true;
        l.again();
        assert_eq!(called(l.of_before(BootNs(300))), [(7, "true".to_owned())]);
    }

    #[test]
    fn who_is_gone_and_has_a_sum_in_a_later_file_is_called_in_it() {
        let mut l = labels();
        assert!(l.of(&seen(7, 100, 90, 0), "cc".into()).is_some());
        assert!(l.of(&seen(8, 100, 90, 0), "ld".into()).is_some());
        l.due = false;
        l.again();
        assert_eq!(called(l.of_before(BootNs(i64::MAX - 1))), []);
        let (at, busy, purpose) = (BootNs(1 << 40), Busy::User, Purpose::Itself);
        let sum = Record::Work(Box::new(Work {
            at,
            busy,
            purpose,
            victim: 7,
            socket: 8,
            ns: 5,
            packets: 0,
            bytes: 0,
        }));
        assert_eq!(called(l.of_sum(at, &sum)), [(7, "cc".to_owned())]);
        assert_eq!(called(l.of_sum(at, &sum)), []);
    }

    #[test]
    fn who_has_the_id_of_another_is_another() {
        const SECOND: u64 = 7 | 1 << 22;
        const LATER: u64 = 50_000_000;
        let mut l = labels();
        let all = [
            l.of(&seen(7, 100, 90, 0), "first".into()),
            l.of(&seen(7, LATER, LATER, SECOND), "sh".into()),
            l.of(&seen(7, LATER + 5, LATER, 0), "second".into()),
            // as two CPUs' rings are emptied
            l.of(&seen(7, 110, 90, 0), "first".into()),
        ];
        let found = called(all.into_iter().flatten().collect());
        assert_eq!(found, [(7, "first".to_owned()), (SECOND as u32, "sh".to_owned())]);
        assert_eq!(l.number(7, LATER - 1), 7);
    }
}
