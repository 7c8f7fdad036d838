//! The processes that are chosen, as /proc and the cgroups' own lists have them at this moment.

use crate::kernel;
use crate::netlink::processes;
use crate::work::{Term, members_by_group, members_by_number, name_fits, user_number};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// Any that fits one of the terms.
pub(super) fn of(terms: &[Term]) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = terms.iter().flat_map(members_by_number).collect();
    all.extend(terms.iter().flat_map(members_by_group));
    let names: Vec<&str> =
        terms.iter().filter_map(|t| if let Term::Comm(n) = t { Some(n.as_str()) } else { None }).collect();
    let users: Vec<u32> =
        terms.iter().filter_map(|t| if let Term::User(u) = t { user_number(u) } else { None }).collect();
    if names.is_empty() && users.is_empty() {
        return all;
    }
    for pid in kernel::processes() {
        let by_user = || std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|m| users.contains(&m.uid()));
        let by_name = || processes::name_of(pid).is_some_and(|own| names.iter().any(|n| name_fits(n, &own)));
        if (!users.is_empty() && by_user()) || (!names.is_empty() && by_name()) {
            all.insert(pid);
        }
    }
    all
}

/// Ticks since boot.
pub(super) fn started(pid: u32) -> u64 {
    processes::started(pid)
}

/// The same, now: a process that begins from here on has not begun before.
pub(super) fn now() -> u64 {
    const NS_OF_TICK: u64 = 10_000_000;
    crate::sys::boot_now().0 as u64 / NS_OF_TICK
}

pub(super) fn netns(pid: u32) -> Option<u32> {
    processes::inum_of(pid)
}

/// Inode numbers of the sockets that a process holds.
pub(super) fn sockets(pid: u32) -> Vec<u32> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    all.filter_map(|d| processes::socket_inode(std::fs::read_link(d.path()).ok()?.to_str()?)).collect()
}
