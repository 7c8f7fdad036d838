//! The application trace, docs/app-trace.md: what applications asked of the network, in a file of its own, to be played
//! again or given to a simulator. JSON lines: a header, connections, writes, gaps, and last the sums, without which a file is
//! not whole.

mod lines;
mod ns3;
mod read;
mod write;

pub use lines::{ConnectionLine, EndLine, FORMAT_VERSION, Header, MOST_BYTES, Source, Sums};
pub use ns3::write_ns3;
pub use read::{Played, Trace, TraceError, Written, read};
pub use write::{Form, write};
