//! What is the processor's: instructions that make room for a probe, and the code that does their work elsewhere.
//!
//! Nothing here knows of guests, of memory that is shared, or of Linux.

mod displaced;
mod registers;

pub use displaced::{Displaced, Flow, Unfit, jump, own_breakpoint, starts_at};
pub use registers::Register;
