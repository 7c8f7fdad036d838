//! What a process is called: as its first thread is; not as the thread that happened to be seen. A program that was started by another in the same process
//! (exec) has another name from then on, and the process's time stands with the last.

use super::pid;
use kpat_model::ProcessNumber;
use kpat_store::tables::{ProcessLabelRow, ProcessRow};
use std::collections::{BTreeMap, HashMap};

/// A program that is started has its parent's name for a moment: a name that a process had for less than that is not told.
const STARTS_NS: i64 = 20_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    pub name: String,
    /// What it was called before, first to last.
    pub before: Vec<String>,
}

/// By id the processes that had it after the first one: start and number, in order.
fn others(labels: &[ProcessLabelRow]) -> HashMap<i32, Vec<(i64, i32)>> {
    let mut all: HashMap<i32, Vec<(i64, i32)>> = HashMap::new();
    for l in labels.iter().filter(|l| l.process > 0 && ProcessNumber::from(l.process).instance() > 1) {
        let started = l.started_ns.unwrap_or(l.at_ns);
        all.entry(pid(l.process)).or_default().push((started, l.process));
    }
    all.values_mut().for_each(|v| v.sort_unstable());
    all
}

/// By its number, of each process of which a name is in the log.
pub fn called(names: &[ProcessRow], labels: &[ProcessLabelRow]) -> HashMap<i32, Called> {
    // When, and as what it was seen: in order of time, however the log has them.
    let mut seen: HashMap<i32, BTreeMap<i64, (&String, bool)>> = HashMap::new();
    let mut threads = HashMap::new();
    let others = others(labels);
    for n in names {
        let newest =
            others.get(&n.tgid).and_then(|all| all.iter().rev().find(|(started, _)| *started <= n.at_ns));
        let process = newest.map_or(n.tgid, |(_, number)| *number);
        if n.pid == n.tgid {
            seen.entry(process).or_default().insert(n.at_ns, (&n.comm, true));
        } else {
            threads.insert(process, &n.comm);
        }
    }
    let mut starts: HashMap<i32, i64> = HashMap::new();
    // Without a process it is of a socket.
    for l in labels.iter().filter(|l| l.process != 0) {
        if let Some(started) = l.started_ns {
            starts.entry(l.process).or_insert(started);
        }
        if !l.name.is_empty() {
            seen.entry(l.process).or_default().entry(l.at_ns).or_insert((&l.name, false));
        }
    }
    let of = |(process, seen): (i32, BTreeMap<i64, (&String, bool)>)| {
        let (mut called, mut had) = (Called::default(), Vec::new());
        let begun = starts.get(&process).copied();
        let mut since = seen.first_key_value().map_or(0, |(at, _)| begun.map_or(*at, |b| b.min(*at)));
        for (at, (name, is_seen)) in seen {
            // What the file before knew: the name that it has now may have come meanwhile.
            if called.name == *name || (!is_seen && had.contains(&name)) {
                continue;
            }
            had.push(name);
            let was = std::mem::replace(&mut called.name, name.clone());
            if !was.is_empty() && at - since >= STARTS_NS && !called.before.contains(&was) {
                called.before.push(was);
            }
            since = at;
        }
        let name = called.name.clone();
        // What a worker executes is behind its name in /proc.
        let is_same = |n: &String| {
            n.strip_prefix(&name).is_some_and(|more| more.is_empty() || more.starts_with(['-', '+']))
        };
        called.before.retain(|n| !is_same(n));
        (process, called)
    };
    let mut all: HashMap<i32, Called> = seen.into_iter().map(of).collect();
    for (process, name) in threads {
        all.entry(process).or_insert_with(|| Called { name: name.clone(), before: Vec::new() });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(at_ms: i64, pid: i32, tgid: i32, comm: &str) -> ProcessRow {
        ProcessRow { at_ns: at_ms * 1_000_000, pid, tgid, comm: comm.into() }
    }

    fn label(at_ms: i64, process: i32, name: &str) -> ProcessLabelRow {
        let at_ns = at_ms * 1_000_000;
        ProcessLabelRow { at_ns, process, started_ns: Some(at_ns), name: name.into(), ..Default::default() }
    }

    #[test]
    fn a_process_is_not_called_as_one_of_its_threads() {
        let rows = [name(5, 8, 7, "GC Thread#0"), name(6, 9, 7, "C2 Compiler"), name(7, 21, 20, "alone")];
        let all = called(&rows, &[label(1, 7, "java")]);
        assert_eq!((&*all[&7].name, all[&7].before.len()), ("java", 0));
        assert_eq!(all[&20].name, "alone");
        let first = [name(5, 8, 7, "pool"), name(6, 7, 7, "server")];
        assert_eq!(called(&first, &[])[&7].name, "server");
    }

    #[test]
    fn what_the_file_before_knew_is_no_new_name() {
        let rows = [name(10, 7, 7, "sh"), name(990, 7, 7, "true")];
        let found = called(&rows, &[label(10, 7, "sh"), label(1000, 7, "sh")]);
        assert_eq!(found[&7], Called { name: "true".into(), before: vec!["sh".into()] });
    }

    #[test]
    fn names_are_of_the_process_that_had_the_id_then() {
        let second = 7 | 1 << 22;
        let born = ProcessLabelRow { process: second, ..label(500, 7, "sh") };
        let rows = [name(400, 7, 7, "a"), name(700, 7, 7, "b"), name(710, 9, 7, "thread of b")];
        let found = called(&rows, &[label(1, 7, "a"), born]);
        assert_eq!((&*found[&7].name, found[&7].before.len()), ("a", 0));
        assert_eq!((&*found[&second].name, &*found[&second].before), ("b", &["sh".to_owned()][..]));
    }

    #[test]
    fn programs_one_after_another_in_a_process_are_told() {
        // as the log of several CPUs has them, out of order
        let rows = [name(900, 7, 7, "b"), name(400, 7, 7, "a"), name(1500, 7, 7, "c"), name(1501, 7, 7, "d")];
        let found = called(&rows, &[label(1, 7, "sh")]);
        assert_eq!(found[&7], Called { name: "d".into(), before: vec!["sh".into(), "a".into(), "b".into()] });
        let rows = [name(40, 9, 9, "kworker/0:1")];
        assert!(called(&rows, &[label(1, 9, "kworker/0:1-events")])[&9].before.is_empty());
        // a shell's child has the shell's name until the program is there
        let rows = [name(10, 7, 7, "sh"), name(12, 7, 7, "ls"), name(800, 7, 7, "ls")];
        assert_eq!(called(&rows, &[label(10, 7, "sh")])[&7], Called { name: "ls".into(), before: vec![] });
    }
}
