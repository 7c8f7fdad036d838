//! From the tables of an integrated log to answers, for the command line, the page and foreign formats. Every answer is a
//! typed struct of stored rows and derived values; who shows it makes the text. Times are the DUT's boot clock unless a
//! name says `wall`. No command line, no text for people (names of codes excepted), no kernel, and no reader of logs or
//! captures.
//!
//! The modules stand in the order of [the list of arrows](../../../scripts/arrows): each knows only those before it.

mod abreast;
pub mod app;
pub mod balance;
mod carried;
pub mod catalog;
mod choice;
pub mod clock;
mod codes;
pub mod columns;
pub mod devices;
mod ends;
mod entry;
mod error;
mod estimate;
pub mod filter;
pub mod frame_text;
pub mod handover;
pub mod hull;
mod info;
pub mod layers;
mod lists;
mod names;
pub mod owners;
mod packet;
pub mod paths;
pub mod phases;
pub mod profile;
pub mod protocol;
pub mod roles;
pub mod sampled;
mod spread;
mod store;
pub mod time;
mod touched;
pub mod trace;
mod trust;
mod walk;
pub mod why;
mod writes;

pub use abreast::Progress as Parts;
pub use balance::{Conservation, Difference, Fates, OfInterface, Unexplained};
pub use carried::{BytesOfCall, Carried, CarriedBy};
pub use choice::PacketFilter;
pub use codes::*;
pub use ends::{CallOfPacket, CarriedByAll, EndOfPacket};
pub use error::{Error, Result};
pub use estimate::{Estimate, Estimates};
pub use info::Info;
pub use lists::*;
pub use names::{glob_fits, nearest};
pub use packet::{CallNode, EventOfPacket, FrameOfPacket, Handover, HandoverKind, PacketDetail};
pub use store::Store;
pub use touched::{Flame, FlameNode, FunctionCount, Neighbour, Touched};
pub use trust::{Trust, TrustPart};
pub use writes::{PacketOfWrite, SlowWrite, Written};
