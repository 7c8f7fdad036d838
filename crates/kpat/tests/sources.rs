//! Packets and applications in one recording, as they are in a recording of each. Truth is what ping counts. Needs root.

#[allow(dead_code, reason = "other tests use other parts of it")]
mod place;

use place::{Place, ip, json, kpat, until, words};
use serde_json::Value;
use std::process::{Child, Command, Stdio};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

/// Ended whatever happens.
struct Recorder(Child);

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(p: &Place, name: &str, more: &[&str]) -> Recorder {
    let (file, ready) = (p.path(&format!("{name}.kbl")), p.path(&format!("{name}.ready")));
    let mut c = Command::new(KPAT);
    c.args(["record", "--mechanism", "tracepoint", "--netns", &p.name, "-f", "icmp", "-o", &file]);
    let r = Recorder(
        c.args(["--ready-file", &ready]).args(more).stderr(Stdio::null()).spawn().expect("kpat runs"),
    );
    until("ready", || std::fs::metadata(&ready).is_ok());
    r
}

fn ping(p: &Place, count: usize) {
    let count = count.to_string();
    let args = ["netns", "exec", &p.name, "ping", "-qc", &count, "-i", "0.01", "127.0.0.1"];
    let out = Command::new("ip").args(args).output().expect("ping runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        text.contains(&format!("{count} packets transmitted, {count} received")),
        "{text}{}",
        words(&out)
    );
}

/// Packets, writes and reads of the log.
fn counts(p: &Place, name: &str) -> (u64, u64, u64) {
    let (file, log) = (p.path(&format!("{name}.kbl")), p.path(&format!("{name}.kpat")));
    let out = kpat(&["integrate", &file, "-o", &log]);
    assert!(out.status.success(), "{}", words(&out));
    let info = json(&["info", &log, "--json"]);
    // What others do may be handled without programs.
    assert!(info["losses"].as_array().expect("losses").iter().all(|l| l["cause"] == "not-run"), "{info}");
    let sum = |what: &str| {
        if info["rows"]["socket"] == 0 {
            return 0;
        }
        let sockets = json(&["app", &log, "--limit", "0", "--json"]);
        let all = sockets["sockets"].as_array().cloned().unwrap_or_default();
        // ping also asks when there is nothing yet.
        let of = |c: &Value| {
            let errors = c["errors_by_errno"].as_object().into_iter().flatten();
            Some(c["events"].as_u64()? - errors.filter_map(|(_, n)| n.as_u64()).sum::<u64>())
        };
        all.iter().filter_map(|s| of(&s["crossings"][what])).sum::<u64>()
    };
    let packets = info["rows"]["packet"].as_u64().expect("a number");
    (packets, sum("send"), sum("recv"))
}

#[test]
fn one_recording_has_both() {
    let Some(p) = Place::new("sources") else { return };
    assert!(ip(&format!("netns add {}", p.name)) && ip(&format!("-n {} link set lo up", p.name)));
    let both = start(&p, "both", &["-p", "path,app"]);
    let (packets, app) = (start(&p, "packets", &["-p", "path"]), start(&p, "app", &["-p", "app"]));
    ping(&p, 20);

    // What is asked of a recording is done by all of its sources.
    let pid = both.0.id().to_string();
    let ctl = |words: &[&str]| {
        let out = kpat(&[&["ctl"], words, &["--pid", &pid]].concat());
        assert!(out.status.success(), "{words:?} {}", place::words(&out));
        String::from_utf8_lossy(&out.stdout).into_owned() + &place::words(&out)
    };
    let status = |key: &str| json(&["ctl", "status", "--pid", &pid, "--json"])[key].clone();
    let attached = status("points_attached");
    ctl(&["pause"]);
    // Names of threads are followed over a pause; they are on no packet's way.
    assert!(status("points_attached").as_u64() < attached.as_u64().map(|n| n / 2), "{attached}");
    ping(&p, 7);
    ctl(&["resume"]);
    assert_eq!(status("points_attached"), attached);
    ping(&p, 5);
    assert!(ctl(&["off", "recv", "net:net_dev_queue"]).contains("2 functions switched off"));
    ping(&p, 3);
    for r in [both, packets, app] {
        // SAFETY: a signal to a process that this test started.
        unsafe { libc::kill(r.0.id() as libc::pid_t, libc::SIGINT) };
        let mut r = r;
        assert!(r.0.wait().expect("ended").success());
    }
    let _ = ip(&format!("netns del {}", p.name));

    // A request and its answer are two packets.
    let (alone, (_, writes, reads)) = (counts(&p, "packets").0, counts(&p, "app"));
    assert_eq!((alone, writes, reads), (2 * 35, 35, 35));
    assert_eq!(counts(&p, "both"), (2 * 28, 28, 25));
    let sources = |name: &str| -> Vec<Value> {
        let info = json(&["info", &p.path(name), "--json"]);
        info["recording"]["sources"].as_array().expect("sources").clone()
    };
    let names = |name: &str| sources(name).iter().map(|s| s["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names("both.kpat"), ["packets", "applications"]);
    // Crossings of applications are no functions: what is said of the mechanism of packets is said of both logs.
    let compared = kpat(&["time", &p.path("both.kpat"), "--compare", &p.path("packets.kpat")]);
    assert!(compared.status.success(), "{}", place::words(&compared));
    let report = |name: &str| json(&["phases", &p.path(name), "--json"])["points_only"].clone();
    assert_eq!(report("both.kpat"), report("packets.kpat"));
}
