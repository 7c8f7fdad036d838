//! `kpat ctl`: a running recording is asked for its state, or changed.

use crate::info::probe_words;
use crate::output::{Output, usage};
use crate::record::app::parse_states;
use crate::record::parse_size;
use crate::render::{Pairs, bytes, count};
use kpat_probe::app::States;
use kpat_probe::control::{self, Change, Reply, Request, Status};
use kpat_probe::work::{ChangeChoice, Term};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Process id of the recording; needed only if several run
    #[arg(long, value_name = "PID", global = true)]
    pid: Option<u32>,
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Show rates, losses and how full the rings are
    Status,
    /// Log these functions again (globs); their programs stayed attached
    On { globs: Vec<String> },
    /// Stop logging these functions (globs)
    Off { globs: Vec<String> },
    /// Pause: tracepoint programs are detached, function programs return immediately
    Pause,
    /// Resume after a pause
    Resume,
    /// Change how much of the rings is used, or what a recording of applications records
    Set {
        /// Applications: record only sockets that match (pcap-filter syntax; empty: all)
        #[arg(short, long, value_name = "FILTER")]
        filter: Option<String>,
        /// Applications: when the TCP state is logged: change, off, all, or at least every TIME
        #[arg(long, value_name = "WHEN")]
        tcp_state: Option<String>,
        /// Applications: whether segments without data are logged
        #[arg(long, value_name = "on|off", value_parser = ["on", "off"])]
        acks: Option<String>,
        /// Use this much of each CPU's ring, at most the size given by `kpat record --ring`; a smaller ring may lose more
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        ring: Option<u64>,
    },
    /// Which processes are recorded, or profiled each for itself (as `kpat record --only`, with which it must have begun unless it is a profile)
    Only {
        #[command(subcommand)]
        change: OnlyChange,
    },
    /// Flight recorder: write what is in memory to a file
    Dump,
    /// With --rotate-size or --rotate-time: finish the current file and start the next
    Rotate,
    /// Begin anew: what the file of this recording has so far is gone
    Reset,
    /// End the recording
    Stop,
    /// List the process ids of running recordings
    List,
}

#[derive(clap::Subcommand)]
enum OnlyChange {
    /// These, too: pid=N, comm=NAME, cgroup=PATH, container=ID, pod=NAME or user=NAME
    Add {
        #[arg(required = true, value_name = "WHICH", value_parser = Term::parse)]
        terms: Vec<Term>,
    },
    /// These no more
    Remove {
        #[arg(required = true, value_name = "WHICH", value_parser = Term::parse)]
        terms: Vec<Term>,
    },
    /// Every process again
    All,
}

impl OnlyChange {
    fn request(&self) -> Request {
        Request::Choose(match self {
            OnlyChange::Add { terms } => ChangeChoice::Add(terms.clone()),
            OnlyChange::Remove { terms } => ChangeChoice::Remove(terms.clone()),
            OnlyChange::All => ChangeChoice::All,
        })
    }
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let request = match &args.what {
        What::List => {
            let all = control::running();
            if out.json {
                out.value(&all.clone().into())?;
            } else {
                out.raw(all.iter().map(|p| format!("{p}\n")).collect::<String>().as_bytes())?;
                if all.is_empty() {
                    out.say("no recording is running");
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
        What::Status => Request::Status,
        What::On { globs } => Request::On(or_all(globs)),
        What::Off { globs } => Request::Off(or_all(globs)),
        What::Set { filter, tcp_state, acks, ring } => {
            Request::Set(change(filter, tcp_state.as_deref(), acks.as_deref(), *ring)?)
        }
        What::Only { change } => change.request(),
        What::Pause => Request::Pause,
        What::Resume => Request::Resume,
        What::Dump => Request::Dump,
        What::Rotate => Request::Rotate,
        What::Reset => Request::Reset,
        What::Stop => Request::Stop,
    };
    match control::ask(args.pid, &request)? {
        Reply::Status(s) if out.json => out.value(&serde_json::to_value(&*s)?)?,
        Reply::Status(s) => show(&s, out)?,
        Reply::Done(text) => out.say(&text),
        Reply::Refused(why) => anyhow::bail!("{why}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn change(
    filter: &Option<String>,
    states: Option<&str>,
    acks: Option<&str>,
    ring: Option<u64>,
) -> anyhow::Result<Change> {
    if filter.is_none() && states.is_none() && acks.is_none() && ring.is_none() {
        return Err(usage("nothing to set; use --filter, --tcp-state, --acks or --ring"));
    }
    let states = states
        .map(|t| {
            parse_states(t)
                .ok_or_else(|| usage(format!("--tcp-state {t}: change, off, all or a time such as 10ms")))
        })
        .transpose()?;
    Ok(Change {
        filter: filter.clone(),
        state_every_ns: states.map(|s| s.every_ns()),
        states: states.map(|s| s != States::Off),
        acks: acks.map(|a| a == "on"),
        ring_bytes: ring,
    })
}

fn or_all(globs: &[String]) -> Vec<String> {
    if globs.is_empty() { vec!["*".into()] } else { globs.to_vec() }
}

fn show(s: &Status, out: &Output) -> anyhow::Result<()> {
    let mut p = Pairs::new();
    p.add("recording", format!("{} ({})", s.pid, s.output));
    let state = match s.paused {
        false => "logging".to_owned(),
        true if s.points == 0 => "paused".to_owned(),
        true => {
            format!("paused, {} of {} programs attached", s.points_attached, s.points)
        }
    };
    p.add("state", format!("{state}, {}", s.mode));
    if s.resume_ns > 0 {
        p.add("resumed", format!("in {:.1} ms, the last time", s.resume_ns as f64 / 1e6));
    }
    p.add("mechanism", &s.mechanism);
    p.add("functions", format!("{} on of {}", s.functions_on, s.functions));
    p.add("running", format!("{:.1} s", s.seconds));
    p.add("records", format!("{} ({} a second)", count(s.records), count(s.records_per_second as u64)));
    p.add("written", format!("{} ({} a second)", bytes(s.bytes), bytes(s.bytes_per_second as u64)));
    if s.file_number > 0 {
        p.add("file", format!("{} ({}, number {})", s.file, bytes(s.file_bytes), s.file_number));
    }
    if s.disk_full {
        p.add("disk", "full: new records are lost");
    }
    p.add("cost", probe_words(&s.cost).join(", "));
    p.add("own CPU", format!("{:.2} s", s.drain_cpu_seconds));
    if s.memory_bytes > 0 {
        p.add("in memory", bytes(s.memory_bytes));
    }
    if s.suppressed_dumps > 0 {
        p.add(
            "not dumped",
            format!(
                "{} triggers, because of --dump-every, --dump-files or --dump-bytes",
                count(s.suppressed_dumps)
            ),
        );
    }
    p.add(
        "rings",
        match bytes(s.ring_bytes) {
            used if s.ring_bytes < s.ring_allocated_bytes => {
                format!("{used} for each CPU, of {} that it has", bytes(s.ring_allocated_bytes))
            }
            all => format!("{all} for each CPU"),
        },
    );
    p.add("fullest ring", format!("{:.1} %", s.ring_fill_percent));
    if s.losses.is_empty() {
        p.add("lost", "nothing");
    }
    for l in &s.losses {
        let place = if l.cpu >= 0 { format!("CPU {}", l.cpu) } else { "all CPUs".into() };
        p.add("lost", format!("{} by {} ({place})", count(l.count), l.cause));
    }
    out.lines(&p.render(out.width))
}
