//! To whom packets and sockets belong: users, cgroups, and what cgroups' paths say by the names that systemd, container engines and
//! Kubernetes give. A packet has those of the thread that sent or received it, and of the sockets that its bytes were written to and read
//! from, as far as the log knows these.

use crate::error::Result;
use crate::profile::Label;
pub use crate::store::Owner;
use crate::store::{BothEnds, End, Ends, KnownOwners, Owners, Store, Threads};
use kpat_model::ProcessNumber;
use kpat_store::tables::*;
use std::collections::HashMap;

/// What can be asked of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    User,
    Cgroup,
    Unit,
    Container,
    Pod,
}

impl Owner {
    /// The names that it goes by: a user's name and number, a cgroup's path and identifier.
    pub fn names(&self, asked: Name) -> [Option<String>; 2] {
        let number = |n: Option<i64>| n.map(|n| n.to_string());
        let label = || Label {
            uid: self.uid.unwrap_or(-1),
            user: String::new(),
            path: self.path.clone().unwrap_or_default(),
        };
        match asked {
            Name::User => [self.user.clone(), number(self.uid)],
            Name::Cgroup => [self.path.clone(), number(self.cgroup)],
            Name::Unit => [label().unit().map(str::to_owned), None],
            Name::Container => [label().container().map(str::to_owned), None],
            Name::Pod => [label().pod(), None],
        }
    }
}

impl Owners {
    /// `labels`: by time.
    fn of(store: &Store, labels: &[ProcessLabelRow]) -> Result<Owners> {
        let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
        let paths: HashMap<i64, &str> = labels
            .iter()
            .filter(|l| !l.path.is_empty())
            .filter_map(|l| Some((l.cgroup?, l.path.as_str())))
            .collect();
        let users: HashMap<i64, &str> =
            labels.iter().filter(|l| !l.user.is_empty()).map(|l| (l.uid, l.user.as_str())).collect();
        let (mut owners, mut known) = (Owners::default(), HashMap::new());
        let mut place = |owner: Owner, all: &mut Vec<Owner>| {
            *known.entry(owner.clone()).or_insert_with(|| {
                all.push(owner);
                all.len() as u32 - 1
            })
        };
        let path_of = |cgroup: Option<i64>| cgroup.and_then(|c| paths.get(&c)).map(|p| (*p).to_owned());
        let user_of = |uid: Option<i64>| uid.and_then(|u| users.get(&u)).map(|u| (*u).to_owned());
        for l in labels.iter().filter(|l| l.process != 0) {
            let owner = Owner {
                uid: Some(l.uid),
                user: user_of(Some(l.uid)),
                cgroup: l.cgroup,
                path: text(&l.path).or_else(|| path_of(l.cgroup)),
            };
            let place = place(owner, &mut owners.all);
            let pid = ProcessNumber::from(l.process).pid();
            owners.processes.entry(pid.into()).or_default().push((l.at_ns, place));
        }
        for s in store.all::<SocketRow>()? {
            let owner = Owner { uid: s.uid, user: user_of(s.uid), cgroup: s.cgroup, path: path_of(s.cgroup) };
            if owner != Owner::default() {
                owners.sockets.insert(s.socket_id, place(owner, &mut owners.all));
            }
        }
        Ok(owners)
    }

    /// Of a thread at a time.
    fn of_thread(&self, threads: &Threads, pid: i32, at_ns: i64) -> Option<u32> {
        let process = threads.process(pid, at_ns);
        at(self.processes.get(&i64::from(process)), at_ns).map(|l| l.1)
    }

    fn of_end(&self, threads: &Threads, end: &End, ends: &Ends, at_ns: i64) -> [Option<u32>; 2] {
        let socket = ends.socket(end).and_then(|s| self.sockets.get(&s.socket_id)).copied();
        [socket, end.pid.and_then(|pid| self.of_thread(threads, pid, at_ns))]
    }

    /// Whose a packet is: of its own thread, and of those who wrote and read its bytes.
    pub(crate) fn of_packet(
        &self,
        threads: &Threads,
        pid: Option<i32>,
        both: &BothEnds,
        ends: &Ends,
        at_ns: i64,
    ) -> [Option<u32>; 5] {
        let mut out = [pid.and_then(|pid| self.of_thread(threads, pid, at_ns)), None, None, None, None];
        for (i, end) in [both.writer, both.reader].iter().enumerate() {
            if let Some(end) = end {
                let of_end = self.of_end(threads, end, ends, at_ns);
                out[1 + 2 * i..3 + 2 * i].copy_from_slice(&of_end);
            }
        }
        out
    }
}

impl Threads {
    fn of(store: &Store, labels: &[ProcessLabelRow]) -> Threads {
        let mut threads = Threads::default();
        for (pid, rows) in &store.processes {
            threads.processes.insert(*pid, rows.iter().map(|r| (r.at_ns, r.tgid)).collect());
            let own = rows.iter().filter(|r| r.pid == r.tgid).map(|r| (r.at_ns, r.comm.clone()));
            threads.names.insert(*pid, own.collect());
        }
        // A first thread that only waits for the others is in no record of its own.
        for l in labels.iter().filter(|l| l.process != 0 && !l.name.is_empty()) {
            let pid = ProcessNumber::from(l.process).pid() as i32;
            threads.names.entry(pid).or_default().push((l.at_ns, l.name.clone()));
        }
        threads.names.values_mut().for_each(|of| of.sort_by_key(|(at, _)| *at));
        threads
    }

    /// A thread that no record names is taken for a process.
    pub(crate) fn process(&self, pid: i32, at_ns: i64) -> i32 {
        at(self.processes.get(&pid), at_ns).map_or(pid, |r| r.1)
    }

    /// What the process of a thread was called, which is its first thread's name; `None`: the log does not say.
    pub(crate) fn name_of_process(&self, pid: i32, at_ns: i64) -> Option<&str> {
        at(self.names.get(&self.process(pid, at_ns)), at_ns).map(|r| r.1.as_str())
    }
}

/// What was known at that time; before the first, that.
fn at<T>(rows: Option<&Vec<(i64, T)>>, at_ns: i64) -> Option<&(i64, T)> {
    let rows = rows?;
    rows.iter().rev().find(|r| r.0 <= at_ns).or(rows.first())
}

impl Store {
    /// Read at the first question.
    pub(crate) fn owners(&self) -> Result<std::sync::Arc<KnownOwners>> {
        let mut kept = self.known.owners.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(known) = kept.as_ref() {
            return Ok(std::sync::Arc::clone(known));
        }
        let mut labels: Vec<ProcessLabelRow> = self.all()?;
        labels.sort_by_key(|l| l.at_ns);
        let known = KnownOwners { owners: Owners::of(self, &labels)?, threads: Threads::of(self, &labels) };
        Ok(std::sync::Arc::clone(kept.insert(std::sync::Arc::new(known))))
    }

    /// Of the process that a thread belonged to; `None`: the log does not say.
    pub fn owner_of_thread(&self, pid: i32, at_ns: i64) -> Option<Owner> {
        let known = self.owners().ok()?;
        let place = known.owners.of_thread(&known.threads, pid, at_ns)?;
        known.owners.all.get(place as usize).cloned()
    }

    /// Of a socket.
    pub fn owner_of_socket(&self, socket_id: i64) -> Option<Owner> {
        let known = self.owners().ok()?;
        let place = *known.owners.sockets.get(&socket_id)?;
        known.owners.all.get(place as usize).cloned()
    }

    /// All that are in the log.
    pub fn all_owners(&self) -> Vec<Owner> {
        self.owners().map(|known| known.owners.all.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_process_owner_of_that_time() {
        let mut owners = Owners { all: vec![Owner::default(); 3], ..Owners::default() };
        owners.processes.insert(70, vec![(100, 0), (200, 1)]);
        owners.sockets.insert(5, 2);
        let mut threads = Threads::default();
        threads.names.insert(70, vec![(100, "sh".into()), (160, "java".into())]);
        threads.processes.insert(71, vec![(50, 9), (150, 70)]);
        let of = |pid, at| owners.of_thread(&threads, pid, at);
        let called = |pid, at| threads.name_of_process(pid, at);
        assert_eq!(
            [called(70, 10), called(71, 155), called(71, 250), called(71, 60)],
            [Some("sh"), Some("sh"), Some("java"), None]
        );
        // What is known later is taken for before, too.
        assert_eq!([of(70, 10), of(70, 150), of(70, 200), of(71, 250)], [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(
            [of(71, 60), of(72, 60)],
            [None, None],
            "another process's thread, and one that nobody knows"
        );

        let ends =
            Ends { sockets: vec![SocketRow { socket_id: 5, ..SocketRow::default() }], ..Ends::default() };
        let reader = Some(End { socket: 0, pid: Some(71), ..End::default() });
        let both = BothEnds { reader, ..BothEnds::default() };
        let of_packet = owners.of_packet(&threads, Some(70), &both, &ends, 300);
        assert_eq!(of_packet, [Some(1), None, None, Some(2), Some(1)]);
    }

    #[test]
    fn names() {
        let path = "/system.slice/ssh.service".to_owned();
        let o = Owner { uid: Some(0), user: Some("root".into()), cgroup: Some(44), path: Some(path.clone()) };
        assert_eq!(o.names(Name::User), [Some("root".into()), Some("0".into())]);
        assert_eq!(o.names(Name::Cgroup), [Some(path), Some("44".into())]);
        assert_eq!(o.names(Name::Unit), [Some("ssh.service".into()), None]);
        assert_eq!(o.names(Name::Container), [None, None]);
    }
}
