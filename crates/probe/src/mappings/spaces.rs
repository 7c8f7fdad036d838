//! What each process can run and since when, put together from what the kernel said of it (`sideband.rs`).

use super::sideband::{Change, Mapped, Said, SideBand};
use kpat_model::BootNs;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Of a process so many programs are remembered that it ran one after the other, and of its id so many processes.
const MOST_OF_ONE: usize = 4;
/// So many generations.
const MOST_PARENTS: usize = 8;
/// Processes that ended are remembered until so many have.
const MOST_ENDED: usize = 2048;
/// Ranges of one program; of a compiler's that maps more the newest.
const MOST_RANGES: usize = 1024;

#[derive(Default)]
pub struct Spaces {
    said: Option<SideBand>,
    /// By id, the newest program last.
    of: HashMap<u32, Vec<Space>>,
    ended: VecDeque<(u32, BootNs)>,
    changes: u64,
}

/// What a process can run from one exec to the next.
#[derive(Clone)]
pub struct Space {
    since: BootNs,
    /// All of it is known, for it began while we listened.
    pub is_whole: bool,
    /// Whose fork the process was.
    pub parent: Option<u32>,
    /// In the order in which they came: of two at one address the later one counts.
    pub ranges: Arc<Vec<Mapped>>,
    /// Different after each change.
    pub version: u64,
}

impl Spaces {
    pub fn listen(&mut self, to: SideBand) {
        self.said = Some(to);
    }

    /// Takes in what was said since.
    pub fn follow(&mut self) {
        for said in self.said.as_mut().map(SideBand::take).unwrap_or_default() {
            self.take_in(said);
        }
    }

    /// What the process with this id could run then; `None`: not known.
    pub fn at(&self, pid: u32, at: BootNs) -> Option<&Space> {
        self.of.get(&pid)?.iter().rev().find(|s| s.since <= at)
    }

    /// The process and those whose fork's fork it is, the nearest first.
    pub fn line(&self, pid: u32, at: BootNs) -> Vec<u32> {
        let of = |pid: &u32| self.at(*pid, at).and_then(|s| s.parent);
        std::iter::successors(Some(pid), of).take(MOST_PARENTS).collect()
    }

    fn take_in(&mut self, (at, pid, change): Said) {
        self.changes += 1;
        let version = self.changes;
        let none = || Space { since: at, is_whole: false, parent: None, ranges: Arc::default(), version };
        match change {
            Change::Executed => {
                let parent = self.at(pid, at).and_then(|s| s.parent);
                self.begin(pid, Space { is_whole: true, parent, ..none() });
            }
            Change::ForkedFrom(parent) => {
                let from = self.at(parent, at).cloned().unwrap_or_else(none);
                self.begin(pid, Space { since: at, parent: Some(parent), version, ..from });
            }
            Change::Mapped(mapped) => {
                let of = self.of.entry(pid).or_default();
                if of.is_empty() {
                    of.push(none());
                }
                let space = of.last_mut().expect("one is there");
                if space.ranges.last() != Some(&mapped) {
                    let ranges = Arc::make_mut(&mut space.ranges);
                    ranges.retain(|r| !(mapped.start <= r.start && r.end <= mapped.end));
                    if ranges.len() == MOST_RANGES {
                        ranges.remove(0);
                    }
                    ranges.push(mapped);
                    space.version = version;
                }
            }
            Change::Ended => {
                self.ended.push_back((pid, at));
                if self.ended.len() > MOST_ENDED
                    && let Some((pid, at)) = self.ended.pop_front()
                    && let Some(of) = self.of.get_mut(&pid)
                {
                    of.retain(|s| s.since > at);
                    if of.is_empty() {
                        self.of.remove(&pid);
                    }
                }
            }
            Change::Lost => {
                self.of.clear();
                self.ended.clear();
            }
        }
    }

    fn begin(&mut self, pid: u32, space: Space) {
        let of = self.of.entry(pid).or_default();
        if of.len() == MOST_OF_ONE {
            of.remove(0);
        }
        of.push(space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, path: &str) -> Change {
        let path = path.to_string();
        Change::Mapped(Mapped { start, end, offset: 0, path, file: String::new() })
    }

    /// What process 7 could run then.
    fn at(spaces: &Spaces, pid: u32, at: i64) -> Option<(bool, Vec<String>)> {
        let of = spaces.at(pid, BootNs(at))?;
        Some((of.is_whole, of.ranges.iter().map(|r| r.path.clone()).collect()))
    }

    fn told(said: &[(i64, u32, Change)]) -> Spaces {
        let mut spaces = Spaces::default();
        said.iter().for_each(|(at, pid, change)| spaces.take_in((BootNs(*at), *pid, change.clone())));
        spaces
    }

    #[test]
    fn a_program_is_known_from_its_exec_on_and_a_fork_has_what_its_parent_had() {
        let paths = |of: &[&str]| of.iter().map(|p| p.to_string()).collect::<Vec<_>>();
        let spaces = told(&[
            (10, 7, Change::ForkedFrom(5)),
            (12, 7, Change::Executed),
            (13, 7, range(0x1000, 0x3000, "/a")),
            (14, 7, range(0x5000, 0x6000, "/b")),
            (20, 8, Change::ForkedFrom(7)),
            (21, 7, range(0x8000, 0x9000, "/c")),
            // in the place of another, as dlopen() after dlclose() has it
            (22, 8, range(0x5000, 0x7000, "/d")),
            (30, 7, Change::Ended),
            // another process with this id
            (40, 7, Change::ForkedFrom(5)),
            (41, 7, Change::Executed),
            (42, 7, range(0x1000, 0x3000, "/e")),
        ]);
        assert_eq!(at(&spaces, 7, 9), None);
        assert_eq!(at(&spaces, 7, 11), Some((false, Vec::new())));
        assert_eq!((spaces.line(7, BootNs(15)), spaces.line(8, BootNs(25))), (vec![7, 5], vec![8, 7, 5]));
        assert_eq!(at(&spaces, 7, 35), Some((true, paths(&["/a", "/b", "/c"]))));
        assert_eq!(at(&spaces, 8, 25), Some((true, paths(&["/a", "/d"]))));
        assert_eq!(at(&spaces, 7, 45), Some((true, paths(&["/e"]))));
    }

    #[test]
    fn what_is_lost_and_what_ended_long_ago_is_not_known() {
        let spaces = told(&[(1, 7, Change::Executed), (2, 0, Change::Lost), (3, 7, range(1, 2, "/a"))]);
        assert_eq!(at(&spaces, 7, 5), Some((false, vec!["/a".into()])));
        let each = (0..=MOST_ENDED as u32)
            .flat_map(|n| [(n.into(), 100 + n, Change::Executed), (n.into(), 100 + n, Change::Ended)]);
        let spaces = told(&each.collect::<Vec<_>>());
        assert_eq!((at(&spaces, 100, 1), at(&spaces, 101, 1)), (None, Some((true, Vec::new()))));
        assert_eq!(spaces.of.len(), MOST_ENDED);
    }
}
