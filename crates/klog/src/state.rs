//! What writer and reader of a chunk both remember from record to record. Both start from the same state at each
//! chunk and change it in the same way; this is the one place that says how.

use crate::columns::{MOST, Shared};
use crate::kinds::KINDS;
use crate::varint::MAX_LEN;
use kpat_model::record::FootprintRecord;

/// Places in the table that guesses the next function.
pub const GUESSES: usize = 1024;
/// Footprints that a new one may be coded against.
pub const PRINTS: usize = 64;
/// Devices that a footprint or place is likely to be at.
pub const PLACES: usize = 3;
/// Header bytes of a footprint, whole groups of eight.
pub const MAX_HEADER: usize = FootprintRecord::MAX_HEADER;
const _: () = assert!(MAX_HEADER.is_multiple_of(8));
/// Upper bounds of one coded record. Each ends in room for one more number, because writing a number touches nine bytes.
pub const CALL_SLACK: usize = 64;
pub const FIXED_SLACK: usize = 12 * MAX_LEN + 2 * MAX_HEADER + 16;

/// Record tags: bit 7 set is a call, otherwise the low three bits are the kind.
pub mod tag {
    pub const CALL: u8 = 0x80;
    pub const POINT: u8 = 0;
    pub const MEMBER: u8 = 1;
    pub const FOOTPRINT: u8 = 2;
    pub const LINEAGE: u8 = 3;
    pub const PLACE: u8 = 4;
    /// A kind that is coded by its columns: bits 3 to 6 say which, counted from [`crate::kinds::FIRST_DECLARED`] on.
    pub const COLUMNS: u8 = 7;
    pub const KIND_MASK: u8 = 7;

    pub const COLUMNS_SHIFT: u8 = 3;
    /// In those bits: a number with the kind's id follows.
    pub const COLUMNS_OTHER: u8 = 15;

    /// Call: packet mode in bits 0-1, task mode in bits 2-3.
    pub const CALL_TASK_SHIFT: u8 = 2;
    pub const CALL_FUNC: u8 = 0x10;
    pub const CALL_FLAGS: u8 = 0x20;
    pub const CALL_BACKWARDS: u8 = 0x40;

    /// Others: first mode in bits 3-4, second in bits 5-6.
    pub const MODE_A_SHIFT: u8 = 3;
    pub const MODE_B_SHIFT: u8 = 5;
}

/// Packet mode of calls, points and footprints: 0 to 2 are places in [`State::recent`].
pub const PACKET_NEW: u8 = 3;
/// Task mode: 0 and 1 are places in [`State::tasks`].
pub const TASK_NEW: u8 = 2;
/// Place mode: 0 to 2 are places in [`State::places`].
pub const PLACE_NEW: u8 = 3;

/// Which fields of a point follow.
pub mod point_field {
    pub const FUNC: u8 = 0x01;
    pub const LEN: u8 = 0x02;
    /// Nothing follows: the packet ends there.
    pub const ENDS: u8 = 0x04;
    /// It was done with before.
    pub const PUT_OFF: u8 = 0x08;
}

/// Which fields of a footprint differ from the one it is coded against, in the order in which they follow.
pub mod print_field {
    pub const LEN: u8 = 0x01;
    pub const GSO: u8 = 0x02;
    pub const PROTOCOL: u8 = 0x04;
    pub const LAYER: u8 = 0x08;
    pub const HEADER_LEN: u8 = 0x10;
}

/// Device, namespace, link type.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Where {
    pub ifindex: u32,
    pub netns: u32,
    pub link_type: u16,
}

/// A footprint without packet, time and place; header bytes past its length are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Print {
    pub len_bytes: u32,
    pub gso_size: u16,
    pub gso_segs: u16,
    pub protocol: u16,
    pub start_layer: u8,
    pub ip_proto: u8,
    pub header_len: u8,
    pub header: [u8; MAX_HEADER],
}

impl Print {
    const ZERO: Print = Print {
        len_bytes: 0,
        gso_size: 0,
        gso_segs: 0,
        protocol: 0,
        start_layer: 0,
        ip_proto: 0,
        header_len: 0,
        header: [0; MAX_HEADER],
    };
}

/// The writer's values of each kind's record before.
pub type Before = [[u64; MOST]; KINDS.len()];

pub struct State {
    pub shared: Shared,
    /// Function of the call before.
    pub func: u16,
    /// By a function's id modulo [`GUESSES`]: which function returned after it the last time.
    pub guess: [u16; GUESSES],
    pub member_func: u16,
    pub member_entry: i64,
    /// Length at the point before.
    pub len_bytes: u32,
    /// The last three different places, newest first.
    pub places: [Where; PLACES],
    pub prints: [Print; PRINTS],
}

impl State {
    pub fn new() -> State {
        State {
            shared: Shared::new(),
            func: 0,
            guess: [0; GUESSES],
            member_func: 0,
            member_entry: 0,
            len_bytes: 0,
            places: [Where::default(); PLACES],
            prints: [Print::ZERO; PRINTS],
        }
    }

    /// Brings place `mode` of the recent places to the front.
    pub fn use_place(&mut self, mode: usize) {
        self.places[..=mode].rotate_right(1);
    }

    pub fn push_place(&mut self, place: Where) {
        self.places = [place, self.places[0], self.places[1]];
    }
}
