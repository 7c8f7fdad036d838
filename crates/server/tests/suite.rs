//! The tests of this crate, but for that of the page's types, which is named alone where they are written anew.
//! One program: each of its own would compile the modules that they share, and link the crate, once more.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test needs a part of what they share; a test may panic"
)]

mod apps;
mod asking;
#[path = "../../kpat/tests/fixture/mod.rs"]
mod fixture;
mod handover;
mod live;
mod profile;
mod service;
mod several;
#[path = "../../integrate/tests/sockets/mod.rs"]
mod sockets;
#[path = "../../integrate/tests/world/mod.rs"]
mod world;
