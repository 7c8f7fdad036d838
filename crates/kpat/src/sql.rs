//! `kpat sql`: a question in SQL to the tables of an integrated log.

use crate::open;
use crate::output::{Output, usage};
use crate::render::{Column, Layout, Line, Style, Table, clean, count};
use anyhow::Context;
use kpat_formats::text::cell;
use kpat_model::codes::Code;
use kpat_query::nearest;
use kpat_sql::{Database, Error, Value};
use kpat_store::tables::codes;
use serde_json::json;
use std::cell::RefCell;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
The tables are those of --tables; names of functions, drop reasons and processes stand in tables of their own:
  select name, count(*), sum(call.self_ns) from call join function using (func_id) group by name order by 3 desc limit 10
  select * from packet where packet_id = 42
Conditions on the column by which a table is in order (packet_id, call_id, entry_ns, at_ns, number) read only what can fit.";

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    /// The query [default: read from standard input]
    #[arg(value_name = "SELECT")]
    question: Option<String>,
    /// Print tab-separated values, with a line of names
    #[arg(long, conflicts_with = "json")]
    tsv: bool,
    /// Print the tables and their columns; with NAME only that table
    #[arg(long, value_name = "TABLE", num_args = 0..=1, default_missing_value = "", conflicts_with = "question")]
    tables: Option<String>,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    open::not_swapped(&args.log)?;
    if open::kind(&args.log)? != open::Kind::Integrated {
        // It says what this is and what to do with it.
        open::integrated(&args.log, &open::Device::default())?;
    }
    let db = Database::open(&args.log)?;
    if let Some(name) = &args.tables {
        return tables(&db, name, out);
    }
    let question = match &args.question {
        Some(question) if question.trim().is_empty() => {
            return Err(usage("the query is empty; give one, for example: select * from packet limit 10"));
        }
        Some(question) => question.clone(),
        None if std::io::stdin().is_terminal() => {
            return Err(usage(
                "give a query, for example: select * from packet limit 10; --tables lists the tables",
            ));
        }
        None => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read the query")?;
            if text.trim().is_empty() {
                return Err(usage(
                    "standard input is empty; give a query, for example: select * from packet limit 10",
                ));
            }
            text
        }
    };
    let mut printer = Printer::new(out, args.tsv);
    let names: RefCell<Vec<String>> = RefCell::default();
    let asked = db.ask::<anyhow::Error>(
        &question,
        &mut |head| {
            *names.borrow_mut() = head.to_vec();
            Ok(())
        },
        &mut |row| {
            printer.row(&names.borrow(), row)?;
            Ok(true)
        },
    );
    asked.map_err(|e| explained(e, &db))?;
    printer.end(&names.borrow())?;
    Ok(ExitCode::SUCCESS)
}

/// With the nearest name, where one is not there.
fn explained(e: anyhow::Error, db: &Database) -> anyhow::Error {
    let text = match e.downcast_ref::<Error>() {
        Some(Error::NoTable { name }) => {
            let near = nearest(name, db.tables().iter().map(|t| t.0.as_str()));
            format!("there is no table `{name}`{}; --tables lists them", meant(near))
        }
        Some(Error::NoColumn { name }) => {
            let bare = name.rsplit('.').next().unwrap_or(name);
            let columns =
                || db.tables().iter().flat_map(|t| t.1.columns.iter().map(move |c| (t.0.as_str(), c.name)));
            let elsewhere: Vec<&str> = columns().filter(|c| c.1 == bare).map(|c| c.0).collect();
            let hint = match elsewhere[..] {
                [] => meant(nearest(bare, columns().map(|c| c.1))),
                [table] => format!(" in the tables of this query; `{table}` has one"),
                [..] => format!(" in the tables of this query; these have one: {}", elsewhere.join(", ")),
            };
            format!("there is no column `{name}`{hint}; --tables lists them")
        }
        Some(Error::NotReading | Error::Syntax { .. }) => e.to_string(),
        _ => return e,
    };
    usage(text)
}

fn meant(near: Option<&str>) -> String {
    near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}

fn tables(db: &Database, name: &str, out: &Output) -> anyhow::Result<ExitCode> {
    let wanted: Vec<_> = db.tables().iter().filter(|t| name.is_empty() || t.0 == name).collect();
    if wanted.is_empty() {
        let near = nearest(name, db.tables().iter().map(|t| t.0.as_str()));
        return Err(usage(format!("there is no table `{name}`{}", meant(near))));
    }
    if out.json {
        let all: Vec<_> = wanted
            .iter()
            .map(|(name, t)| {
                let columns: Vec<_> = t
                    .columns
                    .iter()
                    .map(|c| {
                        json!({
                            "name": c.name,
                            "type": if c.ty == kpat_store::ColType::Text { "text" } else { "integer" },
                            "unit": c.unit,
                            "clock": c.clock,
                            "null_means": (!c.null.is_empty()).then_some(c.null),
                            "meaning": c.meaning,
                            "codes": codes(t.name, c.name).iter().map(|code| json!({
                                "number": code.number, "name": code.name, "meaning": code.meaning,
                            })).collect::<Vec<_>>(),
                        })
                    })
                    .collect();
                json!({"table": name, "meaning": t.meaning, "order": t.order, "columns": columns})
            })
            .collect();
        out.value(&json!(all))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (i, (name, t)) in wanted.iter().enumerate() {
        if i > 0 {
            out.line(&Line::new())?;
        }
        out.line(&Line::of(name.clone(), Style::Strong).plain(format!("  {}", t.meaning)))?;
        let mut table = Table::new(&[
            Column::left("column", 0, 0),
            Column::left("unit", 5, 0),
            Column::left("null", 4, 12),
            Column::left("meaning", 0, 20),
        ]);
        for c in t.columns {
            let plain = |text: &str| (text.to_owned(), Style::Plain);
            let unit =
                if c.clock.is_empty() { c.unit.to_owned() } else { format!("{}, {}", c.unit, c.clock) };
            table.row(vec![plain(c.name), plain(&unit), plain(c.null), plain(c.meaning)]);
        }
        out.lines(&table.render(out.width).0)?;
        for c in t.columns.iter().filter(|c| !codes(t.name, c.name).is_empty()) {
            out.line(&Line::new())?;
            out.lines(&code_table(c.name, &codes(t.name, c.name)).render(out.width).0)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn code_table(column: &'static str, codes: &[Code]) -> Table {
    let mut table = Table::new(&[
        Column::right(column, 0),
        Column::left("is called", 0, 0),
        Column::left("which means", 0, 20),
    ]);
    for c in codes {
        let row = [c.number.to_string(), c.name.to_owned(), c.meaning.to_owned()];
        table.row(row.map(|text| (text, Style::Plain)).to_vec());
    }
    table
}

/// Rows that decide how wide the columns are.
const SAMPLE: usize = 1000;

/// An answer on standard output, as it comes.
struct Printer<'a> {
    out: &'a Output,
    tsv: bool,
    rows: Vec<Vec<Value>>,
    layout: Option<(Vec<Column>, Layout)>,
    printed: u64,
}

impl<'a> Printer<'a> {
    fn new(out: &'a Output, tsv: bool) -> Printer<'a> {
        Printer { out, tsv, rows: Vec::new(), layout: None, printed: 0 }
    }

    fn row(&mut self, names: &[String], row: &[Value]) -> anyhow::Result<()> {
        self.printed += 1;
        if self.out.json {
            let head = if self.printed == 1 { "[\n  " } else { ",\n  " };
            let cells: Vec<String> =
                names.iter().zip(row).map(|(n, v)| format!("{}: {}", json!(n), as_json(v))).collect();
            return self.out.json_text(&format!("{head}{{{}}}", cells.join(", ")));
        }
        if self.tsv {
            if self.printed == 1 {
                self.head(names)?;
            }
            let cells: Vec<String> = row.iter().map(tsv).collect();
            return self.out.raw((cells.join("\t") + "\n").as_bytes());
        }
        self.rows.push(row.to_vec());
        if self.rows.len() >= SAMPLE { self.table(names, true) } else { Ok(()) }
    }

    fn head(&self, names: &[String]) -> anyhow::Result<()> {
        let names: Vec<String> = names.iter().map(|n| cell(n)).collect();
        self.out.raw((names.join("\t") + "\n").as_bytes())
    }

    fn end(mut self, names: &[String]) -> anyhow::Result<()> {
        if self.out.json {
            let tail = if self.printed == 0 { "[]\n" } else { "\n]\n" };
            return self.out.raw(tail.as_bytes());
        }
        if self.tsv {
            return if self.printed == 0 { self.head(names) } else { Ok(()) };
        }
        if self.printed == 0 {
            self.out.say("no row matches");
            return Ok(());
        }
        self.table(names, false)?;
        if self.printed > 50 {
            self.out.say(&format!("{} rows", count(self.printed)));
        }
        Ok(())
    }

    /// Prints the rows that wait; `more` may come.
    fn table(&mut self, names: &[String], more: bool) -> anyhow::Result<()> {
        let first = self.layout.is_none();
        let columns = match self.layout.take() {
            Some((columns, layout)) => {
                self.layout = Some((columns.clone(), layout));
                columns
            }
            None => columns_of(names, &self.rows),
        };
        let mut table = Table::new(&columns);
        for row in self.rows.drain(..) {
            table.row(row.iter().map(|v| (text(v), Style::Plain)).collect());
        }
        if first {
            let made = table.layout(self.out.width, more);
            self.out.line(&table.head(&made))?;
            self.layout = Some((columns, made));
        }
        if let Some((_, layout)) = &mut self.layout {
            self.out.lines(&table.body(layout))?;
        }
        self.out.flush()
    }
}

/// Numbers stand to the right, text may be shortened.
fn columns_of(names: &[String], rows: &[Vec<Value>]) -> Vec<Column> {
    names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            // One question per process: the heads live as long as it.
            let head: &'static str = clean(name).leak();
            if rows.iter().any(|r| matches!(r[i], Value::Text(_))) {
                Column::left(head, 0, 8)
            } else {
                Column::right(head, 0)
            }
        })
        .collect()
}

fn text(v: &Value) -> String {
    match v {
        Value::Null => String::new(),
        Value::Integer(n) => n.to_string(),
        Value::Real(x) => format!("{x}"),
        Value::Text(t) => clean(t),
    }
}

fn tsv(v: &Value) -> String {
    match v {
        Value::Text(t) => cell(t),
        v => text(v),
    }
}

fn as_json(v: &Value) -> serde_json::Value {
    match v {
        Value::Null => serde_json::Value::Null,
        Value::Integer(n) => json!(n),
        Value::Real(x) => json!(x),
        Value::Text(t) => json!(t),
    }
}
