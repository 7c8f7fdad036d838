//! Whom the CPUs worked for: of each process its own time, what was done for it in interrupts and kernel threads, and whose time that was.

mod groups;
mod label;
mod names;
pub mod peers;

use crate::error::Result;
use crate::store::Store;
pub use groups::{By, Group, groups};
use kpat_model::{Busy, ProcessNumber, Purpose};
use kpat_store::tables::{BlockAccountRow, CpuAccountRow, DeviceRow, ProcessLabelRow, ProcessRow, WorkRow};
pub use label::{Label, user_numbers};
pub use names::{Called, called};
use std::collections::{BTreeMap, HashMap};

/// The number of all processes together that were not chosen when it was recorded.
pub const OTHERS: i32 = kpat_model::OTHERS as i32;

/// The id that the process of this number has; of [`OTHERS`] that.
pub fn pid(number: i32) -> i32 {
    ProcessNumber::from(number).pid() as i32
}

/// Of one process, or of one kernel thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfProcess {
    /// A [`ProcessNumber`].
    pub number: i32,
    /// `None`: its name is not in the log.
    pub name: Option<String>,
    /// What it was called before, first to last. All of its time stands with the last name.
    pub names_before: Vec<String>,
    pub is_thread: bool,
    /// What it belongs to; `None`: not in the log.
    pub label: Option<Label>,
    /// What it belonged to before, if it moved while it was recorded. All of its time stands with what it belonged to last.
    pub before: Option<Label>,
    /// Processes that had this number, one after the other, in logs of a kpat that gave them one; at least 1.
    pub instances: usize,
    pub user_ns: i64,
    /// In its own system calls; all that a kernel thread does by itself.
    pub kernel_ns: i64,
    pub system_calls: i64,
    pub fault_ns: i64,
    pub page_faults: i64,
    /// Out of these three: since it took a message of another process.
    pub for_clients_ns: i64,
    /// Of `for_clients_ns`: by threads that another one of its threads handed the work to, and by those that take several clients' messages before they answer the first: the answers say for whom.
    pub handed_ns: i64,
    /// Beside it: by such threads for no client that is known.
    pub handed_for_none_ns: i64,
    /// Of others, in the same way, for it; they are charged with it.
    pub by_servers_ns: i64,
    /// Done for it in interrupts and kernel threads, whosever time that was.
    pub served_ns: i64,
    /// Of `served_ns` for block requests and pages written back.
    pub served_blocks_ns: i64,
    pub block_requests: i64,
    /// Of `served_ns` in work items that it queued.
    pub served_items_ns: i64,
    pub served_packets: i64,
    pub served_bytes: i64,
    /// Of `served_ns` in kernel threads.
    pub served_in_threads_ns: i64,
    /// Of `served_ns` out of its own time: it was interrupted for itself.
    pub served_by_itself_ns: i64,
    /// Out of its time for others, or for nobody.
    pub taken_ns: i64,
    /// Packets that were dropped on their way into its sockets, and the time for them; it is not charged with it.
    pub dropped_packets: i64,
    pub dropped_ns: i64,
}

impl OfProcess {
    /// What it costs.
    pub fn charged_ns(&self) -> i64 {
        self.user_ns + self.kernel_ns + self.fault_ns + self.served_ns
    }

    /// What accounts that charge the interrupted say of it: how long it was the task that ran.
    pub fn ran_ns(&self) -> i64 {
        self.user_ns + self.kernel_ns + self.fault_ns + self.served_by_itself_ns + self.taken_ns
    }
}

/// Time of one process that went to another, or to no process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// `None`: the CPU was idle otherwise.
    pub victim: Option<i32>,
    pub purpose: Purpose,
    /// Of [`Purpose::Drop`] who would have had the packets.
    pub beneficiary: Option<i32>,
    pub ns: i64,
    pub packets: i64,
    /// Out of `ns`: handed from one thread of the server to another.
    pub handed_ns: i64,
    /// Out of `handed_ns`: it may have been for another client, or for none.
    pub unsure_ns: i64,
}

/// Work that is charged to no process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub ns: i64,
    pub packets: i64,
    /// As in [`Taken`].
    pub handed_ns: i64,
    pub unsure_ns: i64,
}

/// What one namespace forwarded from one interface to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// What the namespace is called, empty: not known, or the recorder's own.
    pub netns: String,
    /// Interfaces by name, or by number.
    pub from: String,
    pub to: String,
    pub ns: i64,
    pub packets: i64,
}

/// All CPU time that passed, each nanosecond in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Charged to processes, or to those that were asked for.
    pub process_ns: i64,
    /// Charged to other processes.
    pub other_ns: i64,
    pub kernel_ns: i64,
    pub idle_ns: i64,
    /// There was no room for it in the kernel side's tables.
    pub unplaced_ns: i64,
    /// The kernel ran no programs.
    pub unseen_ns: i64,
}

impl Profile {
    /// Packets that programs ran for, and those that the kernel received. `None`: not in the log.
    pub fn packets(&self) -> Option<(i64, i64)> {
        let both = |a: &CpuAccountRow| Some((a.packets_counted?, a.packets_received?));
        self.accounts.iter().map(both).try_fold((0, 0), |sum, n| n.map(|n| (sum.0 + n.0, sum.1 + n.1)))
    }
}

impl Buckets {
    pub fn sum_ns(&self) -> i64 {
        self.process_ns + self.other_ns + self.kernel_ns + self.idle_ns + self.unplaced_ns + self.unseen_ns
    }
}

pub struct Profile {
    pub accounts: Vec<CpuAccountRow>,
    /// Requests of disks that programs ran for, and those that the kernel completed. `None`: not in the log.
    pub requests: Option<(i64, i64)>,
    /// CPU time that passed: the time that accounts were open, over all CPUs.
    pub passed_ns: i64,
    /// When it was recorded processes were chosen: those that were not are [`OTHERS`].
    pub is_of_chosen: bool,
    pub buckets: Buckets,
    /// What costs most first.
    pub processes: Vec<OfProcess>,
    /// Most time first.
    pub taken: Vec<Taken>,
    /// Own time of servers (`victim`) for their clients (`beneficiary`); most first.
    pub clients: Vec<Taken>,
    /// Packets' work of no process, and what the kernel does for itself in interrupts; [`Purpose::Socket`]: for sockets that nobody used.
    pub without_process: BTreeMap<Purpose, Amount>,
    /// Out of `without_process`: what was forwarded, by where it came from and went to; most time first.
    pub ways: Vec<Way>,
    /// Out of `without_process`: hard interrupts that brought no packet.
    pub hardirq_ns: i64,
}

/// Which processes are meant; nothing: all. One of the conditions is enough.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub pids: Vec<i32>,
    pub names: Vec<String>,
    /// Beginnings of paths.
    pub cgroups: Vec<String>,
    pub users: Vec<i64>,
}

impl Wanted {
    pub fn all(&self) -> bool {
        self.pids.is_empty() && self.names.is_empty() && self.cgroups.is_empty() && self.users.is_empty()
    }

    pub fn has(&self, p: &OfProcess) -> bool {
        let labelled = |f: &dyn Fn(&Label) -> bool| p.label.as_ref().is_some_and(f);
        self.all()
            || self.pids.contains(&pid(p.number))
            || p.name.as_ref().is_some_and(|n| self.names.contains(n))
            || labelled(&|l| self.cgroups.iter().any(|c| l.is_in(c)))
            || labelled(&|l| self.users.contains(&l.uid))
    }
}

/// `None`: the log has no profile.
pub fn profile(log: &Store, wanted: &Wanted) -> Result<Option<Profile>> {
    let accounts = log.all::<CpuAccountRow>()?;
    if accounts.is_empty() {
        return Ok(None);
    }
    let (names, labels) = (log.all::<ProcessRow>()?, log.all::<ProcessLabelRow>()?);
    let requests = log.all::<BlockAccountRow>()?;
    let counted = (!requests.is_empty())
        .then(|| requests.iter().fold((0, 0), |sum, r| (sum.0 + r.counted, sum.1 + r.completed)));
    let works = log.all::<WorkRow>()?;
    let p = of(accounts, &works, &names, &labels, wanted);
    Ok(Some(Profile { requests: counted, ways: ways(&works, &log.all::<DeviceRow>()?), ..p }))
}

fn ways(works: &[WorkRow], devices: &[DeviceRow]) -> Vec<Way> {
    let mut sums: BTreeMap<(i64, i32, i32), Amount> = BTreeMap::new();
    for w in works {
        if let (Some(netns), Some(from), Some(to)) = (w.netns, w.in_ifindex, w.out_ifindex) {
            let a = sums.entry((netns, from, to)).or_default();
            a.ns += w.time_ns;
            a.packets += w.packets;
        }
    }
    let device = |netns: i64, ifindex: i32| {
        devices.iter().rev().find(|d| d.netns == netns && d.ifindex == ifindex).map(|d| d.name.clone())
    };
    let name = |netns: i64, n: i32| device(netns, n).unwrap_or_else(|| format!("interface {n}"));
    let of_netns = |netns: i64| {
        devices.iter().rev().find(|d| d.netns == netns).map(|d| d.netns_name.clone()).unwrap_or_default()
    };
    let way = |((netns, from, to), a): (_, Amount)| Way {
        netns: of_netns(netns),
        from: name(netns, from),
        to: name(netns, to),
        ns: a.ns,
        packets: a.packets,
    };
    let mut all: Vec<Way> = sums.into_iter().map(way).collect();
    all.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| (&a.netns, &a.from).cmp(&(&b.netns, &b.from))));
    all
}

fn most_first(pairs: HashMap<(Option<i32>, Purpose, Option<i32>), Amount>) -> Vec<Taken> {
    let taken = |((victim, purpose, beneficiary), a): (_, Amount)| Taken {
        victim,
        purpose,
        beneficiary,
        ns: a.ns,
        packets: a.packets,
        handed_ns: a.handed_ns,
        unsure_ns: a.unsure_ns,
    };
    let mut all: Vec<Taken> = pairs.into_iter().map(taken).collect();
    all.sort_by_key(|t| (-t.ns, t.victim, t.purpose, t.beneficiary));
    all
}

fn of(
    accounts: Vec<CpuAccountRow>,
    works: &[WorkRow],
    names: &[ProcessRow],
    labels: &[ProcessLabelRow],
    wanted: &Wanted,
) -> Profile {
    let mut processes: BTreeMap<i32, OfProcess> = BTreeMap::new();
    let mut taken: HashMap<(Option<i32>, Purpose, Option<i32>), Amount> = HashMap::new();
    let mut without_process: BTreeMap<Purpose, Amount> = BTreeMap::new();
    let mut clients: HashMap<(Option<i32>, Purpose, Option<i32>), Amount> = HashMap::new();
    let (mut idle_ns, mut hardirq_ns, mut unseen_ns) = (0, 0, 0);
    let mut others_threads_ns = 0;
    for w in works {
        let busy = Busy::from_number(w.busy).unwrap_or(Busy::Hardirq);
        let purpose = Purpose::from_number(w.purpose).unwrap_or(Purpose::Kernel);
        if busy == Busy::Idle {
            idle_ns += w.time_ns;
            continue;
        }
        if busy == Busy::Unseen {
            unseen_ns += w.time_ns;
            continue;
        }
        if purpose.is_own() {
            let Some(pid) = w.victim else {
                without_process.entry(Purpose::Kernel).or_default().ns += w.time_ns;
                continue;
            };
            if pid == OTHERS && busy == Busy::Thread {
                others_threads_ns += w.time_ns;
                continue;
            }
            let p = processes.entry(pid).or_default();
            p.is_thread |= busy == Busy::Thread;
            match busy {
                Busy::User => p.user_ns += w.time_ns,
                Busy::Fault => {
                    p.fault_ns += w.time_ns;
                    p.page_faults += w.packets;
                }
                _ => {
                    p.kernel_ns += w.time_ns;
                    p.system_calls += w.packets;
                }
            }
            match purpose {
                Purpose::Handed => p.handed_ns += w.time_ns,
                Purpose::HandedOn => p.handed_for_none_ns += w.time_ns,
                _ => {}
            }
            if purpose.is_for_client() {
                p.for_clients_ns += w.time_ns;
            }
            if let (true, Some(client)) = (purpose.is_for_client(), w.beneficiary) {
                processes.entry(client).or_default().by_servers_ns += w.time_ns;
                let sum = clients.entry((w.victim, Purpose::Client, w.beneficiary)).or_default();
                sum.ns += w.time_ns;
                if purpose == Purpose::Handed {
                    sum.handed_ns += w.time_ns;
                    sum.unsure_ns += w.bytes;
                }
            }
            continue;
        }
        if busy == Busy::Hardirq {
            hardirq_ns += w.time_ns;
        }
        match w.beneficiary {
            Some(pid) if purpose == Purpose::Drop => {
                let a = without_process.entry(purpose).or_default();
                a.ns += w.time_ns;
                a.packets += w.packets;
                let p = processes.entry(pid).or_default();
                p.dropped_ns += w.time_ns;
                p.dropped_packets += w.packets;
            }
            Some(pid) => {
                let p = processes.entry(pid).or_default();
                p.served_ns += w.time_ns;
                match purpose {
                    Purpose::Block | Purpose::Writeback => {
                        p.served_blocks_ns += w.time_ns;
                        p.block_requests += w.packets;
                    }
                    Purpose::Item => p.served_items_ns += w.time_ns,
                    _ => {
                        p.served_packets += w.packets;
                        p.served_bytes += w.bytes;
                    }
                }
                if matches!(busy, Busy::SoftirqThread | Busy::Thread) {
                    p.served_in_threads_ns += w.time_ns;
                }
            }
            None => {
                let a = without_process.entry(purpose).or_default();
                a.ns += w.time_ns;
                a.packets += w.packets;
            }
        }
        if w.victim.is_some() && w.victim == w.beneficiary && purpose != Purpose::Drop {
            processes.entry(w.victim.unwrap_or_default()).or_default().served_by_itself_ns += w.time_ns;
            continue;
        }
        if let Some(pid) = w.victim {
            processes.entry(pid).or_default().taken_ns += w.time_ns;
        }
        let t = taken.entry((w.victim, purpose, w.beneficiary)).or_default();
        t.ns += w.time_ns;
        t.packets += w.packets;
    }
    let mut called = called(names, labels);
    let mut labelled: HashMap<i32, Vec<&ProcessLabelRow>> = HashMap::new();
    // Without a process it is of a socket.
    for l in labels.iter().filter(|l| l.process != 0) {
        labelled.entry(l.process).or_default().push(l);
    }
    for (number, p) in &mut processes {
        p.number = *number;
        let of_it = labelled.get(number).map_or(&[][..], Vec::as_slice);
        if let Some(Called { name, before }) = called.remove(number) {
            (p.name, p.names_before) = (Some(name), before);
        }
        p.label = of_it.last().map(|l| Label::of(l));
        p.before = label::before(of_it);
        p.instances = label::instances(of_it.iter().copied());
    }
    let mut buckets = Buckets {
        idle_ns,
        kernel_ns: without_process.values().map(|a| a.ns).sum::<i64>() + others_threads_ns,
        unplaced_ns: accounts.iter().map(|a| a.unplaced_ns).sum(),
        unseen_ns,
        ..Buckets::default()
    };
    let others = processes.remove(&OTHERS);
    buckets.other_ns += others.as_ref().map_or(0, OfProcess::charged_ns);
    for p in processes.values() {
        let charged = p.charged_ns();
        *(if p.is_thread {
            &mut buckets.kernel_ns
        } else if wanted.has(p) {
            &mut buckets.process_ns
        } else {
            &mut buckets.other_ns
        }) += charged;
    }
    let mut processes: Vec<OfProcess> = processes.into_values().collect();
    processes.sort_by_key(|p| (-p.charged_ns(), p.number));
    Profile {
        passed_ns: accounts.iter().map(|a| a.to_ns - a.from_ns).sum(),
        requests: None,
        is_of_chosen: others.is_some() || others_threads_ns > 0,
        accounts,
        buckets,
        processes,
        taken: most_first(taken),
        clients: most_first(clients),
        without_process,
        ways: Vec::new(),
        hardirq_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(busy: Busy, purpose: Purpose, victim: i32, beneficiary: i32, ns: i64) -> WorkRow {
        let known = |pid: i32| (pid != 0).then_some(pid);
        let (busy, purpose) = (busy as i32, purpose as i32);
        let (victim, beneficiary) = (known(victim), known(beneficiary));
        WorkRow {
            cpu: 0,
            busy,
            purpose,
            victim,
            beneficiary,
            time_ns: ns,
            packets: 1,
            bytes: 100,
            ..WorkRow::default()
        }
    }

    #[test]
    fn the_interrupted_is_not_charged_and_every_nanosecond_is_somewhere() {
        let works = [
            row(Busy::User, Purpose::Itself, 1, 1, 1000),
            row(Busy::Kernel, Purpose::Itself, 2, 2, 300),
            row(Busy::Thread, Purpose::Itself, 9, 9, 50),
            row(Busy::Idle, Purpose::Itself, 0, 0, 4000),
            row(Busy::Softirq, Purpose::Socket, 1, 2, 200),
            row(Busy::Softirq, Purpose::Socket, 2, 2, 30),
            row(Busy::Softirq, Purpose::Socket, 0, 2, 7),
            row(Busy::SoftirqThread, Purpose::Socket, 9, 2, 5),
            row(Busy::Softirq, Purpose::Drop, 1, 0, 11),
            row(Busy::Hardirq, Purpose::Kernel, 1, 0, 3),
        ];
        let accounts = vec![CpuAccountRow { to_ns: 5606, ..CpuAccountRow::default() }];
        let name = |pid, tgid, comm: &str| ProcessRow { at_ns: 0, pid, tgid, comm: comm.into() };
        let names = [name(1, 1, "burn"), name(21, 2, "worker"), name(2, 2, "recv")];
        let p = of(accounts, &works, &names, &[], &Wanted::default());
        let find = |pid| p.processes.iter().find(|x| x.number == pid).cloned().unwrap_or_default();
        let (burner, receiver) = (find(1), find(2));
        assert_eq!((burner.charged_ns(), burner.taken_ns, burner.ran_ns()), (1000, 214, 1214));
        assert_eq!((receiver.kernel_ns, receiver.served_ns, receiver.served_in_threads_ns), (300, 242, 5));
        assert_eq!((receiver.ran_ns(), receiver.name.as_deref()), (330, Some("recv")));
        assert_eq!((p.buckets.process_ns, p.buckets.kernel_ns, p.buckets.idle_ns), (1542, 64, 4000));
        assert_eq!((p.buckets.sum_ns(), p.passed_ns), (5606, 5606));
        let first = &p.taken[0];
        assert_eq!((first.victim, first.beneficiary, first.ns), (Some(1), Some(2), 200));
        assert_eq!(p.taken.iter().map(|t| t.ns).sum::<i64>(), 200 + 7 + 5 + 11 + 3);
    }

    #[test]
    fn who_was_not_chosen_is_other_and_what_chosen_ones_took_of_it_is_known() {
        let works = [
            row(Busy::User, Purpose::Itself, 1, 1, 10),
            row(Busy::User, Purpose::Itself, OTHERS, OTHERS, 100),
            row(Busy::Thread, Purpose::Itself, OTHERS, OTHERS, 1000),
            row(Busy::Softirq, Purpose::Socket, OTHERS, 1, 7),
            row(Busy::Softirq, Purpose::Socket, 1, OTHERS, 3),
        ];
        let accounts = vec![CpuAccountRow { to_ns: 1120, ..CpuAccountRow::default() }];
        let p = of(accounts, &works, &[], &[], &Wanted::default());
        assert!(p.is_of_chosen);
        assert_eq!((p.buckets.process_ns, p.buckets.other_ns, p.buckets.kernel_ns), (17, 103, 1000));
        assert_eq!(p.buckets.sum_ns(), p.passed_ns);
        assert_eq!(p.processes.iter().map(|x| x.number).collect::<Vec<_>>(), [1]);
        let taken: Vec<_> = p.taken.iter().map(|t| (t.victim, t.beneficiary, t.ns)).collect();
        assert_eq!(taken, [(Some(OTHERS), Some(1), 7), (Some(1), Some(OTHERS), 3)]);
    }

    #[test]
    fn who_was_not_asked_for_is_other() {
        let works = [row(Busy::User, Purpose::Itself, 1, 1, 10), row(Busy::User, Purpose::Itself, 2, 2, 5)];
        let wanted = Wanted { pids: vec![2], ..Wanted::default() };
        let p = of(vec![CpuAccountRow::default()], &works, &[], &[], &wanted);
        assert_eq!((p.buckets.process_ns, p.buckets.other_ns), (5, 10));
    }
}
