//! The parquet crate panics on some damaged files (as of version 60: in its decoders, its page reader and its metadata). A
//! log may come from strangers, so a panic in there is an error of the file and nothing else: it ends no command without a
//! sentence, and takes no service down.

use crate::error::{Error, Result};
use parquet::errors::ParquetError;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

thread_local! {
    /// This thread is inside [`guarded`].
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}
static QUIET: Once = Once::new();

/// What the parquet crate makes of a part of this file. What it was reading with is not to be used after an error.
pub(crate) fn guarded<T>(path: &Path, read: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T> {
    // The panic's own message names a source file of another crate: of no use to anybody with a damaged log.
    QUIET.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                before(info);
            }
        }));
    });
    let outer = INSIDE.replace(true);
    let done = catch_unwind(AssertUnwindSafe(read));
    INSIDE.set(outer);
    let done =
        done.unwrap_or_else(|_| Err(ParquetError::General("its contents contradict each other".into())));
    done.map_err(Error::parquet(path))
}
