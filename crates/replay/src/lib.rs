//! An application trace over real sockets: one end connects ([`Player`]), the other is connected to ([`Server`]), each writes at its
//! moments what its application wrote, and says how well it kept to them ([`Report`]). No privilege, and nothing between the ends that
//! the trace does not have. Each connection is a thread, so that one that waits for the other side makes no other late.
//!
//! This room reads no file, catches no signal and prints nothing: the caller gives the trace, and a flag to stop by.

mod pace;
mod part;
mod play;
mod reads;
mod report;
mod serve;
mod wire;

pub use pace::{Pace, Went};
pub use part::{Outcome, Part, Refused, parts};
pub use play::Player;
pub use report::Report;
pub use serve::{Enough, Server, Sunk, listen};
