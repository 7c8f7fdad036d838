//! The phases as a picture: for each kind of passage one stacked bar, and under it the functions of each phase by self
//! time. One file that needs no other; light and dark by the reader's setting; every bar has its text, so it reads
//! without colour and to a screen reader.

use super::study;
use crate::page::{self, text};
use crate::render::{duration, percent, plural};
use kpat_analysis::phases::{PassageTime, Phase, PhaseReport, PhaseTime};
use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const ROW: f64 = 22.0;
const FUNCTIONS: usize = 6;

const STYLE: &str = "
svg.kpat .phase, svg.kpat .in { font-weight: 600; }
svg.kpat .track { fill: var(--line); opacity: .45; }
svg.kpat rect.p { stroke: var(--page); stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  svg.kpat rect.p { opacity: .85; }
}
";

/// Neighbours differ in lightness as well; waits are hatched.
fn colour(phase: Phase) -> &'static str {
    match phase {
        Phase::DmaRx => "#8c6bb1",
        Phase::LinkRx => "#2a6f97",
        Phase::NetworkRx => "#61a5c2",
        Phase::TransportRx => "#468faf",
        Phase::SocketRx => "#89c2d9",
        Phase::CopyToUser => "#014f86",
        Phase::AboveLink => "#a9d6e5",
        Phase::SocketTx => "#f4a259",
        Phase::TransportTx => "#e07a3f",
        Phase::NetworkTx => "#f2b56b",
        Phase::LinkTx => "#bc4b51",
        Phase::DmaTx => "#8c2f39",
        Phase::Freeing => "#8a8f98",
        Phase::GivenAway => "#b0b5bd",
        _ => "url(#wait)",
    }
}

/// Readable on that colour.
fn ink_on(phase: Phase) -> &'static str {
    match phase {
        Phase::DmaRx
        | Phase::LinkRx
        | Phase::TransportRx
        | Phase::CopyToUser
        | Phase::LinkTx
        | Phase::DmaTx => "#ffffff",
        _ => "#111111",
    }
}

fn share_of(f: &PhaseTime, p: &PassageTime) -> String {
    percent(f.time.sum().max(0).unsigned_abs(), p.time.sum().max(0).unsigned_abs())
}

/// In order of the way: a packet waits in the backlog before it is received, in the qdisc before it is sent.
fn in_order(p: &PassageTime) -> Vec<&PhaseTime> {
    let place = |phase: Phase| match phase {
        Phase::Backlog => 0,
        Phase::DmaRx => 1,
        Phase::LinkRx => 2,
        Phase::Gro => 3,
        Phase::NetworkRx => 4,
        Phase::TransportRx => 5,
        Phase::SocketRx => 6,
        Phase::SocketQueue => 7,
        Phase::CopyToUser => 8,
        Phase::SocketTx => 9,
        Phase::TransportTx => 10,
        Phase::AboveLink => 11,
        Phase::NetworkTx => 12,
        Phase::Neighbour => 13,
        Phase::LinkTx => 14,
        Phase::Qdisc => 15,
        Phase::DmaTx => 16,
        Phase::GivenAway => 17,
        Phase::Softirq | Phase::OtherCpu | Phase::Scheduled | Phase::Asleep => 18,
        Phase::Freeing => 19,
        Phase::Held => 20,
    };
    let mut all: Vec<&PhaseTime> = p.phases.iter().filter(|f| f.time.sum() > 0).collect();
    all.sort_by_key(|f| place(f.phase));
    all
}

/// A whole SVG document.
pub fn svg(report: &PhaseReport, about: &str) -> String {
    page::svg(&drawing(report, about))
}

fn drawing(report: &PhaseReport, about: &str) -> String {
    let mut body = String::new();
    let mut y = MARGIN + 16.0;
    let mut say = |y: f64, class: &str, words: &str| {
        let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{y:.0}\" class=\"{class}\">{}</text>", text(words));
    };
    say(y, "head", "Phases of packets");
    y += ROW;
    say(y, "faint", about);
    if let Some(emulator) = &report.emulator {
        y += ROW;
        say(
            y,
            "phase",
            &format!("Virtual machine ({emulator}): proportions at best, not the times of a real computer"),
        );
    }
    for m in &report.missing {
        y += ROW;
        for (i, part) in
            pieces(&format!("{}: not measurable here: {}", m.phase.label(), m.why), 130).iter().enumerate()
        {
            y += if i > 0 { 16.0 } else { 0.0 };
            say(y, "faint", part);
        }
    }
    y += ROW;
    for p in &report.passages {
        y = passage(&mut body, p, y + 16.0);
    }
    let height = y + MARGIN;
    format!(
        "<svg class=\"kpat\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"100%\" \
         role=\"img\" aria-labelledby=\"t\">\n<title id=\"t\">Phases of packets, {}</title>\n<style>{}{STYLE}</style>\n\
         <defs><pattern id=\"wait\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#d9b44a\" opacity=\".25\"/><rect \
         width=\"2\" height=\"6\" fill=\"#b58900\"/></pattern></defs>\n{body}</svg>\n",
        text(about),
        page::STYLE,
    )
}

fn pieces(words: &str, most: usize) -> Vec<String> {
    let mut out = vec![String::new()];
    for word in words.split(' ') {
        if let Some(last) = out.last_mut() {
            if !last.is_empty() && last.chars().count() + word.chars().count() >= most {
                out.push(word.to_owned());
            } else {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(word);
            }
        }
    }
    out
}

fn passage(body: &mut String, p: &PassageTime, mut y: f64) -> f64 {
    let inner = WIDTH - 2.0 * MARGIN;
    let title = format!(
        "{}: {}, mean {}, median {}",
        super::capital(p.passage.name()),
        plural(p.count, "passage"),
        duration(p.time.mean().unwrap_or(0.0).round() as i64),
        duration(p.time.median().unwrap_or(0)),
    );
    let _ = writeln!(body, "<text x=\"{MARGIN}\" y=\"{y:.0}\" class=\"head\">{}</text>", text(&title));
    y += 10.0;
    let all = in_order(p);
    let mut x = MARGIN;
    for f in &all {
        let width = inner * f.share;
        let label = format!("{} {}", f.phase.label(), share_of(f, p));
        let _ = writeln!(
            body,
            "<rect class=\"p\" x=\"{x:.2}\" y=\"{y:.0}\" width=\"{width:.2}\" height=\"30\" fill=\"{}\"><title>{}, \
             mean {}</title></rect>",
            colour(f.phase),
            text(&label),
            duration(f.time.mean().unwrap_or(0.0).round() as i64),
        );
        // Narrower ones are named below.
        if width > 9.0 * label.chars().count() as f64 {
            let _ = writeln!(
                body,
                "<text x=\"{:.2}\" y=\"{:.0}\" class=\"in\" style=\"fill:{}\">{}</text>",
                x + 8.0,
                y + 20.0,
                ink_on(f.phase),
                text(&label),
            );
        }
        x += width;
    }
    y += 30.0 + ROW;
    for f in &all {
        let _ = writeln!(
            body,
            "<rect class=\"p\" x=\"{MARGIN}\" y=\"{:.0}\" width=\"13\" height=\"13\" fill=\"{}\"/><text x=\"{}\" \
             y=\"{y:.0}\" class=\"phase\">{}{}</text><text x=\"216\" y=\"{y:.0}\">{}</text><text x=\"276\" \
             y=\"{y:.0}\" class=\"faint\">{}</text>",
            y - 11.0,
            colour(f.phase),
            MARGIN + 20.0,
            if f.phase.is_wait() { "wait: " } else { "" },
            text(f.phase.label()),
            share_of(f, p),
            text(&format!(
                "mean {}, median {}, p99 {}",
                duration(f.time.mean().unwrap_or(0.0).round() as i64),
                duration(f.time.median().unwrap_or(0)),
                duration(f.time.quantile(0.99).unwrap_or(0)),
            )),
        );
        y += 17.0;
        let x = MARGIN + 20.0;
        let _ =
            writeln!(body, "<text x=\"{x}\" y=\"{y:.0}\" class=\"faint\">{}</text>", text(f.phase.meaning()));
        y += ROW;
        if f.phase.is_work() {
            y = functions(body, f, y);
        }
    }
    y + 8.0
}

fn functions(body: &mut String, f: &PhaseTime, mut y: f64) -> f64 {
    let all = f.time.sum().max(1);
    let mut row = |y: f64, name: &str, ns: i64, class: &str| {
        let width = 300.0 * (ns.max(0) as f64 / all as f64).min(1.0);
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{y:.0}\" class=\"{class}\">{}</text><rect class=\"track\" x=\"400\" y=\"{:.0}\" \
             width=\"300\" height=\"11\"/><rect x=\"400\" y=\"{:.0}\" width=\"{width:.2}\" height=\"11\" fill=\"{}\"/>\
             <text x=\"712\" y=\"{y:.0}\">{}, {}</text>",
            MARGIN + 40.0,
            text(&crate::render::shorten(name, 44)),
            y - 10.0,
            y - 10.0,
            colour(f.phase),
            percent(ns.max(0).unsigned_abs(), all.unsigned_abs()),
            duration(ns / (f.time.count().max(1) as i64)),
        );
    };
    for g in f.functions.iter().take(FUNCTIONS) {
        row(y, &g.name, g.self_ns, "");
        y += 18.0;
    }
    let rest: i64 = f.functions.iter().skip(FUNCTIONS).map(|g| g.self_ns).sum();
    if rest > 0 {
        let more = plural((f.functions.len() - FUNCTIONS) as u64, "more function");
        row(y, &more, rest, "faint");
        y += 18.0;
    }
    if f.uncovered_ns > 0 && !f.functions.is_empty() {
        row(y, "outside of them", f.uncovered_ns, "faint");
        y += 18.0;
    }
    y + 4.0
}

/// A whole page: the picture, then the same as tables.
pub fn html(report: &PhaseReport, about: &str, with_study: bool) -> String {
    let mut tables = String::new();
    for p in &report.passages {
        let _ = writeln!(
            tables,
            "<h2>{}, {}</h2>\n<table><thead><tr><th>phase<th class=n>passages<th class=n>share<th class=n>mean<th \
             class=n>median<th class=n>p99</tr></thead><tbody>",
            text(&super::capital(p.passage.name())),
            plural(p.count, "passage")
        );
        let time = |ns: i64| duration(ns);
        for f in in_order(p) {
            let _ = writeln!(
                tables,
                "<tr><th scope=row>{}{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}<td class=n>{}</tr>",
                if f.phase.is_wait() { "wait: " } else { "" },
                text(f.phase.label()),
                f.time.count(),
                share_of(f, p),
                time(f.time.mean().unwrap_or(0.0).round() as i64),
                time(f.time.median().unwrap_or(0)),
                time(f.time.quantile(0.99).unwrap_or(0)),
            );
        }
        tables.push_str("</tbody></table>\n");
        for f in in_order(p).iter().filter(|f| f.phase.is_work() && !f.functions.is_empty()) {
            let _ = writeln!(
                tables,
                "<details><summary>{}: {}</summary><table><thead><tr><th>function<th>layer<th class=n>self, \
                 mean<th class=n>of phase</tr></thead><tbody>",
                text(f.phase.label()),
                plural(f.functions.len() as u64, "function")
            );
            for g in &f.functions {
                let _ = writeln!(
                    tables,
                    "<tr><th scope=row>{}<td>{}<td class=n>{}<td class=n>{}</tr>",
                    text(&g.name),
                    text(&g.layer),
                    time(g.self_ns / (f.time.count().max(1) as i64)),
                    percent(g.self_ns.max(0).unsigned_abs(), f.time.sum().max(1).unsigned_abs()),
                );
            }
            tables.push_str("</tbody></table></details>\n");
        }
    }
    if with_study {
        tables.push_str(
            "<h2>Beside the router study of 2009</h2>\n<table><thead><tr><th>phase<th class=n>share here<th \
             class=n>mean here<th class=n>share in the study<th class=n>of the CPU's four here<th class=n>in the \
             study</tr></thead><tbody>\n",
        );
        for row in study::rows(report) {
            let cells: Vec<String> = row[1..].iter().map(|c| format!("<td class=n>{}", text(c))).collect();
            let _ = writeln!(tables, "<tr><th scope=row>{}{}</tr>", text(&row[0]), cells.concat());
        }
        tables.push_str("</tbody></table>\n");
        for remark in study::remarks(report) {
            let _ = writeln!(tables, "<p>{}</p>", text(&remark));
        }
    }
    page::html(&format!("Phases of packets, {about}"), "", &(drawing(report, about) + "\n" + &tables))
}
