//! Pages and pictures as files: what stands at their head, and that they were written.

use crate::open::Integrated;
use crate::output::Output;
use anyhow::Context;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// One line on what the numbers are of.
pub fn about(log: &Integrated) -> String {
    let meta = &log.manifest.log;
    let name = log.dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let parts = [name, format!("Linux {}", meta.kernel_release), meta.mechanism.clone()];
    let parts: Vec<String> = parts.into_iter().filter(|p| !p.is_empty() && p != "Linux ").collect();
    parts.join(", ")
}

/// Writes a file and says so.
pub fn write(path: &Path, words: &str, out: &Output) -> anyhow::Result<()> {
    anew(path, words).with_context(|| format!("cannot write {}", path.display()))?;
    out.say(&format!("wrote {}", path.display()));
    Ok(())
}

/// For its owner alone, as the log is. A file of that name is replaced; what a link of that name leads to is left alone.
fn anew(path: &Path, words: &str) -> io::Result<()> {
    if path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir()) {
        return File::options().write(true).open(path)?.write_all(words.as_bytes());
    }
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_string_lossy();
    let partial = path.with_file_name(format!("{name}.partial"));
    let _ = fs::remove_file(&partial);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&partial)?;
    let done = file.write_all(words.as_bytes()).and_then(|()| fs::rename(&partial, path));
    if done.is_err() {
        let _ = fs::remove_file(&partial);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_link_of_that_name_is_replaced_and_not_followed() {
        let dir = std::env::temp_dir().join(format!("kpat-page-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (precious, page) = (dir.join("precious"), dir.join("x.svg"));
        fs::write(&precious, "precious").unwrap();
        symlink("precious", &page).unwrap();
        symlink("precious", dir.join("x.svg.partial")).unwrap();
        anew(&page, "picture").unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        let mode = fs::symlink_metadata(&page).unwrap().permissions().mode();
        assert_eq!((fs::read_to_string(&page).unwrap().as_str(), mode & 0o777), ("picture", 0o600));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
        fs::remove_dir_all(&dir).unwrap();
    }
}
