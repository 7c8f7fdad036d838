//! The protocol behaviour log: captures that somebody made, frame by frame, and what is written in their headers.
//!
//! [`Reader`] turns a file (pcap, pcapng, either compressed) into frames; [`decode`] turns the bytes of a frame, or
//! of a packet as the kernel held it, into a footprint; [`Plain`] the same of encrypted 802.11 whose key is given; [`Blocks`] gives a pcapng file as it stands; [`sniff`] makes such a file from an interface. This room
//! knows nothing of kernel logs and matches nothing.
//!
//! Reader and decoder are our own and not crates: an analysis must keep what was before a torn or corrupt place, name the
//! offset of that place, read every timestamp resolution, and decode what a short snap length left of a header.

pub mod decode;
mod error;
mod reader;
mod secret;
pub mod sniff;

/// What the comment of a pcapng section begins with that kpat's sniffer wrote; the boot's number follows.
const BOOT_ID: &str = "boot_id=";

pub use error::Error;
pub use reader::{Block, Blocks, Direction, Frame, Interface, Reader, Warning, kind as block_kind};
pub use secret::{Plain, Secrets};
