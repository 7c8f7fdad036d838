//! The tests of this crate.
//! One program: each of its own would compile the modules that they share, and link the crate, once more.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test needs a part of what they share; a test may panic"
)]

mod app;
#[path = "recorded/cases.rs"]
mod cases;
mod clock;
mod clock_coverage;
mod clock_own;
mod compare;
mod conservation;
mod devices;
mod fragments;
mod integrate;
mod judge;
mod known;
mod list;
mod matching;
mod one_clock;
mod parts;
mod pauses;
mod phases;
mod profiles;
mod protocols;
mod radio_clock;
mod recorded;
mod recorded_logs;
mod repeat;
mod sockets;
mod stamps;
mod taken_in;
mod time;
mod windows;
mod world;
