//! What is drawn of a socket over time: lanes, each with a scale and curves. How they are drawn is the picture's.

use crate::scale::{Axis, Scale};
use kpat_model::Crossing;
use kpat_query::app::{Crossed, Metric, Series, Tcp};
use kpat_text::{bytes, count, duration};

pub(super) enum Look {
    Line,
    Dashed,
    Area,
    /// From zero, in each bin for itself.
    Bars,
    /// From the least to the greatest, in each bin for itself.
    Range,
}

pub(super) struct Curve {
    pub name: &'static str,
    pub color: &'static str,
    pub look: Look,
    pub low: Vec<Option<f64>>,
    pub high: Vec<Option<f64>>,
    pub last: Vec<Option<f64>>,
}

pub(super) struct Lane {
    pub title: &'static str,
    pub tall: f64,
    pub axis: Axis,
    pub show: fn(f64) -> String,
    pub curves: Vec<Curve>,
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
        axis: Axis { scale: Scale::Root, low, high },
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
        axis: Axis { scale: Scale::Logarithmic, low: 1.0, high },
        show: size,
        curves,
    })
}

type Drawn = (Metric, &'static str, &'static str, Look);

fn lane(
    tcp: &Tcp,
    title: &'static str,
    scale: Scale,
    show: fn(f64) -> String,
    of: Vec<Drawn>,
) -> Option<Lane> {
    let floats = |v: &[Option<i64>]| v.iter().map(|n| n.map(|n| n as f64)).collect::<Vec<_>>();
    let curve = |(metric, name, color, look): Drawn| {
        let t = tcp.track(metric);
        let (low, high, last) = (floats(&t.low), floats(&t.high), floats(&t.last));
        high.iter().any(Option::is_some).then_some(Curve { name, color, look, low, high, last })
    };
    let curves: Vec<Curve> = of.into_iter().filter_map(curve).collect();
    let high = curves.iter().flat_map(|c| c.high.iter().flatten()).fold(0.0, |h: f64, v| h.max(*v));
    let least = curves.iter().flat_map(|c| c.low.iter().flatten()).filter(|v| **v > 0.0);
    let low = match scale {
        Scale::Logarithmic => least.fold(high, |l: f64, v| l.min(*v)),
        _ => 0.0,
    };
    (high > 0.0).then_some(Lane { title, tall: 88.0, axis: Axis { scale, low, high }, show, curves })
}

pub(super) fn lanes(s: &Series) -> Vec<Lane> {
    use Metric::*;
    let mut all = traffic(s);
    all.extend(sizes(s));
    let Some(tcp) = &s.tcp else { return all };
    let of_state = [
        lane(
            tcp,
            "Window",
            Scale::Plain,
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
            Scale::Logarithmic,
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
            Scale::Plain,
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
            Scale::Logarithmic,
            rate,
            vec![(Delivery, "delivery", "a", Look::Line), (Pacing, "pacing", "e", Look::Dashed)],
        ),
    ];
    all.extend(of_state.into_iter().flatten());
    all
}
