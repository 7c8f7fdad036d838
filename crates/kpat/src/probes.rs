//! `kpat probes`: which functions would be probed and how the packet is reached in each.

use crate::crossings;
use crate::output::Output;
use crate::render::{Column, Line, Style, Table, count};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kpat_probe::btf::Btf;
use kpat_probe::choose::{self, Statistics, Via};
use kpat_probe::kernel::{self, Symbols};
use kpat_probe::mechanism::{self, Mechanism};
use kpat_probe::profile::{self, APPLICATIONS, Detail, PROGRAMS, Selection, WIFI, WORK};
use serde_json::json;
use std::process::ExitCode;

#[derive(clap::Args, Clone, Debug)]
pub struct Select {
    /// path (functions that move a packet), router, tcp, socket, driver:NAME, all, none; app: what applications ask of the network; profile:
    /// whom each CPU works for; programs: what programs say of their work (names looked up, TLS, requests); wifi: what radios and links do to have a network (scans, associations, carriers, DHCP). Several profiles, separated by commas, are recorded in one log
    #[arg(long, short = 'p', default_value = "path", value_name = "PROFILE", value_delimiter = ',')]
    pub profile: Vec<String>,
    /// How many functions of the path: steps (one for each step), spine (also those that hand a packet on), full (every function of the
    /// profile) [default: steps for the profile path, full for others]
    #[arg(long, value_name = "LEVEL", value_parser = level())]
    pub detail: Option<Detail>,
    /// Functions or tracepoints to add (glob; may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub add: Vec<String>,
    /// Functions or tracepoints to leave out (glob; may be repeated)
    #[arg(long, value_name = "GLOB")]
    pub remove: Vec<String>,
}

/// A level of detail by its name.
pub fn level() -> impl TypedValueParser<Value = Detail> {
    let names = Detail::ALL.map(|d| PossibleValue::new(d.name()).help(d.about()));
    PossibleValuesParser::new(names).try_map(|name| Detail::parse(&name).ok_or("no such level"))
}

impl Select {
    /// What of packets; `None`: nothing.
    pub fn selection(&self) -> Option<Selection> {
        let of_packets =
            self.profile.iter().filter(|p| ![APPLICATIONS, WORK, PROGRAMS, WIFI].contains(&p.as_str()));
        let profile = of_packets.cloned().collect::<Vec<_>>().join(",");
        (!profile.is_empty()).then(|| Selection {
            detail: self.detail.unwrap_or_else(|| Detail::of_profile(&profile)),
            profile,
            add: self.add.clone(),
            remove: self.remove.clone(),
            ..Selection::default()
        })
    }

    /// Whom each CPU works for.
    pub fn work(&self) -> bool {
        self.profile.iter().any(|p| p == WORK)
    }

    /// What a device does to have a network.
    pub fn wifi(&self) -> bool {
        self.profile.iter().any(|p| p == WIFI)
    }

    /// What programs say of their work.
    pub fn programs(&self) -> bool {
        self.profile.iter().any(|p| p == PROGRAMS)
    }

    /// What applications ask of the network, too, or alone.
    pub fn applications(&self) -> bool {
        self.profile.iter().any(|p| p == APPLICATIONS)
    }
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    select: Select,
    /// Count the functions that handle packets, by kind of polymorphism (the table of the KPAT paper, for this kernel)
    #[arg(long)]
    stats: bool,
    /// How deeply --stats follows nested structures
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=12))]
    depth: u8,
    /// Also list what was left out, with the reason
    #[arg(long)]
    left_out: bool,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let btfs = Btf::running()?;
    if args.stats {
        return statistics(&choose::statistics(&btfs, args.depth as usize), btfs.len() - 1, out);
    }
    let Some(selection) = args.select.selection() else { return application(out) };
    selection.check()?;
    let symbols = Symbols::running();
    let traceable = kernel::traceable();
    let found = choose::candidates(&btfs);
    let (chosen, logged) = choose::choose(&found, &selection, traceable.as_ref(), &symbols);
    let rows: Vec<_> = chosen.functions.iter().zip(&logged).filter(|(_, l)| **l).map(|(c, _)| c).collect();
    if out.json {
        out.value(&json!({
            "profile": args.select.profile,
            "detail": selection.detail.name(),
            "functions": rows.iter().map(|c| json!({
                "name": c.name, "module": c.module, "layer": profile::layer(&c.name), "via": c.via.text(),
            })).collect::<Vec<_>>(),
            "left_out": chosen.left_out.iter().map(|(n, r)| json!({"name": n, "reason": r})).collect::<Vec<_>>(),
            "list_known": traceable.is_some(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut t = Table::new(&[
        Column::left("function", 0, 24),
        Column::left("layer", 0, 0),
        Column::left("module", 1, 0),
        Column::left("packet", 0, 16),
    ]);
    for c in &rows {
        let style = if matches!(c.via, Via::Argument(_)) { Style::Plain } else { Style::Warn };
        t.row(vec![
            (c.name.clone(), Style::Plain),
            (profile::layer(&c.name).into(), Style::Faint),
            (c.module.clone(), Style::Faint),
            (c.via.text(), style),
        ]);
    }
    if !rows.is_empty() {
        out.lines(&t.render(out.width).0)?;
    }
    if args.left_out {
        let mut t = Table::new(&[Column::left("left out", 0, 24), Column::left("reason", 0, 20)]);
        for (n, r) in &chosen.left_out {
            t.row(vec![(n.clone(), Style::Plain), (r.clone(), Style::Plain)]);
        }
        out.line(&Line::new())?;
        out.lines(&t.render(out.width).0)?;
    }
    let silent = logged.iter().filter(|l| !**l).count();
    out.say(&format!(
        "{} functions of profile {} (detail {}), {} left out{}; {silent} more are probed to tell packets apart, and are not logged",
        rows.len(),
        selection.profile,
        selection.detail.name(),
        chosen.left_out.len(),
        if args.left_out { "" } else { " (--left-out lists them)" },
    ));
    if traceable.is_none() {
        out.say(
            "this kernel does not list the functions that it can trace; attaching may fail for some of these",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// A recording of applications is no list of functions but of places between layers.
fn application(out: &Output) -> anyhow::Result<ExitCode> {
    let functions = mechanism::pick_build()
        .is_ok_and(|p| mechanism::attempt(Mechanism::Fentry, p.build, &kernel::config()).is_ok());
    let chosen = crossings::here(functions)?;
    if out.json {
        out.value(&json!({"profile": "app", "crossings": crossings::value(&chosen)}))?;
    } else {
        crossings::table(&chosen, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn statistics(s: &Statistics, modules: usize, out: &Output) -> anyhow::Result<ExitCode> {
    if out.json {
        let mut v = serde_json::to_value(s)?;
        v["modules"] = modules.into();
        out.value(&v)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut t =
        Table::new(&[Column::left("class", 0, 0), Column::right("types", 0), Column::right("functions", 0)]);
    let n = |v: usize| count(v as u64);
    let mut row = |what: &str, types: String, functions: String| {
        t.row(vec![(what.into(), Style::Plain), (types, Style::Plain), (functions, Style::Plain)]);
    };
    row("all functions", String::new(), n(s.functions));
    row("take sk_buff *", "1".into(), n(s.takes_skb));
    row("take sk_buff **", String::new(), n(s.takes_skb_pointer));
    row("return sk_buff *", String::new(), n(s.returns_skb));
    row("direct (any of these)", String::new(), n(s.direct));
    row("alias (typedef)", n(s.aliases), String::new());
    row(
        "carriers (one packet, at most 256 bytes)",
        n(s.carrier_structures),
        format!("+{}", n(s.carrier_functions)),
    );
    for (i, (types, functions)) in s.embedded.iter().enumerate() {
        let what = if i == 0 {
            "customised types, depth 1".to_string()
        } else {
            format!("nested by embedding, depth {}", i + 1)
        };
        row(&what, n(*types), n(*functions));
    }
    for (i, (types, functions)) in s.pointed.iter().enumerate().skip(1) {
        row(&format!("nested by pointers too, depth {}", i + 1), n(*types), n(*functions));
    }
    out.lines(&t.render(out.width).0)?;
    out.say(&format!("vmlinux and {modules} modules; direct functions and carriers are what kpat probes"));
    Ok(ExitCode::SUCCESS)
}
