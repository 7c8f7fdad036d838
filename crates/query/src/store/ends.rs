//! Who wrote and who read the bytes of every packet, as [`crate::ends`] finds it: kept for the conditions of the next question.

use kpat_model::hash::Map;
use kpat_store::tables::SocketRow;
use std::sync::{Arc, Mutex};

/// What conditions ask, once it was asked for.
#[derive(Default)]
pub(crate) struct Known {
    pub ends: Mutex<Option<Arc<Ends>>>,
    /// How long packets were in the device's queue, by number.
    pub queued: Mutex<Option<Arc<Map<i64, i64>>>>,
    pub owners: Mutex<Option<Arc<super::KnownOwners>>>,
    pub unqueued: Mutex<Option<Arc<super::unqueued::UnqueuedOfSockets>>>,
}

/// One end of a packet's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// Place in [`Ends::sockets`].
    pub socket: u32,
    pub pid: Option<i32>,
    /// Place in [`Ends::names`], 0: unknown.
    pub process: u32,
    /// How long the bytes waited; `None`: it carries none, or the log does not say.
    pub wait_ns: Option<i64>,
    /// Of a datagram: a call is known to have it.
    pub has_calls: bool,
    /// Of a datagram: when it crossed to the device's queue, or from the device.
    pub crossed_ns: Option<i64>,
    /// It lies in this socket when the log ends, for sure.
    pub waits: bool,
}

/// Both ends, as far as the log has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BothEnds {
    /// Waited from the write of the first byte until the packet was first seen.
    pub writer: Option<End>,
    /// From when the packet was first seen until a read had the last byte.
    pub reader: Option<End>,
    /// From when the packet was first seen until the last byte was acknowledged.
    pub acked_ns: Option<i64>,
}

#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub of: Map<i64, BothEnds>,
    /// Further readers of packets that several sockets got.
    pub also: Map<i64, Vec<End>>,
    pub sockets: Vec<SocketRow>,
    pub names: Vec<String>,
}

impl Ends {
    pub fn of(&self, packet: i64) -> BothEnds {
        self.of.get(&packet).copied().unwrap_or_default()
    }

    /// The same once for each reader.
    pub fn all_of(&self, packet: i64) -> impl Iterator<Item = BothEnds> + '_ {
        let both = self.of(packet);
        let also = self.also.get(&packet).into_iter().flatten();
        std::iter::once(both).chain(also.map(move |r| BothEnds { reader: Some(*r), ..both }))
    }

    pub fn socket(&self, end: &End) -> Option<&SocketRow> {
        self.sockets.get(end.socket as usize)
    }

    pub fn process(&self, end: &End) -> Option<&str> {
        self.names.get(end.process as usize).map(String::as_str).filter(|_| end.process > 0)
    }
}
