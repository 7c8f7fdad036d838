//! The end of a capture that is being written, as a capture of its own. Of pcapng as `record --sniff` and dumpcap write it: one section,
//! its interfaces first. Another capture is given whole.

use crate::room;
use anyhow::Context;
use kpat_model::BootNs;
use kpat_probe::sys::boot_now;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom, copy};
use std::path::{Path, PathBuf};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
/// A larger head than this is none.
const MAX_HEAD: u64 = 1 << 20;

pub struct Tail {
    path: PathBuf,
    /// Section and interfaces: from the beginning to here; `None`: not all of it is there yet, or this is no such file.
    head: Option<u64>,
    is_whole: bool,
    /// Where whole blocks end.
    walked: u64,
    /// Ends of the file, and when it ended there.
    marks: VecDeque<(BootNs, u64)>,
}

impl Tail {
    pub fn open(path: &Path) -> anyhow::Result<Tail> {
        let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut first = [0; 12];
        let is_ours = file.read_exact(&mut first).is_ok()
            && first[..4] == SECTION.to_le_bytes()
            && first[8..] == 0x1a2b_3c4du32.to_le_bytes();
        Ok(Tail { path: path.into(), head: None, is_whole: !is_ours, walked: 0, marks: VecDeque::new() })
    }

    /// A capture with everything that came after `since` and some before, made in `folder`; or the capture itself.
    pub fn since(&mut self, since: BootNs, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = self.path.clone();
        let failed = || format!("cannot read {}", path.display());
        let now = boot_now();
        if !self.is_whole {
            self.walk().with_context(failed)?;
        }
        let (Some(head), false) = (self.head, self.is_whole) else { return Ok(path) };
        while self.marks.get(1).is_some_and(|m| m.0 <= since) {
            self.marks.pop_front();
        }
        let from = self.marks.front().filter(|m| m.0 <= since).map_or(head, |m| m.1.max(head));
        self.marks.push_back((now, self.walked));
        let name = path.file_name().unwrap_or_default();
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let to = folder.join(name);
        let unwritten = || format!("cannot write {}", to.display());
        let mut out = File::create(&to).with_context(unwritten)?;
        let mut file = File::open(&path).with_context(failed)?;
        for (from, to) in [(0, head), (from, self.walked)] {
            file.seek(SeekFrom::Start(from)).with_context(failed)?;
            let copied = copy(&mut (&mut file).take(to - from), &mut out);
            copied.map_err(|e| {
                let what = if room::why(&e).is_some() { unwritten() } else { failed() };
                anyhow::Error::new(e).context(what)
            })?;
        }
        Ok(to)
    }

    /// On to the last whole block.
    fn walk(&mut self) -> std::io::Result<()> {
        let file = File::open(&self.path)?;
        let size = file.metadata()?.len();
        let mut file = BufReader::with_capacity(1 << 16, file);
        file.seek(SeekFrom::Start(self.walked))?;
        while size.saturating_sub(self.walked) >= 12 {
            let mut head = [0; 8];
            file.read_exact(&mut head)?;
            let [kind, len] =
                [&head[..4], &head[4..]].map(|b| b.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)));
            let describes = kind == SECTION || kind == INTERFACE;
            if len < 12 || len % 4 != 0 || (describes && self.head.is_some()) {
                self.is_whole = true;
                break;
            }
            if u64::from(len) > size - self.walked {
                break;
            }
            if !describes && self.head.is_none() {
                self.head = Some(self.walked);
                self.is_whole = self.walked > MAX_HEAD;
            }
            file.seek_relative(i64::from(len) - 8)?;
            self.walked += u64::from(len);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, body, &len].concat()
    }

    #[test]
    fn what_came_since_is_given_behind_the_head_and_nothing_half_written() {
        let dir = std::env::temp_dir().join(format!("kpat-tail-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("x.pcapng");
        let mut section = 0x1a2b_3c4du32.to_le_bytes().to_vec();
        section.extend([1, 0, 0, 0]);
        section.extend([0xff; 8]);
        let head = [block(SECTION, &section), block(INTERFACE, &[1, 0, 0, 0, 0, 0, 0, 0])].concat();
        let frame = |n: u8| block(6, &[n; 8]);
        let mut file = File::create(&path).unwrap();
        let mut put = |bytes: &[u8]| file.write_all(bytes).unwrap();
        put(&head);
        let mut tail = Tail::open(&path).unwrap();
        let all = BootNs(i64::MIN);
        assert_eq!(tail.since(all, &dir.join("t")).unwrap(), path, "no frame yet");
        put(&[frame(1), frame(2)].concat());
        let read = |p: PathBuf| fs::read(p).unwrap();
        let t = dir.join("t");
        assert_eq!(read(tail.since(all, &t).unwrap()), [&head[..], &frame(1), &frame(2)].concat());
        let then = boot_now();
        put(&frame(3));
        put(&frame(4)[..9]);
        assert_eq!(read(tail.since(then, &t).unwrap()), [&head[..], &frame(3)].concat());
        put(&frame(4)[9..]);
        assert_eq!(read(tail.since(then, &t).unwrap()), [&head[..], &frame(3), &frame(4)].concat());
        let later = boot_now();
        assert_eq!(read(tail.since(later, &t).unwrap()), head);
        // An interface that comes later: frames before it are needed to count interfaces.
        put(&block(INTERFACE, &[1, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(tail.since(later, &t).unwrap(), path);
        fs::remove_dir_all(&dir).unwrap();
    }
}
