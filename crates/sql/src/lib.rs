//! SQL over an integrated log. The engine is SQLite, in memory and without a file of its own; the tables are virtual, over
//! the log's Parquet files as they are declared in `kpat-store`.
//!
//! A question reads the row groups that can answer it ([`mod@scan`]) and of those the columns that it names. Nothing can be
//! written: what is not reading is refused when the statement is prepared. This room knows no command line and what no
//! table means.

mod cache;
mod scan;
mod table;

use kpat_store::tables::{ALL, SEVERAL, Table};
use kpat_store::{Manifest, TableFile};
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;
use std::path::Path;
use std::sync::Arc;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] kpat_store::Error),
    /// The question names a table that is not there.
    #[error("there is no table `{name}`")]
    NoTable { name: String },
    /// The question names a column that is not there.
    #[error("there is no column `{name}`")]
    NoColumn { name: String },
    /// The question would write, or do something else that is not reading.
    #[error("only queries (select ...) are allowed: the log is never changed")]
    NotReading,
    /// The question is not SQL as SQLite knows it.
    #[error("{what}{}", place.map(|p| format!(" (at character {})", p + 1)).unwrap_or_default())]
    Syntax { what: String, place: Option<usize> },
    /// Reading failed on the way.
    #[error("{0}")]
    Reading(String),
}

/// A value of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
}

/// The tables of one integrated log, open for questions.
pub struct Database {
    connection: Connection,
    /// Name in SQL, and the declaration.
    tables: Vec<(String, &'static Table)>,
}

impl Database {
    /// Opens the tables of the log. In a log of several devices those of each device have its name and `_` before theirs.
    pub fn open(dir: &Path) -> Result<Database> {
        let manifest = Manifest::read(dir)?;
        let mut db =
            Database { connection: Connection::open_in_memory().map_err(explained)?, tables: Vec::new() };
        if manifest.devices.is_empty() {
            db.add_all(dir, "", ALL)?;
        } else {
            db.add_all(dir, "", SEVERAL)?;
            for device in &manifest.devices {
                let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
                let name: String = device.name.chars().map(plain).collect();
                db.add_all(&dir.join(&device.folder), &format!("{name}_"), ALL)?;
            }
        }
        db.connection.authorizer(Some(only_reading)).map_err(explained)?;
        Ok(db)
    }

    fn add_all(&mut self, dir: &Path, prefix: &str, tables: &[&'static Table]) -> Result<()> {
        for declared in tables {
            // A log of an earlier version may lack the newest tables.
            if !dir.join(declared.file_name()).exists() {
                continue;
            }
            let name = format!("{prefix}{}", declared.name);
            let open = Arc::new(cache::Groups::new(TableFile::open(dir, declared)?));
            self.connection
                .create_module(name.as_str(), table::MODULE, Some(table::Source { declared, open }))
                .map_err(explained)?;
            self.tables.push((name, declared));
        }
        Ok(())
    }

    /// Names in SQL, with the declarations.
    pub fn tables(&self) -> &[(String, &'static Table)] {
        &self.tables
    }

    /// Asks. `head` is given the names of the columns, `row` every row, until it says false.
    pub fn ask<E: From<Error>>(
        &self,
        question: &str,
        head: &mut dyn FnMut(&[String]) -> std::result::Result<(), E>,
        row: &mut dyn FnMut(&[Value]) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        let question = question.trim().trim_end_matches(';');
        let mut statement = self.connection.prepare(question).map_err(explained)?;
        if !statement.readonly() {
            return Err(Error::NotReading.into());
        }
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        if names.is_empty() {
            return Err(Error::NotReading.into());
        }
        head(&names)?;
        let mut rows = statement.query([]).map_err(explained)?;
        let mut values = Vec::with_capacity(names.len());
        while let Some(found) = rows.next().map_err(explained)? {
            values.clear();
            for i in 0..names.len() {
                values.push(match found.get_ref(i).map_err(explained)? {
                    ValueRef::Null => Value::Null,
                    ValueRef::Integer(v) => Value::Integer(v),
                    ValueRef::Real(v) => Value::Real(v),
                    ValueRef::Text(t) | ValueRef::Blob(t) => {
                        Value::Text(String::from_utf8_lossy(t).into_owned())
                    }
                });
            }
            if !row(&values)? {
                break;
            }
        }
        Ok(())
    }
}

/// Whatever a statement would do but read the tables: other files, settings, changes.
fn only_reading(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if function_name != "load_extension" => Authorization::Allow,
        _ => Authorization::Deny,
    }
}

/// What SQLite says, as one of ours.
fn explained(e: rusqlite::Error) -> Error {
    let (text, place) = match &e {
        rusqlite::Error::SqlInputError { msg, offset, .. } => (msg.clone(), usize::try_from(*offset).ok()),
        rusqlite::Error::SqliteFailure(_, Some(msg)) => (msg.clone(), None),
        rusqlite::Error::ModuleError(msg) => return Error::Reading(msg.clone()),
        rusqlite::Error::MultipleStatement => ("one question at a time".to_owned(), None),
        e => (e.to_string(), None),
    };
    if ["not authorized", "prohibited", "may not be modified"].iter().any(|t| text.contains(t)) {
        return Error::NotReading;
    }
    let named =
        |what: &str| text.strip_prefix(what).map(|n| n.split_whitespace().next().unwrap_or(n).to_owned());
    if let Some(name) = named("no such table: ") {
        return Error::NoTable { name };
    }
    if let Some(name) = named("no such column: ") {
        return Error::NoColumn { name };
    }
    Error::Syntax { what: text, place }
}
