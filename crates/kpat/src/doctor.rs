//! `kpat doctor`: which mechanisms this kernel offers, found by recording packets of its own with each, and what is lost without the
//! others.

mod profile;

use crate::crossings;
use crate::output::Output;
use crate::render::{Column, Line, Pairs, Style, Table, count};
use kpat_probe::announce::{self, Announcements};
use kpat_probe::btf::Btf;
use kpat_probe::choose;
use kpat_probe::kernel::{self, Symbols};
use kpat_probe::mechanism::{self, Mechanism, Offer};
use kpat_probe::netlink::GROUPS;
use kpat_probe::plan;
use kpat_probe::profile::{Detail, Selection};
use kpat_probe::proof::Prover;
use serde_json::json;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {}

/// Mechanisms of the design that are not tried because this version has no use for them yet.
struct Other {
    name: &'static str,
    offered: bool,
    note: String,
}

fn others() -> Vec<Other> {
    let exists = |p: &str| std::path::Path::new(p).exists();
    let sampling = kernel::read_line("/proc/sys/kernel/perf_event_paranoid");
    let uprobe = exists("/sys/bus/event_source/devices/uprobe/type");
    let tracefs_kprobes = kernel::tracefs().is_some_and(|t| exists(&format!("{t}/kprobe_events")));
    let yes = |b: bool, why: &str| if b { String::new() } else { why.to_string() };
    vec![
        Other {
            name: "perf sampling",
            offered: !sampling.is_empty(),
            note: yes(!sampling.is_empty(), "no perf events in this kernel"),
        },
        Other { name: "uprobes", offered: uprobe, note: yes(uprobe, "needs CONFIG_UPROBE_EVENTS") },
        Other {
            name: "kprobe events (tracefs)",
            offered: tracefs_kprobes,
            note: yes(
                tracefs_kprobes,
                "needs CONFIG_KPROBE_EVENTS and tracefs mounted on /sys/kernel/tracing",
            ),
        },
    ]
}

/// How many functions each level of detail has here, and what it was measured to cost.
struct Price {
    detail: Detail,
    functions: usize,
    /// Those of them that go by fentry though the mechanism is another.
    by_fentry: Vec<String>,
    /// Kernel, and instructions that a packet takes more there.
    measured: Option<(&'static str, u32)>,
    /// The same with `--entry-only all`.
    entry_only: Option<(&'static str, u32)>,
}

/// `fentry`: it is offered.
fn prices(used: Mechanism, fentry: bool) -> anyhow::Result<Vec<Price>> {
    let found = choose::candidates(&Btf::running()?);
    let (traceable, symbols) = (kernel::traceable(), Symbols::running());
    let price = |detail| {
        let selection = Selection { profile: "path".into(), detail, ..Selection::default() };
        let (chosen, logged) = choose::choose(&found, &selection, traceable.as_ref(), &symbols);
        let functions = logged.iter().filter(|l| **l).count();
        let often = if fentry { plan::often(used, &chosen.functions) } else { Vec::new() };
        let by_fentry = often.iter().map(|i| chosen.functions[*i].name.clone()).collect();
        let (measured, entry_only) = (used.measured(detail, false), used.measured(detail, true));
        Price { detail, functions, by_fentry, measured, entry_only }
    };
    Ok(Detail::ALL.map(price).into())
}

fn table_of(prices: &[Price]) -> Table {
    let columns = [
        ("detail", 0),
        ("functions", 1),
        ("by fentry", 1),
        ("instructions a packet", 1),
        ("with --entry-only all", 1),
    ];
    let column = |(name, kind)| if kind == 0 { Column::left(name, 0, 0) } else { Column::right(name, 0) };
    let mut table = Table::new(&columns.map(column));
    for p in prices {
        let cost = |measured: Option<(&str, u32)>| {
            measured.map_or(String::new(), |(kernel, n)| format!("+{} (on {kernel})", count(n as u64)))
        };
        table.row(vec![
            (p.detail.name().into(), Style::Plain),
            (count(p.functions as u64), Style::Plain),
            (count(p.by_fentry.len() as u64), Style::Plain),
            (cost(p.measured), Style::Plain),
            (cost(p.entry_only), Style::Plain),
        ]);
    }
    table
}

pub fn run(_: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let release = kernel::read_line("/proc/sys/kernel/osrelease");
    if let Some(why) = mechanism::refusal() {
        anyhow::bail!("{why}");
    }
    let picked =
        mechanism::pick_build().map_err(|e| anyhow::anyhow!("no program loads on kernel {release}: {e}"))?;
    let build = picked.build;
    let prover = Prover::new(picked.clone())?;
    let offers: Vec<Offer> = mechanism::offers(build).into_iter().map(|offer| prover.check(offer)).collect();
    let used = offers.iter().find(|o| o.offered).map(|o| o.mechanism);
    let lockdown = kernel::lockdown();
    let list = kernel::traceable().map(|t| t.len());
    let others = others();
    let fentry = offers.iter().any(|o| o.mechanism == Mechanism::Fentry && o.offered);
    let crossings = crossings::here(fentry)?;
    let stamps = match used {
        Some(m) if m != Mechanism::Tracepoint => Announcements::start(build, &GROUPS).map(drop),
        _ => Err("it takes function probes".into()),
    };
    let prices = match used {
        Some(m) if m != Mechanism::Tracepoint => prices(m, fentry)?,
        _ => Vec::new(),
    };
    let profile = profile::cost();
    if out.json {
        out.value(&json!({
            "profile": match &profile {
                Ok(c) => json!({
                    "call_ns": {"without": c.without.call.round(), "beside": c.beside.call.round()},
                    "datagram_ns": {"without": c.without.datagram.round(), "beside": c.beside.datagram.round()},
                }),
                Err(why) => json!({"reason": why.to_string()}),
            },
            "kernel": release,
            "arch": std::env::consts::ARCH,
            "lockdown": lockdown,
            "cpus": kernel::possible_cpus(),
            "build": build.name(),
            "build_passed_over": picked.passed_over.iter().map(|(b, why)| json!({"build": b.name(), "reason": why})).collect::<Vec<_>>(),
            "build_warning": picked.warning(),
            "typed_reads": build.direct,
            "context_by_tracepoints": build.traced_context,
            "traceable_functions": list,
            "used": used.map(Mechanism::name),
            "mechanisms": offers.iter().map(|o| json!({
                "name": o.mechanism.name(), "offered": o.offered, "reason": o.reason,
                "needs": o.mechanism.needs(), "limits": o.mechanism.limits(), "tried": true, "proved": o.offered,
            })).chain(others.iter().map(|o| json!({
                "name": o.name, "offered": o.offered, "reason": o.note, "tried": false,
            }))).collect::<Vec<_>>(),
            "details": prices.iter().map(|p| json!({
                "name": p.detail.name(), "functions": p.functions, "by_fentry": p.by_fentry,
                "measured_on": p.measured.map(|m| m.0), "instructions_per_packet": p.measured.map(|m| m.1),
                "instructions_per_packet_entry_only": p.entry_only.map(|m| m.1),
            })).collect::<Vec<_>>(),
            "system_events": {"stamped_by_kernel": stamps.is_ok(), "reason": stamps.as_ref().err()},
            "crossings": crossings::value(&crossings),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut facts = Pairs::new();
    facts.add("kernel", format!("{release} {}", std::env::consts::ARCH));
    facts.add("lockdown", if lockdown.is_empty() { "no such module" } else { &lockdown });
    facts.add(
        "reads",
        if build.direct { "typed loads (bpf_rdonly_cast)" } else { "helper calls: slower than typed loads" },
    );
    facts.add("build", build.name());
    for reason in picked.reasons() {
        facts.add("not taken", reason);
    }
    facts.add(
        "context",
        if build.traced_context {
            "kept by tracepoints (kallsyms has no variables)"
        } else {
            "preemption count"
        },
    );
    facts.add(
        "functions",
        list.map_or("the list of traceable functions cannot be read here".to_string(), |n| {
            format!("{n} traceable")
        }),
    );
    facts.add(
        "system events",
        match &stamps {
            Ok(()) => format!("stamped by the kernel ({})", announce::FUNCTION),
            Err(why) => format!("with bounds, 10 ms apart; no stamps of the kernel: {why}"),
        },
    );
    if used.is_some() {
        let found = "device, namespace, headers and calls found by each mechanism that is offered";
        facts.add("test packets", found);
    }
    let profile = profile.as_ref().map_or_else(|why| format!("not measured: {why:#}"), profile::Cost::words);
    facts.add("cost of -p profile", profile);
    out.lines(&facts.render(out.width))?;
    if let Some(warning) = picked.warning() {
        out.line(&Line::of(format!("Warning: {warning}."), Style::Bad))?;
    }
    out.line(&Line::new())?;
    let mut table =
        Table::new(&[Column::left("", 0, 0), Column::left("mechanism", 0, 0), Column::left("offered", 0, 0)]);
    for o in &offers {
        table.row(vec![mark(o, used), (o.mechanism.name().into(), Style::Plain), offered(o.offered)]);
    }
    for o in &others {
        table.row(vec![(String::new(), Style::Plain), (o.name.into(), Style::Plain), offered(o.offered)]);
    }
    out.lines(&table.render(out.width).0)?;
    out.line(&Line::new())?;
    let mut why = Pairs::new();
    for o in offers.iter().filter(|o| !o.offered) {
        why.add(o.mechanism.name(), &o.reason);
    }
    for o in others.iter().filter(|o| !o.offered) {
        why.add(o.name, &o.note);
    }
    out.lines(&why.render(out.width))?;
    match used {
        Some(m) => {
            out.line(
                &Line::new()
                    .plain("kpat record will use ")
                    .put(m.name(), Style::Strong)
                    .plain(format!(": {}.", m.limits())),
            )?;
        }
        None => out.line(&Line::of("Nothing can be recorded on this kernel.", Style::Bad))?,
    }
    if !prices.is_empty() {
        out.line(&Line::new())?;
        out.line(&Line::of("How much of a packet's way is recorded (kpat record --detail)", Style::Strong))?;
        out.lines(&table_of(&prices).render(out.width).0)?;
    }
    out.line(&Line::new())?;
    out.line(&Line::of("Application traffic (kpat record --profile app) is seen at", Style::Strong))?;
    crossings::table(&crossings, out)?;
    Ok(ExitCode::SUCCESS)
}

fn mark(o: &Offer, used: Option<Mechanism>) -> (String, Style) {
    (if used == Some(o.mechanism) { "*" } else { "" }.into(), Style::Strong)
}

fn offered(yes: bool) -> (String, Style) {
    if yes { ("yes".into(), Style::Good) } else { ("no".into(), Style::Warn) }
}
