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
    /// By another name; `None`: the kernel knows that only by which it was made.
    Moved(Option<PathBuf>),
}

impl Astray {
    /// `None`: it is there, or it is no file.
    pub(super) fn of(file: &File, name: &Path) -> Option<Astray> {
        let own = file.metadata().ok().filter(|m| m.is_file())?;
        let is_it = |m: std::fs::Metadata| (m.dev(), m.ino()) == (own.dev(), own.ino());
        if name.metadata().is_ok_and(is_it) {
            return None;
        }
        if own.nlink() == 0 {
            return Some(Astray::Removed);
        }
        let opened_as = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        Some(Astray::Moved(opened_as.filter(|now| now.metadata().is_ok_and(is_it))))
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
        assert_eq!(Astray::of(&file, &name), Some(Astray::Moved(Some(other.clone()))));
        // Another file of that name is not the log.
        File::create(&name).unwrap();
        assert_eq!(Astray::of(&file, &name), Some(Astray::Moved(Some(other.clone()))));
        // As a log gets its name where none may be replaced: a second one, and then the first goes.
        let third = dir.join("z.kbl");
        std::fs::hard_link(&other, &third).unwrap();
        std::fs::remove_file(&other).unwrap();
        assert_eq!(Astray::of(&file, &third), None);
        assert_eq!(Astray::of(&file, &name), Some(Astray::Moved(None)));
        std::fs::remove_file(&third).unwrap();
        assert_eq!(Astray::of(&file, &name), Some(Astray::Removed));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(Astray::of(&file, &name), Some(Astray::Removed));
        assert_eq!(Astray::of(&File::open("/dev/null").unwrap(), &name), None, "a device");
    }
}
