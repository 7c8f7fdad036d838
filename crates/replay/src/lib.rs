//! An application trace over real sockets: one end connects ([`Player`]), the other is connected to ([`Server`]), each writes at its
//! moments what its application wrote, and says how well it kept to them ([`Report`]). No privilege, and no word in a connection that
//! the trace does not have; before the first one the connecting end shows a secret ([`Door`]). Each connection is a thread, so that one that waits for the other side makes no other late.
//!
//! This room reads no file, catches no signal and prints nothing: the caller gives the trace, and a flag to stop by.

mod admit;
mod pace;
mod part;
mod play;
mod reads;
mod report;
mod serve;
mod wire;

pub use admit::{Door, NotIn, Secret, knock};
pub use pace::{Pace, Went};
pub use part::{Outcome, Part, Refused, parts};
pub use play::Player;
pub use report::Report;
pub use serve::{Enough, Server, Sunk, listen};
