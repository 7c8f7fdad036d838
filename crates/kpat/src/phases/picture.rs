//! The phases as a picture: for each kind of passage one stacked bar, and under it the functions of each phase by self
//! time. One file that needs no other; light and dark by the reader's setting; every bar has its text, so it reads
//! without colour and to a screen reader.

use super::{rows, study};
use crate::page::{self, text};
use crate::render::{duration, percent, plural};
use kpat_query::phases::{PassageTime, Phase, PhaseReport, PhaseTime};
use std::fmt::Write as _;

pub const WIDTH: f64 = 960.0;
pub const MARGIN: f64 = 24.0;
const ROW: f64 = 22.0;
const FUNCTIONS: usize = 6;

/// Layers have the colours of the page (ui/src/app/app.css).
pub const STYLE: &str = "
svg.kpat { --l-driver: #7c8798; --l-link: #3b7dd8; --l-network: #1c9a76; --l-transport: #8a5bd6; --l-socket: #d08a1d; --l-other: #a3acba; }
svg.kpat .phase, svg.kpat .in { font-weight: 600; }
svg.kpat text.in { fill: #111111; }
svg.kpat text.in.l-transport { fill: #ffffff; }
svg.kpat .track { fill: var(--line); opacity: .45; }
svg.kpat rect.p { stroke: var(--page); stroke-width: 1; }
svg.kpat rect.l-driver { fill: var(--l-driver); } svg.kpat rect.l-link { fill: var(--l-link); } svg.kpat rect.l-network { fill: var(--l-network); }
svg.kpat rect.l-transport { fill: var(--l-transport); } svg.kpat rect.l-socket { fill: var(--l-socket); } svg.kpat rect.l-other { fill: var(--l-other); }
svg.kpat rect.wait { fill: url(#wait); }
svg.kpat rect.study { fill: var(--faint); }
svg.kpat .edge { fill: none; stroke: var(--line); }
@media (prefers-color-scheme: dark) {
  svg.kpat { --l-driver: #8d99ac; --l-link: #5f9cee; --l-network: #3fbd94; --l-transport: #ab86ec; --l-socket: #e0a545; --l-other: #66728a; }
  svg.kpat text.in.l-transport { fill: #111111; }
  svg.kpat text.in.l-other { fill: #ffffff; }
}
";

/// A phase has the colour of the layer that works in it, as in the page; waits are hatched.
pub fn class_of(phase: Phase) -> &'static str {
    match phase {
        Phase::DmaRx | Phase::DmaTx => "l-driver",
        Phase::LinkRx | Phase::LinkTx | Phase::AboveLink => "l-link",
        Phase::NetworkRx | Phase::NetworkTx => "l-network",
        Phase::TransportRx | Phase::TransportTx => "l-transport",
        Phase::SocketRx | Phase::SocketTx | Phase::CopyToUser => "l-socket",
        phase if phase.is_wait() => "wait",
        _ => "l-other",
    }
}

pub fn class_of_layer(layer: &str) -> &'static str {
    match layer {
        "driver" => "l-driver",
        "link" => "l-link",
        "network" => "l-network",
        "transport" => "l-transport",
        "socket" => "l-socket",
        _ => "l-other",
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
    let estimates = rows::measured(report)
        .into_iter()
        .chain(rows::estimates(report))
        .map(|words| format!("{}: {words}", Phase::DmaRx.label()));
    let missing =
        report.missing.iter().map(|m| format!("{}: not measurable here: {}", m.phase.label(), m.why));
    for words in estimates.chain(missing) {
        y += ROW;
        for (i, part) in pieces(&words, 130).iter().enumerate() {
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
            "<rect class=\"p {}\" x=\"{x:.2}\" y=\"{y:.0}\" width=\"{width:.2}\" height=\"30\"><title>{}, \
             mean {}</title></rect>",
            class_of(f.phase),
            text(&label),
            duration(f.time.mean().unwrap_or(0.0).round() as i64),
        );
        // Narrower ones are named below.
        if width > 9.0 * label.chars().count() as f64 {
            let _ = writeln!(
                body,
                "<text x=\"{:.2}\" y=\"{:.0}\" class=\"in {}\">{}</text>",
                x + 8.0,
                y + 20.0,
                class_of(f.phase),
                text(&label),
            );
        }
        x += width;
    }
    y += 30.0 + ROW;
    for f in &all {
        let _ = writeln!(
            body,
            "<rect class=\"key {}\" x=\"{MARGIN}\" y=\"{:.0}\" width=\"13\" height=\"13\"/><text x=\"{}\" \
             y=\"{y:.0}\" class=\"phase\">{}{}</text><text x=\"216\" y=\"{y:.0}\">{}</text><text x=\"276\" \
             y=\"{y:.0}\" class=\"faint\">{}</text>",
            class_of(f.phase),
            y - 11.0,
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
        if rows::has(f) {
            y = functions(body, f, y);
        }
    }
    y + 8.0
}

/// What the phase consists of: the rows of the text, whose bars fill one track together.
fn functions(body: &mut String, f: &PhaseTime, mut y: f64) -> f64 {
    let all = f.time.sum().max(1);
    for row in rows::of(f, FUNCTIONS) {
        let width = 300.0 * row.ns as f64 / all as f64;
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{y:.0}\" class=\"{}\">{}</text><rect class=\"track\" x=\"400\" y=\"{:.0}\" \
             width=\"300\" height=\"11\"/><rect class=\"part {}\" x=\"400\" y=\"{:.0}\" width=\"{width:.2}\" height=\"11\"/>\
             <text x=\"712\" y=\"{y:.0}\">{}, {}</text>",
            MARGIN + 40.0,
            if row.passages.is_some() { "" } else { "faint" },
            text(&crate::render::shorten(&row.name, 44)),
            y - 10.0,
            class_of(f.phase),
            y - 10.0,
            percent(row.ns.max(0).unsigned_abs(), all.unsigned_abs()),
            duration(row.ns / (f.time.count().max(1) as i64)),
        );
        y += 18.0;
    }
    y + 4.0
}

/// A whole page: the picture, then the same as tables.
/// `figures`: those of the study, if asked for.
pub fn html(report: &PhaseReport, about: &str, figures: Option<&str>) -> String {
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
        for f in in_order(p).into_iter().filter(|f| rows::has(f)) {
            let _ = writeln!(
                tables,
                "<details><summary>{}: {}</summary><table><thead><tr><th>function<th>layer<th class=n>self, \
                 mean<th class=n>of phase</tr></thead><tbody>",
                text(f.phase.label()),
                plural(f.functions.len() as u64, "function")
            );
            for row in rows::of(f, 0) {
                let _ = writeln!(
                    tables,
                    "<tr><th scope=row>{}<td>{}<td class=n>{}<td class=n>{}</tr>",
                    text(&row.name),
                    text(&row.layer),
                    time(row.ns / (f.time.count().max(1) as i64)),
                    percent(row.ns.max(0).unsigned_abs(), f.time.sum().max(1).unsigned_abs()),
                );
            }
            tables.push_str("</tbody></table></details>\n");
        }
    }
    if let Some(figures) = figures {
        tables.push_str(figures);
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
