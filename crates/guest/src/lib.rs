//! A running guest of QEMU, seen from its host, with nothing installed in it: registers, memory, symbols, tasks, and QEMU's own
//! debugger interface. Knows no other part of kpat but the reader of BTF, and of packets only where their structures have what is copied.
//!
//! [`Guest::attach`] finds the guest by QMP socket, process or name ([`discover`]), speaks [`qmp`] and reads where its RAM is
//! ([`memory`]). [`gdb`] stops it, and is the only part that does. Everything that is read from a guest may have been made by an attacker: bounds are checked, walks are bounded, damage
//! is an [`Error`].

pub mod capi;
pub mod discover;
mod error;
pub mod gdb;
mod guest;
mod life;
pub mod loaded;
pub mod mailbox;
pub mod memory;
pub mod probe;
pub mod qmp;
pub mod registers;
pub mod symbols;
pub mod task;
pub mod x86;

pub use error::{Error, Result};
pub use guest::{Accelerator, Guest, Target};
pub use life::{Events, Life};
pub use memory::Memory;
pub use registers::Registers;
pub use symbols::Symbols;
pub use task::{Process, Task, Tasks};
