//! Functions without a packet, recorded within the calls of packets: whether the mechanism can take them, and how many.

use super::{Error, KPROBE_MOST, MAX_CLONES};
use crate::also;
use crate::btf::Btf;
use crate::choose::{self, Candidate};
use crate::kernel::{self, Symbols};
use crate::mechanism::Mechanism;
use crate::profile::Selection;
use std::sync::Arc;

/// They were asked for and there are no function probes. `better`: the best mechanism that has some, and why it is not offered.
pub(super) fn refusal(better: Option<&(Mechanism, String)>) -> Error {
    let why = match better {
        Some((m, why)) => format!("which this kernel does not offer ({}: {why})", m.name()),
        None => "and --mechanism tracepoint has none".to_string(),
    };
    Error::Refused(format!("--also and --depth take function probes, {why}"))
}

/// Adds the functions that are recorded within calls of packets.
pub(super) fn add(
    m: Mechanism,
    selection: &Selection,
    btfs: &[Arc<Btf>],
    symbols: &Symbols,
    (functions, left_out): (&mut Vec<Candidate>, &mut Vec<(String, String)>),
) -> Result<(), Error> {
    let packets = choose::candidates(btfs);
    let found = also::find(btfs, selection, &packets, kernel::traceable().as_ref(), symbols);
    left_out.extend(found.left_out);
    let (odd, plain): (Vec<Candidate>, Vec<Candidate>) =
        found.functions.into_iter().partition(|c| m == Mechanism::Fentry && c.odd_arguments);
    let why = "more than six arguments or a structure by value";
    left_out.extend(odd.into_iter().map(|c| (c.name, why.to_string())));
    functions.extend(plain);
    let most = match m {
        Mechanism::Fentry => MAX_CLONES,
        Mechanism::Kprobe => KPROBE_MOST,
        _ => usize::MAX,
    };
    if functions.len() > most {
        return Err(Error::Refused(format!(
            "{} functions with those of --also and --depth are more than the {most} that {} can take: name fewer",
            functions.len(),
            m.name()
        )));
    }
    Ok(())
}
