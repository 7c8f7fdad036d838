//! `kpat guest modules`: what is loaded into the guest's kernel, by three ways that its kernel keeps apart.

use super::{Which, address};
use crate::listing::Listing;
use crate::output::Output;
use crate::render::{Column, Style, Table, count};
use kpat_guest::loaded::{Loaded, State, modules};
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(
    after_help = "A module is found by the list that /proc/modules shows, by the objects behind /sys/module, and by the tree in which the kernel looks for whose code an address is. \
                        One that not all of them have is hidden, and is marked. Symbols of modules: kpat guest symbols."
)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Only hidden ones; with --strict the exit status is 3 if there are any
    #[arg(long)]
    hidden: bool,
    #[command(flatten)]
    listing: Listing,
}

const FIELDS: [&str; 9] =
    ["address", "name", "base", "size_bytes", "users", "state", "listed", "in_sysfs", "in_tree"];

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let guest = args.which.attach()?;
    let all = modules(&guest)?;
    let hidden = all.iter().filter(|m| m.hidden()).count();
    let rows: Vec<&Loaded> = all.iter().filter(|m| !args.hidden || m.hidden()).collect();
    let value = |m: &Loaded| -> Value {
        json!({
            "address": address(m.address), "name": m.name, "base": address(m.base), "size_bytes": m.size, "users": m.users, "state": m.state.map(state),
            "listed": m.listed, "in_sysfs": m.in_sysfs, "in_tree": m.in_tree,
        })
    };
    if let Some(tsv) = args.listing.tsv(&FIELDS)? {
        tsv.rows(rows.iter().map(|m| value(m)), out)?;
    } else if out.json {
        out.value(&json!({"modules": rows.iter().map(|m| value(m)).collect::<Vec<_>>(), "hidden": hidden}))?;
    } else {
        let mut t = Table::new(&[
            Column::left("code at", 0, 0),
            Column::right("bytes", 0),
            Column::right("users", 1),
            Column::left("state", 1, 0),
            Column::left("name", 0, 0),
            Column::left("", 0, 0),
        ]);
        for m in &rows {
            t.row(vec![
                (address(m.base), Style::Faint),
                (count(m.size), Style::Plain),
                (m.users.map_or("-".into(), |n| count(n.into())), Style::Plain),
                (m.state.map_or("?", state).into(), Style::Plain),
                (m.name.clone(), Style::Strong),
                (note(m), Style::Warn),
            ]);
        }
        if !rows.is_empty() {
            args.listing.print(t, out)?;
        }
        out.say(&format!("{} modules, {hidden} hidden", count(all.len() as u64)));
    }
    Ok(out.ended(hidden > 0))
}

fn state(state: State) -> &'static str {
    match state {
        State::Live => "live",
        State::Coming => "coming",
        State::Going => "going",
    }
}

fn note(m: &Loaded) -> String {
    if !m.hidden() {
        return String::new();
    }
    let ways = [
        (Some(m.listed), "the list of /proc/modules"),
        (m.in_sysfs, "/sys/module"),
        (m.in_tree, "the tree of code"),
    ];
    let missing: Vec<&str> =
        ways.iter().filter(|(has, _)| *has == Some(false)).map(|(_, way)| *way).collect();
    format!("hidden: not in {}", missing.join(", nor in "))
}
