//! The device's side on disk: a folder in which recorders finish files. It is bounded: when the far end is away for too
//! long the oldest go, and a notice says which.

use crate::error::{Error, Result};
use crate::notice::{Notice, describe};
use crate::shelf::is_file_name;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub struct Spool {
    dir: PathBuf,
    limit: Option<u64>,
}

/// A finished file.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub path: PathBuf,
    pub name: String,
    pub bytes: u64,
    modified: SystemTime,
}

impl Spool {
    pub fn open(dir: &Path, limit: Option<u64>) -> Result<Spool> {
        if !dir.is_dir() {
            return Err(Error::Target(format!("there is no folder {}; create it first", dir.display())));
        }
        Ok(Spool { dir: dir.to_owned(), limit })
    }

    /// Finishes what killed recorders left; gives the names, and words about what could not be.
    pub fn adopt(&self) -> Result<(Vec<PathBuf>, Vec<String>)> {
        let adopted = kpat_klog::adopt(&self.dir).map_err(Error::io(&self.dir, "read"))?;
        let words = |(path, e): (PathBuf, std::io::Error)| format!("{}: {e}", path.display());
        Ok((adopted.names, adopted.left.into_iter().map(words).collect()))
    }

    /// Notices first, then the oldest.
    pub fn waiting(&self) -> Result<Vec<Waiting>> {
        let failed = || Error::io(&self.dir, "read");
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let Some(name) = entry.file_name().to_str().filter(|n| is_file_name(n)).map(str::to_owned) else {
                continue;
            };
            // Gone meanwhile, or no plain file.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_file() {
                let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                all.push(Waiting { path: entry.path(), name, bytes: meta.len(), modified });
            }
        }
        all.sort_by(|a, b| {
            let key = |w: &Waiting| (w.is_log(), w.modified);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        Ok(all)
    }

    /// Bytes in the folder, what is being written included.
    fn held(&self) -> Result<u64> {
        let entries = fs::read_dir(&self.dir).map_err(Error::io(&self.dir, "read"))?;
        Ok(entries.flatten().filter_map(|e| e.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum())
    }

    /// Throws the oldest logs away until the folder is within its limit; gives their names. The notice is on the disk
    /// before they go.
    pub fn keep_to_limit(&self) -> Result<Vec<String>> {
        let Some(limit) = self.limit else { return Ok(Vec::new()) };
        let mut over = self.held()?.saturating_sub(limit);
        if over == 0 {
            return Ok(Vec::new());
        }
        let waiting = self.waiting()?;
        let old: Vec<&Waiting> = waiting.iter().filter(|w| !w.is_log()).collect();
        let mut notice = Notice { cause: "spool-limit".into(), ..Notice::default() };
        for reported in &old {
            if let Ok(before) = Notice::read(&reported.path) {
                before.thrown.into_iter().for_each(|t| notice.add(t));
            }
        }
        let mut go = Vec::new();
        for w in waiting.iter().filter(|w| w.is_log()) {
            if over == 0 {
                break;
            }
            notice.add(describe(&w.path));
            over = over.saturating_sub(w.bytes);
            go.push(w);
        }
        if go.is_empty() {
            return Ok(Vec::new());
        }
        notice.write(&self.dir)?;
        for w in old.into_iter().chain(go.iter().copied()) {
            w.remove()?;
        }
        Ok(go.into_iter().map(|w| w.name.clone()).collect())
    }
}

impl Waiting {
    fn is_log(&self) -> bool {
        self.name.ends_with(".kbl")
    }

    pub fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(&self.path, "remove")(e)),
            _ => Ok(()),
        }
    }
}
