//! A block of names and values; long values go on under themselves.

use super::{Line, Style};

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
}
