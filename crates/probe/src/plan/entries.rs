//! Functions of which only entries are recorded (`--entry-only`): less than half of a call's cost, and no duration.
//!
//! They go by programs and links of their own, so that the others pay nothing for the choice. Rejected: a bit of the attach cookie that the program for
//! entry and return looks at. fsession runs a program at the return whatever its entry answered, which is what is to be saved.

use crate::choose::Candidate;
use crate::mechanism::Mechanism;
use crate::profile::{ALL, LEAVES, Selection, glob};
use crate::roles::role;

/// Marks them.
pub(super) fn mark(selection: &Selection, functions: &mut [Candidate]) {
    for c in functions {
        c.entry_only = role::ends_at_entry(c.roles) && selection.only_entries(&c.name);
    }
}

/// What was asked for by name and is recorded with its returns, or not at all.
pub(super) fn unmet(m: Mechanism, selection: &Selection, functions: &[Candidate]) -> Vec<(String, String)> {
    let why = |pattern: &String| {
        let named = || functions.iter().filter(|c| glob(pattern, &c.name));
        if m == Mechanism::Tracepoint {
            return Some("tracepoints are moments: there are no returns to leave out");
        }
        match pattern.as_str() {
            LEAVES | ALL => None,
            _ if named().next().is_none() => Some("no function that is probed fits"),
            _ if named().any(|c| c.entry_only) => None,
            _ => Some(
                "what these functions return tells packets apart, or they have none of their own: their returns are recorded",
            ),
        }
    };
    let asked = selection.entry_only.iter();
    asked.filter_map(|p| Some((format!("--entry-only {p}"), why(p)?.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::Via;

    fn functions() -> Vec<Candidate> {
        let of = |name: &str, roles| Candidate {
            name: name.into(),
            module: String::new(),
            btf_id: 0,
            via: Via::Argument(0),
            roles,
            odd_arguments: false,
            settled: false,
            entry_only: false,
        };
        let free = of("skb_release_data", role::FREE);
        vec![
            of("ip_rcv", 0),
            of("sock_wfree", 0),
            free,
            of("skb_clone", role::CLONE),
            of("kfree", role::WITHIN),
        ]
    }

    fn chosen(patterns: &[&str]) -> (Vec<bool>, Vec<String>) {
        let selection =
            Selection { entry_only: patterns.iter().map(|p| p.to_string()).collect(), ..Default::default() };
        let mut functions = functions();
        mark(&selection, &mut functions);
        let unmet = unmet(Mechanism::FsessionMulti, &selection, &functions);
        (functions.iter().map(|c| c.entry_only).collect(), unmet.into_iter().map(|(what, _)| what).collect())
    }

    #[test]
    fn what_tells_packets_apart_at_its_return_keeps_it() {
        assert_eq!(chosen(&[]), (vec![false; 5], vec![]));
        assert_eq!(chosen(&["all"]), (vec![true, true, true, false, false], vec![]));
        assert_eq!(chosen(&["leaves"]), (vec![false, true, true, false, false], vec![]));
        assert_eq!(chosen(&["ip_*", "leaves"]), (vec![true, true, true, false, false], vec![]));
    }

    #[test]
    fn what_was_asked_for_by_name_and_cannot_be_is_named() {
        assert_eq!(chosen(&["skb_clone"]), (vec![false; 5], vec!["--entry-only skb_clone".into()]));
        assert_eq!(chosen(&["tcp_*"]), (vec![false; 5], vec!["--entry-only tcp_*".into()]));
        let selection = Selection { entry_only: vec!["leaves".into()], ..Default::default() };
        assert_eq!(unmet(Mechanism::Tracepoint, &selection, &[]).len(), 1);
    }

    #[test]
    fn each_mechanism_has_a_program_for_entries() {
        let mut functions = functions();
        functions[0].entry_only = true;
        assert_eq!(crate::mechanism::clones(&functions[0]).len(), 1);
        for m in Mechanism::ALL {
            assert_eq!(m.entry_program().is_none(), m == Mechanism::Tracepoint, "{}", m.name());
        }
    }
}
