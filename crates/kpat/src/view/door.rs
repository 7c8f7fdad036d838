//! How a browser gets the address with its secret: by a file that only this user can read, which leads there. On the command line
//! of the browser the secret would be in the list of processes, for every user of the machine.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The file, in a folder of its own; both go with it.
pub struct Door {
    folder: PathBuf,
}

impl Door {
    /// A page that leads to `address`.
    pub fn to(address: &str) -> io::Result<Door> {
        let door = Door { folder: kpat_server::own_folder("kpat-view")? };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(door.file())?;
        // Digits, letters and `:/#=.` only: nothing to escape.
        writeln!(
            file,
            "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\"><title>kpat view</title>\
             <script>location.replace(\"{address}\")</script><p><a href=\"{address}\">kpat view</a></p>"
        )?;
        Ok(door)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("open.html")
    }

    /// Opens it as the desktop does it; whether it seems to have worked.
    pub fn open(&self) -> bool {
        open(&self.file())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn open(file: &Path) -> bool {
    let opener = Command::new("xdg-open")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = opener else { return false };
    // It ends soon where it cannot do it, and may stay as long as the browser where it can.
    for _ in 0..20 {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_its_owner_can_read_it_and_it_goes() {
        let door = Door::to("http://127.0.0.1:1/#token=abc").unwrap();
        let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&door.folder), mode(&door.file())), (0o700, 0o600));
        assert!(std::fs::read_to_string(door.file()).unwrap().contains("#token=abc\""));
        let folder = door.folder.clone();
        drop(door);
        assert!(!folder.exists());
    }
}
