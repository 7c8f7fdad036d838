//! Folded stacks: one line per stack, functions separated by semicolons from the outermost on, then a number. What flame
//! graph programs read.

use crate::names::{Names, clean, context};
use crate::stacks::Stacks;
use crate::{Counts, Result};
use kpat_query::Parts;
use kpat_query::Store;
use kpat_query::trace::Chosen;
use std::io::Write;

/// What the number at the end of a line counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// Nanoseconds of self time.
    #[default]
    SelfTime,
    /// Calls and points.
    Calls,
}

/// The outermost frame is the context in brackets. Stacks whose number is 0 are left out.
pub fn write(
    store: &Store,
    chosen: &Chosen,
    weight: Weight,
    out: &mut dyn Write,
    progress: Parts<'_>,
) -> Result<Counts> {
    let names = Names::of(store)?;
    let stacks = Stacks::gather(store, chosen, progress)?;
    for s in stacks.sorted(&names) {
        let value = match weight {
            Weight::SelfTime => s.sums.self_ns,
            Weight::Calls => s.sums.calls,
        };
        if value == 0 {
            continue;
        }
        write!(out, "[{}]", context(s.context))?;
        for f in &s.functions {
            write!(out, ";{}", clean(names.name(*f)).replace(';', ":"))?;
        }
        writeln!(out, " {value}")?;
    }
    Ok(stacks.counts)
}
