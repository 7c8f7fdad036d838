//! How much memory the pages of a column take when they are unpacked, read from their headers before anything is unpacked:
//! a kilobyte of zstd can claim a gigabyte, and the parquet crate believes the claim.
//!
//! Page headers are Thrift structures in the compact protocol. Of each only the two sizes count; all else is passed over.

/// What one column of one row group may take. kpat's own take 1 MiB or so.
pub(crate) const MOST_COLUMN_BYTES: u64 = 64 << 20;

/// Structures within structures that are followed.
const MOST_DEPTH: u8 = 8;

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

    /// Passes over a value of a compact type; booleans of a field have none.
    fn value(&mut self, kind: u8, depth: u8) -> Option<()> {
        match kind {
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.pass(8),
            8 => {
                let len = self.varint()?;
                self.pass(len)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // An element is a byte at least, a boolean among them.
                (0..count.min(self.bytes.len() as u64 + 1)).try_for_each(|_| match head & 15 {
                    1 | 2 => self.pass(1),
                    kind => self.value(kind, depth),
                })
            }
            12 => self.fields(depth, &mut |_, _| {}),
            _ => None,
        }
    }

    /// The fields of a structure; integers are given.
    fn fields(&mut self, depth: u8, take: &mut dyn FnMut(i64, i64)) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let mut id = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            let delta = i64::from(head >> 4);
            id = if delta == 0 { self.zigzag()? } else { id + delta };
            match head & 15 {
                4..=6 => {
                    let v = self.zigzag()?;
                    take(id, v);
                }
                kind => self.value(kind, depth)?,
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
        c.fields(MOST_DEPTH, &mut |id, v| match id {
            2 => raw = u64::try_from(v).ok(),
            3 => packed = u64::try_from(v).ok(),
            _ => {}
        })?;
        sum = sum.checked_add(raw?)?;
        c.pass(packed?)?;
    }
    Some(sum)
}
