//! What may be in memory of the rows that were asked for, whatever a file says that it has.

use crate::error::Result;
use crate::read::TableFile;

/// What the rows of one packet, or of a few numbers, may take in memory: who asked for them makes several times as much of them.
const MOST_BYTES_OF_FEW: usize = 128 << 20;

/// What rows may still take in memory.
pub struct Budget {
    left: usize,
    most: usize,
    /// The end of the sentence that refuses more.
    of: &'static str,
}

impl Budget {
    /// For the rows of one packet, or of a few numbers: 128 MiB.
    pub fn of_few() -> Budget {
        Budget::new(MOST_BYTES_OF_FEW, " belong to what was asked for")
    }

    pub(crate) fn new(most: usize, of: &'static str) -> Budget {
        Budget { left: most, most, of }
    }

    /// For rows without their texts, which are taken when they are known.
    pub(crate) fn take<R>(&mut self, of: &TableFile, rows: usize, text: usize) -> Result<()> {
        match self.left.checked_sub(rows.saturating_mul(size_of::<R>()).saturating_add(text)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(of.damaged(format!("more than {} bytes of rows{}", self.most, self.of))),
        }
    }
}
