//! Which functions go by which mechanism, where a recording takes two.
//!
//! fsession.multi does not take every function; kprobe.session takes the others. kprobe.session takes all of them, but a hit of it costs twice
//! what one of fentry does, which has programs for each function that are to be verified and attached one by one. So those functions that
//! packets meet most often go by fentry, and the others, which cost nothing while nobody calls them, by one link. Rejected: to count
//! in the first second and move functions then. A call that is under way while its function moves is seen by both or by neither.

use super::{Decision, Error, function_id};
use crate::attach::{self, Attached, Target};
use crate::choose::Candidate;
use crate::mechanism::{self, Mechanism};
use crate::object::Loaded;
use kpat_model::functions;

/// Calls for 100 packets from which on a function goes by fentry: most packets meet it, and routed ones twice. Each function takes 0.1 s to load and
/// 0.14 s to detach on 6.12.
const OFTEN: u32 = 150;
/// So many at most, that a recording with *full* detail, too, is attached within two seconds.
const MOST: usize = 12;

/// Which of `functions` (their places) go by fentry where the recording's mechanism is kprobe.session: those with many hits in the table of functions, most first.
pub fn often(m: Mechanism, functions: &[Candidate]) -> Vec<usize> {
    if m != Mechanism::KprobeSession {
        return Vec::new();
    }
    let hits = |i: &usize| functions::of(&functions[*i].name).map_or(0, |f| f.hits);
    let takes = |i: &usize| !functions[*i].odd_arguments && !functions[*i].entry_only && hits(i) >= OFTEN;
    let mut often: Vec<usize> = (0..functions.len()).filter(takes).collect();
    often.sort_by_key(|i| std::cmp::Reverse(hits(i)));
    often.truncate(MOST);
    often
}

/// Programs to load for a decision's functions.
pub(super) fn of_functions(d: &Decision) -> Vec<(&'static str, Option<(u32, u32)>)> {
    let mut out: Vec<(&str, Option<(u32, u32)>)> = Vec::new();
    if !d.functions.is_empty() {
        out.extend(d.mechanism.programs());
    }
    if d.functions.iter().any(|c| c.entry_only) {
        out.extend(d.mechanism.entry_program());
        if second(d) {
            out.extend(Mechanism::KprobeSession.entry_program());
        }
    }
    if second(d) {
        out.extend(Mechanism::KprobeSession.programs());
    }
    for name in d.often.iter().flat_map(|i| mechanism::clones(&d.functions[*i])) {
        if !out.iter().any(|(n, _)| n == name) {
            out.push((name, None));
        }
    }
    out
}

/// fsession.multi takes functions with plain arguments, and those of a module only where the module's types are available;
/// the others go by kprobe.session.
fn second(d: &Decision) -> bool {
    let others = |c: &Candidate| !c.module.is_empty() || c.odd_arguments;
    d.mechanism == Mechanism::FsessionMulti && d.functions.iter().any(others)
}

/// For mechanisms with a program per function: what is constant in each.
pub fn clone_cookies(d: &Decision) -> Vec<u64> {
    let each = |i: usize| d.functions[i].cookie(function_id(i));
    match d.mechanism {
        Mechanism::Fentry => (0..d.functions.len()).map(each).collect(),
        _ => d.often.iter().map(|i| each(*i)).collect(),
    }
}

/// Attaches the functions, each by the mechanism that suits it, else by the other. Returns those that neither takes, with the reason;
/// [`Decision::often`] is then what it came to.
pub(super) fn by_mechanisms(
    loaded: &Loaded,
    d: &mut Decision,
    attached: &mut Attached,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<(String, String)>, Error> {
    let all: Vec<Target<'_>> =
        (0..d.functions.len()).map(|i| Target { candidate: &d.functions[i], func: function_id(i) }).collect();
    let target = |i: &usize| all[*i];
    let mut refused = Vec::new();
    if second(d) {
        let (mut other, main): (Vec<Target<'_>>, Vec<Target<'_>>) =
            all.iter().partition(|t| t.candidate.odd_arguments);
        for (t, reason) in go(loaded, d.mechanism, &main, attached, progress)? {
            match t.candidate.module.is_empty() {
                true => refused.push(words(&t, d.mechanism, &reason)),
                false => other.push(t),
            }
        }
        let last = Mechanism::KprobeSession;
        let out = go(loaded, last, &other, attached, progress)?;
        refused.extend(out.iter().map(|(t, reason)| words(t, last, reason)));
        return Ok(refused);
    }
    let first: Vec<Target<'_>> = d.often.iter().map(target).collect();
    let from = attached.refused.len();
    if !first.is_empty() && attached.beside(loaded, &first, progress).is_err() {
        attached.refused.extend((0..first.len()).map(|i| (i, String::new())));
    }
    let back: Vec<usize> = attached.refused[from..].iter().map(|(i, _)| d.often[*i]).collect();
    let often: Vec<usize> = d.often.iter().copied().filter(|i| !back.contains(i)).collect();
    let rest: Vec<Target<'_>> = (0..all.len()).filter(|i| !often.contains(i)).map(|i| all[i]).collect();
    let out = go(loaded, d.mechanism, &rest, attached, progress)?;
    refused.extend(out.iter().map(|(t, reason)| words(t, d.mechanism, reason)));
    d.often = often;
    Ok(refused)
}

fn words(t: &Target<'_>, m: Mechanism, reason: &str) -> (String, String) {
    (t.candidate.name.clone(), format!("refused by {}: {reason}", m.name()))
}

/// By one mechanism. Returns what it refuses.
fn go<'a>(
    loaded: &Loaded,
    m: Mechanism,
    part: &[Target<'a>],
    attached: &mut Attached,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<(Target<'a>, String)>, attach::Error> {
    let from = attached.refused.len();
    if !part.is_empty() {
        attached.functions(loaded, m, part, progress)?;
    }
    Ok(attached.refused[from..].iter().map(|(i, reason)| (part[*i], reason.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose::Via;

    fn candidate(name: &str) -> Candidate {
        Candidate {
            name: name.into(),
            module: String::new(),
            btf_id: 0,
            via: Via::Argument(0),
            roles: 0,
            odd_arguments: false,
            settled: false,
            entry_only: false,
        }
    }

    #[test]
    fn the_functions_with_most_hits_go_by_fentry() {
        let mut functions = ["icmp_rcv", "ip_forward", "ip_rcv", "skb_release_data"].map(candidate);
        assert_eq!(often(Mechanism::KprobeSession, &functions), [3, 2]);
        assert!(often(Mechanism::FsessionMulti, &functions).is_empty());
        // typed programs do not take those
        functions[2].odd_arguments = true;
        assert_eq!(often(Mechanism::KprobeSession, &functions), [3]);
    }

    #[test]
    fn a_few_functions_are_most_of_the_hits() {
        let known: Vec<Candidate> = functions::all().iter().map(|f| candidate(f.name)).collect();
        let hits = |i: &usize| functions::of(&known[*i].name).map_or(0, |f| f.hits);
        let chosen = often(Mechanism::KprobeSession, &known);
        let all: u32 = (0..known.len()).map(|i| hits(&i)).sum();
        let of_them: u32 = chosen.iter().map(hits).sum();
        assert!(chosen.len() <= MOST && 4 * of_them > all, "{of_them} of {all} by {}", chosen.len());
    }

    #[test]
    fn a_function_has_programs_for_what_it_is() {
        let mut c = candidate("ip_rcv");
        assert_eq!(mechanism::clones(&c), ["fentry_plain", "fexit_plain"]);
        c.settled = true;
        assert_eq!(mechanism::clones(&c), ["fentry_settled", "fexit_plain"]);
        c.via = Via::Pointer(0);
        assert_eq!(mechanism::clones(&c), ["fentry_special", "fexit_special"]);
    }
}
