//! A block of names and values; long values go on under themselves.

use super::{Line, Style, count};

#[derive(Default)]
pub struct Pairs {
    rows: Vec<(String, Line)>,
}

impl Pairs {
    pub fn new() -> Pairs {
        Pairs::default()
    }

    pub fn add(&mut self, name: &str, value: impl AsRef<str>) {
        if !value.as_ref().is_empty() {
            self.line(name, Line::new().plain(value));
        }
    }

    pub fn line(&mut self, name: &str, value: Line) {
        self.rows.push((name.to_owned(), value));
    }

    /// One in a line. A recorder writes a few; a log of a stranger may have any number.
    pub fn each(&mut self, name: &str, all: impl ExactSizeIterator<Item = String>) {
        const MOST: usize = 12;
        let more = all.len().saturating_sub(MOST);
        for (i, text) in all.take(MOST).enumerate() {
            self.line(if i == 0 { name } else { "" }, Line::new().plain(text));
        }
        if more > 0 {
            self.line("", Line::new().faint(format!("and {} more: --json lists all", count(more as u64))));
        }
    }

    pub fn render(&self, width: usize) -> Vec<Line> {
        let names = self.rows.iter().map(|(n, _)| n.chars().count()).max().unwrap_or(0);
        let room = if width == 0 { usize::MAX } else { width.saturating_sub(names + 2).max(20) };
        let mut lines = Vec::new();
        for (name, value) in &self.rows {
            for (i, part) in wrap(value, room).into_iter().enumerate() {
                let mut line = Line::of(if i == 0 { name } else { "" }, Style::Faint).pad_to(names + 2);
                line.append(part);
                lines.push(line);
            }
        }
        lines
    }
}

/// Breaks a line at spaces; a word that is too long stays whole.
pub fn wrap(line: &Line, room: usize) -> Vec<Line> {
    if line.width() <= room {
        return vec![line.clone()];
    }
    let mut lines = vec![Line::new()];
    for (text, style) in line.spans() {
        for word in text.split_inclusive(' ') {
            let len = word.trim_end().chars().count();
            if let Some(last) = lines.last_mut() {
                if last.width() > 0 && last.width() + len > room {
                    lines.push(Line::of(word, style));
                } else {
                    last.push(word, style);
                }
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_go_on_under_themselves() {
        let mut p = Pairs::new();
        p.add("a", "one two three four five six seven");
        p.add("long", "x");
        p.add("none", "");
        let text: Vec<String> = p.render(26).iter().map(|l| l.paint(false)).collect();
        assert_eq!(text, ["a     one two three four", "      five six seven", "long  x"]);
    }

    #[test]
    fn of_many_the_first_are_listed() {
        let of = |n: usize| {
            let mut p = Pairs::new();
            p.each("a", (0..n).map(|i| (i + 1).to_string()));
            p.render(0).iter().map(|l| l.paint(false)).collect::<Vec<_>>()
        };
        assert_eq!(of(2), ["a  1", "   2"]);
        assert_eq!(of(12).last().map(String::as_str), Some("   12"));
        let many = of(4_000);
        assert_eq!((many.len(), many[12].as_str()), (13, "   and 3,988 more: --json lists all"));
    }
}
