//! The one strict HTTP/1.1 of all services (`kpat view`, `kpat collect receive`, `record --metrics`) and of the sender.
//!
//! The one idea: there is exactly one way to say where a message ends, a single `Content-Length` of digits. Whatever else
//! could be read in two ways (`Transfer-Encoding`, a doubled or signed length, a bare line feed, an absolute target) is
//! refused and the connection closed, because a proxy in front may have read it the other way: bytes that are a body for
//! the one and a request for the other are how one client gets the answer that belongs to another (request smuggling,
//! RFC 9112, section 11.2).
//!
//! Time is bounded too: a head has seconds from its first byte, a body must keep moving, and a connection that has yet to
//! send its head gives way to a newer one when the room is full ([`Pool`]).
//!
//! This room must not know what is asked or who may ask. Rejected: a framework on an asynchronous runtime; the services have a
//! handful of connections whose work blocks on disk and CPU, and the recorder serves its metrics from a device with little memory.

mod connection;
mod head;
mod pool;
mod wire;

pub use connection::Connection;
pub use head::{Refusal, Request, Response};
pub use pool::{Pool, Seat, accept};
pub use wire::{Body, Deadline, Unreadable, Untimed, Wire};
