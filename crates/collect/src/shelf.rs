//! The gathering side on disk: a folder per device. A device adds its own files and nothing else: names are plain, nothing
//! is replaced, listed or read back. What is under way lies in `.incoming`, under its checksum; a file gets its
//! name when all its bytes are there, match, and are on the disk.

use crate::digest::{Digest, of_file};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest name of a device or file.
const MOST_NAME: usize = 128;
/// What a file takes on the disk: whole blocks, its checksum's file and its names.
const BLOCK_BYTES: u64 = 4096;
/// What broke off and was not taken up again is removed after this.
const STALE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A name that leads nowhere else, is not hidden, and is no surprise in a terminal or a shell.
pub fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-~+".contains(&b);
    (1..=MOST_NAME).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with(['.', '-'])
}

/// What may be added: logs, and notices of deleted files.
pub fn is_file_name(text: &str) -> bool {
    is_name(text) && (text.ends_with(".kbl") || (text.starts_with("lost-") && text.ends_with(".json")))
}

/// A file on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub name: String,
    pub bytes: u64,
    pub digest: Digest,
}

/// What of a file is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Have {
    Whole,
    /// The first so many bytes.
    Part(u64),
}

/// Why bytes were not taken.
#[derive(Debug)]
pub enum Unadded {
    /// Somebody else is sending it, or the bytes do not begin where the part ends.
    Busy(Have),
    /// All bytes arrived, but do not match the checksum. They were discarded.
    Wrong,
    /// The device has its share of so many bytes.
    Share(u64),
    /// The disk is full.
    Full,
    /// The sender left; what came stays.
    Broken(io::Error),
    /// This side cannot.
    Own(Error),
}

impl From<Error> for Unadded {
    fn from(e: Error) -> Unadded {
        Unadded::Own(e)
    }
}

/// Where one device's files are.
pub struct Shelf {
    dir: PathBuf,
    /// Most bytes that it may hold.
    limit: Option<u64>,
}

impl Shelf {
    /// Made if it is not there.
    pub fn open(root: &Path, device: &str, limit: Option<u64>) -> Result<Shelf> {
        if !is_name(device) {
            return Err(Error::Name(device.to_owned(), "a device"));
        }
        let dir = root.join(device);
        for dir in [dir.join(".incoming"), dir.join(".sums")] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(Error::io(&dir, "make"))?;
        }
        Ok(Shelf { dir, limit })
    }

    fn sweep(&self) {
        for entry in fs::read_dir(self.dir.join(".incoming")).into_iter().flatten().flatten() {
            let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
            if age.is_some_and(|a| a > STALE) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The part that came of a file. Its whole length is in the name, which thereby reserves the room.
    fn incoming(&self, item: &Item) -> PathBuf {
        self.dir.join(".incoming").join(format!("{}.{}", item.digest.text(), item.bytes))
    }

    /// A file of that name and other content keeps it; this one's has a part of its checksum in it.
    fn places(&self, item: &Item) -> [PathBuf; 2] {
        let (stem, ending) = item.name.rsplit_once('.').unwrap_or((&item.name, "kbl"));
        [self.dir.join(&item.name), self.dir.join(format!("{stem}~{}.{ending}", item.digest.short()))]
    }

    fn sum_of(&self, file: &Path) -> Result<Option<Digest>> {
        if !file.exists() {
            return Ok(None);
        }
        let kept = self.dir.join(".sums").join(file.file_name().unwrap_or_default());
        match fs::read_to_string(&kept).ok().and_then(|t| Digest::parse(t.trim())) {
            Some(digest) => Ok(Some(digest)),
            None => of_file(file).map(Some),
        }
    }

    pub fn have(&self, item: &Item) -> Result<Have> {
        for place in self.places(item) {
            let long = fs::metadata(&place).is_ok_and(|m| m.len() == item.bytes);
            if long && self.sum_of(&place)?.is_some_and(|d| d == item.digest) {
                return Ok(Have::Whole);
            }
        }
        let part = fs::metadata(self.incoming(item)).map(|m| m.len()).unwrap_or(0);
        Ok(Have::Part(part.min(item.bytes)))
    }

    /// What the device's files take, those that are under way with all that they will be.
    fn held_bytes(&self) -> u64 {
        let files = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
        let own = |e: &fs::DirEntry| e.file_name().to_str().is_some_and(is_file_name);
        let coming = files(self.dir.join(".incoming"))
            .filter_map(|e| Some((e.ino(), e.file_name().to_str()?.rsplit_once('.')?.1.parse().ok()?)));
        // One that becomes whole meanwhile is still the same file: those under way are looked at first, so it is in one list or in both.
        let mut held: HashMap<u64, u64> = coming.collect();
        let whole = files(self.dir.clone()).filter(own);
        held.extend(whole.filter_map(|e| Some((e.ino(), e.metadata().ok()?.len()))));
        held.into_values().map(on_disk).fold(0, u64::saturating_add)
    }

    /// The part's file, its room within the device's limit reserved before the first byte comes. Requests at the same time, of
    /// this process or another, take turns.
    fn reserve(&self, item: &Item) -> std::result::Result<(PathBuf, File), Unadded> {
        let path = self.incoming(item);
        let open = |path: &Path, create: bool| {
            OpenOptions::new().create(create).truncate(false).read(true).write(true).mode(0o600).open(path)
        };
        let turn = self.dir.join(".turn");
        let lock = open(&turn, true).map_err(|e| full_or(e, &turn, "make"))?;
        lock.lock().map_err(|e| full_or(e, &turn, "lock"))?;
        if let Ok(part) = open(&path, false) {
            return Ok((path, part));
        }
        self.sweep();
        if let Some(limit) = self.limit
            && self.held_bytes().saturating_add(on_disk(item.bytes)) > limit
        {
            return Err(Unadded::Share(limit));
        }
        let part = open(&path, true).map_err(|e| full_or(e, &path, "make"))?;
        Ok((path, part))
    }

    /// Takes the bytes from `offset` to the end of the file. Adding what is there already is no error and changes
    /// nothing.
    pub fn add(&self, item: &Item, offset: u64, from: &mut dyn Read) -> std::result::Result<(), Unadded> {
        if !is_file_name(&item.name) {
            return Err(Error::Name(item.name.clone(), "a log").into());
        }
        let have = self.have(item)?;
        if have != Have::Part(offset) {
            return Err(Unadded::Busy(have));
        }
        let (part, mut file) = self.reserve(item)?;
        // Another may have sent more of it, or all, since it was looked at.
        let locked = file.try_lock().is_ok();
        let now = self.have(item)?;
        if !locked || now != have {
            if locked && now == Have::Whole {
                let _ = fs::remove_file(&part);
            }
            return Err(Unadded::Busy(now));
        }
        file.seek(SeekFrom::Start(offset)).map_err(Error::io(&part, "read"))?;
        let mut left = item.bytes - offset;
        let mut buf = vec![0; 1 << 16];
        while left > 0 {
            let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let n = match from.read(&mut buf[..want]) {
                Ok(0) => return Err(Unadded::Broken(ErrorKind::UnexpectedEof.into())),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(Unadded::Broken(e)),
            };
            file.write_all(&buf[..n]).map_err(|e| full_or(e, &part, "write"))?;
            left -= n as u64;
        }
        file.sync_all().map_err(|e| full_or(e, &part, "write"))?;
        if of_file(&part)? != item.digest {
            fs::remove_file(&part).map_err(Error::io(&part, "remove"))?;
            return Err(Unadded::Wrong);
        }
        self.name(item, &file, &part)
    }

    fn name(&self, item: &Item, file: &File, part: &Path) -> std::result::Result<(), Unadded> {
        for place in self.places(item) {
            let sum = self.dir.join(".sums").join(place.file_name().unwrap_or_default());
            if place.exists() {
                continue;
            }
            // Of a file that was taken away. This one's is written by whoever has placed it: where two come at once under one name,
            // the name would else be taken for the other's. Without it a file's checksum is computed.
            match fs::remove_file(&sum) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(full_or(e, &sum, "remove")),
                _ => {}
            }
            match kpat_klog::finish(file, part, &place) {
                Ok(()) => {
                    let _ = write_sum(&sum, &item.digest);
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(full_or(e, &place, "make")),
            }
        }
        Err(Unadded::Busy(self.have(item)?))
    }
}

fn write_sum(path: &Path, digest: &Digest) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(digest.text().as_bytes())
}

/// Least room that a file of this length takes.
fn on_disk(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES).saturating_add(2).saturating_mul(BLOCK_BYTES)
}

fn full_or(e: io::Error, path: &Path, doing: &'static str) -> Unadded {
    match e.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Unadded::Full,
        _ => Unadded::Own(Error::io(path, doing)(e)),
    }
}
