//! The filter language: one for the command line, the page and exports. `docs/filter.md` describes it; its fields are
//! listed once, in `fields.rs`.
//!
//! A text is parsed without a log ([`Filter`]), then made ready for one ([`Condition`]): what asks for functions becomes
//! the set of packets that they touched, found by `call_index`. A condition looks at one row of the
//! [list of packets](crate::catalog) and touches no table.

mod complete;
mod duration;
mod fields;

mod parse;
mod token;
mod tree;
mod when;

pub use complete::{Completion, Item, complete, conditions};
pub use duration::parse_duration;
pub use fields::{FIELDS, Field};
pub use tree::Kind;
pub use when::When;

use crate::codes::verdict;
use crate::entry::{Entry, Names, flag};
use crate::error::Result;
use crate::store::Store;
use fields::Get;
use kpat_model::hash::Numbers;
use std::fmt::Write as _;
use std::ops::{Range, RangeInclusive};
use tree::{Expr, Like, Net};

/// A text that is no filter: what is wrong, and which bytes of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct FilterError {
    pub words: String,
    pub at: Range<usize>,
}

impl FilterError {
    fn new(words: impl Into<String>, at: Range<usize>) -> FilterError {
        FilterError { words: words.into(), at }
    }
}

/// A parsed filter, of no log in particular.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    expr: Expr,
}

impl Filter {
    /// `None`: the text is empty, everything fits.
    pub fn parse(text: &str) -> std::result::Result<Option<Filter>, FilterError> {
        Ok(parse::parse(text)?.map(|expr| Filter { expr }))
    }

    /// Asks what only calls tell.
    pub fn needs_calls(&self) -> bool {
        let mut found = false;
        self.expr.each(&mut |e| {
            found |= matches!(e, Expr::Texts { field, .. } if matches!(FIELDS[*field].get, Get::Func));
        });
        found
    }

    /// Asks what only the tables of events and associations tell.
    pub(crate) fn needs_facts(&self) -> bool {
        let mut found = false;
        self.each_field(&mut |f| found |= ["frame", "capture", "retransmission"].contains(&f.name));
        found
    }

    fn each_field(&self, f: &mut dyn FnMut(&Field)) {
        self.expr.each(&mut |e| match e {
            Expr::Has(i)
            | Expr::Numbers { field: i, .. }
            | Expr::Texts { field: i, .. }
            | Expr::Addresses { field: i, .. } => f(&FIELDS[*i]),
            _ => {}
        });
    }

    /// Columns of the packet table that it looks at.
    pub(crate) fn columns(&self) -> Vec<&'static str> {
        let mut out = vec!["packet_id"];
        self.each_field(&mut |f| out.extend(f.columns));
        self.expr.each(&mut |e| match e {
            Expr::After(_) | Expr::Before(_) => out.extend(["first_ns", "path_ns"]),
            Expr::Mentions(_) => {
                out.extend(["src_addr", "dst_addr", "verdict", "drop_reason", "pid", "last_ns"]);
            }
            _ => {}
        });
        out
    }

    /// Makes it ready for a log. `progress` gets the look-up of functions, if there is one.
    ///
    /// Errors: [`crate::Error::Abandoned`].
    pub fn prepare(&self, store: &Store, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Condition> {
        Ok(Condition { test: compile(&self.expr, store, progress)? })
    }
}

type Test = Box<dyn Fn(&Entry, &Names) -> bool + Send + Sync>;

/// A filter made ready for a log.
pub struct Condition {
    test: Test,
}

impl std::fmt::Debug for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Condition")
    }
}

impl Condition {
    pub fn fits(&self, e: &Entry, names: &Names) -> bool {
        (self.test)(e, names)
    }
}

fn compile(expr: &Expr, store: &Store, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Test> {
    let mut all = |of: &[Expr]| of.iter().map(|e| compile(e, store, progress)).collect::<Result<Vec<Test>>>();
    Ok(match expr {
        Expr::And(of) => {
            let of = all(of)?;
            Box::new(move |e, n| of.iter().all(|t| t(e, n)))
        }
        Expr::Or(of) => {
            let of = all(of)?;
            Box::new(move |e, n| of.iter().any(|t| t(e, n)))
        }
        Expr::Not(inner) => {
            let inner = compile(inner, store, progress)?;
            Box::new(move |e, n| !inner(e, n))
        }
        Expr::Has(field) => match FIELDS[*field].get {
            Get::Flag(f) => Box::new(move |e, _| f(e)),
            Get::Number(f) => Box::new(move |e, n| any(f(e, n), |_| true)),
            Get::Text(f) => Box::new(move |e, n| any(f(e, n), |_| true)),
            Get::Address(f) => Box::new(move |e, _| any(f(e), |_| true)),
            Get::Func => Box::new(|e, _| e.calls > 0),
        },
        Expr::Numbers { field, ranges, none } => numbers(*field, ranges.clone(), *none),
        Expr::Addresses { field, nets, none } => addresses(*field, nets.clone(), *none),
        Expr::Texts { field, like, none } => match FIELDS[*field].get {
            Get::Func => {
                let touched = functions(store, like, progress)?;
                let none = *none;
                Box::new(move |e, _| e.is_packet() && touched.contains(e.id) != none)
            }
            Get::Text(f) => {
                let (like, none) = (like.clone(), *none);
                Box::new(move |e, n| holds(f(e, n), none, |text| like.iter().any(|l| l.fits(text))))
            }
            _ => Box::new(|_, _| false),
        },
        Expr::After(t) => {
            let at = t.in_log(store)?;
            Box::new(move |e, _| e.last_ns() >= at)
        }
        Expr::Before(t) => {
            let at = t.in_log(store)?;
            Box::new(move |e, _| e.first_ns <= at)
        }
        Expr::Mentions(text) => {
            let text = text.clone();
            Box::new(move |e, n| mentions(e, n, &text))
        }
    })
}

fn any<T>(values: fields::Two<T>, fits: impl Fn(T) -> bool) -> bool {
    values.into_iter().flatten().any(fits)
}

/// A value fits; or, `none`, there are values and none fits.
fn holds<T>(values: fields::Two<T>, none: bool, fits: impl Fn(T) -> bool) -> bool {
    let there = values.iter().any(Option::is_some);
    there && any(values, fits) != none
}

fn numbers(field: usize, ranges: Vec<RangeInclusive<i64>>, none: bool) -> Test {
    let Get::Number(f) = FIELDS[field].get else { return Box::new(|_, _| false) };
    Box::new(move |e, n| holds(f(e, n), none, |v| ranges.iter().any(|r| r.contains(&v))))
}

fn addresses(field: usize, nets: Vec<Net>, none: bool) -> Test {
    let Get::Address(f) = FIELDS[field].get else { return Box::new(|_, _| false) };
    Box::new(move |e, _| holds(f(e), none, |a| nets.iter().any(|net| a & net.mask == net.bits)))
}

/// Packets that one of these functions touched.
fn functions(store: &Store, like: &[Like], progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Numbers> {
    store.packets_of_functions(&|name| like.iter().any(|l| l.fits(name)), progress)
}

fn mentions(e: &Entry, names: &Names, text: &str) -> bool {
    let has = |s: &str| s.to_lowercase().contains(text);
    let mut line = Line { bytes: [0; 48], len: 0 };
    // Addresses and verdicts have no upper case, and there are many of them.
    let mut in_addr = |a: std::net::IpAddr| {
        line.len = 0;
        write!(line, "{a}").is_ok() && line.text().contains(text)
    };
    [e.addr(flag::SRC, e.src), e.addr(flag::DST, e.dst)].into_iter().flatten().any(&mut in_addr)
        || (e.is_packet() && verdict::name(i32::from(e.verdict)).contains(text))
        || names.drop_of(e).is_some_and(has)
        || names.process_of(e).is_some_and(has)
}

/// Room for an address as text.
struct Line {
    bytes: [u8; 48],
    len: usize,
}

impl Line {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let end = self.len + s.len();
        self.bytes.get_mut(self.len..end).ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
