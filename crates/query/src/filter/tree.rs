//! What a filter means, before a log is known.

use super::when::When;
use std::ops::RangeInclusive;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Number,
    /// Nanoseconds, written with a unit.
    Duration,
    Text,
    Address,
    /// One of a few words.
    Word,
    /// Holds or does not.
    Flag,
}

/// A condition. `field` is a place in [`super::FIELDS`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    /// The flag is set, or the field has a value.
    Has(usize),
    /// A value lies in one of these; `none`: it has values, and none does.
    Numbers {
        field: usize,
        ranges: Vec<RangeInclusive<i64>>,
        none: bool,
    },
    Texts {
        field: usize,
        like: Vec<Like>,
        none: bool,
    },
    Addresses {
        field: usize,
        nets: Vec<Net>,
        none: bool,
    },
    /// Alive at or after this time since the start of the log.
    After(When),
    Before(When),
    /// Occurs in an address, the verdict, the drop reason, the process or the message, whatever the case.
    Mentions(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Like {
    Is(String),
    /// Lower case.
    Contains(String),
    Glob(String),
}

/// Addresses that have these bits; IPv4 as mapped into IPv6.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Net {
    pub bits: u128,
    pub mask: u128,
}

impl Like {
    pub fn fits(&self, text: &str) -> bool {
        match self {
            Like::Is(want) => text == want,
            Like::Contains(part) => text.to_lowercase().contains(part.as_str()),
            Like::Glob(glob) => crate::names::glob_fits(glob, text),
        }
    }
}

impl Expr {
    /// Calls `f` with this and everything below.
    pub fn each(&self, f: &mut dyn FnMut(&Expr)) {
        f(self);
        match self {
            Expr::And(of) | Expr::Or(of) => of.iter().for_each(|e| e.each(f)),
            Expr::Not(e) => e.each(f),
            _ => {}
        }
    }
}
