//! `kpat guest symbols`: what the guest's own /proc/kallsyms has, without asking the guest.

use super::{Which, address};
use crate::listing::Listing;
use crate::output::{Output, usage};
use crate::render::{Column, Style, Table, count};
use kpat_guest::Symbols;
use kpat_guest::symbols::Symbol;
use kpat_model::functions::glob;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Only names that match (globs); or the symbol at an address (0x...)
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
    /// Take the symbols from this System.map or vmlinux, moved to where the guest's kernel is
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    listing: Listing,
}

const FIELDS: [&str; 5] = ["address", "kind", "name", "module", "offset"];

/// A symbol, and how far behind it the address is that was asked for.
type Row<'s> = (Symbol<'s>, u64);

fn value((s, offset): &Row<'_>) -> Value {
    json!({"address": address(s.address), "kind": s.kind.to_string(), "name": s.name, "module": s.module, "offset": offset})
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let guest = args.which.attach()?;
    let own;
    let symbols = match &args.file {
        Some(path) => {
            let (base, _) = kpat_guest::symbols::image::place(guest.memory(), &guest.registers(0)?)?;
            own = Symbols::from_file(path, Some(base))?;
            &own
        }
        None => guest.symbols()?,
    };
    let rows = chosen(symbols, &args.patterns)?;
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.rows(rows.iter().map(value), out)?;
    } else if out.json {
        out.value(&json!({
            "release": symbols.release(),
            "base": address(symbols.base()),
            "symbols": rows.iter().map(value).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut t = Table::new(&[
            Column::left("address", 0, 0),
            Column::left("kind", 1, 0),
            Column::left("name", 0, 24),
            Column::left("module", 0, 0),
        ]);
        for (s, offset) in &rows {
            let name = if *offset > 0 { format!("{}+{offset:#x}", s.name) } else { s.name.to_owned() };
            t.row(vec![
                (format!("{:016x}", s.address), Style::Plain),
                (s.kind.to_string(), Style::Faint),
                (name, Style::Plain),
                (s.module.unwrap_or("").to_owned(), Style::Faint),
            ]);
        }
        args.listing.print(t, out)?;
        out.say(&format!(
            "{} of {} symbols; {} modules; the kernel begins at {}",
            count(rows.len() as u64),
            count(symbols.table().len() as u64),
            symbols.modules().len(),
            address(symbols.base())
        ));
    }
    if rows.is_empty() && !args.patterns.is_empty() {
        anyhow::bail!("the guest has no symbol {}", args.patterns.join(" or "));
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen<'s>(symbols: &'s Symbols, patterns: &[String]) -> anyhow::Result<Vec<Row<'s>>> {
    let mut rows = Vec::new();
    let mut globs = Vec::new();
    for p in patterns {
        let Some(digits) = p.strip_prefix("0x") else {
            globs.push(p);
            continue;
        };
        let at = u64::from_str_radix(digits, 16).map_err(|_| usage(format!("{p} is no address")))?;
        match symbols.at(at) {
            Some(row) => rows.push(row),
            None => anyhow::bail!("{p} is in no code or data that the guest's kernel has symbols for"),
        }
    }
    if globs.len() == patterns.len() || !globs.is_empty() {
        let fits = |s: &Symbol<'_>| globs.is_empty() || globs.iter().any(|g| glob(g, s.name));
        rows.extend(symbols.table().iter().filter(fits).map(|s| (s, 0)));
    }
    Ok(rows)
}
