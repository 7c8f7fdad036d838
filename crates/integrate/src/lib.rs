//! From a kernel behaviour log and captures to the integrated log. Pure logic: no command line, no text for people
//! (names of codes excepted), no kernel.
//!
//! One pass over the log ([`log`]) writes calls, footprints and events and collects where packets met the wire; each
//! capture is read for its keys, matched, and read again into the frame table, now with the DUT's time. Packet rows
//! wait in a table beside until matching knows how many frames they have.
//!
//! Memory is what is open: calls within the horizon, packets alive, frames and meetings of packets with the wire within the
//! reach of matching ([`Held`] counts them). What must wait longer (meetings with the wire, frames' keys, associations)
//! waits sorted on disk, beside the result. Per packet of the log five bytes and a bit stay.

mod absurd;
mod ahead;
mod application;
mod arrivals;
mod away;
mod captures;
mod charges;
pub mod clock;
mod cut;
mod datagrams;
pub mod devices;
mod drawn;
mod dut;
mod error;
mod flatten;
mod flows;
mod found;
mod functions;
mod headers;
mod lines;
mod log;
mod matching;
mod nesting;
mod on_air;
mod over;
mod packets;
mod polls;
mod programs;
mod report;
mod samples;
mod spill;
mod stamps;
mod symbols;
mod wifi;
mod work;

pub use error::{Error, Result};
pub use lines::{events_of_lines, parse_zone};
pub use report::{Held, LogFile, Options, Progress, Report, Stage};
pub use work::{half_made, integrate, integrate_opened, integrate_parts};
