//! Where an export goes: standard output, or a file that has its name only when it is whole.

use crate::signals::leave_nothing;
use anyhow::Context;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub struct Target {
    out: BufWriter<Box<dyn Write>>,
    /// The name to be, and the name until then.
    names: Option<(PathBuf, PathBuf)>,
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
            return Ok(Target { out: buffered(Box::new(io::stdout())), names: None, folder });
        };
        // A pipe or a device is written into, not replaced.
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
            let file = File::options()
                .write(true)
                .open(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            return Ok(Target { out: buffered(Box::new(file)), names: None, folder: std::env::temp_dir() });
        }
        let name = path.file_name().with_context(|| format!("{} is no name of a file", path.display()))?;
        let mut partial = name.to_owned();
        partial.push(".partial");
        let partial = path.with_file_name(partial);
        if path.is_dir() {
            anyhow::bail!("{} is a folder; give a file", path.display());
        }
        // What is exported says as much as the log: it is for its owner alone, too. What a killed export left goes; a link that somebody put there is not followed.
        let _ = std::fs::remove_file(&partial);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&partial);
        let file = file.with_context(|| format!("cannot write {}", partial.display()))?;
        leave_nothing(partial.clone())?;
        Ok(Target {
            out: buffered(Box::new(file)),
            names: Some((path.to_owned(), partial)),
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
        let done = done.map_err(anyhow::Error::from).and_then(|t| {
            self.out.flush().context("cannot write")?;
            Ok(t)
        });
        let Some((path, partial)) = &self.names else { return done };
        match done {
            Ok(t) => {
                std::fs::rename(partial, path).with_context(|| format!("cannot write {}", path.display()))?;
                Ok(t)
            }
            Err(e) => {
                let _ = std::fs::remove_file(partial);
                Err(e)
            }
        }
    }
}

fn buffered(out: Box<dyn Write>) -> BufWriter<Box<dyn Write>> {
    BufWriter::with_capacity(1 << 18, out)
}
