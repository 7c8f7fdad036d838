//! To whom packets and sockets belong, as [`crate::owners`] finds it: kept for the next question.

use kpat_model::hash::Map;

/// An owner as it is recorded: a process at a time, or a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    pub uid: Option<i64>,
    /// What the device called the user.
    pub user: Option<String>,
    /// Identifier, and path where it is known.
    pub cgroup: Option<i64>,
    pub path: Option<String>,
}

/// All owners of a log.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Different ones.
    pub all: Vec<Owner>,
    /// By process, from when on which.
    pub processes: Map<i64, Vec<(i64, u32)>>,
    pub sockets: Map<i64, u32>,
}

/// Which process a thread is of, and what that is called: the part of a store's table that conditions keep.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    /// By thread, since when it was which process's.
    pub processes: Map<i32, Vec<(i64, i32)>>,
    /// By process, since when its first thread was called what.
    pub names: Map<i32, Vec<(i64, String)>>,
}

/// Both, as conditions and lists want them.
#[derive(Debug, Default)]
pub(crate) struct KnownOwners {
    pub owners: Owners,
    pub threads: Threads,
}
