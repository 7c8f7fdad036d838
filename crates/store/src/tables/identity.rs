//! Which columns may identify a host, its peers or what people typed. Numbers do not: addresses are text in every table.
//! A test holds that each column of text stands here.

/// What a column of text may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// An address of a network or a link. In a recording with `--anonymise` a hash, `-`, or null.
    Address,
    /// Text with such addresses in it, treated in the same way.
    Words,
    /// A name that the machine's owner gave (interface, namespace, program): kept.
    Given,
    /// A name that the kernel or kpat gives.
    No,
}

/// A table, `*` for the layers of packets and frames; a column; what it may hold.
const TEXTS: &[(&str, &str, Identity)] = &[
    ("packet", "src_addr", Identity::Address),
    ("packet", "dst_addr", Identity::Address),
    ("*", "mac_src", Identity::Address),
    ("*", "mac_dst", Identity::Address),
    ("*", "wifi_ra", Identity::Address),
    ("*", "wifi_ta", Identity::Address),
    ("*", "ip_src", Identity::Address),
    ("*", "ip_dst", Identity::Address),
    ("packet", "message", Identity::Words),
    ("*", "message", Identity::Words),
    ("socket", "local_addr", Identity::Address),
    ("socket", "peer_addr", Identity::Address),
    ("peer", "local_addr", Identity::Address),
    ("peer", "peer_addr", Identity::Address),
    ("device", "mac", Identity::Address),
    ("wifi_event", "address", Identity::Address),
    ("exchange", "mac_src", Identity::Address),
    ("exchange", "mac_dst", Identity::Address),
    ("exchange", "source", Identity::Address),
    ("exchange", "destination", Identity::Address),
    ("exchange", "subject", Identity::Address),
    ("event", "text", Identity::Words),
    ("wifi_event", "text", Identity::Words),
    ("wifi_event", "wiphy", Identity::Given),
    ("device", "name", Identity::Given),
    ("device", "netns_name", Identity::Given),
    ("interface", "name", Identity::Given),
    ("process", "comm", Identity::Given),
    ("process_label", "path", Identity::Given),
    ("process_label", "name", Identity::Given),
    ("process_label", "user", Identity::Given),
    ("card_clock", "clock", Identity::Given),
    ("stack", "function", Identity::Given),
    ("stack", "file", Identity::Given),
    ("stack", "line", Identity::Given),
    ("socket", "congestion", Identity::No),
    ("device", "driver", Identity::No),
    ("function", "name", Identity::No),
    ("function", "module", Identity::No),
    ("function", "kind", Identity::No),
    ("function", "layer", Identity::No),
    ("function", "via", Identity::No),
    ("wifi_event", "point", Identity::No),
    ("drop_reason", "name", Identity::No),
    ("symbol", "text", Identity::No),
    ("provenance", "key", Identity::No),
    ("provenance", "value", Identity::No),
    ("provenance", "meaning", Identity::No),
];

/// `None`: a number, or a column that nobody has classified.
pub fn identity(table: &str, column: &str) -> Option<Identity> {
    let fits = |t: &&(&str, &str, Identity)| (t.0 == table || t.0 == "*") && t.1 == column;
    TEXTS.iter().find(fits).map(|t| t.2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{ALL, ColType, SEVERAL};

    #[test]
    fn every_column_of_text_is_classified() {
        let texts: Vec<(&str, &str)> = ALL
            .iter()
            .chain(SEVERAL)
            .flat_map(|t| t.columns.iter().filter(|c| c.ty == ColType::Text).map(|c| (t.name, c.name)))
            .collect();
        for (table, column) in &texts {
            assert!(identity(table, column).is_some(), "{table}.{column}: may it identify somebody?");
        }
        for (table, column, _) in TEXTS {
            assert!(
                texts.iter().any(|t| (*table == "*" || t.0 == *table) && t.1 == *column),
                "{table}.{column} is gone"
            );
        }
    }
}
