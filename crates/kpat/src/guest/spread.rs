//! How the values of many hits are spread: numbers by powers of two, texts each by itself.

use crate::render::{Line, Style, count};
use kpat_guest::probe::spec::Shown;
use kpat_text::clean;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Different texts that are kept; hits with others are counted together.
const TEXTS: usize = 1000;
/// Lines for texts.
const SHOWN: usize = 20;
const BAR: u64 = 40;

#[derive(Clone, Debug, Default)]
pub struct Spread {
    /// By the lowest number of the range: 0, 1, 2, 4 ... and the same below zero.
    numbers: BTreeMap<i128, u64>,
    texts: BTreeMap<String, u64>,
    other_texts: u64,
    unread: u64,
}

impl Spread {
    pub fn add(&mut self, value: &Shown) {
        match value {
            Shown::Number(n) => *self.numbers.entry(floor(*n)).or_default() += 1,
            Shown::Hex(n) => *self.numbers.entry(floor((*n).into())).or_default() += 1,
            Shown::Text(t) if self.texts.len() < TEXTS || self.texts.contains_key(t) => {
                *self.texts.entry(t.clone()).or_default() += 1;
            }
            Shown::Text(_) => self.other_texts += 1,
            Shown::Unread => self.unread += 1,
        }
    }

    /// Texts, the most frequent first.
    fn ranked(&self) -> Vec<(&String, u64)> {
        let mut all: Vec<(&String, u64)> = self.texts.iter().map(|(t, n)| (t, *n)).collect();
        all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        all
    }

    pub fn value(&self) -> Value {
        let number = |n: i128| i64::try_from(n).map_or_else(|_| Value::from(n as u64), Value::from);
        json!({
            "numbers": self.numbers.iter().map(|(from, n)| json!({"from": number(*from), "to": number(to(*from)), "hits": n})).collect::<Vec<_>>(),
            "texts": self.ranked().iter().map(|(t, n)| json!({"text": t, "hits": n})).collect::<Vec<_>>(),
            "other_texts": self.other_texts,
            "unread": self.unread,
        })
    }

    /// For a terminal; nothing of a value that no hit had.
    pub fn lines(&self, title: &str) -> Vec<Line> {
        let mut rows: Vec<(String, u64)> =
            self.numbers.iter().map(|(from, n)| (range(*from, to(*from)), *n)).collect();
        let texts = self.ranked();
        rows.extend(texts.iter().take(SHOWN).map(|(t, n)| (format!("\"{}\"", clean(t)), *n)));
        let rest: u64 = texts.iter().skip(SHOWN).map(|(_, n)| n).sum::<u64>() + self.other_texts;
        rows.extend((rest > 0).then(|| ("other texts".into(), rest)));
        rows.extend((self.unread > 0).then(|| ("? (not readable)".into(), self.unread)));
        let Some(most) = rows.iter().map(|(_, n)| *n).max() else { return Vec::new() };
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        let mut lines = vec![Line::new().put(title, Style::Strong)];
        lines.extend(rows.iter().map(|(name, n)| {
            let pad = " ".repeat(width - name.chars().count());
            Line::new()
                .plain(format!("  {pad}{name} {:>10}  ", count(*n)))
                .put("#".repeat((n * BAR).div_ceil(most) as usize), Style::Strong)
        }));
        lines
    }
}

/// Of the range that a number is in: the one nearest to zero.
fn floor(n: i128) -> i128 {
    if n == 0 { 0 } else { (1i128 << n.unsigned_abs().ilog2()) * n.signum() }
}

fn to(from: i128) -> i128 {
    if from == 0 { 0 } else { from * 2 - from.signum() }
}

fn range(from: i128, to: i128) -> String {
    if from == to { from.to_string() } else { format!("{from} to {to}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_ranges_that_double_and_texts_are_counted() {
        let mut s = Spread::default();
        for n in [0, 1, 2, 3, 4, 7, 8, -1, -2, -13] {
            s.add(&Shown::Number(n));
        }
        s.add(&Shown::Hex(u64::MAX));
        for t in ["b", "a", "b"] {
            s.add(&Shown::Text(t.into()));
        }
        s.add(&Shown::Unread);
        let ranges: Vec<(i128, i128, u64)> = s.numbers.iter().map(|(f, n)| (*f, to(*f), *n)).collect();
        assert_eq!(
            ranges,
            [
                (-8, -15, 1),
                (-2, -3, 1),
                (-1, -1, 1),
                (0, 0, 1),
                (1, 1, 1),
                (2, 3, 2),
                (4, 7, 2),
                (8, 15, 1),
                (1 << 63, u64::MAX.into(), 1)
            ]
        );
        let v = s.value();
        assert_eq!(v["texts"], json!([{"text": "b", "hits": 2}, {"text": "a", "hits": 1}]));
        assert_eq!((v["unread"].clone(), v["other_texts"].clone()), (1.into(), 0.into()));
        assert_eq!(s.lines("v").len(), 1 + 9 + 2 + 1);
    }

    #[test]
    fn there_is_an_end_to_texts() {
        let mut s = Spread::default();
        (0..TEXTS + 5).for_each(|n| s.add(&Shown::Text(n.to_string())));
        assert_eq!((s.texts.len(), s.other_texts), (TEXTS, 5));
    }
}
