//! Captures that were cut so short that frames end behind their network header.

use kpat_capture::{Reader, decode};
use kpat_model::Network;
use std::path::PathBuf;

/// A snap length holds for all frames of a capture, so its first ones tell.
const LOOKED_AT: u64 = 10_000;

/// Does any capture have frames with a whole network header and less than a transport header? Captures that cannot be read say
/// so when they are integrated.
pub(super) fn behind_network(captures: &[PathBuf]) -> bool {
    captures.iter().any(|path| {
        let Ok(mut reader) = Reader::open(path) else { return false };
        for _ in 0..LOOKED_AT {
            let Ok(Some(frame)) = reader.next() else { return false };
            let print = decode::frame(frame.link_type, frame.data, frame.len_wire);
            let is_ip = matches!(print.network, Some(Network::V4 { .. } | Network::V6 { .. }));
            if is_ip && print.cut && print.transport.is_none() {
                return true;
            }
        }
        false
    })
}
