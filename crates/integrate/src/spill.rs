//! Rows in order with bounded memory: gathered, sorted in stretches, the stretches put on disk, and merged when they are
//! read. What comes nearly in order (sightings, frames, associations do) costs little more than writing and reading it
//! once. A log that is small never touches the disk.
//!
//! Read any number of times, so each capture has the whole of the sightings to itself.

use crate::error::{Error, Result};
use kpat_store::new_file;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// Rows that are written at once.
const AT_ONCE: usize = 1 << 11;

/// A row of a fixed number of bytes.
pub(crate) trait Fixed: Copy {
    const BYTES: usize;
    type Key: Ord + Copy;
    fn key(&self) -> Self::Key;
    fn write(&self, to: &mut Put<'_>);
    fn read(from: &mut Take<'_>) -> Self;
}

/// Numbers into bytes.
pub(crate) struct Put<'a>(&'a mut Vec<u8>);

impl Put<'_> {
    #[inline]
    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }

    #[inline]
    pub fn i64(&mut self, v: i64) -> &mut Self {
        self.u64(v as u64)
    }

    #[inline]
    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }

    #[inline]
    pub fn u16(&mut self, v: u16) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }

    #[inline]
    pub fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }
}

/// And back.
pub(crate) struct Take<'a>(&'a [u8]);

impl Take<'_> {
    #[inline]
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                *head
            }
            None => [0; N],
        }
    }

    #[inline]
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    #[inline]
    pub fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.array())
    }

    #[inline]
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    #[inline]
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    #[inline]
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }
}

/// Rows in any order; rows of equal keys stay in the order in which they came.
pub(crate) struct Sorter<T> {
    name: PathBuf,
    rows: Vec<T>,
    /// Rows held in memory at most.
    limit: usize,
    runs: Vec<PathBuf>,
    len: u64,
}

impl<T: Fixed> Sorter<T> {
    /// `name`: of files that may be made; they go away with the result.
    pub fn new(dir: &Path, name: &str, limit: usize) -> Sorter<T> {
        Sorter { name: dir.join(name), rows: Vec::new(), limit, runs: Vec::new(), len: 0 }
    }

    pub fn push(&mut self, row: T) -> Result<()> {
        self.rows.push(row);
        self.len += 1;
        if self.rows.len() < self.limit { Ok(()) } else { self.spill() }
    }

    fn spill(&mut self) -> Result<()> {
        sort(&mut self.rows);
        let path = self.name.with_extension(format!("run{}", self.runs.len()));
        self.runs.push(path.clone());
        let failed = |doing| {
            let path = path.clone();
            move |source| Error::Io { path, doing, source }
        };
        let mut out = new_file(&path).map_err(failed("create"))?;
        let mut bytes = Vec::with_capacity(AT_ONCE * T::BYTES);
        for rows in self.rows.chunks(AT_ONCE) {
            bytes.clear();
            rows.iter().for_each(|row| row.write(&mut Put(&mut bytes)));
            debug_assert_eq!(bytes.len(), rows.len() * T::BYTES);
            out.write_all(&bytes).map_err(failed("write"))?;
        }
        self.rows.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<Sorted<T>> {
        if !self.runs.is_empty() {
            self.spill()?;
            self.rows = Vec::new();
        }
        sort(&mut self.rows);
        let (rows, runs) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.runs));
        Ok(Sorted { rows, runs, len: self.len })
    }
}

/// Rows are large, and a sort that keeps their order moves each of them several times: their keys are sorted, and they are moved once.
fn sort<T: Fixed>(rows: &mut [T]) {
    if !rows.is_sorted_by_key(T::key) {
        rows.sort_by_cached_key(T::key);
    }
}

impl<T> Drop for Sorter<T> {
    fn drop(&mut self) {
        self.runs.iter().for_each(|run| drop(std::fs::remove_file(run)));
    }
}

/// Rows in order of their keys.
pub(crate) struct Sorted<T> {
    rows: Vec<T>,
    runs: Vec<PathBuf>,
    len: u64,
}

impl<T: Fixed> Sorted<T> {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn iter(&self) -> Result<Merge<'_, T>> {
        let mut merge = Merge { rows: self.rows.iter(), runs: Vec::new(), heap: BinaryHeap::new() };
        for path in &self.runs {
            let failed = |source| Error::Io { path: path.clone(), doing: "open", source };
            let file = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
            let mut run: Run<T> = Run { path: path.clone(), file, head: None };
            run.head = run.read()?;
            if let Some(head) = &run.head {
                merge.heap.push(Reverse((head.key(), merge.runs.len())));
            }
            merge.runs.push(run);
        }
        Ok(merge)
    }
}

impl<T> Drop for Sorted<T> {
    fn drop(&mut self) {
        self.runs.iter().for_each(|run| drop(std::fs::remove_file(run)));
    }
}

struct Run<T> {
    path: PathBuf,
    file: BufReader<File>,
    head: Option<T>,
}

/// Goes through the rows once.
pub(crate) struct Merge<'a, T: Fixed> {
    rows: std::slice::Iter<'a, T>,
    runs: Vec<Run<T>>,
    /// Head of each run, by key, then by run.
    heap: BinaryHeap<Reverse<(T::Key, usize)>>,
}

impl<T: Fixed> Run<T> {
    fn read(&mut self) -> Result<Option<T>> {
        let mut bytes = [0u8; 128];
        let bytes = &mut bytes[..T::BYTES];
        match self.file.read_exact(bytes) {
            Ok(()) => Ok(Some(T::read(&mut Take(bytes)))),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(source) => Err(Error::Io { path: self.path.clone(), doing: "read", source }),
        }
    }
}

impl<T: Fixed> Merge<'_, T> {
    #[allow(clippy::should_implement_trait, reason = "a step that may fail is no iterator's")]
    pub fn next(&mut self) -> Result<Option<T>> {
        if let Some(row) = self.rows.next() {
            return Ok(Some(*row));
        }
        let Some(mut least) = self.heap.peek_mut() else { return Ok(None) };
        let run = &mut self.runs[least.0.1];
        let next = run.read()?;
        match &next {
            Some(next) => least.0.0 = next.key(),
            None => drop(PeekMut::pop(least)),
        }
        Ok(std::mem::replace(&mut run.head, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Fixed for (u32, u64) {
        const BYTES: usize = 12;
        type Key = u32;
        fn key(&self) -> u32 {
            self.0
        }
        fn write(&self, to: &mut Put<'_>) {
            to.u32(self.0).u64(self.1);
        }
        fn read(from: &mut Take<'_>) -> Self {
            (from.u32(), from.u64())
        }
    }

    /// Sorted as a stable sort sorts, however little is held, as often as it is read; nothing is left on the disk.
    #[test]
    fn sorts_what_does_not_fit() {
        let dir = std::env::temp_dir().join(format!("kpat-spill-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let rows: Vec<(u32, u64)> =
            (0..10_000u64).map(|i| ((i.wrapping_mul(0x9e37_79b9) >> 7) as u32 % 500, i)).collect();
        for limit in [1, 7, 1000, 20_000] {
            let rows = if limit == 1 { &rows[..50] } else { &rows[..] };
            let mut want = rows.to_vec();
            want.sort_by_key(|r| r.0);
            let mut sorter = Sorter::new(&dir, "rows", limit);
            rows.iter().for_each(|r| sorter.push(*r).unwrap());
            let sorted = sorter.finish().unwrap();
            assert_eq!(sorted.len(), rows.len() as u64);
            for _ in 0..2 {
                let mut merge = sorted.iter().unwrap();
                let mut got = Vec::new();
                while let Some(row) = merge.next().unwrap() {
                    got.push(row);
                }
                assert_eq!(got, want, "{limit}");
            }
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
