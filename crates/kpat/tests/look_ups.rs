//! What is read and printed: tests that record nothing.
//! One program: each of its own would compile the modules that they share, and link the crate, once more.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test needs a part of what they share; a test may panic"
)]

mod app;
mod application;
mod bombs;
mod command_line;
mod damaged;
mod devices;
mod export;
mod fixture;
mod golden;
mod handover;
mod hostile;
mod replay;
mod room;
mod shell;
#[path = "../../integrate/tests/sockets/mod.rs"]
mod sockets;
mod sql;
mod why;
#[path = "../../integrate/tests/world/mod.rs"]
mod world;
