//! Tables that fit: when the terminal is narrow, first long names are shortened in the middle, then the columns that
//! matter least are left out, and the caller learns which.

use super::{Line, Style, shorten};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub head: &'static str,
    pub align: Align,
    /// 0: always shown; of the others the largest goes first.
    pub rank: u8,
    /// May be shortened to this many characters; 0: never.
    pub least: usize,
}

impl Column {
    pub const fn left(head: &'static str, rank: u8, least: usize) -> Column {
        Column { head, align: Align::Left, rank, least }
    }

    pub const fn right(head: &'static str, rank: u8) -> Column {
        Column { head, align: Align::Right, rank, least: 0 }
    }
}

pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Style)>>,
    /// The columns were asked for: each is shown, in its place.
    chosen: bool,
}

const GAP: usize = 2;
/// So many names may be a set of which each has to be known from the others.
const FEW: usize = 16;

/// The end of a text, of at most so many characters.
fn ending(text: &str, most: usize) -> String {
    let len = text.chars().count();
    if len <= most {
        return text.to_owned();
    }
    let mark = if most > 0 { "…" } else { "" };
    format!("{mark}{}", text.chars().skip(len - most.saturating_sub(1)).collect::<String>())
}

impl Table {
    pub fn new(columns: &[Column]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new(), chosen: false }
    }

    /// The same with these columns only, in this order. A name is the head, or its first word where no other head begins with it.
    ///
    /// Errors: words.
    pub fn choose(self, names: &[String]) -> Result<Table, String> {
        let plain = |text: &str| text.trim().to_lowercase().replace(['-', '_'], " ");
        let places = names.iter().map(|name| {
            let wanted = plain(name);
            let heads = || self.columns.iter().map(|c| plain(c.head)).enumerate();
            let whole = heads().find(|(_, h)| *h == wanted).map(|(i, _)| i);
            let mut first = heads().filter(|(_, h)| h.split(' ').next() == Some(&wanted)).map(|(i, _)| i);
            whole.or_else(|| first.next().filter(|_| first.next().is_none())).ok_or_else(|| {
                let all: Vec<&str> =
                    self.columns.iter().map(|c| c.head.trim()).filter(|h| !h.is_empty()).collect();
                format!("--columns {name}: there is no such column; there are {}", all.join(","))
            })
        });
        let places: Vec<usize> = places.collect::<Result<_, _>>()?;
        let of = |row: &Vec<(String, Style)>| places.iter().map(|&c| row[c].clone()).collect();
        let columns = places.iter().map(|&c| Column { rank: 0, ..self.columns[c] }).collect();
        Ok(Table { columns, rows: self.rows.iter().map(of).collect(), chosen: true })
    }

    pub fn row(&mut self, cells: Vec<(String, Style)>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The lines, and the heads of the columns for which there was no room. `width` 0: as wide as needed.
    pub fn render(&self, width: usize) -> (Vec<Line>, Vec<&'static str>) {
        let mut layout = self.layout(width, false);
        let mut lines = vec![self.head(&layout)];
        lines.extend(self.body(&mut layout));
        (lines, layout.hidden)
    }

    /// How wide the columns are for the rows so far. `more` rows may follow: a column that is empty so far stays.
    pub fn layout(&self, width: usize, more: bool) -> Layout {
        let natural: Vec<usize> = (0..self.columns.len())
            .map(|c| {
                let cells = self.rows.iter().map(|r| len(&r[c].0)).max().unwrap_or(0);
                let empty = cells == 0 && !self.rows.is_empty() && !more && !self.chosen;
                if empty { 0 } else { cells.max(len(self.columns[c].head)) }
            })
            .collect();
        // A column without any content says nothing.
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(|&c| natural[c] > 0).collect();
        let mut hidden = Vec::new();
        let least = |c: usize| match self.columns[c].least {
            0 => natural[c],
            n => natural[c].min(n.max(len(self.columns[c].head))),
        };
        let total = |shown: &[usize], of: &dyn Fn(usize) -> usize| -> usize {
            shown.iter().map(|&c| of(c) + GAP).sum::<usize>().saturating_sub(GAP)
        };
        if width > 0 {
            while total(&shown, &least) > width {
                let worst = shown.iter().copied().filter(|&c| self.columns[c].rank > 0);
                let Some(worst) = worst.max_by_key(|&c| (self.columns[c].rank, c)) else { break };
                shown.retain(|&c| c != worst);
                hidden.push(self.columns[worst].head);
            }
        }
        hidden.reverse();
        // What is left goes to the shortened columns in turn.
        let mut widths: Vec<usize> = (0..natural.len()).map(least).collect();
        let mut room = match width {
            0 => usize::MAX,
            _ => width.saturating_sub(total(&shown, &least)),
        };
        loop {
            let before = room;
            for &c in &shown {
                if widths[c] < natural[c] && room > 0 {
                    widths[c] += 1;
                    room -= 1;
                }
            }
            if before == room {
                break;
            }
        }
        let by_end =
            (0..natural.len()).map(|c| widths[c] < natural[c] && self.ends_differ(c, widths[c])).collect();
        Layout { shown, widths, by_end, limit: width, hidden }
    }

    /// Would this column's few names (captures, devices) look alike without their middle, and less so without their beginning?
    fn ends_differ(&self, column: usize, width: usize) -> bool {
        let mut names = BTreeSet::new();
        for row in &self.rows {
            names.insert(super::clean(&row[column].0));
            if names.len() > FEW {
                return false;
            }
        }
        let apart = |cut: fn(&str, usize) -> String| {
            names.iter().map(|n| cut(n, width)).collect::<BTreeSet<String>>().len()
        };
        apart(shorten) < apart(ending)
    }

    pub fn head(&self, layout: &Layout) -> Line {
        let heads: Vec<(String, Style)> =
            self.columns.iter().map(|c| (c.head.to_owned(), Style::Faint)).collect();
        self.line(layout, &heads)
    }

    /// The rows as lines. A row that needs more room than the layout knows of widens it from there on.
    pub fn body(&self, layout: &mut Layout) -> Vec<Line> {
        let mut lines = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            for i in 0..layout.shown.len() {
                let c = layout.shown[i];
                let needs = len(&row[c].0);
                // What may be shortened is, on a terminal.
                if needs > layout.widths[c] && (layout.limit == 0 || self.columns[c].least == 0) {
                    layout.widths[c] = needs;
                }
            }
            lines.push(self.line(layout, row));
        }
        lines
    }

    fn line(&self, layout: &Layout, row: &[(String, Style)]) -> Line {
        let mut line = Line::new();
        for (i, &c) in layout.shown.iter().enumerate() {
            let cut = if layout.by_end[c] { ending } else { shorten };
            let text = cut(&super::clean(&row[c].0), layout.widths[c]);
            let fill = " ".repeat(layout.widths[c] - text.chars().count());
            let gap = if i == 0 { "" } else { "  " };
            line = match self.columns[c].align {
                Align::Left => line.plain(gap).put(text, row[c].1).plain(fill),
                Align::Right => line.plain(gap).plain(fill).put(text, row[c].1),
            };
        }
        line
    }
}

/// How wide the columns are, and which are shown.
pub struct Layout {
    shown: Vec<usize>,
    widths: Vec<usize>,
    /// Shortened at the beginning and not in the middle.
    by_end: Vec<bool>,
    limit: usize,
    /// Heads of the columns for which there was no room.
    pub hidden: Vec<&'static str>,
}

fn len(text: &str) -> usize {
    super::clean(text).chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut t = Table::new(&[
            Column::right("id", 0),
            Column::left("name", 0, 8),
            Column::left("note", 2, 0),
            Column::right("calls", 1),
            Column::left("empty", 0, 0),
        ]);
        for (id, name) in [("1", "__netif_receive_skb_core"), ("12", "ip_rcv")] {
            let cells = [id, name, "seldom needed", "7", ""];
            t.row(cells.map(|c| (c.to_owned(), Style::Plain)).into());
        }
        t
    }

    #[test]
    fn names_that_differ_at_the_end_stay_apart() {
        let mut t = Table::new(&[Column::left("capture", 0, 8), Column::right("frame", 0)]);
        for name in ["office.rt-wan0.pcapng", "office.rt-wan1.pcapng"] {
            t.row([name, "7"].map(|c| (c.to_owned(), Style::Plain)).into());
        }
        let whole = |l: &Line| l.spans().map(|(text, _)| text).collect::<String>();
        let lines: Vec<String> = t.render(20).0.iter().map(whole).collect();
        assert_eq!(lines, ["capture        frame", "…-wan0.pcapng      7", "…-wan1.pcapng      7"]);
    }

    fn text(width: usize) -> (String, Vec<&'static str>) {
        let (lines, hidden) = sample().render(width);
        (lines.iter().map(|l| l.paint(false) + "\n").collect(), hidden)
    }

    #[test]
    fn a_wide_table_shows_all() {
        assert_eq!(
            text(0),
            (
                "id  name                      note           calls\n \
                 1  __netif_receive_skb_core  seldom needed      7\n\
                 12  ip_rcv                    seldom needed      7\n"
                    .to_owned(),
                vec![]
            )
        );
    }

    #[test]
    fn a_narrow_table_shortens_and_then_leaves_out() {
        assert_eq!(
            text(30),
            (
                "id  name                 calls\n \
                 1  __netif_r…_skb_core      7\n\
                 12  ip_rcv                   7\n"
                    .to_owned(),
                vec!["note"]
            )
        );
        for width in 12..60 {
            assert!(sample().render(width).0.iter().all(|l| l.width() <= width), "{width}");
        }
    }

    /// What comes after the layout was made is all there, in a column that was empty, too.
    #[test]
    fn later_rows_widen() {
        let columns = [Column::right("id", 0), Column::left("name", 0, 4), Column::left("note", 0, 0)];
        let mut t = Table::new(&columns);
        let row =
            |id: &str, name: &str, note: &str| [id, name, note].map(|c| (c.to_owned(), Style::Plain)).into();
        t.row(row("1", "a_short_one", ""));
        let mut layout = t.layout(0, true);
        let mut lines = vec![t.head(&layout)];
        lines.extend(t.body(&mut layout));
        t = Table::new(&columns);
        t.row(row("12345", "a_much_longer_name", "new"));
        t.row(row("6", "b", ""));
        lines.extend(t.body(&mut layout));
        let text: String = lines.iter().map(|l| l.paint(false) + "\n").collect();
        assert_eq!(
            text,
            "id  name         note\n 1  a_short_one\n12345  a_much_longer_name  new\n    6  b\n"
        );
    }
}
