//! Identifiers and times. A time says its clock in its type; arithmetic across clocks does not compile.

use serde::{Deserialize, Serialize};

/// Nanoseconds of the DUT's `CLOCK_BOOTTIME` (counts through suspend, never steps).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootNs(pub i64);

/// Nanoseconds since 1970-01-01 UTC by some wall clock (the DUT's or a sniffer's; the holder says which).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WallNs(pub i64);

/// One protocol data unit's life in the kernel. Starts at 1, never repeats within a log, whatever happens to
/// the address of the skb. 0 stands for "no packet known" and is never a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PacketId(pub u64);

impl PacketId {
    pub const NONE: PacketId = PacketId(0);
}

/// Index into the function table of a log ([`crate::meta::Function::id`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FuncId(pub u16);
