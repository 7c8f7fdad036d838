//! `kpat guest probe`: functions of a guest's kernel, called while it runs, with what they were given and what they returned.

use super::Which;
use crate::output::{Output, usage};
use crate::render::{Column, Line, Style, Table, count};
use crate::signals::Signals;
use kpat_guest::Life;
use kpat_guest::probe::spec::{Field, Shown, Spec};
use kpat_guest::probe::{Ended, Handle, Probes, Recorded};
use kpat_text::{clean, duration, duration_aligned, time_of_day};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(clap::Args)]
#[command(
    after_help = "A probe is PLACE [count] [VALUE...] [ret] [if VALUE COMPARE NUMBER [and ...]]. PLACE is a function, function+0x10 or an address; \
                        VALUE is arg1 to arg6, sys1 to sys6 (the arguments of a system call, at __x64_sys_*), a register, pid, tgid or task, followed by \
                        :STRUCT.MEMBER to follow a pointer and by a format: str, x, u8 to u64, s8 to s64. With ret an entry is written when the function returns, with how \
                        long it took. The guest is not stopped at a hit and does not wait; only putting probes in and taking them out stops it, for some milliseconds."
)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Probes, each in quotes
    #[arg(value_name = "PROBE", required = true)]
    probes: Vec<String>,
    /// Stop after this many entries
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    number: Option<u64>,
    /// Stop after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Show how long the calls took as a histogram at the end, not each call
    #[arg(long)]
    hist: bool,
    /// Calls of a function that can be open at the same time; of more the return is not seen
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    maxactive: u32,
}

/// Of one probe: its place and its values.
struct Probed {
    place: String,
    fields: Vec<Field>,
    returns: bool,
    /// Calls by the binary logarithm of their duration.
    durations: [u64; 64],
}

/// What the entries of all probes have in common.
struct Printer<'a> {
    out: &'a Output,
    hist: bool,
    left: Option<u64>,
    tsc_hz: f64,
    /// Between the guest's counter and the host's wall clock: the smallest that was seen.
    ahead_ns: Option<i64>,
    stop: Arc<std::sync::atomic::AtomicBool>,
    failed: Option<anyhow::Error>,
}

pub fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let specs: Vec<Spec> = args
        .probes
        .iter()
        .map(|p| Spec::parse(p).map_err(|e| usage(e.to_string())))
        .collect::<Result<_, _>>()?;
    let specs: Vec<Spec> =
        specs.into_iter().map(|s| if args.hist && !s.counts() { s.with_duration() } else { s }).collect();
    let signals = Signals::block()?;
    let guest = Arc::new(args.which.attach()?);
    let mut probes = Probes::of(guest)?;
    if probes.recovered.places > 0 {
        let recovered = &probes.recovered;
        out.say(&format!(
            "put back {} that a program which was killed had probed; {} went on without it",
            kpat_text::plural(recovered.places as u64, "place"),
            kpat_text::plural(recovered.missed, "hit")
        ));
    }
    let shown = Rc::new(RefCell::new(Printer {
        out,
        hist: args.hist,
        left: args.number,
        tsc_hz: probes.tsc_hz,
        ahead_ns: None,
        stop: probes.stopper(),
        failed: None,
    }));
    let all: Vec<Rc<RefCell<Probed>>> = specs
        .iter()
        .map(|s| {
            Rc::new(RefCell::new(Probed {
                place: s.place().to_owned(),
                fields: s.fields(),
                returns: s.returns(),
                durations: [0; 64],
            }))
        })
        .collect();
    probes.hold();
    let mut handles = Vec::new();
    for (spec, probed) in specs.iter().zip(&all) {
        let (shown, probed) = (shown.clone(), probed.clone());
        handles.push(spec.register(
            &mut probes,
            args.maxactive as usize,
            Box::new(move |e| shown.borrow_mut().entry(&mut probed.borrow_mut(), e)),
        )?);
    }
    let stop = probes.stopper();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        signals.wait();
        stop.store(true, Ordering::Relaxed);
    })?;
    probes.commit()?;
    out.say("the probes are in the guest");
    let mut stands = false;
    probes.news = Some(Box::new(move |news| match news {
        Life::Stop => {
            stands = true;
            out.say("the guest was stopped");
        }
        // Of a stop that was none of ours.
        Life::Resume if std::mem::take(&mut stands) => out.say("the guest goes on"),
        Life::Panicked => out.say("the guest's kernel panicked"),
        Life::Migration { status } => out.say(&format!("the guest is being moved: {}", clean(status))),
        _ => {}
    }));
    let until = args.seconds.map(|s| Instant::now() + Duration::from_secs(s.into()));
    let ended = probes.run(until)?;
    let lost = summary(&specs, &all, &handles, &probes, args, out)?;
    match ended {
        Ended::Gone => out.say("the guest is off"),
        Ended::Reset => out.say("the guest began anew; its probes are gone"),
        Ended::SetBack => out.say("the guest was set back to a snapshot from before; its probes are gone"),
        Ended::Stopped | Ended::Time => {}
    }
    if let Some(rest) =
        probes.remove().or_else(|e| if matches!(ended, Ended::Gone) { Ok(None) } else { Err(e) })?
    {
        out.say(&rest);
    }
    if let Some(e) = shown.borrow_mut().failed.take() {
        return Err(e);
    }
    Ok(out.ended(lost))
}

impl Printer<'_> {
    fn entry(&mut self, probed: &mut Probed, e: &Recorded) {
        if self.failed.is_some() || self.left == Some(0) {
            return;
        }
        self.left = self.left.map(|n| n - 1);
        if self.left == Some(0) {
            self.stop.store(true, Ordering::Relaxed);
        }
        let ns = |ticks: u64| (ticks as f64 / self.tsc_hz * 1e9) as i64;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64);
        let ahead = now - ns(e.tsc);
        let ahead = self.ahead_ns.map_or(ahead, |a| a.min(ahead));
        self.ahead_ns = Some(ahead);
        let wall_ns = ns(e.tsc) + ahead;
        let values: Vec<(&Field, Shown)> =
            probed.fields.iter().zip(&e.values).map(|(f, v)| (f, f.show(v))).collect();
        let took = match values.last() {
            Some((_, Shown::Number(ticks))) if probed.returns => Some(ns(*ticks as u64)),
            _ => None,
        };
        if self.hist {
            if let Some(took) = took {
                probed.durations[took.max(1).ilog2() as usize] += 1;
            }
            return;
        }
        let shown = &values[..values.len() - usize::from(probed.returns)];
        let comm = String::from_utf8_lossy(&e.comm).into_owned();
        let done = if self.out.json {
            let named: Map<String, Value> = shown.iter().map(|(f, s)| (f.name.clone(), to_json(s))).collect();
            let line = json!({"probe": probed.place, "ts_wall_ns": wall_ns, "vcpu": e.cpu, "pid": e.tgid, "tid": e.pid, "comm": comm, "values": named, "dur_ns": took});
            self.out.json_text(&format!("{line}\n"))
        } else {
            let mut line = Line::new()
                .faint(time_of_day(wall_ns, false))
                .plain(format!("  {:>2} {:>6} {:<15}  ", e.cpu, e.tgid, clean(&comm)))
                .put(&probed.place, Style::Strong);
            for (field, value) in shown {
                line.push(format!(" {}=", field.name), Style::Faint);
                line.push(to_text(value), Style::Plain);
            }
            if let Some(took) = took {
                line.push(format!("  {}", duration(took)), Style::Faint);
            }
            self.out.line(&line)
        };
        if let Err(e) = done.and_then(|()| self.out.flush()) {
            self.failed = Some(e);
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

fn to_json(shown: &Shown) -> Value {
    match shown {
        Shown::Number(n) => i64::try_from(*n).map_or_else(|_| Value::from(*n as u64), Value::from),
        Shown::Hex(n) => Value::from(format!("{n:#x}")),
        Shown::Text(t) => Value::from(t.clone()),
        Shown::Unread => Value::Null,
    }
}

fn to_text(shown: &Shown) -> String {
    match shown {
        Shown::Number(n) => n.to_string(),
        Shown::Hex(n) => format!("{n:#x}"),
        Shown::Text(t) => format!("\"{}\"", clean(t)),
        Shown::Unread => "?".into(),
    }
}

/// Counts and histograms; whether anything was lost.
fn summary(
    specs: &[Spec],
    all: &[Rc<RefCell<Probed>>],
    handles: &[Handle],
    probes: &Probes,
    args: &Args,
    out: &Output,
) -> anyhow::Result<bool> {
    let mut any_lost = false;
    let mut table = Table::new(&[
        Column::left("probe", 0, 0),
        Column::right("hits", 0),
        Column::right("lost", 1),
        Column::right("returns not seen", 1),
    ]);
    let mut rows = Vec::new();
    for ((spec, probed), handle) in specs.iter().zip(all).zip(handles) {
        let (probed, counts) = (probed.borrow(), probes.counts(*handle));
        any_lost |= counts.lost + counts.no_return > 0;
        table.row(vec![
            (probed.place.clone(), Style::Plain),
            (count(counts.hits), Style::Plain),
            (count(counts.lost), if counts.lost > 0 { Style::Warn } else { Style::Faint }),
            (count(counts.no_return), if counts.no_return > 0 { Style::Warn } else { Style::Faint }),
        ]);
        let buckets: Vec<Value> = probed
            .durations
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(b, n)| json!({"from_ns": 1u64 << b, "calls": n}))
            .collect();
        rows.push(json!({"probe": probed.place, "hits": counts.hits, "lost": counts.lost, "returns_not_seen": counts.no_return, "durations": if args.hist { Value::from(buckets) } else { Value::Null }}));
        if args.hist && !out.json {
            histogram(&probed, spec, out)?;
        }
    }
    if out.json {
        out.json_text(&format!("{}\n", json!({"probes": rows})))?;
    } else {
        out.lines(&table.render(out.width).0)?;
    }
    Ok(any_lost)
}

fn histogram(probed: &Probed, spec: &Spec, out: &Output) -> anyhow::Result<()> {
    let most = probed.durations.iter().max().copied().unwrap_or(0);
    if spec.counts() || most == 0 {
        return Ok(());
    }
    out.line(&Line::new().put(&probed.place, Style::Strong))?;
    let (from, to) = (
        probed.durations.iter().position(|n| *n > 0).unwrap_or(0),
        probed.durations.iter().rposition(|n| *n > 0).unwrap_or(0),
    );
    for (bucket, n) in probed.durations.iter().enumerate().take(to + 1).skip(from) {
        let bar = "#".repeat((n * 40).div_ceil(most) as usize);
        out.line(
            &Line::new()
                .plain(format!("  {:>10} {:>10}  ", duration_aligned(1 << bucket), count(*n)))
                .put(bar, Style::Strong),
        )?;
    }
    Ok(())
}
