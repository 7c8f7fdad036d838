//! `kpat record --metrics`: how the recording is, for Prometheus. One page, plain HTTP, read-only. A thread apart, so
//! that a reader that stalls costs the recording nothing.

use kpat_http::{Connection, Pool, Refusal, Request, Seat, Unreadable, accept};
use kpat_model::LossCause;
use kpat_model::meta::{CostBounds, Interval};
use kpat_probe::control::Status;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections at a time.
const MOST: usize = 16;

/// `9435`, `:9435`: on this machine only. Another address has to be named.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let digits = text.strip_prefix(':').unwrap_or(text);
    if let Ok(port) = digits.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| format!("{text:?} is no address; write PORT, 127.0.0.1:PORT or [::1]:PORT"))
}

/// Answers from now on; gives the address in use.
pub fn serve(listener: TcpListener, watch: Arc<Mutex<Status>>) -> std::io::Result<SocketAddr> {
    let at = listener.local_addr()?;
    std::thread::Builder::new().name("kpat-metrics".into()).spawn(move || {
        // Clients of this address have no rights.
        kpat_probe::capability::keep(&[]);
        accept(&listener, &Pool::new(MOST), "kpat-metrics", move |stream, seat| {
            // Whoever left without the answer needs none.
            let _ = answer(stream, seat, at, &watch);
        })
    })?;
    Ok(at)
}

fn answer(stream: TcpStream, seat: &Seat, at: SocketAddr, watch: &Mutex<Status>) -> std::io::Result<()> {
    let mut connection = Connection::new(stream)?;
    let (status, body) = match connection.request() {
        Err(Unreadable::Over) => return Ok(()),
        Err(Unreadable::Refused(Refusal(status, why))) => (status, format!("{why}\n")),
        Ok(r) => page(&r, at, watch),
    };
    let kind = if status == 200 { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain" };
    connection.answer(status, &[("Content-Type", kind), ("Connection", "close")], body.as_bytes())?;
    connection.close(seat);
    Ok(())
}

fn page(r: &Request, at: SocketAddr, watch: &Mutex<Status>) -> (u16, String) {
    // A page of the web whose name was made to point at this machine must not read what only this machine may.
    if at.ip().is_loopback() && !r.is_for_this_machine() {
        return (421, "this service is asked as 127.0.0.1 or localhost\n".into());
    }
    match (r.method.as_str(), r.path().as_deref()) {
        _ if r.body_bytes > 0 => (400, "a request here has no body\n".into()),
        ("GET", Some("/metrics")) => (200, text(&watch.lock().unwrap_or_else(PoisonError::into_inner))),
        ("GET", _) => (404, "the page is /metrics\n".into()),
        _ => (405, "only GET\n".into()),
    }
}

/// A label's value as the format wants it.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn text(s: &Status) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, rows: &[(String, f64)]| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let one = |value: f64| vec![(String::new(), value)];
    let flag = |on: bool| one(if on { 1.0 } else { 0.0 });
    let (output, mechanism) = (quoted(&s.output), quoted(&s.mechanism));
    let version = env!("CARGO_PKG_VERSION");
    let info = format!("{{version=\"{version}\",mechanism=\"{mechanism}\",output=\"{output}\"}}");
    family("kpat_info", "gauge", "What records, how, and where to.", &[(info, 1.0)]);
    family("kpat_records_total", "counter", "Records taken from the kernel.", &one(s.records as f64));
    family("kpat_written_bytes_total", "counter", "Bytes of log written.", &one(s.bytes as f64));
    family("kpat_file_bytes", "gauge", "Bytes of the file being written.", &one(s.file_bytes as f64));
    family(
        "kpat_file_number",
        "gauge",
        "Which file of the recording is being written, 0: it is one file.",
        &one(s.file_number.into()),
    );
    family(
        "kpat_memory_bytes",
        "gauge",
        "Bytes that the flight recorder holds.",
        &one(s.memory_bytes as f64),
    );
    // A series for each cause from the first scrape on: of one that begins with its losses no increase is seen.
    let causes = LossCause::CODES.iter().map(|c| c.name);
    let count = |cause: &str| s.losses.iter().filter(|l| l.cause == cause).map(|l| l.count).sum::<u64>();
    let lost: Vec<_> = causes.map(|c| (format!("{{cause=\"{c}\"}}"), count(c) as f64)).collect();
    family("kpat_lost_total", "counter", "Records that should be in the log and are not.", &lost);
    let on_cpus = s.losses.iter().filter(|l| l.cpu >= 0);
    let on_cpus: Vec<_> = on_cpus
        .map(|l| (format!("{{cause=\"{}\",cpu=\"{}\"}}", quoted(&l.cause), l.cpu), l.count as f64))
        .collect();
    family("kpat_lost_on_cpu_total", "counter", "Those of them whose CPU is known, by CPU.", &on_cpus);
    let bounds = s.cost.bounds.as_ref();
    let interval = |of: fn(&CostBounds) -> Option<Interval>, unit: f64| -> Vec<(String, f64)> {
        let both = bounds.and_then(of).map(|i| [("low", i.low), ("high", i.high)]);
        let both = both.into_iter().flatten();
        both.map(|(end, n)| (format!("{{bound=\"{end}\"}}"), n as f64 / unit)).collect()
    };
    let counted = bounds.map_or(0, |b| b.sampled_hits);
    family(
        "kpat_probe_hits_counted_total",
        "counter",
        "Runs of programs where packets pass that the kernel counted, in a part of the time.",
        &one(counted as f64),
    );
    family(
        "kpat_probe_hits",
        "gauge",
        "All runs so far, 95 % bounds; none while they are not known.",
        &interval(|b| b.probe_hits, 1.0),
    );
    family(
        "kpat_probe_seconds",
        "gauge",
        "CPU time of those programs so far, 95 % bounds; none while it is not known.",
        &interval(|b| b.probe_ns, 1e9),
    );
    let rings = s.rings_fill_percent.iter().enumerate();
    let rings: Vec<(String, f64)> = rings.map(|(cpu, p)| (format!("{{cpu=\"{cpu}\"}}"), p / 100.0)).collect();
    family(
        "kpat_ring_fill_ratio",
        "gauge",
        "How full the ring was at most in the last second; at 1 records are lost.",
        &rings,
    );
    family("kpat_paused", "gauge", "1: loaded and not logging.", &flag(s.paused));
    family("kpat_disk_full", "gauge", "1: what is recorded now is lost.", &flag(s.disk_full));
    family(
        "kpat_functions",
        "gauge",
        "Functions and tracepoints that are logged now.",
        &one(s.functions_on as f64),
    );
    family(
        "kpat_start_time_seconds",
        "gauge",
        "When the recording started.",
        &one(s.started_wall_ns as f64 / 1e9),
    );
    family(
        "kpat_cpu_seconds_total",
        "counter",
        "CPU time of the recorder, without the probes.",
        &one(s.drain_cpu_seconds),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpat_model::meta::LossTotal;

    #[test]
    fn only_this_machine_unless_named() {
        for (text, want) in [
            ("9435", "127.0.0.1:9435"),
            (":0", "127.0.0.1:0"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), want);
        }
        for wrong in ["", "x", "localhost:80", "70000", "1.2.3.4"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    /// What makes `increase()` see a first loss: its series was there before.
    #[test]
    fn series_of_losses_are_there_before_the_first_loss() {
        let series = |s: &Status| -> Vec<(String, f64)> {
            let page = text(s);
            let rows = page.lines().filter(|l| l.starts_with("kpat_lost_total"));
            rows.map(|l| l.rsplit_once(' ').map(|(n, v)| (n.to_owned(), v.parse().unwrap())).unwrap())
                .collect()
        };
        let loss = |cause: &str, cpu, count| LossTotal { cause: cause.into(), cpu, count };
        let none = series(&Status::default());
        let losses = vec![loss("ring-full", 0, 5), loss("ring-full", 1, 7), loss("disk", -1, 2)];
        let some = series(&Status { losses, ..Status::default() });
        let names = |rows: &[(String, f64)]| rows.iter().map(|r| r.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&none), names(&some));
        assert!(none.iter().all(|r| r.1 == 0.0) && none.len() > 10, "{none:?}");
        let of = |cause: &str| some.iter().find(|r| r.0.contains(cause)).map(|r| r.1);
        assert_eq!((of("\"ring-full\""), of("\"disk\"")), (Some(12.0), Some(2.0)));
    }

    #[test]
    fn names_cannot_leave_their_quotes() {
        let s = Status { output: "a\"} 9\nkpat_records_total 5\\".into(), ..Status::default() };
        let text = text(&s);
        assert!(text.contains("output=\"a\\\"} 9\\nkpat_records_total 5\\\\\"} 1"), "{text}");
        assert_eq!(text.lines().filter(|l| l.starts_with("kpat_records_total")).count(), 1);
    }
}
