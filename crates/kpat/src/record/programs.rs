//! Which rows of the table of programs are recorded: kpat's own and the user's.

use super::Args;
use crate::output::usage;
use anyhow::Context;
use kpat_model::programs as table;
use kpat_probe::recorder::Programs;

/// Rows of the table of programs; `None`: they are not recorded.
pub(super) fn rows(args: &Args) -> anyhow::Result<Option<Programs>> {
    if !args.select.programs() {
        return match args.programs.is_empty() {
            true => Ok(None),
            false => Err(usage("--programs needs --profile programs")),
        };
    }
    let mut built_in = table::parse(table::BUILT_IN).map_err(anyhow::Error::msg)?.rows;
    let mut wanted = Vec::new();
    for path in &args.programs {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let table = table::parse(&text).map_err(|why| usage(format!("{}, {why}", path.display())))?;
        built_in.retain(|row| !table.is_without(row));
        wanted.extend(table.rows);
    }
    Ok(Some(Programs { built_in, wanted, most_a_second: args.programs_limit }))
}
