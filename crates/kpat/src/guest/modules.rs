//! `kpat guest modules`: what is loaded into the guest's kernel, by three ways that its kernel keeps apart.

use super::{Hidden, Hiding, address};
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
    of: Hiding,
}

const FIELDS: [&str; 9] =
    ["address", "name", "base", "size_bytes", "users", "state", "listed", "in_sysfs", "in_tree"];

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let guest = args.of.which.attach()?;
    let all = modules(&guest)?;
    let value = |m: &Loaded| -> Value {
        json!({
            "address": address(m.address), "name": m.name, "base": address(m.base), "size_bytes": m.size, "users": m.users, "state": m.state.map(state),
            "listed": m.listed, "in_sysfs": m.in_sysfs, "in_tree": m.in_tree,
        })
    };
    let table = |rows: &[&Loaded]| -> Table {
        let mut t = Table::new(&[
            Column::left("code at", 0, 0),
            Column::right("bytes", 0),
            Column::right("users", 1),
            Column::left("state", 1, 0),
            Column::left("name", 0, 0),
            Column::left("", 0, 0),
        ]);
        for m in rows {
            t.row(vec![
                (address(m.base), Style::Faint),
                (count(m.size), Style::Plain),
                (m.users.map_or("-".into(), |n| count(n.into())), Style::Plain),
                (m.state.map_or("?", state).into(), Style::Plain),
                (m.name.clone(), Style::Strong),
                (note(m), Style::Warn),
            ]);
        }
        t
    };
    let is_hidden = Loaded::hidden;
    Hidden { what: "modules", fields: &FIELDS, all: &all, is_hidden, value: &value, table: &table }
        .show(&args.of, out)
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
