//! What the directory of an integrated log consists of, so that nothing else goes with it when it is replaced.
//!
//! Known by names alone, of an older kpat's logs by those in their manifest: what is in the files may be damaged, and is of no matter here.

use crate::error::{Error, Result};
use crate::manifest::{FILE, Manifest};
use crate::tables::{ALL, CROSSING};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The files and folders of an integrated log, and no others; relative to its directory.
#[derive(Debug, Default)]
pub struct Contents {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Contents {
    /// Errors: it is no integrated log ([`Error::NotALog`], [`Error::TooNew`]), or holds something that is no part of one ([`Error::Foreign`]).
    pub fn of(dir: &Path) -> Result<Contents> {
        let mut all = Contents::default();
        all.gather(dir, Path::new(""), true)?;
        Ok(all)
    }

    fn gather(&mut self, dir: &Path, at: &Path, may_have_devices: bool) -> Result<()> {
        let here = dir.join(at);
        let manifest = Manifest::read_of_any_age(&here)?;
        let is_table = |name: &str| {
            let table = name.strip_suffix(".parquet");
            let known = ALL.iter().copied().chain([&CROSSING]).any(|t| t.file_name() == name);
            known || table.is_some_and(|n| manifest.tables.iter().any(|t| t.table == n))
        };
        for entry in fs::read_dir(&here).map_err(Error::io(&here, "read"))? {
            let entry = entry.map_err(Error::io(&here, "read"))?;
            let (name, inside) = (entry.file_name(), at.join(entry.file_name()));
            let foreign = || Error::Foreign { path: dir.to_owned(), what: inside.clone() };
            let name = name.to_str().ok_or_else(foreign)?;
            if !entry.file_type().map_err(Error::io(&here, "read"))?.is_dir() {
                if name != FILE && !is_table(name) {
                    return Err(foreign());
                }
                self.files.push(inside);
            } else if may_have_devices && manifest.devices.iter().any(|d| d.folder == name) {
                self.gather(dir, &inside, false)?;
                self.folders.push(inside);
            } else {
                return Err(foreign());
            }
        }
        Ok(())
    }

    /// Removes it from a directory, and the directory, where it is empty then.
    pub fn remove(&self, dir: &Path) -> Result<()> {
        let gone = |path: &Path, done: std::io::Result<()>| match done {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io(path, "remove")(e)),
            _ => Ok(()),
        };
        for file in &self.files {
            let path = dir.join(file);
            gone(&path, fs::remove_file(&path))?;
        }
        for folder in &self.folders {
            let path = dir.join(folder);
            gone(&path, fs::remove_dir(&path))?;
        }
        gone(dir, fs::remove_dir(dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{DeviceLog, TableCount};
    use crate::tables::SCHEMA_VERSION;

    /// A log of two devices in an empty folder of its own.
    fn log(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kpat-contents-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let one = Manifest { schema: SCHEMA_VERSION, ..Manifest::default() };
        let device = |folder: &str| DeviceLog { folder: folder.into(), ..DeviceLog::default() };
        for folder in ["a.kpat", "b.kpat"] {
            fs::create_dir_all(dir.join(folder)).unwrap();
            one.write(&dir.join(folder)).unwrap();
            fs::write(dir.join(folder).join("call.parquet"), "damaged").unwrap();
        }
        fs::write(dir.join("crossing.parquet"), "").unwrap();
        Manifest { devices: ["a.kpat", "b.kpat"].map(device).into(), ..one }.write(&dir).unwrap();
        dir
    }

    fn foreign(dir: &Path) -> Option<PathBuf> {
        match Contents::of(dir) {
            Err(Error::Foreign { what, .. }) => Some(what),
            Ok(_) => None,
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn only_what_a_log_consists_of_is_removed() {
        let dir = log("whole");
        Contents::of(&dir).unwrap().remove(&dir).unwrap();
        assert!(!dir.exists());
        let dir = log("other");
        for what in ["notes.txt", "a.kpat/call.parquet.bak", "b.kpat/thesis.parquet", "manifest.json~"] {
            assert_eq!(foreign(&dir), None);
            fs::write(dir.join(what), "").unwrap();
            assert_eq!(foreign(&dir).as_deref(), Some(Path::new(what)));
            fs::remove_file(dir.join(what)).unwrap();
        }
        // Folders that have a table's name, or are no device's, and logs within a device's own.
        for what in ["call.parquet", "c.kpat", "a.kpat/b.kpat"] {
            fs::create_dir(dir.join(what)).unwrap();
            assert_eq!(foreign(&dir).as_deref(), Some(Path::new(what)));
            fs::remove_dir(dir.join(what)).unwrap();
        }
        // What is put there meanwhile stays.
        let all = Contents::of(&dir).unwrap();
        fs::write(dir.join("notes.txt"), "mine").unwrap();
        assert!(all.remove(&dir).is_err());
        assert_eq!(fs::read_to_string(dir.join("notes.txt")).unwrap(), "mine");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn tables_of_an_older_kpat_are_those_of_its_manifest() {
        let dir = log("older");
        let text = fs::read_to_string(dir.join(FILE)).unwrap();
        let mut older: Manifest = serde_json::from_str(&text).unwrap();
        older.schema = 4;
        older.tables = vec![TableCount { table: "footstep".into(), rows: 1 }];
        fs::remove_file(dir.join(FILE)).unwrap();
        older.write(&dir).unwrap();
        fs::write(dir.join("footstep.parquet"), "").unwrap();
        assert_eq!(foreign(&dir), None);
        fs::remove_file(dir.join(FILE)).unwrap();
        assert!(matches!(Contents::of(&dir), Err(Error::NotALog { .. })));
        fs::remove_dir_all(dir).unwrap();
    }
}
