//! Figures 4 to 7 of the router study of 2009, of this log: the calls of forwarded packets as a graph of parents and children, the
//! shares of the phases, and what link rx and network rx consist of.

use super::picture::{MARGIN, STYLE, WIDTH, class_of};
use super::{rows, study};
use crate::page::{self, text};
use crate::render::{duration, percent, shorten};
use kpat_query::phases::study::SHARES;
use kpat_query::phases::{Passage, PassageTime, Phase, PhaseReport};
use kpat_query::{Flame, Store};
use std::fmt::Write as _;

const ROW: f64 = 20.0;
/// Nodes that are drawn, those with most time first.
const MOST_NODES: usize = 120;
/// Bars begin here and are so long at most.
const BAR: (f64, f64) = (380.0, 360.0);

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

fn frame(label: &str, height: f64, body: &str) -> String {
    format!(
        "<svg class=\"kpat\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"100%\" role=\"img\" \
         aria-label=\"{}\">\n<style>{}{STYLE}</style>\n{body}</svg>\n",
        text(label),
        page::STYLE,
    )
}

/// Each call path once, below its caller, with how often and how long.
fn graph(store: &Store, flame: &Flame) -> String {
    let mut totals: Vec<i64> = flame.nodes.iter().map(|n| n.total_ns).collect();
    totals.sort_unstable_by(|a, b| b.cmp(a));
    let least = totals.get(MOST_NODES - 1).copied().unwrap_or(i64::MIN);
    let mut body = String::new();
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
            let _ = writeln!(
                body,
                "<path class=\"edge\" d=\"M{:.0} {:.0}V{:.0}H{:.0}\"/>",
                px + 5.0,
                py + 5.0,
                y - 4.0,
                x - 2.0
            );
        }
        let name = if n.func_id < 0 { "others" } else { store.function_name(n.func_id) };
        let layer = if n.func_id < 0 { "" } else { store.function_place(n.func_id).1 };
        let _ = writeln!(
            body,
            "<rect class=\"node {}\" x=\"{x:.0}\" y=\"{:.0}\" width=\"10\" height=\"10\"/><text x=\"{:.0}\" y=\"{y:.0}\">{}</text>\
             <text x=\"{:.0}\" y=\"{y:.0}\" class=\"faint\" text-anchor=\"end\">{} calls, {} self, {} in all</text>",
            super::picture::class_of_layer(layer),
            y - 9.0,
            x + 16.0,
            text(&shorten(name, 48)),
            WIDTH - MARGIN,
            n.calls,
            duration(n.self_ns),
            duration(n.total_ns),
        );
    }
    let left = flame.nodes.len() - at.iter().flatten().count();
    if left > 0 {
        y += ROW;
        let words = format!("{left} call paths of less time are not drawn");
        let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{y:.0}\" class=\"faint\">{words}</text>");
    }
    if flame.nodes.is_empty() {
        y += ROW;
        let words = "no function was recorded, only tracepoints";
        let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{y:.0}\" class=\"faint\">{words}</text>");
    }
    frame("graph of parents and children", y + MARGIN, &body)
}

fn bar(body: &mut String, y: f64, name: &str, class: &str, part: f64, words: &str) {
    let _ = writeln!(
        body,
        "<text x=\"{MARGIN}\" y=\"{y:.0}\">{}</text><rect class=\"track\" x=\"{}\" y=\"{:.0}\" width=\"{}\" height=\"11\"/><rect \
         class=\"part {class}\" x=\"{}\" y=\"{:.0}\" width=\"{:.2}\" height=\"11\"/><text x=\"{}\" y=\"{y:.0}\">{}</text>",
        text(&shorten(name, 48)),
        BAR.0,
        y - 10.0,
        BAR.1,
        BAR.0,
        y - 10.0,
        BAR.1 * part.clamp(0.0, 1.0),
        BAR.0 + BAR.1 + 12.0,
        text(words),
    );
}

fn shares(p: &PassageTime) -> String {
    let (mut body, mut y) = (String::new(), MARGIN);
    for s in &SHARES {
        y += ROW;
        let here = study::ours(p, s.phase);
        let words = here.map_or("not measured".to_owned(), |v| format!("{v:.1} % here"));
        bar(&mut body, y, s.phase.label(), class_of(s.phase), here.unwrap_or(0.0) / 100.0, &words);
        y += ROW - 5.0;
        let words = match s.elsewhere {
            Some(e) => format!("{:.0} or {e:.0} % in the study", s.percent),
            None => format!("{:.0} % in the study", s.percent),
        };
        bar(&mut body, y, "", "study", s.percent / 100.0, &words);
        y += 5.0;
    }
    frame("shares of the phases", y + MARGIN, &body)
}

fn consists(p: &PassageTime, phase: Phase) -> String {
    let (mut body, mut y) = (String::new(), MARGIN);
    match p.phases.iter().find(|f| f.phase == phase && rows::has(f)) {
        Some(f) => {
            let all = f.time.sum().max(1);
            for row in rows::of(f, 14) {
                y += ROW;
                let mean = duration(row.ns / (f.time.count().max(1) as i64));
                let words = format!("{}, {mean}", percent(row.ns.max(0).unsigned_abs(), all.unsigned_abs()));
                bar(&mut body, y, &row.name, class_of(phase), row.ns as f64 / all as f64, &words);
            }
        }
        None => {
            y += ROW;
            let _ = writeln!(
                body,
                "<text x=\"{MARGIN}\" y=\"{y:.0}\" class=\"faint\">no function of this phase was recorded</text>"
            );
        }
    }
    frame(phase.label(), y + MARGIN, &body)
}
