//! What TAB offers: commands and flags from their declaration, values by what the declaration calls them. The scripts of
//! the shells ask this program with `KPAT_COMPLETE=INDEX kpat -- WORD...` and get a line per proposal: the word, and behind
//! a tab what it is.
//!
//! Rejected: scripts made ahead from the declaration. They cannot know devices, namespaces, or what is in a log.

use super::in_log;
use crate::cli::Cli;
use crate::render::clean;
use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, complete};
use kpat_probe::mechanism::Mechanism;
use kpat_probe::{control, kernel, netlink, plan, profile};
use kpat_query::columns::PACKET_COLUMNS;
use kpat_query::verdict;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

/// Where a shell writes which word is asked for.
const VARIABLE: &str = "KPAT_COMPLETE";

/// Names offered at most: a terminal of them is none.
pub const MOST: usize = 2000;

/// The answer, if it is a shell that asks.
pub fn asked() -> Option<ExitCode> {
    let index: usize = std::env::var(VARIABLE).ok()?.parse().ok()?;
    let words: Vec<OsString> = std::env::args_os().skip_while(|w| w != "--").skip(1).collect();
    let here = std::env::current_dir().ok();
    let begun = words.get(index).is_some_and(|w| !w.is_empty());
    let Ok(mut found) = complete(&mut command(), words, index, here.as_deref()) else {
        return Some(ExitCode::FAILURE);
    };
    // Flags only where one was begun, or nothing else fits.
    let is_flag = |c: &CompletionCandidate| c.get_value().as_encoded_bytes().starts_with(b"-");
    if !begun && found.iter().any(|c| !is_flag(c)) {
        found.retain(|c| !is_flag(c));
    }
    let mut text = String::new();
    for c in &found {
        let value = c.get_value().to_string_lossy();
        // A name out of a log or of a file would begin another line, or say something to the terminal.
        if value.contains(char::is_control) {
            continue;
        }
        text += &value;
        let about = c.get_help().map(ToString::to_string).unwrap_or_default();
        if let Some(line) = about.lines().next().filter(|l| !l.is_empty()) {
            text += "\t";
            text += &clean(line);
        }
        text += "\n";
    }
    let _ = std::io::stdout().write_all(text.as_bytes());
    Some(ExitCode::SUCCESS)
}

/// The commands, each value with what can be proposed for it.
fn command() -> Command {
    fn equipped(command: Command) -> Command {
        let name = command.get_name().to_owned();
        command.mut_args(|arg| equip(&name, arg)).mut_subcommands(equipped)
    }
    equipped(Cli::command())
}

fn equip(command: &str, arg: Arg) -> Arg {
    let called: Vec<String> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let first = called.first().map_or("", String::as_str);
    // Of several values a log may be any.
    let a_log = || called.iter().any(|c| c == "X.kpat").then_some((|w| logs(w, &["kpat"])) as Offer);
    match offer(command, arg.get_id().as_str(), first).or_else(a_log) {
        Some(offer) => arg.add(ArgValueCompleter::new(offer)),
        None => arg,
    }
}

type Offer = fn(&OsStr) -> Vec<CompletionCandidate>;

/// Who proposes values for this argument; `None`: the declaration's own values, else files, where it takes a path.
fn offer(command: &str, id: &str, called: &str) -> Option<Offer> {
    Some(match (command, id, called) {
        (_, "interfaces" | "interface", _) => |w| own_devices(w),
        (_, "sniff", _) => |w| devices(w),
        (_, "netns", _) => |w| fitting(w, namespaces()),
        (_, "profile", _) => |w| fitting(w, profiles()),
        (_, "mechanism", _) => |w| fitting(w, Mechanism::ALL.map(|m| (m.name().to_owned(), String::new()))),
        (_, "add" | "remove", _) => |w| fitting(w, kernel_functions(w)),
        (_, "verdict", _) => {
            |w| fitting(w, verdict::CODES.iter().map(|c| (c.name.to_owned(), c.meaning.to_owned())))
        }
        (_, "proto", _) => |w| {
            fitting(
                w,
                ["tcp", "udp", "icmp", "icmpv6", "arp", "ip", "ip6"].map(|n| (n.to_owned(), String::new())),
            )
        },
        ("events", "kind", _) => {
            |w| fitting(w, crate::events::kinds().map(|k| (k.name().to_owned(), String::new())))
        }
        ("on" | "off", "globs", _) => |w| fitting(w, kernel_functions(w)),
        (_, "func", _) | (_, "glob" | "functions", "GLOB") | ("time", _, "GLOB") => {
            |w| fitting(w, in_log::functions())
        }
        ("packets", "columns", _) => |w| fitting(w, columns()),
        ("app", "write", _) => |w| fitting(w, in_log::writes()),
        ("app", "socket", _) => |w| fitting(w, in_log::sockets()),
        ("why", "words", _) => |w| either(fitting(w, in_log::sockets()), logs(w, &["kpat"])),
        ("handover", "words", _) => |w| either(fitting(w, in_log::handovers()), logs(w, &["kpat"])),
        ("profile", "pid", _) => |w| fitting(w, in_log::processes()),
        ("profile", "comm", _) => |w| fitting(w, in_log::names_of_processes()),
        ("profile", "cgroup", _) => |w| fitting(w, in_log::cgroups()),
        ("profile", "user", _) => |w| fitting(w, in_log::users()),
        ("profile", "function", _) => |w| fitting(w, in_log::sampled()),
        ("export", "only", _) => |w| fitting(w, in_log::captures()),
        (_, "only", _) | ("add" | "remove", "terms", _) => |w| fitting(w, chosen(w)),
        ("function", "words", _) => |w| either(fitting(w, in_log::functions()), logs(w, &["kpat"])),
        ("ctl", "pid", _) => {
            |w| fitting(w, control::running().into_iter().map(|pid| (pid.to_string(), String::new())))
        }
        ("sql", "tables", _) => |w| fitting(w, tables()),
        ("frames", "capture", _) => |w| fitting(w, in_log::captures()),
        ("packets" | "time" | "phases" | "function" | "export" | "app", "expression", _) => {
            |w| either(conditions(w), logs(w, &["kpat"]))
        }
        ("man", "command", _) => {
            |w| fitting(w, Cli::command().get_subcommands().map(|c| (c.get_name().to_owned(), String::new())))
        }
        (_, _, "X.kpat" | "B.kpat" | "X2.kpat" | "OTHER.kpat") => |w| logs(w, &["kpat"]),
        (_, _, "X.kpat|X.kbl") => |w| logs(w, &["kpat", "kbl"]),
        (_, _, "X.kbl" | "FILE.kbl") => |w| logs(w, &["kbl"]),
        (_, _, "WIRE.pcapng|Y.kbl") => |w| logs(w, &["pcapng", "pcap", "gz", "zst", "kbl"]),
        (_, _, "WIRE.pcapng") => |w| logs(w, &["pcapng", "pcap", "gz", "zst"]),
        _ => return None,
    })
}

/// A name and what it is.
pub type Named = (String, String);

fn fitting(begun: &OsStr, names: impl IntoIterator<Item = Named>) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let mut names: Vec<Named> = names.into_iter().filter(|(name, _)| name.starts_with(&*begun)).collect();
    names.truncate(MOST);
    names
        .into_iter()
        .map(|(name, about)| CompletionCandidate::new(name).help((!about.is_empty()).then(|| about.into())))
        .collect()
}

/// Heads of the list of packets, as `--columns` takes them without quotes.
fn columns() -> Vec<Named> {
    let heads = PACKET_COLUMNS.iter().flat_map(|c| c.head.names());
    heads.map(|head| (head.replace(' ', "-"), String::new())).collect()
}

fn either(mut a: Vec<CompletionCandidate>, b: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    a.extend(b);
    a
}

/// Network devices of this process's namespace.
fn here() -> Vec<Named> {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let mut names: Vec<Named> = entries
        .flatten()
        .filter(|e| e.path().is_dir())
        .filter_map(|e| Some((e.file_name().into_string().ok()?, String::new())))
        .collect();
    names.sort();
    names
}

/// Devices of the namespaces asked for with `--netns`, or of this one.
fn own_devices(begun: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let named = words.windows(2).filter(|w| w[0] == "--netns").filter_map(|w| inside(&w[1]));
    let there: Vec<Named> = named.flatten().collect();
    fitting(begun, if there.is_empty() { here() } else { there })
}

/// Devices here and, behind `NETNS:`, those there.
fn devices(begun: &OsStr) -> Vec<CompletionCandidate> {
    let text = begun.to_string_lossy().into_owned();
    if let Some((netns, _)) = text.rsplit_once(':') {
        let there = inside(netns).unwrap_or_default();
        return fitting(begun, there.into_iter().map(|(name, about)| (format!("{netns}:{name}"), about)));
    }
    let spaces = netlink::named_netns().into_iter().filter_map(|n| n.name);
    fitting(
        begun,
        here().into_iter().chain(spaces.map(|n| (format!("{n}:"), "network namespace".to_owned()))),
    )
}

fn inside(netns: &str) -> Option<Vec<Named>> {
    let devices = netlink::devices(&netlink::find(netns).ok()?).ok()?;
    Some(devices.into_iter().map(|d| (d.name, d.driver)).collect())
}

fn namespaces() -> Vec<Named> {
    let named = netlink::named_netns().into_iter().filter_map(|n| n.name);
    let own = ("self".to_owned(), "the one kpat runs in".to_owned());
    let of_process = |name: String| Some((netlink::labelled(&name)?.to_string(), name));
    let processes = netlink::process_netns().into_iter().filter_map(|n| of_process(n.name?));
    std::iter::once(own).chain(named.map(|n| (n, String::new()))).chain(processes).collect()
}

/// The profiles, and one for each driver of a device here.
fn profiles() -> Vec<Named> {
    let drivers = netlink::current_netns().and_then(|n| netlink::devices(&n)).unwrap_or_default();
    let mut drivers: Vec<String> = drivers.into_iter().map(|d| d.driver).filter(|d| !d.is_empty()).collect();
    drivers.sort();
    drivers.dedup();
    let named = profile::NAMES.map(|(name, about)| (name.to_owned(), about.to_owned()));
    named.into_iter().chain(drivers.into_iter().map(|d| (format!("driver:{d}"), String::new()))).collect()
}

/// Functions of the running kernel that can be traced, from what was begun.
/// Functions of this kernel that begin so, and all points.
fn kernel_functions(begun: &OsStr) -> Vec<Named> {
    let begun = begun.to_string_lossy();
    let mut names: Vec<String> = match kernel::traceable() {
        // Seventy thousand names are no help.
        _ if begun.is_empty() => Vec::new(),
        Some(names) => names.into_keys().filter(|n| n.starts_with(&*begun)).collect(),
        None => {
            kernel::Symbols::running().names().filter(|n| n.starts_with(&*begun)).map(str::to_owned).collect()
        }
    };
    names.extend(plan::point_names());
    names.sort();
    names.dedup();
    names.into_iter().map(|n| (n, String::new())).collect()
}

/// What `--only` takes: `pid=` and the like, behind it processes that run here.
fn chosen(begun: &OsStr) -> Vec<Named> {
    const KINDS: [(&str, &str); 7] = [
        ("command", "the command behind --"),
        ("pid=", "a process and its children"),
        ("comm=", "processes of this name, or glob"),
        ("cgroup=", "a cgroup, by its path in cgroup2"),
        ("container=", "a container, by the beginning of its identifier"),
        ("pod=", "a Kubernetes pod"),
        ("user=", "a user, by name or number"),
    ];
    let begun = begun.to_string_lossy();
    let Some((kind @ ("pid" | "comm"), _)) = begun.split_once('=') else {
        return KINDS.map(|(kind, about)| (kind.to_owned(), about.to_owned())).into();
    };
    let here = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let running = here.filter_map(|e| {
        let pid = e.file_name().into_string().ok().filter(|n| n.bytes().all(|b| b.is_ascii_digit()))?;
        let comm = std::fs::read_to_string(e.path().join("comm")).ok()?.trim_end().to_owned();
        Some(if kind == "pid" {
            (format!("pid={pid}"), comm)
        } else {
            (format!("comm={comm}"), String::new())
        })
    });
    let mut found: Vec<Named> = running.collect();
    found.sort();
    found.dedup();
    found
}

fn tables() -> Vec<Named> {
    kpat_store::tables::ALL.iter().map(|t| (t.name.to_owned(), t.meaning.to_owned())).collect()
}

fn conditions(begun: &OsStr) -> Vec<CompletionCandidate> {
    let words = kpat_query::filter::conditions();
    fitting(begun, words.into_iter().map(|i| (i.text, i.words)))
}

/// Files with one of these endings and folders to look further in; an integrated log is a folder that counts as a file.
fn logs(begun: &OsStr, endings: &[&str]) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let (folder, part) = begun.rsplit_once('/').map_or(("", &*begun), |(f, p)| (&begun[..=f.len()], p));
    let Ok(entries) = std::fs::read_dir(if folder.is_empty() { "." } else { folder }) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !name.starts_with(part) || (name.starts_with('.') && part.is_empty()) {
            continue;
        }
        let path = entry.path();
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        let fits = endings.iter().any(|e| *e == ending);
        // Logs first, then folders.
        match (path.is_dir(), fits) {
            (false, true) => found.push((false, format!("{folder}{name}"))),
            (true, true) if ending == "kpat" => found.push((false, format!("{folder}{name}"))),
            (true, _) if ending != "kpat" => found.push((true, format!("{folder}{name}/"))),
            _ => {}
        }
    }
    found.sort();
    found.into_iter().map(|(_, name)| CompletionCandidate::new(name)).collect()
}
