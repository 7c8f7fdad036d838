//! The page docs/sql.md, run: its questions are answered by kpat, and DuckDB, pandas and polars, which read the same files,
//! say the same.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../formats/tests/judge/mod.rs"]
mod judge;
mod made;

use kpat_sql::{Database, Error, Value};
use std::path::Path;

/// The code of one language.
fn blocks(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sql.md")).unwrap();
    let open = format!("```{language}\n");
    page.split(&open).skip(1).map(|b| b.split("```").next().unwrap().to_owned()).collect()
}

fn ask(db: &Database, question: &str) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    db.ask::<Error>(question, &mut |_| Ok(()), &mut |row| {
        rows.push(row.to_vec());
        Ok(true)
    })
    .unwrap_or_else(|e| panic!("{question}: {e}"));
    rows
}

/// Name, calls and self time of every function, a line each.
fn ours(db: &Database) -> String {
    let question = "select name, count(*), sum(call.self_ns) from call join function using (func_id) \
                    group by name order by 3 desc, 1";
    ask(db, question)
        .iter()
        .map(|r| match &r[..] {
            [Value::Text(name), Value::Integer(calls), Value::Integer(self_ns)] => {
                format!("{name}\t{calls}\t{self_ns}\n")
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn the_questions_are_answered() {
    let log = made::log("guide-sql");
    let db = Database::open(&log.0).unwrap();
    let questions: Vec<String> = blocks("sql").into_iter().filter(|q| !q.starts_with("-- duckdb")).collect();
    assert!(questions.len() >= 6);
    let answers: Vec<usize> = questions.iter().map(|q| ask(&db, q).len()).collect();
    // Functions there are, packets that were forwarded there are none.
    assert_eq!(answers[..2], [7, 0]);
}

#[test]
fn other_engines_say_the_same() {
    let log = made::log("guide-other");
    let db = Database::open(&log.0).unwrap();
    std::os::unix::fs::symlink(&log.0, log.0.join("X.kpat")).unwrap();
    let run = |module: &str, code: &str| -> Option<String> {
        let python = judge::python(module)?;
        let script = log.0.join(format!("ask_{module}.py"));
        let text = format!("import os\nos.chdir({:?})\n{code}", log.0.display().to_string());
        std::fs::write(&script, text).unwrap();
        Some(judge::run(Path::new(&python), &[script.to_str().unwrap()]))
    };
    let tell = "\nfor row in rows:\n    print(*row, sep='\\t')\n";
    let duckdb = blocks("sql").into_iter().find(|q| q.starts_with("-- duckdb")).unwrap();
    let mut reported = Vec::new();
    reported.extend(run("duckdb", &format!("import duckdb\nrows = duckdb.sql({duckdb:?}).fetchall(){tell}")));
    for code in blocks("python") {
        let (module, rows) = if code.contains("import pandas") {
            ("pandas", "rows = found.itertuples(index=False)")
        } else {
            ("polars", "rows = found.rows()")
        };
        reported.extend(run(module, &format!("{code}\n{rows}{tell}")));
    }
    for found in reported {
        // pandas sums with a fraction where a value is null.
        assert_eq!(found.replace(".0\n", "\n"), ours(&db));
    }
}
