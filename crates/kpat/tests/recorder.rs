//! The recorder where it is hindered: namespaces that come and go, few descriptors, no room and no rights for its files, other
//! recorders, slow clients. Truth comes from outside: what was made and sent, and what the kernel lets a process do. Needs root.

mod place;
mod tasks;
use place::{Place, ip, json, kpat, record, until, words};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

/// A command that is ended whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_recording_starts_where_namespaces_come_and_go() {
    let Some(p) = Place::new("storm") else { return };
    let (stop, made) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let n = made.fetch_add(1, Ordering::Relaxed);
                assert!(ip(&format!("netns add {}-{n}", p.name)));
                assert!(ip(&format!("netns del {}-{n}", p.name)));
            }
        });
        let outcomes: Vec<(Output, u32)> = (0..3)
            .map(|n| {
                let before = made.load(Ordering::Relaxed);
                let file = p.path(&format!("{n}.kbl"));
                let out = record(&["-o", &file, "--for", "300ms"]);
                (out, made.load(Ordering::Relaxed) - before)
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        for (out, made) in outcomes {
            assert!(out.status.success() && made > 0, "{made} {}", words(&out));
        }
    });
    // what was made while it was recorded is either read or counted
    let file = p.path("0.kbl");
    let info = json(&["info", &file, "--json"]);
    let unread =
        info["losses"].as_array().expect("losses").iter().filter(|l| l["cause"] == "namespace-unread");
    let unread: u64 = unread.filter_map(|l| l["count"].as_u64()).sum();
    let log = p.path("0.kpat");
    assert!(kpat(&["integrate", &file, "-o", &log]).status.success());
    let text = kpat(&["events", &log, "--limit", "0"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let found = text.lines().filter(|l| l.contains("lo down (found)")).count() as u64;
    assert!(unread + found > 0, "{info} {text}");
}

/// Echoes of a namespace of its own with itself; its kernel says how many went.
struct Pinged(String);

impl Pinged {
    fn new(p: &Place) -> Pinged {
        let name = format!("{}-p", p.name);
        assert!(ip(&format!("netns add {name}")) && ip(&format!("-n {name} link set lo up")));
        Pinged(name)
    }

    fn ping(&self, times: u32) -> [String; 8] {
        ["ip", "netns", "exec", &self.0, "ping", "-qfc", &times.to_string(), "127.0.0.1"].map(str::to_owned)
    }

    fn script(&self, times: u32) -> String {
        self.ping(times).join(" ")
    }
}

impl Drop for Pinged {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

/// Of one file, by one word of the shell before it.
fn under(limit: &str, args: &[&str]) -> Output {
    let script = format!("{limit}; exec \"$0\" record --mechanism tracepoint \"$@\"");
    Command::new("bash").args(["-c", &script, KPAT]).args(args).output().expect("bash runs")
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_attached() {
    let Some(p) = Place::new("refuse") else { return };
    let file = p.path("x.kbl");
    let of = |out: &Output, text: &str| {
        let reported = words(out);
        assert!(!out.status.success() && reported.contains(text), "{reported}");
        assert!(!reported.contains("attached"), "{reported}");
    };
    of(&under("ulimit -n 64", &["-o", &file]), "too few file descriptors: 64 (ulimit -n)");
    of(&under("ulimit -n 20", &["-o", &file]), "too few file descriptors: 20 (ulimit -n)");
    of(&under("ulimit -f 10", &["-o", &file]), "files are limited to 10240 bytes (ulimit -f)");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    of(&under(":", &["-o", &file, "--metrics", &port]), "Address already in use");
    assert_eq!(p.names(), [""; 0]);
    // Opening it would wait for its other end.
    let pipe = format!("mkfifo {file}.part");
    let out = under(&pipe, &["-o", &file, "--force"]);
    assert!(!out.status.success() && words(&out).contains("x.kbl.part is in the way"), "{}", words(&out));
    std::fs::remove_file(format!("{file}.part")).expect("still there");

    // file systems of this process alone
    let mount = |options: &str| format!("mount -t tmpfs -o {options} none {}", p.dir.display());
    let inside = |options: &str| {
        let script =
            format!("{}; exec \"$0\" record --mechanism tracepoint -o {file} --for 1s", mount(options));
        Command::new("unshare").args(["-m", "bash", "-c", &script, KPAT]).output().expect("unshare runs")
    };
    of(&inside("ro"), "the file system is read-only; -o gives another place");
    of(&inside("size=32k"), "the disk is full; -o gives another place");
}

/// The shell's limit ends the file, not the recorder; the log is closed, and what is beyond is counted as lost.
#[test]
fn a_limit_of_files_loses_and_counts_what_is_beyond() {
    let Some(p) = Place::new("fsize") else { return };
    let pinged = Pinged::new(&p);
    let file = p.path("x.kbl");
    let ping = pinged.ping(3000);
    let ping: Vec<&str> = ping.iter().map(String::as_str).collect();
    let out = under(
        "ulimit -f 300",
        &[&["-o", &file, "--netns", &pinged.0, "-f", "icmp", "--"], &ping[..]].concat(),
    );
    let reported = words(&out);
    assert!(out.status.success(), "{reported}");
    assert!(reported.contains("records beyond 236.0 KiB of a log will be lost"), "{reported}");
    assert!(reported.contains("the limit of a file's size (ulimit -f) is reached"), "{reported}");
    assert!(std::fs::metadata(&file).expect("the log").len() <= 300 << 10);
    let info = json(&["info", &file, "--json"]);
    assert_eq!(info["state"], "complete", "{info}");
    let lost: u64 =
        info["losses"].as_array().expect("losses").iter().filter_map(|l| l["count"].as_u64()).sum();
    // the same, recorded without a limit
    let all = p.path("all.kbl");
    let out =
        record(&[&["-o", &all, "--netns", &pinged.0, "-f", "icmp", "--json", "--"], &ping[..]].concat());
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let all: Value = serde_json::from_str(&text[text.find("\n{").expect("JSON")..]).expect("JSON");
    let there: u64 = info["records"].as_object().expect("records").values().filter_map(Value::as_u64).sum();
    let all = all["records"].as_u64().expect("records");
    assert!(there > 0 && (there + lost).abs_diff(all) * 20 < all, "{there} and {lost} lost of {all}");
}

#[test]
fn integrating_onto_a_full_disk_leaves_nothing_and_says_why() {
    let Some(p) = Place::new("full") else { return };
    let pinged = Pinged::new(&p);
    let file = p.path("x.kbl");
    let ping = pinged.ping(3000);
    let ping: Vec<&str> = ping.iter().map(String::as_str).collect();
    assert!(record(&[&["-o", &file, "--netns", &pinged.0, "--"], &ping[..]].concat()).status.success());
    let out = p.path("small");
    std::fs::create_dir(&out).expect("a folder");
    let script = format!(
        "mount -t tmpfs -o size=200k none {out}; \"$0\" integrate {file} -o {out}/x.kpat; echo $? of $(ls -A {out} | wc -l)"
    );
    let full =
        Command::new("unshare").args(["-m", "bash", "-c", &script, KPAT]).output().expect("unshare runs");
    let reported = words(&full);
    assert!(reported.contains("x.kpat: the disk is full; the partial result was removed"), "{reported}");
    assert_eq!(String::from_utf8_lossy(&full.stdout), "1 of 0\n", "{reported}");
    let limited =
        format!("ulimit -f 40; \"$0\" integrate {file} -o {out}/x.kpat; echo $? of $(ls -A {out} | wc -l)");
    let limited = Command::new("bash").args(["-c", &limited, KPAT]).output().expect("bash runs");
    let reported = words(&limited);
    assert!(reported.contains("x.kpat: the limit of a file's size (ulimit -f) is reached"), "{reported}");
    assert_eq!(String::from_utf8_lossy(&limited.stdout), "1 of 0\n", "{reported}");
}

/// Of two that start at the same moment one records, and everything of it is in the file.
#[test]
fn two_recorders_on_one_file_are_one() {
    let Some(p) = Place::new("two") else { return };
    let pinged = Pinged::new(&p);
    let file = p.path("same.kbl");
    for _ in 0..3 {
        let ready = p.path("ready");
        let one = || {
            let mut c = Command::new(KPAT);
            c.args(["record", "--mechanism", "tracepoint", "--force", "-o", &file, "--netns", &pinged.0]);
            c.args(["-f", "icmp", "--json", "--", "sh", "-c"]);
            // none ends before the other was refused, or both run
            c.arg(format!("echo >> {ready}; {} >&2; sleep 1", pinged.script(500)));
            Running(c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kpat runs"))
        };
        let both = [one(), one()];
        let ended = both.map(|mut r| {
            let mut out = String::new();
            std::io::Read::read_to_string(&mut r.0.stdout.take().expect("a pipe"), &mut out).expect("text");
            let mut reported = String::new();
            std::io::Read::read_to_string(&mut r.0.stderr.take().expect("a pipe"), &mut reported)
                .expect("text");
            (r.0.wait().expect("ended").success(), out, reported)
        });
        let good: Vec<&String> = ended.iter().filter(|e| e.0).map(|e| &e.1).collect();
        assert_eq!(good.len(), 1, "{ended:#?}");
        assert_eq!(std::fs::read_to_string(&ready).expect("ready").len(), 1);
        let reported: Value = serde_json::from_str(good[0]).expect("JSON");
        let info = json(&["info", &file, "--json"]);
        let there: u64 =
            info["records"].as_object().expect("records").values().filter_map(Value::as_u64).sum();
        assert_eq!(Some(there), reported["records"].as_u64(), "{reported} {info}");
        std::fs::remove_file(&ready).expect("ready");
        assert_eq!(p.names(), ["same.kbl"]);
    }
}

/// Clients that never end their request: meanwhile rings are emptied and others are answered.
#[test]
fn a_slow_client_does_not_stall_the_drain() {
    let Some(p) = Place::new("slow") else { return };
    let pinged = Pinged::new(&p);
    let (file, ready) = (p.path("x.kbl"), p.path("ready"));
    let mut c = Command::new(KPAT);
    c.args([
        "record",
        "--mechanism",
        "tracepoint",
        "-o",
        &file,
        "--netns",
        &pinged.0,
        "--ready-file",
        &ready,
    ]);
    let mut r = Running(c.stderr(Stdio::null()).spawn().expect("kpat runs"));
    until("ready", || std::fs::read_to_string(&ready).is_ok_and(|t| t.ends_with('\n')));
    let (socket, pid) = (format!("/run/kpat/{}.sock", r.0.id()), r.0.id().to_string());
    let (stop, began) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // whoever is thrown out comes again
            while let (false, Ok(mut slow)) =
                (stop.load(Ordering::Relaxed), std::os::unix::net::UnixStream::connect(&socket))
            {
                while !stop.load(Ordering::Relaxed) && std::io::Write::write_all(&mut slow, b" ").is_ok() {
                    began.store(true, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
        until("a client", || began.load(Ordering::Relaxed));
        let mut before = 0;
        let answered = (0..5).all(|_| {
            assert!(
                Command::new("sh").args(["-c", &pinged.script(50)]).stdout(Stdio::null()).status().is_ok()
            );
            let out = kpat(&["ctl", "status", "--pid", &pid, "--json"]);
            let status: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
            let now = status["records"].as_u64().unwrap_or(0);
            now > std::mem::replace(&mut before, now)
        });
        stop.store(true, Ordering::Relaxed);
        assert!(answered, "{before}");
    });
    assert!(kpat(&["ctl", "stop", "--pid", &pid]).status.success());
    assert!(r.0.wait().expect("ended").success());
}

#[test]
fn a_killed_recorder_leaves_its_log_and_nothing_else() {
    let Some(p) = Place::new("kill") else { return };
    let (file, ready) = (p.path("x.kbl"), p.path("ready"));
    let mut c = Command::new(KPAT);
    c.args(["record", "--mechanism", "tracepoint", "-o", &file, "--ready-file", &ready]);
    let mut r = Running(c.stderr(Stdio::null()).spawn().expect("kpat runs"));
    let state = [".sock", ".json"].map(|e| PathBuf::from(format!("/run/kpat/{}{e}", r.0.id())));
    until("published", || state.iter().all(|s| s.exists()));
    r.0.kill().expect("killed");
    r.0.wait().expect("ended");
    assert_eq!(p.names(), ["ready", "x.kbl"]);
    // the next one clears the rest away
    assert!(record(&["-o", &p.path("y.kbl"), "--for", "1ms"]).status.success());
    assert!(!state.iter().any(|s| s.exists()));
}

#[test]
fn a_log_that_its_command_takes_away_is_not_called_written() {
    let Some(p) = Place::new("away") else { return };
    let file = p.path("x.kbl");
    let until = |what: String| record(&["-o", &file, "--", "sh", "-c", &format!("until {what}; do :; done")]);
    let [removed, moved] = [format!("rm {file}"), format!("mv {file} {file}2")].map(until);
    assert!(removed.status.code() == Some(1) && words(&removed).contains("recorded is lost"));
    assert!(moved.status.success() && words(&moved).contains("goes on into"), "{}", words(&moved));
}

fn mode(path: impl AsRef<Path>) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).expect("it is there").mode() & 0o777
}

/// A folder where others may write: links of every name that is used for a while lead to a file that must stay as it is.
#[test]
fn planted_links_are_not_followed_and_files_are_for_their_owner() {
    let Some(p) = Place::new("links") else { return };
    let pinged = Pinged::new(&p);
    let precious = p.path("precious");
    std::fs::write(&precious, "precious").expect("a file");
    let wd = p.path("wd");
    std::fs::create_dir(&wd).expect("a folder");
    // the shell's number is that of the program it becomes
    let planted = "umask 022; cd \"$1\"; shift; for n in .x.kbl.reserve .x.kbl.$$-0.reserve x.kbl.part x.pcapng.part ready \
        x.kpat.tmp-$$ x.kpat x.pcap.partial; do ln -s ../precious $n; done; exec \"$0\" \"$@\"";
    let run = |args: &[&str]| {
        let out =
            Command::new("bash").args(["-c", planted, KPAT, &wd]).args(args).output().expect("bash runs");
        assert_eq!(
            std::fs::read_to_string(&precious).expect("precious"),
            "precious",
            "{args:?} {}",
            words(&out)
        );
        out
    };
    let ping = pinged.script(20);
    let sniffed = format!("{}:lo", pinged.0);
    let mut recording =
        vec!["record", "--mechanism", "tracepoint", "-o", "x.kbl", "--netns", &pinged.0, "--sniff", &sniffed];
    recording.extend(["--ready-file", "ready", "--", "sh", "-c", &ping]);
    let refused = run(&recording);
    assert!(words(&refused).contains("x.kbl.part is in the way"), "{}", words(&refused));
    for n in ["x.kbl.part", "x.pcapng.part"] {
        std::fs::remove_file(p.dir.join("wd").join(n)).expect("a link");
    }
    let out = kpat_in(&wd, &recording);
    assert!(out.status.success(), "{}", words(&out));
    assert_eq!(std::fs::read_to_string(&precious).expect("precious"), "precious");
    let in_wd = |name: &str| p.dir.join("wd").join(name);
    assert!(in_wd("ready").symlink_metadata().expect("ready").is_file());
    assert_eq!((mode(in_wd("x.kbl")), mode(in_wd("x.pcapng"))), (0o600, 0o600));

    let out = run(&["integrate", "x.kbl", "x.pcapng", "-o", "y.kpat"]);
    assert!(out.status.success(), "{}", words(&out));
    assert_eq!(mode(in_wd("y.kpat")), 0o700);
    for e in std::fs::read_dir(in_wd("y.kpat")).expect("tables") {
        assert_eq!(mode(e.expect("a table").path()), 0o600);
    }
    let out = run(&["export", "y.kpat", "--to", "pcapng", "-o", "x.pcap"]);
    assert!(out.status.success(), "{}", words(&out));
}

/// With the umask that most have.
fn kpat_in(folder: &str, args: &[&str]) -> Output {
    let script = "umask 022; cd \"$1\"; shift; exec \"$0\" \"$@\"";
    Command::new("bash").args(["-c", script, KPAT, folder]).args(args).output().expect("bash runs")
}

/// As nobody, with these capabilities and no other. The program is handed over open: its folder may be closed to nobody.
fn with_caps(caps: &str, args: &[&str]) -> Command {
    let mut c = Command::new("bash");
    let all = format!("-all,{caps}");
    let script = "exec 9<\"$0\"; caps=$1; shift; exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=$caps \
        --ambient-caps=$caps --bounding-set=$caps /proc/self/fd/9 \"$@\"";
    c.args(["-c", script, KPAT, &all]).args(args);
    c
}

#[test]
fn capabilities_are_enough_and_a_missing_one_is_named() {
    let Some(p) = Place::new("caps") else { return };
    let pinged = Pinged::new(&p);
    let wd = p.dir.join("wd");
    std::fs::create_dir(&wd).expect("a folder");
    std::os::unix::fs::chown(&wd, Some(65534), Some(65534)).expect("nobody's");
    let file = wd.join("x.kbl").display().to_string();
    let basic = ["record", "--mechanism", "tracepoint", "-o", &file];
    let of = |caps: &str, more: &[&str]| {
        with_caps(caps, &[&basic[..], more].concat()).output().expect("bash runs")
    };
    let refused = |caps: &str, more: &[&str], text: &str| {
        let out = of(caps, more);
        assert!(!out.status.success() && words(&out).contains(text), "{}", words(&out));
        assert!(!words(&out).contains("attached"), "{}", words(&out));
        assert_eq!(std::fs::read_dir(&wd).expect("the folder").count(), 0);
    };
    refused("+perfmon", &[], "this process lacks CAP_BPF;");
    refused("+bpf", &[], "this process lacks CAP_PERFMON;");
    refused("+bpf,+perfmon", &["--netns", &pinged.0], "needs CAP_SYS_ADMIN, which this process lacks");
    refused("+bpf,+perfmon", &["--sniff", "lo"], "needs CAP_NET_RAW, which this process lacks");
    let elsewhere = p.path("x.kbl");
    let out = with_caps("+bpf,+perfmon", &["record", "-o", &elsewhere]).output().expect("bash runs");
    assert!(words(&out).contains("this user has no right to; -o gives another place"), "{}", words(&out));
    assert!(!words(&out).contains("attached"), "{}", words(&out));

    // in its own namespace
    let own = |caps: &str, more: &[&str]| {
        let inner = with_caps(caps, &[&basic[..], more].concat());
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &pinged.0]).arg(inner.get_program()).args(inner.get_args());
        c.output().expect("ip runs")
    };
    let ping = ["--json", "--", "ping", "-qc", "5", "-i", "0.2", "127.0.0.1"];
    let out = own(
        "+bpf,+perfmon,+net_raw",
        &[&["--netns", "self", "-f", "icmp", "--sniff", "lo"], &ping[..]].concat(),
    );
    assert!(out.status.success(), "{}", words(&out));
    assert!(
        words(&out).contains("without CAP_SYS_ADMIN: links of other network namespaces"),
        "{}",
        words(&out)
    );
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let v: Value = serde_json::from_str(&text[text.find("\n{").expect("JSON")..]).expect("JSON");
    assert_eq!((v["packets"].as_u64(), v["captures"][0]["frames"].as_u64()), (Some(10), Some(10)), "{v}");
    // What others do may be handled without programs.
    assert!(v["losses"].as_array().expect("losses").iter().all(|l| l["cause"] == "not-run"), "{v}");

    // and with what other namespaces take, from outside
    std::fs::remove_file(&file).expect("the log");
    let out = of(
        "+bpf,+perfmon,+sys_admin,+net_raw",
        &[
            "--force",
            "--netns",
            &pinged.0,
            "--json",
            "--sniff",
            &format!("{}:lo", pinged.0),
            "--for",
            "300ms",
        ],
    );
    assert!(out.status.success(), "{}", words(&out));
}

/// What each thread may do and what it may get by executing a program, as the kernel says.
fn effective(pid: u32) -> Vec<(String, u64, bool)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let of = |path: PathBuf| {
        let name = std::fs::read_to_string(path.join("comm")).ok()?.trim().to_owned();
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let of = |key| {
            let value = status.lines().find_map(|l| l.strip_prefix(key))?;
            Some(u64::from_str_radix(value.trim(), 16).expect("hex"))
        };
        Some((name, of("CapPrm:")? | of("CapBnd:")?, of("NoNewPrivs:")? == 0))
    };
    tasks.filter_map(|t| of(t.expect("a thread").path())).collect()
}

#[test]
fn what_is_not_needed_any_more_is_given_up() {
    const LEFT: u64 = 1 << 39 | 1 << 38 | 1 << 34 | 1 << 23 | 1 << 21;
    let Some(p) = Place::new("drop") else { return };
    let pinged = Pinged::new(&p);
    let (file, ready) = (p.path("x.kbl"), p.path("ready"));
    let sniffed = format!("{}:lo", pinged.0);
    let mut c = Command::new(KPAT);
    c.args(["record", "--mechanism", "tracepoint", "-o", &file, "--sniff", &sniffed]);
    c.args(["--metrics", "127.0.0.1:0", "--rotate-time", "1h", "--ready-file", &ready]);
    let mut r = Running(c.stderr(Stdio::null()).spawn().expect("kpat runs"));
    until("published", || Path::new(&format!("/run/kpat/{}.json", r.0.id())).exists());
    // A thread has its parent's name, and all that it may, until it runs for the first time.
    let too_much = || {
        let threads = effective(r.0.id());
        let left_over = |(name, caps, gains): &(String, u64, bool)| {
            let may = match name.as_str() {
                "kpat" => LEFT,
                "kpat-netlink" => 1 << 21 | 1 << 12,
                "kpat-netns" => 1 << 19,
                _ => 0,
            };
            *gains || caps & !may != 0
        };
        if threads.len() < 5 || threads.iter().any(left_over) { threads } else { Vec::new() }
    };
    until(&format!("given up by all threads: {:?}", too_much()), || too_much().is_empty());
    // it still goes on to a next file, attaches again, and enters what comes
    let pid = r.0.id().to_string();
    let ctl = |what: &str| {
        let out = kpat(&["ctl", what, "--pid", &pid]);
        assert!(out.status.success(), "{what} {}", words(&out));
    };
    ctl("pause");
    ctl("resume");
    let came = format!("{}-came", p.name);
    assert!(ip(&format!("netns add {came}")) && ip(&format!("-n {came} link set lo up")));
    assert!(Command::new("sh").args(["-c", &pinged.script(20)]).stdout(Stdio::null()).status().is_ok());
    ctl("rotate");
    until("two files", || p.names().iter().filter(|n| n.contains(".kbl")).count() == 2);
    assert!(ip(&format!("netns del {came}")));
    ctl("stop");
    assert!(r.0.wait().expect("ended").success());
    let first = p.names().into_iter().find(|n| n.ends_with("-0001.kbl")).expect("the first file");
    let info = json(&["info", &p.path(&first), "--json"]);
    let devices = info["devices"].as_array().expect("devices");
    // The number may have been another test's before: `theirs or ours`.
    let ours = |d: &Value| d["netns_name"].as_str().is_some_and(|n| n.ends_with(&came));
    assert!(devices.iter().any(|d| ours(d) && d["name"] == "lo"), "{came} {devices:?}");
    assert!(
        info["records"].as_object().expect("records").values().filter_map(Value::as_u64).sum::<u64>() > 100
    );
}

/// What the recorder gives up its command keeps: one that takes another user's rights (sudo, ping) works as without.
#[test]
fn the_command_keeps_its_rights() {
    let Some(p) = Place::new("rights") else { return };
    let rights = "grep -E '^(Cap|NoNewPrivs)' /proc/self/status";
    let here = Command::new("sh").args(["-c", rights]).output().expect("sh runs");
    let (file, out) = (p.path("x.kbl"), p.path("rights"));
    let recorded = kpat(&[
        "record",
        "--mechanism",
        "tracepoint",
        "-o",
        &file,
        "--",
        "sh",
        "-c",
        &format!("sleep 0.3; {rights} > {out}"),
    ]);
    assert!(recorded.status.success(), "{}", words(&recorded));
    assert_eq!(std::fs::read_to_string(&out).expect("its words"), String::from_utf8_lossy(&here.stdout));
}

/// The unit's capabilities are what a recording with everything takes: as root with no other, nothing is lacking.
#[test]
fn the_unit_has_what_recording_takes() {
    let Some(p) = Place::new("unit") else { return };
    let pinged = Pinged::new(&p);
    let unit = String::from_utf8(kpat(&["collect", "service", "--systemd"]).stdout).expect("text");
    let caps = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).expect("a line");
    let caps = caps.split(' ').map(|c| format!("+{}", c.trim_start_matches("CAP_").to_lowercase()));
    let all: Vec<String> = caps.collect();
    let record = |caps: &str, name: &str| {
        let sniffed = format!("{}:lo", pinged.0);
        let mut c = Command::new("setpriv");
        c.arg(format!("--bounding-set=-all,{caps}")).args([
            KPAT,
            "record",
            "-o",
            &p.path(name),
            "--netns",
            &pinged.0,
        ]);
        c.args([
            "--sniff",
            &sniffed,
            "--rotate-time",
            "1h",
            "--",
            "sh",
            "-c",
            &format!("{}; sleep 0.3", pinged.script(2000)),
        ]);
        c.output().expect("setpriv runs")
    };
    let out = record(&all.join(","), "x.kbl");
    let reported = words(&out);
    assert!(
        out.status.success() && !reported.contains("without CAP_") && !reported.contains("no `kpat ctl`"),
        "{reported}"
    );
    assert!(reported.contains("nothing was lost") && reported.contains("4,000 frames"), "{reported}");
    assert!(reported.contains("probe hits, "), "{reported}");
    assert!(all.len() < 9, "{all:?}");
}

/// As few descriptors as a recording takes at all: namespaces for which none is left are counted, and the recording works.
#[test]
fn namespaces_beyond_the_descriptors_are_counted() {
    const MANY: usize = 12;
    let Some(p) = Place::new("few") else { return };
    let pinged = Pinged::new(&p);
    let names: Vec<String> = (0..MANY).map(|n| format!("{}-{n}", p.name)).collect();
    assert!(names.iter().all(|n| ip(&format!("netns add {n}"))));
    let file = p.path("x.kbl");
    let ping = pinged.script(20);
    let out =
        under("ulimit -n 112", &["-o", &file, "-f", "icmp", "--rotate-time", "1h", "--", "sh", "-c", &ping]);
    assert!(names.iter().all(|n| ip(&format!("netns del {n}"))));
    assert!(out.status.success(), "{}", words(&out));
    let first = p.names().into_iter().find(|n| n.ends_with("-0001.kbl")).expect("the log");
    let info = json(&["info", &p.path(&first), "--json"]);
    let unread = info["losses"].as_array().expect("losses").iter().find(|l| l["cause"] == "namespace-unread");
    let unread = unread.and_then(|l| l["count"].as_u64()).unwrap_or(0);
    assert!(unread as usize >= MANY / 2, "{info}");
    // request and answer, out and in
    assert!(
        info["records"].as_object().expect("records").values().filter_map(Value::as_u64).sum::<u64>() >= 40
    );
}
