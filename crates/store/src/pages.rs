//! What is known of a table before the parquet crate reads it. How much memory the pages of a column take when they are unpacked:
//! a kilobyte of zstd can claim a gigabyte, and that crate believes the claim. And whether the description at the end of the
//! file is one that it reads in bounded time and depth: it passes over lists of booleans, which it takes to have no bytes, as often
//! as they claim elements (2^31 in 7 bytes), and follows a schema as deep as it is until the stack ends.
//!
//! Both are Thrift structures in the compact protocol. That crate takes a known field for what it should be whatever kind it says
//! it is, so these are walked by the shapes that they must have, and what has another is refused.

/// What one column of one row group may take. kpat's own take 1 MiB or so.
pub(crate) const MOST_COLUMN_BYTES: u64 = 64 << 20;
/// What the columns of one row group may take that are read together: each is unpacked when the first row is read.
pub(crate) const MOST_GROUP_BYTES: u64 = 128 << 20;

/// Columns of a table, with the schema's root. kpat's own have some 40.
const MOST_COLUMNS: u64 = 1024;

/// Kinds of values in the compact protocol. A boolean field has its value in its kind; all integers are written alike.
const BOOL: u8 = 1;
const INT: u8 = 5;
const TEXT: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A structure: of each field its number, its kind and, for structures and lists of them, what they are.
struct Shape(&'static [(i64, u8, &'static Shape)]);

// As parquet.thrift has them, without what kpat does not write: encryption, decimals and times, geography, indexes of pages.
static LEAF: Shape = Shape(&[]);
static STATISTICS: Shape = Shape(&[
    (1, TEXT, &LEAF),
    (2, TEXT, &LEAF),
    (3, INT, &LEAF),
    (4, INT, &LEAF),
    (5, TEXT, &LEAF),
    (6, TEXT, &LEAF),
    (7, BOOL, &LEAF),
    (8, BOOL, &LEAF),
]);
static DATA_PAGE: Shape =
    Shape(&[(1, INT, &LEAF), (2, INT, &LEAF), (3, INT, &LEAF), (4, INT, &LEAF), (5, STRUCT, &STATISTICS)]);
static DICTIONARY_PAGE: Shape = Shape(&[(1, INT, &LEAF), (2, INT, &LEAF), (3, BOOL, &LEAF)]);
static DATA_PAGE_2: Shape = Shape(&[
    (1, INT, &LEAF),
    (2, INT, &LEAF),
    (3, INT, &LEAF),
    (4, INT, &LEAF),
    (5, INT, &LEAF),
    (6, INT, &LEAF),
    (7, BOOL, &LEAF),
    (8, STRUCT, &STATISTICS),
]);
static PAGE: Shape = Shape(&[
    (1, INT, &LEAF),
    (2, INT, &LEAF),
    (3, INT, &LEAF),
    (4, INT, &LEAF),
    (5, STRUCT, &DATA_PAGE),
    (7, STRUCT, &DICTIONARY_PAGE),
    (8, STRUCT, &DATA_PAGE_2),
]);
static LOGICAL: Shape = Shape(&[(1, STRUCT, &LEAF)]);
static SCHEMA: Shape = Shape(&[
    (1, INT, &LEAF),
    (2, INT, &LEAF),
    (3, INT, &LEAF),
    (4, TEXT, &LEAF),
    (5, INT, &LEAF),
    (6, INT, &LEAF),
    (9, INT, &LEAF),
    (10, STRUCT, &LOGICAL),
]);
static WORDS: Shape = Shape(&[(1, TEXT, &LEAF), (2, TEXT, &LEAF)]);
static ENCODINGS: Shape = Shape(&[(1, INT, &LEAF), (2, INT, &LEAF), (3, INT, &LEAF)]);
static SIZES: Shape = Shape(&[(1, INT, &LEAF), (2, LIST, &LEAF), (3, LIST, &LEAF)]);
static COLUMN: Shape = Shape(&[
    (1, INT, &LEAF),
    (2, LIST, &LEAF),
    (3, LIST, &LEAF),
    (4, INT, &LEAF),
    (5, INT, &LEAF),
    (6, INT, &LEAF),
    (7, INT, &LEAF),
    (8, LIST, &WORDS),
    (9, INT, &LEAF),
    (10, INT, &LEAF),
    (11, INT, &LEAF),
    (12, STRUCT, &STATISTICS),
    (13, LIST, &ENCODINGS),
    (14, INT, &LEAF),
    (15, INT, &LEAF),
    (16, STRUCT, &SIZES),
]);
static PLACE: Shape = Shape(&[
    (1, TEXT, &LEAF),
    (2, INT, &LEAF),
    (3, STRUCT, &COLUMN),
    (4, INT, &LEAF),
    (5, INT, &LEAF),
    (6, INT, &LEAF),
    (7, INT, &LEAF),
]);
static GROUP: Shape = Shape(&[
    (1, LIST, &PLACE),
    (2, INT, &LEAF),
    (3, INT, &LEAF),
    (5, INT, &LEAF),
    (6, INT, &LEAF),
    (7, INT, &LEAF),
]);
static ORDER: Shape = Shape(&[(1, STRUCT, &LEAF)]);
static FILE: Shape = Shape(&[
    (1, INT, &LEAF),
    (2, LIST, &SCHEMA),
    (3, INT, &LEAF),
    (4, LIST, &GROUP),
    (5, LIST, &WORDS),
    (6, TEXT, &LEAF),
    (7, LIST, &ORDER),
]);

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let b = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(b)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            v |= u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return Some(v);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let v = self.varint()?;
        Some((v >> 1) as i64 ^ -((v & 1) as i64))
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(bytes).ok()?).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    /// Passes over what is neither structure nor list nor boolean.
    fn scalar(&mut self, kind: u8) -> Option<()> {
        match kind {
            4..=6 => self.varint().map(|_| ()),
            TEXT => {
                let len = self.varint()?;
                self.pass(len)
            }
            _ => None,
        }
    }

    fn list(&mut self, of: &'static Shape) -> Option<()> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        let columns = std::ptr::eq(of, &raw const SCHEMA);
        let most = if columns { MOST_COLUMNS } else { u64::MAX };
        // Each element is a byte at least.
        if count > most.min((self.bytes.len() - self.at) as u64) {
            return None;
        }
        for i in 0..count {
            if of.0.is_empty() {
                self.scalar(head & 15)?;
                continue;
            }
            if head & 15 != STRUCT {
                return None;
            }
            let mut children = 0;
            self.fields(of, &mut |id, v| children = if id == 5 { v } else { children })?;
            if columns && i > 0 && children != 0 {
                return None;
            }
        }
        Some(())
    }

    /// Passes over a structure; integers are given. `None`: it is not of this shape.
    fn fields(&mut self, of: &'static Shape, take: &mut dyn FnMut(i64, i64)) -> Option<()> {
        let mut id = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            let delta = i64::from(head >> 4);
            id = if delta == 0 { self.zigzag()? } else { id.checked_add(delta)? };
            let kind = match head & 15 {
                1 | 2 => BOOL,
                4..=6 => INT,
                kind => kind,
            };
            let (_, _, of) = of.0.iter().find(|(i, k, _)| (*i, *k) == (id, kind))?;
            match kind {
                BOOL => {}
                INT => {
                    let v = self.zigzag()?;
                    take(id, v);
                }
                LIST => self.list(of)?,
                STRUCT => self.fields(of, &mut |_, _| {})?,
                kind => self.scalar(kind)?,
            }
        }
    }
}

/// Bytes of all pages unpacked; `None`: the headers do not add up.
pub(crate) fn unpacked(column: &[u8]) -> Option<u64> {
    let mut c = Cursor { bytes: column, at: 0 };
    let mut sum = 0u64;
    while c.at < column.len() {
        let (mut raw, mut packed) = (None, None);
        c.fields(&PAGE, &mut |id, v| match id {
            2 => raw = u64::try_from(v).ok(),
            3 => packed = u64::try_from(v).ok(),
            _ => {}
        })?;
        sum = sum.checked_add(raw?)?;
        c.pass(packed?)?;
    }
    Some(sum)
}

/// Is this the description of a table as kpat's own: columns side by side, lists no longer than their bytes?
pub(crate) fn plain(footer: &[u8]) -> bool {
    Cursor { bytes: footer, at: 0 }.fields(&FILE, &mut |_, _| {}).is_some()
}
