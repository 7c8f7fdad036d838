//! A table from strangers: whatever its bytes are, reading it ends with rows or with an error, and takes no more memory than a
//! table that kpat could have written.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_store::tables::{EVENT, EventRow};
use kpat_store::{Error, TableFile, TableWriter};
use std::path::{Path, PathBuf};

fn dir(name: &str) -> PathBuf {
    let d = std::env::temp_dir().join(format!("kpat-damage-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&d);
    std::fs::create_dir_all(&d).unwrap();
    d
}

fn table(dir: &Path, rows: i64) -> PathBuf {
    let mut w = TableWriter::create(dir).unwrap();
    for i in 0..rows {
        let text = ["NO_SOCKET", "r0 up", ""][i as usize % 3].to_owned();
        let packet_id = (i % 3 == 0).then_some(i);
        w.push(&EventRow { at_ns: i * 1000, kind: (i % 7) as i32, text, packet_id, ..EventRow::default() })
            .unwrap();
    }
    w.finish().unwrap();
    dir.join(EVENT.file_name())
}

/// Every way that the rest of the program reads a table.
fn read(dir: &Path) -> Result<usize, Error> {
    let t = TableFile::open(dir, &EVENT)?;
    let mut n = 0;
    for g in 0..t.groups() {
        n += t.ints(g, "at_ns")?.len();
        n += t.rows_at::<EventRow>(g, &[1, 50])?.len();
    }
    n += t.rows_equal::<EventRow>("packet_id", &[3, 30])?.len();
    Ok(n + t.all::<EventRow>()?.len())
}

/// Numbers that are the same in each run. Source: Marsaglia, Xorshift RNGs, 2003.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

#[test]
fn damage_is_an_error_and_not_a_panic() {
    let d = dir("mutated");
    let path = table(&d, 300);
    let good = std::fs::read(&path).unwrap();
    assert!(read(&d).unwrap() > 300);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut errors = 0;
    for _ in 0..6000 {
        let mut bytes = good.clone();
        // Half of them in the metadata at the end, where numbers decide what is allocated.
        let from = if random.below(2) == 0 { 0 } else { bytes.len() * 2 / 3 };
        for _ in 0..=random.below(3) {
            let at = from + random.below(bytes.len() - from);
            bytes[at] = [0, 0xff, 0x7f, 0x80, bytes[at] ^ 1 << random.below(8)][random.below(5)];
        }
        if random.below(20) == 0 {
            bytes.truncate(random.below(good.len()));
        }
        std::fs::write(&path, &bytes).unwrap();
        errors += usize::from(read(&d).is_err());
    }
    assert!(errors > 600, "only {errors} of the damaged tables were refused");
    std::fs::remove_dir_all(&d).unwrap();
}
