//! `kpat guest processes`: the guest's processes by two ways that cannot both be changed by who hides one of them with little effort.

use super::{Hidden, Hiding, address};
use crate::output::Output;
use crate::render::{Column, Style, Table, count};
use kpat_guest::Process;
use serde_json::{Value, json};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(
    after_help = "A process is found by the kernel's list of all tasks and by the numbers that the guest's own ps goes by. \
                        One that only one of them has is hidden, and is marked."
)]
pub struct Args {
    #[command(flatten)]
    of: Hiding,
}

const FIELDS: [&str; 9] =
    ["address", "pid", "parent", "comm", "threads", "kernel_thread", "listed", "numbered", "running_on"];

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let guest = args.of.which.attach()?;
    let tasks = guest.tasks()?;
    let running: Vec<(u32, u32)> =
        (0..guest.vcpus()).filter_map(|v| Some((v, tasks.current(v).ok()?.tgid))).collect();
    let all = tasks.processes()?;
    let on = |p: &Process| -> Vec<u32> {
        running.iter().filter(|(_, pid)| *pid == p.task.tgid).map(|(v, _)| *v).collect()
    };
    let value = |p: &Process| -> Value {
        json!({
            "address": address(p.task.address), "pid": p.task.tgid, "parent": p.task.parent, "comm": p.task.comm, "threads": p.threads,
            "kernel_thread": p.task.kernel_thread, "listed": p.listed, "numbered": p.numbered, "running_on": on(p),
        })
    };
    let table = |rows: &[&Process]| -> Table {
        let mut t = Table::new(&[
            Column::right("pid", 0),
            Column::right("parent", 1),
            Column::left("name", 0, 0),
            Column::right("threads", 1),
            Column::left("on vCPU", 2, 0),
            Column::left("", 0, 0),
        ]);
        for p in rows {
            let name = if p.task.kernel_thread { format!("[{}]", p.task.comm) } else { p.task.comm.clone() };
            let note = match (p.listed, p.numbered) {
                (true, true) => "",
                (true, false) => "hidden: has no number, so ps does not show it",
                _ => "hidden: not in the list of tasks",
            };
            let on: Vec<String> = on(p).iter().map(u32::to_string).collect();
            t.row(vec![
                (p.task.tgid.to_string(), Style::Plain),
                (p.task.parent.to_string(), Style::Faint),
                (name, if p.task.kernel_thread { Style::Faint } else { Style::Plain }),
                (count(p.threads.into()), Style::Plain),
                (on.join(","), Style::Plain),
                (note.into(), Style::Warn),
            ]);
        }
        t
    };
    let is_hidden = Process::hidden;
    Hidden { what: "processes", fields: &FIELDS, all: &all, is_hidden, value: &value, table: &table }
        .show(&args.of, out)
}
