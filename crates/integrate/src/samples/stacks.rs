//! Stacks until all of them are known: on disk, as they come, for a stack may have a hundred frames. Each is kept once, however often files of a
//! recording repeat it; in memory is only where it stands.

use crate::error::{Error, Result};
use kpat_model::hash::Map;
use kpat_model::{BootNs, SampledStack};
use kpat_store::new_file;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of stacks that are written at once.
const AT_ONCE: usize = 1 << 16;
/// Time, process and bytes of the frames, before these.
const HEAD: usize = 16;

pub(super) struct Stacks {
    path: PathBuf,
    /// Made for the first one: most logs have none.
    out: Option<BufWriter<File>>,
    end: u64,
    /// Where each begins, by its number.
    known: Map<u64, u64>,
    /// The same by number, when all are known: their place is their number in the table.
    order: Vec<(u64, u64)>,
}

impl Stacks {
    pub fn new(dir: &Path) -> Stacks {
        let path = dir.join("stacks");
        Stacks { path, out: None, end: 0, known: Map::default(), order: Vec::new() }
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = self.path.clone();
        move |source| Error::Io { path, doing, source }
    }

    /// Another of the same number is the same.
    pub fn add(&mut self, s: &SampledStack) -> Result<()> {
        if self.known.contains_key(&s.number) {
            return Ok(());
        }
        self.known.insert(s.number, self.end);
        let mut out = match self.out.take() {
            Some(out) => out,
            None => BufWriter::with_capacity(AT_ONCE, new_file(&self.path).map_err(self.failed("create"))?),
        };
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&s.at.0.to_le_bytes());
        head[8..12].copy_from_slice(&s.process.to_le_bytes());
        head[12..].copy_from_slice(&(s.frames.len() as u32).to_le_bytes());
        out.write_all(&head).and_then(|()| out.write_all(&s.frames)).map_err(self.failed("write"))?;
        self.end += (HEAD + s.frames.len()) as u64;
        self.out = Some(out);
        Ok(())
    }

    /// No more will come.
    pub fn end(&mut self) -> Result<()> {
        if let Some(mut out) = self.out.take() {
            out.flush().map_err(self.failed("write"))?;
        }
        self.order = std::mem::take(&mut self.known).into_iter().collect();
        self.order.sort_unstable();
        Ok(())
    }

    /// Which row of the table it is.
    pub fn place(&self, number: u64) -> Option<i32> {
        self.order.binary_search_by_key(&number, |s| s.0).ok().map(|i| i as i32)
    }

    /// All of them, by number.
    pub fn read(&self) -> Result<Read<'_>> {
        let file = if self.order.is_empty() {
            None
        } else {
            Some(File::open(&self.path).map_err(self.failed("open"))?)
        };
        Ok(Read { stacks: self, file, next: 0 })
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        if self.end > 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub(super) struct Read<'a> {
    stacks: &'a Stacks,
    file: Option<File>,
    next: usize,
}

impl Read<'_> {
    #[allow(clippy::should_implement_trait, reason = "a step that may fail is no iterator's")]
    pub fn next(&mut self) -> Result<Option<SampledStack>> {
        let Some((file, (number, from))) = self.file.as_ref().zip(self.stacks.order.get(self.next).copied())
        else {
            return Ok(None);
        };
        self.next += 1;
        let failed = || self.stacks.failed("read");
        let mut head = [0; HEAD];
        file.read_exact_at(&mut head, from).map_err(failed())?;
        let at = BootNs(i64::from_le_bytes(std::array::from_fn(|k| head[k])));
        let [process, len] = [8, 12].map(|i| u32::from_le_bytes(std::array::from_fn(|k| head[i + k])));
        let mut frames = vec![0; len as usize];
        file.read_exact_at(&mut frames, from + HEAD as u64).map_err(failed())?;
        Ok(Some(SampledStack { at, number, process, frames }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_once_and_by_number() {
        let dir = std::env::temp_dir().join(format!("kpat-stacks-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut stacks = Stacks::new(&dir);
        let stack = |number: u64, process| SampledStack::new(BootNs(9), number, process, &[number; 3]);
        for (number, process) in [(7, 1), (3, 0), (u64::MAX, 2), (7, 5), (0, 4)] {
            stacks.add(&stack(number, process)).unwrap();
        }
        stacks.end().unwrap();
        for _ in 0..2 {
            let (mut read, mut found) = (stacks.read().unwrap(), Vec::new());
            while let Some(s) = read.next().unwrap() {
                assert_eq!(s.addresses().collect::<Vec<_>>(), [s.number; 3]);
                found.push((s.number, s.process));
            }
            assert_eq!(found, [(0, 4), (3, 0), (7, 1), (u64::MAX, 2)]);
        }
        assert_eq!(
            [0, 3, 5, 7, u64::MAX].map(|n| stacks.place(n)),
            [Some(0), Some(1), None, Some(2), Some(3)]
        );
        drop(stacks);
        let mut none = Stacks::new(&dir);
        none.end().unwrap();
        assert!(none.read().unwrap().next().unwrap().is_none());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
