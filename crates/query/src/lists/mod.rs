//! Lists: packets, functions, events and frames that fit what is asked.

mod events;
mod frames;
mod functions;
mod lone;
mod packets;
mod residuals;
mod top;

pub use events::{EventFilter, EventList, MomentSums, Moments};
pub use frames::{FrameFilter, FrameWithPackets, PacketOfFrame};
pub use functions::{CallFilter, CallOfFunction, FunctionDetail, FunctionFilter, FunctionList, FunctionSort};
pub use lone::{FrameDetail, Unmatched};
pub use packets::{PacketList, PacketSort};
pub use residuals::Residuals;
