//! A handover as a picture: its phases over time, and beneath them what was heard on the air, what the kernel did, what was exchanged, and the
//! gap that an application saw.

mod page;
mod picture;

pub use page::html;

use kpat_query::handover::Handover;

/// A whole SVG document of one handover.
pub fn svg(h: &Handover, about: &str) -> String {
    crate::svg::document(&picture::drawing(h, about))
}
