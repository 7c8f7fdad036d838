//! From a spool to a target. A target is asked whether it has a file, takes what is missing of it, and only then is the
//! file removed here. Who carries the bytes follows from the target's form.

mod exec;
mod pipe;
mod words;

use crate::digest::of_file;
use crate::error::{Error, Result};
use crate::shelf::{Have, Item, Shelf, Unadded, is_name};
use crate::spool::{Spool, Waiting};
use exec::{Rsync, S3};
use pipe::{Carrier, Pipe};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What the target's form does not say.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Name under which files are gathered.
    pub device: String,
    /// The secret for a receiver.
    pub token: Option<String>,
    /// `ssh` and its options.
    pub ssh: Vec<String>,
    /// Certificates that an https receiver may have, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Address of a storage that speaks S3, instead of AWS's.
    pub endpoint: Option<String>,
    /// Bytes a second, at most; of rsync and S3 only.
    pub rate: Option<u64>,
}

/// A far end.
trait Target {
    /// Sends one file whole; true: it was there already.
    fn send(&mut self, item: &Item, path: &Path) -> Result<bool>;
}

pub struct Sender {
    target: Box<dyn Target>,
}

impl Sender {
    /// | Form | By |
    /// | --- | --- |
    /// | a path | copying; the folder of a receiver, or one that is mounted |
    /// | `http://HOST:PORT`, `https://HOST` | a receiver of ours |
    /// | `ssh://[USER@]HOST[:PORT]/FOLDER` | `ssh`, and kpat there |
    /// | `rsync://...`, `rsync:[USER@]HOST:FOLDER` | `rsync` |
    /// | `s3://BUCKET[/PREFIX]` | `curl` |
    pub fn new(target: &str, access: &Access) -> Result<Sender> {
        if !is_name(&access.device) {
            return Err(Error::Name(access.device.clone(), "a device"));
        }
        let target: Box<dyn Target> = if target.starts_with("http://") || target.starts_with("https://") {
            Box::new(Pipe::new(Carrier::network(target, access)?))
        } else if target.starts_with("ssh://") {
            Box::new(Pipe::new(Carrier::ssh(target, access)?))
        } else if let Some(place) = target.strip_prefix("s3://") {
            Box::new(S3::new(place, access)?)
        } else if target.starts_with("rsync://") {
            Box::new(Rsync::new(target, access)?)
        } else if let Some(place) = target.strip_prefix("rsync:") {
            Box::new(Rsync::new(place, access)?)
        } else if target.contains("://") {
            return Err(Error::Target(format!(
                "{target} is not a known kind of target; see kpat collect send --help"
            )));
        } else {
            Box::new(Folder(Shelf::open(Path::new(target), &access.device, None)?))
        };
        Ok(Sender { target })
    }

    /// Sends one file and removes it here; true: it was there already.
    pub fn send(&mut self, waiting: &Waiting) -> Result<bool> {
        let digest = of_file(&waiting.path)?;
        let item = Item { name: waiting.name.clone(), bytes: waiting.bytes, digest };
        let there = self.target.send(&item, &waiting.path)?;
        waiting.remove()?;
        Ok(there)
    }
}

/// What came of one look at a spool.
#[derive(Debug, Default)]
pub struct Round {
    pub sent: u64,
    pub bytes: u64,
    /// Still in the spool, for a reason of their own.
    pub refused: Vec<String>,
}

/// Something that happened, to be reported.
pub enum Event {
    Adopted(PathBuf),
    Thrown(Vec<String>),
    Sent { name: String, bytes: u64, there: bool },
    Refused { name: String, why: String },
    Odd(String),
}

/// Sends what waits. The spool keeps to its limit also while the far end takes its time.
///
/// Errors: [`Error::Away`] and [`Error::Denied`] end the round; what was sent is sent.
pub fn round(spool: &Spool, sender: &mut Sender, tell: &mut dyn FnMut(Event)) -> Result<Round> {
    let mut round = Round::default();
    look_after(spool, tell)?;
    for waiting in spool.waiting()? {
        let thrown = spool.keep_to_limit()?;
        if !thrown.is_empty() {
            tell(Event::Thrown(thrown));
        }
        // Thrown away just now, or a notice that was put into another.
        if !waiting.path.exists() {
            continue;
        }
        match sender.send(&waiting) {
            Ok(there) => {
                round.sent += 1;
                round.bytes += waiting.bytes;
                tell(Event::Sent { name: waiting.name, bytes: waiting.bytes, there });
            }
            Err(Error::Refused { name, why }) => {
                round.refused.push(name.clone());
                tell(Event::Refused { name, why });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(round)
}

/// What a spool needs whether or not the far end is there.
pub fn look_after(spool: &Spool, tell: &mut dyn FnMut(Event)) -> Result<()> {
    let (names, odd) = spool.adopt()?;
    names.into_iter().for_each(|n| tell(Event::Adopted(n)));
    odd.into_iter().for_each(|w| tell(Event::Odd(w)));
    let thrown = spool.keep_to_limit()?;
    if !thrown.is_empty() {
        tell(Event::Thrown(thrown));
    }
    Ok(())
}

/// A folder that this machine can write to.
struct Folder(Shelf);

impl Target for Folder {
    fn send(&mut self, item: &Item, path: &Path) -> Result<bool> {
        let offset = match self.0.have(item)? {
            Have::Whole => return Ok(true),
            Have::Part(n) => n,
        };
        let mut file = open_at(path, offset)?;
        let refused = |why: &str| Err(Error::Refused { name: item.name.clone(), why: why.into() });
        match self.0.add(item, offset, &mut file) {
            Ok(()) => Ok(false),
            Err(Unadded::Busy(Have::Whole)) => Ok(true),
            Err(Unadded::Busy(_)) => refused("another process is sending it"),
            Err(Unadded::Wrong) => refused("it changed while it was sent, or the target's disk is faulty"),
            Err(Unadded::Share(limit)) => Err(full(Some(limit))),
            Err(Unadded::Full) => Err(full(None)),
            Err(Unadded::Broken(e)) => Err(Error::io(path, "read")(e)),
            Err(Unadded::Own(e)) => Err(e),
        }
    }
}

/// The target has no room; `share` where it is for this device: most bytes that it may have there.
fn full(share: Option<u64>) -> Error {
    Error::Away(share.map_or("the target's disk is full".into(), |most| {
        format!("this device has its share at the target, {most} bytes; take logs away there, or give it more (--limit of the receiver)")
    }))
}

fn open_at(path: &Path, offset: u64) -> Result<File> {
    let mut file = File::open(path).map_err(Error::io(path, "open"))?;
    file.seek(SeekFrom::Start(offset)).map_err(Error::io(path, "read"))?;
    Ok(file)
}
