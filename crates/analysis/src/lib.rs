//! From logs to the integrated log, and from its tables to answers. Pure logic: no command line, no text for people
//! (names of codes excepted), no kernel.
//!
//! [`integrate`] joins a kernel behaviour log with captures in one streaming pass; [`query`] answers the questions of
//! the command line and the web page from the tables; [`clock`] relates two clocks by the packets that both saw.

mod abreast;
pub mod app;
pub mod catalog;
pub mod clock;
pub mod devices;
mod error;
pub mod filter;
mod hash;
mod integrate;
pub mod layers;
mod lives;
mod matching;
mod paths;
pub mod phases;
pub mod protocol;
pub mod query;
#[cfg(test)]
mod random;
mod rests;
mod roles;
mod slices;
mod spill;
pub mod time;
pub mod trace;

pub use error::{Error, Result};
pub use integrate::{
    Held, Options, Progress, Report, Stage, half_made, integrate, integrate_opened, integrate_parts,
};
pub use lives::Progress as Parts;
