//! What a careful reader needs to trust the rest: clocks, losses, cost, whether the packets add up.

use super::info::{self, losses};
use super::{Answer, Ask};
use crate::answers::log::{
    Balance, Clock, Conservation, Cost, Residuals, Trust, TrustPart, Unexplained, Words,
};
use crate::answers::{Big, Ns};
use crate::open::Log;
use kpat_query::{TimeScale, clock_assumed, clock_method, time_scale};
use kpat_store::tables::ClockRow;
use kpat_text::{bytes, count};

pub fn trust(ask: &Ask<'_>) -> Answer<Trust> {
    let log = ask.log;
    let start = log.start_ns();
    let residuals = log.residuals()?;
    Ok(Trust {
        clocks: log.info.clocks.iter().map(|c| clock(log, c)).collect(),
        residuals: residuals
            .iter()
            .map(|r| Residuals {
                capture: log.capture(r.capture_id).to_owned(),
                t: r.points.iter().map(|p| Ns(p.0.saturating_sub(start))).collect(),
                residual_ns: r.points.iter().map(|p| p.1).collect(),
                side: r.points.iter().map(|p| p.2).collect(),
                all: r.all,
            })
            .collect(),
        losses: losses(log, &log.info.losses),
        cost: cost(log),
        closure: closure(log),
        parts: log
            .info
            .trust()
            .parts
            .iter()
            .map(|p| TrustPart {
                part: p.part.to_owned(),
                ppm: p.ppm(),
                good: p.good,
                all: p.all,
                words: p.words.clone(),
            })
            .collect(),
        conservation: conservation(log)?,
    })
}

fn clock(log: &Log, c: &ClockRow) -> Clock {
    let scale = match time_scale(c, log.info.dut_offset_ns) {
        TimeScale::Tai => "; it counts TAI, 37 s ahead of UTC",
        TimeScale::Gps => "; it counts GPS time, 18 s ahead of UTC",
        TimeScale::Own => "; it counts from an epoch of its own and was never set",
        TimeScale::Utc | TimeScale::Other | TimeScale::Unknown => "",
    };
    let boot = |wall: i64| {
        let since = wall.saturating_sub(c.from_wall_ns) as f64;
        let drift = (since * c.drift_ppb as f64 / 1e9).round() as i64;
        Ns(wall.wrapping_add(c.offset_ns).wrapping_add(drift).saturating_sub(log.start_ns()))
    };
    let mut more = String::new();
    if let (Some(stamp), true) = (c.stamp_bound_ns, c.method != clock_method::ON_DUT) {
        more += &format!("; one frame's stamp is within ± {:.3} µs", stamp as f64 / 1e3);
    }
    if let (Some(from), Some(to), true) = (c.from_number, c.to_number, c.method == clock_method::BETWEEN) {
        more += &format!(", between frames {from} and {to}");
    }
    for assumed in clock_assumed::words(c.assumed.unwrap_or(0)) {
        more += &format!("; assumed: {assumed}");
    }
    Clock {
        capture: log.capture(c.capture_id).to_owned(),
        from: Some(boot(c.from_wall_ns)),
        to: Some(boot(c.to_wall_ns)),
        offset_ns: Big(c.offset_ns),
        drift_ppb: c.drift_ppb,
        bound_ns: c.bound_ns,
        drift_bound_ppb: c.drift_bound_ppb,
        received: c.received,
        transmitted: c.transmitted,
        rejected: c.rejected,
        method: clock_method::name(c.method).to_owned(),
        words: format!("{}{scale}{more}", clock_method::basis(c, |n| n.to_string())),
    }
}

fn cost(log: &Log) -> Option<Cost> {
    let summary = log.info.manifest.summary.as_ref()?;
    let c = &summary.cost;
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
    let share = |ns: u64, bounds| format!("{}: {} of all CPUs", seconds(ns), info::share(c, ns, bounds));
    let bounds = c.bounds.clone().unwrap_or_default();
    let mut rows = vec![("runs of probes".to_owned(), info::hits(c))];
    if let Some(each) = c.ns_per_hit() {
        if c.probe_ns > 0 {
            rows.push(("time in probes".to_owned(), share(c.probe_ns, bounds.probe_ns)));
        }
        let range = bounds.ns_per_hit.map_or(String::new(), |i| format!(" ({} to {})", i.low, i.high));
        rows.push(("one run".to_owned(), format!("{each:.0} ns{range}")));
    } else if c.probe_hits > 0 {
        rows.push(("time in probes".to_owned(), "the kernel did not time them".to_owned()));
    }
    if c.switch_ns > 0 && c.switch_hits > 0 {
        let each = c.switch_ns as f64 / c.switch_hits as f64;
        let runs = info::bounded(c.switch_hits, bounds.switch_hits);
        let words = format!("{runs} runs of {each:.0} ns, {}", share(c.switch_ns, bounds.switch_ns));
        rows.push(("at switches and softirqs".to_owned(), words));
    }
    if c.bounds.is_some() {
        let part = 100.0 * bounds.sampled_ns as f64 / c.wall_ns.max(1) as f64;
        let words = format!("{:.1} % of the time, in {} windows", part.min(100.0), bounds.windows);
        rows.push(("the kernel counted runs".to_owned(), words));
    }
    rows.push(("recorder".to_owned(), share(c.drain_cpu_ns, None)));
    rows.push(("attaching".to_owned(), seconds(c.attach_ns)));
    rows.push(("detaching".to_owned(), seconds(c.detach_ns)));
    rows.push(("recorded for".to_owned(), format!("{} on {} CPUs", seconds(c.wall_ns), c.cpus)));
    rows.push((
        "log".to_owned(),
        format!("{} records in {}", count(summary.written_records()), bytes(summary.bytes)),
    ));
    Some(Cost { rows })
}

/// As integration counted it; the sums themselves close by construction where nothing contradicts itself.
fn closure(log: &Log) -> Option<Words> {
    let counted = |key: &str| {
        let row = log.info.provenance.iter().find(|p| p.key == key)?;
        row.value.parse::<u64>().ok()
    };
    let clamped = counted("calls.self_clamped")?;
    let calls = count(super::info::rows(log, "call"));
    let words = if clamped == 0 {
        format!("self times of all {calls} calls add up to the durations of their trees, to the nanosecond")
    } else {
        format!(
            "{} of {calls} calls contradict what they called, and have self time 0; all others add up",
            count(clamped)
        )
    };
    Some(Words { words })
}

fn conservation(log: &Log) -> Answer<Conservation> {
    let computed;
    let c = match log.conservation.get() {
        Some(c) => c,
        None => {
            computed = log.store.conservation()?;
            &computed
        }
    };
    let interface = |netns: i64, ifindex: i64| {
        let named = log
            .info
            .devices
            .iter()
            .rev()
            .find(|d| i64::from(d.ifindex) == ifindex && (d.netns == netns || netns < 0));
        named.map_or_else(
            || format!("interface {ifindex}"),
            |d| if d.netns_name.is_empty() { d.name.clone() } else { format!("{} {}", d.netns_name, d.name) },
        )
    };
    let balances = c.interfaces.iter().map(|((netns, ifindex), i)| {
        let f = &i.received;
        Balance {
            name: interface(*netns, *ifindex),
            came: f.sum(),
            out: f.forwarded + f.sent,
            delivered: f.delivered,
            dropped: f.dropped,
            merged: f.transformed,
            in_flight: f.in_flight,
            lost: f.lost,
            unexplained: f.unexplained,
            given: i.given,
        }
    });
    let unexplained = c.differences.iter().map(|d| {
        let from = d.interface.map_or_else(
            || "made here".to_owned(),
            |(netns, ifindex)| format!("received by {}", interface(netns, ifindex)),
        );
        let cpu = d.cpu.map(|c| format!(" on CPU {c}")).unwrap_or_default();
        Unexplained {
            packet: d.packet_id,
            words: format!("{} packets {from}{cpu}: {}", d.packets, d.why.name()),
        }
    });
    let ends = if c.ends_recorded { "" } else { "; ends of packets were not recorded" };
    Ok(Conservation {
        explained_ppm: c.explained_ppm(),
        words: format!(
            "{} received + {} made here + {} from others = {} packets, {} of them unexplained{ends}",
            c.received,
            c.made_here,
            c.from_others,
            c.packets(),
            c.fates.unexplained
        ),
        interfaces: balances.collect(),
        unexplained: unexplained.collect(),
    })
}
