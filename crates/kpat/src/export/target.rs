//! Where an export goes: standard output, or a file that has its name only when it is whole.

use crate::signals::leave_nothing;
use anyhow::Context;
use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// The name until it is whole, of a file or folder.
fn partial(path: &Path) -> anyhow::Result<PathBuf> {
    let name = path.file_name().with_context(|| format!("{} is no name of a file", path.display()))?;
    let mut partial = name.to_owned();
    partial.push(".partial");
    Ok(path.with_file_name(partial))
}

/// A new folder for its owner alone, which `fill` writes under another name and which has its own only when it is whole. Its folder has to
/// be there.
pub fn new_folder<T>(path: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let partial = partial(path)?;
    // What a killed export left.
    let _ = fs::remove_dir_all(&partial);
    let made = fs::DirBuilder::new().mode(0o700).create(&partial);
    made.with_context(|| format!("cannot make the folder {}", path.display()))?;
    leave_nothing(partial.clone())?;
    let filled = fill(&partial).with_context(|| format!("cannot write {}", path.display()));
    let named =
        || fs::rename(&partial, path).with_context(|| format!("cannot give {} its name", path.display()));
    let done = filled.and_then(|t| named().map(|()| t));
    if done.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    done
}

pub struct Target {
    out: BufWriter<Box<dyn Write>>,
    /// `None`: standard output.
    path: Option<PathBuf>,
    /// The name until then; `None`: what is written into is there already.
    partial: Option<PathBuf>,
    folder: PathBuf,
}

impl Target {
    /// `log`: beside it is room for what must wait, where there is no file.
    pub fn open(path: Option<&Path>, log: &Path) -> anyhow::Result<Target> {
        let beside = |p: &Path| match p.parent() {
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let Some(path) = path else {
            let writable =
                |folder: &PathBuf| std::fs::metadata(folder).is_ok_and(|m| !m.permissions().readonly());
            let folder = Some(beside(log)).filter(writable).unwrap_or_else(std::env::temp_dir);
            return Ok(Target { out: buffered(Box::new(io::stdout())), path: None, partial: None, folder });
        };
        // A pipe or a device is written into, not replaced.
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
            let file = File::options()
                .write(true)
                .open(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            let (out, path) = (buffered(Box::new(file)), Some(path.to_owned()));
            return Ok(Target { out, path, partial: None, folder: std::env::temp_dir() });
        }
        let partial = partial(path)?;
        if path.is_dir() {
            anyhow::bail!("{} is a folder; give a file", path.display());
        }
        // What is exported says as much as the log: it is for its owner alone, too. What a killed export left goes; a link that somebody put there is not followed.
        let _ = std::fs::remove_file(&partial);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&partial);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        leave_nothing(partial.clone())?;
        Ok(Target {
            out: buffered(Box::new(file)),
            path: Some(path.to_owned()),
            partial: Some(partial),
            folder: beside(path),
        })
    }

    pub fn writer(&mut self) -> &mut dyn Write {
        &mut self.out
    }

    /// Where there is room for what must wait.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Gives the file its name if all went well; else it goes.
    pub fn finish<T>(mut self, done: kpat_formats::Result<T>) -> anyhow::Result<T> {
        let done = done.and_then(|t| {
            self.out.flush()?;
            Ok(t)
        });
        let name = self.path.as_ref().map_or("to standard output".into(), |p| p.display().to_string());
        let failed = || format!("cannot write {name}");
        match (done, &self.partial, &self.path) {
            (Ok(t), Some(partial), Some(path)) => {
                std::fs::rename(partial, path).with_context(failed)?;
                Ok(t)
            }
            (Ok(t), ..) => Ok(t),
            (Err(e), partial, _) => {
                partial.iter().for_each(|p| drop(std::fs::remove_file(p)));
                let is_ours = matches!(e, kpat_formats::Error::Write(_));
                let e = anyhow::Error::from(e);
                Err(if is_ours { e.context(failed()) } else { e })
            }
        }
    }
}

fn buffered(out: Box<dyn Write>) -> BufWriter<Box<dyn Write>> {
    BufWriter::with_capacity(1 << 18, out)
}
