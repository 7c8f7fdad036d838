//! Who is who: a device shows a secret, and only its checksum is kept here. The file lies beside the devices' folders and
//! cannot be a device's.

use crate::digest::{Digest, of_bytes};
use crate::error::{Error, Result};
use crate::shelf::is_name;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

fn file(root: &Path) -> PathBuf {
    root.join(".tokens")
}

/// Checksum and device, a line each.
fn read(root: &Path) -> Result<Vec<(Digest, String)>> {
    let path = file(root);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(&path, "read")(e)),
    };
    let line = |l: &str| {
        let (sum, device) = l.split_once(' ')?;
        Some((Digest::parse(sum)?, device.to_owned())).filter(|(_, d)| is_name(d))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// The file is its folder's owner's, whoever writes it: root gives out tokens, and the receiver, often a user without a name (DynamicUser of
/// systemd), reads them. As that user may write in the folder, nothing that stands there is followed.
fn write(root: &Path, tokens: &[(Digest, String)]) -> Result<()> {
    let path = file(root);
    let new = path.with_extension("new");
    let text: String = tokens.iter().map(|(sum, device)| format!("{} {device}\n", sum.text())).collect();
    let put = || {
        match fs::remove_file(&new) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut f = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let folder = fs::metadata(root)?;
        if f.metadata()?.uid() != folder.uid() {
            match fchown(&f, Some(folder.uid()), Some(folder.gid())) {
                // Somebody with a folder that is shared: then it is that user's who reads.
                Err(e) if e.kind() != std::io::ErrorKind::PermissionDenied => return Err(e),
                _ => {}
            }
        }
        f.write_all(text.as_bytes())?;
        f.sync_all()?;
        fs::rename(&new, &path)
    };
    put().map_err(Error::io(&path, "write"))
}

/// A new secret for a device, beside those it has.
pub fn add(root: &Path, device: &str) -> Result<String> {
    if !is_name(device) {
        return Err(Error::Name(device.to_owned(), "a device"));
    }
    let source = Path::new("/dev/urandom");
    let mut random = [0; 32];
    File::open(source).and_then(|mut f| f.read_exact(&mut random)).map_err(Error::io(source, "read"))?;
    let token: String = random.iter().map(|b| format!("{b:02x}")).collect();
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(root);
    made.map_err(Error::io(root, "make"))?;
    let mut tokens = read(root)?;
    tokens.push((of_bytes(token.as_bytes()), device.to_owned()));
    write(root, &tokens)?;
    Ok(token)
}

/// Takes all secrets of a device away; gives how many.
pub fn revoke(root: &Path, device: &str) -> Result<usize> {
    let mut tokens = read(root)?;
    let before = tokens.len();
    tokens.retain(|(_, d)| d != device);
    write(root, &tokens)?;
    Ok(before - tokens.len())
}

/// Whose secret this is.
pub fn device(root: &Path, token: &str) -> Result<Option<String>> {
    let sum = of_bytes(token.as_bytes());
    Ok(read(root)?.into_iter().find(|(s, _)| *s == sum).map(|(_, device)| device))
}
