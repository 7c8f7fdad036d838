//! Styled text. Colour is never the only carrier of a meaning: everything reads the same without it.

use kpat_text::clean;
use std::fmt::Write as _;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    #[default]
    Plain,
    /// Headings, names that were asked for.
    Strong,
    /// Rulers, units, what is only context.
    Faint,
    /// Complete, matched.
    Good,
    /// Waiting, uncertain.
    Warn,
    /// Dropped, lost.
    Bad,
    /// Seen on the wire.
    Wire,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "",
            Style::Strong => "1",
            Style::Faint => "2",
            Style::Good => "32",
            Style::Warn => "33",
            Style::Bad => "1;31",
            Style::Wire => "36",
        }
    }
}

/// One line of spans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    spans: Vec<(String, Style)>,
    width: usize,
}

impl Line {
    pub fn new() -> Line {
        Line::default()
    }

    pub fn of(text: impl AsRef<str>, style: Style) -> Line {
        Line::new().put(text, style)
    }

    #[must_use]
    pub fn put(mut self, text: impl AsRef<str>, style: Style) -> Line {
        self.push(text, style);
        self
    }

    #[must_use]
    pub fn plain(self, text: impl AsRef<str>) -> Line {
        self.put(text, Style::Plain)
    }

    #[must_use]
    pub fn faint(self, text: impl AsRef<str>) -> Line {
        self.put(text, Style::Faint)
    }

    pub fn push(&mut self, text: impl AsRef<str>, style: Style) {
        let text = clean(text.as_ref());
        self.width += text.chars().count();
        self.spans.push((text, style));
    }

    pub fn append(&mut self, other: Line) {
        self.width += other.width;
        self.spans.extend(other.spans);
    }

    /// Spaces up to a column.
    #[must_use]
    pub fn pad_to(mut self, column: usize) -> Line {
        if self.width < column {
            self.push(" ".repeat(column - self.width), Style::Plain);
        }
        self
    }

    pub fn spans(&self) -> impl Iterator<Item = (&str, Style)> {
        self.spans.iter().map(|(text, style)| (text.as_str(), *style))
    }

    /// In characters.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The text, trailing spaces cut. A no-break space keeps words together when a line is broken; it is a space here.
    pub fn paint(&self, color: bool) -> String {
        let last = self.spans.iter().rposition(|(t, _)| !t.trim_end().is_empty());
        let Some(last) = last else { return String::new() };
        let mut out = String::new();
        for (i, (text, style)) in self.spans[..=last].iter().enumerate() {
            let text = if i == last { text.trim_end() } else { text };
            let text = text.replace('\u{a0}', " ");
            if color && *style != Style::Plain && !text.trim().is_empty() {
                let _ = write!(out, "\x1b[{}m{text}\x1b[0m", style.code());
            } else {
                out.push_str(&text);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_adds_nothing_but_colour() {
        let line = Line::of("a", Style::Strong).plain(" b ").faint("  ");
        assert_eq!(line.paint(false), "a b");
        assert_eq!(line.paint(true), "\x1b[1ma\x1b[0m b");
        assert_eq!(line.width(), 6);
    }

    #[test]
    fn a_hostile_name_does_not_reach_the_terminal() {
        assert_eq!(
            Line::of("x\x1b]0;pwn\x07\n\u{202e}y", Style::Plain).paint(false),
            "x\\x1b]0;pwn\\x07 \\x202ey"
        );
    }
}
