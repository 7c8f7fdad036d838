//! Folders for what lives as long as the program: other users write where they are, too, and may have put a folder or a link at any name that
//! they can foresee.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// A new folder that this user alone can enter, beside other programs' own.
pub fn own_folder(what: &str) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let name: String = random.iter().map(|b| format!("{b:02x}")).collect();
    let folder = std::env::temp_dir().join(format!("{what}-{name}"));
    // Fails where the name is taken, also by a link.
    DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn each_is_new_and_its_owners_alone() {
        let two = [own_folder("kpat-own").unwrap(), own_folder("kpat-own").unwrap()];
        assert_ne!(two[0], two[1]);
        for folder in two {
            assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
            std::fs::remove_dir(folder).unwrap();
        }
    }
}
