//! What a phase consists of, row by row: the one source of text, picture and page. The rows of a phase add up to it.

use kpat_query::phases::{PassageTime, PhaseReport, PhaseTime};
use kpat_text::{count, duration, percent, plural};

/// A part of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    pub layer: String,
    /// `None`: not a function, or several.
    pub passages: Option<u64>,
    /// Sum over all passages.
    pub ns: i64,
}

/// Is there anything to tell of what it consists of?
pub fn has(f: &PhaseTime) -> bool {
    f.phase.is_work() && !f.functions.is_empty()
}

/// Of a phase in all passages of its kind.
pub fn share(f: &PhaseTime, p: &PassageTime) -> String {
    percent(f.time.sum().max(0).unsigned_abs(), p.time.sum().max(0).unsigned_abs())
}

/// The first `most` functions (0: all), the others together, the driver before any of them, and what is outside of all.
pub fn of(f: &PhaseTime, most: usize) -> Vec<Row> {
    let most = if most == 0 { f.functions.len() } else { most };
    let mut out: Vec<Row> = f
        .functions
        .iter()
        .take(most)
        .map(|g| Row {
            name: g.name.clone(),
            layer: g.layer.clone(),
            passages: Some(g.passages),
            ns: g.self_ns,
        })
        .collect();
    let mut further = |name: String, ns: i64| {
        if ns > 0 {
            out.push(Row { name, layer: String::new(), passages: None, ns });
        }
    };
    let rest = f.functions.iter().skip(most);
    let (n, ns) = rest.fold((0, 0i64), |(n, ns), g| (n + 1, ns.saturating_add(g.self_ns)));
    further(format!("{n} more"), ns);
    further("driver, before a function has it".to_owned(), f.unseen.0);
    further("outside of them".to_owned(), f.uncovered_ns);
    out
}

/// DMA rx of each card of which it can be estimated: beside the rows, as it is part of no sum.
pub fn estimates(report: &PhaseReport) -> Vec<String> {
    let time = |ns: f64| duration(ns.round() as i64);
    let words = |c: &kpat_query::phases::CardRx| {
        let b = c.dma.as_ref().ok()?;
        Some(format!(
            "{} ({}): {} a packet, estimate, second method: {} batches back to back in {}, of {:.1} packets on average, {} to {} in {}; \
             in no sum",
            c.name,
            c.driver,
            time(b.mean_ns),
            count(b.batches),
            plural(b.runs, "run"),
            b.packets as f64 / b.batches as f64,
            time(b.low_ns),
            time(b.high_ns),
            if b.batches < 20 {
                "all".to_owned()
            } else {
                format!("{} of them", count(b.batches - 2 * (b.batches / 20)))
            },
        ))
    };
    report.cards.iter().filter_map(words).collect()
}

/// DMA rx of each card that stamps what it receives.
pub fn measured(report: &PhaseReport) -> Vec<String> {
    let words = |c: &kpat_query::phases::CardRx| {
        let s = &c.stamps;
        let known = match s.known {
            0 => "its clock is not known at any of them".to_owned(),
            n if n == s.stamped => format!("each within ±{}", duration(s.bound_ns)),
            n => format!("{} of them have a time, each within ±{}", count(n), duration(s.bound_ns)),
        };
        let (stamped, received) = (count(s.stamped), plural(s.received, "packet"));
        (s.stamped > 0).then(|| {
            format!(
                "{} ({}): by the card's own time stamps of {stamped} of {received}; {known}",
                c.name, c.driver
            )
        })
    };
    report.cards.iter().filter_map(words).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_query::phases::{BackToBack, CardRx, CardStamps, FunctionShare, Passage, PassageTime, Phase};
    use kpat_query::time::Spread;

    /// Link rx of which the driver has the largest part before any function: rows, picture and page have it, and add up.
    #[test]
    fn the_drivers_part_is_in_every_form() {
        let mut time = Spread::default();
        time.push(1_000);
        let function = |i: i32| FunctionShare {
            func_id: i,
            name: format!("f{i}"),
            layer: "link".to_owned(),
            self_ns: 40,
            passages: 1,
        };
        let phase = PhaseTime {
            phase: Phase::LinkRx,
            time: time.clone(),
            share: 1.0,
            functions: (0..10).map(function).collect(),
            uncovered_ns: 155,
            unseen: (445, 1),
        };
        for most in [0, 1, 6, 10, 20] {
            let rows = of(&phase, most);
            assert_eq!(rows.iter().map(|r| r.ns).sum::<i64>(), 1_000, "{most}");
            assert!(rows.iter().any(|r| r.name == "driver, before a function has it" && r.ns == 445));
        }
        let passage = PassageTime { passage: Passage::Forwarded, count: 1, time, phases: vec![phase] };
        let report = PhaseReport {
            packets: 1,
            passages: vec![passage],
            missing: Vec::new(),
            cards: vec![CardRx {
                netns: 1,
                ifindex: 2,
                name: "r0".to_owned(),
                driver: "e1000e".to_owned(),
                polls: 9,
                dma: Ok(BackToBack {
                    runs: 2,
                    batches: 8,
                    packets: 512,
                    mean_ns: 5_000.0,
                    low_ns: 4_000.0,
                    high_ns: 6_000.0,
                }),
                stamps: CardStamps { received: 500, stamped: 480, known: 470, bound_ns: 1_200 },
            }],
            points_only: false,
            open_sums: 0,
            emulator: None,
        };
        let svg = crate::phases::svg(&report, "x");
        let bars = svg.split("<rect class=\"part ").skip(1);
        let widths = bars.map(|r| r.split("width=\"").nth(1).unwrap().split('"').next().unwrap());
        let sum: f64 = widths.map(|w| w.parse::<f64>().unwrap()).sum();
        assert!((sum - 300.0).abs() < 0.1, "{sum}");
        assert!(svg.contains("driver, before a function has it") && svg.contains("44.5 %"));
        let html = crate::phases::html(&report, "x", None);
        assert_eq!(html.matches("driver, before a function has it").count(), 2, "picture and table");
        let estimate = "r0 (e1000e): 5.000 µs a packet, estimate, second method: 8 batches back to back in 2 runs, of 64.0 packets";
        assert!(svg.contains(estimate) && html.contains(estimate), "{:?}", estimates(&report));
        let stamps = "r0 (e1000e): by the card's own time stamps of 480 of 500 packets; 470 of them have a time, each within ±1.200 µs";
        assert_eq!(measured(&report), [stamps]);
        assert!(svg.contains("480 of 500 packets"));
    }
}
