//! Sentences about well-known kernel functions and tracepoints: what they do with a packet, and what makes them slow; and about drop reasons.

use crate::functions::glob;
use std::collections::HashMap;
use std::sync::LazyLock;

const TEXT: &str = include_str!("explained.txt");
const DROPS: &str = include_str!("drop_reasons.txt");

/// What is known of a function, or of a drop reason, beyond what was recorded of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Where it is, in the kernel's tree; of several that share a row, the first one's. Empty: each in its own file.
    pub source: &'static str,
    pub does: &'static str,
    /// What its own time goes into; of a tracepoint, what passing it means; of a drop reason, what tells more.
    pub slow: &'static str,
}

struct Table {
    by_name: HashMap<&'static str, Explained>,
    patterns: Vec<(&'static str, Explained)>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::of(TEXT));
static DROP_REASONS: LazyLock<Table> = LazyLock::new(|| Table::of(DROPS));

impl Table {
    fn of(text: &'static str) -> Table {
        let mut table = Table { by_name: HashMap::new(), patterns: Vec::new() };
        for (name, explained) in rows(text) {
            if name.contains(['*', '?']) {
                table.patterns.push((name, explained));
            } else {
                table.by_name.insert(name, explained);
            }
        }
        table
    }

    fn get(&self, name: &str) -> Option<Explained> {
        let fits = || self.patterns.iter().find(|(pattern, _)| glob(pattern, name)).map(|(_, e)| *e);
        self.by_name.get(name).copied().or_else(fits)
    }
}

fn rows(text: &'static str) -> impl Iterator<Item = (&'static str, Explained)> {
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.filter_map(row).flat_map(|(names, explained)| names.split(',').map(move |name| (name, explained)))
}

fn row(line: &'static str) -> Option<(&'static str, Explained)> {
    let mut fields = line.split(" | ");
    let (names, does, slow) = (fields.next()?, fields.next()?, fields.next()?);
    let in_tree = |s: &str| s.contains('/') && !s.contains(' ');
    let (source, does) =
        does.split_once(": ").filter(|(s, _)| s.split(", ").all(in_tree)).unwrap_or(("", does));
    fields.next().is_none().then_some((names, Explained { source, does, slow }))
}

/// By name as in kallsyms, with or without a compiler's suffix; a tracepoint as `group:name`.
pub fn explained(name: &str) -> Option<Explained> {
    TABLE.get(name.split('.').next().unwrap_or(name))
}

/// By name as the logs have it: without `SKB_DROP_REASON_`. `place`: where the kernel dropped with it, `function` or `function+0x1f`; empty: not known.
pub fn drop_reason(name: &str, place: &str) -> Option<Explained> {
    let function = place.split(['+', '.', ' ']).next().filter(|f| !f.is_empty());
    let there = function.and_then(|f| DROP_REASONS.by_name.get(format!("{name}@{f}").as_str()).copied());
    there.or_else(|| DROP_REASONS.get(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{self, Detail};
    use std::collections::HashSet;

    #[test]
    fn every_row_has_three_fields_and_names_what_the_table_of_functions_has() {
        let lines = TEXT.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        for line in lines {
            assert!(row(line).is_some(), "{line}");
        }
        let mut seen = HashSet::new();
        for (name, e) in rows(TEXT) {
            assert!(seen.insert(name), "{name} twice");
            let known = name.contains('*') || functions::known(name).next().is_some();
            assert!(known, "{name} is in no row of functions.txt");
            assert!(e.does.ends_with('.') && e.slow.ends_with('.'), "{name}: not a sentence");
        }
    }

    /// The page with the drop reasons, as the table has them. `UPDATE_DOCS=1` writes it.
    #[test]
    fn the_page_lists_the_drop_reasons() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/drop-reasons.md");
        let have = std::fs::read_to_string(&path).unwrap();
        let (head, _) = have.split_once("\n## ").unwrap();
        let mut want = head.to_owned();
        for line in DROPS.lines().skip_while(|l| !l.is_empty()).filter(|l| !l.is_empty()) {
            if let Some(title) = line.strip_prefix("# ") {
                want += &format!(
                    "\n## {title}\n\n| reason | the packet | what tells more |\n| --- | --- | --- |\n"
                );
                continue;
            }
            let (names, e) = row(line).unwrap_or_else(|| panic!("not three fields: {line}"));
            assert!(e.does.ends_with('.') && e.slow.ends_with('.'), "not a sentence: {line}");
            let name =
                |n: &str| n.split_once('@').map_or(format!("`{n}`"), |(n, f)| format!("`{n}` at `{f}`"));
            let names: Vec<String> = names.split(',').map(name).collect();
            let source = if e.source.is_empty() { String::new() } else { format!("; {}", e.source) };
            want += &format!(
                "| {} | {} | {}{source} |\n",
                names.join(", "),
                e.does,
                e.slow.trim_end_matches('.')
            );
        }
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &want).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == want,
            "docs/drop-reasons.md: UPDATE_DOCS=1 writes it"
        );
        let mut seen = HashSet::new();
        assert_eq!(rows(DROPS).find(|(name, _)| !seen.insert(*name)), None, "a reason stands twice");
        assert_eq!(drop_reason("RX_DROP_U_MIC_FAIL", "").unwrap().source, "net/mac80211/rx.c");
    }

    #[test]
    fn a_function_says_more_than_no_reason() {
        let of = |place| drop_reason("NOT_SPECIFIED", place).unwrap();
        assert_eq!(of("ip_error+0x94").source, "net/ipv4/route.c");
        assert_eq!(of("ip_error.isra.0+0x94"), of("ip_error"));
        assert_eq!(of("some_function+0x1"), of(""));
        assert_ne!(drop_reason("IP_INNOROUTES", "ip_error+0x94"), Some(of("ip_error")));
        let netfilter = |place| drop_reason("NETFILTER_DROP", place).unwrap();
        assert_eq!(netfilter("nft_do_chain [nf_tables]"), netfilter("nft_do_chain+0x46f"));
        assert_ne!(netfilter("nft_do_chain"), netfilter("nf_hook_slow"));
    }

    #[test]
    fn each_function_of_steps_and_spine_is_explained() {
        let missing: Vec<&str> = functions::all()
            .iter()
            .filter(|f| matches!(f.detail, Some(Detail::Steps | Detail::Spine)))
            .map(|f| f.name)
            .filter(|n| explained(n.trim_matches('*')).is_none() && explained(n).is_none())
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_name_of_its_own_counts_more_than_a_pattern() {
        assert_ne!(explained("packet_rcv"), None);
        assert_eq!(explained("ip_forward.isra.0"), explained("ip_forward"));
        assert_eq!(explained("ip_forward").map(|e| e.source), Some("net/ipv4/ip_forward.c"));
        assert_eq!(explained("fq_codel_enqueue"), explained("htb_enqueue"));
        assert_ne!(explained("veth_xmit"), explained("e1000_xmit_frame"));
        assert_eq!(explained("not_a_function"), None);
    }
}
