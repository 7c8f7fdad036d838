//! What a careful reader needs to trust the rest: clocks, losses, cost, whether the packets add up.

use super::info::losses;
use super::{Answer, Ask};
use crate::answers::log::{Balance, Clock, Conservation, Cost, Residuals, Trust, Unexplained, Words};
use crate::answers::{Big, Ns};
use crate::open::Log;
use kpat_analysis::query::{TimeScale, clock_method, time_scale};
use kpat_store::tables::ClockRow;

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
        words: format!(
            "from {} received and {} transmitted matches, {} rejected: {}{scale}",
            c.received,
            c.transmitted,
            c.rejected,
            clock_method::name(c.method)
        ),
    }
}

fn cost(log: &Log) -> Option<Cost> {
    let summary = log.info.manifest.summary.as_ref()?;
    let c = &summary.cost;
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
    let all = c.wall_ns as f64 * f64::from(c.cpus);
    let share = |ns: u64| {
        if all > 0.0 { format!(" ({:.2} % of all CPUs)", ns as f64 * 100.0 / all) } else { String::new() }
    };
    let mut rows = vec![("runs of probes".to_owned(), c.probe_hits.to_string())];
    if c.probe_ns > 0 && c.probe_hits > 0 {
        rows.push(("time in probes".to_owned(), seconds(c.probe_ns) + &share(c.probe_ns)));
        rows.push(("one run".to_owned(), format!("{:.0} ns", c.probe_ns as f64 / c.probe_hits as f64)));
    } else if c.probe_hits > 0 {
        rows.push(("time in probes".to_owned(), "the kernel did not time them".to_owned()));
    }
    if c.switch_ns > 0 && c.switch_hits > 0 {
        let each = c.switch_ns as f64 / c.switch_hits as f64;
        let words = format!("{} runs of {each:.0} ns{}", c.switch_hits, share(c.switch_ns));
        rows.push(("at switches and softirqs".to_owned(), words));
    }
    rows.push(("recorder".to_owned(), seconds(c.drain_cpu_ns) + &share(c.drain_cpu_ns)));
    rows.push(("attaching".to_owned(), seconds(c.attach_ns)));
    rows.push(("detaching".to_owned(), seconds(c.detach_ns)));
    rows.push(("recorded for".to_owned(), format!("{} on {} CPUs", seconds(c.wall_ns), c.cpus)));
    rows.push(("log".to_owned(), format!("{} records in {} bytes", summary.records, summary.bytes)));
    Some(Cost { rows })
}

/// As integration counted it; the sums themselves close by construction where nothing contradicts itself.
fn closure(log: &Log) -> Option<Words> {
    let count = |key: &str| {
        let row = log.info.provenance.iter().find(|p| p.key == key)?;
        row.value.parse::<u64>().ok()
    };
    let clamped = count("calls.self_clamped")?;
    let calls = super::info::rows(log, "call");
    let words = if clamped == 0 {
        format!("self times of all {calls} calls add up to the durations of their trees, to the nanosecond")
    } else {
        format!(
            "{clamped} of {calls} calls contradict what they called, and have self time 0; all others add up"
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
        trust_ppm: c.trust_ppm(),
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
