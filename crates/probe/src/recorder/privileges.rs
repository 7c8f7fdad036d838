//! What a recorder may do: what it lacks is reported when it starts, what it does not need any more it gives up once everything runs.
//!
//! It keeps what programs are attached again with (`kpat ctl resume`), what enters namespaces that come and samples the cost
//! (CAP_SYS_ADMIN), what names places in the kernel, what lets it hurry, and of a profile with samples what tells the addresses of others' processes, where processes are chosen what tells their sockets (CAP_SYS_PTRACE). The thread that looks for network namespaces without a
//! name keeps what lets it look at others' processes (CAP_SYS_PTRACE), and nothing else. Threads that only write, capture or serve
//! keep nothing.

use super::disk::Reserve;
use super::{Note, Options};
use crate::capability::{self, Cap};
use std::path::Path;

/// What is not recorded for lack of a capability.
pub(super) fn lacking(tell: &mut dyn FnMut(Note)) {
    let lacks = [
        (Cap::SysAdmin, "links of other network namespaces and what the programs cost are not recorded"),
        (
            Cap::SysPtrace,
            "network namespaces of others' processes that have no name are not found, nor who holds listeners",
        ),
        (Cap::Syslog, "locations of drops may have no names"),
    ];
    for (cap, what) in lacks.into_iter().filter(|(cap, _)| !capability::has(*cap)) {
        tell(Note::Hindered(format!("without {}: {what}", cap.name())));
    }
}

/// What it takes to make files beside the log: nothing, unless the folder is another user's.
pub(super) fn of_files(log: &Path) -> Vec<Cap> {
    let dac = capability::takes(Cap::DacOverride, || Reserve::take_first(log).is_ok());
    if dac { vec![Cap::DacOverride] } else { Vec::new() }
}

/// From here on it may do only what a recording needs that runs. `files_take`: see [`of_files`].
pub(super) fn give_up(options: &Options, files_take: &[Cap]) {
    let mut keep = vec![Cap::Bpf, Cap::Perfmon, Cap::SysAdmin, Cap::Syslog, Cap::SysNice];
    keep.extend(files_take);
    if (options.work && options.sample_rate > 0) || options.by_process() {
        // What the addresses of others' processes mean, and which sockets they have.
        keep.push(Cap::SysPtrace);
    }
    if !options.command.is_empty() {
        // It may be another user's by now, and ends with the recording.
        keep.push(Cap::Kill);
    }
    capability::keep(&keep);
}
