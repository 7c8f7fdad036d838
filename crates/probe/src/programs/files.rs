//! Files that a name of the table means: those that processes have mapped, wherever they are mounted, and those where binaries and libraries lie.

use crate::profile::glob;
use crate::{kernel, mappings};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Clone, Debug)]
pub struct Binary {
    /// Where it can be opened.
    pub path: String,
    /// As its processes see it.
    pub shown: String,
}

const FOLDERS: [&str; 12] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
];

/// Files that are mapped to be executed, by the path that their process sees: a process that has each, one for each mount namespace.
pub type Mapped = BTreeMap<String, Vec<u32>>;

pub fn mapped() -> Mapped {
    let mut out = Mapped::new();
    let mut seen: BTreeSet<(String, u64)> = BTreeSet::new();
    for pid in kernel::processes() {
        let mounts = std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map_or(0, |m| m.ino());
        for range in mappings::of(pid).into_iter().filter(|r| r.path.starts_with('/')) {
            if seen.insert((range.path.clone(), mounts)) {
                out.entry(range.path).or_default().push(pid);
            }
        }
    }
    out
}

fn fits(pattern: &str, path: &str) -> bool {
    if pattern.contains('/') {
        return glob(pattern, path);
    }
    path.rsplit('/').next().is_some_and(|name| glob(pattern, name))
}

/// Each file once, whatever names it has.
pub fn of(pattern: &str, mapped: &Mapped) -> Vec<Binary> {
    let mut found: Vec<Binary> = Vec::new();
    if pattern.contains('/') && !pattern.contains(['*', '?']) {
        found.push(Binary { path: pattern.into(), shown: pattern.into() });
    } else {
        let folder = pattern.rsplit_once('/').map(|(folder, _)| folder);
        for folder in FOLDERS.iter().copied().filter(|f| folder.is_none_or(|own| glob(own, f))) {
            let Ok(all) = std::fs::read_dir(folder) else { continue };
            for entry in all.flatten() {
                let path = entry.path().display().to_string();
                // Not what only a link editor reads, nor hundreds of others.
                if fits(pattern, &path) {
                    found.push(Binary { shown: path.clone(), path });
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
    }
    for (path, pids) in mapped.iter().filter(|(path, _)| fits(pattern, path)) {
        found.extend(
            pids.iter().map(|pid| Binary { path: format!("/proc/{pid}/root{path}"), shown: path.clone() }),
        );
    }
    let mut once: Vec<(u64, u64)> = Vec::new();
    found.retain(|b| {
        let Ok(m) = std::fs::metadata(Path::new(&b.path)) else { return false };
        let file = (m.dev(), m.ino());
        m.is_file() && !once.contains(&file) && {
            once.push(file);
            true
        }
    });
    found
}
