//! What the texts of links' announcements ([`crate::EventKind::Link`]) say beside name and state: written by the recorder, read for handovers.

/// Ends of the texts of links that came, and that were in a namespace that came.
pub const NEW: &str = " (new)";
pub const ALREADY: &str = " (found)";
/// End of the text of one that went.
pub const REMOVED: &str = " removed";
/// Of a carrier that was back when its loss was announced.
pub const AFTERWARDS: &str = "(announced when it was back)";
/// Before the name that a link had.
pub const RENAMED: &str = " (was ";
/// What a link was before it was changed so.
pub const BEFORE: &str = "(before: ";

/// The link was not there before.
pub fn is_first_seen(text: &str) -> bool {
    text.ends_with(NEW) || text.ends_with(ALREADY)
}

/// Whether it had a carrier before what is announced; `None`: the text does not say.
pub fn had_carrier(text: &str) -> Option<bool> {
    match text.split_once(BEFORE) {
        Some((_, before)) => Some(before.starts_with("up carrier")),
        None => text.contains(AFTERWARDS).then_some(true),
    }
}
