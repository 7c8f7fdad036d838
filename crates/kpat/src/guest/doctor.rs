//! `kpat guest doctor`: what works for one guest, and what each step costs. Changes nothing in the guest; only `--stop` stops it, for some
//! milliseconds.

use super::{Which, address};
use crate::output::Output;
use crate::render::{Column, Line, Pairs, Style, Table, bytes, count};
use kpat_guest::symbols::Times;
use kpat_guest::{Accelerator, Guest, Symbols};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Also try QEMU's debugger interface, which stops the guest for some milliseconds
    #[arg(long)]
    stop: bool,
}

/// How many readings the mean is of.
const READINGS: u32 = 20_000;
const STRING: usize = 64;

/// A way to probe the guest, and what is against it; empty: it works.
struct Way {
    name: &'static str,
    against: String,
    note: String,
}

/// What was found before anything else was tried.
struct Found {
    attach: Duration,
    symbols: Result<Duration, String>,
    read_ns: Option<f64>,
    five_levels: bool,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let guest = Guest::connect(&args.which.target())?;
    guest.open_memory()?;
    let attach = began.elapsed();
    let began = Instant::now();
    let symbols = guest.symbols();
    let found = Found {
        attach,
        symbols: symbols.as_ref().map(|_| began.elapsed()).map_err(ToString::to_string),
        read_ns: symbols.as_ref().ok().and_then(|s| reading(&guest, s)),
        five_levels: guest.memory().kernel_space().levels == 5,
    };
    let symbols = symbols.ok();
    let ways = ways(&guest, symbols, args.stop);
    if out.json {
        out.value(&value(&guest, symbols, &found, &ways))?;
    } else {
        print(&guest, symbols, &found, &ways, out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The mean time to translate an address of the kernel and copy 64 bytes.
fn reading(guest: &Guest, symbols: &Symbols) -> Option<f64> {
    let mut piece = [0; STRING];
    let at = symbols.address("linux_banner").unwrap_or(symbols.base());
    let began = Instant::now();
    for _ in 0..READINGS {
        guest.memory().read(at, &mut piece).ok()?;
    }
    Some(began.elapsed().as_nanos() as f64 / f64::from(READINGS))
}

fn ways(guest: &Guest, symbols: Option<&Symbols>, stop: bool) -> Vec<Way> {
    let linux = if symbols.is_some() { "" } else { "no Linux was found in its memory" };
    let write = if guest.memory().may_write() { "" } else { "QEMU's memory may be read but not written" };
    let device = offers(guest, "ivshmem-plain");
    let first = |all: &[&str]| all.iter().find(|w| !w.is_empty()).map_or(String::new(), |w| (*w).to_owned());
    let mailbox = first(&[linux, write, &device]);
    let line = std::fs::read(format!("/proc/{}/cmdline", guest.pid())).unwrap_or_default();
    let loaded = line.split(|b| *b == 0).any(|w| w == b"-plugin" || w == b"--plugin");
    let plugin = match (guest.accelerator(), loaded) {
        (Accelerator::Kvm, _) => "works under emulation only",
        (Accelerator::Tcg, false) => "QEMU was started without -plugin",
        (Accelerator::Tcg, true) => "",
    };
    let (against, note) = if stop {
        debugger(guest)
    } else {
        (String::new(), "any guest, also no Linux; stands at each hit; not tried, --stop tries it".into())
    };
    vec![
        Way { name: "memory", against: String::new(), note: "reading only: symbols, processes".into() },
        Way {
            name: "mailbox",
            against: mailbox,
            note: "shared memory by a hot-plugged ivshmem device; jumps, and breakpoints where a jump has no room".into(),
        },
        Way { name: "plugin", against: plugin.into(), note: "not implemented".into() },
        Way { name: "debugger", against, note },
    ]
}

/// What is against a kind of device.
fn offers(guest: &Guest, device: &str) -> String {
    match guest.qmp().command("device-list-properties", json!({"typename": device})) {
        Ok(_) => String::new(),
        Err(_) => format!("this QEMU has no device {device}"),
    }
}

/// What is against the debugger's interface, or how long the guest stood for it.
fn debugger(guest: &Guest) -> (String, String) {
    let began = Instant::now();
    let tried = guest.gdb().and_then(|mut gdb| {
        let rip = gdb.registers(0)?.rip;
        gdb.detach()?;
        Ok(rip)
    });
    match tried {
        Ok(_) => (String::new(), format!("tried: the guest stood for {}", millis(began.elapsed()))),
        Err(e) => (e.to_string(), String::new()),
    }
}

fn millis(d: Duration) -> String {
    format!("{:.1} ms", d.as_secs_f64() * 1e3)
}

fn accelerator(guest: &Guest) -> &'static str {
    match guest.accelerator() {
        Accelerator::Kvm => "KVM",
        Accelerator::Tcg => "TCG",
    }
}

fn value(guest: &Guest, symbols: Option<&Symbols>, found: &Found, ways: &[Way]) -> Value {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let (mapped, all) = guest.memory().mapped();
    let times = symbols.map(Symbols::times).map(|t: Times| {
        json!({"place_ms": ms(t.place), "image_ms": ms(t.image), "kallsyms_ms": ms(t.kallsyms), "btf_ms": ms(t.btf), "modules_ms": ms(t.modules)})
    });
    json!({
        "pid": guest.pid(), "name": guest.name(), "accelerator": accelerator(guest), "vcpus": guest.vcpus(),
        "qemu": guest.qmp().version(), "ram_bytes": all, "ram_mapped_bytes": mapped,
        "five_level_page_tables": found.five_levels, "page_table_isolation": guest.memory().isolated(),
        "attach_ms": ms(found.attach), "symbols_ms": found.symbols.as_ref().ok().map(|d| ms(*d)),
        "symbols_error": found.symbols.as_ref().err(), "read_64_bytes_ns": found.read_ns, "steps": times,
        "linux": symbols.map(|s| json!({
            "banner": s.banner(), "release": s.release(), "base": address(s.base()),
            "symbols": s.table().len(), "modules": s.modules().len(), "btf": s.btf().is_some(),
        })),
        "ways": ways.iter().map(|w| json!({"name": w.name, "works": w.against.is_empty(), "against": w.against, "note": w.note})).collect::<Vec<_>>(),
    })
}

fn print(
    guest: &Guest,
    symbols: Option<&Symbols>,
    found: &Found,
    ways: &[Way],
    out: &Output,
) -> anyhow::Result<()> {
    let yes = |b: bool| if b { "yes" } else { "no" };
    let mut p = Pairs::new();
    let name = if guest.name().is_empty() { "without a name" } else { guest.name() };
    p.add("guest", format!("{name}, process {}, {} vCPU", guest.pid(), guest.vcpus()));
    p.add("QEMU", format!("{}, {}", guest.qmp().version(), accelerator(guest)));
    let (mapped, all) = guest.memory().mapped();
    let way = if mapped == all { "mapped" } else { "through /proc/PID/mem" };
    p.add("memory", format!("{}, {way}", bytes(all)));
    p.add("attached", format!("in {}", millis(found.attach)));
    p.add("page tables", if found.five_levels { "five levels" } else { "four levels" });
    // A guest that idles in the kernel runs on the kernel's tables, beside which those of no process need be.
    p.add("isolated (PTI)", yes(guest.memory().isolated()));
    match (symbols, &found.symbols) {
        (Some(s), Ok(took)) => {
            p.add("kernel", s.release());
            p.add("banner", s.banner());
            p.add("begins at", address(s.base()));
            p.add(
                "symbols",
                format!(
                    "{} with {} modules, in {}",
                    count(s.table().len() as u64),
                    s.modules().len(),
                    millis(*took)
                ),
            );
            let t = s.times();
            let steps = [
                ("place", t.place),
                ("image", t.image),
                ("kallsyms", t.kallsyms),
                ("types", t.btf),
                ("modules", t.modules),
            ];
            p.add("of that", steps.map(|(n, d)| format!("{n} {}", millis(d))).join(", "));
            p.add("types (BTF)", yes(s.btf().is_some()));
        }
        (_, Err(why)) => p.add("kernel", format!("not found: {why}")),
        _ => {}
    }
    if let Some(ns) = found.read_ns {
        p.add("64 bytes", format!("read in {ns:.0} ns"));
    }
    out.lines(&p.render(out.width))?;
    out.line(&Line::new())?;
    let mut t =
        Table::new(&[Column::left("way", 0, 0), Column::left("works", 0, 0), Column::left("", 0, 24)]);
    for w in ways {
        let works = w.against.is_empty();
        let note = if works { w.note.clone() } else { w.against.clone() };
        let style = if works { Style::Plain } else { Style::Warn };
        t.row(vec![(w.name.into(), Style::Plain), (yes(works).into(), style), (note, Style::Faint)]);
    }
    out.lines(&t.render(out.width).0)
}
