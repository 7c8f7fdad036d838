//! From words to meaning. `or` binds least, then `and` (which may be left out), then `not`.

use super::FilterError;
use super::duration::parse_duration;
use super::fields::{FIELDS, Field, Get};
use super::token::{Sign, Token, What, tokens};
use super::tree::{Expr, Kind, Like, Net};
use super::when::When;
use crate::entry::mapped;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};

/// No reasonable filter is nested more deeply.
const DEEPEST: usize = 64;

pub(super) fn parse(text: &str) -> Result<Option<Expr>, FilterError> {
    let mut p = Parser { tokens: tokens(text)?, at: 0, end: text.len(), depth: 0 };
    if p.tokens.is_empty() {
        return Ok(None);
    }
    let expr = p.or()?;
    match p.tokens.get(p.at) {
        None => Ok(Some(expr)),
        Some(t) if t.what == What::Sign(Sign::Close) => {
            Err(FilterError::new("no `(` for this `)`", t.at.clone()))
        }
        Some(t) => Err(FilterError::new("not expected here", t.at.clone())),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    end: usize,
    depth: usize,
}

/// How a field's value is compared.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Compare(Sign),
    Contains,
    Matches,
    /// No sign between field and value.
    Beside,
}

impl Parser {
    fn peek(&self) -> Option<&What> {
        self.tokens.get(self.at).map(|t| &t.what)
    }

    fn word(&self) -> Option<&str> {
        match self.peek() {
            Some(What::Word(w)) => Some(w),
            _ => None,
        }
    }

    fn here(&self) -> Range<usize> {
        self.tokens.get(self.at).map_or(self.end..self.end, |t| t.at.clone())
    }

    fn take_sign(&mut self, sign: Sign) -> bool {
        let found = self.peek() == Some(&What::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.word() == Some(word);
        self.at += usize::from(found);
        found
    }

    fn or(&mut self) -> Result<Expr, FilterError> {
        let mut of = vec![self.and()?];
        while self.take_word("or") || self.take_sign(Sign::Or) {
            of.push(self.and()?);
        }
        Ok(if of.len() == 1 { of.remove(0) } else { Expr::Or(of) })
    }

    fn and(&mut self) -> Result<Expr, FilterError> {
        let mut of = vec![self.not()?];
        loop {
            let reported = self.take_word("and") || self.take_sign(Sign::And);
            let over = matches!(self.peek(), None | Some(What::Sign(Sign::Close | Sign::Or)))
                || self.word() == Some("or");
            if over && !reported {
                break;
            }
            of.push(self.not()?);
        }
        Ok(if of.len() == 1 { of.remove(0) } else { Expr::And(of) })
    }

    fn not(&mut self) -> Result<Expr, FilterError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(FilterError::new("nested too deeply", self.here()));
        }
        let expr = if self.take_word("not") || self.take_sign(Sign::Not) {
            Expr::Not(Box::new(self.not()?))
        } else if self.peek() == Some(&What::Sign(Sign::Open)) {
            let open = self.here();
            self.at += 1;
            let inner = self.or()?;
            if !self.take_sign(Sign::Close) {
                return Err(FilterError::new("this `(` is not closed", open));
            }
            inner
        } else {
            self.test()?
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn test(&mut self) -> Result<Expr, FilterError> {
        let at = self.here();
        let word = match self.peek() {
            None => return Err(FilterError::new("a condition is missing here", at)),
            Some(What::Sign(_)) => return Err(FilterError::new("a condition is expected here", at)),
            Some(What::Quoted(text)) => {
                let expr = Expr::Mentions(text.to_lowercase());
                self.at += 1;
                return Ok(expr);
            }
            Some(What::Word(w)) => w.clone(),
        };
        self.at += 1;
        match word.as_str() {
            "no" if self.take_word("wire") => {
                let wire = Field::find("wire").unwrap_or(0);
                return Ok(Expr::Not(Box::new(Expr::Has(wire))));
            }
            "no" => return Err(FilterError::new("only `no wire` is known; else write `not`", at)),
            "after" => return Ok(Expr::After(self.moment("after")?)),
            "before" => return Ok(Expr::Before(self.moment("before")?)),
            _ => {}
        }
        let Some(field) = Field::find(&word) else {
            let near = nearest(&word);
            let hint = near.map_or_else(
                || "; text to look for goes in quotes".to_owned(),
                |n| format!("; did you mean `{n}`?"),
            );
            return Err(FilterError::new(format!("`{word}` is not a condition{hint}"), at));
        };
        self.field(field, &word, at)
    }

    fn moment(&mut self, what: &str) -> Result<When, FilterError> {
        let (text, at) = self.value(what)?;
        When::parse(&text).map_err(|e| FilterError::new(e, at))
    }

    /// The next word or quoted text.
    fn value(&mut self, of: &str) -> Result<(String, Range<usize>), FilterError> {
        let at = self.here();
        match self.peek() {
            Some(What::Word(w) | What::Quoted(w)) => {
                let w = w.clone();
                self.at += 1;
                Ok((w, at))
            }
            _ => Err(FilterError::new(format!("`{of}` needs a value here"), at)),
        }
    }

    fn field(&mut self, field: usize, name: &str, at: Range<usize>) -> Result<Expr, FilterError> {
        let f = &FIELDS[field];
        if f.kind == Kind::Flag {
            // `tcp == 1` is no condition: a flag stands alone.
            return Ok(Expr::Has(field));
        }
        if self.take_word("in") {
            return self.set(field, name);
        }
        let how = match self.peek() {
            Some(What::Sign(
                s @ (Sign::Equal
                | Sign::NotEqual
                | Sign::Less
                | Sign::LessEqual
                | Sign::More
                | Sign::MoreEqual),
            )) => How::Compare(*s),
            Some(What::Word(w)) if w == "contains" => How::Contains,
            Some(What::Word(w)) if w == "matches" => How::Matches,
            // What follows could be its value, or the next condition.
            Some(What::Word(w))
                if w != "and" && w != "or" && Field::find(w).is_none_or(|_| f.word(w).is_some()) =>
            {
                How::Beside
            }
            Some(What::Quoted(_)) => How::Beside,
            _ => {
                return if matches!(f.get, Get::Func) {
                    Err(FilterError::new("`func` needs the name of a function, or a glob", at))
                } else {
                    Ok(Expr::Has(field))
                };
            }
        };
        self.at += usize::from(how != How::Beside);
        let sign_at = self.tokens[self.at - 1].at.clone();
        let (text, at) = self.value(name)?;
        let one = [(text, at)];
        match f.kind {
            Kind::Text => texts(field, how, &one, sign_at),
            _ if matches!(how, How::Contains | How::Matches) => {
                Err(FilterError::new(format!("`{name}` is no text; compare it with =="), sign_at))
            }
            Kind::Address => addresses(field, how, &one, sign_at),
            _ => numbers(field, how, &one),
        }
    }

    /// `in {a, b..c}`
    fn set(&mut self, field: usize, name: &str) -> Result<Expr, FilterError> {
        let open = self.here();
        if !self.take_sign(Sign::SetOpen) {
            return Err(FilterError::new("a set in braces is expected here, as {80, 443}", open));
        }
        let mut of = Vec::new();
        while !self.take_sign(Sign::SetClose) {
            if self.peek().is_none() {
                return Err(FilterError::new("this `{` is not closed", open));
            }
            of.push(self.value(name)?);
            self.take_sign(Sign::Comma);
        }
        if of.is_empty() {
            return Err(FilterError::new("this set is empty", open));
        }
        match FIELDS[field].kind {
            Kind::Text => texts(field, How::Beside, &of, open),
            Kind::Address => addresses(field, How::Beside, &of, open),
            _ => numbers(field, How::Beside, &of),
        }
    }
}

type Values<'a> = &'a [(String, Range<usize>)];

fn texts(field: usize, how: How, values: Values<'_>, sign: Range<usize>) -> Result<Expr, FilterError> {
    let func = matches!(FIELDS[field].get, Get::Func);
    let like = |text: &str| match how {
        How::Contains => Like::Contains(text.to_lowercase()),
        How::Matches => Like::Glob(text.to_owned()),
        _ if func || (how == How::Beside && text.contains(['*', '?'])) => Like::Glob(text.to_owned()),
        _ => Like::Is(text.to_owned()),
    };
    let none = match how {
        How::Compare(Sign::Equal) | How::Contains | How::Matches | How::Beside => false,
        How::Compare(Sign::NotEqual) => true,
        How::Compare(_) => {
            return Err(FilterError::new("text has no order; use ==, !=, contains or matches", sign));
        }
    };
    Ok(Expr::Texts { field, like: values.iter().map(|v| like(&v.0)).collect(), none })
}

fn addresses(field: usize, how: How, values: Values<'_>, sign: Range<usize>) -> Result<Expr, FilterError> {
    let none = match how {
        How::Compare(Sign::Equal) | How::Beside => false,
        How::Compare(Sign::NotEqual) => true,
        _ => return Err(FilterError::new("addresses have no order; use ==, != or in", sign)),
    };
    let nets = values.iter().map(|(text, at)| net(text, at)).collect::<Result<_, _>>()?;
    Ok(Expr::Addresses { field, nets, none })
}

fn net(text: &str, at: &Range<usize>) -> Result<Net, FilterError> {
    let wrong = || FilterError::new(format!("`{text}` is not an IP address or network"), at.clone());
    let (addr, len) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
    let (most, before) = if addr.is_ipv4() { (32, 96) } else { (128, 0) };
    let len: u32 = len.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
    if len > most {
        return Err(FilterError::new(format!("a network of /{len} is none"), at.clone()));
    }
    let mask = u128::MAX.checked_shl(128 - before - len).unwrap_or(0);
    Ok(Net { bits: mapped(addr) & mask, mask })
}

fn numbers(field: usize, how: How, values: Values<'_>) -> Result<Expr, FilterError> {
    let mut ranges: Vec<RangeInclusive<i64>> = Vec::new();
    for (text, at) in values {
        let value = |text: &str| number(&FIELDS[field], text, at);
        if let Some((from, to)) = text.split_once("..").filter(|_| how == How::Beside) {
            ranges.push(value(from)?..=value(to)?);
            continue;
        }
        let n = value(text)?;
        ranges.push(match how {
            How::Compare(Sign::Less) => i64::MIN..=n.saturating_sub(1),
            How::Compare(Sign::LessEqual) => i64::MIN..=n,
            How::Compare(Sign::More) => n.saturating_add(1)..=i64::MAX,
            How::Compare(Sign::MoreEqual) => n..=i64::MAX,
            _ => n..=n,
        });
    }
    Ok(Expr::Numbers { field, ranges, none: how == How::Compare(Sign::NotEqual) })
}

fn number(f: &Field, text: &str, at: &Range<usize>) -> Result<i64, FilterError> {
    if f.kind == Kind::Duration {
        return parse_duration(text).map_err(|e| FilterError::new(e, at.clone()));
    }
    if let Some(code) = f.word(text) {
        return Ok(code);
    }
    let plain = text.strip_suffix('%').filter(|_| f.name == "confidence").unwrap_or(text);
    let parsed = match plain.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => plain.parse().ok(),
    };
    let bound = if f.name.starts_with("port") { 0..=65_535 } else { i64::MIN..=i64::MAX };
    match parsed.filter(|n| bound.contains(n)) {
        Some(n) => Ok(n),
        None if f.kind == Kind::Word => Err(FilterError::new(
            format!("`{text}` is no {}: use {}", f.name, f.values().join(", ")),
            at.clone(),
        )),
        None if f.name.starts_with("port") => {
            Err(FilterError::new(format!("`{text}` is not a port"), at.clone()))
        }
        None => Err(FilterError::new(format!("`{text}` is not a number"), at.clone())),
    }
}

/// A field that may have been meant.
fn nearest(word: &str) -> Option<&'static str> {
    crate::names::nearest(word, FIELDS.iter().flat_map(|f| std::iter::once(&f.name).chain(f.also)).copied())
}
