//! What was asked for by name and will not be recorded: the recorder reports it before it starts.

use super::{points, tracepoint_name};
use crate::choose::Candidate;
use crate::kernel::Symbols;
use crate::mechanism::Mechanism;
use crate::object::{Build, Side};
use crate::profile::{self, Selection};

/// What was asked for by name and tracepoints cannot give: functions, and a driver's own.
pub(super) fn by_points(
    selection: &Selection,
    build: Build,
    symbols: &Symbols,
    better: Option<&(Mechanism, String)>,
) -> Vec<(String, String)> {
    let points: Vec<_> = points::programs(build, Side::Packets).map(|(_, name, _)| name).collect();
    let is_point = |glob: &str| {
        points.iter().any(|n| profile::glob(glob, n) || profile::glob(glob, &tracepoint_name(n)))
    };
    let no_functions = match better {
        Some((m, why)) => {
            format!("it takes function probes, which this kernel does not offer ({}: {why})", m.name())
        }
        None => "it takes function probes, and --mechanism tracepoint has none".to_string(),
    };
    let mut out = Vec::new();
    for driver in selection.profiles().filter(|p| p.starts_with("driver:")) {
        out.push((format!("functions of {driver}"), no_functions.clone()));
    }
    for glob in selection.add.iter().filter(|g| !is_point(g)) {
        let unknown = !glob.contains(['*', '?']) && symbols.count(glob) == 0;
        let why = if unknown { "this kernel has no such function or tracepoint" } else { &no_functions };
        out.push((glob.clone(), why.to_string()));
    }
    out
}

/// What was asked for by name and is not among the functions that will be probed.
pub(super) fn by_functions(
    selection: &Selection,
    functions: &[Candidate],
    left_out: &[(String, String)],
) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for profile in selection.profiles() {
        let driver = profile.strip_prefix("driver:");
        if driver.is_some_and(|d| !functions.iter().any(|c| profile::is_module(d, &c.module))) {
            let why = "no function that can be probed belongs to a loaded module of that name";
            out.push((format!("functions of {profile}"), why.to_string()));
        }
    }
    for glob in &selection.add {
        if functions.iter().any(|c| profile::glob(glob, &c.name)) {
            continue;
        }
        let why = left_out.iter().find(|(name, _)| profile::glob(glob, name));
        let why = why.map_or("no function that handles packets fits", |(_, why)| why);
        out.push((glob.clone(), why.to_string()));
    }
    out
}
