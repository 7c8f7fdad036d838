//! Is the file that is written still where its name says? A folder that is cleaned or moved takes it away, and writing goes on as if nothing were.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where a file is that is not at its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Astray {
    /// It has no name: it is gone when it is closed.
    Removed,
    /// By another name.
    Moved(PathBuf),
}

impl Astray {
    /// `None`: it is there, or it is no file.
    pub(super) fn of(file: &File, name: &Path) -> Option<Astray> {
        let own = file.metadata().ok().filter(|m| m.is_file())?;
        let there = name.metadata();
        if there.is_ok_and(|m| (m.dev(), m.ino()) == (own.dev(), own.ino())) {
            return None;
        }
        if own.nlink() == 0 {
            return Some(Astray::Removed);
        }
        // A file system may give one file several numbers: what the kernel calls the open file decides.
        let is = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        (name.canonicalize().ok().as_ref() != Some(&is)).then_some(Astray::Moved(is))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_or_removed_is_not_at_its_name() {
        let dir = std::env::temp_dir().join(format!("kpat-astray-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let dir = dir.canonicalize().unwrap();
        let (name, other) = (dir.join("x.kbl"), dir.join("y.kbl"));
        let file = File::create(&name).unwrap();
        assert_eq!(Astray::of(&file, &name), None);
        std::os::unix::fs::symlink(&dir, dir.join("link")).unwrap();
        assert_eq!(Astray::of(&file, &dir.join("link/x.kbl")), None, "a folder may be a link");
        std::fs::rename(&name, &other).unwrap();
        assert_eq!(Astray::of(&file, &name), Some(Astray::Moved(other.clone())));
        // Another file of that name is not the log.
        File::create(&name).unwrap();
        assert_eq!(Astray::of(&file, &name), Some(Astray::Moved(other.clone())));
        std::fs::remove_file(&other).unwrap();
        assert_eq!(Astray::of(&file, &name), Some(Astray::Removed));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(Astray::of(&file, &name), Some(Astray::Removed));
        assert_eq!(Astray::of(&File::open("/dev/null").unwrap(), &name), None, "a device");
    }
}
