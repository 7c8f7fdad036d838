//! Questions to an integrated log. Every answer is a typed struct of stored rows and derived values; who shows it
//! makes the text. Times are the DUT's boot clock unless a name says `wall`.
//!
//! Both look-ups go over the call table, which is in order of time: packet -> calls reads the few row groups that its
//! life touches; function -> packets reads the one-byte-wide function column everywhere and the rest only where it
//! fits. A second copy sorted by function would double the store and save some 50 ms on ten million calls.

mod detail;
mod store;
mod tree;
mod types;

pub use store::{Store, glob_fits};
pub use types::*;
