//! A table from strangers: whatever its bytes are, reading it ends with rows or with an error, and takes no more memory than a
//! table that kpat could have written.

#![allow(clippy::unwrap_used, reason = "a test")]

use kpat_store::tables::{EVENT, EventRow};
use kpat_store::{Budget, Error, TableFile, TableWriter};
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

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n > 127 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

/// A list of structures, or of what `kind` is, in the compact protocol.
fn list(kind: u8, items: &[Vec<u8>]) -> Vec<u8> {
    [vec![0xf0 | kind], varint(items.len() as u64), items.concat()].concat()
}

/// A file of this body and description.
fn file(dir: &Path, body: &[u8], footer: &[u8]) {
    let len = (footer.len() as u32).to_le_bytes();
    let bytes = [b"PAR1", body, footer, &len, b"PAR1"].concat();
    std::fs::write(dir.join(EVENT.file_name()), bytes).unwrap();
}

fn refused(dir: &Path) -> String {
    let began = std::time::Instant::now();
    let why = read(dir).unwrap_err().to_string();
    // The CPU had two thousand million booleans to pass over for each of the lists.
    assert!(began.elapsed().as_secs() < 10, "{why}");
    why
}

#[test]
fn a_description_is_read_in_bounded_time_and_depth() {
    let d = dir("described");
    let root = vec![0x48, 1, b's', 0x15, 0, 0];
    let booleans = [vec![0xf1], varint((1 << 31) - 1)].concat();
    for lists in [1, 300] {
        // Field 15, which nobody knows: lists of booleans.
        let field = [vec![0xe9], list(9, &vec![booleans.clone(); lists])].concat();
        file(&d, &[], &[vec![0x15, 2], field, vec![0]].concat());
        assert!(refused(&d).contains("plain table"));
    }
    // A known field whose kind says that it is text, which the parquet crate reads as what it should be.
    let hidden = [vec![0x15, 2, 0x38], varint(10), vec![0; 10], vec![0]].concat();
    file(&d, &[], &hidden);
    assert!(refused(&d).contains("plain table"));
    // Each column within the one before.
    let within = vec![0x48, 1, b's', 0x15, 2, 0];
    let schema = list(12, &[vec![within; 200_000], vec![root.clone()]].concat());
    file(&d, &[], &[vec![0x15, 2, 0x19], schema, vec![0x16, 0, 0x19, 0x0c, 0]].concat());
    assert!(refused(&d).contains("plain table"));
    std::fs::remove_dir_all(&d).unwrap();
}

/// A table of one row and these bytes for each column.
fn columns(dir: &Path, page: &[u8]) {
    use kpat_store::tables::ColType;
    let kind = |ty: ColType| match ty {
        ColType::I32 => 1u8,
        ColType::I64 => 2,
        ColType::Text => 6,
    };
    let text = |t: &str| [varint(t.len() as u64), t.as_bytes().to_vec()].concat();
    let number = |n: usize| varint(n as u64 * 2);
    let all = EVENT.columns.len();
    let mut schema = vec![[vec![0x48, 1, b's', 0x15], number(all), vec![0]].concat()];
    let mut places = Vec::new();
    for (i, c) in EVENT.columns.iter().enumerate() {
        let optional = u8::from(c.nullable()) * 2;
        schema.push([vec![0x15, kind(c.ty) * 2, 0x25, optional, 0x18], text(c.name), vec![0]].concat());
        let at = number(4 + i * page.len());
        let meta = [
            vec![0x15, kind(c.ty) * 2, 0x19, 0x15, 0, 0x19, 0x18],
            text(c.name),
            vec![0x15, 12, 0x16, 2, 0x16],
            number(page.len()),
            vec![0x16],
            number(page.len()),
            vec![0x26],
            at.clone(),
            vec![0],
        ];
        places.push([vec![0x26], at, vec![0x1c], meta.concat(), vec![0]].concat());
    }
    let group = [vec![0x19], list(12, &places), vec![0x16, 2, 0x16, 2, 0]].concat();
    let footer =
        [vec![0x15, 2, 0x19], list(12, &schema), vec![0x16, 2, 0x19], list(12, &[group]), vec![0]].concat();
    file(dir, &page.repeat(all), &footer);
}

#[test]
fn pages_are_read_in_bounded_depth_and_memory() {
    let d = dir("pages");
    // Lists within lists, in a field of a page's header that nobody knows.
    columns(&d, &[vec![0x99], vec![0x19; 1_000_000], vec![0x15, 0, 0]].concat());
    assert!(refused(&d).contains("do not add up"));
    // Pages of 60 MiB, one in each column, of no bytes.
    columns(&d, &[vec![0x15, 0, 0x15], varint(120 << 20), vec![0x15, 0, 0]].concat());
    let t = TableFile::open(&d, &EVENT).unwrap();
    assert!(t.all::<EventRow>().unwrap_err().to_string().contains("row group 0 unpacks to more than"));
    std::fs::remove_dir_all(&d).unwrap();
}

#[test]
fn what_belongs_to_one_packet_is_bounded() {
    let d = dir("one");
    let mut w = TableWriter::create(&d).unwrap();
    for i in 0..(1 << 21) {
        w.push(&EventRow { at_ns: i, packet_id: Some(3), ..EventRow::default() }).unwrap();
    }
    w.finish().unwrap();
    assert!(std::fs::metadata(d.join(EVENT.file_name())).unwrap().len() < 20 << 20);
    let t = TableFile::open(&d, &EVENT).unwrap();
    let too_many = t.rows_equal::<EventRow>("packet_id", &[3]).unwrap_err().to_string();
    assert!(too_many.contains("belong to what was asked for"), "{too_many}");
    let mut budget = Budget::of_few();
    let each = (0..t.groups()).map(|g| {
        let all: Vec<u32> = (0..t.group_rows(g) as u32).collect();
        t.rows_within::<EventRow>(g, &all, &mut budget).map(|rows| rows.len())
    });
    assert!(each.collect::<Result<Vec<_>, _>>().is_err(), "the groups have a budget each");
    std::fs::remove_dir_all(&d).unwrap();
}

/// Would wait for ever if it were opened: nobody writes to the pipe.
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused() {
    let d = dir("pipe");
    let pipe = |name: &str| {
        let path = d.join(name);
        let _ = std::fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    };
    pipe(EVENT.file_name().as_str());
    assert!(refused(&d).contains("event.parquet is no file"));
    pipe("manifest.json");
    let why = kpat_store::Manifest::read(&d).unwrap_err().to_string();
    assert!(why.contains("manifest.json is no file"), "{why}");
    std::os::unix::fs::symlink("/dev/zero", d.join("zero")).unwrap();
    std::fs::rename(d.join("zero"), d.join("manifest.json")).unwrap();
    let why = kpat_store::Manifest::read(&d).unwrap_err().to_string();
    assert!(why.contains("manifest.json is no file"), "{why}");
    std::fs::remove_dir_all(&d).unwrap();
}
