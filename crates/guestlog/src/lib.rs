//! A guest's packets recorded from its host, with nothing installed in the guest: what probes in its kernel copy ([`kpat_guest::mailbox::skb`])
//! becomes a log of the same records that the kernel side of `kpat record` makes of its own kernel.
//!
//! [`types`] says where members are and which functions have packets, [`track`] which packet a buffer is and what becomes of it,
//! [`world`] devices by their address, [`clock`] what time it was by the guest's clock and by the host's, [`recording`] runs it all.
//! This room must not know what a log is read for.

pub mod clock;
mod error;
mod filter;
mod headers;
mod recording;
pub mod track;
pub mod types;
pub mod world;

pub use error::{Error, Result};
pub use recording::{Options, Outcome, Recording};
