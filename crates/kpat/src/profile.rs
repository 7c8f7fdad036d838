//! `kpat profile`: whom the CPUs worked for, from a recording with `--profile profile`.

mod across;
mod compare;
pub mod recording;
mod sampled;
mod worked;

use crate::info::{LossSum, add_losses};
use crate::open;
use crate::output::{Output, usage};
use crate::render::{Column, Line, Pairs, Style, Table, count, plural, seconds};
use kpat_model::{ProcessNumber, Purpose};
use kpat_query::profile::{
    Amount, By, Group, OTHERS, OfProcess, Profile, Taken, Wanted, groups, pid as pid_of, profile,
    user_numbers,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// The integrated log
    #[arg(value_name = "X.kpat")]
    log: PathBuf,
    #[command(flatten)]
    device: open::Device,
    /// Only this process; the others' time is in the bucket `other` (may be repeated)
    #[arg(long, value_name = "PID")]
    pid: Vec<i32>,
    /// The same of processes of this name
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// The same of processes in this cgroup or below it, by its path in cgroup2
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// The same of processes of this user, by name or number
    #[arg(long, value_name = "USER")]
    user: Vec<String>,
    /// Add processes up by what they have in common
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t = ByArg::Process,
        conflicts_with_all = ["flat", "graph", "format", "function"]
    )]
    by: ByArg,
    /// Show at most so many processes, and so many pairs of victim and beneficiary; 0: all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Compare with this integrated log: what each program is charged, and which functions take another share of the samples
    #[arg(long, value_name = "OTHER.kpat", conflicts_with_all = ["flat", "graph", "format", "function", "by"])]
    compare: Option<PathBuf>,
    /// Integrated log of another host: says which of its processes were the clients or servers of this one's (may be repeated)
    #[arg(long, value_name = "OTHER.kpat", conflicts_with_all = ["flat", "graph", "format", "function", "compare"])]
    with: Vec<PathBuf>,
    #[command(flatten)]
    sampled: sampled::SampledArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ByArg {
    Process,
    /// The name
    Comm,
    Cgroup,
    /// Service or scope of systemd
    Unit,
    Container,
    Pod,
    User,
}

impl ByArg {
    fn word(self) -> &'static str {
        match self {
            ByArg::Process => "process",
            ByArg::Comm => "comm",
            ByArg::Cgroup => "cgroup",
            ByArg::Unit => "unit",
            ByArg::Container => "container",
            ByArg::Pod => "pod",
            ByArg::User => "user",
        }
    }

    fn of(self) -> By {
        match self {
            ByArg::Process => By::Process,
            ByArg::Comm => By::Comm,
            ByArg::Cgroup => By::Cgroup,
            ByArg::Unit => By::Unit,
            ByArg::Container => By::Container,
            ByArg::Pod => By::Pod,
            ByArg::User => By::User,
        }
    }
}

/// Percent of what passed; what adds up differs by far less.
const MOST_DIFFERENCE: f64 = 0.2;

const NOTHING: &str = "this log has no profile; record it with `kpat record -p profile`";

/// What the figures leave out: whoever reads them must know.
const NOT_MEASURED: [&str; 11] = [
    "page faults are in the time of user mode where the kernel has no tracepoint at their beginning (arm64)",
    "timers of sockets, work items that a timer queues and sent packets' completions are charged to the kernel; an item queued by two before it is executed is the first one's; messages through translated addresses are not followed to a client, nor are those to another host to its process there",
    "requests by eventfd, signals, pseudoterminals and shared memory are not followed from process to process; work that another thread of the server answers is followed by futexes, eventfds and pairs of unix sockets alone; one that takes several requests before it answers the first works for whom it answers next, and by pipes and queues for whom it took the last of",
    "programs that ran in one process one after the other are added up, under the name of the last",
    "before Linux 6.3 sockets have no tracepoints: where the kernel lets nobody probe functions either, packets are received by nobody that is known, and servers have no clients by sockets",
    "packets that a device's poll hands up together (receive offload, a device's own thread) share their time in equal parts; of fragments of IPv6 whose datagram is not whole when another task runs it is not known whose they are",
    "what a sniffer that maps its ring (tcpdump) adds to a packet is charged with the packet; where the kernel does not show to which CPU an interrupt goes (before 6.4), handing packets to another CPU (RPS) is the kernel's",
    "an interrupt is timed from the kernel's first tracepoint in it: its delivery (microseconds each in virtual machines) stays with the interrupted",
    "TCP segments that wait for a reader who holds the socket are charged with that connection if one of its sockets was used, connected or accepted while it was recorded; else to nobody (unknown)",
    "upon tasks upon which the kernel runs no programs nothing is counted: that time is `not seen`, packets of that time are those received but not counted, block requests those completed but not counted",
    "time that a hypervisor took away stays with whoever ran",
];

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let log = open::integrated(&args.log, &args.device)?;
    let mut users = Vec::new();
    for user in &args.user {
        match user_numbers(&log, user)?.as_slice() {
            [] => return Err(usage(format!("no process in this log is of a user {user}"))),
            numbers => users.extend(numbers),
        }
    }
    let chosen =
        Wanted { pids: args.pid.clone(), names: args.comm.clone(), cgroups: args.cgroup.clone(), users };
    let p = profile(&log, &chosen)?.ok_or_else(|| usage(NOTHING))?;
    if let Some(pid) = args.pid.iter().find(|pid| !p.processes.iter().any(|x| pid_of(x.number) == **pid)) {
        return Err(usage(format!("process {pid} neither ran nor was anything done for it in this log")));
    }
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let processes: Vec<&OfProcess> = p.processes.iter().filter(|x| chosen.has(x)).collect();
    if processes.is_empty() && !chosen.all() {
        return Err(usage("no process in this log is chosen by --comm, --cgroup or --user"));
    }
    let pids: BTreeSet<i32> = processes.iter().map(|x| x.number).collect();
    // Of whom samples are shown; `None`: of all, and of no process.
    let served = (!chosen.all()).then_some(&pids);
    if let Some(other) = &args.compare {
        let other = open::integrated(other, &args.device)?;
        return compare::run((&log, &p), &other, &chosen, limit, out);
    }
    if let Some(function) = &args.sampled.function {
        let which = args.sampled.packets.as_deref().unwrap_or_default();
        return worked::run(&log, function, which, limit, out);
    }
    if args.sampled.is_asked() {
        return sampled::run(args, &log, &p, served, out);
    }
    let wanted = |pid: Option<i32>| chosen.all() || pid.is_some_and(|p| pids.contains(&p));
    let added_up = (args.by != ByArg::Process).then(|| groups(&processes, args.by.of()));
    let pairs = |of: &[Taken]| {
        let fits = |t: &&Taken| wanted(t.victim) || wanted(t.beneficiary);
        of.iter().filter(fits).cloned().collect::<Vec<Taken>>()
    };
    let (taken, clients) = (pairs(&p.taken), pairs(&p.clients));
    let rows = added_up.as_ref().map_or(processes.len(), Vec::len);
    let mut hosts = across::Hosts::open(&log, &args.with)?;
    hosts.keep(limit, |pid| wanted(Some(pid)));
    let info = log.info()?;
    let losses = LossSum::of(&info.losses);
    let complete = info.manifest.summary.as_ref().is_some_and(|s| s.complete);
    let ended = out.ended(!losses.is_empty() || !complete);
    if out.json {
        let all = json!({
            "passed_ns": p.passed_ns, "chosen_when_recorded": p.is_of_chosen,
            "buckets_ns": {
                "process": p.buckets.process_ns, "other": p.buckets.other_ns, "kernel": p.buckets.kernel_ns,
                "idle": p.buckets.idle_ns, "unplaced": p.buckets.unplaced_ns, "unseen": p.buckets.unseen_ns,
            },
            "difference_ns": p.buckets.sum_ns() - p.passed_ns,
            "proc_stat_ns": proc_stat(&p),
            "losses": losses.iter().map(LossSum::as_json).collect::<Vec<_>>(), "recording_complete": complete,
            "total": rows,
            "shown": rows.min(limit),
            "clients_total": clients.len(),
            "taken_total": taken.len(),
            "processes": processes.iter().take(limit).map(|x| process_json(x)).collect::<Vec<_>>(),
            "groups": added_up.as_ref().map(|all| {
                all.iter().take(limit).map(|g| group_json(args.by, g)).collect::<Vec<_>>()
            }),
            "clients": clients.iter().take(limit).map(|t| {
                json!({
                    "server": t.victim.map(pid_of), "server_instance": t.victim.map(instance),
                    "client": t.beneficiary.map(pid_of), "client_instance": t.beneficiary.map(instance), "ns": t.ns, "handed_ns": t.handed_ns, "unsure_ns": t.unsure_ns,
                })
            }).collect::<Vec<_>>(),
            "across": hosts.json(&p),
            "packets": p.packets().map(|(counted, received)| json!({ "counted": counted, "received": received })),
            "block_requests": p.requests.map(|(counted, completed)| json!({ "counted": counted, "completed": completed })),
            "taken": taken.iter().take(limit).map(taken_json).collect::<Vec<_>>(),
            "without_process": p.without_process.iter().map(|(purpose, a)| {
                (word(*purpose).to_string(), json!({ "ns": a.ns, "packets": a.packets }))
            }).collect::<serde_json::Map<_, _>>(),
            "forwarded": p.ways.iter().map(|w| {
                json!({ "netns": w.netns, "from": w.from, "to": w.to, "ns": w.ns, "packets": w.packets })
            }).collect::<Vec<_>>(),
            "hardirq_ns": p.hardirq_ns,
            "not_measured": NOT_MEASURED,
            "sampled": sampled::beside_json(&log, &p, served)?,
        });
        out.value(&all)?;
        return Ok(ended);
    }
    let mut facts = facts(&p);
    if !losses.is_empty() || !complete {
        add_losses(&mut facts, &losses, 0, complete);
    }
    out.lines(&facts.render(out.width))?;
    out.line(&Line::new())?;
    let (table, what) = match &added_up {
        Some(all) => (groups_table(args.by, all, limit), "groups"),
        None => (processes_table(&processes, limit), "processes"),
    };
    out.lines(&table.render(out.width).0)?;
    let pairs =
        [(clients.len(), "pairs of server and client"), (taken.len(), "pairs of victim and beneficiary")];
    for (rows, what) in [(rows, what)].into_iter().chain(pairs).filter(|(rows, _)| *rows > limit) {
        out.say(&format!("first {limit} of {rows} {what} shown; --limit 0 shows all"));
    }
    if p.passed_ns == 0 {
        out.say(
            "the log ends before the first sums were written, which is done each second: nothing is charged",
        );
    }
    if !clients.is_empty() {
        out.line(&Line::new())?;
        out.lines(&clients_table(&p, clients.iter().take(limit)).render(out.width).0)?;
    }
    if !hosts.all.is_empty() {
        out.line(&Line::new())?;
        out.lines(&hosts.table(&p).render(out.width).0)?;
    }
    if !taken.is_empty() {
        out.line(&Line::new())?;
        out.lines(&taken_table(&p, taken.iter().take(limit)).render(out.width).0)?;
    }
    sampled::beside(&log, &p, served, limit, out)?;
    out.line(&Line::new())?;
    let mut notes = Pairs::new();
    for (label, texts, style) in [
        ("handed on, client not known", handed_for_none(&processes), Style::Warn),
        ("renamed", renamed(&processes), Style::Warn),
        ("moved", moved(&processes, args.by), Style::Warn),
        ("not measured", NOT_MEASURED.map(str::to_owned).to_vec(), Style::Faint),
    ] {
        for (n, text) in texts.into_iter().enumerate() {
            notes.line(if n == 0 { label } else { "" }, Line::of(text, style));
        }
    }
    out.lines(&notes.render(out.width))?;
    Ok(ended)
}

/// Who belonged to something else before, where that is what was asked for: all of its time stands at the last.
fn moved(processes: &[&OfProcess], by: ByArg) -> Vec<String> {
    let of_user = by == ByArg::User;
    let asked = of_user || matches!(by, ByArg::Cgroup | ByArg::Unit | ByArg::Container | ByArg::Pod);
    few(processes.iter().filter_map(|p| {
        let (before, last) = (p.before.as_ref()?, p.label.as_ref()?);
        let (was, is) = if of_user {
            (format!("user {}", before.user()), format!("user {}", last.user()))
        } else {
            (before.path.clone(), last.path.clone())
        };
        let (name, number) =
            (kpat_text::clean(p.name.as_deref().unwrap_or("?")), ProcessNumber::from(p.number));
        let (was, is) = (kpat_text::clean(&was), kpat_text::clean(&is));
        (asked && was != is).then(|| {
            format!("{name} {number} was in {was} before it came to {is}, with which all of its time stands")
        })
    }))
}

/// Programs that ran one after another in a process, most charged first: all of its time stands at the last.
fn renamed(processes: &[&OfProcess]) -> Vec<String> {
    few(processes.iter().filter(|p| !p.names_before.is_empty()).map(|p| {
        let before: Vec<String> = p.names_before.iter().map(|n| kpat_text::clean(n)).collect();
        let name = kpat_text::clean(p.name.as_deref().unwrap_or("?"));
        format!(
            "{name} {} was called {} before; all of its time stands with {name}",
            ProcessNumber::from(p.number),
            before.join(", then ")
        )
    }))
}

/// The first of these notes about processes.
fn few(notes: impl Iterator<Item = String>) -> Vec<String> {
    const MOST: usize = 3;
    let all: Vec<String> = notes.collect();
    let more = all.len().saturating_sub(MOST);
    let rest = (more > 0).then(|| format!("{more} more processes"));
    all.into_iter().take(MOST).chain(rest).collect()
}

fn s(ns: i64) -> String {
    format!("{:.4}", ns as f64 / 1e9)
}

fn share(ns: i64, of: i64) -> String {
    format!("{:.2} %", ns as f64 * 100.0 / of.max(1) as f64)
}

/// Work without a process by what it was, as it is called.
fn word(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Socket => "unread",
        p => p.name(),
    }
}

fn proc_stat(p: &Profile) -> Value {
    let sum = |of: fn(&kpat_store::tables::CpuAccountRow) -> i64| p.accounts.iter().map(of).sum::<i64>();
    json!({
        "user": sum(|a| a.user_ns), "system": sum(|a| a.system_ns), "idle": sum(|a| a.idle_ns),
        "irq": sum(|a| a.irq_ns), "softirq": sum(|a| a.softirq_ns), "steal": sum(|a| a.steal_ns),
    })
}

fn facts(p: &Profile) -> Pairs {
    let mut facts = Pairs::new();
    let b = &p.buckets;
    facts.add("CPU time", format!("{} s passed on {} CPUs", s(p.passed_ns), cpus(p)));
    let mut parts = vec![("processes", b.process_ns)];
    if b.other_ns != 0 {
        parts.push(("other processes", b.other_ns));
    }
    parts.extend([("kernel", b.kernel_ns), ("idle", b.idle_ns)]);
    if b.unplaced_ns != 0 {
        parts.push(("without room in the tables", b.unplaced_ns));
    }
    if b.unseen_ns != 0 {
        parts.push(("not seen", b.unseen_ns));
    }
    let parts: Vec<String> =
        parts.iter().map(|(name, ns)| format!("{name} {} s ({})", s(*ns), share(*ns, p.passed_ns))).collect();
    facts.add("charged to", parts.join(", "));
    let difference = b.sum_ns() - p.passed_ns;
    let of = difference as f64 * 100.0 / p.passed_ns.max(1) as f64;
    facts.add(
        "difference",
        format!("{:.6} s ({of:.4} %) between what was charged and what passed", difference as f64 / 1e9),
    );
    if of.abs() > MOST_DIFFERENCE {
        facts.line("", Line::of("sums are missing: the log is damaged", Style::Bad));
    }
    let sum = |of: fn(&kpat_store::tables::CpuAccountRow) -> i64| p.accounts.iter().map(of).sum::<i64>();
    let (user, system, idle) = (sum(|a| a.user_ns), sum(|a| a.system_ns), sum(|a| a.idle_ns));
    let (irq, softirq, steal) = (sum(|a| a.irq_ns), sum(|a| a.softirq_ns), sum(|a| a.steal_ns));
    let all = user + system + idle + irq + softirq + steal;
    facts.add(
        "/proc/stat",
        format!(
            "user {}, system {}, idle {}, interrupts {}, softirqs {}, stolen {} s: {} s in all, {:+.4} s from what passed (it counts ticks)",
            seconds(user), seconds(system), seconds(idle), seconds(irq), seconds(softirq), seconds(steal), s(all),
            (all - p.passed_ns) as f64 / 1e9
        ),
    );
    if let Some((counted, received)) = p.packets().filter(|(_, received)| *received > 0) {
        facts.add(
            "packets",
            format!(
                "{} counted of {} that the kernel received",
                count(counted as u64),
                count(received as u64)
            ),
        );
    }
    if let Some((counted, completed)) = p.requests.filter(|(_, completed)| *completed > 0) {
        let (counted, completed) = (count(counted as u64), count(completed as u64));
        facts.add("block requests", format!("{counted} counted of {completed} that disks completed"));
    }
    let without: Vec<String> = p
        .without_process
        .iter()
        .filter(|(_, a)| a.ns > 0)
        .map(|(purpose, Amount { ns, packets, .. })| match packets {
            0 => format!("{} {} s", word(*purpose), s(*ns)),
            n => format!("{} {} s ({})", word(*purpose), s(*ns), plural(*n as u64, "packet")),
        })
        .collect();
    if !without.is_empty() {
        facts.add("interrupts for no process", without.join(", "));
    }
    for (n, w) in p.ways.iter().take(MOST_WAYS).enumerate() {
        let place =
            if w.netns.is_empty() { String::new() } else { format!(" in {}", kpat_text::clean(&w.netns)) };
        let (from, to) = (kpat_text::clean(&w.from), kpat_text::clean(&w.to));
        let words =
            format!("{from} to {to}{place} {} s ({})", s(w.ns), plural(w.packets.max(0) as u64, "packet"));
        facts.add(if n == 0 { "forwarded" } else { "" }, words);
    }
    if p.ways.len() > MOST_WAYS {
        facts.add("", format!("{} more", p.ways.len() - MOST_WAYS));
    }
    facts
}

/// Pairs of interfaces that are shown; `--json` has all.
const MOST_WAYS: usize = 8;

fn cpus(p: &Profile) -> usize {
    let all: std::collections::BTreeSet<i32> = p.accounts.iter().map(|a| a.cpu).collect();
    all.len()
}

const COLUMNS: [(&str, usize); 9] = [
    ("charged s", 0),
    ("user", 0),
    ("system calls", 2),
    ("page faults", 2),
    ("done for it", 0),
    ("packets", 2),
    ("for clients", 3),
    ("taken from it", 0),
    ("ran", 1),
];

fn cells(x: &OfProcess) -> impl Iterator<Item = (String, Style)> {
    let plain = |text: String| (text, Style::Plain);
    [
        (s(x.charged_ns()), Style::Strong),
        plain(s(x.user_ns)),
        plain(s(x.kernel_ns)),
        plain(s(x.fault_ns)),
        plain(s(x.served_ns)),
        plain(count(x.served_packets.max(0) as u64)),
        plain(s(x.for_clients_ns)),
        plain(s(x.taken_ns)),
        plain(s(x.ran_ns())),
    ]
    .into_iter()
}

fn processes_table(processes: &[&OfProcess], limit: usize) -> Table {
    let mut columns = vec![Column::right("pid", 0), Column::left("process", 0, 12)];
    columns.extend(COLUMNS.map(|(name, rank)| Column::right(name, rank as _)));
    let mut table = Table::new(&columns);
    for x in processes.iter().take(limit) {
        let number = ProcessNumber::from(x.number);
        let pid = if x.instances > 1 { format!("{number} x{}", x.instances) } else { number.to_string() };
        let mut row = vec![(pid, Style::Plain), (called(x), Style::Plain)];
        row.extend(cells(x));
        table.row(row);
    }
    table
}

fn groups_table(by: ByArg, all: &[Group], limit: usize) -> Table {
    let mut columns = vec![Column::left(by.word(), 0, 12), Column::right("processes", 0)];
    columns.extend(COLUMNS.map(|(name, rank)| Column::right(name, rank as _)));
    let mut table = Table::new(&columns);
    for g in all.iter().take(limit) {
        let name = g.name.as_deref().map_or_else(|| "(none)".into(), kpat_text::clean);
        let mut row = vec![(name, Style::Plain), (count(g.processes as u64), Style::Plain)];
        row.extend(cells(&g.sum));
        table.row(row);
    }
    table
}

fn clients_table<'a>(p: &Profile, clients: impl Iterator<Item = &'a Taken> + Clone) -> Table {
    let mut columns =
        vec![Column::left("server", 0, 12), Column::left("since a message of", 0, 12), Column::right("s", 0)];
    let is_handed = clients.clone().any(|t| t.handed_ns > 0);
    if is_handed {
        columns.extend(["handed on", "unsure"].map(|name| Column::right(name, 1)));
    }
    let mut table = Table::new(&columns);
    for t in clients {
        let name = |pid: Option<i32>| pid.map_or_else(|| "?".into(), |pid| named(p, pid));
        let plain = |text: String| (text, Style::Plain);
        let mut row = vec![plain(name(t.victim)), plain(name(t.beneficiary)), plain(s(t.ns))];
        if is_handed {
            row.extend([plain(s(t.handed_ns)), plain(s(t.unsure_ns))]);
        }
        table.row(row);
    }
    table
}

/// Servers whose threads did what another of their threads handed them, of which it is not known for whom, most first.
fn handed_for_none(processes: &[&OfProcess]) -> Vec<String> {
    let mut told: Vec<_> = processes.iter().filter(|x| x.handed_for_none_ns > 1_000_000).collect();
    told.sort_by_key(|x| -x.handed_for_none_ns);
    few(told
        .into_iter()
        .map(|x| format!("{} {}: {} s", called(x), ProcessNumber::from(x.number), s(x.handed_for_none_ns))))
}

fn named(p: &Profile, number: i32) -> String {
    if number == OTHERS {
        return "(others)".into();
    }
    let x = p.processes.iter().find(|x| x.number == number);
    let number = ProcessNumber::from(number);
    x.map_or_else(|| number.to_string(), |x| format!("{} {number}", called(x)))
}

fn instance(number: i32) -> u32 {
    ProcessNumber::from(number).instance()
}

fn called(x: &OfProcess) -> String {
    let name = x.name.as_deref().map_or_else(|| "?".into(), kpat_text::clean);
    if x.is_thread { format!("[{name}]") } else { name }
}

fn taken_table<'a>(p: &Profile, taken: impl Iterator<Item = &'a Taken>) -> Table {
    let name = |pid: i32| named(p, pid);
    let mut table = Table::new(&[
        Column::left("whose time", 0, 12),
        Column::left("for whom", 0, 12),
        Column::right("s", 0),
        Column::right("packets", 0),
    ]);
    for t in taken {
        let victim = t.victim.map_or_else(|| "(idle)".into(), name);
        let beneficiary = match (t.purpose, t.beneficiary) {
            (Purpose::Drop, Some(pid)) => format!("({}, for {})", word(t.purpose), name(pid)),
            (purpose, None) => format!("({})", word(purpose)),
            (_, Some(pid)) => name(pid),
        };
        let plain = |text: String| (text, Style::Plain);
        table.row(vec![
            plain(victim),
            plain(beneficiary),
            plain(s(t.ns)),
            plain(count(t.packets.max(0) as u64)),
        ]);
    }
    table
}

fn process_json(x: &OfProcess) -> Value {
    let mut all = json!({
        "pid": pid_of(x.number), "instance": instance(x.number), "name": x.name, "names_before": x.names_before, "is_kernel_thread": x.is_thread, "processes": x.instances,
        "uid": x.label.as_ref().map(|l| l.uid),
        "cgroup": x.label.as_ref().map(|l| &l.path),
        "uid_before": x.before.as_ref().map(|l| l.uid),
        "cgroup_before": x.before.as_ref().map(|l| &l.path),
        "unit": x.label.as_ref().and_then(|l| l.unit()),
        "container": x.label.as_ref().and_then(|l| l.container()),
        "pod": x.label.as_ref().and_then(|l| l.pod()),
    });
    add_sums(&mut all, x);
    all
}

fn group_json(by: ByArg, g: &Group) -> Value {
    let mut all = json!({ by.word(): g.name, "processes": g.processes });
    add_sums(&mut all, &g.sum);
    all
}

fn add_sums(to: &mut Value, x: &OfProcess) {
    let sums = json!({
        "charged_ns": x.charged_ns(), "user_ns": x.user_ns, "kernel_ns": x.kernel_ns, "system_calls": x.system_calls,
        "fault_ns": x.fault_ns, "page_faults": x.page_faults,
        "for_clients_ns": x.for_clients_ns, "by_servers_ns": x.by_servers_ns,
        "handed_ns": x.handed_ns, "handed_for_none_ns": x.handed_for_none_ns,
        "served_ns": x.served_ns, "served_packets": x.served_packets, "served_bytes": x.served_bytes,
        "served_blocks_ns": x.served_blocks_ns, "block_requests": x.block_requests, "served_items_ns": x.served_items_ns,
        "served_in_threads_ns": x.served_in_threads_ns, "served_by_itself_ns": x.served_by_itself_ns,
        "taken_ns": x.taken_ns, "ran_ns": x.ran_ns(),
        "dropped_ns": x.dropped_ns, "dropped_packets": x.dropped_packets,
    });
    if let (Value::Object(to), Value::Object(sums)) = (to, sums) {
        to.extend(sums);
    }
}

fn taken_json(t: &Taken) -> Value {
    json!({
        "victim": t.victim.map(pid_of), "victim_instance": t.victim.map(instance),
        "beneficiary": t.beneficiary.map(pid_of), "beneficiary_instance": t.beneficiary.map(instance),
        "for": if t.beneficiary.is_some() { t.purpose.name() } else { word(t.purpose) }, "ns": t.ns, "packets": t.packets,
    })
}
