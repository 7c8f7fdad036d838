//! Questions to an integrated log. Every answer is a typed struct of stored rows and derived values; who shows it
//! makes the text. Times are the DUT's boot clock unless a name says `wall`.
//!
//! Both look-ups go over the call table, which is in order of time: packet -> calls reads the few row groups that its
//! life touches (10 ms on ten million calls); function -> packets reads the function column everywhere and further columns
//! only where the question needs them (below 0.3 s). A second copy sorted by function would double the store.

mod detail;
mod store;
mod tree;
mod types;

pub use store::{Store, glob_fits};
pub use types::*;
