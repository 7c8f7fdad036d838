//! The phases as a picture: for each kind of passage one stacked bar, and under it the functions of each phase by self
//! time. Every bar has its text.

use super::rows::{self, share};
use crate::style::{self, class_of};
use crate::svg::{Frame, Hatch, Name, Px, Sheet, WIDTH};
use kpat_query::phases::{PassageTime, Phase, PhaseReport, PhaseTime};
use kpat_text::{capital, duration, percent, plural, shorten};

pub(super) const MARGIN: f64 = 24.0;
const ROW: f64 = 22.0;
const FUNCTIONS: usize = 6;

/// In order of the way: a packet waits in the backlog before it is received, in the qdisc before it is sent.
pub(super) fn in_order(p: &PassageTime) -> Vec<&PhaseTime> {
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

pub(super) fn drawing(report: &PhaseReport, about: &str) -> String {
    let mut sheet = Sheet::default();
    let mut y = MARGIN + 16.0;
    let mut line = |y: f64, class: &str, words: &str| {
        sheet.text(Px(MARGIN, 0), Px(y, 0), class, words);
        sheet.end_line();
    };
    line(y, "head", "Phases of packets");
    y += ROW;
    line(y, "faint", about);
    if let Some(emulator) = &report.emulator {
        y += ROW;
        line(
            y,
            "phase",
            &format!(
                "Virtual machine ({emulator}): times are not those of a real computer; at best their proportions are"
            ),
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
            line(y, "faint", part);
        }
    }
    y += ROW;
    for p in &report.passages {
        y = passage(&mut sheet, p, y + 16.0);
    }
    let frame = Frame {
        class: "kpat",
        name: Name::Title(&format!("Phases of packets, {about}")),
        height: y + MARGIN,
        style: &[style::BASE, style::PHASES],
        hatch: Some(Hatch {
            id: "wait",
            square: |square| {
                let (ground, opacity, line) = style::WAIT;
                let whole = square.element("rect").size(Px(6.0, 0), Px(6.0, 0));
                whole.set("fill", ground).set("opacity", opacity).end();
                square.element("rect").size(Px(2.0, 0), Px(6.0, 0)).set("fill", line).end();
            },
        }),
    };
    frame.around(&sheet)
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

fn mean(f: &PhaseTime) -> String {
    duration(f.time.mean().unwrap_or(0.0).round() as i64)
}

fn passage(sheet: &mut Sheet, p: &PassageTime, mut y: f64) -> f64 {
    let inner = WIDTH - 2.0 * MARGIN;
    let title = format!(
        "{}: {}, mean {}, median {}",
        capital(p.passage.name()),
        plural(p.count, "passage"),
        duration(p.time.mean().unwrap_or(0.0).round() as i64),
        duration(p.time.median().unwrap_or(0)),
    );
    sheet.text(Px(MARGIN, 0), Px(y, 0), "head", &title);
    sheet.end_line();
    y += 10.0;
    let all = in_order(p);
    let mut x = MARGIN;
    for f in &all {
        let width = inner * f.share;
        let label = format!("{} {}", f.phase.label(), share(f, p));
        let class = class_of(f.phase);
        let part = sheet.element("rect").set("class", format_args!("p {class}")).at(Px(x, 2), Px(y, 0));
        part.size(Px(width, 2), Px(30.0, 0)).titled("", &format!("{label}, mean {}", mean(f)));
        sheet.end_line();
        // Narrower ones are named below.
        if width > 9.0 * label.chars().count() as f64 {
            sheet.text(Px(x + 8.0, 2), Px(y + 20.0, 0), &format!("in {class}"), &label);
            sheet.end_line();
        }
        x += width;
    }
    y += 30.0 + ROW;
    for f in &all {
        let key = sheet.element("rect").set("class", format_args!("key {}", class_of(f.phase)));
        key.at(Px(MARGIN, 0), Px(y - 11.0, 0)).size(Px(13.0, 0), Px(13.0, 0)).end();
        let wait = if f.phase.is_wait() { "wait: " } else { "" };
        sheet.text(Px(MARGIN + 20.0, 0), Px(y, 0), "phase", &format!("{wait}{}", f.phase.label()));
        sheet.element("text").at(Px(216.0, 0), Px(y, 0)).words(&share(f, p));
        let (median, p99) = (f.time.median().unwrap_or(0), f.time.quantile(0.99).unwrap_or(0));
        let words = format!("mean {}, median {}, p99 {}", mean(f), duration(median), duration(p99));
        sheet.text(Px(276.0, 0), Px(y, 0), "faint", &words);
        sheet.end_line();
        y += 17.0;
        sheet.text(Px(MARGIN + 20.0, 0), Px(y, 0), "faint", f.phase.meaning());
        sheet.end_line();
        y += ROW;
        if rows::has(f) {
            y = functions(sheet, f, y);
        }
    }
    y + 8.0
}

/// What the phase consists of: the rows of the text, whose bars fill one track together.
fn functions(sheet: &mut Sheet, f: &PhaseTime, mut y: f64) -> f64 {
    let all = f.time.sum().max(1);
    for row in rows::of(f, FUNCTIONS) {
        let class = if row.passages.is_some() { "" } else { "faint" };
        sheet.text(Px(MARGIN + 40.0, 0), Px(y, 0), class, &shorten(&row.name, 44));
        Track { left: 400.0, width: 300.0 }.bar(sheet, y, class_of(f.phase), row.ns as f64 / all as f64);
        let part = percent(row.ns.max(0).unsigned_abs(), all.unsigned_abs());
        let words = format!("{part}, {}", duration(row.ns / (f.time.count().max(1) as i64)));
        sheet.element("text").at(Px(712.0, 0), Px(y, 0)).words(&words);
        sheet.end_line();
        y += 18.0;
    }
    y + 4.0
}

/// Where bars are that show parts of one whole.
pub(super) struct Track {
    pub left: f64,
    /// Of the whole.
    pub width: f64,
}

impl Track {
    /// In the line of text at `y`.
    pub fn bar(&self, sheet: &mut Sheet, y: f64, class: &str, part: f64) {
        let (at, tall) = ((Px(self.left, 0), Px(y - 10.0, 0)), Px(11.0, 0));
        let track = sheet.element("rect").set("class", "track").at(at.0, at.1);
        track.size(Px(self.width, 0), tall).end();
        let bar = sheet.element("rect").set("class", format_args!("part {class}")).at(at.0, at.1);
        bar.size(Px(self.width * part, 2), tall).end();
    }
}
