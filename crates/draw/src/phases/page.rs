//! The phases as a page: the picture, then the same as tables.

use super::picture::{drawing, in_order};
use super::rows::{self, share};
use super::study;
use crate::page::{row, table};
use crate::svg::escape;
use kpat_query::phases::PhaseReport;
use kpat_text::{capital, duration, percent, plural};
use std::fmt::Write as _;

/// A whole page. `figures`: those of the study, if asked for.
pub fn html(report: &PhaseReport, about: &str, figures: Option<&str>) -> String {
    let mut body = drawing(report, about) + "\n";
    for p in &report.passages {
        let passages = plural(p.count, "passage");
        let _ = writeln!(body, "<h2>{}, {passages}</h2>", escape(&capital(p.passage.name())));
        table(&mut body, &["phase"], &["passages", "share", "mean", "median", "p99"]);
        for f in in_order(p) {
            let wait = if f.phase.is_wait() { "wait: " } else { "" };
            let numbers = [
                f.time.count().to_string(),
                share(f, p),
                duration(f.time.mean().unwrap_or(0.0).round() as i64),
                duration(f.time.median().unwrap_or(0)),
                duration(f.time.quantile(0.99).unwrap_or(0)),
            ];
            row(&mut body, &format!("{wait}{}", escape(f.phase.label())), &[], &numbers);
        }
        body.push_str("</tbody></table>\n");
        for f in in_order(p).into_iter().filter(|f| rows::has(f)) {
            let functions = plural(f.functions.len() as u64, "function");
            let _ = write!(body, "<details><summary>{}: {functions}</summary>", escape(f.phase.label()));
            table(&mut body, &["function", "layer"], &["self, mean", "of phase"]);
            for part in rows::of(f, 0) {
                let numbers = [
                    duration(part.ns / (f.time.count().max(1) as i64)),
                    percent(part.ns.max(0).unsigned_abs(), f.time.sum().max(1).unsigned_abs()),
                ];
                row(&mut body, &escape(&part.name), &[&part.layer], &numbers);
            }
            body.push_str("</tbody></table></details>\n");
        }
    }
    if let Some(figures) = figures {
        body.push_str(figures);
        body.push_str("<h2>Beside the router study of 2009</h2>\n");
        table(
            &mut body,
            &["phase"],
            &["share here", "mean here", "share in the study", "of the CPU's four here", "in the study"],
        );
        for cells in study::rows(report) {
            row(&mut body, &escape(&cells[0]), &[], &cells[1..]);
        }
        body.push_str("</tbody></table>\n");
        for remark in study::remarks(report) {
            let _ = writeln!(body, "<p>{}</p>", escape(&remark));
        }
    }
    crate::page::html(&format!("Phases of packets, {about}"), "", &body)
}
