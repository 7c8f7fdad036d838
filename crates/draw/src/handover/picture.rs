//! The picture of one handover.

use crate::scale::Ticks;
use crate::style;
use crate::svg::{Frame, Name, Px, Sheet, WIDTH};
use kpat_query::handover::{Group, Handover, Lane, Mark};
use kpat_text::{duration, percent, shorten};

const MARGIN: f64 = 24.0;
/// Names of phases and lanes stand before this.
const LEFT: f64 = 190.0;
/// Times and shares stand behind this.
const RIGHT: f64 = WIDTH - 150.0;
const ROW: f64 = 20.0;
const LANE: f64 = 24.0;

struct Axis {
    begin_ns: i64,
    from_ns: i64,
    to_ns: i64,
}

impl Axis {
    fn at(&self, ns: i64) -> f64 {
        let part = (ns.clamp(self.from_ns, self.to_ns) - self.from_ns) as f64
            / (self.to_ns - self.from_ns).max(1) as f64;
        LEFT + part * (RIGHT - LEFT)
    }
}

pub(super) fn class(group: Group) -> &'static str {
    match group {
        Group::Decision => "h-decision",
        Group::Search => "h-search",
        Group::Join => "h-join",
        Group::Keys => "h-keys",
        Group::Network => "h-network",
        Group::Unknown => "h-unknown",
    }
}

pub(super) fn drawing(h: &Handover, about: &str) -> String {
    let mut sheet = Sheet::default();
    // What an application missed is part of the picture.
    let gap = h.flow.as_ref();
    let from_ns = gap.map_or(h.begin_ns, |g| g.last_ns.min(h.begin_ns));
    let to_ns = gap.and_then(|g| g.first_ns).map_or(h.end_ns, |at| at.max(h.end_ns));
    let room = (to_ns - from_ns) / 50;
    let axis = Axis { begin_ns: h.begin_ns, from_ns: from_ns - room, to_ns: (to_ns + room).max(from_ns + 1) };
    let mut y = MARGIN + 16.0;
    let title = format!("Handover {}", h.number);
    sheet.text(Px(MARGIN, 0), Px(y, 0), "head", &title);
    y += ROW;
    sheet.text(Px(MARGIN, 0), Px(y, 0), "", &shorten(&h.headline(), 130));
    y += ROW;
    sheet.text(Px(MARGIN, 0), Px(y, 0), "faint", &shorten(&summary(h), 150));
    y += ROW;
    sheet.text(Px(MARGIN, 0), Px(y, 0), "faint", &shorten(about, 130));
    sheet.end_line();
    y += ROW * 1.6;
    let (top, rows) = (y, h.phases());
    let bottom = y
        + ROW * (rows.len() + 1) as f64
        + LANE * (lanes(h).len() + h.beside.len() + usize::from(gap.is_some())) as f64;
    grid(&mut sheet, &axis, top - 6.0, bottom);
    moments(&mut sheet, &axis, h, top - 6.0, bottom);
    // All on one line, then each on its own.
    sheet.text_before(Px(LEFT - 10.0, 0), Px(y + 13.0, 0), "phase", "all phases");
    for s in &h.spans {
        bar(
            &mut sheet,
            &axis,
            y,
            (s.from_ns, s.to_ns),
            class(s.phase.group()),
            &format!("{}, {}", s.phase.label(), duration(s.dur_ns())),
        );
    }
    sheet.text(Px(RIGHT + 10.0, 0), Px(y + 13.0, 0), "phase", &duration(h.whole_ns()));
    sheet.end_line();
    y += ROW;
    for (phase, spans) in rows {
        sheet.text_before(Px(LEFT - 10.0, 0), Px(y + 13.0, 0), "", phase.label());
        let all: i64 = spans.iter().map(|s| s.dur_ns()).sum();
        for s in spans {
            let why = s.why.as_deref().map(|w| format!(": {w}")).unwrap_or_default();
            let words = format!("{}, {}{why}", phase.label(), duration(s.dur_ns()));
            bar(&mut sheet, &axis, y, (s.from_ns, s.to_ns), class(phase.group()), &words);
        }
        let share = percent(all.max(0).unsigned_abs(), h.whole_ns().max(1).unsigned_abs());
        sheet.text(Px(RIGHT + 10.0, 0), Px(y + 13.0, 0), "faint", &format!("{}, {share}", duration(all)));
        sheet.end_line();
        y += ROW;
    }
    for lane in lanes(h) {
        y = lane_of(&mut sheet, &axis, lane.name(), h.on_lane(lane), y);
    }
    for b in &h.beside {
        let within = |m: &&kpat_query::handover::Mark| (axis.from_ns..=axis.to_ns).contains(&m.at_ns);
        y = lane_of(
            &mut sheet,
            &axis,
            &shorten(&b.name, 26),
            b.marks.iter().filter(within).map(|m| (m.at_ns, m)),
            y,
        );
    }
    if let Some(g) = gap {
        sheet.text_before(Px(LEFT - 10.0, 0), Px(y + 15.0, 0), "", "application");
        let end = g.first_ns.unwrap_or(axis.to_ns);
        let words = format!("{}: nothing received for {}", g.words, duration(end - g.last_ns));
        bar(&mut sheet, &axis, y + 2.0, (g.last_ns, end), "h-gap", &words);
        sheet.text(
            Px(RIGHT + 10.0, 0),
            Px(y + 15.0, 0),
            "faint",
            &format!("{} gap", duration(end - g.last_ns)),
        );
        sheet.end_line();
        y += LANE;
    }
    y = times(&mut sheet, &axis, y + 12.0);
    key(&mut sheet, y + 24.0);
    let frame = Frame {
        class: "kpat",
        name: Name::Title(&format!("Handover {}, {}", h.number, h.headline())),
        height: y + 24.0 + MARGIN,
        style: &[style::BASE, style::HANDOVER],
        hatch: None,
    };
    frame.around(&sheet)
}

/// Times that papers name.
pub(super) fn summary(h: &Handover) -> String {
    let mut words = vec![format!("{} in all", duration(h.whole_ns()))];
    if let Some(ns) = h.link_ns() {
        words.push(format!("link-down to link-up {}", duration(ns)));
        if let Some(search) = h.search_ns() {
            let share = percent(search.max(0).unsigned_abs(), ns.max(1).unsigned_abs());
            if search <= ns {
                words.push(format!("until the authentication {} ({share} of that)", duration(search)));
            }
        }
    }
    if let Some(ns) = h.outage_ns() {
        words.push(format!("without data {}", duration(ns)));
    }
    words.join(", ")
}

fn lanes(h: &Handover) -> Vec<Lane> {
    Lane::ALL.into_iter().filter(|lane| h.on_lane(*lane).next().is_some()).collect()
}

fn bar(sheet: &mut Sheet, axis: &Axis, y: f64, (from, to): (i64, i64), class: &str, title: &str) {
    let (a, b) = (axis.at(from), axis.at(to));
    let part = sheet.element("rect").set("class", format_args!("p {class}")).at(Px(a, 2), Px(y, 0));
    // What there is is seen, however short.
    part.size(Px((b - a).max(1.2), 2), Px(16.0, 0)).titled("", title);
}

fn lane_of<'a>(
    sheet: &mut Sheet,
    axis: &Axis,
    name: &str,
    marks: impl Iterator<Item = (i64, &'a Mark)>,
    y: f64,
) -> f64 {
    sheet.text_before(Px(LEFT - 10.0, 0), Px(y + 15.0, 0), "", name);
    let line = sheet.element("line").set("class", "base").set("x1", Px(LEFT, 0)).set("x2", Px(RIGHT, 0));
    line.set("y1", Px(y + 18.0, 0)).set("y2", Px(y + 18.0, 0)).end();
    let mut count = 0u64;
    let mut last = f64::NEG_INFINITY;
    for (at_ns, m) in marks {
        count += 1;
        let x = axis.at(at_ns);
        // One line stands for all within its width.
        if x - last < 0.5 {
            continue;
        }
        last = x;
        let words = format!("{} at {}: {}", m.words(), duration(at_ns - axis.begin_ns), m.evidence());
        let tick = sheet.element("rect").set("class", "h-mark").at(Px(x - 0.7, 2), Px(y + 4.0, 0));
        tick.size(Px(1.4, 1), Px(14.0, 0)).titled("", &words);
    }
    let words = if count == 1 { "1 mark".to_owned() } else { format!("{count} marks") };
    sheet.text(Px(RIGHT + 10.0, 0), Px(y + 15.0, 0), "faint", &words);
    sheet.end_line();
    y + LANE
}

fn grid(sheet: &mut Sheet, axis: &Axis, top: f64, bottom: f64) {
    for (at, _) in Ticks::between(axis.from_ns - axis.begin_ns, axis.to_ns - axis.begin_ns).marks() {
        let x = Px(axis.at(at + axis.begin_ns), 2);
        let line = sheet.element("line").set("class", "grid").set("x1", x).set("x2", x);
        line.set("y1", Px(top, 0)).set("y2", Px(bottom, 0)).end();
    }
    sheet.end_line();
}

/// The moments that have names, with the names above.
fn moments(sheet: &mut Sheet, axis: &Axis, h: &Handover, top: f64, bottom: f64) {
    let mut last = f64::NEG_INFINITY;
    for (name, at) in h.moments() {
        let x = axis.at(at);
        let line = sheet.element("line").set("class", "moment").set("x1", Px(x, 2)).set("x2", Px(x, 2));
        line.set("y1", Px(top, 0)).set("y2", Px(bottom, 0)).end();
        // Where there is no room the line alone stands.
        if x - last > 62.0 {
            sheet.text(Px(x + 3.0, 1), Px(top - 3.0, 0), "small", name);
            last = x;
        }
    }
    sheet.end_line();
}

fn times(sheet: &mut Sheet, axis: &Axis, y: f64) -> f64 {
    let ticks = Ticks::between(axis.from_ns - axis.begin_ns, axis.to_ns - axis.begin_ns);
    for (at, words) in ticks.marks() {
        let x = Px(axis.at(at + axis.begin_ns), 1);
        sheet
            .element("text")
            .at(x, Px(y, 0))
            .set("class", "faint small")
            .set("text-anchor", "middle")
            .words(&words);
    }
    let words = format!("{} since it began", ticks.unit);
    sheet.text(Px(RIGHT + 24.0, 0), Px(y, 0), "faint small", &words);
    sheet.end_line();
    y
}

fn key(sheet: &mut Sheet, y: f64) {
    let mut x = LEFT;
    for g in Group::ALL {
        let dot = sheet.element("rect").set("class", format_args!("p {}", class(g)));
        dot.at(Px(x, 0), Px(y - 11.0, 0)).size(Px(13.0, 0), Px(13.0, 0)).end();
        sheet.text(Px(x + 18.0, 0), Px(y, 0), "small", g.name());
        x += 92.0;
    }
    sheet.end_line();
}
