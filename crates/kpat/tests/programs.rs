//! What programs say of their work. Truth is what they count themselves, by the same clock before and after. Needs root.

#[allow(dead_code, reason = "other tests use other parts of it")]
mod place;

use place::{Place, json, kpat, words};
use serde_json::Value;
use std::process::Command;

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

/// Looks names up in two threads: name, clock before and after, result.
const LOOK_UP: &str = r#"
import socket, threading, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
out = []
def work(n):
    for i in range(20):
        name, before = f"t{n}-{i}.invalid", now()
        try: socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM); result = 0
        except socket.gaierror as e: result = e.errno
        out.append((name, before, now(), result))
all = [threading.Thread(target=work, args=(n,)) for n in range(2)]
[t.start() for t in all]; [t.join() for t in all]
for o in out: print(*o)
"#;

/// Sends over TLS to itself: who it is, how many bytes each call took or gave. Others on the machine use the library too.
const TLS: &str = r#"
import socket, ssl, sys, threading
here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); here.load_cert_chain(sys.argv[1])
there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); there.check_hostname = False; there.verify_mode = ssl.CERT_NONE
listening = socket.create_server(("127.0.0.1", 0))
reads, writes = [], []
def serve():
    s = here.wrap_socket(listening.accept()[0], server_side=True)
    while sum(reads) < 37 * 465: reads.append(len(s.recv(65536)))
    writes.append(s.send(b"!"))
t = threading.Thread(target=serve); t.start(); server = t.native_id
s = there.wrap_socket(socket.create_connection(listening.getsockname()))
for i in range(1, 31): writes.append(s.send(b"x" * (i * 37)))
reads.append(len(s.recv(10))); t.join()
print("threads", threading.get_native_id(), server); print("write", *writes); print("read", *reads)
"#;

/// Throws and catches, counted by itself.
const THROW: &str = "#include <cstdio>\nint main() { int n = 0; for (int i = 0; i < 17; i++) try { throw i; } catch (int) { n++; } std::printf(\"%d\\n\", n); }\n";

/// The events of a recording of a command, and what the command printed.
fn recorded(p: &Place, name: &str, more: &[&str], command: &[&str]) -> (Vec<Value>, String) {
    let (file, log) = (p.path(&format!("{name}.kbl")), p.path(&format!("{name}.kpat")));
    let out = kpat(&[&["record", "-p", "programs", "-o", &file], more, &["--"], command].concat());
    assert!(out.status.success(), "{}", words(&out));
    let done = kpat(&["integrate", &file, "-o", &log]);
    assert!(done.status.success(), "{}", words(&done));
    let events = json(&["events", &log, "--kind", "program", "--limit", "0", "--json"]);
    let all = events["events"].as_array().cloned().expect("events");
    (all, String::from_utf8_lossy(&out.stdout).into_owned())
}

fn text(e: &Value) -> &str {
    e["text"].as_str().expect("a text")
}

fn number(e: &Value, key: &str) -> i64 {
    e[key].as_i64().unwrap_or_else(|| panic!("{key} of {e}"))
}

#[test]
fn every_name_that_was_looked_up() {
    let Some(p) = Place::new("names") else { return };
    let (events, out) = recorded(&p, "names", &[], &["/usr/bin/python3", "-c", LOOK_UP]);
    let of = |name: &str, stage: i64| -> Vec<&Value> {
        let fits = |e: &&Value| text(e).contains(&format!("getaddrinfo({name})")) && number(e, "a") == stage;
        events.iter().filter(fits).collect()
    };
    let mut n = 0;
    for line in out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, before, after, result] = words[..] else { panic!("{line}") };
        let (before, after): (i64, i64) = (before.parse().unwrap(), after.parse().unwrap());
        let ([begin], [end]) = (&of(name, 1)[..], &of(name, 2)[..]) else { panic!("{name}: {events:?}") };
        let (from, to) = (number(begin, "at_boot_ns"), number(end, "at_boot_ns"));
        assert!(before <= from && from <= to && to <= after, "{line}: {begin} {end}");
        assert_eq!(number(end, "b"), to - from);
        assert_eq!(text(end), format!("resolver: getaddrinfo({name}) = {result}"));
        assert_eq!(begin["pid"], end["pid"]);
        n += 1;
    }
    assert_eq!(n, 40);
    assert_eq!(events.iter().filter(|e| text(e).contains(".invalid")).count(), 2 * n);
}

#[test]
fn sizes_of_tls_calls() {
    let Some(p) = Place::new("tls") else { return };
    let (key, pem) = (p.path("key.pem"), p.path("both.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x"])
        .args(["-keyout", &key, "-out", &pem])
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{}", words(&made));
    let both = std::fs::read_to_string(&key).unwrap() + &std::fs::read_to_string(&pem).unwrap();
    std::fs::write(&pem, both).unwrap();
    let (events, out) = recorded(&p, "tls", &[], &["/usr/bin/python3", "-c", TLS, &pem]);
    let counted = |what: &str| -> Vec<i64> {
        let mine = out.lines().find_map(|l| l.strip_prefix(what)).expect("a line of counts");
        mine.split_whitespace().map(|n| n.parse().unwrap()).collect()
    };
    let threads = counted("threads");
    let events: Vec<&Value> = events.iter().filter(|e| threads.contains(&number(e, "pid"))).collect();
    let seen = |what: &str| -> Vec<i64> {
        let ends = events.iter().filter(|e| number(e, "a") == 2).filter_map(|e| text(e).strip_prefix(what));
        let bytes = ends.filter_map(|t| t.split_once(": ")?.1.split(' ').next()?.parse().ok());
        bytes.filter(|n| *n > 0).collect()
    };
    assert_eq!((counted("write").len(), counted("read").iter().sum::<i64>()), (31, 37 * 465 + 1));
    assert_eq!(seen("tls: TLS write"), counted("write"));
    assert_eq!(seen("tls: TLS read"), counted("read"));
    let handshakes = events.iter().filter(|e| text(e).contains("TLS handshake") && number(e, "a") == 2);
    assert!(handshakes.filter(|e| text(e).ends_with(" = 1")).count() >= 2, "both sides");
}

#[test]
fn rows_of_a_users_own_and_probes_that_a_library_has() {
    let Some(p) = Place::new("own") else { return };
    let (source, program, table) = (p.path("throw.cc"), p.path("throw"), p.path("table.txt"));
    std::fs::write(&source, THROW).unwrap();
    let Ok(built) = Command::new("g++").args([&source, "-o", &program]).output() else {
        return eprintln!("SKIPPED: there is no g++");
    };
    assert!(built.status.success(), "{}", words(&built));
    let rows = format!(
        "c++ libstdc++.so.6 usdt:libstdcxx:throw mark object=1:hex,type=2:hex throws {{object}}\n\
         own {program} main span result=return:int main = {{result}}\n\
         own {program} no_such_function span - never\n"
    );
    std::fs::write(&table, rows).unwrap();
    let out =
        kpat(&["record", "-p", "programs", "--programs", &table, "-o", &p.path("x.kbl"), "--", &program]);
    assert!(
        words(&out).contains("no_such_function"),
        "what was wanted and not found is named: {}",
        words(&out)
    );
    let (events, out) = recorded(&p, "own", &["--programs", &table], &[&program]);
    assert_eq!(out, "17\n");
    let own: Vec<&Value> = events.iter().filter(|e| text(e).starts_with("own: ")).collect();
    let main: Vec<(&str, i64)> = own.iter().map(|e| (text(e), number(e, "a"))).collect();
    assert_eq!(main, [("own: main = …", 1), ("own: main = 0", 2)]);
    let thrown = |e: &&Value| text(e).starts_with("c++: throws 0x") && e["pid"] == own[0]["pid"];
    assert_eq!(events.iter().filter(thrown).count(), 17);
}

/// A program stamps lines in every way, each between two readings of the clock that the log has.
const STAMPS: &str = r#"
import datetime, json, sys, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
east = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
files = {f: open(sys.argv[1] + "/" + f, "w") for f in ("iso", "syslog", "journal", "export", "access", "objects")}
for i in range(5):
    before, t = now(), time.time_ns()
    at = datetime.datetime.fromtimestamp(t / 1e9, east)
    after = now()
    files["iso"].write(f"{at.isoformat(timespec='milliseconds')} line {i}\n")
    files["syslog"].write(f"{at:%b %d %H:%M:%S} vm prog[1]: line {i}\nno stamp\n")
    us = str(t // 1000)
    files["access"].write(f'10.0.0.1 - - [{at:%d/%b/%Y:%H:%M:%S %z}] "GET /" line {i}\n')
    files["objects"].write(json.dumps({"level": 30, "time": t // 1000000, "msg": f"line {i}"}) + "\n")
    entry = {"__REALTIME_TIMESTAMP": us, "SYSLOG_IDENTIFIER": "prog", "_PID": "1", "MESSAGE": f"line {i}"}
    files["journal"].write(json.dumps(entry) + "\n")
    files["export"].write(f"__CURSOR=x\n" + "".join(f"{k}={v}\n" for k, v in entry.items()) + "\n")
    print(i, before, after, flush=True)
    time.sleep(0.3)
"#;

#[test]
fn lines_of_log_files_happened_within_their_bounds() {
    let Some(p) = Place::new("lines") else { return };
    let (file, log, dir) = (p.path("x.kbl"), p.path("x.kpat"), p.dir.display().to_string());
    let out = kpat(&["record", "-p", "programs", "-o", &file, "--", "/usr/bin/python3", "-c", STAMPS, &dir]);
    assert!(out.status.success(), "{}", words(&out));
    let files = ["iso", "syslog", "journal", "export", "access", "objects"];
    let paths = files.map(|f| p.path(f));
    let logs: Vec<&str> = paths.iter().flat_map(|f| ["--log", f]).collect();
    let done = kpat(&[&["integrate", &file, "-o", &log, "--log-zone", "+05:30"], &logs[..]].concat());
    assert!(done.status.success(), "{}", words(&done));
    assert!(words(&done).contains("syslog: 5 of 10 lines are in the recording's time; 5 have no stamp"));
    let all = json(&["events", &log, "--kind", "log-line", "--limit", "0", "--json"]);
    let all = all["events"].as_array().cloned().expect("events");
    assert_eq!(all.len(), 5 * files.len());
    let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
    for line in stdout.lines() {
        let n: Vec<i64> = line.split(' ').map(|w| w.parse().unwrap()).collect();
        for (i, name) in files.iter().enumerate() {
            let mine = |e: &&Value| number(e, "a") == i as i64 && text(e).contains(&format!("line {}", n[0]));
            let found: Vec<&Value> = all.iter().filter(mine).collect();
            let [e] = found[..] else { panic!("{name} {line}: {all:?}") };
            let (after, at) = (number(e, "after_boot_ns"), number(e, "at_boot_ns"));
            // The stamp was taken between the two readings, and is at most as much too early as it is cut.
            assert!(after <= n[2] && n[1] <= at, "{name}: {line}: {e}");
            let width = [1_000_000, 1_000_000_000, 1_000, 1_000, 1_000_000_000, 1_000_000][i];
            assert!((width..width + 1_000_000).contains(&(at - after)), "{name}: {e}");
        }
    }
    assert_eq!(stdout.lines().count(), 5);
}
