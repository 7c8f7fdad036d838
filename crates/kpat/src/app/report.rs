//! Pictures and the page of every socket, as files.

use crate::open::Integrated;
use crate::output::{Meter, Output};
use crate::page;
use kpat_draw::app::{self as draw, BINS, Page};
use kpat_query::app::{self, Series, Traffic, Window};
use std::path::Path;

fn series(
    log: &Integrated,
    window: &Window,
    socket: Option<i64>,
    out: &Output,
) -> anyhow::Result<Option<Series>> {
    let window = Window { socket, bins: BINS, ..window.clone() };
    let mut meter = Meter::default();
    let found = app::series(log, &window, &mut |done, parts| {
        out.progress(&mut meter, "drawing", done, parts);
        true
    });
    out.clear_progress();
    Ok(found?)
}

/// One socket, or without one all in sum.
pub fn svg(
    log: &Integrated,
    window: &Window,
    one: Option<&Traffic>,
    to: &Path,
    out: &Output,
) -> anyhow::Result<()> {
    let Some(s) = series(log, window, one.map(|t| t.socket.socket_id), out)? else { return Ok(()) };
    page::write(to, &draw::svg(one, &s, log.start_ns()), out)
}

/// These of `total` sockets.
pub fn html(
    log: &Integrated,
    window: &Window,
    sockets: &[Traffic],
    total: usize,
    to: &Path,
    out: &Output,
) -> anyhow::Result<()> {
    let (about, events_lost) = (page::about(log), app::lost(log)?);
    let of = Page { about: &about, start_ns: log.start_ns(), events_lost, sockets, total };
    let words = draw::html(&of, &mut |socket| series(log, window, socket, out))?;
    page::write(to, &words, out)
}
