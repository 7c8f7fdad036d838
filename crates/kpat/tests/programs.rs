//! What programs say of their work. Truth is what they count themselves, by the same clock before and after. Needs root.

#[allow(dead_code, reason = "other tests use other parts of it")]
mod place;

mod joined;
mod often;

use place::{Place, json, kpat, until, words};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

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
        except socket.gaierror as e: result = next(n for n in dir(socket) if n[:4] == "EAI_" and getattr(socket, n) == e.errno)
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
    read.wait()
read = threading.Event()
t = threading.Thread(target=serve); t.start(); server = t.native_id
s = there.wrap_socket(socket.create_connection(listening.getsockname()))
for i in range(1, 31): writes.append(s.send(b"x" * (i * 37)))
reads.append(len(s.recv(10)))
s.setblocking(False)
try: s.recv(10)
except ssl.SSLWantReadError: reads.append(0)
read.set(); t.join()
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
    let all =
        |of: &str| events.iter().filter(|e| text(e).contains(of) && text(e).contains(".invalid")).count();
    assert_eq!((all(": getaddrinfo("), all(": gethostby")), (2 * n, 0));
}

/// A file with a key and its certificate, made for this.
fn pem(p: &Place) -> String {
    let (key, pem) = (p.path("key.pem"), p.path("both.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x"])
        .args(["-keyout", &key, "-out", &pem])
        .output()
        .expect("openssl runs");
    assert!(made.status.success(), "{}", words(&made));
    let both =
        std::fs::read_to_string(&key).expect("a key") + &std::fs::read_to_string(&pem).expect("a file");
    std::fs::write(&pem, both).expect("a file");
    pem
}

#[test]
fn sizes_of_tls_calls() {
    let Some(p) = Place::new("tls") else { return };
    let (events, out) = recorded(&p, "tls", &[], &["/usr/bin/python3", "-c", TLS, &pem(&p)]);
    let counted = |what: &str| -> Vec<i64> {
        let mine = out.lines().find_map(|l| l.strip_prefix(what)).expect("a line of counts");
        mine.split_whitespace().map(|n| n.parse().unwrap()).collect()
    };
    let threads = counted("threads");
    let events: Vec<&Value> = events.iter().filter(|e| threads.contains(&number(e, "pid"))).collect();
    let seen = |what: &str| -> Vec<i64> {
        let ends = events.iter().filter(|e| number(e, "a") == 2).filter_map(|e| text(e).strip_prefix(what));
        ends.filter_map(|t| t.split_once(": ")?.1.split(' ').next()?.parse().ok()).collect()
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
         = code 0 fine 1 failed\n\
         own {program} main span result=return:int(code) main = {{result}}\n\
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
    assert_eq!(main, [("own: main = …", 1), ("own: main = fine", 2)]);
    let thrown = |e: &&Value| text(e).starts_with("c++: throws 0x") && e["pid"] == own[0]["pid"];
    assert_eq!(events.iter().filter(thrown).count(), 17);
}

/// A library that somebody else builds anew, and two programs' worth of what it does: calls after a line on standard input, and says how they went.
const CALLED: &str =
    "__attribute__((noinline)) int called(int i) { __asm__ volatile(\"\"); return 3 * i; }\n";
const CALLS: &str = r#"
#include <stdio.h>
#include <unistd.h>
int called(int);
int main(void) { char c; int sum = 0; puts("up"); fflush(stdout); if (read(0, &c, 1) != 1) return 1;
	for (int i = 0; i < 11; i++) sum += called(i);
	printf("%d\n", sum); return 0; }
"#;

fn cc(args: &[&str]) {
    let built = Command::new("cc").args(["-O1", "-w"]).args(args).output().expect("cc runs");
    assert!(built.status.success(), "{}", words(&built));
}

/// Writes a program's source and compiles it.
fn compiled(p: &Place, name: &str, source: &str, more: &[&str]) -> String {
    let (from, to) = (p.path(&format!("{name}.c")), p.path(name));
    std::fs::write(&from, source).expect("a file");
    cc(&[&[from.as_str(), "-o", &to], more].concat());
    to
}

/// Has a program's first line of output been written?
fn said(child: &mut Child) {
    let mut line = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().expect("its output"), &mut line).expect("a line");
    assert_eq!(&line, b"up\n");
}

/// What a recording that runs until `work` is done has of programs.
fn while_recording(p: &Place, name: &str, more: &[&str], work: impl FnOnce()) -> Vec<Value> {
    let (file, log, ready) =
        (p.path(&format!("{name}.kbl")), p.path(&format!("{name}.kpat")), p.path(&format!("{name}.ready")));
    let mut recording = Command::new(KPAT);
    recording.args(["record", "-p", "programs", "-o", &file, "--ready-file", &ready]).args(more);
    let recording = recording.stderr(Stdio::piped()).spawn().expect("kpat runs");
    until("it records", || std::path::Path::new(&ready).exists());
    work();
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(recording.id() as i32, libc::SIGINT) };
    let out = recording.wait_with_output().expect("it ends");
    assert!(out.status.success(), "{}", words(&out));
    let done = kpat(&["integrate", &file, "-o", &log]);
    assert!(done.status.success(), "{}", words(&done));
    let events = json(&["events", &log, "--kind", "program", "--limit", "0", "--json"]);
    events["events"].as_array().cloned().expect("events")
}

#[test]
fn files_that_are_deleted_or_of_another_root() {
    let Some(p) = Place::new("roots") else { return };
    let library = p.path("libkpatcalled.so.1");
    let build = || {
        compiled(&p, "called", CALLED, &["-shared", "-fPIC"]);
        // A new file: the one before is its processes'.
        let _ = std::fs::remove_file(&library);
        std::fs::copy(p.path("called"), &library).unwrap();
    };
    build();
    let program = compiled(&p, "calls", CALLS, &[&library, "-Wl,-rpath,$ORIGIN"]);
    let alone = compiled(&p, "alone", &format!("{CALLED}{CALLS}"), &["-static"]);
    // In a root of its own, and in one that is mounted for it alone.
    let (root, inside) = (p.path("root"), p.path("root/calls"));
    std::fs::create_dir(&root).unwrap();
    std::fs::copy(&alone, &inside).unwrap();
    let mounted = "mount -t tmpfs none $0 && cp $1 $0/other && exec chroot $0 /other";
    let start = |argv: &[&str]| {
        let mut child = Command::new(argv[0]);
        child.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().expect("it runs");
        said(&mut child);
        child
    };
    let mut all = vec![
        start(&[&program]),
        start(&["chroot", &root, "/calls"]),
        start(&["unshare", "-m", "sh", "-c", mounted, &root, &alone]),
    ];
    build();
    all.push(start(&[&program]));
    let table = p.path("table.txt");
    let row = |binary: &str| format!("own {binary} called span n=1:int,r=return:int called({{n}}) = {{r}}\n");
    std::fs::write(&table, row("libkpatcalled.so.*") + &row("calls") + &row("other")).unwrap();
    let pids: Vec<i64> = all.iter().map(|c| c.id().into()).collect();
    let events = while_recording(&p, "roots", &["--programs", &table], || {
        for child in &mut all {
            std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
        }
        for child in all {
            assert_eq!(child.wait_with_output().unwrap().stdout, b"165\n");
        }
    });
    for pid in pids {
        let ends = events.iter().filter(|e| number(e, "pid") == pid && number(e, "a") == 2);
        let seen: Vec<&str> = ends.map(text).filter(|t| t.starts_with("own: ")).collect();
        let called: Vec<String> = (0..11).map(|i| format!("own: called({i}) = {}", 3 * i)).collect();
        assert_eq!(seen, called, "{pid}");
    }
}

/// Requests that overlap in two processes, by the same numbers; what each took by its own clock. Structures as servers have them.
const KEYED: &str = r#"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
struct connection { void *data, *read, *write; int fd; };
struct request { unsigned signature; struct connection *connection; const char *name; short status; } r, *none;
__attribute__((noinline)) void begins(struct request *r) { __asm__ volatile("" : : "r"(r) : "memory"); }
__attribute__((noinline)) void ends(struct request *r) { __asm__ volatile("" : : "r"(r) : "memory"); }
static long now(void) { struct timespec t; clock_gettime(CLOCK_BOOTTIME, &t); return t.tv_sec * 1000000000 + t.tv_nsec; }
int main(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) }, b;
	socklen_t len = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0), to, pipes[2], back[2];
	struct connection c = { .fd = 1 };
	char x;
	bind(l, (void *)&a, sizeof a); listen(l, 8); getsockname(l, (void *)&a, &len);
	pipe(pipes); pipe(back);
	for (int i = 0; i < 4; i++) {
		int child = !fork();
		to = socket(AF_INET, SOCK_STREAM, 0);
		connect(to, (void *)&a, sizeof a);
		len = sizeof b; getsockname(to, (void *)&b, &len);
		c.fd = i % 2 ? to : 1;
		r = (struct request){ 7, &c, i ? "named" : 0, (short)-i };
		if (child) {
			/* Begins after the parent, and ends after it. */
			if (read(pipes[0], &x, 1) != 1) return 1;
			long t = now(); begins(&r); long t2 = now(); write(back[1], "x", 1); usleep(20000); long u = now(); ends(&r); long v = now();
			printf("%d %d %ld %ld %d %d %d %d\n", getpid(), i, u - t2, v - t, c.fd, i % 2 ? ntohs(b.sin_port) : 0, ntohs(a.sin_port), r.status); fflush(stdout);
			_exit(0);
		}
		long t = now(); begins(&r); long t2 = now(); write(pipes[1], "x", 1); read(back[0], &x, 1); long u = now(); ends(&r); long v = now(); wait(0);
		printf("%d %d %ld %ld %d %d %d %d\n", getpid(), i, u - t2, v - t, c.fd, i % 2 ? ntohs(b.sin_port) : 0, ntohs(a.sin_port), r.status); fflush(stdout);
	}
	begins(none);
	return 0;
}
"#;

#[test]
fn what_overlaps_in_processes_and_lies_in_structures() {
    let Some(p) = Place::new("keys") else { return };
    let program = compiled(&p, "keyed", KEYED, &[]);
    let table = p.path("table.txt");
    let rows = format!(
        "own {program} begins begin r=1:key,socket=1+8+24:fd,status=1+24:short,name=1+16:string {{name}} {{status}} on {{socket}}\n\
         own {program} ends end r=1:key,status=1+24:short {{status}} over\n"
    );
    std::fs::write(&table, rows).unwrap();
    let (events, out) = recorded(&p, "keys", &["--programs", &table], &[&program]);
    let own = |pid: i64, stage: i64| -> Vec<&Value> {
        let fits =
            |e: &&Value| number(e, "pid") == pid && number(e, "a") == stage && text(e).starts_with("own: ");
        events.iter().filter(fits).collect()
    };
    let mut before: BTreeMap<i64, usize> = BTreeMap::new();
    for line in out.lines() {
        let n: Vec<i64> = line.split(' ').map(|w| w.parse().unwrap()).collect();
        let [pid, i, least, most, fd, port, peers, status] = n[..] else { panic!("{line}") };
        let nth = before.entry(pid).or_default();
        let (begin, end) = (own(pid, 1)[*nth], own(pid, 2)[*nth]);
        *nth += 1;
        assert!((least..=most).contains(&number(end, "b")), "{line}: {end}");
        let name = if i == 0 { "" } else { "named" };
        let of = if port == 0 { format!("{fd}") } else { format!("{fd} (port {port}, peer's {peers})") };
        assert_eq!(text(begin), format!("own: {name} {status} on {of}"), "{line}");
        assert_eq!(number(begin, "b"), port << 16 | if port == 0 { 0 } else { peers });
        assert_eq!(text(end), format!("own: {status} over"));
    }
    assert_eq!(before.values().sum::<usize>(), 8);
    // A place that cannot be read has no value.
    let last = events.iter().rfind(|e| text(e).starts_with("own: ")).unwrap();
    assert_eq!(text(last), "own: ? ? on ?");
}

/// Functions of Go have their arguments elsewhere, and a return must not be waited for in them.
const GO: &str = "package main\nimport \"fmt\"\n//go:noinline\nfunc work(n int, s []byte) int { return n + len(s) }\n\
    func main() { sum := 0; for i := 0; i < 9; i++ { sum += work(i, make([]byte, i*i)) }; fmt.Println(sum) }\n";

#[test]
fn programs_in_go() {
    let Some(p) = Place::new("go") else { return };
    let (source, program, table) = (p.path("main.go"), p.path("work"), p.path("table.txt"));
    std::fs::write(&source, GO).unwrap();
    let Ok(built) = Command::new("go").args(["build", "-o", &program, &source]).output() else {
        return eprintln!("SKIPPED: there is no go");
    };
    assert!(built.status.success(), "{}", words(&built));
    let row =
        |shape: &str| format!("go {program} main.work {shape} n=1:long,len=3:long work {{n}} {{len}}\n");
    std::fs::write(&table, row("mark") + &row("span")).unwrap();
    let (events, out) = recorded(&p, "go", &["--programs", &table], &[&program]);
    assert_eq!(out, "240\n");
    let seen: Vec<&str> = events.iter().map(text).filter(|t| t.starts_with("go: ")).collect();
    let called: Vec<String> = (0..9).map(|i| format!("go: work {i} {}", i * i)).collect();
    assert_eq!(seen, called);
    let left_out = json(&["info", &p.path("go.kbl"), "--json"])["left_out"].to_string();
    assert!(left_out.contains("a program in Go moves its stacks"), "{left_out}");
}

/// Two requests at a time, of which one lasts; port of each, and what each took as its client saw it.
const ASK: &str = r#"
import socket, sys, threading, time
now = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
def ask(path, times):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1]))); port = s.getsockname()[1]
    for i in range(times):
        begin = now(); s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()); got = b""
        while b"\r\n\r\n" not in got: got += s.recv(65536)
        head, body = got.split(b"\r\n\r\n", 1)
        left = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]) - len(body)
        while left > 0: left -= len(s.recv(65536))
        sys.stdout.write(f"{port} {path} {begin} {now()}\n")
all = [threading.Thread(target=ask, args=a) for a in [("/slow", 1), ("/", 5), ("/nope", 3), ("/slow", 2)]]
[t.start() for t in all]; [t.join() for t in all]
"#;

#[test]
fn requests_of_nginx_and_their_connections() {
    let Some(p) = Place::new("nginx") else { return };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (conf, log, dir) = (p.path("nginx.conf"), p.path("access.log"), p.dir.display().to_string());
    std::fs::create_dir(p.path("www")).unwrap();
    std::fs::write(p.path("www/index.html"), "hello\n").unwrap();
    std::fs::write(p.path("www/slow"), vec![b'x'; 20_000]).unwrap();
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|n| format!("{n}_temp_path {dir}/{n};\n"))
        .concat();
    let text_of = format!(
        "user root;\nworker_processes 2;\ndaemon off;\npid {dir}/pid;\nerror_log {dir}/error.log;\nevents {{}}\n\
         http {{ log_format t '$remote_port $request_time $status $pid';\naccess_log {log} t;\n{paths}\
         server {{ listen 127.0.0.1:{port}; root {dir}/www; location = /slow {{ limit_rate 40k; }} }} }}\n"
    );
    std::fs::write(&conf, text_of).unwrap();
    let mut nginx = Command::new("/usr/sbin/nginx");
    nginx.args(["-c", &conf, "-p", &dir]).stderr(Stdio::null()).process_group(0);
    let Ok(mut nginx) = nginx.spawn() else { return eprintln!("SKIPPED: there is no nginx") };
    until("nginx listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let (port, written) = (port.to_string(), || std::fs::read_to_string(&log).unwrap_or_default());
    let (file, out) = (p.path("x.kbl"), p.path("x.kpat"));
    let made = kpat(&[
        "record",
        "-p",
        "path,programs",
        "--mechanism",
        "tracepoint",
        "-f",
        &format!("tcp port {port}"),
        "-o",
        &file,
        "--",
        "/usr/bin/python3",
        "-c",
        ASK,
        &port,
    ]);
    until("all is logged", || written().lines().count() >= 11);
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(nginx.id() as i32, libc::SIGTERM) };
    nginx.wait().unwrap();
    assert!(made.status.success(), "{}", words(&made));
    let done = kpat(&["integrate", &file, "-o", &out]);
    assert!(done.status.success(), "{}", words(&done));
    let all = json(&["events", &out, "--kind", "program", "--limit", "0", "--json"]);
    let all: Vec<Value> = all["events"].as_array().cloned().expect("events");
    let of = |stage: i64, peer: &str| -> Vec<&Value> {
        let fits = |e: &&Value| {
            text(e).starts_with("nginx: ")
                && number(e, "a") == stage
                && text(e).contains(&format!("peer's {peer})"))
        };
        all.iter().filter(fits).collect()
    };
    // The server's own log: whose connection, in which worker, and how long within a beat of its clock.
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for line in written().lines() {
        let w: Vec<&str> = line.split(' ').collect();
        let n = asked.entry(w[0].to_owned()).or_default();
        let (begin, end) = (of(1, w[0])[*n], of(2, w[0])[*n]);
        *n += 1;
        assert_eq!((begin["pid"].to_string().as_str(), &begin["pid"]), (w[3], &end["pid"]));
        let (took, logged) = (number(end, "b"), (w[1].parse::<f64>().unwrap() * 1e9) as i64);
        assert!(took > 0 && (w[1] == "0.000" || took * 10 > logged * 9), "{line}: {end}");
        assert_eq!(number(end, "at_boot_ns") - number(begin, "at_boot_ns"), took);
    }
    assert_eq!(asked.values().sum::<usize>(), 11);
    // The client's: each lies within what it saw, in the packets' lives, and nothing of another's does.
    let client = String::from_utf8_lossy(&made.stdout).into_owned();
    let mut nth: BTreeMap<&str, usize> = BTreeMap::new();
    for line in client.lines() {
        let w: Vec<&str> = line.split(' ').collect();
        let n = nth.entry(w[0]).or_default();
        let (begin, end) = (of(1, w[0])[*n], of(2, w[0])[*n]);
        *n += 1;
        let (from, to): (i64, i64) = (w[2].parse().unwrap(), w[3].parse().unwrap());
        assert!(from <= number(begin, "at_boot_ns"), "{line}: {begin}");
        assert!(number(end, "at_boot_ns") <= to + 50_000_000, "{line}: {end}");
    }
    let packets = json(&["packets", &out, "--limit", "0", "--json"]);
    let (mut own, mut with_data) = (0, 0);
    for packet in packets["packets"].as_array().unwrap() {
        let ports = [number(packet, "src_port"), number(packet, "dst_port")];
        let peer = if ports[0].to_string() == port { ports[1] } else { ports[0] };
        if ports[0].to_string() == port && number(packet, "len_bytes") > 100 {
            with_data += 1;
        }
        let whole = json(&["packet", &out, &packet["packet_id"].to_string(), "--json"]);
        let said = whole["programs"].as_array().expect("programs");
        let requests: Vec<&str> = said.iter().map(text).filter(|t| t.starts_with("nginx: ")).collect();
        let its: Vec<&&str> = requests.iter().filter(|t| t.contains(&format!("peer's {peer})"))).collect();
        if !its.is_empty() {
            assert_eq!(its.len(), requests.len(), "{packet}: {requests:?}");
            own += usize::from(ports[0].to_string() == port && number(packet, "len_bytes") > 100);
        }
    }
    assert!(
        with_data >= 11 && own * 10 >= with_data * 9,
        "{own} of {with_data} answers are in their request"
    );
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
    let packed = p.path("iso.gz");
    std::fs::write(&packed, b"\x1f\x8b\x08\0 rotated\nlines").unwrap();
    let packed = ["--log", &packed];
    let done =
        kpat(&[&["integrate", &file, "-o", &log, "--log-zone", "+05:30"], &logs[..], &packed].concat());
    assert!(done.status.success(), "{}", words(&done));
    assert!(words(&done).contains("iso.gz: 0 of 2 lines are in the recording's time; it is compressed"));
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
