//! `kpat app` over a log whose sockets are known: numbers over time, the picture and the page.

use crate::sockets;

use kpat_store::tables::{AppEventRow, SocketRow, TcpStateRow};
use serde_json::Value;
use sockets::{Log, START};
use std::path::PathBuf;
use std::process::Command;

fn log(name: &str) -> Log {
    sockets::log(name, &sockets::sockets(), &sockets::events(), &sockets::states())
}

/// Status, output, words.
fn kpat(log: &Log, args: &[&str]) -> (i32, String, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_kpat")).arg("app").arg(&log.0).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (run.status.code().unwrap(), text(&run.stdout), text(&run.stderr))
}

#[test]
fn a_socket_over_time() {
    let log = log("series");
    let (code, out, _) = kpat(&log, &["--socket", "1", "--series", "--bins", "10", "--json"]);
    assert_eq!(code, 0);
    let v: Value = serde_json::from_str(&out).unwrap();
    let ints = |at: &str| -> Vec<i64> {
        v.pointer(at).unwrap().as_array().unwrap().iter().map(|n| n.as_i64().unwrap_or(-1)).collect()
    };
    assert_eq!(ints("/bin_from_ns"), (0..10).map(|i| i * 100).collect::<Vec<_>>());
    assert_eq!(ints("/crossings/send/bytes"), [1500, 1500, 1500, 1500, 0, 1500, 0, 1500, 1500, 1500]);
    assert_eq!(ints("/tcp/state/cwnd/last"), [10, 40, 40, 20, 20, 20, 22, 22, 23, 23]);
    assert_eq!(ints("/tcp/state/ssthresh/low"), [-1, -1, -1, 20, 20, 20, 20, 20, 20, 20]);
    assert_eq!(ints("/tcp/held_back_ns/receive window"), [0, 0, 0, 0, 0, 0, 0, 100, 0, 0]);
    assert_eq!(ints("/marks/taken for lost"), [0, 0, 0, 3, 0, 0, 0, 0, 0, 0]);

    let (_, text, words) = kpat(&log, &["--socket", "1", "--series", "--bins", "10"]);
    let row = |n: usize| text.lines().nth(n + 1).unwrap().to_owned();
    assert!(row(3).contains("2 frames sent again, 3 taken for lost"), "{text}");
    assert!(row(5).contains("events are missing"), "{text}");
    assert!(row(7).contains("receive window") && row(7).contains("zero window"), "{text}");
    assert!(words.contains("since the log's start") && words.contains("11 events are missing"), "{words}");

    let (code, _, words) = kpat(&log, &["--socket", "9", "--series"]);
    assert_eq!(code, 2);
    assert!(words.contains("no socket 9"), "{words}");
    assert_eq!(kpat(&log, &["--bins", "5"]).0, 2, "of what?");
    assert_eq!(kpat(&log, &["--series", "--bins", "0"]).0, 2);
}

#[test]
fn connections_need_both_ends() {
    let log = log("ends");
    let (code, out, words) = kpat(&log, &["--connections"]);
    assert_eq!((code, out.as_str()), (0, ""), "{words}");
    assert!(words.contains("no connection has both its ends here"), "{words}");
    assert!(words.contains("events are missing"), "{words}");
    assert_eq!(kpat(&log, &["--connections", "--socket", "9"]).0, 2);
    assert_eq!(kpat(&log, &["--connections", "--series"]).0, 2);
    let (_, out, _) = kpat(&log, &["--connections", "--json"]);
    let v: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&v["total"], v["connections"].as_array().map(Vec::len)), (&Value::from(0), Some(0)));
}

/// Opened and closed in order.
pub fn well_formed(markup: &str) {
    let mut open = Vec::new();
    for tag in markup.split('<').skip(1).map(|t| t.split('>').next().unwrap()) {
        if tag.starts_with(['?', '!']) || tag.ends_with('/') {
            continue;
        }
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_picture_and_a_page_that_need_nothing_else() {
    let log = log("report");
    let file = |name: &str| -> PathBuf { log.0.join(name) };
    let (svg, html) = (file("p.svg"), file("p.html"));
    let paths = [svg.to_str().unwrap(), html.to_str().unwrap()];
    let (code, _, words) = kpat(&log, &["--svg", paths[0], "--html", paths[1]]);
    assert_eq!(code, 0, "{words}");
    assert!(words.contains("wrote ") && words.contains("p.html"), "{words}");
    let one = file("one.svg");
    assert_eq!(kpat(&log, &["--socket", "1", "--svg", one.to_str().unwrap(), "-q"]).0, 0);
    let read = |p: &PathBuf| std::fs::read_to_string(p).unwrap();
    for text in [read(&svg), read(&html), read(&one)] {
        // Nothing from elsewhere, and a name is no markup and moves no terminal.
        assert!(!text.replace("http://www.w3.org/2000/svg", "").contains("://"), "something from elsewhere");
        assert!(!text.contains("<script") && !text.contains("<b>writer") && !text.contains('\u{1b}'));
    }
    well_formed(&read(&svg));
    let one = read(&one);
    well_formed(&one);
    assert!(one.contains("&lt;b&gt;writer"));
    for words in [
        "Application",
        "Network",
        "Sizes",
        "Window",
        "Round trip",
        "Buffers",
        "Held back by",
        "zero window",
        "failed call",
    ] {
        assert!(one.contains(&format!(">{words}<")), "{words}");
    }
    assert!(one.contains("10 events are missing") && !read(&svg).contains("Round trip"));
    // Eight writes, each of its own bin: eight bars; the two that failed have none.
    let bars = one.split("style=\"fill:var(--written)\" d=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(bars.matches('M').count(), 8);

    // Their sizes stand in a lane of their own: eight of writes, eight of packets.
    let sizes = one.split("class=\"range\"").skip(1).map(|p| p.split(" d=\"").nth(1).unwrap());
    let ranges: Vec<usize> = sizes.map(|d| d.split('"').next().unwrap().matches('M').count()).collect();
    assert_eq!(ranges, [8, 8]);

    // A piece of it: two writes and the packets that they became.
    let part = file("part.svg");
    let args =
        ["--socket", "1", "--svg", part.to_str().unwrap(), "--from", "150ns", "--until", "350ns", "-q"];
    assert_eq!(kpat(&log, &args).0, 0);
    let part = read(&part);
    let bars = part.split("style=\"fill:var(--written)\" d=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(bars.matches('M').count(), 2);
    for wrong in [&["--from", "1s"][..], &["--series", "--from", "2s", "--until", "1s"]] {
        assert_eq!(kpat(&log, wrong).0, 2, "{wrong:?}");
    }

    let page = read(&html);
    assert!(page.contains("id=\"s1\"") && page.contains("href=\"#s2\""));
    assert!(page.contains("11 events are missing"));
    assert!(page.contains("congestion window 54.9 %"), "{page}");
    assert_eq!(page.matches("<svg class=\"kpat app\"").count(), 3, "all in sum, and each");
    assert_eq!(kpat(&log, &["--html", "/no/such/folder/p.html"]).0, 1);
}

#[test]
fn a_time_without_anything_is_refused() {
    let log = log("behind");
    for (args, words) in [
        (&["--series", "--from", "2us"][..], "behind the end of the log (1.000 µs after"),
        (&["--series", "--socket", "2", "--from", "999ns"], "behind the end of socket 2 (950 ns after"),
        (&["--series", "--socket", "2", "--until", "20ns"], "before the beginning of socket 2 (50 ns after"),
        (&["--svg", "-", "--from", "1h"], "is behind the end"),
    ] {
        let (code, out, said) = kpat(&log, args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let (code, out, _) = kpat(&log, &["--series", "--from", "990ns", "--until", "2us", "--bins", "1"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
}

/// Connections of which each went otherwise, and two to one server that were made.
fn attempts(name: &str) -> Log {
    let s = |socket_id: i64, peer: &str, peer_port, error, until| SocketRow {
        socket_id,
        first_ns: START,
        last_ns: START + until,
        proto: 6,
        version: 4,
        local_addr: Some("10.0.0.1".into()),
        local_port: 40_000 + socket_id as i32,
        peer_addr: Some(peer.into()),
        peer_port,
        pid: Some(77),
        error,
        ..SocketRow::default()
    };
    let sockets = [
        SocketRow { sent_bytes: 10, ..s(1, "10.0.0.2", 80, None, 500) },
        SocketRow { received_bytes: 7, ..s(2, "10.0.0.2", 80, None, 900) },
        s(3, "10.0.0.2", 81, Some(111), 30),
        s(4, "10.0.0.3", 80, Some(113), 400),
        s(5, "10.0.0.4", 80, None, 250),
        s(6, "10.0.0.4", 80, None, 20),
        SocketRow { local_port: 0, ..s(7, "10.0.0.4", 80, None, 5) },
        SocketRow { peer_addr: None, peer_port: 0, ..s(8, "", 0, None, 5) },
    ];
    let state = |at, socket_id, state, srtt_ns| TcpStateRow {
        at_ns: START + at,
        socket_id,
        state,
        srtt_ns,
        write_seq: 1,
        ..TcpStateRow::default()
    };
    let mut states: Vec<TcpStateRow> = [(1, 40), (2, 90)]
        .into_iter()
        .flat_map(|(id, at)| [state(at, id, 1, at), state(20, id, 2, 0)])
        .chain((3..7).map(|id| state(20, id, 2, 0)))
        .collect();
    states.sort_by_key(|s| s.at_ns);
    let event = |at, socket_id, crossing: kpat_model::Crossing, size_bytes| AppEventRow {
        at_ns: START + at,
        socket_id,
        crossing: crossing as i32,
        size_bytes,
        segments: 1,
        ..AppEventRow::default()
    };
    use kpat_model::Crossing::{Recv, Retransmit, Send};
    let events = [
        event(95, 1, Send, 10),
        event(95, 2, Recv, 7),
        event(96, 2, Recv, -11),
        event(210, 5, Retransmit, 0),
    ];
    sockets::log(name, &sockets, &events, &states)
}

#[test]
fn what_was_not_connected() {
    let log = attempts("attempts");
    let (_, out, words) = kpat(&log, &["--tsv", "--columns", "socket_id,opening.result,opening.took_ns"]);
    let mut rows: Vec<&str> = out.lines().skip(1).collect();
    rows.sort_unstable();
    let want = [
        "1\tconnected\t40",
        "2\tconnected\t90",
        "3\trefused\t30",
        "4\tunreachable\t400",
        "5\tclosed\t250",
        "6\twaiting\t20",
        "7\tno-port\t5",
        "8\t\t",
    ];
    assert_eq!(rows, want, "{words}");
    let (_, out, _) = kpat(&log, &["--columns", "socket,not connected"]);
    for (id, words) in [("3", "refused, 30 ns"), ("6", "no answer yet, 20 ns"), ("5", "closed, 250 ns")] {
        assert!(out.lines().any(|l| l.trim().starts_with(id) && l.contains(words)), "{out}");
    }
    let (_, out, _) = kpat(&log, &["--socket", "5"]);
    assert!(out.contains("closed after 250 ns: by its process"), "{out}");
    assert!(kpat(&log, &["--socket", "1"]).1.contains("connected after 40 ns"));
}

#[test]
fn sockets_add_up_by_what_they_have_in_common() {
    let log = attempts("by");
    let tsv = |by: &str, columns: &str| {
        let (code, out, words) = kpat(&log, &["--by", by, "--tsv", "--columns", columns, "--no-header"]);
        assert_eq!(code, 0, "{words}");
        out
    };
    let columns = "name,sockets,connects,results.connected,results.refused,results.closed,sent_bytes,received_bytes,connect_ns.max,connect_ns.worst_socket_id";
    let peers = "10.0.0.2\t3\t3\t2\t1\t0\t10\t7\t90\t2\n10.0.0.4\t3\t3\t0\t0\t1\t0\t0\t0\t\n\t1\t0\t0\t0\t0\t0\t0\t0\t\n10.0.0.3\t1\t1\t0\t0\t0\t0\t0\t0\t\n";
    assert_eq!(tsv("peer", columns), peers);
    let services = tsv("service", "name,sockets");
    assert!(services.starts_with("TCP 10.0.0.4:80\t3\nTCP 10.0.0.2:80\t2\n"), "{services}");
    assert!(services.contains("TCP 10.0.0.1:40008\t1"), "a listener is its own service: {services}");
    let columns =
        "sockets,writes,reads,failed_calls,frames_again,round_trip_ns.median,round_trip_ns.max,lasted_ns.max";
    assert_eq!(tsv("process", columns), "8\t1\t2\t1\t1\t40\t90\t900\n");
    // What is added up is what the list has.
    let sum = |text: &str, field: usize| -> i64 {
        text.lines().filter_map(|l| l.split('\t').nth(field)?.parse::<i64>().ok()).sum()
    };
    let (_, list, _) =
        kpat(&log, &["--tsv", "--columns", "sent_bytes,received_bytes", "--no-header", "-n", "0"]);
    for by in ["process", "peer", "service", "cgroup", "user"] {
        let groups = tsv(by, "sent_bytes,received_bytes");
        assert_eq!([0, 1].map(|i| sum(&groups, i)), [0, 1].map(|i| sum(&list, i)), "{by}");
    }
    let (_, out, words) = kpat(&log, &["--by", "peer", "-n", "2"]);
    assert!(out.contains("1 refused") && out.contains("1 closed, 1 no port, 1 waiting"), "{out}");
    assert!(words.contains("2 of 4 shown"), "{words}");
    let (_, out, _) = kpat(&log, &["--by", "peer", "--json"]);
    let v: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&v["by"], &v["sockets"], &v["total"]), (&"peer".into(), &8.into(), &4.into()));
    assert_eq!(v["groups"][0]["results"]["connected"], 2);
    assert_eq!(kpat(&log, &["--by", "peer", "--series"]).0, 2);
}
