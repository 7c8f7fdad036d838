//! What a comparison allows and what one has to mind, in sentences: the same in text, JSON and the page.

use super::{Comparison, Run, Statistic};
use std::collections::BTreeSet;

/// From this common factor on it is a warning.
const MUCH: f64 = 1.05;
/// From this ratio on what could not have been seen is a warning.
const WIDE: f64 = 1.1;

/// A sentence and whether it is a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub words: String,
    pub warning: bool,
}

fn remark(warning: bool, words: impl Into<String>) -> Remark {
    Remark { words: words.into(), warning }
}

impl Comparison {
    /// What the number of runs allows, what moved everything at once, and what to mind; in this order.
    pub fn remarks(&self) -> Vec<Remark> {
        let mut out = vec![self.of_runs()];
        out.extend(self.least_ratio.map(|r| self.of_power(r)));
        out.extend(self.of_control());
        out.extend(self.minded.iter().map(|w| remark(true, w)));
        let unseen = self.functions.iter().filter(|f| !f.probed).count();
        if unseen > 0 {
            let which =
                if unseen == 1 { "1 function was".to_owned() } else { format!("{unseen} functions were") };
            out.push(remark(
                true,
                format!(
                    "{which} called and not probed in all runs: where it is not, its time is its caller's, and a path may \
                     begin later or end sooner"
                ),
            ));
        }
        out
    }

    fn of_runs(&self) -> Remark {
        let (a, b) = self.runs;
        match self.runs {
            (1, 1) => remark(
                true,
                "one run a side: differences between runs are not known; record each side 4 times or more, in turn",
            ),
            (1, _) | (_, 1) => {
                let side = if a == 1 { "A" } else { "B" };
                remark(true, format!("one run of {side}: differences between runs are not known"))
            }
            _ if !self.enough => remark(
                true,
                format!(
                    "{a} and {b} runs are too few to show a difference with 3 % of false alarms; 4 a side are enough"
                ),
            ),
            _ => remark(
                false,
                format!(
                    "{a} and {b} runs: at most 3 % of the ways to divide them between A and B give any row such a difference"
                ),
            ),
        }
    }

    fn of_power(&self, least: f64) -> Remark {
        let words =
            format!("a difference from {} % on would have been seen in the middle row", per_cent(least));
        let wide = least > WIDE;
        let more = match self.statistic {
            Statistic::Mean if wide => {
                "; runs of one side differ that much: more runs, or medians, which a few very slow calls do not move"
            }
            Statistic::Median if wide => "; runs of one side differ that much: more runs",
            _ => "",
        };
        remark(wide, words + more)
    }

    fn of_control(&self) -> Vec<Remark> {
        let c = &self.control;
        let much = |f: f64| f.max(1.0 / f) > MUCH;
        let mut out = Vec::new();
        match c.factor {
            Some(f) => {
                let by = if f.ratio >= 1.0 {
                    format!("{:.2} times slower", f.ratio)
                } else {
                    format!("{:.2} times faster", 1.0 / f.ratio)
                };
                out.push(remark(
                    much(f.ratio),
                    format!(
                        "all functions were {by} in B (middle of {}; half of them {} to {} %): the machine, or a change to all \
                         of them; what one function differs by is given beside it",
                        f.functions,
                        per_cent(f.quartiles.0),
                        per_cent(f.quartiles.1)
                    ),
                ));
            }
            None => out.push(remark(false, "too few functions are in all runs for a factor common to them")),
        }
        if let Some((a, b)) = c.ns_per_hit {
            out.push(remark(
                much(b / a),
                format!(
                    "a probe's own program took {a:.0} ns in A and {b:.0} ns in B ({} %)",
                    per_cent(b / a)
                ),
            ));
        }
        if c.one_after_other == Some(true) {
            out.push(remark(
                true,
                "one side was recorded after the other, not in turn: what changed with time is in every difference",
            ));
        }
        out
    }
}

fn per_cent(ratio: f64) -> String {
    // Not -0.0.
    format!("{:+.1}", ((ratio - 1.0) * 1_000.0).round() / 10.0 + 0.0)
}

/// What the logs themselves give to mind.
pub(super) fn minded(a: &[Run<'_>], b: &[Run<'_>]) -> Vec<String> {
    let mut out = Vec::new();
    let all = || a.iter().chain(b);
    let folder = |r: &Run<'_>| r.store.dir().canonicalize().ok();
    if a.len() == 1 && b.len() == 1 && folder(&a[0]) == folder(&b[0]) {
        out.push("A and B are the same log".to_owned());
    }
    let mechanisms: BTreeSet<&str> =
        all().map(|r| r.store.manifest.log.mechanism.as_str()).filter(|m| !m.is_empty()).collect();
    if mechanisms.len() > 1 {
        let names: Vec<&str> = mechanisms.into_iter().collect();
        out.push(format!(
            "recorded by {}: the time of a function contains that of its probes, which differ",
            names.join(" and ")
        ));
    }
    let filters: BTreeSet<&str> = all().map(|r| r.store.manifest.log.filter.as_str()).collect();
    if filters.len() > 1 {
        out.push("recorded with different filters: the packets are not the same kind".to_owned());
    }
    if all().any(|r| r.report.subtracted) {
        out.push("times are estimates: the probes' own cost is subtracted".to_owned());
    }
    out
}
