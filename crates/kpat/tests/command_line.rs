//! What happens when things are wrong, and how the commands end.

use crate::fixture;

use fixture::Folder;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn kpat(folder: &Folder, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kpat")).args(args).current_dir(&folder.0).output().unwrap()
}

#[test]
fn a_fault_is_one_sentence_with_a_remedy_and_a_status() {
    let folder = Folder::new("faults");
    fixture::integrated(&folder);
    fixture::recorded(&folder);
    std::fs::write(folder.0.join("empty.kbl"), b"").unwrap();
    std::fs::write(folder.0.join("w.pcap"), [0xd4, 0xc3, 0xb2, 0xa1, 0, 0]).unwrap();
    std::fs::create_dir(folder.0.join("bare")).unwrap();
    let cases: [(&[&str], i32, &str); 56] = [
        (&["packets", "nothing.kpat"], 1, "nothing.kpat: No such file"),
        (
            &["packets", "dropped", "x.kpat"],
            2,
            "there is no dropped; the log stands first: kpat packets x.kpat 'dropped'",
        ),
        (&["packets", "x.kbl"], 1, "first run: kpat integrate x.kbl"),
        (&["packets", "w.pcap"], 1, "kpat integrate X.kbl w.pcap"),
        (&["packets", "bare"], 1, "not an integrated log"),
        (&["info", "empty.kbl"], 1, "is empty"),
        (&["info", "w.pcap"], 1, "capture of the wire"),
        (&["packet", "99", "x.kpat"], 1, "no packet 99"),
        (&["packet", "abc", "x.kpat"], 2, "not the number of a packet"),
        (&["packet", "1"], 2, "give packet ID and an integrated log"),
        (&["packet", "--frame", "17", "x.kpat"], 2, "several captures (lan.pcapng, wan.pcap)"),
        (&["packet", "--frame", "lan.pcapng:18", "x.kpat"], 1, "lan.pcapng has no frame 18"),
        (&["packet", "--frame", "dmz:1", "x.kpat"], 1, "no capture `dmz`"),
        (&["function", "ip_rvc", "x.kpat"], 1, "did you mean `ip_rcv`?"),
        (&["function", "foo", "x.kpat"], 1, "no function `foo` in this log\n"),
        (&["function", "ip_*", "x.kpat"], 2, "kpat functions x.kpat 'ip_*'"),
        (&["packets", "x.kpat", "vlan"], 2, "`vlan` is not a condition; text to look for goes in quotes"),
        (&["packets", "x.kpat", "after", "25:00"], 2, "`25:00` is not a time of day"),
        (&["sql", "x.kpat", "select * from nope"], 2, "there is no table `nope`; "),
        (&["sql", "select 1", "x.kpat"], 2, "the log stands first: kpat sql x.kpat 'select 1'"),
        (&["why", "7"], 2, "give why SOCKET and an integrated log: kpat why SOCKET X.kpat"),
        (
            &["collect", "send", "http://127.0.0.1:9", "bare"],
            2,
            "the folder stands first: kpat collect send bare http://127.0.0.1:9",
        ),
        (&["sql", "x.kpat"], 2, "standard input is empty; give a query"),
        (&["record", "-w", "foo.pcap"], 2, "use -o X.kbl for the log"),
        (&["record", "-i", "lo", "tcp", "port", "80"], 2, "-f 'tcp port 80'"),
        (&["record", "--sniff", "nosuch0"], 2, "there is no interface nosuch0; there are "),
        (&["record", "--sniff", "nosuch:eth0"], 2, "--sniff nosuch:eth0: "),
        (
            &["record", "-i", "nosuch0"],
            2,
            "there is no interface nosuch0 in the namespaces to be recorded; there are ",
        ),
        (&["record", "--netns", "nosuch"], 2, "there is no network namespace nosuch; there "),
        (&["record", "--netns", "a,b"], 2, "--netns a --netns b"),
        (&["record", "-f", "tcp and and"], 2, "tcp and and"),
        (&["record", "-o", "x.kbl"], 1, "x.kbl exists; use --force to replace it"),
        (&["record", "--ring", "3M"], 2, "--ring 3.0 MiB"),
        (&["packets", "x.kpat", "tcp", "or"], 2, "a condition is missing here (character 7"),
        (&["packets", "x.kpat", "--verdict", "lost"], 2, "`lost` is no verdict"),
        (&["packets", "x.kpat", "--min-path", "10"], 2, "needs a unit"),
        (&["events", "x.kpat", "-k", "party"], 2, "there is no kind of event `party`"),
        (&["profile", "x.kpat"], 2, "record it with `kpat record -p profile`"),
        (&["profile", "x.kpat", "--by", "unit", "--flat"], 2, "'--by <WHAT>' cannot be used with '--flat'"),
        (&["profile", "x.kpat", "--function", "f", "--pid", "1"], 2, "cannot be used with"),
        (&["integrate", "x.kbl"], 1, "x.kpat exists; use --force to replace it"),
        (&["integrate", "x.kbl", "-", "-o", "z.kpat"], 2, "cannot be read from standard input"),
        (&["packets", "x.kpat", "after", "yesterday"], 2, "`yesterday` is not a time"),
        (&["packets", "x.kbl", "--follow", "--sort", "path"], 2, "--sort"),
        (&["packets", "x.kpat", "--follow"], 2, "x.kpat is an integrated log"),
        (&["integrate", "nothing.kbl"], 1, "nothing.kbl"),
        (&["integrate", "x.kpat"], 1, "is a directory"),
        (&["integrate", "x.kbl", "x.kbl", "-o", "y.kpat"], 2, "give a capture"),
        (&["frobnicate"], 2, "frobnicate"),
        (&[], 2, "Usage"),
        (&["man", "frobnicate"], 2, "is no command"),
        (&["time", "x.kpat", "--packet", "99"], 1, "no packet 99"),
        (&["time", "x.kpat", "--slower", "2us", "--faster", "1us"], 2, "no call can match"),
        (&["time", "x.kpat", "--compare", "x.kbl"], 1, "first run: kpat integrate x.kbl"),
        (&["phases", "x.kpat", "--packet", "99"], 1, "no packet 99"),
        (&["phases", "x.kpat", "--boundaries", "none.txt"], 1, "cannot read none.txt"),
    ];
    for (args, status, says) in cases {
        let done = Command::new(env!("CARGO_BIN_EXE_kpat"))
            .args(args)
            .current_dir(&folder.0)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let words = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(status), "{args:?}: {words}");
        assert!(words.contains(says), "{args:?}: {words}");
        assert!(done.stdout.is_empty(), "{args:?}");
        if words.starts_with("kpat: ") {
            assert_eq!(words.lines().count(), 1, "{args:?}: {words}");
        }
    }
}

#[test]
fn an_empty_answer_says_so() {
    let folder = Folder::new("empty");
    fixture::integrated(&folder);
    for (args, says) in [
        (["packets", "x.kpat", "arp"], "no packet matches"),
        (["functions", "x.kpat", "nothing*"], "no function matches"),
        (["events", "x.kpat", "--kind=route"], "no event matches"),
        (["time", "x.kpat", "arp"], "no packet matches"),
        (["phases", "x.kpat", "arp"], "no packet matches"),
    ] {
        let done = kpat(&folder, &args);
        assert_eq!(done.status.code(), Some(0));
        assert!(done.stdout.is_empty());
        assert!(String::from_utf8(done.stderr).unwrap().contains(says));
        let mut quiet = args.to_vec();
        quiet.push("-q");
        assert!(kpat(&folder, &quiet).stderr.is_empty());
    }
}

/// A recording without packets (of a radio, made in a guest) says what it is of, and not that a filter left nothing.
#[test]
fn a_log_without_packets_says_so() {
    let folder = Folder::new("without-packets");
    let log = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/handover/s5/record.kbl");
    assert!(kpat(&folder, &["integrate", log.to_str().unwrap(), "-o", "w.kpat", "-q"]).status.success());
    let why = "this log has no packets: it was recorded with -p wifi, which kpat handover w.kpat reads";
    for (args, status, says) in [
        (&["packets", "w.kpat"][..], 0, why),
        (&["packets", "w.kpat", "--limit", "0"], 0, why),
        (&["time", "w.kpat"], 0, why),
        (&["phases", "w.kpat"], 0, why),
        (&["functions", "w.kpat"], 0, why),
        (&["packet", "1", "w.kpat"], 2, why),
        (&["export", "w.kpat", "--to", "folded"], 0, why),
        (&["frames", "w.kpat"], 0, "integrated without a capture"),
        (&["app", "w.kpat", "--write", "1"], 2, "no application traffic"),
        (&["app", "w.kpat", "--socket", "1"], 2, "no application traffic"),
        // The log is where it should be; it is not there.
        (&["packet", "1", "x.kpat"], 1, "cannot open x.kpat"),
    ] {
        let done = kpat(&folder, args);
        let words = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(status), "{args:?}: {words}");
        assert!(words.contains(says), "{args:?}: {words}");
    }
}

/// A log that this user may not read is not called another kind of folder.
#[test]
fn a_log_that_may_not_be_read() {
    let folder = Folder::new("not-mine");
    fixture::integrated(&folder);
    let closed = folder.0.join("x.kpat");
    let mode = |bits| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(bits)).unwrap();
    };
    mode(0o700);
    let kpat = env!("CARGO_BIN_EXE_kpat");
    let asked = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", kpat, "packets"])
        .arg(&closed)
        .output();
    // Needs root, and a build folder that others may look into.
    let words = asked.map(|done| String::from_utf8(done.stderr).unwrap()).unwrap_or_default();
    if !words.starts_with("kpat: ") {
        println!("SKIPPED: cannot run kpat as another user here: {words}");
        return;
    }
    assert!(words.contains("Permission denied") && !words.contains("not an integrated log"), "{words}");
}

#[test]
fn strict_tells_of_losses() {
    let folder = Folder::new("strict");
    fixture::integrated(&folder);
    fixture::recorded(&folder);
    for (args, status) in [
        (vec!["info", "x.kbl"], 0),
        (vec!["info", "x.kbl", "--strict"], 3),
        (vec!["info", "x.kpat", "--strict"], 3),
        (vec!["packet", "1", "x.kpat", "--strict"], 0),
        (vec!["packet", "4", "x.kpat", "--strict"], 3),
    ] {
        assert_eq!(kpat(&folder, &args).status.code(), Some(status), "{args:?}");
    }
}

#[test]
fn damage_is_told_with_its_offset() {
    let folder = Folder::new("damage");
    let path = fixture::recorded(&folder);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() * 2 / 3;
    bytes[middle] ^= 0xff;
    std::fs::write(&path, &bytes).unwrap();
    let text = String::from_utf8(kpat(&folder, &["info", "x.kbl"]).stdout).unwrap();
    assert!(text.contains("damage") && text.contains("offset "), "{text}");
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let text = String::from_utf8(kpat(&folder, &["info", "x.kbl"]).stdout).unwrap();
    assert!(text.contains("not closed"), "{text}");
}

#[test]
fn a_recording_is_integrated_and_looked_up() {
    let folder = Folder::new("integrate");
    fixture::recorded(&folder);
    let done = kpat(&folder, &["integrate", "x.kbl"]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(text.contains("1 packet, 14 calls") && text.contains("1,234 ring-full on CPU 1"), "{text}");
    assert_eq!(kpat(&folder, &["integrate", "x.kbl", "--force", "--strict"]).status.code(), Some(3));
    let text = String::from_utf8(kpat(&folder, &["packet", "1", "x.kpat"]).stdout).unwrap();
    assert!(text.contains("e1000_clean_rx_irq") && text.contains("└─"), "{text}");
    let done = kpat(&folder, &["packet", "--frame", "1", "x.kpat"]);
    assert!(String::from_utf8(done.stderr).unwrap().contains("without a capture"));
}

/// By the clock on the wall: what the tables say of a packet, as `date` writes it.
#[test]
fn times_of_day() {
    let folder = Folder::new("utc");
    fixture::integrated(&folder);
    let text = |args: &[&str]| {
        let done = kpat(&folder, args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let seen = text(&["packet", "1", "x.kpat"]);
    let seen = seen.split(" UTC").next().unwrap().rsplit(' ').next().unwrap().to_owned();
    let list = text(&["packets", "x.kpat", "--utc"]);
    assert!(list.contains("time UTC") && list.contains(&seen), "{seen} in {list}");
    assert!(text(&["events", "x.kpat", "--utc"]).contains("time UTC"));
    let rows = |args: &[&str]| text(args).lines().count().saturating_sub(1);
    let all = rows(&["packets", "x.kpat"]);
    assert!(all > 1);
    assert_eq!(
        rows(&["packets", "x.kpat", "after", &seen]) + rows(&["packets", "x.kpat", "not", "after", &seen]),
        all
    );
    assert_eq!(rows(&["packets", "x.kpat", "--from", &seen]), rows(&["packets", "x.kpat", "after", &seen]));
    // The same moment where clocks are two hours ahead.
    let hour: u32 = seen[..2].parse().unwrap();
    let ahead = format!("{:02}{}+02:00", (hour + 2) % 24, &seen[2..]);
    assert_eq!(text(&["packets", "x.kpat", "after", &ahead]), text(&["packets", "x.kpat", "after", &seen]));
    assert_eq!(text(&["packets", "x.kpat", "before", "2001-01-01T00:00:00Z"]), "");
}

/// The pictures stand alone, are well formed, and a hostile name in them stays text.
#[test]
fn pictures_of_phases() {
    let folder = Folder::new("pictures");
    fixture::integrated(&folder);
    let args = ["phases", "x.kpat", "--svg", "p.svg", "--html", "p.html", "--study", "-q"];
    let done = kpat(&folder, &args);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let svg = std::fs::read_to_string(folder.0.join("p.svg")).unwrap();
    let html = std::fs::read_to_string(folder.0.join("p.html")).unwrap();
    for text in [&svg, &html] {
        assert!(text.contains("prefers-color-scheme: dark") && text.contains("e1000_xmit_frame"));
        for outside in ["src=", "href=", "@import", "url(http", "<script"] {
            assert!(!text.contains(outside), "{outside}");
        }
    }
    assert!(html.contains("Beside the router study of 2009") && html.contains("27 % or 18 %"));
    // Every element that is opened is closed, in order.
    let mut open: Vec<&str> = Vec::new();
    for tag in svg.split('<').skip(1).map(|t| t.split('>').next().unwrap()) {
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') && !tag.starts_with('?') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    // The bars of one passage fill its width.
    let first: f64 = svg
        .split("<rect class=\"p ")
        .skip(1)
        .filter(|r| r.contains("height=\"30\""))
        .take(5)
        .map(|r| r.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert!((first - 912.0).abs() < 0.1, "{first}");
    // What a phase consists of fills its track, and is what the text says, row by row.
    let widths = |part: &str| -> Vec<f64> {
        let bars = part.split("<rect class=\"part ").skip(1);
        bars.map(|r| r.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect()
    };
    let logged = kpat(&folder, &["phases", "x.kpat", "-n", "6", "--width", "0"]);
    let logged = String::from_utf8(logged.stdout).unwrap();
    let mut phases = 0;
    for part in svg.split("<rect class=\"key ").skip(1) {
        let bars = widths(part);
        let sum: f64 = bars.iter().sum();
        assert!(bars.is_empty() || (sum - 300.0).abs() < 0.02 * bars.len() as f64, "{sum}: {part}");
        phases += u32::from(!bars.is_empty());
        for name in ["driver, before a function has it", "outside of them"] {
            assert!(!part.contains(name) || logged.contains(name), "{name}");
        }
    }
    assert!(phases >= 4, "{phases}");
    assert_eq!(
        svg.matches("driver, before a function has it").count(),
        logged.matches("driver, before a function has it").count()
    );
    // The colours are the page's, light and dark.
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/src/app/app.css");
    let page = std::fs::read_to_string(page).unwrap();
    let colours = |text: &str| -> Vec<String> {
        let lines = text
            .lines()
            .filter_map(|l| Some(l[l.find("--l-driver: #")?..l.find("--l-other: #")? + 19].to_owned()));
        lines.collect()
    };
    assert_eq!(colours(&page).len(), 2);
    assert_eq!(colours(&svg), colours(&page));
    // The study's four figures.
    for n in 4..=7 {
        assert_eq!(html.matches(&format!("<h3>Figure {n}: ")).count(), 1, "{n}");
    }
    let graph = html.split("<h3>Figure 4: ").nth(1).unwrap().split("<h3>").next().unwrap();
    assert!(graph.contains("e1000_clean_rx_irq") && graph.contains("class=\"edge\""), "{graph}");
    let done = kpat(&folder, &["phases", "x.kpat", "--svg", "no/such/folder.svg"]);
    assert_eq!(done.status.code(), Some(1));
}

#[test]
fn boundaries_of_ones_own() {
    let folder = Folder::new("boundaries");
    fixture::integrated(&folder);
    let table = kpat(&folder, &["phases", "--show-boundaries"]);
    std::fs::write(folder.0.join("same.txt"), &table.stdout).unwrap();
    std::fs::write(folder.0.join("bad.txt"), "# mine\nlink-rx entry\n").unwrap();
    let plain = kpat(&folder, &["phases", "x.kpat"]).stdout;
    assert_eq!(kpat(&folder, &["phases", "x.kpat", "--boundaries", "same.txt"]).stdout, plain);
    let done = kpat(&folder, &["phases", "x.kpat", "--boundaries", "bad.txt"]);
    let words = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(words.contains("bad.txt: line 2: names no function"), "{words}");
}

#[test]
fn a_reader_that_leaves_early_is_no_fault() {
    let folder = Folder::new("pipe");
    let mut child = Command::new(env!("CARGO_BIN_EXE_kpat"))
        .args(["completion", "zsh"])
        .current_dir(&folder.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut words = String::new();
    child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert_eq!((child.wait().unwrap().code(), words.as_str()), (Some(0), ""));
}

#[test]
fn manual_pages_are_made() {
    let folder = Folder::new("shell");
    assert!(String::from_utf8(kpat(&folder, &["man", "packet"]).stdout).unwrap().contains(".TH"));
    assert!(kpat(&folder, &["man", "--all", "pages"]).status.success());
    assert!(folder.0.join("pages/kpat-packets.1").exists());
}

/// A recorded log of which a stretch was overwritten: damage is a loss, by any command and however quiet it is.
#[test]
fn damage_is_a_loss() {
    let folder = Folder::new("damage-is-a-loss");
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../integrate/tests/recorded_logs/queue-drops-points.kbl");
    let mut bytes = std::fs::read(log).unwrap();
    std::fs::write(folder.0.join("whole.kbl"), &bytes).unwrap();
    bytes[9_000..9_400].fill(0xa5);
    std::fs::write(folder.0.join("x.kbl"), bytes).unwrap();
    let status = |args: &[&str]| kpat(&folder, args).status.code();
    assert_eq!(status(&["integrate", "whole.kbl", "--strict", "-q"]), Some(0));
    assert_eq!(status(&["integrate", "x.kbl"]), Some(0));
    assert_eq!(status(&["integrate", "x.kbl", "--force", "--strict", "-q"]), Some(3));
    assert_eq!(status(&["info", "x.kbl", "--strict", "-q"]), Some(3));
    assert_eq!(status(&["info", "x.kpat", "--strict", "-q"]), Some(3));
    let out = kpat(&folder, &["info", "x.kpat", "--json"]).stdout;
    let info: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(info["losses"][0]["cause"], "damaged-bytes");
    assert!(info["losses"][0]["count"].as_u64().unwrap() >= 400);
    let ppm = |name: &str| {
        let parts = info["trust"]["parts"].as_array().unwrap();
        parts.iter().find(|p| p["part"] == name).unwrap()["ppm"].as_u64().unwrap()
    };
    assert!(ppm("file") < 990_000, "{}", info["trust"]);
    assert!(info["trust"]["ppm"].as_u64().unwrap() <= ppm("file"));
}

#[test]
fn a_list_tab_separated_has_the_fields_of_its_json() {
    let folder = Folder::new("tsv");
    fixture::integrated(&folder);
    let text = |args: &[&str]| {
        let done = kpat(&folder, args);
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    for (list, field) in [
        (&["packets", "x.kpat"][..], "packets"),
        (&["packets", "x.kpat", "--limit", "0"], "packets"),
        (&["events", "x.kpat"], "events"),
        (&["functions", "x.kpat"], "functions"),
        (&["function", "ip_forward", "x.kpat"], "calls"),
        (&["frames", "x.kpat"], "frames"),
    ] {
        let tsv = text(&[list, &["--tsv"]].concat());
        let json: serde_json::Value = serde_json::from_str(&text(&[list, &["--json"]].concat())).unwrap();
        let rows = json[field].as_array().unwrap();
        let mut lines = tsv.lines().map(|l| l.split('\t').collect::<Vec<_>>());
        let mut head = lines.next().unwrap();
        let first = lines.next().unwrap();
        assert_eq!((lines.count() + 1, first.len()), (rows.len(), head.len()), "{list:?}");
        for (name, cell) in head.iter().zip(&first) {
            match &rows[0][*name] {
                serde_json::Value::Number(n) => assert_eq!(n.to_string(), *cell, "{list:?} {name}"),
                // Of the packets of a frame, or null.
                serde_json::Value::Null if field != "frames" => assert_eq!(*cell, "", "{list:?} {name}"),
                _ => {}
            }
        }
        // Objects are no cells: of a frame's packets there are fields, a call's packet is in the list of packets.
        let objects = |v: &serde_json::Value| {
            v.is_object() || v.as_array().is_some_and(|a| a.first().is_some_and(|v| v.is_object()))
        };
        let mut want: Vec<&str> = rows[0].as_object().unwrap().keys().map(String::as_str).collect();
        if field == "frames" {
            let of_packet = rows[0]["packets"][0].as_object().unwrap().keys().map(String::as_str);
            want.extend(of_packet.filter(|k| !matches!(*k, "alternatives" | "seq_offset_bytes")));
        }
        want.retain(|k| !objects(&rows[0][*k]) && *k != "packet");
        want.sort_unstable();
        head.sort_unstable();
        assert_eq!(head, want, "{list:?}");
    }
    // The fixture's packets and how long they took.
    assert_eq!(
        text(&["packets", "x.kpat", "--tsv", "--columns", "packet_id,path_ns", "--no-header", "-n", "1"]),
        "1\t93000\n"
    );
    assert_eq!(
        text(&["packets", "x.kpat", "--columns", "verdict,id", "--no-header", "tcp"]),
        "transformed   4\n"
    );
    // Every column of a packet is a head, and what it says is the value of its first field.
    let named = kpat_query::columns::PACKET_COLUMNS.iter().filter_map(|c| Some((c.head.names().first()?, c)));
    let rows: serde_json::Value = serde_json::from_str(&text(&["packets", "x.kpat", "--json"])).unwrap();
    let mut values = 0;
    for (head, column) in named {
        let shown = text(&["packets", "x.kpat", "--columns", head, "--no-header"]);
        let shown: Vec<&str> = shown.lines().map(str::trim).collect();
        let of_json = rows["packets"].as_array().unwrap().iter().map(|p| &p[column.fields[0].name]);
        if column.unit == kpat_query::columns::Unit::Plain
            && !["ifindex", "process", "interfaces", "source", "destination", "info"].contains(head)
        {
            for (value, shown) in of_json.zip(&shown) {
                let want = match value {
                    serde_json::Value::Null => String::new(),
                    serde_json::Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                assert_eq!(want, *shown, "{head}");
                values += usize::from(!shown.is_empty());
            }
        }
        assert_eq!(shown.len(), 4, "{head}");
    }
    assert!(values > 20, "{values}");
    let all = text(&["packets", "x.kpat", "--columns", "ID,drop-reason"]);
    assert_eq!(
        all.lines().map(|l| l.split_whitespace().next().unwrap()).collect::<Vec<_>>(),
        ["id", "1", "2", "3", "4"]
    );
    for wrong in [&["--columns", "nope"][..], &["--tsv", "--columns", "path"]] {
        let done = kpat(&folder, &[&["packets", "x.kpat"], wrong].concat());
        let words = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{words}");
        assert!(words.contains("there are ") && done.stdout.is_empty(), "{words}");
    }
}

#[test]
fn wall_times_stand_beside_boot_times() {
    let folder = Folder::new("wall");
    fixture::integrated(&folder);
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&kpat(&folder, &[args, &["--json"]].concat()).stdout).unwrap()
    };
    let list = json(&["packets", "x.kpat"]);
    let offset = list["start_wall_ns"].as_i64().unwrap() - list["start_boot_ns"].as_i64().unwrap();
    let first = &list["packets"][0];
    let ns = |v: &serde_json::Value| v.as_i64().unwrap();
    assert_eq!(ns(&first["first_wall_ns"]) - ns(&first["first_boot_ns"]), offset);
    let event = &json(&["events", "x.kpat"])["events"][0];
    assert_eq!(ns(&event["at_wall_ns"]) - ns(&event["at_boot_ns"]), offset);
    // As text has it, to the nanosecond.
    let text = kpat(&folder, &["packets", "x.kpat", "--utc", "--columns", "time", "--no-header", "-n", "1"]);
    let nanos = format!("{:09}", ns(&first["first_wall_ns"]) % 1_000_000_000);
    assert!(String::from_utf8(text.stdout).unwrap().trim_end().ends_with(&format!(".{nanos}")));
}

/// tc counted what its queue dropped (`recorded_logs/truth.txt`, port 9001), nstat and the sockets the rest.
#[test]
fn events_are_counted_by_reason() {
    let folder = Folder::new("events-by");
    let logs = concat!(env!("CARGO_MANIFEST_DIR"), "/../integrate/tests/recorded_logs");
    let truth = std::fs::read_to_string(format!("{logs}/truth.txt")).unwrap();
    let dropped = |log: &str, port: &str| -> u64 {
        let line = truth.lines().find(|l| l.starts_with(&format!("{log} {port} dropped "))).unwrap();
        line.split(' ').next_back().unwrap().parse().unwrap()
    };
    let log = "queue-drops-points";
    std::fs::copy(format!("{logs}/{log}.kbl"), folder.0.join("x.kbl")).unwrap();
    assert!(kpat(&folder, &["integrate", "x.kbl", "-q"]).status.success());
    let by = |what: &str, more: &[&str]| -> serde_json::Value {
        let args = [&["events", "x.kpat", "--kind", "drop", "--json", "--by", what], more].concat();
        serde_json::from_slice(&kpat(&folder, &args).stdout).unwrap()
    };
    let reasons = by("reason", &[]);
    let first = &reasons["groups"][0];
    assert_eq!((&first["kind"], &first["name"]), (&"drop".into(), &"QDISC_DROP".into()), "{reasons}");
    assert_eq!(first["events"], dropped(log, "9001"), "{reasons}");
    assert_eq!(by("reason", &["-n", "1"])["shown"], 1);
    let sum = |v: &serde_json::Value| {
        v["groups"].as_array().unwrap().iter().map(|g| g["events"].as_u64().unwrap()).sum::<u64>()
    };
    for what in ["kind", "place", "process"] {
        assert_eq!(sum(&by(what, &[])), sum(&reasons), "{what}");
    }
    let text =
        kpat(&folder, &["events", "x.kpat", "--by", "reason", "--tsv", "--columns", "name,events"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains(&format!("QDISC_DROP\t{}\n", dropped(log, "9001"))));
}
