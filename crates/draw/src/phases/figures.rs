//! Figures 4 to 7 of the router study of 2009, of this log: the calls of forwarded packets as a graph of parents and children, the
//! shares of the phases, and what link rx and network rx consist of.

use super::picture::{MARGIN, Track};
use super::rows;
use crate::style::{self, class_of, class_of_layer};
use crate::svg::{Frame, Name, Px, Sheet, WIDTH};
use kpat_query::phases::study::{SHARES, share_here};
use kpat_query::phases::{Passage, PassageTime, Phase, PhaseReport};
use kpat_query::{Flame, Store};
use kpat_text::{duration, percent, shorten};
use std::fmt::Write as _;

const ROW: f64 = 20.0;
/// Nodes that are drawn, those with most time first.
const MOST_NODES: usize = 120;
const BARS: Track = Track { left: 380.0, width: 360.0 };

/// The four, as parts of a page. `flame`: of the forwarded packets.
pub fn figures(report: &PhaseReport, store: &Store, flame: &Flame) -> String {
    let Some(p) = report.passages.iter().find(|p| p.passage == Passage::Forwarded) else {
        return "<h2>Figures of the study</h2>\n<p>No packet was forwarded here, so there is nothing to draw.</p>\n".to_owned();
    };
    let mut out = String::from("<h2>Figures of the study, of this log</h2>\n");
    let mut figure = |n: u32, title: &str, drawing: String| {
        let _ = writeln!(out, "<h3>Figure {n}: {title}</h3>\n{drawing}");
    };
    figure(4, "functions that packets go through, and what they call", graph(store, flame));
    figure(5, "shares of the phases, here and in the study", shares(p));
    for (n, phase) in [(6, Phase::LinkRx), (7, Phase::NetworkRx)] {
        let title = format!("what {} consists of", phase.label());
        figure(n, &title, consists(p, phase));
    }
    out
}

fn frame(label: &str, height: f64, sheet: &Sheet) -> String {
    let style = &[style::BASE, style::PHASES];
    Frame { class: "kpat", name: Name::Label(label), height, style, hatch: None }.around(sheet)
}

/// A line that says something of the whole figure.
fn remark(sheet: &mut Sheet, y: f64, words: &str) {
    sheet.text(Px(MARGIN, 0), Px(y, 0), "faint", words);
    sheet.end_line();
}

/// Each call path once, below its caller, with how often and how long.
fn graph(store: &Store, flame: &Flame) -> String {
    let mut totals: Vec<i64> = flame.nodes.iter().map(|n| n.total_ns).collect();
    totals.sort_unstable_by(|a, b| b.cmp(a));
    let least = totals.get(MOST_NODES - 1).copied().unwrap_or(i64::MIN);
    let mut sheet = Sheet::default();
    // Where each node that is drawn stands; a caller is at least as long as its callees, so it is drawn if they are.
    let mut at: Vec<Option<(f64, f64)>> = vec![None; flame.nodes.len()];
    let mut y = MARGIN;
    for (i, n) in flame.nodes.iter().enumerate() {
        let parent = n.parent.and_then(|p| at[p]);
        if n.total_ns < least || (n.parent.is_some() && parent.is_none()) {
            continue;
        }
        y += ROW;
        let x = MARGIN + 18.0 * f64::from(n.depth);
        at[i] = Some((x, y));
        if let Some((px, py)) = parent {
            let d = format!("M{:.0} {:.0}V{:.0}H{:.0}", px + 5.0, py + 5.0, y - 4.0, x - 2.0);
            sheet.element("path").set("class", "edge").set("d", d).end();
            sheet.end_line();
        }
        let name = if n.func_id < 0 { "others" } else { store.function_name(n.func_id) };
        let layer = if n.func_id < 0 { "" } else { store.function_place(n.func_id).1 };
        let node = sheet.element("rect").set("class", format_args!("node {}", class_of_layer(layer)));
        node.at(Px(x, 0), Px(y - 9.0, 0)).size(Px(10.0, 0), Px(10.0, 0)).end();
        sheet.element("text").at(Px(x + 16.0, 0), Px(y, 0)).words(&shorten(name, 48));
        let (own, all) = (duration(n.self_ns), duration(n.total_ns));
        let words = format!("{} calls, {own} self, {all} in all", n.calls);
        sheet.text_before(Px(WIDTH - MARGIN, 0), Px(y, 0), "faint", &words);
        sheet.end_line();
    }
    let left = flame.nodes.len() - at.iter().flatten().count();
    if left > 0 {
        y += ROW;
        remark(&mut sheet, y, &format!("{left} call paths of less time are not drawn"));
    }
    if flame.nodes.is_empty() {
        y += ROW;
        remark(&mut sheet, y, "no function was recorded, only tracepoints");
    }
    frame("graph of parents and children", y + MARGIN, &sheet)
}

fn bar(sheet: &mut Sheet, y: f64, name: &str, class: &str, part: f64, words: &str) {
    sheet.element("text").at(Px(MARGIN, 0), Px(y, 0)).words(&shorten(name, 48));
    BARS.bar(sheet, y, class, part.clamp(0.0, 1.0));
    sheet.element("text").at(Px(BARS.left + BARS.width + 12.0, 0), Px(y, 0)).words(words);
    sheet.end_line();
}

fn shares(p: &PassageTime) -> String {
    let (mut sheet, mut y) = (Sheet::default(), MARGIN);
    for s in &SHARES {
        y += ROW;
        let here = share_here(p, s.phase);
        let words = here.map_or("not measured".to_owned(), |v| format!("{v:.1} % here"));
        bar(&mut sheet, y, s.phase.label(), class_of(s.phase), here.unwrap_or(0.0) / 100.0, &words);
        y += ROW - 5.0;
        let words = match s.elsewhere {
            Some(e) => format!("{:.0} or {e:.0} % in the study", s.percent),
            None => format!("{:.0} % in the study", s.percent),
        };
        bar(&mut sheet, y, "", "study", s.percent / 100.0, &words);
        y += 5.0;
    }
    frame("shares of the phases", y + MARGIN, &sheet)
}

fn consists(p: &PassageTime, phase: Phase) -> String {
    let (mut sheet, mut y) = (Sheet::default(), MARGIN);
    match p.phases.iter().find(|f| f.phase == phase && rows::has(f)) {
        Some(f) => {
            let all = f.time.sum().max(1);
            for row in rows::of(f, 14) {
                y += ROW;
                let mean = duration(row.ns / (f.time.count().max(1) as i64));
                let words = format!("{}, {mean}", percent(row.ns.max(0).unsigned_abs(), all.unsigned_abs()));
                bar(&mut sheet, y, &row.name, class_of(phase), row.ns as f64 / all as f64, &words);
            }
        }
        None => {
            y += ROW;
            remark(&mut sheet, y, "no function of this phase was recorded");
        }
    }
    frame(phase.label(), y + MARGIN, &sheet)
}
