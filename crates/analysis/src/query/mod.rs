//! Questions to an integrated log. Every answer is a typed struct of stored rows and derived values; who shows it
//! makes the text. Times are the DUT's boot clock unless a name says `wall`.
//!
//! Both look-ups go over the call table, which is in order of time: packet -> calls reads the few row groups that its
//! life touches; function -> packets reads those row groups that `call_index` says can answer: for the longest calls the
//! few that hold them. A second copy sorted by function would double the store.

pub(crate) mod balance;
mod choice;
pub(crate) mod conservation;
mod detail;
mod estimate;
mod flame;
mod frames;
mod happened;
mod lone;
mod moments;
mod packets;
mod residuals;
mod store;
mod touched;
mod touching;
mod tree;
mod trust;
mod types;

pub(crate) use choice::Choice;
pub use conservation::{Conservation, Difference, Fates, OfInterface, Unexplained};
pub use estimate::{Estimate, Estimates};
pub use flame::{Flame, FlameNode, Neighbour};
pub use frames::{FrameFilter, FrameWithPackets, PacketOfFrame, SURE_PERCENT};
pub use happened::event_kind;
pub use lone::{FrameDetail, Unmatched};
pub use moments::{MomentSums, Moments};
pub use residuals::Residuals;
pub use store::{Store, glob_fits, nearest};
pub use touched::{FunctionCount, Touched};
pub(crate) use tree::same_context;
pub use trust::{Trust, TrustPart};
pub use types::*;
