//! Checksums of content.

use crate::error::{Error, Result};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// SHA-256, as 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digest(String);

impl Digest {
    /// `None`: no such digits.
    pub fn parse(text: &str) -> Option<Digest> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (text.len() == 64 && text.bytes().all(hex)).then(|| Digest(text.to_owned()))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Enough to tell files of one name apart.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

fn hex(hash: Sha256) -> Digest {
    Digest(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

pub fn of_bytes(bytes: &[u8]) -> Digest {
    hex(Sha256::new_with_prefix(bytes))
}

pub fn of_file(path: &Path) -> Result<Digest> {
    let mut file = File::open(path).map_err(Error::io(path, "open"))?;
    let mut hash = Sha256::new();
    let mut buf = vec![0; 1 << 18];
    loop {
        match file.read(&mut buf).map_err(Error::io(path, "read"))? {
            0 => return Ok(hex(hash)),
            n => hash.update(&buf[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        // FIPS 180-4, example "abc".
        assert_eq!(
            of_bytes(b"abc").text(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let digest = of_bytes(b"");
        assert_eq!(Digest::parse(digest.text()), Some(digest));
        assert_eq!(Digest::parse(&"A".repeat(64)), None);
        assert_eq!(Digest::parse("../../etc/passwd"), None);
    }
}
