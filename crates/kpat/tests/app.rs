//! `kpat app` over a log whose sockets are known: numbers over time, the picture and the page.

use crate::sockets;

use serde_json::Value;
use sockets::Log;
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
