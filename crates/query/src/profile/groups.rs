//! Processes added up by what they have in common.

use super::{Label, OfProcess};
use kpat_model::ProcessNumber;
use std::collections::BTreeMap;

/// What processes are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Process,
    Comm,
    Cgroup,
    Unit,
    Container,
    Pod,
    User,
}

pub struct Group {
    /// `None`: those that have no such thing, or of which it is not in the log.
    pub name: Option<String>,
    pub processes: usize,
    /// Added up; `name` and `label` are of none.
    pub sum: OfProcess,
}

/// Most time first. Kernel threads are in no unit, container or pod.
pub fn groups(processes: &[&OfProcess], by: By) -> Vec<Group> {
    let mut all: BTreeMap<Option<String>, (usize, OfProcess)> = BTreeMap::new();
    for p in processes {
        let label = p.label.as_ref().filter(|_| !p.is_thread);
        let name = match by {
            By::Process => Some(ProcessNumber::from(p.number).to_string()),
            By::Comm => p.name.clone(),
            By::Cgroup => label.map(|l| l.path.clone()).filter(|p| !p.is_empty()),
            By::Unit => label.and_then(|l| l.unit().map(str::to_owned)),
            By::Container => label.and_then(|l| l.container().map(str::to_owned)),
            By::Pod => label.and_then(|l| l.pod()),
            By::User => label.map(Label::user),
        };
        let (n, sum) = all.entry(name).or_default();
        *n += 1;
        sum.user_ns += p.user_ns;
        sum.kernel_ns += p.kernel_ns;
        sum.system_calls += p.system_calls;
        sum.fault_ns += p.fault_ns;
        sum.page_faults += p.page_faults;
        sum.for_clients_ns += p.for_clients_ns;
        sum.handed_ns += p.handed_ns;
        sum.handed_for_none_ns += p.handed_for_none_ns;
        sum.by_servers_ns += p.by_servers_ns;
        sum.served_ns += p.served_ns;
        sum.served_blocks_ns += p.served_blocks_ns;
        sum.served_items_ns += p.served_items_ns;
        sum.block_requests += p.block_requests;
        sum.served_packets += p.served_packets;
        sum.served_bytes += p.served_bytes;
        sum.served_in_threads_ns += p.served_in_threads_ns;
        sum.served_by_itself_ns += p.served_by_itself_ns;
        sum.taken_ns += p.taken_ns;
        sum.dropped_packets += p.dropped_packets;
        sum.dropped_ns += p.dropped_ns;
    }
    let mut out: Vec<Group> =
        all.into_iter().map(|(name, (processes, sum))| Group { name, processes, sum }).collect();
    out.sort_by(|a, b| b.sum.charged_ns().cmp(&a.sum.charged_ns()).then_with(|| a.name.cmp(&b.name)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_up_is_all_of_it() {
        let p = |pid, path: &str, user_ns, is_thread| OfProcess {
            number: pid,
            user_ns,
            is_thread,
            label: Some(Label { uid: 7, user: "web".into(), path: path.into() }),
            ..OfProcess::default()
        };
        let all = [
            p(1, "/a.service", 10, false),
            p(2, "/b.service", 50, false),
            p(3, "/a.service", 100, false),
            p(4, "/", 3, true),
        ];
        let all: Vec<&OfProcess> = all.iter().collect();
        let found = |by| {
            let all = groups(&all, by);
            all.iter().map(|g| (g.name.clone(), g.processes, g.sum.charged_ns())).collect::<Vec<_>>()
        };
        let name = |n: &str| Some(n.to_string());
        assert_eq!(found(By::Unit), [(name("a.service"), 2, 110), (name("b.service"), 1, 50), (None, 1, 3)]);
        assert_eq!(found(By::User), [(name("web"), 3, 160), (None, 1, 3)]);
    }
}
