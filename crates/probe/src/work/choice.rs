//! Which processes are profiled each for itself (bpf/chosen.bpf.h); nothing said: all. Can be changed while it runs.

use crate::object::Loaded;
use crate::sys;
use crate::wire::{self, rule_kind};
use libbpf_rs::{MapCore, MapFlags};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One condition; of several one is enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Term {
    /// A process and what it forks from now on.
    Pid(u32),
    /// Name of the first thread; `?`: any character, `*` at the end: whatever follows.
    Comm(String),
    /// A path in cgroup2: processes in it or below.
    Cgroup(String),
    /// The beginning of a container's id.
    Container(String),
    /// A pod's name, `NAMESPACE/NAME`, or the beginning of its id.
    Pod(String),
    /// A number or a name.
    User(String),
    /// The recorded command and what it forks.
    Command,
}

impl Term {
    /// `pid=1234`, `comm=nginx*`, `cgroup=/system.slice`, `container=1f4a9c`, `pod=shop/web-0`, `user=www-data`, `command`.
    pub fn parse(text: &str) -> Result<Term, String> {
        if text == "command" {
            return Ok(Term::Command);
        }
        let (what, value) = text.split_once('=').filter(|(_, v)| !v.is_empty()).ok_or_else(|| {
            format!("{text}: pid=N, comm=NAME, cgroup=PATH, container=ID, pod=NAME, user=NAME or command")
        })?;
        let value = value.to_owned();
        Ok(match what {
            "pid" => Term::Pid(value.parse().map_err(|_| format!("{value} is not the number of a process"))?),
            "comm" => {
                pattern(&value)?;
                Term::Comm(value)
            }
            "cgroup" => Term::Cgroup(value),
            "container" => Term::Container(value),
            "pod" => Term::Pod(value),
            "user" => Term::User(value),
            _ => return Err(format!("{what}: pid, comm, cgroup, container, pod, user or command")),
        })
    }
}

impl Term {
    /// As an error names it.
    fn noun(&self) -> String {
        self.to_string().replacen('=', " ", 1)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Pid(n) => write!(f, "pid={n}"),
            Term::Comm(t) => write!(f, "comm={t}"),
            Term::Cgroup(t) => write!(f, "cgroup={t}"),
            Term::Container(t) => write!(f, "container={t}"),
            Term::Pod(t) => write!(f, "pod={t}"),
            Term::User(t) => write!(f, "user={t}"),
            Term::Command => write!(f, "command"),
        }
    }
}

/// Does a task's name fit?
pub(crate) fn name_fits(text: &str, name: &str) -> bool {
    let Ok((mask, want)) = pattern(text) else { return false };
    let mut has = [0; 16];
    for (to, from) in has.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    (0..16).all(|i| has[i] & mask[i] == want[i])
}

/// What of a task's sixteen bytes of name counts, and what it must be.
type Pattern = ([u8; 16], [u8; 16]);

fn pattern(text: &str) -> Result<Pattern, String> {
    let (begin, open) = text.strip_suffix('*').map_or((text, false), |t| (t, true));
    if begin.contains('*') {
        return Err(format!("{text}: `*` may only be at the end"));
    }
    if begin.len() > 15 {
        return Err(format!("{text}: names of tasks have 15 bytes at most"));
    }
    let (mut mask, mut name) = ([0; 16], [0; 16]);
    for (i, c) in begin.bytes().enumerate().filter(|(_, c)| *c != b'?') {
        (mask[i], name[i]) = (0xff, c);
    }
    if !open {
        mask[begin.len()] = 0xff;
    }
    Ok((mask, name))
}

/// What changes while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeChoice {
    Add(Vec<Term>),
    Remove(Vec<Term>),
    /// All processes are profiled again.
    All,
}

/// `CHOSEN`, `CHILDREN` of the kernel side.
const CHOSEN: u32 = 1;
const CHILDREN: u32 = 2;

/// A number that is no process's would choose nothing, without a word.
fn is_process(number: u32) -> io::Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let of = status.lines().find_map(|l| l.strip_prefix("Tgid:")).map(str::trim);
    match of {
        None => Err(io::Error::other(format!("there is no process {number}"))),
        Some(process) if process != number.to_string() => Err(io::Error::other(format!(
            "{number} is a thread of process {process}, which is chosen with all of its threads"
        ))),
        Some(_) => Ok(()),
    }
}

/// Tables of the kernel side that say what was chosen before.
const REMEMBERED: [&str; 2] = ["fitting", "socket_users"];

pub struct Choice {
    words: sys::Mapping,
    terms: Vec<Term>,
    round: u64,
}

impl Choice {
    pub fn new(loaded: &Loaded, terms: &[Term]) -> io::Result<Choice> {
        let words = loaded.map_fd(".data.choice").ok_or_else(|| io::Error::other("no map .data.choice"))?;
        let mut choice = Choice { words: sys::Mapping::new(words, 16)?, terms: Vec::new(), round: 1 };
        if !terms.is_empty() {
            choice.change(loaded, &ChangeChoice::Add(terms.to_vec()))?;
        }
        Ok(choice)
    }

    pub fn is_all(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// *Errors*: nothing has changed.
    pub fn change(&mut self, loaded: &Loaded, change: &ChangeChoice) -> io::Result<()> {
        let mut terms = self.terms.clone();
        match change {
            ChangeChoice::Add(more) => {
                for process in more.iter().filter_map(|t| if let Term::Pid(n) = t { Some(*n) } else { None })
                {
                    is_process(process)?;
                }
                terms.extend(more.iter().filter(|t| !self.terms.contains(t)).cloned());
            }
            ChangeChoice::Remove(gone) => {
                if let Some(t) = gone.iter().find(|t| !terms.contains(t)) {
                    return Err(io::Error::other(format!("{t} was not chosen")));
                }
                terms.retain(|t| !gone.contains(t));
                if terms.is_empty() {
                    return Err(io::Error::other(
                        "nothing would be left; `all` profiles every process again",
                    ));
                }
            }
            ChangeChoice::All => terms.clear(),
        }
        let rules = rules(&terms)?;
        let by_number = map(loaded, "chosen_pids")?;
        let table = map(loaded, "rules")?;
        let gone: Vec<u32> = self.terms.iter().filter(|t| !terms.contains(t)).filter_map(number).collect();
        for process in gone.iter().flat_map(|p| with_children(*p)) {
            // One that was not there is what is wanted.
            let _ = by_number.delete(&process.to_ne_bytes());
        }
        for t in terms.iter().filter(|t| !self.terms.contains(t)) {
            let Some(process) = number(t) else { continue };
            let by = if *t == Term::Command { CHILDREN } else { CHOSEN };
            by_number
                .update(&process.to_ne_bytes(), &by.to_ne_bytes(), MapFlags::ANY)
                .map_err(io::Error::other)?;
        }
        for (i, rule) in (0u32..).zip(&rules) {
            table.update(&i.to_ne_bytes(), bytes_of(rule), MapFlags::ANY).map_err(io::Error::other)?;
        }
        self.terms = terms;
        self.set(1, rules.len() as u64);
        forget(loaded, &REMEMBERED);
        self.next_round();
        Ok(())
    }

    /// Rules are evaluated anew: processes may have moved.
    pub fn next_round(&mut self) {
        self.round += 1;
        self.set(0, if self.is_all() { 0 } else { self.round });
    }

    fn set(&self, word: usize, value: u64) {
        // SAFETY: two words are mapped; the kernel side reads them whole, any value is valid.
        unsafe { self.words.as_ptr().cast::<u64>().add(word).write_volatile(value) };
    }

    /// Has the kernel side chosen the process, as far as it is known there?
    pub fn has(&self, loaded: &Loaded, process: u32) -> bool {
        if self.is_all() {
            return true;
        }
        let value =
            |name: &str| map(loaded, name).ok()?.lookup(&process.to_ne_bytes(), MapFlags::ANY).ok()?;
        value("chosen_pids").is_some_and(|v| v.first().is_some_and(|b| u32::from(b & 3) == CHOSEN))
            || value("fitting").is_some_and(|v| v.first().is_some_and(|b| b & 1 == 1))
    }
}

fn map<'a>(loaded: &'a Loaded, name: &str) -> io::Result<libbpf_rs::Map<'a>> {
    loaded.map(name).ok_or_else(|| io::Error::other(format!("no map {name}")))
}

/// Empties these tables of the kernel side, as far as it has them.
pub(crate) fn forget(loaded: &Loaded, tables: &[&str]) {
    for table in tables.iter().filter_map(|name| loaded.map(name)) {
        for key in table.keys().collect::<Vec<_>>() {
            // One that went by itself is gone, too.
            let _ = table.delete(&key);
        }
    }
}

/// The process that is chosen by its number.
fn number(t: &Term) -> Option<u32> {
    match t {
        Term::Pid(n) => Some(*n),
        Term::Command => Some(std::process::id()),
        _ => None,
    }
}

/// A process and those that descend from it, as far as they are there.
fn with_children(process: u32) -> Vec<u32> {
    let mut all = vec![process];
    let mut at = 0;
    while let Some(parent) = all.get(at).copied() {
        at += 1;
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|c| c.parse::<u32>().ok()));
        }
    }
    all
}

/// Of a term with a number: the processes that it chooses, as far as they are there.
pub(crate) fn members_by_number(t: &Term) -> Vec<u32> {
    match (number(t), t) {
        (Some(process), Term::Command) => with_children(process).split_off(1),
        (Some(process), _) => with_children(process),
        (None, _) => Vec::new(),
    }
}

/// Of a term with cgroups: the processes in them and below.
pub(crate) fn members_by_group(t: &Term) -> Vec<u32> {
    let mut all = Vec::new();
    // One that is not there any more has nobody in it.
    for folder in folders(t).into_iter().flatten().flatten() {
        processes_in(&folder, 0, &mut all);
    }
    all
}

/// Of a term with cgroups: where they are now; `None`: it has none.
fn folders(t: &Term) -> Option<io::Result<Vec<PathBuf>>> {
    let below = |fits: &dyn Fn(&str) -> bool| {
        let mut found = Vec::new();
        folders_below(&groups()?, fits, 0, &mut found);
        if found.is_empty() { Err(io::Error::other(format!("there is no {}", t.noun()))) } else { Ok(found) }
    };
    match t {
        Term::Cgroup(path) => Some(groups().map(|at| vec![at.join(path.trim_start_matches('/'))])),
        Term::Container(id) => Some(below(&|name| is_container(name, id))),
        Term::Pod(name) => {
            let ids = pods_called(name, Path::new(POD_LOGS));
            Some(below(&|folder| pod_of(folder).is_some_and(|id| id.starts_with(name) || ids.contains(&id))))
        }
        _ => None,
    }
}

fn processes_in(folder: &Path, depth: usize, all: &mut Vec<u32>) {
    let listed = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    all.extend(listed.lines().filter_map(|l| l.parse::<u32>().ok()));
    let below = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for e in below.filter(|e| depth < DEEPEST && e.file_type().is_ok_and(|t| t.is_dir())) {
        processes_in(&e.path(), depth + 1, all);
    }
}

/// A number or a name; `None`: there is no such user.
pub(crate) fn user_number(name: &str) -> Option<u32> {
    let by_name = || super::labels::users().into_iter().find(|(_, n)| n == name).map(|(uid, _)| uid);
    name.parse().ok().or_else(by_name)
}

/// So far below the root a cgroup may be.
const DEEPEST: usize = 16;

fn rules(terms: &[Term]) -> io::Result<Vec<wire::Rule>> {
    let mut all = Vec::new();
    for t in terms {
        let rule = |kind, number| wire::Rule { kind, number, mask: [0; 2], name: [0; 2] };
        match t {
            Term::Pid(_) | Term::Command => {}
            Term::Comm(text) => {
                let (mask, name) = pattern(text).map_err(io::Error::other)?;
                let halves =
                    |b: [u8; 16]| [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| b[at + i])));
                let (mask, name) = (halves(mask), halves(name));
                all.push(wire::Rule { kind: rule_kind::RULE_COMM.into(), number: 0, mask, name });
            }
            Term::Cgroup(_) | Term::Container(_) | Term::Pod(_) => {
                let there = folders(t).transpose()?.unwrap_or_default();
                let before = all.len();
                let numbers = there.iter().filter_map(|at| super::labels::inode(at, ""));
                all.extend(numbers.map(|number| rule(rule_kind::RULE_CGROUP.into(), number)));
                if all.len() == before {
                    return Err(io::Error::other(format!("there is no {}", t.noun())));
                }
            }
            Term::User(name) => {
                let none = || io::Error::other(format!("there is no user {name}"));
                let uid = user_number(name).ok_or_else(none)?;
                all.push(rule(rule_kind::RULE_USER.into(), uid.into()));
            }
        }
    }
    if all.len() > MOST {
        return Err(io::Error::other(format!("{} rules; at most {MOST}", all.len())));
    }
    Ok(all)
}

/// `KP_RULES` of the kernel side.
const MOST: usize = 32;

fn groups() -> io::Result<PathBuf> {
    super::labels::mount().ok_or_else(|| io::Error::other("there is no cgroup2 here"))
}

/// Cgroups whose folder's name fits; in those is not looked further.
fn folders_below(folder: &Path, fits: &dyn Fn(&str) -> bool, depth: usize, found: &mut Vec<PathBuf>) {
    for e in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !e.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        if fits(&e.file_name().to_string_lossy()) {
            found.push(e.path());
        } else if depth < DEEPEST {
            folders_below(&e.path(), fits, depth + 1, found);
        }
    }
}

/// A container's whose id begins so; engines write it with a prefix and `.scope`, or alone.
fn is_container(folder: &str, id: &str) -> bool {
    let own = folder.strip_suffix(".scope").unwrap_or(folder).rsplit('-').next().unwrap_or_default();
    own.len() == 64 && own.bytes().all(|b| b.is_ascii_hexdigit()) && own.starts_with(id)
}

/// The id of the pod that a cgroup is of: `pod1f4a-…`, or of systemd `kubepods-burstable-pod1f4a_….slice`.
fn pod_of(folder: &str) -> Option<String> {
    const ID_BYTES: usize = 36;
    let own = folder.strip_suffix(".slice").unwrap_or(folder);
    let id = own
        .rsplit_once("pod")
        .filter(|(before, _)| before.is_empty() || before.ends_with('-'))?
        .1
        .replace('_', "-");
    (id.len() == ID_BYTES && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')).then_some(id)
}

/// Where a node has the logs of its pods: a folder `NAMESPACE_NAME_ID` for each.
const POD_LOGS: &str = "/var/log/pods";

/// Ids of the pods with this name.
fn pods_called(name: &str, logs: &Path) -> Vec<String> {
    let all = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let of = |folder: std::fs::DirEntry| {
        let folder = folder.file_name().to_string_lossy().into_owned();
        let [namespace, own, id] = folder.split('_').collect::<Vec<_>>()[..] else { return None };
        (name == own || name.split_once('/') == Some((namespace, own))).then(|| id.to_owned())
    };
    all.filter_map(of).collect()
}

fn bytes_of(rule: &wire::Rule) -> &[u8] {
    // SAFETY: plain numbers without padding between them.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(rule).cast(), size_of::<wire::Rule>()) }
}

/// What of the machine is accounted besides CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Packets and their bytes, and whom interrupts work for because of them.
    pub packets: bool,
    /// Block requests and writeback.
    pub blocks: bool,
}

impl Default for Resources {
    fn default() -> Resources {
        Resources { packets: true, blocks: true }
    }
}

/// Tracepoints of the kernel side that only one of them needs.
const OF_PACKETS: [&str; 17] = [
    "sock_def_readable",
    "inet_recvmsg",
    "inet6_recvmsg",
    "qdisc_dequeue",
    "timer_expire_entry",
    "hrtimer_expire_entry",
    "tasklet_entry",
    "ipi_send_cpu",
    "netif_receive_skb",
    "netif_receive_skb_exit",
    "napi_poll",
    "net_dev_queue",
    "kfree_skb",
    "sk_data_ready",
    "tcp_probe",
    "sock_recv_length",
    "inet_sock_set_state",
];
const OF_BLOCKS: [&str; 9] = [
    "block_bio_queue",
    "block_split",
    "block_rq_complete",
    "writeback_dirty_folio",
    "writeback_single_inode_start",
    "writeback_single_inode",
    "workqueue_queue_work",
    "workqueue_execute_start",
    "workqueue_execute_end",
];

impl Resources {
    pub fn need(self, tracepoint: &str) -> bool {
        (self.packets || !OF_PACKETS.contains(&tracepoint))
            && (self.blocks || !OF_BLOCKS.contains(&tracepoint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_the_kernel_side_compares_them() {
        use name_fits as fits;
        assert!(fits("nginx", "nginx") && !fits("nginx", "nginx-2") && !fits("nginx", "ngin"));
        assert!(fits("nginx*", "nginx") && fits("nginx*", "nginx-worker") && !fits("nginx*", "mynginx"));
        assert!(fits("w?b*", "web1") && fits("w?b", "wxb") && fits("*", "") && fits("*", "anything"));
        assert!(pattern("a*b").is_err() && pattern("sixteen-bytes-xx").is_err());
        assert!(fits("fifteen-bytes-x", "fifteen-bytes-x"));
    }

    #[test]
    fn terms_as_they_are_typed() {
        for text in
            ["pid=12", "comm=ng?nx*", "cgroup=/a/b", "container=1f4a", "pod=shop/web-0", "user=0", "command"]
        {
            assert_eq!(Term::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "pid=", "pid=x", "nginx", "comm=a*b", "unit=a"] {
            assert!(Term::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn cgroups_are_known_by_their_names() {
        let (id, container) = ("1f4a9c00-1111-2222-3333-444455556666", "ab".repeat(32));
        for folder in [format!("pod{id}"), format!("kubepods-burstable-pod{}.slice", id.replace('-', "_"))] {
            assert_eq!(pod_of(&folder).as_deref(), Some(id), "{folder}");
        }
        for folder in ["kubepods.slice", "tripod.slice", "pod1f4a", "podman-1.scope", &format!("xpod{id}")] {
            assert_eq!(pod_of(folder), None, "{folder}");
        }
        for folder in [
            container.clone(),
            format!("docker-{container}.scope"),
            format!("cri-containerd-{container}.scope"),
        ] {
            assert!(is_container(&folder, "abab") && !is_container(&folder, "ba"), "{folder}");
        }
        let logs = std::env::temp_dir().join(format!("kpat-pods-{}", std::process::id()));
        for name in [format!("shop_web-0_{id}"), "shop_web-1_x".into(), "other_web-0_y".into(), "odd".into()]
        {
            std::fs::create_dir_all(logs.join(name)).expect("made");
        }
        let mut both = pods_called("web-0", &logs);
        both.sort();
        assert_eq!(both, [id, "y"]);
        assert_eq!(pods_called("shop/web-0", &logs), [id]);
        std::fs::remove_dir_all(&logs).expect("removed");
    }

    #[test]
    fn numbers_that_are_no_process_are_refused() {
        let own = std::process::id();
        assert!(is_process(own).is_ok());
        let thread = std::thread::spawn(|| {
            let link = std::fs::read_link("/proc/thread-self").expect("its own");
            let number = link.file_name().and_then(|n| n.to_str()?.parse().ok()).expect("a number");
            is_process(number).expect_err("a thread").to_string()
        });
        let said = thread.join().expect("it ended");
        assert!(said.contains(&format!("is a thread of process {own}")), "{said}");
        let above_all = 1 << 22;
        let said = is_process(above_all).expect_err("above pid_max").to_string();
        assert_eq!(said, format!("there is no process {above_all}"));
    }
}
