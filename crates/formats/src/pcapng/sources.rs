//! Where the files are that the integrated log was made from. It knows their names, lengths and the checksum of their
//! first bytes, and where they were as seen from it: they are looked for there, beside it, and among what the caller names.

use crate::{Error, Result};
use kpat_store::SourceFile;
use std::path::{Path, PathBuf};

/// The file, checked to be the one.
///
/// Errors: [`Error::SourceMissing`], [`Error::SourceChanged`].
pub fn find(source: &SourceFile, log_dir: &Path, given: &[PathBuf]) -> Result<PathBuf> {
    let role = if source.role == "log" { "log" } else { "capture" };
    let absolute = std::fs::canonicalize(log_dir).unwrap_or_else(|_| log_dir.to_owned());
    // A device's own log may stand within that of several.
    let plain = Path::new(&source.name).file_name().unwrap_or_default();
    let beside = absolute.ancestors().skip(1).take(2).map(|d| d.join(plain));
    let here = PathBuf::from(plain);
    // A name out of the manifest leads only to a file that is the one by its length and beginning.
    let there = (!source.folder.is_empty()).then(|| absolute.join(&source.folder).join(&source.name));
    let there = there.and_then(|path| path.canonicalize().ok());
    let mut other = None;
    for path in given.iter().cloned().chain(there).chain(beside).chain([here]) {
        if !path.is_file() {
            continue;
        }
        match difference(source, &path)? {
            None => return Ok(path),
            // Of those that were named, only one of the same name was meant to be this one.
            Some(_) if path.file_name() != Some(plain) && given.len() > 1 => {}
            Some(how) => other = other.or(Some((path, how))),
        }
    }
    match other {
        Some((path, how)) => Err(Error::SourceChanged { role, path, how }),
        None => Err(Error::SourceMissing { role, name: source.name.clone() }),
    }
}

fn difference(source: &SourceFile, path: &Path) -> Result<Option<String>> {
    let found = SourceFile::describe(&source.role, source.capture_id, path, Path::new(""))?;
    Ok(if found.bytes != source.bytes {
        Some(format!("it has {} bytes, not {}", found.bytes, source.bytes))
    } else if !source.head_fnv.is_empty() && found.head_fnv != source.head_fnv {
        Some("it begins otherwise".to_owned())
    } else {
        None
    })
}
