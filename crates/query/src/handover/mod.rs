//! Handovers: why the host was without a network, phase by phase. From marks, which are things seen of an interface by the kernel, on the air
//! or in exchanges, to a timeline whose phases leave no moment out.
//!
//! The order of marks is not fixed: in a roam the scan comes before the link goes down, and the port is closed before the carrier is lost. So a
//! phase is what the newest mark says of the time from there on; nothing waits for a mark, and one that is missing, late or doubled moves a
//! boundary and no more. Rejected: a search for the marks of each phase, which fails at the first one that is missing.

mod addresses;
mod asked;
mod beside;
#[cfg(test)]
mod confirmed_test;
mod eap;
mod facts;
mod flow;
mod gather;
mod lane;
mod lead;
mod machine;
mod mark;
#[cfg(test)]
mod odd_test;
mod open;
#[cfg(test)]
mod over_ds_test;
mod pace;
mod phase;
#[cfg(test)]
mod refused_test;
mod rest;
#[cfg(test)]
mod rest_test;
mod settle;
mod statistics;
mod taken;
#[cfg(test)]
mod taken_test;
#[cfg(test)]
mod tests;
mod tile;
mod underway;
mod why;
#[cfg(test)]
mod wired_test;
mod words;

pub use beside::Beside;
pub use flow::FlowGap;
pub use gather::{Asked, Found};
pub use lane::Lane;
pub use machine::{Handover, Machine};
pub use mark::{Dhcp, Mark, Source, What};
pub use open::Peer;
pub use phase::{Group, Phase, Span, Step};
pub use statistics::{PhaseSum, Statistics};
pub use words::{Cause, Ended, Kind};
