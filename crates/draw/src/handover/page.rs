//! Handovers as a page: of each the picture and its phases as a table; of several their statistics.

use super::picture::{class, drawing, summary};
use crate::page::{row, table};
use crate::style;
use crate::svg::escape;
use kpat_query::handover::{Handover, Statistics};
use kpat_text::{duration, percent};
use std::fmt::Write as _;

/// A whole page.
pub fn html(all: &[&Handover], about: &str) -> String {
    let mut body = format!("<h1>Handovers</h1>\n<p>{}</p>\n", escape(about));
    for h in all {
        let _ = writeln!(body, "{}", drawing(h, about));
        let _ = writeln!(body, "<p>{}; {}</p>", escape(&summary(h)), escape(h.ended.words()));
        table(&mut body, &["phase", "began by", "known by", "why"], &["at", "time", "share"]);
        for s in &h.spans {
            let numbers = [
                duration(s.from_ns - h.begin_ns),
                duration(s.dur_ns()),
                percent(s.dur_ns().max(0).unsigned_abs(), h.whole_ns().max(1).unsigned_abs()),
            ];
            let head =
                format!("<i class=\"dot {}\"></i> {}", class(s.phase.group()), escape(s.phase.label()));
            let why = s.why.as_deref().unwrap_or_default();
            row(&mut body, &head, &[&s.begin.words(), &s.begin.evidence(), why], &numbers);
        }
        body.push_str("</tbody></table>\n");
        if !h.refusals.is_empty() {
            let _ = writeln!(body, "<p>Failed attempts: {}</p>", escape(&h.refusals.join("; ")));
        }
        if let Some(words) = h.loss_words() {
            let _ = writeln!(body, "<p>{}</p>", escape(&words));
        }
        if let Some(g) = &h.flow {
            let _ = writeln!(body, "<p>{}</p>", escape(&g.sentence()));
        }
    }
    if all.len() > 1 {
        let sums = Statistics::of(all.iter().copied());
        let _ = writeln!(body, "<h2>{}</h2>", escape(&sums.words()));
        table(&mut body, &["phase"], &["in", "median", "longest", "of handover"]);
        for p in &sums.phases {
            let numbers =
                [p.count.to_string(), duration(p.median_ns), duration(p.max_ns), p.longest.to_string()];
            row(&mut body, &escape(p.phase.label()), &[], &numbers);
        }
        body.push_str("</tbody></table>\n");
    }
    crate::page::html("Handovers", style::HANDOVER_PAGE, &body)
}
