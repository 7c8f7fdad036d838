//! The samples of a profile as a flame graph: as wide as the time, callers below what they called, all of a process beside each other.

use crate::style;
use crate::svg::{Frame, Name, Px, Sheet, WIDTH, document};
use kpat_query::sampled::tree::Context;
use kpat_query::sampled::{Sampled, Weighted};
use kpat_text::shorten;
use std::collections::BTreeMap;

const ROW: f64 = 17.0;
const TOP: f64 = 52.0;
/// What would be narrower is not drawn: its time is in the row below.
const LEAST: f64 = 0.4;
const LETTER: f64 = 6.6;

#[derive(Default)]
struct Node {
    class: &'static str,
    ns: i64,
    above: BTreeMap<String, Node>,
}

impl Node {
    fn add(&mut self, path: &[(String, &'static str)], ns: i64) {
        self.ns += ns;
        if let Some(((name, class), rest)) = path.split_first() {
            let node = self.above.entry(name.clone()).or_default();
            node.class = class;
            node.add(rest, ns);
        }
    }

    /// Adds the time of each row to `rows`, this one's first, of what is drawn.
    fn rows(&self, least_ns: f64, depth: usize, rows: &mut Vec<i64>) {
        if depth > 0 && (self.ns as f64) < least_ns {
            return;
        }
        rows.resize(rows.len().max(depth + 1), 0);
        rows[depth] += self.ns;
        self.above.values().for_each(|n| n.rows(least_ns, depth + 1, rows));
    }
}

/// Rows whose frames have together less of the time than this are not drawn above the last one that has more: one sample of a program without frame pointers would make
/// the picture many times as high.
const LEAST_OF_ROW: f64 = 0.005;

/// `title`: what was recorded.
pub fn flame(s: &Sampled, title: &str) -> String {
    let mut root = Node { class: "other", ..Node::default() };
    for w in &s.stacks {
        root.add(&path(s, w), w.ns);
    }
    let per_ns = WIDTH / root.ns.max(1) as f64;
    let mut all = Vec::new();
    root.rows(LEAST / per_ns, 0, &mut all);
    let full = |ns: &i64| *ns as f64 >= LEAST_OF_ROW * root.ns as f64;
    let rows = all.iter().rposition(full).map_or(1, |last| last + 1);
    let height = TOP + rows as f64 * ROW + 8.0;
    let mut sheet = Sheet::default();
    sheet.text(Px(8.0, 0), Px(20.0, 0), "head", title);
    let seconds = root.ns as f64 / 1e9;
    let words = format!(
        "{seconds:.3} s of CPU time in samples {:.2} ms apart, by the process that is charged; a caller is below what it called{}",
        s.period_ns as f64 / 1e6,
        match all.len() - rows {
            0 => String::new(),
            more => format!("; {more} more rows have less than {} % of it each", LEAST_OF_ROW * 100.0),
        }
    );
    sheet.text(Px(8.0, 0), Px(38.0, 0), "faint", &words);
    sheet.end_line();
    let draw = Draw { per_ns, all_ns: root.ns.max(1), bottom: height - 8.0 - ROW, rows };
    draw.node(&mut sheet, "all", &root, 0.0, 0);
    let style = [style::BASE, style::FLAME];
    let name = Name::Title(title);
    document(&Frame { class: "kpat", name, height, style: &style, hatch: None }.around(&sheet))
}

/// The process, the context if it is an interrupt, the functions.
fn path(s: &Sampled, w: &Weighted) -> Vec<(String, &'static str)> {
    let is_own = w.purpose.is_own();
    let is_task = w.served.is_some() && w.served == w.victim && is_own;
    let who = match w.served {
        Some(pid) => format!("{} {pid}", s.process_name(pid)),
        None => format!("({})", w.purpose.name()),
    };
    let mut all = vec![(who, "other")];
    if !is_task && w.served.is_some() {
        let where_ = if Context::of(w.busy) == Context::Task { "in kernel threads" } else { "in interrupts" };
        all.push((where_.into(), "other"));
    }
    let function = |f: &u32| {
        let f = s.function(*f);
        (
            f.name.clone(),
            if !f.is_kernel {
                "user"
            } else if is_task {
                "kernel"
            } else {
                "served"
            },
        )
    };
    all.extend(w.functions.iter().map(function));
    all
}

struct Draw {
    per_ns: f64,
    all_ns: i64,
    bottom: f64,
    rows: usize,
}

impl Draw {
    fn node(&self, sheet: &mut Sheet, name: &str, n: &Node, x: f64, depth: usize) {
        let width = n.ns as f64 * self.per_ns;
        if width < LEAST || depth >= self.rows {
            return;
        }
        let y = self.bottom - depth as f64 * ROW;
        let share = n.ns as f64 * 100.0 / self.all_ns as f64;
        let title = format!("{name}: {:.4} s, {share:.2} %", n.ns as f64 / 1e9);
        let rect = sheet.element("rect").at(Px(x, 2), Px(y, 1)).size(Px(width, 2), Px(ROW - 1.0, 1));
        rect.set("class", format_args!("f {}", n.class)).titled("", &title);
        let letters = ((width - 6.0) / LETTER) as usize;
        if letters >= 3 {
            let text = sheet.element("text").at(Px(x + 3.0, 2), Px(y + 12.0, 1));
            text.set("class", format_args!("f {}", n.class)).titled(&shorten(name, letters), &title);
        }
        sheet.end_line();
        let mut at = x;
        for (name, above) in &n.above {
            self.node(sheet, name, above, at, depth + 1);
            at += above.ns as f64 * self.per_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::Busy;
    use kpat_model::Purpose;
    use kpat_query::sampled::Function;

    #[test]
    fn widths_are_times_and_names_are_no_markup() {
        let function =
            |name: &str| Function { process: 7, is_kernel: false, name: name.into(), file: String::new() };
        let stack = |functions: Vec<u32>, ns: i64| Weighted {
            busy: Busy::User,
            purpose: Purpose::Itself,
            victim: Some(7),
            served: Some(7),
            functions,
            samples: 1,
            ns,
        };
        let s = Sampled {
            functions: ["main", "half<int>", "quarter"].map(function).into(),
            stacks: vec![stack(vec![0], 25), stack(vec![0, 1], 50), stack(vec![0, 2], 25)],
            names: BTreeMap::from([(7, "prog".to_string())]),
            samples: 3,
            idle: 0,
            drawn: 0,
            period_ns: 25,
            busy_ns: 0,
            worth: 3.0,
        };
        let svg = flame(&s, "a & b");
        let width = |name: &str| {
            let line = svg.lines().find(|l| l.contains(&format!("<title>{name}:"))).expect(name);
            line.split("width=\"").nth(1).and_then(|l| l.split('"').next()).expect("a width").to_string()
        };
        assert_eq!(["main", "half&lt;int&gt;", "quarter"].map(width), ["960.00", "480.00", "240.00"]);
        assert!(svg.contains("a &amp; b") && !svg.contains("half<int>"));
    }

    #[test]
    fn one_deep_stack_does_not_make_the_picture_high() {
        let function =
            |n: u32| Function { process: 7, is_kernel: false, name: format!("f{n}"), file: String::new() };
        let stack = |depth: u32, ns: i64| Weighted {
            busy: Busy::User,
            purpose: Purpose::Client,
            victim: Some(7),
            served: Some(7),
            functions: (0..depth).collect(),
            samples: 1,
            ns,
        };
        let picture = |deep_ns: i64| {
            let s = Sampled {
                functions: (0..120).map(function).collect(),
                stacks: vec![stack(3, 10_000), stack(120, deep_ns)],
                names: BTreeMap::new(),
                samples: 2,
                idle: 0,
                drawn: 0,
                period_ns: 1,
                busy_ns: 0,
                worth: 2.0,
            };
            flame(&s, "t")
        };
        let (few, many) = (picture(20), picture(2000));
        assert!(few.contains("117 more rows have less than 0.5 %") && !few.contains("<title>f3:"));
        assert!(many.contains("<title>f119:") && !many.contains("more rows"));
        assert!(!many.contains("in interrupts"), "what a server does for a client is its own");
    }
}
