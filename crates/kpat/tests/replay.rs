//! `kpat app replay`: both ends of a trace over the loopback device, judged by what each says that it wrote and read.

use crate::fixture;

use fixture::Folder;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn kpat(folder: &Folder, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_kpat"))
        .args(["app", "replay", "--json"])
        .args(args)
        .current_dir(&folder.0)
        .env("XDG_CONFIG_HOME", &folder.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The other end, and where it listens, which it says when it does.
fn served(folder: &Folder, args: &[&str]) -> (Child, String) {
    let mut child = kpat(folder, &[&["--serve", "127.0.0.1:0"], args].concat());
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let place =
        line.trim().strip_prefix("kpat: listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
    (child, place)
}

fn ended(child: Child) -> (i32, Value, String) {
    let done = child.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&done.stderr).into_owned();
    let value = serde_json::from_slice(&done.stdout).unwrap_or(Value::Null);
    (done.status.code().unwrap_or(-1), value, words)
}

/// Two TCP connections, in the second of which the server speaks first; one of datagrams, one of them empty. 60 ms.
fn trace(folder: &Folder) {
    let mut lines = vec![
        r#"{"kpat_app_trace":1,"time_unit":"ns","size_unit":"bytes","clock":"boot","layer":"application","source":{"log":"x","host":"h","kernel":"k","writer":"w","started_wall_ns":0},"events_lost":0}"#
            .to_owned(),
        r#"{"connection":1,"at":0,"proto":"tcp","ip":4,"a":{"port":40000,"seen":"written"},"b":{"port":80,"seen":"written"}}"#.into(),
        r#"{"c":1,"s":"a","t":0,"n":300}"#.into(),
        r#"{"connection":2,"at":5000000,"proto":"tcp","ip":4,"a":{"port":40001,"seen":"written"},"b":{"port":80,"seen":"written"}}"#.into(),
        r#"{"c":2,"s":"b","t":0,"n":40}"#.into(),
        r#"{"c":2,"s":"a","t":9000000,"n":2000000,"r":40,"w":3000000}"#.into(),
        r#"{"connection":3,"at":15000000,"proto":"udp","ip":4,"a":{"port":40002,"seen":"written"},"b":{"port":53,"seen":"written"}}"#.into(),
        r#"{"c":3,"s":"a","t":0,"n":0}"#.into(),
        r#"{"c":3,"s":"a","t":1000000,"n":1200}"#.into(),
        r#"{"c":3,"s":"b","t":2000000,"n":700,"r":1200,"w":500000}"#.into(),
        r#"{"c":1,"s":"b","t":20000000,"n":70000,"r":300,"w":10000000}"#.into(),
        r#"{"c":1,"s":"a","t":60000000,"n":1,"r":70000,"w":30000000}"#.into(),
    ];
    let bytes = 300 + 40 + 2_000_000 + 1200 + 700 + 70_000 + 1;
    lines.push(format!(r#"{{"end":{{"connections":3,"writes":8,"bytes":{bytes},"lost":0}}}}"#));
    std::fs::write(folder.0.join("t"), lines.join("\n") + "\n").unwrap();
}

#[test]
fn both_ends_write_what_the_trace_says_by_the_clock_and_by_what_was_read() {
    let folder = Folder::new("replay-both");
    trace(&folder);
    for how in [&[][..], &["--closed"], &["--scale", "0.5"]] {
        let (server, place) = served(&folder, &[&["t"], how].concat());
        let began = Instant::now();
        let (status, a, words) = ended(kpat(&folder, &[&["t", "--to", &place], how].concat()));
        let took = began.elapsed();
        assert_eq!(status, 0, "{how:?}: {words} {a}");
        let (status, b, words) = ended(server);
        assert_eq!(status, 0, "{how:?}: {words} {b}");
        assert_eq!((&a["writes"], &a["bytes"]), (&5.into(), &2_001_501.into()), "{how:?}");
        assert_eq!((&b["writes"], &b["bytes"]), (&3.into(), &70_740.into()), "{how:?}");
        assert_eq!(
            (&a["read_bytes"], &b["read_bytes"]),
            (&b["bytes"], &a["bytes"]),
            "each read what the other wrote"
        );
        assert_eq!(b["received"]["datagrams"], 2);
        // think times alone are 43 ms of connection 1
        let least = if how.contains(&"0.5") { 21 } else { 40 };
        assert!(took >= Duration::from_millis(least), "{how:?}: {took:?}");
        let wrote = a["wrote_for_ns"].as_u64().unwrap();
        assert!(wrote >= least * 1_000_000, "{how:?}: {wrote}");
        let late = |v: &Value| v["late_ns"]["median"].as_i64().unwrap();
        assert!((0..50_000_000).contains(&late(&a)) && (0..50_000_000).contains(&late(&b)), "{a} {b}");
    }
}

#[test]
fn a_sink_reads_and_a_choice_is_played() {
    let folder = Folder::new("replay-sink");
    trace(&folder);
    let (server, place) = served(&folder, &["--connections", "1"]);
    let (status, a, words) = ended(kpat(&folder, &["t", "--to", &place, "--connection", "2"]));
    assert_eq!((status, &a["bytes"]), (0, &2_000_000.into()), "{words}");
    let (status, b, _) = ended(server);
    assert_eq!((status, &b["received"]["bytes"]), (0, &2_000_000.into()));
    for (args, code, word) in [
        (&["t", "--to", &place[..]][..], 1, "cannot connect to"),
        (&["t", "--to", &place[..], "--connection", "4"], 2, "no connection 4"),
        (&["t"], 2, "--to"),
        (&["none", "--to", "127.0.0.1:1"], 1, "none"),
        (&["t", "--to", "127.0.0.1:1", "--scale=-1"], 2, "from 0 on"),
    ] {
        let (status, _, words) = ended(kpat(&folder, args));
        assert_eq!(status, code, "{args:?}: {words}");
        assert!(words.contains(word), "{args:?}: {words}");
    }
    std::fs::write(folder.0.join("v2"), "{\"kpat_app_trace\":2}\n").unwrap();
    let (status, _, words) = ended(kpat(&folder, &["v2", "--to", "127.0.0.1:1"]));
    assert!(status == 1 && words.contains("version 2"), "{words}");
}

/// An hour's trace is left after a moment: the report says how far it came.
#[test]
fn a_signal_ends_it_with_a_report() {
    let folder = Folder::new("replay-signal");
    trace(&folder);
    let text = std::fs::read_to_string(folder.0.join("t")).unwrap();
    std::fs::write(folder.0.join("t"), text.replace("\"t\":60000000,", "\"t\":3600000000000,")).unwrap();
    let (server, place) = served(&folder, &["t"]);
    let player = kpat(&folder, &["t", "--to", &place]);
    // a thread for a connection, one for the signals: it plays
    let deadline = Instant::now() + Duration::from_secs(10);
    let status = format!("/proc/{}/task", player.id());
    while std::fs::read_dir(&status).unwrap().count() < 3 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let began = Instant::now();
    for child in [&player, &server] {
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    let (status, a, words) = ended(player);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!((status, &a["planned_writes"]), (1, &5.into()), "{words} {a}");
    assert!(a["writes"].as_u64().unwrap() < 5 && words.contains("of 5 writes"), "{words} {a}");
    let (_, b, words) = ended(server);
    assert!(began.elapsed() < Duration::from_secs(10) && b["writes"].is_u64(), "{words} {b}");
}

#[test]
fn only_who_shows_the_secret_is_read_and_answered() {
    let folder = Folder::new("replay-secret");
    trace(&folder);
    let (server, place) = served(&folder, &["t"]);
    // Somebody who only knows the port: a connection is closed at once, and no datagram is answered.
    let mut tcp = std::net::TcpStream::connect(&place).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    std::io::Write::write_all(&mut tcp, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(std::io::Read::read(&mut tcp, &mut [0; 9]).unwrap_or(0), 0);
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(&[0; 1200], &place).unwrap();
    // With another secret, and with a file that others may read.
    std::fs::write(folder.0.join("other"), "ab".repeat(32)).unwrap();
    for (mode, words) in [(0o644, "others may read it"), (0o600, "has another secret than other")] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(folder.0.join("other"), mode).unwrap();
        let (status, _, said) = ended(kpat(&folder, &["t", "--to", &place, "--secret", "other"]));
        assert!(status == 1 && said.contains(words), "{status} {said}");
    }
    let (status, a, words) = ended(kpat(&folder, &["t", "--to", &place]));
    assert_eq!(status, 0, "{words} {a}");
    let (status, b, _) = ended(server);
    assert_eq!((status, &b["received"]["strangers"]), (0, &3.into()), "{b}");
    assert_eq!(a["read_bytes"], b["bytes"]);
    udp.set_nonblocking(true).unwrap();
    assert!(udp.recv(&mut [0; 9]).is_err());
    // An end that asks nobody.
    let (server, place) = served(&folder, &["t", "--anyone"]);
    let (status, _, words) = ended(kpat(&folder, &["t", "--to", &place, "--anyone"]));
    assert_eq!((status, ended(server).0), (0, 0), "{words}");
}
