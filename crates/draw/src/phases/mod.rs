//! The phases of packets: the picture, a page, the figures of the router study of 2009, and the rows that these and the text have in common.

mod figures;
mod page;
mod picture;
pub mod rows;
pub mod study;

pub use figures::figures;
pub use page::html;

use kpat_query::phases::PhaseReport;

/// A whole SVG document.
pub fn svg(report: &PhaseReport, about: &str) -> String {
    crate::svg::document(&picture::drawing(report, about))
}
