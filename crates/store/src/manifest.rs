//! `manifest.json`: what the integrated log was made from, and how much is in it. Written last, so a directory without
//! one is an integration that did not end.

use crate::error::{Error, Result};
use crate::tables::SCHEMA_VERSION;
use crate::write::new_file;
use kpat_model::meta::{Meta, Summary};
use kpat_model::wall::WallStep;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

pub(crate) const FILE: &str = "manifest.json";
/// Memory that a manifest may take: so much, and so much for each of its bytes. A real one takes some 10 for each.
const MOST_BYTES: u64 = 256 << 20;
const MOST_BYTES_A_BYTE: u64 = 16;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// See [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Version of kpat that wrote it.
    pub writer: String,
    pub sources: Vec<SourceFile>,
    pub tables: Vec<TableCount>,
    /// Of the kernel behaviour log; its functions, but for the tracepoints of radios, and drop reasons are tables.
    pub log: Meta,
    /// Of the kernel behaviour log; `None`: it was not closed in order.
    pub summary: Option<Summary>,
    /// First and last moment in the kernel behaviour log, boot clock; both 0: it is empty.
    pub first_ns: i64,
    pub last_ns: i64,
    /// When the device's wall clock was set since the recording began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wall_steps: Vec<WallStep>,
    /// Of an integrated log of several devices: each one's own integrated log, and what joining them gave. Then `log`,
    /// `summary` and the two times are empty.
    pub devices: Vec<DeviceLog>,
    pub crossings: CrossingCounts,
}

/// A device among several: an integrated log of its own, in a folder of this one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceLog {
    /// Stem of the log's file name, made unique.
    pub name: String,
    /// Folder of its integrated log, beside the manifest; a name, and no way to another place.
    pub folder: String,
    /// File name of the kernel behaviour log.
    pub log: String,
    pub hostname: String,
    pub boot_id: String,
    pub kernel_release: String,
    pub packets: u64,
    /// A guest's log that its host made, by the host's clock: how far times in it may be off that, at most. `boot_id` is the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_bound_ns: Option<i64>,
}

/// What became of the frames when several devices were joined. Every frame is in exactly one of these but `rows`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CrossingCounts {
    /// Frames in the captures.
    pub frames: u64,
    /// Seen by no kernel.
    pub unmatched: u64,
    /// Seen by one kernel only.
    pub one_kernel: u64,
    /// Sent by one, received by another: these are in the table.
    pub crossed: u64,
    /// As `crossed`, but of a packet that others fit as well, or by way of a host whose order is not certain; not in
    /// the table.
    pub ambiguous: u64,
    /// Seen by several kernels, but which sent and which received it is not known; not in the table.
    pub undirected: u64,
    /// Rows of the table: more than `crossed` where several devices received one frame.
    pub rows: u64,
    /// Joined without a capture, by the one clock that the logs have: packets that devices received. Then `crossed`, `ambiguous` and
    /// `unmatched` are of these, and there are no frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
}

/// A file that went in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceFile {
    /// "log" or "capture".
    pub role: String,
    /// -1: the log.
    pub capture_id: i32,
    /// File name without its folder; of several captures of one name with as much of their folders as sets them apart.
    pub name: String,
    pub bytes: u64,
    /// FNV-1a (64 bit, hexadecimal) of the first 64 KiB: enough to say "this is not the file I was made from".
    pub head_fnv: String,
    /// Folder of the file, from the integrated log's own; empty: not known, or they have no folder in common but the root.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub folder: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableCount {
    pub table: String,
    pub rows: u64,
}

impl SourceFile {
    /// `log_dir`: the integrated log's folder, or one beside it.
    pub fn describe(role: &str, capture_id: i32, path: &Path, log_dir: &Path) -> Result<SourceFile> {
        let mut head = Vec::new();
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let bytes = file.metadata().map_err(Error::io(path, "read"))?.len();
        file.take(65536).read_to_end(&mut head).map_err(Error::io(path, "read"))?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(SourceFile {
            role: role.to_owned(),
            capture_id,
            name,
            bytes,
            head_fnv: format!("{:016x}", fnv(&head)),
            folder: path.parent().and_then(|p| between(log_dir, p)).unwrap_or_default(),
        })
    }
}

impl SourceFile {
    /// Captures, in their order: each with a name of its own.
    pub fn captures(paths: &[PathBuf], log_dir: &Path) -> Result<Vec<SourceFile>> {
        let one = |(i, path): (usize, &PathBuf)| SourceFile::describe("capture", i as i32, path, log_dir);
        let mut all = paths.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
        let mut own: Vec<PathBuf> =
            paths.iter().map(|p| p.canonicalize().unwrap_or_else(|_| p.clone())).collect();
        // A link may have another name than its file.
        own.iter_mut().zip(&all).for_each(|(p, s)| p.set_file_name(&s.name));
        for i in 0..all.len() {
            let same: Vec<usize> =
                (0..all.len()).filter(|j| *j != i && own[*j].file_name() == own[i].file_name()).collect();
            let deepest = own[i].components().count().saturating_sub(1);
            let apart = |n: &usize| same.iter().all(|j| last(&own[*j], *n) != last(&own[i], *n));
            if let Some(n) = (1..=deepest).find(apart).filter(|n| *n > 1) {
                let folder = own[i].ancestors().nth(n).unwrap_or(Path::new("/"));
                all[i].folder = between(log_dir, folder).unwrap_or_default();
                all[i].name = last(&own[i], n).to_string_lossy().into_owned();
            }
        }
        Ok(all)
    }
}

/// The last so many parts of a path.
fn last(path: &Path, parts: usize) -> PathBuf {
    let all: Vec<_> = path.components().collect();
    all[all.len().saturating_sub(parts)..].iter().collect()
}

/// The way from one folder to another; `None`: only over the root, which would tell where on this machine they are.
fn between(from: &Path, to: &Path) -> Option<String> {
    let to = if to.as_os_str().is_empty() { Path::new(".") } else { to };
    let (from, to) = (from.canonicalize().ok()?, to.canonicalize().ok()?);
    let parts = |p: &Path| p.components().map(|c| c.as_os_str().to_owned()).collect::<Vec<_>>();
    let (from, to) = (parts(&from), parts(&to));
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    // The first is the root itself.
    if common < 2 {
        return None;
    }
    let up = from[common..].iter().map(|_| "..".into());
    let way: PathBuf = up.chain(to[common..].iter().cloned()).collect();
    Some(way.to_string_lossy().into_owned())
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

impl Manifest {
    pub fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| Error::Manifest { path: path.clone(), source })?;
        new_file(&path).and_then(|mut f| f.write_all(&text)).map_err(Error::io(&path, "write"))
    }

    /// Errors: also where it names folders that are not its own.
    pub fn read(dir: &Path) -> Result<Manifest> {
        let manifest = Manifest::read_of_any_age(dir)?;
        if manifest.schema < SCHEMA_VERSION {
            let path = dir.join(FILE);
            return Err(Error::TooOld { path, found: manifest.schema, known: SCHEMA_VERSION });
        }
        Ok(manifest)
    }

    /// As [`Manifest::read`], also of what an older kpat wrote, whose tables may be others.
    pub(crate) fn read_of_any_age(dir: &Path) -> Result<Manifest> {
        let path = dir.join(FILE);
        if !dir.is_dir() {
            let why = if dir.exists() { "not a directory" } else { "no such directory" };
            return Err(Error::NotALog { path: dir.to_owned(), why: why.to_owned() });
        }
        if !path.try_exists().map_err(Error::io(dir, "read"))? {
            return Err(Error::NotALog {
                path: dir.to_owned(),
                why: format!("it has no {FILE}: another directory, or integrating did not end"),
            });
        }
        let mut text = Vec::new();
        crate::read::open_file(dir, &path)?.read_to_end(&mut text).map_err(Error::io(&path, "read"))?;
        let weight = kpat_model::json_weight(&text);
        let most = MOST_BYTES.saturating_add(text.len() as u64 * MOST_BYTES_A_BYTE);
        if weight > most {
            let why = format!("its {FILE} would take {weight} bytes of memory, too many for its length");
            return Err(Error::NotALog { path: dir.to_owned(), why });
        }
        let manifest: Manifest =
            serde_json::from_slice(&text).map_err(|source| Error::Manifest { path: path.clone(), source })?;
        if manifest.schema > SCHEMA_VERSION {
            return Err(Error::TooNew { path, found: manifest.schema, known: SCHEMA_VERSION });
        }
        manifest.owns_its_folders(dir)?;
        Ok(manifest)
    }

    /// Devices' logs are in folders of this one, each in one of its own: a log that names another place would have it read, from wherever the
    /// log came.
    fn owns_its_folders(&self, dir: &Path) -> Result<()> {
        let refused = |folder: &str, why: &str| {
            let why = format!("its {FILE} names {folder:?} as a device's folder, which {why}");
            Err(Error::NotALog { path: dir.to_owned(), why })
        };
        for (i, device) in self.devices.iter().enumerate() {
            let folder = &device.folder;
            if Path::new(folder).file_name() != Some(OsStr::new(folder)) {
                return refused(folder, "is no name of a folder in it");
            }
            if self.devices[..i].iter().any(|d| d.folder == *folder) {
                return refused(folder, "is another device's, too");
            }
            let there = |path: &Path| path.canonicalize().ok();
            // One that is missing is reported where it is opened.
            let leads = there(&dir.join(folder)).zip(there(dir).map(|d| d.join(folder)));
            if leads.is_some_and(|(leads, own)| leads != own) {
                return refused(folder, "is a link to another place");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn captures_of_one_name_are_set_apart() {
        let top = std::env::temp_dir().join(format!("kpat-apart-{}", std::process::id()));
        let paths = ["x/d1/wire.pcap", "y/d1/wire.pcap", "y/d2/wire.pcap", "lan.pcap"].map(|p| top.join(p));
        for path in &paths {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let log = top.join("l.kpat");
        fs::create_dir(&log).unwrap();
        let all = SourceFile::captures(&paths, &log).unwrap();
        let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["x/d1/wire.pcap", "y/d1/wire.pcap", "d2/wire.pcap", "lan.pcap"]);
        for (s, path) in all.iter().zip(&paths) {
            let found = log.join(&s.folder).join(&s.name).canonicalize().unwrap();
            assert_eq!(found, path.canonicalize().unwrap());
        }
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn devices_are_in_folders_of_the_log() {
        let top = std::env::temp_dir().join(format!("kpat-owns-{}", std::process::id()));
        let log = top.join("x.kpat");
        for folder in ["x.kpat/a.kpat", "x.kpat/a.kpat/deep", "other.kpat"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(&log, top.join("link.kpat")).unwrap();
        std::os::unix::fs::symlink("../other.kpat", log.join("b.kpat")).unwrap();
        let read = |folders: &[&str], schema, log: &Path| {
            let device = |f: &&str| DeviceLog { folder: (*f).to_owned(), ..DeviceLog::default() };
            let devices = folders.iter().map(device).collect();
            let _ = fs::remove_file(log.join(FILE));
            Manifest { schema, devices, ..Manifest::default() }.write(log).unwrap();
            Manifest::read(log).map(|_| ()).map_err(|e| e.to_string())
        };
        let odd = ["...kpat", "a\\b", "Gerät 1.kpat"];
        for own in [&["a.kpat", "gone.kpat"][..], &[], &odd] {
            assert_eq!(read(own, SCHEMA_VERSION, &log), Ok(()));
            assert_eq!(read(own, SCHEMA_VERSION, &top.join("link.kpat")), Ok(()));
        }
        let elsewhere = top.join("other.kpat").display().to_string();
        for other in
            ["", ".", "..", "../other.kpat", &elsewhere, "a.kpat/", "a.kpat/deep", "./a.kpat", "/", "b.kpat"]
        {
            let why = read(&["a.kpat", other], SCHEMA_VERSION, &log).unwrap_err();
            assert!(why.contains(&format!("names {other:?} as a device's folder")), "{why}");
            assert!(read(&[other], 4, &log).unwrap_err().contains("as a device's folder"));
        }
        assert!(read(&["a.kpat", "a.kpat"], SCHEMA_VERSION, &log).unwrap_err().contains("another device's"));
        fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn the_way_between_folders() {
        let top = std::env::temp_dir().join(format!("kpat-between-{}", std::process::id()));
        for folder in ["a/x.kpat", "a/caps/b", "c"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        let way = |from: &str, to: &str| between(&top.join(from), &top.join(to)).unwrap();
        assert_eq!(way("a/x.kpat", "a"), "..");
        assert_eq!(way("a/x.kpat", "a/caps/b"), "../caps/b");
        assert_eq!(way("a/x.kpat", "c"), "../../c");
        assert_eq!(between(&top, Path::new("/")), None);
        fs::remove_dir_all(top).unwrap();
    }
}
