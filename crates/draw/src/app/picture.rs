//! A socket over time as a picture: lanes over one axis, what happened above them, what held TCP back beneath. The same
//! lanes as on the page of `kpat view`; the numbers stand in the tables beside it.

use super::lanes::{Curve, Lane, Look, lanes};
use crate::scale::{Scale, Ticks};
use crate::style::{self, color};
use crate::svg::{Frame, Hatch, Name, Px, Sheet, WIDTH};
use kpat_query::app::{Held, Mark, Series, Tcp};
use kpat_text::count;
use std::fmt::Write as _;

const LEFT: f64 = 112.0;
const RIGHT: f64 = 8.0;
const KEY: f64 = 16.0;

fn shape(mark: Mark) -> (&'static str, &'static str) {
    match mark {
        Mark::Retransmission => ("again", "\u{25b2}"),
        Mark::Loss => ("bad", "\u{2715}"),
        Mark::Congestion => ("e", "\u{25c6}"),
        Mark::ZeroWindow => ("d", "\u{25a0}"),
        Mark::WouldBlock => ("idle", "\u{25cb}"),
        Mark::Failure => ("bad", "!"),
    }
}

fn fill(color: &str) -> String {
    format!("fill:var(--{color})")
}

/// Adds a box to a path.
fn add_box(path: &mut String, (left, right): (f64, f64), bottom: f64, top: f64) {
    let _ = write!(path, "M{left:.1} {bottom:.1}V{top:.1}H{right:.1}V{bottom:.1}z");
}

/// A drawing being made.
struct Picture<'a> {
    s: &'a Series,
    sheet: Sheet,
}

impl Picture<'_> {
    fn x(&self, at_ns: i64) -> f64 {
        let whole = (self.s.to_ns - self.s.from_ns).max(1) as f64;
        LEFT + (at_ns - self.s.from_ns) as f64 / whole * (WIDTH - LEFT - RIGHT)
    }

    fn edge(&self, bin: usize) -> f64 {
        self.x(self.s.edge(bin))
    }

    /// Its left and right edge.
    fn edges(&self, bin: usize) -> (f64, f64) {
        (self.edge(bin), self.edge(bin + 1))
    }

    fn text(&mut self, x: f64, y: f64, class: &str, words: &str) {
        self.sheet.text(Px(x, 1), Px(y, 1), class, words);
        self.sheet.end_line();
    }

    /// Beside the lanes, up to where they begin.
    fn value(&mut self, y: f64, words: &str) {
        self.sheet.text_before(Px(LEFT - 6.0, 0), Px(y, 1), "faint", words);
        self.sheet.end_line();
    }

    fn line(&mut self, class: &str, (x1, x2): (Px, Px), (y1, y2): (Px, Px)) {
        let line = self.sheet.element("line").set("class", class);
        line.set("x1", x1).set("x2", x2).set("y1", y1).set("y2", y2).end();
        self.sheet.end_line();
    }

    fn path(&mut self, class: &str, paint: &str, d: &str) {
        if !d.is_empty() {
            self.sheet.element("path").set("class", class).set("style", paint).set("d", d).end();
            self.sheet.end_line();
        }
    }

    fn time_axis(&mut self, start_ns: i64, top: f64, bottom: f64) {
        let ticks = Ticks::between(self.s.from_ns - start_ns, self.s.to_ns - start_ns);
        self.text(8.0, top + 13.0, "faint", &format!("at {}", ticks.unit));
        for (at_ns, words) in ticks.marks() {
            let x = self.x(at_ns + start_ns);
            self.line("grid", (Px(x, 1), Px(x, 1)), (Px(top + 4.0, 0), Px(bottom, 0)));
            if x < WIDTH - 40.0 {
                self.text(x + 3.0, top + 13.0, "faint", &words);
            }
        }
    }

    fn marks(&mut self, mut y: f64) -> f64 {
        let s = self.s;
        for (mark, counts) in &s.marks {
            let (color, shape) = shape(*mark);
            self.text(8.0, y + 11.0, "", mark.name());
            let mut last = f64::MIN;
            for (bin, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
                let (left, right) = self.edges(bin);
                let x = (left + right) / 2.0;
                // One stands for all within its own width.
                if x - last < 7.0 {
                    continue;
                }
                last = x;
                let text = self.sheet.element("text").at(Px(x, 1), Px(y + 11.0, 1));
                let text = text.set("text-anchor", "middle").set("style", fill(color));
                text.titled(shape, &format!("{} × {}", count(*n), mark.name()));
                self.sheet.end_line();
            }
            y += 15.0;
        }
        y + 6.0
    }

    fn keys(&mut self, y: f64, keys: &[(&str, &str)]) {
        let mut x = LEFT + 6.0;
        for (name, color) in keys {
            let rect = self.sheet.element("rect").at(Px(x, 1), Px(y + 3.0, 1)).size(Px(9.0, 0), Px(8.0, 0));
            rect.set("style", fill(color)).end();
            self.sheet.end_line();
            self.text(x + 13.0, y + 11.0, "", name);
            x += 28.0 + 6.2 * name.chars().count() as f64;
        }
    }

    fn lane(&mut self, l: &Lane, top: f64) {
        let y = |v: f64| top + l.tall - 1.0 - l.axis.up(v) * (l.tall - KEY - 1.0);
        self.text(8.0, top + 11.0, "title", l.title);
        self.value(top + KEY + 8.0, &(l.show)(l.axis.high));
        if l.axis.scale != Scale::Root || l.axis.low < 0.0 {
            self.value(top + l.tall - 1.0, &(l.show)(l.axis.low));
        }
        let base = y(l.axis.base());
        self.line("base", (Px(LEFT, 0), Px(WIDTH - RIGHT, 0)), (Px(base, 1), Px(base, 1)));
        for c in &l.curves {
            match c.look {
                Look::Bars => self.bars(c, base, &y),
                Look::Range => self.ranges(c, &y),
                Look::Line | Look::Dashed | Look::Area => self.curve(c, base, &y),
            }
        }
        let keys: Vec<_> = l.curves.iter().map(|c| (c.name, c.color)).collect();
        self.keys(top, &keys);
    }

    fn bars(&mut self, c: &Curve, base: f64, y: &dyn Fn(f64) -> f64) {
        let mut d = String::new();
        for (bin, v) in c.high.iter().enumerate().filter_map(|(i, v)| Some((i, (*v)?))) {
            let ((left, right), top) = (self.edges(bin), y(v));
            let top = if (base - top).abs() < 1.0 { base - 1f64.copysign(v) } else { top };
            add_box(&mut d, (left, right.max(left + 0.8)), base, top);
        }
        self.path("", &fill(c.color), &d);
    }

    fn ranges(&mut self, c: &Curve, y: &dyn Fn(f64) -> f64) {
        let mut d = String::new();
        for (bin, (low, high)) in c.low.iter().zip(&c.high).enumerate() {
            let (Some(low), Some(high)) = (low, high) else { continue };
            let (left, right) = self.edges(bin);
            add_box(&mut d, (left, right.max(left + 2.0)), y(*low) + 1.2, y(*high) - 1.2);
        }
        self.path("range", &fill(c.color), &d);
    }

    /// The last value of each bin as a line of steps, within a band from the least to the greatest.
    fn curve(&mut self, c: &Curve, base: f64, y: &dyn Fn(f64) -> f64) {
        let (mut band, mut area, mut line) = (String::new(), String::new(), String::new());
        let mut on = false;
        for (bin, last) in c.last.iter().enumerate() {
            let (left, right) = self.edges(bin);
            if let (Some(low), Some(high)) = (c.low[bin], c.high[bin]) {
                if low < high {
                    let (low, high) = (y(low), y(high));
                    let _ = write!(band, "M{left:.1} {high:.1}H{right:.1}V{low:.1}H{left:.1}z");
                }
                if matches!(c.look, Look::Area) && y(high) < base {
                    add_box(&mut area, (left, right), base, y(high));
                }
            }
            let Some(v) = last else {
                on = false;
                continue;
            };
            let _ = if on {
                write!(line, "V{:.1}H{right:.1}", y(*v))
            } else {
                write!(line, "M{left:.1} {:.1}H{right:.1}", y(*v))
            };
            on = true;
        }
        self.path("area", &fill(c.color), &area);
        self.path("band", &fill(c.color), &band);
        let class = if matches!(c.look, Look::Dashed) { "curve dashed" } else { "curve" };
        self.path(class, &format!("stroke:var(--{})", c.color), &line);
    }

    fn held(&mut self, tcp: &Tcp, top: f64) {
        self.text(8.0, top + KEY + 12.0, "title", "Held back by");
        let mut paths = [const { String::new() }; Held::ALL.len()];
        let mut repairs = String::new();
        for bin in 0..self.s.bins {
            let all: i64 = Held::ALL.iter().map(|h| tcp.held_ns(*h)[bin]).sum();
            let (left, right) = self.edges(bin);
            let mut y = top + KEY;
            for h in Held::ALL {
                let tall = 16.0 * tcp.held_ns(h)[bin] as f64 / all.max(1) as f64;
                if tall > 0.0 {
                    let _ = write!(paths[h as usize], "M{left:.1} {y:.1}H{right:.1}v{tall:.1}H{left:.1}z");
                }
                y += tall;
            }
            if tcp.recovery_ns[bin] > 0 {
                let _ = write!(repairs, "M{left:.1} {:.1}H{right:.1}v3H{left:.1}z", top + KEY + 18.0);
            }
        }
        let mut keys = Vec::new();
        for (h, d) in Held::ALL.into_iter().zip(&paths).filter(|(_, d)| !d.is_empty()) {
            self.path("", &fill(color(h)), d);
            keys.push((h.name(), color(h)));
        }
        if !repairs.is_empty() {
            self.path("", &fill("bad"), &repairs);
            keys.push(("repairing losses (line)", "bad"));
        }
        self.keys(top, &keys);
    }

    fn gaps(&mut self, hatch: &str, top: f64, bottom: f64) {
        let s = self.s;
        for g in &s.gaps {
            let (left, right) = (self.x(g.from_ns), self.x(g.to_ns));
            let (width, height) = (Px((right - left).max(3.0), 1), Px(bottom - top - 16.0, 0));
            let rect = self.sheet.element("rect").at(Px(left, 1), Px(top + 16.0, 0)).size(width, height);
            let rect = rect.set("fill", format_args!("url(#{hatch})"));
            rect.titled("", &format!("{} events are missing", count(g.lost.max(0) as u64)));
            self.sheet.end_line();
        }
    }
}

/// `id`: tells pictures of one page apart; `styled`: it stands alone and brings its colours.
pub fn drawing(title: &str, id: &str, s: &Series, start_ns: i64, styled: bool) -> String {
    let lanes = lanes(s);
    // On a page its heading says what it is of.
    let top = if styled { 26.0 } else { 0.0 };
    let marks = 15.0 * s.marks.len() as f64 + 6.0;
    let bottom = lanes.iter().fold(top + 20.0 + marks, |y, l| y + l.tall + 8.0);
    let height = bottom + if s.tcp.is_some() { KEY + 26.0 } else { 0.0 };
    let hatch = format!("gap-{id}");
    let mut picture = Picture { s, sheet: Sheet::default() };
    if styled {
        picture.text(8.0, 18.0, "head", title);
    }
    picture.time_axis(start_ns, top, height);
    picture.gaps(&hatch, top, height);
    let mut y = picture.marks(top + 20.0);
    for l in &lanes {
        picture.lane(l, y);
        y += l.tall + 8.0;
    }
    if let Some(tcp) = &s.tcp {
        picture.held(tcp, y);
    }
    let frame = Frame {
        class: "kpat app",
        name: Name::Label(&format!("{title} over time")),
        height,
        style: if styled { &[style::BASE, style::APP] } else { &[] },
        hatch: Some(Hatch {
            id: &hatch,
            square: |square| {
                let line = square.element("rect").size(Px(1.5, 1), Px(6.0, 0));
                line.set("style", fill("bad")).set("opacity", ".6").end();
            },
        }),
    };
    frame.around(&picture.sheet)
}
