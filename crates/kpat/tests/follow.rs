//! Packets of a recording while it goes on: `record --print` and `packets --follow` list each packet that ping sent and got, once. Needs root;
//! the traffic is in a namespace of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const KPAT: &str = env!("CARGO_BIN_EXE_kpat");

struct World {
    netns: String,
    dir: PathBuf,
}

impl World {
    fn new(name: &str) -> Option<World> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("SKIPPED: recording needs root");
            return None;
        }
        let netns = format!("follow-{name}-{}", std::process::id());
        let world = World { dir: std::env::temp_dir().join(&netns), netns };
        std::fs::create_dir_all(&world.dir).unwrap();
        for words in [&["netns", "add", &world.netns][..], &["-n", &world.netns, "link", "set", "lo", "up"]] {
            assert!(Command::new("ip").args(words).status().unwrap().success());
        }
        Some(world)
    }

    fn record(&self, command: &[&str]) -> Command {
        let mut record = Command::new(KPAT);
        record.args([
            "record",
            "-o",
            "x.kbl",
            "--force",
            "--print",
            "-f",
            "icmp",
            "--mechanism",
            "tracepoint",
        ]);
        record.args(["--netns", &self.netns, "--", "ip", "netns", "exec", &self.netns]).args(command);
        record.current_dir(&self.dir);
        record
    }

    fn kpat(&self, args: &[&str]) -> Output {
        let done = Command::new(KPAT).args(args).current_dir(&self.dir).output().unwrap();
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        done
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.netns]).status();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// How often each echo request and reply is listed.
fn echoes(text: &str, pings: usize) -> Vec<usize> {
    let of = |kind: &str| {
        (1..=pings)
            .map(|seq| {
                let end = format!(" seq {seq}");
                text.lines().filter(|l| l.contains(kind) && l.split("  ").any(|c| c.ends_with(&end))).count()
            })
            .collect::<Vec<_>>()
    };
    [of("echo request"), of("echo reply")].concat()
}

#[test]
fn each_packet_is_printed_once_while_it_is_recorded_and_after() {
    let Some(w) = World::new("print") else { return };
    let done = w.record(&["ping", "-q", "-c", "30", "-i", "0.1", "127.0.0.1"]).output().unwrap();
    let (text, words) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let whole = words.contains("nothing was lost") || words.contains("by not-run"); // what this kernel leaves out
    assert!(done.status.success() && whole, "{words}");
    assert_eq!(echoes(&text, 30), [1; 60], "{text}");
    // A recorder that has no CPU writes late; each packet is listed all the same.
    words.lines().filter(|l| l.contains("were found after later packets")).for_each(|l| eprintln!("{l}"));
    // Of a recording that has ended all at once, and the same as the integrated log has.
    let followed = w.kpat(&["packets", "--follow", "x.kbl", "--tsv"]).stdout;
    w.kpat(&["integrate", "x.kbl"]);
    let listed = w.kpat(&["packets", "x.kpat", "--limit", "0", "--tsv"]).stdout;
    assert_eq!(String::from_utf8_lossy(&followed), String::from_utf8_lossy(&listed));
    assert_eq!(followed.iter().filter(|b| **b == b'\n').count(), 61);
    let lines = String::from_utf8(w.kpat(&["packets", "--follow", "x.kbl", "--json"]).stdout).unwrap();
    let ids =
        lines.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["packet_id"].clone());
    assert_eq!(ids.map(|id| id.as_i64().unwrap()).collect::<Vec<_>>(), (1..=60).collect::<Vec<_>>());
    let refused =
        Command::new(KPAT).args(["packets", "--follow", "x.kpat"]).current_dir(&w.dir).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

/// Runs `work` in a thread of this process that is in the namespace.
fn inside<T: Send + 'static>(
    netns: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    use std::os::fd::AsRawFd;
    let place = std::fs::File::open(format!("/run/netns/{netns}")).unwrap();
    std::thread::spawn(move || {
        // SAFETY: an open file of a namespace; only this thread goes there.
        assert_eq!(unsafe { libc::setns(place.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
        work()
    })
}

/// Column `name` of tab separated lines, by the line of heads.
fn column(head: &str, line: &str, name: &str) -> String {
    let at = head.split('\t').position(|h| h == name).unwrap();
    line.split('\t').nth(at).unwrap().to_owned()
}

/// A sender of our own numbers its packets by their port, and sends the next one only when the line of the last was read: a packet
/// after which nothing comes is printed, too. What it waited is printed here.
#[test]
fn a_packet_is_printed_though_none_follows_it_and_no_later_for_a_longer_log() {
    use std::io::{BufRead, BufReader};
    let Some(w) = World::new("alone") else { return };
    let mut record = Command::new(KPAT);
    record.args(["record", "-o", "x.kbl", "-f", "udp", "--mechanism", "tracepoint", "--ready-file", "ready"]);
    record.args(["--netns", &w.netns, "--sniff", &format!("{}:lo", w.netns)]).current_dir(&w.dir);
    let mut recorder = record.stderr(Stdio::null()).spawn().unwrap();
    wait_for("it does not record", || w.dir.join("ready").exists().then_some(()));
    let mut follower = Command::new(KPAT)
        .args(["packets", "--follow", "x.kbl", "--tsv", "udp"])
        .current_dir(&w.dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (give, lines) = std::sync::mpsc::channel();
    let out = BufReader::new(follower.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        for line in out.lines() {
            let _ = give.send((Instant::now(), line.unwrap()));
        }
    });
    const ALONE: u16 = 12;
    const MANY: u16 = 4000;
    let sent = inside(&w.netns, move || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut head = String::new();
        let mut read = Vec::new();
        let mut waited = Vec::new();
        let mut alone = |read: &mut Vec<u16>, port: u16| {
            let began = Instant::now();
            // A socket that nobody has bound answers by ICMP, which is not of the filter.
            let _ = socket.send_to(b"alone", ("127.0.0.1", port));
            while read.last() != Some(&port) {
                let (at, line) =
                    lines.recv_timeout(Duration::from_secs(120)).expect("the line of a lone packet");
                if head.is_empty() {
                    head = line;
                    continue;
                }
                read.push(column(&head, &line, "dst_port").parse().unwrap());
                waited.push(at - began);
            }
            waited.pop().unwrap()
        };
        let first: Vec<Duration> = (0..ALONE).map(|i| alone(&mut read, 20_000 + i)).collect();
        for i in 0..MANY {
            let _ = socket.send_to(b"many", ("127.0.0.1", 30_000 + i));
            std::thread::sleep(Duration::from_millis(1));
        }
        let last: Vec<Duration> = (0..ALONE).map(|i| alone(&mut read, 40_000 + i)).collect();
        (read, first, last)
    });
    let (mut read, first, last) = sent.join().unwrap();
    // SAFETY: a child that was not waited for keeps its number.
    unsafe { libc::kill(recorder.id() as i32, libc::SIGINT) };
    assert!(recorder.wait().unwrap().success());
    assert!(follower.wait().unwrap().success());
    reader.join().unwrap();
    for (when, mut waited) in [("at first", first), ("at last", last)] {
        waited.sort();
        eprintln!(
            "a lone packet's line, {when}: median {:?}, last {:?}",
            waited[waited.len() / 2],
            waited.last()
        );
    }
    read.sort_unstable();
    let ranges = [(20_000, ALONE), (30_000, MANY), (40_000, ALONE)];
    let all: Vec<u16> = ranges.iter().flat_map(|(from, n)| *from..from + n).collect();
    assert!(read == all, "{} lines of {} packets, not each once", read.len(), all.len());
}

fn children(of: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|p| p.parse().ok()).collect()
}

fn follows(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains("--follow"))
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn who_follows_ends_when_the_recorder_was_killed() {
    let Some(w) = World::new("gone") else { return };
    let mut record = Command::new(KPAT);
    record.args([
        "record",
        "-o",
        "x.kbl",
        "-f",
        "icmp",
        "--mechanism",
        "tracepoint",
        "--ready-file",
        "ready",
    ]);
    record.args(["--netns", &w.netns]).current_dir(&w.dir).stderr(Stdio::null());
    let mut recorder = record.spawn().unwrap();
    wait_for("it does not record", || w.dir.join("ready").exists().then_some(()));
    let mut follow = Command::new(KPAT);
    follow.args(["packets", "--follow", "x.kbl", "--tsv"]).current_dir(&w.dir);
    let follower = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ping = ["netns", "exec", &w.netns, "ping", "-q", "-c", "3", "-i", "0.2", "127.0.0.1"];
    assert!(Command::new("ip").args(ping).stdout(Stdio::null()).status().unwrap().success());
    // Both ends of each of them are in the file.
    wait_for("they are not written", || {
        let text =
            Command::new(KPAT).args(["info", "x.kbl", "--json"]).current_dir(&w.dir).output().unwrap().stdout;
        let info: serde_json::Value = serde_json::from_slice(&text).ok()?;
        (info["records"]["footprints"].as_u64()? >= 6).then_some(())
    });
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let done = follower.wait_with_output().unwrap();
    assert!(done.status.success());
    assert_eq!(
        done.stdout.iter().filter(|b| **b == b'\n').count(),
        7,
        "{}",
        String::from_utf8_lossy(&done.stdout)
    );
    assert!(String::from_utf8_lossy(&done.stderr).contains("not closed: its recorder was killed"));
}

#[test]
fn who_prints_goes_with_the_recorder() {
    let Some(w) = World::new("killed") else { return };
    let mut recorder: Child =
        w.record(&["sleep", "300"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let id = recorder.id();
    let printer = wait_for("no process prints", || children(id).into_iter().find(|p| follows(*p)));
    let sleeper = children(id).into_iter().find(|p| *p != printer);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    wait_for("it prints on", || (!follows(printer)).then_some(()));
    if let Some(pid) = sleeper {
        // SAFETY: a number of a process that this test started, through the recorder.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
}
