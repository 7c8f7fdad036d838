//! What can go wrong, by what the caller can do about it.

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The integrated log cannot be read.
    #[error(transparent)]
    Store(#[from] kpat_store::Error),
    /// The name of a function fits none of the log.
    #[error("no function `{name}` in this log{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    NoSuchFunction { name: String, nearest: Option<String> },
    /// Runs of which some have functions and some moments only: compare those of one kind.
    #[error(
        "one run was recorded by {first}, another by {other}: with functions a path begins and ends elsewhere, so paths, \
         waits and layers are not the same things; record both by one mechanism (kpat record --mechanism)"
    )]
    Incomparable { first: String, other: String },
    /// A time of day was asked for, and the log has none: ask for seconds since its start.
    #[error("this log does not know the device's wall clock; give a time since its start (as in 1.5s)")]
    NoWallClock,
    /// Whoever asked does not wait any more.
    #[error("abandoned")]
    Abandoned,
    /// A frame number that the capture does not have.
    #[error("no frame {number} in capture {capture_id} of this log")]
    NoSuchFrame { capture_id: i32, number: i64 },
    /// A packet number that the log does not have.
    #[error("no packet {id} in this log (it has {count} packets)")]
    NoSuchPacket { id: i64, count: u64 },
}
