//! A socket over time as a picture: lanes over one axis, what happened above them, what held TCP back beneath. The same
//! lanes as on the page of `kpat view`; the numbers stand in the tables beside it.

use crate::page::{self, text};
use crate::render::{bytes, count, duration};
use kpat_model::Crossing;
use kpat_query::app::{Crossed, Held, Mark, Metric, Series, Tcp};
use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 112.0;
const RIGHT: f64 = 8.0;
const KEY: f64 = 16.0;

pub const STYLE: &str = "
svg.app { font-size: 11px; --written: #c07a10; --read: #a844b5; --sent: #168a66; --received: #3b6fd0; --again: #c2560a; --a: #2f56d3; --b: #12807a; --c: #c2560a; --d: #a844b5; --e: #7050cc; --bad: #c62834; --idle: #b4bdca; }
svg.app .title { font-weight: 600; }
svg.app .grid, svg.app .base { stroke: var(--line); }
svg.app .curve { fill: none; stroke-width: 1.4; }
svg.app .dashed { stroke-dasharray: 5 3; }
svg.app .band { stroke: none; fill-opacity: .35; }
svg.app .range { fill-opacity: .75; }
svg.app .area { stroke: none; fill-opacity: .22; }
@media (prefers-color-scheme: dark) {
  svg.app { --written: #e0a545; --read: #cf7bdb; --sent: #3fbd94; --received: #6d97f0; --again: #ee8a3c; --a: #86a5ff; --b: #35b8a8; --c: #ee8a3c; --d: #cf7bdb; --e: #a48cf0; --bad: #f0616a; --idle: #48536a; }
}
";

enum Axis {
    Plain,
    /// Little is seen beside much.
    Root,
    Logarithmic,
}

enum Look {
    Line,
    Dashed,
    Area,
    /// From zero, in each bin for itself.
    Bars,
    /// From the least to the greatest, in each bin for itself.
    Range,
}

struct Curve {
    name: &'static str,
    color: &'static str,
    look: Look,
    low: Vec<Option<f64>>,
    high: Vec<Option<f64>>,
    last: Vec<Option<f64>>,
}

struct Lane {
    title: &'static str,
    tall: f64,
    axis: Axis,
    low: f64,
    high: f64,
    show: fn(f64) -> String,
    curves: Vec<Curve>,
}

impl Lane {
    /// 0 at the lower end, 1 at the upper.
    fn up(&self, v: f64) -> f64 {
        let bend = |v: f64| match self.axis {
            Axis::Plain => v,
            Axis::Root => v.abs().sqrt().copysign(v),
            Axis::Logarithmic => v.max(self.low).max(1e-9).ln(),
        };
        let (low, high) = (bend(self.low), bend(self.high));
        if high > low { (bend(v) - low) / (high - low) } else { 0.5 }
    }
}

fn size(v: f64) -> String {
    bytes(v.abs().round() as u64)
}

fn rate(v: f64) -> String {
    format!("{}/s", size(v))
}

fn time(v: f64) -> String {
    duration(v as i64)
}

fn number(v: f64) -> String {
    count(v.max(0.0) as u64)
}

/// Bytes of the first of these crossings that the log has, a second.
fn bars(s: &Series, name: &'static str, color: &'static str, of: &[Crossing], sign: f64) -> Option<Curve> {
    let crossed: &Vec<Crossed> = of.iter().find_map(|c| s.crossings.get(c))?;
    let value = |(bin, c): (usize, &Crossed)| {
        let wide = (s.edge(bin + 1) - s.edge(bin)).max(1) as f64;
        (c.bytes > 0).then(|| sign * c.bytes as f64 * 1e9 / wide)
    };
    let high: Vec<Option<f64>> = crossed.iter().enumerate().map(value).collect();
    Some(Curve { name, color, look: Look::Bars, low: Vec::new(), last: Vec::new(), high })
}

fn traffic(s: &Series) -> Vec<Lane> {
    use Crossing::*;
    let application =
        [bars(s, "written", "written", &[Send, ToTransport], 1.0), bars(s, "read", "read", &[Recv], -1.0)];
    let network = [
        bars(s, "sent", "sent", &[ToDriver, ToDevice, ToNetwork], 1.0),
        bars(s, "sent again", "again", &[Retransmit], 1.0),
        bars(s, "received", "received", &[FromDevice, FromNetwork, ToSocket], -1.0),
    ];
    let all = || application.iter().chain(&network).flatten().flat_map(|c| c.high.iter().flatten());
    // One scale for both, or they could not be compared.
    let (low, high) = all().fold((0.0, 1.0), |(l, h): (f64, f64), v| (l.min(*v), h.max(*v)));
    let lane = |title, curves: Vec<Curve>| Lane {
        title,
        tall: 76.0,
        axis: Axis::Root,
        low,
        high,
        show: rate,
        curves,
    };
    vec![
        lane("Application", application.into_iter().flatten().collect()),
        lane("Network", network.into_iter().flatten().collect()),
    ]
}

/// Of one write and of one packet, or of one read and of one packet, whichever has more bytes.
fn sizes(s: &Series) -> Option<Lane> {
    use Crossing::*;
    let first = |of: &[Crossing]| of.iter().find_map(|c| s.crossings.get(c));
    let bytes = |of: Option<&Vec<Crossed>>| of.map_or(0, |c| c.iter().map(|c| c.bytes).sum::<i64>());
    let (written, read) = (first(&[Send, ToTransport]), first(&[Recv]));
    let of = match bytes(written) >= bytes(read) {
        true => [
            ("one write", "written", written),
            ("one packet", "sent", first(&[ToDevice, ToDriver, ToNetwork])),
        ],
        false => [
            ("one read", "read", read),
            ("one packet", "received", first(&[FromDevice, FromNetwork, ToSocket])),
        ],
    };
    let curve = |(name, color, of): (&'static str, &'static str, Option<&Vec<Crossed>>)| {
        let each = |value: fn(&Crossed) -> i64| -> Vec<Option<f64>> {
            of.into_iter().flatten().map(|c| (c.most > 0).then(|| value(c).max(1) as f64)).collect()
        };
        let (low, high) = (each(|c| c.least), each(|c| c.most));
        high.iter().any(Option::is_some).then_some(Curve {
            name,
            color,
            look: Look::Range,
            low,
            high,
            last: Vec::new(),
        })
    };
    let curves: Vec<Curve> = of.into_iter().filter_map(curve).collect();
    let high = curves.iter().flat_map(|c| c.high.iter().flatten()).fold(0.0, |h: f64, v| h.max(*v));
    (high > 0.0).then_some(Lane {
        title: "Sizes",
        tall: 76.0,
        axis: Axis::Logarithmic,
        low: 1.0,
        high,
        show: size,
        curves,
    })
}

type Drawn = (Metric, &'static str, &'static str, Look);

fn lane(tcp: &Tcp, title: &'static str, axis: Axis, show: fn(f64) -> String, of: Vec<Drawn>) -> Option<Lane> {
    let floats = |v: &[Option<i64>]| v.iter().map(|n| n.map(|n| n as f64)).collect::<Vec<_>>();
    let curve = |(metric, name, color, look): Drawn| {
        let t = tcp.track(metric);
        let (low, high, last) = (floats(&t.low), floats(&t.high), floats(&t.last));
        high.iter().any(Option::is_some).then_some(Curve { name, color, look, low, high, last })
    };
    let curves: Vec<Curve> = of.into_iter().filter_map(curve).collect();
    let high = curves.iter().flat_map(|c| c.high.iter().flatten()).fold(0.0, |h: f64, v| h.max(*v));
    let least = curves.iter().flat_map(|c| c.low.iter().flatten()).filter(|v| **v > 0.0);
    let low = match axis {
        Axis::Logarithmic => least.fold(high, |l: f64, v| l.min(*v)),
        _ => 0.0,
    };
    (high > 0.0).then_some(Lane { title, tall: 88.0, axis, low, high, show, curves })
}

fn lanes(s: &Series) -> Vec<Lane> {
    use Metric::*;
    let mut all = traffic(s);
    all.extend(sizes(s));
    let Some(tcp) = &s.tcp else { return all };
    let of_state = [
        lane(
            tcp,
            "Window",
            Axis::Plain,
            number,
            vec![
                (InFlight, "in flight, segments", "b", Look::Area),
                (Cwnd, "congestion window", "a", Look::Line),
                (Ssthresh, "slow start threshold", "c", Look::Dashed),
            ],
        ),
        lane(
            tcp,
            "Round trip",
            Axis::Logarithmic,
            time,
            vec![
                (Rttvar, "variation", "b", Look::Line),
                (Srtt, "round trip", "a", Look::Line),
                (Rto, "timeout", "c", Look::Dashed),
            ],
        ),
        lane(
            tcp,
            "Buffers",
            Axis::Plain,
            size,
            vec![
                (Unacked, "not acknowledged", "b", Look::Area),
                (SndWnd, "offered by the other side", "a", Look::Line),
                (RcvWnd, "offered to it", "d", Look::Dashed),
            ],
        ),
        lane(
            tcp,
            "Rates",
            Axis::Logarithmic,
            rate,
            vec![(Delivery, "delivery", "a", Look::Line), (Pacing, "pacing", "e", Look::Dashed)],
        ),
    ];
    all.extend(of_state.into_iter().flatten());
    all
}

pub fn color(held: Held) -> &'static str {
    match held {
        Held::Application => "idle",
        Held::CongestionWindow => "a",
        Held::ReceiveWindow => "d",
        Held::Reader => "read",
        Held::Retransmission => "again",
        Held::SendBuffer => "written",
        Held::Pacing => "e",
        Held::Device => "b",
        Held::PacingOrDevice => "c",
    }
}

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

/// Round marks for an axis: their distance, the unit with its name, and the decimals that tell them apart.
fn steps(from_ns: i64, to_ns: i64) -> (i64, f64, &'static str, usize) {
    let rough = ((to_ns - from_ns) / 10).max(1);
    let power = 10i64.pow(rough.ilog10());
    let step = [1, 2, 5, 10].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(power);
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
    let far = from_ns.abs().max(to_ns.abs()) as f64;
    let (unit, name) = units.into_iter().find(|(u, _)| far >= *u).unwrap_or((1.0, "ns"));
    (step, unit, name, (-(step as f64 / unit).log10() - 1e-9).ceil().max(0.0) as usize)
}

/// A drawing being made.
struct Sheet<'a> {
    s: &'a Series,
    body: String,
}

impl Sheet<'_> {
    fn x(&self, at_ns: i64) -> f64 {
        let whole = (self.s.to_ns - self.s.from_ns).max(1) as f64;
        LEFT + (at_ns - self.s.from_ns) as f64 / whole * (WIDTH - LEFT - RIGHT)
    }

    fn edge(&self, bin: usize) -> f64 {
        self.x(self.s.edge(bin))
    }

    fn say(&mut self, x: f64, y: f64, class: &str, words: &str) {
        let _ =
            writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", text(words));
    }

    fn say_right(&mut self, y: f64, words: &str) {
        let (x, words) = (LEFT - 6.0, text(words));
        let _ = writeln!(
            self.body,
            "<text x=\"{x}\" y=\"{y:.1}\" class=\"faint\" text-anchor=\"end\">{words}</text>"
        );
    }

    fn path(&mut self, class: &str, paint: &str, d: &str) {
        if !d.is_empty() {
            let _ = writeln!(self.body, "<path class=\"{class}\" style=\"{paint}\" d=\"{d}\"/>");
        }
    }

    fn axis(&mut self, start_ns: i64, top: f64, bottom: f64) {
        let (from, to) = (self.s.from_ns - start_ns, self.s.to_ns - start_ns);
        let (step, unit, name, decimals) = steps(from, to);
        self.say(8.0, top + 13.0, "faint", &format!("at {name}"));
        for mark in from.div_euclid(step) + i64::from(from.rem_euclid(step) > 0)..=to.div_euclid(step) {
            let x = self.x(mark * step + start_ns);
            let _ = writeln!(
                self.body,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.0}\" y2=\"{bottom:.0}\"/>",
                top + 4.0
            );
            if x < WIDTH - 40.0 {
                let words = format!("{:.decimals$}", (mark * step) as f64 / unit);
                self.say(x + 3.0, top + 13.0, "faint", &words);
            }
        }
    }

    fn marks(&mut self, mut y: f64) -> f64 {
        for (mark, counts) in self.s.marks.clone() {
            let (color, shape) = shape(mark);
            self.say(8.0, y + 11.0, "", mark.name());
            let mut last = f64::MIN;
            for (bin, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
                let x = (self.edge(bin) + self.edge(bin + 1)) / 2.0;
                // One stands for all within its own width.
                if x - last < 7.0 {
                    continue;
                }
                last = x;
                let _ = writeln!(
                    self.body,
                    "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" style=\"fill:var(--{color})\">{shape}<title>{} × \
                     {}</title></text>",
                    y + 11.0,
                    count(*n),
                    mark.name(),
                );
            }
            y += 15.0;
        }
        y + 6.0
    }

    fn keys(&mut self, y: f64, keys: &[(&str, &str)]) {
        let mut x = LEFT + 6.0;
        for (name, color) in keys {
            let _ = writeln!(
                self.body,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"9\" height=\"8\" style=\"fill:var(--{color})\"/>",
                y + 3.0
            );
            self.say(x + 13.0, y + 11.0, "", name);
            x += 28.0 + 6.2 * name.chars().count() as f64;
        }
    }

    fn lane(&mut self, l: &Lane, top: f64) {
        let y = |v: f64| top + l.tall - 1.0 - l.up(v) * (l.tall - KEY - 1.0);
        self.say(8.0, top + 11.0, "title", l.title);
        self.say_right(top + KEY + 8.0, &(l.show)(l.high));
        if !matches!(l.axis, Axis::Root) || l.low < 0.0 {
            self.say_right(top + l.tall - 1.0, &(l.show)(l.low));
        }
        let base = y(if matches!(l.axis, Axis::Root) { 0.0 } else { l.low });
        let _ = writeln!(
            self.body,
            "<line class=\"base\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{base:.1}\" y2=\"{base:.1}\"/>",
            WIDTH - RIGHT
        );
        for c in &l.curves {
            let color = c.color;
            if matches!(c.look, Look::Bars) {
                let mut d = String::new();
                for (bin, v) in c.high.iter().enumerate().filter_map(|(i, v)| Some((i, (*v)?))) {
                    let (a, b, top) = (self.edge(bin), self.edge(bin + 1), y(v));
                    let top = if (base - top).abs() < 1.0 { base - 1f64.copysign(v) } else { top };
                    let _ = write!(d, "M{a:.1} {base:.1}V{top:.1}H{:.1}V{base:.1}z", b.max(a + 0.8));
                }
                self.path("", &format!("fill:var(--{color})"), &d);
                continue;
            }
            if matches!(c.look, Look::Range) {
                let mut d = String::new();
                for (bin, (low, high)) in c.low.iter().zip(&c.high).enumerate() {
                    let (Some(low), Some(high)) = (low, high) else { continue };
                    let (a, b) = (self.edge(bin), self.edge(bin + 1).max(self.edge(bin) + 2.0));
                    let (top, bottom) = (y(*high) - 1.2, y(*low) + 1.2);
                    let _ = write!(d, "M{a:.1} {bottom:.1}V{top:.1}H{b:.1}V{bottom:.1}z");
                }
                self.path("range", &format!("fill:var(--{color})"), &d);
                continue;
            }
            let (mut band, mut area, mut line) = (String::new(), String::new(), String::new());
            let mut on = false;
            for (bin, last) in c.last.iter().enumerate() {
                let (a, b) = (self.edge(bin), self.edge(bin + 1));
                if let (Some(low), Some(high)) = (c.low[bin], c.high[bin]) {
                    if low < high {
                        let _ = write!(band, "M{a:.1} {:.1}H{b:.1}V{:.1}H{a:.1}z", y(high), y(low));
                    }
                    if matches!(c.look, Look::Area) && y(high) < base {
                        let _ = write!(area, "M{a:.1} {base:.1}V{:.1}H{b:.1}V{base:.1}z", y(high));
                    }
                }
                let Some(v) = last else {
                    on = false;
                    continue;
                };
                let _ = if on {
                    write!(line, "V{:.1}H{b:.1}", y(*v))
                } else {
                    write!(line, "M{a:.1} {:.1}H{b:.1}", y(*v))
                };
                on = true;
            }
            self.path("area", &format!("fill:var(--{color})"), &area);
            self.path("band", &format!("fill:var(--{color})"), &band);
            let class = if matches!(c.look, Look::Dashed) { "curve dashed" } else { "curve" };
            self.path(class, &format!("stroke:var(--{color})"), &line);
        }
        let keys: Vec<_> = l.curves.iter().map(|c| (c.name, c.color)).collect();
        self.keys(top, &keys);
    }

    fn held(&mut self, tcp: &Tcp, top: f64) {
        self.say(8.0, top + KEY + 12.0, "title", "Held back by");
        let mut paths = [const { String::new() }; Held::ALL.len()];
        let mut repairs = String::new();
        for bin in 0..self.s.bins {
            let all: i64 = Held::ALL.iter().map(|h| tcp.held_ns(*h)[bin]).sum();
            let (a, b) = (self.edge(bin), self.edge(bin + 1));
            let mut y = top + KEY;
            for h in Held::ALL {
                let tall = 16.0 * tcp.held_ns(h)[bin] as f64 / all.max(1) as f64;
                if tall > 0.0 {
                    let _ = write!(paths[h as usize], "M{a:.1} {y:.1}H{b:.1}v{tall:.1}H{a:.1}z");
                }
                y += tall;
            }
            if tcp.recovery_ns[bin] > 0 {
                let _ = write!(repairs, "M{a:.1} {:.1}H{b:.1}v3H{a:.1}z", top + KEY + 18.0);
            }
        }
        let mut keys = Vec::new();
        for (h, d) in Held::ALL.into_iter().zip(&paths).filter(|(_, d)| !d.is_empty()) {
            self.path("", &format!("fill:var(--{})", color(h)), d);
            keys.push((h.name(), color(h)));
        }
        if !repairs.is_empty() {
            self.path("", "fill:var(--bad)", &repairs);
            keys.push(("repairing losses (line)", "bad"));
        }
        self.keys(top, &keys);
    }

    fn gaps(&mut self, id: &str, top: f64, bottom: f64) {
        for g in &self.s.gaps {
            let (a, b) = (self.x(g.from_ns), self.x(g.to_ns));
            let _ = writeln!(
                self.body,
                "<rect x=\"{a:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"{:.0}\" fill=\"url(#gap-{id})\"><title>{} events are \
                 missing</title></rect>",
                top + 16.0,
                (b - a).max(3.0),
                bottom - top - 16.0,
                count(g.lost.max(0) as u64)
            );
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
    let mut sheet = Sheet { s, body: String::new() };
    if styled {
        sheet.say(8.0, 18.0, "head", title);
    }
    sheet.axis(start_ns, top, height);
    sheet.gaps(id, top, height);
    let mut y = sheet.marks(top + 20.0);
    for l in &lanes {
        sheet.lane(l, y);
        y += l.tall + 8.0;
    }
    if let Some(tcp) = &s.tcp {
        sheet.held(tcp, y);
    }
    let style = if styled { format!("<style>{}{STYLE}</style>\n", page::STYLE) } else { String::new() };
    format!(
        "<svg class=\"kpat app\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"100%\" \
         role=\"img\" aria-label=\"{} over time\">\n{style}<defs><pattern id=\"gap-{id}\" width=\"6\" height=\"6\" \
         patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"1.5\" height=\"6\" \
         style=\"fill:var(--bad)\" opacity=\".6\"/></pattern></defs>\n{}</svg>\n",
        text(title),
        sheet.body
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_an_axis_are_round_and_told_apart() {
        let ms = 1_000_000;
        assert_eq!(steps(0, 9_514 * ms), (1_000 * ms, 1e9, "s", 0));
        assert_eq!(steps(2_000 * ms, 2_400 * ms), (50 * ms, 1e9, "s", 2));
        assert_eq!(steps(0, 1000), (100, 1e3, "µs", 1));
        assert_eq!(steps(0, 1), (1, 1.0, "ns", 0));
        assert_eq!(steps(-5_000, 5_000), (1_000, 1e3, "µs", 0));
    }

    #[test]
    fn a_root_scale_is_the_same_up_and_down() {
        let lane = Lane {
            title: "",
            tall: 10.0,
            axis: Axis::Root,
            low: -4.0,
            high: 16.0,
            show: size,
            curves: Vec::new(),
        };
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(lane.up(-4.0), 0.0) && near(lane.up(16.0), 1.0) && near(lane.up(0.0), 1.0 / 3.0));
        assert!(near(lane.up(1.0) - lane.up(0.0), lane.up(0.0) - lane.up(-1.0)));
    }
}
