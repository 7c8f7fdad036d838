//! The declared boundaries: from text to rules by function of one log.

use super::phase::Phase;
use crate::names::glob_fits;
use kpat_model::functions;
use kpat_store::tables::CallRow;
use std::fmt;
use std::sync::LazyLock;

/// The built-in rules, before which a user's file goes. In place of names, a rule has `@` and the word by which the table of functions
/// says which it is for.
const RULES: &str = include_str!("boundaries.txt");

static BUILT_IN: LazyLock<String> = LazyLock::new(|| named(RULES));

/// A rule's names are put on lines of about this length.
const NAMES_WIDTH: usize = 100;

/// The rules with their names.
fn named(rules: &str) -> String {
    let mut out = String::new();
    for line in rules.lines() {
        let Some((begin, rest)) = line.split_once('@').filter(|_| !line.starts_with('#')) else {
            out += line;
            out.push('\n');
            continue;
        };
        let (rule, conditions) = rest.split_once(' ').unwrap_or((rest, ""));
        let mut names = functions::of_boundary(rule).peekable();
        while let Some(first) = names.next() {
            let mut some = first.to_owned();
            while let Some(name) = names.next_if(|n| some.len() + n.len() < NAMES_WIDTH) {
                some.push(' ');
                some += name;
            }
            out += format!("{begin}{some} {conditions}").trim_end();
            out.push('\n');
        }
    }
    out
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    Entry,
    Return,
}

#[derive(Clone, Debug)]
struct Rule {
    phase: Phase,
    edge: Edge,
    names: Vec<String>,
    /// Bits of the phases in which it holds; all: anywhere.
    within: u32,
    without: Option<Phase>,
    section: Section,
}

#[derive(Clone, Debug, PartialEq)]
enum Section {
    General,
    Driver(String),
    Kernel(Option<(u32, u32)>, Option<(u32, u32)>),
}

/// Where phases begin.
#[derive(Clone, Debug)]
pub struct Boundaries {
    rules: Vec<Rule>,
}

/// A line of a boundary file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBoundary {
    /// From 1.
    pub line: usize,
    pub why: String,
}

impl fmt::Display for BadBoundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for BadBoundary {}

impl Default for Boundaries {
    fn default() -> Self {
        let mut b = Boundaries { rules: Vec::new() };
        b.read(&BUILT_IN).expect("the built-in table is tested");
        b
    }
}

/// What begins at one edge of one function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub phase: Phase,
    pub within: u32,
}

/// The rules for the functions of one log.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// By func_id: marks at entry, marks at return; the last one that holds counts.
    pub by_func: Vec<(Vec<Mark>, Vec<Mark>)>,
    /// Bits of phases that some recorded function begins.
    pub begins: u32,
    /// By phase: functions that would begin it (for saying what is missing).
    pub wanted: Vec<(Phase, Vec<String>)>,
}

/// What of a log decides which rules hold.
pub(super) struct LogFacts<'a> {
    /// By func_id: name (empty: none), module.
    pub functions: Vec<(&'a str, &'a str)>,
    pub drivers: Vec<&'a str>,
    pub release: &'a str,
}

impl Boundaries {
    /// The built-in table, the format described at its head.
    pub fn built_in() -> &'static str {
        &BUILT_IN
    }

    /// Adds the rules of a file; its rules go before those there are.
    ///
    /// Errors: the first line that cannot be read; nothing was added then.
    pub fn read(&mut self, text: &str) -> Result<(), BadBoundary> {
        let mut rules = self.rules.clone();
        let mut section = Section::General;
        for (i, line) in text.lines().enumerate() {
            let bad = |why: String| BadBoundary { line: i + 1, why };
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
            } else if line == "reset" {
                rules.clear();
            } else if let Some(inner) = line.strip_prefix('[') {
                let inner = inner.strip_suffix(']').ok_or_else(|| bad("a `]` is missing".to_owned()))?;
                section = section_of(inner).map_err(bad)?;
            } else {
                rules.push(rule_of(line, &section).map_err(bad)?);
            }
        }
        self.rules = rules;
        Ok(())
    }

    pub(super) fn marks(&self, log: &LogFacts<'_>) -> Marks {
        let release = version_of(log.release);
        let holds = |r: &&Rule| match &r.section {
            Section::General => true,
            Section::Driver(d) => {
                log.drivers.contains(&d.as_str())
                    || log.functions.iter().any(|f| f.1 == d || f.1.replace('-', "_") == *d)
            }
            Section::Kernel(from, to) => match release {
                Some(v) => from.is_none_or(|f| v >= f) && to.is_none_or(|t| v < t),
                None => false,
            },
        };
        // Compiler clones: `name.isra.0`.
        let bare: Vec<&str> = log.functions.iter().map(|f| f.0.split('.').next().unwrap_or(f.0)).collect();
        let fits = |r: &Rule, name: &str| !name.is_empty() && r.names.iter().any(|n| glob_fits(n, name));
        let mut marks = Marks { by_func: vec![(Vec::new(), Vec::new()); bare.len()], ..Marks::default() };
        let rules: Vec<&Rule> = self.rules.iter().filter(holds).collect();
        for r in rules.iter().filter(|r| r.without.is_none() && r.edge == Edge::Entry) {
            if bare.iter().any(|name| fits(r, name)) {
                marks.begins |= r.phase.bit();
            }
        }
        let plain = marks.begins;
        for r in &rules {
            if r.without.is_some_and(|w| plain & w.bit() != 0) {
                continue;
            }
            for (i, name) in bare.iter().enumerate().filter(|(_, name)| fits(r, name)) {
                let (entry, exit) = &mut marks.by_func[i];
                let mark = Mark { phase: r.phase, within: r.within };
                match r.edge {
                    Edge::Entry => entry.push(mark),
                    // A point has no return.
                    Edge::Return if !name.contains(':') => exit.push(mark),
                    Edge::Return => continue,
                }
                marks.begins |= r.phase.bit();
            }
        }
        for &phase in Phase::ALL {
            let of_phase = rules.iter().filter(|r| r.phase == phase && r.without.is_none());
            let mut names: Vec<String> = of_phase.flat_map(|r| r.names.iter().cloned()).collect();
            names.dedup();
            marks.wanted.push((phase, names));
        }
        marks
    }
}

impl Marks {
    /// Of the marks of one edge, the last that holds in `phase` (`None`: nothing was known before).
    pub(super) fn pick(marks: &[Mark], phase: Option<Phase>) -> Option<Phase> {
        let bit = phase.map_or(u32::MAX, Phase::bit);
        marks.iter().rev().find(|m| m.within & bit != 0).map(|m| m.phase)
    }

    /// Whether `phase` may begin where this function or tracepoint is entered.
    pub(super) fn begins_at_entry(&self, row: &CallRow, phase: Phase) -> bool {
        let of = usize::try_from(row.func_id).ok().and_then(|f| self.by_func.get(f));
        of.is_some_and(|(entry, _)| entry.iter().any(|m| m.phase == phase))
    }
}

fn section_of(text: &str) -> Result<Section, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        ["general"] => Ok(Section::General),
        ["driver", name] => Ok(Section::Driver((*name).to_owned())),
        ["kernel", from, to] => {
            let version = |t: &str| match t {
                "-" => Ok(None),
                t => version_of(t).map(Some).ok_or_else(|| format!("`{t}` is no kernel release like 6.12")),
            };
            Ok(Section::Kernel(version(from)?, version(to)?))
        }
        _ => Err(format!("`[{text}]` is no section: use [general], [driver NAME] or [kernel FROM TO]")),
    }
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn phase_of(word: &str) -> Result<Phase, String> {
    Phase::from_name(word).ok_or_else(|| {
        let known: Vec<&str> = Phase::ALL.iter().map(|p| p.name()).collect();
        format!("`{word}` is no phase; there are {}", known.join(" "))
    })
}

fn rule_of(line: &str, section: &Section) -> Result<Rule, String> {
    let mut words = line.split_whitespace();
    let phase = phase_of(words.next().unwrap_or_default())?;
    let edge = match words.next() {
        Some("entry") => Edge::Entry,
        Some("return") => Edge::Return,
        other => return Err(format!("`{}` should be `entry` or `return`", other.unwrap_or_default())),
    };
    let mut rule =
        Rule { phase, edge, names: Vec::new(), within: 0, without: None, section: section.clone() };
    let mut place = "names";
    for word in words {
        match (word, place) {
            ("if" | "without", _) => place = word,
            (name, "names") => rule.names.push(name.to_owned()),
            (name, "if") => rule.within |= phase_of(name)?.bit(),
            (name, _) => rule.without = Some(phase_of(name)?),
        }
    }
    if rule.names.is_empty() {
        return Err("names no function".to_owned());
    }
    if rule.within == 0 {
        rule.within = u32::MAX;
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>(functions: &[(&'a str, &'a str)], release: &'a str) -> LogFacts<'a> {
        LogFacts { functions: functions.to_vec(), drivers: Vec::new(), release }
    }

    #[test]
    fn the_built_in_table_is_whole() {
        let functions = [("ip_rcv.isra.0", ""), ("veth_xmit", "veth"), ("net:netif_receive_skb", "")];
        let marks = Boundaries::default().marks(&facts(&functions, "7.2.12"));
        assert_eq!(Marks::pick(&marks.by_func[0].0, Some(Phase::LinkRx)), Some(Phase::NetworkRx));
        assert_eq!(Marks::pick(&marks.by_func[0].0, Some(Phase::NetworkTx)), None);
        assert_eq!(Marks::pick(&marks.by_func[1].1, Some(Phase::LinkTx)), Some(Phase::LinkTx));
        // Network boundaries are recorded, so the point is only the end of waiting.
        assert_eq!(Marks::pick(&marks.by_func[2].0, Some(Phase::Backlog)), Some(Phase::LinkRx));
        let marks = Boundaries::default().marks(&facts(&functions[2..], "7.2.12"));
        assert_eq!(Marks::pick(&marks.by_func[0].0, Some(Phase::Backlog)), Some(Phase::AboveLink));
    }

    #[test]
    fn rules_and_the_table_of_functions_name_each_other() {
        use std::collections::BTreeSet;
        let rows = functions::all().iter();
        let in_table: BTreeSet<&str> = rows.flat_map(|f| f.begins.iter().copied()).collect();
        let rules = RULES.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once('@'));
        let in_rules: BTreeSet<&str> = rules.filter_map(|(_, rest)| rest.split(' ').next()).collect();
        assert_eq!(in_table, in_rules);
        let neighbour = Boundaries::built_in().lines().find(|l| l.starts_with("neighbour"));
        assert_eq!(neighbour, Some("neighbour     return  __neigh_event_send if network-tx"));
    }

    #[test]
    fn sections_and_conditions() {
        let mut b = Boundaries::default();
        b.read("reset\n[kernel 6.0 6.10]\nlink-rx entry f\n[kernel 6.10 -]\nlink-tx entry f if qdisc gro\n")
            .unwrap();
        let at = |release, phase| {
            let marks = b.marks(&facts(&[("f", "")], release));
            Marks::pick(&marks.by_func[0].0, phase)
        };
        assert_eq!(at("6.9.1-x", None), Some(Phase::LinkRx));
        assert_eq!(at("6.10-rc1", Some(Phase::Gro)), Some(Phase::LinkTx));
        assert_eq!(at("6.10-rc1", Some(Phase::LinkRx)), None);
        assert_eq!(at("unknown", None), None);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, line, says) in [
            ("\nlink-rx entry", 2, "names no function"),
            ("link entry f", 1, "`link` is no phase"),
            ("link-rx at f", 1, "`at` should be"),
            ("[driver]", 1, "is no section"),
            ("[kernel six -]", 1, "no kernel release"),
            ("[general", 1, "`]` is missing"),
            ("link-rx entry f if nowhere", 1, "`nowhere` is no phase"),
        ] {
            let mut b = Boundaries::default();
            let e = b.read(text).unwrap_err();
            assert_eq!(e.line, line, "{text}");
            assert!(e.why.contains(says), "{text}: {e}");
        }
    }
}
