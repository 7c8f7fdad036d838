//! From what the user typed to an open log, and from an id to what it means. Says what to do when a file of another
//! kind was given.

use crate::mistyped;
use crate::output::{mark_sampled, usage};
use crate::render::clean;
use anyhow::{Context, bail};
use kpat_model::meta::Meta;
use kpat_probe::profile::{APPLICATIONS, WIFI, WORK, has_packets};
use kpat_query::Store;
use kpat_query::devices::Several;
use kpat_store::tables::{AppEventRow, FrameRow, PacketRow, SocketRow};
use kpat_store::{Manifest, Row};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A kernel behaviour log, or a file that claims to be one.
    Log,
    /// A directory: an integrated log, if anything.
    Integrated,
    /// pcap, pcapng, or a compressed file.
    Capture,
    Other,
}

pub fn kind(path: &Path) -> anyhow::Result<Kind> {
    let meta = std::fs::metadata(path).with_context(|| format!("cannot open {}", path.display()))?;
    if meta.is_dir() {
        return Ok(Kind::Integrated);
    }
    if !meta.is_file() {
        return Ok(Kind::Other);
    }
    let mut head = [0; 4];
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let len = file.take(4).read(&mut head).with_context(|| format!("cannot read {}", path.display()))?;
    const CAPTURES: [[u8; 4]; 5] = [
        [0xd4, 0xc3, 0xb2, 0xa1],
        [0xa1, 0xb2, 0xc3, 0xd4],
        [0x4d, 0x3c, 0xb2, 0xa1],
        [0xa1, 0xb2, 0x3c, 0x4d],
        [0x0a, 0x0d, 0x0d, 0x0a],
    ];
    Ok(match &head[..len] {
        b"\x89KBL" => Kind::Log,
        head if CAPTURES.iter().any(|c| c == head) => Kind::Capture,
        _ if path.extension() == Some(OsStr::new("kbl")) => Kind::Log,
        _ => Kind::Other,
    })
}

/// An open integrated log.
pub struct Integrated {
    pub store: Store,
    pub manifest: Manifest,
    pub dir: PathBuf,
    /// The log of several devices that this one is part of, and its place in it.
    pub among: Option<(Several, i32)>,
}

impl Deref for Integrated {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Integrated {
    /// What times in lists count from: the first moment in the log, boot clock.
    pub fn start_ns(&self) -> i64 {
        self.manifest.first_ns
    }

    /// File name of a capture.
    pub fn capture(&self, capture_id: i32) -> &str {
        let source = self.manifest.sources.iter().find(|s| s.role == "capture" && s.capture_id == capture_id);
        source.map_or("?", |s| &s.name)
    }

    /// Of a table; of one that cannot be read whoever reads it says why.
    fn rows<R: Row>(&self) -> u64 {
        self.table::<R>().map_or(1, |t| t.rows())
    }

    pub fn has_applications(&self) -> bool {
        self.rows::<SocketRow>() + self.rows::<AppEventRow>() > 0
    }

    /// Why nothing of this kind (`packet`, `function` ...) is there: the log has no packets, whatever was asked for, or none matches.
    pub fn nothing(&self, kind: &str) -> String {
        self.no_packets().unwrap_or_else(|| format!("no {kind} matches"))
    }

    /// Of a log without packets: why it has none.
    pub fn no_packets(&self) -> Option<String> {
        if self.rows::<PacketRow>() > 0 {
            return None;
        }
        let Meta { profile: recorded, filter, .. } = &self.manifest.log;
        if has_packets(recorded) {
            let of =
                if filter.is_empty() { String::new() } else { format!(" that matches `{}`", clean(filter)) };
            return Some(format!("this log has no packets: none{of} passed while it was recorded"));
        }
        let reads = |p: &str| match p {
            APPLICATIONS => "app",
            WORK => "profile",
            WIFI => "handover",
            _ => "events",
        };
        let readers: Vec<String> =
            recorded.split(',').map(|p| format!("kpat {} {}", reads(p), self.dir.display())).collect();
        Some(format!(
            "this log has no packets: it was recorded with -p {recorded}, which {} reads; `kpat record -p path,{recorded}` has both",
            readers.join(" or ")
        ))
    }

    /// Why no frame is listed.
    pub fn no_frame(&self) -> &'static str {
        match self.rows::<FrameRow>() {
            0 => {
                "this log has no frames: it was integrated without a capture; kpat integrate X.kbl WIRE.pcapng joins one"
            }
            _ => "no frame matches",
        }
    }

    /// `name pid`, or the number alone; of a thread that is not its process's first, `name pid/thread`, as perf writes it.
    pub fn process_name(&self, pid: i32, at_ns: i64) -> String {
        match self.process(pid, at_ns) {
            Some(p) if p.tgid == pid => format!("{} {pid}", clean(&p.comm)),
            Some(p) => format!("{} {}/{pid}", clean(&p.comm), p.tgid),
            None if pid == 0 => "idle".to_owned(),
            None => pid.to_string(),
        }
    }
}

/// Which device, where an integrated log holds several.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Device {
    /// Which device, if the integrated log has several (`kpat info` lists them)
    #[arg(long = "device", value_name = "NAME")]
    pub name: Option<String>,
}

/// Where the log should be there is something else, and the log behind it: says so.
pub fn not_swapped(path: &Path) -> anyhow::Result<()> {
    if !path.exists() && path.extension() != Some(OsStr::new("kpat")) {
        let words: Vec<String> =
            std::env::args_os().skip(1).map(|w| w.to_string_lossy().into_owned()).collect();
        if let Some(says) = mistyped::log_first(&words) {
            return Err(usage(format!("there is no {}; {says}", path.display())));
        }
    }
    Ok(())
}

/// Opens an integrated log, or the one of a device in an integrated log of several.
pub fn integrated(path: &Path, device: &Device) -> anyhow::Result<Integrated> {
    not_swapped(path)?;
    match kind(path)? {
        Kind::Integrated => {}
        Kind::Log => bail!(
            "{} is a kernel behaviour log that is not integrated yet; first run: kpat integrate {} [WIRE.pcapng ...]",
            path.display(),
            path.display()
        ),
        Kind::Capture => bail!(
            "{} is a capture of the wire; integrate it first: kpat integrate X.kbl {}",
            path.display(),
            path.display()
        ),
        Kind::Other => bail!(
            "{} is not an integrated log (a directory NAME.kpat that `kpat integrate` makes)",
            path.display()
        ),
    }
    let manifest = Manifest::read(path)?;
    if manifest.devices.is_empty() {
        if let Some(name) = &device.name {
            return Err(usage(format!("{} has one device only; remove --device {name}", path.display())));
        }
        return opened(path.to_owned(), manifest, None);
    }
    let names: Vec<String> = manifest.devices.iter().map(|d| clean(&d.name)).collect();
    let several = Several::open(path)?;
    let Some(name) = &device.name else {
        return Err(usage(format!(
            "{} holds {} devices; choose one: --device {}",
            path.display(),
            names.len(),
            names.join(" or --device ")
        )));
    };
    let place = several.device(name).ok_or_else(|| {
        usage(format!("no device `{name}` in {}; there are: {}", path.display(), names.join(", ")))
    })?;
    of_device(several, place)
}

/// A log that is looked at together with others, and what it is called: empty where it is alone.
pub struct OfDevice {
    pub name: String,
    pub log: Integrated,
}

/// The log alone, or each of its devices; with a device's name that one's alone.
pub fn each_device(path: &Path, device: &Device) -> anyhow::Result<Vec<OfDevice>> {
    let several = kind(path)? == Kind::Integrated && !Manifest::read(path)?.devices.is_empty();
    if !several || device.name.is_some() {
        return Ok(vec![OfDevice { name: String::new(), log: integrated(path, device)? }]);
    }
    let all = Several::open(path)?;
    let one = |place: usize| {
        let name = all.name(place as i32).to_owned();
        Ok(OfDevice { name, log: of_device(all.again()?, place as i32)? })
    };
    (0..all.manifest.devices.len()).map(one).collect()
}

/// One device's own log out of several.
pub fn of_device(several: Several, place: i32) -> anyhow::Result<Integrated> {
    let dir = several.folder(place);
    let manifest = Manifest::read(&dir)?;
    opened(dir, manifest, Some((several, place)))
}

fn opened(dir: PathBuf, manifest: Manifest, among: Option<(Several, i32)>) -> anyhow::Result<Integrated> {
    if let Some(sample) = &manifest.log.sample {
        mark_sampled(sample, &dir);
    }
    Ok(Integrated { store: Store::open(&dir)?, manifest, dir, among })
}

/// `NAME.kpat` beside `NAME.kbl`.
pub fn integrated_name(kbl: &Path) -> PathBuf {
    kbl.with_extension("kpat")
}

/// The two words of `kpat packet 42 X.kpat` in either order: the one that names something on disk is the log.
pub fn thing_and_log<'a>(words: &'a [String], thing: &str) -> anyhow::Result<(&'a str, &'a Path)> {
    let [a, b] = words else {
        return Err(usage(format!("give {thing} and an integrated log: kpat {thing} X.kpat")));
    };
    let looks_like_log =
        |s: &str| Path::new(s).exists() || s.ends_with(".kpat") || s.ends_with(".kbl") || s.contains('/');
    Ok(match (looks_like_log(a), looks_like_log(b)) {
        (true, false) => (b, Path::new(a)),
        _ => (a, Path::new(b)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_may_stand_first() {
        for words in [["42", "X.kpat"], ["X.kpat", "42"]] {
            let words = words.map(str::to_owned);
            assert_eq!(thing_and_log(&words, "packet ID").unwrap(), ("42", Path::new("X.kpat")));
        }
        assert!(thing_and_log(&["42".to_owned()], "packet ID").is_err());
    }
}
