//! The filter language: one for the command line, the page and exports. `docs/filter.md` describes it; its fields are
//! listed once, in `fields.rs`.
//!
//! A text is parsed without a log ([`Filter`]), then made ready for one ([`Condition`]): what asks for functions becomes
//! the set of packets that they touched, found by `call_index`, and what asks for applications the ends of all packets
//! ([`crate::ends`]). A condition looks at one row of the [list of packets](crate::catalog) and touches no table.

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
use crate::ends::Ends;
use crate::entry::{Entry, Names, flag};
use crate::error::Result;
use crate::owners::Name;
use crate::store::Store;
use fields::Get;
use kpat_model::hash::{Map, Numbers};
use kpat_store::tables::SocketRow;
use std::fmt::Write as _;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
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

    /// Asks what only calls tell, or the bytes of applications where the log has any.
    pub fn needs_calls(&self, store: &Store) -> bool {
        let has_sockets = store.table::<SocketRow>().is_ok_and(|t| t.rows() > 0);
        let mut found = false;
        self.each_field(&mut |f| {
            found |= match f.get {
                Get::Func | Get::Queued => true,
                _ => f.get.is_of_ends() && has_sockets,
            };
        });
        found
    }

    /// A field that it asks for and that a write does not have.
    pub fn not_of_writes(&self) -> Option<&'static str> {
        let mut found = None;
        self.each_field(&mut |f| found = found.or((!f.of_writes()).then_some(f.name)));
        found
    }

    /// Asks what only the tables of events and associations tell.
    pub(crate) fn needs_facts(&self) -> bool {
        let mut found = false;
        self.each_field(&mut |f| found |= ["frame", "capture", "retransmission"].contains(&f.name));
        found
    }

    fn each_field(&self, f: &mut dyn FnMut(&'static Field)) {
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
                out.extend(["src_addr", "dst_addr", "verdict", "drop_reason", "pid", "last_ns", "message"]);
            }
            _ => {}
        });
        out
    }

    /// Makes it ready for a log. `progress` gets the look-up of functions, if there is one.
    ///
    /// Errors: [`crate::Error::Abandoned`].
    pub fn prepare(&self, store: &Store, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Condition> {
        let (mut of_ends, mut of_queue) = (false, false);
        self.each_field(&mut |f| {
            of_ends |= f.get.is_of_ends();
            of_queue |= matches!(f.get, Get::Queued);
        });
        let ends = if of_ends { store.ends(progress)? } else { Arc::default() };
        let queued = if of_queue { store.queued(progress)? } else { Arc::default() };
        Ok(Condition { test: compile(&self.expr, &About { store, ends, queued }, progress)? })
    }

    /// Makes it ready for what `ends` has in place of the log's packets.
    pub(crate) fn prepare_for(&self, store: &Store, ends: Arc<Ends>) -> Result<Condition> {
        let about = About { store, ends, queued: Arc::default() };
        Ok(Condition { test: compile(&self.expr, &about, &mut |_, _| true)? })
    }
}

/// What conditions are made of besides the row.
struct About<'a> {
    store: &'a Store,
    ends: Arc<Ends>,
    queued: Arc<Map<i64, i64>>,
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

fn compile(expr: &Expr, about: &About<'_>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Test> {
    let mut all = |of: &[Expr]| of.iter().map(|e| compile(e, about, progress)).collect::<Result<Vec<Test>>>();
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
            let inner = compile(inner, about, progress)?;
            Box::new(move |e, n| !inner(e, n))
        }
        Expr::Has(field) => match FIELDS[*field].get {
            Get::Flag(f) => Box::new(move |e, _| f(e)),
            Get::Address(f) => Box::new(move |e, _| any(f(e), |_| true)),
            Get::Func => Box::new(|e, _| e.calls > 0),
            Get::Text(_) | Get::TaskName(_) => texts(*field, about, |_| true, false)?,
            Get::Owner(asked) => owners(asked, about, |_| true, false)?,
            _ => numbers(*field, about, vec![i64::MIN..=i64::MAX], false)?,
        },
        Expr::Numbers { field, ranges, none } => numbers(*field, about, ranges.clone(), *none)?,
        Expr::Addresses { field, nets, none } => addresses(*field, nets.clone(), *none),
        Expr::Texts { field, like, none } => match FIELDS[*field].get {
            Get::Func => {
                let touched = functions(about.store, like, progress)?;
                let none = *none;
                Box::new(move |e, _| e.is_packet() && touched.contains(e.id) != none)
            }
            Get::Owner(asked) => owners(asked, about, |text| like.iter().any(|l| l.fits(text)), *none)?,
            _ => {
                let like = like.clone();
                texts(*field, about, move |text| like.iter().any(|l| l.fits(text)), *none)?
            }
        },
        Expr::After(t) => {
            let at = t.in_log(about.store)?;
            Box::new(move |e, _| e.last_ns() >= at)
        }
        Expr::Before(t) => {
            let at = t.in_log(about.store)?;
            Box::new(move |e, _| e.first_ns <= at)
        }
        Expr::Mentions(text) => {
            let text = text.clone();
            Box::new(move |e, n| mentions(e, n, &text))
        }
    })
}

fn any<T, const N: usize>(values: [Option<T>; N], fits: impl Fn(T) -> bool) -> bool {
    values.into_iter().flatten().any(fits)
}

/// A value fits; or, `none`, there are values and none fits.
fn holds<T>(values: impl IntoIterator<Item = Option<T>>, none: bool, fits: impl Fn(T) -> bool) -> bool {
    let mut there = false;
    let any = values.into_iter().flatten().inspect(|_| there = true).any(fits);
    there && any != none
}

fn numbers(field: usize, about: &About<'_>, ranges: Vec<RangeInclusive<i64>>, none: bool) -> Result<Test> {
    let fits = move |v| ranges.iter().any(|r| r.contains(&v));
    Ok(match FIELDS[field].get {
        Get::Number(f) => Box::new(move |e, n| holds(f(e, n), none, &fits)),
        Get::Task(task) => {
            let (ends, known) = (Arc::clone(&about.ends), about.store.owners()?);
            Box::new(move |e, _| {
                let process = |pid| known.threads.process(pid, e.last_ns());
                let both = |pid: Option<i32>| [pid, pid.map(process)];
                let of_ends = ends.all_of(e.id).flat_map(|b| task.of_ends(&b)).flatten().map(|end| end.pid);
                let pids = std::iter::once(task.of_row(e)).chain(of_ends);
                holds(pids.flat_map(both).map(|n| n.map(i64::from)), none, &fits)
            })
        }
        Get::NumberOfEnds(f) => {
            let ends = Arc::clone(&about.ends);
            Box::new(move |e, _| holds(ends.all_of(e.id).flat_map(|b| f(&b, &ends)), none, &fits))
        }
        Get::Queued => {
            let queued = Arc::clone(&about.queued);
            Box::new(move |e, _| holds([queued.get(&e.id).copied()], none, &fits))
        }
        _ => Box::new(|_, _| false),
    })
}

fn texts(
    field: usize,
    about: &About<'_>,
    fits: impl Fn(&str) -> bool + Send + Sync + 'static,
    none: bool,
) -> Result<Test> {
    Ok(match FIELDS[field].get {
        Get::Text(f) => Box::new(move |e, n| holds(f(e, n), none, &fits)),
        Get::TaskName(task) => {
            let (ends, known) = (Arc::clone(&about.ends), about.store.owners()?);
            Box::new(move |e, n| {
                let process = |pid: Option<i32>| known.threads.name_of_process(pid?, e.last_ns());
                let own = task.of_row(e);
                let of_row = [own.and_then(|_| n.process_of(e)), process(own)];
                let all = ends.all_of(e.id).flat_map(|b| task.of_ends(&b)).flatten();
                let of_ends = all.flat_map(|end| [ends.process(&end), process(end.pid)]);
                holds(of_row.into_iter().chain(of_ends), none, &fits)
            })
        }
        _ => Box::new(|_, _| false),
    })
}

/// There are few different owners: which of them fit is known before the first packet is asked.
fn owners(asked: Name, about: &About<'_>, fits: impl Fn(&str) -> bool, none: bool) -> Result<Test> {
    let known = about.store.owners()?;
    let names: Vec<[Option<String>; 2]> = known.owners.all.iter().map(|o| o.names(asked)).collect();
    let there: Vec<bool> = names.iter().map(|n| n.iter().any(Option::is_some)).collect();
    let fitting: Vec<bool> = names.iter().map(|n| n.iter().flatten().any(|n| fits(n))).collect();
    let ends = Arc::clone(&about.ends);
    Ok(Box::new(move |e, _| {
        let pid = e.has(flag::PID).then_some(e.pid);
        let of_it = |both| known.owners.of_packet(&known.threads, pid, &both, &ends, e.last_ns());
        let any = |of: &[bool]| ends.all_of(e.id).flat_map(of_it).flatten().any(|place| of[place as usize]);
        any(&there) && any(&fitting) != none
    }))
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
        || names.message_of(e).is_some_and(has)
        || names.link_of(e).is_some_and(|ends| ends.into_iter().any(has))
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
