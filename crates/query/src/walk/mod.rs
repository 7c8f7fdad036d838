//! Packets with all that they went through, in one pass over the call table: one after the other ([`walk`]), or slice by
//! slice on several CPUs ([`walk_slices`]).

mod lives;
mod rests;
mod slices;

pub(crate) use lives::{Asked, Before, Life, NO_PACKET, Tree, end_ns, walk};
pub(crate) use rests::Rest;
pub(crate) use slices::{MOST, Sum, numbers, walk_slices};
