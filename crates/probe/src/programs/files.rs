//! Files that a name of the table means: those that processes have mapped, wherever they are mounted and even if they are deleted, and those where binaries and
//! libraries lie.

use crate::mappings::Range;
use crate::profile::glob;
use crate::{kernel, mappings, sys};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

pub struct Binary {
    pub opened: Arc<File>,
    /// Device and inode.
    pub file: (u64, u64),
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

/// Files that are mapped to be executed, by the path that their process sees: of each a process that has it, and where.
pub type Mapped = BTreeMap<String, Vec<(u32, Range)>>;

pub fn mapped() -> Mapped {
    let mut out = Mapped::new();
    let mut seen: BTreeSet<(String, u64, String)> = BTreeSet::new();
    for pid in kernel::processes() {
        let mounts = std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map_or(0, |m| m.ino());
        for range in mappings::of(pid).into_iter().filter(|r| r.path.starts_with('/')) {
            // A path may be a deleted file's, too, and layers of file systems have numbers of their own.
            if seen.insert((range.path.clone(), mounts, range.file.clone())) {
                out.entry(range.path.clone()).or_default().push((pid, range));
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
    let mut lie: Vec<String> = Vec::new();
    if pattern.contains('/') && !pattern.contains(['*', '?']) {
        lie.push(pattern.into());
    } else {
        let folder = pattern.rsplit_once('/').map(|(folder, _)| folder);
        for folder in FOLDERS.iter().copied().filter(|f| folder.is_none_or(|own| glob(own, f))) {
            let Ok(all) = std::fs::read_dir(folder) else { continue };
            let paths = all.flatten().map(|entry| entry.path().display().to_string());
            // Not what only a link editor reads, nor hundreds of others.
            lie.extend(paths.filter(|path| fits(pattern, path)));
        }
        lie.sort();
    }
    let lie = lie.into_iter().map(|path| (sys::open_regular(&path, 0).ok(), path));
    let fitting = mapped.iter().filter(|(path, _)| fits(pattern, path));
    let mapped = fitting.flat_map(|(path, all)| all.iter().map(move |of| (path, of)));
    let mapped = mapped.map(|(path, (pid, range))| (mappings::file_of(&[*pid], range), path.clone()));
    let mut once: BTreeSet<(u64, u64)> = BTreeSet::new();
    let binary = |(opened, shown): (Option<File>, String)| {
        let opened = opened?;
        let m = opened.metadata().ok()?;
        let file = (m.dev(), m.ino());
        once.insert(file).then(|| Binary { opened: Arc::new(opened), file, shown })
    };
    lie.chain(mapped).filter_map(binary).collect()
}
