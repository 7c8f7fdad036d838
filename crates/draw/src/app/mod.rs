//! The traffic of applications: pictures over time, and a page with every socket.

mod lanes;
mod page;
mod picture;

pub use page::{Page, html};

use kpat_query::app::{self, Series, Traffic};

/// About as many as the picture has pixels to spare for each.
pub const BINS: usize = 400;

/// Whose traffic a picture shows.
fn name(t: &Traffic) -> String {
    let process = t.user().unwrap_or_else(|| "process not known".to_owned());
    let (own, far) = app::ends(&t.socket);
    let ends = far.map_or_else(|| own.clone(), |far| format!("{own} > {far}"));
    format!("{process}, {} {ends}", app::protocol(t.socket.proto))
}

/// A whole SVG document of one socket, or without one of all in sum.
pub fn svg(one: Option<&Traffic>, s: &Series, start_ns: i64) -> String {
    let title = one.map_or_else(|| "All sockets".to_owned(), name);
    crate::svg::document(&picture::drawing(&title, "x", s, start_ns, true))
}
