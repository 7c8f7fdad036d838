//! What a process belongs to: its user and its cgroup, and what the cgroup's path says by the names that systemd, container engines and Kubernetes give.

use crate::error::Result;
use crate::store::Store;
use kpat_store::tables::ProcessLabelRow;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub uid: i64,
    /// What the user is called; empty: not known.
    pub user: String,
    /// Empty: not known.
    pub path: String,
}

/// /proc has starts in hundredths of a second.
const SAME_START_NS: u64 = 10_000_000;

/// How many processes these labels of one number are of.
pub fn instances<'a>(labels: impl Iterator<Item = &'a ProcessLabelRow>) -> usize {
    let mut starts: Vec<i64> = labels.filter_map(|l| l.started_ns).collect();
    starts.sort_unstable();
    let more = starts.windows(2).filter(|w| w[0].abs_diff(w[1]) > SAME_START_NS).count();
    1 + more
}

/// A program that is started is in its parent's cgroup, and its parent's user's, until it is moved: for so long that is no move.
const STARTS_NS: i64 = 50_000_000;

/// What the last process of these labels, which are in order of time, belonged to before: that one of the others which it had longest.
pub fn before(labels: &[&ProcessLabelRow]) -> Option<Label> {
    let last = labels.last()?;
    let same = |l: &ProcessLabelRow| match (l.started_ns, last.started_ns) {
        (Some(a), Some(b)) => a.abs_diff(b) <= SAME_START_NS,
        _ => false,
    };
    let others = labels.windows(2).filter(|w| same(w[0]));
    let others = others.filter(|w| (w[0].uid, &w[0].path) != (last.uid, &last.path) && !w[0].path.is_empty());
    let longest = others.map(|w| (w[1].at_ns - w[0].at_ns, w[0])).max_by_key(|(ns, _)| *ns);
    longest.filter(|(ns, _)| *ns >= STARTS_NS).map(|(_, l)| Label::of(l))
}

/// Numbers of the user that is called so in this log; a number is one. None: nobody is.
pub fn user_numbers(log: &Store, user: &str) -> Result<Vec<i64>> {
    if let Ok(number) = user.parse() {
        return Ok(vec![number]);
    }
    let labels = log.all::<ProcessLabelRow>()?;
    let numbers: BTreeSet<i64> = labels.iter().filter(|l| l.user == user).map(|l| l.uid).collect();
    Ok(numbers.into_iter().collect())
}

impl Label {
    pub fn of(row: &ProcessLabelRow) -> Label {
        Label { uid: row.uid, user: row.user.clone(), path: row.path.clone() }
    }

    /// By name, or number.
    pub fn user(&self) -> String {
        if self.user.is_empty() { self.uid.to_string() } else { self.user.clone() }
    }

    /// Is it in this cgroup, or in one below?
    pub fn is_in(&self, cgroup: &str) -> bool {
        let cgroup = cgroup.trim_end_matches('/');
        self.path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The innermost service or scope of systemd.
    pub fn unit(&self) -> Option<&str> {
        let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
        self.path.rsplit('/').find(is_unit)
    }

    /// First twelve digits of the container's id, as engines show it.
    pub fn container(&self) -> Option<&str> {
        self.path.rsplit('/').find_map(|part| {
            let part = part.strip_suffix(".scope").unwrap_or(part);
            let id = part.rsplit('-').next().unwrap_or(part);
            let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
            is_id.then(|| &id[..12])
        })
    }

    /// The pod's unique id, as Kubernetes has it in paths (with `_` under systemd).
    pub fn pod(&self) -> Option<String> {
        self.path.split('/').filter(|p| p.starts_with("kubepods") || p.starts_with("pod")).find_map(|part| {
            let part = part.strip_suffix(".slice").unwrap_or(part);
            let id = &part[part.rfind("pod").filter(|at| part[*at..].len() > 8)? + 3..];
            id.starts_with(|c: char| c.is_ascii_hexdigit()).then(|| id.replace('_', "-"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_moved_was_elsewhere_before() {
        let row = |at_ms: i64, uid, path: &str| ProcessLabelRow {
            at_ns: at_ms * 1_000_000,
            started_ns: Some(5),
            uid,
            path: path.into(),
            ..ProcessLabelRow::default()
        };
        let of = |rows: &[ProcessLabelRow]| before(&rows.iter().collect::<Vec<_>>()).map(|l| (l.uid, l.path));
        assert_eq!(of(&[row(0, 0, "/a"), row(900, 0, "/b")]), Some((0, "/a".into())));
        assert_eq!(of(&[row(0, 0, "/a"), row(900, 33, "/a")]), Some((0, "/a".into())));
        // started by a shell in another, and what two files of one recording say of one that stays
        assert_eq!(of(&[row(0, 0, "/a"), row(3, 0, "/b"), row(900, 0, "/b")]), None);
        // another process of this number
        let other = ProcessLabelRow { started_ns: Some(900_000_000), ..row(900, 0, "/b") };
        assert_eq!(of(&[row(0, 0, "/a"), other]), None);
    }

    #[test]
    fn paths_as_engines_write_them() {
        const ID: &str = "1f4a9c0b77d2e6a1903bb1ae58c1d7340cbf7e1f4a9c0b77d2e6a1903bb1ae58";
        let cases = [
            ("/", None, None, None),
            ("/system.slice/ssh.service", Some("ssh.service"), None, None),
            ("/user.slice/user-0.slice/session-3.scope", Some("session-3.scope"), None, None),
            (&format!("/docker/{ID}"), None, Some("1f4a9c0b77d2"), None),
            (
                &format!("/system.slice/docker-{ID}.scope"),
                Some(&*format!("docker-{ID}.scope")),
                Some("1f4a9c0b77d2"),
                None,
            ),
            (
                &format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8c1b_22.slice/cri-containerd-{ID}.scope"
                ),
                Some(&*format!("cri-containerd-{ID}.scope")),
                Some("1f4a9c0b77d2"),
                Some("8c1b-22"),
            ),
            (
                &format!("/kubepods/besteffort/pod8c1b-2299/{ID}"),
                None,
                Some("1f4a9c0b77d2"),
                Some("8c1b-2299"),
            ),
        ];
        for (path, unit, container, pod) in cases {
            let l = Label { uid: 0, user: String::new(), path: path.to_string() };
            assert_eq!((l.unit(), l.container(), l.pod().as_deref()), (unit, container, pod), "{path}");
        }
    }

    #[test]
    fn a_cgroup_has_those_below_it() {
        let l = Label { uid: 0, user: String::new(), path: "/a/b".into() };
        assert!(l.is_in("/a") && l.is_in("/a/b/") && l.is_in("/") && !l.is_in("/a/bc") && !l.is_in("/a/b/c"));
    }

    #[test]
    fn starts_tell_processes_of_one_number_apart() {
        let at = |started_ns| ProcessLabelRow { started_ns, ..ProcessLabelRow::default() };
        let rows = [at(Some(5_000_000_000)), at(None), at(Some(5_004_000_000)), at(Some(9_000_000_000))];
        assert_eq!(instances(rows.iter()), 2);
    }
}
