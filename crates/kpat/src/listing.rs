//! How a list is printed: which columns, with or without their heads, for people or tab separated for programs.

use crate::output::{Output, usage};
use crate::render::Table;
use kpat_formats::text::cell;
use serde_json::Value;

#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Columns")]
pub struct Listing {
    /// Show only these columns, in this order (column headings; with --tsv field names)
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "json")]
    columns: Vec<String>,
    /// Do not print the headings
    #[arg(long, conflicts_with = "json")]
    no_header: bool,
    /// Print tab-separated values, with the fields and units of --json; empty: not known
    #[arg(long, conflicts_with = "json")]
    tsv: bool,
}

/// Tab separated rows of a list.
pub struct Tsv {
    fields: Vec<&'static str>,
    header: bool,
}

impl Listing {
    /// The columns that were asked for, of a table that has all.
    pub fn choose(&self, table: Table) -> anyhow::Result<Table> {
        if self.columns.is_empty() {
            return Ok(table);
        }
        table.choose(&self.columns).map_err(usage)
    }

    pub fn is_chosen(&self) -> bool {
        !self.columns.is_empty()
    }

    pub fn is_tsv(&self) -> bool {
        self.tsv
    }

    pub fn has_header(&self) -> bool {
        !self.no_header
    }

    /// Prints a table; the heads of the columns for which there was no room.
    pub fn print(&self, table: Table, out: &Output) -> anyhow::Result<Vec<&'static str>> {
        let (lines, hidden) = self.choose(table)?.render(out.width);
        out.lines(lines.iter().skip(usize::from(self.no_header)))?;
        Ok(hidden)
    }

    /// If the list is to be tab separated: the fields, of all that its rows have.
    pub fn tsv(&self, all: &[&'static str]) -> anyhow::Result<Option<Tsv>> {
        if !self.tsv {
            return Ok(None);
        }
        let of = |name: &String| {
            all.iter().copied().find(|f| f == name).ok_or_else(|| {
                usage(format!("--columns {name}: --tsv has no such field; there are {}", all.join(",")))
            })
        };
        let fields = if self.columns.is_empty() {
            all.to_vec()
        } else {
            self.columns.iter().map(of).collect::<anyhow::Result<_>>()?
        };
        Ok(Some(Tsv { fields, header: !self.no_header }))
    }
}

impl Tsv {
    pub fn head(&self, out: &Output) -> anyhow::Result<()> {
        if self.header { out.raw((self.fields.join("\t") + "\n").as_bytes()) } else { Ok(()) }
    }

    /// A row of the list, as it is in JSON; a field within another is named by both, with a dot between.
    pub fn row(&self, value: &Value, out: &Output) -> anyhow::Result<()> {
        let at = |field: &str| field.split('.').fold(value, |v, name| &v[name]);
        let cells: Vec<String> = self.fields.iter().map(|f| text(at(f))).collect();
        out.raw((cells.join("\t") + "\n").as_bytes())
    }

    pub fn rows(&self, values: impl IntoIterator<Item = Value>, out: &Output) -> anyhow::Result<()> {
        self.head(out)?;
        values.into_iter().try_for_each(|v| self.row(&v, out))
    }
}

/// Several values of one field stand side by side, separated by commas.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => cell(text),
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_are_values_and_no_formula() {
        for (value, shown) in [
            (json!(null), ""),
            (json!(-5), "-5"),
            (json!(1.5), "1.5"),
            (json!("=1+1"), "'=1+1"),
            (json!("a\tb"), "a\\x09b"),
            (json!([1, "x"]), "1,x"),
        ] {
            assert_eq!(text(&value), shown);
        }
    }
}
