//! Which column holds which codes of the registry.

use kpat_model::codes::{
    Code, EventKind, LineageKind, LossCause, Sleep, clock_method, match_key, side, verdict,
};
use kpat_model::{Busy, Crossing, Exchanged, LinkWhat, Purpose, WifiWhat};

/// What the numbers of a column mean; empty: they are others' numbers (protocols, types of devices), or are explained where the column is.
pub fn codes(table: &str, column: &str) -> Vec<Code> {
    match (table, column) {
        ("packet", "verdict") => verdict::CODES.to_vec(),
        ("event", "kind") => EventKind::CODES.to_vec(),
        ("association", "side") => side::CODES.to_vec(),
        ("association" | "crossing", "key") => match_key::CODES.to_vec(),
        ("lineage", "kind") => LineageKind::CODES.to_vec(),
        ("pause", "slept_for") => Sleep::CODES.to_vec(),
        ("app_event", "crossing") => Crossing::CODES.to_vec(),
        ("clock", "method") => clock_method::CODES.to_vec(),
        ("work" | "sample", "busy") => Busy::CODES.to_vec(),
        ("work" | "sample", "purpose") => Purpose::CODES.to_vec(),
        ("wifi_event", "event") => WifiWhat::CODES.to_vec(),
        ("link_event", "event") => LinkWhat::CODES.to_vec(),
        ("exchange", "protocol") => Exchanged::CODES.to_vec(),
        ("loss", "cause") => LossCause::CODES.to_vec(),
        _ => Vec::new(),
    }
}
